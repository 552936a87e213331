"""The runner: many dialogs at once, each with its own frames, and no request twice."""

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from served import FakeServer, Kept, annotations_of
from vlm import marked_frames, marked_task, request_of

from curator.errors import CuratorError, ServerError, StorageError
from curator.stages.caption.caption_records import (
    Annotation,
    Answer,
    Frames,
    Reply,
    Role,
    Task,
    Unanswered,
)
from curator.stages.caption.captioners.captioner_contract import Captioner
from curator.stages.caption.captioners.chat_server import ServerCaptioner
from curator.stages.caption.captioners.dialog_runner import DialogRunner
from curator.stages.caption.config import ModelConfig
from curator.stages.caption.dialogs.window_dialog import Dialog, Dialogs


def annotation_of(task: Task, *replies: Reply) -> Annotation:
    """Returns the text of the last reply, or the first failure."""
    for reply in replies:
        if reply.failure is not None:
            return Annotation(task=task, failure=reply.failure, detail=reply.detail)
    return Annotation(task=task, answer=Answer(medium=replies[-1].text))


def one_question(task: Task) -> Dialog:
    replies = yield [request_of(task, "What is it?", model="tiny-vlm")]
    return annotation_of(task, *replies)


def two_and_a_judge(task: Task) -> Dialog:
    """Requests two candidates at once, then a judgement that quotes both."""
    candidates = yield [request_of(task, "What is it?", seed=seed) for seed in (1, 2)]
    quoted = " ".join(reply.text for reply in candidates)
    judged = yield [request_of(task, f"Judge: {quoted}", role="judge")]
    return annotation_of(task, *candidates, *judged)


def runner_of(
    config: ModelConfig,
    dialogs: Dialogs = one_question,
    *,
    budget_s: float = 60.0,
    backoff_s: float = 0.02,
    read_ahead: int = 8,
) -> DialogRunner:
    server = ServerCaptioner(config, backoff_s=backoff_s)
    models: dict[Role, Captioner] = {"captioner": server, "judge": server}
    return DialogRunner(dialogs, models, budget_s=budget_s, read_ahead=read_ahead)


def clips(numbers: range) -> list[tuple[Task, Frames]]:
    return [(marked_task(number), marked_frames(number)) for number in numbers]


def seen_by(runner: DialogRunner, windows: Sequence[Any], **stored: Any) -> list[int]:  # noqa: ANN401
    """Requests answers about windows; returns, for each answer, the clips of its frames."""
    return [clip_seen(each) for each in annotations_of(runner, windows, **stored)]


def clip_seen(annotation: Annotation) -> int:
    assert annotation.answer is not None, annotation
    marks = json.loads(annotation.answer.medium or "")["seen"]
    clips = {clip for clip, _ in marks}
    assert [frame for _, frame in marks] == [0, 1]
    assert len(clips) == 1
    return int(clips.pop())


def test_answers_and_a_judge_stay_with_their_own_clips_frames(fake_server: FakeServer) -> None:
    fake_server.start(delay_s=[0, 0.05])
    n_before = sum(fake_server.counts().values())
    kept = Kept()
    runner = runner_of(fake_server.config(in_flight=16))
    assert seen_by(runner, clips(range(150)), kept=kept) == list(range(150))
    assert set(kept.times.values()) == {1}
    assert len(kept) == 150
    # Stored replies need no request and no frames.
    again = [(marked_task(clip), lambda: pytest.fail("loaded")) for clip in range(150)]
    assert seen_by(runner_of(fake_server.config()), again, kept=kept) == list(range(150))
    assert sum(fake_server.counts().values()) - n_before == 150
    # Several requests and a judge stay with their window.
    fake_server.start(delay_s=[0, 0.03])
    loads: Counter[int] = Counter()

    def load(clip: int) -> Frames:
        loads[clip] += 1
        return marked_frames(clip)

    windows = [(marked_task(clip), partial(load, clip)) for clip in range(40)]
    runner = runner_of(fake_server.config(in_flight=8), two_and_a_judge)
    assert seen_by(runner, windows) == list(range(40))
    # The judge's prompt quotes both answers of the captioner about the same clip.
    assert set(loads.values()) == {1}
    assert sum(fake_server.counts().values()) == 120


