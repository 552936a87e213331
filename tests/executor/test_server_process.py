"""What is left of a server after its end, or that of a process above it."""

import os
import signal
from pathlib import Path

import pytest
from local_models import wait

from curator.executor.cpu_accounting import process_tree
from curator.executor.server_process import ServerProcess

ENGINES = """
setsid sh -c 'echo $$ >> {file}; sleep 600; :' &
sh -c 'echo $$ >> {file}; sleep 600; :' &
wait
"""


@pytest.mark.parametrize("killed", ["none", "relay", "keeper", "server"])
def test_no_engine_outlives_its_server(tmp_path: Path, killed: str) -> None:
    """Pins engines in a session of their own, and those of a keeper that was killed."""
    file = tmp_path / "pids"
    server = ServerProcess(["sh", "-c", ENGINES.format(file=file)], os.environ)
    wait("the engines", lambda: file.exists() and len(file.read_text().split()) == 2)
    engines = file.read_text().split()
    tree = list(process_tree(server.pid))
    if killed != "none":
        os.kill(int(tree[["relay", "keeper", "server"].index(killed)]), signal.SIGKILL)
        wait("the end", lambda: server.status is not None)
    server.stop()
    wait("the end of the engines", lambda: not any(map(_runs, engines)), 8)


def _runs(process: str) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
