#!/usr/bin/env python3
"""CPU time that a host takes beside a GPU: how many frames/s its cores can feed. Needs no GPU.

    gpu_host.py FILE... [--no-text]

The GPU's own work is left out: an engine gives pictures that were decoded before, in presentation
order and a few packets late; they are scaled once; the shot network answers zero behind its colour
histograms. All else is the GPU path's: demuxing, the bookkeeping of frames, the copies of small
pictures and of parts of luma, all measurements on the CPU. Text detection is computed on the CPU
here, by onnxruntime, which a GPU's worker does not do: `--no-text` leaves it out. Work that a GPU
costs its host, starting kernels above all, is not in it: read the figures as bounds.
"""

import argparse
import heapq
import io
import os
import time
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import av
import numpy as np
import torch
from measure import machine

from curator.media import device_frames as planes
from curator.media import nvdec
from curator.media.decode import DeviceFrame
from curator.models.text_detector import TextDetector
from curator.models.transnet import ShotNetwork, ShotStream, _colour_histograms
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.decode_source import analyze_source
from curator.stages.analyze.measurer import Instruments

KEPT = 16
"""Pictures that stand for all of a file's."""
_LATE = 4


def pictures_of(path: Path) -> list[torch.Tensor]:
    """Every fifth of the first pictures, 8 bits, as an engine holds them."""
    found = []
    with av.open(str(path)) as container:
        for picture in islice(container.decode(video=0), 0, 5 * KEPT, 5):
            rows = picture.reformat(format="nv12").to_ndarray()
            found.append(torch.from_numpy(rows))
    return found


class Engine:
    """Gives the packets' times back in order, and pictures without decoding them."""

    def __init__(self, pictures: list[torch.Tensor]) -> None:
        self._pictures = pictures
        self._times: list[int] = []

    def Decode(self, packet: Any) -> list[Any]:  # noqa: ANN401, N802
        """Frames, `_LATE` packets late; all that are left at the end."""
        if packet.bsl:
            heapq.heappush(self._times, packet.pts)
        n_due = len(self._times) if not packet.bsl else max(0, len(self._times) - _LATE)
        return [self._frame(heapq.heappop(self._times)) for _ in range(n_due)]

    def _frame(self, pts: int) -> Any:  # noqa: ANN401
        rows = self._pictures[pts // 1024 % len(self._pictures)]
        return SimpleNamespace(getPTS=lambda: pts, __dlpack__=rows.__dlpack__, rows=rows)


class HostReader(nvdec.NvdecReader):
    """As its base, but that pictures are neither copied nor scaled."""

    def _decoded(self, packets: Any, form: Any) -> Any:  # noqa: ANN401
        decoder = self._nvdec.decoder(self._codec)
        for packet in self._filtered(packets):
            for frame in decoder.Decode(self._nvdec.packet(packet)):
                yield frame.getPTS(), frame.rows

    def _taken(self, frames: Any) -> Any:  # noqa: ANN401
        taken = list(islice(frames, self._batch))
        return tuple(zip(*taken, strict=True)) if taken else None

    def _tiny_pictures(self, planes: Any, form: Any) -> Any:  # noqa: ANN401
        one = self._tiny.rgb_BHWC(planes[0][None], form)[0].numpy()
        return np.broadcast_to(one, (len(planes), *one.shape))

    def _shown(self, times: Any, planes: Any, tiny: Any, form: Any) -> Iterator[DeviceFrame]:  # noqa: ANN401
        class Whole(list):  # type: ignore[type-arg]
            is_cuda = False

        yield from super()._shown(times, Whole(planes), tiny, form)


def without_the_gpus_work() -> None:
    """Puts what costs nothing in the place of what a GPU does."""
    scaled: dict[Any, torch.Tensor] = {}
    real = planes.DeviceScaler.rgb_BHWC

    def rgb_BHWC(self: Any, pictures: torch.Tensor, form: Any) -> torch.Tensor:  # noqa: ANN401, N802
        key = self._size, self._method, self._turns, form
        if key not in scaled:
            scaled[key] = real(self, pictures[:1], form)
        return scaled[key].expand(len(pictures), -1, -1, -1)

    def compute(self: Any, frames_THWC: Any, *, is_last: bool) -> None:  # noqa: ANN401, N803
        _colour_histograms(frames_THWC)
        head = self._network.head
        n_values = 2 + len(head.enter) * head.projected
        answers = self._shown(np.zeros((len(frames_THWC), n_values), np.float32), self._n_answered)
        self._n_answered += len(frames_THWC)
        self._answered(answers)

    planes.DeviceScaler.rgb_BHWC = rgb_BHWC  # type: ignore[method-assign]
    ShotStream._compute = compute  # type: ignore[method-assign]


def measured(path: Path, *, text: bool) -> tuple[int, Fraction, float, dict[str, float]]:
    """Frames, seconds of video, CPU-seconds, and how they divide."""
    from curator.stages.analyze import decode_source as analyze

    pictures = pictures_of(path)
    module = SimpleNamespace(
        PacketData=SimpleNamespace,
        cudaVideoCodec=SimpleNamespace(H264=0, HEVC=1, VP9=2, AV1=3, MPEG2=4),
        GetDecoderCaps=lambda **_: {"supported": 1},
        CreateDecoder=lambda **_: Engine(pictures),
    )
    analyze.NvdecReader = HostReader  # type: ignore[misc]
    instruments = Instruments(
        network=ShotNetwork(precision="float32"),
        detector=TextDetector() if text else None,
        nvdec=nvdec.Nvdec(module=module, device="cpu"),
    )
    data = path.read_bytes()
    for _ in range(2):  # the second time counts
        spent: dict[str, float] = {}
        begun = time.process_time()
        track = analyze_source(
            io.BytesIO(data), path.name, source_id="0" * 32, n_bytes=len(data),
            instruments=instruments, config=AnalyzeConfig(text=text), decoder_threads=1,
            spent=spent,
        )  # fmt: skip
        cpu_s = time.process_time() - begun
    if any("not_on_gpu" in note for note in track.notes):
        raise SystemExit(f"{path.name}: {track.notes}; give files that the engine decodes")
    return track.n_frames, track.duration_s, cpu_s, spent


def main() -> None:
    """Prints a row per file, and what 16 cores would feed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--no-text", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    without_the_gpus_work()
    print(machine())
    print("| file | frames | us a frame | ms a second of video | by part, s | 16 cores: frames/s |")
    print("|---|---:|---:|---:|---|---:|")
    for path in options.files:
        n_frames, seconds, cpu_s, spent = measured(path, text=not options.no_text)
        parts = ", ".join(f"{name} {value:.2f}" for name, value in sorted(spent.items()))
        costs = f"{1e6 * cpu_s / n_frames:.0f} | {1e3 * cpu_s / float(seconds):.1f}"
        print(f"| {path.name} | {n_frames} | {costs} | {parts} | {16 * n_frames / cpu_s:.0f} |")


if __name__ == "__main__":
    main()
