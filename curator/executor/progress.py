"""Shows the progress of a run: a live display on a terminal, plain lines elsewhere.

The remaining time is estimated from the pace of the run: the time that stages took so far, divided
by their expected time. A plan gives expected times in seconds. Without a plan, the last run into
the same output gives proportions, or else the declarations of the stages do.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TextIO

from curator.number_text import amount, clock, length

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.text import Text

logger = logging.getLogger(__name__)

POLL_S = 0.5
LINE_EVERY_S = 10.0
SAY_TOOK_S = 10.0
"""The display shows times of stages that took longer; the times of all would exceed 80 columns."""
DAY_S = 24 * 3600.0
JOIN_S = 2.0
"""Longest wait for a poll that hangs, for example because a cluster is gone, in seconds."""
PLAN_WEIGHT = 0.1
"""Weight of the plan in the estimate of the current stage, as a share of the stage's work."""
FIRST_SHARE = 0.1
"""Share of a stage's work after which the stage's own speed is used, if there is no plan."""
PLAN_S = 20.0
"""Weight of the plan in the pace of the run, in seconds, so that a slow start matters less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressStep:
    """What the display shows of a step of the run, as the step's stages declare it.

    Attributes:
        noun: Noun for an item of the step's work.
        time_share: Typical wall time, relative to other steps; 0 if unknown.
        is_before_decisions: Whether clips are kept only so far, because others are still proposed.
    """

    name: str
    noun: str = "item"
    time_share: float = 0.0
    is_before_decisions: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The expected times of stages.

    Attributes:
        seconds: Stage -> wall time, of all generations together.
        is_planned: Whether these are seconds of a plan; else only their proportions count.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    is_planned: bool = False

    @classmethod
    def typical(cls, steps: Sequence[ProgressStep]) -> "Expected":
        """Returns the typical proportions of steps, for a run without any other estimate."""
        return cls(seconds={step.name: step.time_share for step in steps if step.time_share})

    def left(
        self,
        ended: Mapping[str, float],
        stage: str | None,
        elapsed_s: float,
        done: float | None,
        reached_s: float,
        generations: tuple[int, int] = (1, 1),
    ) -> dict[str, float] | None:
        """Returns the remaining seconds by stage; None while they are unknown.

        Args:
            ended: Seconds that finished stages of this generation took.
            stage: The current stage.
            elapsed_s: Seconds since the stage began.
            done: Finished share of the stage's work; None if unknown.
            reached_s: Seconds after which this share was reached.
            generations: Number of this generation and of the last one.
        """
        number, last = generations
        expected = {name: seconds / last for name, seconds in self.seconds.items()}
        whole_s = self._whole(expected.get(stage or "", 0.0), elapsed_s, done, reached_s)
        if whole_s is None:
            return None
        measured = {name: seconds for name, seconds in ended.items() if name in expected}
        if stage in expected:
            measured[stage] = whole_s
        wanted_s = sum(expected[name] for name in measured)
        prior_s = PLAN_S if self.is_planned else 0.0
        if not wanted_s + prior_s:
            return None
        pace = (sum(measured.values()) + prior_s) / (wanted_s + prior_s)
        names = list(expected)
        begun = names[: names.index(stage) + 1] if stage in expected else measured
        left = {
            name: pace * seconds * (last - number + (name not in begun))
            for name, seconds in expected.items()
        }
        if stage is not None:
            left[stage] = left.get(stage, 0.0) + max(0.0, whole_s - elapsed_s)
        return {name: seconds for name, seconds in left.items() if seconds > 0} or None

    def _whole(
        self, expected_s: float, elapsed_s: float, done: float | None, reached_s: float
    ) -> float | None:
        """Estimates the total time of the current stage, in seconds; None while it is unknown."""
        if self.is_planned:
            if not done:
                return max(elapsed_s, expected_s)
            whole_s = (reached_s + PLAN_WEIGHT * expected_s) / (done + PLAN_WEIGHT)
            return max(elapsed_s, whole_s)
        if done is not None and done >= FIRST_SHARE:
            return max(elapsed_s, reached_s / done)
        # A short stage may not report its share of work, and matters little.
        return None if expected_s >= FIRST_SHARE * sum(self.seconds.values()) else elapsed_s


@dataclass(slots=True, kw_only=True)
class _StageWork:
    """Planned and finished work of the current stage; `*_s` are seconds of video."""

    n_items: int = 0
    video_s: float = 0.0
    n_before: int = 0
    """Items that an earlier run finished."""
    noun: str = "item"
    names: tuple[str, ...] = ()
    """Stages that work now, if the stage of the display is several."""
    n_done: int = 0
    done_s: float = 0.0
    began: float | None = None
    work_s: float | None = None
    done_work_s: float = 0.0
    reached: float | None = None
    """When the number of finished items last changed, by the monotonic clock."""

    def share_done(self) -> float | None:
        """Returns the finished share, 0 to 1, by work, seconds or items; None if unknown."""
        if self.work_s and self.done_work_s > 0:
            return min(1.0, self.done_work_s / self.work_s)
        if self.video_s > 0 and self.done_s > 0:
            return min(1.0, self.done_s / self.video_s)
        return min(1.0, self.n_done / self.n_items) if self.n_items > 0 else None

    def elapsed_s(self) -> float:
        return 0.0 if self.began is None else time.monotonic() - self.began

    def rate(self) -> float | None:
        elapsed_s = self.elapsed_s()
        return self.done_s / elapsed_s if self.done_s > 0 and elapsed_s > 0 else None


class Progress:
    """The display of one run, as a context manager.

    Args:
        stream: Output; None for standard error.
        live: Whether to redraw in place; None to do so if `stream` is a capable terminal.
        is_logged: Whether to write lines to the log instead of `stream`.
        listener: Replaces lines and redrawing: called with this object when a stage begins, and
            about twice a second while its work is counted, from a thread. Its first exception is
            logged, and ends no run.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        live: bool | None = None,
        *,
        is_logged: bool = False,
        listener: Callable[["Progress"], None] | None = None,
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        can_redraw = self._stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        self._is_live = can_redraw and not is_logged if live is None else live
        self._is_logged = is_logged
        self._listener = listener
        self._has_failed = False
        self.on_stage: Callable[[str], None] | None = None
        """Called when a stage begins."""
        self._live: Live | None = None
        self._lock = threading.RLock()
        self._stage: str | None = None
        self._began = 0.0
        self._ended: dict[str, float] = {}
        """Seconds that finished stages took, in all generations."""
        self._ended_before: dict[str, float] = {}
        """`_ended` at the begin of this generation."""
        self._expected = Expected()
        self._steps: Mapping[str, ProgressStep] = {}
        self._generations = (1, 1)
        self._n_sources: int | None = None
        self._n_kept: int | None = None
        self._work = _StageWork()
        self._start = self._last_line = time.monotonic()
        self._restore = contextlib.ExitStack()

    def __enter__(self) -> "Progress":
        self._start = self._last_line = time.monotonic()
        if self._is_live:
            self._start_live()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self._lock:
            if kind is None:
                self._end_stage()
        self._restore.close()
        self._live = None

    def stage(self, name: str) -> None:
        """Ends the current stage, and begins the next one."""
        with self._lock:
            self._end_stage()
            self._stage, self._began = name, time.monotonic()
            if self.on_stage is not None:
                self.on_stage(name)
            self._write_line(", ".join(filter(None, (name, self._generation()))))
        self._tell()

    def generation(self, number: int, last: int) -> None:
        """Sets the generation of the next stages; the display leaves out a single generation."""
        with self._lock:
            self._generations, self._ended_before = (number, last), dict(self._ended)

    def expect(self, expected: Expected, steps: Sequence[ProgressStep]) -> None:
        """Sets the steps of the run in order, and the times that the estimate uses."""
        with self._lock:
            self._expected, self._steps = expected, {step.name: step for step in steps}

    def sources(self, n_total: int) -> None:
        """Sets the number of the run's sources."""
        with self._lock:
            self._n_sources = n_total

    def work(
        self,
        n_items: int,
        video_s: float,
        *,
        n_before: int = 0,
        noun: str | None = None,
        names: Sequence[str] = (),
        work_s: float | None = None,
    ) -> None:
        """Sets the work of the current stage.

        Args:
            n_items: Number of items to process.
            video_s: Their seconds of video; 0 if unknown.
            n_before: Number of further items that an earlier run finished; shown as done.
            noun: Noun for an item; None for the noun of the step.
            names: Names of the stages that work now, if the current stage is a step of several.
            work_s: Their seconds of video, weighted by cost; None to use `video_s`.
        """
        with self._lock:
            self._work = _StageWork(
                n_items=n_items,
                video_s=video_s,
                n_before=n_before,
                noun=noun or self._step.noun,
                names=tuple(names),
                began=time.monotonic(),
                work_s=work_s,
            )

    @property
    def _step(self) -> ProgressStep:
        name = self._stage or ""
        return self._steps.get(name, ProgressStep(name=name))

    def clips(self, n_kept: int) -> None:
        """Sets the number of clips kept so far."""
        with self._lock:
            self._n_kept = n_kept
        self._tick()

    @contextlib.contextmanager
    def polling(self, poll: Callable[[], tuple[float, ...]]) -> Iterator[None]:
        """Polls the progress of the stage about twice a second during the block.

        Args:
            poll: Returns the number of finished items, their seconds of video, and optionally the
                same seconds weighted by cost. It runs in a thread. If it raises an exception, the
                display stays unchanged, and the first exception is logged.
        """
        stop = threading.Event()
        thread = threading.Thread(
            target=self._poll_until, args=(stop, poll), name="progress", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(JOIN_S)

    def _poll_until(self, stop: threading.Event, poll: Callable[[], tuple[float, ...]]) -> None:
        has_logged = False
        while not stop.wait(POLL_S):
            try:
                n_done, done_s, *weighted = poll()
            except Exception:
                # A display must not end a run.
                if not has_logged:
                    logger.debug("polling the progress failed", exc_info=True)
                has_logged = True
                continue
            with self._lock:
                if stop.is_set():
                    return
                if n_done != self._work.n_done:
                    self._work.reached = time.monotonic()
                self._work.n_done, self._work.done_s = int(n_done), done_s
                self._work.done_work_s = sum(weighted)
            self._tick()

    def _end_stage(self) -> None:
        if self._stage is not None:
            took_s = time.monotonic() - self._began
            self._ended[self._stage] = self._ended.get(self._stage, 0.0) + took_s
        self._stage, self._work = None, _StageWork()

    def line(self) -> str:
        """Returns the state of the current stage in one line."""
        with self._lock:
            facts = ", ".join([*self._facts(), *self._end_time()])
            return ": ".join(filter(None, (self._stage or "", facts)))

    def _tell(self) -> None:
        """Calls the listener; it may be a user's, and must not end a run."""
        if self._listener is not None and not self._has_failed:
            try:
                self._listener(self)
            except Exception:
                self._has_failed = True
                logger.warning("the callback for the progress failed", exc_info=True)

    def _tick(self) -> None:
        self._tell()
        with self._lock:
            is_due = time.monotonic() - self._last_line >= LINE_EVERY_S
            if is_due and self._stage is not None:
                self._write_line(self.line())

    def left(self) -> dict[str, float] | None:
        """Returns the seconds until the run ends, by stage; None while they are unknown."""
        with self._lock:
            before, now, work = self._ended_before, time.monotonic(), self._work
            ended = {n: s - before[n] if n in before else s for n, s in self._ended.items()}
            ended = {n: s for n, s in ended.items() if s > 0}
            elapsed_s = now - self._began if self._stage is not None else 0.0
            reached_s = elapsed_s - (now - work.reached) if work.reached is not None else elapsed_s
            return self._expected.left(
                ended, self._stage, elapsed_s, work.share_done(), reached_s, self._generations
            )

    def state(self) -> dict[str, Any]:
        """Returns the content of the display, for `curate status` and monitoring."""
        with self._lock:
            work, now = self._work, time.monotonic()
            return {
                "elapsed_s": now - self._start,
                "stage": self._stage,
                "generation": self._generations,
                "ended_s": dict(self._ended),
                "stage_s": now - self._began if self._stage else 0.0,
                "done": work.n_before + min(work.n_done, work.n_items),
                "items": work.n_before + work.n_items,
                "noun": work.noun,
                "stages": list(work.names),
                "share_done": work.share_done(),
                "reached_s": (work.reached or self._began) - self._began,
                "video_s_per_s": work.rate(),
                "sources": self._n_sources,
                "kept": self._n_kept,
                "left_s": self.left(),
            }

    def _generation(self) -> str:
        number, last = self._generations
        return f"generation {number} of {last}" if last > 1 else ""

    def _end_time(self) -> list[str]:
        left = self.left()
        if left is None:
            return []
        left_s = sum(left.values())
        now, run_s = datetime.now().astimezone(), time.monotonic() - self._start
        form = "%H:%M" if left_s < DAY_S else "%d %b %H:%M"
        text = f"{clock(left_s)} left, ends {now + timedelta(seconds=left_s):{form}}"
        if self._expected.is_planned:
            planned_s = sum(self._expected.seconds.values()) - run_s
            text += f" (plan: {now + timedelta(seconds=planned_s):{form}})"
        return [text]

    def _facts(self) -> Iterator[str]:
        work = self._work
        if generation := self._generation():
            yield generation
        if work.names:
            yield " and ".join(work.names)
        if work.n_items > 0:
            done = work.n_before + min(work.n_done, work.n_items)
            yield f"{done:,} of {amount(work.n_before + work.n_items, work.noun)}"
        elif self._n_sources is not None:
            yield amount(self._n_sources, "source")
        if work.done_s > 0:
            of = f" of {length(work.video_s)}" if work.video_s > 0 else ""
            yield f"{length(work.done_s)}{of} of video"
        if (rate := work.rate()) is not None:
            yield f"{rate:.3g}x real time"
        if self._n_kept is not None:
            so_far = " so far" if self._step.is_before_decisions else ""
            yield f"{amount(self._n_kept, 'clip')} kept{so_far}"

    def _write_line(self, text: str) -> None:
        self._last_line = time.monotonic()
        if self._live is not None or self._listener is not None:
            return
        if self._is_logged:
            logger.info("%s", text, extra={"stage": self._stage})
            return
        # A full log or a closed terminal must not end a run of hours.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(f"curate {clock(time.monotonic() - self._start)} {text}\n")
            self._stream.flush()

    def _start_live(self) -> None:
        from rich.console import Console
        from rich.live import Live

        before = sys.stderr
        console = Console(file=self._stream, force_terminal=True, highlight=False)
        self._live = Live(
            get_renderable=self._render, console=console, refresh_per_second=4, transient=False
        )
        self._restore.enter_context(self._live)
        # During the display, rich replaces standard error by a stream that prints above the
        # display. Log handlers that were made earlier still hold the old stream.
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is before:
                handler.setStream(sys.stderr)
                self._restore.callback(handler.setStream, before)

    def _render(self) -> "RenderableType":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        with self._lock:
            stages, work = self._render_stages(), self._work
            if self._stage is None:
                return stages
            done = work.share_done()
            bar = ProgressBar(total=1.0, completed=done or 0.0, width=40, pulse=not done)
            percent = "" if done is None else f"{100 * done:3.0f}%"
            left = "".join(self._end_time())
            row = Table.grid(padding=(0, 2))
            row.add_row("", bar, percent, left)
            return Group(stages, row, Text("  " + " \N{MIDDLE DOT} ".join(self._facts())))

    def _render_stages(self) -> "Text":
        from rich.text import Text

        line = Text("  ")
        begun = [*self._ended, *filter(None, [self._stage])]
        for name in dict.fromkeys([*begun, *self._steps]):
            if name == self._stage:
                line.append(name, "bold cyan")
                line.append(f" {clock(time.monotonic() - self._began)}", "cyan")
            elif name in self._ended:
                line.append(name, "green")
                if self._ended[name] >= SAY_TOOK_S:
                    line.append(f" {length(self._ended[name])}", "dim")
            else:
                line.append(name, "dim")
            line.append("  ")
        return line
