"""Decodes windows of clips on a GPU's video engine (NVDEC) into the GPU's memory.

As on the CPU, the timestamps of the demuxed packets identify the frames, and no frame may be
missing. The CPU decodes clips that the engine refuses, that it decodes to other frames, or that do
not fit into the GPU's memory; the reason is counted.

Creating a decoder may take longer than decoding a window, so the next clip with the same sequence
header reuses the decoder. If a reused decoder fails and a new decoder succeeds, each later clip
gets a new decoder. For each header, the engine's first frame is compared with the CPU's.

A lost device raises an error in the trainer. Decoding has no time limit of its own, because CUDA's
streams and the output tensor bind it to the thread that requests the batch; for workers, `timeout`
of torch's loader is the limit.

Shape letters: C channels (red, green, blue), T and B frames, H, W height and width.
"""

# ruff: noqa: N803, N806 - shape letters

import io
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

import av.error
import numpy as np
import torch
from av.container import InputContainer
from av.video.stream import VideoStream
from torch.utils.data import get_worker_info

from curator.errors import DeviceLostError, DeviceMemoryError, SourceError, UsageError
from curator.loading.window_decoder import ClipWindow, decode_window, shown_size
from curator.media.clip_packets import packets_from
from curator.media.container import open_container, video_stream
from curator.media.device_frames import DeviceScaler, Form, unscaled_rgb_BHWC
from curator.media.nvdec import (
    EngineStream,
    NotOnDeviceError,
    Nvdec,
    Refusal,
    first_picture,
    form_of,
)
from curator.media.scale import matrix_of
from curator.media.still_images import read_still

CHUNK = 16
"""Frames per conversion. At 1080p they take 50 MB of GPU memory, and 200 MB of workspace."""

_KNOWN_HEADERS = 4096

_LEFT_SITED = ("h264", "hevc")
"""Codecs whose chroma FFmpeg takes for left-sited where a stream declares nothing. PyAV does not
show what it declares."""

logger = logging.getLogger(__name__)


def gpu_number(gpu: int | None) -> int:
    """Returns the number of the GPU that decodes; None means torch's current GPU.

    Raises:
        UsageError: No GPU has this number, or torch finds no GPU.
    """
    if not torch.cuda.is_available():
        raise UsageError(
            "decode='gpu', but torch finds no GPU; leave decode out to decode on the CPU"
        )
    n_gpus = torch.cuda.device_count()
    number = torch.cuda.current_device() if gpu is None else gpu
    if not 0 <= number < n_gpus:
        raise UsageError(f"gpu {gpu!r}; expected 0 to {n_gpus - 1}, or None for torch's current")
    return number


def engines_of(gpu: int) -> Nvdec:
    """Opens a GPU's video engines for this process.

    Raises:
        UsageError: This process was forked after CUDA had started, so CUDA cannot run in it.
        CuratorError: PyNvVideoCodec is missing, or the driver has no video libraries.
    """
    if torch.cuda._is_in_bad_fork():
        raise UsageError(
            "CUDA does not run in forked workers; start them with "
            "multiprocessing_context='spawn', or decode in the trainer's process (num_workers=0)"
        )
    return Nvdec(gpu, device=f"cuda:{gpu}")


