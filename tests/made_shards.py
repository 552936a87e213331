"""Shards made by a test: small real clips in tars, with the index, table and manifest of a run."""

import io
import json
import struct
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from film_makers import write_video
from numpy.typing import NDArray

FPS = Fraction(30000, 1001)


def numbered_frames(n_frames: int, height: int, width: int) -> list[NDArray[np.uint8]]:
    """Pictures of which no two are alike: a gradient, and the number as bits of 8 blocks."""
    ramp = np.linspace(60, 180, width, dtype=np.uint8)
    frames = []
    for number in range(n_frames):
        picture = np.repeat(np.roll(ramp, 3 * number)[None, :, None], height, 0).repeat(3, 2)
        for bit in range(8):
            left = bit * (width // 8)
            value = 235 if number >> bit & 1 else 20
            picture[height // 2 :, left : left + width // 8] = value
        frames.append(np.ascontiguousarray(picture))
    return frames


def number_in(picture_CHW: NDArray[np.uint8], width: int) -> int:  # noqa: N803 - shape letters
    """The number that a picture of `numbered_frames` shows, whose centre this is."""
    block = width // 8
    cut = (width - picture_CHW.shape[2]) // 2
    row = picture_CHW[:, picture_CHW.shape[1] * 3 // 4].mean(axis=0)
    return sum((row[bit * block + block // 2 - cut] > 128) << bit for bit in range(8))


def clip_bytes(
    folder: Path,
    *,
    n_frames: int = 24,
    height: int = 68,
    width: int = 104,
    fps: Fraction = FPS,
    gop: int = 8,
    bframes: int = 0,
) -> bytes:
    """An MP4 of numbered frames."""
    path = folder / f"{n_frames}_{height}_{width}_{gop}_{bframes}_{fps.numerator}.mp4"
    if not path.exists():
        shown = numbered_frames(n_frames, height, width)
        flags = {"movflags": "negative_cts_offsets+faststart"}
        write_video(path, shown, fps=fps, gop=gop, bframes=bframes, mux_options=flags)
    return path.read_bytes()


def all_frames(mp4: bytes) -> NDArray[np.uint8]:
    """Every frame in order, decoded from the start: uint8 [T, H, W, 3]."""
    with av.open(io.BytesIO(mp4)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeClip:
    """A sample to be."""

    key: str
    mp4: bytes
    n_frames: int = 24
    height: int = 68
    width: int = 104
    fps: Fraction = FPS
    caption: str = "A made clip."
    npy: NDArray[np.float32] | None = None
    text_npy: NDArray[np.float32] | NDArray[np.float16] | None = None
    members: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, object]:
        """Its JSON."""
        return {
            "clip_id": self.key, "n_frames": self.n_frames, "height": self.height,
            "width": self.width, "fps": float(self.fps), "content_type": None,
        }  # fmt: skip


def made_clips(
    folder: Path,
    count: int,
    *,
    first: int = 0,
    n_frames: int = 24,
    height: int = 68,
    width: int = 104,
    bframes: int = 0,
) -> list[MadeClip]:
    """Samples of the same pictures with keys of their own, two to a caption."""
    mp4 = clip_bytes(folder, n_frames=n_frames, height=height, width=width, bframes=bframes)
    return [
        MadeClip(
            key=f"{first + i:08x}",
            mp4=mp4,
            n_frames=n_frames,
            height=height,
            width=width,
            caption=f"Caption {i // 2}.",
        )
        for i in range(count)
    ]


def write_shards(
    out: Path, tars: Sequence[tuple[str, str, Sequence[MadeClip]]], *, manifest: bool = True
) -> Path:
    """Writes OUT/shards.

    Args:
        out: The root.
        tars: (bucket, split, samples) of each tar.
        manifest: False leaves only the tars.
    """
    root = out / "shards"
    listed, rows = [], []
    for number, (bucket, split, clips) in enumerate(tars):
        name = f"{bucket}/{split}-{number:06d}-0a1b2c3d.tar"
        data, offsets = tar_of(clips)
        (root / bucket).mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
        listed.append({"name": name, "bucket": bucket, "split": split, "samples": len(clips)})
        for clip in clips:
            row = {"clip_id": clip.key, "bucket": bucket, "split": split, "height": clip.height}
            row |= {"width": clip.width, "num_frames": clip.n_frames}
            rows.append(row | {"shard": name, "fps": float(clip.fps)})
        if manifest:
            (root / f"{name}.idx").write_bytes(struct.pack(f"<{len(offsets)}Q", *offsets))
    if manifest:
        pq.write_table(pa.Table.from_pylist(rows), root / "dataset.parquet")
        (root / "manifest.json").write_text(json.dumps({"version": 1, "shards": listed}))
    return out


def tar_of(clips: Sequence[MadeClip]) -> tuple[bytes, list[int]]:
    """A tar, and the offsets of its samples with the end of the last."""
    output, offsets = io.BytesIO(), []
    with tarfile.open(fileobj=output, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for clip in clips:
            offsets.append(tar.offset)
            members = {
                "json": json.dumps(clip.facts).encode(),
                "mp4": clip.mp4,
                "txt": clip.caption.encode(),
            }
            for suffix, vector in (("npy", clip.npy), ("text.npy", clip.text_npy)):
                if vector is not None:
                    held = io.BytesIO()
                    np.save(held, vector)
                    members[suffix] = held.getvalue()
            for suffix, data in (members | clip.members).items():
                info = tarfile.TarInfo(f"{clip.key}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        offsets.append(tar.offset)
    return output.getvalue(), offsets


def shrunk(picture_HWC: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:  # noqa: N803
    """A picture made smaller by averaging."""
    return np.asarray(
        cv2.resize(picture_HWC, (width, height), interpolation=cv2.INTER_AREA), np.uint8
    )
