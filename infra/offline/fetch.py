#!/usr/bin/env python3
"""Fetches the wheels that a machine without a network lacks, in pieces of limited size.

    fetch.py --to FOLDER [--python 3.12] [--platform x86_64-manylinux_2_28] [--extras gpu,clip]
             [--have LIST] [--replace NAME]... [--without NAME]... [--only NAME]...
             [--add PACKAGE]... [--build NAME]... [--piece-mib 60] [--squeeze]

`uv` resolves the packages for the target machine, and pip downloads them from its configured index.
LIST names the packages on the target: the output of `pip list --format=freeze`, or one name a line.
The versions in LIST are kept, and `constraints.txt` gives all others. If the project needs another
version of a package in LIST, uv reports the conflict, and `--replace` sends the needed version.
Wheels of versions in `constraints.txt` must match a hash there. `install.py` installs the pieces on
the target. Both scripts need only Python 3.11.
"""

import argparse
import contextlib
import hashlib
import io
import json
import lzma
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
MANIFEST = "manifest.json"
MIB = 1 << 20


def canonical(name: str) -> str:
    """Returns a package name in normalized form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def listed(lines: Iterable[str]) -> dict[str, str | None]:
    """Returns the packages of a list by name, with the version where the line gives one.

    Args:
        lines: `name`, `name==version` or `name @ …`; comments and empty lines are ignored.
    """
    found: dict[str, str | None] = {}
    for line in lines:
        text = line.split("#")[0].strip()
        match = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:==\s*([^\s;]+))?", text)
        if match and not text.startswith("-"):
            found[canonical(match[1])] = match[2]
    return found


def constraints_for(
    have: dict[str, str | None], project: dict[str, str | None], replaced: set[str]
) -> list[str]:
    """Returns the versions to keep: LIST's, and the project's for packages that LIST lacks."""
    kept = {name: version for name, version in project.items() if name not in have}
    kept |= {name: version for name, version in have.items() if name not in replaced}
    return [f"{name}=={version}" for name, version in sorted(kept.items()) if version is not None]


def resolved(options: argparse.Namespace, have: dict[str, str | None]) -> dict[str, str | None]:
    """Returns all packages that the project and its extras need on the target, with versions."""
    project = listed((PROJECT / "constraints.txt").read_text().splitlines())
    with tempfile.TemporaryDirectory() as folder:
        held, more = Path(folder) / "held.txt", Path(folder) / "more.txt"
        more.write_text("\n".join(options.add) + "\n")
        held.write_text("\n".join(constraints_for(have, project, options.replace)) + "\n")
        command = [
            options.uv, "pip", "compile", str(PROJECT / "pyproject.toml"), str(more), "--quiet",
            "--no-header", "--no-annotate", "--no-python-downloads", "--only-binary", ":all:",
            "--python-version", options.python, "--python-platform", options.platform,
            "--constraint", str(held),
        ]  # fmt: skip
        for name in sorted(options.build):
            command += ["--no-binary", name]
        for extra in filter(None, options.extras.split(",")):
            command += ["--extra", extra]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if answer.returncode:
            sys.exit(
                "no set of versions satisfies all constraints; --replace NAME sends another version"
                " of an installed package, --build NAME builds a wheel here if the index has none"
            )
    return listed(answer.stdout.splitlines())


def platform_tags(platform: str) -> list[str]:
    """Returns pip's names of a platform, and of all older platforms whose wheels run on it.

    Args:
        platform: uv's name, such as `x86_64-manylinux_2_28`.
    """
    match = re.fullmatch(r"(\w+?)-manylinux_2_(\d+)", platform)
    if match is None:
        sys.exit(f"--platform is {platform!r}; expected one such as x86_64-manylinux_2_28")
    machine, newest = match[1], int(match[2])
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, 4, -1)]
    return [*tags, *(f"manylinux{year}_{machine}" for year in ("2014", "2010", "1"))]


def downloaded(
    names: Sequence[str], folder: Path, *, python: str, platform: str, built: set[str]
) -> None:
    """Downloads wheels with pip, and builds wheels of pure Python packages that have none.

    Args:
        names: `name==version`.
        folder: Destination.
        python: Python version of the target.
        platform: uv's name of the platform.
        built: Names of packages to build.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    made = [name for name in names if name.split("==")[0] in built]
    ready = [name for name in names if name not in made]
    command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    command += ["--python-version", python, "--implementation", "cp"]
    for tag in platform_tags(platform):
        command += ["--platform", tag]
    if ready:
        subprocess.run([*command, *ready], check=True)
    if made:
        subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), *made], check=True)
    for path in folder.glob("*.whl"):
        if canonical(path.name.split("-")[0]) in built and not path.name.endswith("-none-any.whl"):
            sys.exit(f"{path.name} was built for this machine and does not run on another")


def refuse_others(wheels: Iterable[Path], constraints: str, built: set[str]) -> None:
    """Exits if `constraints.txt` has a wheel's version but not the wheel's hash."""
    blocks = re.split(r"^(?=[a-z0-9])", constraints, flags=re.MULTILINE)
    known = {
        f"{canonical(block.partition('==')[0])}-{re.split(r'==|[ ;]', block)[1]}": set(
            re.findall(r"sha256:([0-9a-f]{64})", block)
        )
        for block in blocks
        if "==" in block
    }
    for wheel in wheels:
        key = _key(wheel)
        if key in known and canonical(wheel.name.split("-")[0]) not in built:
            found = _sha256(wheel)
            if found not in known[key]:
                sys.exit(f"{wheel.name} has SHA-256 {found}, which constraints.txt does not name")


