"""The timeline of a run as a Gantt chart: which stage kept which node busy, and when."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.executor.timeline import OTHER_NODES, THIS_MACHINE, busy_of
from curator.number_text import amount, length, score, share

N_COLOURS = 8
"""Of stages, in `style.css`; further stages have those of the first ones."""
COLOURED = ("scan", "analyze", "cut", "caption", "shard")
"""Stages that have the first colours in each report."""
MAX_OPEN = 12
"""Most nodes that are shown at once; of more there is the sum, and each one on request."""
MAX_OVERLAPS = 3
MOST_TICKS = 6
ALL_NODES = "all nodes"

_LEAST_HEIGHT = 0.1
"""Of a bar where workers were busy at all, as a share of the lane."""
_LEAST_OVERLAP = 0.01
"""Share of a stage's busy time from which an overlap is named."""
_STEPS_S = tuple(
    unit_s * number
    for unit_s, numbers in ((1, (1, 2, 5, 10, 20, 30)), (60, (1, 2, 5, 10, 20, 30)),
                            (3600, (1, 2, 3, 6, 12)))
    for number in numbers
)  # fmt: skip
_DAY_S = 86_400

Busy = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One stage on one node.

    Attributes:
        colour: Number of the stage's colour.
        path: Outline of its bars, SVG in a box of one unit per bucket, 1 high, with y downwards.
        peak: Most busy workers, in words.
        said: The lane in words.
    """

    stage: str
    colour: int
    path: str
    peak: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLanes:
    """The lanes of one node; `name` is short where the full one has no more to say."""

    node: str
    name: str
    lanes: Sequence[Lane]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gantt:
    """The chart; `gantt.html.j2` draws it.

    Attributes:
        start: When it begins, UTC.
        bucket: Length of a bucket in words.
        n_buckets: Width of all lanes.
        ticks: Places of marks on the time axis, as shares of the width, and their labels.
        stages: Name, colour and work in words of each stage, in the order in which they began.
        overlaps: Sentences about stages that ran at the same time.
        total: Sum of all nodes; None for one node.
        nodes: Each node.
    """

    start: str
    bucket: str
    n_buckets: int
    ticks: Sequence[tuple[float, str]]
    stages: Sequence[tuple[str, int, str]]
    overlaps: Sequence[str]
    total: NodeLanes | None
    nodes: Sequence[NodeLanes]


def gantt(timeline: Mapping[str, Any]) -> Gantt | None:
    """Draws the `timeline` of a summary; returns None where no worker was busy."""
    found = timeline.get("rows") or ()
    n_buckets = max((len(busy_of(row)) for row in found), default=0)
    if not n_buckets:
        return None
    stages = dict.fromkeys([*COLOURED, *(one["stage"] for one in timeline["stages"])])
    colours = {stage: at % N_COLOURS for at, stage in enumerate(stages)}
    nodes: dict[str, list[Lane]] = {}
    for row in found:
        lane = _lane(row["stage"], row["node"], row["units"], row["busy_s"], busy_of(row), colours)
        nodes.setdefault(row["node"], []).append(lane)
    sums = busy_by_stage(timeline)
    names = _short_names(nodes)
    total = None
    if len(nodes) > 1:
        lanes = [
            _lane(one["stage"], ALL_NODES, one["units"], one["busy_s"], sums[one["stage"]], colours)
            for one in timeline["stages"]
            if one["stage"] in sums
        ]
        total = NodeLanes(node=ALL_NODES, name=ALL_NODES, lanes=lanes)
    bucket_s = float(timeline["bucket_s"])
    return Gantt(
        start=str(timeline["start"])[:19].replace("T", " "),
        bucket=length(bucket_s).replace(".0 ", " "),
        n_buckets=n_buckets,
        ticks=_ticks(n_buckets * bucket_s),
        stages=[
            (one["stage"], colours[one["stage"]], _work(one["units"], one["busy_s"]))
            for one in timeline["stages"]
        ],
        overlaps=list(_overlaps(sums, bucket_s)),
        total=total,
        nodes=[NodeLanes(node=n, name=names[n], lanes=lanes) for n, lanes in nodes.items()],
    )


def busy_by_stage(timeline: Mapping[str, Any]) -> dict[str, Busy]:
    """Returns the mean number of busy workers on all nodes, by stage: float64 [buckets] each."""
    rows = [(row["stage"], busy_of(row)) for row in timeline.get("rows") or ()]
    n_buckets = max((len(busy) for _, busy in rows), default=0)
    order = [one["stage"] for one in timeline.get("stages") or ()]
    found = {stage: np.zeros(n_buckets) for stage in order if stage in dict(rows)}
    for stage, busy in rows:
        found[stage][: len(busy)] += busy
    return found


def overlap_s(one: Busy, other: Busy, bucket_s: float) -> float:
    """Returns seconds in which two stages were both busy, at the least.

    A stage with `n` busy workers on average is busy for a share `min(1, n)` of a bucket. Two that
    take turns within a bucket do not overlap in it.
    """
    both = np.minimum(1.0, one) + np.minimum(1.0, other) - 1.0
    return float(np.maximum(0.0, both).sum()) * bucket_s


def _overlaps(sums: Mapping[str, Busy], bucket_s: float) -> Iterable[str]:
    """Says of the pairs that overlapped longest how much of the later stage's time it was."""
    names = list(sums)
    pairs = []
    for at, later in enumerate(names):
        busy_s = float(np.minimum(1.0, sums[later]).sum()) * bucket_s
        for earlier in names[:at]:
            both_s = overlap_s(sums[earlier], sums[later], bucket_s)
            if both_s > _LEAST_OVERLAP * busy_s:
                pairs.append((-both_s, earlier, later, share(both_s, busy_s)))
    for _, earlier, later, part in sorted(pairs)[:MAX_OVERLAPS]:
        yield f"{earlier} and {later} overlapped for {part} of the time that {later} was busy."
    if len(names) > 1 and not pairs:
        yield "No two stages overlapped."


