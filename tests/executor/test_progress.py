"""Progress: lines that do not flood, a display that no poll can end, and the funnel as text.

And the time that is left: by a plan, by the last run, by the defaults.
"""

import io
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from curator.executor import progress as module
from curator.executor.end_time import Expected, ProgressStep, StageState
from curator.executor.progress import Progress
from curator.pipeline import graph_of
from curator.recipe import Recipe
from curator.tools.report.funnel import format_funnel


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def fast_polls(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "POLL_S", 0.005)
    yield
    assert not _polls()


def test_plain_progress_writes_no_more_than_a_line_in_ten_seconds(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress(stream=stream) as progress:
        progress.stage("analyze")
        for n_kept in range(61):
            progress.clips(n_kept)
            clock.now += 0.5
    assert len(stream.getvalue().splitlines()) == 1 + 3


def test_display_goes_by_the_declared_steps() -> None:
    """Pins nouns, the estimate, and the order: steps that began, declared or not, then the rest."""
    with Progress(stream=io.StringIO(), live=False) as progress:
        progress.expect(Expected.typical(STEPS), STEPS)
        progress.stage("scan")
        progress.stage("hash")
        progress.work(2, 0.0)
        assert "0 of 2 items" in progress.line()
        shown = progress._render_stages().plain.split()
        assert [word for word in shown if ":" not in word] == ["scan", "hash", "score", "publish"]
        progress.stage("score")
        progress.work(4, 0.0)
        progress.clips(7)
        assert "0 of 4 takes, 7 clips kept so far" in progress.line()
        progress.stage("publish")
        progress.clips(6)
        assert progress.line().endswith("6 clips kept")
    assert Expected.typical(STEPS).seconds == {"scan": 1.0, "score": 3.0}


@pytest.mark.usefixtures("fast_polls")
def test_line_says_how_far_how_fast_and_how_long(clock: Clock) -> None:
    """What an earlier run did counts as done and for no rate: numbers are those of the summary."""
    stream = io.StringIO()
    steps = graph_of(Recipe()).steps()
    with Progress(stream=stream) as progress:
        progress.expect(Expected.typical(steps), steps)
        progress.stage("analyze")
        progress.sources(40)
        progress.work(40, 36_000.0)
        progress.clips(7)
        with progress.polling(lambda: (10, 9_000.0)):
            clock.now += 300
            _wait_for(stream, "left")
        progress.stage("cut")
        progress.work(4, 40.0, n_before=8)
        with progress.polling(lambda: (1, 10.0)):
            clock.now += 60
            _wait_for(stream, "0.167x")
    lines = stream.getvalue().splitlines()
    assert lines[1][:-5] == (
        "curate 0:05:00 analyze: 10 of 40 sources, 2.5 h of 10.0 h of video (25%), 30x real time, "
        "7 clips kept so far, 0:21:32 left, ends "
    )
    assert "cut: 9 of 12 clips, 10.0 s of 40.0 s of video (25%), 0.167x real time" in lines[-1]


@pytest.mark.usefixtures("fast_polls")
def test_poll_or_block_that_raises_ends_no_run_and_leaves_no_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = []

    def poll() -> tuple[int, float]:
        calls.append(1)
        raise RuntimeError("the cluster went away")

    def work() -> None:
        _wait(lambda: len(calls) >= 3)
        raise KeyError("work")

    caplog.set_level(logging.DEBUG, logger="curator.executor.progress")
    with (
        Progress(stream=io.StringIO()) as progress,
        pytest.raises(KeyError),
        progress.polling(poll),
    ):
        work()
    assert [record.levelname for record in caplog.records] == ["DEBUG"]


def test_poll_that_hangs_does_not_hold_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.005)
    monkeypatch.setattr(module, "JOIN_S", 0.05)
    hangs, release = threading.Event(), threading.Event()

    def poll() -> tuple[int, float]:
        hangs.set()
        release.wait()
        return 99, 99.0

    stream = io.StringIO()
    with Progress(stream=stream) as progress:
        progress.stage("cut")
        with progress.polling(poll):
            assert hangs.wait(5)
        release.set()
        progress.stage("shard")
        _wait(lambda: not _polls())
    assert "99" not in stream.getvalue()


