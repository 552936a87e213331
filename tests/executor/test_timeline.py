"""When workers were busy: exact sums, a bounded size, and the same whoever collects them."""

import json
import math

import pytest

from curator.executor.timeline import (
    LEAST_BUCKETS,
    LEAST_S,
    MAX_BYTES,
    MAX_NODES,
    N_BUCKETS,
    OTHER_NODES,
    THIS_MACHINE,
    Timeline,
    busy_of,
)

T = 1_790_000_000.0
"""A multiple of each width that is used here."""


def test_units_are_added_up_by_node_stage_and_bucket() -> None:
    timeline = Timeline()
    timeline.add("analyze", "", T, T + 0.5, "a")
    timeline.add("analyze", "", T + 0.0625, T + 0.25, "b")
    timeline.add("cut", "10.0.0.10", T + 0.25, T + 0.375, "c")
    timeline.add("cut", "10.0.0.9", T + 0.25, T + 0.3125, "d")
    timeline.add("analyze", "", T + 0.5, T + 0.5625, "a")
    assert timeline
    assert timeline.as_dict() == {
        "start": "2026-09-21T14:13:20.000+00:00",
        "bucket_s": LEAST_S,
        "stages": [
            {"stage": "analyze", "units": 3, "busy_s": 0.75, "workers": 2},
            {"stage": "cut", "units": 2, "busy_s": 0.188, "workers": 2},
        ],
        "rows": [
            {
                "node": THIS_MACHINE, "stage": "analyze", "units": 3, "busy_s": 0.75,
                "busy": "1.5 2 1 1 0.5",
            },
            {"node": "10.0.0.9", "stage": "cut", "units": 1, "busy_s": 0.062, "busy": "0 0 0.5"},
            {"node": "10.0.0.10", "stage": "cut", "units": 1, "busy_s": 0.125, "busy": "0 0 1"},
        ],
    }  # fmt: skip


def test_buckets_become_wider_and_lose_no_second_below_the_limit() -> None:
    timeline = Timeline()
    for number in range(20_000):
        timeline.add("analyze", "a", T + number, T + number + 1.5)
    found = timeline.as_dict()
    (row,) = found["rows"]
    assert found["bucket_s"] == 128
    assert len(busy_of(row)) <= N_BUCKETS
    assert row["units"] == 20_000
    assert row["busy_s"] == 30_000
    assert math.isclose(busy_of(row).sum() * found["bucket_s"], 30_000, rel_tol=0.01)
    assert busy_of(row)[10:-10] == pytest.approx(1.5)
    # A timeline of many nodes stays below its limit.
    timeline = Timeline()
    for node in range(3 * MAX_NODES):
        for number, stage in enumerate(("scan", "analyze", "cut", "shard")):
            begun_s = T + node + 10_000 * number
            timeline.add(stage, f"node-{node}.of-some-cluster", begun_s, begun_s + 9876 + node)
    found = timeline.as_dict()
    nodes = list(dict.fromkeys(row["node"] for row in found["rows"]))
    assert nodes[-1] == OTHER_NODES
    assert 20 < len(nodes) <= MAX_NODES
    assert max(len(busy_of(row)) for row in found["rows"]) >= LEAST_BUCKETS
    assert nodes[:-1] == sorted(nodes[:-1], key=lambda name: int(name.split(".")[0][5:]))
    assert len(json.dumps(found, indent=1)) <= MAX_BYTES < 100_000
    assert sum(row["units"] for row in found["rows"]) == 12 * MAX_NODES
    assert math.isclose(
        sum(busy_of(row).sum() for row in found["rows"]) * found["bucket_s"],
        sum(stage["busy_s"] for stage in found["stages"]),
        rel_tol=0.01,
    )
