"""Finds objects: below a folder of keys, or by a pattern, in the order of the keys."""

import re
from collections.abc import Callable, Iterator, Sequence

from curator.errors import StorageError
from curator.storage.file_walk import is_hidden, is_pattern, name_matches
from curator.storage.object_service import ObjectService, StoredObject


def find_objects(service: ObjectService, bucket: str, key: str) -> Iterator[StoredObject]:
    """Yields the objects below a folder `key`, or those that match if it is a pattern.

    Patterns work as for files: `*` stays within a segment, `**` is any number of them, hidden names
    need the dot in the pattern, and a folder that matches is listed whole.

    Raises:
        StorageError: The listing failed or broke off.
    """
    segments = key.strip("/").split("/")
    literal = next((i for i, name in enumerate(segments) if is_pattern(name)), None)
    if literal is None:
        prefix = key.rstrip("/") + "/" if key else ""
        return _below(service, bucket, prefix, "", lambda names: not any(map(is_hidden, names)))
    prefix = "".join(f"{segment}/" for segment in segments[:literal])
    patterns = segments[literal:]
    begin = re.split(r"[*?\[]", patterns[0], maxsplit=1)[0]
    return _below(service, bucket, prefix, begin, lambda names: _matches(names, patterns))


def _below(
    service: ObjectService,
    bucket: str,
    prefix: str,
    begin: str,
    is_wanted: Callable[[list[str]], bool],
) -> Iterator[StoredObject]:
    """Yields the wanted keys below `prefix`, judged by their segments after it."""
    try:
        for found in service.list(bucket, prefix + begin):
            if is_wanted(found.key.removeprefix(prefix).split("/")):
                yield found
    except service.errors as error:
        place = f"{service.scheme}://{bucket}/{prefix}"
        words = service.explain(error, bucket)[1]
        raise StorageError(f"cannot list {place!r}: {words}") from error


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Returns whether a key matches, or a folder above it without hidden names in between."""
    if not patterns:
        return not any(map(is_hidden, names))
    if not names:
        return False
    if patterns[0] == "**":
        return _matches(names, patterns[1:]) or (
            not is_hidden(names[0]) and _matches(names[1:], patterns)
        )
    return name_matches(names[0], patterns[0]) and _matches(names[1:], patterns[1:])
