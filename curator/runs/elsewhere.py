"""Clips that stay whatever a run decides: of earlier generations, of other outputs, and removed.

A clip whose footage one of them has is rejected.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import UsageError
from curator.fingerprints import fingerprint
from curator.recipe import Recipe
from curator.records.clips import Reason
from curator.stage import Elsewhere
from curator.stages.propose.candidate_store import stored_candidates
from curator.storage import Store, open_store
from curator.tables.checksums import read_parquet
from curator.tables.footage_store import FootageStore, read_removed_footage
from curator.tables.output_format import read_current_summary
from curator.tables.removal_records import Removals


def elsewhere_of(
    store: Store,
    recipe: Recipe,
    removals: Removals,
    before: Mapping[str, Any] | None = None,
) -> list[Elsewhere]:
    """Returns all clips elsewhere.

    Args:
        store: Output root.
        recipe: Settings.
        removals: Of the output root.
        before: Summary of the generations before; None where all clips are decided about.

    Raises:
        UsageError: `dedup.against` names an output that cannot be used.
    """
    return [
        *removed_footage(store, removals),
        *against(recipe.dedup.against, store),
        *(generations_before(store, before) if before is not None else ()),
    ]


def generations_before(store: Store, summary: Mapping[str, Any]) -> Iterator[Elsewhere]:
    """Yields the clips that earlier generations keep."""
    names = stored_candidates(store, summary, "footage")
    yield Elsewhere(
        key="earlier generations",
        reason=Reason.DUPLICATE,
        footage=FootageStore.of(store, names),
        clip_ids=kept_ids(store, summary),
    )


def against(outs: Sequence[str], own: Store) -> Iterator[Elsewhere]:
    """Yields the clips that other outputs keep.

    Raises:
        UsageError: One cannot be used, as `other_output` says.
    """
    for out in outs:
        store, summary, names = other_output(out, own)
        yield Elsewhere(
            key=fingerprint("against", store.uri, names, summary["tables"]["clips"]),
            reason=Reason.DUPLICATE_ELSEWHERE,
            footage=FootageStore.of(store, names),
            clip_ids=kept_ids(store, summary),
            name=out,
        )


def other_output(out: str, own: Store) -> tuple[Store, Mapping[str, Any], list[str]]:
    """Opens another output; returns its newest summary, and the objects of its footage.

    Raises:
        UsageError: It is this output, has no finished run, or has nothing to compare clips by.
    """
    store = open_store(out)
    if os.path.realpath(store.uri) == os.path.realpath(own.uri):
        raise UsageError(f"--against {out}: that is this run's own output; name others")
    summary = read_current_summary(store, None)
    names = sorted(stored_candidates(store, summary, "footage"))
    lost = [name for name in names if not store.exists(name)]
    if summary["counts"]["kept"] and (lost or not names):
        why = f"{lost[0]} is missing" if lost else "an older version wrote it"
        raise UsageError(
            f"--against {out}: {why}, so there is nothing to compare clips by; run its recipe "
            "again with this version, or leave it out"
        )
    return store, summary, names


def removed_footage(store: Store, removals: Removals) -> Iterator[Elsewhere]:
    """Yields footage that `curate remove` took out, where its records keep what to know it by."""
    removed = read_removed_footage(store, removals.footage)
    if removed is not None:
        yield Elsewhere(key=removed.key, reason=Reason.REMOVED_BEFORE, footage=removed)


def kept_ids(store: Store, summary: Mapping[str, Any]) -> pa.Array:
    """Returns the ids of the clips that a snapshot keeps."""
    kept = [pa.array([], pa.string())]
    for name in summary["tables"]["clips"]:
        block = read_parquet(store, name, ["clip_id", "decision"])
        own = block["clip_id"].filter(pc.equal(block["decision"], "kept"))
        kept.append(own.combine_chunks())
    return pa.concat_arrays(kept)
