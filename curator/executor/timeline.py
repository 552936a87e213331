"""Records when the workers of each node were busy, by stage, for `summary.json` and the report.

Memory does not grow with the number of units: a row sums busy seconds in 240 buckets of time. When
a run outgrows the buckets, neighbours are merged into buckets of twice the width. Buckets begin at
multiples of their width since 1970.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

N_BUCKETS = 240
LEAST_BUCKETS = 60
"""Least number of buckets; `as_dict` sums nodes instead of merging buckets any further."""
LEAST_S = 0.125
"""Initial width of a bucket, in seconds: a power of two, so that times of buckets are exact."""
MAX_NODES = 200
MAX_WORKERS = 10_000
"""Largest exact count of a stage's workers; a count that reaches it is a lower bound."""
MAX_BYTES = 90_000
"""Largest size of `as_dict` as JSON."""
THIS_MACHINE = "this machine"
OTHER_NODES = "other nodes"


@dataclass(slots=True)
class _TimelineRow:
    """The units of one stage on one node; `buckets_s` is float64 [N_BUCKETS]."""

    units: int = 0
    busy_s: float = 0.0
    buckets_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros(N_BUCKETS))

    def add(self, other: "_TimelineRow") -> None:
        self.units += other.units
        self.busy_s += other.busy_s
        self.buckets_s = self.buckets_s + other.buckets_s


