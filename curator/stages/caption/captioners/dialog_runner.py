"""Runs dialogs about many windows at once, in threads.

A dialog continues as soon as its own replies have come. The runner reuses stored replies, and sends
equal requests once.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue

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
from curator.stages.caption.dialogs.window_dialog import Dialog, Dialogs

Keep = Callable[[str, Reply], None]
"""Stores a final reply by the key of its request."""
LoadedWindow = tuple[Task, Callable[[], Frames]]
"""A window, and a function that loads its frames. A `CuratorError` or `OSError` fails the window's
requests with `Unanswered.NO_FRAMES`; a `DamagedError` or another error ends the runner."""


@dataclass(slots=True, eq=False)
class _OpenDialog:
    place: int
    task: Task
    load: Callable[[], Frames]
    dialog: Dialog
    requests: list[Request] = field(default_factory=list)
    replies: dict[str, Reply] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    loaded: Frames | None = None

    def frames(self) -> Frames | Reply:
        """Loads the frames once, and returns them; if that fails, the reply to all requests."""
        try:
            with self.lock:
                self.loaded = self.loaded or self.load()
                return self.loaded
        except DamagedError:
            raise
        except (CuratorError, OSError) as error:
            return Reply(failure=Unanswered.NO_FRAMES, detail=str(error), n_tries=0)


class DialogRunner:
    """Runs dialogs; sets up the captioners, and closes them with the runner.

    Memory holds the frames of running dialogs: one dialog for each concurrent request, and up to
    `read_ahead` more, which prepare frames and requests while they wait for a slot. A captioner
    with few slots gets as many dialogs ahead as it has slots. All dialogs of a clip take at most
    `budget_s`, from its first request.
    """

    def __init__(
        self,
        dialogs: Dialogs,
        captioners: Mapping[Role, Captioner],
        *,
        budget_s: float,
        read_ahead: int = 8,
    ) -> None:
        self._dialogs = dialogs
        self._budget_s = budget_s
        self._captioners = captioners
        self._threads: dict[Captioner, ThreadPoolExecutor] = {}
        self._results: SimpleQueue[tuple[Request, Reply] | BaseException] = SimpleQueue()
        self._has_ended = False
        self._most_open = 0
        """Dialogs that run at a time."""
        for captioner in dict.fromkeys(captioners.values()):
            captioner.setup()
            n_slots = captioner.request_limit.most
            n_threads = n_slots + min(read_ahead, n_slots)
            self._threads[captioner] = ThreadPoolExecutor(n_threads, "caption-request")
            self._most_open += n_threads

    def annotate(
        self, windows: Sequence[LoadedWindow], replies: Mapping[str, Reply], keep: Keep
    ) -> list[Annotation]:
        """Runs a dialog about each window to its end, and returns the annotations in order.

        Args:
            windows: The windows.
            replies: Stored replies by request key, including the replies that `keep` stores.
            keep: Stores each new final reply (`Reply.is_final`) once, before its dialog continues;
                several threads may call it, for different keys.

        An error of a captioner or of `keep` ends the runner.
        """
        self._replies, self._keep = replies, keep
        self._waiting: dict[str, list[_OpenDialog]] = {}
        self._annotations: dict[int, Annotation] = {}
        self._clip_ends_s: dict[str, float] = {}
        begun = [
            _OpenDialog(place, task, load, self._dialogs(task))
            for place, (task, load) in enumerate(windows)
        ]
        try:
            left = deque(begun)
            while left or self._waiting:
                while left and len(begun) - len(left) - len(self._annotations) < self._most_open:
                    self._continue(left.popleft(), None)
                if self._waiting:
                    result = self._results.get()
                    if isinstance(result, BaseException):
                        raise result
                    self._take(*result)
        except BaseException:
            self.close()
            raise
        return [self._annotations[place] for place in range(len(windows))]

    def _continue(self, window: _OpenDialog, replies: list[Reply] | None) -> None:
        """Sends replies to a dialog until a request has no reply yet, or the dialog ends."""
        try:
            while True:
                dialog = window.dialog
                window.requests = next(dialog) if replies is None else dialog.send(replies)
                window.replies = {}
                for request in window.requests:
                    self._request(window, request)
                if any(request.key not in window.replies for request in window.requests):
                    return
                replies = [window.replies[request.key] for request in window.requests]
        except StopIteration as end:
            window.loaded = None
            self._annotations[window.place] = end.value

    def _request(self, window: _OpenDialog, request: Request) -> None:
        """Uses a stored reply, waits for the reply to an equal request, or begins a request."""
        others = self._waiting.get(request.key)
        if others is not None:
            if window not in others:
                others.append(window)
            return
        reply = self._replies.get(request.key)
        if reply is None:
            if self._has_ended:
                raise CuratorError("the run has ended")
            captioner = self._captioners[request.role]
            self._threads[captioner].submit(self._answer, captioner, window, request)
            self._waiting[request.key] = [window]
        else:
            window.replies[request.key] = reply

    def _take(self, request: Request, reply: Reply) -> None:
        first, *others = self._waiting.pop(request.key)
        for window in (first, *others):
            # A transient failure counts only for the window that made the request.
            if window is first or reply.is_final:
                window.replies[request.key] = reply
            else:
                self._request(window, request)
            if all(each.key in window.replies for each in window.requests):
                self._continue(window, [window.replies[each.key] for each in window.requests])

    def close(self) -> None:
        """Ends the threads at once: cancels running requests, but keeps replies that arrived."""
        if not self._has_ended:
            self._has_ended = True
            self._results.put(CuratorError("the run has ended"))
            for captioner in self._threads:
                captioner.cancel_requests()
            for captioner, threads in self._threads.items():
                threads.shutdown(cancel_futures=True)
                captioner.close()

    def _answer(self, captioner: Captioner, window: _OpenDialog, request: Request) -> None:
        def deadline() -> float:
            ends_s = time.monotonic() + self._budget_s
            return self._clip_ends_s.setdefault(window.task.clip_id, ends_s)

        try:
            reply = window.frames()
            if not isinstance(reply, Reply):
                reply = captioner.answer_in_time(request, reply, deadline)
            if reply.is_final:
                self._keep(request.key, reply)
            self._results.put((request, reply))
        except CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by `annotate`
            self._results.put(error)
