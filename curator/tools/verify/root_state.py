"""Reads what is committed to an output root, and what may be about to be committed.

A check that takes time reads one state: `RootHead` changes with each commit, cleaning and removal.
`Root` answers which objects an existing snapshot names, and whether this can be proved.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from curator.dataset.tar_reader import objects_of
from curator.errors import CuratorError
from curator.storage import Store
from curator.tables.fenced_store import Digest
from curator.tables.json_objects import opened_json, read_json
from curator.tables.lease_holder import read_holder
from curator.tables.out_layout import (
    CONFIG,
    LEASE,
    MANIFEST,
    NEXT_MANIFEST,
    PROGRESS,
    REMOVED,
    SHARDS,
    SNAPSHOTS,
    SUMMARY,
    is_own,
)
from curator.tables.snapshot_store import (
    BEFORE,
    EARLIER,
    HEAD,
    INDEXES,
    NUMBER,
    archived,
    named_objects,
    snapshot_name,
    snapshot_numbers,
)
from curator.tools.verify.findings import COPIED, LOST, FindingCode, Findings, refuses

_HEAD = (SUMMARY, CONFIG, MANIFEST, NEXT_MANIFEST)
_SHARDS_ALONE = tuple(name.removeprefix(f"{SHARDS}/") for name in _HEAD[2:])


def head_of_root(store: Store) -> dict[str, str]:
    """Returns the versions of the objects that a commit, a cleaning or a removal changes."""
    versions = {}
    for name in (*_HEAD, *_SHARDS_ALONE):
        try:
            info = store.find(name)
            versions[name] = info.version if info is not None else ""
        except CuratorError as error:
            versions[name] = str(error)
    for prefix in (f"{SNAPSHOTS}/0", f"{REMOVED}/"):
        versions |= {info.key: info.version for info in store.list(prefix)}
    return versions


def is_gone(store: Store, name: str) -> bool:
    """Returns whether an object surely does not exist, although a listing had it."""
    try:
        return not store.exists(name)
    except CuratorError:
        return False


def parts_of(summary: Mapping[str, Any]) -> set[str]:
    """Returns the parts of all tables of a summary; none where it names tables in another form."""
    tables = summary.get("tables")
    lists = tables.values() if isinstance(tables, dict) else ()
    return {str(part) for parts in lists if isinstance(parts, list) for part in parts}


class Activity(NamedTuple):
    """What `lease.json` says about a run."""

    words: str
    is_alive: bool
    """Whether the run may be working."""


def read_activity(store: Store) -> Activity | None:
    """Returns the run that `lease.json` names; None without this object."""
    try:
        entry = store.read_versioned(LEASE)
    except CuratorError as error:
        return Activity(f"an unknown run ({error})", is_alive=True)
    if entry is None:
        return None
    holder = read_holder(entry[1])
    if holder is None:
        return Activity("an unknown run, because it is damaged", is_alive=False)
    is_alive = not holder.is_dead() and holder.silent_s() < holder.expires_s
    return Activity(f"{holder.words}, last sign of life {holder.renewed}", is_alive=is_alive)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChain:
    """The snapshots of a root that can be read.

    Attributes:
        snapshots: Snapshots of the chain, by number.
        cleaned: Snapshots from before the first one that `curate clean` left.
        changed: Snapshots with other bytes than were committed, which may still name objects.
        lost: Why other snapshots cannot be read; empty if all can be read.
    """

    snapshots: Mapping[int, dict[str, Any]] = field(default_factory=dict)
    cleaned: Mapping[int, dict[str, Any]] = field(default_factory=dict)
    changed: Mapping[int, dict[str, Any]] = field(default_factory=dict)
    lost: tuple[str, ...] = ()

    @property
    def readable(self) -> dict[int, dict[str, Any]]:
        """All snapshots that can be read."""
        return {**self.snapshots, **self.cleaned, **self.changed}

    @property
    def newest(self) -> int:
        """Number of the newest readable snapshot; 0 for none."""
        return max(self.snapshots, default=0)


def read_chain(
    store: Store, summary: Mapping[str, Any] | None, findings: Findings, *, compares: bool = True
) -> SnapshotChain:
    """Reads all snapshots from the newest, and compares each with the hash in its successor.

    With `compares` False, as while a removal writes snapshots again, accepts other hashes.
    """
    numbers = snapshot_numbers(store)
    summary = summary or {}
    head = summary.get(HEAD)
    links = {summary[NUMBER]: head["sha256"]} if head is not None else {}
    first = head["first"] if head is not None else min(numbers, default=1)
    snapshots: dict[int, dict[str, Any]] = {}
    changed: dict[int, dict[str, Any]] = {}
    lost = []
    for number in range(max([*numbers, *links], default=0), min([first, *numbers]) - 1, -1):
        name = snapshot_name(number)
        where, remedy = f"{store.uri}/{name}", LOST
        if number in links and number == summary.get(NUMBER):
            remedy = COPIED.format(SUMMARY)
        if number not in numbers:
            if number >= first:
                findings.add(FindingCode.MISSING, where, "missing", "a snapshot", remedy)
                lost.append(f"{name} is missing")
            continue
        try:
            data = store.read(name)
            snapshots[number] = opened_json(data, name)
        except (CuratorError, ValueError) as error:
            lost.append(f"{name} cannot be read")
            if isinstance(error, CuratorError) and refuses(error):
                findings.add(FindingCode.UNREADABLE, where, str(error), "a snapshot")
                continue
            words = f"it cannot be read ({error})"
            findings.add(FindingCode.HASH, where, words, links.get(number, "a snapshot"), remedy)
            continue
        sha256 = Digest.of(data).sha256
        if compares and links.get(number, sha256) != sha256:
            findings.add(FindingCode.HASH, where, f"sha256 {sha256}", links[number], remedy)
            lost.append(f"{name} has other bytes")
            changed[number] = snapshots.pop(number)
        elif (link := snapshots[number].get(BEFORE)) is not None:
            links[link[NUMBER]] = link["sha256"]
    cleaned = {number: snapshots.pop(number) for number in [*snapshots] if number < first}
    return SnapshotChain(snapshots=snapshots, cleaned=cleaned, changed=changed, lost=tuple(lost))


@dataclass
class Root:
    """An output root, and what proves that one of its objects is not needed.

    Attributes:
        store: Output root.
        summary: The summary that fixed paths are compared with; None if it cannot be read.
        chain: Its snapshots.
        activity: The run that `lease.json` names.
        is_interrupted: Whether a commit, a cleaning or a removal did not finish.
        has_unfinished_run: Whether a run left objects that wait for their commit.
        is_removing: Whether a removal began, so that objects have other bytes than snapshots name.
    """

    store: Store
    summary: Mapping[str, Any] | None
    chain: SnapshotChain
    activity: Activity | None
    is_interrupted: bool = False
    is_removing: bool = False
    has_unfinished_run: bool = False

    @property
    def is_busy(self) -> bool:
        """Whether a run is alive: it may have objects that it has not committed yet."""
        return self.activity is not None and self.activity.is_alive

    @cached_property
    def _named(self) -> tuple[frozenset[str], str | None]:
        names = set((self.summary or {}).get(EARLIER, ()))
        why = next(iter(self.chain.lost), None)
        for number, snapshot in self.chain.readable.items():
            names |= {snapshot_name(number)} | named_objects(archived(snapshot))
            try:
                manifest = read_json(self.store, snapshot[INDEXES]["manifest"])
                for facts in manifest["shards"]:
                    names |= {f"{SHARDS}/{name}" for name in objects_of(facts)}
            except (CuratorError, KeyError, TypeError):
                why = why or f"the manifest of snapshot {number} cannot be read"
        return frozenset(names), why

    @property
    def named(self) -> frozenset[str]:
        """Objects that a readable snapshot names, or that the summary names for earlier ones."""
        return self._named[0]

    def remedy_of(self, name: str) -> str:
        """Returns the remedy for an object that no readable snapshot names.

        Nothing needs the object only if all snapshots can be read, no run is alive, and no run,
        commit or cleaning is unfinished. Even then, the remedy is the end of a run, which knows.
        """
        if not is_own(name):
            return (
                "`curate` did not write this object: move it out of the folder, because programs "
                "that read the folder take it for data"
            )
        if self.activity is not None:
            return (
                f"keep the object: {LEASE} names {self.activity.words}, which may be about to "
                "commit it. When that run has ended, or the same command has ended, verify again"
            )
        why = self._named[1]
        if self.summary is None and why is None:
            why = f"{SUMMARY} cannot be read"
        if why is not None:
            return f"keep the object: a snapshot may name it, because {why}"
        if self.is_interrupted or self.has_unfinished_run or self.store.exists(PROGRESS):
            return "keep the object: run the interrupted command again, which uses or removes it"
        return (
            "no snapshot names the object, and no run is unfinished: the next `curate run` removes "
            "it when it commits"
        )
