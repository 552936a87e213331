"""Random histories of an output root, and what has to hold in each state.

A history is a sequence of steps: runs, growth, other recipes, `remove`, `clean`, kills at any
change of an object, objects that are lost, moved away and restored, stale listings, and older
copies over newer objects. Histories form a tree: those that begin alike share the work. A violation
names the steps, which `replay` repeats.
"""

import hashlib
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from small_output import SmallOutput, source_id

from curator.errors import CuratorError
from curator.storage import ObjectInfo, open_store
from curator.storage.local_store import LocalStore
from curator.tables.checksums import read_parquet
from curator.tables.json_objects import find_json, read_json
from curator.tables.out_layout import has_fixed_path
from curator.tables.snapshot_store import named_objects
from curator.tools.verify import verify

WARNED = "leave the shards"
"""Words of the warning of clips that leave."""
_OF_RECIPE = "motion_too_low"
_MUTATIONS = ("create", "write_new", "replace", "copy", "delete")


def is_snapshot(key: str) -> bool:
    return re.fullmatch(r"snapshots/[0-9]{8}\.json", key) is not None


class Killed(BaseException):
    """The process ended, as by SIGKILL."""


class BrokenPromiseError(AssertionError):
    """A promise was broken."""


@dataclass
class Faults:
    """What goes wrong within one step."""

    kill_after: int | None = None
    """Changes of objects before the process is killed."""
    stale: dict[str, ObjectInfo] | None = None
    """An earlier listing."""
    stale_at: int = 0
    """Number of the listing request that the earlier listing answers."""
    out: Path = Path()
    moved: dict[str, bytes] = field(default_factory=dict)
    keeps_lost: bool = True
    """Whether objects of snapshots that are moved away must stay too."""
    exempt: str = " "
    """Beginning of the names of objects that the command may remove."""
    n_changes: int = 0
    n_listings: int = 0

    def change(self) -> None:
        if self.kill_after is not None and self.n_changes >= self.kill_after:
            raise Killed
        self.n_changes += 1


def existing_snapshots(out: Path) -> dict[int, dict[str, Any]]:
    store = open_store(str(out))
    numbers = sorted(int(path.stem) for path in (out / "snapshots").glob("[0-9]*.json"))
    return {number: read_json(store, f"snapshots/{number:08d}.json") for number in numbers}


def named_by(snapshots: dict[int, dict[str, Any]]) -> set[str]:
    return set().union(*map(named_objects, snapshots.values()))


@contextmanager
def faulty(faults: Faults) -> Iterator[None]:
    """Lets a step meet faults, and checks each removal of an object."""
    real = {name: getattr(LocalStore, name) for name in (*_MUTATIONS, "list")}

    @contextmanager
    def create(self: LocalStore, key: str) -> Iterator[Any]:
        faults.change()
        with real["create"](self, key) as stream:
            yield stream

    def write_new(self: LocalStore, key: str, data: bytes) -> Any:  # noqa: ANN401
        faults.change()
        return real["write_new"](self, key, data)

    def replace(self: LocalStore, key: str, data: bytes, version: str) -> Any:  # noqa: ANN401
        faults.change()
        return real["replace"](self, key, data, version)

    def delete(self: LocalStore, keys: Any) -> None:  # noqa: ANN401
        for key in keys:
            if (faults.out / key).exists():
                faults.change()
                _check_removal(faults, key)
            real["delete"](self, [key])

    def listed(self: LocalStore, prefix: str = "") -> Iterator[ObjectInfo]:
        faults.n_listings += 1
        if faults.stale is not None and faults.n_listings == faults.stale_at:
            return iter([i for key, i in sorted(faults.stale.items()) if key.startswith(prefix)])
        return real["list"](self, prefix)

    patched: dict[str, Callable[..., Any]] = {
        "create": create, "write_new": write_new, "replace": replace, "delete": delete,
        "list": listed,
    }  # fmt: skip
    with patch.multiple(LocalStore, **patched):
        yield


