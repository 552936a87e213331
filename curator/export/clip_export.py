"""Chooses what is exported and hands it to the format."""

from collections.abc import Callable

from curator.errors import UsageError
from curator.export.clip_reader import chosen_shards
from curator.export.export_options import MIN_FRAMES_FORMATS, Exported, ExportOptions
from curator.export.job import Job
from curator.stages.shard.tar_reader import open_shards
from curator.storage import open_store
from curator.tables.parts import SUMMARY


def export(
    out: str,
    destination: str,
    options: ExportOptions,
    *,
    progress: Callable[[Exported], None] = lambda exported: None,
) -> Exported:
    """Writes the clips of an output root in another form.

    The same clips and options give the same bytes; what stands with them is not written again, so
    that a broken-off export goes on.

    Args:
        out: Folder or `s3://bucket/prefix` of a run, or a folder with the contents of `shards/`.
        destination: Folder or `s3://bucket/prefix`.
        options: Format and what goes into it.
        progress: Called after each clip.

    Returns:
        What was done.

    Raises:
        UsageError: There is nothing to export, or the format needs a package that is missing.
        ShardError: A shard is damaged.
        StorageError: Reading or writing failed.
    """
    if options.min_frames is not None and options.format not in MIN_FRAMES_FORMATS:
        raise UsageError(
            f"the format {options.format} takes no least number of frames; those that do: "
            + ", ".join(MIN_FRAMES_FORMATS)
        )
    shards = open_shards(out)
    if shards.manifest is None and shards.prefix and not shards.store.exists(SUMMARY):
        raise UsageError(
            f"no run was finished in {shards.store.uri}: what lies there may be some of its shards "
            f"alone. Run `curate run` again, or name {shards.uri('').rstrip('/')} itself to export "
            "the tars that are there"
        )
    store = open_store(destination)
    is_index = options.format in ("energon", "wids")
    if store.uri == shards.store.uri:
        if not is_index:
            raise UsageError(f"{store.uri} is OUT itself; choose another destination")
        store = open_store(f"{store.uri}/{shards.prefix}".rstrip("/"))
    job = Job(shards, chosen_shards(shards, options), store, options, progress)
    match options.format:
        case "cosmos":
            from curator.export.folders import export_cosmos as run
        case "opensora":
            from curator.export.folders import export_opensora as run
        case "cogvideo":
            from curator.export.folders import export_cogvideo as run
        case "parquet":
            from curator.export.parquet_table import export_parquet as run
        case "mds":
            from curator.export.mds import export_mds as run
        case "frames":
            from curator.export.frame_tars import export_frames as run
        case "energon":
            from curator.export.index_files import export_energon as run
        case "wids":
            from curator.export.index_files import export_wids as run
        case "conversations":
            from curator.export.conversations import export_conversations as run
        case "preferences":
            from curator.export.preferences import export_preferences as run
    job.exported.manifest_problem = shards.problem
    run(job)
    return job.exported