class DeviceDecoder:
    """Decodes windows on one GPU. A decoder belongs to one process and cannot be pickled."""

    def __init__(self, nvdec: Nvdec) -> None:
        self.pid = os.getpid()
        self._nvdec = nvdec
        self._forms: dict[tuple[Any, ...], Form] = {}
        self._warned: set[Refusal] = set()

    @property
    def device(self) -> str:
        """Torch's name of the GPU."""
        return self._nvdec.device

    @contextmanager
    def queued(self, results: list[torch.Tensor]) -> Iterator[None]:
        """Queues work on the engines' stream, which does not wait for the trainer's work.

        When the block ends, torch's current stream waits for that work.
        """
        with self._nvdec.queued():
            yield
            if torch.device(self.device).type != "cuda":
                return
            own_stream = torch.cuda.current_stream(self.device)
        using = torch.cuda.current_stream(self.device)
        using.wait_stream(own_stream)
        if get_worker_info() is None:
            # A worker only sends its results. Freeing a recorded tensor calls CUDA, which would
            # crash a worker that is exiting.
            for result in results:
                result.record_stream(using)

    def decode_or_copy(self, clip: ClipWindow, into_CTHW: torch.Tensor) -> Refusal | None:
        """Decodes on the GPU, else on the CPU; returns the reason for the CPU, or None."""
        try:
            self.decode(clip, into_CTHW)
            return None
        except NotOnDeviceError as error:
            refusal, words = error.refusal, str(error)
        if refusal not in self._warned:
            self._warned.add(refusal)
            logger.warning(
                "%s is decoded on the CPU (%s: %s); `not_on_gpu` counts all clips with this "
                "reason", clip.name, refusal, words,
            )  # fmt: skip
        host_CTHW = torch.empty(into_CTHW.shape, dtype=torch.uint8)
        decode_window(clip, host_CTHW)
        into_CTHW.copy_(host_CTHW)
        return refusal

    def decode(self, clip: ClipWindow, into_CTHW: torch.Tensor) -> None:
        """Decodes a window into a tensor in the GPU's memory; call it within `queued`.

        Raises:
            NotOnDeviceError: The clip must be decoded on the CPU.
            DeviceLostError: The GPU, its driver or this process's CUDA context failed for good.
            ShardError: The frames are too small.
        """
        try:
            self._nvdec.attempt(partial(self._attempt, clip, into_CTHW))
        except (av.error.FFmpegError, SourceError) as error:
            raise NotOnDeviceError(Refusal.DAMAGED, str(error)) from error
        except DeviceMemoryError as error:
            raise NotOnDeviceError(Refusal.MEMORY, str(error)) from error
        except DeviceLostError as error:
            raise DeviceLostError(
                f"{error}, while {clip.name} was decoded; CUDA does not recover within a process; "
                "restart the process, and look for the cause in `dmesg` (Xid) and `nvidia-smi -q`"
            ) from error

    def _attempt(self, clip: ClipWindow, into_CTHW: torch.Tensor) -> None:
        if read_still(io.BytesIO(clip.mp4), clip.name, len(clip.mp4)) is not None:
            raise NotOnDeviceError(Refusal.CODEC, f"{clip.name} is a still image")
        with open_container(io.BytesIO(clip.mp4), clip.name, n_bytes=len(clip.mp4)) as container:
            stream = video_stream(container, clip.name)
            form = self._form(container, stream, clip.name)
            shown_size(form.height, form.width, into_CTHW.shape[-2:], clip)
            with self._nvdec.decoding(form, stream, clip.name) as engine:
                numbered = _numbered(container, stream, engine, clip)
                different = set(clip.wanted.tolist())
                wanted = (frame for frame in numbered if frame[0] in different)
                n_wanted = len(different)
                batches = self._nvdec.copied(islice(wanted, n_wanted), min(CHUNK, n_wanted))
                _fill(batches, clip, form, into_CTHW)
                # The next clip must not get the remaining frames.
                for _ in engine.frames(None):
                    pass

    def _form(self, container: InputContainer, stream: VideoStream, name: str) -> Form:
        """Returns the form of a clip's frames; CPU and engine are compared once per header."""
        context = stream.codec_context
        header = (
            context.codec.canonical_name, bytes(context.extradata or b""), context.width,
            context.height, context.pix_fmt, context.colorspace, context.color_range,
        )  # fmt: skip
        if header not in self._forms:
            if len(self._forms) >= _KNOWN_HEADERS:
                self._forms.clear()
            self._forms[header] = self._form_of_first(container, stream, name)
            container.seek(0, stream=stream)
        return self._forms[header]

    def _form_of_first(self, container: InputContainer, stream: VideoStream, name: str) -> Form:
        refused = self._nvdec.refusal(stream)
        if refused is not None:
            raise NotOnDeviceError(refused[0], f"{name}: {refused[1]}")
        packets, first = first_picture(container.demux(stream), name)
        form = replace(
            form_of(first, name),
            matrix=matrix_of(first),
            is_left_sited=stream.codec_context.codec.canonical_name in _LEFT_SITED,
        )
        with self._nvdec.decoding(form, stream, name, first=first) as engine:
            for _ in engine.decoded(iter(packets)):
                pass
        return form


def _numbered(
    container: InputContainer, stream: VideoStream, engine: EngineStream, clip: ClipWindow
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yields frames with their indices, from the key frame before the window on.

    Planes are valid until the next frame is requested.
    """
    assert stream.time_base is not None
    ticks = 1 / (clip.rate * stream.time_base)
    packets = packets_from(container, stream, round(clip.start * ticks))
    key = next(packets)
    # Read here: the engine's filter empties the packet.
    key_pts = key.pts or 0
    first = expected = round(key_pts / ticks)
    # The engine skips leading pictures of an open GOP, which are shown before its key frame, and
    # would give their times to the pictures after them.
    shown = (packet for packet in packets if packet.pts is None or packet.pts > key_pts)
    for sent, planes in engine.decoded(chain([key], shown)):
        at = round(sent.pts / ticks)
        if at != expected or first > clip.start:
            detail = f"frame {at} came where {min(expected, clip.start)} was expected"
            raise engine.refused(Refusal.FRAMES_DIFFER, detail)
        expected += 1
        yield at, planes


def _fill(
    batches: Iterator[tuple[list[int], torch.Tensor]],
    clip: ClipWindow,
    form: Form,
    into_CTHW: torch.Tensor,
) -> None:
    """Converts, scales and crops the wanted frames as on the CPU."""
    size = into_CTHW.shape[-2:]
    height, width = shown_size(form.height, form.width, size, clip)
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    method = "area" if height < form.height else "bicubic"
    done, wanted = 0, clip.wanted
    for numbers, planes in batches:
        # FFmpeg's fast conversion is for 8 bits only; otherwise it scales chroma up.
        if (height, width) == (form.height, form.width) and form.bits == 8:
            rgb_BHWC = unscaled_rgb_BHWC(planes, form)
        else:
            rgb_BHWC = DeviceScaler(width, height, method=method).rgb_BHWC(planes, form)
        cropped_BHWC = rgb_BHWC[:, top : top + size[0], left : left + size[1]]
        end = int(np.searchsorted(wanted, numbers[-1], side="right"))
        if end - done != len(numbers):
            # The window has a frame several times.
            places = np.searchsorted(numbers, wanted[done:end])
            cropped_BHWC = cropped_BHWC[torch.from_numpy(places).to(cropped_BHWC.device)]
        into_CTHW[:, done:end] = cropped_BHWC.permute(3, 0, 1, 2)
        done = end
    if done < len(wanted):
        detail = f"{clip.name}: {done} of {len(wanted)} frames from {clip.start}"
        raise NotOnDeviceError(Refusal.FRAMES_DIFFER, detail)
