"""A small manifest that stands for very many rows is one line, before any row is read."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curator.errors import UsageError
from curator.stages.scan.source_listing import list_sources
from curator.storage.source_manifests import manifest_rows


def written(path: Path, uris: pa.Array) -> Path:
    """A manifest of one column."""
    pq.write_table(pa.table({"uri": uris}), path, max_rows_per_page=len(uris))
    return path


def test_equal_rows_beyond_what_a_file_can_tell_apart_are_refused(tmp_path: Path) -> None:
    """Pins that 5 million equal rows in 1 KB are not looked up one by one."""
    n = 5_000_000
    uris = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int8)), ["none.mp4"])
    path = written(tmp_path / "rows.parquet", uris)
    n_bytes = path.stat().st_size
    assert n_bytes < 10_000
    message = rf"rows.parquet' promises {n} rows in {n_bytes} bytes; .*names each source once"
    with pytest.raises(UsageError, match=message):
        next(iter(list_sources([str(path)])))


def test_the_densest_manifest_of_different_rows_is_taken(tmp_path: Path) -> None:
    """Pins that numbered names are taken in Parquet's densest encoding and compression."""
    names = pa.array([f"s3://nobody/{at:09d}.mp4" for at in range(200_000)])
    path = tmp_path / "dense.parquet"
    pq.write_table(
        pa.table({"uri": names}), path, compression="zstd", compression_level=19,
        use_dictionary=False, column_encoding={"uri": "DELTA_BYTE_ARRAY"},
    )  # fmt: skip
    assert path.stat().st_size < len(names) / 5
    assert sum(1 for _ in manifest_rows(str(path))) == len(names)
