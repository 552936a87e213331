"""Lists the sources that a user's arguments name: files, folders, patterns, buckets, manifests.

A listing is a stream in a fixed order. The scan of a bucket with millions of objects begins at once
and needs little memory. Each file or object is listed as a source, counted as a skipped name, or
listed as failed.
"""

import hashlib
import logging
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from time import monotonic
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import ErrorCode, SourceError, StorageError, UsageError, raised_as
from curator.media.file_kinds import file_kind, is_of_text
from curator.number_text import amount
from curator.records.sources import Medium, SourceRef
from curator.stages.scan.listing_records import (
    FurtherSpan,
    Listed,
    ListedSource,
    ListedSpan,
    SkippedName,
    UnlistedSource,
    checked_text,
    failed,
)
from curator.stages.scan.source_names import (
    NameKind,
    is_output_tar,
    may_be_empty,
    name_kind,
    reason_not_to_read,
)
from curator.stages.scan.tar_listing import of_tar, refuse_times, with_members
from curator.storage.file_walk import DOTS, WalkedPath, expand, find_objects, is_pattern, walk
from curator.storage.metadata_columns import column_name
from curator.storage.named_inputs import named_file
from curator.storage.object_service import Cause, ObjectService, service_of, split_uri
from curator.storage.sidecar_files import Sidecar, SidecarProblem, read_sidecars
from curator.storage.source_manifests import ManifestRow, is_manifest, manifest_rows
from curator.storage.source_reader import (
    file_version,
    local_failure,
    object_version,
    open_source,
    stat_source,
)
from curator.storage.tar_members import (
    is_tar,
    split_member,
)
from curator.tables.source_spans import SourceSpans
from curator.tables.source_table import SourceTable

logger = logging.getLogger(__name__)
_HEAD_BYTES = 4096
_NO_VIDEO = [
    str(c)
    for c in (
        ErrorCode.NOT_A_VIDEO,
        ErrorCode.NO_VIDEO_STREAM,
        ErrorCode.UNUSED_MEDIUM,
        ErrorCode.EMPTY_FILE,
    )
]
_VIDEOS = frozenset({Medium.VIDEO})
_THREADS = 16
_BATCH = 16
_SIDECARS = 512  # sources whose sidecars are looked up together
_DIGEST_BYTES = 16
_ROWS_PER_SOURCE, _FREE_ROWS = 1_000, 100_000
"""A manifest may have `_FREE_ROWS` rows, plus `_ROWS_PER_SOURCE` for each different source. With a
row for each clip of 5 s, a film of two hours has 1,440 rows."""
_Item = TypeVar("_Item")
_Named = TypeVar("_Named", "ManifestRow", "Listed")


def list_sources(
    arguments: Sequence[str],
    *,
    limit: int | None = None,
    sidecar_meta: bool = False,
    media: Set[Medium] = _VIDEOS,
) -> Iterator[Listed]:
    """Lists the sources that the arguments name, each URI once, in the order of the arguments.

    An argument is one of:

    - a file: a manifest if its name has the suffix of one (`source_manifests`), otherwise a source;
    - a folder: all files below it, sorted, except those with a name that starts with a dot. Files
      of other kinds are skipped (`source_names`);
    - a pattern with `*`, `?`, `[…]` or `**`, unless a file or folder has exactly this name;
    - a tar, in any of these places: its members that are media by their names. A tar of a folder
      without any is skipped. One member is named `TAR::NAME`;
    - `s3://bucket/…`, or the same in another object store: an object, a folder (`s3://b/a` is not
      `s3://b/ab`), or a pattern. If a pattern matches a folder, all objects of the folder are
      listed, so `s3://b/a*` lists every key that begins with `a`.

    URIs are absolute paths, or `scheme://bucket/key`. Symbolic links are not resolved.

    Args:
        arguments: At least one.
        limit: Maximum number of sources, readable or not; skipped names and further spans of a
            source do not count.
        sidecar_meta: Whether to read metadata from the `.json` file of a source.
        media: Media of sources, by which names of files in folders are skipped.

    Returns:
        A stream. Before this function returns, it looks up every argument.

    Raises:
        UsageError: An argument names nothing, or a manifest is not valid. The stream may raise the
            error for a manifest.
        StorageError: A listing broke off; raised by the stream.
    """
    if not arguments:
        raise UsageError("no inputs: name files, folders, patterns, s3://… or a manifest")
    if limit is not None and limit < 0:
        raise UsageError(f"limit is {limit}; expected 0 or more")
    seen, named = set[bytes](), set[str]()
    may_repeat = len(arguments) > 1
    columns: dict[str, set[str]] = {}
    listed = [
        _looked_up(argument, seen, named, columns, media, limit, may_repeat=may_repeat)
        for argument in arguments
    ]
    limited = _limited(_with_columns(chain.from_iterable(listed), columns), limit)
    return _with_sidecars(limited) if sidecar_meta else limited


