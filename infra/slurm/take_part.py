#!/usr/bin/env python3
"""Writes one part of a manifest and prints the part's path; prints nothing if the part is empty.

    take_part.py MANIFEST INDEX N_PARTS FOLDER

The address of a source alone determines its part. The part does not depend on the source's position
or on other sources, and a source that the list names twice is in one part.
"""

import csv
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curator.errors import CuratorError, UsageError
from curator.storage.source_manifests import COLUMN, absolute_path, is_manifest, resolve
from curator.storage.source_reader import open_source
from curator.tables.parts import leave_pandas_out


def part_of(uri: str, n_parts: int) -> int:
    """Returns the part of a source, from 0 to n_parts - 1."""
    digest = hashlib.blake2b(uri.encode(errors="surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest) % n_parts


def take_part(manifest: str, index: int, n_parts: int, folder: Path) -> Path | None:
    """Writes the part as a manifest of the same kind, with absolute addresses.

    Returns:
        Path of the new manifest, or None if the part is empty.

    Raises:
        UsageError: `manifest` is not a manifest.
        SourceError: The manifest cannot be read.
    """
    if not is_manifest(manifest):
        raise UsageError(f"{manifest!r} is not a manifest; expected .txt, .csv or .parquet")
    if "://" not in manifest:
        manifest = absolute_path(manifest)

    def address(written: str) -> str | None:
        """Returns the address of an entry, or None if the entry is in another part."""
        uri = resolve(written, manifest)
        return uri if part_of(uri, n_parts) == index else None

    path = folder / f"part{manifest[manifest.rindex('.') :].lower()}"
    write = {".txt": _write_lines, ".csv": _write_rows, ".parquet": _write_table}[path.suffix]
    return path if write(manifest, path, address) else None


_Address = Callable[[str], str | None]


def _text(manifest: str) -> str:
    with open_source(manifest) as stream:
        return stream.read().decode("utf-8-sig", "surrogateescape")


def _write_lines(manifest: str, path: Path, address: _Address) -> int:
    entries = (line.removesuffix("\r") for line in _text(manifest).split("\n"))
    named = (line for line in entries if line.strip() and not line.startswith("# "))
    found = [uri for line in named if (uri := address(line)) is not None]
    path.write_bytes("".join(f"{uri}\n" for uri in found).encode("utf-8", "surrogateescape"))
    return len(found)


def _write_rows(manifest: str, path: Path, address: _Address) -> int:
    header, *rows = csv.reader(_text(manifest).splitlines(keepends=True), strict=True)
    if COLUMN not in header:
        raise UsageError(f"manifest {manifest!r} has no column {COLUMN!r}")
    column = header.index(COLUMN)
    found = [
        [*row[:column], uri, *row[column + 1 :]]
        for row in rows
        if len(row) > column and row[column].strip()
        if (uri := address(row[column])) is not None
    ]
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
        csv.writer(stream).writerows([header, *found])
    return len(found)


def _write_table(manifest: str, path: Path, address: _Address) -> int:
    with open_source(manifest) as stream:
        table = pq.read_table(stream)
    if COLUMN not in table.column_names:
        raise UsageError(f"manifest {manifest!r} has no column {COLUMN!r}")
    written = pc.cast(table[COLUMN], pa.string()).to_pylist()
    uris = [address(text) if text and text.strip() else None for text in written]
    at = table.column_names.index(COLUMN)
    table = table.set_column(at, COLUMN, pa.array(uris, pa.string()))
    table = table.filter(pc.is_valid(table[COLUMN]))
    pq.write_table(table, path)
    return table.num_rows


if __name__ == "__main__":
    leave_pandas_out()
    try:
        written = take_part(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    except (CuratorError, ValueError) as error:
        sys.exit(f"take_part: {error}")
    if written is not None:
        print(written)
