"""Searches every object under an output root for removed footage.

Records of removals hold only hashes. The search therefore hashes all possible ids, captions,
pictures, clips and sources; `content_search` says in which objects.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import DamagedError, StorageError, UsageError
from curator.storage import Store, open_store
from curator.storage.base import Entry
from curator.tables.checksums import read_parquet
from curator.tables.frame_hashes import frame_regions, overlapping_regions
from curator.tables.out_layout import is_own
from curator.tables.removal_records import (
    RecordChain,
    Removals,
    restore_remedy,
)
from curator.tools.verify.content_search import ContentSearch, Place
from curator.tools.verify.findings import DELETE, FINISH_REMOVAL, FindingCode, Findings, Outcome
from curator.tools.verify.lasting_check import check_lasting
from curator.tools.verify.shared_content import parts_of_snapshots, without_shared

_MAX_FINDINGS = 10_000
"""Maximum number of stored findings of one code: each object at fault has to be named."""
OUTSIDE = (
    "footage encoded anew, cut, scaled, cropped, in another container or as single frames",
    "pictures other than the stored thumbnails, byte for byte; thumbnails that footage that stays "
    "has too; previews",
    "captions in other words, in part, within a sentence without delimiters, of fewer than 16 "
    "characters, or that a clip that stays has too",
    "other texts of models about a clip, such as answers, tags and text read in pictures",
    "ids in part or as other numbers, as raw bytes outside of Parquet and Arrow, SHA-256 of MP4s "
    "as text, names of tars, addresses of sources, embeddings without the id of a clip",
    "what is encrypted, or encoded other than in base64, hexadecimal digits, JSON, HTML, percent "
    "signs or UTF-16; zlib and raw deflate within other bytes",
    "sources other than MP4 in containers of unknown formats",
    "extended attributes of files; what is not under OUT",
)
"""What the search does not look for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenRemoved(Outcome):
    """The outcome of a search for removed footage.

    Attributes:
        n_records: Number of records of removals.
        read: Number of objects, and of the compared parts of each kind.
        outside: What the search does not look for, in words.
    """

    n_records: int
    read: dict[str, int]
    outside: tuple[str, ...] = OUTSIDE

    @property
    def n_found(self) -> int:
        """Number of findings of removed footage and of damaged records."""
        return sum(self.counts.values()) - self.n_not_searched

    @property
    def n_not_searched(self) -> int:
        """Number of objects, and of parts of objects, that could not be searched."""
        return self.counts.get(str(FindingCode.NOT_SEARCHED), 0)


def verify_removed(
    out: str, *, progress: Callable[[int, int], None] = lambda n_objects, n_bytes: None
) -> ProvenRemoved:
    """Searches every object under an output root for removed footage.

    `progress` gets the numbers of objects and bytes read so far.

    Raises:
        UsageError: Nothing was removed from this output root.
    """
    store = open_store(out)
    findings = Findings(_MAX_FINDINGS)
    removals = check_records(store, findings).removals()
    if not removals and not findings.counts:
        raise UsageError(f"{store.uri} has no records of removals; `curate remove` makes them")
    search = _Search(store, without_shared(store, removals), findings)
    n_bytes = 0
    for number, entry in enumerate(store.entries(), 1):
        search.entry(entry)
        n_bytes += entry.bytes
        progress(number, n_bytes)
    _check_returned(store, removals, findings)
    return ProvenRemoved(
        **findings.outcome(store.uri, n_bytes),
        n_records=removals.n_records,
        read=dict(sorted(search.read.items())),
    )


