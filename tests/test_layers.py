"""Imports go one way, and only two modules know Ray: the engine, and loading on other machines."""

import ast
from pathlib import Path

import pytest

import curator

ROOT = Path(curator.__file__).parent
LAYERS = (
    ("errors", "records", "strict_yaml", "fingerprints", "extensions", "stage"),
    ("storage", "media", "footage"),
    ("models",),
    ("measures",),
    ("tables",),
    ("executor",),
    ("stages",),
    ("report", "recipe"),
    ("verify",),
    ("export",),
    ("runs",),
    ("review", "doctor", "loading"),
    ("commands",),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MODULES = sorted(p for p in ROOT.rglob("*.py") if "pipelines" not in p.parts)


def imported(path: Path) -> set[str]:
    """Full names of the modules that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_module_imports_from_a_later_layer(path: Path) -> None:
    own = path.relative_to(ROOT).with_suffix("").parts[0]
    for name in imported(path):
        if name.startswith("curator."):
            other = name.split(".")[1]
            assert LEVEL[other] <= LEVEL.get(own, -1), f"{own} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_engine_and_remote_loading_import_ray(path: Path) -> None:
    knows = {name for name in imported(path) if name.split(".")[0] == "ray"}
    allowed = {
        Path("executor/ledger.py"),
        Path("executor/ray_cluster.py"),
        Path("loading/ray_decoding.py"),
    }
    assert not knows or path.relative_to(ROOT) in allowed
