"""How tables are encoded, who can read them, and what pyarrow imports."""

import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curator.storage import open_store
from curator.tables import parts
from curator.tables.checksums import read_parquet
from curator.tables.parts import ROWS_PER_TABLE_PART, rows_per_part, to_parquet, write_tables


def test_values_that_differ_get_no_dictionary_and_all_readers_read_them(tmp_path: Path) -> None:
    """Pins that a column's values alone decide, also of names with dots, lists, gaps and NaN."""
    import pandas as pd
    import polars as pl

    rng, n = np.random.default_rng(0), 1000
    scores = [None if k % 7 == 0 else float(value) for k, value in enumerate(rng.random(n))]
    scores[3] = float("nan")
    vectors = rng.random((n, 4), np.float32)
    table = pa.table(
        {
            "meta.rating": pa.array(scores),
            "rounded": pa.array((rng.random(n) * 10).round() / 10),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 4),
            "lists": pa.array([row.tolist() for row in vectors], pa.list_(pa.float32())),
            "source_id": ["a" * 32, "b" * 32] * (n // 2),
            "absent": pa.nulls(n, pa.float64()),
        }
    )
    path = tmp_path / "part.parquet"
    path.write_bytes(to_parquet(table, path.name))
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(k) for k in range(group.num_columns)]
    split = {column.path_in_schema for column in columns if "BYTE_STREAM_SPLIT" in column.encodings}
    keyed = {column.path_in_schema for column in columns if column.has_dictionary_page}
    assert split == {"meta.rating", "vector.list.element", "lists.list.element"}
    assert keyed == {"rounded", "source_id"} | (keyed & {"absent"})
    wanted = table.to_pandas()
    np.testing.assert_array_equal(pd.read_parquet(path)["meta.rating"], wanted["meta.rating"])
    read = [pl.read_parquet(path).to_arrow(), duckdb.sql(f"from '{path}'").to_arrow_table()]
    for found in read:
        np.testing.assert_array_equal(found["meta.rating"].to_numpy(), wanted["meta.rating"])
        assert [list(row) for row in found["vector"].to_pylist()] == vectors.tolist()
        assert found["lists"].to_pylist() == table["lists"].to_pylist()


MAKES = """
import sys
import pyarrow as pa
from curator.tables.parts import leave_pandas_out
if sys.argv[1] == "without":
    leave_pandas_out()
table = pa.Table.from_pylist([{"a": 1}, {"a": None}])
print("pandas" in sys.modules)
frame = table.to_pandas()
print(type(frame).__module__.split(".")[0], pa.Table.from_pandas(frame).num_rows)
"""


def made(how: str) -> list[str]:
    """What a process says that makes a table and a data frame."""
    done = subprocess.run(
        [sys.executable, "-c", MAKES, how], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_lists_become_arrays_without_pandas_and_data_frames_with_it() -> None:
    assert made("without") == ["False", "pandas 2"]
    assert made("as it is") == ["True", "pandas 2"]


def test_a_table_of_vectors_has_smaller_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins parts by bytes of vectors, and that rows stay in order."""
    monkeypatch.setattr(parts, "VECTOR_BYTES", 4096)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(64 * 70, dtype=np.float32)), 64)
    table = pa.table({"clip_id": [f"{n:02}" for n in range(70)], "vector": vectors})
    store = open_store(str(tmp_path))
    names = write_tables(store, "embeddings", [table.slice(0, 33), table.slice(33)], table.schema)
    rows = [read_parquet(store, name) for name in names]
    assert [some.num_rows for some in rows] == [16, 16, 16, 16, 6]
    assert pa.concat_tables(rows)["clip_id"].to_pylist() == table["clip_id"].to_pylist()
    assert rows_per_part(pa.schema([("clip_id", pa.string())])) == ROWS_PER_TABLE_PART
