"""The command line: what is refused before any work, in one line and with a remedy."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Curate
from film_makers import empty_file, text_file

from curator.cli import GROUPS, main
from curator.pipeline import graph_of
from curator.recipe import Recipe
from curator.storage import open_store
from curator.tools.commands.arguments import EXIT_BROKEN_OFF, EXIT_FAILED, EXIT_OK, EXIT_USAGE
from curator.tools.commands.run import failures_exit_code, is_too_many


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for make, name in ((empty_file, "a.mp4"), (text_file, "b.mp4"), (text_file, "c.mp4")):
        make(folder / name)
    return folder


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--recipe", "quikstart"], ["'quikstart'", "did you mean 'quickstart'"]),
        (["--recipe", "no/such.yaml"], ["no/such.yaml", "does not exist"]),
        (["--set", "filters.moton.min=1"], ["filters", "'moton'; did you mean 'motion'?"]),
        (["--set", "propose.minimum_s=1"], ["propose", "minimum_s", "did you mean 'min_s'"]),
        (["--set", "propose.min_s"], ["propose.min_s", "key=value"]),
        (["--set", "propose.min_s=-1"], ["propose.min_s", "-1", "greater than 0"]),
        (["--set", "caption.url=vlm:8000"], ["expected an address such as http://vlm:8000/v1\n"]),
        (["--set", "caption.lengths=huge"], ["a list such as [short, medium]; got 'huge'\n"]),
        (["--set", "caption.lengths=[huge]"], ["'short', 'medium' or 'long'; got 'huge'\n"]),
        (
            ["--set", "caption.questions=dark"],
            ["expected names and values such as {is_dark: \"Is it dark?\"}; got 'dark'\n"],
        ),
        (["--set", "caption.judge=3"], ["expected keys below it, such as caption.judge.model"]),
        (["--set", "filters.motion=3"], ["expected keys below it, such as filters.motion.min"]),
        (["--set", "analyze.text=perhaps"], ["analyze.text: expected true or false; got"]),
        (["--set", f"cut.crf={'x' * 99}"], [f"expected a whole number; got '{'x' * 58}…\n"]),
        (
            ["--set", "filters.motion.min=9"],
            ["filters.motion", "min 9.0 is above max 4.0; no clip could be kept\n"],
        ),
        (
            ["--set", "analyze.text=false", "--set", "filters.text_area.max=0.02"],
            ["filters.text_area", "analyze.text = false", "--set analyze.text=true"],
        ),
        (
            ["--set", "shard.by_content_type=true"],
            ["shard.by_content_type asks for content types", "set analyze.clip"],
        ),
        (["--set", "shard.embedding=clip"], ["shard.embedding=clip", "set analyze.clip"]),
        (["--set", "shard.min_bytes=2000000000"], ["shard", "min_bytes 2000000000 is more than"]),
        (
            ["--set", "filters.motion.min="],
            ["'filters.motion.min=' has no value; filters.motion.min=null", "removes the value"],
        ),
        (["--set", "filters.motion.min=.nan"], ["filters.motion.min", "expected a finite number"]),
        (["--set", "filters.motion={min: 1"], ["--set 'filters.motion={min: 1'", "expected ','"]),
        (["--ray-address", "10.0.0.1:6379"], ["10.0.0.1:6379", "s3://", "--shared-out"]),
    ],
)
def test_refusals_are_one_line_that_names_the_value_and_the_remedy(
    broken: Path, tmp_path: Path, curate: Curate, more: list[str], words: list[str]
) -> None:
    error = curate("run", broken, tmp_path / "out", *more, code=EXIT_USAGE)
    assert error.startswith("curate: ")
    assert error.count("\n") == 1
    for word in words:
        assert word in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty: it would have no rules"),
        ("# nothing yet", "begin with a copy of"),
        ("filters:\n  motion: {min: 1}\n  motion: {max: 2}", "line 3, column 3: the key 'motion'"),
        ("filters: {motion: {min: .nan}}", "filters.motion.min: expected a finite number"),
        ("just words", "is a str; expected keys and values"),
    ],
)
def test_a_recipe_that_would_not_do_what_it_seems_to_is_refused(
    text: str, said: str, broken: Path, tmp_path: Path, curate: Curate
) -> None:
    (tmp_path / "own.yaml").write_text(text)
    command = ["run", str(broken), str(tmp_path / "out"), "--recipe", str(tmp_path / "own.yaml")]
    error = curate(*command, code=EXIT_USAGE)
    assert said in error
    assert f"recipe {tmp_path / 'own.yaml'}" in error
    assert error.count("\n") == 1


def test_wrong_places_are_refused(broken: Path, tmp_path: Path, curate: Curate) -> None:
    """Pins a source that names nothing, a file for OUT, and storage that fails during the run."""
    for source in ("nothing here.mp4", "*.mkv"):
        assert source in curate("run", tmp_path / source, tmp_path / "out", code=EXIT_USAGE)
    (tmp_path / "out").write_text("in the way")
    assert str(tmp_path / "out") in curate("run", broken, tmp_path / "out", code=EXIT_USAGE)
    assert (tmp_path / "out").read_text() == "in the way"
    (tmp_path / "out").unlink()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "scan").write_text("in the way")
    error = curate("run", broken, tmp_path / "out", code=EXIT_BROKEN_OFF).splitlines()[-1]
    assert error.startswith(f"curate: cannot write '{tmp_path / 'out' / 'scan'}")
    assert "the same command resumes" in error
    assert not (tmp_path / "out" / "summary.json").exists()


@pytest.mark.parametrize("names", [(), ("notes.md", "a.jpg", "below/b.jpg")])
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_folder_without_a_video_is_refused(
    tmp_path: Path, names: tuple[str, ...], more: tuple[str, ...], curate: Curate
) -> None:
    """Pins that an empty folder and one of other files end alike, and write nothing."""
    (tmp_path / "in" / "below").mkdir(parents=True)
    for name in names:
        (tmp_path / "in" / name).write_bytes(b"x")
    error = curate("run", tmp_path / "in", tmp_path / "out", *more, code=EXIT_USAGE)
    assert ("has no video: 3 files of other kinds" if names else "has no files") in error
    assert ("by scan.media=[video,image]" in error) == bool(names)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["/dev/null/x", "/proc/x"])
def test_a_folder_that_cannot_be_made_is_refused(broken: Path, place: str, curate: Curate) -> None:
    """Pins that a demo says so as a run does, and that both say what helps."""
    for words in (("demo",), ("run", broken)):
        error = curate(*words, place, code=EXIT_USAGE).splitlines()[-1]
        assert error.startswith(f"curate: cannot write '{place}/")
        assert error.endswith("choose another output folder")


def test_a_dry_run_writes_nothing(broken: Path, tmp_path: Path, curate: Curate) -> None:
    assert "3 sources" in curate("run", broken, tmp_path / "out", "--dry-run")
    assert not (tmp_path / "out").exists()
    for number in range(7):
        (broken / f"link\n{number}.mp4").symlink_to("nowhere.mp4")
    lines = curate("run", broken, tmp_path / "out", "--dry-run").splitlines()
    assert lines[1:3] == [
        "  3 to analyze, unless the footage was removed or is in another source",
        "  7 not readable",
    ]
    assert len(lines) == 3 + 5 + 1 + 1
    assert lines[-1] == "  which clips to encode and to copy is known after their analysis"
    assert "link\\n0.mp4" in lines[3]
    assert lines[-2] == "  and 2 more"


def test_sources_that_all_fail_make_a_whole_output_and_max_failed_an_exit_code(
    broken: Path, tmp_path: Path, curate: Curate
) -> None:
    out = tmp_path / "out"
    error = curate("run", broken, out, code=EXIT_FAILED).splitlines()[-1]
    assert (
        "3 of 3 sources failed (2 not_a_video, 1 empty_file), more than 0.1, the default" in error
    )
    assert f"the first: {broken / 'b.mp4'}" in error
    curate("run", broken, out, "--max-failed", 1)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["counts"]["by_error"] == {"not_a_video": 2, "empty_file": 1}
    assert summary["shards"] == []
    assert (out / "report" / "index.html").exists()
    curate("run", broken, tmp_path / "few", "--limit", 2, code=EXIT_FAILED)
    summary = json.loads((tmp_path / "few" / "summary.json").read_text())
    assert summary["counts"]["sources"] == 2


def test_recipes_lists_names_and_prints_each_key_with_its_unit(curate: Curate) -> None:
    assert "quickstart: " in curate("recipes")
    printed = curate("recipes", "quickstart", "--set", "filters.motion.min=0.25")
    for line in (
        "propose.min_s = 2.0  [s]",
        "filters.motion.min = 0.25  [short sides/s]",
        "dedup.similarity = 0.5  [cosine]",
        "shard.max_bytes = 1000000000  [bytes]",
        "cut.crf = 20  [x264 CRF]",
    ):
        assert line in printed


def test_help_needs_no_heavy_package() -> None:
    program = (
        "import sys, curator.cli\n"
        "try: curator.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'ray', 'av', 'cv2', 'pyarrow', 'numpy', 'faiss', 'pydantic', 'boto3'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "loaded: []" in result.stdout
    assert "Exit codes" in result.stdout


def test_the_help_has_groups_examples_and_narrow_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins each command once, under a title; and the options that most people need first."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if len(line) > 79] == []
    for title, verbs in GROUPS.items():
        listed = text.partition(f"\n{title}:\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in listed] == [verb.name for verb in verbs]
    assert len([line for line in text.splitlines() if line.startswith("  curate ")]) == 3
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if len(line) > 79] == []
    options = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
    assert options[:5] == ["--recipe", "--size", "--fps", "--audio", "--set"]
    assert len([line for line in text.splitlines() if line.startswith("  curate run ")]) == 3


def test_a_command_refuses_arguments_with_its_own_usage(
    curate: Curate, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins the order of `mark`: an option between OUT and the clips ends the names."""
    for arguments, error in (
        (("out", "--keep", "abc"), "unrecognized arguments: abc; expected OUT CLIP_ID before all"),
        (("out", "abc", "--kept"), "unrecognized arguments: --kept; did you mean --keep?\n"),
    ):
        with pytest.raises(SystemExit):
            curate("mark", *arguments)
        said = capsys.readouterr().err
        assert said.startswith("usage: curate mark [-h] [--keep | --drop]")
        assert f"curate mark: error: {error}" in said


