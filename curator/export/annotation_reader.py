"""Reads annotations of clips from the tables under an output root."""

from typing import Any

import pyarrow as pa

from curator.errors import UsageError
from curator.stages.caption.config import CaptionConfig
from curator.stages.shard.tar_reader import ShardSet
from curator.tables.checksums import read_parquet
from curator.tables.output_format import read_summary
from curator.tables.parts import SUMMARY

COLUMNS = (
    "clip_id", "source_id", "window", "start_frame", "end_frame", "shown", "model", "prompt",
    "facts", "label", "questions", "judge", "candidates", "request_keys", "prompt_fingerprint",
    "judge_prompt_fingerprint", "clip_start_frame",
)  # fmt: skip


class AnnotationLookup:
    """Rows of `annotations` by clip, held in memory as columns.

    Raises:
        UsageError: The run has no table of annotations.
    """

    def __init__(self, shards: ShardSet) -> None:
        store = shards.store
        if not shards.prefix or not store.exists(SUMMARY):
            raise UsageError(
                f"{store.uri} has no summary.json; expected OUT of a finished `curate run`, whose "
                "tables say what was asked and answered"
            )
        summary = read_summary(store, shards.snapshot)
        parts = summary["tables"].get("annotations")
        if not parts:
            raise UsageError(
                f"{store.uri} has no annotations; `curate recaption {store.uri} --set "
                "caption.captioner=...` makes them"
            )
        tables = [read_parquet(store, part) for part in parts]
        missing = [name for name in COLUMNS if name not in tables[0].column_names]
        if missing:
            raise UsageError(
                f"{store.uri}: the table annotations has no {missing[0]}, because an older "
                f"version made it; `curate recaption {store.uri}` brings it up to date"
            )
        self._table = pa.concat_tables([table.select(COLUMNS) for table in tables])
        self._rows: dict[str, list[int]] = {}
        for row, clip_id in enumerate(self._table["clip_id"].to_pylist()):
            self._rows.setdefault(clip_id, []).append(row)
        self.config = CaptionConfig.model_validate(summary["recipe"]["caption"])

    def of(self, clip_id: str) -> list[dict[str, Any]]:
        """Returns a clip's rows, by window; empty for a clip that no model annotated."""
        rows = self._rows.get(clip_id, [])
        return self._table.take(rows).to_pylist() if rows else []


def frames_in_clip(row: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the position of a window in the written clip.

    Returns:
        `start_frame`, `end_frame` (half-open) and `shown`, without frames that a copy left out.
    """
    shift, n_frames = fields["source_start_frame"] - row["clip_start_frame"], fields["n_frames"]
    start, end = (min(max(row[n] - shift, 0), n_frames) for n in ("start_frame", "end_frame"))
    shown = [frame - shift for frame in row["shown"] if 0 <= frame - shift < n_frames]
    return {"start_frame": start, "end_frame": end, "shown": shown}


def provenance_of(row: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the provenance of a record of post-training data."""
    frames = frames_in_clip(row, fields)
    fps, start_s = float(fields["fps"]), float(fields["source_start_s"])
    return {
        "clip_id": row["clip_id"],
        "source_id": row["source_id"],
        "source_uri": fields["source_uri"],
        "source_start_s": round(start_s + frames["start_frame"] / fps, 6),
        "source_end_s": round(start_s + frames["end_frame"] / fps, 6),
        "window": row["window"],
        **frames,
        "fps": fps,
        **{name: row[name] for name in ("model", "prompt", "prompt_fingerprint")},
        **{name: row[name] for name in ("judge", "judge_prompt_fingerprint", "label")},
        "reply_keys": row["request_keys"],
    }
