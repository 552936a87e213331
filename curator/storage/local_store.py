"""A store in a folder of this machine or of a network file system."""

import errno
import fcntl
import io
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, BinaryIO

from curator.errors import StorageError, UnconditionalStoreError
from curator.storage.base import (
    STALE_AFTER_S,
    TEMPORARY_PREFIX,
    TRAFFIC,
    Entry,
    IsOwn,
    ObjectInfo,
    Store,
    checked_key,
    is_temporary,
)
from curator.storage.source_reader import file_version

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_BUFFER_BYTES = 256 << 10
_UNLOCKED_S = 2.0
"""Age up to which an unfinished file may not have its lock yet."""


@dataclass(frozen=True, slots=True)
class LocalStore(Store):
    """Objects as files below a folder, which the first write creates."""

    is_local = True
    root: str

    @property
    def uri(self) -> str:
        """The folder's absolute path."""
        return self.root

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yields the finished files with keys that start with `prefix`, sorted by key."""
        folder, _, begin = prefix.rpartition("/")
        if folder:
            checked_key(folder)
        for key, path in _files(os.path.join(self.root, folder), folder, begin=begin):
            if is_temporary(key):
                continue
            with suppress(FileNotFoundError):
                yield _info(key, os.stat(path))

    def entries(self) -> Iterator[Entry]:
        """Yields files, folders and all else below the folder, sorted within their folder."""
        root = os.path.realpath(self.root)
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            try:
                with os.scandir(os.path.join(root, folder)) as scan:
                    names = sorted(entry.name for entry in scan)
            except OSError as error:
                problem = f"it cannot be listed: {error.strerror}"
                yield Entry(key=folder or ".", is_object=False, problem=problem)
                continue
            for name in names:
                entry, is_folder = _entry(root, os.path.join(folder, name))
                yield entry
                if is_folder:
                    waiting.append(entry.key)

    def open_entry(self, entry: Entry) -> BinaryIO:
        """Opens a regular file, and no file that has come in its place and is not regular."""
        path = os.path.join(self.root, entry.key)
        with _explained("read", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise OSError(errno.EINVAL, "it is no regular file any more")
            return open(descriptor, "rb", buffering=_BUFFER_BYTES)

    def has_changed(self, entry: Entry) -> bool:
        """Returns whether a file was replaced, changed or deleted."""
        try:
            return file_version(os.lstat(os.path.join(self.root, entry.key))) != entry.version
        except OSError:
            return True

    def read(self, key: str) -> bytes:
        """Returns the whole file."""
        with self.open(key) as stream, _explained("read", self._path(key)):
            return stream.read()

    def open(self, key: str) -> BinaryIO:
        """Opens a file for reading."""
        path = self._path(key)
        with _explained("read", path):
            return open(path, "rb", buffering=_BUFFER_BYTES)

    def read_range(self, key: str, start: int, end: int) -> bytes:
        """Returns bytes of a file."""
        path = self._path(key)
        with _explained("read", path), open(path, "rb") as stream:
            stream.seek(start)
            return stream.read(end - start)

    def read_versioned(self, key: str) -> tuple[ObjectInfo, bytes] | None:
        """Returns a whole file and its version; None if it is missing."""
        path = self._path(key)
        is_missing = suppress(FileNotFoundError, NotADirectoryError)
        with _explained("read", path), is_missing, open(path, "rb") as stream:
            data = stream.read()
            return _info(key, os.fstat(stream.fileno())), data
        return None

    def write_new(self, key: str, data: bytes) -> ObjectInfo | None:
        """Gives a finished temporary file its name by a hard link, which replaces no file.

        If the file system has no hard links (FAT, some network mounts), the method creates the file
        exclusively and then writes it. Readers may then see an unfinished object for a moment, and
        a killed writer leaves it behind.
        """
        path = self._path(key)
        with _unfinished(path, data) as file, _explained("write", path):
            try:
                is_new = _linked(file.name, path)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                return _written_exclusively(key, path, data)
            # Each link changes the status of the file, and so its version.
            os.unlink(file.name)
            return _info(key, os.fstat(file.descriptor)) if is_new else None

    def replace(self, key: str, data: bytes, version: str) -> ObjectInfo | None:
        """Compares versions and renames under a lock of the old file.

        A writer that gets the lock after another writer has a file without a name, and gives up.
        The lock ends with its process. A network mount must support `flock` across machines.
        """
        path = self._path(key)
        with _explained("write", path), _locked(path) as lock:
            if lock is None or file_version(os.fstat(lock)) != version:
                return None
            with _unfinished(path, data) as file:
                file.rename(path)
                return _info(key, os.fstat(file.descriptor))

    @contextmanager
    def create(self, key: str) -> Iterator[BinaryIO]:
        """Opens an append-only stream to a temporary file; syncs and renames it at the end."""
        path = self._path(key)
        with _unfinished(path) as file:
            yield file.stream
            with _explained("write", path):
                file.sync()
                file.rename(path)

    def copy_from(self, other: Store, source: str, target: str) -> bool:
        """Makes a hard link to a file of another folder in the same file system."""
        if not isinstance(other, LocalStore):
            return False
        path, temporary = self._path(target), f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        folder = os.path.dirname(path)
        with _explained("write", path):
            os.makedirs(folder, exist_ok=True)
            link = os.path.join(folder, temporary)
            try:
                os.link(other._path(source), link)
                os.replace(link, path)
            except OSError as error:
                if error.errno in _NO_LINKS or error.errno == errno.EXDEV:
                    return False
                raise
            finally:
                # Renaming does nothing where both names are links to one file.
                with suppress(FileNotFoundError):
                    os.unlink(link)
        return True

    def delete(self, keys: Iterable[str]) -> None:
        """Removes files; keeps folders, because another writer may be about to use them."""
        for key in keys:
            path = self._path(key)
            with _explained("delete", path), suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)

    def find(self, key: str) -> ObjectInfo | None:
        """Returns size and version of a finished file; None if it does not exist."""
        path = self._path(key)
        with _explained("look up", path):
            try:
                info = os.stat(path)
            except OSError as error:
                if error.errno in _NO_FILE:
                    return None
                raise
        return _info(key, info) if stat.S_ISREG(info.st_mode) else None

    def check_writable(self) -> None:
        """Creates the folder, and writes, syncs and removes a file in it."""
        path = os.path.join(self.root, f"{TEMPORARY_PREFIX}check-{secrets.token_hex(8)}")
        data = b"written to see whether this folder can be written\n"
        with _unfinished(path, data) as file, _explained("write", path):
            file.rename(path)
        with _explained("delete", path):
            os.unlink(path)

    def clean_temporary(
        self,
        folders: Iterable[str],
        is_own: IsOwn,
        *,
        older_than_s: float = STALE_AFTER_S,
        strict: bool = False,
    ) -> int:
        """Removes temporary files that were last written at least `older_than_s` ago.

        Also removes younger files of ended writers: a writer locks its files while it lives.
        """
        now = time.time()
        removed = 0
        for key, path in chain.from_iterable(map(self._unfinished, folders)):
            if not is_own(key):
                continue
            with _explained("delete", path), suppress(FileNotFoundError):
                age_s = now - os.lstat(path).st_mtime
                if age_s >= older_than_s or (age_s >= _UNLOCKED_S and _is_abandoned(path)):
                    os.unlink(path)
                    removed += 1
        return removed

    def _unfinished(self, folder: str) -> Iterator[tuple[str, str]]:
        """Yields key and path of temporary files below a folder; not below folders of the root."""
        files = _files(os.path.join(self.root, folder), folder) if folder else _beside(self.root)
        return ((key, path) for key, path in files if is_temporary(key))

    def _path(self, key: str) -> str:
        return os.path.join(self.root, checked_key(key))


class AppendFile(io.FileIO):
    """A file that can only grow, like objects in buckets."""

    def seekable(self) -> bool:
        """Returns False."""
        return False

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Raises `io.UnsupportedOperation`."""
        raise io.UnsupportedOperation("an object that is being created cannot seek")

    def write(self, data: "ReadableBuffer", /) -> int:
        """Appends bytes; counts them in `TRAFFIC`."""
        with _explained("write", str(self.name)):
            n_bytes = super().write(data)
        TRAFFIC["sent_bytes"] += n_bytes
        return n_bytes


