"""The Python interface: what docs/python.md shows, silence, errors, and a light import."""

import hashlib
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from film_makers import write_video
from film_shots import moving_texture

import curator
from curator.errors import RecipeError, UsageError

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
    with pytest.raises(RecipeError, match=r"did you mean 'filters\.motion'"):
        curator.run(folder / "videos", tmp_path / "out", overrides=["motion.min=1"])
    with pytest.raises(UsageError, match="does not exist"):
        curator.run(tmp_path / "nothing", tmp_path / "out")
    with pytest.raises(UsageError, match="has no finished run"):
        curator.read_clips(tmp_path)


def test_importing_the_package_imports_nothing_else() -> None:
    program = "import sys, curator; print([m for m in sys.modules if m.startswith('curator.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = curator.nothing  # type: ignore[attr-defined]
