"""Runs the files of `infra/slurm` on a Slurm of its own on this machine, and looks what is left.

    python benchmarks/slurm.py --env FOLDER [--films 12]

It needs `slurmctld`, `slurmd`, `munge` and Slurm's commands, as Debian's packages of these names
have them, and starts them with settings, keys, ports and folders of its own: one controller, and
two `slurmd` that stand for two nodes. FOLDER is an environment with this package. Cases:

- `one run`: `curate.sbatch` on both nodes, to its end.
- `two at once`: two jobs of a node each; both nodes have the ports of one machine.
- `a node lost`: the processes on the second node are killed in the middle.
- `cancelled`: a job of two nodes, with `scancel` in the middle; then the same command again.
- `queued again`: the signal that Slurm sends before the time is up; the job continues by itself.
- `array`: `array.sbatch`, two tasks on the two parts of a list.

Shards must be those of a run without Slurm, `curate verify` must find nothing, and no process and
no folder may be left. What was found: benchmarks/results/cluster.md.
"""

import argparse
import getpass
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
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

ROOT = Path(__file__).parents[1]
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "squeue", "scancel")
NODES = ("node1", "node2")
NODE_MIB = 8192
SETTINGS = """
ClusterName=curate
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
ReturnToService=2
SchedulerParameters=sched_interval=2
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory={mib}
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory={mib}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a case; `left` counts processes and folders of its jobs afterwards."""

    case: str
    tasks: int
    state: str
    wall_s: float
    sources: int
    kept: int
    verify: int
    same_shards: bool | None
    left: int


