"""The advised commands change the installation that runs, and come from where it was installed."""

import ast
import json
import re
import shlex
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest

import curator
from curator import installation
from curator.installation import install_extra, pip_command, reinstall

ROOT = Path(curator.__file__).parent
PROJECT = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
WORDS = re.compile(r"\bpip3? (un)?install\b|\buv pip\b|\buv add\b|in the checkout|\bmake env\b")
"""What no message may say itself, because it does not fit every installation."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An active environment with uv."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "bin" / "python"))
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))
    monkeypatch.setattr(installation.shutil, "which", lambda name: f"/usr/bin/{name}")
    return tmp_path


def installed_from(monkeypatch: pytest.MonkeyPatch, origin: object) -> None:
    monkeypatch.setattr(installation, "_direct_url", lambda: origin)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file://{at}", "dir_info": {"editable": True}}, "uv pip install -e '{at}[clip]'"),
        ({"url": "file://{at}", "dir_info": {}}, "uv pip install '{at}[clip]'"),
        (
            {"url": "file://{at}/c.whl", "archive_info": {}},
            "uv pip install '{at}/c.whl[clip]', after {at}/c.whl is back",
        ),
        (
            {"url": "https://user:secret@a.b/c.whl", "archive_info": {}},
            "uv pip install 'curate-video[clip] @ https://a.b/c.whl'",
        ),
        (
            {"url": "https://a.b/c", "vcs_info": {"vcs": "git", "commit_id": "0ab"}},
            "uv pip install 'curate-video[clip] @ git+https://a.b/c@0ab'",
        ),
        (
            {
                "url": "https://a.b/c",
                "vcs_info": {"vcs": "git", "commit_id": "0ab", "requested_revision": "v1"},
            },
            "uv pip install 'curate-video[clip] @ git+https://a.b/c@v1'",
        ),
    ],
)
def test_an_extra_comes_from_where_the_package_came_from(
    place: Path, monkeypatch: pytest.MonkeyPatch, origin: dict[str, str], command: str
) -> None:
    """Pins above all that an editable installation stays editable."""
    installed_from(monkeypatch, {**origin, "url": origin["url"].format(at=place)})
    assert install_extra("clip") == command.format(at=place)
    again = command.format(at=place).replace("install ", "install --reinstall ", 1)
    assert reinstall() == again.replace("[clip]", "[run]")


def test_a_package_of_an_index_is_installed_from_the_same_index(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Pins that the name alone is not advised: anyone could register it on a public index."""
    installed_from(monkeypatch, None)
    monkeypatch.setattr(installation, "__file__", str(tmp_path / "lib" / "curator" / "i.py"))
    said = install_extra("clip")
    assert said.startswith(f"uv pip install 'curate-video[clip]=={curator.__version__}', with the ")
    assert "no public index has it" in said
    # On PYTHONPATH, the checkout is what there is.
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "pyproject.toml").touch()
    assert install_extra("clip") == f"uv pip install -e '{tmp_path}/lib[clip]'"


def test_the_command_is_of_an_installer_that_there_is(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins uv on the path, next to Python, pip alone, and neither; and paths of a checkout."""
    python = f"{place}/venv/bin/python"
    monkeypatch.setenv("VIRTUAL_ENV", "/another")
    assert pip_command("install", "x<2") == f"uv pip install --python {python} 'x<2'"
    monkeypatch.setattr(installation.shutil, "which", lambda name: None)
    assert pip_command("install", "x", again=True) == (
        f"{python} -m pip install --force-reinstall x"
    )
    assert pip_command("uninstall", "x") == f"{python} -m pip uninstall --yes x"
    monkeypatch.setattr(installation.importlib.util, "find_spec", lambda name: None)
    said = pip_command("install", "x")
    assert said.startswith(f"uv pip install --python {python} x with uv (https://")
    (place / "venv" / "bin").mkdir(parents=True)
    (place / "venv" / "bin" / "uv").touch(mode=0o755)
    assert pip_command("install", "x").startswith(f"{python[:-6]}uv pip install --python")
    # In the checkout of `make env`, uv finds `.venv` by itself.
    (place / "venv").rename(place / ".venv")
    monkeypatch.setattr(sys, "prefix", str(place / ".venv"))
    monkeypatch.setattr(sys, "executable", str(place / ".venv" / "bin" / "python"))
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(place)
    installed_from(monkeypatch, {"url": f"file://{place}", "dir_info": {"editable": True}})
    assert install_extra("clip") == ".venv/bin/uv pip install -e '.[clip]'"


def test_a_remedy_is_worded_where_nothing_can_be_read(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins a folder that was deleted, and a sandboxed process that may not read the record."""

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(installation.Path, "cwd", refuse)
    monkeypatch.setattr("importlib.metadata.distribution", refuse)
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    root = ROOT.parent
    assert install_extra("clip") == (
        f"uv pip install --python {place}/venv/bin/python -e '{root}[clip]'"
    )


def test_every_remedy_is_worded_in_one_place() -> None:
    """Walks over the texts of the package: commands of installers, and the extras they name."""
    texts, extras = [], set()
    for path in ROOT.rglob("*.py"):
        if path.name == "installation.py" or "pipelines" in path.parts:
            continue
        if not (WORDS.search(text := path.read_text()) or "install_extra(" in text):
            continue
        tree = ast.parse(text)
        docs = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        names = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                names.update({ast.unparse(target): node.value.value for target in node.targets})
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if WORDS.search(node.value) and id(node) not in docs:
                    texts.append(f"{path.name}:{node.lineno}: {node.value}")
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "install_extra":
                value = node.args[0]
                extras.add(value.value if isinstance(value, ast.Constant) else names[value.id])  # type: ignore[attr-defined]
    assert not texts
    assert len(extras) >= 10
    assert extras <= set(PROJECT["optional-dependencies"])
    assert PROJECT["name"] == installation.DISTRIBUTION


def test_the_command_of_this_environment_names_its_origin() -> None:
    """Pins the real metadata, of whatever installed this package here."""
    text = distribution(installation.DISTRIBUTION).read_text("direct_url.json")
    words = shlex.split(install_extra("clip").partition(",")[0])
    assert "install" in words
    if text is not None and json.loads(text).get("dir_info", {}).get("editable"):
        assert words[-2] == "-e"
