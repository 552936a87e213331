"""Settings of the removal of near-duplicates."""

from curator.stage import StageConfig, setting


class DedupConfig(StageConfig):
    """Settings of the search for near-duplicates."""

    enabled: bool = True
    """Reject clips that show the footage of a better clip."""
    # benchmarks/dedup_descriptor.py, for `curate/perceptual-1` alone: unrelated clips stay below
    # 0.4, copies above 0.6. Embeddings of semantic models need far more: 0.95 to 0.99.
    similarity: float = setting(0.6, gt=0, le=1, unit="cosine")
    """Cosine similarity from which two clips are duplicates; by embedding model."""
    # benchmarks/dedup_descriptor.py --search: 40 s on one core for 100,000 clips by either way;
    # beyond, the exact search grows with the square.
    exact_below: int = setting(200_000, ge=0, unit="clips")
    """Number of clips up to which all pairs are compared; above, clusters are used."""
    # Own measurement: the recall stated above, at 0.5 ms per clip and core among 200,000.
    probes: int = setting(64, ge=1, unit="clusters")
    """Clusters searched for each clip where clusters are used."""
