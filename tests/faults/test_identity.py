"""Ids of large files are of samples: they are believed with the SHA-256 of all bytes alone."""

import hashlib
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curator.errors import ErrorCode
from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.records.sources import Failure, SourceRef
from curator.records.tracks import Track
from curator.scheduler import UnitRunner
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.families import families_of
from curator.stages.analyze.identity_driver import Identifying, hash_parts
from curator.storage import Store, content_id, open_source, open_store, source_reader, stat_source
from curator.storage.content_id import full_content_id
from curator.tables.schemas import SCAN_SCHEMA
from curator.tables.source_table import SourceTable
from curator.tables.track_parts import TrackParts

SIZE = 9 << 20
BETWEEN = 100_000
"""A byte that no sample has: the second one begins at 624,870."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "out"))


class Films:
    """Large files that agree in all samples, and what runs over them store."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self.store = store
        self.summary: dict[str, Any] = {}
        self.since_ns = 0

    def write(self, name: str, *, mark: int) -> str:
        data = bytearray(SIZE)
        data[BETWEEN] = mark
        path = self.folder / name
        path.write_bytes(data)
        return str(path)

    def listed(self, *names: str) -> SourceTable:
        rows = []
        for name in names:
            uri = str(self.folder / name)
            n_bytes, version = stat_source(uri)
            with open_source(uri) as reader:
                found = content_id(reader, n_bytes)
            rows.append({"uri": uri, "bytes": n_bytes, "version": version, "source_id": found,
                         "width": 1, "height": 1})  # fmt: skip
        table = SourceTable()
        table.add_probes(pa.Table.from_pylist(rows, SCAN_SCHEMA))
        return table

    def ids(self, *names: str) -> dict[str, str | None]:
        """The ids that a run over some files gives them; None for one that failed."""
        return {Path(uri).name: row["source_id"] if row["outcome"] is None else None
                for uri, row in self.rows(*names).items()}  # fmt: skip

    def rows(self, *names: str) -> dict[str, dict[str, Any]]:
        sources = self.listed(*names)
        with Progress(live=False) as progress, Engine(address=None, workers=None) as engine:
            Identifying(
                self.store, AnalyzeConfig(), UnitRunner(engine, progress), progress,
                sources=sources, previous=self.summary, since_ns=self.since_ns or 1 << 62,
            ).run()  # fmt: skip
        (rows,) = sources.rows({})
        return {row["uri"]: row for row in rows.to_pylist()}

    def analyze(self, name: str, *, fails: bool = False) -> None:
        """Stores a track of a file as an analysis does."""
        uri = str(self.folder / name)
        n_bytes, version = stat_source(uri)
        source = SourceRef(uri=uri, n_bytes=n_bytes, version=version, source_id=self.sampled())
        sha256 = hashlib.sha256(Path(uri).read_bytes()).hexdigest()
        result: Track | Failure = track(self.sampled(), sha256)
        if fails:
            result = Failure(uri=uri, stage="analyze", code=ErrorCode.NO_FRAMES, message="none")
        parts = TrackParts(self.store, families_of(AnalyzeConfig())[:1])
        parts.write([(source, result)], {"frames"})

    def sampled(self) -> str:
        (source_id,) = set(
            self.listed(next(self.folder.iterdir()).name).sampled()["source_id"].to_pylist()
        )
        return str(source_id)


@pytest.fixture
def films(tmp_path: Path, store: Store) -> Films:
    (tmp_path / "in").mkdir()
    return Films(tmp_path / "in", store)


def track(source_id: str, sha256: str) -> Track:
    return Track(
        source_id=source_id, sha256=sha256, time_base=Fraction(1, 25), end_pts=1, width=2, height=2,
        rotation_deg=0, pixel_aspect=Fraction(1), is_interlaced=False, is_hdr=False, notes=(),
        n_decode_errors=0, frame_pts=np.zeros(1, np.int64), frame_bytes=np.zeros(1, np.int32),
        frame_flags=np.zeros(1, np.uint8),
    )  # fmt: skip


def own_id(mark: int) -> str:
    data = bytearray(SIZE)
    data[BETWEEN] = mark
    return full_content_id(hashlib.sha256(data).hexdigest())


def n_hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses of what is hashed from now on."""
    hashed: list[str] = []
    process = source_reader.open_source

    def watched(uri: str, **options: Any) -> Any:  # noqa: ANN401
        hashed.append(Path(uri).name)
        return process(uri, **options)

    monkeypatch.setattr("curator.stages.analyze.stage.open_source", watched)
    return hashed


def test_a_file_that_is_alone_with_its_id_keeps_it_unread(
    films: Films, monkeypatch: pytest.MonkeyPatch
) -> None:
    films.write("a", mark=1)
    hashed = n_hashed(monkeypatch)
    assert films.ids("a") == {"a": films.sampled()}
    assert hashed == []


def test_files_that_agree_in_all_samples_are_two_whatever_their_order(films: Films) -> None:
    """Pins problem 2 of trust: the good file got the bad one's SHA-256."""
    films.write("a", mark=1)
    films.write("b", mark=2)
    assert films.ids("a", "b") == films.ids("b", "a") == {"a": own_id(1), "b": own_id(2)}


