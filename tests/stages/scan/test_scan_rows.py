"""Scanning: a stream of listed sources, probed once, and safe from headers that end a process."""

import hashlib
import os
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from film_makers import text_file, write_video
from film_shots import moving_texture

from curator.errors import RETRIED, ErrorCode
from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.records.sources import SourceRef
from curator.scheduler import RowScheduler, UnitRunner
from curator.stages.scan.config import ScanConfig
from curator.stages.scan.listing_records import Listed, ListedSource, SkippedName, UnlistedSource
from curator.stages.scan.probe import ScanRow
from curator.stages.scan.source_listing import ListedSources, list_sources
from curator.stages.scan.stage import ScanStage
from curator.storage import Store, open_store, source_reader
from curator.tables import family_store
from curator.tables.family_store import FamilyRows
from curator.tables.source_metadata import SourceMetadata
from curator.tables.source_spans import SourceSpans
from curator.tables.source_table import SourceTable


class DyingScanStage(ScanStage):
    """Ends its process on some sources: at once, or by its limit on time."""

    def process(self, unit: SourceRef) -> ScanRow:
        """Dies, hangs, or probes."""
        if "deadly" in unit.uri:
            os.abort()
        if "endless" in unit.uri:
            time.sleep(60)
        return super().process(unit)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three videos, one of them twice, and a text that calls itself one."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        frames = moving_texture(10 + number, seed=number)
        write_video(folder / f"{number}.mp4", frames, fps=Fraction(25))
    (folder / "z same.mp4").write_bytes((folder / "1.mp4").read_bytes())
    text_file(folder / "text.mp4")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "out"))


def scan(
    store: Store, listed: Iterator[Listed], stage: type[ScanStage] = ScanStage
) -> tuple[SourceTable, int]:
    """Returns the table, and the number of sources that had to be probed."""
    table = SourceTable()
    with Progress(live=False) as progress, Engine(address=None, workers=None) as engine:
        scheduler = RowScheduler(FamilyRows(stage(ScanConfig()), store), table.add_probes)
        scheduler.begin(ListedSources(listed, table, SourceSpans(SourceMetadata()), []))
        scheduler.finish(UnitRunner(engine, progress))
        assert not engine.is_started
    return table, scheduler.n_made


def rows(table: SourceTable) -> dict[str, dict[str, Any]]:
    return {Path(row["uri"]).name: row for part in table.rows({}) for row in part.to_pylist()}


def test_what_was_probed_is_probed_again_in_another_version_alone(
    folder: Path, store: Store
) -> None:
    listed = [
        *list_sources([str(folder)]),
        SkippedName(uri="/a.json"),
        UnlistedSource(uri="/gone.mp4", code=ErrorCode.VANISHED, message="is not there"),
    ]
    first, n_scanned = scan(store, iter(listed))
    assert n_scanned == 5
    again, n_scanned = scan(store, iter(listed))
    assert n_scanned == 0
    assert rows(again) == rows(first)
    by_name = rows(first)
    assert sorted(by_name) == ["0.mp4", "1.mp4", "2.mp4", "gone.mp4", "text.mp4", "z same.mp4"]
    assert by_name["gone.mp4"]["error_stage"] == "list"
    assert by_name["text.mp4"]["error_code"] == "not_a_video"
    assert by_name["2.mp4"]["header_n_frames"] == 12
    names = [Path(source.uri).name for source in first.to_analyze()]
    assert names == ["0.mp4", "1.mp4", "2.mp4"]
    # A source of another version is probed again.
    scan(store, list_sources([str(folder)]))
    os.utime(folder / "0.mp4", ns=(1, 1))
    table, n_scanned = scan(store, list_sources([str(folder)]))
    assert n_scanned == 1
    assert len(table) == 5


