"""`--json` of every command: one document on standard output, for results and for errors."""

import argparse
import json
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from searchable import searchable_out
from small_output import SmallOutput, clip_id

from curator.cli import COMMANDS, main, make_parser
from curator.tools.commands.arguments import EXIT_FAILED, EXIT_OK, EXIT_USAGE, as_json

SERVES = {"view"}
"""Commands without a result."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("json")
    output = SmallOutput(folder / "out", {1, 2})
    output.run({1})
    output.run({1, 2})
    ids = searchable_out(folder / "found", 12)
    (folder / "found.txt").write_text(ids[3])
    (folder / "in").mkdir()
    (folder / "in" / "a.mp4").touch()
    (folder / "ids.txt").write_text(clip_id(1, 0))
    return folder


def document(capsys: pytest.CaptureFixture[str], words: str, place: Path, code: int) -> Any:  # noqa: ANN401
    """Runs a command with `--json` in a folder, and returns its document."""
    capsys.readouterr()
    found = (place / "found.txt").read_text()
    try:
        with chdir(place):
            ended = main([*words.format(clip=clip_id(2, 1), found=found).split(), "--json"])
    except SystemExit as exit:
        ended = int(exit.code or 0)
    printed = capsys.readouterr()
    assert ended == code, printed.err
    return json.loads(printed.out)


RESULTS: dict[str, list[tuple[str, int, str]]] = {
    "run": [
        ("run in new --dry-run", EXIT_OK, "lines"),
        ("run nowhere.mp4 new", EXIT_USAGE, "error"),
    ],
    "plan": [("plan nowhere.mp4 planned", EXIT_USAGE, "error")],
    "status": [("status out", EXIT_OK, "state"), ("status nothing", EXIT_USAGE, "error")],
    "recipes": [
        ("recipes", EXIT_OK, ""), ("recipes quickstart", EXIT_OK, "settings"),
        ("recipes quikstart", EXIT_USAGE, "error"),
    ],
    "graph": [("graph", EXIT_OK, "stages")],
    "models": [("models list", EXIT_OK, ""), ("models verify", EXIT_OK, "")],
    "scores": [("scores", EXIT_OK, ""), ("scores motion", EXIT_OK, "")],
    "explain": [("explain found", EXIT_OK, "clips"), ("explain found {found}", EXIT_OK, "clip")],
    "tune": [("tune found motion.min=0.1 --html t.html", EXIT_OK, "kept_to_rejected")],
    "prove": [("prove found --rule nothing_such", EXIT_USAGE, "error")],
    "mark": [
        ("mark out {clip} --keep", EXIT_OK, "marked"), ("mark out --list", EXIT_OK, "marks"),
        ("mark out", EXIT_USAGE, "error"),
    ],
    "learn": [("learn out", EXIT_USAGE, "error")],
    "search": [("search found --clip {found}", EXIT_OK, "")],
    "recaption": [("recaption nothing", EXIT_USAGE, "error")],
    "fit": [
        ("fit --list", EXIT_OK, ""), ("fit out --for ltx2", EXIT_OK, ""),
        ("fit out --for ltx2 --explain {clip}", EXIT_OK, "fits"),
        ("fit out --for ltx2 --solve", EXIT_OK, "trainers"),
        ("fit out --for ltx", EXIT_USAGE, "error"),
    ],
    "verify": [("verify out --frames none", EXIT_OK, "is_well")],
    "report": [("report nothing", EXIT_USAGE, "error")],
    "export": [
        ("export out parquet --format parquet", EXIT_OK, "n_clips"),
        ("export out folder --format folder --where n_frames>1", EXIT_OK, "n_unselected"),
        ("export out DEST --format parkett", EXIT_USAGE, "error"),
    ],
    "views": [
        ("views out first --split train", EXIT_OK, "counts"), ("views out", EXIT_OK, ""),
        ("views out first", EXIT_USAGE, "error"), ("views out --remove first", EXIT_OK, "removed"),
        ("views out --split val", EXIT_USAGE, "error"),
    ],
    "snapshots": [("snapshots out", EXIT_OK, "")],
    "clean": [("clean out --keep 9", EXIT_OK, "removed")],
    "remove": [
        ("remove out --clips ids.txt --dry-run", EXIT_OK, "clip_ids"),
        ("remove out --clips ids.txt", EXIT_OK, "n_shards"),
        ("remove out --finish", EXIT_OK, "n_deleted"),
    ],
    "doctor": [],
    "demo": [],
}  # fmt: skip
"""For each command: calls, their exit codes, and a key of the document; empty for a list."""


@pytest.mark.parametrize("name", RESULTS)
def test_each_command_prints_one_document(
    name: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    for words, code, key in RESULTS[name]:
        facts = document(capsys, words, place, code)
        if not key:
            assert isinstance(facts, list)
            assert facts or words == "models verify"
            continue
        assert key in facts, words
        assert (facts.get("code") == code) == (key == "error")


def test_every_command_and_task_has_the_option() -> None:
    """Pins the whole parser, so that a new command has `--json`, and a call above."""

    def parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                return dict(action.choices)
        return {}

    commands = parsers(make_parser())
    assert set(commands) == {verb.name for verb in COMMANDS} == {*RESULTS, *SERVES}
    for name, parser in commands.items():
        for own in parsers(parser).values() or [parser]:
            assert ("--json" in own._option_string_actions) == (name not in SERVES), name


def test_documents_are_json_whatever_they_hold() -> None:
    """Pins numbers that JSON lacks, bytes of names that are no UTF-8, and objects."""
    text = as_json({"a": float("nan"), "b": "x\udcff", "c": (1, Path("p")), "d": float("inf")})
    assert json.loads(text) == {"a": None, "b": "x\udcff", "c": [1, "p"], "d": None}
    text.encode()
    assert "\n" not in as_json({"a": [1]}, is_line=True)


def test_usage_errors_are_documents_too(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pins what the parser refuses: an option, a value, a name of a command, a key set twice."""
    for words, said in (
        ("run in out --lmit 3", "did you mean --limit?"),
        ("run in out --limit many", "expected a whole number"),
        ("ran in out", "unknown command 'ran'; did you mean 'run'?"),
        ("models lst", "unknown task 'lst'; did you mean 'list'?"),
        ("graph --format mermad", "unknown value 'mermad'; did you mean 'mermaid'?"),
        ("run in out --place analize=x", "unknown stage 'analize'; did you mean 'analyze'?"),
        ("run in out --size 720p --set cut.size=bucket", "--size 720p and --set cut.size=bucket"),
        ("run in out --fps 24 --fps 30", "--fps 24 and --fps 30 both set cut.fps"),
        ("run in out --audio keep --set cut={{audio: copy}}", "both set cut.audio"),
        ("run in out --audio kep", "did you mean 'keep'?"),
        ("export out D --format parkett", "did you mean 'parquet'?"),
        ("run in out --recipe qwickstart", "did you mean 'quickstart'?"),
        ("scores motin", "did you mean 'motion'?"),
        ("models pull tranet", "did you mean 'transnetv2'?"),
        ("run in out --size 7x", "expected 1280x720"),
        ("plan in out --fps fast", "expected frames per second, such as 24"),
    ):  # fmt: skip
        words = words.replace("cut={{audio: copy}}", "cut={{audio:copy}}")
        facts = document(capsys, words, place, EXIT_USAGE)
        assert facts.keys() == {"error", "code"}
        assert facts["code"] == EXIT_USAGE
        assert said in facts["error"]


def test_short_options_are_changes_of_the_recipe(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins what a run records, and that the change of one key does not change others."""
    words = "run in sized --size 720p --fps 24 --audio keep"
    assert document(capsys, words, place, EXIT_FAILED)["counts"]["sources"] == 1
    cut = document(capsys, "recipes sized --set cut.crf=30", place, EXIT_OK)["settings"]["cut"]
    assert cut["crf"] == 30
    assert (cut["size"], cut["fps"], cut["audio"]) == ([1280, 720], "24", "copy")
