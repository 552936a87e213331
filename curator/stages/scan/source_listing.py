"""Turns the user's arguments (files, folders, patterns, prefixes, manifests) into sources.

Everything is a stream in a fixed order, so that a bucket of millions of objects neither waits nor
takes memory. Nothing found is dropped silently: it is a source, a name that is clearly no video, or
an entry that counts as failed.
"""

import hashlib
import logging
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from time import monotonic
from typing import Any, TypeVar

from curator.errors import ErrorCode, SourceError, StorageError, UsageError, raised_as
from curator.number_text import amount
from curator.records.sources import SourceRef
from curator.storage.base import has_scheme
from curator.storage.file_walk import DOTS, WalkedPath, expand, find_objects, is_pattern, walk
from curator.storage.metadata_columns import column_name
from curator.storage.object_service import ADDRESSES, Cause, ObjectService, service_of, split_uri
from curator.storage.sidecar_files import Sidecar, SidecarProblem, read_sidecars
from curator.storage.source_manifests import ManifestRow, absolute_path, is_manifest, manifest_rows
from curator.storage.source_reader import file_version, local_failure, object_version, stat_source
from curator.tables.source_metadata import SourceMetadata
from curator.tables.source_table import SourceTable

_SKIPPED = {
    "images, and what cameras put beside videos": "jpg jpeg png webp bmp tif tiff svg heic heif "
    "ico psd exr dpx thm xmp",
    "sound alone": "wav mp3 flac aac opus wma aif aiff mid midi",
    "subtitles": "srt vtt ass ssa sub idx sup lrc ttml sbv",
    "text and documents": "txt md rst nfo log html htm pdf doc docx xls xlsx ppt pptx",
    "data and settings": "json jsonl ndjson csv tsv parquet arrow feather xml yaml yml toml ini "
    "cfg conf sql db sqlite",
    "archives": "zip tar gz tgz bz2 xz zst 7z rar",
    "arrays and weights": "npy npz pkl pt pth safetensors onnx h5",
    "checksums, links and code": "md5 sha1 sha256 sha512 torrent url py sh js css ipynb",
}
logger = logging.getLogger(__name__)
SKIPPED_SUFFIXES = frozenset(f".{end}" for ends in _SKIPPED.values() for end in ends.split())
"""Endings of names that are clearly no video.

GIF can be one; so can .m4a and .ogg, whose containers also hold video.
"""

_THREADS = 16
_BATCH = 16
_SIDECARS = 512  # sources whose sidecars are looked for together
_DIGEST_BYTES = 16
_ROWS_PER_SOURCE, _FREE_ROWS = 1_000, 100_000
"""Most rows of a manifest for each different source, and rows that are not counted. A film of two
hours that has a row for each of its clips of 5 s has 1,440."""
_Item = TypeVar("_Item")
_Named = TypeVar("_Named", "ManifestRow", "Listed")
Metadata = Mapping[str, Any]  # of a source, by column; see `storage.metadata_columns`
_NOTHING: Metadata = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSource:
    """A source to read; `version` is for `open_source(expected_version=…)`."""

    uri: str
    bytes: int
    version: str
    metadata: Metadata = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedName:
    """A file whose name is clearly not that of a video; it is counted, and gets no row."""

    uri: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlistedSource:
    """An entry that was named or found and cannot be read; it gets a row as failed."""

    uri: str
    code: ErrorCode
    message: str
    metadata: Metadata = field(default_factory=dict)


Listed = ListedSource | SkippedName | UnlistedSource


