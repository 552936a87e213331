"""Searches every object under an output root for removed footage.

Records of removals hold only hashes. The search therefore hashes all possible ids, captions,
pictures and clips. Possible ids are hexadecimal words of an id's length, also in names of objects.
"""

import base64
import binascii
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curator.errors import DamagedError, ShardError, UsageError
from curator.stages.shard.tar_reader import TarReader
from curator.storage import Store, open_store
from curator.tables.checksums import read_parquet
from curator.tables.frame_hashes import frame_regions, overlapping_regions
from curator.tables.out_layout import REMOVED
from curator.tables.removal_records import (
    CAPTION_COLUMNS,
    LEAST_CAPTION,
    RecordChain,
    Removals,
    caption_hash,
    removal_hash,
    restore_remedy,
)
from curator.tables.snapshot_store import listed_snapshots
from curator.verify.findings import FindingCode, Findings, Outcome
from curator.verify.lasting_check import check_lasting

_ID = re.compile(rb"(?<![0-9a-f])(?:[0-9a-f]{24}|[0-9a-f]{32})(?![0-9a-f])")
"""Ids of clips and of sources."""
_JPEG = re.compile(rb"data:image/jpeg;base64,([0-9A-Za-z+/=]+)")
_TEXTS = (".json", ".jsonl", ".html", ".md", ".yaml", ".txt")
_READ_BYTES = 8 << 20
_OVERLAP_BYTES = 64
"""Overlap between reads, so that no id is split between two reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenRemoved(Outcome):
    """The outcome of a search for removed footage.

    Attributes:
        n_records: Number of records of removals.
        read: Number of objects, and of the compared parts of each kind.
    """

    n_records: int
    read: dict[str, int]


def verify_removed(
    out: str, *, progress: Callable[[int, int], None] = lambda n_objects, n_bytes: None
) -> ProvenRemoved:
    """Searches every object under an output root for removed footage.

    `progress` gets the numbers of objects and bytes read so far.

    Raises:
        UsageError: Nothing was removed from this output root.
    """
    store = open_store(out)
    findings = Findings()
    removals = check_records(store, findings).removals()
    if not removals and not findings.counts:
        raise UsageError(f"{store.uri} has no records of removals; `curate remove` makes them")
    search = _Search(store, _without_shared(store, removals), findings)
    n_bytes = 0
    for number, info in enumerate(store.list(""), 1):
        search.object(info.key)
        n_bytes += info.bytes
        progress(number, n_bytes)
    _check_returned(store, removals, findings)
    return ProvenRemoved(
        **findings.outcome(store.uri, n_bytes), n_records=removals.n_records, read=dict(search.read)
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
        where, remedy = f"{store.uri}/{name}", "run `curate remove OUT --finish`"
        words = "an unfinished removal, or objects from a backup of before it"
        findings.add(FindingCode.REMOVED, where, words, "a finished removal", remedy)
    check_lasting(store, removals, findings)
    return records


def found_in(store: Store, removals: Removals, names: Iterable[str]) -> list[str]:
    """Returns the names of the objects that hold parts of removed footage."""
    removals = _without_shared(store, removals)
    keys = []
    for name in names:
        findings = Findings()
        _Search(store, removals, findings).object(name)
        if findings.counts[FindingCode.REMOVED]:
            keys.append(name)
    return keys


def _parts(store: Store, table: str) -> Iterator[str]:
    """Yields the parts of a table in all readable snapshots."""
    for _, summary in listed_snapshots(store):
        if not isinstance(summary, Exception):
            yield from summary["tables"].get(table, ())


def _without_shared(store: Store, removals: Removals) -> Removals:
    """Returns the removals without captions that remaining clips share."""
    shared: set[str | None] = set()
    for table, columns in CAPTION_COLUMNS.items() if removals.captions else ():
        for part in _parts(store, table):
            try:
                rows = read_parquet(store, part, ("clip_id", *columns))
            except DamagedError:
                # Only more would be found: a caption of a clip that stays counts as removed.
                continue
            rows = rows.filter(pc.invert(pa.array(removals.rows(rows))))
            for name in columns:
                shared.update(map(caption_hash, rows[name].unique().drop_null().to_pylist()))
    return replace(removals, captions=removals.captions - shared)


def _check_returned(store: Store, removals: Removals, findings: Findings) -> None:
    """Searches for kept clips that show frames of removed footage."""
    regions = frame_regions(store, removals.frames)
    columns = ("clip_id", "source_id", "start_frame", "end_frame", "decision")
    for part in _parts(store, "clips") if regions else ():
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
    """Compares the contents of objects with the records of removals."""

    def __init__(self, store: Store, removals: Removals, findings: Findings) -> None:
        self._store = store
        self._removals = removals
        self._findings = findings
        self._data = removals.mp4 | removals.pictures
        self.read: Counter[str] = Counter()

    def object(self, key: str) -> None:
        """Reads an object, and searches its contents according to its kind."""
        where = f"{self._store.uri}/{key}"
        self.read["objects"] += 1
        self._words(key.encode(), where, "its name")
        if key.endswith(".tar"):
            self._tar(key, where)
        elif not key.endswith((".parquet", *_TEXTS)) or key.startswith(f"{REMOVED}/"):
            self._bytes(key, where)
        else:
            data = self._store.read(key)
            # Parquet leaves some values uncompressed.
            self._words(data, where, "its bytes")
            look = self._parquet if key.endswith(".parquet") else self._text
            look(data, where)

    def _bytes(self, key: str, where: str) -> None:
        """Searches the bytes of an object of any kind and size."""
        digest, tail = hashlib.sha256(), b""
        with self._store.open(key) as stream:
            while data := stream.read(_READ_BYTES):
                digest.update(data)
                self._words(tail + data, where, "its bytes")
                tail = data[-_OVERLAP_BYTES:]
        if digest.hexdigest() in self._data:
            self._report(where, "the object", "a clip or a picture")

    def _report(self, where: str, part: str, what: str) -> None:
        words = f"{what} of removed footage"
        self._findings.add(FindingCode.REMOVED, f"{where}#{part}", words, "nothing of it")

    def _words(self, data: bytes, where: str, part: str) -> None:
        words = set(_ID.findall(data))
        self.read["words that may be ids"] += len(words)
        if any(removal_hash(word.decode()) in self._removals.ids for word in words):
            self._report(where, part, "an id")

    def _hash(self, data: bytes, where: str, part: str) -> None:
        if hashlib.sha256(data).hexdigest() in self._data:
            self._report(where, part, "a clip or a picture")

    def _captions(self, texts: Iterable[str], where: str, part: str) -> None:
        wanted = self._removals.captions
        for text in texts:
            self.read["texts"] += 1
            if wanted and any(caption_hash(caption) in wanted for caption in _texts_in(text)):
                self._report(where, part, "a caption")
                return

    def _text(self, data: bytes, where: str) -> None:
        text = data.decode("utf-8", "replace")
        for number, encoded in enumerate(_JPEG.findall(data)):
            try:
                self._hash(base64.b64decode(encoded), where, f"picture {number}")
            except binascii.Error:
                continue
            self.read["pictures"] += 1
        if where.endswith(".html"):
            parser = _Html()
            parser.feed(text)
            self._captions(parser.texts, where, "its text")
        else:
            lines = text.splitlines() if where.endswith(".jsonl") else [text]
            self._captions(lines, where, "its text")

    def _tar(self, key: str, where: str) -> None:
        size = sum(info.bytes for info in self._store.list(key) if info.key == key)
        try:
            with self._store.open(key) as stream:
                reader = TarReader(stream.read, size)
                for member in reader:
                    self.read["members of tars"] += 1
                    part = member.name
                    self._words(part.encode(), where, part)
                    if member.suffix == "mp4":
                        digest = hashlib.sha256()
                        for chunk in reader.chunks(member):
                            digest.update(chunk)
                        if digest.hexdigest() in self._data:
                            self._report(where, part, "a clip")
                        continue
                    data = reader.read(member)
                    self._words(data, where, part)
                    if member.suffix in ("json", "txt"):
                        self._captions([data.decode("utf-8", "replace")], where, part)
        except ShardError as error:
            # The tar is foreign or damaged; the search still compares its bytes.
            self._findings.add(FindingCode.TAR_DAMAGED, where, str(error), "a whole tar")
            self._bytes(key, where)

    def _parquet(self, data: bytes, where: str) -> None:
        try:
            file = pq.ParquetFile(io.BytesIO(data))
        except pa.ArrowException as error:
            self._findings.add(FindingCode.UNREADABLE, where, str(error), "a Parquet object")
            return
        for value in (file.metadata.metadata or {}).values():
            self._words(value, where, "its footer")
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            for name in table.column_names:
                for leaf in _leaves(table[name]):
                    self._column(leaf, where, name)

    def _column(self, column: pa.ChunkedArray, where: str, name: str) -> None:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            texts = column.unique().drop_null().to_pylist()
            self.read["cells"] += len(column)
            self._words("\n".join(texts).encode("utf-8", "replace"), where, name)
            self._captions(texts, where, name)
        elif pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            self.read["cells"] += len(column)
            for value in column.drop_null():
                content = value.as_py()
                self._hash(content, where, name)
                self._words(content, where, name)


class _Html(HTMLParser):
    """Collects the texts and attribute values of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts += [
            value for _, value in attrs if value is not None and not value.startswith("data:")
        ]


def _texts_in(value: Any) -> Iterator[str]:  # noqa: ANN401 - of any JSON
    """Yields the texts in a JSON value; a text that holds JSON also yields the texts in it."""
    if isinstance(value, str):
        yield value
        if value[:1] in ("{", "[") and len(value) > LEAST_CAPTION:
            with suppress(ValueError):
                yield from _texts_in(json.loads(value))
    elif isinstance(value, list):
        yield from chain.from_iterable(map(_texts_in, value))
    elif isinstance(value, dict):
        yield from value
        yield from chain.from_iterable(map(_texts_in, value.values()))


def _leaves(column: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """Yields the flat columns within a nested column."""
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _leaves(pc.list_flatten(column))
    elif pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from _leaves(pc.struct_field(column, [number]))
    elif pa.types.is_dictionary(kind):
        yield from _leaves(column.cast(kind.value_type))
    else:
        yield column
