#!/usr/bin/env python3
"""Measures the utilisation of a caption server, and the work that killed runs repeat.

    captions.py MEDIA ... --work DIR [--base KEY=VALUE ...] [--set KEY=VALUE ...]
        [--loads SLOTSxSECONDS ...] [--repeats N] [--kills N]

MEDIA are videos or folders of videos. The script analyzes and cuts them once with the keys of
`--base`, into DIR/base; later calls reuse it. It then measures, with the keys of `--set`, against
`caption_server.py`, which has SLOTS slots and takes SECONDS per answer:

- *recaption* annotates existing clips. *run* cuts all clips again (`cut.mode: auto`) and annotates
  them meanwhile. Capacity is SLOTS / SECONDS. *Share* is the answered windows over the capacity in
  the phase, from the start of `caption` (*run*: of `cut`) to its end, with start of processes,
  decoding and preparation. *Steady* is the share from the first request to the last answer.
- *kills* ends a recaption and all its processes with SIGKILL at random times, repeatedly, and lets
  the last one finish. It counts the requests that were answered more than once.

Prints tables, then JSON as its last line.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import CURATE, machine, sets, spread

WINDOW_S = 1.0
"""Short windows make many requests from little video. Each needs less decoding than a window of
five seconds, and as many JPEGs."""
PORT = 18473


class Server:
    """The process of the server."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("caption_server.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(PORT), "1", "1"], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def reset(self, slots: int, service_s: float, *, bad: bool = False) -> None:
        data = json.dumps({"slots": slots, "service_s": service_s, "bad": bad}).encode()
        self.opener.open(f"http://127.0.0.1:{PORT}/reset", data).close()

    def stats(self) -> dict[str, Any]:
        with self.opener.open(f"http://127.0.0.1:{PORT}/stats") as answer:
            stats: dict[str, Any] = json.load(answer)
        return stats

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def changes(more: Sequence[str]) -> list[str]:
    settings = [
        "caption.captioner=openai", "caption.model=timed",
        f"caption.url=http://127.0.0.1:{PORT}/v1", f"caption.window_s={WINDOW_S}", *more,
    ]  # fmt: skip
    return sets(*settings)


def quiet(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr[-2000:]}")


def once(
    server: Server, options: argparse.Namespace, kind: str, slots: int, service_s: float
) -> dict[str, float]:
    """Measures one recaption or run on an output without replies."""
    out = options.work / "out"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(options.work / "base", out)
    server.reset(slots, service_s)
    changed = changes([f"caption.in_flight={4 * slots}", *options.set])
    if kind == "recaption":
        quiet([*CURATE, "recaption", str(out), *changed])
    else:
        shutil.rmtree(out / "shards")
        quiet([*CURATE, "run", *map(str, options.media), str(out), *sets(*options.base), *changed])
    summary = json.loads((out / "summary.json").read_text())
    stats, seconds = server.stats(), summary["stage_seconds"]
    wall_s = seconds["caption"] + (seconds["cut"] if kind == "run" else 0.0)
    busy_s = stats["answered"] * service_s / slots
    steady_s = max(stats["times"]) - stats["first"]
    return {
        "windows": stats["answered"], "clips": summary["counts"]["kept"], "wall_s": wall_s,
        "share": busy_s / wall_s, "steady": busy_s / steady_s, "around_s": wall_s - steady_s,
        "megabytes": stats["bytes"] / stats["received"] / 1e6,
    }  # fmt: skip


def kills(server: Server, options: argparse.Namespace, rng: random.Random) -> dict[str, int]:
    """Kills a recaption `options.kills` times, then lets it finish."""
    out = options.work / "out"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(options.work / "base", out)
    server.reset(8, 1.0)
    command = [*CURATE, "recaption", str(out), *changes(["caption.in_flight=8", *options.set])]
    n_kills = n_late = 0
    for _ in range(options.kills):
        before = server.stats()["answered"]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        # A kill before the first answer proves nothing.
        while process.poll() is None and server.stats()["answered"] == before:
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 1.5))
        n_late += process.poll() is not None
        kill_session(process)
        n_kills += 1
    quiet(command)
    stats = server.stats()
    return {
        "kills": n_kills, "after_the_end": n_late, "windows": stats["distinct"],
        "answered_again": stats["answered_again"],
        "received_again": stats["received"] - stats["distinct"],
    }  # fmt: skip


def kill_session(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == process.pid:
                os.kill(int(folder.name), signal.SIGKILL)
        except OSError:
            continue
    process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("media", nargs="+", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--base", action="append", default=[])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--loads", nargs="*", default=["8x2"])
    parser.add_argument("--kinds", nargs="*", default=["recaption", "run"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kills", type=int, default=10)
    options = parser.parse_args()
    if not (options.work / "base/summary.json").exists():
        base = [*CURATE, "run", *map(str, options.media), str(options.work / "base")]
        quiet([*base, *sets(*options.base)])
    found: dict[str, Any] = {"machine": machine(), "loads": []}
    server = Server()
    try:
        print(
            "| | server | windows | phase, s | share of capacity | steady | before and after, s |"
        )
        print("|---|---|---|---|---|---|---|")
        for load in options.loads:
            slots, service_s = int(load.split("x")[0]), float(load.split("x")[1])
            for kind in options.kinds:
                runs = [
                    once(server, options, kind, slots, service_s) for _ in range(options.repeats)
                ]
                found["loads"].append({"kind": kind, "load": load, "runs": runs})
                told = {name: [run[name] for run in runs] for name in ("wall_s", "share", "steady")}
                print(
                    f"| {kind} | {slots} x {service_s:g} s | {runs[0]['windows']} "
                    f"| {statistics.median(told['wall_s']):.1f} | {spread(told['share'], '.3f')} "
                    f"| {spread(told['steady'], '.3f')} "
                    f"| {statistics.median(run['around_s'] for run in runs):.1f} |",
                    flush=True,
                )
        if options.kills:
            found["kills"] = kills(server, options, random.Random(0))
            print("\n" + ", ".join(f"{name} {n}" for name, n in found["kills"].items()))
    finally:
        server.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
