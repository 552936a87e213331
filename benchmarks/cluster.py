"""Fake clusters on one machine: growth from nothing, lost nodes, unlike nodes, scaling.

    python benchmarks/cluster.py grow      # Ray's autoscaler, 0 to 8 nodes and back
    python benchmarks/cluster.py gpu       # a node type with fake GPUs, from a head without
    python benchmarks/cluster.py kills --films DIR   # ten nodes lost while a real run goes on
    python benchmarks/cluster.py mixed --films DIR --out DIR   # decoders and cutters
    python benchmarks/cluster.py packing --spread 1.0   # which nodes workers are placed on
    python benchmarks/cluster.py scaling   # null work on 1, 2, 4, 8 nodes of one core

Nodes are Ray's own processes on this machine (`fake_nodes.py`). Units of null
work sleep, so that eight nodes can be busy on two cores.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from measure import machine

from curator.executor.engine import Engine
from curator.executor.ray_start import use_own_token
from curator.executor.timeline import N_BUCKETS, busy_of
from curator.executor.worker import Step
from curator.stage import Resources

FAKE_HEAD = "fffffffffffffffffffffffffffffffffffffffffffffffffff00000"
MIB = 1 << 20
WORKER = Resources(cpus=1, memory_bytes=256 * MIB)


class Sleeps:
    """Null work: a unit is a list of seconds to sleep."""

    def __init__(self, *, name: str) -> None:
        self._name = name

    def __call__(self, unit: list[float]) -> list[float]:
        """Sleeps."""
        time.sleep(sum(unit))
        return unit


def node_type(most: int, *, resources: Mapping[str, float], least: int = 0) -> dict[str, Any]:
    """A node type of the autoscaler."""
    return {
        "resources": {"object_store_memory": 80 * MIB, **resources},
        "node_config": {},
        "min_workers": least,
        "max_workers": most,
    }


@contextlib.contextmanager
def autoscaling_head(types: Mapping[str, Mapping[str, Any]], idle_minutes: float) -> Iterator[str]:
    """A head without CPUs, whose autoscaler adds fake nodes; yields its address."""
    os.environ["RAY_AUTH_MODE"] = "token"
    # Ray's native code reads it once for each process.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    port = random.randint(20_000, 30_000)
    with tempfile.TemporaryDirectory(prefix="c", dir="/tmp") as name:
        config = {
            "cluster_name": "fake",
            "max_workers": sum(int(one["max_workers"]) for one in types.values()),
            "upscaling_speed": 100.0,
            "idle_timeout_minutes": idle_minutes,
            "provider": {
                "type": "external",
                "module": "fake_nodes.FakeNodes",
                "gcs_address": f"127.0.0.1:{port}",
                "head_node_id": FAKE_HEAD,
                "launch_multiple": True,
                "use_node_id_as_ip": True,
                "disable_launch_config_check": True,
                "disable_node_updaters": True,
                "foreground_node_launch": False,
            },
            "available_node_types": {
                "ray.head.default": {"resources": {}, "node_config": {}, "max_workers": 0},
                **types,
            },
            "head_node_type": "ray.head.default",
            "auth": {},
            "docker": {},
            "head_node": {},
            "worker_nodes": {},
            "file_mounts": {},
            "cluster_synced_files": [],
            "file_mounts_sync_continuously": False,
            "rsync_exclude": [],
            "rsync_filter": [],
            "initialization_commands": [],
            "setup_commands": [],
            "head_setup_commands": [],
            "worker_setup_commands": [],
            "head_start_ray_commands": [],
            "worker_start_ray_commands": [],
        }
        path = Path(name) / "fake.yaml"
        path.write_text(yaml.safe_dump(config))
        environment = {
            **os.environ,
            "RAY_FAKE_CLUSTER": "1",
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD,
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "RAY_enable_autoscaler_v2": "0",
            "CURATE_BENCHMARK": name,
            "PYTHONPATH": os.pathsep.join(filter(None, map(os.path.abspath, sys.path))),
        }
        head = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("ray")), "start", "--head", "--block",
                f"--port={port}", "--num-cpus=0", "--num-gpus=0", "--node-ip-address=127.0.0.1",
                f"--autoscaling-config={path}", "--include-dashboard=false",
                "--object-store-memory=100000000", f"--temp-dir={name}/r",
            ],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            wait_for_port(port)
            yield f"127.0.0.1:{port}"
        finally:
            head.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                head.wait(timeout=20)
            for pid in marked(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def marked(mark: str) -> list[int]:
    """Processes that were started for a cluster, by their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"CURATE_BENCHMARK={mark}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return [pid for pid in found if pid != os.getpid()]


