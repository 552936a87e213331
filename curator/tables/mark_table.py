"""Marks: decisions that people made about clips, in `marks/<random>.parquet` of an output root.

Each writer has its own object, so no writer overwrites marks of another writer. No run deletes
marks. `tables.lasting_objects` keeps a copy of each object.
"""

import re
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from curator.errors import UsageError
from curator.storage import Store
from curator.tables.caption_search import CaptionSearch
from curator.tables.checksums import sealed_parquet
from curator.tables.lasting_objects import (
    lasting_names,
    read_lasting,
    repair_lasting,
    write_lasting,
)
from curator.tables.named_ids import REMOVED_ID, without_named
from curator.tables.out_layout import MARKS, REMOVED
from curator.tables.parts import columns_schema, rows_to_table, with_column
from curator.tables.removal_records import Removals, read_removals

Verdict = Literal["keep", "drop"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
_UNFIT = re.compile("[\0\ud800-\udfff]")
TEXT_LIMITS = {"label": 100, "note": 10_000, "caption": 10_000}
"""Maximum length of each text, in characters."""
MARK_COLUMNS = ("mark", "mark_label", "mark_note")
"""Columns of `clips` with verdict, label and note. Values that are not null are also in the JSON of
samples."""
MARKS_SCHEMA = columns_schema(
    ("clip_id source_id", pa.string()),
    ("start_frame end_frame", pa.int64()),
    (" ".join(("verdict", *TEXT_LIMITS, "marked_at")), pa.string()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A decision that a person made about one clip."""

    clip_id: str
    source_id: str
    start_frame: int
    end_frame: int
    verdict: Verdict | None = None
    """None leaves the decision to the recipe."""
    label: str | None = None
    note: str | None = None
    caption: str | None = None
    """Replaces the caption."""
    marked_at: str
    """UTC, ISO 8601."""

    def __post_init__(self) -> None:
        """Refuses values that no run could honour."""
        clip = f"clip {self.clip_id}"
        if self.verdict not in (None, *VERDICTS):
            raise UsageError(f"{clip}: the verdict is {self.verdict!r}; expected 'keep' or 'drop'")
        for name, most in TEXT_LIMITS.items():
            text = getattr(self, name)
            is_fit = text is None or (len(text) <= most and text.strip())
            if not is_fit or _UNFIT.search(text or ""):
                raise UsageError(
                    f"{clip}: the {name} has {len(text)} characters; expected 1 to {most} "
                    "characters that UTF-8 can encode, without NUL, and not only spaces"
                )
        if datetime.fromisoformat(self.marked_at).utcoffset() != timedelta(0):
            raise UsageError(f"{clip}: marked_at is {self.marked_at!r}; expected UTC as ISO 8601")

    @property
    def content(self) -> tuple[str, ...]:
        """Verdict and texts; a mark without verdict and texts clears earlier marks."""
        values = (self.verdict, self.label, self.note, self.caption)
        return tuple(value for value in values if value is not None)


def utc_now() -> str:
    """Returns the time for `marked_at`."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def mark_objects(store: Store) -> list[str]:
    """Returns the names of all objects with marks, also of lost ones."""
    return lasting_names(store, (MARKS,))


def read_marks(store: Store) -> dict[str, Mark]:
    """Returns the newest mark of each clip, by clip id; omits marks without verdict and texts.

    Raises `UsageError` if an object with marks is lost with its copy.
    """
    with ThreadPoolExecutor(16) as pool:
        marks = [*chain(*pool.map(lambda name: _marks(store, name), mark_objects(store)))]
    marks.sort(key=lambda mark: datetime.fromisoformat(mark.marked_at))
    return {name: mark for name, mark in {m.clip_id: m for m in marks}.items() if mark.content}


def _marks(store: Store, name: str) -> list[Mark]:
    return [Mark(**row) for row in _table(store, name).to_pylist()]


def _table(store: Store, name: str) -> pa.Table:
    return pq.ParquetFile(pa.BufferReader(read_lasting(store, name))).read()


class MarkWriter:
    """Stores marks in its own object; each process that makes marks has one writer."""

    def __init__(self, store: Store) -> None:
        """Repairs damaged objects; raises `UsageError` if one is lost with its copy."""
        repair_lasting(store)
        self._store, self._name = store, f"{MARKS}/{secrets.token_hex(8)}.parquet"
        self._has_stored = False
        self._removals = self._removal_objects()
        # The end of an unfinished removal changes `_removal_objects`.
        self._unfinished = read_removals(store).unfinished

    def put(self, *marks: Mark) -> None:
        """Replaces the marks of the given clips in one write.

        A removal that begins during the write leaves no mark of removed footage: either it reads
        the written marks, or this writer sees its record. Raises as `refuse_removed`.
        """
        self.refuse_removed()
        # Read each time: `curate remove` may have taken marks out meanwhile.
        stored = _marks(self._store, self._name) if self._has_stored else []
        newest = {mark.clip_id: mark for mark in (*stored, *marks)}
        table = rows_to_table(map(asdict, newest.values()), MARKS_SCHEMA)
        _write(self._store, self._name, table)
        self._has_stored = True
        known = self._removals
        while known != (known := self._removal_objects()):
            # The removal may have read the object before this write, and written it after.
            table = _without_removed(table, read_removals(self._store))
            _write(self._store, self._name, table)
        self.refuse_removed("; marks of clips that stay are stored")

    def refuse_removed(self, done: str = "") -> None:
        """Raises `UsageError` if a removal is under way, or began since this writer was made.

        The message ends with what is `done`.
        """
        uri = self._store.uri
        if self._removal_objects() != self._removals:
            raise UsageError(
                f"`curate remove` took footage out of {uri} since this command began; start it "
                f"again{done}"
            )
        if self._unfinished:
            raise UsageError(
                f"a removal from {uri} is not finished: run `curate remove {uri} --finish`, then "
                "start this command again"
            )

    def _removal_objects(self) -> list[str]:
        return [f"{info.key} {info.version}" for info in self._store.list(f"{REMOVED}/")]


def take_out_removed(store: Store, name: str, removals: Removals) -> None:
    """Removes marks of removed clips, and of clips with removed frames, from an object.

    Also takes ids and captions of removed clips out of the notes and captions of other marks.
    """
    table = _table(store, name)
    left = _without_removed(table, removals)
    if left is not table:
        _write(store, name, left)


def _without_removed(table: pa.Table, removals: Removals) -> pa.Table:
    is_gone = removals.rows(table) | removals.sharing_frames(table)
    table = table.filter(pa.array(~is_gone)) if is_gone.any() else table
    return _without_captions(without_named(table, removals), removals)


def _without_captions(table: pa.Table, removals: Removals) -> pa.Table:
    """Returns marks that quote no caption of removed clips; the same table if none did."""
    search = CaptionSearch(removals.captions, removals.caption_lengths)
    for name in TEXT_LIMITS:
        texts = table[name].to_pylist()
        left = [text and search.without(text, REMOVED_ID) for text in texts]
        if name == "caption":
            # Without a caption by hand, the clip has its own.
            left = [None if text == REMOVED_ID else text for text in left]
        if left != texts:
            table = with_column(table, name, pa.array(left, table[name].type))
    return table


def _write(store: Store, name: str, table: pa.Table) -> None:
    _, data = sealed_parquet(lambda out: out.write_table(table), MARKS_SCHEMA, name)
    write_lasting(store, name, data, entries=table.num_rows)
