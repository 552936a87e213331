"""A CUDA device in software, for torch: the GPU's code runs with `device="cuda"`.

A tensor on the device holds a tensor of the host. It is as strict as CUDA where the package's code
could be wrong without a GPU: tensors of host and device do not meet in one operation, NumPy reads
no device tensor, a copy to the host that does not block holds nonsense until an event or a stream
is waited for, a graph's capture refuses what waits for the device, and a replay overwrites the
results of the pool's other graphs.

    with software_cuda.installed() as device:
        torch.ones(3, device="cuda").sum().item()
        assert device.n_replays == 0

Frames of what stands for PyNvVideoCodec count as the device's.
"""

import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NoReturn
from unittest.mock import patch

import torch
import torch.utils.dlpack
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

CUDA = torch.device("cuda", 0)
_NONSENSE = 0xA5
_alive: Counter[int] = Counter()
"""Tensors of the program by their memory; constants outlive a device."""

# ruff: noqa: ANN401 - operations of torch take anything

_NO_KERNEL = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted",
    "_unsafe_view", "_reshape_alias", "lift_fresh", "set_",
}  # fmt: skip
"""Operations that start none, of those that torch does not mark as views."""
_WAITS = {
    "_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "bincount",
    "unique_consecutive", "equal",
}  # fmt: skip


class DeviceTensor(Tensor):
    """A tensor that says it is on the device; `inner` has its values."""

    inner: Tensor
    device_of: "SoftwareCuda"

    @staticmethod
    def __new__(cls: Any, inner: Tensor, device: "SoftwareCuda") -> "DeviceTensor":
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, device=CUDA, requires_grad=inner.requires_grad,
        )  # fmt: skip
        made.inner, made.device_of = inner.detach(), device
        _alive[_memory(inner)] += 1
        return made

    def __init__(self, inner: Tensor, device: "SoftwareCuda") -> None:
        pass

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        (first, *_) = (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, cls))
        return first.device_of.run(func, args, kwargs or {})

    def numpy(self, **_: Any) -> NoReturn:
        """Is refused, as CUDA's is."""
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")

    __array__ = numpy

    def tolist(self) -> Any:
        """Copies, and waits."""
        return self.cpu().tolist()

    def record_stream(self, stream: "Stream") -> None:
        """The memory is not given to others before the stream is done with it."""

    def __del__(self) -> None:
        """Gives its memory back."""
        _alive[_memory(self.inner)] -= 1
        self.__dict__.clear()

    def __repr__(self, **_: Any) -> str:
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype})"


class _Mode(TorchDispatchMode):
    """Sees the operations of a thread that have no device tensor: factories, copies to it."""

    def __init__(self, device: "SoftwareCuda") -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._device.run(func, args, kwargs or {})


class Event:
    """A point of a stream."""

    def __init__(self, **_: Any) -> None:
        self._copies: list[Callable[[], object]] = []

    def record(self) -> None:
        """Marks this point of the current stream."""
        self._copies = list(_installed[-1].current_stream().copies)

    def synchronize(self) -> None:
        """Waits: what does not block is done now."""
        _installed[-1].wait("event.synchronize")
        for copy in self._copies:
            copy()


class Stream:
    """Work in order; copies that do not block are done when they are waited for."""

    cuda_stream = 1

    def __init__(self, _device: Any = None) -> None:
        self.copies: list[Callable[[], object]] = []
        self.capture: CUDAGraph | None = None

    def wait_stream(self, stream: "Stream") -> None:
        """Work from here on is behind that of another stream."""
        self.copies += stream.copies

    def __enter__(self) -> "Stream":
        _installed[-1].streams().append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _installed[-1].streams().pop()


