"""Tracks as Arrow rows: one row per source, one list per kind of measurement."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.errors import ErrorCode
from curator.measures.change import CHANGES
from curator.measures.drawn_marks import EDGE_BYTES, LINE_COLUMNS
from curator.measures.look_maps import LINE_BYTES, MOVED_BYTES
from curator.measures.overlay_text import TEXT_COLUMNS
from curator.measures.sample_signals import SIGNALS
from curator.records import Failure, Note, Track

_SCALARS: dict[str, pa.DataType] = {
    "sha256": pa.string(),
    "end_pts": pa.int64(),
    "width": pa.int32(),
    "height": pa.int32(),
    "rotation_deg": pa.int16(),
    "is_interlaced": pa.bool_(),
    "is_hdr": pa.bool_(),
    "n_decode_errors": pa.int32(),
    "has_text": pa.bool_(),
    "has_audio_levels": pa.bool_(),
    "audio_rms_first": pa.int64(),
}
_FRAMES: dict[str, pa.DataType] = {
    "frame_pts": pa.int64(),
    "frame_bytes": pa.int32(),
    "frame_flags": pa.uint8(),
    "shot_probability": pa.float32(),
    "transition_probability": pa.float32(),
    "luma_mean": pa.float32(),
    "luma_spread": pa.float32(),
}
_SAMPLES: dict[str, pa.DataType] = {
    "sample_frame": pa.int32(),
    "sample_pair_frame": pa.int32(),
}
_AUDIO: dict[str, pa.DataType] = {"audio_rms_db": pa.float32()}
_LOOKS: dict[str, pa.DataType] = {
    "look_frame": pa.int32(),
    "look_next_frame": pa.int32(),
    "text_frame": pa.int32(),
}
_LISTS = _FRAMES | _SAMPLES | _AUDIO | _LOOKS
_WIDE: dict[str, tuple[pa.DataType, int]] = {
    "look_edges": (pa.uint8(), EDGE_BYTES),
    "look_lines": (pa.float32(), len(LINE_COLUMNS)),
    "look_standing": (pa.uint8(), LINE_BYTES),
    "look_moved": (pa.uint8(), MOVED_BYTES),
    "text_line": (pa.float32(), len(TEXT_COLUMNS)),
}
"""Two-dimensional arrays, row by row, and how wide their rows are."""


def _change(name: str) -> str:
    """Column of one of `CHANGES`."""
    return f"change_{name}"


TRACK_SCHEMA = pa.schema(
    [
        ("source_id", pa.string()),
        ("error_stage", pa.string()),
        ("error_code", pa.string()),
        ("error_message", pa.string()),
        *_SCALARS.items(),
        ("time_base", pa.string()),
        ("pixel_aspect", pa.string()),
        ("notes", pa.list_(pa.string())),
        *((name, pa.list_(kind)) for name, kind in _LISTS.items()),
        *((name, pa.list_(kind)) for name, (kind, _) in _WIDE.items()),
        *((_change(name), pa.list_(pa.float32())) for name in CHANGES),
        *((name, pa.list_(pa.float32())) for name in SIGNALS),
        ("descriptor_dim", pa.int32()),
        ("descriptor", pa.list_(pa.float16())),
        ("clip_frame", pa.list_(pa.int32())),
        ("clip_embedding", pa.list_(pa.float16())),
        ("thumbnail_frame", pa.list_(pa.int32())),
        ("thumbnails", pa.list_(pa.binary())),
    ]
)
"""Row of `tracks`. `descriptor` is [S x descriptor_dim], sample by sample; so is `clip_embedding`
for the frames `clip_frame`, of which there are none without a CLIP model; `*_stage`, `error_code`
and `error_message` are set, and all else null, for a source that cannot be decoded."""


def tracks_to_table(results: Sequence[tuple[str, Track | Failure]]) -> pa.Table:
    """Rows for the results of a unit.

    Args:
        results: Source id and what became of it.
    """
    return pa.Table.from_pylist([_row(key, result) for key, result in results], TRACK_SCHEMA)


def _row(source_id: str, result: Track | Failure) -> dict[str, object]:
    if isinstance(result, Failure):
        return {
            "source_id": source_id,
            "error_stage": result.stage,
            "error_code": str(result.code),
            "error_message": result.message,
        }
    row: dict[str, object] = {name: getattr(result, name) for name in _SCALARS}
    row |= {name: getattr(result, name) for name in _LISTS}
    row |= {name: getattr(result, name).ravel() for name in _WIDE}
    row |= {_change(name): result.changes[name] for name in CHANGES}
    row |= {name: result.signals[name] for name in SIGNALS}
    row |= {
        "source_id": source_id,
        "time_base": str(result.time_base),
        "pixel_aspect": str(result.pixel_aspect),
        "notes": [str(note) for note in result.notes],
        "descriptor_dim": result.descriptor.shape[1],
        "descriptor": result.descriptor.astype(np.float16).ravel(),
        "clip_frame": result.clip_frame,
        "clip_embedding": result.clip_embedding.ravel(),
        "thumbnail_frame": result.thumbnail_frame,
        "thumbnails": list(result.thumbnails),
    }
    return row


def table_to_tracks(table: pa.Table, uris: dict[str, str]) -> list[tuple[str, Track | Failure]]:
    """Records of rows that `tracks_to_table` made.

    Args:
        table: Rows of `TRACK_SCHEMA`.
        uris: URI of each wanted source id; other rows are left out.
    """
    results: list[tuple[str, Track | Failure]] = []
    for index, source_id in enumerate(table["source_id"].to_pylist()):
        if source_id in uris:
            results.append((source_id, _record(table.slice(index, 1), source_id, uris[source_id])))
    return results


def _record(row: pa.Table, source_id: str, uri: str) -> Track | Failure:
    def scalar(name: str) -> object:
        return row[name][0].as_py()

    def array(name: str) -> NDArray[Any]:
        return np.asarray(row[name][0].values.to_numpy(zero_copy_only=False))

    code = scalar("error_code")
    if code is not None:
        return Failure(
            uri=uri,
            stage=str(scalar("error_stage")),
            code=ErrorCode(str(code)),
            message=str(scalar("error_message")),
        )
    dim = row["descriptor_dim"][0].as_py()
    clip_frame = array("clip_frame")
    values: dict[str, Any] = {name: scalar(name) for name in _SCALARS}
    values |= {name: array(name) for name in _LISTS}
    values |= {name: array(name).reshape(-1, width) for name, (_, width) in _WIDE.items()}
    return Track(
        source_id=source_id,
        **values,
        changes={name: array(_change(name)) for name in CHANGES},
        signals={name: array(name) for name in SIGNALS},
        time_base=Fraction(str(scalar("time_base"))),
        pixel_aspect=Fraction(str(scalar("pixel_aspect"))),
        notes=tuple(Note(note) for note in row["notes"][0].as_py()),
        descriptor=array("descriptor").astype(np.float32).reshape(-1, dim),
        clip_frame=clip_frame,
        clip_embedding=array("clip_embedding").reshape(
            len(clip_frame), -1 if len(clip_frame) else 0
        ),
        thumbnail_frame=array("thumbnail_frame"),
        thumbnails=tuple(row["thumbnails"][0].as_py()),
    )
