"""Tracks as Arrow rows: one row per source, in one table per family.

A track has a column for each of its fields and signals. Each table has the columns of one family,
so a track needs rows of several tables.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from curator.errors import ErrorCode
from curator.measures.drawn_boxes import ALL_VALUES
from curator.measures.drawn_marks import EDGE_BYTES
from curator.measures.look_maps import LINE_BYTES, MOVED_BYTES
from curator.measures.noise import with_noise
from curator.measures.overlay_text import TEXT_COLUMNS
from curator.models.perceptual import DIM
from curator.models.scene_network import SCENE_DIM
from curator.records.sources import Failure, Note
from curator.records.tracks import SourceFrames, Track

ORIGIN = ("uri", "version")
"""Columns of the family `frames` with the origin of the bytes. A track has no such fields."""
PLACES = (
    "sha256", "time_base", "end_pts", "width", "height", "rotation_deg", "pixel_aspect",
    "aspect_changes", "is_interlaced", "is_hdr", "notes", "n_decode_errors", "frame_pts",
    "frame_bytes", "frame_flags", "frame_size", "sample_frame", "sample_pair_frame",
)  # fmt: skip
"""Columns that each decode measures, for any families. Joins of segments need them."""

_SCALARS: dict[str, pa.DataType] = {
    "sha256": pa.string(), "block_hashes": pa.binary(), "time_base": pa.string(),
    "end_pts": pa.int64(), "width": pa.int32(), "height": pa.int32(), "rotation_deg": pa.int16(),
    "pixel_aspect": pa.string(), "is_interlaced": pa.bool_(), "is_hdr": pa.bool_(),
    "n_decode_errors": pa.int32(), "audio_rms_first": pa.int64(),
}  # fmt: skip
_TUPLES = {
    "notes": pa.string(), "audio_notes": pa.string(), "aspect_changes": pa.string(),
    "thumbnails": pa.binary(),
}  # fmt: skip
_ARRAYS: dict[str, pa.DataType] = {
    "frame_pts": pa.int64(),
    "frame_flags": pa.uint8(),
    **dict.fromkeys(
        ("frame_bytes", "sample_frame", "sample_pair_frame", "look_frame", "look_next_frame",
         "text_frame", "clip_frame", "scene_frame", "thumbnail_frame"),
        pa.int32(),
    ),
}  # fmt: skip
"""Types of the elements of lists; all other lists are float32."""
_WIDE: dict[str, tuple[pa.DataType, int]] = {
    "frame_size": (pa.uint16(), 2),
    "look_edges": (pa.uint8(), EDGE_BYTES),
    "look_boxes": (pa.uint16(), ALL_VALUES),
    "look_standing": (pa.uint8(), LINE_BYTES),
    "look_moved": (pa.uint8(), MOVED_BYTES),
    "text_line": (pa.float32(), len(TEXT_COLUMNS)),
    "descriptor": (pa.float16(), DIM),
    "clip_embedding": (pa.float16(), 0),
    "scene_vector": (pa.float16(), SCENE_DIM),
}
"""Two-dimensional arrays, flattened by rows: type and row width; 0 if a model decides the width."""
_ROWS_OF = {
    "descriptor": "sample_frame",
    "clip_embedding": "clip_frame",
    "scene_vector": "scene_frame",
}
"""Column with as many entries as the array has rows."""
_FAILURE = ("error_stage", "error_code", "error_message")
_DECODE_NOTES = (
    Note.TRUNCATED, Note.DECODE_ERRORS, Note.CORRUPT_FRAMES, Note.TIMESTAMPS_REPAIRED,
    Note.TIMES_START_AGAIN, Note.SIZE_CHANGES, Note.MIRRORED, Note.ASPECT_CHANGES,
    Note.DEPTH_REDUCED, Note.OTHER_VIDEO,
)  # fmt: skip
_TRACK_FIELDS = frozenset(Track.__dataclass_fields__)


def _type_of(name: str) -> pa.DataType:
    if name in _SCALARS:
        return _SCALARS[name]
    wide, _ = _WIDE.get(name, (pa.float32(), 0))
    return pa.list_(_TUPLES.get(name) or _ARRAYS.get(name, wide))


def tracks_to_table(
    results: Sequence[tuple[str, Track | Failure]], columns: Sequence[str]
) -> pa.Table:
    """Returns a row per source id, with some columns of its track, or with its error."""
    rows = [
        {"source_id": source_id}
        | (
            result.columns()
            if isinstance(result, Failure)
            else {name: _value(result, name) for name in columns}
        )
        for source_id, result in results
    ]
    texts = [(name, pa.string()) for name in ("source_id", *_FAILURE)]
    schema = pa.schema([*texts, *((name, _type_of(name)) for name in columns)])
    return pa.Table.from_pylist(rows, schema)


def _value(track: Track, name: str) -> object:
    if name in ("notes", "audio_notes"):
        notes = (str(note) for note in track.notes)
        return [n for n in notes if n.startswith("audio_") is (name == "audio_notes")]
    if name in ("time_base", "pixel_aspect"):
        return str(getattr(track, name))
    if name in _WIDE:
        return getattr(track, name).astype(_WIDE[name][0].to_pandas_dtype()).ravel()
    return track.signals[name] if name in track.signals else getattr(track, name)


def table_to_tracks(
    tables: Sequence[pa.Table], uris: Mapping[str, str]
) -> list[tuple[str, Track | Failure]]:
    """Returns the records of rows from `tracks_to_table`, for the source ids in `uris`.

    `tables` has a table per family; the first table has the fields of a `SourceFrames`.
    """
    results: list[tuple[str, Track | Failure]] = []
    frames, *others = tables
    indices = [_indices(table) for table in others]
    for source_id, index in _indices(frames).items():
        if source_id not in uris:
            continue
        row = frames.slice(index, 1)
        stage, code, message = (row[name][0].as_py() for name in _FAILURE)
        if code is not None:
            failure = Failure(
                uri=uris[source_id], stage=str(stage), code=ErrorCode(code), message=str(message)
            )
            results.append((source_id, failure))
            continue
        values = _columns(row)
        for table, of in zip(others, indices, strict=True):
            values |= _columns(table.slice(of[source_id], 1))
        fields = _fields(values)
        signals = {name: fields.pop(name) for name in list(fields) if name not in _TRACK_FIELDS}
        track = Track(
            source_id=source_id,
            signals=with_noise(signals),
            has_text="text_frame" in fields,
            has_audio_levels="audio_rms_db" in fields,
            **fields,
        )
        results.append((source_id, track))
    return results


def table_to_source_frames(table: pa.Table, source_id: str) -> SourceFrames:
    """Reads the frame times of a source from the family `frames`; raises `KeyError` for none."""
    row = table.slice(_indices(table)[source_id], 1)
    if row["error_code"][0].as_py() is not None:
        raise KeyError(f"{source_id} could not be decoded")
    return SourceFrames(source_id=source_id, **_fields(_columns(row)))


def _indices(table: pa.Table) -> dict[str, int]:
    return {source_id: i for i, source_id in enumerate(table["source_id"].to_pylist())}


def _columns(row: pa.Table) -> dict[str, Any]:
    """Returns the values of a row by column, with lists as arrays."""
    values: dict[str, Any] = {}
    for name in row.column_names:
        cell = row[name][0]
        if name in ("source_id", *_FAILURE, *ORIGIN):
            continue
        if name in _SCALARS:
            values[name] = cell.as_py()
        elif name in _TUPLES:
            values[name] = tuple(cell.as_py())
        else:
            values[name] = np.asarray(cell.values.to_numpy(zero_copy_only=False))
    return values


def _fields(values: dict[str, Any]) -> dict[str, Any]:
    """Returns values of columns in the form of a record."""
    for name in ("time_base", "pixel_aspect"):
        values[name] = Fraction(values[name])
    # The order of one decode: notes on decoding, on audio, on the header.
    notes, of_audio = (map(Note, values.pop(name, ())) for name in ("notes", "audio_notes"))
    others = sorted(notes, key=lambda note: note not in _DECODE_NOTES)
    n_first = sum(note in _DECODE_NOTES for note in others)
    values["notes"] = (*others[:n_first], *of_audio, *others[n_first:])
    for name in _WIDE.keys() & values.keys():
        width = _WIDE[name][1]
        n_rows = len(values[_ROWS_OF[name]]) if name in _ROWS_OF else len(values[name]) // width
        values[name] = values[name].reshape(n_rows, -1 if n_rows else width)
    if "descriptor" in values:
        values["descriptor"] = values["descriptor"].astype(np.float32)
    return values
