"""The numbers of a run: what they are read from, how they are served, and who asks for which."""

import importlib
import io
import json
import re
import socket
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from curator.cli import main
from curator.errors import UsageError
from curator.executor.end_time import Expected
from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.executor.ray_cluster import RayCluster
from curator.installation import install_extra
from curator.runs.commit_run import clip_outcomes
from curator.runs.run_context import RunLog
from curator.storage import open_store
from curator.storage.base import TRAFFIC
from curator.tools.commands.arguments import EXIT_USAGE
from curator.tools.telemetry import run_metrics
from curator.tools.telemetry.run_metrics import served
from tests.made_clips import clip_rows

INFRA = Path(__file__).parents[3] / "infra"
RULES = INFRA / "prometheus" / "alerts.yml"
DASHBOARD = INFRA / "grafana" / "curate.json"
NVIDIA_SMI = "0, 37, 80, 0, 1024\n1, 0, 0, 5, 3\n"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture
def log() -> RunLog:
    """In the middle of analysis."""
    progress = Progress(io.StringIO(), live=False)
    progress.expect(Expected(seconds={"analyze": 9.0, "cut": 3.0}), ())
    progress.sources(9)
    progress.stage("scan")
    progress.stage("analyze")
    progress.work(8, 60.0)
    with progress.polling(lambda: (2, 15.0)):
        while progress.state()["left_s"] is None:
            time.sleep(0.01)
    sources = {"done": 3, "failed": 1, "video_s": 21.5}
    clips = {("kept", ""): (4, 20.0), ("rejected", "too_dark"): (1, 5.0)}
    return RunLog(progress=progress, sources=sources, clips=clips)


@pytest.fixture
def engine() -> Engine:
    engine = Engine(address=None, workers=1)
    engine.cpu_s.update(decode=12.5)  # type: ignore[call-overload]
    engine.counts.traffic.update(source_bytes=7, requests=5, retries=1)
    engine.counts.deaths = 2
    engine.unit_times.add("analyze", "", time.time() - 4, time.time(), "1")
    return engine


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = SimpleNamespace(stdout=NVIDIA_SMI)
    monkeypatch.setattr(run_metrics.subprocess, "run", lambda *args, **options: answer)


