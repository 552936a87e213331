"""When each node was busy: the trace that Perfetto opens, and what the report says of it."""

import json
from typing import Any

from test_report import EVIL, Page, _refuses_evil, clip, render, summary_of

from curator.executor.timeline import THIS_MACHINE, Timeline
from curator.report import trace_json

T = 1_790_000_000.0


def two_nodes() -> dict[str, Any]:
    """Analysis on one node for 100 s; half of the cut behind it, on this machine."""
    timeline = Timeline()
    for number in range(10):
        timeline.add("analyze", "gpu-1", T + 10 * number, T + 10 * (number + 1), "a")
        timeline.add("cut", "", T + 50 + 10 * number, T + 60 + 10 * number, "c")
    return timeline.as_dict()


def page_with(timeline: dict[str, Any]) -> tuple[str, Page]:
    clips = [clip(0)]
    return render(clips, summary=summary_of(clips, timeline=timeline))


def test_nodes_are_processes_and_stages_are_counters_of_busy_workers() -> None:
    events = json.loads(trace_json(two_nodes()))["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert sorted(names.values()) == ["gpu-1", THIS_MACHINE]
    counted = [
        (names[e["pid"]], e["name"], e["ts"] / 1e6 - T, e["args"]) for e in events if e["ph"] == "C"
    ]
    assert counted == [
        (THIS_MACHINE, "cut", 0, {"busy workers": 0}),
        (THIS_MACHINE, "cut", 50, {"busy workers": 1}),
        (THIS_MACHINE, "cut", 150, {"busy workers": 0}),
        ("gpu-1", "analyze", 0, {"busy workers": 1}),
        ("gpu-1", "analyze", 100, {"busy workers": 0}),
    ]


def test_a_run_without_work_has_an_empty_trace() -> None:
    assert json.loads(trace_json({})) == {"traceEvents": []}


def test_a_page_has_a_timeline_only_if_there_is_one() -> None:
    _, page = page_with(two_nodes())
    assert "#timeline" in page.attributes("href")
    assert "Since 2026-09-21 14:13:20 UTC" in page.text
    assert "script" not in {tag for tag, _ in page.tags}
    html, page = page_with({})
    assert "#timeline" not in page.attributes("href")
    assert 'id="timeline"' not in html


def test_names_of_stages_never_become_html() -> None:
    timeline = Timeline()
    timeline.add(EVIL, EVIL, T, T + 1)
    _refuses_evil(*page_with(timeline.as_dict()))
