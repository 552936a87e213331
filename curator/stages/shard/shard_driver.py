"""The driver's side of sharding: plans a sample for each kept clip, and has the tars written.

Existing tars stay if they have the contents that the last finished run recorded. A tar appears
under its name after its index and metadata, and only when the tar is complete. The commit writes
the files that describe all tars, the manifest last.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import curator
from curator.buckets import Bucket, bucket_of
from curator.dataset.sample import Sample
from curator.dataset.shard_index import (
    DescribedTar,
    EarlierShards,
    members_table,
    set_files,
)
from curator.dataset.shard_plan import ShardPlan, plan_shards
from curator.dataset.tar_reader import Split
from curator.dataset.tar_writer import ShardUnit, TarWriter, shard_facts
from curator.executor.engine import Engine
from curator.executor.unit_worker import PlainWorker
from curator.executor.worker import Step
from curator.family import Place
from curator.models.scene_network import SCENE_MODEL
from curator.models.transnet import transnet_model_name
from curator.records.clips import FITTED, LICENSED, WINDOWED, Clip, Reason, format_of
from curator.records.cuts import CROP_COLUMNS
from curator.records.sources import Medium
from curator.stages.shard.config import ShardConfig
from curator.stages.shard.reusable_shards import ReusableShards
from curator.stages.shard.split_groups import SplitGroups, split_sources
from curator.stages.shard.stage import ShardStage
from curator.storage import Store
from curator.tables.clip_locations import Location
from curator.tables.clip_rows import ClipRow, ClipRows, reject
from curator.tables.clip_vectors import Vectors
from curator.tables.mark_table import MARK_COLUMNS
from curator.tables.out_layout import SHARDS
from curator.tables.sample_members import StoredMember
from curator.tables.schemas import declared_columns
from curator.tables.spill_file import Spill

logger = logging.getLogger(__name__)

COPIED_HERE_BYTES = 256 << 20
"""The driver writes new tars itself if their clips have at most this size in total."""


@dataclass
class Sharding:
    """Writes the shards of the kept clips.

    Attributes:
        fingerprint: Fingerprint of the recipe, for the manifest.
        reusable: Tars that stay if all their samples are still wanted.
        before: Shards of earlier generations, which stay; None without earlier generations.
        n_written: Number of tars that this run wrote.
        summary: Facts about each shard, for the summary.
        members: Gives the rows of the table `members`; None if no sample has a family's member.
        files: Files that describe all shards, by name, in the order of writing.
    """

    store: Store
    config: ShardConfig
    fingerprint: str
    engine: Engine
    reusable: ReusableShards
    before: EarlierShards | None = None
    n_written: int = 0
    summary: list[dict[str, Any]] = field(default_factory=list)
    members: Callable[[], Iterator[pa.Table]] | None = None
    files: dict[str, bytes] = field(default_factory=dict)

    def shard(
        self,
        clips: ClipRows,
        locations: Mapping[str, Location],
        vectors: Vectors | None = None,
        stored_of: Callable[[Clip], Sequence[StoredMember]] | None = None,
        annotation_of: Callable[[Clip], Mapping[str, Any]] | None = None,
        generation_of: Mapping[str, int] | None = None,
        splits: SplitGroups | None = None,
    ) -> None:
        """Writes missing tars, and records in kept rows of `clips` where their samples are.

        Each clip must fit a bucket as it was written, and no source may be in `splits.across`.
        Without `vectors`, `stored_of` or `annotation_of`, samples have no embedding, no members of
        families or no annotation. `generation_of` has the generation of each source id; None if
        there is only one. Without `splits`, each source is in the split that its hash gives.
        """
        if splits is None:
            splits = split_sources(sources_alone(clips), self.config)
        for warning in splits.warnings:
            logger.warning(warning)
        samples = _samples(
            clips, self.config, locations, vectors, stored_of, annotation_of, generation_of, splits
        )
        sizes, reusable = self.reusable.sizes, self.reusable.tars
        earlier = self.before.facts if self.before is not None else ()
        taken = [entry["name"] for entry in earlier]
        plans = plan_shards(samples, self.config, self.reusable.keys(), taken)
        tars: dict[str, DescribedTar] = {}
        units = []
        for plan in plans:
            missing, stored = plan.missing(sizes), reusable.get(plan.name)
            if stored is not None and stored.bytes != plan.layout.n_bytes:
                stored = None
            if not missing and stored is not None and stored.has(plan):
                tars[plan.name] = replace(stored, **DescribedTar.planned(plan))
            else:
                units.append(ShardUnit(plan=plan, missing=missing, known=stored))
        self.n_written = sum(unit.plan.name in unit.missing for unit in units)
        tars |= {f"{SHARDS}/{tar.name}": tar for tar in self._run(units)}
        if any(sample.stored or sample.side_members for plan in plans for sample in plan.samples):
            self.members = partial(members_table, plans)
        place_samples(plans, clips)
        versions = {info.key: info.version for info in self.store.list(f"{SHARDS}/")}
        new = [
            shard_facts(plan) | {"versions": {name: versions.get(name) for name in plan.objects}}
            for plan in plans
        ]
        self.summary = sorted([*map(dict, earlier), *new], key=itemgetter("name"))
        self.files = set_files(
            [(plan, tars[plan.name]) for plan in plans],
            self.before,
            columns={value["name"]: value for value in declared_columns(clips.schema).values()},
            seed=self.config.seed,
            fingerprint=self.fingerprint,
            made_by=f"curate {curator.__version__}",
            scores=clips.scores,
        )

    def _run(self, units: Sequence[ShardUnit]) -> Iterator[DescribedTar]:
        stage = ShardStage(self.config, TarWriter(self.store))
        step = Step(make=PlainWorker, settings={"stage": stage}, resources=stage.resources)
        n_bytes = sum(s.mp4_bytes for u in units if u.missing for s in u.plan.samples)
        # Copying few bytes takes less time than starting a process.
        is_worth_it = self.engine.is_started and n_bytes > COPIED_HERE_BYTES
        return self.engine.run([step], units, placement="ray" if is_worth_it else "driver")


_SAME = (
    "clip_id", "source_id", "source_uri", "medium", "cut_mode", "audio", "n_frames", "width",
    "height", "content_type", "caption_model", "mp4_sha256",
)  # fmt: skip
"""Columns of `clips` that are JSON fields of the same name."""
_OF_SOURCE = ("start_frame", "end_frame", "start_pts", "end_pts", "time_base", "is_vfr")
"""Columns of `clips` that are JSON fields with the prefix `source_`."""


def _samples(
    clips: ClipRows,
    config: ShardConfig,
    locations: Mapping[str, Location],
    vectors: Vectors | None,
    stored_of: Callable[[Clip], Sequence[StoredMember]] | None,
    annotation_of: Callable[[Clip], Mapping[str, Any]] | None,
    generation_of: Mapping[str, int] | None,
    splits: SplitGroups,
) -> Iterator[tuple[Bucket, Sample]]:
    """Yields the samples of the kept clips, with their buckets; JSON and captions are on disk."""
    spill = Spill()
    declared = declared_columns(clips.schema)
    left_out = {name for name, value in declared.items() if value["place"] == Place.TABLE}
    for clip in clips.kept():
        bucket = bucket_of(
            clip.width,
            clip.height,
            clip.n_frames,
            config,
            content_type=clip.content_type,
            is_still=clip.medium == Medium.IMAGE,
        )
        assert bucket is not None, "the run rejected clips without a bucket after the cut"
        if clip.bucket != bucket.name:
            clip.bucket = bucket.name
        source, key, caption = clip.source_id, clip.clip_id, clip.caption or ""
        split = splits.sides[source]
        annotation = annotation_of(clip) if annotation_of is not None else None
        meta = clips.metadata_at(clip.number)
        sample = Sample(
            key=key,
            metadata=sample_metadata(clip, bucket, split, annotation, meta, left_out),
            caption=caption,
            mp4_bytes=clip.mp4_bytes,
            mp4_sha256=clip.mp4_sha256,
            format=format_of(clip.format),
            location=locations[key],
            split=split,
            embedding=vectors.get(key) if vectors is not None else None,
            stored=stored_of(clip) if stored_of is not None else (),
            has_id=config.id_member,
            generation=generation_of[source] if generation_of is not None else 1,
            spill=spill,
        )
        yield bucket, sample


_ACROSS = "its source belongs together with clips of earlier generations in train and in val"


def reject_across(clips: ClipRows, splits: SplitGroups) -> None:
    """Rejects the kept clips of sources that no split can take."""
    if splits.across:
        for clip in clips.kept():
            if clip.source_id in splits.across:
                reject(clip, Reason.ACROSS_SPLITS, detail=_ACROSS)


def sources_alone(clips: ClipRows) -> dict[str, tuple[str, ...]]:
    """Returns each source with a kept clip, as a unit of its own for `split_sources`."""
    is_kept = pc.equal(clips.column("decision"), "kept")
    ids = pc.unique(clips.column("source_id").filter(is_kept)).to_pylist()
    return {name: (name,) for name in ids}


def sample_metadata(
    clip: ClipRow,
    bucket: Bucket,
    split: Split,
    annotation: Mapping[str, Any] | None,
    meta: Mapping[str, Any],
    left_out: Collection[str] = (),
) -> dict[str, Any]:
    """Returns the JSON fields of a sample; numbers are rounded for readability.

    Columns in `left_out` are only in the table `clips`. The version of `curate` is no field: each
    new version would replace all existing tars.
    """
    fps, columns = Fraction(clip.fps_fraction), clip.declared()
    # Clips without marks have no fields of marks, so a mark replaces only the tar of its clip.
    columns = {
        n: v
        for n, v in columns.items()
        if n not in left_out and (n not in MARK_COLUMNS or v is not None)
    }
    # Only windows have fields of windows, so that other samples, and their tars, stay as they are.
    window = {name: getattr(clip, name) for name in WINDOWED}
    crop = {name.removeprefix("crop_"): getattr(clip, name) for name in CROP_COLUMNS}
    return {
        **{name: getattr(clip, name) for name in _SAME},
        **{f"source_{name}": getattr(clip, name) for name in _OF_SOURCE},
        "key": clip.clip_id,
        "source_start_s": round(clip.start_s, 6),
        "source_end_s": round(clip.end_s, 6),
        "fps": float(fps),
        "fps_fraction": str(fps),
        "duration": round(float(clip.n_frames / fps), 6),
        "bucket": asdict(bucket) | {"name": bucket.name},
        "split": split,
        "tags": list(clip.tags or ()),
        **{name: _rounded(getattr(clip, name)) for name in FITTED},
        **(window if window["window_frames"] is not None else {}),
        **({"output_size": clip.output_size} if clip.output_size is not None else {}),
        **({"moment": _moment(clip)} if clip.moment is not None else {}),
        # As with windows: a recipe without rights leaves samples as they are.
        **{name: value for name in LICENSED if (value := getattr(clip, name)) is not None},
        # The member of a video is always `mp4`.
        **({"format": clip.format} if format_of(clip.format) != "mp4" else {}),
        "crop": None if clip.crop_x is None else crop,
        "scores": {n: _rounded(score) for n, score in clip.scores.items() if n != "fps"},
        "caption": clip.caption or "",
        **(_annotated(clip, annotation) if annotation is not None else {}),
        **({"meta": meta} if meta else {}),
        **({"columns": columns} if columns else {}),
        "models": {"shots": transnet_model_name(), "scene": SCENE_MODEL},
    }


def _moment(clip: Clip) -> dict[str, Any]:
    return {
        "name": clip.moment,
        "cameras": clip.moment_cameras,
        "offset_s": _rounded(clip.moment_offset_s),
        "residual_s": _rounded(clip.moment_residual_s),
    }


def _annotated(clip: Clip, annotation: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "annotation": annotation,
        "caption_failure": clip.caption_failure,
        "caption_clip_score": _rounded(clip.caption_clip_score),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def place_samples(plans: Sequence[ShardPlan], clips: ClipRows) -> None:
    """Records in the rows of clips the shard, key and MP4 offset of their samples."""
    keys = pa.array([sample.key for plan in plans for sample in plan.samples], pa.string())
    names = pa.array([plan.name for plan in plans], pa.string())
    codes = np.repeat(np.arange(len(plans)), [len(plan.samples) for plan in plans])
    starts = [np.array(plan.layout.mp4_starts, np.int64) for plan in plans]
    offsets = np.concatenate([np.zeros(0, np.int64), *starts])
    ids = clips.column("clip_id").combine_chunks()
    rows = pc.index_in(keys, value_set=ids).to_numpy(zero_copy_only=False)
    placed = {"shard": names.take(pa.array(codes)), "key": keys, "mp4_offset": pa.array(offsets)}
    clips.scatter(rows, pa.table(placed))
