"""Marks by hand: a run honours them, a rerun keeps them, and no other clip's tar changes."""

import json
import tarfile
from pathlib import Path
from typing import Any

import made_corpus
import orjson
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from place import Place

from curator.cli import main
from curator.storage import open_store
from curator.tables.mark_table import read_marks
from curator.tools.commands.arguments import EXIT_OK, EXIT_USAGE
from curator.tools.review.bound_tuning import tune
from curator.tools.review.finished_run import open_finished

N, N_SOURCES = 1000, 20
EXAMPLES = Path(__file__).parents[2] / "examples"
SETTINGS = [*made_corpus.SETTINGS, "shard.max_bytes=1000000", "select.keep_fraction=0.8"]


def rows_of(out: Path) -> dict[str, dict[str, Any]]:
    return {row["clip_id"]: row for row in Place(out, out).table("clips")}


def tars(out: Path, summary: dict[str, Any]) -> dict[str, dict[str, bytes]]:
    """Members of each tar by name."""
    members = {}
    for shard in summary["shards"]:
        with tarfile.open(out / shard["name"]) as tar:
            members[shard["name"]] = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    return members


def decisions(rows: dict[str, dict[str, Any]]) -> str:
    """What readers see of clips, but for their place in tars."""
    return repr([{**row, "shard": None, "mp4_offset": None} for row in rows.values()])


def samples(of_tars: dict[str, dict[str, bytes]]) -> dict[str, bytes]:
    return {name: data for members in of_tars.values() for name, data in members.items()}


def mark(out: Path, *arguments: str, code: int = EXIT_OK) -> None:
    assert main(["mark", str(out), *arguments]) == code


