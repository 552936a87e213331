"""A Ray of our own listens on loopback alone, and refuses clients without its token."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from curator.errors import UsageError
from curator.executor.ray_cluster import private_folder

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's /proc")

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
    """Returns a process and everything that it started."""
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


def test_a_ray_of_our_own_listens_on_loopback_and_asks_for_its_token() -> None:
    """Pins Ray's private function that `loopback_kept` sets aside: without it, this fails."""
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
