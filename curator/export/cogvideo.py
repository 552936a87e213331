"""Folders of MP4s for the fine-tuning of CogVideo, and for finetrainers.

CogVideo has two loaders. The one for SAT walks a folder, finds a caption by replacing each `videos`
in the path by `labels`, and takes its first line, which an empty file does not have. The other one,
and finetrainers, read a list of paths and a list of prompts, one per line, and skip empty lines, so
that a clip without a caption would shift all later prompts.

Source: the dataset classes of CogVideo 7a1af71 and finetrainers f476c37.
"""

from collections.abc import Iterator

from curator.errors import UsageError
from curator.export.exporter import Exporter, LeastFrames
from curator.export.job import Job
from curator.stages.shard.tar_reader import Shard

Pairs = list[tuple[str, str]]
"""Paths of videos and their captions."""


class CogVideo(Exporter[LeastFrames, Pairs]):
    """Writes `<split>/videos/<key>.mp4`, `<split>/labels/<key>.txt`, and two lists of a split."""

    about = (
        "<split>/videos/*.mp4, <split>/labels/*.txt, and lists of both, videos.txt and "
        "prompts.txt: fine-tuning of CogVideo, finetrainers"
    )
    options_type = LeastFrames
    records = "captions"
    suffixes = (".mp4", ".txt")

    def begin(self, job: Job) -> None:
        """Refuses a destination whose path would be changed when captions are looked up."""
        if "videos" in job.store.uri or ".mp4" in job.store.uri:
            raise UsageError(
                f"{job.store.uri}: CogVideo finds captions by writing 'labels' for each 'videos' "
                "in a path, and '.txt' for each '.mp4'; choose a destination with neither"
            )

    def shard(self, job: Job, shard: Shard) -> Pairs:
        """Writes a shard's files; returns its lines of the lists."""
        folder, least = f"{shard.split}/videos", self.options.min_frames
        pairs = []
        for clip in job.videos(shard, folder, min_frames=least):
            # Without line breaks of any kind: loaders split at all of them.
            if line := " ".join(part for line in clip.text.splitlines() if (part := line.strip())):
                job.place.put(f"{shard.split}/labels/{clip.key}.txt", f"{line}\n".encode())
                pairs.append((f"videos/{clip.key}.mp4", line))
        job.exported.add(records=len(pairs))
        return pairs

    def split(self, job: Job, split: str, results: Iterator[Pairs]) -> None:
        """Writes the two lists."""
        with (
            job.place.create(f"{split}/videos.txt") as videos,
            job.place.create(f"{split}/prompts.txt") as prompts,
        ):
            for pairs in results:
                videos.write("".join(f"{path}\n" for path, _ in pairs).encode())
                prompts.write("".join(f"{line}\n" for _, line in pairs).encode())
