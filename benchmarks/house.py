"""Reads the output of a run into comparable rows, and compares two outputs.

`golden.py` uses this to compare two checkouts. Added columns do not count as differences.
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
"""The hash in a tar's name, which also appears in the JSON of samples; it is not compared."""

MOST_CHARACTERS = 4000
"""Longer values, such as vectors, are compared by hash."""

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
"""Columns that identify a row of each table."""

COUNTS = ("counts", "rules", "video_s", "kept_s")
"""Compared parts of `summary.json`."""

Facts = dict[str, dict[str, dict[str, Any]]]
"""Values of an output, by table, row and column."""


def facts(out: Path) -> Facts:
    """Returns the output of a run as comparable rows."""
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
    """Returns the rows by key, in order."""
    return {" ".join(str(row[name]) for name in key): flat(row) for row in table.to_pylist()}


def flat(row: dict[str, Any], within: str = "") -> dict[str, Any]:
    """Returns a row with nested objects flattened to dotted names."""
    values: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict) and value:
            values |= flat(value, f"{within}{name}.")
        else:
            values[within + name] = plain(value)
    return values


def plain(value: object) -> object:
    """Returns a JSON value; bytes and long values are replaced by their hash."""
    if isinstance(value, bytes) or len(text := json.dumps(value, default=str)) > MOST_CHARACTERS:
        data = value if isinstance(value, bytes) else text.encode()
        return hashlib.sha256(data).hexdigest()
    kept: object = json.loads(HASH_OF_TAR.sub("", text))
    return kept


def compare(base: Facts, new: Facts) -> dict[str, Any]:
    """Counts compared values, and lists the differences.

    Args:
        base: Output of a run.
        new: Output of another run.

    Returns:
        Compared rows and values by table, added columns, and one line per kind of difference.
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
