"""PyTorch's DataLoader for datasets that know their batches, epochs and position."""

import pickle
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from curator.errors import UsageError
from curator.loading.dataset import Batch, ClipDataset


class Packed(NamedTuple):
    """A batch in transfer: one tensor and one byte string.

    Each tensor costs a connection and a file descriptor.
    """

    video: torch.Tensor | None
    """None for a batch without frames."""
    rest: bytes
    """Everything else, pickled, tensors by value."""


def _packed(batch: Batch) -> Packed:
    rest = {name: value for name, value in batch.items() if name != "video"}
    return Packed(batch.get("video"), pickle.dumps(rest, pickle.HIGHEST_PROTOCOL))


class ClipLoader(DataLoader[Batch]):
    """PyTorch's DataLoader over a `ClipDataset`; counts epochs and knows its position.

    Each `for` over it is one epoch, or the rest of the epoch of a loaded state; after a `break` the
    next `for` begins at the same place again. `state_dict` is after the last batch returned.

    Args:
        num_workers: Processes that decode; 0 decodes in this one. A state saved within an epoch
            must be loaded with the same number.
        **options: Other options of DataLoader (`prefetch_factor`, `pin_memory`, `timeout`, …).

    Raises:
        UsageError: `options` has `persistent_workers`, `shuffle`, a sampler or the like.
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
                f"ClipLoader takes no {wrong[0]!r}: batches, their order and epochs are the "
                "dataset's (ClipDataset(batch_size=..., shuffle=..., drop_last=...))"
            )
        pack: Any = _packed
        if dataset.gpu is not None:
            _check_for_gpu(num_workers, options)
        super().__init__(
            dataset, batch_size=None, num_workers=num_workers, collate_fn=pack, **options
        )
        self._clips = dataset

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank."""
        return self._clips.steps

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        epoch = self._clips.state_dict()["epoch"]
        batches: Iterator[Packed] = super().__iter__()
        if self._clips.gpu is not None and self.num_workers:
            batches = _owned(batches, self._clips.gpu)
        for held in batches:
            # From a worker of this process.
            batch: Batch = pickle.loads(held.rest)
            batch = batch if held.video is None else {"video": held.video} | batch
            self._clips.advance(batch)
            yield batch
        self._clips.set_epoch(epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position, as `ClipDataset` does."""
        return self._clips.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a saved state, as `ClipDataset` does."""
        self._clips.load_state_dict(state)


def _check_for_gpu(num_workers: int, options: Mapping[str, Any]) -> None:
    """Refuses options that cannot work with batches in the GPU's memory."""
    if options.get("pin_memory"):
        raise UsageError(
            "pin_memory is for batches that are copied to a GPU; with decode='gpu' they are on it"
        )
    context = options.get("multiprocessing_context")
    method = context if isinstance(context, str | None) else context.get_start_method()
    if num_workers and method != "spawn":
        raise UsageError(
            f"decode='gpu' with {num_workers} workers started by {method or 'fork'!r}, in "
            "which CUDA does not run; give multiprocessing_context='spawn', or num_workers=0"
        )


def _owned(batches: Iterator[Packed], gpu: int) -> Iterator[Packed]:
    """Yields workers' batches from a GPU, with their frames copied into memory of this process.

    A worker's memory is mapped here until its tensor is freed, which the worker must outlive, and
    freeing waits for the current stream. So frames are copied at once, on a separate stream, which
    does not wait for the trainer's work. The workers' videos are emptied.
    """
    own_stream = torch.cuda.Stream(gpu)
    while True:
        with torch.cuda.stream(own_stream):
            held = next(batches, None)
            if held is None:
                return
            if held.video is None:
                yield held
                continue
            video = held.video.clone()
            held.video.data = video.new_empty(0)
        using = torch.cuda.current_stream(gpu)
        using.wait_stream(own_stream)
        video.record_stream(using)
        yield Packed(video, held.rest)
