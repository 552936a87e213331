"""Estimates the time and cost of a run on kinds of machines, from a run of a sample of its sources.

docs/plan.md explains the model and its assumptions.
"""

import resource
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from curator.errors import UsageError
from curator.executor.engine import Engine
from curator.executor.unit_worker import UnitResult
from curator.pipeline import Graph, graph_of
from curator.recipe import Recipe, with_changes
from curator.records.clips import SPANNED
from curator.records.sources import FULL_HD
from curator.runs.curation import Run
from curator.stage import Phase, Stage
from curator.storage import open_store
from curator.storage.range_reader import BLOCK_BYTES
from curator.storage.source_manifests import SPAN_COLUMNS
from curator.strict_yaml import StrictYamlError, load_yaml
from curator.tables.candidate_store import ProposedUnit
from curator.tables.checksums import read_parquet
from curator.tables.snapshot_store import FORMAT
from curator.tables.source_metadata import SourceMetadata
from curator.tables.track_parts import TRACKS, AnalyzedUnit
from curator.tools.planning.extrapolation import (
    CLIPS_DIFFER,
    Estimate,
    Extrapolation,
    Floats,
    PlanSample,
    estimate,
)
from curator.value_errors import explain

DRIVER_S_PER_CLIP, SHOWN_S_PER_CLIP, SHOWN_CLIPS = 5e-5, 0.02, 100
"""CPU-seconds of the driver per candidate (benchmarks/results/corpus.md), and further CPU-seconds
for each of the first `SHOWN_CLIPS` candidates, which the report shows."""
ENGINE_GROWS = 0.4
"""Share of the CPU-seconds of Ray's own processes that grows with the corpus."""
RAY_START_UP_S, RAY_S = 3.0, 2.0
"""CPU-seconds of starting workers, and of Ray itself, if only the cut needs Ray."""
CUT_FRAMES = 3.0
"""Weight of a kept frame relative to a source frame, to decide whether the cut is small work."""
LEAST_SHARE = 0.1
"""Duplicates in other sources are extrapolated as if the sample had at least this share."""
REQUESTS_PER_SOURCE = 4
BUSY_SHARE = 0.9
"""Share of the time in which workers are busy, because units do not all end at once."""
COUNTED = "candidates", "kept", "elsewhere", "kept_s", "kept_bytes", "encoded", "copied", "frames"
"""Counts of a source's clips. `elsewhere` are duplicates of clips of other sources; `kept` includes
these. `copied` counts clips; `encoded` and `frames` count frames, in units of 1080p frames."""
_CLIP_COLUMNS = [
    "clip_id", "source_uri", "decision", "duplicate_of", "start_s", "end_s", "n_frames", "width",
    "height", "cut_mode", "mp4_bytes",
]  # fmt: skip


