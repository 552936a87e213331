"""A worker of annotators: what one clip, one stage and one device cost the others."""

import io
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import software_cuda
import torch
from captioned import work_here

from curator import annotator_worker
from curator.annotator_worker import AnnotatorWorker, ClipResult, ClipWork
from curator.errors import StorageError
from curator.executor import cpu_accounting
from curator.executor.child_process import Child
from curator.executor.cpu_accounting import CpuClock
from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.executor.unit_worker import UnitResult
from curator.executor.worker import chain_name
from curator.family import Array, Family, Scope, Windows
from curator.records.cuts import SampledFrames
from curator.sample_frames import ClipToSample
from curator.scheduler import Scheduler
from curator.stage import (
    Annotator,
    ClipFacts,
    FrameRequest,
    Resources,
    SampledClip,
    Stage,
    StageConfig,
)
from curator.storage.local_store import LocalStore
from curator.tables.clip_locations import Location, located_bytes
from curator.tables.family_store import FamilyStore
from curator.tables.track_signals import SignalParts

SIDE_PX = 8


def family(name: str) -> Family:
    return Family(name, Scope.CLIP, Array("f64", ("t",)), member=f"{name}.npy")


class Means(Annotator[StageConfig]):
    """Brightness of each frame."""

    name, version, batch = "means", 1, 3
    families = (family("means"),)
    frames = (FrameRequest(size=(SIDE_PX, SIDE_PX)),)
    kinds = (Resources(cpus=2, gpus=0.75, memory_bytes=100),)

    def process(self, unit: Sequence[SampledClip]) -> list[np.ndarray[Any, Any]]:
        return [clip.frames.mean(axis=(1, 2, 3)) for clip in unit]


def every_other(clip: ClipFacts) -> list[int]:
    if clip.clip_id == "b":
        raise LookupError("no such list")
    return list(range(0, clip.n_frames, 2))


class Others(Means):
    """Of every other frame, which clip b has not."""

    name = "others"
    families = (family("others"),)
    frames = (FrameRequest(at=every_other, size=(SIDE_PX, SIDE_PX)),)
    kinds = (Resources(gpus=0.5, memory_bytes=10),)


class Decode(Stage[StageConfig, ClipToSample, SampledFrames]):
    """Frames whose value is their number."""

    name, version, scope = "decode", 1, Scope.CLIP

    def __init__(self) -> None:
        super().__init__(StageConfig())
        self.n_bytes: list[int] = []

    def process(self, unit: ClipToSample) -> SampledFrames:
        self.n_bytes.append(sum(one.n_bytes for one in unit.wanted))
        shape = (SIDE_PX, SIDE_PX, 3)
        return SampledFrames(
            pixels=tuple(
                np.stack([np.full(shape, number, np.uint8) for number in one.numbers])
                for one in unit.wanted
            )
        )


def works(n_stages: int) -> list[ClipWork]:
    return [
        ClipWork(
            number=number,
            facts=ClipFacts(
                clip_id=name, source_id="s", n_frames=4, fps=Fraction(30), width=160, height=120,
                columns={},
            ),
            mp4_sha256="0" * 64,
            where=Location(name="clip", offset=0, n_bytes=3),
            keys={own: f"{name}-{own}" for own in range(n_stages)},
        )
        for number, name in enumerate("abc")
    ]  # fmt: skip


class Worked:
    """What a worker makes of three clips of four frames."""

    def __init__(self, folder: Path, stages: Sequence[Annotator[Any]], *, has_gpu: bool) -> None:
        store = LocalStore(str(folder))
        store.write("clip", b"mp4")
        self.families = FamilyStore(store)
        self.decode = Decode()
        self._worker = AnnotatorWorker(
            stages=stages, decode=self.decode, store=self.families, has_gpu=has_gpu
        )
        self.units: list[UnitResult[list[ClipResult]]] = []
        waiting = works(len(stages))
        while waiting:
            self.units.append(self._worker(waiting))
            waiting = list(self.units[-1].not_begun)
        self.results = {result.clip_id: result for unit in self.units for result in unit.results}


