"""Runs functions of tensors as CUDA graphs, which start all their kernels by one call of the host.

Starting kernels one by one is the largest cost of a measure on a CPU core. A function that becomes
a graph must only queue work: it neither waits for the device nor reads from it, and the shapes of
its results depend only on the shapes of its arguments.

torch is imported in functions.
"""

# ruff: noqa: ANN401 - torch has no types for its pools

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")

_WARM_UPS = 3
"""Calls before the capture, in which kernels are chosen and allocate. Source: torch's manual."""
_OUT_OF_MEMORY = 2
"""CUDA's error number for too little memory, which may occur outside of torch's allocator."""
_USES = 6
"""Calls of one shape before a graph is made. Making a graph takes as long as 3 to 4 calls."""
_LEAST_BATCH = 4
"""Smaller batches are computed in a graph of this size: of 32 frames, 2 to 4 are samples."""
_MOST_GRAPHS = 48
"""Most graphs that are kept, by last use. One form of video needs about a dozen."""
_MOST_BYTES = 64 << 20
"""Largest arguments of a graph, which copies them: two pictures of 8K in full size."""

_capturing = threading.local()


def constants(most: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Returns an `lru_cache` for functions that make constant tensors.

    A graph reads the memory of constants from its capture, so the graph keeps them alive.
    """

    def decorated(make: Callable[P, T]) -> Callable[P, T]:
        cached: Any = lru_cache(most)(make)

        @wraps(make)
        def get(*args: P.args, **options: P.kwargs) -> T:
            value: T = cached(*args, **options)
            kept = getattr(_capturing, "constants", None)
            if kept is not None:
                kept.append(value)
            return value

        get.cache_clear = cached.cache_clear  # type: ignore[attr-defined]
        return get

    return decorated


def is_out_of_memory(error: RuntimeError) -> bool:
    """Returns whether an error of torch means that the device is out of memory."""
    import torch

    return (
        isinstance(error, torch.OutOfMemoryError)
        or getattr(error, "error_code", None) == _OUT_OF_MEMORY
    )


class Replayed:
    """A function of batches of one shape as a CUDA graph.

    All calls must be on one stream, and each call overwrites the results of the last one. Graphs of
    one pool share memory, so this holds for all graphs of a pool together. While a graph is
    captured, no thread may wait for the whole device.

    Args:
        function: Takes as many tensors as `given` has, and returns tensors.
        given: Device memory for the arguments; the first axis has the size of the largest batch.
        pool: Returned by `torch.cuda.graph_pool_handle`.
    """

    def __init__(
        self, function: "Callable[..., Sequence[Tensor]]", given: "Sequence[Tensor]", *, pool: Any
    ) -> None:
        import torch

        self._given = given
        device = given[0].device
        side_stream = torch.cuda.Stream(device)
        side_stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side_stream):
            for _ in range(_WARM_UPS):
                function(*given)
        torch.cuda.current_stream(device).wait_stream(side_stream)
        self._graph = torch.cuda.CUDAGraph()
        self._constants: list[Any] = []
        _capturing.constants = self._constants
        try:
            # By default, allocations of other threads would end the capture.
            with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
                self._results = function(*given)
        finally:
            _capturing.constants = None

    def __call__(self, *values: "Tensor") -> "list[Tensor]":
        """Returns the function's results for a batch, which may be smaller than `given`."""
        n = len(values[0])
        for to, value in zip(self._given, values, strict=True):
            to[:n].copy_(value)
        self._graph.replay()
        return [result[:n] for result in self._results]


class DeviceGraphs:
    """Calls functions of batches; on a GPU, frequent shapes become graphs.

    Only one thread may call at a time, always on the same stream.
    """

    def __init__(self) -> None:
        self._graphs: OrderedDict[Hashable, Replayed] = OrderedDict()
        self._uses: OrderedDict[Hashable, int] = OrderedDict()
        self._pool: Any = None
        self._has_memory = True
        self.n_halved = 0
        """Times that the device had too little memory for a graph; then no more are made."""

    def __call__(
        self,
        function: "Callable[..., Tensor | Sequence[Tensor]]",
        *values: "Tensor",
        **options: Hashable,
    ) -> "list[Tensor]":
        """Returns the function's results, which stay valid.

        Args:
            function: A function of a module.
            values: Tensors with the batch as first axis. Items of a batch must be independent.
            **options: Keyword arguments of the function.
        """
        import torch

        def compute(*tensors: "Tensor") -> "list[Tensor]":
            results = function(*tensors, **options)
            return [results] if isinstance(results, torch.Tensor) else list(results)

        if not values[0].is_cuda:
            return compute(*values)
        size = max(_LEAST_BATCH, 1 << (len(values[0]) - 1).bit_length())
        shapes = tuple((size, *value.shape[1:]) for value in values)
        key = (function, shapes, tuple(v.dtype for v in values), tuple(options.items()))
        graph = self._graphs.get(key) or self._made(key, compute, shapes, values)
        if graph is None:
            return compute(*values)
        self._graphs.move_to_end(key)
        # Other graphs of the pool may overwrite the results.
        return [result.clone() for result in graph(*values)]

    def give_up(self) -> None:
        """Frees the memory of all graphs, and makes no more graphs."""
        self._has_memory = False
        self._graphs.clear()
        self._uses.clear()
        self._pool = None

    def _made(
        self,
        key: Hashable,
        compute: "Callable[..., list[Tensor]]",
        shapes: Sequence[tuple[int, ...]],
        values: "Sequence[Tensor]",
    ) -> Replayed | None:
        """Makes a graph if its shape was used often enough and memory allows; else None."""
        import torch

        n_uses = self._uses[key] = self._uses.pop(key, 0) + 1
        if len(self._uses) > 4 * _MOST_GRAPHS:
            self._uses.popitem(last=False)
        given_bytes = sum(value.nbytes // len(value) * shapes[0][0] for value in values)
        if n_uses <= _USES or not self._has_memory or given_bytes > _MOST_BYTES:
            return None
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        try:
            given = [
                torch.zeros(shape, dtype=value.dtype, device=value.device)
                for shape, value in zip(shapes, values, strict=True)
            ]
            made = self._graphs[key] = Replayed(compute, given, pool=self._pool)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        else:
            # The oldest graph is removed after the new one is made, so that the pool persists.
            if len(self._graphs) > _MOST_GRAPHS:
                self._graphs.popitem(last=False)
            return made
        # After the handler, because its error keeps the allocated memory alive.
        self.n_halved += 1
        self.give_up()
        torch.cuda.empty_cache()
        return None
