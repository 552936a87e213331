"""Folders of MP4s for the post-training of Cosmos-Predict2 and 2.5.

Both read all `videos/*.mp4` of a folder, each with the prompt in `metas/<name>.txt`. Both draw the
first frame from [0, frames - N), which is empty for a clip of exactly N frames: buckets guarantee N
+ 1. They replace a clip that is too short by another one drawn at random, without end if all are.
Predict2's own script makes its text embeddings.

Source: the dataset classes of cosmos-predict2 661da47 and cosmos-predict2.5 50369b8.
"""

from curator.export.exporter import Exporter, LeastFrames
from curator.export.job import Job
from curator.stages.shard.tar_reader import Shard


class Cosmos(Exporter[LeastFrames, None]):
    """Writes `<split>/videos/<key>.mp4` and `<split>/metas/<key>.txt`."""

    about = "<split>/videos/*.mp4 and <split>/metas/*.txt: post-training of Cosmos-Predict2, 2.5"
    options_type = LeastFrames
    suffixes = (".mp4", ".txt")

    def shard(self, job: Job, shard: Shard) -> None:
        """Writes a shard's files."""
        folder, least = f"{shard.split}/videos", self.options.min_frames
        for clip in job.videos(shard, folder, min_frames=least):
            job.place.put(f"{shard.split}/metas/{clip.key}.txt", clip.text.encode())
