"""What is refused before a run writes anything."""

import os
from pathlib import Path

import pytest
from small_output import SmallOutput

from curator.cli import main
from curator.errors import RecipeError, UsageError
from curator.recipe import load_recipe, with_changes
from curator.runs.start import check_places, least_size_advice
from curator.stages.shard.config import ShardConfig
from curator.tools.commands.arguments import EXIT_USAGE


def checked(source: str, out: str) -> None:
    check_places([source], out, writes=False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with something in itself, in `raw` and in `clips`."""
    for name in (".", "raw", "clips"):
        (tmp_path / "data" / name).mkdir(exist_ok=True, parents=True)
        (tmp_path / "data" / name / "a.mp4").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("source", "out"),
    [("data", "data"), ("data/", "./data/"), ("data", "link"), ("data/*.mp4", "data")],
)
def test_the_folder_of_the_originals_is_no_output_root(
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    source: str,
    out: str,
) -> None:
    """Pins that nothing is written beside the originals, and what is said."""
    monkeypatch.chdir(data.parent)
    before = sorted(os.listdir(data))
    assert main(["run", source, out]) == EXIT_USAGE
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "the run would write among the originals: choose another OUT, such as" in error
    assert sorted(os.listdir(data)) == before


@pytest.mark.parametrize("source", ["data/clips", "data/clips/a.mp4", "data/clips/*.mp4"])
def test_originals_in_a_folder_of_outputs_would_be_deleted(
    data: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.chdir(data.parent)
    with pytest.raises(UsageError, match=r"is in 'clips' of OUT .* choose another OUT"):
        checked(source, "data")


@pytest.mark.parametrize(
    ("source", "out"),
    [("data/raw", "data"), ("data", "data/out"), ("data/clips", "data/cl"), ("data/a.mp4", "data")],
)
def test_other_places_are_taken(
    data: Path, monkeypatch: pytest.MonkeyPatch, source: str, out: str
) -> None:
    monkeypatch.chdir(data.parent)
    if out == "data":
        with pytest.raises(UsageError, match=r"did not write, such as 'clips/a.mp4'"):
            checked(source, out)
        (data / "clips/a.mp4").unlink()
    checked(source, out)


def test_no_output_is_within_the_results_of_another(data: Path, tmp_path: Path) -> None:
    small = SmallOutput(tmp_path / "own", {1})
    small.run({1})
    for folder in ("shards", "report/deep", "clips/"):
        with pytest.raises(UsageError, match=r"of the output .*own', whose runs write and delete"):
            checked(str(data / "raw"), f"{small.out}/{folder}")
    checked(str(data / "raw"), str(small.out.parent / "clips" / "new"))
    checked(str(data / "raw"), f"{small.out}/new")


@pytest.mark.parametrize("source", ["s3://b/v", "s3://b/v/", "s3://b/v/*.mp4", "s3://b/v/clips/a"])
def test_prefixes_are_compared_before_they_are_listed(source: str) -> None:
    with pytest.raises(UsageError, match="choose another OUT"):
        checked(source, "s3://b/v/")


def test_a_gpu_that_a_recipe_requires_is_looked_at_before_work(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins that a driver too old for torch ends a run at once, and not in its workers."""
    monkeypatch.setattr("curator.runs.start.available_gpus", lambda: 1)
    fault = "torch is built for CUDA 13.2, and the driver is too old; update it"
    monkeypatch.setattr("curator.stages.analyze.gpu_engines.nvdec_refusal", lambda: fault)
    out = tmp_path / "out"
    asked = ["run", str(data / "raw"), str(out), "--set", "analyze.device=gpu"]
    assert main(asked) == EXIT_USAGE
    assert f"analyze.device is gpu, and {fault}" in capsys.readouterr().err
    assert list(out.rglob("*")) == []


def test_footage_that_is_large_enough_to_train_on_is_not_rejected_without_a_word() -> None:
    """Pins the bound of the recipe against `cut.size` and classes of resolution; and no advice."""

    def advice(*overrides: str) -> str | None:
        return least_size_advice(load_recipe("quickstart", overrides))

    fixed = "filters.short_side_px.min=240"
    assert "filters.short_side_px.min to trained" in (advice("cut.size=112x64", fixed) or "")
    assert "shard.resolutions has 128 px" in (advice("shard.resolutions=[128,256]", fixed) or "")
    assert advice() is None
    assert advice("cut.size=112x64") is None
    assert advice("cut.size=112x64", "filters.short_side_px.min=64") is None
    assert advice("cut.size=bucket") is None
    assert advice("cut.size=112x64", fixed, "filters.short_side_px.severity=flag") is None


@pytest.mark.parametrize(
    ("overrides", "least_px"),
    [
        ((), 240),
        (("cut.size=112x64",), 64),
        (("cut.size=bucket",), 240),
        (("shard.resolutions=[512,128]",), 128),
        (("shard.resolutions=[512,128]", "cut.size=720p"), 720),
        (("cut.size=112x64", "filters.short_side_px.min=96"), 96),
    ],
)
def test_the_least_size_is_that_of_the_written_clips(
    overrides: tuple[str, ...], least_px: int
) -> None:
    """Pins that `min: trained` becomes a number, which an explicit bound replaces."""
    assert load_recipe("quickstart", overrides).filters.root["short_side_px"].min == least_px


def test_the_least_size_is_set_again_in_a_recipe_as_it_was_used() -> None:
    """Pins `score: null`, which the stored recipe of an output has in each rule."""
    used = with_changes(load_recipe("quickstart"), ["cut.size=112x64"])
    again = with_changes(used, ["filters.short_side_px.min=trained"])
    assert again.filters.root["short_side_px"].min == 64


def test_a_small_size_is_a_class_of_resolution() -> None:
    """Pins that `cut.size` alone is enough for clips below the default classes."""
    classes = ShardConfig().resolutions
    assert load_recipe("quickstart", ("cut.size=112x64",)).shard.resolutions == (64, *classes)
    assert load_recipe("quickstart", ("cut.size=720p",)).shard.resolutions == classes
    own = load_recipe("quickstart", ("cut.size=112x64", "shard.resolutions=[128]"))
    assert own.shard.resolutions == (128,)


def test_trained_is_a_bound_of_the_size_alone() -> None:
    with pytest.raises(RecipeError, match=r"filters\.luma\.min.*number"):
        load_recipe("quickstart", ("filters.luma.min=trained",))
    # The error is that of the other section.
    with pytest.raises(RecipeError, match=r"cut\.size"):
        load_recipe("quickstart", ("cut.size=large",))
