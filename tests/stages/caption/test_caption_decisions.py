"""What annotations decide about a clip."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from curator.errors import RecipeError
from curator.recipe import load_recipe
from curator.stages.caption.annotation_rows import (
    CaptionRejection,
    caption_of,
    judge_score,
    rejection_of,
)
from curator.stages.caption.caption_records import (
    Annotation,
    Answer,
    AnswerCandidate,
    Task,
    Unanswered,
    Window,
)
from curator.stages.caption.config import CaptionConfig

PLAIN = {"captioner": "openai", "model": "m", "url": "http://x/v1"}


def config(**changes: object) -> CaptionConfig:
    return CaptionConfig.model_validate(
        {
            **PLAIN,
            "content_types": ["city", "game"],
            "questions": {"has_people": "Are there people?"},
            "safety": True,
            **changes,
        }
    )


def annotation(
    index: int = 0,
    *,
    text: str = "A dog runs.",
    failure: Unanswered | None = None,
    score: int | None = None,
    content_type: str = "city",
    answers: Mapping[str, bool] | None = None,
    safety: str = "safe",
    extra: Mapping[str, object] | None = None,
) -> Annotation:
    window = Window(index=index, start_frame=0, end_frame=8, shown=(0,))
    task = Task(clip_id="c", content="p", window=window, fps=25.0)
    if failure is not None:
        return Annotation(task=task, failure=failure, detail="why")
    answer = Answer(
        medium=text,
        content_type=content_type,
        answers=answers or {},
        safety=safety,
        extra=extra or {},
    )
    candidate = AnswerCandidate(
        answer=answer, reply_key="k", faithfulness=score, completeness=score, correctness=score
    )
    return Annotation(task=task, answer=answer, candidates=(candidate,))


def test_a_clip_is_rejected_if_one_window_says_so() -> None:
    chosen = config(reject={"content_type": ["game"], "safety": ["unsafe", "sensitive"]})
    good = annotation(0)
    assert rejection_of([good], chosen) is None
    assert rejection_of([annotation(1, content_type="game"), good], chosen) == CaptionRejection(
        field="content_type", value="game", window=1
    )
    found = rejection_of([annotation(1, content_type="game", safety="unsafe"), good], chosen)
    assert found is not None
    assert found.field == "content_type"


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
    """A prompt with fields of its own."""
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
    assert found == CaptionRejection(field=field, value=values[0], window=1)  # type: ignore[arg-type]
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
    """Pins that the recipe is refused, and not a rule kept that no answer will ever meet."""
    with pytest.raises(RecipeError, match=message):
        load_recipe("cosmos", [f"caption.prompt={own}", f"caption.reject={reject}"])


def test_a_recipe_whose_prompt_is_gone_can_be_read(own: str) -> None:
    dumped = config(prompt=own, reject={"stars": [1]}).model_dump(mode="json")
    Path(own).unlink()
    assert CaptionConfig.model_validate(dumped).reject == {"stars": (1,)}


def test_yes_and_no_are_not_each_other() -> None:
    chosen = config(reject={"has_people": [False]})
    assert rejection_of([annotation(answers={"has_people": True})], chosen) is None
    assert rejection_of([annotation()], chosen) is None
    assert rejection_of([annotation(answers={"has_people": False})], chosen) == CaptionRejection(
        field="has_people", value=False, window=0
    )


def test_what_failed_is_kept_or_rejected_as_the_recipe_says() -> None:
    both = [annotation(1, failure=Unanswered.REFUSAL), annotation(0)]
    assert rejection_of(both, config()) is None
    assert rejection_of(both, config(failed="reject")) == CaptionRejection(
        field="failed", value="refusal", window=1
    )
    assert caption_of(both, config()) == (None, "window 1 refusal: why")


@pytest.mark.parametrize(("score", "is_enough"), [(2, False), (None, False), (3, True)])
def test_a_score_below_the_least_is_treated_as_failed(score: int | None, is_enough: bool) -> None:
    judge = {"model": "j", "url": "http://y", "min_score": 3}
    judged = [annotation(0, score=5), annotation(1, score=score)]
    assert rejection_of(judged, config(judge=judge)) is None
    found = rejection_of(judged, config(judge=judge, failed="reject"))
    wanted = CaptionRejection(field="judge_score", value=score, window=1)
    assert found == (None if is_enough else wanted)
    caption, problem = caption_of(judged, config(judge=judge))
    assert (caption is not None) == is_enough
    assert problem == (None if is_enough else f"window 1 judged {score}")


def test_without_a_least_score_an_unscored_answer_is_kept() -> None:
    judge = {"model": "j", "url": "http://y"}
    chosen = config(judge=judge, failed="reject")
    assert rejection_of([annotation(score=None)], chosen) is None
    assert judge_score(annotation(score=4)) == 4


def test_windows_follow_each_other_in_the_caption() -> None:
    both = [annotation(1, text="Then it stops."), annotation(0, text="A dog runs.")]
    assert caption_of(both, config()) == ("A dog runs. Then it stops.", None)
    assert caption_of([], config())[0] is None
