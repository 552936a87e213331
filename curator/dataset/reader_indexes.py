"""Indexes by which other readers read samples in their tars, made of rows of `dataset.parquet`.

The rows suffice: `offset`, `members` and `member_bytes` give the place of each member, so that no
tar is read. The same rows always give the same bytes. Rows of an output of an older version lack
the members; then webshart's entries have no JSON, and there is no database for Megatron-Energon.
"""

import sqlite3
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import compress, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.dataset.tar_reader import BLOCK
from curator.records.clips import CLIP_FORMATS

CAPTIONS = "captions.json"
"""The captions of a folder's clips for diffusion-pipe, which looks for this name."""
ENERGON_INDEX, ENERGON_UUID = "index.sqlite", "index.uuid"
"""Files of `.nv-meta` that `energon prepare` also writes: where each sample is, and a name of that
state, by which a join of data sets notices a change."""
_SQLITE_VERSION = struct.pack(">I", 3_040_000)
"""Stands in the header of a database in place of the version of SQLite that wrote it."""
_TABLES = """
PRAGMA page_size = 4096;
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE samples (
    tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL, sample_index INTEGER NOT NULL,
    byte_offset INTEGER, byte_size INTEGER
);
CREATE TABLE sample_parts (
    tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, content_byte_offset INTEGER,
    content_byte_size INTEGER, PRIMARY KEY (tar_file_id, sample_index, content_byte_offset)
) WITHOUT ROWID;
CREATE TABLE media_metadata (
    entry_key TEXT NOT NULL, metadata_type TEXT NOT NULL, metadata_json TEXT NOT NULL
);
CREATE TABLE media_filters (
    filter_id INTEGER PRIMARY KEY AUTOINCREMENT, strategy TEXT NOT NULL, patterns TEXT,
    created_at_utc TEXT DEFAULT CURRENT_TIMESTAMP, UNIQUE (strategy, patterns)
);
INSERT INTO media_filters (strategy, patterns, created_at_utc) VALUES ('EXTENSION', '', NULL);
"""
_KEYS = """
CREATE UNIQUE INDEX idx_samples_sample_key ON samples (sample_key);
CREATE INDEX idx_samples_by_tar_and_idx ON samples (tar_file_id, sample_index);
CREATE UNIQUE INDEX idx_media_metadata_entry_key ON media_metadata (entry_key);
"""
"""Keys that are made after the rows take less space and time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPlaces:
    """Where the members of some samples are in their tars, in bytes from the start of a tar.

    `begins` and `ends` have an entry per sample; the others have one per member, in the order of
    the samples and of the tar.
    """

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    sample: NDArray[np.int64]
    """Position of the member's sample."""
    suffixes: Sequence[str]
    starts: NDArray[np.int64]
    """First byte of the member's data."""
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, rows: pa.Table) -> "MemberPlaces | None":
        """Returns the places for rows of `dataset.parquet`; None if a row lacks its members.

        `offset` of a row is that of its MP4, or of its only member.
        """
        names = rows.column_names
        if "members" not in names or rows["members"].null_count or not rows.num_rows:
            return None
        listed = rows["member_bytes"].combine_chunks()
        sizes = pc.list_flatten(listed).to_numpy(zero_copy_only=False).astype(np.int64)
        counts = pc.list_value_length(listed).to_numpy(zero_copy_only=False)
        sample = np.repeat(np.arange(len(counts)), counts)
        suffixes = [s for text in rows["members"].to_pylist() for s in text.split(" ")]
        steps = BLOCK + -(-sizes // BLOCK) * BLOCK
        ends = np.cumsum(steps)
        last = np.cumsum(counts) - 1
        before = np.concatenate([[0], ends[last][:-1]])
        headers = ends - steps - before[sample]
        mp4 = np.array([suffix in CLIP_FORMATS for suffix in suffixes]) | (counts == 1)[sample]
        begins = rows["offset"].to_numpy() - BLOCK - headers[mp4]
        return cls(
            begins=begins,
            ends=begins + ends[last] - before,
            sample=sample,
            suffixes=suffixes,
            starts=begins[sample] + headers + BLOCK,
            sizes=sizes,
        )

    def of_suffix(self, suffix: str) -> dict[int, tuple[int, int]]:
        """Returns start and size of the member with a suffix, by the position of its sample."""
        at = np.flatnonzero(np.array(self.suffixes) == suffix)
        pairs = zip(self.starts[at].tolist(), self.sizes[at].tolist(), strict=True)
        return dict(zip(self.sample[at].tolist(), pairs, strict=True))


def members_file(rows: pa.Table, tar_bytes: int) -> bytes:
    """Returns the index of a tar's MP4s for webshart, and for SimpleTuner, which uses webshart.

    `rows` are those of one tar, or some of them. SimpleTuner reads rate and length from
    `json_metadata`, where it finds them under these names only.
    """
    places = MemberPlaces.of(rows)
    texts = places.of_suffix("json") if places is not None else {}
    files = {}
    for at, row in enumerate(rows.select(_FOR_FILES).to_pylist()):
        entry = {
            "offset": row["offset"],
            "length": row["bytes"],
            "sha256": row["sha256"],
            "width": row["width"],
            "height": row["height"],
            "aspect": round(row["width"] / row["height"], 6),
            "json_metadata": {
                "fps": row["fps"],
                "num_frames": row["num_frames"],
                "duration": row["duration"],
            },
        }
        if row["text"]:
            entry["captions"] = row["text"]
        if at in texts:
            entry["json_path"] = f"{row['clip_id']}.json"
            entry["json_offset"], entry["json_length"] = texts[at]
        files[row["path"].rpartition("#")[2]] = entry
    name = rows["path"][0].as_py().partition("#")[0].rpartition("/")[2] if rows.num_rows else ""
    about = {"path": name, "filesize": tar_bytes, "includes_image_geometry": True}
    return orjson.dumps({**about, "files": files}) + b"\n"


_FOR_FILES = (
    "clip_id", "path", "offset", "bytes", "sha256", "width", "height", "fps", "num_frames",
    "duration", "text",
)  # fmt: skip


def captions_file(lines: Sequence[bytes]) -> bytes:
    """Returns `captions.json` of a folder for diffusion-pipe, from `caption_lines`.

    diffusion-pipe skips members that the file does not name.
    """
    return b"{\n" + b",\n".join(lines) + b"\n}\n"


def caption_lines(rows: pa.Table) -> list[bytes]:
    """Returns the entry of each clip: a list of its captions by the name of the member."""
    return [
        orjson.dumps(path.rpartition("#")[2]) + b": " + orjson.dumps([text or ""])
        for path, text in zip(rows["path"].to_pylist(), rows["text"].to_pylist(), strict=True)
    ]


def energon_database(rows: pa.Table, tars: Sequence[str]) -> dict[str, bytes]:
    """Returns the files of `.nv-meta` by which Energon joins data sets and reads single members.

    Args:
        rows: In the order of the tars.
        tars: Values of `shard` in the order of `.info.json`, by which Energon numbers tars.

    Returns:
        Contents by name; empty if rows lack their members, or if two have the same key, as in a
        folder with tars of several snapshots: Energon then joins nothing.
    """
    places = MemberPlaces.of(rows)
    if places is None or pc.count_distinct(rows["clip_id"]).as_py() < rows.num_rows:
        return {}
    numbers = pc.index_in(rows["shard"], value_set=pa.array(tars, pa.string())).to_numpy()
    first = np.flatnonzero(np.diff(numbers, prepend=-1))
    within = np.arange(len(numbers)) - np.repeat(first, np.diff(first, append=len(numbers)))
    keys = rows["clip_id"].to_pylist()
    sizes = (places.ends - places.begins).tolist()
    samples = zip(
        numbers.tolist(), keys, within.tolist(), places.begins.tolist(), sizes, strict=True
    )
    parts = zip(
        numbers[places.sample].tolist(),
        within[places.sample].tolist(),
        places.suffixes,
        places.starts.tolist(),
        places.sizes.tolist(),
        strict=True,
    )
    has_media = set(_OF_MEDIA) <= set(rows.column_names)
    media: Iterable[tuple[str, str, str]] = ()
    if has_media:
        # Of a picture, Energon's metadata has Pillow's mode, which its header alone does not tell.
        is_film = np.zeros(len(keys), bool)
        is_film[places.sample[np.array(places.suffixes) == "mp4"]] = True
        names = (f"{key}.mp4" for key in compress(keys, is_film))
        media = zip(names, repeat("av"), _media(rows.filter(pa.array(is_film))), strict=False)
    with TemporaryDirectory() as folder:
        path = Path(folder, ENERGON_INDEX)
        database = sqlite3.connect(path, isolation_level=None)
        database.executescript(_TABLES)
        database.execute("BEGIN")
        for table, values in (("samples", samples), ("sample_parts", parts)):
            database.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?)", values)
        database.executemany("INSERT INTO media_metadata VALUES (?, ?, ?)", media)
        database.execute("COMMIT")
        database.executescript(_KEYS)
        database.close()
        data = bytearray(path.read_bytes())
    data[96:100] = _SQLITE_VERSION
    name = uuid.UUID(bytes=sha256(data).digest()[:16], version=4)
    return {ENERGON_INDEX: bytes(data), ENERGON_UUID: str(name).encode()}