def _lane(
    stage: str, node: str, units: int, busy_s: float, busy: Busy, colours: Mapping[str, int]
) -> Lane:
    peak = float(busy.max(initial=0.0))
    most = f"{peak:,.1f}" if 0.05 <= peak < 10 else score(peak if peak < 10 else round(peak))
    most = most.removesuffix(".0")
    return Lane(
        stage=stage,
        colour=colours[stage],
        path=_outline(busy / peak if peak else busy),
        peak=most,
        said=f"{stage}, {node}: {_work(units, busy_s)}, up to {most} busy at a time",
    )


def _work(units: int, busy_s: float) -> str:
    return f"{amount(units, 'unit')}, {length(busy_s)} of work"


def _outline(heights: Busy) -> str:
    """Returns bars of heights 0 to 1 as one path; equal neighbours are one bar."""
    drawn = np.where(heights > 0, np.maximum(heights, _LEAST_HEIGHT), 0.0).round(2)
    edges = np.flatnonzero(np.diff(drawn, prepend=0.0, append=0.0))
    if not len(edges):
        return ""
    parts = [f"M{edges[0]} 1"]
    for edge in edges.tolist():
        height = drawn[edge] if edge < len(drawn) else 0.0
        parts.append(f"H{edge}V{1 - height:.2f}")
    return "".join(parts) + "Z"


def _ticks(total_s: float) -> list[tuple[float, str]]:
    """Returns marks at round times: at most `MOST_TICKS`, and the beginning."""
    fits = (step for step in _STEPS_S if total_s / step <= MOST_TICKS)
    step_s = next(fits, None) or _DAY_S * math.ceil(total_s / _DAY_S / MOST_TICKS)
    units = ((_DAY_S, "d"), (3600, "h"), (60, "min"), (1, "s"))
    unit_s, unit = next((size, name) for size, name in units if step_s % size == 0)
    numbers = range(math.floor(total_s / step_s) + 1)
    return [
        (at * step_s / total_s, f"{at * step_s // unit_s} {unit}" if at else "0") for at in numbers
    ]


def _short_names(nodes: Iterable[str]) -> dict[str, str]:
    """Returns names without their domains, where that leaves them different."""
    first = {node: node if _is_fixed(node) else node.split(".")[0] or node for node in nodes}
    is_clear = len(set(first.values())) == len(first)
    return first if is_clear else {node: node for node in first}


def _is_fixed(node: str) -> bool:
    if node in (THIS_MACHINE, OTHER_NODES):
        return True
    try:
        # The name of its type may come before its address.
        ip_address(node.rpartition(" ")[2])
    except ValueError:
        return False
    return True
