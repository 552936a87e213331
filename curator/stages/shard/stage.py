"""The stage `shard`: streams tars into the output root, because a tar is too large to return."""

from collections.abc import Iterator, Sequence

from curator.dataset.shard_index import DescribedTar
from curator.dataset.shard_plan import SHARD_VERSION
from curator.dataset.tar_writer import ShardUnit, TarWriter
from curator.records.clips import Reason
from curator.stage import OFF, Phase, Resources, Scope, Stage, StageReason, Wait
from curator.stages.shard.config import ShardConfig


class ShardStage(Stage[ShardConfig, ShardUnit, DescribedTar]):
    """Assembles tars from cut clips, each with its indexes and metadata.

    Args:
        tars: Writes the tars; None if the stage is only described.
    """

    name = "shard"
    version = SHARD_VERSION
    phase = Phase.PACK
    scope = Scope.CORPUS
    reads = ("clips", "cuts", "embeddings", "annotations")
    writes = ("shards", "clips")
    by_content = frozenset(reads)
    config_type = ShardConfig
    change_effect = "clips are packed again where tars change"
    time_share = 1.0

    def __init__(self, config: ShardConfig, tars: TarWriter | None = None) -> None:
        super().__init__(config)
        self._tars = tars

    @property
    def resources(self) -> Resources:
        """Half a core: the work is copying bytes."""
        return Resources(cpus=0.5)

    def reasons(self) -> Iterator[StageReason]:
        """Yields the reasons of clips that fit no bucket as written, or neither split."""
        for reason in (Reason.NO_BUCKET, Reason.ACROSS_SPLITS):
            yield StageReason(name=reason, is_listed=False)

    def wait(self, before: Sequence[Wait], *, is_growing: bool) -> Wait:
        """Waits for all clips: a tar has clips of any source."""
        has_captions = any(wait.stage == "caption" and wait.granularity != OFF for wait in before)
        captioned = " and captioned" if has_captions else ""
        why = "a hash orders the clips of each tar, and tars that hold the same clips stay"
        return self.waits_for(f"every kept clip to be cut{captioned}", why)

    def process(self, unit: ShardUnit) -> DescribedTar:
        """Writes the missing objects of a tar, as `TarWriter.write` does."""
        assert self._tars is not None, "a stage that is only described writes no tar"
        return self._tars.write(unit)
