"""Settings of clusters of meaning, and of semantic duplicates."""

from typing import Any, Self

from pydantic import model_validator

from curator.stage import StageConfig, setting

MAX_GROWING_CLUSTERS = 2_000  # each snapshot stores their centroids, 3.4 KB each


class ClusterConfig(StageConfig):
    """Settings of the clusters.

    Vectors are from the CLIP model of `analyze.clip`, or else from the scene network.
    """

    n: int | None = setting(None, ge=1, le=100_000, unit="clusters")
    """number of clusters of clips with similar meaning; the column `cluster` has the cluster of a
    clip, and `select.by` can balance clusters; null: no clusters"""
    # SemDeDup (arXiv 2303.09540) and cosmos-curate compare clips within clusters of k-means.
    similarity: float | None = setting(None, gt=0, le=1, unit="cosine")
    """cosine from which two clips of a cluster are semantic duplicates, and only the better clip
    stays; 0.9 to 0.99 for CLIP, 0.95 and more for the scene network; null: no comparison"""
    seed: int = setting(0, unit="whole number")
    """seed of the clusters"""

    @property
    def enabled(self) -> bool:
        """Whether clips are put into clusters."""
        return self.n is not None

    @model_validator(mode="after")
    def _within_clusters(self) -> Self:
        if self.similarity is not None and self.n is None:
            raise ValueError(
                "similarity compares clips within clusters, but n is null; set cluster.n, for "
                "example to the number of clips divided by 100"
            )
        return self

    def problem_in(self, recipe: Any, /) -> str | None:  # noqa: ANN401 - stages know no recipe
        """Refuses a selection by clusters that no stage makes, and clusters that cannot grow."""
        is_growing = recipe.run.mode == "growing"
        if self.n is None and "cluster" in recipe.select.by:
            return "select.by names cluster, and cluster.n is null; set cluster.n"
        if is_growing and (self.n or 0) > MAX_GROWING_CLUSTERS:
            return (
                f"cluster.n is {self.n}, and run.mode is growing, in which a snapshot stores at "
                f"most {MAX_GROWING_CLUSTERS} cluster centres; set run.mode to exact"
            )
        if is_growing and self.similarity is not None:
            return (
                "cluster.similarity is set, and run.mode is growing: comparing all clips of a "
                "cluster would change decisions of earlier generations; set run.mode to exact"
            )
        return None
