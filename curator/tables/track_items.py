"""Items of the stages that make or read tracks, and the families in which tracks are stored.

Sandboxes import this module, and no other module about stored tracks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from curator.media.source_segments import Segment
from curator.records.sources import Failure, SourceRef
from curator.records.tracks import Track
from curator.storage import NO_HASHES, ContentHashes

FRAMES = "frames"
"""The family with the failures, and with the fields of a `SourceFrames`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFamily:
    """A stored family of columns, in a folder under `tracks/`."""

    name: str
    folder: str
    fingerprint: str
    columns: tuple[str, ...]


PartsByFamily = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfSource:
    """An item of one source."""

    source: SourceRef

    @property
    def uri(self) -> str:
        """Address of the source, for messages."""
        return self.source.uri


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceItem(_OfSource):
    """A source to analyze; `parts` has the stored parts of families that need no measurement."""

    families: frozenset[str]
    parts: PartsByFamily = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentItem(_OfSource):
    """One segment of a source to analyze."""

    segment: Segment
    families: frozenset[str]

    @property
    def key(self) -> str:
        """Key of the stored segment."""
        return f"{self.source.source_id} {self.source.version} {self.segment.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HashItem(_OfSource):
    """A source in segments, whose content must be hashed whole; a segment has only a part of it."""


AnalyzeItem = SourceItem | SegmentItem | HashItem


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinItem(SourceItem):
    """A source with complete segments; `tracks` are empty until the worker reads `segments`.

    `segments` are names of the stored parts of its segments, in order. `hashes` are of the whole
    source, and empty if already stored.
    """

    segments: tuple[str, ...]
    hashes: ContentHashes = NO_HASHES
    tracks: tuple[Track, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackItem(_OfSource):
    """A track, or the failure of its source; `frames_part` is None if not stored."""

    track: Track | Failure
    frames_part: str | None
