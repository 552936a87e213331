"""Takes ids of removed footage out of the texts of other clips, such as notes and details.

Columns that identify a row or an object keep their values: their rows go with the footage.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.tables.id_words import possible_ids
from curator.tables.parts import with_column
from curator.tables.removal_records import Removals, removal_hash

REMOVED_ID = "(removed)"
"""Stands where a text named removed footage."""
_RUN = re.compile(r"[0-9A-Fa-f](?:[0-9A-Fa-f_:-]*[0-9A-Fa-f])?")
_KEYS = re.compile(
    r"(?:.*_)?(?:id|uri|shard|path|keys?|version|part|fingerprint|duplicate_of|hash)"
)
"""Columns that identify something."""


def without_ids(text: str, ids: Collection[str]) -> str:
    """Returns a text without removed ids; `ids` are hashes."""
    if not names_any(text.encode("utf-8", "surrogatepass"), ids):
        return text

    def replaced(match: re.Match[str]) -> str:
        return REMOVED_ID if names_any(match[0].encode(), ids) else match[0]

    return _RUN.sub(replaced, text)


def names_any(data: bytes, ids: Collection[str]) -> bool:
    """Returns whether bytes name one of some ids, given by their hashes."""
    return any(removal_hash(word) in ids for word in possible_ids(data))


def value_without_ids(value: Any, ids: Collection[str]) -> Any:  # noqa: ANN401 - what JSON can hold
    """Returns a JSON value without removed ids: entries that are one go, and words in texts."""

    def is_gone(text: object) -> bool:
        return isinstance(text, str) and removal_hash(text) in ids

    if isinstance(value, str):
        return None if is_gone(value) else without_ids(value, ids)
    if isinstance(value, Mapping):
        return {
            without_ids(name, ids): value_without_ids(own, ids)
            for name, own in value.items()
            if not is_gone(name)
        }
    if isinstance(value, list):
        return [value_without_ids(own, ids) for own in value if not is_gone(own)]
    return value


def naming_rows(table: pa.Table, removals: Removals) -> pa.ChunkedArray:
    """Returns which rows have texts that name removed footage, bool [N]."""
    mask = pa.chunked_array([pa.array([False] * table.num_rows, pa.bool_())])
    for name in _naming_columns(table, removals):
        column = table[name].combine_chunks()
        named = [_names(value, removals.ids) for value in column.to_pylist()]
        mask = pc.or_(mask, pa.chunked_array([pa.array(named, pa.bool_())]))
    return mask


def without_named(table: pa.Table, removals: Removals) -> pa.Table:
    """Returns a table whose texts name no removed footage; the same table if none did."""
    for name in _naming_columns(table, removals):
        values = [_scrubbed(value, removals.ids) for value in table[name].to_pylist()]
        table = with_column(table, name, pa.array(values, table[name].type))
    return table


def _naming_columns(table: pa.Table, removals: Removals) -> list[str]:
    return [
        name
        for name in table.column_names
        if not _KEYS.fullmatch(name)
        and (text := _texts(table[name])) is not None
        and names_any(text, removals.ids)
    ]


def _texts(column: pa.ChunkedArray) -> bytes | None:
    """Returns all distinct texts of a column; None for a column without texts."""
    while pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        column = pc.list_flatten(column)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return None
    return "\n".join(column.unique().drop_null().to_pylist()).encode("utf-8", "surrogatepass")


def _names(value: Any, ids: Collection[str]) -> bool:  # noqa: ANN401 - a cell
    if isinstance(value, list):
        return any(_names(own, ids) for own in value)
    return isinstance(value, str) and names_any(value.encode("utf-8", "surrogatepass"), ids)


def _scrubbed(value: Any, ids: Collection[str]) -> Any:  # noqa: ANN401 - a cell
    if isinstance(value, list):
        return [_scrubbed(own, ids) for own in value]
    return without_ids(value, ids) if isinstance(value, str) else value
