"""How this package was installed, and the commands that change the installation.

No public index has this package, so anyone could register its name there. An extra is therefore
installed from where the package came from, which installers record in `direct_url.json` (PEP 610).
"""

import importlib.util
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import curator

DISTRIBUTION = "curate-video"
"""Name of this package in `pyproject.toml`."""
_NO_INSTALLER = "with uv (https://docs.astral.sh/uv), which this environment lacks, as it lacks pip"


def install_extra(extra: str) -> str:
    """Returns the command that adds an extra to this installation, and keeps what is installed."""
    arguments, note = _own_requirement(f"[{extra}]")
    return pip_command("install", *arguments) + note


def reinstall() -> str:
    """Returns the command that installs this package and its dependencies again."""
    arguments, note = _own_requirement("[run]")
    return pip_command("install", *arguments, again=True) + note


def pip_command(task: str, *arguments: str, again: bool = False) -> str:
    """Returns a command of uv, or of pip where there is no uv, for the running environment.

    Args:
        task: `install` or `uninstall`.
        arguments: Options and requirements; they are quoted for a shell.
        again: Whether installed packages are replaced.
    """
    uv = _uv()
    words = [*arguments]
    if uv is not None or importlib.util.find_spec("pip") is None:
        again_flag, begin = "--reinstall", [uv or "uv", "pip", task]
        if not _is_active():
            begin += ["--python", _shown(sys.executable)]
    else:
        again_flag, begin = "--force-reinstall", [_shown(sys.executable), "-m", "pip", task]
        if task == "uninstall":
            words.insert(0, "--yes")
    if again:
        words.insert(0, again_flag)
    command = shlex.join([*begin, *words])
    return command if uv is not None or begin[1] == "-m" else f"{command} {_NO_INSTALLER}"


def _uv() -> str | None:
    """Returns how a shell calls uv: from the search path, or next to Python; None without uv."""
    if shutil.which("uv") is not None:
        return "uv"
    beside = Path(sys.executable).with_name("uv")
    return _shown(str(beside)) if os.access(beside, os.X_OK) else None


def _is_active() -> bool:
    """Returns whether uv without `--python` changes the running environment."""
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    if active is None:
        here = _here()
        active = next(
            (str(p / ".venv") for p in (here, *here.parents) if (p / ".venv").is_dir()), ""
        )
    return bool(active) and os.path.realpath(active) == os.path.realpath(sys.prefix)


def _own_requirement(extras: str) -> tuple[list[str], str]:
    """Returns the arguments that name this package with extras, and a note or an empty text."""
    origin = _direct_url()
    if origin is None:
        root = Path(__file__).parent.parent
        if (root / "pyproject.toml").is_file():
            return ["-e", f"{_as_folder(str(root))}{extras}"], ""
        note = ", with the index or folder of wheels of this installation: no public index has it"
        return [f"{DISTRIBUTION}{extras}=={curator.__version__}"], note
    url = str(origin.get("url", ""))
    parts = urlsplit(url)
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        revision = vcs.get("requested_revision") or vcs.get("commit_id")
        return [f"{DISTRIBUTION}{extras} @ {vcs['vcs']}+{_public(url)}@{revision}"], ""
    if parts.scheme != "file":
        return [f"{DISTRIBUTION}{extras} @ {_public(url)}"], ""
    path = unquote(parts.path)
    note = "" if os.path.exists(path) else f", after {path} is back"
    flags = ["-e"] if (origin.get("dir_info") or {}).get("editable") else []
    return [*flags, f"{_as_folder(path)}{extras}"], note


def _direct_url() -> Mapping[str, Any] | None:
    """Returns where the package was installed from; None if that was an index, or is unknown."""
    # Imports of it take 20 ms, which each command would pay.
    from importlib.metadata import distribution

    # A sandboxed process may not read the record: then the location of the package decides.
    with suppress(OSError, ImportError, ValueError):
        text = distribution(DISTRIBUTION).read_text("direct_url.json")
        facts = json.loads(text or "null")
        return facts if isinstance(facts, dict) else None
    return None


def _here() -> Path:
    """Returns the current folder; the root if it was deleted or may not be read."""
    with suppress(OSError):
        return Path.cwd()
    return Path("/")


def _public(url: str) -> str:
    """Returns an address without user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _as_folder(path: str) -> str:
    """Returns a path that installers cannot take for the name of a package."""
    shown = _shown(path)
    return shown if shown.startswith((".", "/")) else f"./{shown}"


def _shown(path: str) -> str:
    """Returns a path relative to the current folder if it is below it, and else as it is."""
    here = _here()
    if Path(path) == here:
        return "."
    is_below = here != Path("/") and Path(path).is_relative_to(here)
    return str(Path(path).relative_to(here)) if is_below else path
