"""Indexes for Megatron-Energon."""

from curator.export.export_cards import put_cards
from curator.export.index_files import TarIndex, TarIndexes, put_index
from curator.export.job import Job
from curator.stages.shard.shard_index import energon_files, index_bytes
from curator.stages.shard.tar_reader import IDX_SUFFIX, Shard


class Energon(TarIndexes):
    """Writes `<tar>.idx` for each tar, and `.nv-meta/*` for all of them and for each bucket."""

    about = "indexes for Megatron-Energon: .tar.idx beside the tars, .nv-meta"

    def folders(self, splits: object) -> list[str]:
        """Returns the whole destination."""
        return [""]

    def shard(self, job: Job, shard: Shard) -> TarIndex:
        """Writes a tar's index."""
        index = super().shard(job, shard)
        job.place.put(f"{shard.name}{IDX_SUFFIX}", index_bytes(index.offsets))
        return index

    def finish(self, job: Job) -> None:
        """Writes the files that name all tars."""
        tars = self.tars()
        buckets = sorted({tar.shard.bucket for tar in tars if tar.shard.bucket})
        for folder in ("", *(f"{bucket}/" for bucket in buckets)):
            inside = [tar for tar in tars if tar.shard.name.startswith(folder)]
            for name, data in energon_files([tar.facts() for tar in inside], folder):
                put_index(job, f"{folder}.nv-meta/{name}", data)
        put_cards(job)