def last(rows: dict[str, dict[str, Any]], reason: str | None, **other: Any) -> str:  # noqa: ANN401
    """The last clip with a reason: of the first that are kept one is pretended to fail."""
    return next(
        name
        for name, row in reversed(rows.items())
        if row["reason"] == reason and all(row[key] == value for key, value in other.items())
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without marks; not to be changed."""
    out = tmp_path_factory.mktemp("marks") / "out"
    recipe = made_corpus.recipe_of(SETTINGS)
    made_corpus.make(out, N, recipe)
    made_corpus.execute(out, recipe, N_SOURCES)
    return out


def test_a_run_honours_marks_and_other_tars_stay(
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pins verdicts against each stage that decides, texts in samples, counts, explain and tune."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    out = made_corpus.copied(finished, tmp_path / "out")
    recipe = made_corpus.recipe_of(SETTINGS)
    summary = json.loads((out / "summary.json").read_bytes())
    before, packed = rows_of(out), tars(out, summary)
    assert "marks" not in summary
    kept = [last(before, reason) for reason in ("motion_too_low", "duplicate", "not_selected")]
    original = before[kept[1]]["duplicate_of"]
    stays = {name: row for name, row in before.items() if name != original}
    dropped = last(stays, None)
    described = last({name: row for name, row in stays.items() if name != dropped}, None)
    short = last(before, "too_short")
    mark(out, dropped, "--drop", "--note", "bad")
    mark(out, *kept, short, "--keep")
    mark(out, described, "--label", "dog", "--caption", "A dog")
    moved = tune(open_finished(str(out)), ["motion.min=0.02"])
    summary = made_corpus.execute(out, recipe, N_SOURCES)
    after = rows_of(out)
    assert after[dropped]["reason"] == "marked_drop"
    assert after[dropped]["reasons"] == ["marked_drop"]
    assert [after[name]["reason"] for name in kept] == [None] * 3
    assert [after[name]["mark"] for name in kept] == ["keep"] * 3
    assert after[original]["duplicate_of"] == kept[1]
    assert after[short]["reason"] == "too_short"
    assert (after[described]["caption"], after[described]["caption_model"]) == ("A dog", "by hand")
    assert summary["marks"] == {
        "honoured": 5, "without_effect": 1, "without_clip": 0, "columns": True,
    }  # fmt: skip
    # The same decisions as tune foresaw, and the same counts as the rules.
    ids = moved.finished.clips["clip_id"].to_pylist()
    late = ("cut_failed",)
    foreseen = {n: r for n, r in zip(ids, moved.then, strict=True) if r not in late}
    assert {n: after[n]["reason"] for n in foreseen if after[n]["reason"] not in late} == {
        n: r for n, r in foreseen.items() if after[n]["reason"] not in late
    }
    (rule,) = (rule for rule in summary["rules"] if rule["rule"] == "run.marks")
    assert rule["first"] == summary["counts"]["by_reason"]["marked_drop"] == 1
    # Texts are in the sample, and tars of clips whose outcome is the same are as they were.
    now = tars(out, summary)
    (members,) = (m for m in now.values() if f"{described}.json" in m)
    sample = orjson.loads(members[f"{described}.json"])
    assert sample["columns"] == {"mark_label": "dog"}
    assert (sample["caption"], members[f"{described}.txt"]) == ("A dog", b"A dog")
    unmarked = [n for n, m in now.items() if m == packed.get(n)]
    assert unmarked, "some tars stay"
    for name, said in (
        (dropped, "marked by hand: drop, bad"),
        (short, "did not honour"),
        (
            kept[0],
            "Only the mark keeps it: without the mark, the recipe would reject it as motion_",
        ),
        (kept[1], "Without the mark, the rules would keep it; duplicates and selection may reject"),
    ):
        capsys.readouterr()
        assert main(["explain", str(out), name]) == EXIT_OK
        assert said in capsys.readouterr().out
    # Its MP4s are pretended; all else fits together.
    main(["verify", str(out), "--frames", "none", "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {finding["code"] for finding in findings} <= {"mp4_header"}, findings[:3]
    for form in ("parquet", "jsonl_export:JsonLines"):
        assert main(["export", str(out), str(tmp_path / form[:5]), "--format", form]) == EXIT_OK
    tables = [pq.read_table(path) for path in (tmp_path / "parqu").rglob("*.parquet")]
    values = [row for table in tables for row in table.to_pylist()]
    (row,) = (row for row in values if row["clip_id"] == described)
    assert (row["text"], row["mark_label"]) == ("A dog", "dog")
    # A rerun keeps all, and a cleared mark leaves no trace.
    again = made_corpus.execute(out, recipe, N_SOURCES)
    assert (again["marks"], tars(out, again)) == (summary["marks"], now)
    mark(out, dropped, *kept, short, described, "--clear")
    assert not read_marks(open_store(str(out)))
    cleared = made_corpus.execute(out, recipe, N_SOURCES)
    assert "marks" not in cleared
    assert decisions(rows_of(out)) == decisions(before)
    assert samples(tars(out, cleared)) == samples(packed)


def test_frozen_generations_say_what_they_do_not_honour(
    finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins growing outputs: decisions stay, the warning names the remedy, later clips count."""
    out = tmp_path / "out"
    recipe = made_corpus.recipe_of([*SETTINGS, "run.mode=growing", "run.generation_hours=0.7"])
    made_corpus.make(out, N, recipe)
    made_corpus.execute(out, recipe, N_SOURCES // 2)
    rows = rows_of(out)
    mark(out, last(rows, None), "--drop")
    mark(out, last(rows, "motion_too_low"), "--label", "dark")
    summary = made_corpus.execute(out, recipe, N_SOURCES)
    assert summary["marks"]["without_effect"] == 1
    assert summary["marks"]["without_clip"] == 0
    assert "`curate remove`" in caplog.text
    ignored = made_corpus.recipe_of([*SETTINGS, "run.marks=ignore"])
    assert "marks" not in made_corpus.execute(out, ignored, N_SOURCES)
    assert len(read_marks(open_store(str(out)))) == 2


def test_marks_are_imported_and_listed(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins the CSV, its way back, and what is refused with nothing marked."""
    out = made_corpus.copied(finished, tmp_path / "out")
    assert main(["mark", str(tmp_path / "none"), "--list"]) == EXIT_USAGE
    assert "no results of `curate run`" in capsys.readouterr().err
    ids = pc.sort_indices(open_finished(str(out)).clips["clip_id"])
    one, two = open_finished(str(out)).clips["clip_id"].take(ids[:2]).to_pylist()
    table = tmp_path / "marks.csv"
    table.write_text(f'clip_id,verdict,note\n{one},keep,"a, ""b""\nc"\n{two},drop,\n')
    mark(out, "--csv", str(table))
    capsys.readouterr()
    mark(out, "--list")
    listed = capsys.readouterr().out
    table.write_text(listed)
    mark(out, one, two, "--clear")
    mark(out, "--csv", str(table), "--list")
    shown = capsys.readouterr().out.splitlines()[-4:]
    assert [line.rpartition(",")[0] for line in listed.splitlines()] == [
        line.rpartition(",")[0] for line in shown
    ]
    stored = read_marks(open_store(str(out)))
    assert (stored[one].note, stored[two].verdict) == ('a, "b"\nc', "drop")
    for arguments, said in (
        (["--keep"], "expected ids of clips"),
        ([one, "--clear", "--keep"], "--clear forgets the whole mark"),
        ([one, "nothing", "--keep"], "has an id that begins with 'nothing'; nothing was marked"),
        ([one, "", "--keep"], f"{N:,} clips begin with '': "),
        ([one, "--label", "x" * 101], "101 characters"),
        (["--csv", str(tmp_path / "none.csv")], "cannot be read"),
        ([one, "--caption", "a\x1b[31mb"], f"clip {one}: character 2 of the caption is U+001B"),
        ([one, "--caption", "a\0"], "character 2 of the caption is U+0000"),
        ([one, "--caption", "a\udcff"], "is U+DCFF"),
        ([one, "--note", "ab\x85"], "character 3 of the note is U+0085"),
        ([one, "--caption", "a\u202eb"], "U+202E (RIGHT-TO-LEFT OVERRIDE)"),
        ([one, "--caption", "a\u2028b"], "U+2028 (LINE SEPARATOR)"),
        ([one, "--caption", "a\rb"], "U+000D"),
        ([one, "--label", "a\tb"], "U+0009"),
    ):
        mark(out, *arguments, code=EXIT_USAGE)
        assert said in capsys.readouterr().err
    assert read_marks(open_store(str(out))) == stored