class MachineKind(BaseModel):
    """A kind of machine. docs/plan.md explains the keys. Prices are in any currency."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    cpus: float = Field(gt=0)
    gpus: float = Field(0, ge=0)
    memory_gb: float | None = Field(None, gt=0)
    count: int = Field(1, ge=1)
    price_per_hour: float | None = Field(None, ge=0)
    speed: float = Field(1.0, gt=0)
    gpu_speed: float = Field(1.0, gt=0)
    price_per_1000_requests: float = Field(0.0, ge=0)
    price_per_gb: float = Field(0.0, ge=0)


def read_machines(path: str) -> list[MachineKind]:
    """Reads a YAML or JSON list of machines.

    Raises:
        UsageError: The file cannot be read, or a key is wrong. The message names machine and key.
    """
    try:
        rows = load_yaml(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, StrictYamlError) as error:
        raise UsageError(f"--machines {path!r} cannot be read: {error}") from error
    if not isinstance(rows, list) or not rows:
        raise UsageError(f"--machines {path!r}: expected a list of machines, each with name, cpus")
    kinds = []
    for number, row in enumerate(rows, 1):
        try:
            kinds.append(MachineKind.model_validate(row))
        except ValidationError as error:
            location, why = explain(error, MachineKind)
            what = ": ".join([*location, why])
            raise UsageError(f"--machines {path!r}, machine {number}: {what}") from error
    return kinds


def cost(kind: MachineKind, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Returns hours, memory and cost of a plan on a kind of machine, or why it cannot run there."""
    workers, gpu_s = int(max(1, kind.cpus)), plan["gpu_s"] or 0.0
    if kind.memory_gb is not None:
        free_bytes = kind.memory_gb * 1e9 - plan["driver_bytes"]
        workers = min(workers, int(free_bytes // plan["worker_bytes"]))
    row: dict[str, Any] = {"name": kind.name, "machines": kind.count, "workers": workers}
    if workers < 1:
        return row | {"problem": "too little memory for a worker"}
    if gpu_s and not kind.gpus:
        return row | {"problem": "has no GPU, and the sample ran on one"}
    cores = kind.count * min(workers, kind.cpus) * kind.speed * BUSY_SHARE
    gpus = kind.count * kind.gpus * kind.gpu_speed * BUSY_SHARE
    on_gpu_s = gpu_s / gpus if gpu_s else 0.0
    serial_s = plan["cpu_s_by_part"]["driver"] / kind.speed
    hours = {
        end: (max(cpu_s / cores, on_gpu_s) + serial_s) / 3600
        for end, cpu_s in plan["cpu_s"].items()
    }
    n_bytes = plan["driver_bytes"] + workers * plan["worker_bytes"]
    row |= {"hours": hours, "memory_bytes": n_bytes}
    if kind.price_per_hour is not None:
        s3, per_hour = plan["s3"], kind.price_per_hour * kind.count
        moved = kind.price_per_1000_requests * (s3["requests_from"] + s3["requests_to"]) / 1000
        moved += kind.price_per_gb * (s3["bytes_from"] + s3["bytes_to"]) / 1e9
        row["money"] = {end: per_hour * number + moved for end, number in hours.items()}
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRun:
    """Measurements of the run of a sample.

    Attributes:
        summary: Contents of `summary.json`.
        wall_s: Wall time of the run, with the start of the engine.
        units: Source URIs of each unit of the analysis, and the unit's CPU-seconds by part.
        clips: Rows of `clips`.
        objects: Size of each object of the output, in bytes.
        reused_s: CPU-seconds of the analysis, if the run of the corpus uses its results; else 0.
    """

    summary: Mapping[str, Any]
    wall_s: float
    units: Sequence[tuple[Sequence[str], Mapping[str, float]]]
    clips: Sequence[Mapping[str, Any]]
    objects: Sequence[int]
    reused_s: float = 0.0


def _manifest_of(metadata: SourceMetadata, sample: PlanSample) -> pa.Table:
    """Returns the sampled sources with their metadata, and a row for each of their spans."""
    rows = [
        {"uri": source.uri} | (dict.fromkeys(SPANNED) if span is None else span.columns())
        for source in map(sample.sources.__getitem__, sample.chosen.tolist())
        for span in source.spans or (None,)
    ]
    table = pa.Table.from_pylist(
        rows, pa.schema([("uri", pa.string()), *((name, pa.float64()) for name in SPANNED)])
    )
    table = metadata.joined(table, "uri")
    has_spans = table[SPANNED[0]].null_count < table.num_rows
    renamed = dict(zip(SPANNED, SPAN_COLUMNS, strict=True))
    return table.rename_columns(renamed) if has_spans else table.drop_columns(SPANNED)


def run_sample(run: Run, sample: PlanSample, workers: int | None) -> SampleRun:
    """Runs a sample of the sources of a run into a temporary folder.

    The measurements go to the output of the run, where no removed footage could come back.
    """
    units: list[tuple[Sequence[str], Mapping[str, float]]] = []

    def observe(result: UnitResult[Any]) -> None:
        made = result.results
        if isinstance(made, ProposedUnit):
            units.append((made.sources["uri"].to_pylist(), dict(result.cpu_s)))
        elif isinstance(made, AnalyzedUnit):
            units.append(([done.source.uri for done in made.segments], dict(result.cpu_s)))

    recipe, begun_s = run.context.recipe, time.monotonic()
    if recipe.select.max_per_group is not None:
        most = max(1, round(recipe.select.max_per_group * sample.share))
        recipe = with_changes(recipe, [f"select.max_per_group={most}"])
    with (
        tempfile.TemporaryDirectory(prefix="plan-", ignore_cleanup_errors=True) as folder,
        Engine(address=None, workers=workers) as engine,
    ):
        engine.on_unit = observe
        manifest, store = f"{folder}/sample.parquet", open_store(f"{folder}/out")
        pq.write_table(_manifest_of(run.context.metadata, sample), manifest)
        whole = Run(store, recipe, engine, run.context.log.progress, check=run.context.check)
        summary = whole.execute([manifest], limit=None)
        parts = (read_parquet(store, name) for name in summary["tables"]["clips"])
        is_reused = run.context.removals.n_records == 0
        there = {info.key for info in run.context.store.list(f"{TRACKS}/")}
        for info in store.list(f"{TRACKS}/") if is_reused else ():
            if info.key not in there:
                run.context.check()
                run.context.store.write(info.key, store.read(info.key))
        return SampleRun(
            reused_s=is_reused * sum(_analysis_s(cpu_s) for _, cpu_s in units),
            summary=summary,
            wall_s=time.monotonic() - begun_s,
            units=units,
            clips=[row for part in parts for row in part.select(_CLIP_COLUMNS).to_pylist()],
            objects=[info.bytes for info in store.list()],
        )


def _analysis_s(cpu_s: Mapping[str, float]) -> float:
    return sum(seconds for name, seconds in cpu_s.items() if name != "start_up")


class Planner:
    """Extrapolates the run of a sample to its corpus."""

    def __init__(self, sample: PlanSample, run: SampleRun) -> None:
        self._sample, self._run, self._summary = sample, run, run.summary
        can_copy = run.summary["recipe"]["cut"]["mode"] == "auto"
        self._model = Extrapolation(sample, can_copy=can_copy)
        self._number = {uri: at for at, uri in enumerate(sample.uris)}
        self._clips = self._counted(run.clips)

    def plan(
        self, recipe: Recipe, kinds: Sequence[MachineKind], engine: Engine, *, is_small: bool
    ) -> dict[str, Any]:
        """Returns the plan of the corpus for this machine's `engine` and for other machines.

        `is_small` says whether the analysis of the corpus runs without Ray.
        """
        sample, candidates, kept = self._sample, self._count("candidates"), self._kept()
        written = kept["value"] / max(1.0, self._sum("kept") - self._sum("elsewhere"))
        more = candidates["value"] / max(1.0, self._sum("candidates"))
        n_frames = CUT_FRAMES * written * self._sum("frames")
        starts_ray = is_small and not engine.is_small(round(kept["value"]), n_frames)
        parts, cpu_s = self._cpu(more, written, starts_ray=starts_ray)
        graph = graph_of(recipe)
        stage_s = self._stages(graph, parts, more, written)
        workers = engine.n_workers(len(sample.sources))
        if starts_ray and "cut" in stage_s:
            # One process cut the sample, but all workers cut the corpus.
            stage_s["cut"] /= workers
        kept_s = self._of_kept("kept_s", kept)
        again = 1 + min(1.0, kept_s["value"] / float(sample.seconds.sum()))
        n_bytes = [source.n_bytes for source in sample.sources]
        n_blocks = sum(-(-n // BLOCK_BYTES) for n in n_bytes)
        s3 = {
            "bytes_from": sum(n_bytes) * again,
            "requests_from": REQUESTS_PER_SOURCE * len(n_bytes) + again * n_blocks,
            "bytes_to": sum(self._run.objects) / sample.share,
            "requests_to": len(self._run.objects) / sample.share,
        }
        plan = {
            "format": FORMAT,
            "sources": len(n_bytes),
            "source_bytes": sum(n_bytes),
            "video_s": float(sample.seconds.sum()),
            "sample": {
                "sources": len(sample.uris),
                "share": sample.share,
                "reused_cpu_s": round(self._run.reused_s, 3),
                "reused_stage_s": {
                    stage.step: round(stage_s[stage.step] * sample.share, 3)
                    for stage in graph
                    if stage.phase is Phase.MEASURE and self._run.reused_s
                },
            },
            "cpu_s": cpu_s,
            "cpu_s_by_part": {name: round(seconds, 3) for name, seconds in parts.items()},
            "gpu_s": self._gpu_s(),
            "stage_s": stage_s,
            "driver_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
            "worker_bytes": max(
                stage.resources.memory_bytes
                for stage in graph
                if isinstance(stage, Stage) and stage.sandboxed
            ),
            "workers": workers,
            "s3": s3,
            "candidates": candidates,
            "clips": kept,
            "kept_s": kept_s,
            "kept_bytes": self._of_kept("kept_bytes", kept),
            "fit": self._summary.get("fit", []),
            "assumptions": list(_assumptions(recipe, sample)),
        }
        return plan | {"machines": [cost(kind, plan) for kind in kinds]}

    def _counted(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Floats]:
        """Returns the counts `COUNTED` of each source, float64 [S] each."""
        counts = {name: np.zeros(len(self._number)) for name in COUNTED}
        source_of = {row["clip_id"]: row["source_uri"] for row in rows}
        for row in rows:
            other = source_of.get(row["duplicate_of"], row["source_uri"])
            is_kept, is_copy = row["decision"] == "kept", row["cut_mode"] == "copy"
            is_elsewhere = not is_kept and other != row["source_uri"]
            pixels = row["n_frames"] * row["width"] * row["height"] / FULL_HD
            seconds, n_bytes = row["end_s"] - row["start_s"], row["mp4_bytes"] or 0
            of_kept = (seconds, n_bytes, pixels * (not is_copy), is_copy, pixels)
            values = (1, is_kept or is_elsewhere, is_elsewhere, *(is_kept * n for n in of_kept))
            for name, value in zip(COUNTED, values, strict=True):
                counts[name][self._number[row["source_uri"]]] += value
        return counts

    def _sum(self, name: str) -> float:
        return float(self._clips[name].sum())

    def _count(self, name: str) -> Estimate:
        seconds = self._model.seconds
        return estimate(
            *self._model.total(self._clips[name], seconds, differs=CLIPS_DIFFER, is_count=True)
        )

    def _kept(self) -> Estimate:
        """Returns the estimated number of kept clips.

        The chance that the sample contains a clip's duplicate in another source is the sample's
        share of the corpus, so the number of such duplicates is divided by this share.
        """
        alone, elsewhere = self._count("kept"), self._count("elsewhere")
        growth = 1 / max(LEAST_SHARE, self._sample.share)
        lost = min(elsewhere["value"] * growth, 0.9 * alone["value"])
        spread = (elsewhere["high"] - elsewhere["value"]) * growth if lost else 0.0
        return estimate(alone["value"] - lost, hypot(alone["high"] - alone["value"], spread))

    def _of_kept(self, name: str, kept: Estimate) -> Estimate:
        """Returns the sum of a quantity over kept clips, from its mean in the sample."""
        each = self._sum(name) / max(1.0, self._sum("kept") - self._sum("elsewhere"))
        return {end: each * number for end, number in kept.items()}

    def _cpu(
        self, more: float, written: float, *, starts_ray: bool
    ) -> tuple[dict[str, float], Estimate]:
        """Returns CPU-seconds by part, and the estimate of their sum.

        `more` and `written` are the ratios of the corpus to the sample in candidates and in kept
        clips.
        """
        spent = Counter(self._summary["cpu_seconds"])
        del spent["total"]
        by_source = self._by_source() | {"cut": self._cut_s(spent["cut"])}
        totals, deviation = self._model.cost(by_source)
        by_size = len(self._sample.sources) / len(self._number)
        for name, seconds in by_source.items():
            # CPU-seconds that no unit reports by source, such as those of joined segments.
            totals[name] += max(0.0, spent.pop(name, 0.0) - float(seconds.sum())) * by_size
        totals["driver"] = spent.pop("driver")
        n_more = (more - 1) * self._sum("candidates")
        totals["driver"] += DRIVER_S_PER_CLIP * n_more + SHOWN_S_PER_CLIP * min(n_more, SHOWN_CLIPS)
        growth = {"engine": 1 + ENGINE_GROWS * (by_size - 1), "start_up": 1.0, "scan": by_size}
        for name, spent_s in spent.items():
            totals[name] = spent_s * growth.get(name, written)
        if starts_ray:
            totals["start_up"] += RAY_START_UP_S
            totals["engine"] += RAY_S
        return totals, estimate(sum(totals.values()), deviation)

    def _by_source(self) -> dict[str, Floats]:
        """Returns the CPU-seconds of the analysis by part and source, float64 [S] each."""
        parts: dict[str, Floats] = {}
        for uris, cpu_s in self._run.units:
            at = np.array(sorted({self._number[uri] for uri in uris}), np.int64)
            for name in cpu_s.keys() - {"start_up"} if len(at) else ():
                x = self._model.regressor(name)[self._sample.chosen[at]]
                own = parts.setdefault(name, np.zeros(len(self._number)))
                own[at] += cpu_s[name] * x / max(x.sum(), 1e-9)
        return parts

    def _cut_s(self, cut_s: float) -> Floats:
        """Divides the CPU-seconds of the cut among sources: of copies by clips, else by frames."""
        seconds = np.zeros(len(self._number))
        own = self._summary["cut"]
        encoded_s = own.get("encode_worker_s", 0.0) + own.get("encode_head_worker_s", 0.0)
        how = {"encoded": encoded_s, "copied": own.get("copy_worker_s", 0.0)}
        for name, own_s in how.items():
            share = cut_s * own_s / max(sum(how.values()), 1e-9)
            seconds += share * self._clips[name] / max(self._sum(name), 1e-9)
        return seconds

    def _stages(
        self, graph: Graph, parts: Mapping[str, float], more: float, written: float
    ) -> dict[str, float]:
        """Returns the wall time by step on this machine."""
        spent, timed = Counter(self._summary["cpu_seconds"]), dict(self._summary["stage_seconds"])
        timed["commit"] = max(0.0, self._run.wall_s - sum(timed.values()))
        measured = ("start_up", *self._by_source())
        analysis_s = max(sum(spent[n] for n in measured), 1e-9)
        by_phase = {
            Phase.MEASURE: sum(parts.get(n, 0.0) for n in measured) / analysis_s,
            Phase.WRITE: written,
            Phase.ANNOTATE: written,
        }
        growth = {stage.step: by_phase[stage.phase] for stage in graph if stage.phase in by_phase}
        growth |= {"list": 1.0, "scan": 0.0, "cut": parts["cut"] / max(spent["cut"], 1e-9)}
        # Most of the time of short stages does not depend on the number of clips.
        short = 1 + 0.1 * (more - 1)
        return {name: round(s * growth.get(name, short), 3) for name, s in timed.items()}

    def _gpu_s(self) -> float | None:
        """Returns the GPU-seconds of the corpus; None if no worker of the sample held a GPU."""
        workers = self._summary.get("cluster", {}).get("workers", {})
        shares = {n.partition(" ")[0]: each["gpus"] for n, each in workers.items() if each["gpus"]}
        rows = self._summary.get("unit_times", [])
        busy_s = sum(shares.get(row["stage"], 0.0) * row["busy_s"] for row in rows)
        return float(busy_s / self._sample.share) if shares else None


def _assumptions(recipe: Recipe, sample: PlanSample) -> Iterator[str]:
    if sample.share < 1 and any(stage.compares_clips for stage in graph_of(recipe).deciding()):
        yield (
            "duplicates in other sources: the share of such clips in the sample is divided by "
            f"{max(LEAST_SHARE, sample.share):.2f}, because the share grows with the corpus"
        )
    if recipe.select.max_per_group is not None:
        yield "select.max_per_group: groups have the same share of clips as in the sample"
    if recipe.filters.by_quantile():
        yield "bounds by quantile: the bounds of the sample's clips are used"