def _with_columns(listed: Iterator[Listed], columns: Mapping[str, set[str]]) -> Iterator[Listed]:
    """Warns at the end of columns that some of several manifests lack."""
    yield from listed
    for name in sorted(set().union(*columns.values())):
        lacking = [manifest for manifest, own in columns.items() if name not in own]
        if lacking:
            logger.warning(
                "%d of %d manifests have no values of %s, such as %r: their sources have none",
                len(lacking), len(columns), name, lacking[0],
            )  # fmt: skip


def _looked_up(
    argument: str,
    seen: set[bytes],
    named: set[str],
    columns: dict[str, set[str]],
    media: Set[Medium],
    limit: int | None,
    *,
    may_repeat: bool,
) -> Iterator[Listed]:
    """Lists one argument. Fetches the first items, and refuses an argument that names no video.

    Adds the columns of metadata of a manifest to `columns`, and a file to `named`: a folder, even
    of an argument before, does not skip it.
    """

    def once(listed: Iterator[Listed]) -> Iterator[Listed]:
        if not may_repeat:
            return listed
        others = (i for i in listed if not (_is_other(i) and i.uri in named))
        return _without_repeats(others, seen)

    def of_manifest(uri: str) -> Iterator[Listed]:
        rows = _at_least_one(_readable_rows(uri), argument, "names no sources")
        own = columns.setdefault(argument, set())
        described = _described(_noting(_without_repeats(rows, seen, argument, limit), own))
        return with_members(described, media)

    service = service_of(argument)
    if service is not None:
        objects = _bucket_objects(service, argument, named, media)
        return of_manifest(argument) if objects is None else once(objects)
    path, info = named_file(argument)
    if info is None and is_pattern(argument):
        files = with_members(_pattern_files(path, media), media)
        listed = _with_a_video(files, argument, "matches no files")
        may_repeat = True
        return once(listed)
    if info is None:
        return once(iter([_named_member(argument, path)]))
    if stat.S_ISDIR(info.st_mode):
        try:
            os.scandir(path).close()
        except OSError as error:
            raise UsageError(f"input {local_failure(path, error).message}") from error
        found = with_members(map(partial(_by_name, media=media, root=path), walk(path)), media)
        return once(_with_a_video(found, argument, "has no files in it"))
    if not stat.S_ISREG(info.st_mode):
        raise UsageError(f"input {argument!r} is neither a file nor a folder")
    if is_manifest(path):
        return of_manifest(path)
    return once(_one(argument, _local(WalkedPath(path=path, info=info)), named, media))


def _is_other(listed: Listed) -> bool:
    """Returns whether a file of a folder is skipped, or may be."""
    return isinstance(listed, SkippedName) or (
        isinstance(listed, ListedSource) and listed.may_be_other
    )


def _one(argument: str, listed: Listed, named: set[str], media: Set[Medium]) -> Iterator[Listed]:
    """Yields a file that the user names; refuses one that only lists or contains videos."""
    named.add(listed.uri)
    head = b""
    if name_kind(listed.uri, media) is not NameKind.SOURCE:
        with suppress(SourceError), open_source(listed.uri) as stream:
            head = stream.read(_HEAD_BYTES)
    if isinstance(listed, ListedSource) and is_tar(listed.uri):
        members = of_tar(listed, media)
        # Members come before what is wrong with the rest of their tar.
        fault = members[0] if isinstance(members[0], UnlistedSource) else None
        if fault is None or fault.uri != listed.uri:
            return iter(members)
        if not head or file_kind(head) is not None:
            raise UsageError(f"input {fault.message}")
    reason = reason_not_to_read(listed.uri, head, media)
    if reason is not None:
        raise UsageError(f"input {argument!r} {reason}")
    return iter([listed])