def list_sources(
    arguments: Sequence[str], *, limit: int | None = None, sidecar_meta: bool = False
) -> Iterator[Listed]:
    """Lists the sources that the arguments name, each URI once, in the arguments' order.

    An argument is one of:

    - a file: a source of any name, or a manifest if it ends in .txt, .csv or .parquet;
    - a folder: everything below it, sorted; names that start with a dot are left out;
    - a pattern with `*`, `?`, `[…]` or `**`, unless something has just that name;
    - `s3://bucket/…`, or on another object store: an object, a folder (`s3://b/a` is not
      `s3://b/ab`), or a pattern. A folder that a pattern matches is listed like a folder, so
      `s3://b/a*` is a plain prefix.

    The URIs are absolute paths, with links kept, and `scheme://bucket/key`.

    Args:
        arguments: At least one.
        limit: Most sources, readable or not; skipped names do not count.
        sidecar_meta: Whether to read metadata from the `.json` of a source.

    Returns:
        A stream; all arguments are looked up first.

    Raises:
        UsageError: An argument names nothing, or a manifest is not valid; the latter may come from
            the stream.
        StorageError: A listing broke off; from the stream.
    """
    if not arguments:
        raise UsageError("no inputs: name files, folders, patterns, s3://… or a manifest")
    if limit is not None and limit < 0:
        raise UsageError(f"limit is {limit}; expected 0 or more")
    seen: set[bytes] = set()
    may_repeat = len(arguments) > 1
    listed = [_looked_up(argument, seen, may_repeat=may_repeat) for argument in arguments]
    limited = _limited(chain.from_iterable(listed), limit)
    return _with_sidecars(limited) if sidecar_meta else limited


def _looked_up(argument: str, seen: set[bytes], *, may_repeat: bool) -> Iterator[Listed]:
    """The list of one argument; its first item is fetched already, to see that it is not empty."""

    def once(listed: Iterator[Listed]) -> Iterator[Listed]:
        return _without_repeats(listed, seen) if may_repeat else listed

    def of_manifest(uri: str) -> Iterator[Listed]:
        rows = _at_least_one(_readable_rows(uri), argument, "names no sources")
        return _described(_without_repeats(rows, seen, argument))

    service = service_of(argument)
    if service is not None:
        objects = _bucket_objects(service, argument)
        return of_manifest(argument) if objects is None else once(objects)
    if not argument or has_scheme(argument):
        raise UsageError(
            f"input {argument!r} is not supported: expected a path, a pattern, {ADDRESSES}, or a "
            "manifest"
        )
    path = absolute_path(argument)
    try:
        info = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        if is_pattern(argument):
            listed = _with_a_video(_pattern_files(path), argument, "matches no files")
            return _without_repeats(listed, seen)
        what = "is a link to nothing" if os.path.islink(path) else "does not exist"
        raise UsageError(f"input {argument!r} {what} (looked for {path!r})") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"input {local_failure(path, error).message}") from error
    if stat.S_ISDIR(info.st_mode):
        try:
            os.scandir(path).close()
        except OSError as error:
            raise UsageError(f"input {local_failure(path, error).message}") from error
        return once(_with_a_video(map(_by_name, walk(path)), argument, "has no files in it"))
    if not stat.S_ISREG(info.st_mode):
        raise UsageError(f"input {argument!r} is no file and no folder")
    if is_manifest(path):
        return of_manifest(path)
    return once(iter([_local(WalkedPath(path=path, info=info))]))


def _readable_rows(manifest: str) -> Iterator[ManifestRow]:
    with raised_as(UsageError, SourceError, of="manifest "):
        yield from manifest_rows(manifest)


def _pattern_files(pattern: str) -> Iterator[Listed]:
    for path in expand(pattern):
        found = WalkedPath.of(path)
        if not isinstance(found.info, OSError) and stat.S_ISDIR(found.info.st_mode):
            yield from map(_by_name, walk(path))
        else:
            yield _by_name(found)


def _by_name(walked: WalkedPath) -> Listed:
    if _is_skipped(walked.path):
        return _checked_text(SkippedName(uri=walked.path))
    return _local(walked)


def _local(walked: WalkedPath) -> Listed:
    if isinstance(walked.info, OSError):
        return _failed(walked.path, local_failure(walked.path, walked.info))
    if not stat.S_ISREG(walked.info.st_mode):
        return _describe(walked.path)
    version = file_version(walked.info)
    return _checked_text(ListedSource(uri=walked.path, bytes=walked.info.st_size, version=version))


def _describe(uri: str, metadata: Metadata = _NOTHING) -> Listed:
    try:
        size, version = stat_source(uri)
    except SourceError as error:
        return _failed(uri, error, metadata)
    return _checked_text(ListedSource(uri=uri, bytes=size, version=version, metadata=metadata))


