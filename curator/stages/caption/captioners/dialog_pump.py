"""Drives many dialogs at once with servers, and keeps the servers busy.

One thread with an event loop sends requests while others wait for answers. Memory holds the frames
of running windows and of `read_ahead` more.
"""

import asyncio
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from curator.stages.caption.captioners.captioner_contract import Client
from curator.stages.caption.captioners.dialog_batches import Keep
from curator.stages.caption.dialogs.window_dialog import Dialogs

if TYPE_CHECKING:
    from curator.media.frame_tap import StoredFrames

POLL_S = 1.0
_LOADERS = 8
"""Threads that load frames: those of a clip take 50 to 100 ms from object storage."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Job:
    task: Task
    where: "StoredFrames"
    frames: asyncio.Future[Frames] | None = None
    has_slot: bool = False
    """One of its requests was sent, and another window may be prepared."""


class Pump:
    """Runs the dialogs about windows in a thread of its own.

    Args:
        dialogs: Called in the pump's thread.
        clients: One may have several roles.
        replies: Stored replies by key; looked up when needed, so additions by `keep` are found.
        keep: Called for each final reply (`Reply.is_final`) before its dialog continues; several
            threads call it, for different keys.
        load: Loads the frames of a window, once, in a thread of its own. A `CuratorError` or
            `OSError` makes the reply `Unanswered.NO_FRAMES`; any other error ends the pump.
        budget_s: Longest time for one clip, from its first request, while any of its windows is
            open.
        read_ahead: Windows whose frames are loaded before a slot is free for them.
        keepers: Threads that store replies: a PUT to object storage takes 20 to 50 ms.
    """

    def __init__(
        self,
        dialogs: Dialogs,
        clients: Mapping[Role, Client],
        *,
        replies: Mapping[str, Reply],
        keep: Keep,
        load: "Callable[[StoredFrames, Task], Frames]",
        budget_s: float,
        read_ahead: int = 8,
        keepers: int = 8,
    ) -> None:
        self.counts: Counter[str] = Counter()
        """Requests: `asked`, `known` from `replies`, or `shared` with an equal one."""
        self._dialogs = dialogs
        self._clients = clients
        self._replies = replies
        self._keep = keep
        self._load = load
        self._budget_s = budget_s
        self._read_ahead = read_ahead
        distinct = {id(client): client for client in clients.values()}
        self._distinct = list(distinct.values())
        self._most_jobs = sum(client.slots.most for client in self._distinct) + read_ahead
        self._backlog: deque[_Job] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._n_preparing = 0
        self._asked: dict[str, asyncio.Future[Reply]] = {}
        self._n_windows: Counter[str] = Counter()
        """Open windows by clip."""
        self._deadlines: dict[str, float] = {}
        """Ends of the budgets of clips with open windows and a sent request."""
        self._results: queue.SimpleQueue[Annotation | None] = queue.SimpleQueue()
        self._n_open = 0
        self._has_ended = False
        self._loaders = ThreadPoolExecutor(_LOADERS, "caption-frames")
        self._keepers = ThreadPoolExecutor(keepers, "caption-replies")
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="caption-pump", daemon=True)
        self._thread.start()

    @property
    def n_open(self) -> int:
        """Windows that were submitted and not yet returned."""
        return self._n_open

    def submit(self, task: Task, where: "StoredFrames") -> None:
        """Takes a window and the location of its clip's frames; does not wait; raises as `poll`."""
        if self._error is not None:
            raise self._error
        if self._has_ended:
            raise RuntimeError("this pump has ended")
        self._n_open += 1
        self._loop.call_soon_threadsafe(self._enqueue, _Job(task=task, where=where))

    def poll(self, timeout: float | None = 0) -> list[Annotation]:
        """Returns annotations that ended since the last call, in that order; maybe none.

        Waits `timeout` seconds for the first; None for no limit.

        Raises:
            Exception: The server cannot be used, or `keep`, `load` or a dialog raised it; the pump
                has ended.
        """
        found: list[Annotation] = []
        try:
            while self._n_open and not self._has_ended:
                try:
                    result = self._results.get(block=not found, timeout=timeout)
                except queue.Empty:
                    break
                if result is None:
                    self._has_ended = True
                else:
                    self._n_open -= 1
                    found.append(result)
        except BaseException:
            self.close()
            raise
        if self._has_ended and self._error is not None and not found:
            raise self._error
        return found

    def finish(self) -> Iterator[list[Annotation]]:
        """Yields the annotations of all open windows as they arrive; raises errors as `poll`."""
        while self._n_open:
            yield self.poll(POLL_S)

    def close(self) -> None:
        """Ends the thread at once: cancels running requests, but keeps the replies that arrived."""
        # A closed loop has ended by itself.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._has_ended = True

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._main())
        except BaseException as error:  # noqa: BLE001 -- raised again where the caller polls
            self._error = self._error or error
        self._loaders.shutdown(wait=False, cancel_futures=True)
        self._results.put(None)

    async def _main(self) -> None:
        async with AsyncExitStack() as stack:
            for client in self._distinct:
                await stack.enter_async_context(client)
            try:
                await self._stopping.wait()
            finally:
                others = asyncio.all_tasks() - {asyncio.current_task()}
                for task in others:
                    task.cancel()
                await asyncio.gather(*others, return_exceptions=True)
                # Before the loop closes, because the replies' threads report to it.
                self._keepers.shutdown(wait=True)
                await asyncio.sleep(0)

    def _enqueue(self, job: _Job) -> None:
        self._backlog.append(job)
        self._n_windows[job.task.clip_id] += 1
        self._prepare_more()

    def _prepare_more(self) -> None:
        slots = self._clients["captioner"].slots
        # A window for each free slot, and a few more.
        while (
            self._backlog
            and self._n_preparing < max(0, int(slots.limit) - slots.n_taken) + self._read_ahead
            and len(self._running) < self._most_jobs
            and not self._stopping.is_set()
        ):
            job = self._backlog.popleft()
            self._n_preparing += 1
            running = self._loop.create_task(self._drive(job))
            self._running.add(running)
            running.add_done_callback(self._ended)

    def _ended(self, running: asyncio.Task[None]) -> None:
        self._running.discard(running)
        if not running.cancelled() and (error := running.exception()) is not None:
            self._error = self._error or error
            self._stopping.set()
        self._prepare_more()

    async def _drive(self, job: _Job) -> None:
        try:
            dialog = self._dialogs(job.task)
            requests = next(dialog)
            while True:
                replies = await asyncio.gather(*(self._reply(job, each) for each in requests))
                requests = dialog.send(list(replies))
        except StopIteration as end:
            about = end.value.task
            if about != job.task:
                raise RuntimeError(f"dialog about {job.task} gave one about {about}") from None
            self._results.put(end.value)
        finally:
            self._moved_on(job)
            if job.frames is not None:
                job.frames.cancel()
            clip = job.task.clip_id
            self._n_windows[clip] -= 1
            if not self._n_windows[clip]:
                del self._n_windows[clip]
                self._deadlines.pop(clip, None)

    async def _reply(self, job: _Job, request: Request) -> Reply:
        """Returns the stored reply, that of another window's equal request, or a new one."""
        key = request.key
        while True:
            if (known := self._replies.get(key)) is not None:
                self.counts["known"] += 1
                return known
            if (asked := self._asked.get(key)) is None:
                break
            self._moved_on(job)
            reply = await asyncio.shield(asked)
            # Another clip's budget or bad luck does not count for this clip.
            if reply.is_final:
                self.counts["shared"] += 1
                return reply
        asked = self._asked[key] = self._loop.create_future()
        try:
            reply = await self._ask(job, request)
            if reply.is_final:
                # Shielded: a reply that arrived is stored, even when the pump is stopped.
                await asyncio.shield(
                    self._loop.run_in_executor(self._keepers, self._keep, key, reply)
                )
        except BaseException:
            asked.cancel()
            raise
        finally:
            del self._asked[key]
        asked.set_result(reply)
        return reply

    async def _ask(self, job: _Job, request: Request) -> Reply:
        try:
            frames = await self._frames(job)
        except DamagedError:
            raise
        except (CuratorError, OSError) as error:
            return Reply(failure=Unanswered.NO_FRAMES, detail=str(error), n_tries=0)
        self.counts["asked"] += 1
        return await self._clients[request.role].ask(
            request, frames, deadline=lambda: self._sent(job)
        )

    def _sent(self, job: _Job) -> float:
        """Notes that a request is being sent; returns when the budget of its clip ends."""
        self._moved_on(job)
        return self._deadlines.setdefault(job.task.clip_id, time.monotonic() + self._budget_s)

    def _moved_on(self, job: _Job) -> None:
        if not job.has_slot:
            job.has_slot = True
            self._n_preparing -= 1
            self._prepare_more()

    async def _frames(self, job: _Job) -> Frames:
        if job.frames is None:
            job.frames = self._loop.run_in_executor(self._loaders, self._load, job.where, job.task)
        # Shielded: several requests of one dialog wait for the same frames.
        return await asyncio.shield(job.frames)
