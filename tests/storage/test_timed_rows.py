"""Tables with times: where they are, what is read, and which row a frame gets."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curator.storage import s3_client, timed_rows
from curator.storage.source_reader import open_source
from curator.storage.timed_rows import RowsError, RowsReader, TimedRows


def reader(table: str = "{stem}.csv", **options: Any) -> RowsReader:  # noqa: ANN401
    return RowsReader(table, **({"time": "t", "columns": ["x"]} | options))


def written(path: Path, text: str) -> str:
    """Writes a table beside a source; returns the address of the source."""
    path.write_text(text)
    return str(path.with_suffix(".mp4"))


@pytest.mark.parametrize(
    ("table", "source", "expected"),
    [
        ("{stem}.csv", "/a/b/film.1.mp4", "/a/b/film.1.csv"),
        ("{name}.csv", "/a/b/film.mp4", "/a/b/film.mp4.csv"),
        ("../rows/{stem}.tsv", "/a/b/film.mp4", "/a/rows/film.tsv"),
        ("/rows/{stem}.parquet", "/a/film.mp4", "/rows/film.parquet"),
        ("s3://r/{stem}.csv", "/a/film.mp4", "s3://r/film.csv"),
        ("{stem}.csv", "s3://b/k/film.mp4", "s3://b/k/film.csv"),
        ("../{stem}.csv", "s3://b/k/film.mp4", "s3://b/film.csv"),
        ("/rows/{stem}.csv", "s3://b/k/film.mp4", "/rows/film.csv"),
    ],
)
def test_a_pattern_names_the_table_of_a_source(table: str, source: str, expected: str) -> None:
    assert reader(table).table_of(source) == expected


def test_a_pattern_cannot_lead_out_of_a_bucket() -> None:
    with pytest.raises(RowsError, match="leads out of the manifest's bucket"):
        reader("../../{stem}.csv").table_of("s3://b/film.mp4")


def test_times_are_sorted_and_empty_cells_are_nan(tmp_path: Path) -> None:
    source = written(tmp_path / "a.csv", "\ufefft,x,other\n2,20,a\n1,,b\n3,30,c\n")
    rows = reader().rows(source)
    assert rows is not None
    assert rows.times.dtype == np.int64
    np.testing.assert_array_equal(rows.times, [1, 2, 3])
    np.testing.assert_array_equal(rows.values, [[np.nan], [20], [30]])
    assert reader().rows(str(tmp_path / "absent.mp4")) is None
    assert reader().rows(written(tmp_path / "b.csv", "t,x\n")) is None


def test_equal_rows_of_any_form_have_one_digest(tmp_path: Path) -> None:
    source = written(tmp_path / "a.csv", "t,x\n2,20\n1,10\n")
    written(tmp_path / "a.tsv", "x\tt\n10\t1\n20\t2\n")
    pq.write_table(pa.table({"t": [1, 2], "x": [10.0, 20.0]}), tmp_path / "a.parquet")
    found = [reader(f"{{stem}}.{suffix}").rows(source) for suffix in ("csv", "tsv", "parquet")]
    assert len({rows.digest for rows in found if rows is not None}) == 1
    written(tmp_path / "a.csv", "t,x\n2,20\n1,10.5\n")
    changed = reader().rows(source)
    assert changed is not None
    assert changed.digest != found[0].digest  # type: ignore[union-attr]


def test_a_table_is_read_once_for_the_clips_of_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins one request per source on object stores; a worker reads what its own copy needs."""
    opened: list[str] = []

    def counted(uri: str) -> Any:  # noqa: ANN401
        opened.append(uri)
        return open_source(uri)

    monkeypatch.setattr(timed_rows, "open_source", counted)
    one, other = (written(tmp_path / f"{name}.csv", "t,x\n1,10\n") for name in "ab")
    own = reader()
    for source in (one, one, other, other, str(tmp_path / "absent.mp4")):
        own.rows(source)
    copied = pickle.loads(pickle.dumps(own))
    copied.rows(other)
    assert [Path(uri).stem for uri in opened] == ["a", "b", "absent", "b"]


def test_tables_in_a_bucket(s3_bucket: str) -> None:
    client = s3_client.client()
    client.put_object(Bucket=s3_bucket, Key="k/a.csv", Body=b"t,x\n1,10\n")
    client.put_object(Bucket=s3_bucket, Key="k/all.csv", Body=b"t,x,of\n1,10,sub/b.mp4\n")
    rows = reader().rows(f"s3://{s3_bucket}/k/a.mp4")
    assert rows is not None
    assert reader().rows(f"s3://{s3_bucket}/k/c.mp4") is None
    shared = reader(f"s3://{s3_bucket}/k/all.csv", source="of")
    assert shared.rows(f"s3://{s3_bucket}/k/sub/b.mp4").digest == rows.digest  # type: ignore[union-attr]
    assert shared.rows(f"s3://{s3_bucket}/k/b.mp4") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("t,y\n1,2\n", "has no column 'x'; it has t, y"),
        ("t,x\n1,red\n", "column 'x' has type string; expected numbers"),
        ("t,x\n1,2\n,3\n", "row 2 has no time in column 't'"),
        ("t,x\n2026-01-02 03:04:05,2\n", "column 't' has type timestamp"),
        ("t,x\n1,2,3\n", "cannot be read"),
        ("", "cannot be read"),
    ],
)
def test_tables_that_are_not_as_declared_are_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(RowsError, match=message):
        reader().rows(written(tmp_path / "a.csv", text))


def test_lists_of_several_lengths_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": [1, 2], "x": [[1.0], [1.0, 2.0]]}), tmp_path / "a.parquet")
    with pytest.raises(RowsError, match=r"lists of column 'x' have lengths \[1, 2\]"):
        reader("{stem}.parquet").rows(str(tmp_path / "a.mp4"))


def test_nanoseconds_since_1970_lose_nothing() -> None:
    start = 1_760_000_000_000_000_001
    rows = TimedRows.of(np.array([start, start + 3]), np.zeros((2, 1)))
    np.testing.assert_array_equal(rows.seconds(start, "ns"), [0, 3e-9])
    rows = TimedRows.of(np.array([0.5, 1.5]), np.zeros((2, 1)))
    np.testing.assert_array_equal(rows.seconds(0.5, "ms"), [0, 0.001])


@pytest.mark.parametrize("n_rows", [0, 1, 2, 40])
def test_each_frame_gets_the_row_nearest_to_it_if_one_is_near(n_rows: int) -> None:
    rng = np.random.default_rng(n_rows)
    times = np.sort(rng.uniform(0, 1, n_rows))
    rows = TimedRows.of(times, np.arange(n_rows, dtype=np.float64)[:, None])
    frames, most = np.linspace(0, 1, 26), np.full(26, 0.02)
    found = rows.nearest(times, frames, most)[:, 0]
    for frame, value in zip(frames, found, strict=True):
        near = [k for k in range(n_rows) if abs(times[k] - frame) <= 0.02]
        best = min(near, key=lambda k: abs(times[k] - frame), default=None)
        assert np.isnan(value) if best is None else value == best