class Timeline:
    """Collects the units that ended; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._rows: defaultdict[tuple[str, str], _TimelineRow] = defaultdict(_TimelineRow)
        """By node and stage."""
        self._nodes: set[str] = set()
        self._workers: defaultdict[str, set[str]] = defaultdict(set)
        self._first_s: dict[str, float] = {}
        """Begin of each stage's first unit, in Unix time."""
        self._begun_s, self._ended_s = math.inf, -math.inf
        self._width_s = LEAST_S
        self._offset = 0
        """Number of the first bucket, counted from 1970 in bucket widths."""
        self.on_unit: Callable[[str, str, float, float], None] | None = None
        """Called with stage, node, begin and end of each unit."""

    def __bool__(self) -> bool:
        """Whether any unit ended."""
        return bool(self._rows)

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
        with self._lock:
            row = self._rows[self._listed_node(node), stage]
            row.units += 1
            self._first_s[stage] = min(self._first_s.get(stage, math.inf), begun_s)
            workers = self._workers[stage]
            if worker and len(workers) < MAX_WORKERS:
                workers.add(worker)
            if ended_s > begun_s:
                self._cover(begun_s, ended_s)
                edges_s = (self._offset + np.arange(N_BUCKETS + 1)) * self._width_s
                # Another array: `as_dict` may still read this one.
                row.buckets_s = row.buckets_s + np.diff(np.clip(edges_s, begun_s, ended_s))
                row.busy_s += ended_s - begun_s
        if self.on_unit is not None:
            self.on_unit(stage, node or THIS_MACHINE, begun_s, ended_s)

    def by_stage(self) -> tuple[dict[tuple[str], int], dict[tuple[str], float]]:
        """Returns units and busy seconds of each stage so far."""
        units, busy_s = defaultdict[tuple[str], int](int), defaultdict[tuple[str], float](float)
        with self._lock:
            for (_, stage), row in self._rows.items():
                units[stage,] += row.units
                busy_s[stage,] += row.busy_s
        return units, busy_s

    def as_dict(self) -> dict[str, Any]:
        """Returns the timeline for `summary.json`, below 100 KB; empty if no unit ended.

        `start` is the begin of the first bucket, and `bucket_s` the width of a bucket. `busy` of a
        row is a string with the mean number of busy workers in each bucket, separated by spaces;
        zeros at the end are left out. To stay below the limit, buckets are merged first, and then
        the least busy nodes are summed as `other nodes`.
        """
        with self._lock:
            if not self._rows:
                return {}
            rows = {key: replace(row) for key, row in self._rows.items()}
            width_s, offset, ended_s = self._width_s, self._offset, self._ended_s
            stages = sorted(self._first_s, key=lambda stage: (self._first_s[stage], stage))
            facts = []
            for stage in stages:
                own = [row for (_, name), row in rows.items() if name == stage]
                busy_s = round(sum(row.busy_s for row in own), 3)
                facts.append(
                    {"stage": stage, "units": sum(row.units for row in own), "busy_s": busy_s,
                     "workers": len(self._workers[stage])}
                )  # fmt: skip
        if math.isfinite(ended_s):
            n_used = math.ceil(ended_s / width_s) - offset
        else:
            # No unit took any time.
            n_used, offset = 1, math.floor(min(self._first_s.values()) / width_s)
        n_merged, n_nodes = 1, len({node for node, _ in rows})
        while True:
            content = {
                "start": _iso((offset // n_merged) * n_merged * width_s),
                "bucket_s": width_s * n_merged,
                "stages": facts,
                "rows": _listed(_fewer(rows, n_nodes), stages, width_s, offset, n_used, n_merged),
            }
            if len(json.dumps(content, indent=1)) <= MAX_BYTES:
                return content
            if n_used / n_merged >= 2 * LEAST_BUCKETS:
                n_merged *= 2
            elif n_nodes > 1:
                n_nodes = n_nodes * 3 // 4
            else:
                return content

    def _listed_node(self, node: str) -> str:
        node = node or THIS_MACHINE
        if node not in self._nodes:
            if len(self._nodes) >= MAX_NODES:
                return OTHER_NODES
            self._nodes.add(node)
        return node

    def _cover(self, begun_s: float, ended_s: float) -> None:
        """Widens or shifts the buckets to cover a span, and redistributes the busy seconds."""
        begun_s, ended_s = min(begun_s, self._begun_s), max(ended_s, self._ended_s)
        if (begun_s, ended_s) == (self._begun_s, self._ended_s):
            return
        self._begun_s, self._ended_s = begun_s, ended_s
        width_s = self._width_s
        while math.ceil(ended_s / width_s) - math.floor(begun_s / width_s) > N_BUCKETS:
            width_s *= 2
        offset, ratio = math.floor(begun_s / width_s), round(width_s / self._width_s)
        if (width_s, offset) == (self._width_s, self._offset):
            return
        places = (self._offset + np.arange(N_BUCKETS)) // ratio - offset
        is_there = (places >= 0) & (places < N_BUCKETS)
        for row in self._rows.values():
            # Buckets outside of the new range are empty.
            moved: NDArray[Any] = np.bincount(places[is_there], row.buckets_s[is_there], N_BUCKETS)
            row.buckets_s = moved
        self._width_s, self._offset = width_s, offset


def busy_of(row: Mapping[str, Any]) -> NDArray[np.float64]:
    """Returns the mean number of busy workers in each bucket of a row of `as_dict`."""
    return np.array(row["busy"].split(), np.float64)


def _fewer(
    rows: Mapping[tuple[str, str], _TimelineRow], n_nodes: int
) -> dict[tuple[str, str], _TimelineRow]:
    """Returns rows of at most `n_nodes` nodes; the least busy ones are summed as `OTHER_NODES`."""
    busy_s: defaultdict[str, float] = defaultdict(float)
    for (node, _), row in rows.items():
        busy_s[node] += row.busy_s
    if len(busy_s) <= n_nodes:
        return dict(rows)
    named = sorted(busy_s.keys() - {OTHER_NODES}, key=lambda node: (-busy_s[node], node))
    own = set(named[: n_nodes - 1])
    fewer: defaultdict[tuple[str, str], _TimelineRow] = defaultdict(_TimelineRow)
    for (node, stage), row in rows.items():
        fewer[node if node in own else OTHER_NODES, stage].add(row)
    return fewer


def _listed(
    rows: Mapping[tuple[str, str], _TimelineRow],
    stages: Iterable[str],
    width_s: float,
    offset: int,
    n_used: int,
    n_merged: int,
) -> list[dict[str, Any]]:
    """Returns rows in the order of nodes, this machine first, and then of stages."""
    places = (offset + np.arange(n_used)) // n_merged - offset // n_merged
    order = {stage: number for number, stage in enumerate(stages)}
    listed = []
    for node, stage in sorted(rows, key=lambda key: (_natural(key[0]), order[key[1]])):
        row = rows[node, stage]
        busy = np.bincount(places, row.buckets_s[:n_used]) / (width_s * n_merged)
        listed.append(
            {
                "node": node,
                "stage": stage,
                "units": row.units,
                "busy_s": round(row.busy_s, 3),
                "busy": " ".join(map(_short, np.trim_zeros(busy, "b").tolist())),
            }
        )
    return listed


def _natural(node: str) -> tuple[int, list[tuple[int, int, str]]]:
    place = {THIS_MACHINE: 0, OTHER_NODES: 2}.get(node, 1)
    parts = re.findall(r"\d+|\D+", node)
    return place, [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def _short(number: float) -> str:
    digits = 2 if number < 10 else 1 if number < 100 else 0
    text = f"{number:.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


def _iso(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")
