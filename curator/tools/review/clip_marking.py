"""Marks clips of a finished run, by id or from a CSV."""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import UsageError, ambiguous_id
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.long_columns import take_values
from curator.tables.mark_table import TEXT_LIMITS, Mark, MarkWriter, read_marks, utc_now
from curator.tables.output_format import read_current_summary

CONTENT = ("verdict", *TEXT_LIMITS)
"""Fields of a mark that users set; a CSV of marks has these columns and `clip_id`."""
Changes = Mapping[str, str | None]
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff\ufffe\uffff]"
)
"""Control characters except line feed and tab, separators of lines, marks that reorder text, a byte
order mark, and halves of surrogate pairs."""
SPAN = ["clip_id", "source_id", "start_frame", "end_frame"]
"""Fields of a mark that identify its clip."""


def mark_clips(store: Store, changes: Iterable[tuple[str, Changes]]) -> int:
    """Changes the marks of clips; returns the number of clips.

    Args:
        store: Output root.
        changes: Pairs of a clip's id, or a unique prefix of the id, and the fields to change. Other
            fields keep their values.

    Raises:
        UsageError: No clip or several clips match, or a value is not valid. No mark was changed.
    """
    # Created before the clips are read, the writer detects removals that begin later.
    writer, summary = MarkWriter(store), read_current_summary(store)
    clips = pa.concat_tables(read_parquet(store, n, SPAN) for n in summary["tables"]["clips"])
    marks, ids = read_marks(store), clips["clip_id"]
    changed: dict[str, Mark] = {}
    for name, fields in changes:
        same = ids.index(name).as_py()
        rows = [same] if same >= 0 else pc.indices_nonzero(pc.starts_with(ids, name)).to_pylist()
        if len(rows) > 1:
            words = ambiguous_id(name, take_values(ids, pa.array(rows)).to_pylist())
            raise UsageError(f"{words}; nothing was marked")
        if not rows:
            raise UsageError(
                f"no clip of {store.uri} has an id that begins with {name!r}; nothing was marked "
                "(`curate explain` lists clips)"
            )
        span = clips.slice(rows[0], 1).to_pylist()[0]
        clip_id = span["clip_id"]
        changed[clip_id] = changed_mark(changed.get(clip_id) or marks.get(clip_id), span, fields)
    if changed:
        writer.put(*changed.values())
    return len(changed)


def changed_mark(earlier: Mark | None, span: Mapping[str, Any], changes: Changes) -> Mark:
    """Returns a changed mark with the present time; raises `UsageError` for a wrong value.

    The newest mark counts, so the time is after that of `earlier`, even if a clock was set back.
    """
    for name in TEXT_LIMITS:
        _refuse_control(span["clip_id"], name, changes.get(name) or "")
    marked_at = utc_now()
    if earlier is not None:
        least = datetime.fromisoformat(earlier.marked_at) + timedelta(microseconds=1)
        marked_at = max(datetime.fromisoformat(marked_at), least).isoformat()
    values: dict[str, Any] = {**changes, "marked_at": marked_at}
    return replace(earlier, **values) if earlier is not None else Mark(**span, **values)


def _refuse_control(clip_id: str, name: str, text: str) -> None:
    """Refuses characters that terminals obey, or that break or reorder the lines of an export."""
    found = _CONTROL.search(text) or (re.search(r"[\n\t]", text) if name == "label" else None)
    if found is not None:
        character = found[0]
        known = unicodedata.name(character, unicodedata.category(character))
        allowed = "" if name == "label" else ", except line feeds and tabs"
        raise UsageError(
            f"clip {clip_id}: character {found.start() + 1} of the {name} is "
            f"U+{ord(character):04X} ({known}); expected text without control "
            f"characters{allowed}: remove it. Nothing was marked"
        )


def read_csv(path: str) -> list[tuple[str, Changes]]:
    """Reads marks from a CSV; an empty cell changes nothing. A wrong file raises `UsageError`."""
    expected = f"expected the columns clip_id and some of {', '.join(CONTENT)}, a cell in each"
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        rows = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path!r} cannot be read as CSV: {error}") from error
    if not rows:
        raise UsageError(f"{path!r} has no row below its headings; {expected}")
    for number, row in enumerate(rows, 1):
        if (
            "clip_id" not in row
            or set(row) - {"clip_id", *CONTENT, "marked_at"}
            or None in row.values()
        ):
            raise UsageError(f"{path!r}, row {number}: {expected}")
    return [(row["clip_id"], {n: row[n] for n in CONTENT if row.get(n)}) for row in rows]


def marks_csv(marks: Iterable[Mark]) -> str:
    """Returns marks as a CSV for `read_csv`."""
    output = io.StringIO(newline="")
    writer = csv.writer(output, lineterminator="\n")
    names = ("clip_id", *CONTENT, "marked_at")
    writer.writerows([names, *([getattr(mark, name) for name in names] for mark in marks)])
    return output.getvalue()
