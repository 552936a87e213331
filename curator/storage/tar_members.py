"""Finds the members of an uncompressed tar by its headers, without reading their data.

The address of a member is that of its tar, `::` and its name: `/data/00001.tar::000123.jpg`. Its
version has its place in the tar, so a member is opened without a look at the headers:
`1536+20480@VERSION` are 20,480 bytes from byte 1,536 on of the tar of this version.

Tars are untrusted. Nothing is extracted, and sizes of headers and of the index are limited. Of a
damaged tar, the members before the damage count.
"""

import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

BLOCK = tarfile.BLOCKSIZE
MAX_INDEX_BYTES = 256 << 20
"""Memory for the names and places of a tar's members: about 1.5 million members."""
_MEMBER_BYTES = 160
"""Memory of a member besides its name."""
_MAX_HEADER_BYTES = 1 << 20
_MAX_NAME = 4096
_MAX_RECORD_DIGITS = 8
_LONG_NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_FILES = (*tarfile.REGULAR_TYPES, tarfile.GNUTYPE_SPARSE)
_COMPRESSED = re.compile(rb"\x1f\x8b|BZh[1-9]|\xfd7zXZ\x00|\x28\xb5\x2f\xfd|\x04\x22\x4d\x18")
_ADDRESS = re.compile(r"(.*?\.tar)::(.+)", re.IGNORECASE | re.DOTALL)
_VERSION = re.compile(r"(\d+)\+(\d+)@(.+)", re.DOTALL)

ReadAt = Callable[[int, int], bytes]
"""Returns so many bytes from an offset on, or fewer at the end."""


class MemberPlace(NamedTuple):
    """Bytes of a tar: the first one, and their number."""

    start: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TarIndex:
    """The members of a tar, in its order."""

    places: dict[str, MemberPlace] = field(default_factory=dict)
    """Regular files by name."""
    problems: dict[str, str] = field(default_factory=dict)
    """Why another member, by name, cannot be read."""
    faults: list[str] = field(default_factory=list)
    """Why the tar cannot be read, or not to its end: at most one."""
    memory_bytes: int = 0

    @property
    def names(self) -> Iterator[str]:
        """Names of members that can be read, then of others."""
        yield from self.places
        yield from self.problems


def is_tar(uri: str) -> bool:
    """Returns whether a name is that of an uncompressed tar."""
    return uri.lower().endswith(".tar")


def member_address(tar: str, name: str) -> str:
    """Returns the address of a member."""
    return f"{tar}::{name}"


def split_member(uri: str) -> tuple[str, str] | None:
    """Returns the address of a tar and the name of its member; None for another address.

    A file or an object may have such a name itself. The version of a source, or a look at the
    storage, tells both apart.
    """
    found = _ADDRESS.fullmatch(uri)
    return (found[1], found[2]) if found is not None else None


def member_version(place: MemberPlace, tar_version: str) -> str:
    """Returns the version of a member of a tar of this version."""
    return f"{place.start}+{place.bytes}@{tar_version}"


def split_version(version: str) -> tuple[MemberPlace, str] | None:
    """Returns the place of a member and the version of its tar; None for a file or an object."""
    found = _VERSION.fullmatch(version)
    return (MemberPlace(int(found[1]), int(found[2])), found[3]) if found is not None else None


def read_index(
    read_at: ReadAt, n_bytes: int, *, is_wanted: Callable[[str], bool], most_unwanted: int | None
) -> TarIndex | None:
    """Reads the headers of a tar of `n_bytes`.

    Args:
        read_at: Reads the tar.
        n_bytes: Size of the tar.
        is_wanted: Whether the reader of the index wants a member of this name.
        most_unwanted: Returns None if none of so many first members is wanted; None for any number.
    """
    places, problems, faults = dict[str, MemberPlace](), dict[str, str](), list[str]()
    memory_bytes, has_wanted, n_members = 0, False, 0
    try:
        for name, place, problem in _members(read_at, n_bytes):
            n_members += 1
            has_wanted = has_wanted or is_wanted(name)
            if n_members == most_unwanted and not has_wanted:
                return None
            if name in places or name in problems:
                places.pop(name, None)
                problem = "is the name of several members of the tar, and expected is one"
            if problem is None:
                places[name] = place
            else:
                problems[name] = problem
            memory_bytes += len(name) + _MEMBER_BYTES
            if memory_bytes > MAX_INDEX_BYTES:
                raise _TarFault(f"has more than {n_members} members; divide it into several tars")
    except _TarFault as fault:
        faults.append(str(fault))
    return TarIndex(places=places, problems=problems, faults=faults, memory_bytes=memory_bytes)


class _TarFault(Exception):  # noqa: N818
    """The tar cannot be read on."""


