"""Shows the progress of a run: a live display on a terminal, plain lines elsewhere."""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TextIO

from curator.executor.end_time import Expected, ProgressStep, StageState
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
    first: tuple[float, float] | None = None
    """Time of the first sign of work, by the monotonic clock, and the share that was done then."""
    reached: float | None = None
    """When the finished share last changed, by the monotonic clock."""

    def share_done(self) -> float | None:
        """Returns the finished share, 0 to 1, by work, seconds or items; None if unknown."""
        if self.work_s and self.done_work_s > 0:
            return min(1.0, self.done_work_s / self.work_s)
        if self.video_s > 0 and self.done_s > 0:
            return min(1.0, self.done_s / self.video_s)
        return min(1.0, self.n_done / self.n_items) if self.n_items > 0 else None

    def note(self, n_done: int, done_s: float, done_work_s: float) -> None:
        """Notes what is done. Nothing goes back, also if a unit begins again."""
        before = self.share_done()
        self.n_done = max(self.n_done, n_done)
        self.done_s = max(self.done_s, done_s)
        self.done_work_s = max(self.done_work_s, done_work_s)
        done = self.share_done()
        if done and done != before:
            self.reached = time.monotonic()
            if self.first is None:
                self.first = self.reached, done

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
        self._idle: dict[str, float] = {}
        """Seconds that finished stages of this generation took until their first sign of work."""
        self._work_s: dict[str, float] = {}
        """Work of stages of this generation, in seconds of analysis of 1080p."""
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
            self._idle, self._work_s = {}, {}

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
            work_s: Their work, in seconds of analysis of 1080p; None if its cost is unknown.
        """
        with self._lock:
            if work_s is not None and self._stage is not None:
                self._work_s[self._stage] = work_s
            self._work = _StageWork(
                n_items=n_items,
                video_s=video_s,
                n_before=n_before,
                noun=noun or self._step.noun,
                names=tuple(names),
                began=time.monotonic(),
                work_s=work_s,
            )

    def foresee(self, step: str, work_s: float) -> None:
        """Sets the expected work of a later step, in seconds of analysis of 1080p."""
        with self._lock:
            self._work_s[step] = work_s

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
                display stays unchanged, and the first exception is logged. The last call is after
                the block.
        """
        stop, over = threading.Event(), threading.Event()
        thread = threading.Thread(
            target=self._poll_until, args=(stop, over, poll), name="progress", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(JOIN_S)
            over.set()

    def _poll_until(
        self, stop: threading.Event, over: threading.Event, poll: Callable[[], tuple[float, ...]]
    ) -> None:
        has_logged = is_last = False
        while not is_last:
            is_last = stop.wait(POLL_S)
            try:
                n_done, done_s, *weighted = poll()
            except Exception:
                # A display must not end a run.
                if not has_logged:
                    logger.debug("polling the progress failed", exc_info=True)
                has_logged = True
                continue
            with self._lock:
                if over.is_set():
                    return
                self._work.note(int(n_done), done_s, sum(weighted))
            self._tick()

    def _end_stage(self) -> None:
        if self._stage is not None:
            took_s = time.monotonic() - self._began
            self._ended[self._stage] = self._ended.get(self._stage, 0.0) + took_s
            idle_s = self._idle.get(self._stage, 0.0) + self._state().idle_s
            self._idle[self._stage] = idle_s
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
            before = self._ended_before
            ended = {n: s - before[n] if n in before else s for n, s in self._ended.items()}
            ended = {n: s for n, s in ended.items() if s > 0}
            return self._expected.left(
                ended, self._state(), self._work_s, self._idle, self._generations
            )

    def _state(self) -> StageState:
        work, began = self._work, self._began
        elapsed_s = time.monotonic() - began if self._stage is not None else 0.0
        first_s, idle_done = work.first or (began, 0.0)
        return StageState(
            name=self._stage,
            elapsed_s=elapsed_s,
            done=work.share_done(),
            reached_s=elapsed_s if work.reached is None else work.reached - began,
            idle_s=first_s - began,
            idle_done=idle_done,
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
                "done_s": work.done_s,
                "video_s": work.video_s,
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
        if work.video_s > 0:
            part = min(work.done_s / work.video_s, 1.0)
            yield f"{length(work.done_s)} of {length(work.video_s)} of video ({part:.0%})"
        elif work.done_s > 0:
            yield f"{length(work.done_s)} of video"
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
