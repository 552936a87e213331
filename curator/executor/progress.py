"""Shows the progress of a run: a live display on a terminal, plain lines elsewhere."""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from curator.number_text import amount, clock, length

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.text import Text

logger = logging.getLogger(__name__)

STAGES = (
    "list", "scan", "analyze", "filter", "dedup", "cluster", "select", "caption", "cut", "shard",
    "commit",
)  # fmt: skip
NOUNS = {"scan": "source", "analyze": "source", "cut": "clip"}
"""What an item of a stage's work is."""

POLL_S = 0.5
LINE_EVERY_S = 10.0
SAY_TOOK_S = 10.0
"""Stages that took longer have their time in the display: all would not fit into 80 columns."""
JOIN_S = 2.0
"""Longest wait for a poll that hangs, such as one of a cluster that went away."""


@dataclass(slots=True, kw_only=True)
class _StageWork:
    """Planned and finished work of the current stage; `*_s` are seconds of video."""

    n_items: int = 0
    video_s: float = 0.0
    n_before: int = 0
    """Items that an earlier run did."""
    noun: str = "item"
    n_done: int = 0
    done_s: float = 0.0
    began: float | None = None

    def share_done(self) -> float | None:
        """Returns a share from 0 to 1: by seconds of video where they are known, else by items."""
        if self.video_s > 0 and self.done_s > 0:
            return min(1.0, self.done_s / self.video_s)
        return min(1.0, self.n_done / self.n_items) if self.n_items > 0 else None

    def elapsed_s(self) -> float:
        return 0.0 if self.began is None else time.monotonic() - self.began

    def left_s(self) -> float | None:
        """Returns seconds until the stage ends at the rate so far; None without a rate."""
        done, elapsed_s = self.share_done(), self.elapsed_s()
        return elapsed_s * (1 - done) / done if done and elapsed_s > 0 else None

    def rate(self) -> float | None:
        """Returns seconds of video per second; None when unknown."""
        elapsed_s = self.elapsed_s()
        return self.done_s / elapsed_s if self.done_s > 0 and elapsed_s > 0 else None


class Progress:
    """The display of one run, as a context manager.

    Args:
        stream: Output; None for standard error.
        live: Whether to redraw in place; None for where `stream` is a terminal that can.
        is_logged: Whether lines go to the log instead.
    """

    def __init__(
        self, stream: TextIO | None = None, live: bool | None = None, *, is_logged: bool = False
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        can_redraw = self._stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        self._is_live = can_redraw and not is_logged if live is None else live
        self._is_logged = is_logged
        self.on_stage: Callable[[str], None] | None = None
        """Called when a stage begins."""
        self._live: Live | None = None
        self._lock = threading.RLock()
        self._stage: str | None = None
        self._began = 0.0
        self._ended: dict[str, float] = {}
        """Seconds that finished stages took."""
        self._generation = ""
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
        """Begins a stage, which ends the one before."""
        with self._lock:
            self._end_stage()
            self._stage, self._began = name, time.monotonic()
            if self.on_stage is not None:
                self.on_stage(name)
            self._write_line(f"{name}, {self._generation}" if self._generation else name)

    def generation(self, number: int, last: int) -> None:
        """Names the generation that the next stages are of; a single one is not named."""
        with self._lock:
            self._generation = f"generation {number} of {last}" if last > 1 else ""

    def sources(self, n_total: int) -> None:
        """Sets the number of the run's sources."""
        with self._lock:
            self._n_sources = n_total

    def work(
        self, n_items: int, video_s: float, *, n_before: int = 0, noun: str | None = None
    ) -> None:
        """Sets the work of the current stage.

        Args:
            n_items: Items to do.
            video_s: Their seconds of video; 0 when unknown.
            n_before: Further items, which an earlier run did: they are shown as done.
            noun: What an item is; None for that of the stage.
        """
        with self._lock:
            self._work = _StageWork(
                n_items=n_items,
                video_s=video_s,
                n_before=n_before,
                noun=noun or NOUNS.get(self._stage or "", "item"),
                began=time.monotonic(),
            )

    def clips(self, n_kept: int) -> None:
        """Sets the number of clips kept so far."""
        with self._lock:
            self._n_kept = n_kept
        self._tick()

    def state(self) -> dict[str, Any]:
        """Returns what the display says, for others to read."""
        with self._lock:
            work, left_s = self._work, self._work.left_s()
            return {
                "stage": self._stage,
                "ended_s": dict(self._ended),
                "stage_s": time.monotonic() - self._began if self._stage else 0.0,
                "done": work.n_before + min(work.n_done, work.n_items),
                "items": work.n_before + work.n_items,
                "sources": self._n_sources,
                "left_s": None if left_s is None else {self._stage: left_s},
            }

    @contextlib.contextmanager
    def polling(self, poll: Callable[[], tuple[int, float]]) -> Iterator[None]:
        """Polls the progress of the stage about twice a second during the block.

        Args:
            poll: Returns the number of finished items and their seconds of video. It runs in a
                thread; its exceptions are logged once and leave the display unchanged.
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

    def _poll_until(self, stop: threading.Event, poll: Callable[[], tuple[int, float]]) -> None:
        has_logged = False
        while not stop.wait(POLL_S):
            try:
                n_done, done_s = poll()
            except Exception:
                # A display must not end a run.
                if not has_logged:
                    logger.debug("progress cannot be asked for", exc_info=True)
                has_logged = True
                continue
            with self._lock:
                if stop.is_set():
                    return
                self._work.n_done, self._work.done_s = n_done, done_s
            self._tick()

    def _end_stage(self) -> None:
        if self._stage is not None:
            took_s = time.monotonic() - self._began
            self._ended[self._stage] = self._ended.get(self._stage, 0.0) + took_s
        self._stage, self._work = None, _StageWork()

    def _tick(self) -> None:
        with self._lock:
            is_due = time.monotonic() - self._last_line >= LINE_EVERY_S
            if is_due and self._stage is not None:
                facts = list(self._facts())
                if (left_s := self._work.left_s()) is not None:
                    facts.append(f"{clock(left_s)} left")
                said = f": {', '.join(facts)}" if facts else ""
                self._write_line(f"{self._stage}{said}")

    def _facts(self) -> Iterator[str]:
        """Describes the progress of the current stage."""
        work = self._work
        if self._generation:
            yield self._generation
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
            so_far = " so far" if self._stage == "analyze" else ""
            yield f"{amount(self._n_kept, 'clip')} kept{so_far}"

    def _write_line(self, text: str) -> None:
        self._last_line = time.monotonic()
        if self._live is not None:
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
        # While it runs, standard error is rich's, which prints above the display; log handlers made
        # earlier hold the old one.
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
            done, left_s = work.share_done(), work.left_s()
            bar = ProgressBar(total=1.0, completed=done or 0.0, width=40, pulse=not done)
            percent = "" if done is None else f"{100 * done:3.0f}%"
            left = "" if left_s is None else f"{clock(left_s)} left"
            row = Table.grid(padding=(0, 2))
            row.add_row("", bar, percent, left)
            return Group(stages, row, Text("  " + " \N{MIDDLE DOT} ".join(self._facts())))

    def _render_stages(self) -> "Text":
        from rich.text import Text

        line = Text("  ")
        for name in dict.fromkeys([*STAGES, *self._ended]):
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