def test_scores_are_explained(curate: Curate, tmp_path: Path) -> None:
    """Pins docs/scores.md; write it anew with `curate scores --markdown > docs/scores.md`."""
    printed = curate("scores", "sharpness")
    assert printed.startswith("sharpness  [")
    assert "median over samples; `scores.sharpness` of the recipe changes it" in printed
    assert "reasons: sharpness_too_low, sharpness_too_high" in printed
    page = Path(__file__).parents[3] / "docs" / "scores.md"
    assert curate("scores", "--markdown") == page.read_text()
    assert "unknown score 'sharpnes'; did you mean 'sharpness'?" in curate(
        "scores", "sharpnes", code=EXIT_USAGE
    )
    recipe = tmp_path / "own.yaml"
    recipe.write_text("scores: {sharpness: p90, silence: -50}")
    for name, how in (("sharpness", "p90"), ("silence", "share below -50")):
        assert f"    {how} over samples" in curate("scores", name, "--recipe", recipe)
        assert f" | {how} | " in curate("scores", "--markdown", "--recipe", recipe)


@pytest.mark.parametrize(
    ("n_failed", "n", "max_failed", "expected"),
    [
        (0, 0, None, False), (0, 9, None, False), (1, 2, None, False), (1, 1, None, True),
        (2, 2, None, True), (2, 16, None, True), (2, 20, None, False), (3, 29, None, True),
        (100, 1000, None, False), (101, 1000, None, True),
        (1, 2, 0.4, True), (1, 2, 0.5, False), (1, 100, 0.0, True), (4, 4, 1.0, False),
    ],
)  # fmt: skip
def test_a_tenth_may_fail_and_one_in_any_case(
    n_failed: int, n: int, max_failed: float | None, expected: bool
) -> None:
    """Pins the default, and that a share that is named counts as it is."""
    assert is_too_many(n_failed, n, max_failed) == expected


