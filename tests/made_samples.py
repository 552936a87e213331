"""Shards, their indexes and the tables that name them, made without a run.

The one place in the tests that knows how `OUT/shards` is laid out. Small pictures, real MP4s.
"""

import hashlib
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from io import BytesIO
from typing import Any

import av
import numpy as np
import orjson
import pyarrow as pa

from curator.measures.score_list import SCORES
from curator.media.encode import EncodeSettings, encode_mp4
from curator.storage import open_store
from curator.tables.parts import rows_to_table, to_parquet, write_tables
from curator.tables.schemas import clips_schema

WIDTH, HEIGHT, FPS = 64, 36, Fraction(30000, 1001)


@dataclass(frozen=True)
class MadeClip:
    """A sample to be."""

    key: str
    mp4: bytes
    n_frames: int
    source: str = "0" * 32
    split: str = "train"
    bucket: str = "36p_16-9_4f"
    caption: str = "a bright square moves"
    changes: dict[str, Any] = field(default_factory=dict)
    """Of the JSON."""

    def json(self) -> bytes:
        return orjson.dumps(
            {
                "key": self.key,
                "clip_id": self.key,
                "source_id": self.source,
                "source_uri": f"/films/{self.source[:4]}.mp4",
                "n_frames": self.n_frames,
                "fps": float(FPS),
                "fps_fraction": str(FPS),
                "duration": round(float(self.n_frames / FPS), 6),
                "width": WIDTH,
                "height": HEIGHT,
                "caption": self.caption,
                "mp4_sha256": hashlib.sha256(self.mp4).hexdigest(),
                "bucket": {"resolution": 36, "aspect": "16,9", "min_frames": 4},
            }
            | self.changes,
            option=orjson.OPT_SORT_KEYS,
        )


