"""Scores of the meaning of clips, from the CLIP embeddings that `analyze` stored.

They need no pixels: a rerun with another aesthetic head, prompts or bounds takes seconds.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from curator.errors import UsageError, unknown_key
from curator.measures.clip_view import ClipView
from curator.measures.measure_contract import ScoreSpec
from curator.models.embedding_heads import (
    Heads,
    load_prompts,
)
from curator.stage import StageConfig, setting

Need = Literal["clip", "aesthetic", "content", "safety"]  # recipe keys on which a score depends
NEEDS: dict[str, Need] = {
    "aesthetic": "aesthetic",
    "content_probability": "content",
    "nsfw": "safety",
    "consistency": "clip",
}
"""Scores that need models which the recipe names."""
REMEDY: dict[Need, str] = {
    "clip": "set analyze.clip, such as analyze.clip=openai-vit-b-32 (`curate models pull "
    "openai-vit-b-32`)",
    "aesthetic": "set analyze.clip=openai-vit-l-14 and semantic.aesthetic=laion-mlp-l-14 "
    "(`curate models pull openai-vit-l-14 laion-mlp-l-14`)",
}
REMEDY["content"] = REMEDY["safety"] = REMEDY["clip"]


class SemanticConfig(StageConfig):
    """Settings of the scores from CLIP embeddings; without effect if `analyze.clip` is null."""

    aesthetic: str | None = setting(None, unit="name")
    """aesthetic head of `curate models list`, for the model of analyze.clip; null for none"""
    content: bool = setting(True, unit="true or false")
    """classify the content type of each clip, by prompts"""
    safety: bool = setting(True, unit="true or false")
    """compute the score nsfw (not safe for work), by prompts"""
    prompts: str | None = setting(None, unit="path")
    """YAML file of content types and prompts; null for the packaged 26 types"""
    reject: tuple[str, ...] = setting((), unit="names")
    """content types to reject; to keep some clips of a type, use select.by with the column
    content_type"""
    # At 0.5, the type is as probable as all other types together.
    reject_from: float = setting(0.5, gt=0, le=1, unit="0 to 1")
    """smallest probability of the content type at which `reject` rejects a clip"""


def check_content(
    config: SemanticConfig, clip: str | None, columns: Sequence[str] = (), *, key: str | None = None
) -> None:
    """Checks that content types are on if the recipe uses them, and that rejected types exist.

    `columns` are the columns of `select.by`. `key` is another recipe key that uses content types.

    Raises:
        UsageError: Content types are off, or a type is unknown; names the key and the remedy.
        ModelError: The prompts cannot be read.
    """
    asking = {"semantic.reject": config.reject, "select.by": "content_type" in columns, key: key}
    for name in (name for name, is_asking in asking.items() if is_asking):
        if clip is None:
            raise UsageError(f"{name} asks for content types; {REMEDY['content']}")
        if not config.content:
            raise UsageError(f"{name} asks for content types, which semantic.content switches off")
    contents = load_prompts(config.prompts).content if config.reject else {}
    for name in config.reject:
        if name not in contents:
            raise UsageError(f"semantic.reject: {unknown_key(name, contents, 'content type')}")


def _heads_of(clip: ClipView) -> Heads:
    """Returns the heads for the clip's embeddings; empty heads without embeddings."""
    return clip.heads if clip.heads is not None and len(clip.embeddings_ND) else Heads()


def _aesthetic(clip: ClipView) -> NDArray[np.float64] | None:
    head = _heads_of(clip).aesthetic
    return None if head is None else head.scores_N(clip.embeddings_ND)


def _nsfw(clip: ClipView) -> NDArray[np.float64] | None:
    heads = _heads_of(clip)
    return None if heads.safety is None else heads.unsafe_N(clip.embeddings_ND)


def content_of(clip: ClipView) -> tuple[str | None, float | None]:
    """Returns the content type and its mean probability over embeddings; None without types."""
    content = _heads_of(clip).content
    if content is None:
        return None, None
    probabilities_K = content.probabilities_NK(clip.embeddings_ND).mean(axis=0)
    best = int(np.argmax(probabilities_K))
    return content.names[best], float(probabilities_K[best])


SCORES = {
    "aesthetic": ScoreSpec(
        unit="rating",
        range="about 1 to 10; 4.5 to 5 and above is pleasing (Open-Sora); Cosmos drops clips below "
        "3.5",
        meaning="rating of the picture that an aesthetic head predicts from CLIP embeddings "
        "(LAION's heads are trained on ratings of 1 to 10)",
        of=_aesthetic,
        aggregate="mean",
    ),
    "content_probability": ScoreSpec(
        unit="0 to 1",
        range="from 1 / number of types (undecided) to 1 (certain)",
        meaning="probability of the clip's content type, zero-shot by CLIP",
        outside="content_unclear",
        of=lambda clip: content_of(clip)[1],
    ),
    "nsfw": ScoreSpec(
        unit="0 to 1",
        range="0 safe to 1",
        meaning="highest probability that a sample of the clip is sexual or gory, zero-shot by "
        "CLIP",
        outside="not_safe_for_work",
        of=_nsfw,
        aggregate="max",
    ),
}
