"""Metrics of a run, for Prometheus and for Ray's agent on a cluster.

Metrics come from counts that the driver keeps in any case; docs/metrics.md describes each metric.
Names of counters end in `_total`.
"""

import importlib
import logging
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from curator import __version__
from curator.errors import UsageError
from curator.executor.cpu_accounting import cpu_profile
from curator.executor.engine import Engine
from curator.executor.ray_cluster import Number
from curator.installation import install_extra
from curator.runs.run_context import RunLog
from curator.storage import Store
from curator.storage.base import TRAFFIC

logger = logging.getLogger(__name__)

PUBLISH_S = 10.0
"""Time between updates of Ray's agent."""
MAX_REASONS = 64
"""Most pairs of decision and reason with a label of their own; further pairs share `other`."""
_GPU = "--query-gpu=index,utilization.gpu,utilization.decoder,utilization.encoder,memory.used"
_STAGE, _STATE, _REASON = ("stage",), ("stage", "state"), ("outcome", "reason")


@contextmanager
def served(
    address: tuple[str, int] | None, store: Store, core_hour_price: float | None
) -> Iterator[Callable[[Engine, RunLog], None]]:
    """Serves metrics during the block; yields the function that sets the run to watch.

    Args:
        address: Host and port; None to serve nothing.
        store: Output root.
        core_hour_price: Price of a core-hour; None to omit the cost.

    Raises:
        UsageError: The extra `metrics` is missing, or the address is not available.
    """
    if address is None:
        yield lambda engine, log: None
        return
    try:
        # The package is optional.
        client: Any = importlib.import_module("prometheus_client")
    except ImportError as error:
        raise UsageError(
            f"--metrics needs prometheus-client: {install_extra('metrics')}"
        ) from error
    collector, registry = _Collector(store, core_hour_price), client.CollectorRegistry()
    registry.register(collector)
    host, port = address
    try:
        server, _ = client.start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        why = f"cannot listen there ({error.strerror or error})"
        raise UsageError(f"--metrics {host}:{port}: {why}; choose another port") from error
    stop = threading.Event()
    threading.Thread(target=collector.publish, args=(stop,), name="metrics", daemon=True).start()
    try:
        yield collector.watch
    finally:
        stop.set()
        server.shutdown()
        server.server_close()


class _Collector:
    """Computes the metrics at each request."""

    def __init__(self, store: Store, core_hour_price: float | None) -> None:
        self._store, self._price, self._begun_s = store, core_hour_price, time.time()
        self._watched: tuple[Engine, RunLog] | None = None

    def watch(self, engine: Engine, log: RunLog) -> None:
        """Sets the run to watch, which replaces an earlier one."""
        log.is_watched = True
        self._watched = engine, log

    def collect(self) -> Iterator[Any]:
        """Yields the metric families of prometheus-client."""
        core: Any = importlib.import_module("prometheus_client.core")
        numbers = list(machine_numbers(self._store, self._begun_s))
        if self._watched is not None:
            numbers += run_numbers(*self._watched, self._price)
        for name, about, labels, values in numbers:
            kind = f"{'Counter' if name.endswith('_total') else 'Gauge'}MetricFamily"
            family = getattr(core, kind)(name, about, labels=labels)
            for key, value in values.items():
                family.add_metric(key, value)
            yield family

    def publish(self, stop: threading.Event) -> None:
        """Publishes the metrics to this node's Ray agent, if the run joined a cluster."""
        while not stop.wait(PUBLISH_S):
            # An error of monitoring must not end the run.
            with suppress(Exception):
                if self._watched is not None and self._watched[0].joins:
                    self._watched[0].publish(run_numbers(*self._watched, self._price))