def test_as_soon_as_one_request_ends_another_begins(fake_server: FakeServer) -> None:
    fake_server.start(delay_s=[0.05, 0.4])
    n_loaded, ended, most_ahead = itertools.count(1), Kept(), [0]

    def load(clip: int) -> Frames:
        time.sleep(0.002)
        most_ahead[0] = max(most_ahead[0], next(n_loaded) - len(ended))
        return marked_frames(clip)

    windows = [(marked_task(clip), partial(load, clip)) for clip in range(200)]
    seen_by(runner_of(fake_server.config(in_flight=12), read_ahead=3), windows, kept=ended)
    # From the server's record instead of a clock, because the machine may be busy.
    events = fake_server.journal.read_text().split("\n")[:-1]
    steps = [1 if event.startswith("received") else -1 for event in events]
    under_way = list(itertools.accumulate(steps))
    assert max(under_way) == 12
    # In waves, the mean would be 6.
    middle = under_way[60:-60]
    assert sum(middle) / len(middle) > 8
    # Frames are loaded shortly before their turn.
    assert most_ahead[0] <= 12 + 3 + 1


def test_equal_requests_in_flight_are_asked_once(fake_server: FakeServer) -> None:
    fake_server.start(service_s=0.2)
    kept, (task, frames) = Kept(), clips(range(3, 4))[0]
    twins = [(task, frames), (replace(task, clip_id="twin"), frames)]
    assert seen_by(runner_of(fake_server.config()), twins, kept=kept) == [3, 3]
    assert sum(fake_server.counts().values()) == 1
    assert set(kept.times.values()) == {1}


def test_every_fault_ends_in_one_annotation_or_one_reason(fake_server: FakeServer) -> None:
    faults = [
        {"status": 429, "headers": {"Retry-After": "0.1"}}, {"status": 500, "body": "boom"},
        {"hang": 30}, {"cut": True}, {"status": 200, "body": "<html>"},
        {"status": 400, "body": "too long"}, None,
    ]  # fmt: skip
    fake_server.start(delay_s=[0, 0.02], faults=faults * 2)
    kept = Kept()
    config = fake_server.config(in_flight=8, timeout_s=2, tries=20)
    answers = annotations_of(runner_of(config), clips(range(40)), kept)
    assert [each.task.clip_id for each in answers] == [f"clip-{i}" for i in range(40)]
    for each in answers:
        if each.failure is None:
            assert each.task.clip_id == f"clip-{clip_seen(each)}"
    # On a very busy machine, a 400 may come after its request timed out.
    failures = Counter(each.failure for each in answers)
    assert set(failures) == {None, Unanswered.REFUSED_REQUEST}
    assert 0 < failures[Unanswered.REFUSED_REQUEST] <= 2
    # Transient failures are not stored.
    assert set(kept.times.values()) == {1}
    assert len(kept) == 40 - failures[Unanswered.REFUSED_REQUEST]


@pytest.mark.long
def test_a_server_that_is_killed_and_comes_back(fake_server: FakeServer) -> None:
    fake_server.start(service_s=0.03, slots=6)
    kept, runner = Kept(), runner_of(fake_server.config(in_flight=8), backoff_s=0.05)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(annotations_of, runner, clips(range(90)), kept)
        for n_answers in (20, 40):
            while len(kept) < n_answers:
                time.sleep(0.005)
            fake_server.kill()
            time.sleep(0.3)
            fake_server.start(service_s=0.03, slots=6)
        answers = asked.result()
    assert list(map(clip_seen, answers)) == list(range(90))
    assert set(kept.times.values()) == {1}
    # Answered requests were not sent again, and failed connections do not count as tries.
    assert set(fake_server.counts("answered").values()) == {1}
    assert max(reply.n_tries for reply in kept.values()) <= 3


@pytest.mark.long
def test_the_budget_of_a_clip_counts_from_its_first_request(fake_server: FakeServer) -> None:
    fake_server.start(service_s=0.6)
    # Five clips, one at a time: each takes less than the budget, all together take more.
    windows = clips(range(5))
    # The four windows of one clip together take more.
    for window in range(4):
        task = replace(marked_task(7, window), content=f"pixels-7-{window}")
        windows.append((task, marked_frames(7)))
    runner = runner_of(fake_server.config(in_flight=1), budget_s=2.0)
    failures = [each.failure for each in annotations_of(runner, windows)]
    assert failures[:5] == [None] * 5
    assert set(failures[5:]) == {None, Unanswered.OVER_BUDGET}