def _failed(uri: str, error: SourceError, metadata: Metadata = _NOTHING) -> Listed:
    return _checked_text(
        UnlistedSource(uri=uri, code=error.code, message=error.message, metadata=metadata)
    )


def _checked_text(listed: Listed) -> Listed:
    """Replaces entries whose name is not UTF-8: neither Parquet nor JSON takes that."""
    try:
        listed.uri.encode()
    except UnicodeEncodeError:
        uri = os.fsencode(listed.uri).decode("utf-8", "backslashreplace")
        if isinstance(listed, SkippedName):
            return SkippedName(uri=uri)
        return UnlistedSource(
            uri=uri,
            code=ErrorCode.UNREADABLE,
            message=f"the name is not valid UTF-8: {uri!r}; rename it",
            metadata=listed.metadata,
        )
    return listed


def _is_skipped(uri: str) -> bool:
    return os.path.splitext(uri)[1].lower() in SKIPPED_SUFFIXES


def _described(rows: Iterable[ManifestRow]) -> Iterator[Listed]:
    """Looks URIs up in several threads, and yields them in their order."""
    remaining = iter(rows)
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="list")
    underway: deque[Future[list[Listed]]] = deque()
    try:
        while True:
            while len(underway) < 2 * _THREADS and (batch := list(islice(remaining, _BATCH))):
                underway.append(pool.submit(lambda rows: [_describe(*r) for r in rows], batch))
            if not underway:
                return
            yield from underway.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _bucket_objects(service: ObjectService, argument: str) -> Iterator[Listed] | None:
    """The list of an address in a bucket; None of a manifest."""
    bucket, key = split_uri(argument)
    if not bucket:
        raise UsageError(
            f"input {argument!r} names no bucket: expected {service.scheme}://bucket/…"
        )
    if key and not key.endswith("/"):
        try:
            info = service.head(bucket, key)
        except service.errors as error:
            cause, words = service.explain(error, bucket)
            # Without the right to list, a server may answer 403 for missing objects.
            if cause not in (Cause.MISSING, Cause.NO_BUCKET, Cause.FORBIDDEN):
                raise UsageError(f"input {argument!r} cannot be read: {words}") from error
        else:
            if is_manifest(key):
                return None
            version = object_version(info)
            return iter([ListedSource(uri=argument, bytes=info.bytes, version=version)])
    otherwise = "has no objects under it; for a plain prefix of keys append *"
    if is_pattern(key):
        otherwise = "matches no objects"
    return _with_a_video(_objects(service, bucket, key), argument, otherwise)


def _objects(service: ObjectService, bucket: str, key: str) -> Iterator[Listed]:
    for stored in find_objects(service, bucket, key):
        uri = f"{service.scheme}://{bucket}/{stored.key}"
        if _is_skipped(stored.key):
            yield SkippedName(uri=uri)
        elif any(name in DOTS for name in stored.key.split("/")):
            message = (
                f"{uri!r}: a segment of the key is '.' or '..', which programs resolve to another "
                "object; copy it to a key without one"
            )
            yield UnlistedSource(uri=uri, code=ErrorCode.UNSAFE_KEY, message=message)
        else:
            yield ListedSource(uri=uri, bytes=stored.bytes, version=object_version(stored))


def _at_least_one(items: Iterator[_Item], argument: str, otherwise: str) -> Iterator[_Item]:
    with raised_as(UsageError, StorageError, of=f"input {argument!r} cannot be listed: "):
        first = next(items, None)
    if first is None:
        raise UsageError(f"input {argument!r} {otherwise}")
    return chain([first], items)


def _with_a_video(items: Iterator[Listed], argument: str, otherwise: str) -> Iterator[Listed]:
    """Returns the same items, of which the first that may be a video was fetched already."""
    skipped: list[Listed] = []
    for item in _at_least_one(items, argument, otherwise):
        if not isinstance(item, SkippedName):
            return chain(skipped, [item], items)
        skipped.append(item)
    raise UsageError(
        f"input {argument!r} has no video: {amount(len(skipped), 'file')} with names of other "
        f"kinds, such as {skipped[0].uri!r}"
    )


