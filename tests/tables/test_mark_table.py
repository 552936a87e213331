"""Marks: no writer loses those of another, and none holds what a run could not honour."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from curator.errors import UsageError
from curator.storage import open_store
from curator.tables.checksums import sealed_parquet
from curator.tables.mark_table import Mark, MarkWriter, mark_objects, read_marks, utc_now
from curator.tables.out_layout import is_own
from curator.tables.removal_records import (
    Removals,
    RemovedSpan,
    add_record,
    empty_record,
    read_removals,
    removal_hash,
)
from curator.tools.removal.state_scrubbing import StateScrubbing
from curator.tools.review.clip_marking import changed_mark


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


def test_a_later_mark_counts_although_the_clock_was_set_back(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    MarkWriter(store).put(replace(mark(verdict="drop"), marked_at="2999-01-01T00:00:00+00:00"))
    earlier, span = read_marks(store)["a"], {"clip_id": "a"}
    MarkWriter(store).put(changed_mark(earlier, span, {"verdict": "keep"}))
    assert read_marks(store)["a"].verdict == "keep"


def test_a_removal_takes_marks_of_removed_footage(tmp_path: Path) -> None:
    """Pins clips by id, and others that show removed frames; other marks stay as they are."""
    store = open_store(str(tmp_path))
    here, there = MarkWriter(store), MarkWriter(store)
    here.put(*[mark("gone", note="secret"), mark("stays", label="a")])
    there.put(replace(mark("shifted", caption="secret"), start_frame=100, end_frame=150))
    span = RemovedSpan(start_s=4.0, end_s=5.0, start_frame=120, end_frame=150)
    removals = Removals(
        clip_ids=frozenset({removal_hash("gone")}), spans={removal_hash("s"): (span,)}, n_records=1
    )
    StateScrubbing(store, removals).marks()
    assert list(read_marks(store)) == ["stays"]
    assert not any(b"secret" in store.read(name) for name in mark_objects(store))
    there.put(mark("new", label="b"))
    assert list(read_marks(store)) == ["stays", "new"]


def test_a_mark_that_a_removal_overtakes_is_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins a record that is written between the check and the write, whose scrubbing is over."""
    store = open_store(str(tmp_path))
    writer = MarkWriter(store)
    writer.put(mark("gone", note="secret"), mark("stays", label="a"))

    def overtaken(*arguments: Any) -> Any:  # noqa: ANN401
        monkeypatch.undo()
        record = empty_record("clips") | {"clip_ids": [removal_hash("gone")]}
        add_record(store, record)
        StateScrubbing(store, read_removals(store)).marks()
        return sealed_parquet(*arguments)

    monkeypatch.setattr("curator.tables.mark_table.sealed_parquet", overtaken)
    with pytest.raises(UsageError, match="start it again"):
        writer.put(mark("gone", note="secret again"))
    assert list(read_marks(store)) == ["stays"]
    assert not any(b"secret" in store.read(name) for name in mark_objects(store))
    with pytest.raises(UsageError, match="start it again"):
        writer.put(mark("new", label="b"))
    # A command that begins before the removal has finished stores nothing either.
    with pytest.raises(UsageError, match="--finish"):
        MarkWriter(store).put(mark("gone", note="secret again"))


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
