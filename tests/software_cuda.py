"""A CUDA device in software, for torch: the GPU's code runs with `device="cuda"`.

A tensor on the device holds a tensor of the host. It is as strict as CUDA: tensors of host and
device do not meet in one operation, NumPy reads no device tensor, and a copy that does not block
fills its pinned memory only when an event or a stream is waited for; before, the memory holds
nonsense. Copies, waits and replayed graphs are counted.

    with software_cuda.installed() as device:
        torch.ones(3, device="cuda").sum().item()
        assert device.counts.waits.total() == 1

Frames of PyNvVideoCodec, or of what stands for it, count as the device's.
"""

import sys
import tempfile
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import patch

import numpy as np
import torch
import torch.utils.dlpack
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

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
_LIBRARIES = dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), "cuBLAS") | {
    "convolution": "cuDNN", "_fft_r2c": "cuFFT", "_fft_c2r": "cuFFT", "_fft_c2c": "cuFFT",
}  # fmt: skip
_SUMS = {"convolution", "mm", "bmm", "addmm", "baddbmm"}
"""Of float16 a GPU sums them in float32."""


@dataclass(slots=True)
class Counts:
    """What was asked of the device.

    Attributes:
        graphs: Graphs that were replayed.
        copies: Number by direction (`h2d`, `d2h`) and whether the host waits for it.
        waits: By what waits, without the copies.
    """

    graphs: int = 0
    copies: Counter[tuple[str, bool]] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)


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
        _alive[inner.untyped_storage()._cdata] += 1
        return made

    def __init__(self, inner: Tensor, device: "SoftwareCuda") -> None:
        pass

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        (first, *_) = (one for one in tree_leaves((args, kwargs)) if isinstance(one, cls))
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

    def data_ptr(self) -> int:
        """Address of the values."""
        return self.inner.data_ptr()

    def __del__(self) -> None:
        """Gives its memory back."""
        _alive[self.inner.untyped_storage()._cdata] -= 1
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


