"""Annotations that are kept with the replies: all of them, or none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from curator.stages.caption.annotations import answers_fingerprint, remember, remembered
from curator.stages.caption.caption_records import (
    Annotation,
    Answer,
    AnswerCandidate,
    Reply,
    Task,
    Unanswered,
    Window,
)
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.reply_store import Replies
from curator.storage import LocalStore

JUDGE = {"url": "http://j/v1", "model": "j"}


def config(**changes: Any) -> CaptionConfig:  # noqa: ANN401
    asked: dict[str, Any] = {"captioner": "openai", "url": "http://a/v1", "model": "m"}
    types = {"content_types": ("animals", "sports")}
    return CaptionConfig(**asked | {"judge": JUDGE} | types | changes)


def task(index: int = 0, **changes: Any) -> Task:  # noqa: ANN401
    window = Window(index=index, start_frame=10 * index, end_frame=10 * index + 10, shown=(3, 7))
    fields = {"clip_id": "a", "content": "c", "window": window, "fps": 30.0, "facts": "- a fact"}
    return Task(**{**fields, **changes})


ANSWER = Answer(
    short="A cat.", medium="A cat sits.", long="A cat sits on a wall.",
    structured={"camera": "still"},
    content_type="animals", answers={"has_people": False}, safety="safe", extra={"why": [1, 2]},
)  # fmt: skip
OTHER = Answer(medium="A dog.")
WHOLE = Annotation(
    task=task(0),
    answer=ANSWER,
    candidates=(
        AnswerCandidate(answer=ANSWER, reply_key="k", faithfulness=5, completeness=4),
        AnswerCandidate(answer=OTHER, reply_key="l", correctness=3, why="x"),
    ),
    set_aside={"repeated": 1}, lost={"timed_out": 1}, n_unscored=1,
    request_keys=("k", "l", "n"), tokens_in=7, tokens_out=9,
)  # fmt: skip
REFUSED = Annotation(task=task(1), failure=Unanswered.REFUSAL, detail="no", request_keys=("m",))
LATE = Annotation(task=task(2), failure=Unanswered.TIMED_OUT, detail="180 s")
ALONE = replace(WHOLE, task=task(3), candidates=(AnswerCandidate(answer=ANSWER, reply_key="k"),))


@pytest.fixture
def stored(tmp_path: Path) -> Replies:
    """Four annotations and their replies, as a later run finds them."""
    replies = Replies(LocalStore(tmp_path), "stamp")
    for key in "klmn":
        replies.keep(key, Reply(text=key))
    for one in (WHOLE, REFUSED, LATE, ALONE):
        remember(one, answers_fingerprint(config()), replies)
    replies.pack()
    return Replies(LocalStore(tmp_path), "stamp").load()


def test_what_was_annotated_comes_back_as_it_was(stored: Replies, tmp_path: Path) -> None:
    """Pins each field, failures that hold, and that transient ones are asked again.

    Another question has no annotation yet, and neither have windows whose replies were deleted.
    """
    stamp = answers_fingerprint(config())
    assert remembered(task(0), stamp, stored) == WHOLE
    assert remembered(task(1), stamp, stored) == REFUSED
    assert remembered(task(2), stamp, stored) is None
    assert remembered(task(3), stamp, stored) == replace(ALONE, candidates=())
    window = Window(index=0, start_frame=0, end_frame=10, shown=(3, 8))
    others: list[dict[str, Any]] = [{"facts": "-"}, {"content": "d"}, {"window": window}]
    for changes in others:
        assert remembered(task(0, **changes), stamp, stored) is None
    less = Replies(LocalStore(tmp_path / "less"), "stamp")
    for key, reply in stored.items():
        if key != "l":
            less.keep(key, reply)
    assert remembered(task(0), stamp, less) is None
    assert remembered(task(1), stamp, less) == REFUSED


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"url": "http://b/v1", "in_flight": 3, "timeout_s": 1.0}, True),
        ({"failed": "reject", "text": "long", "embedding": "t5-base"}, True),
        ({"judge": JUDGE | {"min_score": 3, "url": "http://k/v1"}}, True),
        ({"model": "n"}, False),
        ({"language": "de"}, False),
        ({"allow_meta": True}, False),
        ({"seed": 1}, False),
        ({"lengths": ("medium",)}, False),
        ({"prompt": "cosmos", "lengths": ("medium",)}, False),
        ({"judge": JUDGE | {"model": "k"}}, False),
    ],
)  # fmt: skip
def test_settings_that_make_other_annotations_are_told_from_the_rest(
    changes: dict[str, Any], is_same: bool
) -> None:
    assert (answers_fingerprint(config(**changes)) == answers_fingerprint(config())) is is_same
