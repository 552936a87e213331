"""Finds files and objects below a folder or by a pattern, in a fixed order and without loops."""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from curator.errors import StorageError
from curator.storage.base import ObjectInfo
from curator.storage.object_service import ObjectService

_MAGIC = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkedPath:
    """A path, and the `info` of its target, or the error that hides it."""

    path: str
    info: os.stat_result | OSError

    @classmethod
    def of(cls, path: str) -> "WalkedPath":
        """Looks up a path."""
        try:
            return cls(path=path, info=os.stat(path))
        except OSError as error:
            return cls(path=path, info=error)


def is_pattern(text: str) -> bool:
    """Returns whether a path or segment has a wildcard."""
    return not _MAGIC.isdisjoint(text)


DOTS = (".", "..")
"""Segments of a key that programs resolve like folders, and so reach another object."""


def is_hidden(name: str) -> bool:
    """Returns whether listings leave out a file or folder of this name."""
    return name.startswith(".")


def walk(root: str) -> Iterator[WalkedPath]:
    """Yields all paths below a folder except folders, sorted; leaves out hidden names.

    The walk follows links, and lists a folder once: by its own path if this is below `root`, else
    by the first path to the folder. A folder that cannot be listed comes with its error.
    """
    for entry in _tree(root):
        if isinstance(entry.info, OSError) or not stat.S_ISDIR(entry.info.st_mode):
            yield entry


def expand(pattern: str) -> list[str]:
    """Returns the paths that match an absolute pattern, sorted.

    `*`, `?` and `[…]` match within a name, `**` matches any number of folders. Hidden names match
    only if the pattern has the dot. A folder that cannot be listed is among the results, so that
    callers notice it.
    """
    segments = pattern.rstrip("/").split("/")
    literal = next(i for i, segment in enumerate(segments) if is_pattern(segment))
    base = "/".join(segments[:literal]) or "/"
    return sorted(set(_matches(base, segments[literal:])), key=lambda path: path.split("/"))


def _name_matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) and (not is_hidden(name) or is_hidden(pattern))


def _matches(base: str, segments: list[str]) -> Iterator[str]:
    if not segments:
        yield base
        return
    first, rest = segments[0], segments[1:]
    if first == "**":
        yield from _matches(base, rest)
        if rest:
            for walked in _tree(base):
                if isinstance(walked.info, OSError):
                    if os.path.isdir(walked.path):
                        yield walked.path
                elif stat.S_ISDIR(walked.info.st_mode):
                    yield from _matches(walked.path, rest)
    elif is_pattern(first):
        try:
            names = os.listdir(base)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError:
            yield base
            return
        for name in names:
            if _name_matches(name, first):
                yield from _matches(os.path.join(base, name), rest)
    elif os.path.lexists(path := os.path.join(base, first)):
        yield from _matches(path, rest)


def _tree(root: str) -> Iterator[WalkedPath]:
    """Yields all paths below a folder, each folder before its contents."""
    real_root = os.path.realpath(root)
    try:
        seen = {_identity(os.stat(root))}
        pending = [iter(_entries(root))]
    except OSError as error:
        yield WalkedPath(path=root, info=error)
        return
    while pending:
        entry = next(pending[-1], None)
        if entry is None:
            pending.pop()
            continue
        name, is_link, path = entry
        walked = WalkedPath.of(path)
        if isinstance(walked.info, OSError) or not name.endswith("/"):
            yield walked
            continue
        identity = _identity(walked.info)
        if identity in seen or (is_link and _is_listed_itself(path, real_root)):
            continue
        seen.add(identity)
        yield walked
        try:
            pending.append(iter(_entries(path)))
        except OSError as error:
            yield WalkedPath(path=path, info=error)


def _entries(folder: str) -> list[tuple[str, bool, str]]:
    """Returns the entries of a folder: name (with a slash for a folder), whether a link, path."""
    with os.scandir(folder) as entries:
        return sorted(
            (entry.name + "/" if _is_folder(entry) else entry.name, entry.is_symlink(), entry.path)
            for entry in entries
            if not is_hidden(entry.name)
        )


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_listed_itself(link: str, real_root: str) -> bool:
    """Returns whether a link leads to a folder that the walk reaches by the folder's own path."""
    relative = os.path.relpath(os.path.realpath(link), real_root)
    return relative == "." or not any(map(is_hidden, relative.split("/")))


def _identity(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino


def find_objects(service: ObjectService, bucket: str, key: str) -> Iterator[ObjectInfo]:
    """Yields the objects below a folder `key`, or the objects that match a pattern `key`.

    Patterns work as for files: `*` matches within a segment, `**` matches any number of segments,
    hidden names need the dot in the pattern, and all objects of a matching folder match. A segment
    `.` or `..` does not hide an object, and the caller must refuse such keys.

    Raises:
        StorageError: The listing failed.
    """
    segments = key.strip("/").split("/")
    literal = next((i for i, name in enumerate(segments) if is_pattern(name)), len(segments))
    patterns, begin = segments[literal:], ""
    prefix = "".join(f"{segment}/" for segment in segments[:literal])
    if patterns:
        begin = re.split(r"[*?\[]", patterns[0], maxsplit=1)[0]
    else:
        prefix = key.rstrip("/") + "/" if key else ""
    try:
        for item in service.list(bucket, prefix + begin):
            names = item.key.removeprefix(prefix).split("/")
            if _key_matches(["_" if name in DOTS else name for name in names], patterns):
                yield item
    except service.errors as error:
        words = service.explain(error, bucket)[1]
        place = f"{service.scheme}://{bucket}/{prefix}"
        raise StorageError(f"cannot list {place!r}: {words}") from error


def _key_matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Returns whether a key matches, or a folder above the key without hidden names in between.

    Without patterns, all keys without hidden names match.
    """
    if not patterns:
        return not any(map(is_hidden, names))
    if not names:
        return False
    if patterns[0] == "**":
        return _key_matches(names, patterns[1:]) or (
            not is_hidden(names[0]) and _key_matches(names[1:], patterns)
        )
    return _name_matches(names[0], patterns[0]) and _key_matches(names[1:], patterns[1:])
