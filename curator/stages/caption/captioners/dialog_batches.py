"""Many dialogs at once over models in the worker.

What all dialogs ask waits in one place for each model, and is taken from there in batches as full
as the model's budget allows: a dialog whose caption came early asks its next question in the next
batch, and waits for no other dialog. A request that several dialogs have is asked once.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
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
from curator.stages.caption.captioners.chat_tensors import Asked
from curator.stages.caption.captioners.local_model import LocalModel, Pending
from curator.stages.caption.dialogs.dialog import Dialog, Dialogs

Keep = Callable[[Request, Reply], None]
"""Stores a reply that need not be asked for again."""


@dataclass(slots=True, eq=False)
class _Course:
    """A dialog under way."""

    place: int
    task: Task
    frames: Frames | None
    dialog: Dialog
    requests: list[Request] = field(default_factory=list)
    """Asked at the same time; told when all are answered."""
    replies: dict[str, Reply] = field(default_factory=dict)


def annotate(
    tasks: Sequence[tuple[Task, Frames | None]],
    dialogs: Dialogs,
    models: Mapping[Role, LocalModel],
    *,
    known: Mapping[str, Reply],
    keep: Keep,
    budget_s: float = float("inf"),
) -> list[Annotation]:
    """Brings a dialog about each task to its end.

    Args:
        tasks: Windows with their frames; None for a window whose frames could not be had.
        dialogs: Begins the dialog about a task.
        models: Who answers, by role; roles may share a model.
        known: Replies by the key of their request, told without asking.
        keep: Told each final reply that is not known, once, when its batch is done.
        budget_s: Longest time of the batches that a clip takes part in; what it asks after that is
            not answered.

    Returns:
        One annotation per task, in their order.
    """
    return _Round(models, known, keep, budget_s).run(tasks, dialogs)


class _Round:
    def __init__(
        self,
        models: Mapping[Role, LocalModel],
        known: Mapping[str, Reply],
        keep: Keep,
        budget_s: float,
    ) -> None:
        self._models = models
        self._known = known
        self._keep = keep
        self._budget_s = budget_s
        self._pending = {id(model): Pending(model) for model in models.values()}
        self._waiting: dict[str, list[_Course]] = defaultdict(list)
        self._fresh: dict[str, Reply] = {}
        self._spent_s: defaultdict[str, float] = defaultdict(float)
        self._annotations: dict[int, Annotation] = {}

    def run(
        self, tasks: Sequence[tuple[Task, Frames | None]], dialogs: Dialogs
    ) -> list[Annotation]:
        for place, (task, frames) in enumerate(tasks):
            course = _Course(place=place, task=task, frames=frames, dialog=dialogs(task))
            self._go_on(course, None)
        while any(self._pending.values()):
            model, pending = self._next()
            batch = pending.take()
            longest_s: defaultdict[str, float] = defaultdict(float)
            for asked, reply in model.answer(batch):
                clip = asked.request.task.clip_id
                more_s = max(0.0, reply.seconds - longest_s[clip])
                longest_s[clip] += more_s
                self._spent_s[clip] += more_s
                self._answered(asked.request, reply)
        return [self._annotations[place] for place in range(len(tasks))]

    def _next(self) -> tuple[LocalModel, Pending]:
        """The model with a full batch; else the first with any, whose answers lead to more."""
        models = [model for model in self._models.values() if len(self._pending[id(model)])]
        full = (model for model in models if self._pending[id(model)].fills_batch)
        model = next(full, models[0])
        return model, self._pending[id(model)]

    def _go_on(self, course: _Course, replies: list[Reply] | None) -> None:
        """Tells a dialog its replies, until it asks what nobody has answered yet."""
        try:
            while True:
                requests = next(course.dialog) if replies is None else course.dialog.send(replies)
                course.requests, course.replies = requests, {}
                for request in requests:
                    self._ask(course, request)
                if any(request.key not in course.replies for request in requests):
                    return
                replies = [course.replies[request.key] for request in requests]
        except StopIteration as end:
            self._annotations[course.place] = end.value

    def _ask(self, course: _Course, request: Request) -> None:
        reply = self._known.get(request.key) or self._fresh.get(request.key)
        if reply is None and request.key in self._waiting:
            if course not in self._waiting[request.key]:
                self._waiting[request.key].append(course)
            return
        if reply is None:
            found = self._looked_at(course, request)
            if isinstance(found, Asked):
                self._waiting[request.key].append(course)
                self._pending[id(self._models[request.role])].add(found)
                return
            reply = found
            if reply.is_final:
                self._fresh[request.key] = reply
                self._keep(request, reply)
        course.replies[request.key] = reply

    def _looked_at(self, course: _Course, request: Request) -> Asked | Reply:
        if course.frames is None:
            return Reply(failure=Unanswered.NO_FRAMES, detail="the clip's frames are not there")
        spent_s = self._spent_s[request.task.clip_id]
        if spent_s > self._budget_s:
            detail = f"{spent_s:.0f} s, of {self._budget_s:.0f} that a clip may take"
            return Reply(failure=Unanswered.OVER_BUDGET, detail=detail)
        return self._models[request.role].look_at(request, course.frames)

    def _answered(self, request: Request, reply: Reply) -> None:
        self._fresh[request.key] = reply
        if reply.is_final:
            self._keep(request, reply)
        for course in self._waiting.pop(request.key):
            course.replies[request.key] = reply
            if all(asked.key in course.replies for asked in course.requests):
                self._go_on(course, [course.replies[asked.key] for asked in course.requests])
