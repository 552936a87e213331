"""Containers that are made to exhaust whoever opens them: each ends soon, small, with its code."""

import os
import time
from pathlib import Path

import pytest
from hostile_films import black_png, film, with_fragment

from curator.errors import ErrorCode
from curator.executor.sandboxed_process import process_sandbox
from curator.executor.unit_worker import UnitWorker
from curator.records.sources import SourceRef
from curator.stages.scan.config import ScanConfig
from curator.stages.scan.stage import MAX_PROBE_BYTES, ScanStage
from curator.storage import stat_source

MOST_BYTES = 1 << 30
COVER_PX = 16_000


@pytest.fixture(autouse=True, scope="module")
def _own_box() -> None:
    """Ends the sandbox of other tests, whose memory would count here."""
    process_sandbox().stop()


def probed(path: Path) -> dict[str, object]:
    """Scans a file in a sandbox, and checks the most memory that its sandbox took."""
    size, version = stat_source(str(path))
    worker = UnitWorker(stage=ScanStage(ScanConfig()))
    source = SourceRef(uri=str(path), n_bytes=size, version=version)
    row: dict[str, object] = worker([source]).results[0]
    process = process_sandbox()._process
    assert process is not None
    status = Path(f"/proc/{process.pid}/status").read_text()
    peak = next(int(line.split()[1]) << 10 for line in status.splitlines() if "VmHWM" in line)
    process_sandbox().stop()
    assert peak < MOST_BYTES
    return row


@pytest.mark.long
def test_covers_fragments_and_many_streams_exhaust_nothing(tmp_path: Path) -> None:
    """Pins that five covers of 256 million pixels cost no memory, and that their film is used."""
    path = tmp_path / "covers.mp4"
    film(path, (black_png(COVER_PX, COVER_PX),) * 5)
    assert path.stat().st_size < 10 << 20
    row = probed(path)
    assert row.get("error_code") is None
    assert (row["width"], row["height"]) == (64, 48)
    # An index of 2.7 billion entries in 6 KB: refused before 1 GB is used. A container of very many
    # streams is refused before they are looked into.
    path = tmp_path / "fragment.mp4"
    film(path)
    with_fragment(path, 1 << 26)
    assert probed(path)["error_code"] == ErrorCode.TOO_LARGE_TO_PROBE
    assert MAX_PROBE_BYTES < MOST_BYTES
    path = tmp_path / "streams.mp4"
    film(path, n_streams=101)
    row = probed(path)
    assert row["error_code"] == ErrorCode.TOO_LARGE_TO_PROBE
    assert "streams" in str(row["error_message"])


def test_a_film_and_128_gib_of_holes_end_at_once(tmp_path: Path) -> None:
    """Pins that holes, which an incomplete download has, are neither searched nor hashed."""
    path = tmp_path / "holes.mp4"
    film(path)
    os.truncate(path, 128 << 30)
    begun = time.monotonic()
    row = probed(path)
    assert row["error_code"] == ErrorCode.TOO_LARGE_TO_PROBE
    assert "incomplete download" in str(row["error_message"])
    assert time.monotonic() - begun < 30
    small = tmp_path / "few holes.mp4"
    film(small)
    os.truncate(small, 1 << 20)
    assert probed(small).get("error_code") is None
