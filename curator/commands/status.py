"""`curate status`: how far a run is, also one on another machine."""

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from curator.commands.arguments import EXIT_OK

HELP = "say how far a run into OUT is, and when it ends"
WATCH_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Says how far a run into OUT is, by stage, and when it ends, on any machine that reads OUT."
    )
    parser.add_argument("out", metavar="OUT", help="folder or s3://bucket/prefix of a run")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.add_argument(
        "--watch", action="store_true", help="again every 10 s, until the run has ended"
    )


def main(options: argparse.Namespace) -> int:
    """Prints the status, once or until the run has ended."""
    from curator.errors import UsageError
    from curator.runs.progress_report import run_status
    from curator.storage import open_store

    store = open_store(options.out)
    while True:
        status = run_status(store)
        if status["state"] == "none":
            raise UsageError(f"no run into {store.uri} has begun")
        print(json.dumps(status) if options.json else "\n".join(_lines(status)), flush=True)
        if not options.watch or status["state"] != "running":
            return EXIT_OK
        time.sleep(WATCH_S)


def _lines(status: Mapping[str, Any]) -> Iterator[str]:
    from datetime import datetime, timedelta

    from curator.number_text import clock
    from curator.report.funnel import format_funnel

    state = status["state"]
    yield f"{state}: {status.get('holder') or status['out']}"
    if state == "finished":
        yield format_funnel(status["summary"])
    elif state == "failed":
        yield f"broken off: {status['error']}; the same command goes on from what was done"
    elif state == "silent":
        when = f", {status['silent_s']:.0f} s ago" if "silent_s" in status else ""
        yield (
            f"no sign of life since the last one{when}: the run was likely killed; the same "
            "command goes on from what was done"
        )
    if "stage" not in status:
        return
    yield from _stages(status)
    reported = datetime.fromisoformat(status["reported"])
    ends = ""
    if state == "running" and status["left_s"] is not None:
        left_s = sum(status["left_s"].values())
        ends = f"; {clock(left_s)} left, ends {reported + timedelta(seconds=left_s):%d %b %H:%M}"
    yield f"reported {reported:%d %b %H:%M:%S} UTC, {clock(status['elapsed_s'])} after start{ends}"


def _stages(status: Mapping[str, Any]) -> Iterator[str]:
    from curator.number_text import amount, length, share

    ended, left, stage = status["ended_s"], status["left_s"] or {}, status["stage"]
    for name in dict.fromkeys([*ended, *([stage] if stage else []), *left]):
        facts = [f"took {length(ended[name])}"] if name in ended else []
        if name == stage:
            facts = [f"works for {length(status['stage_s'])}"]
            if status["items"]:
                facts.append(f"{status['done']:,} of {amount(status['items'], status['noun'])}")
            if status["share_done"] is not None:
                facts.append(share(status["share_done"], 1))
            if status["video_s_per_s"] is not None:
                facts.append(f"{status['video_s_per_s']:.3g}x real time")
        if left.get(name, 0.0) >= 1:
            facts.append(f"{length(left[name])} left")
        if facts:
            yield f"  {name:<10}{', '.join(facts)}"