def test_frames_that_cannot_be_had_are_an_outcome_and_a_wrong_key_ends_the_runner(
    fake_server: FakeServer,
) -> None:
    fake_server.start()

    def gone() -> Frames:
        raise StorageError("frames/1 is gone")

    runner = runner_of(fake_server.config(), two_and_a_judge)
    windows = [(marked_task(1), gone), (marked_task(2), marked_frames(2))]
    first, second = annotations_of(runner, windows)
    assert (first.failure, first.detail) == (Unanswered.NO_FRAMES, "frames/1 is gone")
    assert clip_seen(second) == 2
    # A wrong key ends the runner and is raised.
    fake_server.start(key="another")
    kept = Kept()
    with pytest.raises(ServerError, match="OPENAI_API_KEY is not set"):
        annotations_of(runner_of(fake_server.config()), clips(range(50)), kept)
    assert not kept
    assert not runner_threads()


def test_slow_storage_takes_several_replies_at_once_until_it_is_full(
    fake_server: FakeServer,
) -> None:
    """Pins that no reply waits for another to be stored; all are stored, or the run ends."""
    fake_server.start()
    together, kept, n_calls = threading.Barrier(4, timeout=30), Kept(), itertools.count()

    def keep(key: str, reply: Reply) -> None:
        if next(n_calls) >= 8:
            raise OSError("no space left")
        together.wait()
        kept.keep(key, reply)

    windows = clips(range(16))
    with pytest.raises(OSError, match="no space left"):
        annotations_of(runner_of(fake_server.config(in_flight=4)), windows, kept, keep)
    assert not runner_threads()


def test_stopping_is_prompt_and_keeps_what_came(fake_server: FakeServer) -> None:
    fake_server.start(delay_s=[0, 0.02], faults=[None] * 10 + [{"hang": 60}] * 4)
    kept = Kept()

    def slowly(key: str, reply: Reply) -> None:
        time.sleep(0.02)
        kept.keep(key, reply)

    runner = runner_of(fake_server.config(in_flight=4))
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(annotations_of, runner, clips(range(100)), kept, slowly)
        while sum(fake_server.counts().values()) != 14:
            time.sleep(0.01)
        began = time.monotonic()
        runner.close()
        with pytest.raises(CuratorError, match="the run has ended"):
            asked.result()
    assert time.monotonic() - began < 1
    assert len(kept) == len(fake_server.counts("answered")) == 10
    assert not runner_threads()


SCRIPT = """
import signal, sys
# A shell's background jobs ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path[:0] = {paths!r}
from test_dialog_runner import *
config = ModelConfig(model="tiny-vlm", url="http://127.0.0.1:{port}/v1", in_flight=4)
file = open({kept!r}, "a")
def keep(key, reply):
    print(key, reply.text, sep="\\t", file=file, flush=True)
annotations_of(runner_of(config), clips(range(60)), keep=keep)
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_repeats_nothing_that_was_kept(
    fake_server: FakeServer, tmp_path: Path, ending: signal.Signals
) -> None:
    """Pins that Ctrl-C ends the process at once, although requests hang."""
    is_killed = ending is signal.SIGKILL
    fake_server.start(
        service_s=0.03, slots=4, faults=[] if is_killed else [None] * 30 + [{"hang": 60}] * 4
    )
    kept_file = tmp_path / "kept"
    paths = [str(Path(__file__).parent), *(str(Path(__file__).parents[n]) for n in (3, 4))]
    script = SCRIPT.format(paths=paths, port=fake_server.port, kept=str(kept_file))
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    while not kept_file.exists() or kept_file.read_text().count("\n") < 20:
        assert process.poll() is None
        time.sleep(0.01)
    began = time.monotonic()
    process.send_signal(ending)
    _, told = process.communicate(timeout=30)
    assert time.monotonic() - began < 5
    assert is_killed or "KeyboardInterrupt" in told
    kept = Kept()
    for line in kept_file.read_text().split("\n")[:-1]:
        key, text = line.split("\t")
        kept[key] = Reply(text=text)
    assert 20 <= len(kept) < 60
    fake_server.set(faults=[])
    runner = runner_of(fake_server.config(in_flight=4))
    assert seen_by(runner, clips(range(60)), kept=kept) == list(range(60))
    # Only requests that ran at the end were sent twice.
    assert len([key for key, times in fake_server.counts().items() if times > 1]) <= 4


def runner_threads() -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name.startswith("caption-")]
