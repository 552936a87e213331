"""Runs many dialogs with services at once: each in a thread, from first request to annotation.

Memory holds the frames of running dialogs. The threads are as many as the requests that may run at
a time, and `read_ahead` more, which load frames and encode requests while they wait for a slot.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from curator.errors import CuratorError, DamagedError
from curator.stages.caption.caption_records import (
    Annotation,
    Frames,
    Reply,
    Request,
    Role,
    Task,
    Unanswered,
)
from curator.stages.caption.captioners.captioner_contract import Captioner
from curator.stages.caption.captioners.dialog_batches import Keep
from curator.stages.caption.dialogs.window_dialog import Dialogs

if TYPE_CHECKING:
    from curator.records.cuts import StoredFrames

POLL_S = 1.0


@dataclass(eq=False)
class _Budget:
    """The time of a clip, shared by its open windows."""

    seconds: float
    ends_s: float | None = None

    def deadline(self) -> float:
        """Returns its end on `time.monotonic`; it begins with the clip's first request."""
        if self.ends_s is None:
            self.ends_s = time.monotonic() + self.seconds
        return self.ends_s


@dataclass(eq=False)
class _AskedWindow:
    task: Task
    where: "StoredFrames"
    budget: _Budget
    frames: Frames | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class DialogRunner:
    """Runs the dialogs about windows in threads of its own.

    Args:
        dialogs: Begins the dialog about a task; called in the threads.
        captioners: Services by role; they are set up here, and closed with the runner.
        find: Returns the stored reply of a key, what `keep` added too; None without one.
        keep: Called for each final reply (`Reply.is_final`) before its dialog continues; several
            threads call it, for different keys.
        load: Loads the frames of a window, once. A `CuratorError` or `OSError` makes the reply
            `Unanswered.NO_FRAMES`; any other error ends the runner.
        budget_s: Longest time for one clip, from its first request, while any of its windows is
            open.
        read_ahead: Dialogs that are prepared before a slot is free for them.
    """

    def __init__(
        self,
        dialogs: Dialogs,
        captioners: Mapping[Role, Captioner],
        *,
        find: Callable[[str], Reply | None],
        keep: Keep,
        load: "Callable[[StoredFrames, Task], Frames]",
        budget_s: float,
        read_ahead: int = 8,
    ) -> None:
        self.n_open = 0
        """Windows that were submitted and not yet returned."""
        self._dialogs = dialogs
        self._captioners = captioners
        self._find = find
        self._keep = keep
        self._load = load
        self._budget_s = budget_s
        self._budgets: WeakValueDictionary[str, _Budget] = WeakValueDictionary()
        """Those of clips with open windows."""
        self._awaited: dict[str, Future[Reply]] = {}
        """Replies to running requests, by key."""
        self._lock = threading.Lock()
        self._results: queue.SimpleQueue[Annotation | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._has_ended = False
        n_requests = 0
        for captioner in set(captioners.values()):
            captioner.setup()
            n_requests += captioner.request_limit.most
        self._threads = ThreadPoolExecutor(n_requests + read_ahead, "caption-dialog")
        # For the second and further requests that a dialog makes at a time: those of candidates.
        self._more_threads = ThreadPoolExecutor(n_requests, "caption-request")

    def submit(self, task: Task, where: "StoredFrames") -> None:
        """Takes a window and the location of its clip's frames; does not wait; raises as `poll`."""
        if self._error is not None:
            raise self._error
        if self._has_ended:
            raise RuntimeError("this runner has ended")
        self.n_open += 1
        budget = self._budgets.setdefault(task.clip_id, _Budget(self._budget_s))
        self._threads.submit(self._run, _AskedWindow(task, where, budget))

    def poll(self, timeout: float | None = 0) -> list[Annotation]:
        """Returns annotations that ended since the last call, in that order; maybe none.

        Waits `timeout` seconds for the first; None for no limit.

        Raises:
            Exception: A service cannot be used, or `keep`, `load` or a dialog raised it; the runner
                has ended.
        """
        annotations: list[Annotation] = []
        try:
            while self.n_open and not self._has_ended:
                annotation = self._results.get(block=not annotations, timeout=timeout)
                if annotation is None:
                    self.close()
                else:
                    self.n_open -= 1
                    annotations.append(annotation)
        except queue.Empty:
            pass
        except BaseException:
            self.close()
            raise
        if self._error is not None and self._has_ended and not annotations:
            raise self._error
        return annotations

    def finish(self) -> Iterator[list[Annotation]]:
        """Yields the annotations of all open windows as they arrive; raises errors as `poll`."""
        while self.n_open:
            yield self.poll(POLL_S)

    def close(self) -> None:
        """Ends the threads at once: cancels running requests, but keeps replies that arrived."""
        if not self._has_ended:
            self._has_ended = True
            self._cancel()
            for threads in (self._threads, self._more_threads):
                threads.shutdown(cancel_futures=True)
            for captioner in set(self._captioners.values()):
                captioner.close()

    def _cancel(self) -> None:
        for captioner in self._captioners.values():
            captioner.cancel_requests()

    def _run(self, window: _AskedWindow) -> None:
        try:
            if self._error is None and not self._has_ended:
                self._results.put(self._annotation(window))
        except CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 -- raised again where the caller polls
            self._error = self._error or error
            self._cancel()
            self._results.put(None)

    def _annotation(self, window: _AskedWindow) -> Annotation:
        """Runs a dialog to its end."""
        dialog = self._dialogs(window.task)
        try:
            requests = next(dialog)
            while True:
                first, *others = requests
                awaited = [self._more_threads.submit(self._reply, window, more) for more in others]
                replies = [self._reply(window, first), *(job.result() for job in awaited)]
                requests = dialog.send(replies)
        except StopIteration as end:
            annotation: Annotation = end.value
        if annotation.task != window.task:
            raise RuntimeError(f"dialog about {window.task} gave one about {annotation.task}")
        return annotation

    def _reply(self, window: _AskedWindow, request: Request) -> Reply:
        """Returns the stored reply, that of another window's equal request, or a new one."""
        key, awaited = request.key, Future[Reply]()
        while True:
            with self._lock:
                others = self._awaited.setdefault(key, awaited)
            if others is awaited:
                break
            # Another clip's budget or bad luck does not count for this clip.
            if (reply := others.result()).is_final:
                return reply
        try:
            stored = self._find(key)
            reply = self._ask(window, request) if stored is None else stored
            if stored is None and reply.is_final:
                self._keep(key, reply)
        except BaseException:
            # Windows that wait for this reply end, too.
            awaited.cancel()
            raise
        finally:
            with self._lock:
                del self._awaited[key]
        awaited.set_result(reply)
        return reply

    def _ask(self, window: _AskedWindow, request: Request) -> Reply:
        try:
            with window.lock:
                frames = window.frames or self._load(window.where, window.task)
                window.frames = frames
        except DamagedError:
            raise
        except (CuratorError, OSError) as error:
            return Reply(failure=Unanswered.NO_FRAMES, detail=str(error), n_tries=0)
        captioner = self._captioners[request.role]
        return captioner.answer_in_time(request, frames, window.budget.deadline)
