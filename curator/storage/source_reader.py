"""Opens sources for reading.

The URI of a source is an absolute path, or `scheme://bucket/key` with the key verbatim. URIs are
not quoted or parsed further, so any name works.
"""

import errno
import io
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

from curator.errors import CuratorError, ErrorCode, SourceError, UsageError
from curator.storage.base import ObjectInfo, has_scheme
from curator.storage.object_service import ADDRESSES, Cause, ObjectService, service_of, split_uri
from curator.storage.range_reader import BUFFER_BYTES, RangeReader

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_HOLES_BYTES = 1 << 30
"""Size of holes (bytes that were never written) that any file may have."""
RACY_NS = 2_000_000_000
"""Coarsest resolution of file times: two writes within this time may leave the same version."""


Opener = Callable[[str, str | None], BinaryIO]
_opener: Opener | None = None


def open_through(opener: Opener) -> None:
    """Makes this process open all sources through `opener`, which asks another process."""
    global _opener
    _opener = opener


def open_source(uri: str, *, expected_version: str | None = None) -> BinaryIO:
    """Opens a source as a buffered, seekable stream.

    Args:
        uri: Absolute path, or `scheme://bucket/key`.
        expected_version: Version from `stat_source` or the listing; None accepts any.

    Raises:
        SourceError: VANISHED, UNREADABLE or CHANGED, here and from reads of the stream. Reads
            notice a replaced object at once, and a changed file at its end.
    """
    if _opener is not None:
        return _opener(uri, expected_version)
    if _service(uri) is not None:
        size, _, etag = (expected_version or "").partition("-")
        reader = RangeReader(
            uri,
            failure=_object_failure,
            expected_version=etag,
            expected_bytes=int(size) if size else None,
        )
        return io.BufferedReader(reader, BUFFER_BYTES)
    _refuse_kinds(uri, _stat(uri))
    try:
        raw = _LocalFile(uri)
    except (OSError, ValueError) as error:
        raise local_failure(uri, error) from error
    if expected_version is not None and raw.version != expected_version:
        raw.close()
        raise SourceError(
            ErrorCode.CHANGED,
            f"{uri!r} changed after it was listed: {_difference(expected_version, raw.version)}; "
            "do not change files during a run, and run again",
        )
    return io.BufferedReader(raw, BUFFER_BYTES)


def file_version(info: os.stat_result) -> str:
    """Returns the version of a local file: `size-mtime_ns-ctime_ns-inode`.

    Programs that copy files set the modification time. They cannot set the time of the last change
    of status, `ctime`.
    """
    return f"{info.st_size}-{info.st_mtime_ns}-{info.st_ctime_ns}-{info.st_ino}"


def content_version(version: str) -> str:
    """Returns the version of an object without the part that a further hard link changes."""
    parts = version.split("-")
    return "-".join((*parts[:2], parts[3])) if len(parts) == 4 else version


def object_version(stored: ObjectInfo) -> str:
    """Returns the version of an object: `size-ETag`."""
    return f"{stored.bytes}-{stored.version}"


def is_racy(uri: str, version: str, since_ns: int) -> bool:
    """Returns whether a later write may leave a file's version as it is.

    `since_ns` (Unix time) is a time before the file was read. A file with a last write younger than
    the resolution of its times can change without a change of its version. A modification time in
    the far future was set by a program, and the next write changes it. Objects are never racy.
    """
    if has_scheme(uri):
        return False
    mtime_ns, ctime_ns = (int(field) for field in version.split("-")[1:3])
    oldest_ns = since_ns - RACY_NS
    return ctime_ns > oldest_ns or oldest_ns < mtime_ns <= time.time_ns() + RACY_NS


def expect_end(reader: BinaryIO, end: int) -> None:
    """Announces that reads will probably stop at byte `end`, so that the reader fetches no more."""
    raw = getattr(reader, "raw", None)
    if raw is not None and hasattr(raw, "expected_end"):
        raw.expected_end = end


def stat_source(uri: str) -> tuple[int, str]:
    """Returns a source's size in bytes and its version, as `file_version` or `object_version`.

    Raises:
        SourceError: VANISHED or UNREADABLE.
    """
    service = _service(uri)
    if service is not None:
        try:
            item = service.head(*split_uri(uri))
        except service.errors as error:
            raise _object_failure(error, uri) from error
        return item.bytes, object_version(item)
    info = _stat(uri)
    _refuse_kinds(uri, info)
    return info.st_size, file_version(info)


