"""The deployment in infra/vlm fits what recipes ask of it by default."""

from pathlib import Path

import yaml

from curator.stages.caption.config import CaptionConfig

INFRA = Path(__file__).parents[4] / "infra" / "vlm"


def test_the_deployment_takes_what_recipes_may_send() -> None:
    (app,) = yaml.safe_load((INFRA / "serve.yaml").read_text())["applications"]
    assert app["import_path"] == "ray.serve.llm:build_openai_app"
    (model,) = app["args"]["llm_configs"]
    caption = CaptionConfig()
    limits = model["engine_kwargs"]["limit_mm_per_prompt"]
    assert limits["image"] >= caption.max_frames
    assert limits["video"] >= 1
    # Qwen2.5-VL: a token for each 28 x 28 px; and some for the prompt.
    tokens = caption.max_frames * (caption.frame_px // 28) ** 2
    assert model["engine_kwargs"]["max_model_len"] >= tokens + caption.max_tokens + 2000
    scaling = model["deployment_config"]["autoscaling_config"]
    assert scaling["target_ongoing_requests"] == caption.in_flight
    assert f'"image": {limits["image"]}' in (INFRA / "README.md").read_text()
