"""What a killed process had in the folder for temporary files does not stay for good."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from curator.storage.scratch import ScratchFolder, hold, remove_dead, unnamed_file

KILLED = """
import os, signal, sys
from pathlib import Path
from curator.storage import scratch
from curator.storage.scratch import ScratchFolder, unnamed_file
if len(sys.argv) > 2:
    # As if the shell that waits for the death of this process was killed too.
    scratch._removed_at_death = lambda folder: None
files = [open(os.devnull) for _ in range(10)]
folder = ScratchFolder("kind-", Path(sys.argv[1]))
(folder.path / "file").write_text("x")
with unnamed_file(".mp4") as (path, file):
    open(path, "wb").write(b"x" * 100)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_folder_of_a_killed_process_goes_with_the_next_of_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with ScratchFolder("kind-", tmp_path) as alive:
        command = [sys.executable, "-c", KILLED, str(tmp_path), "no shell"]
        assert subprocess.run(command, check=False).returncode == -9
        (dead,) = set(tmp_path.iterdir()) - {alive.path}
        with ScratchFolder("other-", tmp_path):
            assert dead.exists()
        with ScratchFolder("kind-", tmp_path):
            assert not dead.exists()
            assert alive.path.exists()
    assert not list(tmp_path.iterdir())


def test_a_folder_of_a_killed_process_goes_at_once(tmp_path: Path) -> None:
    """Pins this for workers of Ray, which are killed at the end of a run, with many open files."""
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -9
    ends_s = time.monotonic() + 10
    while list(tmp_path.iterdir()):
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def test_folders_without_a_lock_stay_and_an_unnamed_file_has_a_path(tmp_path: Path) -> None:
    (tmp_path / "kind-foreign").mkdir()
    dead = tmp_path / "kind-dead"
    dead.mkdir()
    hold(dead).close()
    (tmp_path / "kind-link").symlink_to(dead)
    remove_dead(tmp_path, "kind-")
    assert {path.name for path in tmp_path.iterdir()} == {"kind-foreign", "kind-link"}
    # An unnamed file is written by its path.
    with unnamed_file(".mp4") as (path, file):
        Path(path).write_bytes(b"abc")
        assert file.read() == b"abc"
