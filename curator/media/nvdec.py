"""Decodes on a GPU's video engine (NVDEC), from the packets of the CPU path's demuxer.

The container code is the same as on the CPU, instead of PyNvVideoCodec's own demuxer: it opens,
hashes, times and limits sources in folders and on S3. Frames stay in the GPU's memory, where they
are scaled to small pictures.

A thread reads packets and decodes some batches ahead, so that the engine is not idle while frames
are measured. Decoding releases Python's global lock.

All work on frames is queued on one CUDA stream. It is not the default stream, on which a decoder
would wait after each frame for all queued work, including the networks'. On a separate stream, the
decoder only queues work. It reuses a frame's memory for the next frame, so readers of a frame must
be queued on the same stream before that.

A stream is refused with a reason, and the CPU decodes it, if the engine cannot decode it, or if
nothing proves that the engine decoded all of it. Damaged streams are refused because the engine
conceals damage silently, and returns frames that FFmpeg drops. Streams with changing sequence
headers are refused too: see `media.stream_headers`.

All calls into PyNvVideoCodec pass through `Nvdec.call`, because its errors are plain `Exception`s.
`call` sorts them: a CPU must decode the stream, the GPU is out of memory, or the device is lost.

Importing PyNvVideoCodec raises an error without a driver, so a worker imports it when it begins.
"""

# ruff: noqa: ANN401 - PyNvVideoCodec has no types

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from enum import StrEnum
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

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
    one_line,
)
from curator.installation import install_extra
from curator.media.decode import DeviceFrame, DevicePicture, FrameReader, FrameTime
from curator.media.device_errors import device_error
from curator.media.device_frames import DeviceBatch, Form, Program, planes_of_frames
from curator.media.prefetch import ahead
from curator.media.scale import FULL_RANGE
from curator.media.stream_headers import has_several_headers, sequence_header

if TYPE_CHECKING:
    import torch.cuda
    from torch import Tensor

BATCH = 32
"""Frames scaled together. At 1080p, they take 100 MB of the GPU's memory."""

AHEAD = 2
"""Batches decoded ahead."""

MOST = 4
"""Most decoders kept. At 1080p, the surfaces of one may take 60 MB of the GPU's memory."""

ENGINE_WAIT_S = 60.0
"""Seconds in one call after which an engine counts as hung. A packet takes milliseconds."""

MOST_OFF = 2.0
"""Largest mean difference of luma between the engine's and the CPU's first picture, in levels. Only
MPEG-2 allows any difference."""

T = TypeVar("T")

logger = logging.getLogger(__name__)

_CODECS = {
    "h264": ("H264", "h264_mp4toannexb"),
    "hevc": ("HEVC", "hevc_mp4toannexb"),
    "vp9": ("VP9", None),
    "av1": ("AV1", None),
    "mpeg2video": ("MPEG2", None),
}
"""FFmpeg's name of a codec -> the engine's name, and the bitstream filter for packets."""
_FORMS = {"yuv420p": 8, "yuvj420p": 8, "nv12": 8, "yuv420p10le": 10, "p010le": 10}
_PROGRESSIVE = (0, 1)
"""FFmpeg's codes of field orders that are not interlaced: unknown, progressive."""


