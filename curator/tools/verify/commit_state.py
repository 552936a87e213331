"""Opens an output root for checks: which commit its files at fixed paths belong to.

A commit adds its snapshot first, then updates the files at fixed paths, `summary.json` last, and
then removes what is not needed any more. So files at fixed paths of an earlier commit are either
those of a commit that did not finish, or older files that were copied over newer ones.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from curator.dataset.tar_reader import MANIFEST, NEXT_MANIFEST, ShardSet, open_shards
from curator.errors import CuratorError, StorageError, UsageError
from curator.storage import Store
from curator.tables.json_objects import opened_json
from curator.tables.out_layout import LEASE, REMOVED, SUMMARY, TABLES, listed_objects
from curator.tables.snapshot_store import (
    INDEXES,
    NUMBER,
    index_names,
    read_snapshot,
    snapshot_name,
    snapshot_numbers,
    with_fixed_paths,
)
from curator.tools.verify.findings import (
    ACCESS,
    COPIED,
    FINISH,
    FINISH_CLEAN,
    RERUN,
    FindingCode,
    Findings,
    refuses,
)
from curator.tools.verify.removed_check import check_records
from curator.tools.verify.root_state import (
    Root,
    SnapshotChain,
    read_activity,
    read_chain,
)


def open_root(
    store: Store, out: str, snapshot: int | None, findings: Findings
) -> tuple[Root, ShardSet]:
    """Opens the shards and reads the snapshots; adds a finding for each unfinished commit.

    Returns the root with the summary that fixed paths must agree with, and the set of shards that
    the indexes must agree with. Raises as `open_shards`.
    """
    shards = _opened(store, out, snapshot, findings)
    if not shards.prefix:
        chain = SnapshotChain(lost=("this folder has no snapshots",))
        root = Root(store=store, summary=None, chain=chain, activity=None)
        _add_next_manifest(root, shards, findings)
        return root, shards
    root = Root(store=store, summary=None, chain=SnapshotChain(), activity=read_activity(store))
    root.summary, problem = _summary(shards)
    _add_removals(root, findings)
    root.chain = read_chain(store, root.summary, findings, compares=not root.is_removing)
    _add_cleaning(root, findings)
    if root.activity is not None and not root.is_busy:
        words = f"it names {root.activity.words}; that run ended without finishing"
        _add(root, findings, LEASE, words, "no lease")
    if snapshot is None and not root.is_removing:
        shards = _of_newest(root, shards, findings)
        _compare_newest(root, shards, problem, findings)
    if snapshot is None:
        _add_next_manifest(root, shards, findings)
    return root, shards


def _add(
    root: Root, findings: Findings, name: str, words: str, expected: str, remedy: str = FINISH
) -> None:
    """Adds the finding that something is unfinished."""
    root.is_interrupted = True
    findings.add(FindingCode.INTERRUPTED, f"{root.store.uri}/{name}", words, expected, remedy)


def _opened(store: Store, out: str, snapshot: int | None, findings: Findings) -> ShardSet:
    """Opens the shards; without a manifest at its fixed path, those of the newest snapshot."""
    try:
        return open_shards(out, snapshot)
    except (UsageError, StorageError) as error:
        for number in reversed(snapshot_numbers(store)) if snapshot is None else ():
            with suppress(CuratorError):
                shards = _of_snapshot(out, number)
                if MANIFEST not in shards.sizes:
                    # The first commit replaces the empty set.
                    return replace(shards, manifest={"shards": []}, shards=(), following=shards)
                where, remedy = shards.uri(MANIFEST), ACCESS
                findings.add(FindingCode.UNREADABLE, where, str(error), "a manifest", remedy)
                return shards
        raise


def _of_snapshot(out: str, number: int) -> ShardSet:
    """Opens the shards of a snapshot as the set that fixed paths describe."""
    return replace(open_shards(out, number), snapshot=None, own_dataset=None)


def _summary(shards: ShardSet) -> tuple[dict[str, Any] | None, Exception | None]:
    """Reads the summary; returns None, and perhaps the error, if there is no readable summary."""
    if shards.snapshot is not None:
        return read_snapshot(shards.store, shards.snapshot), None
    try:
        entry = shards.store.find(SUMMARY)
        data = shards.store.read(SUMMARY) if entry is not None else None
        return (opened_json(data, SUMMARY), None) if data is not None else (None, None)
    except (CuratorError, ValueError) as error:
        return None, error


def _add_removals(root: Root, findings: Findings) -> None:
    """Checks the records of removals, which adds each unfinished removal."""
    try:
        unfinished = check_records(root.store, findings).removals().unfinished
    except StorageError as error:
        where, expected = f"{root.store.uri}/{REMOVED}", "readable records of removals"
        findings.add(FindingCode.UNREADABLE, where, str(error), expected, ACCESS)
        return
    root.is_removing = bool(unfinished)
    root.is_interrupted |= root.is_removing


def _add_cleaning(root: Root, findings: Findings) -> None:
    if root.chain.cleaned and not root.is_busy:
        first, last = min(root.chain.cleaned), max(root.chain.cleaned)
        words = f"`curate clean` began to remove the snapshots {first} to {last}, or they were "
        words += "copied back after it"
        _add(root, findings, snapshot_name(first), words, "no snapshot", FINISH_CLEAN)


def _add_next_manifest(root: Root, shards: ShardSet, findings: Findings) -> None:
    if shards.following is not None and NEXT_MANIFEST in shards.sizes:
        words = "the manifest of a commit that is under way or was interrupted"
        _add(root, findings, shards.key(NEXT_MANIFEST), words, "none")


def _of_newest(root: Root, shards: ShardSet, findings: Findings) -> ShardSet:
    """Compares the manifests with those of the summary's snapshot and of later snapshots.

    Returns the set of that snapshot instead of the set of an older or a damaged manifest.
    """
    own = {n: s[INDEXES]["manifest"] for n, s in root.chain.snapshots.items() if INDEXES in s}
    number = (root.summary or {}).get(NUMBER, root.chain.newest)
    current = {name for n, name in own.items() if n >= number}
    if root.summary is not None and INDEXES in root.summary:
        current.add(root.summary[INDEXES]["manifest"])
    is_of_newest = shards.manifest is not None
    for file in (NEXT_MANIFEST, MANIFEST) if current else ():
        is_used = shards.following if file == NEXT_MANIFEST else shards.manifest
        if is_used is None or file not in shards.sizes:
            continue
        name = _own_name(shards, file)
        if name is None or name in current:
            continue
        of = [f"that of snapshot {n}" for n, other in own.items() if other == name]
        words, expected = of[0] if of else "another manifest", f"that of snapshot {number}"
        findings.add(FindingCode.HASH, shards.uri(file), words, expected, RERUN)
        if file == NEXT_MANIFEST:
            shards = replace(shards, following=None)
        else:
            is_of_newest = False
    if is_of_newest or number not in own:
        return shards
    with suppress(CuratorError):
        other = _of_snapshot(root.store.uri, number)
        return replace(other, problem=shards.problem, following=shards.following)
    return shards


def _own_name(shards: ShardSet, file: str) -> str | None:
    """Returns the name that a manifest has in a snapshot; None if it cannot be read now."""
    try:
        return index_names(shards.store.read(shards.key(file)), b"")["manifest"]
    except CuratorError:
        return None


def _compare_newest(
    root: Root, shards: ShardSet, problem: Exception | None, findings: Findings
) -> None:
    """Compares `summary.json` with the newest snapshot.

    If the summary is lost or older than a finished commit, the snapshot takes its place.
    """
    newest, where = root.chain.newest, f"{root.store.uri}/{SUMMARY}"
    expected = "the summary of a finished run"
    remedy = COPIED.format(snapshot_name(newest)) if newest else RERUN
    if root.summary is None:
        is_first = newest <= 1 and problem is None
        if is_first and (shards.following is not None or MANIFEST not in shards.sizes):
            if newest:
                _add_commit(root, findings, f"{SUMMARY} is not written yet")
            return
        if problem is not None and refuses(problem):
            findings.add(FindingCode.UNREADABLE, where, str(problem), expected)
        else:
            words = f"it cannot be read ({problem})" if problem is not None else "missing"
            findings.add(FindingCode.MISSING, where, words, expected, remedy)
    elif newest <= root.summary.get(NUMBER, 0):
        return
    elif not _is_finished(root, shards):
        _add_commit(root, findings, f"{SUMMARY} is of snapshot {root.summary.get(NUMBER, 0)}")
        return
    else:
        words = f"the summary of snapshot {root.summary.get(NUMBER, 0)}"
        expected = f"that of snapshot {newest}, whose commit is finished"
        findings.add(FindingCode.HASH, where, words, expected, remedy)
    if newest:
        root.summary = with_fixed_paths(root.chain.snapshots[newest])


def _add_commit(root: Root, findings: Findings, words: str) -> None:
    newest = root.chain.newest
    words = f"this snapshot is committed, and {words}: its commit is under way or was interrupted"
    _add(root, findings, snapshot_name(newest), words, f"{SUMMARY} of snapshot {newest}")


def _is_finished(root: Root, shards: ShardSet) -> bool:
    """Returns whether the commit of the newest snapshot surely wrote `summary.json` once.

    It did if the shards have the snapshot's manifest and no next one, or if objects that only the
    older summary names are gone: a commit removes them after it has written the summary.
    """
    summary: Mapping[str, Any] = root.summary or {}
    snapshot = with_fixed_paths(root.chain.snapshots[root.chain.newest])
    old, new = (item.get(INDEXES, {}).get("manifest") for item in (summary, snapshot))
    is_last = old != new and shards.following is None and MANIFEST in shards.sizes
    if is_last and _own_name(shards, MANIFEST) == new:
        return True
    there = listed_objects(root.store, TABLES)
    parts = [
        {p for parts in s.get("tables", {}).values() for p in parts} for s in (summary, snapshot)
    ]
    return bool(parts[0] - parts[1] - there.keys())
