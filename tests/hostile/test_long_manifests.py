"""A small manifest that stands for very many rows is one line, before any row is read."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curator.errors import UsageError
from curator.stages.scan import source_listing
from curator.stages.scan.source_listing import list_sources
from curator.storage import source_manifests
from curator.storage.source_manifests import manifest_rows


def written(path: Path, uris: pa.Array) -> Path:
    pq.write_table(pa.table({"uri": uris}), path, max_rows_per_page=len(uris))
    return path


def test_rows_that_repeat_sources_are_refused_while_they_are_read(tmp_path: Path) -> None:
    """Pins that 5 million equal rows in 1 KB are not looked up one by one."""
    n = 5_000_000
    uris = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int8)), ["none.mp4"])
    path = written(tmp_path / "rows.parquet", uris)
    n_bytes = path.stat().st_size
    assert n_bytes < 10_000
    message = rf"rows.parquet' promises {n} rows in {n_bytes} bytes; .*names each source once"
    with pytest.raises(UsageError, match=message):
        next(iter(list_sources([str(path)])))
    # Many rows that repeat few sources are refused while they are read.
    path = tmp_path / "rows.csv"
    path.write_text("uri\n" + "one.mp4\ntwo.mp4\n" * 150_000)
    with pytest.raises(UsageError, match=r"rows.csv': the first 102001 rows name 2 sources; "):
        next(list_sources([str(path)]))


def test_a_row_for_each_clip_of_a_film_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins, too, that a film is looked up once, because that is a request in a bucket."""
    looked_up = []
    monkeypatch.setattr(source_listing, "stat_source", lambda uri: looked_up.append(uri) or (1, ""))
    path = tmp_path / "clips.csv"
    path.write_text("uri\n" + "".join(f"{film}.mp4\n" * 900 for film in range(150)))
    assert [one.uri for one in list_sources([str(path)])] == [
        f"{tmp_path}/{n}.mp4" for n in range(150)
    ]
    assert len(looked_up) == 150


def test_more_rows_than_any_manifest_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_manifests, "_MOST_ROWS", 10)
    path = written(tmp_path / "rows.parquet", pa.array([f"{at}.mp4" for at in range(11)]))
    with pytest.raises(UsageError, match=r"promises 11 rows in .* at most 10 rows, and 100 for"):
        next(manifest_rows(str(path)))


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
