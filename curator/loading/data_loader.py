"""A DataLoader for `ClipDataset`, which forms its own batches and counts its own epochs."""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from curator.errors import UsageError
from curator.loading.dataset import Batch, ClipDataset


class Packed(NamedTuple):
    """A batch as a worker sends it: one tensor and one byte string.

    Each tensor costs a connection and a file descriptor, so only the frames are sent as a tensor.
    """

    video: torch.Tensor | None
    """None for a batch without frames."""
    rest: bytes
    """All other entries, pickled; tensors are included by value."""


def _packed(batch: Batch) -> Packed:
    rest = {name: value for name, value in batch.items() if name != "video"}
    return Packed(batch.get("video"), pickle.dumps(rest, pickle.HIGHEST_PROTOCOL))


class ClipLoader(DataLoader[Batch]):
    """PyTorch's DataLoader over a `ClipDataset`, with a count of epochs and a position.

    Each `for` loop yields one epoch, or the rest of an epoch after `load_state_dict`. The position
    in `state_dict` follows the last batch that the loop returned. A loop that is left by `break`
    does not move the start: the next loop begins where that loop began.

    Args:
        dataset: The clips.
        num_workers: Processes that decode; 0 decodes in this process. A state that was saved within
            an epoch continues with the same batches only with the same number.
        **options: Other options of DataLoader (`prefetch_factor`, `pin_memory`, `timeout`, …).

    Raises:
        UsageError: `options` has an option that the dataset decides, such as `shuffle` or a
            sampler, or `persistent_workers`; or the options do not work with decode="gpu".
    """

    def __init__(
        self,
        dataset: ClipDataset,
        *,
        num_workers: int = 0,
        **options: Any,  # noqa: ANN401
    ) -> None:
        taken = {"batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "in_order"}
        if wrong := sorted((taken | {"persistent_workers", "collate_fn"}) & options.keys()):
            raise UsageError(
                f"ClipLoader takes no {wrong[0]!r}: the dataset decides on batches, order and "
                "epochs (ClipDataset(batch_size=..., shuffle=..., drop_last=...))"
            )
        pack: Any = _packed
        if dataset.gpu is not None:
            _check_for_gpu(num_workers, options)
        super().__init__(
            dataset, batch_size=None, num_workers=num_workers, collate_fn=pack, **options
        )
        self._clips = dataset

    def __len__(self) -> int:
        """Returns the number of batches of a whole epoch on this rank."""
        return self._clips.steps

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        epoch = self._clips.state_dict()["epoch"]
        batches: Iterator[Packed] = super().__iter__()
        if self._clips.gpu is not None and self.num_workers:
            batches = _owned(batches, self._clips.gpu)
        for packed in batches:
            # A worker of this process pickled the data, so loading it is safe.
            batch: Batch = pickle.loads(packed.rest)
            batch = batch if packed.video is None else {"video": packed.video} | batch
            self._clips.advance(batch)
            yield batch
        self._clips.set_epoch(epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the dataset."""
        return self._clips.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continues with the batch after a saved state, as `ClipDataset.load_state_dict`."""
        self._clips.load_state_dict(state)


def _check_for_gpu(num_workers: int, options: Mapping[str, Any]) -> None:
    """Refuses options that do not work with batches in the GPU's memory."""
    if options.get("pin_memory"):
        raise UsageError("decode='gpu' leaves batches in the GPU's memory; leave pin_memory out")
    context = options.get("multiprocessing_context")
    method = context if isinstance(context, str | None) else context.get_start_method()
    if num_workers and method != "spawn":
        raise UsageError(
            f"decode='gpu' with {num_workers} workers started by {method or 'fork'!r}: CUDA runs "
            "only in spawned workers; give multiprocessing_context='spawn', or num_workers=0"
        )


def _owned(batches: Iterator[Packed], gpu: int) -> Iterator[Packed]:
    """Yields workers' batches with their frames copied into GPU memory of this process.

    This process maps a worker's memory until it frees the tensor; the worker must live that long,
    and freeing waits for the current stream. So frames are copied at once, on a separate stream
    that does not wait for the trainer's work, and the worker's tensor is freed.
    """
    own_stream = torch.cuda.Stream(gpu)
    while True:
        with torch.cuda.stream(own_stream):
            packed = next(batches, None)
            if packed is None:
                return
            if packed.video is None:
                yield packed
                continue
            video = packed.video.clone()
            packed.video.data = video.new_empty(0)
        using = torch.cuda.current_stream(gpu)
        using.wait_stream(own_stream)
        video.record_stream(using)
        yield Packed(video, packed.rest)
