"""Decodes on a GPU's video engine (NVDEC), from the packets of the CPU path's demuxer.

PyNvVideoCodec has a demuxer of its own; here the same container code as for the CPU opens, hashes,
times and limits sources, on folders and on S3. A packet's timestamp passes through the decoder.
Frames stay in the GPU's memory: small pictures are made there.

A thread reads packets and decodes frames some batches ahead: the engine would otherwise be idle
while frames are measured, and leaves Python free while it decodes.

All work on frames is queued on one CUDA stream, not the default one. On the default stream a
decoder waits after each frame for everything queued there, the networks' work too. On a stream of
its own it only queues, and takes a frame's memory back with the next frame: readers of the frame
must be queued on the same stream before.

Streams that the engine cannot decode, or cannot be shown to have decoded whole, are refused with a
reason, and the CPU decodes them. So are damaged streams: the engine conceals damage silently, and
gives frames that FFmpeg leaves out. And so are streams whose sequence headers change, see
`media.sequence_headers`.

`Nvdec.call` wraps every call into PyNvVideoCodec, whose errors derive from `Exception` alone. It
divides them: the stream must go to a CPU, the GPU's memory is short, or the device is lost.

Importing PyNvVideoCodec without a driver raises, so it is imported when a worker begins.
"""

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from enum import StrEnum
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

import av
import numpy as np
from av.bitstream import BitStreamFilterContext
from av.packet import Packet
from numpy.typing import NDArray

from curator.errors import (
    CuratorError,
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    install_extra,
    one_line,
)
from curator.media.container import quarter_turns_deg
from curator.media.decode import HDR_TRANSFERS, DeviceFrame, DevicePicture, FrameReader, Place
from curator.media.device_batches import DeviceBatch, Program, planes_of_frames
from curator.media.device_frames import Form
from curator.media.prefetch import ahead
from curator.media.sequence_headers import sequence_header

if TYPE_CHECKING:
    import torch.cuda
    from torch import Tensor

BATCH = 32
"""Frames scaled together: at 1080p 100 MB of the GPU's memory."""

AHEAD = 2
"""Batches decoded ahead."""

MOST = 4
"""Most decoders kept: the surfaces of one at 1080p may take some 60 MB of the GPU's memory."""

ENGINE_WAIT_S = 60.0
"""After so long in one call an engine is taken for hung: a packet takes it milliseconds."""

MOST_OFF = 2.0
"""Levels by which the luma of first pictures may differ on average: only MPEG-2's may at all."""

T = TypeVar("T")

logger = logging.getLogger(__name__)

_CODECS = {
    "h264": ("H264", "h264_mp4toannexb"),
    "hevc": ("HEVC", "hevc_mp4toannexb"),
    "vp9": ("VP9", None),
    "av1": ("AV1", None),
    "mpeg2video": ("MPEG2", None),
}
"""The engine's name of FFmpeg's codecs, and the bitstream filter for its packets."""
_FORMS = {"yuv420p": 8, "yuvj420p": 8, "nv12": 8, "yuv420p10le": 10, "p010le": 10}
_OUT_OF_MEMORY = 2
_STAYING = frozenset(
    {
        3,
        4,
        46,
        100,
        201,
        214,
        219,
        220,
        226,
        700,
        702,
        709,
        *range(714, 720),
        710,
        805,
        806,
        810,
        999,
    }
)
"""CUresults after which a context, its device or MPS's server is of no more use, by cuda.h."""
_PROGRESSIVE = (0, 1)
"""FFmpeg's field orders that are not interlaced: unknown, progressive."""


class Refusal(StrEnum):
    """Why the CPU decodes a source although there is a GPU; counted in `summary.json`."""

    CODEC = "codec"
    PIXELS = "pixel_format"
    SIZE = "size"
    INTERLACED = "interlaced"
    TIMESTAMPS = "timestamps"
    SIZE_CHANGES = "size_changes"
    FRAMES_DIFFER = "frames_differ"
    DAMAGED = "damaged"
    DECODER = "decoder_error"
    MEMORY = "out_of_memory"


