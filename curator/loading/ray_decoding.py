"""Decodes on other machines through Ray Data, to free the trainer's cores."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from curator.errors import UsageError
from curator.installation import install_extra
from curator.loading.dataset import ClipDataset, singles_of
from curator.storage import Store

if TYPE_CHECKING:
    import ray.data

FILES_PER_BATCH = 32
"""Clips that a task reads at a time: their files are in memory together."""


def ray_clips(
    dataset: ClipDataset, *, epoch: int = 0, first_step: int = 0, cpus: float = 1.0
) -> "ray.data.Dataset":
    """Returns a Ray dataset with one row for each decoded sample of an epoch.

    A Ray task reads and decodes one batch. Rows have the order in which `dataset` yields samples
    with `num_workers=0`. If `dataset` has `drop_last`, the following call with the batch size of
    `dataset` yields the same batches as `dataset`:

        ray_clips(dataset).iter_torch_batches(batch_size=...)

    Args:
        dataset: The clips, with `video=True`; all nodes must reach its `out`.
        epoch: Number of the epoch.
        first_step: Batches to skip at the start of the epoch: the step of a saved state.
        cpus: Cores that Ray reserves for a task; give the `decoder_threads` of the dataset.

    Returns:
        Rows with `video` (uint8 or float32 [3, T, H, W]), `caption`, `caption_kind`, `fps`,
        `start_frame`, `key`, `bucket`, `json` (a string) and `step`. Embeddings, audio, and the
        dataset's `members`, are left out. Iteration starts the reading.

    Raises:
        UsageError: Ray Data is not installed, Ray was not started, or `dataset` decodes on a GPU
            or not at all.
    """
    if dataset.gpu is not None:
        raise UsageError(
            "this dataset has decode='gpu', and ray_clips passes batches in the host's memory; "
            "give the dataset decode='cpu'"
        )
    if not dataset.video:
        raise UsageError(
            "this dataset has video=False, and ray_clips exists to decode video; give the dataset "
            "video=True, or iterate over the dataset itself"
        )
    started = _started_ray()
    if not 0 <= first_step <= dataset.steps:
        raise UsageError(f"first_step {first_step}; expected 0 to {dataset.steps}")
    reference = started.put(dataset)

    def decoded(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        clips: ClipDataset = started.get(reference)
        yield from _rows(clips, epoch, int(row["step"]))

    steps = [{"step": step} for step in range(first_step, dataset.steps)]
    # One batch per block bounds the memory of a task.
    whole = started.data.from_items(steps, override_num_blocks=max(1, len(steps)))
    made: ray.data.Dataset = whole.flat_map(decoded, num_cpus=cpus)
    made.context.execution_options.preserve_order = True
    return made


def ray_clip_files(store: Store, clips: pa.Table) -> "ray.data.Dataset":
    """Returns a Ray dataset of clips with their MP4s, which Ray's tasks read.

    Returns:
        The rows of `clips` with `mp4`, the bytes of the file. Iteration starts the reading.
    """
    started = _started_ray()

    def with_files(batch: pa.Table) -> pa.Table:
        rows = batch.select(["shard", "mp4_offset", "mp4_bytes"]).to_pylist()
        files = [
            store.read_range(row["shard"], at := row["mp4_offset"], at + row["mp4_bytes"])
            for row in rows
        ]
        return batch.append_column("mp4", pa.array(files, pa.binary()))

    files: ray.data.Dataset = started.data.from_arrow(clips).map_batches(
        with_files, batch_size=FILES_PER_BATCH, batch_format="pyarrow", zero_copy_batch=True
    )
    return files


def _started_ray() -> Any:  # noqa: ANN401
    """Imports Ray with its data library.

    Raises:
        UsageError: Ray Data is not installed, or Ray was not started.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise UsageError(
            f"decoding on other machines needs Ray Data ({error}): {install_extra('loading-ray')}"
        ) from error
    if not ray.is_initialized():
        raise UsageError(
            "Ray is not started: call ray.init(address=...) with the cluster that should decode, "
            "or ray.init(address='local') for this machine alone"
        )
    return ray


def _rows(dataset: ClipDataset, epoch: int, step: int) -> Iterator[dict[str, Any]]:
    batch = dataset.batch_at(epoch, step)
    for single in [batch] if dataset.yields_samples else singles_of(batch):
        names = ("caption", "caption_kind", "fps", "start_frame", "key", "bucket")
        yield {
            "video": single["video"].numpy(),
            **{name: single[name] for name in names},
            "json": orjson.dumps(single["json"]).decode(),
            "step": step,
        }