class _UnfinishedFile:
    """A file with a temporary name in the folder of its object, locked until its writer ends."""

    def __init__(self, path: str) -> None:
        self._folder = os.path.dirname(path)
        os.makedirs(self._folder, exist_ok=True)
        self.name = os.path.join(self._folder, f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}")
        raw = AppendFile(self.name, "xb")
        # Errors name this path.
        raw.name = path
        # Stays open if a writer closes the stream.
        self.descriptor = os.dup(raw.fileno())
        self.stream = io.BufferedWriter(raw, _BUFFER_BYTES)
        with suppress(OSError):
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def sync(self) -> None:
        if not self.stream.closed:
            self.stream.flush()
        _sync(self.descriptor)

    def rename(self, path: str) -> None:
        os.replace(self.name, path)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            _sync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        with suppress(OSError):
            os.unlink(self.name)
        with suppress(OSError, StorageError):
            self.stream.close()
        os.close(self.descriptor)


@contextmanager
def _unfinished(path: str, data: bytes | None = None) -> Iterator[_UnfinishedFile]:
    """Opens an unfinished file; writes and syncs `data`. Removes the file if not renamed."""
    with _explained("write", path):
        file = _UnfinishedFile(path)
    try:
        if data is not None:
            with _explained("write", path):
                file.stream.write(data)
                file.sync()
        yield file
    finally:
        file.close()


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot sync folders, or do not sync at all.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _is_abandoned(path: str) -> bool:
    try:
        # Network mounts grant an exclusive lock only to processes that may write.
        descriptor = os.open(path, os.O_RDWR)
    except PermissionError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _linked(temporary: str, path: str) -> bool:
    """Links a file to a free name; returns whether the name now belongs to this file."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        # A network mount may have lost the response to a request that succeeded.
        return os.stat(temporary).st_nlink == 2
    return True


def _written_exclusively(key: str, path: str, data: bytes) -> ObjectInfo | None:
    try:
        with open(path, "xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
            return _info(key, os.fstat(stream.fileno()))
    except FileExistsError:
        return None


@contextmanager
def _locked(path: str) -> Iterator[int | None]:
    """Opens and locks a file; yields None if it is missing or was replaced meanwhile."""
    try:
        try:
            # Network mounts grant an exclusive lock only to processes that may write.
            descriptor = os.open(path, os.O_RDWR)
        except PermissionError:
            descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield None
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise UnconditionalStoreError(
                f"cannot lock {path!r} ({error.strerror}): expected a file system with flock; on "
                "Lustre, mount it with -o flock"
            ) from error
        try:
            is_same = os.path.samestat(os.stat(path), os.fstat(descriptor))
        except FileNotFoundError:
            is_same = False
        yield descriptor if is_same else None
    finally:
        os.close(descriptor)


def _info(key: str, info: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key=key, bytes=info.st_size, version=file_version(info))


_SPECIAL = {
    stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip


def _entry(root: str, key: str) -> tuple[Entry, bool]:
    """Returns what has a name below a root, and whether it is a folder."""
    path = os.path.join(root, key)
    try:
        info = os.lstat(path)
        kind, problem = stat.S_IFMT(info.st_mode), None
        if kind == stat.S_IFLNK:
            target = os.path.realpath(path)
            if os.path.commonpath((root, target)) != root or not os.path.exists(target):
                problem = f"a symbolic link to {os.readlink(path)!r}, which is not under the root"
    except OSError as error:
        return Entry(key=key, is_object=False, problem=f"unreadable: {error.strerror}"), False
    if kind == stat.S_IFREG:
        return Entry(key=key, bytes=info.st_size, version=file_version(info)), False
    problem = problem or _SPECIAL.get(kind)
    return Entry(key=key, is_object=False, problem=problem), kind == stat.S_IFDIR


def _files(
    folder: str, key: str, above: tuple[tuple[int, int], ...] = (), *, begin: str = ""
) -> Iterator[tuple[str, str]]:
    """Yields (key, path) of the files below a folder, sorted by key.

    `key` is the folder's own key, empty for the root. `above` are the folders on the way here, to
    end a loop of links. Names directly in this folder must begin with `begin`.
    """
    with _explained("list", folder):
        try:
            info = os.stat(folder)
            with os.scandir(folder) as scan:
                # A folder sorts as `name/`, like the keys below it.
                entries = sorted(
                    (entry.name + "/" if entry.is_dir() else entry.name, entry.path)
                    for entry in scan
                    if entry.name.startswith(begin)
                )
        except (FileNotFoundError, NotADirectoryError):
            return
    identity = (info.st_dev, info.st_ino)
    if identity in above:
        return
    for name, path in entries:
        child = f"{key}/{name}" if key else name
        if name.endswith("/"):
            yield from _files(path, child[:-1], (*above, identity))
        else:
            yield child, path


def _beside(folder: str) -> Iterator[tuple[str, str]]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        yield from [(entry.name, entry.path) for entry in entries if not entry.is_dir()]


_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK})
"""Errors of file systems without hard links."""
_NO_LOCKS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL})
"""Errors of file systems without locks."""

_NO_FILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""Errors that prove that no file has a name; others leave it open."""

_REMEDIES = {
    errno.EACCES: "grant this user the permission, or choose another output folder",
    errno.EPERM: "grant this user the permission, or choose another output folder",
    errno.EROFS: "the file system is mounted read-only; choose another output folder",
    errno.ENOSPC: "free some space, or choose another output folder",
    errno.EDQUOT: "the quota is used up; free some space, or choose another output folder",
    errno.ENOENT: "another program removed it, or it was never written; start the run again",
    errno.ENOTDIR: "a file is in the place of a folder; choose another output folder",
    errno.EEXIST: "a file is in the place of a folder; choose another output folder",
    errno.EISDIR: "a folder is in the place of an object; remove the folder",
    errno.ENAMETOOLONG: "choose an output folder with a shorter path",
}


@contextmanager
def _explained(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "check the disk or the network mount")
        if action == "write" and error.errno == errno.ENOENT:
            remedy = (
                "its file system takes no new files, or another program removes them; choose "
                "another output folder"
            )
        words = f"cannot {action} {path!r}: {error.strerror or error}; {remedy}"
        raise StorageError(words) from error
