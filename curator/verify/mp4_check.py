"""Compares an MP4 with its sample's JSON."""

import io
from fractions import Fraction
from typing import Any

from curator.media.container import open_container, video_stream
from curator.media.decode import FrameReader

MAX_PIXELS = 1 << 27
"""Larger frames are not decoded: a header that claims them counts as damage."""


def header_differences(mp4: bytes, sample: dict[str, Any], uri: str) -> list[tuple[str, str]]:
    """Returns differences between the MP4's header and the JSON: pairs of found and expected.

    The JSON has `width`, `height`, `n_frames` and `fps_fraction` or `fps`; `uri` is for messages.
    """
    try:
        with open_container(io.BytesIO(mp4), uri, n_bytes=len(mp4)) as container:
            stream = video_stream(container, uri)
            size = f"{stream.width}x{stream.height}"
            n_frames, fps = stream.frames, stream.average_rate
    except Exception as error:  # noqa: BLE001 - damage may raise anything; it becomes a finding
        return [(f"it cannot be opened: {error}", "an MP4")]
    wanted_fps = float(rate_of(sample))
    pairs = [
        (size, f"{sample['width']}x{sample['height']}"),
        (f"{n_frames} frames", f"{sample['n_frames']} frames"),
    ]
    # Containers round a rate to their time base.
    if fps is None or abs(float(fps) - wanted_fps) > 1e-3 * wanted_fps:
        pairs.append((f"{fps or 'unknown'} frames/s", f"{wanted_fps:g} frames/s"))
    return [(actual, expected) for actual, expected in pairs if actual != expected]


def frame_differences(
    mp4: bytes, sample: dict[str, Any], uri: str, *, threads: int
) -> list[tuple[str, str]]:
    """Returns differences between decoded frames and JSON: number, size, first time, damage."""
    first_s: float | None = None
    try:
        with open_container(io.BytesIO(mp4), uri, n_bytes=len(mp4)) as container:
            stream = video_stream(container, uri)
            reader = FrameReader(container, stream, uri, threads=threads, max_pixels=MAX_PIXELS)
            for frame in reader:
                if first_s is None:
                    first_s = float(frame.pts * reader.time_base)
    except Exception as error:  # noqa: BLE001 - damage may raise anything; it becomes a finding
        return [(f"it cannot be decoded: {error}", "frames")]
    report = reader.report
    sizes = ", ".join(f"{width}x{height}" for width, height in report.sizes) or "none"
    pairs = [
        (f"{report.n_frames} frames decode", f"{sample['n_frames']} frames decode"),
        (f"frames of {sizes}", f"frames of {sample['width']}x{sample['height']}"),
        (f"first frame at {first_s} s", "first frame at 0.0 s"),
    ]
    if report.is_damaged:
        pairs.append((f"{report.n_errors + report.n_concealed} damaged frames", "none"))
    return [(actual, expected) for actual, expected in pairs if actual != expected]


def rate_of(sample: dict[str, Any]) -> Fraction:
    """Returns the frames per second of a sample's JSON.

    Raises:
        ValueError: It is not a number.
    """
    try:
        return Fraction(str(sample.get("fps_fraction") or sample["fps"]))
    except ZeroDivisionError as error:
        raise ValueError(str(error)) from error
