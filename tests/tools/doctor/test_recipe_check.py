"""What a recipe needs, and whether its models are here."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from tiny_clip import tiny_folder

from curator.errors import UsageError
from curator.recipe import Recipe, load_recipe
from curator.runs import start
from curator.stages.analyze import gpu_engines
from curator.storage import open_store
from curator.tools.doctor.diagnosis import CheckRow, Fault, State
from curator.tools.doctor.recipe_check import checked_recipe, model_rows, needs_of, read_recipe

TINY = ["analyze.clip=test-tiny", "semantic.aesthetic=test-head"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_folder(tmp_path / "models")


def rows_of(recipe: Recipe, *, s3_answers: bool = True) -> dict[str, CheckRow]:
    return {row.name: row for row in model_rows(recipe, s3_answers=s3_answers)}


def test_what_a_recipe_names_is_what_it_needs_and_a_wrong_key_is_a_row() -> None:
    assert needs_of(load_recipe("quickstart"), ["a", "out"]) == set()
    assert needs_of(load_recipe("quickstart", ["analyze.device=gpu"]), []) == {"gpu"}
    recipe = load_recipe("quickstart", ["analyze.text=false", *TINY])
    assert needs_of(recipe, ["s3://b/x"]) == {"clip", "s3"}
    # A wrong recipe is a row with the nearest key.
    fault = read_recipe("quickstart", ["filters.motoin.min=1"], None)
    assert isinstance(fault, Fault)
    assert "did you mean 'motion'?" in (fault.remedy or "")


def test_models_are_found_verified_missing_unknown_and_spoilt(folder: Path) -> None:
    rows = rows_of(load_recipe("quickstart"))
    assert {name: row.state for name, row in rows.items()} == {
        "transnetv2": State.OK,
        "efficientnet-lite0": State.OK,
        "PP-OCRv6_det_small": State.OK,
    }
    row = rows_of(load_recipe("quickstart", ["analyze.clip=openai-vit-b-23"]))["models"]
    assert row.stops
    assert "did you mean" in row.found
    # Models are found verified missing and spoilt.
    recipe = read_recipe("quickstart", TINY, str(folder))
    assert isinstance(recipe, Recipe)
    rows = rows_of(recipe)
    assert (rows["test-tiny"].state, rows["test-head"].state) == (State.OK, State.OK)
    head = next((folder / "test-head").glob("head.pth"))
    kept = head.read_bytes()
    head.write_bytes(b"spoilt")
    row = rows_of(recipe)["test-head"]
    assert (row.state, row.stops) == (State.BROKEN, True)
    assert row.remedy == "delete it, and `curate models pull test-head`"
    head.unlink()
    row = rows_of(recipe)["test-head"]
    assert (row.state, row.remedy) == (State.MISSING, "`curate models pull test-head`")
    head.write_bytes(kept)
    assert rows_of(recipe)["test-head"].state == State.OK


def test_a_mirror_is_looked_at_and_not_copied_from(
    folder: Path, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Pins that a check fetches no gigabytes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mirror = open_store(f"s3://{s3_bucket}/models")
    mirror.write("catalogue.yaml", (folder / "catalogue.yaml").read_bytes())
    mirror.write("test-head/head.pth", (folder / "test-head" / "head.pth").read_bytes())
    recipe = read_recipe("quickstart", TINY, mirror.uri)
    assert isinstance(recipe, Recipe)
    rows = rows_of(recipe)
    assert rows["test-head"].state == State.OK
    assert rows["test-head"].found == f"in {mirror.uri}; a run copies it from there"
    assert rows["test-tiny"].stops
    assert f"copy it to {mirror.uri}/test-tiny/" in (rows["test-tiny"].remedy or "")
    assert checked_recipe(recipe) == "is valid"
    assert not (tmp_path / "cache").exists()
    assert rows_of(recipe, s3_answers=False)["models"].remedy == "see the rows `S3`"


@pytest.mark.parametrize(
    ("overrides", "words", "remedy"),
    [
        (["filters.aesthetic.min=4"], "a score that is not made", "set analyze.clip="),
        (
            ["analyze.text=false", "filters.overlay_text.severity=reject"],
            "not measured with analyze.text = false",
            "add --set analyze.text=true",
        ),
        (["stages=[nowhere:Nowhere]"], "'nowhere:Nowhere' cannot be imported", ""),
    ],
)
def test_a_recipe_that_cannot_run_here_says_why(
    overrides: list[str], words: str, remedy: str
) -> None:
    recipe = load_recipe("quickstart", overrides)
    fault = checked_recipe(recipe)
    assert isinstance(fault, Fault)
    assert words in fault.found
    assert remedy in (fault.remedy or "")


@pytest.mark.parametrize(
    "rule", ["filters.quantizer.max=38", "filters.coarse.score=quantizer", "select.by=quantizer"]
)
@pytest.mark.parametrize(
    ("device", "n_gpus", "ray_address", "is_refused"),
    [("auto", 0, None, False), ("auto", 1, None, True), ("auto", 0, "auto", True),
     ("gpu", 1, None, True), ("cpu", 1, None, False), ("cpu", 1, "auto", False)],
)  # fmt: skip
def test_a_score_that_gpus_do_not_give_is_refused_where_one_may_decode(
    rule: str,
    device: str,
    n_gpus: int,
    ray_address: str | None,
    is_refused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pins that no clip is filtered by an absent quantiser: it is said before work begins."""
    monkeypatch.setattr(start, "available_gpus", lambda: n_gpus)
    monkeypatch.setattr(gpu_engines, "nvdec_refusal", lambda: None)
    bound = ["filters.coarse.max=38"] if "coarse" in rule else []
    recipe = load_recipe("quickstart", [rule, *bound, f"analyze.device={device}"])
    if ray_address is None:
        fault = checked_recipe(recipe)
        assert isinstance(fault, Fault) == is_refused
        if isinstance(fault, Fault):
            assert "a GPU's video engine does not give" in fault.found
            assert "--set analyze.device=cpu" in (fault.remedy or "")
    with pytest.raises(UsageError, match=r"quantizer|coarse") if is_refused else nullcontext():
        start.check_cpu_scores(recipe, ray_address=ray_address)
    # A GPU that cannot be used leaves the score.
    monkeypatch.setattr(gpu_engines, "nvdec_refusal", lambda: "the driver is too old")
    if device == "auto" and ray_address is None:
        start.check_cpu_scores(recipe, ray_address=None)
