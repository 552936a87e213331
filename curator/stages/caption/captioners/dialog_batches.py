"""Runs many dialogs at once over models in this worker.

Requests of all dialogs wait in one queue per model, which takes batches as full as its budget
allows. A dialog continues as soon as its own replies arrive. Dialogs share equal requests.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from curator.stages.caption.caption_records import (
    Annotation,
    Frames,
    Reply,
    Request,
    Role,
    Task,
    Unanswered,
)
from curator.stages.caption.dialogs.window_dialog import Dialog, Dialogs

Keep = Callable[[str, Reply], None]
"""Stores a final reply durably by its request's key."""
Size = tuple[int, int]
"""Width and height in pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedRequest:
    """A request with its frames and its length."""

    request: Request
    frames: Frames = field(repr=False)
    n_tokens: int = 0
    """Approximate tokens of the prompt with its pictures."""
    sizes: tuple[Size, ...] = ()

    @property
    def longest(self) -> int:
        """Tokens of prompt and longest answer."""
        return self.n_tokens + self.request.sampling.max_tokens


class BatchModel(ABC):
    """A model that answers requests in batches, here of one request each."""

    def sized(self, request: Request, frames: Frames) -> SizedRequest | Reply:
        """Returns the measured request, or the reply if it cannot be answered."""
        return SizedRequest(request=request, frames=frames)

    def next_batch(
        self, pending: Sequence[SizedRequest]
    ) -> tuple[list[SizedRequest], list[SizedRequest]]:
        """Returns the next batch and the requests left, which are none if they fill no batch."""
        return list(pending[:1]), list(pending[1:])

    def fits(self, batch: Sequence[SizedRequest]) -> bool:
        """Returns whether a batch can still be answered at once."""
        return len(batch) == 1

    def prepare(self, batch: list[SizedRequest]) -> None:  # noqa: B027 - optional
        """Starts to prepare the batch after the present one."""

    @abstractmethod
    def answer(self, batch: list[SizedRequest]) -> Iterator[tuple[SizedRequest, Reply]]:
        """Answers a batch; yields each reply as soon as it is ready."""


class RequestQueue:
    """Requests to one model that wait for their batch."""

    def __init__(self, model: BatchModel) -> None:
        self.model = model
        self._waiting: list[SizedRequest] = []
        self._next: list[SizedRequest] | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._next or ())

    @property
    def fills_batch(self) -> bool:
        """Whether a full batch is ready."""
        return self._next is not None or bool(self.model.next_batch(self._waiting)[1])

    def add(self, request: SizedRequest) -> None:
        """Adds a request."""
        self._waiting.append(request)

    def take(self) -> list[SizedRequest]:
        """Returns the next batch, maybe empty, and starts to prepare a full one after it."""
        batch, self._next = self._next, None
        if batch is not None and not self.model.fits(batch):
            self._waiting += batch
            batch = None
        if batch is None:
            batch, self._waiting = self.model.next_batch(self._waiting)
        following, left = self.model.next_batch(self._waiting)
        if left:
            self._next, self._waiting = following, left
            self.model.prepare(following)
        return batch


@dataclass(slots=True, eq=False)
class _BatchedDialog:
    place: int
    frames: Frames | None
    dialog: Dialog
    requests: list[Request] = field(default_factory=list)
    replies: dict[str, Reply] = field(default_factory=dict)


def annotate(
    tasks: Sequence[tuple[Task, Frames | None]],
    dialogs: Dialogs,
    models: Mapping[Role, BatchModel],
    *,
    replies: Mapping[str, Reply],
    keep: Keep,
    budget_s: float = float("inf"),
) -> list[Annotation]:
    """Runs a dialog about each task to its end, and returns their annotations in order.

    Args:
        tasks: Windows with their frames, or None for missing frames.
        dialogs: Begins the dialog about a task.
        models: Models by role; roles may share a model.
        replies: Stored replies by request key.
        keep: Called once with each new final reply, when its batch is done.
        budget_s: Longest time of the batches with requests about a clip; later ones fail.
    """
    queues = {id(model): RequestQueue(model) for model in models.values()}
    by_role = {role: queues[id(model)] for role, model in models.items()}
    return _Dialogs(replies, keep, budget_s, by_role).run(tasks, dialogs)


@dataclass(slots=True)
class _Dialogs:
    replies: Mapping[str, Reply]
    keep: Keep
    budget_s: float
    queues: Mapping[Role, RequestQueue]
    waiting: dict[str, list[_BatchedDialog]] = field(default_factory=lambda: defaultdict(list))
    fresh: dict[str, Reply] = field(default_factory=dict)
    spent_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    annotations: dict[int, Annotation] = field(default_factory=dict)

    def run(
        self, tasks: Sequence[tuple[Task, Frames | None]], dialogs: Dialogs
    ) -> list[Annotation]:
        for place, (task, frames) in enumerate(tasks):
            self._continue(_BatchedDialog(place=place, frames=frames, dialog=dialogs(task)), None)
        while filled := [queue for queue in self.queues.values() if len(queue)]:
            # A full batch first; else the first model, whose answers lead to more requests.
            queue = next((queue for queue in filled if queue.fills_batch), filled[0])
            longest_s: defaultdict[str, float] = defaultdict(float)
            for sized, reply in queue.model.answer(queue.take()):
                clip = sized.request.task.clip_id
                more_s = max(0.0, reply.seconds - longest_s[clip])
                longest_s[clip] += more_s
                self.spent_s[clip] += more_s
                self._take_reply(sized.request, reply)
        return [self.annotations[place] for place in range(len(tasks))]

    def _continue(self, run: _BatchedDialog, replies: list[Reply] | None) -> None:
        """Sends replies to a dialog until it makes a request without one."""
        try:
            while True:
                requests = next(run.dialog) if replies is None else run.dialog.send(replies)
                run.requests, run.replies = requests, {}
                for request in requests:
                    self._request(run, request)
                if any(request.key not in run.replies for request in requests):
                    return
                replies = [run.replies[request.key] for request in requests]
        except StopIteration as end:
            self.annotations[run.place] = end.value

    def _request(self, run: _BatchedDialog, request: Request) -> None:
        reply = self.replies.get(request.key) or self.fresh.get(request.key)
        if reply is None and request.key in self.waiting:
            if run not in self.waiting[request.key]:
                self.waiting[request.key].append(run)
            return
        if reply is None:
            sized = self._sized(run, request)
            if isinstance(sized, SizedRequest):
                self.waiting[request.key].append(run)
                self.queues[request.role].add(sized)
                return
            reply = sized
            if reply.is_final:
                self.fresh[request.key] = reply
                self.keep(request.key, reply)
        run.replies[request.key] = reply

    def _sized(self, run: _BatchedDialog, request: Request) -> SizedRequest | Reply:
        if run.frames is None:
            return Reply(failure=Unanswered.NO_FRAMES, detail="the clip's frames are not there")
        spent_s = self.spent_s[request.task.clip_id]
        if spent_s > self.budget_s:
            detail = f"{spent_s:.0f} s, of {self.budget_s:.0f} that a clip may take"
            return Reply(failure=Unanswered.OVER_BUDGET, detail=detail)
        return self.queues[request.role].model.sized(request, run.frames)

    def _take_reply(self, request: Request, reply: Reply) -> None:
        self.fresh[request.key] = reply
        if reply.is_final:
            self.keep(request.key, reply)
        for run in self.waiting.pop(request.key):
            run.replies[request.key] = reply
            if all(each.key in run.replies for each in run.requests):
                self._continue(run, [run.replies[each.key] for each in run.requests])
