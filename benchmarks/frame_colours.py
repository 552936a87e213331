"""Compares conversions of 4:2:0 frames to RGB of another size with an exact one.

    python benchmarks/frame_colours.py

The exact conversion is in float64: chroma is interpolated at its place to full size, converted,
and then resized by the weights of `scaling_matrix`. Frames are coloured rectangles in H.264, so
chroma is left-sited; the conversion for centred chroma shows what a wrong place costs.
"""

import io
import json
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import av
import numpy as np
import torch
from av.video.reformatter import Interpolation
from numpy.typing import NDArray

from curator.media.device_frames import DeviceScaler, Form, scaling_matrix, unscaled_rgb_BHWC
from curator.media.scale import Scaler, matrix_of, resized_centre

WIDTH, HEIGHT = 1280, 720
FORMS = {"BT.709": (1, False), "BT.709, full range": (1, True), "BT.601": (5, False)}
LUMA_OF = {1: (0.2126, 0.0722), 5: (0.299, 0.114)}
SIZES = {(456, 256): "area", (455, 256): "area", (854, 480): "area", (WIDTH, HEIGHT): "area",
         (1920, 1080): "bicubic"}  # fmt: skip
N_TIMED = 15

Floats = NDArray[np.float64]


def decoded(matrix: int, *, is_full: bool) -> av.VideoFrame:
    """A frame of H.264 that declares matrix and range, and no chroma location."""
    random = np.random.default_rng(0)
    shown = np.full((HEIGHT, WIDTH, 3), 128, np.uint8)
    colours = [(255, 0, 0), (0, 0, 255), (0, 255, 0), (255, 255, 255), (0, 0, 0), (255, 255, 0)]
    for colour in 10 * colours:
        left, top = random.integers(0, WIDTH), random.integers(0, HEIGHT)
        width, height = random.integers(20, WIDTH // 4), random.integers(20, HEIGHT // 3)
        shown[top : top + height, left : left + width] = colour
    frame = av.VideoFrame.from_ndarray(shown, format="rgb24").reformat(
        format="yuv420p", dst_colorspace=matrix, dst_color_range=2 if is_full else 1
    )
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as made:
        stream = made.add_stream("libx264", rate=25, options={"crf": "1"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.codec_context.colorspace = matrix
        stream.codec_context.color_range = 2 if is_full else 1
        frame.pts, frame.time_base = 0, Fraction(1, 25)
        made.mux(stream.encode(frame))
        made.mux(stream.encode(None))
    with av.open(io.BytesIO(file.getvalue()), mode="r") as container:
        return next(container.decode(video=0))


def planes_of(picture: av.VideoFrame) -> list[NDArray[np.uint8]]:
    """Luma and both chroma planes."""
    return [
        np.frombuffer(memoryview(plane), np.uint8).reshape(plane.height, -1)[:, : plane.width]
        for plane in picture.planes
    ]


def exact(
    picture: av.VideoFrame, size: tuple[int, int], matrix: int, *, is_full: bool, is_left: bool
) -> Floats:
    """RGB from 0 to 255, [h, w, 3]."""
    red, blue = LUMA_OF[matrix]
    across = np.arange(WIDTH) / 2 - (0 if is_left else 0.25)
    luma, *chroma = (plane.astype(float) for plane in planes_of(picture))
    u, v = (_between(_between(c, np.arange(HEIGHT) / 2 - 0.25).T, across).T for c in chroma)
    y = luma / 255 if is_full else (luma - 16) / 219
    u, v = ((c - 128) / (255 if is_full else 224) for c in (u, v))
    r, b = y + 2 * (1 - red) * v, y + 2 * (1 - blue) * u
    rgb = np.stack([r, (y - red * r - blue * b) / (1 - red - blue), b], axis=2)
    down = scaling_matrix(HEIGHT, size[1], SIZES[size]).astype(float)
    along = scaling_matrix(WIDTH, size[0], SIZES[size]).astype(float)
    resized = np.einsum("hH,HWc,wW->hwc", down, rgb, along, optimize=True)
    return np.asarray(np.clip(resized * 255, 0, 255), np.float64)


def _between(rows: Floats, at: Floats) -> Floats:
    at = np.clip(at, 0, len(rows) - 1)
    low = np.minimum(at.astype(int), len(rows) - 2)
    share = (at - low)[:, None]
    return np.asarray(rows[low] * (1 - share) + rows[low + 1] * share, np.float64)


def whole_chroma(picture: av.VideoFrame, size: tuple[int, int]) -> NDArray[np.generic]:
    """As `resized_centre`, with a chroma pair for each pixel of the result."""
    methods = {"area": Interpolation.AREA, "bicubic": Interpolation.BICUBIC}
    flags = Interpolation.FULL_CHR_H_INT | Interpolation.ACCURATE_RND
    return picture.reformat(
        *size, "rgb24", src_colorspace=matrix_of(picture),
        interpolation=int(methods[SIZES[size]] | flags), threads=1,
    ).to_ndarray()  # fmt: skip


def on_device(
    picture: av.VideoFrame, size: tuple[int, int], matrix: int, *, is_full: bool
) -> NDArray[np.uint8]:
    """As the loader with `decode="gpu"`, computed on the CPU."""
    y, u, v = planes_of(picture)
    pairs = np.stack([u, v], axis=2).reshape(HEIGHT // 2, WIDTH)
    planes = torch.from_numpy(np.concatenate([y, pairs]))[None]
    form = Form(
        width=WIDTH, height=HEIGHT, is_full_range=is_full, matrix=matrix, is_left_sited=True
    )
    if size == (WIDTH, HEIGHT):
        return unscaled_rgb_BHWC(planes, form)[0].numpy()
    return DeviceScaler(*size, method=SIZES[size]).rgb_BHWC(planes, form)[0].numpy()


def time_ms(convert: Callable[[], object]) -> float:
    """Median CPU time of a call."""
    taken = []
    for _ in range(N_TIMED + 1):
        start = time.process_time()
        convert()
        taken.append(time.process_time() - start)
    return float(np.median(taken[1:]) * 1000)


def main() -> None:
    """Prints a table, and then JSON."""
    rows = []
    for name, (matrix, is_full) in FORMS.items():
        picture = decoded(matrix, is_full=is_full)
        for size, method in SIZES.items():
            left, centred = (
                exact(picture, size, matrix, is_full=is_full, is_left=is_left)
                for is_left in (True, False)
            )
            scaler = Scaler(*size, method=method)
            loaded = resized_centre(picture, size, size).astype(float)
            ways: dict[str, Callable[[], NDArray[Any]]] = {
                "loader, annotators": partial(resized_centre, picture, size, size),
                "whole chroma": partial(whole_chroma, picture, size),
                "Scaler": partial(scaler.rgb_HWC, picture),
                "loader, gpu": partial(on_device, picture, size, matrix, is_full=is_full),
            }
            for way, convert in ways.items():
                shown = convert().astype(float)
                off = shown - left
                row = {
                    "form": name, "size": "x".join(map(str, size)), "way": way,
                    "darker": -off.mean(), "error": np.abs(off).mean(),
                    "p999": np.percentile(np.abs(off), 99.9),
                    "error_if_centred": np.abs(shown - centred).mean(),
                    "to_loader": np.abs(shown - loaded).mean(),
                    "to_loader_max": np.abs(shown - loaded).max(),
                    "ms": None if way == "loader, gpu" else time_ms(convert),
                }  # fmt: skip
                rows.append({k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()})
                print(*rows[-1].values(), sep=" | ")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