def _noting(
    rows: Iterable[ManifestRow | FurtherSpan], columns: set[str]
) -> Iterator[ManifestRow | FurtherSpan]:
    for row in rows:
        columns.update(row.span.metadata if isinstance(row, FurtherSpan) else row.metadata)
        yield row


def _readable_rows(manifest: str) -> Iterator[ManifestRow]:
    with raised_as(UsageError, SourceError, of="manifest "):
        yield from manifest_rows(manifest)


def _pattern_files(pattern: str, media: Set[Medium]) -> Iterator[Listed]:
    for path in expand(pattern):
        found = WalkedPath.of(path)
        if not isinstance(found.info, OSError) and stat.S_ISDIR(found.info.st_mode):
            yield from map(partial(_by_name, media=media, root=path), walk(path))
        else:
            yield _by_name(found, media, path)


def _by_name(walked: WalkedPath, media: Set[Medium], root: str) -> Listed:
    """Lists a file below `root`, or `root` itself."""
    kind = name_kind(walked.path, media)
    if is_tar(walked.path) and not is_output_tar(walked.path[len(root) :]):
        kind = NameKind.UNKNOWN
    if kind is NameKind.OTHER:
        return checked_text(SkippedName(uri=walked.path))
    listed = _local(walked)
    return _of_folder(listed, kind) if isinstance(listed, ListedSource) else listed


def _of_folder(listed: ListedSource, kind: NameKind) -> Listed:
    if not listed.bytes and may_be_empty(listed.uri):
        return SkippedName(uri=listed.uri)
    return listed if kind is NameKind.SOURCE else replace(listed, may_be_other=True)


def _local(walked: WalkedPath) -> Listed:
    if isinstance(walked.info, OSError):
        return failed(walked.path, local_failure(walked.path, walked.info))
    if not stat.S_ISREG(walked.info.st_mode):
        return _describe(walked.path)
    version = file_version(walked.info)
    return checked_text(ListedSource(uri=walked.path, bytes=walked.info.st_size, version=version))


def _describe(uri: str) -> Listed:
    try:
        size, version = stat_source(uri)
    except SourceError as error:
        return failed(uri, error)
    return checked_text(ListedSource(uri=uri, bytes=size, version=version))


def _of_row(row: "ManifestRow | FurtherSpan") -> Listed:
    if isinstance(row, FurtherSpan):
        if is_tar(row.uri):
            refuse_times(row.uri, row.span.at)
        return checked_text(row)
    listed = _describe(row.uri)
    assert isinstance(listed, ListedSource | UnlistedSource), "no name of a row is skipped"
    if row.span is None:
        return replace(listed, metadata=row.metadata)
    return replace(listed, span=ListedSpan(row.span, row.metadata))


def _named_member(argument: str, uri: str) -> Listed:
    """Looks up a member of a tar that the user names."""
    listed = _describe(uri)
    if isinstance(listed, UnlistedSource) and listed.code is ErrorCode.VANISHED:
        raise UsageError(f"input {argument!r} does not exist: {listed.message}")
    return listed


def _described(rows: Iterable[ManifestRow | FurtherSpan]) -> Iterator[Listed]:
    """Looks up the URIs of rows in several threads; yields results in the order of the rows."""
    remaining = iter(rows)
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="list")
    underway: deque[Future[list[Listed]]] = deque()
    try:
        while True:
            while len(underway) < 2 * _THREADS and (batch := list(islice(remaining, _BATCH))):
                underway.append(pool.submit(lambda rows: [_of_row(row) for row in rows], batch))
            if not underway:
                return
            yield from underway.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _bucket_objects(
    service: ObjectService, argument: str, named: set[str], media: Set[Medium]
) -> Iterator[Listed] | None:
    """Lists an address in a bucket; returns None if the address is a manifest."""
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
            # If the user may not list the bucket, a server may answer 403 for a missing object.
            if cause not in (Cause.MISSING, Cause.NO_BUCKET, Cause.FORBIDDEN):
                raise UsageError(f"input {argument!r} cannot be read: {words}") from error
            if split_member(argument) is not None and not is_pattern(key):
                return iter([_named_member(argument, argument)])
        else:
            if is_manifest(key):
                return None
            version = object_version(info)
            listed = ListedSource(uri=argument, bytes=info.bytes, version=version)
            return _one(argument, listed, named, media)
    otherwise = "has no objects under it; if it is a prefix of keys and not a folder, append *"
    if is_pattern(key):
        otherwise = "matches no objects"
    objects = with_members(_objects(service, bucket, key, media), media)
    return _with_a_video(objects, argument, otherwise)