def test_a_request_that_fails_fails_its_own_stage_and_clip(tmp_path: Path) -> None:
    worked = Worked(tmp_path, [Means(StageConfig()), Others(StageConfig())], has_gpu=False)
    errors = {name: dict(result.errors) for name, result in worked.results.items()}
    assert errors["a"] == errors["c"] == {}
    assert list(errors["b"]) == [1]
    assert errors["b"][1].startswith("LookupError: no such list")
    assert [len(worked.results[name].members) for name in "abc"] == [2, 1, 2]
    assert len(worked.decode.n_bytes) == 3, "both stages share a decode"


def test_each_stage_has_its_own_cpu_seconds_and_all_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins also that the shared decode has its own seconds, and a stage those of its `setup`."""
    clock = 0.0

    def spend(seconds: float) -> None:
        nonlocal clock
        clock += seconds

    class Costly(Means):
        setup_s, clip_s = 100.0, 1.0

        def setup(self) -> None:
            spend(self.setup_s)

        def process(self, unit: Sequence[SampledClip]) -> list[np.ndarray[Any, Any]]:
            spend(self.clip_s * len(unit))
            return super().process(unit)

    class Cheaper(Costly):
        name = "cheaper"
        families = (family("cheaper"),)
        setup_s, clip_s = 10.0, 0.25

    class SlowDecode(Decode):
        def process(self, unit: ClipToSample) -> SampledFrames:
            spend(7.0)
            return super().process(unit)

    monkeypatch.setattr(cpu_accounting, "_own_cpu_s", lambda: clock)
    monkeypatch.setattr(CpuClock, "_of_process", None)
    store = LocalStore(str(tmp_path))
    store.write("clip", b"mp4")
    worker = AnnotatorWorker(
        stages=[Costly(StageConfig()), Cheaper(StageConfig())],
        decode=SlowDecode(),
        store=FamilyStore(store),
        has_gpu=False,
    )
    worker.prepare()
    spent = [Counter(worker(works(2)).cpu_s) for _ in range(2)]
    for cpu_s, loads in zip(spent, (1, 0), strict=True):
        own = {"means": 3 + 100 * loads, "cheaper": 0.75 + 10 * loads}
        assert +cpu_s == {**own, "decode": 21}
    assert sum(map(Counter.total, spent)) == clock


def test_frames_beyond_memory_are_decoded_by_stage_and_a_batch_holds_fewer_clips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = SIDE_PX * SIDE_PX * 3
    monkeypatch.setattr(annotator_worker, "MAX_BATCH_BYTES", 4 * frame)
    sizes: list[int] = []

    class Counted(Means):
        def process(self, unit: Sequence[SampledClip]) -> list[np.ndarray[Any, Any]]:
            sizes.append(len(unit))
            return super().process(unit)

    worked = Worked(tmp_path, [Counted(StageConfig()), Others(StageConfig())], has_gpu=False)
    # Clip b has no frames for the second stage, so it fits.
    assert worked.decode.n_bytes == [4 * frame, 2 * frame, 4 * frame, 4 * frame, 2 * frame]
    assert sizes == [1, 1, 1]
    assert [len(worked.results[name].members) for name in "abc"] == [2, 1, 2]
    # Frames of one clip beyond it fail the clip.
    monkeypatch.setattr(annotator_worker, "MAX_BATCH_BYTES", SIDE_PX)
    worked = Worked(tmp_path / "less", [Means(StageConfig())], has_gpu=False)
    assert all("request fewer frames" in result.errors[0] for result in worked.results.values())
    assert worked.decode.n_bytes == []


def test_values_are_stored_in_time_and_not_only_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins what a kill may cost: a part for each batch where batches take long."""
    monkeypatch.setattr(annotator_worker, "STORE_S", -1.0)

    class OneByOne(Means):
        batch = 1

    worked = Worked(tmp_path, [OneByOne(StageConfig())], has_gpu=False)
    places = {name: worked.results[name].members[0][0].where for name in "abc"}
    assert len({where.name for where in places.values()}) == 3
    assert [where.row for where in places.values()] == [0, 0, 0]
    assert [unit.n_items for unit in worked.units] == [1, 1, 1]


