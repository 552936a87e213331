"""What stages take that make tracks or read them, and the families that tracks are stored in.

Sandboxes import this, and nothing else of how tracks are stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from curator.media.source_segments import Segment
from curator.records.sources import Failure, SourceRef
from curator.records.tracks import Track
from curator.storage import NO_HASHES, ContentHashes

FRAMES = "frames"
"""The family whose rows have the failures too, and the fields of a `SourceFrames`."""


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
    """What is done for one source."""

    source: SourceRef

    @property
    def uri(self) -> str:
        """For messages."""
        return self.source.uri


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceItem(_OfSource):
    """A source to analyze; `parts` has those of families that are not measured."""

    families: frozenset[str]
    parts: PartsByFamily = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentItem(_OfSource):
    """One segment of a source to analyze."""

    segment: Segment
    families: frozenset[str]

    @property
    def key(self) -> str:
        """Key under which it counts as done."""
        return f"{self.source.source_id} {self.source.version} {self.segment.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HashItem(_OfSource):
    """A source in segments, whose hashes no segment can compute by itself."""


AnalyzeItem = SourceItem | SegmentItem | HashItem


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinItem(SourceItem):
    """A source whose segments are complete; `tracks` are filled in once `segments` are read.

    `segments` are parts in order; `hashes`, of the whole source, are empty where they are known.
    """

    segments: tuple[str, ...]
    hashes: ContentHashes = NO_HASHES
    tracks: tuple[Track, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackItem(_OfSource):
    """A track, or the failure in its place; one that is not stored has no `frames_part`."""

    track: Track | Failure
    frames_part: str | None
