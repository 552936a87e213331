"""Indexes for wids, the random access of WebDataset."""

from curator.export.export_cards import put_cards
from curator.export.index_files import TarIndexes, put_index
from curator.export.job import Job
from curator.stages.shard.shard_index import wids_file
from curator.stages.shard.tar_reader import SPLITS


class Wids(TarIndexes):
    """Writes `wids-train.json` and `wids-val.json`."""

    about = "wids-train.json and wids-val.json"
    with_md5 = True

    def folders(self, splits: object) -> list[str]:
        """The two files."""
        return ["wids-"]

    def finish(self, job: Job) -> None:
        """Writes them."""
        tars = self.tars()
        for split in SPLITS:
            of_split = [tar.facts() for tar in tars if tar.shard.split == split]
            put_index(job, f"wids-{split}.json", wids_file(of_split))
        put_cards(job)
