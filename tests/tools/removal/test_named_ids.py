"""Texts of other clips do not name removed footage any more."""

import json

import pyarrow as pa
import pytest
from captioned import Captioned
from removable import SHARED
from test_removing import check_all, kept, of_film, remove, rows_of, search

from curator.cli import main
from curator.storage import open_store
from curator.tables.caption_search import CaptionSearch
from curator.tables.mark_table import read_marks
from curator.tables.named_ids import naming_rows, without_named
from curator.tables.removal_records import Removals, caption_hash, removal_hash
from curator.tools.commands.arguments import EXIT_FAILED, EXIT_OK

GONE, STAYS = "0123456789abcdef01234567", "76543210fedcba9876543210"


def test_ids_go_from_texts_of_any_column_and_not_from_keys() -> None:
    removals = Removals(clip_ids=frozenset({removal_hash(GONE)}))
    table = pa.table(
        {
            "clip_id": [STAYS, GONE],
            "note": [None, f"as {GONE.upper()}."],
            "json": [json.dumps({"of": GONE, "n": 1}), "{}"],
            "tags": [["x"], [f"twin-{GONE}"]],
            "score": [1.0, 2.0],
        }
    )
    left = without_named(table, removals)
    assert left.to_pydict() == {
        "clip_id": [STAYS, GONE],
        "note": [None, "as (removed)."],
        "json": [json.dumps({"of": "(removed)", "n": 1}), "{}"],
        "tags": [["x"], ["twin-(removed)"]],
        "score": [1.0, 2.0],
    }
    assert naming_rows(table, removals).to_pylist() == [True, True]
    assert not any(naming_rows(left, removals).to_pylist())
    assert without_named(left, removals) is left


@pytest.mark.long
def test_notes_captions_and_details_of_other_clips_do_not_name_a_removed_clip(
    place: Captioned,
) -> None:
    """Pins tables and tars of all snapshots, marks, and that a run writes the same tars again."""
    out = place.out
    newest = rows_of(out)[-1]
    named = {clip["duplicate_of"] for clip in newest} - {None}
    victim = next(clip for clip in kept(out) if clip["clip_id"] in named)
    gone = victim["clip_id"]
    others = [clip for clip in newest if clip["decision"] == "kept" and clip["clip_id"] != gone]
    for clip, option, text in zip(
        others,
        ("--note", "--caption", "--label"),
        (
            f"the same scene as {gone}",
            f"A scene that is longer than {gone.upper()}",
            f"like-{gone}",
        ),
        strict=False,
    ):
        assert main(["mark", str(out), clip["clip_id"], option, text]) == EXIT_OK
    place.run(*SHARED)
    needles = [gone.encode(), gone.upper().encode()]
    holding = {name.split("/")[-2] for name, _ in search(out, needles) if name.endswith(".tar")}
    assert holding
    assert remove(out, "clips", gone) == EXIT_OK
    assert search(out, needles) == []
    check_all(out)
    tars = {p.name for p in (out / "shards").rglob("*.tar")}
    again = place.run(*SHARED)
    assert again["work"]["shards_written"] == 0
    assert {p.name for p in (out / "shards").rglob("*.tar")} == tars
    assert search(out, needles) == []
    notes = {row["mark_note"] for row in rows_of(out)[-1]}
    assert "the same scene as (removed)" in notes


def test_captions_go_from_texts_of_marks() -> None:
    caption = "A red car, driven by a man, turns left."
    search = CaptionSearch({str(caption_hash(caption))}, {len(caption)})
    quoted = f'Compare with "{caption.upper()}", and\t"A red  car, driven\nby a man, turns left.".'
    left = search.without(quoted, "(removed)")
    assert left == 'Compare with "(removed)", and\t"(removed)".'
    assert search.without(caption, "(removed)") == "(removed)"
    assert search.without(json.dumps({"x": caption.replace(",", "&#44;")}), "-") == "-"
    assert search.without("A red car turns left.", "-") == "A red car turns left."


@pytest.mark.long
def test_marks_of_other_clips_quote_no_caption_of_a_removed_clip(place: Captioned) -> None:
    """Pins notes and captions of before the removal and of after it, in marks and their copies."""
    out = place.out
    victim, other, third = of_film(kept(out), 1)[0], *of_film(kept(out), 2)[:2]
    caption = victim["caption"]

    def mark() -> None:
        note = f'compare with "{caption}" soon'
        assert main(["mark", str(out), other["clip_id"], "--keep", "--note", note]) == EXIT_OK
        assert main(["mark", str(out), third["clip_id"], "--caption", caption]) == EXIT_OK

    def check() -> None:
        assert search(out, [caption.encode()]) == []
        marks = read_marks(open_store(str(out)))
        assert marks[other["clip_id"]].note == 'compare with "(removed)" soon'
        assert third["clip_id"] not in marks

    mark()
    assert remove(out, "clips", victim["clip_id"]) == EXIT_OK
    check()
    mark()
    assert main(["verify", str(out), "--removed"]) == EXIT_FAILED
    assert main(["remove", str(out), "--finish"]) == EXIT_OK
    check()
    assert main(["verify", str(out), "--removed"]) == EXIT_OK