def _objects(service: ObjectService, bucket: str, key: str, media: Set[Medium]) -> Iterator[Listed]:
    root = re.split(r"[*?\[]", key, maxsplit=1)[0]
    for stored in find_objects(service, bucket, key):
        uri = f"{service.scheme}://{bucket}/{stored.key}"
        kind = name_kind(stored.key, media)
        if is_tar(stored.key) and not is_output_tar(stored.key.removeprefix(root)):
            kind = NameKind.UNKNOWN
        if kind is NameKind.OTHER:
            yield SkippedName(uri=uri)
        elif any(name in DOTS for name in stored.key.split("/")):
            message = (
                f"{uri!r}: a segment of the key is '.' or '..', and programs resolve such a key to "
                "another object; copy the object to a key without this segment"
            )
            yield UnlistedSource(uri=uri, code=ErrorCode.UNSAFE_KEY, message=message)
        else:
            version = object_version(stored)
            yield _of_folder(ListedSource(uri=uri, bytes=stored.bytes, version=version), kind)


def _at_least_one(items: Iterator[_Item], argument: str, otherwise: str) -> Iterator[_Item]:
    with raised_as(UsageError, StorageError, of=f"input {argument!r} cannot be listed: "):
        first = next(items, None)
    if first is None:
        raise UsageError(f"input {argument!r} {otherwise}")
    return chain([first], items)


def _with_a_video(items: Iterator[Listed], argument: str, otherwise: str) -> Iterator[Listed]:
    """Returns the same items. Refuses a list in which every item is a skipped name."""
    skipped: list[Listed] = []
    for item in _at_least_one(items, argument, otherwise):
        if not isinstance(item, SkippedName):
            return chain(skipped, [item], items)
        skipped.append(item)
    images = [i.uri for i in skipped if name_kind(i.uri, {Medium.IMAGE}) is NameKind.SOURCE]
    # Skipped although they are images: the recipe accepts none.
    remedy = f"curate images such as {images[0]!r} by scan.media=[video,image], " if images else ""
    raise UsageError(
        f"input {argument!r} has no video: {amount(len(skipped), 'file')} of other kinds, or "
        f"empty, such as {skipped[0].uri!r}; {remedy}unpack archives other than tars, name the "
        "folder `shards` of an output for its clips, and to read a file in spite of its name, name "
        "the file itself"
    )


def _without_repeats(
    items: Iterable[_Named], seen: set[bytes], argument: str = "", limit: int | None = None
) -> Iterator[_Named | FurtherSpan]:
    """Yields each URI once, up to a limit, and further spans of these URIs."""
    unused: list[str] = []
    n_new, has_spans = 0, False
    for n_items, item in enumerate(items, start=1):
        name = item.uri.encode("utf-8", "surrogateescape")
        digest = hashlib.blake2b(name, digest_size=_DIGEST_BYTES).digest()
        span = item.span if isinstance(item, ManifestRow) else None
        has_spans = has_spans or span is not None
        if digest not in seen:
            if n_new == limit:
                if not has_spans:
                    break
                continue
            seen.add(digest)
            n_new += 1
            yield item
        elif span is not None:
            yield FurtherSpan(uri=item.uri, span=ListedSpan(span, item.metadata))
        elif not isinstance(item, SkippedName | FurtherSpan) and item.metadata:
            unused = [*unused[:1], item.uri]
        if n_items > _FREE_ROWS + _ROWS_PER_SOURCE * len(seen):
            raise UsageError(
                f"input {argument!r}: the first {n_items} rows name {len(seen)} sources; expected "
                f"at most {_ROWS_PER_SOURCE} rows for each source; name each source once"
            )
    if unused:
        logger.warning(
            "some sources are named more than once, such as %s: only the metadata of the first "
            "mention of a source is used", unused[0],
        )  # fmt: skip


