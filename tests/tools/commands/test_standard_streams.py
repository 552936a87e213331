"""Standard output that is closed, full or not read: the exit code says what became of the work."""

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Curate

from curator.cli import main
from curator.tools.commands.arguments import EXIT_BROKEN_OFF, EXIT_NOT_READ, EXIT_OK, EXIT_USAGE

PROGRAM = (
    "from curator.tools.commands import arguments\n"
    "from curator import cli\n"
    "@arguments.command('work')\n"
    "def work(options):\n"
    "    print('x' * 100_000)\n"
    "    open('done', 'w').close()\n"
    "    return 3\n"
    "cli.COMMANDS = (work, cli.scores)\n"
    "cli.command()\n"
)
CLOSED, FULL, UNREAD, BAD_NAME = ">&-", ">/dev/full", "| true", "BAD"


def _shell(folder: Path, command: str, output: str) -> tuple[int, str]:
    (folder / "program.py").write_text(PROGRAM)
    text = f"set -o pipefail; {sys.executable} program.py {command} {output}"
    done = subprocess.run(
        ["bash", "-c", text], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("output", [CLOSED, FULL, UNREAD])
def test_lost_output_changes_nothing_of_work_that_is_done(tmp_path: Path, output: str) -> None:
    """Pins that the work goes on after the output is lost, and that its code stays."""
    code, error = _shell(tmp_path, "work", output)
    assert code == 3
    assert (tmp_path / "done").exists()
    assert "standard output cannot be written" in error
    assert "the command ended with 3" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("output", "expected"), [(CLOSED, EXIT_NOT_READ), (FULL, EXIT_BROKEN_OFF)])
def test_a_command_that_only_prints_fails_without_output(
    tmp_path: Path, output: str, expected: int
) -> None:
    code, error = _shell(tmp_path, "scores", output)
    assert code == expected
    assert "Traceback" not in error
    assert ("No space left on device" in error) == (output == FULL)


def test_a_run_that_kept_nothing_says_so_and_all_commands_take_it(
    tmp_path: Path, curate: Curate, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins one clear line from each command over an output without any clip."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.mp4").write_bytes(b"no film")
    out = tmp_path / "out"
    assert main(["run", str(tmp_path / "in"), str(out), "--max-failed", "1"]) == EXIT_OK
    printed = capsys.readouterr()
    assert f"{out}/shards" not in printed.out
    assert "no clip was found; the table" in printed.err
    for read in ("explain", "snapshots", "status"):
        curate(read, out)
    for refused in (
        ["tune", out, "motion.min=0.1"],
        ["tune", out, "select.max_per_group=3"],
        ["learn", out],
        ["export", out, tmp_path / "x", "--format", "parquet"],
        ["search", out, "--clip", "abcd"],
    ):
        error = curate(*refused, code=EXIT_USAGE)
        assert error.count("\n") == 1
        assert "no clip" in error


@pytest.mark.parametrize(
    "command",
    [
        ["run", "IN", "OUT"],
        ["run", "IN", "OUT", "--dry-run"],
        ["plan", "IN", "OUT"],
        ["explain", "OUT"],
        ["tune", "OUT", "motion.min=1"],
        ["status", "OUT"],
        ["clean", "OUT"],
        ["export", "IN", "OUT", "--format", "parquet"],
    ],
)
@pytest.mark.usefixtures("s3_bucket")
def test_a_missing_bucket_ends_before_any_work(
    tmp_path: Path, curate: Curate, command: list[str]
) -> None:
    (tmp_path / "a.mp4").write_bytes(b"no film")
    places = {"IN": str(tmp_path), "OUT": "s3://no-such-bucket/out"}
    error = curate(*(places.get(word, word) for word in command), code=EXIT_USAGE)
    assert "'s3://no-such-bucket/out/': there is no such bucket" in error
    assert "create it: aws s3 mb s3://no-such-bucket" in error
    assert "resumes" not in error


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"\xef\xbb\xbfa\n", "line 1: 'a' is no clip id; expected 4 to 24"),
        (b"abcd\r\n\r\nx y\r\n", "line 3: 'x y' is no clip id"),
        (b"# a note\nabcd # why\n", "line 2: 'abcd # why' is no clip id"),
        (b"ab\x1b[31m\n", "line 1: 'ab\\\\x1b[31m' is no clip id"),
        ("abcd\n".encode("utf-16"), "expected a text file in UTF-8"),
        ("abcd\n".encode("utf-16-le"), "has NUL characters, as UTF-16 has"),
        (b"\n \n", "has no names"),
    ],
)
def test_a_file_of_clips_to_remove_has_ids_only(
    tmp_path: Path, curate: Curate, text: bytes, words: str
) -> None:
    names = tmp_path / "names.txt"
    names.write_bytes(text)
    assert words in curate("remove", tmp_path, "--clips", names, code=EXIT_USAGE)


def test_a_file_of_clips_is_read_without_mark_blanks_comments_and_repeats(tmp_path: Path) -> None:
    from curator.tools.commands.snapshots import _clip_ids

    names = tmp_path / "names.txt"
    names.write_bytes(b"\xef\xbb\xbfabcd  \r\n# a note\n\nabcd\n01234567\n")
    assert _clip_ids(str(names)) == ["abcd", "01234567"]
