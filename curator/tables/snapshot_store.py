"""Snapshots of an output root: each commit adds one, and no run changes or removes an earlier one.

    snapshots/00000007.json                   the summary of a commit, created exclusively
    snapshots/<table>/part-<number>-<hash>    its tables
    snapshots/manifest-<hash>.json            its manifest of the shards
    snapshots/dataset-<hash>.parquet          its table of the samples
    snapshots/removed-<hash>.json             a copy of a record of `curate remove`

A snapshot names every object that reading it takes. The files at fixed paths (`summary.json`, the
folders of the tables, the indexes of the shards, the report) follow the newest snapshot and are
written after it: if a commit breaks off between the two, the next run writes them again.

Objects that only earlier snapshots name are listed in the newest one as `earlier`, so that a commit
knows what may not be removed without reading all of them.

`curate remove` alone writes over snapshots: footage that was taken out must not be in an old one.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from curator.errors import CuratorError, DamagedError, UnconditionalStoreError, UsageError
from curator.storage import Store
from curator.tables.checksums import read_json
from curator.tables.out_layout import SNAPSHOTS

NUMBER, MADE, EARLIER = "snapshot", "made", "earlier"
"""Fields of a summary."""
INDEXES = "indexes"
"""Field of a summary: names of the snapshot's own `manifest` and `dataset`."""
CANDIDATES = "candidates"
"""Field of a summary: objects of stored candidates, and of what was found by comparing them."""
REMOVALS = "removals"
"""Field of a summary: SHA-256 of each record of `curate remove`, by name, in order."""
_CONTENT = ("recipe", "tables", "fingerprints", CANDIDATES, INDEXES, REMOVALS)
"""Fields in which a commit differs from the one before; others tell how it was made."""
_NAME = re.compile(rf"{SNAPSHOTS}/(\d{{8}})\.json")


def snapshot_name(number: int) -> str:
    """Returns the object of a snapshot."""
    return f"{SNAPSHOTS}/{number:08d}.json"


def snapshot_numbers(store: Store) -> list[int]:
    """Returns the numbers of all snapshots, ascending."""
    found = (_NAME.fullmatch(info.key) for info in store.list(f"{SNAPSHOTS}/0"))
    return [int(match[1]) for match in found if match is not None]


def require_snapshots(store: Store) -> list[int]:
    """Returns the numbers of all snapshots, ascending.

    Raises:
        UsageError: No run has committed to this root.
    """
    numbers = snapshot_numbers(store)
    if not numbers:
        raise UsageError(f"{store.uri} has no snapshots; `curate run SOURCE... OUT` makes one")
    return numbers


def read_snapshot(store: Store, number: int) -> dict[str, Any]:
    """Reads the summary that a commit made.

    Raises:
        UsageError: No snapshot has that number.
        DamagedError: It is cut off or changed.
    """
    numbers = snapshot_numbers(store)
    if number not in numbers:
        there = ", ".join(map(str, numbers[-8:])) or "none"
        raise UsageError(
            f"{store.uri} has no snapshot {number}; there are {there}: `curate snapshots` lists "
            "them all"
        )
    return read_json(store, snapshot_name(number))


