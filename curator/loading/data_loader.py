"""PyTorch's DataLoader for datasets that know their batches, epochs and position."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader

from curator.errors import UsageError
from curator.loading.batch_values import Packed, packed, unpacked
from curator.loading.dataset import Batch, ClipDataset
from curator.loading.device_windows import owned


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
        pack: Any = packed
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
            batches = owned(batches, self._clips.gpu)
        for held in batches:
            batch = unpacked(held)
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