def test_a_file_that_was_just_written_is_probed_by_the_next_run_too(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that a write within the resolution of a file's times is not missed for ever."""
    monkeypatch.setattr(source_reader, "RACY_NS", 10**12)
    scan(store, list_sources([str(folder)]))
    _, n_scanned = scan(store, list_sources([str(folder)]))
    assert n_scanned == 5
    monkeypatch.setattr(source_reader, "RACY_NS", 0)
    _, n_scanned = scan(store, list_sources([str(folder)]))
    assert n_scanned == 5
    _, n_scanned = scan(store, list_sources([str(folder)]))
    assert n_scanned == 0


@pytest.mark.parametrize(
    ("how", "code"),
    [pytest.param("deadly", "worker_died", marks=pytest.mark.long), ("endless", "too_slow")],
)
def test_a_header_that_ends_its_process_is_one_failed_source(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch, how: str, code: str
) -> None:
    monkeypatch.setattr("curator.stages.scan.stage.MAX_PROBE_S", 1.0)
    (folder / "1.mp4").rename(folder / f"{how}.mp4")
    table, _ = scan(store, list_sources([str(folder)]), DyingScanStage)
    by_name = rows(table)
    assert len(by_name) == 5
    dead = by_name[f"{how}.mp4"]
    assert (dead["outcome"], dead["error_stage"]) == ("failed", "scan")
    assert dead["error_code"] == code
    assert f"{how}.mp4" in dead["error_message"]
    assert {name for name, row in by_name.items() if row["source_id"]} == {
        "0.mp4", "2.mp4", "text.mp4", "z same.mp4",
    }  # fmt: skip
    _, n_scanned = scan(store, list_sources([str(folder)]), DyingScanStage)
    assert n_scanned == (1 if code in RETRIED else 0)


def test_the_listing_is_taken_as_it_is_needed(store: Store, tmp_path: Path) -> None:
    taken = 0

    def endless() -> Iterator[Listed]:
        nonlocal taken
        while True:
            taken += 1
            yield ListedSource(uri=f"{tmp_path}/{taken}.mp4", bytes=1, version="1-1-1-1")

    table = SourceTable()
    scheduler = RowScheduler(FamilyRows(ScanStage(ScanConfig()), store), table.add_probes)
    assert (
        scheduler.begin(ListedSources(endless(), table, SourceSpans(SourceMetadata()), [])) is None
    )
    assert taken <= 2 * family_store.FIRST_WINDOW


def test_a_probe_that_its_part_does_not_have_is_made_again(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan(store, list_sources([str(folder)]))
    monkeypatch.setattr(
        family_store.KnownKeys, "find", lambda known, keys: known._names * len(keys)
    )
    gone = ListedSource(uri="/gone.mp4", bytes=1, version="1-1-1-1")
    table, n_scanned = scan(store, iter([gone]))
    assert n_scanned == 1
    assert rows(table)["gone.mp4"]["error_code"] == "vanished"


def test_a_part_keeps_its_name_and_its_rows_name_the_items(folder: Path, store: Store) -> None:
    """Pins names of parts, and that a sandboxed answer cannot name another source."""
    rows = FamilyRows(ScanStage(ScanConfig()), store)
    item = SourceRef(uri=str(folder / "0.mp4"), n_bytes=7, version="7-1-1-1")
    lies: ScanRow = {"uri": "/etc/passwd", "bytes": 1, "version": "1-1-1-1", "codec": "h264"}
    (stored,) = rows.put([item], [lies]).to_pylist()
    assert (stored["uri"], stored["bytes"], stored["version"]) == (item.uri, 7, item.version)
    digits = hashlib.sha256(f"7-1-1-1\t{item.uri}".encode()).hexdigest()[:16]
    scan_fingerprint = ScanStage(ScanConfig()).fingerprint({})
    assert [info.key for info in store.list("scan/")] == [
        f"scan/{scan_fingerprint}-{digits}.parquet"
    ]
    found: list[pa.Table] = []
    other = SourceRef(uri=item.uri, n_bytes=7, version="7-2-2-1")
    assert list(rows.missing([other, item], found.append)) == [other]
    assert [table.to_pylist() for table in found] == [[stored]]