@pytest.mark.parametrize(
    ("by_reason", "code"),
    [
        ({"motion_too_low": 99, "cut_failed": 2}, EXIT_OK),
        ({"cut_failed": 3}, EXIT_FAILED),
        ({"cut_failed": 1, "source_changed": 1, "not_annotated": 1}, EXIT_FAILED),
    ],
)
def test_clips_count_that_were_to_be_kept(
    tmp_path: Path, by_reason: dict[str, int], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins that clips which the recipe rejects are neither failures nor a part of the whole."""
    counts = {"failed": 1, "sources": 20, "kept": 20, "by_reason": by_reason,
              "by_error": {"not_a_video": 1}}  # fmt: skip
    reasons = graph_of(Recipe()).reasons()
    summary = {"counts": counts, "work": {}, "tables": {}, "reasons": reasons}
    assert failures_exit_code(open_store(str(tmp_path)), summary, None) == code
    # A reason of a user's own that only sounds like a failure is none.
    counts["by_reason"] = {"license_check_failed": 20}
    assert failures_exit_code(open_store(str(tmp_path)), summary, None) == EXIT_OK
    counts["by_reason"] = by_reason
    own = failures_exit_code(open_store(str(tmp_path)), summary, None, stages=["caption"])
    assert own == EXIT_OK, "a cut that fails is no failure of a command that only captions"
    words = "curate: 3 of 23 clips that the recipe keeps could not be cut"
    assert (words in capsys.readouterr().err) == (code == EXIT_FAILED)
