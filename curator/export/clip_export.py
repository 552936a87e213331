"""Chooses what to export and passes it to the format."""

import os
from collections.abc import Callable, Mapping, Sequence

from curator.errors import UsageError
from curator.export.clip_reader import chosen_shards
from curator.export.formats import checked_options, load_format
from curator.export.job import Job
from curator.export.placement import Exported
from curator.stages.shard.tar_reader import SPLITS, open_shards
from curator.storage import open_store

MAX_WORKERS = 16


def export(
    out: str,
    destination: str,
    format: str,
    *,
    splits: Sequence[str] = SPLITS,
    buckets: Sequence[str] | None = None,
    workers: int | None = None,
    snapshot: int | None = None,
    options: Mapping[str, object] | None = None,
    progress: Callable[[Exported], None] = lambda exported: None,
) -> Exported:
    """Writes the clips of an output root in another format.

    The same clips and options give the same bytes. Objects that already exist with the same bytes
    are not written again, so that an interrupted export continues.

    Args:
        out: Folder or `s3://bucket/prefix` of a run, or a folder with the contents of `shards/`.
        destination: Folder or `s3://bucket/prefix`.
        format: One of `FORMATS`, `package.module:Class`, or an entry point of `curate.exporters`.
        splits: `train`, `val`.
        buckets: None for all.
        workers: Shards under way at once; None for one per core, at most 16.
        snapshot: Number of the snapshot to export; None for the newest.
        options: Options of the format.
        progress: Called after each clip.

    Returns:
        Counts of what was written.

    Raises:
        UsageError: Nothing was selected, the format or one of its options does not exist, or the
            format needs a package that is missing.
        ShardError: A shard is damaged.
        StorageError: Reading or writing failed.
    """
    exporter_type, extension = load_format(format)
    exporter = exporter_type(checked_options(format, options or {}))
    shards = open_shards(out, snapshot)
    store = open_store(destination)
    if store.uri == shards.store.uri:
        if not exporter.indexes_tars:
            raise UsageError(f"{store.uri} is OUT itself; choose another destination")
        if snapshot is not None:
            raise UsageError(
                f"snapshot {snapshot}: the indexes at fixed paths in {store.uri} follow the "
                "newest snapshot; choose another destination"
            )
        store = open_store(f"{store.uri}/{shards.prefix}".rstrip("/"))
    chosen = chosen_shards(shards, splits, buckets)
    if exporter.indexes_tars and len(chosen) < len(shards.shards):
        # Indexes of some shards would hide the others.
        raise UsageError(
            f"the format {format} indexes all shards; leave out --split and --bucket. "
            "Each bucket has a .nv-meta of its own, and each split a wids index"
        )
    exported = Exported(
        manifest_problem=shards.problem,
        records=exporter.records,
        origin=extension.origin if extension is not None else None,
    )
    Job(
        shards=shards,
        chosen=chosen,
        splits=splits,
        store=store,
        exporter=exporter,
        exported=exported,
        n_workers=workers or min(MAX_WORKERS, os.cpu_count() or 1),
        progress=progress,
    ).run()
    return exported