class _LocalFile(io.FileIO):
    """A regular file that raises `SourceError`."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "rb", opener=_open_without_waiting)
        info = os.fstat(self.fileno())
        _refuse_kinds(path, info)
        self.version = file_version(info)
        self._refuse_holes(info.st_size)

    def _refuse_holes(self, n_bytes: int) -> None:
        """Refuses a file that is mostly holes, because hashing holes would take hours."""
        n_data, at = 0, 0
        if n_bytes > MAX_HOLES_BYTES:
            with suppress(OSError):
                # ENXIO means that no data follows.
                while at < n_bytes and n_data < n_bytes - MAX_HOLES_BYTES:
                    begin = os.lseek(self.fileno(), at, os.SEEK_DATA)
                    at = os.lseek(self.fileno(), begin, os.SEEK_HOLE)
                    n_data += at - begin
            os.lseek(self.fileno(), 0, os.SEEK_SET)
            if n_data < n_bytes - max(MAX_HOLES_BYTES, n_bytes // 2):
                raise SourceError(
                    ErrorCode.TOO_LARGE_TO_PROBE,
                    f"{self.name!r} has {n_bytes} bytes, but only {n_data} are on the disk, and "
                    "the others are holes: an incomplete download or copy? fetch it again",
                )

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        try:
            count = super().readinto(buffer)
        except OSError as error:
            raise local_failure(str(self.name), error) from error
        if count == 0 and memoryview(buffer).nbytes:
            self._check_unchanged()
        return count

    def readall(self) -> bytes:
        try:
            data = super().readall()
        except OSError as error:
            raise local_failure(str(self.name), error) from error
        self._check_unchanged()
        return data

    def _check_unchanged(self) -> None:
        now = file_version(os.fstat(self.fileno()))
        if now != self.version:
            raise SourceError(
                ErrorCode.CHANGED,
                f"{self.name!r} was changed while it was read: {_difference(self.version, now)}; "
                "wait until it is complete and run again",
            )


_FACTS = ("size", "modification time", "time of the last change of status", "inode")


def _difference(before: str, now: str) -> str:
    facts = zip(_FACTS, before.split("-"), now.split("-"), strict=True)
    differ = [(name, _shown(name, a), _shown(name, b)) for name, a, b in facts if a != b]
    return ", ".join(f"its {name} was {was} and is {current}" for name, was, current in differ)


def _shown(name: str, value: str) -> str:
    if "time" not in name:
        return value
    seconds, ns = divmod(int(value), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{ns:09d}Z"


def _open_without_waiting(path: str, flags: int) -> int:
    # If a pipe has replaced the file meanwhile, it must not block the worker.
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except (OSError, ValueError) as error:
        raise local_failure(path, error) from error


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def _refuse_kinds(path: str, info: os.stat_result) -> None:
    if not stat.S_ISREG(info.st_mode):
        kind = _KINDS.get(stat.S_IFMT(info.st_mode), "a special file")
        raise SourceError(ErrorCode.UNREADABLE, f"{path!r} is {kind}; expected a file")


def local_failure(path: str, error: Exception) -> SourceError:
    """Returns the public error of a file or folder that cannot be read."""
    if isinstance(error, SourceError):
        return error
    number = error.errno if isinstance(error, OSError) else None
    if has_scheme(path) and number == errno.ENOENT:
        scheme = path.partition("://")[0]
        return SourceError(
            ErrorCode.UNREADABLE,
            f"{path!r} cannot be read: {scheme}:// is not supported; expected a path, or "
            f"{ADDRESSES}",
        )
    if number in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
        gone = "is a link to a file that does not exist" if os.path.islink(path) else "is not there"
        return SourceError(
            ErrorCode.VANISHED, f"{path!r} {gone}; check the name, or list the folder again"
        )
    words = error.strerror if isinstance(error, OSError) else str(error)
    remedy = (
        "grant this user the permission to read it"
        if number in (errno.EACCES, errno.EPERM)
        else "check the disk or the network mount, and the name"
        if number is not None
        else "correct the name"
    )
    return SourceError(ErrorCode.UNREADABLE, f"{path!r} cannot be read: {words}; {remedy}")


def _service(uri: str) -> ObjectService | None:
    try:
        return service_of(uri)
    except UsageError as error:
        raise SourceError(ErrorCode.UNREADABLE, f"{uri!r} cannot be read: {error}") from error


def _object_failure(error: Exception, uri: str) -> CuratorError:
    codes = {
        Cause.MISSING: ErrorCode.VANISHED,
        Cause.NO_BUCKET: ErrorCode.VANISHED,
        Cause.CHANGED: ErrorCode.CHANGED,
    }
    service = service_of(uri)
    assert service is not None, uri
    cause, words = service.explain(error, split_uri(uri)[0])
    return SourceError(codes.get(cause, ErrorCode.UNREADABLE), f"{uri!r} cannot be read: {words}")
