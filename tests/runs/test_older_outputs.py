"""Outputs of another format are refused by all commands, which change nothing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from small_output import SmallOutput

import curator
from curator.cli import COMMANDS, main
from curator.errors import UsageError
from curator.loading import ClipDataset
from curator.runs.reference_clips import other_output
from curator.storage import open_store
from curator.tables.json_objects import sealed_json, to_json
from curator.tables.snapshot_store import FORMAT
from curator.tools.commands.arguments import EXIT_OK, EXIT_USAGE

ARGUMENTS = {
    "run": "{source} {out}",
    "run --recipe": "{source} {out} --recipe quickstart",
    "run --dry-run": "{source} {out} --dry-run",
    "plan": "{source} {out}",
    "status": "{out}",
    "recipes": "{out}",
    "graph": "{out}",
    "explain": "{out}",
    "tune": "{out} motion.min=0.1",
    "mark": "{out} 00 --keep",
    "mark --list": "{out} --list",
    "mark --give-up-lost": "{out} --give-up-lost",
    "learn": "{out}",
    "view": "{out} --port 0",
    "search": "{out} --clip 00",
    "recaption": "{out}",
    "verify": "{out}",
    "verify --snapshot": "{out} --snapshot 1",
    "verify --removed": "{out} --removed",
    "report": "{out}",
    "prove": "{out} --rule motion",
    "fit": "{out} --for ltx2",
    "fit --snapshot": "{out} --for ltx2 --snapshot 1",
    "fit --solve": "{out} --for ltx2 --solve",
    "export": "{out} {new} --format cosmos",
    "export --where": "{out} {new} --format folder --where true",
    "export --snapshot": "{out} {new} --format cosmos --snapshot 1",
    "views": "{out}",
    "views NAME": "{out} some",
    "views --remove": "{out} --remove some",
    "snapshots": "{out}",
    "clean": "{out}",
    "clean --dry-run": "{out} --dry-run",
    "remove": "{out} --sources {source}",
    "remove --dry-run": "{out} --sources {source} --dry-run",
    "remove --finish": "{out} --finish",
    "remove --give-up-lost": "{out} --give-up-lost",
}
WITHOUT_OUT = {"models", "scores", "doctor", "demo"}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    small = SmallOutput(tmp_path_factory.mktemp("fresh") / "out", {1})
    small.run({1})
    return small.out


@pytest.fixture
def made(fresh: Path, tmp_path: Path) -> Callable[..., Path]:
    """Makes an output of another format; None for one whose objects name no format."""

    def make(number: int | None, names: tuple[str, ...] = ()) -> Path:
        out = tmp_path / "out"
        shutil.copytree(fresh, out)
        for name in names or ("summary.json", "config.json", "snapshots/00000001.json"):
            value = json.loads((out / name).read_text())
            assert value.pop("format") == FORMAT
            value |= {"format": number} if number is not None else {}
            value = {k: v for k, v in value.items() if k not in ("checksum", "object")}
            (out / name).write_bytes(sealed_json(value, to_json, name))
        return out

    return make


def contents(out: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def said(out: Path, number: int | None) -> str:
    words = "and names no output format" if number is None else f"in output format {number}"
    return (
        f"{out} was made by curate {curator.__version__} {words}; expected "
        f"format {FORMAT}, which curate {curator.__version__} reads and writes: use the version "
        "that made this output, or make a new one with `curate run SOURCE... NEW_OUT`"
    )


def refused(out: Path, use: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Runs a command, which must change nothing; returns its error."""
    source = tmp_path / "source.txt"
    source.write_text("/films/1.mp4\n")
    before = contents(out)
    words = ARGUMENTS[use].format(out=out, new=tmp_path / "new", source=source).split()
    assert main([use.split()[0], *words]) == EXIT_USAGE
    assert contents(out) == before
    return capsys.readouterr().err


@pytest.mark.parametrize("use", ARGUMENTS)
def test_each_command_refuses_an_older_output(
    use: str, made: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins exit code, version, both formats and the remedy, in one line."""
    out = made(2)
    assert refused(out, use, tmp_path, capsys) == f"curate: {said(out, 2)}\n"


def test_all_commands_are_tried() -> None:
    assert {use.split()[0] for use in ARGUMENTS} | WITHOUT_OUT == {one.name for one in COMMANDS}


@pytest.mark.parametrize("number", [None, FORMAT + 1])
def test_no_format_and_a_newer_one_are_refused(
    number: int | None,
    made: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = made(number)
    assert said(out, number) in refused(out, "run", tmp_path, capsys)


@pytest.mark.parametrize(
    ("lost", "use"),
    [("summary.json", "run"), ("summary.json", "status"), ("snapshots", "run"),
     ("snapshots", "verify"), ("damaged", "run"), ("damaged", "verify"),
     ("damaged", "mark --list")],
)  # fmt: skip
def test_what_is_lost_does_not_hide_the_format(
    lost: str,
    use: str,
    made: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Pins that the newest snapshot, or the settings alone, are refused too."""
    out = made(2)
    (out / "summary.json").unlink()
    if lost == "damaged":
        (out / "summary.json").write_text("{")
    if lost == "snapshots":
        shutil.rmtree(out / "snapshots")
    assert "in output format 2" in refused(out, use, tmp_path, capsys)


def test_an_older_output_to_compare_with_is_refused(
    made: Callable[..., Path], tmp_path: Path
) -> None:
    out = made(2)
    with pytest.raises(UsageError, match="in output format 2"):
        other_output(str(out), open_store(str(tmp_path / "own")))
    with pytest.raises(UsageError, match="in output format 2"):
        curator.read_clips(out)


def test_a_folder_of_tars_is_loaded_and_verified(made: Callable[..., Path]) -> None:
    """Pins that plain tars, without the state of runs, have no format."""
    shards = made(2) / "shards"
    assert main(["verify", str(shards)]) == EXIT_OK
    assert len(list(ClipDataset(str(shards), split="train", batch_size=None, frames=5))) == 3