def wait_for_port(port: int) -> None:
    """Waits until something listens."""
    import socket

    for _ in range(300):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            time.sleep(2)
            return
        time.sleep(0.2)
    raise SystemExit("the head did not come up")


class Watch:
    """Notes how many nodes of each type there are, each second."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, Counter[str]]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def look(self) -> Counter[str]:
        """Nodes that are there, but the head."""
        import ray

        return Counter(
            "gpu" if node["Resources"].get("GPU") else "cpu"
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU")
        )

    def _run(self) -> None:
        import ray

        while not self._stop.wait(1.0):
            if ray.is_initialized():
                with contextlib.suppress(Exception):
                    self.seen.append((time.time(), self.look()))


def busy_share(facts: Mapping[str, Any], begun_s: float, ended_s: float, cpus: int) -> float:
    """Share of some CPUs that was busy between two times, by the timeline."""
    from datetime import datetime

    timeline = facts["timeline"]
    start_s = datetime.fromisoformat(timeline["start"]).timestamp()
    width_s = float(timeline["bucket_s"])
    total = 0.0
    for row in timeline["rows"]:
        for number, busy in enumerate(row["busy"].split()):
            from_s, to_s = start_s + number * width_s, start_s + (number + 1) * width_s
            total += float(busy) * max(0.0, min(to_s, ended_s) - max(from_s, begun_s))
    return total / (cpus * (ended_s - begun_s))


def grow(n_nodes: int, n_units: int, unit_s: float) -> dict[str, Any]:
    """From no node to all, and back."""
    types = {"cpu": node_type(n_nodes, resources={"CPU": 1, "memory": 512 * MIB})}
    step = Step(make=Sleeps, settings={"name": "analyze"}, resources=WORKER, keeps_state=True)
    with autoscaling_head(types, 0.5) as address, Watch() as watch:
        begun_s = time.time()
        with Engine(address=address, workers=None) as engine:
            results = list(engine.run([step], [[unit_s]] * n_units))
            ended_s = time.time()
            while watch.look()["cpu"] and time.time() < ended_s + 240:
                time.sleep(1)
            gone_s = time.time()
            facts = engine.facts()
            at_end = watch.look()["cpu"]
    first_s = next(at for at, nodes in watch.seen if nodes["cpu"])
    full_s = next((at for at, nodes in watch.seen if nodes["cpu"] == n_nodes), None)
    assert full_s is not None, "not all nodes came"
    tail_s = unit_s
    return {
        "nodes": n_nodes,
        "units": len(results),
        "seconds of a unit": unit_s,
        "first node after": round(first_s - begun_s),
        "all nodes after": round(full_s - begun_s),
        "busy, first 3 minutes after all were up": round(
            busy_share(facts, full_s, min(full_s + 180, ended_s - tail_s), n_nodes), 3
        ),
        "run took": round(ended_s - begun_s),
        "nodes left when idle": at_end,
        "back to none after": round(gone_s - ended_s),
        "cluster": facts["cluster"],
    }


def gpu(n_units: int) -> dict[str, Any]:
    """Fake GPUs come, from a head without any, and take the chain that asks for them."""
    types = {
        "gpu": node_type(1, resources={"CPU": 2, "GPU": 1, "memory": 2048 * MIB}),
        "cpu": node_type(2, resources={"CPU": 1, "memory": 512 * MIB}),
    }
    on_gpu = Resources(cpus=1, gpus=0.5, memory_bytes=256 * MIB)
    chains = [
        [Step(make=Sleeps, settings={"name": name}, resources=each, keeps_state=True)]
        for name, each in (("gpu", on_gpu), ("cpu", WORKER))
    ]
    with (
        autoscaling_head(types, 0.5) as address,
        Engine(address=address, workers=None) as engine,
    ):
        n_gpus = engine.may_have_gpus()
        results = list(engine.run(chains[0], [[2.0]] * n_units, without_gpu=chains[1]))
        facts = engine.facts()
    return {
        "GPUs may come": n_gpus,
        "units": len(results),
        "cluster": facts["cluster"],
        "timeline": [
            {name: row[name] for name in ("node", "stage", "units", "busy_s")}
            for row in facts["timeline"]["rows"]
        ],
    }


def scaling(sizes: Sequence[int], n_units: int, unit_s: float) -> list[dict[str, Any]]:
    """Null work on more and more nodes."""
    rows = []
    for n_nodes in sizes:
        types = {
            "cpu": node_type(n_nodes, resources={"CPU": 1, "memory": 512 * MIB}, least=n_nodes)
        }
        step = Step(make=Sleeps, settings={"name": "analyze"}, resources=WORKER, keeps_state=True)
        with (
            autoscaling_head(types, 10) as address,
            Watch() as watch,
            Engine(address=address, workers=None) as engine,
        ):
            engine.n_cpus()
            while watch.look()["cpu"] < n_nodes:
                time.sleep(0.5)
            list(engine.run([step], [[0.0]] * 4 * n_nodes))
            begun_s, cpu_s = time.time(), time.process_time()
            list(engine.run([step], [[unit_s]] * n_units))
            took_s = time.time() - begun_s
            cpu_s = time.process_time() - cpu_s
        rows.append(
            {
                "nodes": n_nodes,
                "seconds": round(took_s, 1),
                "efficiency": round(n_units * unit_s / n_nodes / took_s, 3),
                "driver CPU ms a unit": round(1e3 * cpu_s / n_units, 2),
            }
        )
        print(rows[-1], flush=True)
    return rows


def packing(spread: float) -> dict[str, list[int]]:
    """Which of two nodes of four cores actors of one core are placed on, by number of actors."""
    os.environ["RAY_scheduler_spread_threshold"] = str(spread)  # noqa: SIM112 - as Ray reads it
    use_own_token()
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(2):
        nodes.add_node(num_cpus=4)
    ray.init(address=nodes.address, log_to_driver=False)
    found = {}
    for n_actors in (2, 4, 6):
        actors = [ray.remote(num_cpus=1)(Where).remote() for _ in range(n_actors)]
        places = Counter(ray.get([actor.node.remote() for actor in actors]))
        found[f"{n_actors} actors"] = sorted(places.values(), reverse=True)
        for actor in actors:
            ray.kill(actor)
        time.sleep(3)
    ray.shutdown()
    nodes.shutdown()
    return found


class Where:
    """An actor that says where it is."""

    def node(self) -> str:
        """The id of its node."""
        import ray

        return str(ray.get_runtime_context().get_node_id())


def shards(out: Path) -> dict[str, str]:
    """Hashes of a run's tars."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((out / "shards").rglob("*.tar"))
    }


