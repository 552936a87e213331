"""Schemas of the public tables. New versions may add columns, but never change a column."""

import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import orjson
import pyarrow as pa

from curator.family import Family, FamilyVersion
from curator.measures.score_list import SCORES
from curator.records.clips import FACT_COLUMNS, Candidate, Clip, Written
from curator.records.columns import columns_of
from curator.records.sources import Medium, Source
from curator.storage.metadata_columns import PREFIX, is_metadata
from curator.tables.parts import columns_schema

_TYPES = {
    str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(),
    list[str]: pa.list_(pa.string()), Medium: pa.string(),
}  # fmt: skip

_DECLARATION = b"curate.family"
"""Key in the Arrow metadata of a column: the declaration of the family that declares the column."""


def family_fields(family: Family) -> list[pa.Field]:
    """Returns the columns that a family declares; none for a family of members."""
    if not family.columns:
        return []
    struct = family.content.feature("")["struct"]
    return [pa.field(field["name"], pa.type_for_alias(field["dtype"])) for field in struct]


def declared_fields(versions: Iterable[FamilyVersion]) -> list[pa.Field]:
    """Returns the columns that families add to `clips`, each with its declaration."""
    columns = columns_of(Clip)
    return [
        field.with_metadata({_DECLARATION: orjson.dumps(version.to_json())})
        for version in versions
        for field in family_fields(version.family)
        if field.name not in columns
    ]


def declared_columns(schema: pa.Schema) -> dict[str, Mapping[str, Any]]:
    """Returns the columns of a table that families declare, with their declarations."""
    return {
        field.name: orjson.loads(field.metadata[_DECLARATION])
        for field in schema
        if _DECLARATION in (field.metadata or {})
    }


def with_declared(table: pa.Table, fields: Iterable[pa.Field]) -> pa.Table:
    """Returns a table with these columns of families, all null, in place of its own ones."""
    table = table.drop_columns(list(declared_columns(table.schema)))
    for field in fields:
        table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table


def metadata_fields(schema: pa.Schema) -> list[pa.Field]:
    """Returns the columns of a table that hold source metadata."""
    return [field for field in schema if field.name.startswith(PREFIX)]


def further_fields(schema: pa.Schema) -> list[pa.Field]:
    """Returns the optional columns of `clips`: metadata, and columns of families."""
    declared = declared_columns(schema)
    return [*metadata_fields(schema), *(field for field in schema if field.name in declared)]


def scores_in(schema: pa.Schema) -> list[str]:
    """Returns names of scores: those of this package, then others in a table of clips."""
    columns = {*SCORES, *FACT_COLUMNS, *declared_columns(schema)}
    return [*SCORES, *(n for n in schema.names if n not in columns and not is_metadata(n))]


def schema_of(record: type, scores: Iterable[str] = ()) -> pa.Schema:
    """Returns the columns of a record, in the order of `columns_of`, with a column per score."""
    columns: list[tuple[str, pa.DataType]] = []
    for name, annotation in columns_of(record).items():
        if name == "scores":
            columns += [(score, pa.float64()) for score in scores]
        else:
            columns.append((name, _arrow_type(annotation)))
    return pa.schema(columns)


def _arrow_type(annotation: Any) -> pa.DataType:  # noqa: ANN401
    origin, of = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _arrow_type(next(kind for kind in of if kind is not type(None)))
    if origin is Annotated:
        return pa.type_for_alias(of[1])
    return pa.string() if origin is Literal else _TYPES[annotation]


SOURCES_SCHEMA = schema_of(Source)
"""A row per source, done or failed."""

CREDENTIALS = ("c2pa", "c2pa_generated", "c2pa_issuer", "c2pa_tool")
"""Columns of `sources` that come from C2PA manifests."""
_SCANNED = (
    "uri", "bytes", "version", "source_id", "medium", "container", "codec", "pixel_format",
    "width", "height", "rotation_deg", "pixel_aspect", "time_base", "fps", "is_vfr",
    "header_duration_s", "header_n_frames", "has_audio", "is_hdr", *CREDENTIALS, "error_stage",
    "error_code", "error_message",
)  # fmt: skip
SCAN_SCHEMA = pa.schema(
    (n, pa.string() if n in ("time_base", "fps") else SOURCES_SCHEMA.field(n).type)
    for n in _SCANNED
)
"""Row of `scan`: the result or error of a probe, in columns of `sources`, with exact rates."""