def test_a_unit_ends_between_clips_and_batches_do_not_depend_on_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stage `ByTwo` has two decodes of a clip where memory holds three windows."""
    sizes: list[int] = []

    class ByTwo(Means):
        batch, windows = 2, Windows(frames=1)
        families = (Family("means", Scope.CLIP, Array("f64", (1,)), member="means.safetensors"),)

        def process(self, unit: Sequence[SampledClip]) -> list[np.ndarray[Any, Any]]:
            sizes.append(len(unit))
            return [clip.frames.mean(keepdims=True)[0, 0, 0] for clip in unit]

    monkeypatch.setattr(annotator_worker, "MAX_BATCH_BYTES", 3 * SIDE_PX * SIDE_PX * 3)
    whole = Worked(tmp_path / "whole", [ByTwo(StageConfig())], has_gpu=False)
    assert [unit.n_items for unit in whole.units] == [3]
    of_whole, sizes[:] = list(sizes), []
    monkeypatch.setattr(annotator_worker, "STORE_S", -1.0)
    parts = Worked(tmp_path / "parts", [ByTwo(StageConfig())], has_gpu=False)
    assert [unit.n_items for unit in parts.units] == [1, 1, 1]
    assert sizes == of_whole == [2, 1, 1] * 3
    assert parts.results.keys() == whole.results.keys() == set("abc")


def test_storage_that_fails_is_no_fault_of_the_clips(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    worker = AnnotatorWorker(
        stages=[Means(StageConfig())], decode=Decode(), store=FamilyStore(store), has_gpu=False
    )
    with pytest.raises(StorageError, match="clip"):
        worker(works(1))


class Ended(BaseException):
    """The process ended."""


@pytest.mark.parametrize("number", [700, 999])
def test_a_lost_gpu_ends_the_process_and_fails_no_clip(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lost(Means):
        def process(self, unit: Sequence[SampledClip]) -> list[np.ndarray[Any, Any]]:
            error = RuntimeError("CUDA error: an illegal memory access was encountered")
            error.error_code = number  # type: ignore[attr-defined]
            raise error

    def end(status: int) -> None:
        assert status == 1
        raise Ended

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(Ended):
        Worked(tmp_path, [Lost(StageConfig())], has_gpu=True)
    failed = Worked(tmp_path / "cpu", [Lost(StageConfig())], has_gpu=False)
    assert all("illegal memory access" in result.errors[0] for result in failed.results.values())


def test_stages_of_one_worker_add_their_memory_and_shares_of_a_gpu() -> None:
    class Gpus:
        place: Mapping[str, str] = {}

        def may_have_gpus(self) -> bool:
            return True

    planner = Scheduler(None, Gpus(), None, signals=None, decode=None)  # type: ignore[arg-type]
    assert planner.resources_of([Means(StageConfig())]) == Resources(
        cpus=2, gpus=0.75, memory_bytes=100
    )

    class Halves(Others):
        kinds = (Resources(gpus=0.75, memory_bytes=10),)

    (together,) = planner._chains([Means(StageConfig()), Halves(StageConfig())])
    assert planner.resources_of(together) == Resources(cpus=2, gpus=1.0, memory_bytes=110)


def test_frames_of_a_worker_with_a_gpu_are_tensors_there_and_values_come_back(
    tmp_path: Path,
) -> None:
    seen: list[bool] = []

    class OnGpu(Means):
        families = (Family("means", Scope.CLIP, Array("f16", ("t",)), member="means.safetensors"),)
        frames = (FrameRequest(size=(SIDE_PX, SIDE_PX), device="gpu"),)

        def process(self, unit: Sequence[SampledClip]) -> list[Any]:
            seen.extend(clip.frames.is_cuda for clip in unit)
            return [clip.frames.float().mean(dim=(1, 2, 3)).half() for clip in unit]

    with software_cuda.installed():
        worked = Worked(tmp_path / "gpu", [OnGpu(StageConfig())], has_gpu=True)
    on_cpu = Worked(tmp_path / "cpu", [OnGpu(StageConfig())], has_gpu=False)
    assert seen == [True] * 3 + [False] * 3
    for made in (worked, on_cpu):
        for result in made.results.values():
            ((member,),) = result.members.values()
            data = located_bytes(made.families.store, member.where)
            assert member.version.family.decode(data).tolist() == [0, 1, 2, 3]


class Words(Annotator[StageConfig]):
    """The length of a clip's id; it looks at no frames."""

    name, version = "words", 1
    families = (family("words"),)
    frames = ()

    def process(self, unit: Sequence[SampledClip]) -> list[np.ndarray[Any, Any]]:
        return [np.array([float(len(clip.facts.clip_id))]) for clip in unit]


class More(Words):
    """The same under another name."""

    name = "more"
    families = (family("more"),)


