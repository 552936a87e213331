"""Scores of what a clip shows: read from CLIP embeddings, and from the perceptual descriptor."""

# ruff: noqa: N803, N806 - shape letters

from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.measures.spec import ClipView, ScoreSpec
from curator.models.embedding_heads import normalised
from curator.records import Reason


class Need(StrEnum):
    """What of the recipe a score comes from; else it is absent."""

    CLIP = "clip"
    AESTHETIC = "aesthetic"
    CONTENT = "content"
    SAFETY = "safety"


def lowest_similarity(vectors_ND: NDArray[Any]) -> float | None:
    """Lowest cosine of vectors with the one before and with the first; None for fewer than two.

    Args:
        vectors_ND: [N, D] in order of time; zero vectors say nothing and are left out.
    """
    unit = normalised(vectors_ND[np.any(vectors_ND != 0, axis=1)])
    if len(unit) < 2:
        return None
    neighbours = np.einsum("nd,nd->n", unit[1:], unit[:-1])
    return float(min(neighbours.min(), (unit[1:] @ unit[0]).min()))


def _lowest_step(vectors_ND: NDArray[Any]) -> float | None:
    """Lowest cosine of vectors with the one before; None for fewer than two."""
    unit = normalised(vectors_ND[np.any(vectors_ND != 0, axis=1)])
    if len(unit) < 2:
        return None
    return float(np.einsum("nd,nd->n", unit[1:], unit[:-1]).min())


def content_of(clip: ClipView) -> tuple[str | None, float | None]:
    """Content type of a clip and its probability, the mean over its embeddings; None without."""
    heads, embeddings_ND = clip.heads, clip.embeddings_ND
    if heads is None or heads.content is None or not len(embeddings_ND):
        return None, None
    probabilities_K = heads.content.probabilities_NK(embeddings_ND).mean(axis=0)
    best = int(np.argmax(probabilities_K))
    return heads.content.names[best], float(probabilities_K[best])


SCORES: dict[str, ScoreSpec] = {
    "aesthetic": ScoreSpec(
        unit="rating",
        range="about 1 to 10; 4.5 to 5 and above is pleasing (Open-Sora), below 3.5 is dropped by "
        "Cosmos",
        meaning="how much people like the picture: an aesthetic head on CLIP embeddings (LAION's "
        "are trained on ratings of 1 to 10)",
        low=Reason.AESTHETIC_TOO_LOW,
        high=Reason.AESTHETIC_TOO_HIGH,
        of="aesthetic",
        aggregate="mean",
    ),
    "content_probability": ScoreSpec(
        unit="0 to 1",
        range="1/types undecided to 1 sure",
        meaning="probability of the clip's content type, zero-shot by CLIP",
        low=Reason.CONTENT_UNCLEAR,
        high=Reason.CONTENT_UNCLEAR,
        of=lambda clip: content_of(clip)[1],
    ),
    "nsfw": ScoreSpec(
        unit="0 to 1",
        range="0 safe to 1",
        meaning="probability that a sample is sexual or gory, zero-shot by CLIP, the highest of "
        "the clip",
        low=Reason.NOT_SAFE_FOR_WORK,
        high=Reason.NOT_SAFE_FOR_WORK,
        of="nsfw",
        aggregate="max",
    ),
    "consistency": ScoreSpec(
        unit="cosine",
        range="-1 to 1; below 0.8 the clip likely holds two scenes",
        meaning="lowest similarity of CLIP embeddings of the clip with the one before and with the "
        "first",
        low=Reason.NOT_CONSISTENT,
        high=Reason.NOT_CONSISTENT,
        of=lambda clip: lowest_similarity(clip.embeddings_ND),
    ),
    "layout_consistency": ScoreSpec(
        unit="cosine",
        range="-1 to 1; low after a cut, and in fast camera motion",
        meaning="lowest similarity of perceptual descriptors of neighbouring samples; needs no "
        "weights, and sees where things are, not what they are",
        low=Reason.NOT_CONSISTENT,
        high=Reason.NOT_CONSISTENT,
        of=lambda clip: _lowest_step(clip.track.descriptor[clip.samples]),
    ),
}

NEEDS: dict[str, Need] = {
    "aesthetic": Need.AESTHETIC,
    "content_probability": Need.CONTENT,
    "nsfw": Need.SAFETY,
    "consistency": Need.CLIP,
}
"""Scores that are absent unless the recipe names models."""
