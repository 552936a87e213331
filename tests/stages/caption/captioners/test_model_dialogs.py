"""Each dialog gets its own replies, and no batch waits for another dialog."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from served import Kept, annotations_of
from test_local_model import mark_reader, marked_requests
from tiny_vlm import tiny_folder
from vlm import frames_of, marked, request_of, task_of

from curator.errors import CutError
from curator.stages.caption.caption_records import (
    Annotation,
    Answer,
    Frames,
    Reply,
    Role,
    Task,
    Unanswered,
)
from curator.stages.caption.captioners.dialog_runner import ModelDialogs
from curator.stages.caption.captioners.local_model import LocalCaptioner
from curator.stages.caption.dialogs.window_dialog import Dialog, replayed

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"), "qwen2_5_vl")


def marked_tasks(n: int) -> tuple[list[tuple[Task, Any]], list[str]]:
    """Returns windows with different numbers of frames, which determine the answers."""
    asked, expected = marked_requests(n)
    return [(request.task, frames) for request, frames in asked], expected


def finished(task: Task, replies: Sequence[Reply]) -> Annotation:
    for reply in replies:
        if reply.failure is not None:
            return Annotation(task=task, failure=reply.failure, detail=reply.detail)
    return Annotation(task=task, answer=Answer(medium=" ".join(r.text for r in replies)))


def unlike_dialog(task: Task) -> Dialog:
    """A dialog with one request, two at a time, or up to four, some with a judge at the end."""
    number = int(task.clip_id.split()[1])
    replies: list[Reply] = []
    for turn in range(1 + number % 4):
        requests = [
            request_of(task, f"Turn {turn}" + "." * (5 * number % 31), seed=seed)
            for seed in range(1 + number % 2)
        ]
        told = yield requests
        assert len(told) == len(requests)
        replies += told
    if number % 3 == 0:
        replies += yield [request_of(task, "Judge.", role="judge")]
    return finished(task, replies)


def both(
    model: LocalCaptioner, judge: LocalCaptioner | None = None, **settings: float
) -> ModelDialogs:
    """Runs `unlike_dialog`."""
    models: Mapping[Role, LocalCaptioner] = {"captioner": model, "judge": judge or model}
    return ModelDialogs(unlike_dialog, models, **settings)


def n_replies(number: int) -> int:
    return (1 + number % 4) * (1 + number % 2) + (number % 3 == 0)


def assert_marks(annotations: Sequence[Annotation], expected: Sequence[str]) -> None:
    for number, (annotation, marks) in enumerate(zip(annotations, expected, strict=True)):
        assert annotation.answer is not None
        assert annotation.answer.medium == " ".join([marks] * n_replies(number))


def test_marked_frames_stay_with_their_clip_and_models_with_their_roles(folder: Path) -> None:
    model, reader = mark_reader(folder)
    tasks, expected = marked_tasks(30)
    kept = Kept()
    first = annotations_of(both(model), tasks, kept)
    assert [annotation.task for annotation in first] == [task for task, _ in tasks]
    assert_marks(first, expected)
    assert set(kept.times.values()) == {1}
    assert sum(reader.sizes) == len(kept) == sum(map(n_replies, range(30)))
    # If dialogs waited for each other in each turn, the last dialogs would be alone.
    assert len(reader.sizes) < len(kept) / 4
    # Stored replies replay all dialogs without a model.
    assert [replayed(unlike_dialog(task), kept)[0] for task, _ in tasks] == first
    reader.sizes.clear()
    assert annotations_of(both(model), tasks, kept) == first
    assert reader.sizes == []
    # A killed run: every second reply is stored.
    some = Kept()
    some.update(list(kept.items())[::2])
    assert annotations_of(both(model), tasks, some) == first
    assert some.keys() == kept.keys()
    assert sum(reader.sizes) == len(some.times) == len(kept) // 2
    # Two models answer the requests of their roles.
    captioner, said = mark_reader(folder)
    judge, judged = mark_reader(folder, batch_tokens=700)
    tasks, expected = marked_tasks(12)
    assert_marks(annotations_of(both(captioner, judge), tasks), expected)
    assert sum(judged.sizes) == 4
    assert sum(said.sizes) == sum(map(n_replies, range(12))) - 4


class DiesError(Exception):
    """Represents the end of a worker."""


def test_replies_are_kept_batch_by_batch(folder: Path) -> None:
    model, reader = mark_reader(folder, batch_tokens=700)
    tasks, _ = marked_tasks(20)
    kept = Kept()
    generate = reader.generate

    def dying(**inputs: Any) -> torch.Tensor:  # noqa: ANN401
        if len(reader.sizes) == 3:
            raise DiesError
        return generate(**inputs)

    reader.generate = dying  # type: ignore[method-assign]
    with pytest.raises(DiesError):
        annotations_of(both(model), tasks, kept)
    assert len(kept) == sum(reader.sizes) > 0


def test_batches_are_filled_across_turns(folder: Path) -> None:
    model, reader = mark_reader(folder, batch_tokens=1000)
    tasks = [(task_of(f"clip {i}"), frames_of(marked(i), marked(i))) for i in range(9)]

    def dialog(task: Task) -> Dialog:
        replies: list[Reply] = []
        for turn in range(1 if task.clip_id != "clip 0" else 3):
            # The longest request is first, so its next turn comes while other requests wait.
            longer = "." * (40 - 10 * turn if task.clip_id == "clip 0" else 0)
            replies += yield [request_of(task, f"Turn {turn}{longer}")]
        return finished(task, replies)

    first, *_ = annotations_of(ModelDialogs(dialog, {"captioner": model}), tasks)
    assert first.answer is not None
    assert first.answer.medium == "0-0 0-0 0-0"
    # Eight fit; in rounds by turn, the batches would be 8, 1, 1 and 1.
    assert reader.sizes == [8, 2, 1]


def test_one_request_of_two_dialogs_is_asked_once(folder: Path) -> None:
    model, reader = mark_reader(folder)
    windows = [(task_of("clip 1"), frames_of(marked(4), marked(5)))] * 3
    kept = Kept()

    def twice(task: Task) -> Dialog:
        replies = yield []
        assert replies == []
        replies = yield [request_of(task), request_of(task)]
        return finished(task, replies)

    answers = annotations_of(ModelDialogs(twice, {"captioner": model}), windows, kept)
    assert [a.answer.medium for a in answers if a.answer is not None] == ["4-5 4-5"] * 3
    assert (reader.sizes, list(kept.times.values())) == ([1], [1])


def test_each_window_ends_with_an_answer_or_a_reason_within_its_budget(folder: Path) -> None:
    """Pins that transient failures are not stored."""

    def gone() -> Frames:
        raise CutError("the frames are gone")

    model, reader = mark_reader(folder)
    tasks, _ = marked_tasks(6)
    tasks[1] = tasks[1][0], gone
    tasks[2] = tasks[2][0], frames_of(b"no picture")
    kept = Kept()
    assert [a.failure for a in annotations_of(both(model), tasks, kept)] == [
        None, Unanswered.NO_FRAMES, Unanswered.REFUSED_REQUEST, None, None, None,
    ]  # fmt: skip
    assert {reply.failure for reply in kept.values()} == {None}
    reader.most_rows = 0
    kept = Kept()
    failures = [a.failure for a in annotations_of(both(model), tasks, kept)]
    assert failures.count(Unanswered.OUT_OF_MEMORY) == 4
    assert not kept
    # A clip has a budget of time.
    model, reader = mark_reader(folder)
    tasks, _ = marked_tasks(4)
    kept = Kept()
    annotations = annotations_of(both(model, budget_s=0), tasks, kept)
    # All first requests are answered; later requests exceed the budget.
    assert [a.failure for a in annotations] == [Unanswered.OVER_BUDGET] * 4
    assert "s, of 0 that a clip may take" in annotations[1].detail
    assert sum(reader.sizes) == len(kept) == sum(1 + number % 2 for number in range(4))