class Refusal(StrEnum):
    """Why the CPU decodes a source instead of the GPU; counted in `summary.json`."""

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
    """A source must be decoded on the CPU; `by_used` if a reused decoder refused it."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal
        self.by_used = False


class Nvdec:
    """The video engines of one GPU; one per worker.

    Args:
        gpu: Index of the GPU among the GPUs visible to the process.
        module: PyNvVideoCodec, or its replacement in a test.
        device: torch's name of the device that holds frames.

    Raises:
        CuratorError: PyNvVideoCodec is missing, or the driver has no video libraries.
    """

    def __init__(self, gpu: int = 0, *, module: Any = None, device: str = "cuda") -> None:
        self.gpu = gpu
        self.device = device
        self.n_halved = 0
        """Times that batches were halved because they did not fit into the GPU's memory."""
        self.kept: OrderedDict[Hashable, Any] = OrderedDict()
        """Decoders that wait for another stream with the same sequence header.

        On an H100, making a decoder took 50 to 70 ms, in which an engine decodes 2 s of 1080p;
        reconfiguring one took 5 to 6 ms (github.com/meta-pytorch/torchcodec/pull/1176). After an
        end of stream, a decoder should accept the next stream; if one fails, no more are kept.
        """
        self.most_kept = MOST
        self._stream: torch.cuda.Stream | None = None
        self.next_pts = 0
        """Larger than the timestamps of all packets so far."""
        self._caps_of: dict[tuple[str, int], Mapping[str, Any]] = {}
        self._called_at: float | None = None
        self._lost: str | None = None
        self._codec_module = module if module is not None else _import_module()

    def decodes_nothing(self) -> str | None:
        """Returns why the engine cannot even decode H.264, as every engine can; None if it can."""
        try:
            why = self._refused("h264", 8)
        except DeviceError as error:
            why = str(error)
        return None if why is None else f"NVDEC does not answer: {why}"

    def refusal(self, stream: av.VideoStream) -> tuple[Refusal, str] | None:
        """Returns why the engine cannot decode a stream, by its header; None if it can."""
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
        if (why := self._refused(name, bits)) is not None:
            return Refusal.CODEC, why
        caps = self._caps_of[name, bits]
        least = caps.get("width_min", 0), caps.get("height_min", 0)
        most = caps.get("width_max") or width, caps.get("height_max") or height
        if not (least[0] <= width <= most[0] and least[1] <= height <= most[1]):
            return Refusal.SIZE, f"{width}x{height} is outside of {least} to {most}"
        return None

    def _refused(self, codec: str, bits: int) -> str | None:
        """Returns why the engine does not decode a codec; None if it does.

        The answer is cached, because the package makes a CUDA context for each query.
        """
        module, key = self._codec_module, (codec, bits)
        if key not in self._caps_of:
            asked = {"gpuid": self.gpu, "codec": getattr(module.cudaVideoCodec, _CODECS[codec][0])}
            try:
                caps = self.call(module.GetDecoderCaps, bitdepth=bits, **asked)
            except NotOnDeviceError as error:
                caps = {"supported": 0, "why": str(error)}
            self._caps_of[key] = caps
        caps = self._caps_of[key]
        if caps.get("supported", 1):
            return None
        return f"{codec} of {bits} bits: {caps.get('why', 'not decoded by this GPU')}"

    def call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Calls a function of PyNvVideoCodec; all such calls pass through here.

        Raises:
            NotOnDeviceError: The call failed, and the device still works.
            DeviceMemoryError: The GPU is out of memory.
            DeviceLostError: The device is lost. All later calls raise this at once, because the
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
        """Returns the kind of an error of PyNvVideoCodec, or of torch on this device."""
        failure = device_error(error, self._synchronize)
        if isinstance(failure, DeviceLostError):
            self._lost = str(failure)
        return failure or NotOnDeviceError(Refusal.DECODER, one_line(error))

    def _synchronize(self) -> None:
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize(self.gpu)

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """Converts torch's errors to a `DeviceError` if the device fails; others pass unchanged."""
        try:
            yield
        except RuntimeError as error:
            failure = self.failure(error)
            if isinstance(failure, DeviceError):
                raise failure from error
            raise

    def attempt(self, work: Callable[[], T]) -> T:
        """Does work on the device, with a second attempt if that may help.

        If a reused decoder refused the stream, a new one gets it. If the GPU was out of memory,
        kept decoders and cached memory are freed first.

        Raises:
            NotOnDeviceError: A CPU must do the work.
            DeviceError: The device fails.
        """
        is_refused = False
        for is_second in (False, True):
            if is_second and not is_refused:
                self.free()
            try:
                with self.named_errors():
                    result = work()
            except DeviceMemoryError:
                if is_second:
                    raise
            except NotOnDeviceError as error:
                if is_second or not error.by_used:
                    raise
                is_refused = True
            else:
                if is_refused:
                    self.most_kept = 0
                    self.kept.clear()
                    logger.warning("a used decoder failed where a new one does not: none is reused")
                return result
        raise AssertionError("the second attempt returns or raises")

    def free(self) -> None:
        """Frees the memory of kept decoders, and torch's cached memory."""
        self.kept.clear()
        if self.device != "cpu":
            import torch

            torch.cuda.empty_cache()

    def copied(
        self, frames: "Iterator[tuple[T, Tensor]]", most: int
    ) -> "Iterator[tuple[list[T], Tensor]]":
        """Copies the planes of `most` frames at a time, because the decoder reuses its memory.

        If memory is short, all later batches are halved. `T` is the type of a frame's facts.
        """
        while True:
            values: list[T] = []
            batch: Tensor | None = None
            for value, planes in islice(frames, most):
                if batch is None:
                    batch = self._allocated(planes, most)
                    most = len(batch)
                batch[len(values)].copy_(planes)
                values.append(value)
                if len(values) == most:
                    break
            if batch is None:
                return
            yield values, batch[: len(values)]

    def _allocated(self, planes: "Tensor", most: int) -> "Tensor":
        import torch

        try:
            return torch.empty((most, *planes.shape), dtype=planes.dtype, device=planes.device)
        except torch.OutOfMemoryError as error:
            if most == 1:
                raise DeviceMemoryError("the GPU's memory does not hold one frame") from error
        self.n_halved += 1
        torch.cuda.empty_cache()
        return self._allocated(planes, most // 2)

    def queued(self) -> AbstractContextManager[object]:
        """Queues the calling thread's work on the CUDA stream of these engines."""
        if self.device == "cpu":
            return nullcontext()
        import torch

        if self._stream is None:
            self._stream = torch.cuda.Stream(self.gpu)
        return torch.cuda.stream(self._stream)

    def decoder(self, codec: str) -> Any:
        """Returns a new decoder of frames in the GPU's memory; for use within `queued`."""
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

    def packet(self, packet: "Packet[Any] | None", pts: int) -> Any:
        """Returns a packet for the decoder, valid as long as `packet`; None ends the stream.

        The packet's frame will have the timestamp `pts`.
        """
        data = self._codec_module.PacketData()
        data.pts = data.dts = pts
        data.bsl_data = data.bsl = 0
        if packet is not None:
            data.bsl_data, data.bsl = packet.buffer_ptr, packet.size
            data.key = int(packet.is_keyframe)
        return data

    @contextmanager
    def decoding(
        self, form: Form, stream: av.VideoStream, name: str, *, first: av.VideoFrame | None = None
    ) -> "Iterator[EngineStream]":
        """Decodes one stream; keeps its decoder if the block ends without an error.

        Args:
            form: Form of the stream's frames.
            stream: Stream of the packets.
            name: Name for messages.
            first: First picture as the CPU decodes it. The engine's picture must agree.
        """
        engine = EngineStream(self, form, stream, name, first)
        try:
            yield engine
            if engine.first is not None:
                raise engine.refused(Refusal.FRAMES_DIFFER, "the first picture is missing")
        except NotOnDeviceError as refused:
            may_differ = refused.refusal in (Refusal.DECODER, Refusal.FRAMES_DIFFER)
            refused.by_used = engine.was_used and may_differ
            raise
        engine.keep()


_STREAM_GAP = 1 << 32
"""Gap between the timestamps of successive streams: 4 s if ticks are nanoseconds."""


class Sent(NamedTuple):
    """Facts of a packet that a decoder got."""

    pts: int
    duration: int
    is_keyframe: bool


class EngineStream:
    """Decodes one stream with one decoder, which may be a reused one; see `Nvdec.decoding`."""

    def __init__(
        self,
        nvdec: Nvdec,
        form: Form,
        stream: av.VideoStream,
        name: str,
        first: av.VideoFrame | None,
    ) -> None:
        self._nvdec, self._form, self._name = nvdec, form, name
        self.first = first
        """The CPU's first picture; None after the comparison."""
        self.was_used = False
        self.n_sent = 0
        """Number of packets so far with a frame that is shown."""
        self._codec = stream.codec_context.codec.canonical_name
        self._filter = bitstream_filter(stream)
        self._decoder: Any = None
        self._header: bytes | None = None
        self._key: Hashable = None
        self._sent: dict[int, list[Sent]] = {}
        self._pts_offset: int | None = None
        """Offset from timestamps of the stream to the decoder's timestamps."""

    def decoded(self, packets: "Iterator[Packet[Any]]") -> "Iterator[tuple[Sent, Tensor]]":
        """Yields facts and planes of all frames of packets: see `frames`."""
        for packet in packets:
            if packet.size:
                yield from self.frames(packet)
        yield from self.frames(None)

    def frames(self, packet: "Packet[Any] | None") -> "Iterator[tuple[Sent, Tensor]]":
        """Yields facts and planes of finished frames; planes are valid until the next frame.

        The decoder gets timestamps that no earlier packet had, so frames of other streams and
        frames that are not shown are recognized. The timestamps keep the order of display, because
        the driver's parser sorts by them.

        Args:
            packet: The next packet; None ends the stream.

        Raises:
            NotOnDeviceError: The stream must be decoded on the CPU.
            DeviceError: The device fails.
        """
        nvdec, pts = self._nvdec, self._engine_pts(packet)
        if packet is not None and packet.pts is not None and not packet.is_discard:
            sent = Sent(packet.pts, packet.duration or 0, packet.is_keyframe)
            self._sent.setdefault(pts, []).append(sent)
            self.n_sent += 1
        for part in self._filtered(packet):
            self._see_header(part)
            data = nvdec.packet(part, pts)
            for frame in nvdec.call(self._decoder.Decode, data):
                planes = nvdec.call(_planes_of, frame)
                if tuple(planes.shape) != (self._form.height * 3 // 2, self._form.width):
                    detail = f"a frame of {planes.shape[0]} rows and {planes.shape[1]} columns"
                    raise self.refused(Refusal.SIZE_CHANGES, detail)
                if waiting := self._sent.pop(frame.getPTS(), None):
                    shown, *others = waiting
                    if others:  # Several packets had this timestamp.
                        self._sent[frame.getPTS()] = others
                    self._compare(shown, planes)
                    yield shown, planes

    def _engine_pts(self, packet: "Packet[Any] | None") -> int:
        """Returns the timestamp of a packet for the decoder."""
        nvdec = self._nvdec
        if packet is None or packet.pts is None:
            return nvdec.next_pts
        if self._pts_offset is None:
            self._pts_offset = nvdec.next_pts - packet.pts
        pts = packet.pts + self._pts_offset
        nvdec.next_pts = max(nvdec.next_pts, pts + _STREAM_GAP)
        return pts

    def refused(self, refusal: Refusal, detail: str) -> NotOnDeviceError:
        """Returns an error that names the stream."""
        return NotOnDeviceError(refusal, f"{self._name}: {detail}")

    def keep(self) -> None:
        """Keeps the decoder, which has returned all frames of its stream, for another stream."""
        kept = self._nvdec.kept
        if self._key is not None:
            kept[self._key] = self._decoder
        while len(kept) > self._nvdec.most_kept:
            kept.popitem(last=False)

    def _filtered(self, packet: "Packet[Any] | None") -> "Iterator[Packet[Any] | None]":
        """Yields a packet in the engine's form; at the end the filter's last packets and None."""
        if packet is not None and packet.pts is None:
            raise self.refused(Refusal.TIMESTAMPS, "packets without a time")
        if packet is not None and packet.is_corrupt:
            raise self.refused(Refusal.DAMAGED, "a packet is damaged")
        yield from self._filter.filter(packet) if self._filter is not None else [packet]
        if packet is None and self._filter is not None:
            yield None

    def _see_header(self, packet: "Packet[Any] | None") -> None:
        """Chooses a decoder by the first packet's header; refuses a different header later."""
        header = sequence_header(self._codec, packet) if packet is not None else None
        if self._codec == "h264" and packet is not None and has_several_headers(packet):
            # A clip with an encoded head. FFmpeg's decoders take it; NVDEC was not tried.
            raise self.refused(Refusal.SIZE_CHANGES, "several sequence headers")
        if self._decoder is None:
            # Without a header in the first packet, the decoder's configuration is unknown.
            self._key = header and (self._codec, header)
            self._decoder = self._nvdec.kept.pop(self._key, None)
            self.was_used = self._decoder is not None
            self._decoder = self._decoder or self._nvdec.decoder(self._codec)
        self._header = self._header or header
        if header not in (None, self._header):
            raise self.refused(Refusal.SIZE_CHANGES, "another sequence header")

    def _compare(self, sent: Sent, planes: "Tensor") -> None:
        """Refuses a first picture unlike the CPU's: a wrong crop or stride raises no error."""
        if self.first is None or sent.pts != self.first.pts:
            return
        luma = _luma_of(self.first, self._form)
        shown = planes[: len(luma)].cpu().numpy() / np.float32(256 ** (planes.element_size() - 1))
        off = float(np.abs(shown - luma).mean())
        if off > MOST_OFF:
            raise self.refused(Refusal.FRAMES_DIFFER, f"the first picture is {off:.1f} levels off")
        self.first = None


class NvdecReader(FrameReader):
    """Iterates over frames that a GPU decodes, like `FrameReader` on the CPU.

    `program` computes on batches of `batch` frames.

    Raises:
        NotOnDeviceError: The stream's header shows that the CPU must decode it.
    """

    marks_untimed = False

    def __init__(
        self,
        container: av.container.InputContainer,
        stream: av.VideoStream,
        uri: str,
        *,
        nvdec: Nvdec,
        program: Program = planes_of_frames,
        batch: int = BATCH,
        **options: Any,
    ) -> None:
        # The CPU decodes only the first picture, for which one thread is fastest.
        super().__init__(container, stream, uri, **(options | {"threads": 1}))
        refused = nvdec.refusal(stream)
        if refused is not None:
            raise NotOnDeviceError(refused[0], f"{uri}: {refused[1]}")
        self._nvdec, self._batch, self._program = nvdec, batch, program

    def __iter__(self) -> Generator[DeviceFrame]:  # type: ignore[override]
        """Yields frames in order; raises as `FrameReader` does, and `NotOnDeviceError`."""
        packets = self._packets()
        waiting, first = first_picture(packets, self.uri)
        self._check_size(first.width, first.height)
        self._name_colours(first)
        form = form_of(first, self.uri)
        report, nvdec = self.report, self._nvdec
        self._see_first(first)
        if self._has_own_aspect:
            report.first_aspect = self.stream.codec_context.sample_aspect_ratio
        report.sizes.append((first.width, first.height))
        with nvdec.decoding(form, self.stream, self.uri, first=first) as engine:
            frames = engine.decoded(chain(waiting, packets))
            computed = self._program(self._batches(frames, form))

            def make() -> tuple[Sequence[FrameTime], Sequence[Any]] | None:
                with nvdec.queued():
                    return next(computed, None)

            batches = ahead(make, n=AHEAD, name="nvdec", check=nvdec.check_answers)
            with closing(batches):
                for places, views in batches:
                    yield from map(self._shown, places, views)
            if report.is_damaged:
                raise engine.refused(Refusal.DAMAGED, "the container is damaged")
            if report.n_frames != engine.n_sent:
                detail = f"{report.n_frames} frames of {engine.n_sent} packets"
                raise engine.refused(Refusal.FRAMES_DIFFER, detail)

    def _batches(
        self, frames: "Iterator[tuple[Sent, Tensor]]", form: Form
    ) -> Iterator[DeviceBatch]:
        upright = self.report.orientation._asdict()
        for packets, planes in self._nvdec.copied(frames, self._batch):
            places = [self._timed(*sent[:2], key_frame=sent.is_keyframe) for sent in packets]
            yield DeviceBatch(planes=planes, places=places, form=form, **upright)

    def _shown(self, place: FrameTime, view: Any) -> DeviceFrame:
        picture = DevicePicture(key_frame=place.key_frame, view=view)
        index = self._counted(place)
        return DeviceFrame(index=index, pts=place.pts, picture=picture, n_bytes=place.n_bytes)


def first_picture(
    packets: "Iterator[Packet[Any]]", name: str
) -> "tuple[list[Packet[Any]], av.VideoFrame]":
    """Decodes the first picture on the CPU, because headers may lack rotation and colours.

    Returns the packets that were read, and the picture.

    Raises:
        NotOnDeviceError: No picture decodes on the CPU.
    """
    read = []
    for packet in packets:
        read.append(packet)
        try:
            pictures = packet.decode()
        except av.error.FFmpegError as error:
            raise NotOnDeviceError(Refusal.DAMAGED, f"{name}: {one_line(error)}") from error
        if pictures:
            return read, pictures[0]
    raise NotOnDeviceError(Refusal.DAMAGED, f"{name}: no picture decodes")


def form_of(picture: av.VideoFrame, name: str) -> Form:
    """Returns the form of a stream's frames, by its first picture from the CPU.

    Raises:
        NotOnDeviceError: The picture is interlaced, or the engine lacks its pixel format.
    """
    if picture.interlaced_frame:
        raise NotOnDeviceError(Refusal.INTERLACED, f"{name}: interlaced")
    if picture.format.name not in _FORMS:
        raise NotOnDeviceError(Refusal.PIXELS, f"{name}: pixel format {picture.format.name}")
    is_full = picture.format.name == "yuvj420p" or int(picture.color_range) == FULL_RANGE
    return Form(
        width=picture.width,
        height=picture.height,
        bits=_FORMS[picture.format.name],
        is_full_range=is_full,
        matrix=int(picture.colorspace),
    )


def _planes_of(frame: Any) -> "Tensor":
    """Returns a decoded frame's memory, for readers on the decoder's CUDA stream, without a wait.

    Passing the frame itself would take 16 us instead of 2, because torch tries arguments that
    PyNvVideoCodec refuses.
    """
    import torch.utils.dlpack

    return torch.utils.dlpack.from_dlpack(frame.__dlpack__(stream=-1))


def _luma_of(picture: av.VideoFrame, form: Form) -> NDArray[np.float32]:
    """Returns luma in levels from 0 to 255, float32 [H, W]."""
    plane = picture.planes[0]
    kind = np.dtype(np.uint8 if form.bits == 8 else np.uint16)
    rows: NDArray[Any] = np.frombuffer(memoryview(plane), kind).reshape(plane.height, -1)[
        :, : plane.width
    ]
    # P010 stores the bits of a sample at the top of a word, planar formats at the bottom.
    unit = 1 if form.bits == 8 else 256 if picture.format.name == "p010le" else 4
    return np.asarray(rows / np.float32(unit), np.float32)


def bitstream_filter(stream: av.VideoStream) -> BitStreamFilterContext | None:
    """Returns the filter that converts packets to the engine's form; None if none is needed."""
    name = _CODECS[stream.codec_context.codec.canonical_name][1]
    return BitStreamFilterContext(name, stream) if name is not None else None


def _import_module() -> Any:
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
