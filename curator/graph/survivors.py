"""Decisions over all clips at once: selection, captions, and the samples of the shards."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.captions.config import CaptionConfig
from curator.models.perceptual import PERCEPTUAL_MODEL
from curator.models.transnet import transnet_model_name
from curator.recipe import Recipe
from curator.records import Reason
from curator.stages.caption import MEASURED_MODEL, measured_caption
from curator.stages.scores import SCORES
from curator.stages.select import SelectConfig, select
from curator.stages.shard import (
    Bucket,
    Location,
    Sample,
    ShardPlan,
    Split,
    TarLayout,
    TextVector,
    bucket_of,
    split_of,
)
from curator.tables import CROP_COLUMNS


def reject(clip: dict[str, Any], reason: Reason, *, detail: str | None = None) -> None:
    """Turns a kept clip into a rejected one."""
    clip |= {
        "decision": "rejected",
        "reason": str(reason),
        "reasons": [*clip["reasons"], str(reason)],
        "reason_detail": detail,
    }


def mark_selected(clips: Sequence[dict[str, Any]], config: SelectConfig) -> None:
    """Rejects clips beyond the share or the cap of their group.

    Args:
        clips: All clips; those that are kept so far are chosen from.
        config: Settings.
    """
    if not config.enabled:
        return
    kept = [clip for clip in clips if clip["decision"] == "kept"]
    for clip, chosen in zip(kept, select(kept, config), strict=True):
        if not chosen.is_taken:
            group = f"group {chosen.group}: " if config.by else ""
            detail = f"{group}{chosen.quota} of {chosen.n_group} taken, this is no. {chosen.rank}"
            reject(clip, Reason.NOT_SELECTED, detail=detail)
            clip |= {
                "reason_score": float(chosen.rank),
                "reason_threshold": float(chosen.quota),
            }


def measured_captions(clips: Sequence[dict[str, Any]], config: CaptionConfig) -> None:
    """Writes captions of the clips that are kept."""
    for clip in clips:
        if clip["decision"] == "kept" and config.enabled and not config.annotates:
            clip["caption"] = measured_caption(
                clip,
                width=clip["width"],
                height=clip["height"],
                duration_s=clip["end_s"] - clip["start_s"],
                fps=clip["fps"],
            )
            clip["caption_model"] = MEASURED_MODEL


class Vectors:
    """Vectors of clips by id.

    Args:
        table: Rows of `embeddings`, sorted by `clip_id`.
    """

    def __init__(self, table: pa.Table) -> None:
        ids = table["clip_id"].combine_chunks().to_pylist()
        self._row = {name: row for row, name in enumerate(ids)}
        column = table["vector"].combine_chunks()
        flat = column.flatten().to_numpy().astype(np.float32, copy=False)
        self._vectors_ND = flat.reshape(len(ids), -1) if ids else flat.reshape(0, 0)

    def get(self, clip_id: str) -> NDArray[np.float32] | None:
        """float32 [D], or None for a clip that could not be described."""
        row = self._row.get(clip_id)
        vector: NDArray[np.float32] | None = None if row is None else self._vectors_ND[row]
        return vector


def plan_samples(
    clips: Sequence[dict[str, Any]],
    locations: Mapping[str, Location],
    recipe: Recipe,
    vectors: Vectors | None = None,
    text_vectors: Callable[[str], TextVector | None] | None = None,
) -> Iterator[tuple[Bucket, Sample]]:
    """Samples of the clips that are kept, with their buckets.

    A clip that fits no bucket as it was written is rejected.
    """
    splits: dict[str, Split] = {}
    for clip in clips:
        if clip["decision"] != "kept":
            continue
        bucket = bucket_of(
            clip["width"],
            clip["height"],
            clip["n_frames"],
            recipe.shard,
            content_type=clip.get("content_type"),
        )
        if bucket is None:
            size = f"{clip['width']}x{clip['height']}, {clip['n_frames']} frames"
            reject(clip, Reason.NO_BUCKET, detail=f"{size} as written")
            continue
        clip["bucket"] = bucket.name
        source = clip["source_id"]
        if source not in splits:
            splits[source] = split_of(source, recipe.shard)
        yield (
            bucket,
            Sample(
                key=clip["clip_id"],
                metadata=sample_metadata(clip, bucket, splits[source]),
                caption=clip.get("caption") or "",
                mp4_bytes=clip["mp4_bytes"],
                mp4_sha256=clip["mp4_sha256"],
                location=locations[clip["clip_id"]],
                split=splits[source],
                embedding=vectors.get(clip["clip_id"]) if vectors is not None else None,
                text_vector=text_vectors(clip.get("caption") or "") if text_vectors else None,
                has_id=recipe.shard.id_member,
            ),
        )


def sample_metadata(
    clip: Mapping[str, Any], bucket: Bucket, split: Split = "train"
) -> dict[str, Any]:
    """What a sample's JSON holds; numbers are rounded so that it reads well.

    Nothing of it changes with this program's version alone: tars that stand would not stay.
    """
    n_frames, fps = clip["n_frames"], Fraction(clip["fps_fraction"])
    return {
        "key": clip["clip_id"],
        "clip_id": clip["clip_id"],
        "source_id": clip["source_id"],
        "source_uri": clip["source_uri"],
        "source_start_s": round(clip["start_s"], 6),
        "source_end_s": round(clip["end_s"], 6),
        "source_start_frame": clip["start_frame"],
        "source_end_frame": clip["end_frame"],
        "source_start_pts": clip["start_pts"],
        "source_end_pts": clip["end_pts"],
        "source_time_base": clip["time_base"],
        "source_is_vfr": clip["is_vfr"],
        "cut_mode": clip["cut_mode"],
        "audio": clip["audio"],
        "n_frames": n_frames,
        "fps": float(fps),
        "fps_fraction": str(fps),
        "duration": round(float(n_frames / fps), 6),
        "width": clip["width"],
        "height": clip["height"],
        "bucket": {
            "resolution": bucket.resolution,
            "aspect": bucket.aspect,
            "min_frames": bucket.min_frames,
            "content": bucket.content,
            "name": bucket.name,
        },
        "split": split,
        "tags": list(clip.get("tags") or ()),
        "crop": None
        if clip["crop_x"] is None
        else {name.removeprefix("crop_"): clip[name] for name in CROP_COLUMNS},
        "scores": {
            name: None if clip[name] is None else float(f"{clip[name]:.4g}")
            for name in SCORES
            if name != "fps"
        },
        "content_type": clip.get("content_type"),
        "caption": clip.get("caption") or "",
        "caption_model": clip.get("caption_model"),
        **_annotated(clip),
        "mp4_sha256": clip["mp4_sha256"],
        "models": {"shots": transnet_model_name(), "descriptor": PERCEPTUAL_MODEL},
    }


def _annotated(clip: Mapping[str, Any]) -> dict[str, Any]:
    """What a model said of a clip, window by window; nothing for one that was not asked about."""
    if "annotation" not in clip:
        return {}
    alignment = clip.get("caption_alignment")
    return {
        "annotation": clip["annotation"],
        "caption_failure": clip.get("caption_failure"),
        "caption_alignment": None if alignment is None else float(f"{alignment:.4g}"),
    }


def place_samples(
    plan: ShardPlan, layout: TarLayout, clips: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """Notes in the clips where a shard holds them; returns the shard's facts for the summary."""
    for sample in plan.samples:
        clips[sample.key] |= {
            "shard": plan.name,
            "key": sample.key,
            "mp4_offset": layout.mp4_offsets[sample.key],
        }
    return {
        "name": plan.name,
        "bucket": plan.bucket,
        "split": plan.split,
        "n_samples": len(plan.samples),
        "n_frames": sum(sample.metadata["n_frames"] for sample in plan.samples),
        "bytes": layout.n_bytes,
    }