def _check_removal(faults: Faults, key: str) -> None:
    if key.startswith(faults.exempt):
        return
    snapshots = existing_snapshots(faults.out)
    if faults.keeps_lost:
        moved = {k: json.loads(v) for k, v in faults.moved.items() if is_snapshot(k)}
        snapshots |= {number: moved[k] for number, k in enumerate(moved, 10**6)}
        if is_snapshot(key):
            raise BrokenPromiseError(f"a run removes {key}")
    if key in named_by(snapshots):
        raise BrokenPromiseError(f"{key} is removed, and a snapshot names it")


@dataclass
class State:
    """A state of an output root and its surroundings."""

    out: Path
    sources: set[int]
    moved: dict[str, bytes] = field(default_factory=dict)
    """Objects out of reach, by name."""
    earlier: dict[str, bytes] = field(default_factory=dict)
    """Older contents of objects at fixed paths."""
    listing: dict[str, ObjectInfo] = field(default_factory=dict)
    """A listing of an earlier state."""
    removed: set[int] = field(default_factory=set)
    steps: list[str] = field(default_factory=list)

    def copied(self, out: Path) -> "State":
        shutil.copytree(self.out, out, symlinks=True)
        state = deepcopy(self)
        state.out = out
        return state

    def has_newest(self, without: Sequence[str]) -> bool:
        """Returns whether anything still names the newest commit, so that it can be noticed.

        These are `summary.json`, the newest snapshot, and the manifest of the shards.
        """
        names = [*objects(self.out), *self.moved]
        newest = max((name for name in names if is_snapshot(name)), default="")
        summary = find_json(open_store(str(self.out)), "summary.json") or {}
        is_in_summary = newest == f"snapshots/{summary.get('snapshot', 0):08d}.json"
        summaries = [json.loads(self.moved[newest])] if newest in self.moved else []
        summaries += [read_json(open_store(str(self.out)), newest)] if not summaries else []
        manifest = self.out / "shards" / "manifest.json"
        own = self.out / summaries[0]["indexes"]["manifest"]
        is_in_manifest = (
            manifest.is_file()
            and own.name[9:25] == (hashlib.sha256(manifest.read_bytes()).hexdigest()[:16])
        )
        return (
            (is_in_summary and "summary.json" not in without)
            or ((self.out / newest).is_file() and newest not in without)
            or (is_in_manifest and "shards/manifest.json" not in without)
        )

    def kept(self) -> dict[str, str]:
        """Kept clips of the newest commit, with their sources."""
        snapshots = existing_snapshots(self.out)
        store = open_store(str(self.out))
        summary = find_json(store, "summary.json") or {}
        if summary.get("snapshot", 0) > max(snapshots, default=0):
            snapshots[summary["snapshot"]] = summary
        if not snapshots:
            return {}
        rows: list[dict[str, str]] = []
        for part in snapshots[max(snapshots)]["tables"]["clips"]:
            if store.exists(part):
                table = read_parquet(store, part, ["clip_id", "source_id", "decision"])
                rows += table.to_pylist()
        return {r["clip_id"]: r["source_id"] for r in rows if r["decision"] == "kept"}

    def rejected(self) -> set[str]:
        """Clips that the recipe rejects in the newest snapshot."""
        snapshots, store = existing_snapshots(self.out), open_store(str(self.out))
        parts = snapshots[max(snapshots)]["tables"]["clips"]
        tables = [read_parquet(store, part, ["clip_id", "reason"]) for part in parts]
        return {
            row["clip_id"] for t in tables for row in t.to_pylist() if row["reason"] == _OF_RECIPE
        }


def objects(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())


Step = Callable[[State, random.Random, Faults], str]
"""Changes a state, and returns the words of the step."""


def _run(state: State, draw: random.Random, faults: Faults) -> str:
    named = [n for n in sorted(state.sources | {1, 2, 3}) if draw.random() < 0.8] or [1]
    recipe, replace = draw.choice((0, 0, 1, 2)), draw.random() < 0.1
    words = f"run {named} recipe={recipe} replace={replace}"
    before = state.kept()
    error = _tried(state, faults, lambda o: o.run(named, recipe=recipe, replace=replace))
    if replace:
        return f"{words}: {error}"
    gone = before.keys() - state.kept().keys()
    gone -= {key for key in gone if before[key] in map(source_id, state.removed)}
    if gone and (silent := gone - state.rejected()):
        raise BrokenPromiseError(f"{words}: clips are gone without --replace: {sorted(silent)}")
    return f"{words}: {error}"


