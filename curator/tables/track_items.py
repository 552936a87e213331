"""What stages take that make tracks or read them, and the families that tracks are stored in.

Decoder boxes import this, and nothing else of how tracks are stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from curator.media.source_segments import Segment
from curator.records.sources import Failure, SourceRef
from curator.records.tracks import Track
from curator.storage import ContentHashes

FRAMES = "frames"
"""The family whose rows have the failures too, and the fields of a `Timeline`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFamily:
    """A stored family of columns.

    Attributes:
        folder: Its folder under `tracks/`.
    """

    name: str
    folder: str
    stamp: str
    columns: tuple[str, ...]


PartsByFamily = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceItem:
    """A source to analyze.

    Attributes:
        parts: Parts of the other families.
    """

    source: SourceRef
    families: frozenset[str]
    parts: PartsByFamily = field(default_factory=dict)

    @property
    def uri(self) -> str:
        """For messages."""
        return self.source.uri


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentItem:
    """One segment of a source to analyze."""

    source: SourceRef
    segment: Segment
    families: frozenset[str]

    @property
    def key(self) -> str:
        """Key under which it counts as done."""
        return f"{self.source.source_id} {self.source.version} {self.segment.key}"

    @property
    def uri(self) -> str:
        """For messages."""
        return self.source.uri


@dataclass(frozen=True, slots=True, kw_only=True)
class HashItem:
    """A source in segments, whose hashes no segment can compute by itself."""

    source: SourceRef

    @property
    def uri(self) -> str:
        """For messages."""
        return self.source.uri


AnalyzeItem = SourceItem | SegmentItem | HashItem


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinItem(SourceItem):
    """A source whose segments are complete; `tracks` are filled in once `segments` are read.

    Attributes:
        segments: Their parts, in order.
        hashes: Of the whole source; empty where they are known.
        tracks: Measurements of each segment.
    """

    segments: tuple[str, ...]
    hashes: ContentHashes
    tracks: tuple[Track, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackItem:
    """A track, or the failure in its place.

    Attributes:
        frames_part: The part of its family `frames`; None for a failure that is not stored.
    """

    source: SourceRef
    track: Track | Failure
    frames_part: str | None

    @property
    def uri(self) -> str:
        """For messages."""
        return self.source.uri
