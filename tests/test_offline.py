"""Packages for a machine without a network: what is sent, and that nothing damaged is installed."""

import base64
import hashlib
import importlib.util
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parent.parent / "infra" / "offline"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(folder: Path, name: str, n_bytes: int) -> Path:
    """A wheel of one module with a value, and padding that does not compress."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    padding = hashlib.shake_256(name.encode()).digest(n_bytes)
    files = {
        f"{name}.py": f"VALUE = {name!r}\n".encode(),
        f"{name}_data.bin": padding,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for file, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{file},sha256={digest},{len(content)}\n"
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
        archive.writestr(f"{about}/RECORD", f"{record}{about}/RECORD,,\n")
    return path


@pytest.fixture(params=["plain", "squeezed"])
def pieces(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Three wheels in pieces of 16 KiB: one of them is larger than a piece."""
    made = tmp_path / "made"
    made.mkdir()
    wheels = [wheel(made, name, size) for name, size in (("a", 900), ("b", 50_000), ("c", 10))]
    folder = tmp_path / "pieces"
    folder.mkdir()
    (folder / "wheels.tar.099").write_bytes(b"of an earlier run")
    squeezed = request.param == "squeezed"
    names = script("fetch").packed(wheels, folder, 16 << 10, is_squeezed=squeezed)
    assert len(names) == 4
    assert {path.name for path in folder.iterdir()} == {*names, "manifest.json"}
    assert max((folder / name).stat().st_size for name in names) == 16 << 10
    return folder


def test_pieces_from_several_folders_are_installed(pieces: Path, tmp_path: Path) -> None:
    """Pins the whole way over there, by pip and without an index."""
    other, into = tmp_path / "other", tmp_path / "into"
    other.mkdir()
    for number in (0, 2):
        (pieces / f"wheels.tar.{number:03d}").rename(other / f"wheels.tar.{number:03d}")
    command = [sys.executable, FOLDER / "install.py", other, pieces, "--into", into]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout == f"installed 3 wheels into {into}\n"
    code = "import a, b, c; print(a.VALUE + b.VALUE + c.VALUE, a.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(into)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert found.stdout.split() == ["abc", str(into / "a.py")]


def test_missing_and_damaged_pieces_are_named(pieces: Path) -> None:
    install = script("install")
    (pieces / "wheels.tar.001").unlink()
    damaged = pieces / "wheels.tar.002"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(SystemExit, match=r"001 is missing; .*002 is damaged$"):
        install.gathered([pieces])


def test_a_wheel_that_the_manifest_does_not_have_is_refused(pieces: Path, tmp_path: Path) -> None:
    """Pins that names in the archive are not written to as they come."""
    install = script("install")
    manifest, parts = install.gathered([pieces])
    name = next(iter(manifest["wheels"]))
    for changed, message in (
        ({**manifest["wheels"], name: "0" * 64}, f"{name} is damaged"),
        ({k: v for k, v in manifest["wheels"].items() if k != name}, "not in the manifest"),
        ({**manifest["wheels"], "d-1.0-py3-none-any.whl": "0"}, "missing: d-1.0"),
    ):
        with pytest.raises(SystemExit, match=message):
            install.unpacked({**manifest, "wheels": changed}, parts, tmp_path)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "manifest.json").write_text(json.dumps({}))
    with pytest.raises(SystemExit, match="different manifests"):
        install.gathered([pieces, tmp_path / "more"])


def test_versions_and_platforms_over_there_are_held_to() -> None:
    fetch = script("fetch")
    have = fetch.listed(
        [
            "# made there",
            "",
            "Torch==2.11.0",
            "typing_extensions",
            "-e git+x",
            "mine @ file",
            "A.b==1",
        ]
    )
    assert have == {"torch": "2.11.0", "typing-extensions": None, "mine": None, "a-b": "1"}
    project = {"torch": "2.15.0", "typing-extensions": "4", "av": "18.1.0"}
    held = fetch.constraints_for(have, project, {"a-b"})
    assert held == ["av==18.1.0", "torch==2.11.0"]
    # Older platforms are taken too.
    fetch = script("fetch")
    tags = fetch.platform_tags("x86_64-manylinux_2_28")
    assert tags[:2] == ["manylinux_2_28_x86_64", "manylinux_2_27_x86_64"]
    assert {"manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64"} <= set(tags)
    with pytest.raises(SystemExit, match="expected one such as"):
        fetch.platform_tags("linux")


def test_a_wheel_with_another_hash_is_not_sent(tmp_path: Path) -> None:
    """Pins that versions of the project must have its hashes; others, and own builds, have none."""
    fetch = script("fetch")
    made = wheel(tmp_path, "some_name", 10)
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    right = (
        f"a==2 \\\n    --hash=sha256:{'1' * 64}\nsome-name==1.0 \\\n    --hash=sha256:{digest}\n"
    )
    fetch.refuse_others([made], right, set())
    wrong = right.replace(digest, "0" * 64)
    with pytest.raises(SystemExit, match=f"has SHA-256 {digest}, which constraints.txt does not"):
        fetch.refuse_others([made], wrong, set())
    fetch.refuse_others([made], wrong, {"some-name"})
    fetch.refuse_others([made], wrong.replace("1.0", "1.1"), set())
    fetch.refuse_others([], (fetch.PROJECT / "constraints.txt").read_text(), set())
