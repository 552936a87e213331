"""Splits the footage for training, tuning and scoring of the shot head by repository.

The split was fixed before any fitting. Several clips may come from one recording, and clips of one
repository look alike, so each repository belongs to exactly one part. The blind part is scored once
per release (`shots_held_out.py`), and is never used for a choice.
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Part = Literal["train", "tune", "blind"]

TUNE = {
    "microsoft/AirSim", "aigc-apps/EasyAnimate", "google/mediapipe", "facebookresearch/habitat-lab",
    "Wan-Video/Wan2.2", "NVlabs/BundleSDF", "dmlc/decord",
}  # fmt: skip
BLIND = {
    "openvinotoolkit/open_model_zoo", "ali-vilab/VACE", "facebookresearch/AnimatedDrawings",
    "kkroening/ffmpeg-python", "w3c/web-platform-tests", "yformer/EfficientTAM",
    "ifzhang/ByteTrack", "microsoft/playwright", "facebookresearch/pytorchvideo",
    "modelscope/DiffSynth-Studio", "zju3dv/GVHMR", "DepthAnything/Video-Depth-Anything",
}  # fmt: skip

_NOT_ONE_SHOT = ("rooms switch", "window content changes", "TransNet up to")
"""Notes in the index that mark clips with a possible boundary."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A clip that shows one shot.

    Attributes:
        path: The file.
        repository: Repository of origin; clips of one repository are in one part.
        recording: Repository and path of origin; several clips may share them.
        kind: Content, as named in the index.
        fps: Frames per second.
        n_frames: Number of frames.
    """

    path: Path
    repository: str
    recording: str
    kind: str
    fps: float
    n_frames: int


def part_of(repository: str) -> Part:
    """Returns the part that a repository belongs to."""
    return "tune" if repository in TUNE else "blind" if repository in BLIND else "train"


def recordings(footage: Path, part: Part) -> list[Recording]:
    """Returns the clips of a part in the index's order, without edited and doubtful clips."""
    with (footage / "index.csv").open(newline="") as file:
        return [
            Recording(
                path=footage / row["file"],
                repository=row["repo"],
                recording=f"{row['repo']}/{row['path']}",
                kind=row["kind"],
                fps=float(row["fps"]),
                n_frames=int(row["frames"]),
            )
            for row in csv.DictReader(file)
            if part_of(row["repo"]) == part
            and row["kind"] != "edited"
            and not any(words in row["note"] for words in _NOT_ONE_SHOT)
        ]
