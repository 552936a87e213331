"""Each dialog gets the replies to its own requests, in batches that wait for nobody."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from test_local_model import mark_reader
from tiny_vlm import tiny_folder
from vlm import frames_of, jpeg, marked, request_of, task_of

from curator.stages.caption.caption_records import (
    Annotation,
    Answer,
    Frames,
    Reply,
    Role,
    Task,
    Unanswered,
)
from curator.stages.caption.captioners.dialog_batches import annotate
from curator.stages.caption.captioners.local_model import LocalModel
from curator.stages.caption.config import ModelConfig
from curator.stages.caption.dialogs.window_dialog import Dialog, replayed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"), "qwen2_5_vl")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


class Kept:
    """What was stored."""

    def __init__(self) -> None:
        self.replies: dict[str, Reply] = {}
        self.counts: Counter[str] = Counter()

    def __call__(self, key: str, reply: Reply) -> None:
        self.counts[key] += 1
        self.replies[key] = reply


def marked_tasks(n: int) -> tuple[list[tuple[Task, Frames | None]], list[str]]:
    """Windows whose frames tell their answer; of unlike numbers of frames."""
    tasks: list[tuple[Task, Frames | None]] = []
    expected = []
    for i in range(n):
        marks = [i % 25, (3 * i + 1) % 25, (7 * i + 2) % 25][: 2 + i % 2]
        tasks.append((task_of(f"clip {i}", len(marks)), frames_of(*map(marked, marks))))
        expected.append("-".join(map(str, marks)))
    return tasks, expected


def finished(task: Task, replies: Sequence[Reply]) -> Annotation:
    for reply in replies:
        if reply.failure is not None:
            return Annotation(task=task, failure=reply.failure, detail=reply.detail)
    return Annotation(task=task, answer=Answer(medium=" ".join(r.text for r in replies)))


def unlike_dialog(task: Task) -> Dialog:
    """Some ask once, some two at a time, some up to four times, some a judge at the end."""
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


def n_replies(number: int) -> int:
    return (1 + number % 4) * (1 + number % 2) + (number % 3 == 0)


def test_marked_frames_stay_with_their_clip(folder: Path) -> None:
    model, reader = mark_reader(folder)
    tasks, expected = marked_tasks(30)
    kept = Kept()
    found = annotate(
        tasks, unlike_dialog, {"captioner": model, "judge": model}, replies={}, keep=kept
    )
    assert [annotation.task for annotation in found] == [task for task, _ in tasks]
    for number, (annotation, marks) in enumerate(zip(found, expected, strict=True)):
        assert annotation.answer is not None
        assert annotation.answer.medium == " ".join([marks] * n_replies(number))
    assert set(kept.counts.values()) == {1}
    assert sum(reader.sizes) == len(kept.replies) == sum(map(n_replies, range(30)))
    # Waiting for each other, turn by turn, the last ones would be alone.
    assert len(reader.sizes) < len(kept.replies) / 4
    # What was kept tells the whole course again, without a model.
    again = [replayed(unlike_dialog(task), kept.replies)[0] for task, _ in tasks]
    assert again == found


def test_two_models_answer_their_own_roles(folder: Path) -> None:
    captioner, said = mark_reader(folder)
    judge, judged = mark_reader(folder, batch_tokens=700)
    tasks, expected = marked_tasks(12)
    found = annotate(
        tasks, unlike_dialog, {"captioner": captioner, "judge": judge}, replies={}, keep=Kept()
    )
    for number, (annotation, marks) in enumerate(zip(found, expected, strict=True)):
        assert annotation.answer is not None
        assert annotation.answer.medium == " ".join([marks] * n_replies(number))
    assert sum(judged.sizes) == 4
    assert sum(said.sizes) == sum(map(n_replies, range(12))) - 4


def test_what_is_known_is_told_without_asking(folder: Path) -> None:
    model, reader = mark_reader(folder)
    tasks, _ = marked_tasks(12)
    models: Mapping[Role, LocalModel] = {"captioner": model, "judge": model}
    kept = Kept()
    first = annotate(tasks, unlike_dialog, models, replies={}, keep=kept)
    reader.sizes.clear()
    more = Kept()
    assert annotate(tasks, unlike_dialog, models, replies=kept.replies, keep=more) == first
    assert (reader.sizes, more.replies) == ([], {})
    # A run that was killed: every second reply is there.
    some = dict(list(kept.replies.items())[::2])
    assert annotate(tasks, unlike_dialog, models, replies=some, keep=more) == first
    assert set(more.replies) == set(kept.replies) - set(some)
    assert sum(reader.sizes) == len(more.replies)


class DiesError(Exception):
    """Stands for a worker's end."""


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
        annotate(tasks, unlike_dialog, {"captioner": model, "judge": model}, replies={}, keep=kept)
    assert len(kept.replies) == sum(reader.sizes) > 0


