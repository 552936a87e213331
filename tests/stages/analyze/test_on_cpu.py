"""What a source is whose GPU failed twice: measured on a CPU, with a note that says so."""

from fractions import Fraction
from pathlib import Path

import pytest
from film_makers import write_video
from film_shots import moving_texture

from curator.errors import DeviceMemoryError
from curator.executor.sandboxed_process import process_sandbox
from curator.executor.unit_worker import UnitWorker
from curator.records.sources import Note, SourceRef
from curator.records.tracks import Track
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.stage import Analyzed, AnalyzeStage
from curator.storage.source_reader import stat_source
from curator.tables.track_items import AnalyzeItem, HashItem, SourceItem

FAMILIES = frozenset({"frames", "signals"})


class FullAnalyzeStage(AnalyzeStage):
    """A GPU without memory."""

    def setup(self) -> None:
        if not self._is_on_gpu:
            super().setup()

    def process(self, unit: AnalyzeItem) -> Analyzed:
        if self._is_on_gpu and isinstance(unit, SourceItem):
            raise DeviceMemoryError("one frame does not fit")
        return super().process(unit)


@pytest.fixture
def source(tmp_path: Path) -> SourceRef:
    path = tmp_path / "film.mp4"
    write_video(path, moving_texture(50, seed=1), fps=Fraction(25))
    n_bytes, version = stat_source(str(path))
    return SourceRef(uri=str(path), n_bytes=n_bytes, version=version, source_id="film")


@pytest.mark.long
def test_a_source_that_no_gpu_holds_has_the_track_of_a_cpu(source: SourceRef) -> None:
    """Pins the same track but for a note, and the CPU-seconds of what measured it."""
    item = SourceItem(source=source, families=FAMILIES)
    full = UnitWorker(stage=FullAnalyzeStage(AnalyzeConfig(device="gpu"), families=FAMILIES))
    try:
        result = full([item])
        cpu = UnitWorker(stage=AnalyzeStage(AnalyzeConfig(device="cpu"), families=FAMILIES))
        expected = cpu([item]).results[0]
    finally:
        process_sandbox().stop()
    (track,) = result.results
    assert isinstance(track, Track)
    assert isinstance(expected, Track)
    assert track.notes == (*expected.notes, Note.NOT_ON_GPU_OUT_OF_MEMORY)
    assert track.luma_mean.tolist() == expected.luma_mean.tolist()
    assert result.counts["lost_gpu"] == 2
    assert result.cpu_s.keys() - {"start_up", "analyze", "between_units"}


@pytest.mark.usefixtures("unsandboxed")
def test_what_is_no_track_has_no_note(source: SourceRef) -> None:
    stage = AnalyzeStage(AnalyzeConfig(device="gpu"))
    on_cpu = stage.on_cpu(Note.NOT_ON_GPU_DEVICE_LOST)
    assert on_cpu is not None
    assert on_cpu.resources.gpus == 0
    assert on_cpu.process(HashItem(source=source)) == AnalyzeStage(
        AnalyzeConfig(device="cpu")
    ).process(HashItem(source=source))
    assert on_cpu.on_cpu(Note.NOT_ON_GPU_DEVICE_LOST) is None


def test_flow_of_the_gpus_engine_has_no_other_place() -> None:
    """Pins that no CPU measures what only a GPU can, and that all sandboxes are locked."""
    stage = AnalyzeStage(AnalyzeConfig(device="gpu", flow="hardware"))
    assert stage.on_cpu(Note.NOT_ON_GPU_DEVICE_LOST) is None
    assert stage.locks
