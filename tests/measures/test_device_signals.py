"""Signals measured in torch: those of the CPU on the same pixels, and nothing that waits."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
import torch
from film_shots import texture
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from curator.measures.borders import content_of, find_borders
from curator.measures.device_signals import (
    EXPOSURE,
    NATIVE,
    PICTURE,
    exposure_signals_of,
    native_signals_of,
    picture_signals_of,
)
from curator.measures.sample_signals import native_signals, picture_signals
from curator.media.scale import luma_plane

Luma = NDArray[np.uint8]
SIZE = HEIGHT, WIDTH = 270, 480
TOLERANCE = 1e-4
"""Absolute, and relative above 1. Flattening, combing and exposure are sums of whole numbers."""
EXACT = {"flattening", "combing", *EXPOSURE}


def gray() -> Luma:
    picture = cv2.cvtColor(texture(3, width_px=WIDTH, height_px=HEIGHT), cv2.COLOR_RGB2GRAY)
    return np.asarray(cv2.GaussianBlur(picture, (0, 0), 0.8), np.uint8)


def noisy(luma: Luma, sigma: float) -> Luma:
    noise = np.random.default_rng(1).normal(0, sigma, luma.shape)
    return np.clip(np.rint(luma + noise), 0, 255).astype(np.uint8)


def jpeg(luma: Luma, quality: int) -> Luma:
    data = cv2.imencode(".jpg", luma, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    return np.asarray(cv2.imdecode(data, cv2.IMREAD_GRAYSCALE), np.uint8)


def enlarged(luma: Luma) -> Luma:
    small = cv2.resize(luma, (WIDTH * 2 // 3, HEIGHT * 2 // 3), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.resize(jpeg(small, 15), (WIDTH, HEIGHT)), np.uint8)


def sky() -> Luma:
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    return (100 + 70 * y / HEIGHT + 15 * x / WIDTH).astype(np.uint8)


def woven() -> Luma:
    """Lines of two moments."""
    luma = gray()
    luma[1::2] = np.roll(luma[1::2], 8, axis=1)
    return luma


def lined() -> Luma:
    """Slanted lines over a texture."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    return np.clip(gray() + 40.0 * ((x + 2 * y) % 12 < 2), 0, 255).astype(np.uint8)


def letterboxed() -> Luma:
    luma = gray()
    luma[:31], luma[-33:], luma[:, :44] = 16, 16, 16
    return luma


def pictures() -> list[Luma]:
    """Each kind of damage, and pictures in which some signals say nothing."""
    return [
        gray(), sky(), woven(), lined(), letterboxed(), enlarged(gray()),
        *(noisy(gray(), sigma) for sigma in (1, 6, 20)), *(noisy(sky(), sigma) for sigma in (1, 8)),
        *(jpeg(gray(), quality) for quality in (60, 25, 8)), sky() // 4 * 4, gray() // 12,
        *(np.full(SIZE, level, np.uint8) for level in (0, 120, 255)),
    ]  # fmt: skip


def check(names: Sequence[str], found: Tensor, expected: dict[str, float]) -> None:
    for name, value in zip(names, found.tolist(), strict=True):
        tolerance = 1e-6 if name in EXACT else TOLERANCE
        assert value == pytest.approx(expected[name], rel=tolerance, abs=tolerance, nan_ok=True), (
            name
        )


def check_native(luma: Luma, black: int, white: int, *, whole: Tensor | None = None) -> None:
    """Compares one picture; `whole` is it in a device's memory, if not of 8 bits."""
    tensor = torch.from_numpy(luma) if whole is None else whole
    inner = content_of(tensor, find_borders(luma, black=black, white=white))
    (found,) = native_signals_of(inner[None], black=black, white=white)
    assert found.dtype == torch.float32
    check(NATIVE, found, native_signals(luma, black=black, white=white))


def check_picture(luma: Luma) -> None:
    tensor = torch.from_numpy(luma)
    (found,) = picture_signals_of(content_of(tensor, find_borders(luma))[None])
    check(PICTURE, found, picture_signals(luma))
    check(EXPOSURE, exposure_signals_of(tensor[None])[0], picture_signals(luma))


