"""Frames on a device are scaled to the pixels that FFmpeg's scaler gives on the host."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from av.video.frame import VideoFrame
from film_shots import texture
from numpy.typing import NDArray

from curator.media.device_frames import DevicePicture, DeviceScaler, Form, scaling_matrix
from curator.media.scale import Scaler


def decoded(
    width: int, height: int, *, form: str = "yuv420p", matrix: int = 2, seed: int = 1
) -> VideoFrame:
    """A frame as a decoder gives it."""
    rgb = texture(seed, width_px=width, height_px=height)
    picture = VideoFrame.from_ndarray(rgb, format="rgb24")
    frame = picture.reformat(format=form, dst_colorspace=5 if matrix == 2 else matrix)
    frame.colorspace = matrix
    frame.pts, frame.time_base = 0, Fraction(1, 30)
    return frame


def on_device(frame: VideoFrame) -> DevicePicture:
    """The frame as NVDEC would hold it, on torch's CPU."""
    bits = frame.format.components[0].bits
    kind = np.uint8 if bits == 8 else np.uint16
    size = np.dtype(kind).itemsize

    def plane(number: int) -> NDArray[np.generic]:
        held = frame.planes[number]
        rows = np.frombuffer(memoryview(held), kind).reshape(-1, held.line_size // size)
        return rows[: held.height, : held.width]

    chroma = np.stack([plane(1), plane(2)], axis=-1).reshape(frame.height // 2, frame.width)
    values = np.concatenate([plane(0), chroma]) << (0 if bits == 8 else 16 - bits)
    form = Form(
        width=frame.width,
        height=frame.height,
        bits=bits,
        is_full_range=frame.format.name.startswith("yuvj"),
        matrix=int(frame.colorspace),
    )
    return DevicePicture(planes=torch.from_numpy(values), form=form, key_frame=True)


@pytest.mark.parametrize(
    ("size", "form", "matrix"),
    [
        ((1920, 1080), "yuv420p", 1),
        ((1280, 720), "yuv420p", 2),
        ((640, 480), "yuv420p", 2),
        ((720, 1280), "yuvj420p", 2),
        ((1280, 720), "yuv420p10le", 1),
    ],
    ids=["1080p", "720p", "VGA", "full range", "10 bits"],
)
@pytest.mark.parametrize(
    ("target", "method"), [((48, 27), "bicubic"), ((320, 180), "area"), ((213, 120), "area")]
)
@pytest.mark.parametrize("turn", [0, 90])
def test_pixels_are_those_of_ffmpegs_scaler(
    size: tuple[int, int],
    form: str,
    matrix: int,
    target: tuple[int, int],
    method: str,
    turn: int,
) -> None:
    """Pins filters, chroma, matrix, range, depth and rotation: a wrong one is many levels off."""
    frame = decoded(*size, form=form, matrix=matrix)
    expected = Scaler(*target, method=method, rotation_deg=turn).rgb_HWC(frame).astype(int)
    found = DeviceScaler(*target, method=method, rotation_deg=turn).rgb_HWC(on_device(frame))
    assert found.shape == expected.shape
    off = found.astype(int) - expected
    assert abs(off.mean()) < 0.6
    assert np.abs(off).mean() < 2.3


def test_frames_scaled_together_are_those_scaled_alone() -> None:
    pictures = [on_device(decoded(640, 360, seed=seed)) for seed in (1, 2, 3)]
    scaler = DeviceScaler(48, 27)
    together = scaler.rgb_BHWC(torch.stack([p.planes for p in pictures]), pictures[0].form)
    for number, picture in enumerate(pictures):
        assert np.array_equal(together[number].numpy(), scaler.rgb_HWC(picture))


@pytest.mark.parametrize("method", ["area", "bicubic"])
@pytest.mark.parametrize(("source", "result"), [(1080, 27), (100, 48), (48, 48), (20, 48)])
def test_weights_keep_a_flat_picture_flat(method: str, source: int, result: int) -> None:
    matrix = scaling_matrix(source, result, method)
    assert matrix.shape == (result, source)
    assert matrix.sum(axis=1) == pytest.approx(1, abs=1e-5)


def test_luma_is_copied_where_it_is_looked_at() -> None:
    """Pins slices, turning and the eight upper bits of sixteen."""
    for form in ("yuv420p", "yuv420p10le"):
        frame = decoded(320, 240, form=form)
        luma = on_device(frame).luma()
        whole = np.asarray(luma)
        assert (luma.shape, whole.dtype, whole.shape) == ((240, 320), np.uint8, (240, 320))
        assert np.array_equal(np.asarray(luma[4::8].T), whole[4::8].T)
        assert np.array_equal(np.asarray(luma.T[8:16]), whole.T[8:16])
        rows = np.array([3, 200, 4])
        assert np.array_equal(np.asarray(luma[rows]), whole[rows])
        assert np.array_equal(np.asarray(luma.T[rows]), whole.T[rows])
        as_gray = frame.reformat(format="gray").to_ndarray().astype(int)
        assert np.abs((whole.astype(int) - 16) * 255 / 219 - as_gray).mean() < 1