@cache
def made_mp4(number: int, n_frames: int) -> bytes:
    """A square that moves over grey; `number` chooses its brightness."""
    pictures = []
    for frame in range(n_frames):
        luma = np.full((HEIGHT, WIDTH), 90, np.uint8)
        luma[8:24, 2 * frame % 40 : 2 * frame % 40 + 16] = 120 + number * 37 % 120
        grey = np.full((HEIGHT // 2, WIDTH), 128, np.uint8)
        pictures.append(av.VideoFrame.from_ndarray(np.vstack([luma, grey]), format="yuv420p"))
    mp4, _ = encode_mp4(
        pictures,
        width=WIDTH,
        height=HEIGHT,
        fps=FPS,
        settings=EncodeSettings(crf=23, preset="ultrafast"),
    )
    return mp4


def made_clips(n: int = 8) -> list[MadeClip]:
    """Clips of four sources in two buckets; the last source is for validation."""
    clips = []
    for number in range(n):
        n_frames = 5 + number % 4
        source = number * 4 // n
        clips.append(
            MadeClip(
                key=hashlib.sha256(str(number).encode()).hexdigest()[:24],
                mp4=made_mp4(number, n_frames),
                n_frames=n_frames,
                source=f"{source:032x}",
                split="val" if source == 3 else "train",
                bucket=("36p_16-9_4f", "36p_4-3_4f")[number % 2],
                caption=f"a square, number {number}",
            )
        )
    return clips


def make_shards(
    out: str, clips: Sequence[MadeClip], *, per_shard: int = 2, with_manifest: bool = True
) -> list[str]:
    """Writes an output root; returns the names of its tars, relative to `shards/`."""
    store = open_store(out)
    groups: dict[tuple[str, str], list[MadeClip]] = {}
    for clip in clips:
        groups.setdefault((clip.bucket, clip.split), []).append(clip)
    shards: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    files: dict[str, bytes] = {}
    for (bucket, split), group in sorted(groups.items()):
        for number, start in enumerate(range(0, len(group), per_shard)):
            own = group[start : start + per_shard]
            tar, offsets, places = _tar(own)
            digest = hashlib.sha256(tar).hexdigest()
            stem = f"{bucket}/{split}-{number:06d}-{digest[:8]}"
            idx = np.array(offsets, "<u8").tobytes()
            meta = b"".join(clip.json() + b"\n" for clip in own)
            files |= {f"{stem}.tar": tar, f"{stem}.tar.idx": idx, f"{stem}.meta.jsonl": meta}
            shards.append(
                {
                    "name": f"{stem}.tar",
                    "bucket": bucket,
                    "split": split,
                    "samples": len(own),
                    "frames": sum(clip.n_frames for clip in own),
                    "bytes": len(tar),
                    "sha256": digest,
                    "idx_sha256": hashlib.sha256(idx).hexdigest(),
                    "meta_sha256": hashlib.sha256(meta).hexdigest(),
                }
            )
            for clip, place in zip(own, places, strict=True):
                rows.append(_dataset_row(clip, f"{stem}.tar", place))
                kept.append(
                    {
                        "clip_id": clip.key,
                        "source_id": clip.source,
                        "decision": "kept",
                        "bucket": bucket,
                        "shard": f"shards/{stem}.tar",
                        "key": clip.key,
                        "mp4_offset": place,
                        "mp4_bytes": len(clip.mp4),
                        "mp4_sha256": rows[-1]["sha256"],
                    }
                )
    named: dict[str, bytes] = {
        "dataset.parquet": to_parquet(pa.Table.from_pylist(rows), "shards/dataset.parquet")
    }
    for split in ("train", "val"):
        named[f"wids-{split}.json"] = _wids([s for s in shards if s["split"] == split], files)
    for folder in ("", *sorted({f"{shard['bucket']}/" for shard in shards})):
        own_shards = [shard for shard in shards if shard["name"].startswith(folder)]
        named |= _energon(folder, own_shards)
    if not with_manifest:
        named = {}
    for name, data in (files | named).items():
        store.write(f"shards/{name}", data)
    kept.append({"clip_id": "f" * 24, "decision": "rejected"})
    parts = write_tables(
        store, "clips", [rows_to_table(kept, clips_schema(SCORES))], clips_schema(SCORES)
    )
    old = [shard | {"name": f"shards/{shard['name']}"} for shard in shards]
    if with_manifest:
        store.write("shards/manifest.json", _json(_manifest(shards, named)))
    store.write("summary.json", _json({"tables": {"clips": parts}, "shards": old}))
    return [shard["name"] for shard in shards]


def _manifest(shards: list[dict[str, Any]], named: dict[str, bytes]) -> dict[str, Any]:
    return {
        "version": 1,
        "made_by": "curate",
        "recipe_fingerprint": "0" * 16,
        "seed": 0,
        "counts": {
            "samples": sum(shard["samples"] for shard in shards),
            "frames": sum(shard["frames"] for shard in shards),
            "bytes": sum(shard["bytes"] for shard in shards),
        },
        "shards": shards,
        "files": {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in named.items()
        },
    }


def _tar(clips: Sequence[MadeClip]) -> tuple[bytes, list[int], list[int]]:
    """The tar, offsets of its index, and where each MP4 begins."""
    output, offsets, places = BytesIO(), [], []
    for clip in clips:
        offsets.append(output.tell())
        for suffix, data in (
            ("json", clip.json()),
            ("mp4", clip.mp4),
            ("txt", clip.caption.encode()),
        ):
            info = tarfile.TarInfo(f"{clip.key}.{suffix}")
            info.size = len(data)
            output.write(info.tobuf(format=tarfile.USTAR_FORMAT))
            if suffix == "mp4":
                places.append(output.tell())
            output.write(data + bytes(-len(data) % 512))
    offsets.append(output.tell())
    output.write(bytes(1024))
    return output.getvalue(), offsets, places


def _dataset_row(clip: MadeClip, shard: str, offset: int) -> dict[str, Any]:
    return {
        "clip_id": clip.key,
        "path": f"{shard}#{clip.key}.mp4",
        "shard": shard,
        "split": clip.split,
        "bucket": clip.bucket,
        "offset": offset,
        "bytes": len(clip.mp4),
        "text": clip.caption,
        "num_frames": clip.n_frames,
        "height": HEIGHT,
        "width": WIDTH,
        "aspect_ratio": HEIGHT / WIDTH,
        "resolution": HEIGHT * WIDTH,
        "fps": float(FPS),
        "duration": float(clip.n_frames / FPS),
        "source_id": clip.source,
        "source_uri": f"/films/{clip.source[:4]}.mp4",
        "sha256": hashlib.sha256(clip.mp4).hexdigest(),
    }


def _wids(shards: Sequence[dict[str, Any]], files: dict[str, bytes]) -> bytes:
    listed = [
        {
            "url": shard["name"],
            "md5sum": hashlib.md5(files[shard["name"]]).hexdigest(),
            "nsamples": shard["samples"],
            "filesize": shard["bytes"],
        }
        for shard in shards
    ]
    return _json({"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": listed})


def _energon(folder: str, shards: Sequence[dict[str, Any]]) -> dict[str, bytes]:
    names = {shard["name"].removeprefix(folder): shard for shard in shards}
    lines = ["split_parts:"]
    for split in ("train", "val"):
        own = [f"  - {name}" for name, shard in names.items() if shard["split"] == split]
        lines += [f"  {split}:", *own] if own else [f"  {split}: []"]
    counts = {name: shard["samples"] for name, shard in names.items()}
    return {
        f"{folder}.nv-meta/dataset.yaml": (
            b"__module__: megatron.energon\n__class__: CrudeWebdataset\n"
        ),
        f"{folder}.nv-meta/split.yaml": "\n".join([*lines, "exclude: []", ""]).encode(),
        f"{folder}.nv-meta/.info.json": _json({"energon_version": "7.4.1", "shard_counts": counts}),
    }


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"