def kills(films: Path, n_kills: int, seed: int) -> dict[str, Any]:
    """Nodes are lost at random moments while a run goes on; others come in their place."""
    # Ray's native code reads them when it is loaded.
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    from ray.cluster_utils import Cluster

    dice = random.Random(seed)
    settings = [
        "--set", "filters.short_side_px.min=100", "--set", "shard.resolutions=[120]",
        "--set", "analyze.segment_s=10", "--shared-out",
    ]  # fmt: skip
    command = [sys.executable, "-m", "curator.cli", "run", str(films)]
    with tempfile.TemporaryDirectory(prefix="kills", dir="/tmp") as name:
        alone, out = Path(name) / "alone", Path(name) / "out"
        begun_s = time.time()
        subprocess.run([*command, str(alone), *settings], check=True, capture_output=True)
        alone_s = time.time() - begun_s
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        kinds = ("a", "b")
        up = [nodes.add_node(num_cpus=1, resources={kind: 1}) for kind in kinds]
        killed: list[str] = []
        begun_s = time.time()
        log = (Path(name) / "log").open("w")
        process = subprocess.Popen(
            [*command, str(out), *settings, "--ray-address", nodes.address],
            stdout=log, stderr=log,
        )  # fmt: skip
        while process.poll() is None and len(killed) < n_kills:
            time.sleep(dice.uniform(3, 14))
            if process.poll() is not None:
                break
            place = dice.randrange(len(up))
            kill_node(up[place])
            killed.append(f"{kinds[place]} after {time.time() - begun_s:.0f} s")
            nodes.worker_nodes.discard(up[place])
            up[place] = nodes.add_node(num_cpus=1, resources={kinds[place]: 1}, wait=False)
        code = process.wait(timeout=1200)
        took_s = time.time() - begun_s
        log.close()
        text = (Path(name) / "log").read_text()
        nodes.shutdown()
        if code != 0:
            print(text[-4000:])
        summary = json.loads((out / "summary.json").read_text())
        verified = subprocess.run(
            [sys.executable, "-m", "curator.cli", "verify", str(out)],
            check=False, capture_output=True,
        ).returncode  # fmt: skip
        return {
            "exit code": code,
            "nodes killed": killed,
            "sources": summary["counts"].get("listed"),
            "done": summary["counts"]["done"],
            "failed": summary["counts"]["by_error"],
            "tars": len(shards(out)),
            "bytes equal to an undisturbed run": shards(out) == shards(alone),
            "verify": verified,
            "seconds": round(took_s),
            "seconds undisturbed, no cluster": round(alone_s),
            "cluster": {k: v for k, v in summary["cluster"].items() if k != "workers"},
        }