def check_records(store: Store, findings: Findings) -> RecordChain:
    """Compares the records of removals with each other, their copies and all snapshots.

    Also checks the other objects that no run can make again.
    """
    records = RecordChain.read(store)
    copied = "`curate remove OUT --finish` writes it again from its copy"
    faults = [(name, why, copied) for name, why in records.damaged.items()]
    for name, why in records.lost.items():
        faults.append((name, f"{why}, and it has no whole copy", restore_remedy("OUT")))
    for name, why, remedy in faults:
        where = f"{store.uri}/{name}"
        findings.add(FindingCode.REMOVAL_RECORD, where, why, "a whole record", remedy)
    removals = records.removals()
    for name in removals.unfinished:
        if name in records.damaged or name in records.lost:
            continue
        where, remedy = f"{store.uri}/{name}", FINISH_REMOVAL
        words = "an unfinished removal, or objects from a backup of before it"
        findings.add(FindingCode.REMOVED, where, words, "a finished removal", remedy)
    check_lasting(store, removals, findings)
    return records


def found_in(store: Store, removals: Removals, names: Iterable[str]) -> list[str]:
    """Returns the names of the objects that hold parts of removed footage."""
    removals = without_shared(store, removals)
    keys = []
    for name in names:
        findings, info = Findings(), store.find(name)
        if info is None:
            continue
        entry = Entry(key=name, bytes=info.bytes, version=info.version)
        _Search(store, removals, findings).entry(entry)
        if findings.counts[FindingCode.REMOVED]:
            keys.append(name)
    return keys


def _check_returned(store: Store, removals: Removals, findings: Findings) -> None:
    """Searches for kept clips that show frames of removed footage."""
    regions = frame_regions(store, removals.frames)
    columns = ("clip_id", "source_id", "start_frame", "end_frame", "decision")
    for part in parts_of_snapshots(store, "clips") if regions else ():
        try:
            rows = read_parquet(store, part, columns)
        except DamagedError as error:
            where, remedy = f"{store.uri}/{part}", "`curate verify OUT` names the remedy"
            findings.add(FindingCode.UNREADABLE, where, error.why, "a table of a snapshot", remedy)
            continue
        rows = rows.filter(pc.equal(rows["decision"], "kept"))
        back = rows.filter(pa.array(overlapping_regions(rows, regions)))
        for clip_id in back["clip_id"].to_pylist():
            where, words = f"{store.uri}/{part}#{clip_id}", "frames of removed footage"
            findings.add(FindingCode.REMOVED, where, words, "none")


class _Search:
    """Searches what is under an output root, and adds findings."""

    def __init__(self, store: Store, removals: Removals, findings: Findings) -> None:
        self._store, self._findings = store, findings
        self._content = ContentSearch(removals, self._found, self._skipped)
        self._known: set[tuple[str, str, str]] = set()
        """Place and kind of the findings in one object."""
        self.read = self._content.read

    def entry(self, entry: Entry) -> None:
        """Searches the name and the content of an object, folder or other entry."""
        self._known.clear()
        place = Place(entry.key)
        self._content.name(entry.key, place.inner("its name"))
        if entry.problem is not None:
            # The target of a link may name something.
            self._content.name(entry.problem, place.inner("its target"))
            self._skipped(place, entry.problem)
        if not entry.is_object:
            return
        try:
            with self._store.open_entry(entry) as file:
                opaque = is_own(entry.key)
                self._content.object(file, entry.bytes, entry.key, may_be_opaque=opaque)
        except (StorageError, OSError) as error:
            self._skipped(place, f"it cannot be read: {error}")
        else:
            if self._store.has_changed(entry):
                self._skipped(place, "it changed while it was read")

    def _found(self, place: Place, what: str) -> None:
        self._add(FindingCode.REMOVED, place, f"{what} of removed footage", "nothing of it")

    def _skipped(self, place: Place, why: str) -> None:
        self._add(FindingCode.NOT_SEARCHED, place, why, "an object that can be searched")

    def _add(self, code: FindingCode, place: Place, words: str, expected: str) -> None:
        where = f"{self._store.uri}/{place.key}" + f"#{place.part}" * bool(place.part)
        finding = (str(code), where, words)
        if finding not in self._known:
            self._known.add(finding)
            is_other = code is FindingCode.REMOVED and not is_own(place.key)
            self._findings.add(code, where, words, expected, DELETE if is_other else None)
