"""Marks: no writer loses those of another, and none holds what a run could not honour."""

from pathlib import Path
from typing import Any

import pytest

from curator.errors import UsageError
from curator.storage import open_store
from curator.tables.mark_table import Mark, MarkWriter, mark_objects, read_marks, utc_now
from curator.tables.out_layout import is_own


def mark(clip_id: str = "a", **content: Any) -> Mark:  # noqa: ANN401 - fields of a mark
    """Returns a mark of now."""
    return Mark(
        clip_id=clip_id, source_id="s", start_frame=0, end_frame=9, marked_at=utc_now(), **content
    )


def test_the_newest_mark_of_a_clip_counts_whoever_wrote_it(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    here, there = MarkWriter(store), MarkWriter(store)
    here.put(mark(verdict="keep", label="red"))
    there.put(mark("b", caption="A dog"))
    there.put(mark(verdict="drop"))
    marks = read_marks(store)
    assert [(m.verdict, m.label, m.caption) for m in marks.values()] == [
        ("drop", None, None),
        (None, None, "A dog"),
    ]
    here.put(mark())
    assert list(read_marks(store)) == ["b"]
    assert all(map(is_own, mark_objects(store)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"verdict": "maybe"}, "verdict is 'maybe'"),
        ({"label": "x" * 101}, "label has 101 characters"),
        ({"note": " "}, "note has 1 characters"),
        ({"caption": "a\0b"}, "NUL"),
    ],
)
def test_what_no_run_could_honour_is_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mark(**content)
