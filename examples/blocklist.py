"""A stage that rejects the clips of listed sources.

    stages:
      - use: blocklist:Blocklist
        config: {sources: [holiday.mp4]}

Run it with this folder in PYTHONPATH.
"""

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

import pyarrow as pa

from curator.stage import ClipFilter, Rejection, StageConfig, StageReason


class BlocklistConfig(StageConfig):
    """Names of the files to reject, without folders."""

    sources: tuple[str, ...] = ()


class Blocklist(ClipFilter[BlocklistConfig]):
    """Rejects clips by the file name of their source."""

    name = "blocklist"
    version = 1
    config_type = BlocklistConfig

    def reasons(self) -> Iterator[StageReason]:
        """Yields the reason, with words for the report."""
        yield StageReason(name="on_blocklist", words="its source is on the blocklist")

    def process(self, unit: pa.Table) -> Iterable[Rejection]:
        """Yields one rejection for each clip of a listed source."""
        columns = unit["clip_id"].to_pylist(), unit["source_uri"].to_pylist()
        for clip_id, uri in zip(*columns, strict=True):
            name = PurePosixPath(uri).name
            if name in self.config.sources:
                yield Rejection(clip_id=clip_id, reason="on_blocklist", detail=name)
