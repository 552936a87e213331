"""Requests for clips of a file, what cuts them, and their pictures."""

import io
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray
from samples import framed

from curator.cut_requests import crop_within, cut_request
from curator.records.clips import Span
from curator.records.cuts import CutRequest
from curator.records.tracks import Track
from curator.stages.cut.clip_cutter import ClipCutter
from curator.stages.cut.config import CutConfig
from curator.stages.cut.stage import CutStage, CutStageConfig

Film = NDArray[np.uint8]


def cutter_of(
    path: Path, config: CutConfig, *, threads: int = 1, max_pixels: int = 10**7
) -> ClipCutter:
    return ClipCutter(
        io.BytesIO(path.read_bytes()), path.name, n_bytes=path.stat().st_size, config=config,
        max_pixels=max_pixels, decoder_threads=threads,
    )  # fmt: skip


def request_of(source: Track | Path, start: int, end: int, min_frames: int = 1) -> CutRequest:
    """A request for the frames [start, end) of a source, within its borders."""
    track = framed(source) if isinstance(source, Path) else source
    span = Span(start_frame=start, end_frame=end, shot=0)
    crop = crop_within(track, span)
    return cut_request(track, "clip", span, crop=crop, min_frames=min_frames)


def pictures(video: bytes | Path) -> list[Film]:
    """All frames, RGB [H, W, 3]."""
    source = str(video) if isinstance(video, Path) else io.BytesIO(video)
    with av.open(source, mode="r") as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def psnr(a: Film, b: Film) -> float:
    assert a.shape == b.shape
    error = float(np.mean((a.astype(np.float32) - b) ** 2))
    return float(10 * np.log10(255**2 / max(error, 1e-6)))


def fingerprint_of(config: CutConfig) -> str:
    """Fingerprint of clips that are cut so."""
    return CutStage(CutStageConfig(cut=config, max_pixels=1)).fingerprint({})
