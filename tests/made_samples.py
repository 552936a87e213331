"""Shards, their indexes and the tables that name them, made without a run, of real MP4s."""

import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import av
import numpy as np
import orjson

from curator.dataset.reader_indexes import member_columns, members_file
from curator.dataset.sample import Sample
from curator.dataset.shard_index import (
    DATASET_SCHEMA,
    DescribedTar,
    described_files,
    index_bytes,
    meta_lines,
    sample_row,
)
from curator.dataset.shard_plan import ShardPlan, write_shard
from curator.dataset.tar_reader import Split, index_name, members_name, meta_name
from curator.measures.score_list import SCORES
from curator.media.encode import EncodeSettings, encode_mp4
from curator.storage import Store, open_store
from curator.tables.clip_locations import Location
from curator.tables.out_layout import DATASET
from curator.tables.parts import rows_to_table, to_parquet, write_tables
from curator.tables.schemas import clips_schema
from curator.tables.snapshot_store import FORMAT

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
        pictures, width=WIDTH, height=HEIGHT, fps=FPS,
        settings=EncodeSettings(crf=23, preset="ultrafast"),
    )  # fmt: skip
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
    """Writes an output root; returns the names of its tars, relative to `shards/`.

    The objects of equal clips are computed once per process.
    """
    key = pickle.dumps((list(clips), per_shard, with_manifest))
    if key not in _MADE:
        with TemporaryDirectory() as folder:
            tars = _make_shards(open_store(folder), clips, per_shard, with_manifest)
            files = [path for path in Path(folder).rglob("*") if path.is_file()]
            objects = {str(path.relative_to(folder)): path.read_bytes() for path in files}
        _MADE[key] = tars, objects
    tars, objects = _MADE[key]
    store = open_store(out)
    for name, data in objects.items():
        store.write(name, data)
    return list(tars)


_MADE: dict[bytes, tuple[list[str], dict[str, bytes]]] = {}


def _make_shards(
    store: Store, clips: Sequence[MadeClip], per_shard: int, with_manifest: bool
) -> list[str]:
    groups: dict[tuple[str, Split], list[MadeClip]] = {}
    for clip in clips:
        groups.setdefault((clip.bucket, cast(Split, clip.split)), []).append(clip)
    tars: list[DescribedTar] = []
    rows: list[dict[str, Any]] = []
    for (bucket, split), group in sorted(groups.items()):
        for number, start in enumerate(range(0, len(group), per_shard)):
            own = group[start : start + per_shard]
            tar, places = _written(store, bucket, split, number, own)
            of_tar = []
            for clip, place in zip(own, places, strict=True):
                fields = orjson.loads(replace(clip, changes={}).json())
                row = sample_row(tar.name, clip.key, fields, clip.caption)
                of_tar.append(row | {"bytes": len(clip.mp4)} | place)
            members = members_file(rows_to_table(of_tar, DATASET_SCHEMA), tar.bytes)
            store.write(f"shards/{members_name(tar.name)}", members)
            tars.append(replace(tar, members_sha256=hashlib.sha256(members).hexdigest()))
            rows += of_tar
    files = described_files(
        tars, to_parquet(rows_to_table(rows, DATASET_SCHEMA), DATASET), declared={}, seed=0,
        fingerprint="0" * 16, made_by="curate", scores=(),
    )  # fmt: skip
    for name, data in files.items() if with_manifest else ():
        store.write(name, data)
    kept = [
        {
            "clip_id": row["clip_id"],
            "source_id": row["source_id"],
            "decision": "kept",
            "bucket": row["bucket"],
            "shard": f"shards/{row['shard']}",
            "key": row["clip_id"],
            "mp4_offset": row["offset"],
            "mp4_bytes": row["bytes"],
            "mp4_sha256": row["sha256"],
        }
        for row in rows
    ]
    kept.append({"clip_id": "f" * 24, "decision": "rejected"})
    parts = write_tables(
        store, "clips", [rows_to_table(kept, clips_schema(SCORES))], clips_schema(SCORES)
    )
    entries = [tar.entry() | {"name": f"shards/{tar.name}"} for tar in tars]
    summary = {"format": FORMAT, "tables": {"clips": parts}, "shards": entries}
    store.write("summary.json", orjson.dumps(summary))
    return [tar.name for tar in tars]


def _written(
    store: Store, bucket: str, split: Split, number: int, clips: Sequence[MadeClip]
) -> tuple[DescribedTar, list[dict[str, Any]]]:
    """Writes a tar, its index and its metadata; returns its facts, and the place of each sample."""
    samples = []
    for number_in_tar, clip in enumerate(clips):
        sample = Sample(
            key=f"{number_in_tar}", metadata=orjson.loads(clip.json()), caption=clip.caption,
            mp4_bytes=len(clip.mp4), mp4_sha256="",
            location=Location(name="", offset=number_in_tar, n_bytes=len(clip.mp4)),
        )  # fmt: skip
        # Some are none that a sample may have.
        sample.key = clip.key
        samples.append(sample)
    plan = ShardPlan(name="", bucket=bucket, split=split, samples=tuple(samples))
    output = BytesIO()
    write_shard(plan, output.write, lambda sample: clips[sample.location.offset or 0].mp4)
    data, idx = output.getvalue(), index_bytes(plan.layout.offsets)
    sha256 = hashlib.sha256(data).hexdigest()
    meta = meta_lines(plan)
    tar = DescribedTar(
        name=f"{bucket}/{split}-{number:06d}-{sha256[:8]}.tar", bucket=bucket, split=split,
        samples=len(clips), frames=sum(clip.n_frames for clip in clips), bytes=len(data),
        sha256=sha256, md5=hashlib.md5(data).hexdigest(),
        idx_sha256=hashlib.sha256(idx).hexdigest(), meta_sha256=hashlib.sha256(meta).hexdigest(),
    )  # fmt: skip
    for name, own in ((tar.name, data), (index_name(tar.name), idx), (meta_name(tar.name), meta)):
        store.write(f"shards/{name}", own)
    places = zip(plan.layout.mp4_starts, samples, strict=True)
    return tar, [{"offset": start, **member_columns(s.members())} for start, s in places]
