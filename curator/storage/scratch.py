"""Temporary files that do not outlive a killed process for good.

A file that only FFmpeg and this process use has no name; a sandboxed worker, which may create none,
gets its files from its parent. Folders are locked by the process that
made them; the next process that makes one of that kind removes those of ended processes.
"""

import errno
import fcntl
import os
import shutil
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
"""File in a folder; locked as long as the process that made it lives."""
STALE_AFTER_S = 86_400.0
"""Age at which a folder without a lock goes: one that is being made has none for a moment."""
ROOM_BYTES = 64 << 20
"""Free space from which a disk does not count as full: some file systems keep a little."""


_files: dict[str, str] = {}
"""Paths of files that this process may write where it can make none, by their suffixes."""


def use_files(paths: Iterable[str]) -> None:
    """Lets `unnamed_file` and `given_file` take these files from now on."""
    _files.update({Path(path).suffix: path for path in paths})


def given_file(suffix: str) -> str | None:
    """Returns the file with a suffix that this process was given; None if it makes its own."""
    return _files.get(suffix)


@contextmanager
def unnamed_file(suffix: str) -> Iterator[tuple[str, BinaryIO]]:
    """Opens a temporary file, and returns it with a path for this process.

    On Linux it has no name in any folder, so that it vanishes however the process ends. What writes
    there raises `FullDiskError` when the disk is full.
    """
    with full_disk_named():
        if (path := _files.pop(suffix, None)) is not None:
            try:
                with open(path, "w+b") as file:
                    yield path, file
            finally:
                open(path, "wb").close()
                _files[suffix] = path
        elif sys.platform == "linux":
            with tempfile.TemporaryFile() as file:
                yield f"/proc/self/fd/{file.fileno()}", file
        else:
            with tempfile.NamedTemporaryFile(suffix=suffix) as named:
                yield named.name, named


@contextmanager
def full_disk_named() -> Iterator[None]:
    """Raises `FullDiskError` for a full disk, which would else count as an error of the film."""
    try:
        yield
    except (OSError, av.error.FFmpegError) as error:
        # A film must not end the run by an error of FFmpeg that has the same number.
        if error.errno != errno.EDQUOT and (error.errno != errno.ENOSPC or has_room()):
            raise
        raise FullDiskError(tempfile.gettempdir()) from error


def has_room() -> bool:
    """Returns whether the disk of temporary files is not full."""
    disk = os.statvfs(tempfile.gettempdir())
    has_names = disk.f_files == 0 or disk.f_favail > 0
    return has_names and disk.f_bavail * disk.f_frsize >= ROOM_BYTES


class ScratchFolder:
    """A temporary folder, removed by `close` or by a later process after this one has died.

    Folders whose name begins with `prefix` too are removed if they have no lock.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        remove_dead(parent, prefix, without_lock=True)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._lock = hold(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def hold(folder: Path) -> BinaryIO:
    """Locks a folder for as long as the returned file is open."""
    # Under another name until it is locked, so that no process takes the folder for a dead one.
    begun = folder / f"{LOCK}.{os.getpid()}"
    file = begun.open("wb")
    fcntl.flock(file, fcntl.LOCK_EX)
    begun.rename(folder / LOCK)
    return file


def remove_dead(parent: Path, prefix: str, *, without_lock: bool = False) -> None:
    """Removes this user's folders of ended processes; ignores those that cannot be removed."""
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
                    # Raises where its process lives.
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
