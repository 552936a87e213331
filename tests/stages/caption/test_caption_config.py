"""Settings of annotation that cannot be followed are refused with a remedy."""

from typing import Any

import pytest
from pydantic import ValidationError

from curator.recipe import load_recipe
from curator.stages.caption.config import CaptionConfig

URL = "http://vlm:8000/v1"
ASKS: dict[str, Any] = {"captioner": "openai", "url": URL, "model": "m"}
EVENTS = {"crash": "Cars touch.", "normal": "None do."}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"questions": {"dark": ""}}, "dark is empty; expected a question in words"),
        ({"lengths": ["short", "long"]}, r"set caption\.text=long, or add medium"),
        ({"judge": {"url": URL}}, r"judge\.model is missing; set caption\.judge\.model"),
        ({"judge": {"model": "j"}}, r"judge\.url is missing; set caption\.judge\.url"),
        ({"judge": {"captioner": "transformers", "model": "j"}}, "expected the same"),
        ({"no_event": "calm"}, "no_event is 'calm'"),
        ({"events": EVENTS, "content_types": ["crash"]}, "expected the names of events"),
        ({"event_window_s": 2.0}, "event_window_s needs events"),
        ({"events": {"a b": ""}}, "expected a plain name"),
        ({"events": EVENTS, "questions": {"crash": "?"}}, "is in events and in questions"),
        ({"open_questions": {"cause": " "}}, "cause is empty; expected a question"),
        ({"captioner": "metadata", "candidates": 2}, "expected neither candidates nor a judge"),
    ],
)
def test_refusals_name_the_key_and_the_remedy(changes: dict[str, Any], message: str) -> None:
    CaptionConfig(**ASKS)
    with pytest.raises(ValidationError, match=message):
        CaptionConfig(**ASKS | changes)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("questions", {"is_dark": "Is it dark?"}),
        ("reject", {"safety": ["unsafe"]}),
        ("judge", {"model": "j", "url": URL}),
        ("candidates", 2),
        ("url", URL),
    ],
)
def test_what_only_models_answer_needs_a_model(key: str, value: object) -> None:
    """Pins that such keys are not passed over in silence."""
    with pytest.raises(ValidationError, match=rf"caption\.{key} is set.*set caption\.captioner to"):
        CaptionConfig(**{key: value})  # type: ignore[arg-type]


def test_recipes_whose_captions_are_measured_or_from_metadata_stand() -> None:
    """Pins that one may say `measured` and leave the server, and that metadata answers."""
    assert CaptionConfig(enabled=False, questions={"is_dark": "Is it dark?"}, url=URL).questions
    recipe = load_recipe("cosmos", ["caption.captioner=measured"])
    assert recipe.caption.url is not None
    reject = "caption.reject.content_type=[normal_driving]"
    assert load_recipe("driving", [reject]).caption.questions
    # Classes, open questions and captions from metadata each make a recipe read values.
    assert not CaptionConfig(**ASKS).knows
    assert CaptionConfig(**ASKS, open_questions={"road": "What road?"}).knows
    assert CaptionConfig(**ASKS, events=EVENTS).knows
    assert CaptionConfig(captioner="metadata").knows