def test_batches_are_filled_across_turns(folder: Path) -> None:
    model, reader = mark_reader(folder, batch_tokens=1000)
    tasks = [(task_of(f"clip {i}"), frames_of(marked(i), marked(i))) for i in range(9)]

    def dialog(task: Task) -> Dialog:
        replies: list[Reply] = []
        for turn in range(1 if task.clip_id != "clip 0" else 3):
            # The longest goes first, so that its next turn comes while others wait.
            longer = "." * (40 - 10 * turn if task.clip_id == "clip 0" else 0)
            replies += yield [request_of(task, f"Turn {turn}{longer}")]
        return finished(task, replies)

    found = annotate(tasks, dialog, {"captioner": model}, replies={}, keep=Kept())
    assert found[0].answer is not None
    assert found[0].answer.medium == "0-0 0-0 0-0"
    # Eight fit: in rounds by turn, these were 8 and 1, 1, 1.
    assert reader.sizes == [8, 2, 1]


def test_one_request_of_two_dialogs_is_asked_once(folder: Path) -> None:
    model, reader = mark_reader(folder)
    task = task_of("clip 1")
    frames = frames_of(marked(4), marked(5))
    kept = Kept()

    def twice(task: Task) -> Dialog:
        replies = yield [request_of(task), request_of(task)]
        return finished(task, replies)

    found = annotate([(task, frames)] * 3, twice, {"captioner": model}, replies={}, keep=kept)
    assert [a.answer.medium for a in found if a.answer is not None] == ["4-5 4-5"] * 3
    assert (reader.sizes, list(kept.counts.values())) == ([1], [1])


def test_each_window_ends_with_an_answer_or_a_reason(folder: Path) -> None:
    model, reader = mark_reader(folder)
    tasks, _ = marked_tasks(6)
    tasks[1] = tasks[1][0], None
    tasks[2] = tasks[2][0], frames_of(b"no picture")
    kept = Kept()
    found = annotate(
        tasks, unlike_dialog, {"captioner": model, "judge": model}, replies={}, keep=kept
    )
    assert [a.failure for a in found] == [
        None, Unanswered.NO_FRAMES, Unanswered.REFUSED_REQUEST, None, None, None,
    ]  # fmt: skip
    # What may go well in another run is not kept.
    failures = Counter(reply.failure for reply in kept.replies.values())
    assert kept.replies
    assert set(failures) == {None}
    reader.most_rows = 0
    kept = Kept()
    found = annotate(
        tasks, unlike_dialog, {"captioner": model, "judge": model}, replies={}, keep=kept
    )
    assert [a.failure for a in found].count(Unanswered.OUT_OF_MEMORY) == 4
    assert Unanswered.OUT_OF_MEMORY not in {reply.failure for reply in kept.replies.values()}


def test_a_clip_has_a_budget_of_time(folder: Path) -> None:
    model, reader = mark_reader(folder)
    tasks, _ = marked_tasks(4)
    kept = Kept()
    models: Mapping[Role, LocalModel] = {"captioner": model, "judge": model}
    found = annotate(tasks, unlike_dialog, models, replies={}, keep=kept, budget_s=0)
    # The first turn is asked of all; what asks again is over its budget.
    assert [a.failure for a in found] == [Unanswered.OVER_BUDGET] * 4
    assert "s, of 0 that a clip may take" in found[1].detail
    assert sum(reader.sizes) == len(kept.replies) == sum(1 + number % 2 for number in range(4))


def test_a_dialog_that_asks_nothing_ends(folder: Path) -> None:
    model, _ = mark_reader(folder)

    def silent(task: Task) -> Dialog:
        replies = yield []
        assert replies == []
        return Annotation(task=task, failure=Unanswered.EMPTY)

    task = task_of("clip 1")
    (found,) = annotate([(task, None)], silent, {"captioner": model}, replies={}, keep=Kept())
    assert found.failure == Unanswered.EMPTY


def test_a_real_model_gives_each_clip_what_it_gives_it_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "curator.stages.caption.captioners.model_loading.has_fast_bfloat16", lambda: False
    )
    model = LocalModel(ModelConfig(model=str(folder), batch_tokens=900), device="cpu")
    tasks = [
        (task_of(f"clip {i}"), frames_of(jpeg(2 * i, 64, 48), jpeg(2 * i + 1, 64, 48)))
        for i in range(8)
    ]
    models: Mapping[Role, LocalModel] = {"captioner": model, "judge": model}
    together = annotate(tasks, unlike_dialog, models, replies={}, keep=Kept())
    alone = [annotate([task], unlike_dialog, models, replies={}, keep=Kept())[0] for task in tasks]
    assert together == alone
    assert len({a.answer.medium for a in together if a.answer is not None}) == 8
