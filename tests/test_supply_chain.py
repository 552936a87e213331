"""What is installed has a known hash, and what is said of it is what is there."""

import hashlib
import importlib.util
import json
import platform
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
CONSTRAINTS = (ROOT / "constraints.txt").read_text()
ENTRY = re.compile(
    r"^([a-z0-9][a-z0-9._-]*)==\S+[^\n]*\\\n(?:    --hash=sha256:[0-9a-f]{64}.*\n)+", re.M
)
UNLOCKED = {"mds"}
"""Extras whose packages contradict the others."""


@pytest.fixture(scope="module")
def notices() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notices", ROOT / "infra" / "notices.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["notices"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def components() -> dict[str, dict[str, Any]]:
    return {
        part["name"]: part
        for part in json.loads((ROOT / "sbom.cdx.json").read_text())["components"]
    }


def test_each_package_has_hashes_and_no_address(notices: ModuleType) -> None:
    assert [found[1] for found in ENTRY.finditer(CONSTRAINTS)] == list(notices.held())
    lines = [line for line in CONSTRAINTS.splitlines() if not line.startswith("#")]
    assert not [line for line in lines if re.search(r"://|--index|--find-links| @ ", line)]


def test_each_dependency_is_held(notices: ModuleType) -> None:
    """Pins extras, and what builds and `make` need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    lists = [project["project"]["dependencies"], project["dependency-groups"]["build"]]
    lists += [names for extra, names in extras.items() if extra not in UNLOCKED]
    named = {
        notices.canonical(re.split(r"[^A-Za-z0-9._-]", n)[0]) for names in lists for n in names
    }
    assert named - {project["project"]["name"]} <= set(notices.held())
    makefile = (ROOT / "Makefile").read_text()
    assert set(re.search(r"^EXTRAS := (.*)$", makefile, re.M)[1].split()) == set(extras) - UNLOCKED  # type: ignore[index]


def test_notices_and_bill_of_materials_name_what_is_held(
    notices: ModuleType, components: dict[str, dict[str, Any]]
) -> None:
    """Pins that `infra/notices.py` ran after the last change of `constraints.txt`."""
    assert {name: part["version"] for name, part in components.items()} == notices.held()
    page = (ROOT / "THIRD_PARTY_NOTICES.md").read_text()
    for name, version in notices.held().items():
        assert f"| {name} | {version} |" in page
    named = [part["name"] for part in components["av"]["components"]]
    assert {"libx264.so", "libx265.so"} <= {name.partition(".so")[0] + ".so" for name in named}
    assert re.search(r"\| av \S+ \| libx264\S* \| GPL-2.0-or-later \|", page)


def test_licences_and_parts_are_those_of_the_installed_packages(
    notices: ModuleType, components: dict[str, dict[str, Any]]
) -> None:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("the parts are those of wheels for Linux x86-64")
    n_compared = 0
    for found in distributions():
        name = notices.canonical(found.metadata["Name"])
        if notices.held().get(name) != found.version:
            continue
        n_compared += 1
        parts = {
            part["name"]: part["licenses"][0]["license"]["name"]
            for part in components[name]["components"]
        }
        assert dict(notices._parts(name, found)) == parts, name
        if name not in notices.STATED:
            (stated,) = components[name]["licenses"]
            assert stated["license"]["name"] == notices._licence(found), name
    assert n_compared > 100


@pytest.mark.parametrize("is_right", [True, False])
def test_a_file_with_another_hash_is_not_installed(tmp_path: Path, is_right: bool) -> None:
    """Pins that uv compares hashes of constraints, also for what only another package asks for."""
    for name, needs in (("first", "Requires-Dist: second\n"), ("second", "")):
        with zipfile.ZipFile(tmp_path / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            about = f"{name}-1.0.dist-info"
            wheel.writestr(
                f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}"
            )
            wheel.writestr(
                f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{about}/RECORD", "")
    digest = hashlib.sha256((tmp_path / "second-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    held = tmp_path / "held.txt"
    held.write_text(f"second==1.0 --hash=sha256:{digest if is_right else '0' * 64}\n")
    uv = Path(sys.executable).with_name("uv")
    ran = subprocess.run(
        [uv, "pip", "install", "--no-index", "--find-links", tmp_path, "--no-cache",
         "--target", tmp_path / "into", "-c", held, "first"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode == 0) is is_right, ran.stderr
    assert (tmp_path / "into" / "second-1.0.dist-info").exists() is is_right
    if not is_right:
        assert "Hash mismatch" in ran.stderr


def test_no_instruction_installs_the_name_from_an_index() -> None:
    """Pins docs, errors and files: only `curate-video[...] @ git+URL` may be installed by name."""
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "infra").rglob("*.*")]
    texts += (ROOT / "curator").rglob("*.py")
    for path in texts:
        for line in path.read_text(errors="replace").splitlines():
            if "curate-video" in line and "would install whatever" not in line:
                if path.name == "installation.py":
                    # The name alone; tests/test_installation.py has the commands made of it.
                    assert line == 'DISTRIBUTION = "curate-video"'
                    continue
                assert "@ git+URL" in line, f"{path}: {line}"
