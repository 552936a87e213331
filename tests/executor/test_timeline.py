"""When workers were busy: exact sums, a bounded size, and the same whoever collects them."""

import json
import math
import random
import threading
from typing import Any

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


def rows_of(timeline: Timeline) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["node"], row["stage"]): row for row in timeline.as_dict()["rows"]}


def test_nothing_is_written_of_a_run_without_units() -> None:
    assert not Timeline()
    assert Timeline().as_dict() == {}


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


def test_buckets_become_wider_and_lose_no_second() -> None:
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


def test_a_unit_that_began_before_all_others_and_a_day_long_one_are_placed() -> None:
    timeline = Timeline()
    timeline.add("cut", "a", T + 10, T + 11)
    timeline.add("cut", "a", T - 5, T - 4)
    timeline.add("analyze", "a", T - 40_000, T + 40_000)
    found = timeline.as_dict()
    assert [stage["stage"] for stage in found["stages"]] == ["analyze", "cut"]
    analyze, cut = (busy_of(row) for row in found["rows"])
    assert math.isclose(analyze.sum() * found["bucket_s"], 80_000, rel_tol=0.01)
    assert set(analyze[1:-1].tolist()) == {1.0}
    assert abs(len(cut) - len(analyze) / 2) <= 1


def test_a_unit_by_a_clock_that_was_set_back_is_counted_without_time() -> None:
    timeline = Timeline()
    timeline.add("scan", "a", T, T - 3600)
    assert rows_of(timeline)["a", "scan"] == {
        "node": "a", "stage": "scan", "units": 1, "busy_s": 0.0, "busy": "",
    }  # fmt: skip
    assert timeline.as_dict()["start"].startswith("2026-09-21T14:13:20")
    timeline.add("scan", "a", T, T + 1)
    assert rows_of(timeline)["a", "scan"]["busy_s"] == 1


def test_timelines_kept_apart_add_up_to_what_one_holds() -> None:
    random.seed(0)
    whole, parts = Timeline(), [Timeline() for _ in range(3)]
    for number in range(600):
        # Later parts run far longer, so they have wider buckets.
        begun_s = T + random.randrange(80 * 10 ** (number % 3)) / 8
        unit = (random.choice(["analyze", "cut"]), random.choice("abc"), begun_s, begun_s + 2.5)
        whole.add(*unit, worker=str(number % 7))
        parts[number % 3].add(*unit, worker=str(number % 7))
    merged = Timeline()
    for part in (parts[2], parts[0], parts[1]):
        merged.merge(part)
    merged.merge(Timeline())
    assert merged.as_dict() == whole.as_dict()


def test_a_timeline_of_many_nodes_stays_below_its_limit() -> None:
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


def test_several_threads_may_add() -> None:
    timeline = Timeline()

    def add() -> None:
        for number in range(1000):
            timeline.add("analyze", "a", T + number, T + number + 1)
            timeline.as_dict() if number % 100 == 0 else None

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    row = rows_of(timeline)["a", "analyze"]
    assert (row["units"], row["busy_s"]) == (4000, 4000)