def archived(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a summary that names the snapshot's own parts of tables."""
    return _renamed(summary, _own)


def with_fixed_paths(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a summary that names the parts of tables in the folders of the tables."""
    return _renamed(summary, lambda part: part.removeprefix(f"{SNAPSHOTS}/"))


def _renamed(summary: Mapping[str, Any], name: Callable[[str], str]) -> dict[str, Any]:
    tables = {t: [name(part) for part in parts] for t, parts in summary.get("tables", {}).items()}
    return {**summary, "tables": tables}


def put_in_place(store: Store, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Copies parts that only `snapshots/` has to the tables' folders; returns their summary."""
    for part in itertools.chain.from_iterable(summary["tables"].values()):
        if part == _own(part):
            store.copy(part, part.removeprefix(f"{SNAPSHOTS}/"))
    return with_fixed_paths(summary)


def _own(part: str) -> str:
    return part if part.startswith(f"{SNAPSHOTS}/") else f"{SNAPSHOTS}/{part}"


def named_objects(summary: Mapping[str, Any]) -> set[str]:
    """Returns the objects that reading a snapshot takes, but itself."""
    names = {part for parts in summary.get("tables", {}).values() for part in parts}
    names.update(*(shard.get("versions", ()) for shard in summary.get("shards", ())))
    names.update(summary.get(CANDIDATES, ()), summary.get(INDEXES, {}).values())
    names.update(map(record_copy, summary.get(REMOVALS, {}).values()))
    return names


def record_copy(sha256: str) -> str:
    """Returns the name of the copy of a record of `curate remove`, by the hash of its bytes."""
    return f"{SNAPSHOTS}/removed-{sha256[:16]}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A summary with the number of its snapshot.

    Attributes:
        summary: With `snapshot`, `made` and `earlier`, and the fixed paths of the tables.
        is_new: Whether the snapshot must be added: the commit changes what readers see.
        named: Objects that this snapshot or an earlier one names, and those with fixed paths.
    """

    summary: dict[str, Any]
    is_new: bool
    named: frozenset[str]


def number_commit(
    store: Store,
    summary: Mapping[str, Any],
    previous: Mapping[str, Any],
    *,
    manifest: bytes,
    dataset: bytes,
) -> Committed:
    """Writes a snapshot's own indexes and parts of tables, and gives it its number.

    `previous` is the newest summary, which a version that made no snapshots may have written; empty
    without one.
    """
    numbers = snapshot_numbers(store)
    summary = {**summary, INDEXES: index_names(manifest, dataset)}
    own = archived(summary)
    named = named_objects(own)
    before = set(previous.get(EARLIER, ()))
    if numbers:
        before |= named_objects(archived(previous))
    earlier = before - named
    is_new = not (numbers and previous.get(NUMBER) in numbers and _is_same(summary, previous))
    if is_new:
        number, made = max(numbers, default=0) + 1, datetime.now(UTC).isoformat(timespec="seconds")
        for name, data in zip(summary[INDEXES].values(), (manifest, dataset), strict=True):
            if name not in before:
                store.write(name, data)
        parts = (part for parts in summary["tables"].values() for part in parts)
        for part in parts:
            if _own(part) not in before and part != _own(part):
                store.copy(part, _own(part))
    else:
        number, made = previous[NUMBER], previous[MADE]
    if earlier:
        folders = {name.split("/")[0] for name in earlier}
        there = {info.key for folder in folders for info in store.list(f"{folder}/")}
        earlier &= there
    facts = {NUMBER: number, MADE: made, EARLIER: sorted(earlier)}
    # A summary may be that of the snapshot before, with changes.
    numbered = {NUMBER: number, MADE: made} | summary | facts
    known = named_objects(numbered)
    return Committed(summary=numbered, is_new=is_new, named=frozenset(named | earlier | known))


def index_names(manifest: bytes, dataset: bytes) -> dict[str, str]:
    """Returns the names of a snapshot's own `manifest` and `dataset`, in this order."""
    return {
        "manifest": f"{SNAPSHOTS}/manifest-{_digest(manifest)}.json",
        "dataset": f"{SNAPSHOTS}/dataset-{_digest(dataset)}.parquet",
    }


def add_snapshot(store: Store, number: int, data: bytes) -> None:
    """Adds a snapshot: the commit of a run.

    Raises:
        CuratorError: Another run added one of that number.
    """
    name = snapshot_name(number)
    if not created(store, name, data):
        raise CuratorError(
            f"{store.uri}/{name} is there already: another run committed to this "
            "OUT meanwhile; nothing of it was changed"
        )


def created(store: Store, name: str, data: bytes) -> bool:
    """Creates an object; returns whether it did not exist before.

    In a store without conditional writes that is only as sure as a look before: whoever took the
    lease has logged a warning.
    """
    try:
        return store.write_new(name, data) is not None
    except UnconditionalStoreError:
        if store.exists(name):
            return False
        store.write(name, data)
        return True


def listed_snapshots(store: Store) -> Iterator[tuple[int, dict[str, Any] | DamagedError]]:
    """Yields number and summary of each snapshot, the newest first; of a damaged one the error."""
    for number in reversed(snapshot_numbers(store)):
        try:
            yield number, read_json(store, snapshot_name(number))
        except DamagedError as error:
            yield number, error


def _is_same(summary: Mapping[str, Any], previous: Mapping[str, Any]) -> bool:
    both = archived(summary), archived(previous)
    shards = [[shard["name"] for shard in one.get("shards", ())] for one in both]
    return shards[0] == shards[1] and all(
        both[0].get(field) == both[1].get(field) for field in _CONTENT
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
