"""Results of a listing: sources, their spans, skipped names, and sources that cannot be listed."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from curator.errors import ErrorCode, SourceError
from curator.records.time_spans import TimeSpan

Metadata = Mapping[str, Any]  # of a source, by column; see `storage.metadata_columns`
_NOTHING: Metadata = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSource:
    """A source to read; `open_source(expected_version=…)` takes its `version`."""

    uri: str
    bytes: int
    version: str
    metadata: Metadata = field(default_factory=dict)
    span: "ListedSpan | None" = None
    may_be_other: bool = False
    """Whether it is skipped if it holds no video: found in a folder, and its name says nothing.

    A file without suffix is skipped if it is text.
    """


class ListedSpan(NamedTuple):
    """A span that a row of a manifest names, with its metadata."""

    at: TimeSpan
    metadata: Metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherSpan:
    """A span of a source that was listed before."""

    uri: str
    span: ListedSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedName:
    """A file of a folder that is no video by its name.

    A run counts it; no table has a row for it.
    """

    uri: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlistedSource:
    """A source that cannot be listed. The table `sources` has a row for it, as failed."""

    uri: str
    code: ErrorCode
    message: str
    metadata: Metadata = field(default_factory=dict)
    span: ListedSpan | None = None


Listed = ListedSource | SkippedName | UnlistedSource | FurtherSpan


def failed(uri: str, error: SourceError, metadata: Metadata = _NOTHING) -> Listed:
    """Returns a source that cannot be listed, for an error."""
    return checked_text(
        UnlistedSource(uri=uri, code=error.code, message=error.message, metadata=metadata)
    )


def checked_text(listed: Listed) -> Listed:
    """Makes a source fail if its name is not UTF-8; Parquet and JSON cannot store such a name."""
    try:
        listed.uri.encode()
    except UnicodeEncodeError:
        uri = os.fsencode(listed.uri).decode("utf-8", "backslashreplace")
        if isinstance(listed, SkippedName | FurtherSpan):
            return replace(listed, uri=uri)
        return UnlistedSource(
            uri=uri,
            code=ErrorCode.UNREADABLE,
            message=f"the name is not valid UTF-8: {uri!r}; rename it",
            metadata=listed.metadata,
        )
    return listed
