"""Where the driver of the analysis lets sources be decoded."""

import importlib.util
import io
from pathlib import Path

import pytest

from curator.errors import UsageError
from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.executor.worker import Step
from curator.records.sources import SourceRef
from curator.report.funnel import format_funnel
from curator.stage import Resources
from curator.stages.analyze import device_choice
from curator.stages.analyze.analysis_driver import Analyzing
from curator.stages.analyze.config import AnalyzeConfig
from curator.storage import open_store

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
        open_store(str(tmp_path)), config, engine, Progress(io.StringIO(), live=False)
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
    monkeypatch.setattr(device_choice, "nvdec_refusal", lambda: "the driver is too old; update it")
    engine = Engine(address=None, workers=1)
    monkeypatch.setattr(engine, "run", lambda *_, **more: iter(()))
    config = AnalyzeConfig.model_validate({"device": device})
    return engine, Analyzing(
        open_store(str(out)), config, engine, Progress(io.StringIO(), live=False)
    )


SOURCE = SourceRef(uri="a.mp4", n_bytes=1, version="1", source_id="a")


def test_a_gpu_that_cannot_be_used_is_counted_and_the_cpu_decodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins that it is found before a worker fails, and that the fall-back is said."""
    engine, analyzing = with_gpu(monkeypatch, "auto", tmp_path)
    analyzing.run([SOURCE], NEXT, print)
    words = "analyze: the driver is too old; update it"
    assert engine.facts() == {"cpu_instead_of_gpu": {words: 1}}
    assert words in caplog.text


def test_a_recipe_that_requires_a_gpu_ends_where_none_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, analyzing = with_gpu(monkeypatch, "gpu", tmp_path)
    with pytest.raises(UsageError, match=r"analyze\.device is gpu, and the driver is too old"):
        analyzing.run([SOURCE], NEXT, print)


def test_the_end_of_a_run_names_nodes_whose_gpus_were_not_used() -> None:
    engine = Engine(address=None, workers=1)
    engine.counts.workers = 3
    engine.counts.refusals = {"gpu 10.0.0.7": "NVDEC does not answer", "gpu 10.0.0.8": "no torch"}
    shown = "  nodes refused                   2  such as gpu 10.0.0.7: NVDEC does not answer"
    assert shown in format_funnel(engine.facts())
