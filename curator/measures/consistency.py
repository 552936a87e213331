"""Measures whether a clip is one scene, by the similarity of its samples."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.measures.measure_contract import OF_TIME, ScoreSpec
from curator.models.embedding_heads import normalised


def lowest_similarity(vectors_ND: NDArray[Any], *, with_first: bool = True) -> float | None:
    """Returns the lowest cosine of a vector [D] with the previous vector or with the first vector.

    Vectors are in order of time. Zero vectors are left out; with fewer than two others, the result
    is None. Without `with_first`, only neighbours are compared.
    """
    unit = normalised(vectors_ND[np.any(vectors_ND != 0, axis=1)])
    if len(unit) < 2:
        return None
    lowest = np.einsum("nd,nd->n", unit[1:], unit[:-1]).min()
    return float(min(lowest, (unit[1:] @ unit[0]).min()) if with_first else lowest)


SCORES = {
    "layout_consistency": ScoreSpec(
        unit="cosine",
        range="-1 to 1; low after a cut, and in fast camera motion",
        meaning="lowest similarity of perceptual descriptors of neighbouring samples; descriptors "
        "need no weights, and compare positions, not meaning",
        outside="not_consistent",
        of=lambda clip: lowest_similarity(clip.track.descriptor[clip.samples], with_first=False),
        media=OF_TIME,
    ),
    "consistency": ScoreSpec(
        unit="cosine",
        range="-1 to 1; below 0.8 the clip likely has two scenes",
        meaning="lowest similarity of a CLIP embedding of the clip with the previous embedding or "
        "with the first embedding",
        outside="not_consistent",
        of=lambda clip: lowest_similarity(clip.embeddings_ND),
        media=OF_TIME,
    ),
}
