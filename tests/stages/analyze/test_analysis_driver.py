"""Where the driver of the analysis lets sources be decoded."""

import importlib.util
import io
from pathlib import Path
from typing import Any

import pytest
from samples import made_track

from curator.errors import ErrorCode, UsageError
from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.executor.worker import Step
from curator.records.sources import Failure, Note, SourceRef
from curator.stage import Resources
from curator.stages.analyze import gpu_engines
from curator.stages.analyze.analysis_driver import Analyzing
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.gpu_engines import CODECS, DEPTHS, GpuFacts
from curator.stages.analyze.stage import AnalyzeStage
from curator.storage import open_store
from curator.tables.track_items import SourceItem
from curator.tools.report.funnel import format_funnel

NEXT = Step(make=dict, resources=Resources())


@pytest.mark.parametrize(("n_gpus", "device"), [(1, "auto"), (1, "cpu"), (0, "auto")])
def test_a_gpu_that_is_left_idle_for_want_of_a_package_is_counted(
    n_gpus: int, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("curator.executor.engine.available_gpus", lambda: n_gpus)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    engine = Engine(address=None, workers=1)
    monkeypatch.setattr(engine, "run", lambda *_, **more: iter(()))
    config = AnalyzeConfig.model_validate({"device": device})
    analyzing = Analyzing(
        open_store(str(tmp_path)), AnalyzeStage(config), engine, Progress(io.StringIO(), live=False)
    )
    sources = [SourceRef(uri=f"{n}.mp4", n_bytes=1, version="1", source_id=f"{n}") for n in "ab"]
    analyzing.run(sources, NEXT, print)
    counted = {"analyze: PyNvVideoCodec is not installed": 2}
    expected = {"cpu_instead_of_gpu": counted} if (n_gpus, device) == (1, "auto") else {}
    assert engine.facts() == expected
    shown = "  by a CPU, not a GPU             2  analyze: PyNvVideoCodec is not installed"
    assert (shown in format_funnel(engine.facts())) == bool(expected)


def with_gpu(monkeypatch: pytest.MonkeyPatch, device: str, out: Path) -> tuple[Engine, Analyzing]:
    """An engine of a machine with a GPU whose driver is too old, and the analysis there."""
    monkeypatch.setattr("curator.executor.engine.available_gpus", lambda: 1)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(gpu_engines, "nvdec_refusal", lambda: "the driver is too old; update it")
    engine = Engine(address=None, workers=1)
    monkeypatch.setattr(engine, "run", lambda *_, **more: iter(()))
    config = AnalyzeConfig.model_validate({"device": device})
    return engine, Analyzing(
        open_store(str(out)), AnalyzeStage(config), engine, Progress(io.StringIO(), live=False)
    )


SOURCE = SourceRef(uri="a.mp4", n_bytes=1, version="1", source_id="a")


def test_a_gpu_that_cannot_be_used_is_counted_or_ends_a_run_that_requires_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Pins that it is found before a worker fails, and that the fall-back is said.
    engine, analyzing = with_gpu(monkeypatch, "auto", tmp_path)
    analyzing.run([SOURCE], NEXT, print)
    words = "analyze: the driver is too old; update it"
    assert engine.facts() == {"cpu_instead_of_gpu": {words: 1}}
    assert words in caplog.text
    # A recipe that requires a gpu ends where none can be used.
    _, analyzing = with_gpu(monkeypatch, "gpu", tmp_path)
    with pytest.raises(UsageError, match=r"analyze\.device is gpu, and the driver is too old"):
        analyzing.run([SOURCE], NEXT, print)
    # The end of a run names nodes whose gpus were not used.
    engine = Engine(address=None, workers=1)
    engine.counts.workers = 3
    engine.counts.refusals = {"gpu 10.0.0.7": "NVDEC does not answer", "gpu 10.0.0.8": "no torch"}
    shown = "  nodes refused                   2  such as gpu 10.0.0.7: NVDEC does not answer"
    assert shown in format_funnel(engine.facts())


A100 = GpuFacts(
    n_engines=5,
    free_bytes=80 << 30,
    caps={
        f"{codec} {bits}": {"supported": int(codec != "AV1")} for codec in CODECS for bits in DEPTHS
    },
)


class OneGpu(Engine):
    """A machine of 16 cores with a GPU; notes what workers are to run, and runs nothing."""

    ran: dict[str, Any]

    def run(self, steps: Any, units: Any, **options: Any) -> Any:  # noqa: ANN401
        if options["placement"] != "driver":
            self.ran = {"steps": steps, "units": units, **options}
        return iter(())


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> OneGpu:
    monkeypatch.setattr("curator.executor.engine.available_gpus", lambda: 1)
    monkeypatch.setattr("curator.executor.engine.available_cpus", lambda: 16)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: "found")
    monkeypatch.setattr(gpu_engines, "ask", lambda: A100)
    monkeypatch.setattr(gpu_engines, "nvdec_refusal", lambda: None)
    return OneGpu(address=None, workers=16)


