"""Findings of checks, and their remedies."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from curator.errors import DamagedError, StorageError

MAX_STORED = 50
"""Maximum number of findings of one code that are stored; all findings are counted."""

RERUN = (
    "run `curate run` again with the same recipe, or `curate recaption` if that command was "
    "interrupted: the command writes missing objects"
)
RESTORE = (
    "keep what is there, and copy the object again from its origin or a backup: a rerun makes it "
    "again only if the sources of its clips still exist"
)
COPIED = "run `curate run` again with the same recipe, which writes it again from {}"
LOST = (
    "no undamaged copy is left: restore the object from a backup; until then, keep the other "
    "objects of its snapshots, which stay readable"
)
ACCESS = (
    "nothing is known to be wrong with the object: give read access, or wait until the storage "
    "answers, and verify again; keep the object"
)
RESTORE_SOURCE = (
    "restore the source from a copy. `curate run` analyzes the new bytes if its size or times "
    "changed too (else `touch` the source first), and replaces the clips of the old bytes: "
    "`--dry-run` counts these clips"
)
FINISH = (
    "run the same command again, which finishes the commit; if that run is still alive, wait for it"
)
FINISH_CLEAN = "run `curate clean` again, which removes them"
FINISH_REMOVAL = (
    "run `curate remove OUT --finish`, and verify again: until then, hashes of tables and "
    "snapshots are not compared"
)
_SOURCE_GONE = (
    "restore the source from a copy if its clips are to be cut or measured again; without it, "
    "`curate run` keeps its clips"
)
_EXPORT = "`curate export OUT OUT --format {}` rewrites it"
WEBSHART = _EXPORT.format("webshart")
_VIEW_AGAIN = (
    "make the view again with its own options, which `curate views OUT` lists: `curate views OUT "
    "NAME --replace ...`; or delete it: `curate views OUT --remove NAME`"
)
_PACK_AGAIN = (
    "keep these shards, and pack the clips again: `curate run SOURCE... OUT2` with the same recipe "
    "into another output root"
)
_FINISH = (
    "`curate remove OUT --finish` takes it out again; if a note or a caption by hand is still "
    "found, change it with `curate mark`, run `curate run` again, and remove older snapshots with "
    "`curate clean`"
)
DELETE = (
    "delete the object by hand, or what it holds of the footage: it is not of curate, so `curate "
    "remove OUT --finish` leaves it"
)
_SEARCH_BY_HAND = "open it by hand, or delete it, and search again; the proof does not cover it"
_UNNAMED = "keep the object until it is known what it is: nothing proves that it is not needed"
_NEXT_COMMIT = (
    "run `curate run` again with the same recipe: its commit takes the part out of the folder. "
    "Until then, read the parts that `summary.json` lists, as `curator.read_clips` does"
)
_CHANGED = "verify again when no run, `curate clean` or `curate remove` is working on the output"


class FindingCode(StrEnum):
    """Kinds of faults, each with its default remedy. Public: printed, and in JSON."""

    remedy: str

    def __new__(cls, value: str, remedy: str = RESTORE) -> "FindingCode":
        """Returns a code with its remedy."""
        code = str.__new__(cls, value)
        code._value_, code.remedy = value, remedy
        return code

    MANIFEST_MISSING = "manifest_missing", RERUN
    """No manifest: the run did not finish, or the manifest is lost."""
    MANIFEST_WRONG = "manifest_wrong", RERUN
    """The manifest cannot be read, or its sums differ from its shards."""
    MISSING = "missing"
    """An object that the manifest or the summary names is missing."""
    UNREADABLE = "unreadable", ACCESS
    """The storage refuses to read an object, or fails; the object may be undamaged."""
    SIZE = "size"
    """An object has another size."""
    HASH = "hash"
    """An object has other bytes."""
    TAR_DAMAGED = "tar_damaged"
    """The tar ends early, or a header is damaged."""
    KEY = "key"
    """Readers would split or skip a key, or the members of a sample are not adjacent."""
    KEY_TWICE = "key_twice"
    """Two samples have the same key."""
    MEMBERS = "members"
    """A sample lacks `json`, `mp4` or `txt`, has an undeclared member, or has a member twice."""
    COUNT = "count"
    """A shard has another number of samples or frames."""
    JSON = "json"
    """A sample's JSON cannot be read or lacks a field."""
    MP4_HASH = "mp4_hash"
    """A clip's bytes differ from its JSON's hash."""
    MP4_HEADER = "mp4_header"
    """A clip cannot be opened, or its header has another size, rate or number of frames."""
    FRAMES = "frames"
    """The decoded frames of a clip differ from its JSON."""
    INDEX = "index", _EXPORT.format("energon")
    """A `.tar.idx` has other offsets than the tar."""
    META = "meta"
    """A `.meta.jsonl` has other lines than the tar's JSON."""
    ENERGON = "energon", _EXPORT.format("energon")
    """`.nv-meta` names other shards or counts."""
    WIDS = "wids", _EXPORT.format("wids")
    """A wids index names other shards, sizes or counts."""
    DATASET = "dataset", RERUN
    """`dataset.parquet` has other rows than the tars."""
    CLIPS = "clips", RERUN
    """The table `clips` has other rows than the tars."""
    VIEW = "view", _VIEW_AGAIN
    """A view is damaged, or names other samples than its snapshot."""
    SPLIT = "split", _PACK_AGAIN
    """A source has clips in both splits."""
    REMOVED = "removed", _FINISH
    """An object holds footage that `curate remove` took out."""
    NOT_SEARCHED = "not_searched", _SEARCH_BY_HAND
    """`--removed` could not search an object, or a part of it."""
    REMOVAL_RECORD = "removal_record"
    """A record of a removal is lost or was changed."""
    IRREPLACEABLE = "irreplaceable"
    """Marks, learned scores or footage of removals, or their copy, are lost or were changed."""
    SOURCE_CHANGED = "source_changed", RESTORE_SOURCE
    """A source has other bytes than those that were analyzed."""
    SOURCE_GONE = "source_gone", _SOURCE_GONE
    """A source that was analyzed no longer exists; a warning."""
    EXTRA_PART = "extra_part", _NEXT_COMMIT
    """A part in the folder of a table that the newest snapshot does not have: programs that read
    the folder see its rows too."""
    UNNAMED = "unnamed", _UNNAMED
    """An object in `shards/` or in the folder of a table that no snapshot names; a warning."""
    INTERRUPTED = "interrupted", FINISH
    """A run, a commit or a cleaning is under way or was interrupted; what is committed is whole. A
    warning."""
    CHANGED = "changed", _CHANGED
    """The output changed all the time while it was checked; a warning."""


