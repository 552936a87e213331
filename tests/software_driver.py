"""A driver without a GPU under NVIDIA's own PyNvVideoCodec: what FFmpeg decodes, in host memory.

`fake_nvdec` stands for the whole of PyNvVideoCodec; this stands only for the driver beneath it
(`software_driver/driver.c`), so that the package itself runs: its arguments, its frames, their
lifetime, its errors. The libraries are loaded before the package, whose own loading then finds them
by their names. A process that did so must not be asked for a real GPU afterwards.

Frames say that they lie on a GPU. `torch` would not take them: `module` gives frames that say what
is true, that they lie in the host's memory.
"""

import ctypes
import importlib
import logging
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import av.error
import numpy as np
from fake_nvdec import planes_of

_SOURCE = Path(__file__).parent / "software_driver" / "driver.c"
_CODECS = {1: "mpeg2video", 4: "h264", 8: "hevc", 10: "vp9", 11: "libdav1d"}
_END_OF_STREAM, _TIMESTAMP, _END_OF_PICTURE = 1, 2, 8
_libraries: dict[str, Any] = {}


def compiler() -> str | None:
    """A C compiler, which the driver is made with."""
    return shutil.which("gcc") or shutil.which("cc")


class _Parser:
    """One stream: takes packets as the parser of the driver does, one behind."""

    def __init__(self, address: int, codec: int) -> None:
        self.address = address
        self._codec = codec
        self._held: tuple[bytes, int] | None = None
        self._times: dict[int, int] = {}
        self._n_packets = 0
        self._begin()

    def _begin(self) -> None:
        self._context = av.CodecContext.create(_CODECS[self._codec], "r")
        self._context.thread_count = 1

    def take(self, flags: int, data: bytes, timestamp: int) -> None:
        """Decodes a packet, and queues its pictures."""
        # Without the flag a picture is known to be complete when the next one begins.
        due = [self._held] if self._held is not None else []
        self._held = (data, timestamp) if data else None
        if self._held is not None and flags & (_END_OF_PICTURE | _END_OF_STREAM):
            due, self._held = [*due, self._held], None
        for held in due:
            self._decode(*held)
        if flags & _END_OF_STREAM:
            self._show(self._context.decode(None))
            self._begin()

    def _decode(self, data: bytes, timestamp: int) -> None:
        packet = av.Packet(data)
        packet.pts = packet.dts = self._n_packets
        self._times[self._n_packets] = timestamp
        self._n_packets += 1
        # The engine conceals damage.
        with suppress(av.error.FFmpegError):
            self._show(self._context.decode(packet))

    def _show(self, pictures: list[Any]) -> None:
        for picture in pictures:
            planes = np.ascontiguousarray(planes_of(picture).numpy())
            _libraries["nvcuvid"].software_queue(
                self.address, planes.ctypes.data, planes[0].nbytes, picture.width, picture.height,
                picture.format.components[0].bits, self._times.pop(picture.pts, 0),
            )  # fmt: skip


_parsers: dict[int, _Parser] = {}


def load(folder: Path) -> None:
    """Makes the libraries in a folder, and loads them in the place of NVIDIA's."""
    if _libraries:
        return
    made = {}
    for name, soname in {
        "cuda": "libcuda.so.1",
        "nvcuvid": "libnvcuvid.so.1",
        "nvencode": "libnvidia-encode.so.1",
    }.items():
        path = folder / soname
        command = [
            str(compiler()), "-shared", "-fPIC", "-O2", "-w", "-fexceptions",
            f"-DLIB{name.upper()}", f"-Wl,-soname,{soname}", "-o", str(path), str(_SOURCE),
        ]  # fmt: skip
        subprocess.run(command, check=True)
        made[name] = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    _libraries.update(made)
    nvcuvid = made["nvcuvid"]
    on_open = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_int)
    on_data = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_long, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong,
        ctypes.c_longlong,
    )  # fmt: skip
    on_close = ctypes.CFUNCTYPE(None, ctypes.c_long)
    nvcuvid.software_queue.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
        ctypes.c_longlong,
    ]  # fmt: skip
    nvcuvid.software_queue.restype = None
    callbacks = on_open(_open), on_data(_data), on_close(_close)
    nvcuvid.software_callbacks(*callbacks)
    _libraries["callbacks"] = callbacks