def source(name: str, seconds: float, codec: str = "h264") -> SourceRef:
    return SourceRef(
        uri=f"{name}.mp4", n_bytes=1, version="1", source_id=name, header_duration_s=seconds,
        codec=codec, pixel_format="yuv420p", width=1920, height=1080,
    )  # fmt: skip


def ran(engine: OneGpu, folder: Path, sources: list[SourceRef], **settings: object) -> Any:  # noqa: ANN401
    config = AnalyzeConfig.model_validate(settings)
    progress = Progress(io.StringIO(), live=False)
    Analyzing(open_store(str(folder)), AnalyzeStage(config), engine, progress).run(
        sources, NEXT, print
    )
    return engine.ran


FILMS = [source("a", 60), source("b", 90)]
OTHERS = [source("av1", 50, "av1"), source("short", 1.5), source("long av1", 70, "av1")]


def test_what_holds_an_engine_for_nothing_comes_last_and_cpus_begin_with_the_longest(
    engine: OneGpu, tmp_path: Path
) -> None:
    found = ran(engine, tmp_path, [*OTHERS, *FILMS])
    names = [item.source.source_id for unit in found["units"] for item in unit]
    assert names == ["b", "a", "short", "av1", "long av1"]
    on_gpu, on_cpu = (
        chain[0].settings["stage"] for chain in (found["steps"], found["without_gpu"])
    )
    assert (on_gpu.config.device, on_cpu.config.device) == ("gpu", "cpu")
    assert on_gpu.resources.gpus == 1 / 10
    assert on_cpu.resources.gpus == 0


@pytest.mark.parametrize(
    ("sources", "settings"),
    [(FILMS, {}), ([*FILMS, *OTHERS], {"device": "gpu"}), ([*FILMS, *OTHERS], {"device": "cpu"})],
    ids=["films", "gpu", "cpu"],
)
def test_one_kind_of_worker_analyzes_where_the_other_is_not_needed_or_not_wanted(
    sources: list[SourceRef], settings: dict[str, str], engine: OneGpu, tmp_path: Path
) -> None:
    found = ran(engine, tmp_path, sources, **settings)
    assert found["without_gpu"] is None
    assert found["steps"][0].settings["stage"].config.device == settings.get("device", "gpu")


def test_a_recipe_may_say_how_many_workers_share_a_gpu(engine: OneGpu, tmp_path: Path) -> None:
    found = ran(engine, tmp_path, FILMS, workers_per_gpu=3)
    assert found["steps"][0].resources.gpus == 1 / 3


def test_small_work_does_not_wait_for_what_a_gpu_says(
    engine: OneGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask() -> GpuFacts:
        raise AssertionError

    monkeypatch.setattr(gpu_engines, "ask", ask)
    monkeypatch.setattr(engine, "_workers", None)
    found = ran(engine, tmp_path, [source("a", 20)])
    assert found["placement"] == "child"
    assert found["steps"][0].settings["stage"].config.device == "gpu"


def test_a_cpu_notes_what_the_engine_would_have_refused(engine: OneGpu, tmp_path: Path) -> None:
    found = ran(engine, tmp_path, [*OTHERS, *FILMS])
    on_gpu, on_cpu = (chain[0].settings["keep"] for chain in (found["steps"], found["without_gpu"]))
    track = made_track(notes=(Note.TRUNCATED,))
    failure = Failure(uri="av1.mp4", stage="analyze", code=ErrorCode.NO_FRAMES, message="none")

    def notes(keep: Any, of: SourceRef) -> list[Any]:  # noqa: ANN401
        items = [SourceItem(source=of, families=frozenset())] * 2
        kept = keep.func(lambda _, results: results, *keep.args[1:], items, [track, failure])
        assert kept[1] is failure
        return list(kept[0].notes)

    assert notes(on_cpu, OTHERS[0]) == [Note.TRUNCATED, Note.NOT_ON_GPU_CODEC]
    assert notes(on_gpu, OTHERS[0]) == notes(on_cpu, FILMS[0]) == [Note.TRUNCATED]