def mixed(films: Path, report: Path | None, *, whole: bool) -> dict[str, Any]:
    """Decoding on one type of nodes and cutting on another, at the same time.

    `whole` takes all films as one generation, without the search for duplicates.
    """
    types = {
        "decoders": node_type(1, resources={"CPU": 1, "decoders": 1, "memory": 3000 * MIB}),
        "cutters": node_type(1, resources={"CPU": 1, "cutters": 1, "memory": 3000 * MIB}),
    }
    settings = [
        "--set", "filters.short_side_px.min=100", "--set", "shard.resolutions=[120]",
        "--shared-out",
        "--place", "analyze=decoders", "--place", "cut=cutters", "--place", "scan=decoders",
    ]  # fmt: skip
    more = ["dedup.enabled=false"] if whole else ["run.generation_hours=0.015", "run.mode=growing"]
    settings += [word for one in more for word in ("--set", one)]
    with autoscaling_head(types, 1) as address, tempfile.TemporaryDirectory() as name:
        out = report or Path(name) / "out"
        done = subprocess.run(
            [
                sys.executable, "-m", "curator.cli", "run", str(films), str(out), *settings,
                "--ray-address", address,
            ],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            print(done.stderr[-4000:])
        summary = json.loads((out / "summary.json").read_text())
    rows = summary["timeline"]["rows"]
    busy: defaultdict[str, Any] = defaultdict(lambda: np.zeros(N_BUCKETS))
    for row in rows:
        busy[row["stage"]][: len(busy_of(row))] += busy_of(row)
    cuts, decodes = np.minimum(1.0, busy["cut"]), np.minimum(1.0, busy["analyze"])
    width_s = summary["timeline"]["bucket_s"]
    return {
        "exit code": done.returncode,
        "rows": [{key: row[key] for key in ("node", "stage", "units", "busy_s")} for row in rows],
        "seconds with cutting": round(float(cuts.sum()) * width_s, 1),
        "of these with decoding": round(
            float(np.maximum(0.0, cuts + decodes - 1).sum()) * width_s, 1
        ),
    }


def kill_node(node: Any) -> None:  # noqa: ANN401
    """Ends all processes of a node at once, its workers too, as a machine that is taken away."""
    raylet = next(
        info.process.pid for name, infos in node.all_processes.items() if name == "raylet"
        for info in infos
    )  # fmt: skip
    pids = {info.process.pid for infos in node.all_processes.values() for info in infos}
    for pid in (*pids, *below(raylet)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def below(pid: int) -> set[int]:
    """All processes below one."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(stat.parent.name))
    found, left = set(), [pid]
    while left:
        for child in parents.get(left.pop(), ()):
            found.add(child)
            left.append(child)
    return found


def main() -> None:
    """Runs one experiment, and prints what was measured as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("grow", "gpu", "kills", "mixed", "packing", "scaling"))
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--units", type=int, default=1500)
    parser.add_argument("--unit-s", type=float, default=1.0)
    parser.add_argument("--films", type=Path, help="folder of videos for `kills`, `mixed`")
    parser.add_argument("--out", type=Path, help="where `mixed` leaves its run, with the report")
    parser.add_argument("--spread", type=float, default=0.5, help="Ray's threshold for `packing`")
    parser.add_argument("--whole", action="store_true", help="`mixed` with one generation")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found: Any
    if options.what == "grow":
        found = grow(options.nodes, options.units, options.unit_s)
    elif options.what == "gpu":
        found = gpu(options.units)
    elif options.what == "mixed":
        found = mixed(options.films, options.out, whole=options.whole)
    elif options.what == "packing":
        found = packing(options.spread)
    elif options.what == "scaling":
        found = scaling((1, 2, 4, 8), options.units, options.unit_s)
    else:
        found = kills(options.films, options.kills, options.seed)
    print(json.dumps({"machine": machine(), options.what: found}, indent=1))


if __name__ == "__main__":
    # Workers import this module by its name.
    import cluster

    cluster.main()
