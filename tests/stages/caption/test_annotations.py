"""Annotations are stored with their replies, and decide about clips."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from curator.errors import RecipeError
from curator.recipe import load_recipe
from curator.stages.caption.annotations import (
    CaptionRejection,
    answers_fingerprint,
    caption_of,
    judge_score,
    rejection_of,
    remember,
    remembered,
)
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


def memo_config(**changes: Any) -> CaptionConfig:  # noqa: ANN401
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
    """Returns four annotations and their replies, as a later run finds them."""
    replies = Replies(LocalStore(tmp_path), "stamp")
    for key in "klmn":
        replies.keep(key, Reply(text=key))
    for one in (WHOLE, REFUSED, LATE, ALONE):
        remember(one, answers_fingerprint(memo_config()), replies)
    replies.pack()
    return Replies(LocalStore(tmp_path), "stamp").load()


def test_what_was_annotated_comes_back_as_it_was(stored: Replies, tmp_path: Path) -> None:
    """Pins each field, stored failures, and that transient failures are requested again."""
    # Neither another question nor a window without its replies has an annotation.
    stamp = answers_fingerprint(memo_config())
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
    same, other = answers_fingerprint(memo_config()), answers_fingerprint(memo_config(**changes))
    assert (other == same) is is_same


PLAIN = {"captioner": "openai", "model": "m", "url": "http://x/v1"}


def config(**changes: object) -> CaptionConfig:
    asked = {"content_types": ["city", "game"], "questions": {"has_people": "Are there people?"}}
    return CaptionConfig.model_validate(PLAIN | asked | {"safety": True} | changes)


def annotation(
    index: int = 0,
    *,
    failure: Unanswered | None = None,
    score: int | None = None,
    **fields: Any,  # noqa: ANN401
) -> Annotation:
    window = Window(index=index, start_frame=0, end_frame=8, shown=(0,))
    task = Task(clip_id="c", content="p", window=window, fps=25.0)
    if failure is not None:
        return Annotation(task=task, failure=failure, detail="why")
    plain = {"medium": "A dog runs.", "content_type": "city", "safety": "safe"}
    answer = Answer(**plain | fields)
    candidate = AnswerCandidate(
        answer=answer, reply_key="k", faithfulness=score, completeness=score, correctness=score
    )
    return Annotation(task=task, answer=answer, candidates=(candidate,))


def test_a_clip_is_rejected_if_one_window_says_so() -> None:
    """Pins the order of fields and windows, and that yes and no differ."""
    chosen = config(reject={"content_type": ["game"], "safety": ["unsafe", "sensitive"]})
    good = annotation(0)
    assert rejection_of([good], chosen) is None
    game = CaptionRejection("content_type", "game", 1)
    for more in ({}, {"safety": "unsafe"}):
        assert rejection_of([annotation(1, content_type="game", **more), good], chosen) == game
    chosen = config(reject={"has_people": [False]})
    for kept in (annotation(answers={"has_people": True}), good):
        assert rejection_of([kept], chosen) is None
    people = annotation(answers={"has_people": False})
    assert rejection_of([people], chosen) == CaptionRejection("has_people", False, 0)


OWN_FIELDS = """
  type: object
  properties:
    scale: {enum: [indoors, outdoors]}
    stars: {type: integer, minimum: 1, maximum: 5}
    is_odd: {type: boolean}
    dangers: {type: array, items: {enum: [fire, water]}}
    where: {type: object}
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A prompt with custom fields."""
    path = tmp_path / "own.yaml"
    text = Path("pipelines/prompts/describe.yaml").read_text()
    path.write_text(f"{text}\nschema:{OWN_FIELDS}")
    return str(path)


@pytest.mark.parametrize(
    ("field", "values", "said", "other"),
    [
        ("scale", ["indoors"], "indoors", "outdoors"),
        ("stars", [1, 2], 1, 3),
        ("is_odd", [True], True, False),
        ("dangers", ["fire"], ["water", "fire"], ["water"]),
    ],
)
def test_a_field_of_the_prompts_own_rejects(
    own: str, field: str, values: list[object], said: object, other: object
) -> None:
    chosen = config(prompt=own, reject={field: values})
    found = rejection_of([annotation(), annotation(1, extra={field: said})], chosen)
    assert found == CaptionRejection(field, values[0], 1)  # type: ignore[arg-type]
    for kept in (other, None, not isinstance(said, bool)):
        if field != "is_odd" or kept is not True:
            assert rejection_of([annotation(extra={field: kept})], chosen) is None
    recipe = load_recipe(
        "cosmos", [f"caption.prompt={own}", f"caption.reject={{{field}: {json.dumps(values)}}}"]
    )
    assert recipe.caption.reject[field] == tuple(values)


@pytest.mark.parametrize(
    ("reject", "message"),
    [
        ("{scale: [indors]}", r"reject.scale: 'indors'; .* \['indoors', 'outdoors'\]"),
        ("{stars: [6]}", r"reject.stars: 6; expected some of integer"),
        ("{stars: [true]}", "reject.stars: True"),
        ("{is_odd: [1]}", "reject.is_odd: 1; expected some of boolean"),
        ("{dangers: [smoke]}", r"reject.dangers: 'smoke'; expected some of \['fire', 'water'\]"),
        ("{where: [here]}", "reject.where: the prompt's field is 'object'; expected one"),
        ("{star: [1]}", "reject.star is not asked for; .*'scale', 'stars'"),
    ],
)
def test_what_a_prompts_own_field_cannot_say_is_refused(
    own: str, reject: str, message: str
) -> None:
    """Pins that a recipe is refused if no answer can match its rule."""
    with pytest.raises(RecipeError, match=message):
        load_recipe("cosmos", [f"caption.prompt={own}", f"caption.reject={reject}"])


def test_a_recipe_says_what_becomes_of_failures_even_if_its_prompt_is_gone(own: str) -> None:
    dumped = config(prompt=own, reject={"stars": [1]}).model_dump(mode="json")
    Path(own).unlink()
    assert CaptionConfig.model_validate(dumped).reject == {"stars": (1,)}
    # The recipe keeps or rejects clips with failures.
    both = [annotation(1, failure=Unanswered.REFUSAL), annotation(0)]
    assert rejection_of(both, config()) is None
    expected = CaptionRejection("failed", "refusal", 1)
    assert rejection_of(both, config(failed="reject")) == expected
    assert caption_of(both, config()) == (None, "window 1 refusal: why")


@pytest.mark.parametrize(
    ("score", "least", "is_enough"),
    [(2, 3, False), (None, 3, False), (3, 3, True), (None, 1, True)],
)
def test_a_score_below_the_least_is_treated_as_failed(
    score: int | None, least: int, is_enough: bool
) -> None:
    judge = {"model": "j", "url": "http://y", "min_score": least}
    judged = [annotation(0, score=5), annotation(1, score=score)]
    assert list(map(judge_score, judged)) == [5, score]
    assert rejection_of(judged, config(judge=judge)) is None
    rejection = rejection_of(judged, config(judge=judge, failed="reject"))
    assert rejection == (None if is_enough else CaptionRejection("judge_score", score, 1))
    caption, problem = caption_of(judged, config(judge=judge))
    assert (caption is not None) == is_enough
    assert problem == (None if is_enough else f"window 1 judged {score}")


def test_windows_follow_each_other_in_the_caption() -> None:
    both = [annotation(1, medium="Then it stops."), annotation(0)]
    assert caption_of(both, config()) == ("A dog runs. Then it stops.", None)
    assert caption_of([], config())[0] is None
