"""The timeline in the report: lanes by node and stage, round times, what overlapped, its size."""

from typing import Any

import pytest
from test_report import EVIL, Page, _refuses_evil, clip, render, summary_of

from curator.executor.timeline import OTHER_NODES, THIS_MACHINE, Timeline
from curator.report.gantt_chart import (
    MAX_OPEN,
    Gantt,
    gantt,
)

T = 1_790_000_000.0


def two_nodes() -> dict[str, Any]:
    """Analysis on both for 100 s; half of the cut behind it."""
    timeline = Timeline()
    for number in range(10):
        timeline.add("analyze", "10.0.0.7", T + 10 * number, T + 10 * (number + 1), "a")
        timeline.add("analyze", "gpu-1.some.cluster", T + 10 * number, T + 10 * (number + 1), "b")
        timeline.add("cut", "", T + 50 + 10 * number, T + 60 + 10 * number, "c")
    return timeline.as_dict()


def drawn(timeline: dict[str, Any]) -> Gantt:
    chart = gantt(timeline)
    assert chart is not None
    return chart


def page_with(timeline: dict[str, Any]) -> tuple[str, Page]:
    clips = [clip(0)]
    return render(clips, summary=summary_of(clips, timeline=timeline))


def test_lanes_are_nodes_and_stages_with_their_sum_first() -> None:
    chart = drawn(two_nodes())
    assert chart.total is not None
    groups = [(one.name, [lane.stage for lane in one.lanes]) for one in (chart.total, *chart.nodes)]
    assert groups == [
        ("all nodes", ["analyze", "cut"]),
        (THIS_MACHINE, ["cut"]),
        ("10.0.0.7", ["analyze"]),
        ("gpu-1", ["analyze"]),
    ]
    analyze, cut = chart.total.lanes
    assert (analyze.peak, cut.peak) == ("2", "1")
    assert analyze.said == "analyze, all nodes: 20 units, 3.3 min of work, up to 2 busy at a time"
    # Analysis ends at two thirds of the time, when the cut has been at work since one third.
    assert (chart.n_buckets, analyze.path, cut.path) == (
        150, "M0 1H0V0.00H100V1.00Z", "M50 1H50V0.00H150V1.00Z",
    )  # fmt: skip
    assert chart.ticks == [
        (0.0, "0"), (pytest.approx(0.2), "30 s"), (pytest.approx(0.4), "60 s"),
        (pytest.approx(0.6), "90 s"), (pytest.approx(0.8), "120 s"), (1.0, "150 s"),
    ]  # fmt: skip


def test_a_page_has_a_timeline_only_if_any_worker_was_busy() -> None:
    html, page = page_with(two_nodes())
    assert "#timeline" in page.attributes("href")
    assert "timeline" in page.attributes("id")
    assert "analyze and cut overlapped for 50% of the time that cut was busy." in page.text
    assert "Since 2026-09-21 14:13:20 UTC" in page.text
    assert "script" not in {tag for tag, _ in page.tags}
    idle = Timeline()
    idle.add("scan", "", T, T)
    for timeline in ({}, idle.as_dict()):
        html, page = page_with(timeline)
        assert "#timeline" not in page.attributes("href")
        assert 'id="timeline"' not in html


def test_many_nodes_are_folded_and_the_page_stays_small() -> None:
    timeline = Timeline()
    for node in range(500):
        for number in range(40):
            begun_s = T + 100 * number + node % 50
            stage = ("analyze", "cut", "caption", "shard")[number // 10]
            timeline.add(stage, f"node-{node}", begun_s, begun_s + 60)
    html, page = page_with(timeline.as_dict())
    n_nodes = len(drawn(timeline.as_dict()).nodes)
    assert n_nodes > MAX_OPEN
    assert f"{n_nodes} nodes by name" in page.text
    assert OTHER_NODES in page.text
    assert len(html) - len(page_with({})[0]) < 500_000


def test_names_of_nodes_and_stages_never_become_html() -> None:
    timeline = Timeline()
    timeline.add(EVIL, EVIL, T, T + 1)
    timeline.add("cut", "", T, T + 1)
    _refuses_evil(*page_with(timeline.as_dict()))
