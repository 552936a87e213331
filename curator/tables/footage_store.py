"""What clips are compared by, in objects of candidates: vectors of pictures, pictures, and luma.

Vectors are read whole, an object at a time. Pictures are read by the ids of clips, a row group at a
time, and also on workers.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curator.matching.clip_footage import ClipFootage
from curator.storage import Store
from curator.tables.checksums import read_parquet, read_rows
from curator.tables.schemas import LUMA_HZ

FOLDER = "candidates"


@dataclass(frozen=True, slots=True)
class FootageStore:
    """Footage of clips.

    Attributes:
        store: Output root.
        parts: Names of parts, without folders.
        writes_index: Whether an index of its vectors may be written under the output root.
    """

    store: Store
    parts: tuple[str, ...]
    writes_index: bool = False

    @classmethod
    def of(cls, store: Store, names: Collection[str]) -> "FootageStore":
        """Returns the footage in parts, which objects of any kind of candidates name."""
        return cls(store, tuple(sorted({name.rpartition("/")[2] for name in names})))

    def blocks(self) -> Iterator[pa.Table]:
        """Yields rows of `FOOTAGE_SCHEMA`, an object at a time."""
        for part in self.parts:
            yield read_parquet(self.store, footage_object(part))

    def sizes(self) -> dict[str, int]:
        """Returns the bytes of each part of vectors that is there, by its name."""
        prefix = footage_object("")
        return {i.key.removeprefix(prefix): i.bytes for i in self.store.list(prefix)}

    def clips(self, clip_ids: Collection[str]) -> dict[str, ClipFootage]:
        """Reads the footage of the clips that it stores, by id."""
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


def footage_object(part: str) -> str:
    """Returns the object with the vectors of a part."""
    return f"{FOLDER}/footage/{part}"


def read_groups(
    store: Store, name: str, clip_ids: Collection[str], columns: Sequence[str] | None = None
) -> list[pa.Table]:
    """Reads the rows of clips, no row group that has none of them."""
    wanted = pa.array(sorted(clip_ids), pa.string())
    return read_rows(store, name, partial(_groups, wanted, columns))


def _groups(
    clip_ids: pa.Array, columns: Sequence[str] | None, file: pq.ParquetFile
) -> list[pa.Table]:
    groups, start = [], 0
    ids = file.read(["clip_id"])["clip_id"]
    for group in range(file.num_row_groups):
        n_rows = file.metadata.row_group(group).num_rows
        is_wanted = pc.is_in(ids.slice(start, n_rows), value_set=clip_ids)
        start += n_rows
        if pc.any(is_wanted).as_py():
            groups.append(file.read_row_group(group, columns=columns).filter(is_wanted))
    return groups


def block_vectors(table: pa.Table) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Returns all vectors of rows of `FOOTAGE_SCHEMA`, float32 [V, D], and the row of each [V]."""
    table = table.combine_chunks()
    seconds, vectors = (table[name].combine_chunks() for name in ("second", "vector"))
    n_of_row = pc.list_value_length(seconds).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = vectors.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    rows = np.repeat(np.arange(table.num_rows), n_of_row)
    return flat.reshape(len(rows), -1 if len(rows) else 0), rows


def row_vectors(row: Mapping[str, Any]) -> NDArray[np.float32]:
    """Returns the vectors of a row of `FOOTAGE_SCHEMA`, float32 [V, D]."""
    n = len(row["second"])
    vectors: NDArray[np.float32] = row["vector"].astype(np.float32).reshape(n, -1 if n else 0)
    return vectors


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yields rows with lists of numbers as arrays."""
    numbers = {
        field.name
        for field in table.schema
        if pa.types.is_list(field.type) and not pa.types.is_binary(field.type.value_type)
    }
    for at in range(table.num_rows):
        yield {
            name: table[name][at].values.to_numpy(zero_copy_only=False)
            if name in numbers
            else table[name][at].as_py()
            for name in table.column_names
        }


def as_footage(pictures: Mapping[str, Any], vectors: Mapping[str, Any]) -> ClipFootage:
    """Returns the footage of a clip, from rows with lists of numbers as arrays."""
    return ClipFootage(
        clip_id=pictures["clip_id"],
        fps=LUMA_HZ,
        picture_s=pictures["second"].astype(np.float32),
        pictures=tuple(pictures["jpeg"]),
        vector_s=vectors["second"].astype(np.float32),
        vectors_VD=row_vectors(vectors),
        luma_F=pictures["luma_mean"].astype(np.float32),
        luma_spread_F=pictures["luma_spread"].astype(np.float32),
    )
