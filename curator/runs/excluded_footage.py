"""What a run leaves out because `curate remove` took it out of OUT before."""

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curator.records.clips import Reason
from curator.stages.propose.stage import ProposedUnit
from curator.storage import Store
from curator.tables.clip_rows import ClipRows, reject
from curator.tables.frame_hashes import frame_regions, overlapping_regions
from curator.tables.removal_records import Removals
from curator.tables.source_table import SourceTable

EXCLUDED_CLIPS = "clips_of_removed_footage"
"""Count in `work` of the summary: new candidates that were dropped."""


def exclude_removed_sources(sources: SourceTable, removals: Removals) -> None:
    """Fails sources whose content was removed, by the ids that they have after the scan."""
    if not removals.sources:
        return
    failed = {"source_id": None, "outcome": "failed"}
    refused = filter(None, itertools.starmap(removals.refusal, sources.ids()))
    sources.revise([{"uri": source.uri} | failed | source.columns() for source in refused])


def without_removed(
    store: Store, unit: ProposedUnit, removals: Removals
) -> tuple[ProposedUnit, int]:
    """Returns candidates without those that share more than a frame with removed footage.

    That is a removed clip of the same source, or the same decoded frames in any other file.

    Returns:
        What is left, and the number of clips that were dropped.
    """
    if not removals:
        return unit, 0
    is_gone = removals.rows(unit.clips)
    regions = frame_regions(store, removals.frames, sorted(set(unit.track_parts.values())))
    is_gone |= overlapping_regions(unit.clips, regions)
    if not is_gone.any():
        return unit, 0
    gone = unit.clips.filter(pa.array(is_gone))
    ids = gone["clip_id"].combine_chunks()
    kept = {
        name: table.filter(pc.invert(pc.is_in(table["clip_id"], value_set=ids)))
        for name in ("clips", "vectors", "clip_vectors", "footage", "pictures")
        for table in (getattr(unit, name),)
    }
    lost = Counter(gone["source_id"].to_pylist())
    return replace(unit, sources=fewer(unit.sources, "n_clips", lost), **kept), gone.num_rows


def reject_removed(clips: ClipRows, removals: Removals) -> None:
    """Rejects clips whose MP4 has the bytes of a removed one.

    Frames exclude most of them before they are cut; records of older versions have none.
    """
    if not removals.mp4:
        return
    is_listed = pc.is_in(
        clips.column("mp4_sha256"), value_set=pa.array(sorted(removals.mp4), pa.string())
    )
    for number in np.flatnonzero(is_listed.to_numpy(zero_copy_only=False)).tolist():
        if clips[number].decision == "kept":
            reject(clips[number], Reason.REMOVED, detail="`curate remove` took this MP4 out of OUT")


def fewer(sources: pa.Table, column: str, lost: Mapping[str, int]) -> pa.Table:
    """Returns rows of `sources` with clips taken off where they were counted."""
    rows = zip(sources["source_id"].to_pylist(), sources[column].to_pylist(), strict=True)
    now = [max(0, count - lost.get(name, 0)) if count else count for name, count in rows]
    at = sources.schema.get_field_index(column)
    return sources.set_column(at, sources.schema.field(at), pa.array(now, pa.int32()))
