"""Tracks as Arrow rows: one row per source, in tables that each have some of the columns.

The columns of a track are those of its fields, and one for each of its signals. A track
is made of rows of several tables, which have the columns of one family each.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from curator.errors import ErrorCode
from curator.measures.drawn_marks import EDGE_BYTES, LINE_COLUMNS
from curator.measures.look_maps import LINE_BYTES, MOVED_BYTES
from curator.measures.noise import with_noise
from curator.measures.overlay_text import TEXT_COLUMNS
from curator.models.perceptual import DIM
from curator.models.scene_network import SCENE_DIM
from curator.records.sources import Failure, Note
from curator.records.tracks import SourceFrames, Track

ORIGIN = ("uri", "version")
"""Columns of the family `frames` that say what was read; no fields of a track."""
PLACES = (
    "sha256", "time_base", "end_pts", "width", "height", "rotation_deg", "pixel_aspect",
    "is_interlaced", "is_hdr", "notes", "n_decode_errors", "frame_pts", "frame_bytes",
    "frame_flags", "sample_frame", "sample_pair_frame",
)  # fmt: skip
"""What every decode knows, whichever families it measures; joins of segments need it."""

_SCALARS: dict[str, pa.DataType] = {
    "sha256": pa.string(),
    "block_hashes": pa.binary(),
    "time_base": pa.string(),
    "end_pts": pa.int64(),
    "width": pa.int32(),
    "height": pa.int32(),
    "rotation_deg": pa.int16(),
    "pixel_aspect": pa.string(),
    "is_interlaced": pa.bool_(),
    "is_hdr": pa.bool_(),
    "n_decode_errors": pa.int32(),
    "audio_rms_first": pa.int64(),
}
_LISTS: dict[str, pa.DataType] = {
    "notes": pa.string(),
    "audio_notes": pa.string(),
    "frame_pts": pa.int64(),
    "frame_bytes": pa.int32(),
    "frame_flags": pa.uint8(),
    "sample_frame": pa.int32(),
    "sample_pair_frame": pa.int32(),
    "look_frame": pa.int32(),
    "look_next_frame": pa.int32(),
    "text_frame": pa.int32(),
    "clip_frame": pa.int32(),
    "scene_frame": pa.int32(),
    "thumbnail_frame": pa.int32(),
    "thumbnails": pa.binary(),
}
"""Types of the elements; all other lists are float32."""
_WIDE: dict[str, tuple[pa.DataType, int]] = {
    "look_edges": (pa.uint8(), EDGE_BYTES),
    "look_lines": (pa.float32(), len(LINE_COLUMNS)),
    "look_standing": (pa.uint8(), LINE_BYTES),
    "look_moved": (pa.uint8(), MOVED_BYTES),
    "text_line": (pa.float32(), len(TEXT_COLUMNS)),
    "descriptor": (pa.float16(), DIM),
    "clip_embedding": (pa.float16(), 0),
    "scene_vector": (pa.float16(), SCENE_DIM),
}
"""Two-dimensional arrays, row by row, and how wide their rows are."""
_ROWS_OF = {
    "descriptor": "sample_frame",
    "clip_embedding": "clip_frame",
    "scene_vector": "scene_frame",
}
"""Column with as many entries as an array has rows, where a model says how wide these are."""
_FAILURE = [(name, pa.string()) for name in ("error_stage", "error_code", "error_message")]
_AUDIO_NOTES = frozenset(note for note in Note if note.startswith("audio_"))
_DECODE_NOTES = frozenset(
    (
        Note.TRUNCATED, Note.DECODE_ERRORS, Note.CORRUPT_FRAMES, Note.TIMESTAMPS_REPAIRED,
        Note.SIZE_CHANGES,
    )
)  # fmt: skip


def track_schema(columns: Iterable[str]) -> pa.Schema:
    """Returns the schema of rows with some columns of tracks, or the error in their place."""
    return pa.schema(
        [("source_id", pa.string()), *_FAILURE, *((name, _type_of(name)) for name in columns)]
    )


def _type_of(name: str) -> pa.DataType:
    if name in _SCALARS:
        return _SCALARS[name]
    if name in _WIDE:
        return pa.list_(_WIDE[name][0])
    return pa.list_(_LISTS.get(name, pa.float32()))


def tracks_to_table(
    results: Sequence[tuple[str, Track | Failure]], columns: Sequence[str]
) -> pa.Table:
    """Returns rows with some columns for the results of a unit, given by source id."""
    rows = [_row(key, result, columns) for key, result in results]
    return pa.Table.from_pylist(rows, track_schema(columns))


def _row(source_id: str, result: Track | Failure, columns: Sequence[str]) -> dict[str, Any]:
    if isinstance(result, Failure):
        return {"source_id": source_id} | result.columns()
    return {"source_id": source_id} | {name: _value(result, name) for name in columns}


def _value(track: Track, name: str) -> object:
    if name in ("notes", "audio_notes"):
        of_audio = name == "audio_notes"
        return [str(note) for note in track.notes if (note in _AUDIO_NOTES) is of_audio]
    if name in ("time_base", "pixel_aspect"):
        return str(getattr(track, name))
    if name in _WIDE:
        return getattr(track, name).astype(_WIDE[name][0].to_pandas_dtype()).ravel()
    return track.signals[name] if name in track.signals else getattr(track, name)


def table_to_tracks(
    tables: Sequence[pa.Table], uris: Mapping[str, str]
) -> list[tuple[str, Track | Failure]]:
    """Returns records of rows that `tracks_to_table` made, for source ids with a URI.

    The first of the tables, which have a family each, has the fields of a `SourceFrames`.
    """
    results: list[tuple[str, Track | Failure]] = []
    frames, *others = tables
    indices = [_indices(table) for table in others]
    for source_id, index in _indices(frames).items():
        if source_id not in uris:
            continue
        row = frames.slice(index, 1)
        if row["error_code"][0].as_py() is not None:
            results.append((source_id, _failure(row, uris[source_id])))
            continue
        values = _columns(row)
        for table, of in zip(others, indices, strict=True):
            values |= _columns(table.slice(of[source_id], 1))
        results.append((source_id, _track(source_id, values)))
    return results


def table_to_source_frames(table: pa.Table, source_id: str) -> SourceFrames:
    """Reads the frame times of a source from a table of the family `frames`.

    Raises:
        KeyError: The table has no frames of the source.
    """
    row = table.slice(_indices(table)[source_id], 1)
    if row["error_code"][0].as_py() is not None:
        raise KeyError(f"{source_id} could not be decoded")
    return SourceFrames(source_id=source_id, **_fields(_columns(row)))


def _indices(table: pa.Table) -> dict[str, int]:
    return {source_id: i for i, source_id in enumerate(table["source_id"].to_pylist())}


def _failure(row: pa.Table, uri: str) -> Failure:
    stage, code, message = (str(row[name][0].as_py()) for name, _ in _FAILURE)
    return Failure(uri=uri, stage=stage, code=ErrorCode(code), message=message)


def _columns(row: pa.Table) -> dict[str, Any]:
    """Returns values of a row by column; lists as arrays."""
    values: dict[str, Any] = {}
    for name in row.column_names[1 + len(_FAILURE) :]:
        if name in ORIGIN:
            continue
        cell = row[name][0]
        if name in _SCALARS:
            values[name] = cell.as_py()
        elif _LISTS.get(name) in (pa.string(), pa.binary()):
            values[name] = tuple(cell.as_py())
        else:
            values[name] = np.asarray(cell.values.to_numpy(zero_copy_only=False))
    return values


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values of columns as a record has them."""
    made = dict(values)
    for name in ("time_base", "pixel_aspect"):
        made[name] = Fraction(made[name])
    made["notes"] = _joined_notes(made["notes"], made.pop("audio_notes", ()))
    for name in _WIDE.keys() & made.keys():
        width = _WIDE[name][1]
        n_rows = len(made[_ROWS_OF[name]]) if name in _ROWS_OF else len(made[name]) // width
        made[name] = made[name].reshape(n_rows, -1 if n_rows else width)
    if "descriptor" in made:
        made["descriptor"] = made["descriptor"].astype(np.float32)
    return made


def _joined_notes(notes: Sequence[str], of_audio: Sequence[str]) -> tuple[Note, ...]:
    """Orders notes as in one decode: on what decodes, on audio, on the header's claims."""
    all_notes = [Note(note) for note in notes]
    decoding = [note for note in all_notes if note in _DECODE_NOTES]
    rest = [note for note in all_notes if note not in _DECODE_NOTES]
    return (*decoding, *map(Note, of_audio), *rest)


def _track(source_id: str, values: Mapping[str, Any]) -> Track:
    made = _fields(values)
    signals = {name: made.pop(name) for name in list(made) if name not in _TRACK_FIELDS}
    return Track(
        source_id=source_id,
        signals=with_noise(signals),
        has_text="text_frame" in made,
        has_audio_levels="audio_rms_db" in made,
        **made,
    )


_TRACK_FIELDS = frozenset(Track.__dataclass_fields__)
