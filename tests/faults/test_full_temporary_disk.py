"""A full disk of temporary files ends the run with the remedy; it is no fault of a film or a clip.

Before, the clips that did not fit were `cut_failed`, with exit code 0.
"""

import errno
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from curator.errors import ErrorCode, FullDiskError
from curator.executor.ray_backend import RayBackend
from curator.executor.ray_watch import RayWatch
from curator.executor.sandboxed_process import process_sandbox
from curator.executor.unit_worker import UnitWorker
from curator.records.sources import Failure
from curator.stage import Scope, Stage, StageConfig
from curator.storage import scratch


@dataclass(frozen=True)
class Item:
    """A clip whose file fits on a disk with `room_bytes` that count as free space, or more."""

    uri: str
    room_bytes: int

    @property
    def key(self) -> str:
        return self.uri


class Writing(Stage[StageConfig, Item, Any]):
    """Writes a temporary file for which there is no space."""

    name, version, scope = "writing", 1, Scope.CLIP
    sandboxed = True

    def process(self, unit: Item) -> str:
        scratch.ROOM_BYTES = unit.room_bytes
        if unit.room_bytes == 0:
            return "fits"
        with scratch.unnamed_file(".mp4"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def failed(self, unit: Item, failure: Failure) -> Failure:
        return failure


@pytest.mark.parametrize("sandboxed", [True, False])
def test_it_ends_the_run_and_not_the_clip(
    sandboxed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "ROOM_BYTES", 0)
    monkeypatch.setattr(Writing, "sandboxed", sandboxed)
    worker = UnitWorker(stage=Writing(StageConfig()))
    full, fits = Item(str(tmp_path), 1 << 62), Item(str(tmp_path), 0)
    words = f"{tempfile.gettempdir()}': no space left on its disk; .* set TMPDIR"
    try:
        assert worker([fits]).results == ["fits"]
        with pytest.raises(FullDiskError, match=words):
            worker([fits, full])
        assert worker([fits]).results == ["fits"]
    finally:
        process_sandbox().stop()


def test_a_film_cannot_end_the_run_with_the_same_number(tmp_path: Path) -> None:
    """Pins that the disk is looked at: FFmpeg gives the error of a full disk for other things."""
    worker = UnitWorker(stage=Writing(StageConfig()))
    try:
        (failure,) = worker([Item(str(tmp_path), 1)]).results
    finally:
        process_sandbox().stop()
    assert failure.code == ErrorCode.INTERNAL


def test_a_worker_of_ray_that_dies_over_a_full_disk_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pins one machine, whose workers write where the driver does. Films were `worker_died`."""
    import ray

    # The watch is asked nothing here; making one needs a cluster.
    watch = RayWatch.__new__(RayWatch)
    backends = [
        RayBackend(ray, watch, is_elastic=on, may_serve_again=False) for on in (False, True)
    ]
    died = ray.exceptions.RayActorError()
    assert [backend._lost(died).error for backend in backends] == [None, None]
    monkeypatch.setattr(scratch, "ROOM_BYTES", 1 << 62)
    alone, cluster = (backend._lost(died).error for backend in backends)
    assert isinstance(alone, FullDiskError)
    assert cluster is None