class NotOnDeviceError(CuratorError):
    """A source must be decoded on the CPU; `by_used`: a decoder that was used before said so."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal
        self.by_used = False


class KeptDecoders:
    """GPU decoders of one process that wait for the next stream with the same sequence header.

    Making one took 50 to 70 ms on an H100, and reconfiguring one 5 to 6 ms
    (github.com/meta-pytorch/torchcodec/pull/1176): as long as an engine decodes 2 s of 1080p. A
    decoder is believed to take the next stream after an end of stream; if one does not, none is
    kept from then on.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._are_kept = True

    def take(self, key: Hashable) -> Any | None:  # noqa: ANN401
        """Hands over a used decoder of this key, or None."""
        return self._kept.pop(key, None)

    def keep(self, key: Hashable, decoder: Any) -> None:  # noqa: ANN401
        """Takes back a decoder that gave all frames of its stream."""
        if not self._are_kept:
            return
        self._kept[key] = decoder
        while len(self._kept) > MOST:
            self._kept.popitem(last=False)

    def drop(self) -> None:
        """Gives back the memory of kept decoders."""
        self._kept.clear()

    def give_up(self) -> None:
        """Stops keeping decoders, because a used one failed where a new one does not."""
        self._are_kept = False
        self._kept.clear()
        logger.warning("a used decoder failed where a new one does not: none is reused")


