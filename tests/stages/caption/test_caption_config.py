"""Settings of captions that contradict each other are refused with a remedy."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from curator.recipe import load_recipe
from curator.stages.caption.config import CaptionConfig

INFRA = Path(__file__).parents[3] / "infra" / "vlm"
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
        ({"judge": {"captioner": "local", "model": "j"}}, "expected the same"),
        ({"server_args": ["--trust-remote-code"]}, "code of a model is never run: leave it out"),
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
    """Pins that such keys are not ignored without a message."""
    with pytest.raises(ValidationError, match=rf"caption\.{key} is set.*set caption\.captioner to"):
        CaptionConfig(**{key: value})  # type: ignore[arg-type]


def test_recipes_whose_captions_are_measured_or_from_metadata_stand() -> None:
    """Pins that a recipe may name `measured` and a server, and that metadata answers."""
    assert CaptionConfig(enabled=False, questions={"is_dark": "Is it dark?"}, url=URL).questions
    recipe = load_recipe("cosmos", ["caption.captioner=measured"])
    assert recipe.caption.url is not None
    reject = "caption.reject.content_type=[normal_driving]"
    assert load_recipe("driving", [reject]).caption.questions
    # Classes, open questions and captions from metadata need values of sidecars.
    assert not CaptionConfig(**ASKS).knows
    assert CaptionConfig(**ASKS, open_questions={"road": "What road?"}).knows
    assert CaptionConfig(**ASKS, events=EVENTS).knows
    assert CaptionConfig(captioner="metadata").knows


def test_the_deployment_takes_what_recipes_may_send() -> None:
    """Pins that infra/vlm can serve the default recipe."""
    (app,) = yaml.safe_load((INFRA / "serve.yaml").read_text())["applications"]
    assert app["import_path"] == "ray.serve.llm:build_openai_app"
    (model,) = app["args"]["llm_configs"]
    caption = CaptionConfig()
    limits = model["engine_kwargs"]["limit_mm_per_prompt"]
    assert limits["image"] >= caption.max_frames
    assert limits["video"] >= 1
    # Qwen2.5-VL has a token for each 28 x 28 px; the prompt needs some tokens, too.
    tokens = caption.max_frames * (caption.frame_px // 28) ** 2
    assert model["engine_kwargs"]["max_model_len"] >= tokens + caption.max_tokens + 2000
    scaling = model["deployment_config"]["autoscaling_config"]
    assert scaling["target_ongoing_requests"] == caption.in_flight
    assert f'"image": {limits["image"]}' in (INFRA / "README.md").read_text()
