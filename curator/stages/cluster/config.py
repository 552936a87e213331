"""Settings of clusters of meaning, and of semantic duplicates."""

from typing import Self

from pydantic import model_validator

from curator.stage import StageConfig, setting

MAX_GROWING_CLUSTERS = 2_000  # each snapshot holds their centres, 3.4 KB each


class ClusterConfig(StageConfig):
    """What is too much of the same kind.

    Vectors are those of the CLIP model that `analyze.clip` names, else those of the scene network.
    """

    n: int | None = setting(None, ge=1, le=100_000, unit="clusters")
    """clusters of meaning, which the column `cluster` names and `select.by` may balance; null for
    none"""
    # SemDeDup (arXiv 2303.09540) and cosmos-curate compare within clusters of k-means.
    similarity: float | None = setting(None, gt=0, le=1, unit="cosine")
    """cosine from which two clips of a cluster are semantic duplicates, of which the better one
    stays; by model: 0.9 to 0.99 for CLIP, 0.95 and more for the scene network; null for none"""
    seed: int = setting(0, unit="whole number")
    """another seed makes other clusters"""

    @property
    def enabled(self) -> bool:
        """Whether clips are put into clusters."""
        return self.n is not None

    @model_validator(mode="after")
    def _within_clusters(self) -> Self:
        if self.similarity is not None and self.n is None:
            raise ValueError(
                "similarity compares clips within clusters, and n is null; set cluster.n, such as "
                "the number of clips divided by 100"
            )
        return self