def packed(
    wheels: Sequence[Path], folder: Path, piece_bytes: int, *, is_squeezed: bool = False
) -> list[str]:
    """Writes the wheels as pieces of one archive, and the SHA-256 sums to `manifest.json`.

    Args:
        wheels: Files to pack.
        folder: Destination of the pieces; older pieces there are deleted.
        piece_bytes: Largest size of a piece.
        is_squeezed: Compress all wheels together with xz: a third smaller, at a second per MiB.

    Returns:
        Names of the pieces, in order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("wheels.tar.*"):
        old.unlink()
    sums: dict[str, str] = {}
    with _Pieces(folder, piece_bytes) as pieces, contextlib.ExitStack() as stack:
        out: Any = pieces
        if is_squeezed:
            filters = [
                {"id": lzma.FILTER_X86},
                {"id": lzma.FILTER_LZMA2, "preset": 4, "dict_size": 96 * MIB},
            ]
            out = stack.enter_context(lzma.open(pieces, "wb", filters=filters))
        tar = stack.enter_context(tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT))
        for wheel in wheels:
            with tempfile.TemporaryDirectory() as temporary:
                sent = _stored(wheel, Path(temporary)) if is_squeezed else wheel
                sums[wheel.name] = _sha256(sent)
                tar.add(sent, arcname=wheel.name)
    manifest = {
        "form": "xz" if is_squeezed else "tar",
        "pieces": {name: _sha256(folder / name) for name in pieces.names},
        "wheels": sums,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return pieces.names


def _stored(wheel: Path, folder: Path) -> Path:
    """Writes a wheel without compression, because xz compresses uncompressed data better."""
    path = folder / wheel.name
    with zipfile.ZipFile(wheel) as read, zipfile.ZipFile(path, "w") as write:
        for one in read.infolist():
            kept = zipfile.ZipInfo(one.filename, one.date_time)
            kept.external_attr = one.external_attr
            write.writestr(kept, read.read(one))
    return path


class _Pieces(io.RawIOBase):
    """A stream that splits its bytes into pieces."""

    def __init__(self, folder: Path, piece_bytes: int) -> None:
        self._folder, self._left, self._size = folder, 0, piece_bytes
        self._file: io.BufferedWriter | None = None
        self.names: list[str] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        done = 0
        while done < len(view):
            if self._left == 0:
                self._next()
            assert self._file is not None
            some = view[done : done + self._left]
            self._file.write(some)
            done, self._left = done + len(some), self._left - len(some)
        return done

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()

    def _next(self) -> None:
        if self._file is not None:
            self._file.close()
        self.names.append(f"wheels.tar.{len(self.names):03d}")
        self._file = (self._folder / self.names[-1]).open("wb")
        self._left = self._size


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Resolves, downloads and packs the wheels."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, required=True, help="folder for the pieces")
    parser.add_argument("--wheels", type=Path, help="folder that keeps the wheels for later calls")
    parser.add_argument("--python", default="3.12", help="Python version of the target")
    parser.add_argument("--platform", default="x86_64-manylinux_2_28", help="uv's platform name")
    parser.add_argument("--extras", default="run", help="extras of this project, comma-separated")
    parser.add_argument("--have", type=Path, help="list of the packages on the target")
    for name, text in (
        ("replace", "send this package although the target has it"),
        ("without", "leave this package out"),
        ("only", "send only this package"),
        ("build", "build a wheel of this pure Python package, which has none"),
    ):
        parser.add_argument(
            f"--{name}", action="append", default=[], metavar="NAME", help=text, type=canonical
        )
    parser.add_argument("--add", action="append", default=[], help="also send, such as faiss-cpu")
    parser.add_argument("--piece-mib", type=float, default=60.0, help="largest piece, in MiB")
    parser.add_argument("--squeeze", action="store_true", help="compress all wheels together; slow")
    parser.add_argument("--uv", default="uv", help="path of uv")
    options = parser.parse_args()
    for name in ("replace", "without", "only", "build"):
        setattr(options, name, set(getattr(options, name)))
    have = listed(options.have.read_text().splitlines()) if options.have else {}
    wanted = resolved(options, have)
    names = [
        f"{name}=={version}"
        for name, version in sorted(wanted.items())
        if (name not in have or name in options.replace)
        and name not in options.without
        and (not options.only or name in options.only)
    ]
    if unknown := sorted((options.only | options.replace) - set(wanted)):
        sys.exit(f"not needed by the project: {', '.join(unknown)}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.wheels or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        downloaded(
            names, folder, python=options.python, platform=options.platform, built=options.build
        )
        keys = {name.replace("==", "-") for name in names}
        wheels = sorted(path for path in folder.glob("*.whl") if _key(path) in keys)
        refuse_others(wheels, (PROJECT / "constraints.txt").read_text(), options.build)
        pieces = packed(
            wheels, options.to, round(options.piece_mib * MIB), is_squeezed=options.squeeze
        )
        for wheel in sorted(wheels, key=lambda path: -path.stat().st_size):
            print(f"{wheel.stat().st_size / MIB:8.1f} MiB  {wheel.name}")
        total = sum(wheel.stat().st_size for wheel in wheels)
        print(f"{total / MIB:8.1f} MiB  in {len(wheels)} wheels, {len(pieces)} pieces")


def _key(wheel: Path) -> str:
    name, version = wheel.name.split("-")[:2]
    return f"{canonical(name)}-{version}"


if __name__ == "__main__":
    main()