def _grow(state: State, draw: random.Random, faults: Faults) -> str:
    number = max(state.sources | state.removed, default=0) + 1
    state.sources.add(number)
    error = _tried(state, faults, lambda o: o.run([number]))
    return f"grow {number}: {error}"


def _lose_source(state: State, draw: random.Random, faults: Faults) -> str:
    if not state.sources:
        return "no source"
    number = draw.choice(sorted(state.sources))
    state.sources.discard(number)
    return f"source {number} is gone"


def _clean(state: State, draw: random.Random, faults: Faults) -> str:
    keep = draw.choice((1, 1, 2, 3))
    faults.keeps_lost = False
    return f"clean keep={keep}: {_tried(state, faults, lambda o: o.clean(keep))}"


def _remove(state: State, draw: random.Random, faults: Faults) -> str:
    number = draw.choice((1, 2, 3, 4))
    # Candidates that cannot be read may hold removed footage; later runs make them again.
    faults.keeps_lost, faults.exempt = False, "candidates/"
    error = _tried(state, faults, lambda o: o.remove(number))
    if error in ("done", "killed"):
        state.removed.add(number)
    return f"remove {number}: {error}"


def _finish(state: State, draw: random.Random, faults: Faults) -> str:
    faults.keeps_lost, faults.exempt = False, "candidates/"
    return f"remove --finish: {_tried(state, faults, SmallOutput.finish_removal)}"


def _lose(state: State, draw: random.Random, faults: Faults) -> str:
    names = objects(state.out)
    if not names:
        return "nothing to lose"
    if draw.random() < 0.3:
        folder = draw.choice(("shards", "snapshots", "clips", "candidates", "sources"))
        lost = [name for name in names if name.startswith(f"{folder}/")]
    else:
        # Tars and snapshots as often as the many small files.
        kinds: dict[str, list[str]] = {}
        for name in names:
            kinds.setdefault(_kind(name), []).append(name)
        lost = [draw.choice(kinds[draw.choice(sorted(kinds))])]
    if not state.has_newest(without=lost):
        return "nothing more is lost"
    for name in lost:
        path = state.out / name
        state.moved[name] = path.read_bytes()
        path.unlink()
    return f"lost {lost[:1]} and {len(lost) - 1} more"


def _kind(name: str) -> str:
    if name.endswith(".tar") or is_snapshot(name):
        return name.rpartition(".")[2]
    return name.split("/")[0]