class Slurm:
    """A controller and two nodes on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Starts munge's daemon, the controller and the nodes."""
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        for name in ("state", *NODES):
            (self.folder / name).mkdir()
        (self.folder / "slurm.conf").write_text(
            SETTINGS.format(
                host=socket.gethostname(),
                user=getpass.getuser(),
                folder=self.folder,
                ports=free_ports(3),
                nodes=NODES,
                mib=NODE_MIB,
            )
        )
        files = {"key-file": key, "socket": self.folder / "munge.socket"}
        files |= {f"{name}-file": self.folder / f"munge.{name}" for name in ("pid", "log", "seed")}
        self._begin("munged", "--foreground", *(f"--{name}={path}" for name, path in files.items()))
        wait_for("munge's socket", files["socket"].exists)
        self._begin("slurmctld", "-D")
        for node in NODES:
            self._begin("slurmd", "-D", "-N", node)
        wait_for("two idle nodes", lambda: self.ask("sinfo", "-h", "-o", "%D %t") == "2 idle")

    def ask(self, *command: str) -> str:
        """Returns what a command of Slurm prints."""
        ran = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
        return ran.stdout.strip() or ran.stderr.strip()

    def submit(
        self, environment: Path, file: str, *arguments: str, options: tuple[str, ...]
    ) -> str:
        """Submits a file of `infra/slurm` and returns the number of the job."""
        found = subprocess.run(
            ["sbatch", "--parsable", *options, f"infra/slurm/{file}", *arguments, *OPTIONS],
            env=self.environment | {"CURATE_ENV": str(environment)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        return found.stdout.strip()

    def state(self, job: str) -> str:
        """Returns the states of a job's tasks, each once."""
        lines = self.ask("scontrol", "show", "job", "-o", job).split()
        return "+".join(sorted({word[9:] for word in lines if word.startswith("JobState=")}))

    def stop(self) -> None:
        """Ends what `start` started, and nothing else."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()

    def _begin(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("ab") as output:
            self._processes.append(
                subprocess.Popen(
                    command, env=self.environment, stdout=output, stderr=subprocess.STDOUT
                )
            )


class Cases:
    """The cases, on one Slurm."""

    def __init__(self, slurm: Slurm, environment: Path, manifest: Path, folder: Path) -> None:
        self._slurm, self._environment, self._folder = slurm, environment, folder
        self._manifest = manifest
        self._log = str(folder / "%j.log")
        self._curate = str(environment / "bin" / "curate")
        self._plain: dict[str, str] = {}

    def plain(self) -> float:
        """Runs without Slurm; returns the time."""
        wall_s, self._plain = plain_run(self._curate, self._manifest, self._folder / "plain")
        return wall_s

    def one_run(self) -> Iterator[Outcome]:
        out, start = self._folder / "one", time.monotonic()
        job = self._submit(out)
        self._ended([job])
        yield self._outcome("one run", [job], [out], start)

    def two_at_once(self) -> Iterator[Outcome]:
        outs, start = [self._folder / "left", self._folder / "right"], time.monotonic()
        jobs = [self._submit(out, n_nodes=1) for out in outs]
        self._ended(jobs)
        yield self._outcome("two at once", jobs, outs, start)

    def node_lost(self) -> Iterator[Outcome]:
        out, start = self._folder / "lost", time.monotonic()
        job = self._submit(out)
        self._measuring(out)
        self._slurm.ask("scancel", "--signal=KILL", f"{job}.0")
        self._ended([job])
        yield self._outcome("a node lost", [job], [out], start)

    def cancelled(self) -> Iterator[Outcome]:
        out, start = self._folder / "cancelled", time.monotonic()
        job = self._submit(out)
        self._measuring(out)
        self._slurm.ask("scancel", job)
        self._ended([job])
        yield self._outcome("cancelled", [job], [], start)
        start = time.monotonic()
        job = self._submit(out)
        self._ended([job])
        yield self._outcome("the same again", [job], [out], start)

    def queued_again(self) -> Iterator[Outcome]:
        out, start = self._folder / "again", time.monotonic()
        job = self._submit(out)
        self._measuring(out)
        self._slurm.ask("scancel", "--signal=USR1", "--batch", job)
        wait_for("the job in the queue", lambda: self._slurm.state(job) in ("PENDING", "REQUEUED"))
        self._ended([job])
        yield self._outcome("queued again", [job], [out], start)

    def array(self) -> Iterator[Outcome]:
        out, start = self._folder / "array", time.monotonic()
        job = self._slurm.submit(
            self._environment, "array.sbatch", str(self._manifest), str(out),
            options=("--array=0-1", "--cpus-per-task=1", "--mem=4G", f"--output={self._log}"),
        )  # fmt: skip
        self._ended([job])
        yield self._outcome("array", [job], sorted(out.iterdir()), start)

    def _submit(self, out: Path, *, n_nodes: int = 2) -> str:
        options = (f"--nodes={n_nodes}", "--cpus-per-task=1", "--mem=6G", f"--output={self._log}")
        return self._slurm.submit(
            self._environment, "curate.sbatch", str(self._manifest), str(out), "--shared-out",
            options=options,
        )  # fmt: skip

    def _measuring(self, out: Path) -> None:
        wait_for("a first result", lambda: has_measured(out))

    def _ended(self, jobs: list[str]) -> None:
        going = {"PENDING", "RUNNING", "COMPLETING", "REQUEUED", "CONFIGURING"}
        for job in jobs:
            wait_for(
                f"job {job}", lambda job=job: not going & set(self._slurm.state(job).split("+"))
            )

    def _outcome(self, case: str, jobs: list[str], outs: list[Path], start: float) -> Outcome:
        wall_s = time.monotonic() - start
        if "COMPLETED" not in self._slurm.state(jobs[0]) and outs:
            sys.exit("".join(path.read_text() for path in self._folder.glob(f"{jobs[0]}*.log")))
        counts = [json.loads((out / "summary.json").read_text())["counts"] for out in outs]
        remains = left([f"curate-ray-{job}" for job in jobs] + [str(out) for out in outs])
        print(*remains, sep="\n", end="\n" * bool(remains))
        return Outcome(
            case=case,
            tasks=max(len(jobs), len(outs)),
            state="+".join(self._slurm.state(job) for job in jobs),
            wall_s=round(wall_s, 1),
            sources=sum(one["sources"] for one in counts),
            kept=sum(one["kept"] for one in counts),
            verify=max((verified(self._curate, out) for out in outs), default=0),
            # Parts are packed into shards of their own.
            same_shards=all(shards(out) == self._plain for out in outs)
            if outs and outs[0].parent.name != "array"
            else None,
            left=len(remains),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", type=Path, required=True, help="environment with this package")
    parser.add_argument("--films", type=int, default=12)
    options = parser.parse_args()
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        sys.exit(
            f"not installed: {', '.join(missing)}. On Debian: apt-get install slurmctld slurmd "
            "slurm-client munge"
        )
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    print(f"folder {folder}", flush=True)
    slurm = Slurm(folder)
    outcomes = []
    try:
        slurm.start()
        version = slurm.ask("sinfo", "--version")
        (folder / "films").mkdir()
        cases = Cases(slurm, options.env.absolute(), films(folder / "films", options.films), folder)
        plain_s = cases.plain()
        print(f"{version}; without Slurm {plain_s:.1f} s", flush=True)
        for case in (
            cases.one_run, cases.two_at_once, cases.node_lost, cases.cancelled, cases.queued_again,
            cases.array,
        ):  # fmt: skip
            for outcome in case():
                print(outcome, flush=True)
                outcomes.append(outcome)
    finally:
        slurm.stop()
    print(
        "\n| case | tasks | state | s | sources | kept | verify | shards as without Slurm | left |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for one in outcomes:
        same = {True: "yes", False: "**no**", None: ""}[one.same_shards]
        print(
            f"| {one.case} | {one.tasks} | {one.state} | {one.wall_s} | {one.sources} | {one.kept} "
            f"| {one.verify} | {same} | {one.left} |"
        )
    print(
        json.dumps(
            {**machine(), "slurm": version, "plain_s": round(plain_s, 1),
             "cases": [asdict(one) for one in outcomes]}
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