class Stream:
    """Work in order; what does not block is done when it is waited for."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        soft = _installed[-1]
        self.soft = soft
        self.cuda_stream = len(soft.streams)
        self.device = CUDA
        self.pending: list[Callable[[], None]] = []
        self.n_done = 0
        self.capture: CUDAGraph | None = None
        soft.streams.append(self)

    def flush(self, until: int | None = None) -> None:
        """Does what was queued, up to a number that counts all that ever was."""
        with self.soft.order:
            while self.pending and (until is None or self.n_done < until):
                self.pending.pop(0)()
                self.n_done += 1

    def synchronize(self) -> None:
        """Waits for all of it."""
        self.soft.wait("stream.synchronize")
        self.flush()

    def query(self) -> bool:
        """Whether all of it is done: it is when asked."""
        self.soft.check_capture("stream.query")
        self.flush()
        return True

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Marks this point."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: "Event") -> None:
        """Work from here on is behind the event."""
        if self.capture is not None and event.capture is not self.capture:
            raise RuntimeError("dependency created on uncaptured work in another stream")
        self.pending.append(event.flush)

    def wait_stream(self, stream: "Stream") -> None:
        """Work from here on is behind that of another stream."""
        self.wait_event(stream.record_event())

    def __enter__(self) -> "Stream":
        self.soft.stack().append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.soft.stack().pop()


class Event:
    """A point of a stream."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._at: tuple[Stream, int] | None = None
        self.capture: CUDAGraph | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Marks this point of a stream."""
        stream = stream or _installed[-1].current_stream()
        self._at = stream, stream.n_done + len(stream.pending)
        self.capture = stream.capture

    def flush(self) -> None:
        """Does all before it."""
        if self._at is not None:
            stream, until = self._at
            stream.flush(until)

    def wait(self, stream: Stream | None = None) -> None:
        """Work of a stream from here on is behind it."""
        (stream or _installed[-1].current_stream()).wait_event(self)

    def synchronize(self) -> None:
        """Waits."""
        _installed[-1].wait("event.synchronize")
        self.flush()

    def query(self) -> bool:
        """Whether it has passed: it has when asked."""
        _installed[-1].check_capture("event.query")
        self.flush()
        return True

    def elapsed_time(self, other: "Event") -> float:
        """No time passes here."""
        return 0.0


class CUDAGraph:
    """Operations that are recorded once, and started together."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._steps: list[Callable[[], None]] = []
        self._results: list[Tensor] = []
        self._read: set[int] = set()
        self._pool: Any = None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Operations on the current stream are recorded from here, and not done."""
        soft = _installed[-1]
        stream = soft.current_stream()
        if stream.cuda_stream == 0:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        stream.capture = self
        self._pool = pool or self.pool()
        soft.graphs[self._pool].add(self)
        if capture_error_mode == "global":
            soft.captured_by = threading.get_ident()

    def capture_end(self) -> None:
        """Ends the record; what it made is nonsense until a replay."""
        soft = _installed[-1]
        soft.current_stream().capture = None
        soft.captured_by = None
        self._read -= {result.untyped_storage()._cdata for result in self._results}
        self._forget_results()

    def _forget_results(self) -> None:
        for tensor in self._results:
            tensor.untyped_storage().fill_(_NONSENSE)

    def add(
        self, step: Callable[[], None], results: list[Tensor], given: Sequence[Tensor] = ()
    ) -> None:
        """Records a step, and keeps what it makes."""
        self._steps.append(step)
        self._results += results
        self._read |= {one.untyped_storage()._cdata for one in given}

    def replay(self) -> None:
        """Does all of it, as one launch."""
        soft = _installed[-1]
        soft.counts.graphs += 1
        if any(_alive[memory] <= 0 for memory in self._read):
            raise AssertionError("a graph reads memory that was given back after its capture")
        for other in soft.graphs[self._pool] - {self}:
            other._forget_results()
        for step in self._steps:
            step()

    def pool(self) -> tuple[int, int]:
        """A name of its memory."""
        return 0, id(self)

    def reset(self) -> None:
        """Forgets it."""
        self._steps, self._results, self._read = [], [], set()
        _installed[-1].graphs[self._pool].discard(self)


@contextmanager
def _graph(
    graph: CUDAGraph, pool: Any = None, stream: Stream | None = None,
    capture_error_mode: str = "global", **_: Any,
) -> Iterator[None]:  # fmt: skip
    soft = _installed[-1]
    soft.synchronize()
    with stream or Stream():
        graph.capture_begin(pool, capture_error_mode)
        try:
            yield
        finally:
            graph.capture_end()


class SoftwareCuda:
    """The device: runs operations, and counts what they ask of it."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.streams: list[Stream] = []
        self.graphs: defaultdict[Any, weakref.WeakSet[CUDAGraph]] = defaultdict(weakref.WeakSet)
        """By the pool whose memory they share."""
        self.captured_by: int | None = None
        """The thread whose capture forbids others what may allocate or wait."""
        self._of_thread = threading.local()
        self._lock = threading.Lock()
        self.order = threading.RLock()
        """Of those that do what streams have queued."""
        self._pinned: dict[int, int] = {}
        self._fails: tuple[int, int, int] | None = None
        self._n_large = 0

    def fail_allocation(self, *, at: int, least_bytes: int = 0, times: int = 1) -> None:
        """Lets allocations run out of memory: `times` from the `at`-th of that size, from 1."""
        self._fails, self._n_large = (at, least_bytes, times), 0

    def stack(self) -> list[Stream]:
        """Streams of the calling thread, the current one last."""
        return self._of_thread.__dict__.setdefault("streams", [self.streams[0]])

    def current_stream(self, device: Any = None) -> Stream:
        """Of the calling thread."""
        return self.stack()[-1]

    def synchronize(self, device: Any = None) -> None:
        """Waits for all streams."""
        self.wait("synchronize")
        for stream in list(self.streams):
            stream.flush()

    def wait(self, what: str) -> None:
        """Counts a wait; a capture forbids it."""
        self.check_capture(what)
        with self._lock:
            self.counts.waits[what] += 1

    def check_capture(self, what: str) -> None:
        """Refuses what a capture of this thread, or a global one of another, forbids."""
        if self.current_stream().capture is not None:
            raise RuntimeError(f"{what}: operation not permitted when stream is capturing")
        if self.captured_by not in (None, threading.get_ident()):
            raise RuntimeError(
                f"{what}: operation would make the legacy stream depend on a capturing one, or "
                'allocate, in another thread; capture with capture_error_mode="thread_local"'
            )

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Does an operation of torch."""
        leaves = tree_leaves((args, kwargs))
        on_device = any(isinstance(leave, DeviceTensor) for leave in leaves)
        target = kwargs.get("device")
        if not on_device and (target is None or torch.device(target).type != "cuda"):
            return self._on_host(func, args, kwargs)
        if _is_composite(func):
            with _Mode(self):
                return func.decompose(*args, **kwargs)
        return self._on_device(func, args, kwargs, leaves)

    def _on_host(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = func.overloadpacket.__name__
        if name == "is_pinned":
            return self._is_pinned(args[0])
        if name in ("pin_memory", "_pin_memory"):
            return self._pinned_copy(args[0])
        if kwargs.get("pin_memory"):
            return self._pinned_copy(func(*args, **(kwargs | {"pin_memory": False})))
        return func(*args, **kwargs)

    def _on_device(self, func: Any, args: Any, kwargs: dict[str, Any], leaves: list[Any]) -> Any:
        name = func.overloadpacket.__name__
        if name == "_to_copy":
            return self._to_copy(args[0], **kwargs)
        if name == "copy_":
            return self._copy(*args, **kwargs)
        if name == "is_pinned":
            return False
        self._check_devices(name, leaves)
        if name in _WAITS or (name == "repeat_interleave" and kwargs.get("output_size") is None):
            self.wait(name)
        kwargs = {k: v for k, v in kwargs.items() if k != "pin_memory"}
        if func.is_view or name in _NO_KERNEL:
            return self._wrapped(func(*_inner(args), **_on_cpu(kwargs)), args, kwargs)
        return self._kernel(func, args, kwargs)

    def _check_devices(self, name: str, leaves: list[Any]) -> None:
        others = [
            leave
            for leave in leaves
            if isinstance(leave, Tensor) and not isinstance(leave, DeviceTensor)
        ]
        if name in ("index", "index_put", "index_put_"):
            for _ in others:
                self.check_capture("index by a tensor of the host: a blocking copy")
                self._count_copy("h2d", blocks=True)
            if any(isinstance(o, Tensor) and o.dtype == torch.bool for o in leaves[1:]):
                self.wait("nonzero")
        elif any(one.dim() for one in others):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"cuda:0 and cpu! ({name})"
            )

    def _kernel(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Starts a kernel, or records it."""
        own_args, own_kwargs = _inner(args), _on_cpu(kwargs)
        capture = self.current_stream().capture
        library = _LIBRARIES.get(func.overloadpacket.__name__)
        if library is not None:
            plan = library, tuple(own_args[0].shape) if library == "cuFFT" else ()
            ready = self._of_thread.__dict__.setdefault("ready", set())
            if capture is not None and plan not in ready:
                raise RuntimeError(f"{library}: its first call allocates, which a capture forbids")
            ready.add(plan)
        if capture is None:
            return self._wrapped(_computed(func, own_args, own_kwargs), args, kwargs)
        tensors = [one for one in tree_leaves((own_args, own_kwargs)) if isinstance(one, Tensor)]
        if func._schema.is_mutable:
            capture.add(lambda: _computed(func, own_args, own_kwargs), [], tensors)
            written = _written(func, args, kwargs)
            return written[0] if len(written) == 1 else tuple(written)
        made = _computed(func, own_args, own_kwargs)
        results = [one for one in tree_leaves(made) if isinstance(one, Tensor)]

        def again() -> None:
            found = tree_leaves(_computed(func, own_args, own_kwargs))
            for kept, new in zip(results, found, strict=True):
                kept.copy_(new)

        capture.add(again, results, tensors)
        return self._wrapped(made, args, kwargs)

    def _wrapped(self, made: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, DeviceTensor)]
        memory = {one.inner.untyped_storage()._cdata for one in given}

        def wrap(one: Any) -> Any:
            if not isinstance(one, Tensor):
                return one
            for outer in given:
                if outer.inner is one:
                    return outer
            if one.untyped_storage()._cdata not in memory:
                self._allocate(one)
            return DeviceTensor(one, self)

        return tree_map(wrap, made)

    def _allocate(self, values: Tensor) -> None:
        if self.captured_by not in (None, threading.get_ident()):
            self.check_capture("allocation")
        n_bytes = values.untyped_storage().nbytes()
        with self._lock:
            if self._fails is None or n_bytes < self._fails[1]:
                return
            self._n_large += 1
            at, _, times = self._fails
            fails = at <= self._n_large < at + times
        if fails:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {n_bytes} bytes.")

    def _to_copy(self, source: Tensor, **options: Any) -> Tensor:
        target = torch.device(options.get("device") or source.device)
        is_async = options.pop("non_blocking", False)
        dtype = options.get("dtype") or source.dtype
        form = {"memory_format": options.get("memory_format") or torch.preserve_format}
        own = source.inner if isinstance(source, DeviceTensor) else source
        if target.type == "cuda":
            if isinstance(source, DeviceTensor):
                to_copy = torch.ops.aten._to_copy.default
                return self._kernel(to_copy, (source,), {"dtype": dtype, **form})  # type: ignore[no-any-return]
            result = torch.empty_like(own, dtype=dtype, **form)
            self._allocate(result)
            made: Tensor = DeviceTensor(result, self)
        else:
            made = torch.empty_like(own, dtype=dtype, **form)
            made = self._pinned_copy(made) if is_async else made
        return self._copy(made, source, is_async)

    def _copy(self, to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        """`to.copy_(source)`, between devices too."""
        copy = torch.ops.aten.copy_.default
        if isinstance(to, DeviceTensor) and isinstance(source, DeviceTensor):
            return self._kernel(copy, (to, source), {})  # type: ignore[no-any-return]
        host, kept = (source, to) if isinstance(to, DeviceTensor) else (to, source)
        assert isinstance(kept, DeviceTensor)
        direction = "h2d" if kept is to else "d2h"
        if isinstance(to, DeviceTensor) and to.dim() and not source.dim():
            return self._kernel(copy, (to, source), {})  # type: ignore[no-any-return]
        is_plain = to.dtype == source.dtype and to.stride() == source.stride()
        blocks = not (non_blocking and is_plain and self._is_pinned(host))
        if blocks:
            self.check_capture("blocking copy")
        self._count_copy(direction, blocks=blocks)
        own_to, own_source = _inner((to, source))
        stream = self.current_stream()
        if blocks:
            stream.flush()
            own_to.copy_(own_source)
        elif stream.capture is not None:
            stream.capture.add(lambda: self._later(self.current_stream(), own_to, own_source), [])
        else:
            self._later(stream, own_to, own_source)
        return to

    def _later(self, stream: Stream, to: Tensor, source: Tensor) -> None:
        """A copy that a stream does on its own: the host must wait before it touches its side."""
        seen = source.clone()
        if self._is_pinned(source):
            to.copy_(source)

            def check() -> None:
                if not torch.equal(_bits(source), _bits(seen)):
                    raise AssertionError("pinned memory was written while it was copied from")

            stream.pending.append(check)
        else:
            _bits(to).fill_(_NONSENSE)
            stream.pending.append(lambda: _done(to.copy_(seen)))

    def _count_copy(self, direction: str, *, blocks: bool) -> None:
        with self._lock:
            self.counts.copies[direction, blocks] += 1

    def _pinned_copy(self, values: Tensor) -> Tensor:
        self.check_capture("pinned memory, whose allocator asks for events")
        n_bytes = max(1, values.numel() * values.element_size())
        memory = np.empty(n_bytes, np.uint8)
        address = memory.ctypes.data
        self._pinned[address] = n_bytes
        weakref.finalize(memory, self._pinned.pop, address, None)
        flat = torch.from_numpy(memory)[: n_bytes if values.numel() else 0].view(values.dtype)
        made = flat.as_strided(values.shape, values.contiguous().stride())
        return made.copy_(values)

    def _is_pinned(self, values: Tensor) -> bool:
        return values.untyped_storage().data_ptr() in self._pinned

    def from_dlpack(self, given: Any, **options: Any) -> Tensor:
        """torch's, but that frames of a video engine, or capsules of them, are the device's."""
        if not hasattr(given, "getPTS") and type(given).__name__ != "PyCapsule":
            return _from_dlpack(given, **options)
        return DeviceTensor(_from_dlpack(given, **options), self)


def _done(_: Any) -> None:
    pass


def tree_leaves(values: Any) -> list[Any]:
    """What lies in tuples, lists and dictionaries, in a tenth of the time of torch's own."""
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, tuple | list):
        return [values]
    return [leaf for value in values for leaf in tree_leaves(value)]