class Nvdec:
    """The video engines of one GPU; one per worker.

    Args:
        gpu: Number of the GPU among those that the process sees.
        module: PyNvVideoCodec, or its replacement in a test.
        device: torch's name of the device with the frames.

    Raises:
        CuratorError: PyNvVideoCodec is missing, or the driver has no video libraries.
    """

    def __init__(self, gpu: int = 0, *, module: Any = None, device: str = "cuda") -> None:  # noqa: ANN401
        self.gpu = gpu
        self.device = device
        self.n_halved = 0
        """Batches that were halved because they did not fit the GPU's memory."""
        self.kept = KeptDecoders()
        """Decoders for the next streams."""
        self._stream: torch.cuda.Stream | None = None
        self._caps_of: dict[tuple[str, int], Any] = {}
        self._called_at: float | None = None
        self._lost: str | None = None
        self._codec_module = module if module is not None else _import_module()

    def decodes_nothing(self) -> str | None:
        """Why the engine decodes not even H.264, which all of them do; None if it does."""
        try:
            caps = self._caps("h264", 8)
        except DeviceError as error:
            caps = str(error)
        if isinstance(caps, str):
            return f"NVDEC does not answer: {caps}"
        return None if caps.get("supported", 1) else "NVDEC of this GPU does not decode H.264"

    def refusal(self, stream: av.VideoStream) -> tuple[Refusal, str] | None:
        """Why the engine cannot decode a stream, by its header; None if it can."""
        context = stream.codec_context
        name, pixels = context.codec.canonical_name, context.pix_fmt or ""
        if name not in _CODECS:
            return Refusal.CODEC, f"codec {name}"
        if pixels not in _FORMS:
            return Refusal.PIXELS, f"pixel format {pixels or 'unknown'}"
        if context.field_order not in _PROGRESSIVE:
            return Refusal.INTERLACED, "interlaced"
        width, height = context.width, context.height
        if width % 2 or height % 2:
            return Refusal.SIZE, f"odd size {width}x{height}"
        bits = _FORMS[pixels]
        caps = self._caps(name, bits)
        if isinstance(caps, str):
            return Refusal.CODEC, f"{name} of {bits} bits: {caps}"
        if not caps.get("supported", 1):
            return Refusal.CODEC, f"{name} of {bits} bits is not decoded by this GPU"
        least = caps.get("width_min", 0), caps.get("height_min", 0)
        most = caps.get("width_max") or width, caps.get("height_max") or height
        if not (least[0] <= width <= most[0] and least[1] <= height <= most[1]):
            return Refusal.SIZE, f"{width}x{height} is outside of {least} to {most}"
        return None

    def _caps(self, codec: str, bits: int) -> Any:  # noqa: ANN401
        """What the engine can do with a codec; words where it does not answer.

        Asked once: the package makes a CUDA context for each question.
        """
        module, key = self._codec_module, (codec, bits)
        if key not in self._caps_of:
            number = getattr(module.cudaVideoCodec, _CODECS[codec][0])
            try:
                self._caps_of[key] = self.call(
                    module.GetDecoderCaps, gpuid=self.gpu, codec=number, bitdepth=bits
                )
            except NotOnDeviceError as error:
                self._caps_of[key] = str(error)
        return self._caps_of[key]

    def call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:  # noqa: ANN401
        """Calls into PyNvVideoCodec: nothing else does.

        Raises:
            NotOnDeviceError: It failed, and the device goes on.
            DeviceMemoryError: The GPU's memory is short.
            DeviceLostError: The device does not go on. Then nothing is called any more: the
                package ends the process at some errors.
        """
        if self._lost is not None:
            raise DeviceLostError(self._lost)
        self._called_at = time.monotonic()
        try:
            return function(*args, **options)
        except Exception as error:
            raise self.failure(error) from error
        finally:
            self._called_at = None

    def check_answers(self) -> None:
        """Raises `DeviceLostError` if a call did not return within `ENGINE_WAIT_S`."""
        called_at = self._called_at
        if called_at is not None and time.monotonic() - called_at > ENGINE_WAIT_S:
            self._lost = f"NVDEC of GPU {self.gpu} has not answered for {ENGINE_WAIT_S:.0f} s"
            raise DeviceLostError(self._lost)

    def failure(self, error: Exception) -> CuratorError:
        """What an error of PyNvVideoCodec, or one of torch on this device, means."""
        import torch

        words = one_line(error)
        found = re.search(r"Error code : (\d+)", words)
        result = int(found[1]) if found is not None else None
        if result == _OUT_OF_MEMORY or isinstance(error, torch.OutOfMemoryError):
            return DeviceMemoryError(f"the memory of GPU {self.gpu} is short ({words})")
        if result not in _STAYING:
            try:
                if self.device != "cpu":
                    torch.cuda.synchronize(self.gpu)
                return NotOnDeviceError(Refusal.DECODER, words)
            except RuntimeError as second:
                words += f"; then {one_line(second)}"
        self._lost = f"GPU {self.gpu} is lost ({words})"
        return DeviceLostError(self._lost)

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """Names torch's errors that are the device's; others pass as they are."""
        try:
            yield
        except RuntimeError as error:
            failure = self.failure(error)
            if isinstance(failure, DeviceError):
                raise failure from error
            raise

    def free(self) -> None:
        """Gives back the GPU's memory that is only kept."""
        self.kept.drop()
        if self.device != "cpu":
            import torch

            torch.cuda.empty_cache()

    def queued(self) -> AbstractContextManager[object]:
        """Queues the calling thread's work on a stream of these engines, not the default one."""
        if self.device == "cpu":
            return nullcontext()
        import torch

        if self._stream is None:
            self._stream = torch.cuda.Stream(self.gpu)
        return torch.cuda.stream(self._stream)

    def decoder(self, codec: str) -> Any:  # noqa: ANN401
        """A decoder that gives frames in the GPU's memory; for use within `queued`."""
        stream = 0
        if self.device != "cpu":
            import torch

            stream = torch.cuda.current_stream(self.gpu).cuda_stream
        module = self._codec_module
        return self.call(
            module.CreateDecoder,
            gpuid=self.gpu,
            codec=getattr(module.cudaVideoCodec, _CODECS[codec][0]),
            cudacontext=0,
            cudastream=stream,
            usedevicememory=True,
        )

    def packet(self, packet: "Packet[Any] | None") -> Any:  # noqa: ANN401
        """A packet for the decoder, valid as long as `packet`; None ends the stream."""
        data = self._codec_module.PacketData()
        if packet is None:
            data.bsl_data = data.bsl = 0
        else:
            data.bsl_data, data.bsl = packet.buffer_ptr, packet.size
            data.pts, data.key = packet.pts, int(packet.is_keyframe)
            data.dts = packet.dts if packet.dts is not None else packet.pts
        return data

    @contextmanager
    def decoding(self, stream: av.VideoStream, form: Form, name: str) -> "Iterator[EngineStream]":
        """Decodes one stream; its decoder is kept if this ends without an error."""
        engine = EngineStream(self, stream, form, name)
        try:
            yield engine
        except NotOnDeviceError as refused:
            refused.by_used = engine.was_used and refused.refusal in _BY_DECODER
            raise
        engine.keep()


