"""`curate models`: what it prints and how it ends."""

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Curate
from tiny_clip import tiny_folder

from curator.tools.commands.arguments import EXIT_USAGE


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    return tiny_folder(tmp_path / "mirror")


def test_models_are_pulled_listed_and_verified(
    tmp_path: Path, mirror: Path, curate: Curate
) -> None:
    """Pins the three tasks on one folder, with a file that is spoilt in the end."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "catalogue.yaml").write_bytes((mirror / "catalogue.yaml").read_bytes())
    place = ["--models", str(here)]
    printed = curate("models", "pull", "test-head", "--from", mirror, *place)
    assert f"test-head: {here}/test-head/head.pth, verified" in printed
    assert "`curate models pull test-tiny`" in printed
    printed = curate("models", "list", *place)
    assert "test-head  [aesthetic, size unknown, verified]" in printed
    assert "test-tiny  [clip, size unknown, missing]" in printed
    assert "openai-vit-l-14  [clip, 1710.5 MB, missing]" in printed
    curate("models", "verify", *place)
    (here / "test-head" / "head.pth").write_bytes(b"spoilt")
    assert "test-head: differs" in curate("models", "verify", *place, code=1)
    curate("models", "verify", "test-tiny", *place, code=1)
    # Unknown models and empty mirrors are usage errors.
    place = ["--models", str(mirror)]
    assert "did you mean 'test-head'" in curate(
        "models", "pull", "test-hat", *place, code=EXIT_USAGE
    )
    (tmp_path / "empty").mkdir()
    nothing = ["--from", str(tmp_path / "empty")]
    assert "neither openai-vit-b-32/open_clip_model.safetensors nor" in curate(
        "models", "pull", "openai-vit-b-32", *nothing, *place, code=EXIT_USAGE
    )


def test_a_run_without_clip_imports_no_open_clip() -> None:
    """Pins that six seconds of import are paid for by those who use it."""
    program = (
        "import sys, curator.stages.analyze.stage, curator.runs.curation, curator.runs.start\n"
        "from curator.recipe import load_recipe\n"
        "curator.runs.start.check_models(load_recipe('quickstart'))\n"
        "print('loaded:', sorted({'open_clip', 'torchvision', 'torch', 'PIL', 'timm'} "
        "& set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "loaded: []" in result.stdout
