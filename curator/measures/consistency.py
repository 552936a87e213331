"""Whether a clip is one scene: how alike its samples are."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.measures.measure_contract import ScoreSpec
from curator.models.embedding_heads import normalised


def lowest_similarity(vectors_ND: NDArray[Any], *, with_first: bool = True) -> float | None:
    """Lowest cosine of vectors [N, D] with the one before and with the first; None for one vector.

    They are in order of time; zero vectors say nothing and are left out.
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
        meaning="lowest similarity of perceptual descriptors of neighbouring samples; needs no "
        "weights, and sees where things are, not what they are",
        outside="not_consistent",
        of=lambda clip: lowest_similarity(clip.track.descriptor[clip.samples], with_first=False),
    ),
    "consistency": ScoreSpec(
        unit="cosine",
        range="-1 to 1; below 0.8 the clip likely holds two scenes",
        meaning="lowest similarity of CLIP embeddings of the clip with the one before and with the "
        "first",
        outside="not_consistent",
        of=lambda clip: lowest_similarity(clip.embeddings_ND),
    ),
}
