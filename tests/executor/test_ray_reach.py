"""Addresses of Ray clusters that are wrong: how fast a command ends, and what it leaves."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Curate

from curator.errors import UsageError
from curator.executor import ray_reach
from curator.executor.ray_reach import check_reachable
from curator.tools.commands.arguments import EXIT_TERMINATED, EXIT_USAGE
from curator.tools.doctor.examination import cluster_row


@pytest.fixture
def silent() -> Iterator[str]:
    """Address of a server that accepts and never answers."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def _command(tmp_path: Path, address: str) -> list[str]:
    (tmp_path / "a.mp4").write_bytes(b"video")
    return ["run", str(tmp_path), f"{tmp_path}/out", "--ray-address", address, "--shared-out"]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:1", "cannot be connected to (Connection refused)"),
        ("no-such-host.invalid:6379", "cannot be connected to ("),
        ("ray://127.0.0.1:10001", "is for Ray Client"),
        ("http://127.0.0.1:8265", "is for Ray Client, for jobs or for a web page"),
        ("ray-head", "has no host and port"),
        ("ray-head:99999", "has no host and port"),
        ("local", "has no host and port"),
    ],
)
def test_a_wrong_address_ends_a_run_before_scan_and_lease(
    tmp_path: Path, curate: Curate, address: str, reason: str
) -> None:
    begun = time.monotonic()
    error = curate(*_command(tmp_path, address), code=EXIT_USAGE)
    assert reason in error
    assert error.count("\n") == 1
    assert time.monotonic() - begun < 10
    assert not (tmp_path / "out").exists()
    row = cluster_row(address)
    assert row.stops
    assert row.remedy


def test_a_port_that_never_answers_ends_at_the_deadline(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that native code of Ray, which waits for minutes, does not hold the command."""
    assert sum(ray_reach.LIMITS_S[step] for step in ("connect", "ask")) < 10
    monkeypatch.setitem(ray_reach.LIMITS_S, "ask", 0.5)
    with pytest.raises(UsageError, match=r"does not answer as the head of a Ray cluster within"):
        check_reachable(silent)


def test_sigterm_ends_the_attempt_at_once(
    silent: str, tmp_path: Path, curate: Curate, monkeypatch: pytest.MonkeyPatch
) -> None:
    children: list[subprocess.Popen[bytes]] = []

    class Kept(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401
            super().__init__(*args, **options)
            children.append(self)

    monkeypatch.setattr(ray_reach.subprocess, "Popen", Kept)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    begun = time.monotonic()
    curate(*_command(tmp_path, silent), code=EXIT_TERMINATED)
    assert time.monotonic() - begun < 2
    assert not (tmp_path / "out").exists()
    assert [child.returncode for child in children] == [-signal.SIGKILL]