def _limited(listed: Iterable[Listed], limit: int | None) -> Iterator[Listed]:
    if limit == 0:
        return
    n_listed, has_spans = 0, False
    for item in listed:
        is_span = isinstance(item, FurtherSpan)
        has_spans = has_spans or is_span or getattr(item, "span", None) is not None
        if n_listed != limit or is_span:
            yield item
            n_listed += not isinstance(item, SkippedName | FurtherSpan)
        # Spans of the sources so far may follow.
        if n_listed == limit and not has_spans:
            return


class ListedSources:
    """Yields the sources to scan, and records the other results of a listing.

    Sources that cannot be listed go to `sources` as failed, spans and metadata to `described`, and
    URIs that failed as UNREADABLE to `unreadable`. `list_s` counts seconds of waiting for listings.
    """

    def __init__(
        self,
        listed: Iterator[Listed],
        sources: SourceTable,
        described: SourceSpans,
        unreadable: list[str],
        media: Set[Medium] = _VIDEOS,
    ) -> None:
        self._listed, self._sources, self._described = listed, sources, described
        self._media = media
        self._unreadable = unreadable
        self._may_be_other: set[str] = set()
        self._others: list[str] = []
        self.n_skipped_names, self.list_s = 0, 0.0

    def __iter__(self) -> Iterator[SourceRef]:
        """Yields the readable sources; adds failed ones to the table."""
        begun = monotonic()
        # The clock is read once per batch. Once per item would take as long as a quick listing.
        while batch := list(islice(self._listed, 64)):
            self.list_s += monotonic() - begun
            for item in batch:
                if isinstance(item, SkippedName):
                    self.n_skipped_names += 1
                    continue
                if isinstance(item, FurtherSpan):
                    self._described.add(item.uri, *item.span)
                    continue
                if item.span is not None:
                    self._described.add(item.uri, *item.span, item.metadata)
                elif item.metadata:
                    self._described.metadata.add(item.uri, item.metadata)
                if isinstance(item, ListedSource):
                    if item.may_be_other:
                        self._may_be_other.add(item.uri)
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

    def without_others(self, probes: pa.Table) -> pa.Table:
        """Removes files of folders that hold no video, and whose names do not promise one."""
        rows = probes.select(["uri", "bytes", "error_code", "error_message"]).append_column(
            "row", pa.array(range(probes.num_rows))
        )
        failed = rows.filter(pc.is_in(rows["error_code"], value_set=pa.array(_NO_VIDEO)))
        others = [
            row
            for row in failed.to_pylist()
            if row["uri"] in self._may_be_other
            and (
                name_kind(row["uri"], self._media) is NameKind.UNKNOWN
                or is_of_text(row["error_message"], row["uri"], row["bytes"])
            )
        ]
        if not others:
            return probes
        self.n_skipped_names += len(others)
        self._others += [row["uri"] for row in others[: not self._others]]
        others_rows = pa.array([row["row"] for row in others])
        return probes.filter(pc.invert(pc.is_in(rows["row"], value_set=others_rows)))

    def warn(self) -> None:
        """Logs an example of the files that hold no video.

        Raises:
            UsageError: No other file was listed.
        """
        if not self._others:
            return
        if not len(self._sources):
            raise UsageError(
                f"no input holds a video; {amount(self.n_skipped_names, 'file')} of other kinds, "
                f"such as {self._others[0]!r}"
            )
        logger.warning(
            "some files hold no video, and their names promise none, such as %s: they are skipped, "
            "and count as not video; a run over just this file says what it is", self._others[0],
        )  # fmt: skip


def _with_sidecars(listed: Iterator[Listed]) -> Iterator[Listed]:
    """Adds metadata of sidecars; if a manifest has the same column, its value stays."""
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
    """Returns the values that are not nested, by column; the first key of a column counts."""
    values: dict[str, Any] = {}
    for name, value in data.items():
        column = column_name(name)
        if column is not None and not isinstance(value, dict):
            values.setdefault(column, value)
    return values