def test_plain_lines_need_no_rich_and_a_stream_that_fails_ends_no_run() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    with Progress(stream=Full()) as progress:
        progress.stage("list")
    # Rich is not imported for plain lines.
    code = (
        "import io, sys; from curator.executor.progress import Progress\n"
        "with Progress(stream=io.StringIO()) as p: p.stage('list')\n"
        "assert 'rich.live' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_live_display_keeps_log_records_and_gives_the_handler_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        with Progress(live=True) as progress:
            progress.stage("analyze")
            logging.getLogger("test").warning("a warning in between")
            assert handler.stream is not stream
        assert handler.stream is stream
    finally:
        root.removeHandler(handler)
    assert "a warning in between" in stream.getvalue()


def test_funnel_as_text() -> None:
    summary = {
        "reasons": [
            {"name": name, "words": "", "is_listed": True}
            for name in ("too_short", "motion_too_low", "duplicate")
        ],
        "counts": {
            "sources": 1200, "done": 1195, "failed": 5, "skipped_names": 2,
            "by_error": {"not_a_video": 4, "no_frames": 1},
            "clips": 5000, "kept": 1250, "rejected": 3750,
            "by_reason": {"duplicate": 250, "motion_too_low": 2500, "too_short": 1000},
        },
        "video_s": 144_000.0,
        "kept_s": 5400.0,
        "shards": [{"bytes": 1_000_000_000}, {"bytes": 500_000_000}],
    }  # fmt: skip
    assert format_funnel(summary).splitlines() == [
        "sources                       1,200  and 2 not video by name or content",
        "  failed                          5  4 not_a_video, 1 no_frames",
        "  done                        1,195  40.0 h of video",
        "candidate clips               5,000",
        "  too_short                  -1,000  4,000 left",
        "  motion_too_low             -2,500  1,500 left",
        "  duplicate                    -250  1,250 left",
        "kept                          1,250  25% of clips, 1.5 h",
        "shards                            2  1.5 GB",
    ]


STEPS = (
    ProgressStep(name="scan", noun="source", time_share=1.0),
    ProgressStep(name="score", noun="take", time_share=3.0, is_before_decisions=True),
    ProgressStep(name="publish"),
)
HALVES = Expected(seconds={"analyze": 60.0, "cut": 40.0})
PLANNED = Expected(seconds={"list": 1.0, "analyze": 600.0, "cut": 400.0}, is_planned=True)


def at(stage: str | None, elapsed_s: float, done: float | None, reached_s: float) -> StageState:
    return StageState(name=stage, elapsed_s=elapsed_s, done=done, reached_s=reached_s)


def test_the_time_that_is_left_by_the_last_run_and_by_a_plan() -> None:
    assert HALVES.left({}, at("scan", 5.0, 0.9, 5.0)) is None
    assert HALVES.left({}, at("analyze", 5.0, None, 5.0)) is None
    assert HALVES.left({}, at("analyze", 5.0, 0.09, 5.0)) is None
    # Stages to come go by the pace of those that worked.
    left = HALVES.left({"scan": 3.0}, at("analyze", 30.0, 0.25, 30.0))
    assert left == {"analyze": 90.0, "cut": 80.0}
    assert HALVES.left({"analyze": 120.0}, at("cut", 40.0, 0.5, 40.0)) == {"cut": 40.0}
    assert HALVES.left({"analyze": 120.0}, at("select", 1.0, None, 1.0)) == {"cut": 80.0}
    # A unit that works for long does not slow the rest.
    assert HALVES.left({}, at("analyze", 45.0, 0.25, 30.0)) == {"analyze": 75.0, "cut": 80.0}
    # Generations to come take as long as this one.
    left = Expected(seconds={"analyze": 120.0, "cut": 80.0}).left(
        {}, at("analyze", 30.0, 0.5, 30.0), generations=(1, 2)
    )
    assert left == {"analyze": 30.0 + 60.0, "cut": 40.0 + 40.0}
    # No stage has a known rest: that is no rest of 0 s.
    assert HALVES.left({"analyze": 120.0, "cut": 80.0}, at("commit", 5.0, None, 5.0)) is None
    # A plan speaks from the beginning and gives way to the run.
    assert PLANNED.left({}, at("analyze", 0.0, None, 0.0)) == {"analyze": 600.0, "cut": 400.0}
    left = PLANNED.left({}, at("analyze", 600.0, 0.5, 600.0))
    assert left is not None
    assert left["analyze"] == pytest.approx(500, abs=1)
    assert left["cut"] == pytest.approx(400 * 1120 / 620)


def test_the_cut_goes_by_its_work_and_the_speed_of_the_analysis() -> None:
    typical = Expected(seconds={"analyze": 60.0, "cut": 40.0}, is_typical=True)
    works = {"analyze": 100.0, "cut": 10.0}
    # 100 s until workers began count for no speed: 20 of 100 in 20 s.
    now = StageState(name="analyze", elapsed_s=120.0, done=0.2, reached_s=120.0, idle_s=100.0)
    assert typical.left({}, now, works) == {"analyze": 80.0, "cut": 10.0}
    # No clip is kept so far.
    assert typical.left({}, now, {"analyze": 100.0, "cut": 0.0}) == {"analyze": 80.0}
    # The cut begins: no share of it is done, and its time is known.
    ended, idle_s = {"analyze": 200.0}, {"analyze": 100.0}
    assert typical.left(ended, at("cut", 2.0, 0.0, 2.0), works, idle_s) == {"cut": 8.0}
    # Its own speed takes over.
    left = typical.left(ended, at("cut", 20.0, 0.5, 20.0), works, idle_s)
    assert left is not None
    assert left["cut"] == pytest.approx((20 + 1) / 0.6 - 20)
    # What the last run took counts as well: 200 / 60 * 40 s by that, 10 s by the work.
    left = HALVES.left({}, replace(now, done=0.3), works)
    assert left is not None
    whole_s = 100 + 20 / 0.3
    assert left["cut"] == pytest.approx((10 * (whole_s - 100) / 100 + whole_s * 40 / 60) / 2)


def test_progress_within_a_unit_is_shown_and_never_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A unit begins again after its worker died; the last poll is after the last result."""
    monkeypatch.setattr(module, "POLL_S", 0.005)
    reports = iter([(0, 41.0, 20.0), (0, 5.0, 2.0), (11, 370.0, 180.0)])
    shown: list[tuple[int, float, float]] = []

    def listen(progress: Progress) -> None:
        state = progress.state()
        shown.append((state["done"], state["done_s"], state["share_done"]))

    now = [(0, 0.0, 0.0)]

    def poll() -> tuple[int, float, float]:
        now[0] = next(reports, now[0])
        return now[0]

    with Progress(stream=io.StringIO(), listener=listen) as progress:
        progress.stage("analyze")
        progress.work(12, 380.0, work_s=190.0)
        with progress.polling(poll):
            _wait(lambda: len(shown) >= 2)
            assert "0 of 12 items, 41.0 s of 6.3 min of video (11%)" in progress.line()
            _wait(lambda: next(reports, None) is None and len(shown) >= 4)
            now[0] = (12, 380.0, 190.0)
        assert shown == sorted(shown)
        assert shown[-1] == (12, 380.0, 1.0)
        n_shown = len(shown)
        assert not _polls()
        progress.stage("cut")
        assert "380" not in progress.line()
        assert len(shown) == n_shown + 1


def _polls() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "progress"]


def _wait_for(stream: io.StringIO, text: str) -> None:
    _wait(lambda: text in stream.getvalue())


def _wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.005)