def _media(rows: pa.Table) -> Iterator[str]:
    """Yields facts of each MP4 under the names of Energon's media metadata."""
    for values in zip(*(rows[column].to_pylist() for column in _OF_MEDIA), strict=True):
        # A tenth of the time of a dictionary for each row; numbers are written as in JSON.
        pairs = zip(_OF_MEDIA.values(), values, strict=True)
        yield "{%s}" % ",".join([f'"{n}":{v!r}' for n, v in pairs if v is not None])  # noqa: UP031


_OF_MEDIA = {
    "duration": "video_duration",
    "num_frames": "video_num_frames",
    "fps": "video_fps",
    "width": "video_width",
    "height": "video_height",
}


def side_rows(rows: pa.Table, suffix: str, names: Mapping[str, str]) -> pa.Table:
    """Returns rows, as of `dataset.parquet`, of side tars.

    Args:
        rows: In the order of the tars.
        suffix: The member.
        names: The tar with the member, by the value of `shard`.
    """
    found = [
        (key, names[shard], place["offset"], suffix, [place["bytes"]])
        for key, shard, side_members in zip(
            *(rows[name].to_pylist() for name in ("clip_id", "shard", "side_members")), strict=True
        )
        for place in side_members or ()
        if place["member"] == suffix
    ]
    return pa.table(
        dict(zip(_OF_SIDES.names, map(list, zip(*found, strict=True)), strict=True)), _OF_SIDES
    )


_OF_SIDES = pa.schema(
    {
        "clip_id": pa.string(), "shard": pa.string(), "offset": pa.int64(),
        "members": pa.string(), "member_bytes": pa.list_(pa.int64()),
    }
)  # fmt: skip


def member_columns(members: Iterable[tuple[str, int]]) -> dict[str, Any]:
    """Returns the columns of `dataset.parquet` with a sample's members, in the order of the tar."""
    suffixes, sizes = zip(*members, strict=True)
    return {"members": " ".join(suffixes), "member_bytes": list(sizes)}


def sample_span(row: Mapping[str, Any]) -> tuple[int, int]:
    """Returns begin and end of a sample in its tar, in bytes, by a row with members."""
    steps = [BLOCK + -(-size // BLOCK) * BLOCK for size in row["member_bytes"]]
    at = next(n for n, name in enumerate(row["members"].split(" ")) if name in CLIP_FORMATS)
    begin = row["offset"] - BLOCK - sum(steps[:at])
    return begin, begin + sum(steps)