def test_files_with_the_same_bytes_stay_one(films: Films, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their hashes are stored in parts, once for each version."""
    films.write("a", mark=1)
    films.write("b", mark=1)
    assert films.ids("a", "b") == dict.fromkeys("ab", films.sampled())
    hashed = n_hashed(monkeypatch)
    assert films.ids("a", "b") == dict.fromkeys("ab", films.sampled())
    assert hashed == [], "each version is hashed once"
    (name,) = hash_parts(films.store).names()
    rows = hash_parts(films.store).read(name).to_pylist()
    assert [Path(row["uri"]).name for row in rows] == ["a", "b"]
    assert {row["source_id"] for row in rows} == {films.sampled()}


def test_a_repaired_file_is_another_one(films: Films, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins problem 2 of trust: it kept the analysis of the damaged one."""
    films.write("a", mark=1)
    films.analyze("a")
    hashed = n_hashed(monkeypatch)
    assert films.ids("a") == {"a": films.sampled()}
    assert hashed == [], "the track names what it was read from"
    films.write("a", mark=2)
    assert films.ids("a") == {"a": own_id(2)}
    assert films.ids("a") == {"a": own_id(2)}
    assert hashed == ["a"]
    films.write("a", mark=1)
    assert films.ids("a") == {"a": films.sampled()}


def test_a_change_of_mode_or_place_costs_a_hash_and_no_analysis(
    films: Films, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(films.write("a", mark=1))
    films.analyze("a")
    path.chmod(0o600)
    hashed = n_hashed(monkeypatch)
    assert films.ids("a") == {"a": films.sampled()}
    path.rename(path.with_name("b"))
    assert films.ids("b") == {"b": films.sampled()}
    assert hashed == ["a", "b"]


def test_a_file_that_failed_is_analyzed_again_once_it_changed(films: Films) -> None:
    """A second film does not take the id of one that is analyzed."""
    films.write("a", mark=1)
    films.analyze("a", fails=True)
    assert films.ids("a") == {"a": films.sampled()}
    films.write("a", mark=2)
    assert films.ids("a") == {"a": own_id(2)}
    films.write("z", mark=1)
    films.analyze("z")
    assert films.ids("z", "a") == {"a": own_id(2), "z": films.sampled()}


def test_a_file_that_was_being_written_is_hashed_by_the_next_run(
    films: Films, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that a write within the resolution of a file's times is not missed for ever."""
    films.write("a", mark=1)
    monkeypatch.setattr(source_reader, "RACY_NS", 10**12)
    films.analyze("a")
    monkeypatch.setattr(source_reader, "RACY_NS", 0)
    hashed = n_hashed(monkeypatch)
    assert films.ids("a") == {"a": films.sampled()}
    assert hashed == ["a"]


def test_a_suspect_that_cannot_be_read_fails(films: Films, monkeypatch: pytest.MonkeyPatch) -> None:
    films.write("a", mark=1)
    films.write("b", mark=1)

    def changed(uri: str, **options: Any) -> Any:  # noqa: ANN401
        if uri.endswith("b"):
            os.utime(uri)
        return open_source(uri, **options)

    monkeypatch.setattr("curator.stages.analyze.stage.open_source", changed)
    rows = films.rows("a", "b")
    failed = rows[str(films.folder / "b")]
    assert (failed["outcome"], failed["error_code"]) == ("failed", "changed")
    assert rows[str(films.folder / "a")]["source_id"] == films.sampled()


def test_the_last_runs_table_says_what_is_known(
    films: Films, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that a plain rerun hashes nothing and reads no track, and one after a change does."""
    films.write("a", mark=1)
    films.write("b", mark=2)
    (store_path := Path(store.uri) / "sources").mkdir(parents=True)
    sources = films.listed("a")
    (rows,) = sources.rows({})
    rows = rows.set_column(rows.schema.get_field_index("sha256"), "sha256", pa.array(["1" * 64]))
    pq.write_table(rows, store_path / "part-00000-000000000000.parquet")
    tables = {"sources": ["sources/part-00000-000000000000.parquet"]}
    films.summary = {"tables": tables, "listed_ns": (1 << 62)}
    hashed = n_hashed(monkeypatch)
    assert films.ids("a") == {"a": films.sampled()}
    assert hashed == []
    assert films.ids("a", "b") == {"a": films.sampled(), "b": own_id(2)}
    assert hashed == ["b"]
    # A run that listed the file when it was young cannot vouch for it.
    films.summary = {"tables": tables, "listed_ns": 1}
    assert films.ids("a") == {"a": own_id(1)}