SHOTS_SCHEMA = columns_schema(
    ("source_id", pa.string()),
    ("shot", pa.int32()),
    ("start_frame end_frame", pa.int64()),
    ("start_s end_s", pa.float64()),
    ("transition_in transition_out", pa.string()),
)
"""A row per shot: frames [start_frame, end_frame) in decode order; seconds from the first frame."""

CUT_SCHEMA = pa.schema([("clip_id", pa.string()), *schema_of(Written), ("mp4", pa.binary())])
"""Row of `cuts`, with one row group per clip, so that readers can read a clip alone."""

SIDECARS_SCHEMA = columns_schema(("source_uri uri json", pa.string()))
"""A row per source of a kept clip with a sidecar: the sidecar's address and content."""

ANNOTATIONS_SCHEMA = columns_schema(
    ("clip_id source_id", pa.string()),
    ("window start_frame end_frame", pa.int32()),
    ("shown", pa.list_(pa.int32())),
    ("model prompt facts short medium long structured content_type answers safety", pa.string()),
    ("extra failure failure_detail set_aside lost judge candidates asked", pa.string()),
    ("n_unscored tokens_in tokens_out", pa.int32()),
    ("request_keys", pa.list_(pa.string())),
    ("annotation_key text_key", pa.string()),
    ("prompt_fingerprint judge_prompt_fingerprint label known questions", pa.string()),
)
"""A row per window of a clip that a model described: its answer, or `failure`, one of
`captions.records.Unanswered`. `start_frame`, `end_frame` (half-open) and `shown` count frames of
the written clip. JSON columns are `structured`, `answers`, `extra`, `set_aside` (rejected
answers by reason), `lost` (failed candidates by reason, if another candidate is valid),
`candidates` (all answers with the judge's scores, and as `text`) and `asked` (`system` and `user`
of the request; null without candidates). `n_unscored` is the number of candidates without a
readable score of the judge. `request_keys` name rows of `replies`; `annotation_key` is a hash of
everything that determines the row. `label` is the class of events of the window by metadata.
`known` (JSON) has the other metadata: a caption made from it, events, values, and unusable entries.
`questions` (JSON) are questions that metadata or the model answers, with the origin of each answer.
`label` and `known` are null if the recipe uses no metadata."""

PICTURES_SCHEMA = columns_schema(
    ("clip_id", pa.string()),
    ("duration_s", pa.float32()),
    ("second", pa.list_(pa.float32())),
    ("jpeg", pa.list_(pa.binary())),
    ("luma_mean luma_spread", pa.list_(pa.float16())),
)
"""Data for the comparison of clips: pictures with their times in seconds from the first frame, and
the mean and standard deviation of luma at `LUMA_HZ`."""
LUMA_HZ = 25
"""Sampling rate of the luma in `PICTURES_SCHEMA`, in Hz."""
FOOTAGE_SCHEMA = columns_schema(
    ("clip_id", pa.string()), ("second", pa.list_(pa.float32())), ("vector", pa.list_(pa.float16()))
)
"""Concatenated vectors of a clip's pictures, with their times in seconds from the first frame."""


def clips_schema(scores: Iterable[str]) -> pa.Schema:
    """Returns the schema of `clips`: a row per candidate, with a column per score."""
    return schema_of(Clip, scores)


def candidates_schema(scores: Iterable[str]) -> pa.Schema:
    """Returns the schema of candidates before any decision."""
    return schema_of(Candidate, scores)


def embeddings_schema(dim: int) -> pa.Schema:
    """Returns the schema of `embeddings`: one vector of length `dim` per clip."""
    return columns_schema(("clip_id model", pa.string()), ("vector", pa.list_(pa.float32(), dim)))
