"""The image file: what it copies is sent to the build, and what it installs is held."""

import fnmatch
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "infra" / "docker"
LINES = (FOLDER / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
STEPS = [line.split(maxsplit=1) for line in LINES if line and not line.startswith("#")]


def test_what_is_copied_exists_and_is_sent() -> None:
    sent = [
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    copied = [
        source
        for word, rest in STEPS
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]
    assert sorted(copied) == sorted(sent)
    assert all((ROOT / source).exists() for source in copied)


def test_the_checkout_that_is_sent_is_one_that_builds() -> None:
    """Pins that the wheel needs no file that the image lacks."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = [
        project["project"]["readme"],
        *project["project"]["license-files"],
        *wheel["packages"],
        *wheel["force-include"],
    ]
    copied = " ".join(rest for word, rest in STEPS if word == "COPY")
    assert [name for name in needed if not fnmatch.filter(copied.split(), name)] == []


def test_both_images_have_one_base_the_extras_and_an_ordinary_user() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = next(rest for word, rest in STEPS if word == "ARG" and rest.startswith("EXTRAS"))
    named = extras.removeprefix("EXTRAS=").split(",")
    assert "cluster" in named
    assert set(named) <= set(project["project"]["optional-dependencies"])
    stages = {rest.split()[-1]: rest.split()[0] for word, rest in STEPS if word == "FROM"}
    assert stages["cpu"] == stages["gpu"] == "node"
    assert stages["node"] == stages["build"] == "${BASE}"
    assert ["USER", "1000"] in STEPS


def test_the_image_for_gpus_has_the_video_engines() -> None:
    settings = " ".join(rest for word, rest in STEPS if word == "ENV")
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video" in settings