def _restore(state: State, draw: random.Random, faults: Faults) -> str:
    names = sorted(state.moved)
    some = names if draw.random() < 0.6 else names[: len(names) // 2]
    restore(state, some)
    return f"restored {len(some)}"


def restore(state: State, names: Sequence[str]) -> None:
    for name in names:
        path = state.out / name
        data = state.moved.pop(name)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def _older(state: State, draw: random.Random, faults: Faults) -> str:
    names = [name for name in sorted(state.earlier) if (state.out / name).exists()]
    if not names:
        return "no older copy"
    some = names if draw.random() < 0.3 else [draw.choice(names)]
    if not state.has_newest(without=some):
        return "no older copy of all that names the newest commit"
    for name in some:
        (state.out / name).write_bytes(state.earlier[name])
    return f"older copies of {some[:1]} and {len(some) - 1} more"


STEPS: list[tuple[Step, int]] = [
    (_run, 6), (_grow, 3), (_lose_source, 2), (_clean, 2), (_remove, 1), (_finish, 1), (_lose, 5),
    (_restore, 3), (_older, 2),
]  # fmt: skip


def _tried(state: State, faults: Faults, work: Callable[[SmallOutput], object]) -> str:
    """Runs a command; returns how it ended."""
    output = SmallOutput(state.out, state.sources)
    try:
        with faulty(faults):
            work(output)
    except Killed:
        return "killed"
    except CuratorError as error:
        return f"{type(error).__name__} {str(error)[:300]}"
    return "done"


def _remember(state: State, draw: random.Random) -> None:
    """Keeps older contents and an older listing for later steps."""
    if draw.random() < 0.5:
        state.listing = {info.key: info for info in open_store(str(state.out)).list()}
    for name in objects(state.out):
        if has_fixed_path(name) and draw.random() < 0.3:
            state.earlier[name] = (state.out / name).read_bytes()


def step(state: State, draw: random.Random) -> None:
    """Does one random step, and checks what has to hold after it."""
    _remember(state, draw)
    act = draw.choices([s for s, _ in STEPS], [weight for _, weight in STEPS])[0]
    faults = Faults(out=state.out, moved=state.moved)
    if draw.random() < 0.25:
        faults.kill_after = int(60 * draw.random() ** 2)
    elif draw.random() < 0.3:
        faults.stale, faults.stale_at = state.listing, draw.randint(1, 25)
    fault = ""
    if faults.kill_after is not None:
        fault = f" (kill after {faults.kill_after})"
    elif faults.stale is not None:
        fault = f" (stale listing {faults.stale_at} of {len(faults.stale)})"
    state.steps.append(f"{act.__name__}{fault} …")
    state.steps[-1] = act(state, draw, faults) + fault
    _check_advice(state)


def _check_advice(state: State) -> None:
    """Checks that `verify` gives up nothing that a snapshot names."""
    try:
        findings = verify(str(state.out), frames="none").findings
    except CuratorError:
        return
    advised = [
        f
        for f in findings
        if (f.code == "unnamed" or re.search(r"\bdelete\b", f.remedy))
        and not f.remedy.startswith("keep the object")
    ]
    if not advised:
        return
    moved = {k: json.loads(v) for k, v in state.moved.items() if is_snapshot(k)}
    snapshots = existing_snapshots(state.out)
    snapshots |= {number: moved[k] for number, k in enumerate(moved, 10**6)}
    named = named_by(snapshots)
    for finding in advised:
        key = finding.path.partition("#")[0].removeprefix(f"{state.out}/")
        if key in named:
            raise BrokenPromiseError(f"verify advises to delete {key}: {finding}")


def _check_end(state: State) -> None:
    """Checks that all objects that snapshots name exist, after all that was lost came back."""
    restore(state, sorted(state.moved))
    # `clean` gave up snapshots that were away, and may have come back.
    first = (find_json(open_store(str(state.out)), "summary.json") or {}).get("head", {})
    snapshots = existing_snapshots(state.out)
    names = named_by({n: s for n, s in snapshots.items() if n >= first.get("first", 1)})
    missing = [name for name in sorted(names) if not (state.out / name).exists()]
    if missing:
        raise BrokenPromiseError(f"gone although snapshots name them: {missing}")


def begun(folder: Path) -> State:
    """Returns an output with two snapshots."""
    state = State(out=folder / "out", sources={1, 2, 3})
    output = SmallOutput(state.out, state.sources)
    output.run([1, 2])
    state.earlier = {
        name: (state.out / name).read_bytes() for name in objects(state.out) if has_fixed_path(name)
    }
    state.listing = {info.key: info for info in open_store(str(state.out)).list()}
    output.run([3], recipe=1)
    return state


def explore(
    folder: Path, seed: int, branches: Sequence[int], n_most: int | None = None
) -> tuple[int, list[str]]:
    """Tries a tree of histories; returns their number, and the violations with their steps."""
    violations: list[str] = []
    n_histories = 0

    def below(state: State, path: tuple[int, ...]) -> None:
        nonlocal n_histories
        depth = len(path)
        if depth == len(branches):
            n_histories += 1
            with reported(state, path):
                _check_end(state)
            return
        for number in range(branches[depth]):
            child_path = (*path, number)
            child = state.copied(folder / "-".join(map(str, child_path)))
            before = len(violations)
            with reported(child, child_path):
                step(child, random.Random(f"{seed} {child_path}"))
            if len(violations) == before:
                below(child, child_path)
            shutil.rmtree(child.out)

    @contextmanager
    def reported(state: State, path: tuple[int, ...]) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - each is a violation
            lines = [*state.steps, f"{type(error).__name__}: {error}"]
            violations.append(f"seed {seed}, path {path}:\n  " + "\n  ".join(lines))

    below(begun(folder), ())
    return n_histories, violations
