"""Renders search results as a table, as JSON, and as a page of playable clips."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.installation import install_extra
from curator.number_text import moment, plain
from curator.records.sources import Medium
from curator.tables.clip_rows import ClipRows
from curator.tables.disk_table import taken
from curator.tools.report.page_templates import render
from curator.tools.retrieval.clip_search import FoundClip, SharedFootage, TextMatch
from curator.tools.review.finished_run import Finished

PAGE_BYTES = 200_000_000
"""Most bytes of MP4s in a page; the page shows pictures of further clips."""
_MAX_SOURCE, _MAX_CAPTION = 40, 60


def as_table(clips: Sequence[FoundClip], by: str) -> str:
    """Returns the clips as a text table; `by` is the kind of the query."""
    if not clips:
        return "no clip was found"
    rows = [["", "clip", "score", "at", "source", "span", "shard", "caption"]]
    for clip in clips:
        source, caption = plain(clip.source_uri), plain(clip.caption or "")
        rows.append(
            [
                str(clip.rank),
                clip.clip_id if clip.decision == "kept" else f"{clip.clip_id} (rejected)",
                f"{clip.score:.3f}",
                "-" if clip.at_s is None else moment(clip.at_s),
                source if len(source) <= _MAX_SOURCE else f"…{source[1 - _MAX_SOURCE :]}",
                f"{moment(clip.start_s)} to {moment(clip.end_s)}",
                clip.shard or "-",
                caption if len(caption) <= _MAX_CAPTION else f"{caption[: _MAX_CAPTION - 1]}…",
            ]
        )
    if by == "video":
        rows[0].insert(3, "the same footage")
        for row, clip in zip(rows[1:], clips, strict=True):
            row.insert(3, shared_words(clip.shared))
    elif any(clip.words for clip in clips):
        rows[0].insert(3, "words")
        for row, clip in zip(rows[1:], clips, strict=True):
            row.insert(3, " ".join(clip.words) or "-")
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def match_words(match: TextMatch, *, is_chosen: bool = False) -> str:
    """Returns with what a text was compared; `is_chosen` leaves out what else is possible."""
    if match == "pictures":
        return "compared with the pictures, by CLIP"
    words = "compared with the words of captions, tags and names"
    if match == "captions":
        return f"{words}, and with the meaning of captions"
    needs = "" if is_chosen else f"; the meaning of captions needs: {install_extra('text')}"
    return words + needs


def shared_words(shared: SharedFootage | None) -> str:
    """Returns text about the part of the query video that a clip shows."""
    if shared is None:
        return "no, similar"
    words = f"{shared.overlap_s:.1f} s from {moment(shared.query_s)} of the video on"
    words += ", mirrored" if shared.mirrored else ""
    if abs(shared.speed - 1) > 0.01:
        words += f", {1 / shared.speed:.2f} times as fast as in the video"
    return words


def render_search(
    finished: Finished, results: Sequence[FoundClip], query: str, where: str | None
) -> str:
    """Renders the clips as one self-contained HTML document with players."""
    ids = pa.array([clip.clip_id for clip in results], pa.string())
    numbers = pc.indices_nonzero(pc.is_in(finished.clips["clip_id"], value_set=ids)).to_pylist()
    clips = {
        clip.clip_id: clip
        for clip in ClipRows(taken(finished.clips, numbers), finished.clips.schema)
    }
    return render(
        "search.html.j2",
        results=results,
        clips=clips,
        mp4s=_mp4s(finished, [clips[clip.clip_id] for clip in results]),
        thumbnails=finished.pictures(clips),
        query=query,
        where=where,
        uri=finished.store.uri,
        shared_words=shared_words,
        max_bytes=PAGE_BYTES,
    )


def _mp4s(finished: Finished, clips: Sequence[Any]) -> dict[str, str]:
    """Returns clip id -> MP4 in base64, for the first clips, of at most `PAGE_BYTES`."""
    files: dict[str, str] = {}
    left = PAGE_BYTES
    for clip in clips:
        if clip.shard is None or clip.mp4_offset is None or clip.medium == Medium.IMAGE:
            continue
        left -= clip.mp4_bytes
        if left < 0:
            break
        start = clip.mp4_offset
        mp4 = finished.store.read_range(clip.shard, start, start + clip.mp4_bytes)
        files[clip.clip_id] = b64encode(mp4).decode()
    return files