class CUDAGraph:
    """Operations that are recorded once, and started together."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], object]] = []
        self.results: list[Tensor] = []
        self.read: set[int] = set()
        """Memory that it reads and did not make."""
        self.others: weakref.WeakSet[CUDAGraph] = weakref.WeakSet()
        """Graphs of its pool, itself too."""

    def forget_results(self) -> None:
        """Fills what it made with nonsense."""
        for tensor in self.results:
            tensor.untyped_storage().fill_(_NONSENSE)

    def replay(self) -> None:
        """Does all of it, as one launch."""
        _installed[-1].n_replays += 1
        if any(_alive[memory] <= 0 for memory in self.read):
            raise AssertionError("a graph reads memory that was given back after its capture")
        for other in self.others - {self}:
            other.forget_results()
        for step in self.steps:
            step()


@contextmanager
def _graph(graph: CUDAGraph, *, pool: Any, capture_error_mode: str) -> Iterator[None]:
    """Operations are recorded within; what they made is nonsense until a replay."""
    assert capture_error_mode == "thread_local", "other threads may not allocate meanwhile"
    graph.others = _installed[-1].graphs[pool]
    graph.others.add(graph)
    with Stream() as stream:
        stream.capture = graph
        try:
            yield
        finally:
            stream.capture = None
            graph.read -= {_memory(result) for result in graph.results}
            graph.forget_results()


class SoftwareCuda:
    """The device: runs operations, and counts them and replays of graphs."""

    def __init__(self) -> None:
        self.n_replays = self.n_operations = 0
        self.default = Stream()
        self.graphs: defaultdict[Any, weakref.WeakSet[CUDAGraph]] = defaultdict(weakref.WeakSet)
        """By the pool whose memory they share."""
        self._of_thread = threading.local()
        self._fails: tuple[int, int] | None = None

    def fail_allocation(self, *, least_bytes: int, times: int = 1) -> None:
        """Lets the next allocations of so many bytes run out of memory."""
        self._fails = least_bytes, times

    def streams(self) -> list[Stream]:
        """Streams of the calling thread, the current one last."""
        return self._of_thread.__dict__.setdefault("streams", [self.default])

    def current_stream(self, _device: Any = None) -> Stream:
        """Of the calling thread."""
        return self.streams()[-1]

    def wait(self, what: str) -> None:
        """Is refused in a capture."""
        if self.current_stream().capture is not None:
            raise RuntimeError(f"{what}: operation not permitted when stream is capturing")

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Does an operation of torch."""
        self.n_operations += 1
        leaves = tree_leaves((args, kwargs))
        target = kwargs.get("device")
        name = func.overloadpacket.__name__
        if not any(isinstance(leaf, DeviceTensor) for leaf in leaves) and (
            target is None or torch.device(target).type != "cuda"
        ):
            return self._on_host(func, name, args, kwargs)
        if _is_composite(func):
            with _Mode(self):
                return func.decompose(*args, **kwargs)
        if name == "_to_copy":
            return self._to_copy(args[0], **kwargs)
        if name == "copy_":
            return self._copy(*args, **kwargs)
        self._check_devices(name, leaves)
        if name in _WAITS or (name == "repeat_interleave" and kwargs.get("output_size") is None):
            self.wait(name)
        if func.is_view or name in _NO_KERNEL:
            return self._wrapped(func(*_inner(args), **_on_cpu(kwargs)), args, kwargs)
        return self._kernel(func, args, kwargs)

    def _on_host(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        if name == "is_pinned":
            return hasattr(args[0], "is_pinned_here")
        if kwargs.pop("pin_memory", None):
            self.wait("pinned memory, whose allocator asks for events")
            made = func(*args, **kwargs)
            made.is_pinned_here = True
            return made
        return func(*args, **kwargs)

    def _check_devices(self, name: str, leaves: list[Any]) -> None:
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        others = [tensor for tensor in tensors if not isinstance(tensor, DeviceTensor)]
        if name in ("index", "index_put", "index_put_"):
            if others:
                self.wait("index by a tensor of the host: a blocking copy")
            if any(tensor.dtype == torch.bool for tensor in tensors[1:]):
                self.wait("nonzero")
        elif any(tensor.dim() for tensor in others):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"cuda:0 and cpu! ({name})"
            )

    def _kernel(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Starts a kernel, or records it."""
        compute = partial(func, *_inner(args), **_on_cpu(kwargs))
        graph = self.current_stream().capture
        if graph is None:
            return self._wrapped(compute(), args, kwargs)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, DeviceTensor)]
        graph.read |= {_memory(tensor.inner) for tensor in given}
        if func._schema.is_mutable:
            graph.steps.append(compute)
            written = _written(func, args, kwargs)
            return written[0] if len(written) == 1 else tuple(written)
        made = compute()
        results = [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]

        def again() -> None:
            for kept, new in zip(results, tree_leaves(compute()), strict=True):
                kept.copy_(new)

        graph.steps.append(again)
        graph.results += results
        return self._wrapped(made, args, kwargs)

    def _wrapped(self, made: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, DeviceTensor)]
        memory = {_memory(tensor.inner) for tensor in given}

        def wrap(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            for outer in given:
                if outer.inner is leaf:
                    return outer
            return DeviceTensor(leaf, self) if _memory(leaf) in memory else self._allocated(leaf)

        return tree_map(wrap, made)

    def _allocated(self, values: Tensor) -> DeviceTensor:
        if self._fails is not None and values.untyped_storage().nbytes() >= self._fails[0]:
            least_bytes, times = self._fails
            self._fails = (least_bytes, times - 1) if times > 1 else None
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {values.nbytes}.")
        return DeviceTensor(values, self)

    def _to_copy(self, source: Tensor, **options: Any) -> Tensor:
        target = torch.device(options.get("device") or source.device)
        dtype = options.get("dtype") or source.dtype
        form = {"memory_format": options.get("memory_format") or torch.preserve_format}
        if target.type == "cuda" and isinstance(source, DeviceTensor):
            to_copy = torch.ops.aten._to_copy.default
            return self._kernel(to_copy, (source,), {"dtype": dtype, **form})  # type: ignore[no-any-return]
        made: Tensor = torch.empty_like(_inner(source), dtype=dtype, **form)
        return self._copy(self._allocated(made) if target.type == "cuda" else made, source)

    def _copy(self, to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        """`to.copy_(source)`, between devices too."""
        is_to_device = isinstance(to, DeviceTensor)
        if is_to_device and (isinstance(source, DeviceTensor) or (to.dim() and not source.dim())):
            copy = torch.ops.aten.copy_.default
            return self._kernel(copy, (to, source), {})  # type: ignore[no-any-return]
        own_to, own_source = _inner((to, source))
        if non_blocking and not is_to_device and hasattr(to, "is_pinned_here"):
            seen = own_source.clone()
            own_to.view(torch.uint8).fill_(_NONSENSE)
            self.current_stream().copies.append(lambda: own_to.copy_(seen))
        else:
            self.wait("blocking copy")
            own_to.copy_(own_source)
        return to

    def from_dlpack(self, given: Any, **options: Any) -> Tensor:
        """torch's, but that frames of a video engine, or capsules of them, are the device's."""
        if not hasattr(given, "getPTS") and type(given).__name__ != "PyCapsule":
            return _from_dlpack(given, **options)
        return DeviceTensor(_from_dlpack(given, **options), self)


def _memory(values: Tensor) -> int:
    return values.untyped_storage()._cdata


def _inner(values: Any) -> Any:
    return tree_map(lambda leaf: leaf.inner if isinstance(leaf, DeviceTensor) else leaf, values)


def _on_cpu(kwargs: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    return _inner(given | ({"device": torch.device("cpu")} if "device" in given else {}))  # type: ignore[no-any-return]


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    schema = func._schema.arguments
    values = [*args, *(kwargs.get(argument.name) for argument in schema[len(args) :])]
    pairs = zip(schema, values, strict=True)
    return [v for argument, v in pairs if argument.alias_info and argument.alias_info.is_write]


@cache
def _is_composite(func: Any) -> bool:
    name, key = func.name(), torch._C.DispatchKey.CompositeImplicitAutograd
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


_installed: list[SoftwareCuda] = []
_from_dlpack = torch.utils.dlpack.from_dlpack


@contextmanager
def installed() -> Iterator[SoftwareCuda]:
    """Puts the device in the place of CUDA, in this thread and in those that begin meanwhile."""
    torch._C._ensureCUDADeviceGuardSet()
    soft = SoftwareCuda()
    _installed.append(soft)
    begin = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    # Tensors that stand for others do not cross from one mode into the other.
    make_inference, torch.inference_mode = torch.inference_mode, torch.no_grad  # type: ignore[misc,assignment]
    make = torch.tensor

    def bootstrap(thread: threading.Thread) -> None:
        with _Mode(soft):
            begin(thread)

    def tensor(values: Any, *, device: Any = None, **options: Any) -> Tensor:
        made = make(values, **options)
        return made if device is None else made.to(device)

    stands_in = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "empty_cache": lambda: soft.wait("empty_cache"),
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "graph": _graph,
        "graph_pool_handle": object,
        "current_stream": soft.current_stream,
        "stream": lambda stream: stream,
        "synchronize": lambda device=None: soft.wait("synchronize"),
    }
    try:
        with (
            patch.multiple(torch.cuda, **stands_in),
            patch.multiple(torch, from_dlpack=soft.from_dlpack, tensor=tensor),
            patch.object(torch.utils.dlpack, "from_dlpack", soft.from_dlpack),
            patch.object(threading.Thread, "_bootstrap_inner", bootstrap),
            patch.object(torch.__future__, "_overwrite_module_params_on_conversion", True),
            _Mode(soft),
        ):
            yield soft
    finally:
        torch.inference_mode = make_inference  # type: ignore[misc]
        _installed.pop()