def _members(read_at: ReadAt, n_bytes: int) -> Iterator[tuple[str, MemberPlace, str | None]]:
    """Yields names and places of members that are no folders, and why one cannot be read."""
    at, n_members = 0, 0
    long_name: str | None = None
    extended = dict[bytes, bytes]()
    for_all = dict[bytes, bytes]()
    while True:
        block = read_at(at, BLOCK)
        if len(block) < BLOCK:
            raise _cut_off(at, n_bytes, n_members)
        if not any(block):
            return
        info = _header(block, at)
        start, size = at + BLOCK, info.size
        if info.type in _LONG_NAMES or info.type in (*_PAX, tarfile.XGLTYPE):
            data = _header_data(read_at, start, size, at)
            if info.type == tarfile.GNUTYPE_LONGNAME:
                long_name = _text(data.partition(b"\0")[0])
            elif info.type == tarfile.XGLTYPE:
                for_all |= _records(data, at)
            elif info.type in _PAX:
                extended = _records(data, at)
            at = start + _rounded(size)
            continue
        # GNU tar puts further maps of a sparse file before its data.
        while info.type == tarfile.GNUTYPE_SPARSE and block[504 if start > at + BLOCK else 482]:
            block = read_at(start, BLOCK)
            start += BLOCK
            if len(block) < BLOCK:
                raise _cut_off(at, n_bytes, n_members)
        records = for_all | extended
        if b"size" in records:
            size = _number(records[b"size"], at)
        name = _text(records[b"path"]) if b"path" in records else long_name or info.name
        is_sparse = info.type == tarfile.GNUTYPE_SPARSE or any(
            key.startswith(b"GNU.sparse.") for key in records
        )
        long_name, extended = None, {}
        has_data = info.type in _FILES or info.type not in tarfile.SUPPORTED_TYPES
        end = start + (_rounded(size) if has_data else 0)
        n_members += 1
        if has_data and start + size > n_bytes:
            yield name[:_MAX_NAME], MemberPlace(start, 0), "is cut off: the tar ends within it"
            raise _cut_off(at, n_bytes, n_members)
        if not info.isdir():
            place = MemberPlace(start, size)
            yield _plain_name(name), place, _problem(name, info, is_sparse=is_sparse)
        at = end


def _header(block: bytes, at: int) -> tarfile.TarInfo:
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError) as error:
        if not at and _COMPRESSED.match(block):
            raise _TarFault(
                "is compressed, so its members cannot be read by their places; decompress it "
                "(gunzip, zstd -d), and name the tar"
            ) from error
        damage = "is no tar" if not at else f"is damaged at byte {at}"
        raise _TarFault(f"{damage} ({error}); fetch it again, or write it again") from error
    if info.size < 0:
        raise _TarFault(f"is damaged at byte {at} (a member of {info.size} bytes); fetch it again")
    return info


def _header_data(read_at: ReadAt, start: int, size: int, at: int) -> bytes:
    """Returns what belongs to a header of a long name or of PAX."""
    data = read_at(start, size) if size <= _MAX_HEADER_BYTES else b""
    if len(data) < size or not size:
        raise _TarFault(
            f"is damaged at byte {at} (a header with {size} bytes of names); expected 1 to "
            f"{_MAX_HEADER_BYTES}, within the tar: write it again"
        )
    return data


def _records(data: bytes, at: int) -> dict[bytes, bytes]:
    """Returns the records `LENGTH KEY=VALUE` of PAX that say what a member is."""
    records, begin = dict[bytes, bytes](), 0
    while begin < len(data) and data[begin]:
        digits = data[begin : begin + _MAX_RECORD_DIGITS].partition(b" ")[0]
        end = begin + _number(digits, at)
        key, mark, value = data[begin + len(digits) + 1 : end].partition(b"=")
        if not mark or not value.endswith(b"\n") or end > len(data):
            raise _TarFault(f"is damaged at byte {at} (a record of PAX); write it again")
        if key in (b"path", b"size") or key.startswith(b"GNU.sparse."):
            records[key] = value[:-1]
        begin = end
    return records


def _number(digits: bytes, at: int) -> int:
    if not digits.isdigit() or len(digits) > len(str(1 << 63)):
        raise _TarFault(f"is damaged at byte {at} (no number: {digits[:20]!r}); write it again")
    return int(digits)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _plain_name(name: str) -> str:
    """Returns a name without `./` at its start, which `tar -c .` writes."""
    while name.startswith("./"):
        name = name[2:].lstrip("/")
    return name[:_MAX_NAME]


def _problem(name: str, info: tarfile.TarInfo, *, is_sparse: bool) -> str | None:
    """Returns why a member cannot be read."""
    if is_sparse:
        return "is stored as a sparse file; write the tar without --sparse"
    if info.issym() or info.islnk():
        return "is a link; write the tar with the files themselves (tar --dereference)"
    if not info.isreg():
        return "is no regular file"
    if len(name) > _MAX_NAME:
        return f"has a name of more than {_MAX_NAME} characters"
    segments = _plain_name(name).split("/")
    if "\0" in name or not {"", ".", ".."}.isdisjoint(segments):
        return (
            "has an absolute name, a zero byte, or a segment that is empty, '.' or '..'; rename it"
        )
    return None


def _rounded(n_bytes: int) -> int:
    return -(-n_bytes // BLOCK) * BLOCK


def _cut_off(at: int, n_bytes: int, n_members: int) -> _TarFault:
    if not n_bytes:
        return _TarFault("is empty; fetch it again")
    return _TarFault(
        f"is cut off: it has {n_bytes} bytes and no end after the {n_members} members up to byte "
        f"{at}; fetch it again, and its further members are read"
    )
