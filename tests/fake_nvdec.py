"""Stands for PyNvVideoCodec where there is no GPU: the same calls, decoded by FFmpeg on the CPU.

It takes packets by address and gives frames as NV12 or P016 through DLPack, a few packets late and
in memory that the next call overwrites, as the real one does. As NVIDIA's parser, it gives a frame
the least of the times that wait, whichever packet had it.
"""

import ctypes
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import torch
from av.video.frame import VideoFrame

NAMES = {"H264": "h264", "HEVC": "hevc", "VP9": "vp9", "AV1": "libdav1d", "MPEG2": "mpeg2video"}


class PyNvVCException(Exception):  # noqa: N818 - the package's name and base
    """What PyNvVideoCodec raises: not a `RuntimeError`."""

    def __init__(self, call: str, result: int) -> None:
        super().__init__(
            f"Handle : \nError code : {result}\nError Type : {call} returned error {result}\n"
            "at /project/src/NvDecoder.cpp:885"
        )


class PacketData:
    """The fields that are set."""

    def __init__(self) -> None:
        self.bsl_data = self.bsl = self.pts = self.dts = self.key = 0


class Decoded:
    """A frame in "device" memory."""

    def __init__(self, pts: int, planes: torch.Tensor) -> None:
        self._pts = pts
        self.planes = planes

    def getPTS(self) -> int:
        """Its packet's timestamp."""
        return self._pts

    def __dlpack__(self, **options: Any) -> Any:  # noqa: ANN401
        """The planes."""
        return self.planes.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:  # noqa: ANN401
        """Where they lie."""
        return self.planes.__dlpack_device__()


class Decoder:
    """Decodes a stream with start codes."""

    def __init__(self, codec: str) -> None:
        self._context = av.CodecContext.create(NAMES[getattr(codec, "name", codec)], "r")
        self._context.thread_count = 1
        self._given: list[torch.Tensor] = []
        self._times: list[int] = []
        self._last = -1

    def Decode(self, packet: PacketData) -> list[Decoded]:
        """Frames that are done."""
        for planes in self._given:
            planes.fill_(77)
        if packet.bsl == 0:
            pictures = self._context.decode(None)
            # The engine's parser begins anew behind the end of a stream.
            self._context.flush_buffers()
        else:
            held = av.Packet(ctypes.string_at(packet.bsl_data, packet.bsl))
            held.pts, held.dts = packet.pts, packet.dts
            self._times.append(packet.pts)
            pictures = self._context.decode(held)
        frames = [Decoded(self._least(picture), planes_of(picture)) for picture in pictures]
        self._given = [frame.planes for frame in frames]
        if packet.bsl == 0:
            self._times.clear()
        return frames

    def _least(self, picture: VideoFrame) -> int:
        # FFmpeg leaves out pictures before a key frame: nothing waits for their times.
        later = [time for time in self._times if time > self._last]
        self._last = min(later, default=int(picture.pts or 0))
        self._times = [time for time in later if time != self._last]
        return self._last


class Single(Decoder):
    """Does not go on after the end of a stream."""

    ended = False

    def Decode(self, packet: PacketData) -> list[Decoded]:
        """Nothing after the end."""
        if self.ended:
            return []
        self.ended = packet.bsl == 0
        return super().Decode(packet)


def dropping(number: int) -> type[Decoder]:
    """Drops a frame, counted from 1, without a word."""

    class Dropping(Decoder):
        given = 0

        def Decode(self, packet: PacketData) -> list[Decoded]:
            frames = super().Decode(packet)
            self.given += len(frames)
            return [] if len(frames) and self.given == number else frames

    return Dropping


class Failing(Decoder):
    """Cannot decode."""

    def Decode(self, packet: PacketData) -> list[Decoded]:
        """Raises."""
        raise PyNvVCException("cuvidDecodePicture", 1)


class Smaller(Decoder):
    """Gives frames of another size."""

    def Decode(self, packet: PacketData) -> list[Decoded]:
        """Their upper rows."""
        return [Decoded(f.getPTS(), f.planes[:90]) for f in super().Decode(packet)]


class Shifted(Decoder):
    """Leaves out a crop at the left, as PyNvVideoCodec does: shapes and times are right."""

    def Decode(self, packet: PacketData) -> list[Decoded]:
        """Moved frames."""
        return [Decoded(f.getPTS(), f.planes.roll(4, dims=1)) for f in super().Decode(packet)]


def planes_of(picture: VideoFrame) -> torch.Tensor:
    """A frame as NVDEC holds it, [3 H / 2, W]; 16 bits have theirs at the top."""
    bits = picture.format.components[0].bits
    kind = np.uint8 if bits == 8 else np.uint16
    size = np.dtype(kind).itemsize

    def plane(number: int) -> Any:  # noqa: ANN401
        held = picture.planes[number]
        rows = np.frombuffer(memoryview(held), kind).reshape(-1, held.line_size // size)
        return rows[: held.height, : held.width]

    if len(picture.planes) == 2:
        chroma = plane(1).reshape(picture.height // 2, -1)
    else:
        chroma = np.stack([plane(1), plane(2)], axis=-1).reshape(picture.height // 2, -1)
    values = np.concatenate([plane(0), chroma])
    return torch.from_numpy(values if bits == 8 else values << (16 - bits))


def fake_module(**changes: Any) -> Any:  # noqa: ANN401
    """The module, with what a test changes."""
    values = {
        "PacketData": PacketData,
        "cudaVideoCodec": SimpleNamespace(**{name: name for name in NAMES}),
        "GetDecoderCaps": lambda **_: {"supported": 1, "num_decoder_engines": 7, "width_max": 4096,
                                       "height_max": 4096, "width_min": 48, "height_min": 16},
        "CreateDecoder": lambda *, codec, **_: Decoder(codec),
    }  # fmt: skip
    return SimpleNamespace(**(values | changes))
