"""How tables are encoded, and who can read them."""

from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from curator.tables.parts import to_parquet


def test_values_that_differ_get_no_dictionary_and_all_readers_read_them(tmp_path: Path) -> None:
    """Pins that a column's values alone decide, also of names with dots, lists, gaps and NaN."""
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