def _without_repeats(
    items: Iterable[_Named], seen: set[bytes], argument: str = ""
) -> Iterator[_Named]:
    unused: list[str] = []
    for n_items, item in enumerate(items, start=1):
        name = item.uri.encode("utf-8", "surrogateescape")
        digest = hashlib.blake2b(name, digest_size=_DIGEST_BYTES).digest()
        if digest not in seen:
            seen.add(digest)
            yield item
        elif not isinstance(item, SkippedName) and item.metadata:
            unused = [*unused[:1], item.uri]
        if n_items > _FREE_ROWS + _ROWS_PER_SOURCE * len(seen):
            raise UsageError(
                f"input {argument!r}: its first {n_items} rows name {len(seen)} sources; expected "
                f"at most {_ROWS_PER_SOURCE} rows for each: write a manifest that names each once"
            )
    if unused:
        logger.warning(
            "some sources are named more than once, such as %s: what is said of a source where it "
            "is named first counts", unused[0],
        )  # fmt: skip


def _limited(listed: Iterable[Listed], limit: int | None) -> Iterator[Listed]:
    if limit == 0:
        return
    n_listed = 0
    for item in listed:
        yield item
        n_listed += not isinstance(item, SkippedName)
        if n_listed == limit:
            return


class ListedSources:
    """Yields sources to scan; notes all else of a listing as it passes.

    `sources` gets what could not be listed, `metadata` what the listing says of sources, and
    `unreadable` addresses that could not be read. `list_s` are seconds of waiting for the listing.
    """

    def __init__(
        self,
        listed: Iterator[Listed],
        sources: SourceTable,
        metadata: SourceMetadata,
        unreadable: list[str],
    ) -> None:
        self._listed, self._sources, self._metadata = listed, sources, metadata
        self._unreadable = unreadable
        self.n_skipped_names, self.list_s = 0, 0.0

    def __iter__(self) -> Iterator[SourceRef]:
        """Adds what could not be listed to the table."""
        begun = monotonic()
        # In batches: checking the clock for each would take as long as a quick listing.
        while batch := list(islice(self._listed, 64)):
            self.list_s += monotonic() - begun
            for item in batch:
                if isinstance(item, SkippedName):
                    self.n_skipped_names += 1
                    continue
                if item.metadata:
                    self._metadata.add(item.uri, item.metadata)
                if isinstance(item, ListedSource):
                    yield SourceRef(uri=item.uri, n_bytes=item.bytes, version=item.version)
            failed = [item for item in batch if isinstance(item, UnlistedSource)]
            self._unreadable += [item.uri for item in failed if item.code is ErrorCode.UNREADABLE]
            if failed:
                self._sources.add_failed(
                    {
                        "uri": failure.uri, "error_stage": "list", "error_code": str(failure.code),
                        "error_message": failure.message,
                    }
                    for failure in failed
                )  # fmt: skip
            begun = monotonic()
        self.list_s += monotonic() - begun


def _with_sidecars(listed: Iterator[Listed]) -> Iterator[Listed]:
    """Adds metadata of sidecars; a manifest's value of the same column counts."""
    n_unread, first = 0, ""
    while window := list(islice(listed, _SIDECARS)):
        sidecars = read_sidecars(item.uri for item in window if isinstance(item, ListedSource))
        for item in window:
            sidecar = sidecars.get(item.uri)
            if isinstance(item, ListedSource) and isinstance(sidecar, Sidecar):
                yield replace(item, metadata=_plain_values(sidecar.data) | dict(item.metadata))
            else:
                if isinstance(sidecar, SidecarProblem):
                    n_unread, first = n_unread + 1, first or sidecar.message
                yield item
    if n_unread:
        logger.warning("sidecars that cannot be used as metadata: %d, such as %s", n_unread, first)


def _plain_values(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values by column, without nested ones; of keys that become one, the first counts."""
    values: dict[str, Any] = {}
    for name, value in data.items():
        column = column_name(name)
        if column is not None and not isinstance(value, dict):
            values.setdefault(column, value)
    return values
