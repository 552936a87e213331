"""What annotations decide about a clip."""

from collections.abc import Mapping

import pytest

from curator.captions.config import CaptionConfig
from curator.captions.decide import ClipCaption, Rejection, caption_of, judge_score, rejection_of
from curator.captions.records import Annotation, Answer, Candidate, Task, Unanswered, Window

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
) -> Annotation:
    window = Window(index=index, start_frame=0, end_frame=8, shown=(0,))
    task = Task(clip_id="c", content="p", window=window, fps=25.0)
    if failure is not None:
        return Annotation(task=task, failure=failure, detail="why")
    answer = Answer(medium=text, content_type=content_type, answers=answers or {}, safety=safety)
    candidate = Candidate(
        answer=answer, reply_key="k", faithfulness=score, completeness=score, correctness=score
    )
    return Annotation(task=task, answer=answer, candidates=(candidate,))


def test_a_clip_is_rejected_if_one_window_says_so() -> None:
    chosen = config(reject={"content_type": ["game"], "safety": ["unsafe", "sensitive"]})
    good = annotation(0)
    assert rejection_of([good], chosen) is None
    assert rejection_of([annotation(1, content_type="game"), good], chosen) == Rejection(
        field="content_type", value="game", window=1
    )
    found = rejection_of([annotation(1, content_type="game", safety="unsafe"), good], chosen)
    assert found is not None
    assert found.field == "content_type"


def test_yes_and_no_are_not_each_other() -> None:
    chosen = config(reject={"has_people": [False]})
    assert rejection_of([annotation(answers={"has_people": True})], chosen) is None
    assert rejection_of([annotation()], chosen) is None
    assert rejection_of([annotation(answers={"has_people": False})], chosen) == Rejection(
        field="has_people", value=False, window=0
    )


def test_what_failed_is_kept_or_rejected_as_the_recipe_says() -> None:
    both = [annotation(1, failure=Unanswered.REFUSAL), annotation(0)]
    assert rejection_of(both, config()) is None
    assert rejection_of(both, config(failed="reject")) == Rejection(
        field="failed", value="refusal", window=1
    )
    assert caption_of(both, config()) == ClipCaption(text=None, problem="window 1 refusal: why")


@pytest.mark.parametrize(("score", "is_enough"), [(2, False), (None, False), (3, True)])
def test_a_score_below_the_least_is_treated_as_failed(score: int | None, is_enough: bool) -> None:
    judge = {"model": "j", "url": "http://y", "min_score": 3}
    judged = [annotation(0, score=5), annotation(1, score=score)]
    assert rejection_of(judged, config(judge=judge)) is None
    found = rejection_of(judged, config(judge=judge, failed="reject"))
    wanted = Rejection(field="judge_score", value=score, window=1)
    assert found == (None if is_enough else wanted)
    caption = caption_of(judged, config(judge=judge))
    assert (caption.text is not None) == is_enough
    assert caption.problem == ("" if is_enough else f"window 1 judged {score}")


def test_without_a_least_score_an_unscored_answer_is_kept() -> None:
    judge = {"model": "j", "url": "http://y"}
    chosen = config(judge=judge, failed="reject")
    assert rejection_of([annotation(score=None)], chosen) is None
    assert judge_score(annotation(score=4)) == 4


def test_windows_follow_each_other_in_the_caption() -> None:
    both = [annotation(1, text="Then it stops."), annotation(0, text="A dog runs.")]
    assert caption_of(both, config()) == ClipCaption(text="A dog runs. Then it stops.")
    assert caption_of([], config()).text is None
