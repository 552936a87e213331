"""Lists the members of tars in place of the tars."""

import logging
from collections import deque
from collections.abc import Iterator, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import chain

from curator.errors import ErrorCode, SourceError, UsageError
from curator.records.sources import Medium
from curator.records.time_spans import WHOLE, TimeSpan
from curator.stages.scan.listing_records import (
    FurtherSpan,
    Listed,
    ListedSource,
    SkippedName,
    UnlistedSource,
    checked_text,
    failed,
)
from curator.stages.scan.source_names import NameKind, member_kind
from curator.storage.source_reader import find_tar_index, tar_index
from curator.storage.tar_members import (
    is_tar,
    member_address,
    member_version,
    split_member,
    split_version,
)

logger = logging.getLogger(__name__)

_TARS_AHEAD = 8
_MOST_WAITING = 512  # items that wait for a tar before them
_UNWANTED_MEMBERS = 1_000
"""A tar of a folder is of another kind if none of so many first members is a source."""


def with_members(listed: Iterator[Listed], media: Set[Medium]) -> Iterator[Listed]:
    """Lists the members of tars in place of the tars; reads the headers of several tars ahead."""
    ahead: deque[tuple[Listed, Future[list[Listed]] | None]] = deque()
    once = _MembersOnce()
    n_tars = 0
    pool = ThreadPoolExecutor(_TARS_AHEAD, thread_name_prefix="tar")
    try:
        for item in chain(listed, [None]):
            if isinstance(item, ListedSource) and is_tar(item.uri):
                ahead.append((item, pool.submit(of_tar, item, media)))
                n_tars += 1
            elif item is not None:
                ahead.append((item, None))
            while ahead and (
                item is None
                or ahead[0][1] is None
                or n_tars == _TARS_AHEAD
                or len(ahead) > _MOST_WAITING
            ):
                first, underway = ahead.popleft()
                if underway is None:
                    yield from once.of_one(first)
                else:
                    n_tars -= 1
                    yield from once.of_tar(first, underway.result())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class _MembersOnce:
    """Leaves out members that are named by themselves and by their tar."""

    def __init__(self) -> None:
        self._versions: dict[str, str] = {}
        self._members = set[str]()

    def of_tar(self, tar: Listed, members: list[Listed]) -> Iterator[Listed]:
        """Yields the members of a tar that were not named before."""
        if isinstance(tar, ListedSource):
            self._versions[tar.uri] = tar.version
        return (member for member in members if member.uri not in self._members)

    def of_one(self, item: Listed) -> Iterator[Listed]:
        """Yields an item that is no tar; leaves out a member whose tar was listed before."""
        is_named = isinstance(item, SkippedName | FurtherSpan)
        parts = None if is_named else split_member(item.uri)
        if parts is None:
            yield item
            return
        tar, name = parts
        if tar in self._versions and name in tar_index(tar, self._versions[tar]).names:
            if isinstance(item, ListedSource) and split_version(item.version) is None:
                logger.warning(
                    "%r is the name of a file and of a member of a tar: only the member is read; "
                    "rename the file", item.uri,
                )  # fmt: skip
            elif isinstance(item, ListedSource | UnlistedSource) and item.span is not None:
                yield FurtherSpan(uri=item.uri, span=item.span)
            return
        self._members.add(item.uri)
        yield item


def of_tar(tar: ListedSource, media: Set[Medium]) -> list[Listed]:
    """Lists the members of a tar; what is wrong with the tar itself comes last.

    A tar of a folder (`may_be_other`) without a source is skipped.
    """

    def is_wanted(name: str) -> bool:
        return member_kind(name, (), media) is NameKind.SOURCE

    if tar.span is not None:
        refuse_times(tar.uri, tar.span.at)
        tar = replace(tar, span=None, metadata=tar.span.metadata)
    most = _UNWANTED_MEMBERS if tar.may_be_other else None
    faults: list[str] = []
    members: list[Listed] = []
    try:
        index = find_tar_index(tar.uri, tar.version, is_wanted=is_wanted, most_unwanted=most)
    except SourceError as error:
        return [failed(tar.uri, error, tar.metadata)]
    n_sources = 0
    if index is not None:
        for name in index.names:
            uri = member_address(tar.uri, name)
            is_source = member_kind(name, index.places, media) is NameKind.SOURCE
            n_sources += is_source
            if not is_source:
                members.append(checked_text(SkippedName(uri=uri)))
            elif (place := index.places.get(name)) is not None:
                version = member_version(place, tar.version)
                source = replace(
                    tar, uri=uri, bytes=place.bytes, version=version, may_be_other=False
                )
                members.append(checked_text(source))
            else:
                members.append(_bad_tar(uri, index.problems[name], tar))
        faults = [*index.faults]
    if not n_sources:
        if tar.may_be_other:
            return [SkippedName(uri=tar.uri)]
        faults = faults or [
            "has no member that is curated by its name; name tars of videos (or of still images, "
            "with scan.media=[video,image])"
        ]
        members = []
    elif split_member(tar.uri) is not None:
        faults, members = ["has '.tar::' in its own address; rename it"], []
    return [*members, *(_bad_tar(tar.uri, fault, tar) for fault in faults)]


def refuse_times(tar: str, span: TimeSpan) -> None:
    """Raises `UsageError` if a manifest gives times of a tar."""
    if span != WHOLE:
        raise UsageError(
            f"{tar}: a span of {span}, but a tar has no time; name the member, as in "
            f"{member_address(tar, 'NAME')}"
        )


def _bad_tar(uri: str, words: str, tar: ListedSource) -> Listed:
    message = f"{uri!r} {words}"
    return failed(uri, SourceError(ErrorCode.BAD_TAR, message), tar.metadata)
