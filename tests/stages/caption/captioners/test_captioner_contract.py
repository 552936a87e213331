"""Custom captioners: where they run, the effect of exceptions, and wrong names."""

import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError
from served import Kept, annotations_of
from vlm import marked_frames, marked_task

from curator.errors import ModelError, RecipeError
from curator.models.server_access import backoff_s
from curator.stages.caption.caption_records import Frames, Request, Task, Unanswered
from curator.stages.caption.captioners.captioner_contract import (
    Captioner,
    Place,
    RequestLimit,
    captioner_class,
)
from curator.stages.caption.captioners.dialog_runner import DialogRunner
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.window_dialog import make_dialogs
from curator.stages.caption.reply_store import replies_fingerprint

CONFIG: dict[str, Any] = {"captioner": "mine:Mine", "lengths": ["medium"], "in_flight": 2}


class Mine(Captioner):
    """Answers with the clip's name; raises for clip 3, and ends the run for clip 4."""

    place = Place.SERVICE
    calls = 0

    def setup(self) -> None:
        self.is_ready = True

    def answer(self, request: Request, frames: Frames) -> dict[str, str]:
        assert self.is_ready
        type(self).calls += 1
        (height, width, channels) = frames.arrays()[0].shape
        assert (height, width, channels) == (64, 64, 3)
        if request.task.clip_id == "clip-3":
            raise ValueError("no such colour")
        if request.task.clip_id == "clip-4":
            raise ModelError("the service is closed today")
        return {"medium": f"A small film with the name {request.task.clip_id} is on a wall."}


@pytest.fixture(autouse=True)
def mine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = types.ModuleType("mine")
    vars(module).update(Mine=Mine, Other=dict, AsyncAnswer=AsyncAnswer, OwnClient=OwnClient)
    monkeypatch.setitem(sys.modules, "mine", module)
    return


def windows(*clips: int) -> list[tuple[Task, Frames]]:
    return [(marked_task(clip), marked_frames(clip)) for clip in clips]


def runner_of(captioner: type[Captioner] = Mine, budget_s: float = 60) -> DialogRunner:
    config = CaptionConfig.model_validate(CONFIG)
    return DialogRunner(make_dialogs(config), {"captioner": captioner(config)}, budget_s=budget_s)


def test_exceptions_of_a_captioner_cost_one_window_and_errors_of_this_package_the_run() -> None:
    """Pins that such a failure is not stored, so another run sends the request again."""
    kept = Kept()
    *answered, failed = annotations_of(runner_of(), windows(1, 2, 3), kept)
    for annotation in answered:
        assert annotation.answer is not None
        assert annotation.task.clip_id in str(annotation.answer.medium)
    assert failed.failure is Unanswered.CAPTIONER_ERROR
    assert failed.detail == "ValueError: no such colour"
    assert len(kept) == 2
    # Errors of this package end the run.
    with pytest.raises(ModelError, match="the service is closed today"):
        annotations_of(runner_of(), windows(4))


def test_another_version_has_other_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    config = CaptionConfig.model_validate(CONFIG)
    before = replies_fingerprint(config)
    monkeypatch.setattr(Mine, "version", 2)
    assert replies_fingerprint(config) != before


def test_names_that_lead_nowhere_are_refused_with_a_remedy() -> None:
    with pytest.raises(ValidationError, match="unknown captioner 'opnai'; did you mean 'openai'"):
        CaptionConfig(captioner="opnai")
    with pytest.raises(RecipeError, match="mine:Other' is no Captioner; expected a subclass"):
        captioner_class("mine:Other")
    with pytest.raises(RecipeError, match="'absent:Mine' cannot be imported") as refused:
        captioner_class("absent:Mine")
    for remedy in ("put its folder in PYTHONPATH", "--set caption.captioner=measured"):
        assert remedy in str(refused.value)
    for name in ("mine:AsyncAnswer", "mine:OwnClient"):
        with pytest.raises(RecipeError, match=rf"'{name}' answers asynchronously.*a plain method"):
            captioner_class(name)
    assert all(issubclass(captioner_class(name), Captioner) for name in ("openai", "local"))


def test_a_captioner_gets_no_more_requests_than_its_place_allows() -> None:
    """Pins the documentation of `Place`, and that a clip's windows share a budget."""
    counted, running = threading.Lock(), Counter[str]()

    class Slow(Mine):
        def answer(self, request: Request, frames: Frames) -> dict[str, str]:
            with counted:
                running["now"] += 1
                running["most"] = max(running["most"], running["now"])
            time.sleep(0.2)
            with counted:
                running["now"] -= 1
            return super().answer(request, frames)

    tasks = [replace(marked_task(1, n), content=f"pixels-{n}") for n in range(12)]
    asked = [(task, marked_frames(1)) for task in tasks]
    failures = Counter(one.failure for one in annotations_of(runner_of(Slow, 0.5), asked))
    assert running["most"] == 2
    # Two at a time start at 0, 0.2 and 0.4 s; on a busy machine fewer do.
    assert 1 <= failures[None] <= 8
    assert failures[None] + failures[Unanswered.OVER_BUDGET] == 12
    # A model in the worker gets one at a time.
    running.clear()
    Slow.place = Place.WORKER
    assert all(one.answer for one in annotations_of(runner_of(Slow), windows(1, 2, 5)))
    assert running["most"] == 1


class AsyncAnswer(Mine):
    """Answers in an event loop."""

    async def answer(self, request: Request, frames: Frames) -> str:  # type: ignore[override]
        return ""


class OwnClient(Mine):
    """Has the method by which older versions answered in an event loop."""

    def client(self) -> None: ...


def test_requests_are_as_many_as_the_server_takes() -> None:
    """Pins that answers restore slots, up to the maximum."""
    limit = RequestLimit(32)
    assert all(limit.acquire() for _ in range(32))
    for _ in range(24):
        limit.was_refused(1.0)
        limit.release()
    assert limit.limit == 8
    assert not limit.acquire(time.monotonic())
    limits = []
    for _ in range(1000):
        limit.went_well()
        limits.append(int(limit.limit))
    assert (limits[6], limits[9], limits[-1]) == (8, 9, 32)
    # Each free slot wakes one waiting thread.
    limit = RequestLimit(2)

    def request(_: int) -> None:
        assert limit.acquire()
        time.sleep(0.001)
        limit.release()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(request, range(200), timeout=30))
    # No dialog begins while a server refuses all requests.
    limit = RequestLimit(4)
    limit.acquire()
    limit.was_refused(0.2)
    limit.release()
    assert not limit.acquire(time.monotonic() + 0.05)
    began = time.monotonic()
    assert limit.acquire()
    assert time.monotonic() - began >= 0.1


@pytest.mark.parametrize("wait", ["acquire", "sleep"])
def test_closing_ends_all_waits(wait: str) -> None:
    limit = RequestLimit(1)
    limit.acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(limit.acquire) if wait == "acquire" else pool.submit(limit.sleep, 60)
        threading.Timer(0.05, limit.close).start()
        with pytest.raises(CancelledError):
            waiting.result(10)


@pytest.mark.parametrize(
    ("n_tries", "asked_s", "least", "most"),
    [(1, None, 0.5, 1), (4, None, 4, 8), (40, None, 30, 60), (1, 7.0, 7, 7.7), (1, 30.0, 30, 31)],
)
def test_waits_grow_and_are_never_less_than_the_server_asks(
    n_tries: int, asked_s: float | None, least: float, most: float
) -> None:
    waits = [backoff_s(n_tries, asked_s) for _ in range(200)]
    assert least <= min(waits) < max(waits) <= most