def tree_map(function: Callable[[Any], Any], values: Any) -> Any:
    """The same form with what a function makes of the leaves."""
    if isinstance(values, dict):
        return {key: tree_map(function, value) for key, value in values.items()}
    if isinstance(values, tuple | list):
        return type(values)(tree_map(function, value) for value in values)
    return function(values)


def _inner(values: Any) -> Any:
    return tree_map(lambda one: one.inner if isinstance(one, DeviceTensor) else one, values)


def _on_cpu(kwargs: dict[str, Any]) -> Any:
    return _inner({k: torch.device("cpu") if k == "device" else v for k, v in kwargs.items()})


def _bits(values: Tensor) -> Tensor:
    return values.view(torch.uint8) if values.dim() else values.reshape(1).view(torch.uint8)


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    schema = func._schema.arguments
    values = [*args, *(kwargs.get(one.name) for one in schema[len(args) :])]
    pairs = zip(schema, values, strict=True)
    return [v for one, v in pairs if one.alias_info is not None and one.alias_info.is_write]


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if func.overloadpacket.__name__ in _SUMS and args[0].dtype == torch.float16:
        wide = [one.float() if isinstance(one, Tensor) else one for one in args]
        return func(*wide, **kwargs).half()
    return func(*args, **kwargs)


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
    default = Stream()
    begin = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    make = {name: getattr(torch, name) for name in ("tensor", "as_tensor")}
    # Tensors that stand for others do not cross from one mode into the other.
    make_inference, torch.inference_mode = torch.inference_mode, torch.no_grad  # type: ignore[misc,assignment]

    def bootstrap(thread: threading.Thread) -> None:
        with _Mode(soft):
            begin(thread)

    def making(name: str) -> Callable[..., Tensor]:
        def made(values: Any, *, device: Any = None, **options: Any) -> Tensor:
            tensor: Tensor = make[name](values, **options)
            return tensor if device is None else tensor.to(device)

        return made

    properties = SimpleNamespace(
        name="software", total_memory=80 << 30, multi_processor_count=132, major=9, minor=0
    )
    stands_in = {
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_name": lambda device=None: "software",
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (9, 0),
        "mem_get_info": lambda device=None: (80 << 30, 80 << 30),
        "empty_cache": lambda: soft.check_capture("empty_cache"),
        "reset_peak_memory_stats": lambda device=None: None,
        **{f"{most}memory_{what}": lambda device=None: 0
           for most in ("", "max_") for what in ("reserved", "allocated")},
        "Stream": Stream,
        "ExternalStream": Stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "graph": _graph,
        "graph_pool_handle": object,
        "is_current_stream_capturing": lambda: soft.current_stream().capture is not None,
        "current_stream": soft.current_stream,
        "default_stream": lambda device=None: default,
        "stream": lambda stream: stream,
        "synchronize": soft.synchronize,
    }  # fmt: skip
    try:
        with (
            patch.multiple(torch.cuda, **stands_in),
            patch.multiple(torch, from_dlpack=soft.from_dlpack, **{n: making(n) for n in make}),
            patch.object(torch.utils.dlpack, "from_dlpack", soft.from_dlpack),
            patch.object(threading.Thread, "_bootstrap_inner", bootstrap),
            patch.object(torch.__future__, "_overwrite_module_params_on_conversion", True),
            _Mode(soft),
        ):
            yield soft
    finally:
        torch.inference_mode = make_inference  # type: ignore[misc]
        _installed.pop()


def stand_in() -> None:
    """Puts a GPU in the place of none for all of a process: this device, and a driver in software.

    PyNvVideoCodec itself runs over the driver.
    """
    import software_driver

    forever = installed()
    forever.__enter__()
    _kept.append(forever)
    with tempfile.TemporaryDirectory(prefix="software_driver") as folder:
        software_driver.load(Path(folder))
    sys.modules["PyNvVideoCodec"] = software_driver.module()


_kept: list[Any] = []
