"""What a run left, in rows that can be compared, and how two of them differ.

`golden.py` runs two checkouts and compares what they leave; added columns are no difference.
"""

import hashlib
import json
import re
import tarfile
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

HASH_OF_TAR = re.compile(r"-[0-9a-f]{8}(?=\.tar)")
"""Is left out of the names of tars, of which the JSON of samples is a part."""

MOST_CHARACTERS = 4000
"""Of a value that is longer, such as a vector, the hash is compared."""

KEYS = {
    "sources": ("uri",),
    "shots": ("source_id", "shot"),
    "clips": ("clip_id",),
    "embeddings": ("clip_id",),
    "clip_embeddings": ("clip_id",),
    "annotations": ("clip_id", "window"),
    "sidecars": ("source_uri",),
    "members": ("clip_id", "member"),
}
"""Columns that name a row of a table."""

COUNTS = ("counts", "rules", "video_s", "kept_s")
"""Parts of `summary.json` that are compared."""

Facts = dict[str, dict[str, dict[str, Any]]]
"""What a run left: table, row, column."""


def facts(out: Path) -> Facts:
    """What a run left, in rows that can be compared."""
    summary = json.loads((out / "summary.json").read_text())
    found: Facts = {"summary": {name: flat({"is": summary[name]}) for name in COUNTS}}
    for name, key in KEYS.items():
        parts = summary["tables"].get(name)
        if parts:
            table = pa.concat_tables(pq.read_table(out / part) for part in parts)
            found[name] = rows(table, key)
    found["dataset"] = rows(pq.read_table(out / "shards" / "dataset.parquet"), ("clip_id",))
    found |= {"sample members": {}, "sample JSON": {}}
    for tar in sorted((out / "shards").rglob("*.tar")):
        with tarfile.open(tar) as opened:
            for member in opened:
                stored = opened.extractfile(member)
                data = stored.read() if stored is not None else b""
                sample, _, suffix = member.name.partition(".")
                if suffix == "json":
                    found["sample JSON"][sample] = flat(json.loads(data))
                    continue
                digest = hashlib.sha256(data).hexdigest()
                found["sample members"].setdefault(sample, {})[suffix] = digest
    return found


def rows(table: pa.Table, key: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Rows by their key, in their order."""
    return {" ".join(str(row[name]) for name in key): flat(row) for row in table.to_pylist()}


def flat(row: dict[str, Any], within: str = "") -> dict[str, Any]:
    """A row with the keys of objects in it as names of their own."""
    values: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict) and value:
            values |= flat(value, f"{within}{name}.")
        else:
            values[within + name] = plain(value)
    return values


def plain(value: object) -> object:
    """A value that JSON holds; of what is long, a hash."""
    if isinstance(value, bytes) or len(text := json.dumps(value, default=str)) > MOST_CHARACTERS:
        data = value if isinstance(value, bytes) else text.encode()
        return hashlib.sha256(data).hexdigest()
    kept: object = json.loads(HASH_OF_TAR.sub("", text))
    return kept


def compare(base: Facts, new: Facts) -> dict[str, Any]:
    """Counts what is equal, and names what is not.

    Args:
        base: What a run left.
        new: What another left.

    Returns:
        Rows and values compared by table, added columns, and a line per kind of difference.
    """
    result: dict[str, Any] = {"compared": {}, "added": {}, "differences": []}
    for name in sorted(base.keys() | new.keys()):
        old_rows, new_rows = base.get(name), new.get(name)
        if old_rows is None or new_rows is None:
            where = "base" if new_rows is None else "new"
            result["differences"].append(f"{name}: only in {where}")
            continue
        if list(old_rows) != list(new_rows):
            result["differences"].append(_of_rows(name, list(old_rows), list(new_rows)))
        columns: dict[str, list[tuple[bool, str]]] = {}
        for key in old_rows.keys() & new_rows.keys():
            for column, value in old_rows[key].items():
                equal = json.dumps(value) == json.dumps(new_rows[key].get(column, "missing"))
                columns.setdefault(column, []).append((equal, key))
        for column, equals in columns.items():
            unequal = [key for equal, key in equals if not equal]
            if unequal:
                key = min(unequal)
                pair = f"{old_rows[key][column]!r} -> {new_rows[key].get(column, 'missing')!r}"
                result["differences"].append(
                    f"{name}.{column}: {len(unequal)} of {len(equals)} differ, first {key}: {pair}"
                )
        values = sum(len(equals) for equals in columns.values())
        result["compared"][name] = {"rows": len(old_rows), "values": values}
        had = {column for row in old_rows.values() for column in row}
        added = {column for row in new_rows.values() for column in row} - had
        if added:
            result["added"][name] = sorted(added)
    return result


def _of_rows(name: str, old: list[str], new: list[str]) -> str:
    lost, gained = sorted(set(old) - set(new)), sorted(set(new) - set(old))
    if not lost and not gained:
        first = next(a for a, b in zip_longest(old, new) if a != b)
        return f"{name}: the same {len(old)} rows in another order, from {first}"
    return (
        f"{name}: {len(old)} rows -> {len(new)}; {len(lost)} lost {lost[:2]}, "
        f"{len(gained)} gained {gained[:2]}"
    )
