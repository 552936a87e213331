"""Checks the chain of snapshots, and each object that one of them names."""

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import chain as chained
from typing import Any

from curator.errors import CuratorError, DamagedError
from curator.stages.shard.tar_reader import index_name, meta_name
from curator.storage import Store
from curator.tables.checksums import opened_json, read_json
from curator.tables.fenced_store import Digest
from curator.tables.out_layout import CONFIG, SHARDS, listed_objects
from curator.tables.parts import SUMMARY
from curator.tables.snapshot_store import (
    BEFORE,
    HEAD,
    INDEXES,
    NUMBER,
    OBJECTS,
    archived,
    copies_of,
    follows,
    named_objects,
    objects_of,
    own_objects,
    snapshot_name,
    snapshot_numbers,
)
from curator.verify.findings import RERUN, FindingCode, Findings

COPIED = "run `curate run` again with the same recipe: it writes it again from {}"
LOST = (
    "no whole copy is left: restore it from a backup, or remove old snapshots with `curate clean`"
)
_UPDATE = "none is needed: the next snapshot names them"
_Snapshots = dict[int, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expected:
    """An object that a snapshot names; None is unknown, as for what older versions wrote."""

    n_bytes: int | None = None
    sha256: str | None = None
    remedy: str = RERUN

    @classmethod
    def of(cls, digest: Digest, remedy: str) -> "_Expected":
        return cls(n_bytes=digest.n_bytes, sha256=digest.sha256, remedy=remedy)


def check_chain(
    store: Store,
    summary: Mapping[str, Any] | None,
    checked: frozenset[str],
    pool: Executor,
    findings: Findings,
    *,
    only: int | None = None,
) -> int:
    """Checks that snapshots are those that were committed, and that what they name is whole.

    Args:
        store: Output root.
        summary: `summary.json`; None where it cannot be read.
        checked: Objects that were checked already.
        pool: Where objects are hashed.
        findings: Takes what is wrong.
        only: Number of the one snapshot whose objects are checked; None for all.

    Returns:
        Bytes that were read.
    """
    snapshots = _snapshots(store, summary or {}, findings)
    newest = max(snapshots, default=0)
    expected: dict[str, _Expected] = {}
    copies: dict[str, str] = {}
    if only is None and summary is not None and snapshots:
        _check_fixed(store, summary, snapshots, findings)
        expected |= {n: _Expected.of(d, RERUN) for n, d in objects_of(summary).items()}
    for number in sorted(snapshots):
        if only not in (None, number):
            continue
        snapshot, remedy = snapshots[number], RERUN if number == newest else LOST
        if OBJECTS not in snapshot:
            where = f"{store.uri}/{snapshot_name(number)}"
            words = "a snapshot of an older version"
            findings.add(FindingCode.UNHASHED, where, words, "hashes of what it names", _UPDATE)
        expected |= dict.fromkeys(named_objects(archived(snapshot)), _Expected(remedy=remedy))
        expected |= {n: _Expected.of(d, remedy) for n, d in own_objects(snapshot).items()}
        expected |= _of_tars(store, snapshot, remedy)
        copies |= copies_of(snapshot)
    expected = {name: entry for name, entry in expected.items() if name not in checked}
    wrong, n_bytes = _compared(store, expected, pool)
    copies |= {fixed: own for own, fixed in copies.items()}
    for name, (code, words, wanted) in wrong.items():
        copy, remedy = copies.get(name), expected[name].remedy
        if copy is not None and copy not in wrong and _sha256(store, copy) == expected[name].sha256:
            remedy = COPIED.format(copy)
        findings.add(code, f"{store.uri}/{name}", words, wanted, remedy)
    return n_bytes


def _snapshots(store: Store, summary: Mapping[str, Any], findings: Findings) -> _Snapshots:
    """Reads the snapshots, the newest first, and compares each with the link that names it."""
    numbers = snapshot_numbers(store)
    head = summary.get(HEAD)
    links = {summary[NUMBER]: head["sha256"]} if head is not None else {}
    first = head["first"] if head is not None else min(numbers, default=1)
    last = max(chained(numbers, links), default=0)
    snapshots: _Snapshots = {}
    for number in range(last, min(chained([first], numbers)) - 1, -1):
        name = snapshot_name(number)
        where, remedy = f"{store.uri}/{name}", LOST
        if number in links and number == summary.get(NUMBER):
            remedy = COPIED.format(SUMMARY)
        if number not in numbers:
            if number >= first:
                findings.add(FindingCode.MISSING, where, "missing", "a snapshot", remedy)
            continue
        data = store.read(name)
        sha256 = Digest.of(data).sha256
        try:
            snapshots[number] = opened_json(data, name)
        except ValueError as error:
            words = f"it cannot be read ({error})"
            findings.add(FindingCode.HASH, where, words, links.get(number, "a snapshot"), remedy)
            continue
        if links.get(number, sha256) != sha256:
            findings.add(FindingCode.HASH, where, f"sha256 {sha256}", links[number], remedy)
        if (link := snapshots[number].get(BEFORE)) is not None:
            links[link[NUMBER]] = link["sha256"]
    return snapshots


def _check_fixed(
    store: Store, summary: Mapping[str, Any], snapshots: _Snapshots, findings: Findings
) -> None:
    """Compares `summary.json` and `config.json` with the snapshot that they follow."""
    snapshot = snapshots.get(summary.get(NUMBER, 0))
    if snapshot is not None and not follows(summary, snapshot):
        where = f"{store.uri}/{SUMMARY}"
        findings.add(FindingCode.HASH, where, "other contents", "those of its snapshot", RERUN)
    where = f"{store.uri}/{CONFIG}"
    # A commit that was broken off may have written that of its own snapshot.
    settings = [
        {name: snapshot[name] for name in ("recipe", "fingerprints") if name in snapshot}
        for snapshot in (summary, *(snapshots[n] for n in sorted(snapshots, reverse=True)[:1]))
    ]
    try:
        stored = read_json(store, CONFIG)
    except DamagedError as error:
        code = FindingCode.HASH if store.exists(CONFIG) else FindingCode.MISSING
        findings.add(code, where, error.why, "the settings of the newest snapshot", RERUN)
        return
    if stored not in settings:
        findings.add(
            FindingCode.HASH, where, "other settings", "those of the newest snapshot", RERUN
        )


def _of_tars(store: Store, snapshot: Mapping[str, Any], remedy: str) -> dict[str, _Expected]:
    """Returns the objects of the shards, as the manifest of a snapshot has them."""
    objects: dict[str, _Expected] = {}
    try:
        for facts in read_json(store, snapshot[INDEXES]["manifest"])["shards"]:
            name = f"{SHARDS}/{facts['name']}"
            objects[name] = _Expected(n_bytes=facts["bytes"], sha256=facts["sha256"], remedy=remedy)
            for other, field in (
                (index_name(name), "idx_sha256"),
                (meta_name(name), "meta_sha256"),
            ):
                objects[other] = _Expected(sha256=facts[field], remedy=remedy)
    except (DamagedError, KeyError, TypeError):
        # What is wrong with the manifest itself is found as with any object.
        return {}
    return objects


def _compared(
    store: Store, expected: Mapping[str, _Expected], pool: Executor
) -> tuple[dict[str, tuple[FindingCode, str, str]], int]:
    """Compares objects; returns what is wrong by name, and the bytes that were read."""
    listed = listed_objects(store, {name.split("/")[0] for name in expected})
    wrong: dict[str, tuple[FindingCode, str, str]] = {}
    read: dict[str, str] = {}
    for name, record in expected.items():
        if (info := listed.get(name)) is None:
            wrong[name] = FindingCode.MISSING, "missing", "an object"
        elif record.n_bytes is not None and info.bytes != record.n_bytes:
            wrong[name] = FindingCode.SIZE, f"{info.bytes} bytes", f"{record.n_bytes} bytes"
        elif record.sha256 is not None:
            read[name] = record.sha256
    digests = pool.map(lambda name: _sha256(store, name), read)
    for (name, sha256), digest in zip(read.items(), digests, strict=True):
        if isinstance(digest, CuratorError):
            wrong[name] = FindingCode.UNREADABLE, str(digest), "a readable object"
        elif digest != sha256:
            wrong[name] = FindingCode.HASH, f"sha256 {digest}", sha256
    return wrong, sum(listed[name].bytes for name in read)


def _sha256(store: Store, name: str) -> str | CuratorError:
    try:
        return Digest.of_object(store, name).sha256
    except CuratorError as error:
        return error
