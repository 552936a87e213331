"""The Python interface: what docs/python.md shows, silence, errors, and a light import."""

import hashlib
import importlib.util
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from film_makers import write_video
from film_shots import moving_texture

import curator
from curator.errors import CuratorError, RecipeError, UsageError
from curator.recipe import load_recipe

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
SETTINGS = ["shard.resolutions=[120]", "filters.short_side_px.min=100"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a video, where the first example of the page was run."""
    folder = tmp_path_factory.mktemp("api")
    (folder / "videos").mkdir()
    write_video(folder / "videos" / "a.mp4", moving_texture(75), fps=Fraction(25))
    return folder


@pytest.fixture(scope="module")
def summary(folder: Path) -> dict[str, Any]:
    return curator.run(folder / "videos", folder / "out", overrides=SETTINGS)


def test_the_example_of_the_page_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins the page's first block as it stands, over sources that the recipe rejects."""
    block = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(block.group(1).replace('"out/"', '"example/"'), names)
    assert names["summary"]["counts"]["sources"] == 1
    assert names["clips"].num_rows == names["summary"]["counts"]["kept"]


def test_a_run_says_nothing_and_returns_the_summary(
    folder: Path, summary: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """Pins a rerun: no output, and the same decisions."""
    again = curator.run([str(folder / "videos")], str(folder / "out"), overrides=SETTINGS)
    assert capfd.readouterr() == ("", "")
    assert again["work"]["sources_analyzed"] == 0
    assert again["counts"] == summary["counts"]
    assert summary["counts"]["kept"] == 1


def test_clips_are_those_of_the_table(folder: Path, summary: dict[str, Any]) -> None:
    clips = curator.read_clips(folder / "out")
    assert clips.to_arrow().num_rows == summary["counts"]["kept"]
    assert clips.to_arrow(rejected=True).num_rows == summary["counts"]["clips"]
    assert clips.to_arrow()["source_uri"].to_pylist() == [str(folder / "videos" / "a.mp4")]


@pytest.mark.long
def test_ray_reads_the_bytes_of_clips(folder: Path, summary: dict[str, Any]) -> None:
    """Pins the bytes against each clip's hash, and that Ray is not started behind one's back."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    clips = curator.read_clips(folder / "out")
    with pytest.raises(UsageError, match="Ray is not started"):
        clips.to_ray()
    ray.init(address="local", num_cpus=1, include_dashboard=False, logging_level="ERROR")
    try:
        rows = clips.to_ray().take_all()
    finally:
        ray.shutdown()
    assert len(rows) == summary["counts"]["kept"]
    for row in rows:
        assert hashlib.sha256(row["mp4"]).hexdigest() == row["mp4_sha256"]


def test_errors_are_raised(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="did you mean 'motion'"):
        curator.run(folder / "videos", tmp_path / "out", overrides=["filters.motoin.min=1"])
    with pytest.raises(RecipeError, match=r"did you mean 'filters\.motion\.min'"):
        curator.run(folder / "videos", tmp_path / "out", overrides=["motion.min=1"])
    with pytest.raises(UsageError, match="does not exist"):
        curator.run(tmp_path / "nothing", tmp_path / "out")
    with pytest.raises(UsageError, match="has no finished run"):
        curator.read_clips(tmp_path)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"recipe": {"cut": {"fsp": 24}}}, "recipe given as a mapping: cut.fsp: unknown key"),
        ({"recipe": {}}, "is empty: it would have no rules"),
        ({"recipe": 3}, "recipe is 3; expected a name, a path as a text, or a mapping of sections"),
        (
            {"overrides": "cut.fps=24"},
            "expected a list of texts such as 'cut.fps=24', or a mapping",
        ),
        ({"overrides": 3}, "overrides is 3; expected a mapping, or a list of texts"),
        ({"overrides": [3]}, "overrides is [3]; expected a list of texts"),
        ({"overrides": {"fps": 24}}, "overrides: fps: unknown key 'fps'; did you mean 'cut.fps'"),
        ({"overrides": {"cut.fps": 24, "cut": {"fps": 30}}}, "overrides sets cut.fps twice"),
        ({"overrides": {3: 4}}, "overrides has the key 3; expected a text such as 'cut.fps'"),
        ({"overrides": {"cut": {"fps": True}}}, "overrides: cut.fps: expected a frame rate"),
        ({"limit": 0}, "limit is 0; expected a whole number from 1, or None"),
        ({"workers": 1.5}, "workers is 1.5; expected a whole number from 1, or None"),
        ({"out": None}, "out is None; expected a path or an address as a text"),
        ({"sources": [b"a"]}, "sources is b'a'; expected paths or addresses as texts"),
    ],
)
def test_wrong_arguments_are_named(
    folder: Path, tmp_path: Path, given: dict[str, Any], words: str
) -> None:
    arguments = {"sources": folder / "videos", "out": tmp_path / "out", **given}
    with pytest.raises(CuratorError) as refused:
        curator.run(**arguments)
    assert words in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_recipe_and_changes_may_be_mappings() -> None:
    """Pins that sections merge, that dotted and nested keys are one, and that texts are equal."""
    texts = load_recipe("quickstart", ["cut.fps=24", "filters.motion.min=1e-05", "cut.crf=30"])
    changes = {"cut.fps": 24, "filters": {"motion": {"min": 1e-05}}, "cut": {"crf": 30}}
    assert load_recipe("quickstart", changes) == texts
    assert texts.filters.root.keys() == load_recipe("quickstart").filters.root.keys()
    given = {"cut": {"size": (1280, 720)}, "models": Path("m"), "filters": {"motion": {"min": 1}}}
    recipe = load_recipe(given, {"cut": {"fps": 24}})
    assert (recipe.cut.size, recipe.cut.fps, recipe.models) == ((1280, 720), "24", "m")
    assert list(recipe.filters.root) == ["motion"]
    assert given["cut"] == {"size": (1280, 720)}
    changes = {"dedup": {"against": (Path("a"), "b")}, "cut.crf": np.int64(30)}
    recipe = load_recipe("quickstart", changes)
    assert (recipe.dedup.against, recipe.cut.crf) == (("a", "b"), 30)


def test_a_table_is_shown_in_a_line_and_in_a_notebook(
    folder: Path, summary: dict[str, Any]
) -> None:
    clips = curator.read_clips(folder / "out")
    assert len(clips) == summary["counts"]["kept"] == 1
    assert re.fullmatch(
        r"<ClipTable of \S+/out, snapshot \d+: 1 of 1 clip kept, 3.0 s>", repr(clips)
    )
    html = clips._repr_html_()
    (row,) = clips.to_arrow().to_pylist()
    assert row["clip_id"] in html
    assert row["caption"] in html
    assert "<ClipTable" not in html
    assert len(html) < 2000


def test_only_the_public_interface_is_listed() -> None:
    """Pins that modules which a run imports are not listed, and that all that is listed exists."""
    names = dir(curator)
    assert set(curator.__all__) <= set(names)
    assert "api" not in names
    assert "recipe" not in names
    assert curator.errors.CuratorError is CuratorError
    for name in {*names} - {*curator.__all__}:
        assert importlib.util.find_spec(f"curator.{name}") is not None


def test_progress_is_a_line_or_a_function(
    folder: Path,
    summary: dict[str, Any],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pins one line that ends, states of a run, and that a failing function ends no run."""
    arguments = {"sources": folder / "videos", "out": folder / "out", "overrides": SETTINGS}
    notebook = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=None))
    monkeypatch.setitem(sys.modules, "IPython", notebook)  # type: ignore[arg-type]
    curator.run(**arguments)
    shown = capfd.readouterr().out
    assert shown.startswith("\rcurate 0:00:0")
    assert shown.endswith("finished\n") or shown.rstrip().endswith("finished")
    assert shown.count("\n") == 1
    assert " commit" in shown
    monkeypatch.delitem(sys.modules, "IPython")
    states: list[dict[str, Any]] = []
    curator.run(**arguments, progress=states.append)
    assert {"scan", "commit"} <= {state["stage"] for state in states}
    assert states[-1]["kept"] == summary["counts"]["kept"]

    def fails(state: dict[str, Any]) -> None:
        raise ValueError("of the caller")

    assert curator.run(**arguments, progress=fails)["counts"] == summary["counts"]
    with pytest.raises(UsageError):
        curator.run(folder / "nothing", folder / "out", progress=True)
    assert capfd.readouterr().out == ""


def test_importing_the_package_imports_nothing_else() -> None:
    program = "import sys, curator; print([m for m in sys.modules if m.startswith('curator.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = curator.nothing  # type: ignore[attr-defined]
