"""A large corpus is decided as it always was, whatever of it fits into memory.

`corpus_digests.json` is of code that agreed, for 20,000 clips, with the code that held all clips in
memory. A change of a rule, a score or a table that is meant needs new digests: run this file with
WRITE_CORPUS_DIGESTS=1.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import made_corpus
import pytest

from curator.storage import open_store
from curator.tables import clip_rows, clip_vectors, disk_table
from curator.tables.checksums import read_parquet

N = 8_000
N_SOURCES = N // made_corpus.PER_SOURCE
RECIPE = [*made_corpus.SETTINGS, *made_corpus.META_SETTINGS, "select.max_per_group=100"]
STORED = Path(__file__).with_name("corpus_digests.json")
SMALL = 640_000
"""Bytes of memory, of which 8,000 clips take 16 MB."""


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same candidates twice."""
    found = [tmp_path_factory.mktemp("corpus") / "out" for _ in range(2)]
    made_corpus.make(found[0], N, made_corpus.recipe_of(RECIPE), per_part=1000)
    made_corpus.copied(*found)
    return found


@pytest.fixture(scope="module")
def run(roots: list[Path]) -> dict[str, str]:
    """Digests of a run in memory."""
    return made_corpus.digests(
        roots[0], made_corpus.recipe_of(RECIPE), N_SOURCES, meta=True, memory_bytes=8 << 30
    )


def test_decisions_and_tables_are_those_of_before(roots: list[Path], run: dict[str, str]) -> None:
    """Pins every value of every table, over rules of all kinds, gaps, ties, NaN and metadata."""
    store = open_store(str(roots[0]))
    summary = json.loads(store.read("summary.json"))
    assert {"duplicate", "not_selected", "cut_failed", "meta.labels_unwanted"} <= set(
        summary["counts"]["by_any_reason"]
    )
    found: dict[str, Any] = {name: _digest(summary[name]) for name in ("counts", "rules", "kept_s")}
    for name, parts in summary["tables"].items():
        tables = [read_parquet(store, part) for part in parts]
        for column in tables[0].column_names:
            values = [value for table in tables for value in table[column].to_pylist()]
            found[f"{name}.{column}"] = _digest(values)
    found |= {name: digest for name, digest in run.items() if name.endswith(".tar")}
    if "WRITE_CORPUS_DIGESTS" in os.environ:
        STORED.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
    known: dict[str, Any] = json.loads(STORED.read_text())
    # A column that is new is no change.
    assert {name: found.get(name) for name in known} == known


def test_what_waits_on_the_disk_changes_no_byte(
    roots: list[Path], run: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins tables, tars, summary and report: all are the same from pieces in temporary files."""
    for module in (clip_rows, clip_vectors, disk_table):
        monkeypatch.setattr(module, "BLOCK_ROWS", 777)
    again = made_corpus.digests(
        roots[1], made_corpus.recipe_of(RECIPE), N_SOURCES, meta=True, memory_bytes=SMALL
    )
    assert again == run


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]
