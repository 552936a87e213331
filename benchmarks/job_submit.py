"""Submits runs with `ray job submit` to a head of its own: to the end, stopped, and once more.

    python benchmarks/job_submit.py --env FOLDER [--films 12]

FOLDER is an environment with this package and its extra `cluster`. The head has a token, ports and
a folder of its own, and only its own processes are ended: another Ray on the machine goes on.
Shards must be those of a run without a cluster, `curate verify` must find nothing, and no process
and no folder of a job may be left. What was found: benchmarks/results/cluster.md.
"""

import argparse
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster_trials import (
    OPTIONS,
    films,
    free_ports,
    has_measured,
    left,
    plain_run,
    shards,
    verified,
    wait_for,
)
from measure import machine

PORTS = (
    "port", "dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port", "metrics-export-port", "runtime-env-agent-port",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a job; `left` counts processes of it afterwards."""

    case: str
    state: str
    wall_s: float
    sources: int
    verify: int | None
    same_shards: bool | None
    left: int


class Head:
    """A head with two cores that takes jobs."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self._bin = environment / "bin"
        self._environment = os.environ | {
            # Jobs find `curate` by the PATH of the head.
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self._address = f"http://127.0.0.1:{ports['dashboard-port']}"
        command = [self._bin / "ray", "start", "--head", "--block", "--num-cpus=2"]
        command += [f"--temp-dir={folder}", "--min-worker-port=0", "--max-worker-port=0"]
        command += [f"--{name}={port}" for name, port in ports.items()]
        with (folder / "head.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, env=self._environment, stdout=log, stderr=subprocess.STDOUT
            )
        wait_for("the head", lambda: self.job("list")[0] == 0, 120)

    def job(self, *words: str) -> tuple[int, str]:
        """Runs a command of `ray job`; returns its exit code and what it printed."""
        ran = subprocess.run(
            [self._bin / "ray", "job", words[0], "--address", self._address, *words[1:]],
            env=self._environment,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return ran.returncode, ran.stdout

    def state(self, job: str) -> str:
        """Returns a job's state."""
        found = re.search(
            r"pending|running|stopped|succeeded|failed", self.job("status", job)[1].lower()
        )
        return found[0] if found else "?"

    def stop(self) -> None:
        """Ends the head, and with it what it started."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)


def outcome(
    case: str, state: str, start: float, curate: str, out: Path, plain: dict[str, str]
) -> Outcome:
    wall_s = time.monotonic() - start
    is_whole = (out / "summary.json").exists()
    counts = json.loads((out / "summary.json").read_text())["counts"] if is_whole else {}
    return Outcome(
        case=case,
        state=state,
        wall_s=round(wall_s, 1),
        sources=counts.get("sources", 0),
        verify=verified(curate, out) if is_whole else None,
        same_shards=shards(out) == plain if is_whole else None,
        left=len(left([str(out)])),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", type=Path, required=True, help="environment with this package")
    parser.add_argument("--films", type=int, default=12)
    options = parser.parse_args()
    if not (options.env / "bin" / "ray").exists():
        sys.exit(f"{options.env} has no Ray; install this package with its extra `cluster` there")
    environment = options.env.absolute()
    curate = str(environment / "bin" / "curate")
    folder = Path(tempfile.mkdtemp(prefix="job-"))
    (folder / "films").mkdir()
    (folder / "ray").mkdir()
    manifest = films(folder / "films", options.films)
    plain_s, plain = plain_run(curate, manifest, folder / "plain")
    head = Head(environment, folder / "ray")
    outcomes = []

    def command(out: Path) -> list[str]:
        return ["--", "curate", "run", str(manifest), str(out), "--shared-out", *OPTIONS]

    try:
        out, start = folder / "whole", time.monotonic()
        code, text = head.job("submit", *command(out))
        if code:
            sys.exit(text)
        outcomes.append(outcome("to its end", f"exit {code}", start, curate, out, plain))
        out, start = folder / "stopped", time.monotonic()
        _, text = head.job("submit", "--no-wait", "--submission-id=trial", *command(out))
        wait_for("a first result", lambda: has_measured(out))
        head.job("stop", "trial")
        wait_for("the end of the job", lambda: head.state("trial") not in ("pending", "running"))
        outcomes.append(outcome("stopped", head.state("trial"), start, curate, out, plain))
        start = time.monotonic()
        code, _ = head.job("submit", *command(out))
        outcomes.append(outcome("the same again", f"exit {code}", start, curate, out, plain))
    finally:
        head.stop()
    n_left = len(left([str(folder)]))
    shutil.rmtree(folder)
    print("| case | state | s | sources | verify | shards as without a cluster | left |")
    print("|---|---|---|---|---|---|---|")
    for one in outcomes:
        same = {True: "yes", False: "**no**", None: ""}[one.same_shards]
        verify = "" if one.verify is None else one.verify
        print(
            f"| {one.case} | {one.state} | {one.wall_s} | {one.sources} | {verify} | {same} "
            f"| {one.left} |"
        )
    print(f"without a cluster {plain_s:.1f} s; processes left after the head {n_left}")
    print(
        json.dumps(
            {**machine(), "plain_s": round(plain_s, 1), "left_after_head": n_left,
             "cases": [asdict(one) for one in outcomes]}
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
