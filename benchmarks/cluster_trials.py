"""What the trials of clusters share: footage, free ports, waiting, and what is left afterwards."""

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import tests_path  # noqa: F401
from film_makers import write_video
from film_shots import moving_texture

OPTIONS = ("--set", "filters.short_side_px.min=100", "--set", "shard.resolutions=[120]")
"""The footage is small."""
FILM_FRAMES = 100


def free_ports(n: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_for(what: str, is_so: Callable[[], bool], limit_s: float = 600) -> None:
    deadline = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {limit_s:.0f} s for {what}")
        time.sleep(0.5)


def films(folder: Path, n: int) -> Path:
    for number in range(n):
        frames = moving_texture(FILM_FRAMES, seed=3 + number)
        write_video(folder / f"{number:02}.mp4", frames, fps=Fraction(25))
    manifest = folder / "films.csv"
    rows = (f"{number:02}.mp4,{number}\n" for number in range(n))
    manifest.write_text("uri,number\n" + "".join(rows))
    return manifest


def shards(out: Path) -> dict[str, str]:
    """Names and hashes of an output's shards."""
    listed = json.loads((out / "shards" / "manifest.json").read_text())
    return {shard["name"]: shard["sha256"] for shard in listed["shards"]}


def left(marks: list[str]) -> list[str]:
    """Processes and folders that carry a job's mark."""
    found = [str(path) for path in Path("/tmp").iterdir() if path.name in marks]
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found += [command for mark in marks if mark in command]
    return found


def verified(curate: str, out: Path) -> int:
    """Exit code of `curate verify`."""
    return subprocess.run(
        [curate, "verify", out], check=False, stdout=subprocess.DEVNULL
    ).returncode


def plain_run(curate: str, manifest: Path, out: Path) -> tuple[float, dict[str, str]]:
    """Runs without a cluster; returns the time and the shards."""
    start = time.monotonic()
    subprocess.run(
        [curate, "run", manifest, out, *OPTIONS],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.monotonic() - start, shards(out)


def has_measured(out: Path) -> bool:
    """Whether a run into `out` has stored a result."""
    return any((out / "tracks").rglob("*.parquet"))
