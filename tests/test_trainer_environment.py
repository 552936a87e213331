"""A trainer installs the package without extras: the loader needs no more, and the rest says so.

`benchmarks/trainer_environment.py` builds the wheel, installs it, and runs `tests/loading` there.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distributions, metadata, packages_distributions, requires
from pathlib import Path

from made_shards import made_clips, write_shards

import curator
from curator.installation import install_extra

ROOT = Path(curator.__file__).parent
ABSENT = {"ray", "faiss", "rapidocr", "cv2", "pydantic"}
"""What a trainer does without, as modules."""
OF_EXTRAS = {
    "ray": "loading-ray", "PyNvVideoCodec": "gpu", "obstore": "cloud", "duckdb": "sql",
}  # fmt: skip
"""Modules that the loader imports where they are asked for, and the extras that install them."""
BY_NAME = ("curator.storage.s3_client", "curator.storage.cloud_service")
"""Modules that the loader imports by the scheme of an address."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required(distribution: str) -> set[str]:
    """Names of the distributions that one needs without extras."""
    lines = [line for line in requires(distribution) or [] if "extra ==" not in line]
    return {canonical(re.split(r"[^A-Za-z0-9._-]", line)[0]) for line in lines}


def installed_for_trainers() -> set[str]:
    """Names of all distributions that an installation without extras brings."""
    there = {canonical(found.metadata["Name"]) for found in distributions()}
    done, todo = set(), required("curate-video")
    while todo:
        one = todo.pop()
        done.add(one)
        todo |= (required(one) & there) - done
    return done


def file_of(module: str) -> Path | None:
    path = ROOT.parent.joinpath(*module.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Yields the modules that a file imports, and whether already at its own import."""

    def visit(node: ast.AST, *, at_once: bool) -> Iterator[tuple[str, bool]]:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            yield from ((alias.name, at_once) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module, at_once
            yield from ((f"{node.module}.{alias.name}", at_once) for alias in node.names)
        inner = isinstance(node, ast.FunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, at_once=at_once and not inner)

    yield from visit(ast.parse(path.read_text()), at_once=True)


def packages_of_loader() -> dict[str, set[bool]]:
    """Packages of others that the loader and all that it imports name; whether at import."""
    todo = [f"curator.loading.{path.stem}" for path in sorted((ROOT / "loading").glob("*.py"))]
    todo += BY_NAME
    done: set[str] = set()
    found: dict[str, set[bool]] = {}
    while todo:
        module = todo.pop()
        path = file_of(module)
        if path is None or module in done:
            continue
        done.add(module)
        todo.append(module.rpartition(".")[0])
        for name, at_once in imports(path):
            package = name.partition(".")[0]
            if package == "curator":
                todo.append(name)
            elif package not in sys.stdlib_module_names:
                found.setdefault(package, set()).add(at_once)
    assert len(done) > 40, "the loader's modules were not found"
    return found


def test_the_loader_imports_only_what_a_trainer_installs() -> None:
    """Pins the contract: all packages at import, and later none that no extra is named for."""
    direct = required("curate-video")
    owners = packages_distributions()
    for package, when in packages_of_loader().items():
        if package in OF_EXTRAS:
            assert when == {False} or package == "obstore", f"{package} is imported at once"
            continue
        names = {canonical(name) for name in owners.get(package, [package])}
        # botocore is boto3's own, and comes with it.
        assert names & (direct | {"botocore"}), f"{package} is not in `dependencies`"


def test_an_installation_without_extras_has_no_heavy_packages() -> None:
    owners = packages_distributions()
    heavy = {canonical(name) for module in ABSENT for name in owners[module]}
    assert heavy
    assert not installed_for_trainers() & heavy


IN_A_PROCESS = """
import sys
from importlib.abc import MetaPathFinder

absent = set(sys.argv[3:])


class Refuses(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


sys.meta_path.insert(0, Refuses())
from curator.loading import ClipDataset, ClipLoader

dataset = ClipDataset(sys.argv[1], frames=5, batch_size=2)
print([tuple(batch["video"].shape) for batch in ClipLoader(dataset)])
import curator
from curator.installation import install_extra
from curator.cli import main

print(main(["run", sys.argv[2], sys.argv[2] + ".out"]))
try:
    curator.run
except ModuleNotFoundError as error:
    print(error)
"""


def test_the_loader_loads_where_nothing_else_is_installed(tmp_path: Path) -> None:
    """Pins a batch where all other packages are refused; `curate run` there names the extra."""
    out = write_shards(tmp_path / "out", [("48p_3-2_17f", "train", made_clips(tmp_path, 2))])
    film = tmp_path / "film.mp4"
    film.write_bytes(b"\0" * 64)
    there = installed_for_trainers() | {"curate-video"}
    absent = [
        module
        for module, owners in packages_distributions().items()
        if not {canonical(name) for name in owners} & there
    ]
    assert set(absent) >= ABSENT
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS, out, film, *absent],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    shapes, code, from_python = done.stdout.splitlines()
    assert shapes == "[(2, 3, 5, 68, 104)]"
    assert code == "2"
    for said in (done.stderr, from_python):
        assert f"is not installed: {install_extra('run')}" in said


def test_every_other_extra_brings_all_that_a_run_needs() -> None:
    """Pins that `.[clip]` alone installs Ray and the rest, and no name is left to an index.

    The loader uses DuckDB too, so `sql` is for trainers and runs alike.
    """
    lines = requires("curate-video") or []
    assert not any("curate-video" in line for line in lines)
    by_extra = {
        extra: {canonical(re.split(r"[^A-Za-z0-9._-]", line)[0]) for line in lines
                if f"extra == '{extra}'" in line}
        for extra in metadata("curate-video").get_all("Provides-Extra") or ()
    }  # fmt: skip
    assert "ray" in by_extra["run"]
    for extra in by_extra.keys() - set(OF_EXTRAS.values()):
        assert by_extra[extra] >= by_extra["run"], extra
