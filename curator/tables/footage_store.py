"""Stores the footage of clips for comparison: vectors of pictures, pictures or keypoints, and luma.

Readers of candidates read all vectors, an object at a time. They read pictures by the ids of clips,
a row group at a time, also on workers.

    removed/footage-<hash>.parquet   a row per clip that one removal took out

Such a row identifies removed footage that comes back: it has vectors and keypoints of pictures, and
the luma of frames. It has no picture, caption, id or address. `curate remove --forget` writes no
such rows.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curator.matching.clip_footage import ClipFootage, Keypoints
from curator.matching.picture_vectors import with_vectors
from curator.stage import Footage
from curator.storage import Store
from curator.tables.checksums import read_parquet, read_rows
from curator.tables.lasting_objects import read_lasting, write_lasting
from curator.tables.out_layout import REMOVED
from curator.tables.parts import columns_schema, parquet_by_content
from curator.tables.schemas import FOOTAGE_SCHEMA, LUMA_HZ

FOLDER = "candidates"
_KEYPOINTS = columns_schema(
    ("xy", pa.list_(pa.float32())), ("descriptors", pa.binary()), ("width height", pa.float32())
)
_REMOVED_SCHEMA = columns_schema(
    *((field.name, field.type) for field in FOOTAGE_SCHEMA),
    ("picture_second", pa.list_(pa.float32())),
    ("keypoints", pa.list_(pa.struct(list(_KEYPOINTS)))),
    ("luma_mean luma_spread", pa.list_(pa.float16())),
)
_REMOVED_ROWS = 16
"""Rows per row group: Arrow reads at most 2 GiB of keypoints at a time, 27 KB per picture."""


@dataclass(frozen=True, slots=True)
class FootageStore:
    """Footage of clips under an output root."""

    store: Store
    parts: tuple[str, ...]
    """Names of parts, without folders."""
    writes_index: bool = False
    """Whether a run may write an index of the vectors under the output root."""

    @classmethod
    def of(cls, store: Store, names: Collection[str]) -> "FootageStore":
        """Returns the footage of parts; `names` are objects of any kind of candidates."""
        return cls(store, tuple(sorted({name.rpartition("/")[2] for name in names})))

    def blocks(self) -> Iterator[pa.Table]:
        """Yields rows of `FOOTAGE_SCHEMA`, an object at a time."""
        for part in self.parts:
            yield read_parquet(self.store, footage_object(part))

    def sizes(self) -> dict[str, int]:
        """Returns the size of each existing part of vectors in bytes, by name."""
        prefix = footage_object("")
        return {i.key.removeprefix(prefix): i.bytes for i in self.store.list(prefix)}

    def clips(self, clip_ids: Collection[str]) -> dict[str, ClipFootage]:
        """Reads the footage of clips that this store has, by id."""
        missing, clips = set(clip_ids), dict[str, ClipFootage]()
        for part in self.parts:
            if not missing:
                break
            rows = {
                kind: {
                    row["clip_id"]: row
                    for table in read_groups(self.store, f"{FOLDER}/{kind}/{part}", missing)
                    for row in _rows(table)
                }
                for kind in ("pictures", "footage")
            }
            for name, row in rows["pictures"].items():
                if len(row["luma_mean"]):
                    clips[name] = as_footage(row, rows["footage"][name])
            missing -= rows["pictures"].keys()
        return clips


class FootageInMemory:
    """Footage of some clips in memory; another set of clips has another `key`."""

    def __init__(self, key: str, clips: Iterable[ClipFootage]) -> None:
        self.key = key
        self._clips = {clip.clip_id: clip for clip in clips}

    def blocks(self) -> Iterator[pa.Table]:
        """Yields rows of `FOOTAGE_SCHEMA`."""
        rows = [_vectors_row(clip) for clip in self._clips.values()]
        yield pa.Table.from_pylist(rows, FOOTAGE_SCHEMA)

    def clips(self, clip_ids: Collection[str]) -> dict[str, ClipFootage]:
        """Returns the footage of clips by these ids."""
        return {name: self._clips[name] for name in clip_ids if name in self._clips}


NO_FOOTAGE = FootageInMemory("", ())


def described_footage(own: Footage, wanted: pa.Array) -> FootageInMemory:
    """Returns the `wanted` clips of a footage that have pictures and no vector, with vectors.

    A clip that is shorter than the distance of two vectors may have none.
    """
    undescribed = [
        table["clip_id"].filter(pc.equal(pc.list_value_length(table["second"]), 0))
        for table in _clips_and_seconds(own)
    ]
    ids = [
        name
        for some in undescribed
        for name in some.filter(pc.is_in(some, value_set=wanted)).to_pylist()
    ]
    return FootageInMemory("", with_vectors(own.clips(ids).values())) if ids else NO_FOOTAGE


def write_removed_footage(store: Store, clips: Sequence[ClipFootage]) -> str | None:
    """Writes the footage of removed clips; returns the object's name, None for no clips.

    Clips without vectors get vectors of their pictures: the next recipe may measure vectors.
    """
    if not clips:
        return None
    tables = (
        pa.Table.from_pylist([_removed_row(clip, number)], _REMOVED_SCHEMA)
        for number, clip in enumerate(with_vectors(clips))
    )
    name = f"{REMOVED}/footage-{'~' * 16}.parquet"
    name, data = parquet_by_content(tables, _REMOVED_SCHEMA, name, _REMOVED_ROWS)
    write_lasting(store, name, data, entries=len(clips))
    return name


def read_removed_footage(store: Store, names: Collection[str]) -> FootageInMemory | None:
    """Reads footage that removal records name; None for none.

    Raises `UsageError` if an object is lost with its copy, because a run without it may use edited
    copies of removed footage.
    """
    clips = []
    for name in sorted(names):
        tables = _by_group(pq.ParquetFile(pa.BufferReader(read_lasting(store, name))))
        for number, row in enumerate(row for table in tables for row in _rows(table)):
            row |= {"clip_id": f"{number}/{name}", "jpeg": map(_keypoints, row["keypoints"])}
            clips.append(as_footage(row | {"second": row["picture_second"]}, row))
    return FootageInMemory(" ".join(sorted(names)), clips) if clips else None


def _clips_and_seconds(footage: Footage) -> Iterator[pa.Table]:
    """Yields the columns `clip_id` and `second` of all clips, an object at a time."""
    names = ["clip_id", "second"]
    if not isinstance(footage, FootageStore):
        yield from (block.select(names) for block in footage.blocks())
        return
    for part in footage.parts:
        yield read_rows(footage.store, footage_object(part), lambda file: file.read(names))


def _by_group(file: pq.ParquetFile) -> list[pa.Table]:
    return [file.read_row_group(group) for group in range(file.num_row_groups)]


def footage_object(part: str) -> str:
    """Returns the name of the object with the vectors of a part."""
    return f"{FOLDER}/footage/{part}"


def read_groups(
    store: Store, name: str, clip_ids: Collection[str], columns: Sequence[str] | None = None
) -> list[pa.Table]:
    """Reads the rows of some clips, and only row groups that have any of these clips."""
    wanted = pa.array(sorted(clip_ids), pa.string())

    def read(file: pq.ParquetFile) -> list[pa.Table]:
        groups, start = [], 0
        ids = file.read(["clip_id"])["clip_id"]
        for group in range(file.num_row_groups):
            n_rows = file.metadata.row_group(group).num_rows
            is_wanted = pc.is_in(ids.slice(start, n_rows), value_set=wanted)
            start += n_rows
            if pc.any(is_wanted).as_py():
                groups.append(file.read_row_group(group, columns=columns).filter(is_wanted))
        return groups

    return read_rows(store, name, read)


def block_vectors(table: pa.Table) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Returns vectors of rows of `FOOTAGE_SCHEMA`, float32 [V, D], and their rows, int64 [V]."""
    table = table.combine_chunks()
    seconds, vectors = (table[name].combine_chunks() for name in ("second", "vector"))
    n_of_row = pc.list_value_length(seconds).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = vectors.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    rows = np.repeat(np.arange(table.num_rows), n_of_row)
    return flat.reshape(len(rows), -1 if len(rows) else 0), rows


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yields rows with lists of numbers as arrays."""
    lists = (field for field in table.schema if pa.types.is_list(field.type))
    numbers = {field.name for field in lists if pa.types.is_primitive(field.type.value_type)}
    for at in range(table.num_rows):
        yield {
            name: table[name][at].values.to_numpy(zero_copy_only=False)
            if name in numbers
            else table[name][at].as_py()
            for name in table.column_names
        }


def as_footage(pictures: Mapping[str, Any], vectors: Mapping[str, Any]) -> ClipFootage:
    """Returns the footage of a clip, from rows with lists of numbers as arrays."""
    n = len(vectors["second"])
    return ClipFootage(
        clip_id=pictures["clip_id"],
        fps=LUMA_HZ,
        picture_s=pictures["second"].astype(np.float32),
        pictures=tuple(pictures["jpeg"]),
        vector_s=vectors["second"].astype(np.float32),
        vectors_VD=vectors["vector"].astype(np.float32).reshape(n, -1 if n else 0),
        luma_F=pictures["luma_mean"].astype(np.float32),
        luma_spread_F=pictures["luma_spread"].astype(np.float32),
    )


def _vectors_row(clip: ClipFootage) -> dict[str, Any]:
    vector = clip.vectors_VD.astype(np.float16).ravel()
    return {"clip_id": clip.clip_id, "second": clip.vector_s, "vector": vector}


def _removed_row(clip: ClipFootage, number: int) -> dict[str, Any]:
    keypoints = [clip.keypoints(at) for at in range(len(clip.pictures))]
    return _vectors_row(clip) | {
        "clip_id": str(number),
        "picture_second": clip.picture_s,
        "keypoints": [
            {
                "xy": points.xy_K2.ravel().tolist(),
                "descriptors": points.descriptors_KD.tobytes(),
                "width": points.width,
                "height": points.height,
            }
            for points in keypoints
        ],
        "luma_mean": clip.luma_F.astype(np.float16),
        "luma_spread": clip.luma_spread_F.astype(np.float16),
    }


def _keypoints(points: Mapping[str, Any]) -> Keypoints:
    return Keypoints(
        xy_K2=np.array(points["xy"], np.float32).reshape(-1, 2),
        descriptors_KD=np.frombuffer(points["descriptors"], np.uint8).reshape(-1, 128),
        width=points["width"],
        height=points["height"],
    )
