"""The runner: many dialogs at once, each answered by its own frames, none twice."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from marked import marked_frames, marked_task
from served import FakeServer, given, rest_of

from curator.errors import ServerError, StorageError
from curator.stages.caption.caption_records import (
    Annotation,
    Answer,
    Frames,
    Reply,
    Request,
    Role,
    Sampling,
    Task,
    Turn,
    Unanswered,
)
from curator.stages.caption.captioners.chat_server import ServerCaptioner
from curator.stages.caption.captioners.dialog_batches import Keep
from curator.stages.caption.captioners.dialog_runner import DialogRunner
from curator.stages.caption.config import ModelConfig
from curator.stages.caption.dialogs.window_dialog import Dialog, Dialogs


def request_about(task: Task, words: str, *, seed: int = 0, role: Role = "captioner") -> Request:
    return Request(
        role=role,
        model="tiny-vlm",
        task=task,
        system="",
        turns=(Turn(role="user", text=words),),
        sampling=Sampling(max_tokens=64, temperature=0.2, top_p=0.9, seed=seed),
    )


def annotation_of(task: Task, *replies: Reply) -> Annotation:
    """The text of the last reply, or the first failure."""
    for reply in replies:
        if reply.failure is not None:
            return Annotation(task=task, failure=reply.failure, detail=reply.detail)
    return Annotation(task=task, answer=Answer(medium=replies[-1].text))


def one_question(task: Task) -> Dialog:
    replies = yield [request_about(task, "What is it?")]
    return annotation_of(task, *replies)


def two_and_a_judge(task: Task) -> Dialog:
    """Two candidates at once, then one request to the judge that quotes them."""
    candidates = yield [request_about(task, "What is it?", seed=seed) for seed in (1, 2)]
    quoted = " ".join(reply.text for reply in candidates)
    judged = yield [request_about(task, f"Judge: {quoted}", role="judge")]
    return annotation_of(task, *candidates, *judged)


class Kept(dict[str, Reply]):
    """Replies that are stored; knows of each how often."""

    def __init__(self) -> None:
        super().__init__()
        self.times: Counter[str] = Counter()

    def keep(self, key: str, reply: Reply) -> None:
        self.times[key] += 1
        self[key] = reply


def runner_of(
    config: ModelConfig,
    *,
    dialogs: Dialogs = one_question,
    kept: Kept | None = None,
    keep: Keep | None = None,
    replies: Mapping[str, Reply] | None = None,
    budget_s: float = 60.0,
    backoff_s: float = 0.02,
    read_ahead: int = 8,
) -> DialogRunner:
    stored = Kept() if kept is None else kept
    server = ServerCaptioner(config, backoff_s=backoff_s)
    return DialogRunner(
        dialogs,
        {"captioner": server, "judge": server},
        find=(stored if replies is None else replies).get,
        keep=stored.keep if keep is None else keep,
        load=given,
        budget_s=budget_s,
        read_ahead=read_ahead,
    )


def all_of(
    runner: DialogRunner, clips: range, loader: Callable[[int], Frames] = marked_frames
) -> list[int]:
    """Asks about one window of each clip; the clips that the frames of each answer were of."""
    with closing(runner):
        for clip in clips:
            runner.submit(marked_task(clip), lambda clip=clip: loader(clip))
        found = rest_of(runner)
    assert Counter(each.task.clip_id for each in found) == Counter(f"clip-{i}" for i in clips)
    by_clip = {each.task.clip_id: each for each in found}
    return [clip_seen(by_clip[f"clip-{i}"]) for i in clips]


def clip_seen(annotation: Annotation) -> int:
    assert annotation.answer is not None, annotation
    marks = json.loads(annotation.answer.medium or "")["seen"]
    clips = {clip for clip, _ in marks}
    assert [frame for _, frame in marks] == [0, 1]
    assert len(clips) == 1
    return int(clips.pop())


def test_each_answer_is_of_its_own_clips_frames(fake_server: FakeServer) -> None:
    fake_server.start(delay_s=[0, 0.05])
    n_before = sum(fake_server.counts().values())
    kept = Kept()
    runner = runner_of(fake_server.config(in_flight=16), kept=kept)
    assert all_of(runner, range(150)) == list(range(150))
    assert set(kept.times.values()) == {1}
    assert sum(fake_server.counts().values()) - n_before == 150
    assert (len(kept), runner.n_open) == (150, 0)


def test_several_requests_and_a_judge_stay_with_their_window(fake_server: FakeServer) -> None:
    fake_server.start(delay_s=[0, 0.03])
    runner = runner_of(fake_server.config(in_flight=8), dialogs=two_and_a_judge)
    loads: Counter[int] = Counter()

    def load(clip: int) -> Frames:
        loads[clip] += 1
        return marked_frames(clip)

    assert all_of(runner, range(40), load) == list(range(40))
    # The judge was quoted what the captioner said of the same clip, twice.
    assert set(loads.values()) == {1}
    assert sum(fake_server.counts().values()) == 120


def test_as_soon_as_one_request_ends_another_begins(fake_server: FakeServer) -> None:
    fake_server.start(delay_s=[0.05, 0.4])
    runner = runner_of(fake_server.config(in_flight=12))
    all_of(runner, range(200), lambda clip: (time.sleep(0.002), marked_frames(clip))[1])
    # By what the server noted, and not by a clock: the machine may be busy with other things.
    events = fake_server.journal.read_text().split("\n")[:-1]
    steps = [1 if event.startswith("received") else -1 for event in events]
    under_way = list(itertools.accumulate(steps))
    assert max(under_way) == 12
    # In waves it would be 6 in the mean.
    middle = under_way[60:-60]
    assert sum(middle) / len(middle) > 8


def test_stored_replies_are_not_asked_for_and_need_no_frames(fake_server: FakeServer) -> None:
    fake_server.start()
    kept = Kept()
    all_of(runner_of(fake_server.config(), kept=kept), range(10))
    before = sum(fake_server.counts().values())

    def no_frames(clip: int) -> Frames:
        raise AssertionError(f"clip {clip} was loaded")

    again = runner_of(fake_server.config(), kept=kept)
    assert all_of(again, range(10), no_frames) == list(range(10))
    assert sum(fake_server.counts().values()) == before == 10


def test_equal_requests_in_flight_are_asked_once(fake_server: FakeServer) -> None:
    fake_server.start(service_s=0.2)
    kept = Kept()
    task = marked_task(3)
    twin = replace(task, clip_id="twin")
    with closing(runner_of(fake_server.config(), kept=kept)) as runner:
        runner.submit(task, marked_frames(3))
        runner.submit(twin, marked_frames(3))
        found = {each.task.clip_id: clip_seen(each) for each in rest_of(runner)}
    assert found == {"clip-3": 3, "twin": 3}
    assert sum(fake_server.counts().values()) == 1
    assert set(kept.times.values()) == {1}


def test_frames_are_loaded_shortly_before_their_turn(fake_server: FakeServer) -> None:
    fake_server.start(service_s=0.1)
    loaded = itertools.count()
    n_loaded = [0]

    def load(clip: int) -> Frames:
        n_loaded[0] = next(loaded) + 1
        return marked_frames(clip)

    with closing(runner_of(fake_server.config(in_flight=4), read_ahead=3)) as runner:
        for clip in range(60):
            runner.submit(marked_task(clip), lambda clip=clip: load(clip))
        most_ahead, n_found = 0, 0
        while runner.n_open:
            n_found += len(runner.poll(0.01))
            most_ahead = max(most_ahead, n_loaded[0] - n_found)
    assert n_found == 60
    # Those in flight and ahead, and up to a burst that ended since the last look.
    assert most_ahead <= 4 + 3 + 4


def test_every_fault_ends_in_one_annotation_or_one_reason(fake_server: FakeServer) -> None:
    faults = [
        {"status": 429, "headers": {"Retry-After": "0.1"}},
        {"status": 500, "body": "boom"},
        {"hang": 30},
        {"cut": True},
        {"status": 200, "body": "<html>"},
        {"status": 400, "body": "too long"},
        None,
    ]
    fake_server.start(delay_s=[0, 0.02], faults=faults * 6)
    kept = Kept()
    config = fake_server.config(in_flight=8, timeout_s=2, tries=20)
    with closing(runner_of(config, kept=kept)) as runner:
        for clip in range(80):
            runner.submit(marked_task(clip), marked_frames(clip))
        found = rest_of(runner)
    assert sorted(each.task.clip_id for each in found) == sorted(f"clip-{i}" for i in range(80))
    for each in found:
        if each.failure is None:
            assert each.task.clip_id == f"clip-{clip_seen(each)}"
    # A 400 that comes after its time-out is nobody's, on a machine that is very busy.
    failures = Counter(each.failure for each in found)
    assert set(failures) == {None, Unanswered.REFUSED_REQUEST}
    assert 0 < failures[Unanswered.REFUSED_REQUEST] <= 6
    assert set(kept.times.values()) == {1}
    assert len(kept) == 80 - failures[Unanswered.REFUSED_REQUEST]


def test_failures_that_pass_are_not_kept(fake_server: FakeServer) -> None:
    fake_server.start(faults=[{"status": 500}] * 2)
    kept = Kept()
    with closing(runner_of(fake_server.config(tries=1), kept=kept)) as runner:
        for clip in range(3):
            runner.submit(marked_task(clip), marked_frames(clip))
        found = rest_of(runner)
    failures = Counter(each.failure for each in found)
    assert failures == {Unanswered.SERVER_ERROR: 2, None: 1}
    assert len(kept) == 1


def test_a_server_that_is_killed_and_comes_back(fake_server: FakeServer) -> None:
    fake_server.start(service_s=0.03, slots=6)
    kept = Kept()
    found: list[Annotation] = []
    with closing(runner_of(fake_server.config(in_flight=8), kept=kept, backoff_s=0.05)) as runner:
        for clip in range(90):
            runner.submit(marked_task(clip), marked_frames(clip))
        for _ in range(2):
            n_before = len(found)
            while len(found) < n_before + 20:
                found += runner.poll(None)
            fake_server.kill()
            time.sleep(0.3)
            fake_server.start(service_s=0.03, slots=6)
        found += rest_of(runner)
    assert Counter(each.task.clip_id for each in found) == Counter(f"clip-{i}" for i in range(90))
    assert all(each.task.clip_id == f"clip-{clip_seen(each)}" for each in found)
    assert set(kept.times.values()) == {1}
    # What was answered was not asked again.
    assert set(fake_server.counts("answered").values()) == {1}


def test_the_budget_of_a_clip_counts_from_its_first_request(fake_server: FakeServer) -> None:
    fake_server.start(service_s=0.6)
    with closing(runner_of(fake_server.config(in_flight=1), budget_s=2.0)) as runner:
        # Five clips, one at a time: each takes less than its budget, and all together more.
        for clip in range(5):
            runner.submit(marked_task(clip), marked_frames(clip))
        # One clip whose four windows together take more.
        for window in range(4):
            task = marked_task(7, window)
            runner.submit(replace(task, content=f"pixels-7-{window}"), marked_frames(7))
        found = rest_of(runner)
    failures = {(each.task.clip_id, each.task.window.index): each.failure for each in found}
    assert [failures[f"clip-{i}", 0] for i in range(5)] == [None] * 5
    # Threads ask in any order.
    of_one = [failures["clip-7", window] for window in range(4)]
    assert None in of_one
    assert Unanswered.OVER_BUDGET in of_one


def test_frames_that_cannot_be_had_are_an_outcome(fake_server: FakeServer) -> None:
    fake_server.start()

    def gone() -> Frames:
        raise StorageError("frames/1 is gone")

    with closing(runner_of(fake_server.config(), dialogs=two_and_a_judge)) as runner:
        runner.submit(marked_task(1), gone)
        runner.submit(marked_task(2), marked_frames(2))
        found = {each.task.clip_id: each for each in rest_of(runner)}
    assert found["clip-1"].failure is Unanswered.NO_FRAMES
    assert found["clip-1"].detail == "frames/1 is gone"
    assert clip_seen(found["clip-2"]) == 2


def test_a_wrong_key_ends_the_runner_and_is_raised(fake_server: FakeServer) -> None:
    fake_server.start(key="another")
    kept = Kept()

    def ask_all(runner: DialogRunner) -> None:
        for clip in range(50):
            runner.submit(marked_task(clip), marked_frames(clip))
        rest_of(runner)

    with closing(runner_of(fake_server.config(), kept=kept)) as runner:
        # On a busy machine the runner may have ended while windows are still submitted.
        with pytest.raises(ServerError, match="OPENAI_API_KEY is not set"):
            ask_all(runner)
        with pytest.raises(ServerError, match="OPENAI_API_KEY is not set"):
            runner.submit(marked_task(99), marked_frames(99))
    assert not kept


def test_what_cannot_be_kept_ends_the_runner(fake_server: FakeServer) -> None:
    fake_server.start()
    stored, one_at_a_time = Kept(), threading.Lock()

    def keep(key: str, reply: Reply) -> None:
        with one_at_a_time:
            if len(stored) == 5:
                raise OSError("no space left")
            stored.keep(key, reply)

    found: list[Annotation] = []

    def poll_to_the_end() -> None:
        # On a busy machine the runner may have ended while windows are still submitted.
        for clip in range(20):
            runner.submit(marked_task(clip), marked_frames(clip))
        while some := runner.poll(None):
            found.extend(some)

    runner = runner_of(fake_server.config(in_flight=2), keep=keep, replies=stored)
    with closing(runner), pytest.raises(OSError, match="no space left"):
        poll_to_the_end()
    # No window is told as answered whose reply is not stored.
    assert len(found) <= 5
    assert not runner_threads()


def test_slow_storage_takes_several_replies_at_once(fake_server: FakeServer) -> None:
    """Pins that no reply waits until another one is stored."""
    fake_server.start()
    together, kept = threading.Barrier(4, timeout=30), Kept()

    def keep(key: str, reply: Reply) -> None:
        together.wait()
        kept.keep(key, reply)

    clips = range(4)
    assert all_of(runner_of(fake_server.config(), keep=keep, replies=kept), clips) == list(clips)
    assert len(kept) == 4


def test_a_defect_in_a_dialog_ends_the_runner(fake_server: FakeServer) -> None:
    fake_server.start()

    def wrong(task: Task) -> Dialog:
        yield [request_about(task, "What is it?")]
        return Annotation(task=marked_task(9), failure=Unanswered.EMPTY)

    with closing(runner_of(fake_server.config(), dialogs=wrong)) as runner:
        runner.submit(marked_task(1), marked_frames(1))
        with pytest.raises(RuntimeError, match=r"dialog about .*clip-1.*clip-9"):
            rest_of(runner)


def test_stopping_is_prompt_and_keeps_what_came(fake_server: FakeServer) -> None:
    fake_server.start(delay_s=[0, 0.02], faults=[None] * 10 + [{"hang": 60}] * 4)
    kept = Kept()

    def slowly(key: str, reply: Reply) -> None:
        time.sleep(0.02)
        kept.keep(key, reply)

    with closing(runner_of(fake_server.config(in_flight=4), keep=slowly, replies=kept)) as runner:
        for clip in range(100):
            runner.submit(marked_task(clip), marked_frames(clip))
        while sum(fake_server.counts().values()) != 14:
            runner.poll(0.01)
        began = time.monotonic()
    assert time.monotonic() - began < 1
    assert len(kept) == len(fake_server.counts("answered")) == 10
    assert not runner_threads()
    with pytest.raises(RuntimeError, match="has ended"):
        runner.submit(marked_task(1), marked_frames(1))


def test_polling_waits_as_long_as_it_is_told(fake_server: FakeServer) -> None:
    fake_server.start(service_s=0.4)
    with closing(runner_of(fake_server.config())) as runner:
        assert runner.poll() == []
        runner.submit(marked_task(1), marked_frames(1))
        assert runner.poll(0.05) == []
        assert [clip_seen(each) for each in runner.poll(None)] == [1]
        assert rest_of(runner) == []


def test_ctrl_c_ends_a_run_at_once(fake_server: FakeServer, tmp_path: Path) -> None:
    fake_server.start(faults=[{"hang": 60}])
    script = tmp_path / "wait.py"
    script.write_text(
        "import signal, sys\n"
        # A shell's background jobs ignore it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[3])]!r}\n"
        "from test_dialog_runner import *\n"
        f"config = ModelConfig(model='tiny-vlm', url='http://127.0.0.1:{fake_server.port}/v1')\n"
        "runner = runner_of(config)\n"
        "runner.submit(marked_task(1), marked_frames(1))\n"
        "rest_of(runner)\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, text=True)
    while not fake_server.counts():
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    began = time.monotonic()
    _, told = process.communicate(timeout=30)
    assert time.monotonic() - began < 5
    assert "KeyboardInterrupt" in told


def test_a_run_that_is_killed_repeats_nothing_that_was_kept(
    fake_server: FakeServer, tmp_path: Path
) -> None:
    fake_server.start(service_s=0.03, slots=4)
    kept_file = tmp_path / "kept"
    script = tmp_path / "run.py"
    script.write_text(
        "import sys\n"
        f"sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[3])]!r}\n"
        "from test_dialog_runner import *\n"
        f"config = ModelConfig(model='tiny-vlm', url='http://127.0.0.1:{fake_server.port}/v1',"
        " in_flight=4)\n"
        f"file = open({str(kept_file)!r}, 'a')\n"
        "def keep(key, reply):\n"
        "    print(key, reply.text, sep='\\t', file=file, flush=True)\n"
        "runner = runner_of(config, keep=keep)\n"
        "for clip in range(60):\n"
        "    runner.submit(marked_task(clip), marked_frames(clip))\n"
        "rest_of(runner)\n"
    )
    process = subprocess.Popen([sys.executable, str(script)])
    while not kept_file.exists() or kept_file.read_text().count("\n") < 20:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    kept = Kept()
    for line in kept_file.read_text().split("\n")[:-1]:
        key, text = line.split("\t")
        kept[key] = Reply(text=text)
    assert 20 <= len(kept) < 60
    runner = runner_of(fake_server.config(in_flight=4), kept=kept)
    assert all_of(runner, range(60)) == list(range(60))
    # Only what was under way at the kill was asked twice.
    again = [key for key, times in fake_server.counts().items() if times > 1]
    assert len(again) <= 4


def runner_threads() -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name.startswith("caption-")]
