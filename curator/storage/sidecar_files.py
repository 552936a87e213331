"""Finds the `.json` beside a source: `video.mp4.json`, or `video.json`.

On S3 both names are looked for in listings that begin at a source: a page of a thousand keys
answers for every source in its range, and the next page begins at the first source that is left. So
sources that lie side by side cost a thousandth of a request each, and none costs more than one.
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from curator.errors import SourceError
from curator.storage.source_reader import local_failure

_S3 = "s3://"
_THREADS = 16
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSidecar:
    """A file beside a source."""

    uri: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownSidecar:
    """Whether there is one could not be found out."""

    message: str


def sidecar_uris(uri: str) -> tuple[str, ...]:
    """Where the sidecar of a source may be, the first that exists counts.

    Args:
        uri: An absolute path, or `s3://bucket/key`.
    """
    stem = _stem(uri)
    names = dict.fromkeys((uri + _SUFFIX, stem + _SUFFIX))
    return tuple(name for name in names if name != uri)


def find_sidecars(uris: Iterable[str]) -> dict[str, FoundSidecar | UnknownSidecar]:
    """Looks for sidecars, many at a time.

    Args:
        uris: Of sources.

    Returns:
        By the source's URI; a source without a sidecar is not in it.
    """
    wanted = sorted(set(uris), key=lambda uri: _start(uri).encode("utf-8", "surrogateescape"))
    local = [uri for uri in wanted if not uri.startswith(_S3)]
    buckets: dict[str, list[str]] = {}
    for uri in wanted:
        if uri.startswith(_S3):
            buckets.setdefault(uri.removeprefix(_S3).partition("/")[0], []).append(uri)
    found: dict[str, FoundSidecar | UnknownSidecar] = {}
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="sidecar") as pool:
        jobs = [pool.submit(_local, part) for part in _parts(local)]
        for bucket, some in buckets.items():
            jobs += [pool.submit(_on_s3, bucket, part) for part in _parts(some)]
        for job in jobs:
            found.update(job.result())
    return found


def _parts(uris: Sequence[str]) -> list[Sequence[str]]:
    """Neighbours together, in as many parts as there are threads."""
    size = max(1, -(-len(uris) // _THREADS))
    return [uris[begin : begin + size] for begin in range(0, len(uris), size)]


def _stem(uri: str) -> str:
    folder, slash, name = uri.rpartition("/")
    stem, dot, _ = name.rpartition(".")
    return f"{folder}{slash}{stem if dot and stem else name}"


def _start(uri: str) -> str:
    """What the names of a source and of its sidecars begin with."""
    return _stem(uri) + "."


def _local(uris: Sequence[str]) -> dict[str, FoundSidecar | UnknownSidecar]:
    found: dict[str, FoundSidecar | UnknownSidecar] = {}
    for uri in uris:
        for path in sidecar_uris(uri):
            try:
                found[uri] = FoundSidecar(uri=path, bytes=os.stat(path).st_size)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, ValueError) as error:
                found[uri] = UnknownSidecar(message=local_failure(path, error).message)
            break
    return found


def _on_s3(bucket: str, uris: Sequence[str]) -> dict[str, FoundSidecar | UnknownSidecar]:
    """Sidecars of sources in one bucket, which come in the order of their names."""
    from curator.storage.s3_client import S3Errors, client, explain

    root = f"{_S3}{bucket}/"
    found: dict[str, FoundSidecar | UnknownSidecar] = {}
    index = 0
    while index < len(uris):
        start = _start(uris[index]).removeprefix(root)
        folder = start.rpartition("/")[0]
        prefix = f"{folder}/" if folder else ""
        try:
            page = client().list_objects_v2(Bucket=bucket, Prefix=prefix, StartAfter=start)
        except S3Errors as error:
            message = f"{root}{prefix} cannot be listed: {explain(error, bucket)[1]}"
            return found | {uri: UnknownSidecar(message=message) for uri in uris[index:]}
        sizes = {item["Key"]: int(item["Size"]) for item in page.get("Contents", ())}
        last = max((key.encode() for key in sizes), default=b"")
        end = last if page.get("IsTruncated") else None
        first = index
        while index < len(uris):
            names = [name.removeprefix(root) for name in sidecar_uris(uris[index])]
            covered = all(
                n.startswith(prefix) and (end is None or n.encode() <= end) for n in names
            )
            if not covered and index > first:
                break
            there = next((name for name in names if name in sizes), None)
            if there is not None:
                found[uris[index]] = FoundSidecar(uri=root + there, bytes=sizes[there])
            elif not covered:
                # More than a page of names begin like this one.
                found |= _asked(bucket, uris[index])
            index += 1
    return found


def _asked(bucket: str, uri: str) -> dict[str, FoundSidecar | UnknownSidecar]:
    from curator.errors import ErrorCode
    from curator.storage.source_reader import stat_source

    for name in sidecar_uris(uri):
        try:
            return {uri: FoundSidecar(uri=name, bytes=stat_source(name)[0])}
        except SourceError as error:
            if error.code is not ErrorCode.VANISHED:
                return {uri: UnknownSidecar(message=error.message)}
    return {}