_BY_DECODER = Refusal.DECODER, Refusal.FRAMES_DIFFER
"""What is refused where a new decoder may do better."""


class EngineStream:
    """One stream through one decoder, which was perhaps used for another; see `Nvdec.decoding`."""

    def __init__(self, nvdec: Nvdec, stream: av.VideoStream, form: Form, name: str) -> None:
        self.was_used = False
        self._nvdec = nvdec
        self._codec = stream.codec_context.codec.canonical_name
        self._filter = bitstream_filter(stream)
        self._shape = form.height * 3 // 2, form.width
        self._name = name
        self._decoder: Any = None
        self._header: bytes | None = None
        self._key: Hashable = None

    def frames(
        self, packet: "Packet[Any] | None", tag: int | None = None
    ) -> "Iterator[tuple[int, Tensor]]":
        """Timestamps and planes of frames that are done; planes are valid until the next frame.

        Args:
            packet: The next one; None ends the stream.
            tag: Takes the place of the packet's timestamp.

        Raises:
            NotOnDeviceError: The stream must be decoded on the CPU.
            DeviceError: The device fails.
        """
        import torch.utils.dlpack

        for part in self._filtered(packet):
            self._see_header(part)
            data = self._nvdec.packet(part)
            if tag is not None and part is not None:
                data.pts = data.dts = tag
            for frame in self._nvdec.call(self._decoder.Decode, data):
                planes = self._nvdec.call(torch.utils.dlpack.from_dlpack, frame)
                if tuple(planes.shape) != self._shape:
                    found = f"a frame of {tuple(planes.shape)} rows and columns, not {self._shape}"
                    raise self.refused(Refusal.SIZE_CHANGES, found)
                yield frame.getPTS(), planes

    def refused(self, refusal: Refusal, found: str) -> NotOnDeviceError:
        """An error that names the stream."""
        return NotOnDeviceError(refusal, f"{self._name}: {found}")

    def keep(self) -> None:
        """Gives the decoder away for another stream."""
        if self._key is not None:
            self._nvdec.kept.keep(self._key, self._decoder)

    def _filtered(self, packet: "Packet[Any] | None") -> "Iterator[Packet[Any] | None]":
        """A packet in the engine's form; at the end what the filter holds, and None."""
        if packet is not None and packet.pts is None:
            raise self.refused(Refusal.TIMESTAMPS, "packets without a time")
        if packet is not None and packet.is_corrupt:
            raise self.refused(Refusal.DAMAGED, "a packet is damaged")
        if self._filter is not None:
            yield from self._filter.filter(packet)
        elif packet is not None:
            yield packet
        if packet is None:
            yield None

    def _see_header(self, packet: "Packet[Any] | None") -> None:
        """Takes a decoder for the first packet's header; refuses another header later."""
        header = sequence_header(self._codec, packet) if packet is not None else None
        if self._decoder is None:
            # Without a header in the first packet nobody knows what the decoder is made for.
            self._key = header and (self._codec, header)
            self._decoder = self._nvdec.kept.take(self._key)
            self.was_used = self._decoder is not None
            self._decoder = self._decoder or self._nvdec.decoder(self._codec)
        self._header = self._header or header
        if header not in (None, self._header):
            raise self.refused(Refusal.SIZE_CHANGES, "another sequence header")


