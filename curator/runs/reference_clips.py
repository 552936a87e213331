"""Finds footage that a run must not keep: that of reference clips, and removed footage.

Reference clips are clips of earlier generations, clips of other outputs, and removed clips. A run
rejects a clip if a reference clip has the same footage.
"""

import itertools
import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import UsageError
from curator.fingerprints import fingerprint
from curator.recipe import Recipe
from curator.records.clips import Reason
from curator.stage import ReferenceClips
from curator.stages.analyze.sampling_grid import steps_of
from curator.storage import Store, check_listable, open_store
from curator.storage.metadata_columns import GROUP
from curator.storage.object_service import scheme_of
from curator.tables.candidate_store import stored_candidates
from curator.tables.checksums import read_parquet
from curator.tables.clip_groups import group_texts
from curator.tables.footage_store import FootageStore, read_removed_footage
from curator.tables.output_format import read_current_summary
from curator.tables.removal_records import Removals
from curator.tables.source_table import SourceTable

EXCLUDED_CLIPS = "clips_of_removed_footage"
"""Key of `work` in the summary: number of new candidates that were dropped."""


# benchmarks/results/removed.md: recognition was measured with these distances of pictures.
_LONGEST_PICTURE_S, _LONGEST_VECTOR_S = 1.0, 2.0
_SLACK = 1e-6


def check_recognition(recipe: Recipe, removals: Removals) -> None:
    """Raises `UsageError` if a run of this recipe could not recognise removed footage.

    Recognition is no setting: it needs vectors and pictures of each clip that may be kept.
    """
    if not removals.footage:
        return
    analyze = recipe.analyze
    vector_s, picture_s = (
        steps_of(analyze, seconds) / analyze.samples_per_s
        for seconds in (analyze.scene_every_s, analyze.thumbnail_every / analyze.samples_per_s)
    )
    why = None
    if not analyze.scenes:
        why = "analyze.scenes is false, so clips have no vectors", "analyze.scenes=true"
    elif analyze.samples_per_s * _LONGEST_PICTURE_S < 1 - _SLACK:
        said = f"analyze.samples_per_s is {analyze.samples_per_s:g}"
        why = (
            f"{said}, so clips have too few pictures",
            "analyze.samples_per_s=1 with analyze.thumbnail_every=1",
        )
    elif picture_s > _LONGEST_PICTURE_S + _SLACK:
        every = int(_LONGEST_PICTURE_S * analyze.samples_per_s + _SLACK)
        said = f"analyze.thumbnail_every is {analyze.thumbnail_every}"
        said += f", so clips have a picture per {picture_s:.3g} s"
        why = f"{said}, not per {_LONGEST_PICTURE_S:g} s", f"analyze.thumbnail_every={every}"
    elif vector_s > _LONGEST_VECTOR_S + _SLACK:
        said = f"analyze.scene_every_s is {analyze.scene_every_s:g}"
        said += f", so clips have a vector per {vector_s:.3g} s"
        why = f"{said}, not per {_LONGEST_VECTOR_S:g} s", "analyze.scene_every_s=2"
    if why is not None:
        raise UsageError(
            "footage was removed from this OUT, and a run must recognise copies of it: "
            f"{why[0]}; add --set {why[1]}, or use another OUT"
        )


def reference_clips_of(
    store: Store, recipe: Recipe, removals: Removals, before: Mapping[str, Any] | None = None
) -> list[ReferenceClips]:
    """Returns all reference clips.

    `before` is the summary of earlier generations; None if the run decides about all clips.

    Raises:
        UsageError: `dedup.against` names an output that cannot be used.
    """
    places: list[ReferenceClips] = []
    removed = read_removed_footage(store, removals.footage)
    if removed is not None:
        places.append(
            ReferenceClips(key=removed.key, reason=Reason.REMOVED_BEFORE, footage=removed)
        )
    for out in recipe.dedup.against:
        other, summary, names = other_output(out, store)
        place = ReferenceClips(
            key=fingerprint("against", other.uri, names, summary["tables"]["clips"]),
            reason=Reason.DUPLICATE_ELSEWHERE,
            footage=FootageStore.of(other, names),
            clip_ids=_kept(other, summary)["clip_id"].combine_chunks(),
            name=out,
        )
        places.append(place)
    if before is not None:
        kept = _kept(store, before)
        place = ReferenceClips(
            key="earlier generations",
            reason=Reason.DUPLICATE,
            footage=FootageStore.of(store, stored_candidates(before, "footage")),
            clip_ids=kept["clip_id"].combine_chunks(),
            groups=group_texts(kept),
        )
        places.append(place)
    return places


def other_output(out: str, own: Store) -> tuple[Store, Mapping[str, Any], list[str]]:
    """Opens another output; returns its store, its newest summary, and the names of its footage.

    Raises:
        UsageError: The output is this run's own, has no finished run, or has no stored footage.
    """
    # Of a missing bucket, the summary would be missing, which looks like damage.
    store = open_store(out) if scheme_of(out) is None else check_listable(out)
    if os.path.realpath(store.uri) == os.path.realpath(own.uri):
        raise UsageError(f"--against {out} is this run's own output; name another output")
    summary = read_current_summary(store, None)
    names = sorted(stored_candidates(summary, "footage"))
    lost = [name for name in names if not store.exists(name)]
    if summary["counts"]["kept"] and (lost or not names):
        why = f"{lost[0]} is missing" if lost else "its snapshot names no footage"
        raise UsageError(
            f"--against {out}: {why}, so this run has no footage to compare clips with; run "
            "`curate run` into this output again, or leave the output out"
        )
    return store, summary, names


def _kept(store: Store, summary: Mapping[str, Any]) -> pa.Table:
    """Returns `clip_id`, and the group if there is one, of the kept clips of an output."""
    kept = [pa.table({"clip_id": pa.array([], pa.string())})]
    for name in summary["tables"]["clips"]:
        block = read_parquet(store, name, ["clip_id", "decision"], optional=[GROUP])
        kept.append(block.filter(pc.equal(block["decision"], "kept")).drop_columns("decision"))
    return pa.concat_tables(kept, promote_options="permissive")


def exclude_removed_sources(sources: SourceTable, removals: Removals) -> None:
    """Marks sources with removed content as failed, by their ids after the scan."""
    if removals.sources:
        failed = {"source_id": None, "outcome": "failed"}
        refused = filter(None, itertools.starmap(removals.refusal, sources.ids()))
        sources.revise([{"uri": source.uri} | failed | source.columns() for source in refused])
