"""Marks: what people decided about clips by hand, stored beside the results of runs.

    marks/<random>.parquet    the marks of one writer, written whole with each mark

Writers do not share objects, so none writes over the marks of another one. No run deletes marks;
`curate remove` takes out those of removed footage.
"""

import secrets
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

import pyarrow as pa

from curator.errors import UsageError
from curator.storage import Store
from curator.tables.checksums import read_parquet, sealed_parquet
from curator.tables.out_layout import MARKS
from curator.tables.parts import rows_to_table

MARKS_SCHEMA = pa.schema(
    [
        ("clip_id", pa.string()),
        ("source_id", pa.string()),
        ("start_frame", pa.int64()),
        ("end_frame", pa.int64()),
        ("verdict", pa.string()),
        ("label", pa.string()),
        ("note", pa.string()),
        ("caption", pa.string()),
        ("marked_at", pa.string()),
    ]
)
VERDICTS = ("keep", "drop")
TEXT_LIMITS = {"label": 100, "note": 10_000, "caption": 10_000}
"""Characters of each text, at most."""
_READERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A decision about one clip by hand.

    Attributes:
        verdict: None leaves the decision to the recipe.
        caption: Text that replaces the caption.
        marked_at: UTC, ISO 8601.
    """

    clip_id: str
    source_id: str
    start_frame: int
    end_frame: int
    verdict: Literal["keep", "drop"] | None = None
    label: str | None = None
    note: str | None = None
    caption: str | None = None
    marked_at: str

    def __post_init__(self) -> None:
        """Refuses values that no run could honour.

        Raises:
            UsageError: A verdict, text or time is not valid.
        """
        if self.verdict not in (None, *VERDICTS):
            raise UsageError(
                f"clip {self.clip_id}: the verdict is {self.verdict!r}; expected 'keep' or 'drop'"
            )
        for name, most in TEXT_LIMITS.items():
            text = getattr(self, name)
            if text is not None and not (0 < len(text) <= most and text.strip()):
                raise UsageError(
                    f"clip {self.clip_id}: the {name} has {len(text)} characters; expected 1 to "
                    f"{most}, not only spaces"
                )
            if text is not None and "\0" in text:
                raise UsageError(f"clip {self.clip_id}: the {name} has a NUL character")
        try:
            is_utc = datetime.fromisoformat(self.marked_at).utcoffset() == timedelta(0)
        except ValueError:
            is_utc = False
        if not is_utc:
            raise UsageError(
                f"clip {self.clip_id}: marked_at is {self.marked_at!r}; expected UTC as ISO 8601, "
                f"such as {utc_now()}"
            )

    @property
    def has_content(self) -> bool:
        """Whether the mark says anything; one that does not clears earlier ones."""
        return any(value is not None for value in (self.verdict, *self.texts.values()))

    @property
    def texts(self) -> dict[str, str | None]:
        """Label, note and caption."""
        return {name: getattr(self, name) for name in TEXT_LIMITS}


def utc_now() -> str:
    """Returns the time for `marked_at`."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def mark_objects(store: Store) -> list[str]:
    """Returns the names of all objects with marks."""
    return [info.key for info in store.list(f"{MARKS}/") if info.key.endswith(".parquet")]


def read_marks(store: Store) -> dict[str, Mark]:
    """Returns the newest mark of each clip, by clip id; without those that say nothing."""
    newest: dict[str, tuple[datetime, Mark]] = {}
    with ThreadPoolExecutor(_READERS) as pool:
        for marks in pool.map(lambda name: list(_read(store, name)), mark_objects(store)):
            for mark in marks:
                at = datetime.fromisoformat(mark.marked_at)
                if mark.clip_id not in newest or newest[mark.clip_id][0] <= at:
                    newest[mark.clip_id] = at, mark
    return {clip_id: mark for clip_id, (_, mark) in sorted(newest.items()) if mark.has_content}


def _read(store: Store, name: str) -> Iterator[Mark]:
    for row in read_parquet(store, name).to_pylist():
        yield Mark(**row)


class MarkWriter:
    """Stores marks in an object of its own; one per process that marks.

    Args:
        store: Output root.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._name = f"{MARKS}/{secrets.token_hex(8)}.parquet"

    def put(self, mark: Mark) -> None:
        """Replaces the whole mark of a clip."""
        self.put_all([mark])

    def put_all(self, marks: Iterable[Mark]) -> None:
        """Replaces the whole marks of some clips, by one write."""
        # Read each time: `curate remove` may have taken marks out meanwhile.
        is_there = self._store.exists(self._name)
        stored = {m.clip_id: m for m in _read(self._store, self._name)} if is_there else {}
        stored |= {mark.clip_id: mark for mark in marks}
        write_marks(
            self._store, self._name, rows_to_table(map(asdict, stored.values()), MARKS_SCHEMA)
        )


def write_marks(store: Store, name: str, table: pa.Table) -> None:
    """Writes an object of marks whole."""
    store.write(name, sealed_parquet(lambda out: out.write_table(table), MARKS_SCHEMA, name))
