"""A Ray of our own: what is replaced of it, where it listens, and what its nodes are asked once."""

import importlib.metadata
import inspect
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import tomllib
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from curator.errors import UsageError
from curator.executor.fleet import TransientRefusal
from curator.executor.ray_backend import _refusal
from curator.executor.ray_cluster import (
    LOOPBACK_KEPT,
    NO_DAEMONS,
    RayCluster,
    private_folder,
    replaced,
    use_own_token,
)


def test_the_private_parts_of_ray_that_are_used_exist_and_take_what_ours_take() -> None:
    """Fails with a Ray that renamed them: look how it starts, and move the bound."""
    from ray._private import node, services

    before = {name: inspect.getattr_static(node.Node, name) for name in NO_DAEMONS}
    resolve = services.resolve_ip_for_localhost
    assert list(inspect.signature(resolve).parameters) == ["host"]
    with replaced(node.Node, NO_DAEMONS), replaced(services, LOOPBACK_KEPT):
        assert services.resolve_ip_for_localhost("127.0.0.1") == "127.0.0.1"
        assert not any(inspect.getattr_static(node.Node, n) is f for n, f in before.items())
    assert {name: inspect.getattr_static(node.Node, name) for name in NO_DAEMONS} == before
    assert services.resolve_ip_for_localhost is resolve
    with pytest.raises(AttributeError, match="resolve_ip"), replaced(node, LOOPBACK_KEPT):
        pytest.fail("Ray would listen on all addresses")
    # What the scheduler asks of private state exists.
    from ray import _raylet
    from ray._private import node, state, worker

    assert hasattr(worker, "_global_node")
    assert callable(_raylet.setproctitle)
    assert callable(node.Node.get_session_dir_path)
    assert callable(node.Node.dead_processes)
    for name in (
        "get_draining_nodes", "get_max_resources_from_cluster_config", "get_cluster_config",
    ):  # fmt: skip
        assert callable(getattr(state.GlobalState, name))


@pytest.mark.parametrize(
    ("given", "found", "warns"),
    [
        ("127.0.0.1:6379", "10.0.0.7:6379", True),
        ("localhost:6379", "10.0.0.7:6379", True),
        ("127.0.0.1:6379", "127.0.0.1:6379", False),
        ("auto", "10.0.0.7:6379", False),
        ("10.0.0.7:6379", "10.0.0.7:6379", False),
    ],
)
def test_a_cluster_that_is_not_on_the_loopback_that_was_named_is_said(
    given: str, found: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Ray's `ray start` and `ray.init` replace 127.0.0.1, and then listen on all addresses."""
    ray = SimpleNamespace(init=lambda **options: SimpleNamespace(address_info={"address": found}))
    RayCluster(given, None)._init(ray)
    assert (f"address {given} by {found}" in caplog.text) == warns


def test_this_ray_is_within_the_bounds_of_the_package() -> None:
    """Private methods are replaced, so that a Ray that was not tried is not taken."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    needs = [Requirement(line) for lines in (project["dependencies"], *extras) for line in lines]
    bounds = [need.specifier for need in needs if need.name == "ray"]
    assert len(bounds) >= 3
    for bound in bounds:
        assert "<" in {spec.operator for spec in bound}
        assert importlib.metadata.version("ray") in bound


_LISTENS = "0A"
_LOOPBACK = {
    "0100007F",
    "0000000000000000FFFF00000100007F",  # 127.0.0.1 in an IPv6 socket
    "00000000000000000000000001000000",  # ::1
}
STARTED = """
import json, sys
from curator.executor.ray_cluster import RayCluster

cluster = RayCluster(None, 1)
cluster.start()
import ray
ray.get(ray.remote(lambda: None).remote())
print(json.dumps(ray.get_runtime_context().gcs_address), flush=True)
sys.stdin.readline()
cluster.stop()
"""
JOINED = """
import sys
from ray._raylet import GcsClient

GcsClient(address=sys.argv[1])
print("joined")
"""


def tree(root: int) -> set[int]:
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue
            parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def listening(pids: set[int]) -> dict[str, str]:
    """Returns the hexadecimal addresses on which processes listen, with a process's name."""
    inodes = {}
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inode = os.readlink(fd).removeprefix("socket:[").removesuffix("]")
                inodes[inode] = Path(f"/proc/{pid}/comm").read_text().strip()
            except OSError:
                continue
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and fields[9] in inodes:
                found[fields[1]] = inodes[fields[9]]
    return found


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's /proc")
def test_a_ray_of_our_own_listens_on_loopback_and_asks_for_its_token() -> None:
    """Pins Ray's private function that `LOOPBACK_KEPT` replaces: without it, this fails."""
    started = subprocess.Popen(
        [sys.executable, "-c", STARTED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert started.stdin is not None
    assert started.stdout is not None
    try:
        address = json.loads(started.stdout.readline())
        sockets = listening(tree(started.pid))
        # With no other token than the one that each run makes, another process stays outside.
        environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
        other = subprocess.run(
            [sys.executable, "-c", JOINED, address],
            env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        started.stdin.close()
        started.wait(timeout=60)
    assert {"gcs_server", "raylet"} <= set(sockets.values())
    assert {ip.partition(":")[0] for ip in sockets} <= _LOOPBACK, sockets
    assert address.startswith("127.0.0.1:")
    assert "joined" not in other.stdout
    assert "AuthenticationError" in other.stderr


def test_sockets_and_logs_are_in_a_folder_of_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / ("long" * 10)))
    with pytest.raises(UsageError, match=r"too long a path for Ray's sockets.* set RAY_TMPDIR"):
        private_folder()
    monkeypatch.setenv("RAY_TMPDIR", str(short))
    folder = private_folder()
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert private_folder() == folder
    folder.parent.chmod(0o755)
    with pytest.raises(UsageError, match=r"must be a folder of this user .* it has mode 0755"):
        private_folder()
    folder.parent.rmdir()
    folder.parent.symlink_to(tmp_path)
    with pytest.raises(UsageError, match="must be a folder of this user"):
        private_folder()
    shutil.rmtree(short)


def asked(log: Path, answer: str | None) -> str | None:
    with log.open("a") as file:
        file.write("asked\n")
    return answer


@pytest.mark.parametrize(
    "answer", [None, "NVDEC does not answer", TransientRefusal("the server is down")]
)
def test_a_node_is_asked_once_in_a_run_unless_the_answer_may_pass(
    answer: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ray's native code reads the token when it is imported, for all tests of this process.
    use_own_token()
    import ray

    here = {"job": "one", "node": "a"}
    context = SimpleNamespace(get_job_id=lambda: here["job"], get_node_id=lambda: here["node"])
    node = SimpleNamespace(get_session_dir_path=lambda: str(tmp_path))
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(ray._private.worker, "_global_node", node)
    check = pickle.dumps(partial(asked, tmp_path / "log", answer))

    def n_asked() -> int:
        answers = [_refusal(check) for _ in range(3)]
        assert answers == [answer] * 3
        assert {type(one) for one in answers} == {type(answer)}
        lines = (tmp_path / "log").read_text().splitlines()
        (tmp_path / "log").unlink()
        return len(lines)

    expected = 3 if isinstance(answer, TransientRefusal) else 1
    assert n_asked() == expected
    for change in ({"node": "b"}, {"job": "two"}):
        here |= change
        assert n_asked() == expected