def scraped(port: int) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by name and by those of labels in the order of their names; it is OpenMetrics."""
    address = f"http://127.0.0.1:{port}/metrics"
    asks = urllib.request.Request(address, headers={"Accept": "application/openmetrics-text"})
    with urllib.request.urlopen(asks) as answer:
        text = answer.read().decode()
    values: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return values


@pytest.mark.usefixtures("gpus")
def test_prometheus_reads_what_the_driver_counts(
    engine: Engine, log: RunLog, tmp_path: Path
) -> None:
    """Pins that every name that the dashboard and the rules ask for is served."""
    port = free_port()
    with served(("127.0.0.1", port), open_store(str(tmp_path)), 36.0) as watch:
        assert "curate_sources_total" not in scraped(port)
        watch(engine, log)
        values = scraped(port)
    assert log.is_watched
    assert values["curate_sources_total"] == {("done",): 3, ("failed",): 1}
    assert values["curate_clip_video_seconds"] == {("kept", ""): 20, ("rejected", "too_dark"): 5}
    assert values["curate_cpu_seconds_total"][("decode",)] == 12.5
    assert values["curate_cost_total"][()] >= 12.5 / 100
    assert values["curate_stage_items"] == {("analyze", "done"): 2, ("analyze", "waiting"): 6}
    video_s = {("analyze", "done"): 15, ("analyze", "waiting"): 45}
    assert values["curate_stage_video_seconds"] == video_s
    assert values["curate_stage_left_seconds"][("analyze",)] > 0
    assert values["curate_worker_busy_seconds_total"][("analyze",)] == pytest.approx(4, abs=0.1)
    assert values["curate_storage_requests_total"][()] == 5 + TRAFFIC["requests"]
    assert values["curate_worker_deaths_total"][()] == 2
    assert values["curate_gpu_utilization_ratio"][("decoder", "0")] == 0.8
    assert values["curate_gpu_memory_used_bytes"] == {("0",): 1 << 30, ("1",): 3 << 20}
    queries = [rule["expr"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        queries += [target["expr"].replace("${prefix}", "curate") for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"curate_\w+", query)}
    assert len(asked) > 25
    # Without workers there are no loads.
    assert asked - values.keys() == {"curate_stage_load"}


def test_reasons_of_users_stages_do_not_grow_without_bound(engine: Engine, log: RunLog) -> None:
    log.clips = {("rejected", f"own_{number:03}"): (1, 2.0) for number in range(200)}
    values = {name: value for name, _, _, value in run_metrics.run_numbers(engine, log, None)}
    assert len(values["curate_clips"]) == run_metrics.MAX_REASONS + 1
    assert values["curate_clips"]["rejected", "other"] == 200 - run_metrics.MAX_REASONS
    assert "curate_cost_total" not in values


def test_a_taken_port_or_a_missing_package_ends_a_run_before_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "film.mp4").write_bytes(b"")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = ["run", str(tmp_path / "film.mp4"), str(tmp_path / "out"), "--metrics", f"{port}"]
        assert main(run) == EXIT_USAGE
    assert f"--metrics 127.0.0.1:{port}: cannot listen there" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*"))

    def import_module(name: str) -> Any:  # noqa: ANN401
        raise ModuleNotFoundError(name, name=name)

    monkeypatch.setattr(importlib, "import_module", import_module)
    with (
        pytest.raises(UsageError, match=re.escape(install_extra("metrics"))),
        served(("127.0.0.1", 1), open_store(str(tmp_path)), None),
    ):
        pass


@pytest.mark.parametrize("text", ["0", "65536", "host", "host:", ":x"])
def test_a_place_that_is_none_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "a", "b", "--metrics", text])
    assert "expected PORT or HOST:PORT" in capsys.readouterr().err


def test_ray_gets_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []

    class Gauge:
        def __init__(self, name: str, *, description: str, tag_keys: tuple[str, ...]) -> None:
            self._name = name
            calls.append((name, description, tag_keys))

        def set(self, value: float, *, tags: dict[str, str]) -> None:
            calls.append((self._name, value, tags))

    from ray.util import metrics

    monkeypatch.setattr(metrics, "Gauge", Gauge)
    cluster = RayCluster(None, None)
    for value in (2.0, 5.0):
        cluster.publish([("a_total", "A", ("x",), {("1",): value}), ("b", "B", (), {(): value})])
    assert [call for call in calls if call[0] == "a_total"] == [
        ("a_total", "A", ("x",)),
        ("a_total", 2.0, {"x": "1"}),
        ("a_total", 5.0, {"x": "1"}),
    ]
    assert calls[-1] == ("b", 5.0, {})


def test_clips_are_counted_by_outcome() -> None:
    decided = [("kept", None), ("rejected", "too_dark"), ("kept", None)]
    rows = [
        {"clip_id": f"{n}", "decision": decision, "reason": reason, "start_s": 1.0, "end_s": 3.5}
        for n, (decision, reason) in enumerate(decided)
    ]
    expected = {("kept", ""): (2, 5.0), ("rejected", "too_dark"): (1, 2.5)}
    assert clip_outcomes(clip_rows(rows)) == expected


def test_requests_to_s3_are_counted(s3_bucket: str) -> None:
    store, before = open_store(f"s3://{s3_bucket}/out"), TRAFFIC.copy()
    store.write("a", b"x" * 1000)
    assert store.read("a") == b"x" * 1000
    # It has the length of the object, and no body.
    assert store.exists("a")
    moved = TRAFFIC - before
    assert moved["requests"] >= 3
    assert 1000 <= moved["sent_bytes"] < 2000
    assert 1000 <= moved["received_bytes"] < 2000
