"""Opens sources for reading.

The URI of a source is an absolute path, or `scheme://bucket/key` with the key verbatim. URIs are
not quoted or parsed further, so any name works. A member of a tar is named `TAR::NAME`
(`tar_members`), unless a file or an object has this name.
"""

import errno
import io
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

from curator.errors import CuratorError, ErrorCode, SourceError, UsageError
from curator.storage.base import ObjectInfo, has_scheme
from curator.storage.object_service import (
    ADDRESSES,
    Cause,
    NoRangeError,
    ObjectService,
    service_of,
    split_uri,
)
from curator.storage.range_reader import BUFFER_BYTES, FIRST_BYTES, RangeReader, SeekableReader
from curator.storage.tar_members import (
    MAX_INDEX_BYTES,
    MemberPlace,
    ReadAt,
    TarIndex,
    member_version,
    read_index,
    split_member,
    split_version,
)

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
    expected = stat_source(uri)[1] if expected_version is None and split_member(uri) else None
    member = split_version(expected_version or expected or "")
    if member is not None:
        tar, _ = split_member(uri) or (uri, "")
        place, version = member
        raw = _open_raw(tar, version, place)
        return io.BufferedReader(_MemberReader(raw, uri, place), BUFFER_BYTES)
    return io.BufferedReader(_open_raw(uri, expected_version), BUFFER_BYTES)


def _open_raw(
    uri: str, expected_version: str | None, place: MemberPlace | None = None
) -> "RangeReader | _LocalFile":
    """Opens a file or an object, of which bytes of `place` will be read; None for all."""
    if _service(uri) is not None:
        size, _, etag = (expected_version or "").partition("-")
        reader = RangeReader(
            uri,
            failure=_object_failure,
            expected_version=etag,
            expected_bytes=int(size) if size else None,
            first_at=0 if place is None or not place.bytes else place.start,
            first_bytes=FIRST_BYTES if place is None else min(FIRST_BYTES, max(place.bytes, 1)),
        )
        reader.expected_end = None if place is None else place.start + place.bytes
        return reader
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
    return raw


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
    member = split_member(uri)
    if member is None:
        return _stat_whole(uri)
    tar, name = member
    try:
        return _stat_whole(uri)
    except SourceError as error:
        # A server may answer 403 for a missing object.
        try:
            _, version = _stat_whole(tar)
        except SourceError:
            raise error from None
    index = tar_index(tar, version)
    if name not in index.places:
        problem = index.problems.get(name, "is not there; list the tar again")
        why = f", and {tar!r} {index.faults[0]}" if index.faults else ""
        code = ErrorCode.VANISHED if name not in index.problems else ErrorCode.BAD_TAR
        raise SourceError(code, f"{uri!r} {problem}{why}")
    return index.places[name].bytes, member_version(index.places[name], version)


def _stat_whole(uri: str) -> tuple[int, str]:
    """Returns the size and version of a file or an object."""
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


_indexes: OrderedDict[tuple[str, str], TarIndex] = OrderedDict()
_indexes_lock = threading.Lock()


def tar_index(uri: str, version: str) -> TarIndex:
    """Returns the members of a tar of this version; keeps the last indexes in memory.

    Raises:
        SourceError: VANISHED, UNREADABLE or CHANGED. Faults of the tar are in the index.
    """
    index = find_tar_index(uri, version, is_wanted=lambda _: True)
    assert index is not None, uri
    return index


def find_tar_index(
    uri: str, version: str, *, is_wanted: Callable[[str], bool], most_unwanted: int | None = None
) -> TarIndex | None:
    """Returns the members of a tar; None if none of the first `most_unwanted` is wanted.

    Raises as `tar_index`.
    """
    with _indexes_lock:
        if index := _indexes.get((uri, version)):
            _indexes.move_to_end((uri, version))
            return index
    size = int(version.partition("-")[0])
    service = _service(uri)
    if service is not None:
        read_at: ReadAt = _ObjectHeaders(service, uri, version)
        index = read_index(read_at, size, is_wanted=is_wanted, most_unwanted=most_unwanted)
    else:
        # Without a buffer, which would read data of members too.
        with _open_raw(uri, version) as raw:

            def read_at(at: int, n_bytes: int) -> bytes:
                raw.seek(at)
                buffer = bytearray(n_bytes)
                return bytes(buffer[: raw.readinto(buffer)])

            index = read_index(read_at, size, is_wanted=is_wanted, most_unwanted=most_unwanted)
    if index is not None:
        with _indexes_lock:
            _indexes[uri, version] = index
            while sum(each.memory_bytes for each in _indexes.values()) > MAX_INDEX_BYTES:
                _indexes.popitem(last=False)
    return index


class _ObjectHeaders:
    """Reads headers of a tar in a bucket, by requests for what follows them too.

    A request for a header takes as long as the transfer of a megabyte, so small members are read
    through, and large ones are skipped.
    """

    def __init__(self, service: ObjectService, uri: str, version: str) -> None:
        self._service, self._uri = service, uri
        self._etag = version.partition("-")[2]
        self._start, self._data = 0, b""

    def __call__(self, at: int, n_bytes: int) -> bytes:
        end = self._start + len(self._data)
        if not self._start <= at <= at + n_bytes <= end:
            window = _FAR_BYTES if at - end > _NEAR_BYTES else _NEAR_BYTES
            place = (*split_uri(self._uri), at, at + max(n_bytes, window), self._etag)
            try:
                answer = self._service.get_range(*place)
            except NoRangeError:
                return b""
            except self._service.errors as error:
                raise _object_failure(error, self._uri) from error
            self._start, self._data = answer.start, answer.data
        begin = at - self._start
        return self._data[begin : begin + n_bytes]


_NEAR_BYTES, _FAR_BYTES = 1 << 20, 64 << 10
"""Size of a request for a header, and of one after a member that is larger than the first."""


class _MemberReader(SeekableReader):
    """Bytes of a file or an object as a raw stream."""

    def __init__(self, raw: "RangeReader | _LocalFile", uri: str, place: MemberPlace) -> None:
        super().__init__(uri, place.bytes)
        self._raw, self._start = raw, place.start

    @property
    def expected_end(self) -> int | None:
        """As of `RangeReader`."""
        return None

    @expected_end.setter
    def expected_end(self, end: int | None) -> None:
        if isinstance(self._raw, RangeReader) and end is not None:
            self._raw.expected_end = self._start + min(end, self.size)

    def _at_position(self, most: int) -> memoryview:
        n_left = self.size - self._position
        # A file notices at its end that it was changed.
        self._raw.seek(self._start + self._position if n_left > 0 else 0, 0 if n_left > 0 else 2)
        buffer = bytearray(min(most, max(n_left, 1)))
        count = self._raw.readinto(buffer)
        return memoryview(buffer)[: count if n_left > 0 else 0]

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


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
