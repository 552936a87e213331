"""Exit codes: one table in the docs, the same in the code, and each code really happens."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from small_output import SmallOutput

from curator import cli
from curator.tools.commands.exit_codes import RESUMED, ExitCode

ROOT = Path(__file__).parents[3]


def table() -> dict[int, str]:
    """Codes and meanings of docs/commands.md, without marks of Markdown."""
    section = (ROOT / "docs/commands.md").read_text().partition("## Exit codes")[2]
    section = section.partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", section, re.MULTILINE)
    plain = {int(code): re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", words) for code, words in rows}
    return {code: words.replace("`", "") for code, words in plain.items()}


def test_the_table_of_the_docs_is_that_of_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    found = table()
    assert list(found) == [int(code) for code in ExitCode]
    for code in ExitCode:
        assert re.match(rf"{re.escape(code.meaning)}(\.|$)", found[code]), code
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == ExitCode.FINISHED
    # Lines may break at a hyphen.
    printed = "".join(capsys.readouterr().out.split())
    assert all(f"{code:d}{''.join(code.meaning.split())}" in printed for code in ExitCode)
    assert {code for code in RESUMED if code > 128} == {128 + n for n in (1, 2, 15)}


def test_no_other_code_is_named_elsewhere() -> None:
    """Pins that pages and helps name only codes of the table."""
    named = re.compile(r"(?:exit codes?:?|(?:exit|end)(?:s|ed)? with(?: exit code)?) \[?(\d+)\b")
    known = {int(code) for code in ExitCode}
    places = [
        *ROOT.glob("docs/*.md"),
        ROOT / "README.md",
        *ROOT.glob("curator/tools/commands/*.py"),
    ]
    found = {
        (path.name, code)
        for path in places
        for code in map(int, named.findall(" ".join(path.read_text().split())))
    }
    assert len(found) > 15
    assert {(name, code) for name, code in found if code not in known} == set()


def _damaged(out: Path) -> list[str]:
    (out / "summary.json").write_text("{")
    return ["explain", str(out)]


def _faulty(out: Path) -> list[str]:
    next((out / "shards").rglob("*.tar")).unlink()
    return ["verify", str(out)]


def _missing(out: Path) -> list[str]:
    return ["run", str(out / "none.mp4"), str(out)]


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (ExitCode.FINISHED, lambda out: ["snapshots", str(out)]),
        (ExitCode.BROKEN_OFF, _damaged),
        (ExitCode.USAGE, _missing),
        (ExitCode.FAILED, _faulty),
    ],
)
def test_codes_of_results(
    tmp_path: Path, code: ExitCode, arguments: Callable[[Path], list[str]]
) -> None:
    out = tmp_path / "out"
    SmallOutput(out, {1}).run([1])
    assert cli.main(arguments(out)) == code


@pytest.mark.parametrize("code", [ExitCode.HUNG_UP, ExitCode.INTERRUPTED, ExitCode.TERMINATED])
def test_codes_of_signals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: ExitCode
) -> None:
    number = signal.Signals(code - 128)
    # As in the foreground: a shell lets what it starts in the background ignore interrupts.
    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, usual)
    monkeypatch.setattr(cli, "check_buckets", lambda _: os.kill(os.getpid(), number))
    try:
        assert cli.main(["scores"]) == code
    finally:
        signal.signal(number, before)
    assert "the same command resumes" in capsys.readouterr().err


def test_the_code_of_a_reader_that_closed_the_output() -> None:
    program = "from curator.cli import command; command()"
    # Closed before the command starts, so no slow test run lets it print into the open pipe.
    reader, writer = os.pipe()
    os.close(reader)
    try:
        outcome = subprocess.run([sys.executable, "-c", program, "scores"], stdout=writer)
    finally:
        os.close(writer)
    assert outcome.returncode == ExitCode.NOT_READ


def test_a_missing_bucket_of_another_output_is_like_that_of_out(
    s3_bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins 2 for `dedup.against` too, where the summary seemed damaged."""
    film = tmp_path / "a.mp4"
    film.write_bytes(b"never read")
    for setting in (["--against", f"s3://{s3_bucket}-none/x"],
                    ["--set", f"dedup.against=[s3://{s3_bucket}-none/x]"]):  # fmt: skip
        assert cli.main(["run", str(film), str(tmp_path / "out"), *setting]) == ExitCode.USAGE
        assert f"aws s3 mb s3://{s3_bucket}-none" in capsys.readouterr().err