def run_numbers(engine: Engine, log: RunLog, core_hour_price: float | None) -> Iterator[Number]:
    """Yields the present metrics of a run."""
    cpu_s = {(part,): seconds for part, seconds in cpu_profile(engine.cpu_s).items()}
    total_s = cpu_s.pop(("total",))
    yield "curate_cpu_seconds_total", "CPU-seconds, as in summary.json.", ("part",), cpu_s
    if core_hour_price is not None:
        cost = {(): total_s / 3600 * core_hour_price}
        yield "curate_cost_total", "CPU-hours at the given price.", (), cost
    sources = {(outcome,): log.sources[outcome] for outcome in ("done", "failed")}
    yield "curate_sources_total", "Sources so far.", ("outcome",), sources
    clips, clips_s = Counter[tuple[str, str]](), dict[tuple[str, str], float]()
    for number, ((decision, reason), (n_clips, seconds)) in enumerate(sorted(log.clips.items())):
        key = decision, reason if number < MAX_REASONS else "other"
        clips[key] += n_clips
        clips_s[key] = clips_s.get(key, 0.0) + seconds
    yield "curate_clips", "Clips by what is decided so far.", _REASON, clips
    yield "curate_clip_video_seconds", "Video of these clips.", _REASON, clips_s
    yield from _about_stages(engine, log)
    counts = engine.counts
    # The copies are atomic: other threads add to both counters.
    moved = Counter(dict(counts.traffic))
    moved.update(dict(TRAFFIC))
    for name, about, value in (
        ("source_video_seconds_total", "Video of sources that are done.", log.sources["video_s"]),
        ("source_read_bytes_total", "Bytes of sources that were read.", moved["source_bytes"]),
        ("storage_requests_total", "Requests to S3.", moved["requests"]),
        ("storage_retries_total", "Requests to S3 that were sent again.", moved["retries"]),
        ("storage_received_bytes_total", "Bytes from S3.", moved["received_bytes"]),
        ("storage_sent_bytes_total", "Bytes to S3 or to a folder.", moved["sent_bytes"]),
        ("worker_deaths_total", "Worker processes that died.", counts.deaths),
        ("lost_nodes_total", "Nodes that were lost.", engine.nodes_lost()),
        ("repeated_units_total", "Units begun again after a death.", counts.repeated_units),
        ("idle_seconds", "Seconds since the last sign of progress.", engine.heartbeat.idle_s()),
    ):
        yield f"curate_{name}", about, (), {(): value}


def _about_stages(engine: Engine, log: RunLog) -> Iterator[Number]:
    state = log.progress.state()
    yield "curate_listed_sources", "Sources of the run.", (), {(): state["sources"] or 0}
    stage, seconds = state["stage"], Counter(state["ended_s"])
    if stage is not None:
        seconds[stage] += state["stage_s"]
        n_left = state["items"] - state["done"]
        items = {(stage, "done"): state["done"], (stage, "waiting"): n_left}
        yield "curate_stage_items", "Items of the stage that runs.", _STATE, items
        waiting_s = max(0.0, state["video_s"] - state["done_s"])
        video_s = {(stage, "done"): state["done_s"], (stage, "waiting"): waiting_s}
        yield "curate_stage_video_seconds", "Video of these items.", _STATE, video_s
    wall_s = {(stage,): value for stage, value in seconds.items()}
    yield "curate_stage_seconds_total", "Wall time.", _STAGE, wall_s
    left_s = {(stage,): value for stage, value in (state["left_s"] or {}).items()}
    yield "curate_stage_left_seconds", "Time that is left, as far as known.", _STAGE, left_s
    yield "curate_stage_load", "Waiting units, and workers.", _STATE, engine.loads()
    units, busy_s = engine.unit_times.by_stage()
    yield "curate_units_total", "Units that workers finished.", _STAGE, units
    yield "curate_worker_busy_seconds_total", "Time of workers in these units.", _STAGE, busy_s


def machine_numbers(store: Store, begun_s: float) -> Iterator[Number]:
    """Yields the version, the start of the run, and the driver's free disk space and GPU use."""
    yield "curate_build_info", "Version of curate.", ("version",), {(__version__,): 1}
    yield "curate_run_start_time_seconds", "Unix time of the start.", (), {(): begun_s}
    # The folder may not exist before the first run.
    with suppress(FileNotFoundError):
        if store.is_local:
            free = {(): shutil.disk_usage(store.uri).free}
            yield "curate_out_free_bytes", "Free bytes where OUT is.", (), free
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        command = ["nvidia-smi", _GPU, "--format=csv,noheader,nounits"]
        text = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
        gpus = [line.split(", ") for line in text.splitlines()]
        engines = "compute", "decoder", "encoder"
        use = {(gpu, engine): int(percent) / 100 for gpu, *percents, _ in gpus
               for engine, percent in zip(engines, percents, strict=True)}  # fmt: skip
        yield "curate_gpu_utilization_ratio", "Use of this machine's GPUs.", ("gpu", "engine"), use
        used = {(gpu,): int(mib) << 20 for gpu, *_, mib in gpus}
        yield "curate_gpu_memory_used_bytes", "Their memory in use, by all.", ("gpu",), used
