"""Rows of `clips` of which a test gives only some columns."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from curator.measures.score_list import SCORES
from curator.tables.clip_rows import ClipRows
from curator.tables.schemas import clips_schema


def clip_rows(rows: Iterable[Mapping[str, Any]]) -> ClipRows:
    """The rows in columns; what a row does not have is null."""
    schema = clips_schema(SCORES)
    return ClipRows(pa.Table.from_pylist([*map(dict, rows)], schema), schema)