class NvdecReader(FrameReader):
    """Iterates over frames that a GPU decoded, as `FrameReader` does over the CPU's.

    `program` is computed of each `batch` of frames.

    Raises:
        NotOnDeviceError: By its header, the CPU must decode the stream.
    """

    def __init__(
        self,
        container: av.container.InputContainer,
        stream: av.VideoStream,
        uri: str,
        *,
        nvdec: Nvdec,
        program: Program = planes_of_frames,
        batch: int = BATCH,
        **options: Any,  # noqa: ANN401
    ) -> None:
        # The CPU decodes only the first picture, for which one thread is fastest.
        super().__init__(container, stream, uri, **(options | {"threads": 1}))
        refused = nvdec.refusal(stream)
        if refused is not None:
            raise NotOnDeviceError(refused[0], f"{uri}: {refused[1]}")
        self._nvdec = nvdec
        self._batch = batch
        self._program = program
        self._facts: dict[int | None, tuple[bool, int]] = {}
        """Of packets by timestamp: whether decoding can begin there, and the duration."""
        self._discarded: set[int | None] = set()
        self._n_shown = 0
        self._first: tuple[int | None, NDArray[np.float32]] | None = None

    def __iter__(self) -> Generator[DeviceFrame]:  # type: ignore[override]
        """Yields frames in order; raises as `FrameReader` does, and `NotOnDeviceError`."""
        packets = self._packets()
        waiting, form = self._learned(packets)
        nvdec = self._nvdec
        with nvdec.decoding(self.stream, form, self.uri) as engine:
            frames = self._decoded(chain(waiting, packets), engine)
            make = partial(self._next, self._program(self._batches(frames, form)))
            batches = ahead(make, n=AHEAD, name="nvdec", check=nvdec.check_answers)
            with closing(batches):
                for places, views in batches:
                    yield from map(self._shown, places, views)
            if self.report.ended_early or self.report.n_errors:
                raise engine.refused(Refusal.DAMAGED, "the container is damaged")
            if self.report.n_frames != self._n_shown:
                found = f"{self.report.n_frames} frames of {self._n_shown} packets"
                raise engine.refused(Refusal.FRAMES_DIFFER, found)

    def _refused(self, refusal: Refusal, found: str) -> NotOnDeviceError:
        return NotOnDeviceError(refusal, f"{self.uri}: {found}")

    def _learned(self, packets: "Iterator[Packet[Any]]") -> "tuple[list[Packet[Any]], Form]":
        """Decodes the first picture on the CPU, because headers lack some of rotation and colours.

        Returns the packets read for it, and the form of the stream's frames.
        """
        read = []
        for packet in packets:
            read.append(packet)
            try:
                pictures = packet.decode()
            except av.error.FFmpegError as error:
                raise self._refused(Refusal.DAMAGED, one_line(error)) from error
            if pictures:
                return read, self._form_of(pictures[0])
        raise self._refused(Refusal.DAMAGED, "no picture decodes")

    def _form_of(self, first: av.VideoFrame) -> Form:
        try:
            form = form_of(first)
        except NotOnDeviceError as refused:
            raise self._refused(refused.refusal, str(refused)) from refused
        self._check_size(first.width, first.height)
        self._first = first.pts, _luma_of(first, form)
        report = self.report
        report.rotation_deg = quarter_turns_deg(first.rotation)
        report.is_hdr = int(first.color_trc) in HDR_TRANSFERS
        report.sizes.append((first.width, first.height))
        return form

    def _decoded(
        self, packets: "Iterator[Packet[Any]]", engine: EngineStream
    ) -> "Iterator[tuple[int, Tensor]]":
        """Timestamps and planes of frames; the planes are valid until the next frame."""
        for packet in ended(packets):
            if packet is not None and packet.is_discard:
                self._discarded.add(packet.pts)
            elif packet is not None:
                self._n_shown += 1
                self._facts[packet.pts] = packet.is_keyframe, packet.duration or 0
            for pts, planes in engine.frames(packet):
                if self._first is not None and pts == self._first[0]:
                    self._compare_first(planes, self._first[1], engine)
                    self._first = None
                if pts not in self._discarded:
                    yield pts, planes

    def _compare_first(
        self, planes: "Tensor", luma: NDArray[np.float32], engine: EngineStream
    ) -> None:
        """Refuses what differs from the CPU's first picture: a crop or a stride gives no error."""
        shown = planes[: len(luma)].cpu().numpy() / np.float32(256 ** (planes.element_size() - 1))
        off = float(np.abs(shown - luma).mean())
        if off > MOST_OFF:
            raise engine.refused(
                Refusal.FRAMES_DIFFER, f"the first picture is {off:.1f} levels off"
            )

    def _next(
        self, computed: "Iterator[tuple[Sequence[Place], Sequence[Any]]]"
    ) -> "tuple[Sequence[Place], Sequence[Any]] | None":
        with self._nvdec.queued():
            return next(computed, None)

    def _batches(self, frames: "Iterator[tuple[int, Tensor]]", form: Form) -> Iterator[DeviceBatch]:
        """Frames together, copied, because the decoder takes its memory back."""
        while True:
            places: list[Place] = []
            batch: Tensor | None = None
            for pts, planes in islice(frames, self._batch):
                if batch is None:
                    batch = self._allocated(planes)
                batch[len(places)].copy_(planes)
                key_frame, duration = self._facts.pop(pts, (False, 0))
                places.append(self._timed(pts, duration, key_frame=key_frame))
                if len(places) == len(batch):
                    break
            if batch is None:
                return
            yield DeviceBatch(
                planes=batch[: len(places)],
                places=places,
                form=form,
                rotation_deg=self.report.rotation_deg,
            )

    def _allocated(self, planes: "Tensor") -> "Tensor":
        import torch

        try:
            return torch.empty(
                (self._batch, *planes.shape), dtype=planes.dtype, device=planes.device
            )
        except torch.OutOfMemoryError as error:
            if self._batch == 1:
                raise DeviceMemoryError(
                    f"{self.uri}: the GPU's memory does not hold one frame"
                ) from error
        self._batch //= 2
        self._nvdec.n_halved += 1
        torch.cuda.empty_cache()
        return self._allocated(planes)

    def _shown(self, place: Place, view: Any) -> DeviceFrame:  # noqa: ANN401
        picture = DevicePicture(key_frame=place.key_frame, view=view)
        index = self._counted(place)
        return DeviceFrame(index=index, pts=place.pts, picture=picture, n_bytes=place.n_bytes)


