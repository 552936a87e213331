"""Temporary files and folders that a killed process does not leave behind permanently.

A file for FFmpeg and this process alone has no name. A sandboxed worker may not create files, and
gets files from its parent. A process locks each folder that it makes. The next process that makes
a folder of this kind removes the folders of ended processes.
"""

import errno
import fcntl
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self

import av.error

from curator.errors import FullDiskError

LOCK = "curate.lock"
"""File in a folder, locked while the process that made the folder lives."""
STALE_AFTER_S = 86_400.0
"""Age at which a folder without a lock is removed; a new folder has no lock for a moment."""
ROOM_BYTES = 64 << 20
"""Free space at which a disk is not full; some file systems reserve a little space."""


MAX_MP4S = 8
"""Most temporary MP4s that a process which cannot create files has at a time."""
_files: dict[str, list[str]] = {}
"""Paths of files for a process that cannot create files, by suffix."""


def use_files(paths: Iterable[str]) -> None:
    """Makes `unnamed_file` and `given_file` use these files from now on."""
    for path in paths:
        _files.setdefault(Path(path).suffix, []).append(path)


def given_file(suffix: str) -> str | None:
    """Returns the file with this suffix from `use_files`; None if this process creates files."""
    return next(iter(_files.get(suffix, ())), None)


@contextmanager
def unnamed_file(suffix: str) -> Iterator[tuple[str, BinaryIO]]:
    """Opens a temporary file; yields a path for this process, and the file.

    On Linux the file has no name in any folder, so it vanishes when the process ends. The block
    raises `FullDiskError` if the disk is full.
    """
    with full_disk_named():
        if paths := _files.get(suffix):
            path = paths.pop()
            try:
                with open(path, "w+b") as file:
                    yield path, file
            finally:
                open(path, "wb").close()
                paths.append(path)
        elif sys.platform == "linux":
            with tempfile.TemporaryFile() as file:
                yield f"/proc/self/fd/{file.fileno()}", file
        else:
            with tempfile.NamedTemporaryFile(suffix=suffix) as named:
                yield named.name, named


@contextmanager
def full_disk_named() -> Iterator[None]:
    """Raises `FullDiskError` for a full disk, which would otherwise be an error of the source."""
    try:
        yield
    except (OSError, av.error.FFmpegError) as error:
        # FFmpeg may raise an error with the same number for a bad source, which must not end a run.
        if error.errno != errno.EDQUOT and (error.errno != errno.ENOSPC or has_room()):
            raise
        raise FullDiskError(tempfile.gettempdir()) from error


def has_room() -> bool:
    """Returns whether the disk of temporary files is not full."""
    disk = os.statvfs(tempfile.gettempdir())
    has_names = disk.f_files == 0 or disk.f_favail > 0
    return has_names and disk.f_bavail * disk.f_frsize >= ROOM_BYTES


class ScratchFolder:
    """A temporary folder; `close` removes it, or a waiting shell if this process is killed.

    If the shell is killed too, a later process removes the folder. Old folders without a lock are
    removed too if their name begins with `prefix`.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        remove_dead(parent, prefix, without_lock=True)
        # The shell waits before there is a folder, so that a kill between leaves no folder.
        self.path = parent / f"{prefix}{secrets.token_hex(8)}"
        self._alive = _removed_at_death(self.path)
        self.path.mkdir(mode=0o700)
        self._lock = hold(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()
        if self._alive is not None:
            self._alive.close()


def _removed_at_death(folder: Path) -> BinaryIO | None:
    """Starts a shell that removes a folder once the returned file is closed, as at any death.

    Workers of Ray are killed at the end of a run, so they cannot remove their folders. The shell is
    no child of this process, because Ray kills those too. None if there is no shell.
    """
    waits, alive = os.pipe()
    try:
        subprocess.run(
            # A shell gives its background no standard input. It takes descriptors of one digit.
            ["/bin/sh", "-c", 'exec 3<&0; { read _ <&3; rm -rf -- "$0"; } &', str(folder)],
            env={"PATH": os.defpath},
            cwd="/",
            stdin=waits,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        )
    except OSError:
        os.close(alive)
        return None
    finally:
        os.close(waits)
    return os.fdopen(alive, "wb", buffering=0)


def hold(folder: Path) -> BinaryIO:
    """Locks a folder for as long as the returned file is open."""
    # The lock comes before the name, so that no other process removes a folder without a lock.
    begun = folder / f"{LOCK}.{os.getpid()}"
    file = begun.open("wb")
    fcntl.flock(file, fcntl.LOCK_EX)
    begun.rename(folder / LOCK)
    return file


def remove_dead(parent: Path, prefix: str, *, without_lock: bool = False) -> None:
    """Removes this user's folders of ended processes; ignores folders that cannot be removed."""
    with suppress(OSError):
        for folder in parent.glob(f"{prefix}*"):
            with suppress(OSError):
                info = folder.lstat()
                if folder.is_symlink() or not folder.is_dir() or info.st_uid != os.getuid():
                    continue
                lock = folder / LOCK
                if not lock.exists():
                    if without_lock and info.st_mtime < time.time() - STALE_AFTER_S:
                        shutil.rmtree(folder, ignore_errors=True)
                    continue
                with lock.open("rb") as file:
                    # Raises if the process of the folder lives.
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