class ThreeClips:
    """The clips of `works`."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> tuple[ClipFacts, str, Location]:
        work = works(1)[number]
        return work.facts, f"sha{number}", work.where

    def ids(self) -> pa.Array:
        return pa.array(list("abc"))


def test_cpu_seconds_are_those_of_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages that read columns of others come in a second call, whose seconds are added."""
    work_here(monkeypatch)
    scheduler = Scheduler(
        FamilyStore(LocalStore(str(tmp_path))),
        Engine(address=None, workers=1),
        Progress(io.StringIO(), live=False),
        signals=SignalParts(LocalStore(str(tmp_path)), tuple),
        decode=lambda threads: Decode(),
    )
    first = scheduler.annotate([Words(StageConfig())], ThreeClips())
    second = scheduler.annotate([More(StageConfig())], ThreeClips())
    assert (first.n_made["words"], second.n_made["more"]) == (3, 3)
    assert "words" in first.cpu_s
    assert "words" not in second.cpu_s


def test_the_progress_counts_the_clips_of_a_slow_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All clips are one unit of the child process."""
    monkeypatch.setattr(annotator_worker, "STORE_S", -1.0)
    engine, progress = Engine(address=None, workers=None), Progress(io.StringIO(), live=False)
    monkeypatch.setattr(Child, "run", lambda _, steps, units: engine._here(steps, units))
    seen: list[int] = []

    class OneByOne(Words):
        batch = 1

        def process(self, unit: Sequence[SampledClip]) -> list[np.ndarray[Any, Any]]:
            seen.append(engine.progress()[0])
            return super().process(unit)

    scheduler = Scheduler(
        FamilyStore(LocalStore(str(tmp_path))),
        engine,
        progress,
        signals=SignalParts(LocalStore(str(tmp_path)), tuple),
        decode=lambda threads: Decode(),
    )
    made = scheduler.annotate([OneByOne(StageConfig())], ThreeClips())
    assert seen == [0, 1, 2]
    assert made.n_made["words"] == 3


def test_the_progress_names_all_stages_that_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_here(monkeypatch)
    lines: list[str] = []
    progress = Progress(io.StringIO(), live=False)
    scheduler = Scheduler(
        FamilyStore(LocalStore(str(tmp_path))),
        Engine(address=None, workers=1),
        progress,
        signals=SignalParts(LocalStore(str(tmp_path)), tuple),
        decode=lambda threads: Decode(),
    )

    class Told(More):
        def process(self, unit: Sequence[SampledClip]) -> list[np.ndarray[Any, Any]]:
            lines.append(progress.line())
            return super().process(unit)

    progress.stage("annotate")
    scheduler.annotate([Words(StageConfig()), Told(StageConfig())], ThreeClips())
    assert lines[0].startswith("annotate: words and more, 0 of 3 items")
    assert progress.state()["stages"] == ["words", "more"]


def test_times_and_places_are_of_all_stages_that_share_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that a stage with a place of its own shares no worker with the others."""

    class Third(Words):
        name = "third"
        families = (family("third"),)

    engine = Engine(address=None, workers=1, place={"third": "cpu_nodes"})
    places: dict[str, str | None] = {}

    def run(self: Engine, steps: Any, units: Any, **_: Any) -> Any:  # noqa: ANN401
        places[chain_name(steps)] = self._place_of(steps)
        return self.run_in_driver(steps, units)

    monkeypatch.setattr(Engine, "run", run)
    store = LocalStore(str(tmp_path))
    scheduler = Scheduler(
        FamilyStore(store),
        engine,
        Progress(io.StringIO(), live=False),
        signals=SignalParts(store, tuple),
        decode=lambda threads: Decode(),
    )
    scheduler.annotate([one(StageConfig()) for one in (Words, Third, More)], ThreeClips())
    assert places == {"words+more": None, "third": "cpu_nodes"}
    assert [row["stage"] for row in engine.facts()["unit_times"]] == ["words+more", "third"]
    engine.place = {"more": "disks", "words": "disks", "third": "disks"}
    scheduler = Scheduler(
        FamilyStore(LocalStore(str(tmp_path / "other"))),
        engine,
        Progress(io.StringIO(), live=False),
        signals=SignalParts(store, tuple),
        decode=lambda threads: Decode(),
    )
    scheduler.annotate([one(StageConfig()) for one in (Words, Third, More)], ThreeClips())
    assert places["words+third+more"] == "disks"
