#!/usr/bin/env python3
"""Installs the wheels that fetch.py packed, on a machine without a network.

    install.py PIECES [PIECES]... --into FOLDER [--python PROGRAM]
    install.py PIECES [PIECES]... --venv FOLDER [--python PROGRAM]

PIECES are folders; the pieces may be spread over several. Nothing is installed unless all pieces
are present and undamaged. `--into` fills a folder for PYTHONPATH and leaves existing installations
unchanged. `--venv` makes an environment that also sees the machine's packages.
"""

import argparse
import contextlib
import hashlib
import io
import json
import lzma
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"


def gathered(folders: Sequence[Path]) -> tuple[dict[str, Any], list[Path]]:
    """Returns the manifest, and the pieces in order.

    Args:
        folders: Folders to search for the pieces.
    """
    manifests = [folder / MANIFEST for folder in folders if (folder / MANIFEST).is_file()]
    if not manifests:
        sys.exit(f"no {MANIFEST} in {', '.join(map(str, folders))}")
    texts = {path.read_text() for path in manifests}
    if len(texts) > 1:
        sys.exit(f"the folders have different manifests: {', '.join(map(str, manifests))}")
    manifest: dict[str, Any] = json.loads(texts.pop())
    pieces, wrong = [], []
    for name, expected in manifest["pieces"].items():
        found = [folder / name for folder in folders if (folder / name).is_file()]
        if not found:
            wrong.append(f"{name} is missing")
        elif _sha256(found[0]) != expected:
            wrong.append(f"{found[0]} is damaged")
        else:
            pieces.append(found[0])
    if wrong:
        sys.exit("; ".join(wrong))
    return manifest, pieces


def unpacked(manifest: dict[str, Any], pieces: Sequence[Path], folder: Path) -> list[Path]:
    """Writes the wheels to a folder, and checks their SHA-256 sums.

    Args:
        manifest: Contents of `manifest.json`.
        pieces: Pieces of the archive, in order.
        folder: Destination of the wheels.
    """
    wheels = []
    with contextlib.ExitStack() as stack:
        archive: Any = io.BufferedReader(_Joined(pieces))
        if manifest["form"] == "xz":
            archive = stack.enter_context(lzma.open(archive))
        tar = stack.enter_context(tarfile.open(fileobj=archive, mode="r|"))
        for member in tar:
            if member.name not in manifest["wheels"] or "/" in member.name or not member.isfile():
                sys.exit(f"{member.name!r} is not in the manifest")
            stored = tar.extractfile(member)
            assert stored is not None
            path = folder / member.name
            with path.open("wb") as file:
                while some := stored.read(1 << 20):
                    file.write(some)
            if _sha256(path) != manifest["wheels"][member.name]:
                sys.exit(f"{member.name} is damaged")
            wheels.append(path)
    if lacking := sorted(set(manifest["wheels"]) - {wheel.name for wheel in wheels}):
        sys.exit(f"missing: {', '.join(lacking)}")
    return wheels


class _Joined(io.RawIOBase):
    """Reads several files as one stream."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._file: io.BufferedReader | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        while True:
            if self._file is None:
                if not self._paths:
                    return 0
                self._file = self._paths.pop(0).open("rb")
            if count := self._file.readinto(buffer):
                return count
            self._file.close()
            self._file = None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Checks, joins and installs the pieces."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pieces", type=Path, nargs="+")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--into", type=Path, help="folder for PYTHONPATH")
    where.add_argument("--venv", type=Path, help="environment; created if missing")
    parser.add_argument("--python", default=sys.executable, help="the Python to install for")
    options = parser.parse_args()
    manifest, pieces = gathered(options.pieces)
    program, target = options.python, []
    if options.venv is not None:
        program = str(options.venv / "bin" / "python")
        if not Path(program).exists():
            make = [options.python, "-m", "venv", "--system-site-packages", str(options.venv)]
            subprocess.run(make, check=True)
    else:
        target = ["--target", str(options.into), "--upgrade"]
    with tempfile.TemporaryDirectory() as folder:
        wheels = unpacked(manifest, pieces, Path(folder))
        # fetch.py ensured that all dependencies are among the wheels or already installed.
        command = [program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--no-index", "--no-deps", "--no-compile", "--no-cache-dir", *target]
        subprocess.run([*command, *map(str, wheels)], check=True)
    print(f"installed {len(wheels)} wheels into {options.into or options.venv}")


if __name__ == "__main__":
    main()