WARNINGS = frozenset(
    {
        FindingCode.SOURCE_GONE,
        FindingCode.UNNAMED,
        FindingCode.INTERRUPTED,
        FindingCode.CHANGED,
    }
)


def refuses(error: Exception) -> bool:
    """Returns whether the storage did not give an object, which may be undamaged."""
    if isinstance(error, StorageError):
        return not isinstance(error, DamagedError)
    return isinstance(error, OSError) and error.errno is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault."""

    code: FindingCode
    path: str
    """Object, with `#` and a key or column for a part of it."""
    found: str
    expected: str
    remedy: str

    @property
    def is_warning(self) -> bool:
        """Whether the shards are valid despite the finding."""
        return self.code in WARNINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of checks."""

    uri: str
    findings: list[Finding]
    """The first findings of each code; `counts` counts all."""
    counts: dict[str, int]
    n_bytes: int
    """Bytes that were read."""

    @property
    def is_well(self) -> bool:
        """Whether there are only warnings."""
        return all(finding.is_warning for finding in self.findings)


class Findings:
    """Collects findings of several threads: stores the first of each code, and counts all."""

    def __init__(self, max_stored: int = MAX_STORED) -> None:
        self._max_stored = max_stored
        self._lock = threading.Lock()
        self._stored: list[Finding] = []
        self.counts: Counter[FindingCode] = Counter()

    def add(
        self, code: FindingCode, path: str, actual: str, expected: str, remedy: str | None = None
    ) -> None:
        """Records a finding; None for the remedy of its code."""
        finding = Finding(
            code=code, path=path, found=actual, expected=expected, remedy=remedy or code.remedy
        )
        with self._lock:
            self.counts[code] += 1
            if self.counts[code] <= self._max_stored:
                self._stored.append(finding)

    def compare(
        self,
        code: FindingCode,
        path: str,
        actual: Mapping[str, object],
        expected: Mapping[str, object],
    ) -> None:
        """Records each present field whose value differs from the expected value."""
        for name, value in expected.items():
            if name in actual and actual[name] != value:
                self.add(code, path, f"{name} {actual[name]!r}", repr(value))

    def take(self, other: "Findings") -> None:
        """Takes over the findings of another."""
        for finding in other._stored:
            self.add(*(getattr(finding, name) for name in Finding.__slots__))
        with self._lock:
            for code, number in other.counts.items():
                self.counts[code] += max(0, number - MAX_STORED)

    def stored(self) -> tuple[Finding, ...]:
        """Returns the stored findings."""
        with self._lock:
            return tuple(self._stored)

    def revise(self, revised: Callable[[Finding], Finding | None]) -> None:
        """Replaces each stored finding by another form of it; None drops the finding."""
        forms = [(finding, revised(finding)) for finding in self.stored()]
        with self._lock:
            self._stored = [form for _, form in forms if form is not None]
            stays = {finding.code for finding in self._stored}
            for code in [finding.code for finding, form in forms if form is None]:
                self.counts[code] = self.counts[code] - 1 if code in stays else 0
            self.counts = +self.counts

    def outcome(self, uri: str, n_bytes: int) -> dict[str, Any]:
        """Returns the fields of an outcome: findings by code and path, warnings last."""
        order = list(FindingCode)
        return {
            "uri": uri,
            "findings": sorted(self._stored, key=lambda f: (order.index(f.code), f.path, f.found)),
            "counts": {str(code): number for code, number in sorted(self.counts.items())},
            "n_bytes": n_bytes,
        }
