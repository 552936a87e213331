"""When each stage kept which node busy, as a trace for ui.perfetto.dev and chrome://tracing."""

import json
from collections.abc import Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any

from curator.executor.timeline import busy_of


def trace_json(timeline: Mapping[str, Any]) -> bytes:
    """Converts the `timeline` of a summary to JSON in Chrome's format; empty where it is.

    Nodes are processes; each of their stages is a counter of busy workers, with an event where the
    number changes.
    """
    rows = timeline.get("rows") or ()
    numbers = {node: number for number, node in enumerate(dict.fromkeys(r["node"] for r in rows))}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": number, "args": {"name": node}}
        for node, number in numbers.items()
    ]
    start_us = datetime.fromisoformat(timeline["start"]).timestamp() * 1e6 if rows else 0.0
    for row in rows:
        busy = [*busy_of(row).tolist(), 0.0]
        for at, (before, workers) in enumerate(pairwise([None, *busy])):
            if workers != before:
                time_us = round(start_us + at * timeline["bucket_s"] * 1e6)
                event = {"ph": "C", "name": row["stage"], "pid": numbers[row["node"]]}
                events.append(event | {"ts": time_us, "args": {"busy workers": workers}})
    return json.dumps({"traceEvents": events}).encode()
