"""Counts units of work, and the time of workers in them, by stage."""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

THIS_MACHINE = "this machine"
MAX_WORKERS = 10_000
"""Largest exact count of a stage's workers; a count that reaches it is a lower bound."""


@dataclass(slots=True)
class _StageTimes:
    units: int = 0
    busy_s: float = 0.0
    first_s: float = math.inf
    """Begin of the first unit, in Unix time."""
    workers: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)


class UnitTimes:
    """Counts the units that ended; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._stages: defaultdict[str, _StageTimes] = defaultdict(_StageTimes)
        self.on_unit: Callable[[str, str, float, float], None] | None = None
        """Called with stage, node, begin and end of each unit."""

    def add(self, stage: str, node: str, begun_s: float, ended_s: float, worker: str = "") -> None:
        """Adds a unit.

        Args:
            stage: Name of the stage.
            node: Name or address of the node; empty for the machine of the driver.
            begun_s: Unix time at which a worker took the unit.
            ended_s: Unix time at which the worker finished the unit. If a clock was set back, the
                unit has no busy seconds.
            worker: Id of the worker; empty if unknown.
        """
        node = node or THIS_MACHINE
        with self._lock:
            times = self._stages[stage]
            times.units += 1
            times.busy_s += max(0.0, ended_s - begun_s)
            times.first_s = min(times.first_s, begun_s)
            times.nodes.add(node)
            if worker and len(times.workers) < MAX_WORKERS:
                times.workers.add(worker)
        if self.on_unit is not None:
            self.on_unit(stage, node, begun_s, ended_s)

    def by_stage(self) -> tuple[dict[tuple[str], int], dict[tuple[str], float]]:
        """Returns units and busy seconds of each stage so far."""
        with self._lock:
            stages = dict(self._stages)
            units = {(name,): times.units for name, times in stages.items()}
            return units, {(name,): times.busy_s for name, times in stages.items()}

    def facts(self) -> list[dict[str, Any]]:
        """Returns a row for each stage, in order of their first units, for `summary.json`."""
        with self._lock:
            ordered = sorted(self._stages.items(), key=lambda pair: (pair[1].first_s, pair[0]))
            return [
                {"stage": name, "units": times.units, "busy_s": round(times.busy_s, 3),
                 "workers": len(times.workers), "nodes": len(times.nodes)}
                for name, times in ordered
            ]  # fmt: skip
