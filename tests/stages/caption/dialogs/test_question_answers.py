"""Questions and answers for post-training, and the origin of each answer."""

from collections.abc import Mapping
from typing import Any

import pytest

from curator.stages.caption.caption_records import (
    Annotation,
    Answer,
    Event,
    Task,
    Unanswered,
    Window,
    WindowMetadata,
)
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.question_answers import QuestionAnswer, WindowSpan, questions_of

CONFIG = CaptionConfig(
    captioner="openai", url="http://127.0.0.1:1/v1", model="tiny",
    events={"collision": "contact", "near_collision": "a near miss", "normal": "none of it"},
    no_event="normal",
    content_types=("collision", "near_collision", "normal"),
    questions={"ego_brakes": "Does it brake?"},
    open_questions={"weather": "What is the weather like?", "cause": "What leads to it?"},
)  # fmt: skip
ANSWER = Answer(
    short="A van cuts in.",
    medium="A white van cuts in.",
    content_type="collision",
    answers={"ego_brakes": True},
    extra={"weather": "wet", "cause": "a van", "reasoning": "The van comes close."},
)
WHOLE = WindowSpan(start_s=0.0, end_s=5.0, clip_s=5.0, clip_start_s=10.0)
PIECE = WindowSpan(start_s=1.0, end_s=3.0, clip_s=5.0, clip_start_s=10.0)


def known(
    label: str | None, *events: Event, lists_all: bool = True, **values: str | float | bool
) -> WindowMetadata:
    return WindowMetadata(
        label=label, events=events, lists_all=lists_all, values=values, caption="Known."
    )


def event(label: str, start_s: float = 12.0) -> Event:
    return Event(start_s=start_s, end_s=start_s, label=label)


def asked(
    answer: Answer | None,
    know: WindowMetadata | None,
    config: CaptionConfig = CONFIG,
    span: WindowSpan = WHOLE,
    clip: str = "clip",
) -> dict[str, QuestionAnswer]:
    shown = Window(index=0, start_frame=0, end_frame=50, shown=(25,))
    task = Task(clip_id=clip, content="p", window=shown, fps=10.0, metadata=know)
    failure = Unanswered.TIMED_OUT if answer is None else None
    annotation = Annotation(task=task, answer=answer, failure=failure)
    made = questions_of(annotation, config, span)
    names = {f"{one.kind}.{one.name}": one for one in made}
    assert len(names) == len(made)
    return names


def told(made: Mapping[str, QuestionAnswer]) -> dict[str, tuple[str, str]]:
    return {name: (one.answer.split(". ", 1)[-1], one.origin) for name, one in made.items()}


def test_metadata_stands_above_the_model_and_without_both_nothing_is_asked() -> None:
    """Pins each answer and its origin if metadata and model both answer."""
    made = asked(ANSWER, known("collision", event("collision"), weather="rain", ego_brakes=False))
    assert told(made) == {
        "caption.short": ("A van cuts in.", "tiny"),
        "caption.medium": ("A white van cuts in.", "tiny"),
        "caption.metadata": ("Known.", "metadata"), "choice.class": ("collision", "metadata"),
        "yes_no.collision": ("Yes", "metadata"), "yes_no.near_collision": ("No", "metadata"),
        "yes_no.ego_brakes": ("No", "metadata"),
        "open.time_of_collision": ("2.0 s after the start of the video.", "metadata"),
        "open.weather": ("rain", "metadata"), "open.cause": ("a van", "tiny"),
        "reasoning.reasoning": ("collision", "metadata"),
    }  # fmt: skip
    reasoned = made["reasoning.reasoning"]
    assert (reasoned.reasoning, reasoned.reasoning_origin) == ("The van comes close.", "tiny")
    assert made["choice.class"].reasoning_origin is None
    # Only known answers are marked as known.
    made = told(asked(ANSWER, known(None, lists_all=False)))
    assert made.pop("caption.metadata") == ("Known.", "metadata")
    assert {origin for _, origin in made.values()} == {"tiny"}
    assert made["choice.class"] == ("collision", "tiny")
    assert made["yes_no.near_collision"] == ("No", "tiny")
    assert not [name for name in made if "time_of" in name]
    # Windows without a model's answer, with and without metadata; metadata may be incomplete.
    assert set(asked(None, known("normal"))) == {
        "caption.metadata", "choice.class", "yes_no.collision", "yes_no.near_collision",
    }  # fmt: skip
    assert asked(None, None) == {}
    made = told(asked(None, known("collision", event("collision"), lists_all=False)))
    assert made["yes_no.collision"] == ("Yes", "metadata")
    assert "yes_no.near_collision" not in made


def test_answers_fit_each_other_in_recipes_of_all_kinds() -> None:
    """Pins that reasoning for another class is left out, and that questions have one answer."""
    assert "reasoning.reasoning" not in asked(ANSWER, known("near_collision"))
    know = known("collision", event("collision"), event("collision", 13.0))
    assert "open.time_of_collision" not in asked(ANSWER, know)
    # Training uses the whole clip, so questions name the span of a window.
    for one in asked(ANSWER, known("collision", event("collision")), span=PIECE).values():
        assert one.question.startswith("Between 1.0 s and 3.0 s: ")
    for one in asked(ANSWER, known("collision", event("collision"))).values():
        assert "Between" not in one.question
    # Letters differ between clips, and stay the same in each run.
    letters = []
    for i in range(30):
        one = asked(ANSWER, known("collision"), clip=f"clip-{i}")["choice.class"]
        again = asked(ANSWER, known("collision"), clip=f"clip-{i}")["choice.class"]
        assert one == again
        letter, _, name = one.answer.partition(". ")
        assert f"{letter}. {name} (contact)" in one.question
        letters.append(letter)
    assert set(letters) == {"A", "B", "C"}
    # Questions from any model's annotation; captions from metadata occur once.
    plain: dict[str, Any] = {"events": {}, "no_event": None, "content_types": ("indoor", "outdoor")}
    config = CaptionConfig(**(CONFIG.model_dump() | plain))
    made = told(asked(Answer(short="A cat.", content_type="indoor"), None, config))
    assert made == {"caption.short": ("A cat.", "tiny"), "choice.class": ("indoor", "tiny")}
    config = CaptionConfig(**(CONFIG.model_dump() | {"captioner": "metadata"}))
    named = asked(Answer(medium="Known."), known("normal"), config)
    assert {one.origin for one in named.values()} == {"metadata"}
    assert [name for name in named if name.startswith("caption")] == ["caption.metadata"]


@pytest.mark.parametrize("mark", ["<video>", "<image>", "<|im_end|>", "</think>"])
def test_no_mark_of_a_trainer_stands_in_an_answer(mark: str) -> None:
    """Pins the origin of models' answers and of reasoning."""
    said = {"short": f"a {mark} b", "content_type": "collision", "extra": {"reasoning": mark}}
    for one in asked(Answer(**said), known("collision")).values():  # type: ignore[arg-type]
        assert mark not in one.answer + one.reasoning