_FULL_RANGE = 2
"""FFmpeg's `AVCOL_RANGE_JPEG`."""


def form_of(picture: av.VideoFrame) -> Form:
    """Form of a stream's frames, from the first one, decoded on the CPU.

    Raises:
        NotOnDeviceError: It is interlaced, or of a format that the engine does not give.
    """
    if picture.interlaced_frame:
        raise NotOnDeviceError(Refusal.INTERLACED, "interlaced")
    if picture.format.name not in _FORMS:
        raise NotOnDeviceError(Refusal.PIXELS, f"pixel format {picture.format.name}")
    is_full = picture.format.name == "yuvj420p" or int(picture.color_range) == _FULL_RANGE
    return Form(
        width=picture.width,
        height=picture.height,
        bits=_FORMS[picture.format.name],
        is_full_range=is_full,
        matrix=int(picture.colorspace),
    )


def ended(packets: "Iterator[Packet[Any]]") -> "Iterator[Packet[Any] | None]":
    """Packets that have bytes, and None for the end of the stream."""
    yield from (packet for packet in packets if packet.size)
    yield None


def _luma_of(picture: av.VideoFrame, form: Form) -> NDArray[np.float32]:
    """Levels of 0 to 255 [H, W]."""
    plane = picture.planes[0]
    kind = np.dtype(np.uint8 if form.bits == 8 else np.uint16)
    rows: NDArray[Any] = np.frombuffer(memoryview(plane), kind).reshape(plane.height, -1)[
        :, : plane.width
    ]
    # P010 has its bits at the top, planar formats at the bottom.
    unit = 1 if form.bits == 8 else 256 if picture.format.name == "p010le" else 4
    return np.asarray(rows / np.float32(unit), np.float32)


def bitstream_filter(stream: av.VideoStream) -> BitStreamFilterContext | None:
    """The filter that gives packets the engine's form; None if they have it."""
    name = _CODECS[stream.codec_context.codec.canonical_name][1]
    return BitStreamFilterContext(name, stream) if name is not None else None


def _import_module() -> Any:  # noqa: ANN401
    try:
        import PyNvVideoCodec
    except ImportError as error:
        raise CuratorError(
            f"decoding on the GPU needs PyNvVideoCodec ({one_line(error)}): "
            f"{install_extra('gpu')}, or set analyze.device to cpu"
        ) from error
    except Exception as error:
        raise CuratorError(
            f"PyNvVideoCodec does not start ({one_line(error)}); the driver's video libraries may "
            "be missing: in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility,video; or "
            "set analyze.device to cpu"
        ) from error
    return PyNvVideoCodec
