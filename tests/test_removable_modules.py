"""An optional stage, or an exporter, is its own code and one line: all else works without both."""

import ast
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
from film_makers import write_video
from film_shots import moving_texture

import curator
from curator.export.exporter import FORMATS
from curator.stages import OPTIONAL

ROOT = Path(curator.__file__).parent
EXAMPLES = ROOT.parent / "examples"
EXPORTERS = sorted({path.partition(":")[0] for path in FORMATS.values()})
STAGES = [f"curator.stages.{name}" for name in OPTIONAL]
SETTINGS = ("shard.resolutions=[120]", "filters.short_side_px.min=100")
USE_ALL = """
import importlib, pkgutil, shlex, sys, curator
for module in pkgutil.walk_packages(curator.__path__, "curator."):
    importlib.import_module(module.name)
print(curator.__file__)
from curator.cli import main
for command in sys.argv[1:]:
    assert main(shlex.split(command)) == 0, command
"""


@cache
def names_in(path: Path) -> frozenset[str]:
    """Full names of modules that a file imports, or has as text."""
    return frozenset(_names_in(path))


def _names_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.partition(":")[0]


@pytest.mark.parametrize("removable", [*STAGES, *EXPORTERS])
def test_no_other_module_names_it(removable: str) -> None:
    lists = {ROOT / "export/exporter.py"}
    inside = ROOT.joinpath(*removable.split(".")[1:])
    others = [
        path
        for path in sorted(ROOT.rglob("*.py"))
        if path not in lists and path != inside.with_suffix(".py") and inside not in path.parents
    ]
    assert len(others) > 300
    found = [
        f"{path.relative_to(ROOT)} names {name}"
        for path in others
        for name in names_in(path)
        if f"{name}.".startswith(f"{removable}.")
    ]
    assert not found


def without_lines(path: Path, beginnings: Collection[str]) -> None:
    """Removes the lines that begin with a text, apart from spaces: one or more for each text."""
    lines = path.read_text().splitlines(keepends=True)
    for beginning in beginnings:
        rest = [line for line in lines if not line.lstrip().startswith(beginning)]
        assert len(rest) < len(lines), f"{path} has no line with {beginning}"
        lines = rest
    path.write_text("".join(lines))


@pytest.fixture(scope="module")
def reduced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, without optional stages, exporters, and their lines."""
    folder = tmp_path_factory.mktemp("reduced")
    package = folder / "curator"
    # With its bytecode, which stays valid for the modules that are not changed.
    shutil.copytree(ROOT, package)
    if not (package / "pipelines").is_dir():
        shutil.copytree(ROOT.parent / "pipelines", folder / "pipelines")
    for name in OPTIONAL:
        shutil.rmtree(package / "stages" / name)
    without_lines(package / "stages/__init__.py", [f'"{name}": (' for name in OPTIONAL])
    for module in EXPORTERS:
        folder.joinpath(*module.split(".")).with_suffix(".py").unlink()
    without_lines(package / "export/exporter.py", [f'"{name}": ' for name in FORMATS])
    return folder


def done(folder: Path, *arguments: object) -> str:
    """Runs Python with the package of a folder; returns its output."""
    path = os.pathsep.join(map(str, (folder, EXAMPLES)))
    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": path}
    ended = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.long
def test_the_rest_is_imported_and_makes_verifies_and_exports_shards(
    reduced: Path, tmp_path: Path
) -> None:
    """Pins a run by the default recipe, and an exporter of a user."""
    (tmp_path / "in").mkdir()
    write_video(tmp_path / "in/0.mp4", moving_texture(70, seed=1), fps=Fraction(25))
    out, settings = tmp_path / "out", [part for own in SETTINGS for part in ("--set", own)]
    commands: list[list[object]] = [
        ["graph"],
        ["run", tmp_path / "in", out, *settings],
        ["verify", out],
        ["export", out, tmp_path / "to", "--format", "jsonl_export:JsonLines"],
    ]
    lines = [shlex.join(map(str, command)) for command in commands]
    printed = done(reduced, "-c", USE_ALL, *lines)
    assert printed.startswith(f"{reduced / 'curator/__init__.py'}\n")
    assert "\nshard " in printed
    for name in OPTIONAL:
        assert f"\n{name} " not in printed
    assert list((tmp_path / "to").rglob("*.jsonl"))