def _open(address: int, codec: int) -> int:
    number = max(_parsers, default=0) + 1
    _parsers[number] = _Parser(address, codec)
    return number


def _data(number: int, flags: int, payload: int, n_bytes: int, timestamp: int) -> int:
    data = ctypes.string_at(payload, n_bytes) if payload and n_bytes else b""
    try:
        _parsers[number].take(flags, data, timestamp)
    except Exception:
        logging.getLogger(__name__).exception("the software driver failed")
        return 999
    return 0


def _close(number: int) -> None:
    _parsers.pop(number, None)


def n_decoders() -> tuple[int, int]:
    """Decoders that live, and all that were made."""
    library = _libraries["nvcuvid"]
    values = [
        ctypes.c_int.in_dll(library, f"software_{name}").value for name in ("decoders", "made")
    ]
    return values[0], values[1]


def n_bytes() -> int:
    """Bytes of device memory that are taken."""
    return ctypes.c_long.in_dll(_libraries["cuda"], "software_bytes").value


def set_wait_us(wait_us: int) -> None:
    """Time that an engine takes for each picture from now on, in microseconds."""
    ctypes.c_int.in_dll(_libraries["nvcuvid"], "software_wait_us").value = wait_us


def fail(
    call: str, *, at: int = 1, result: int = 0, stays: bool = False, hangs: bool = False
) -> None:
    """Makes a call of the driver answer a CUresult at its `at`-th time from now on.

    With `stays` each call after it answers so too; with `hangs` it returns only after `mend`.
    """
    _libraries["cuda"].software_fail(call.encode(), at, result, stays, hangs)


def mend() -> None:
    """Ends failures."""
    fail("")


class _Tensor(ctypes.Structure):
    """The head of DLPack's `DLTensor`."""

    _fields_ = (("data", ctypes.c_void_p), ("device_type", ctypes.c_int32))


class HostFrame:
    """A frame of PyNvVideoCodec that says where its memory is."""

    def __init__(self, frame: Any) -> None:  # noqa: ANN401
        self.frame = frame

    def getPTS(self) -> int:
        """Its packet's timestamp."""
        return int(self.frame.getPTS())

    def __dlpack_device__(self) -> tuple[int, int]:
        """The host."""
        return 1, 0

    def __dlpack__(self, **options: Any) -> Any:  # noqa: ANN401
        """The frame's own capsule, said to be the host's."""
        assert tuple(self.frame.__dlpack_device__()) == (2, 0), "not on the GPU"
        # For a frame on a GPU torch names its stream: 1 is the default one.
        capsule = self.frame.__dlpack__(**({"stream": 1} | options))
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        _Tensor.from_address(pointer(capsule, b"dltensor")).device_type = 1
        return capsule


class _HostDecoder:
    def __init__(self, decoder: Any) -> None:  # noqa: ANN401
        self._decoder = decoder

    def Decode(self, packet: Any) -> list[HostFrame]:  # noqa: ANN401
        return [HostFrame(frame) for frame in self._decoder.Decode(packet)]


def module(**changes: Any) -> Any:  # noqa: ANN401
    """PyNvVideoCodec over this driver, with what a test changes. `load` must have been called."""
    real: Any = importlib.import_module("PyNvVideoCodec")

    values = {name: getattr(real, name) for name in dir(real) if not name.startswith("__")}
    values["CreateDecoder"] = lambda **options: _HostDecoder(real.CreateDecoder(**options))
    return SimpleNamespace(**(values | changes))
