"""Functions of tensors as CUDA graphs: all their kernels start by one call of the host.

On a core, starting kernels one by one takes longer than anything else that a measure costs it. Such
a function only queues work: it neither waits for the device nor reads from it, and the shapes of
what it makes follow from the shapes of what it is given.

torch is imported in functions.
"""

# ruff: noqa: ANN401 - torch says nothing of its pools

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
"""As torch's documentation has it: the first calls choose kernels, and allocate for them."""
_OUT_OF_MEMORY = 2
"""CUDA's number of the error, which making a graph may meet outside of torch's allocator."""
_USES = 6
"""Calls of one shape after which a graph is made of it, which takes as long as three to four."""
_LEAST_BATCH = 4
"""Smaller batches are computed as this many: of 32 frames two to four are samples."""
_MOST_GRAPHS = 48
"""Graphs that are kept, the last used: a form of video has about a dozen."""
_MOST_BYTES = 64 << 20
"""Most that a graph is given, of which it has a copy: two pictures of 8K in full size."""

_capturing = threading.local()


def constants(most: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """An `lru_cache` of tensors that functions compute with.

    A graph reads the memory of those that it was made with, so it keeps them.
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
    """Whether an error of torch says that the device's memory is too small."""
    import torch

    return (
        isinstance(error, torch.OutOfMemoryError)
        or getattr(error, "error_code", None) == _OUT_OF_MEMORY
    )


class Replayed:
    """A function of batches of one shape as a CUDA graph.

    All calls are on one stream, and results are overwritten by the next. Graphs of one pool share
    memory, so that these rules hold for all of them together. While a graph is captured, no thread
    may wait for the whole device.

    Args:
        function: Of as many tensors; it gives some.
        given: Memory on the device for what it is called with; first axes have the most that a
            batch may have.
        pool: From `torch.cuda.graph_pool_handle`.
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
            # By default, what other threads allocate meanwhile would end the capture.
            with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
                self._results = function(*given)
        finally:
            _capturing.constants = None

    def __call__(self, *values: "Tensor") -> "list[Tensor]":
        """Returns the function's results for a batch, which may be smaller than the shape's."""
        n = len(values[0])
        for to, value in zip(self._given, values, strict=True):
            to[:n].copy_(value)
        self._graph.replay()
        return [result[:n] for result in self._results]


class DeviceGraphs:
    """Calls functions of batches, as graphs on a GPU where one shape comes often.

    All calls are of one thread at a time, on one stream.
    """

    def __init__(self) -> None:
        self._graphs: OrderedDict[Hashable, Replayed] = OrderedDict()
        self._uses: OrderedDict[Hashable, int] = OrderedDict()
        self._pool: Any = None
        self._has_memory = True
        self.n_halved = 0
        """How often the device's memory did not hold a graph; none is made from then on."""

    def __call__(
        self,
        function: "Callable[..., Tensor | Sequence[Tensor]]",
        *values: "Tensor",
        **options: Hashable,
    ) -> "list[Tensor]":
        """The function's results, which stay valid.

        Args:
            function: A function of a module.
            values: Its tensors. Their first axes are one batch, of whose parts the results do not
                depend on each other.
            **options: Its keywords.
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
        # Another graph of the pool may use the memory.
        return [result.clone() for result in graph(*values)]

    def give_up(self) -> None:
        """Gives their memory back, and makes none any more."""
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
        """A graph of a shape that has come often enough."""
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
            # The new graph is there before the oldest goes, so that the pool never ends.
            if len(self._graphs) > _MOST_GRAPHS:
                self._graphs.popitem(last=False)
            return made
        # Outside of the handler, whose error holds on to what was allocated.
        self.n_halved += 1
        self.give_up()
        torch.cuda.empty_cache()
        return None
