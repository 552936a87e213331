"""What an export is asked for, and what it did."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Format = Literal[
    "cosmos",
    "opensora",
    "cogvideo",
    "mds",
    "parquet",
    "frames",
    "energon",
    "wids",
    "conversations",
    "preferences",
]
FORMATS: Mapping[Format, str] = {
    "cosmos": "<split>/videos/*.mp4 and <split>/metas/*.txt: post-training of Cosmos-Predict2, 2.5",
    "opensora": "<split>.csv and <split>.parquet with path, text, num_frames, height, width, "
    "aspect_ratio, resolution, fps, and videos/<split>/*.mp4",
    "cogvideo": "<split>/videos/*.mp4 and <split>/labels/*.txt, and lists of both, videos.txt and "
    "prompts.txt: fine-tuning of CogVideo, finetrainers",
    "mds": "<split>/index.json and shards for MosaicML's StreamingDataset",
    "parquet": "<split>/*.parquet, a row per clip, with its MP4 if asked for: Ray Data, datasets",
    "frames": "<split>/<bucket>/*.tar, WebDataset of pictures at one size, for image tokenizers",
    "energon": "indexes for Megatron-Energon: .tar.idx beside the tars, .nv-meta",
    "wids": "wids-train.json and wids-val.json",
    "conversations": "<split>.jsonl with questions and answers, and videos/<split>/*.mp4: "
    "post-training of vision-language models",
    "preferences": "<split>.jsonl with chosen and rejected answers, and frames/<split>/: DPO",
}
"""Formats and what each writes."""

MIN_FRAMES_FORMATS: tuple[Format, ...] = ("cosmos", "opensora", "cogvideo")
"""Those that `min_frames` is for; of the others either tables say the number, or all is indexed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What of the clips is written, and how."""

    format: Format
    splits: tuple[str, ...] = ("train", "val")
    buckets: tuple[str, ...] | None = None
    """None for all."""
    min_frames: int | None = None
    """Least frames of a clip, for the formats of `MIN_FRAMES_FORMATS`; None for all clips."""
    workers: int | None = None
    """Shards under way at once; None for one per core, at most 16."""
    with_videos: bool = False
    """Whether tables of `parquet` hold the MP4s."""
    relative_paths: bool = False
    """Whether `opensora`, `conversations` and `preferences` name files relative to the
    destination."""
    size_px: tuple[int, int] = (256, 256)
    """Width and height of `frames`."""
    pictures: Literal["npz", "webp"] = "npz"
    """How `frames` are stored."""
    max_frames: int | None = None
    """Most frames of a clip in `frames`, from its first one on; None for all."""
    webp_quality: int = 90
    """1 to 100."""
    min_margin: int = 1
    """Least difference of the scores of a preference pair, 1 to 4."""


@dataclass(slots=True)
class Exported:
    """What an export did; counted by several threads."""

    n_clips: int = 0
    n_objects: int = 0
    """Written."""
    n_standing: int = 0
    """Objects that were there already, with the same bytes."""
    n_bytes: int = 0
    """Written."""
    n_without_text: int = 0
    """Clips whose caption is empty."""
    n_records: int = 0
    """Lines of `conversations` and `preferences`, captions of `cogvideo`."""
    n_short: int = 0
    """Clips that were left out because they have too few frames."""
    n_left_out: int = 0
    """Preference pairs about frames that the written clip has not."""
    n_others: int = 0
    """Objects at the destination, among those that a loader would take, that this export did not
    write: left by another one."""
    manifest_problem: str | None = None
    """Why all tars were taken that are there, and not those of a manifest; None where one is."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(
        self,
        *,
        clips: int = 0,
        objects: int = 0,
        standing: int = 0,
        n_bytes: int = 0,
        without_text: int = 0,
        short: int = 0,
        others: int = 0,
        left_out: int = 0,
        records: int = 0,
    ) -> None:
        """Counts."""
        with self._lock:
            self.n_clips += clips
            self.n_objects += objects
            self.n_standing += standing
            self.n_bytes += n_bytes
            self.n_without_text += without_text
            self.n_short += short
            self.n_others += others
            self.n_left_out += left_out
            self.n_records += records
