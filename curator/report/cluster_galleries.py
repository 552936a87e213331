"""Galleries of the largest clusters: how many clips they have, and those next to the centre."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from curator.report.contact_sheets import clips_by_id
from curator.tables.clip_rows import ClipColumns, ClipRow


class Gallery(NamedTuple):
    """A cluster: its number, clips kept and dropped, its words, and the clips shown."""

    cluster: int
    n_kept: int
    n_dropped: int
    words: str
    clips: list[ClipRow]


def galleries_of(summary: Mapping[str, Any], clips: ClipColumns) -> list[Gallery]:
    """Returns the clusters of which the summary lists the nearest clips, the largest first."""
    listed = listed_clusters(summary)
    if not listed:
        return []
    names = ["cluster", "decision"]
    counts: Counter[tuple[int | None, str]] = Counter()
    for block in clips.blocks(names):
        for row in block.group_by(names).aggregate([([], "count_all")]).to_pylist():
            counts[row["cluster"], row["decision"]] += row["count_all"]
    by_id = clips_by_id(clips, [name for entry in listed for name in entry["nearest"]])
    return [
        Gallery(
            cluster=entry["cluster"],
            n_kept=counts[entry["cluster"], "kept"],
            n_dropped=counts[entry["cluster"], "rejected"],
            words=", ".join(entry.get("words", ())),
            clips=[by_id[name] for name in entry["nearest"] if name in by_id],
        )
        for entry in listed
    ]


def listed_clusters(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the clusters of a summary with their nearest clips; none of older versions."""
    clusters = (summary.get("judged") or {}).get("clusters") or ()
    return [entry for entry in clusters if entry.get("nearest")]