def test_signals_are_those_of_the_cpu() -> None:
    # Pins all signals, NaN among them, on each kind of picture.
    for number, luma in enumerate(pictures()):
        check_native(luma, 16, 235)
        check_picture(luma)
        if number % 4 == 0:
            check_native(luma, 0, 255)
    # Pins each picture's values for any neighbours, in views of larger frames.
    frames = torch.from_numpy(np.stack(pictures()[::3]))
    inner = frames[:, 30:251, 17:460]
    native = native_signals_of(inner, black=16, white=235)
    shown = picture_signals_of(inner)
    for index in range(len(frames)):
        alone = inner[index : index + 1].contiguous()
        check(NATIVE, native[index], as_dict(NATIVE, native_signals_of(alone, black=16, white=235)))
        check(PICTURE, shown[index], as_dict(PICTURE, picture_signals_of(alone)))
    # Of 16 bits the upper 8 count.
    luma = noisy(letterboxed(), 2)
    deep = luma.astype(np.uint16) << 8 | np.random.default_rng(1).integers(0, 256, luma.shape)
    check_native(luma, 16, 235, whole=torch.from_numpy(deep.astype(np.uint16)))


@pytest.mark.parametrize(
    "size",
    [(1, 1), (6, 10), (31, 200), (32, 32), (33, 47), (57, 63), (70, 90), (129, 127), (240, 33),
     (101, 480)],
)  # fmt: skip
def test_small_and_odd_sizes(size: tuple[int, int]) -> None:
    """Pins sizes with other strips for rows than for columns, and segments of less than 64 px."""
    for luma in (noisy(gray(), 1), noisy(gray(), 9), jpeg(gray(), 25)):
        part = np.ascontiguousarray(luma[: size[0], : size[1]])
        check_native(part, 16, 235)
        check_picture(part)


def as_dict(names: Sequence[str], values: Tensor) -> dict[str, float]:
    return dict(zip(names, values[0].tolist(), strict=True))


class _Launches(TorchDispatchMode):
    """Counts operations that are not views."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if not func.is_view and func is not torch.ops.aten._unsafe_view.default:
            self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("measure", "size", "most"),
    [
        (lambda luma: native_signals_of(luma, black=16, white=235), (1080, 1920), 166),
        (lambda luma: native_signals_of(luma, black=16, white=235), (100, 480), 215),
        (picture_signals_of, (360, 640), 60),
        (exposure_signals_of, (360, 640), 4),
    ],
)
def test_calls_only_queue_few_operations(
    measure: Callable[[Tensor], Tensor], size: tuple[int, int], most: int
) -> None:
    """Pins what a call costs the host, whatever the number of pictures."""
    # Tensors of torch's `meta` device have no values, so reading one fails.
    for n_samples in (1, 32):
        luma = torch.empty((n_samples, *size), dtype=torch.uint8, device="meta")
        measure(luma)
        with _Launches() as launches:
            measure(luma)
        assert launches.counts.total() <= most, launches.counts


@pytest.mark.needs_media
def test_signals_of_real_footage() -> None:
    """Pins codecs' blocks, interlacing, borders and 10 bits as real files have them."""
    beside = Path(__file__).parents[3] / "shared" / "media"
    media = Path(os.environ.get("CURATE_TEST_MEDIA", beside))
    if not media.is_dir():
        pytest.skip(f"no labelled test videos in {media}; set CURATE_TEST_MEDIA")
    names = (
        "formats/hdr10_pq_hevc.mp4", "formats/derived_interlaced_tff_mpeg2.ts",
        "derived/dog_letterbox_4x3.mp4", "quality/tv_static.mp4",
        "quality/juggle_upscaled_blocky.mp4", "single/chaplin.mp4",
    )  # fmt: skip
    for name in names:
        with av.open(str(media / name)) as container:
            frame = next(container.decode(video=0))
            luma, black, white = luma_plane(frame)
            check_native(np.array(luma), black, white)
            gray = frame.reformat(width=640, height=360, format="gray").to_ndarray()
            check_picture(np.asarray(gray, np.uint8))
