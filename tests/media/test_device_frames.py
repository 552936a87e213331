"""Frames on a device are scaled to the pixels that FFmpeg's scaler gives on the host."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from av.video.frame import VideoFrame
from fake_nvdec import planes_of
from film_shots import texture

from curator.media.decode import FrameTime
from curator.media.device_frames import (
    DeviceBatch,
    DeviceScaler,
    Form,
    HostCopy,
    gray_of,
    luma_of,
    scaling_matrix,
)
from curator.media.nvdec import form_of
from curator.media.opencv import cv2
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


def on_device(frame: VideoFrame) -> tuple[torch.Tensor, Form]:
    """The frame as NVDEC would hold it, [1, 3 H / 2, W] on torch's CPU."""
    return planes_of(frame)[None], form_of(frame, "a frame")


FORMS = {
    "1080p": ((1920, 1080), "yuv420p", 1),
    "720p": ((1280, 720), "yuv420p", 2),
    "VGA": ((640, 480), "yuv420p", 2),
    "full range": ((720, 1280), "yuvj420p", 2),
    "10 bits": ((1280, 720), "yuv420p10le", 1),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(
    ("target", "method"), [((48, 27), "bicubic"), ((320, 180), "area"), ((213, 120), "area")]
)
@pytest.mark.parametrize("turn", [0, 90])
def test_pixels_are_those_of_ffmpegs_scaler(
    name: str, target: tuple[int, int], method: str, turn: int
) -> None:
    """Pins filters, chroma, matrix, range, depth and rotation: a wrong one is many levels off."""
    size, form, matrix = FORMS[name]
    frame = decoded(*size, form=form, matrix=matrix)
    expected = Scaler(*target, method=method, rotation_deg=turn).rgb_HWC(frame).astype(int)
    scaler = DeviceScaler(*target, method=method, rotation_deg=turn)
    found = scaler.rgb_BHWC(*on_device(frame))[0].numpy()
    assert found.shape == expected.shape
    off = found.astype(int) - expected
    assert abs(off.mean()) < 0.6
    assert np.abs(off).mean() < 2.3


def test_frames_scaled_together_are_those_scaled_alone() -> None:
    pictures = [on_device(decoded(640, 360, seed=seed)) for seed in (1, 2, 3)]
    scaler = DeviceScaler(48, 27)
    together = scaler.rgb_BHWC(torch.cat([planes for planes, _ in pictures]), pictures[0][1])
    for number, picture in enumerate(pictures):
        assert torch.equal(together[number], scaler.rgb_BHWC(*picture)[0])


@pytest.mark.parametrize("method", ["area", "bicubic"])
@pytest.mark.parametrize(("source", "result"), [(1080, 27), (100, 48), (48, 48), (20, 48)])
def test_weights_keep_a_flat_picture_flat(method: str, source: int, result: int) -> None:
    matrix = scaling_matrix(source, result, method)
    assert matrix.shape == (result, source)
    assert matrix.sum(axis=1) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("form", ["yuv420p", "yuv420p10le"])
def test_luma_is_the_upper_eight_bits(form: str) -> None:
    frame = decoded(320, 240, form=form)
    luma = luma_of(*on_device(frame))
    assert (luma.dtype, luma.shape) == (torch.uint8, (1, 240, 320))
    as_gray = frame.reformat(format="gray").to_ndarray().astype(int)
    assert np.abs((luma[0].numpy().astype(int) - 16) * 255 / 219 - as_gray).mean() < 1


def test_gray_is_opencvs_to_the_bit_and_sixteen_bits_are_whole() -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (300, 200, 3), np.uint8)
    expected = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
    assert np.array_equal(gray_of(torch.from_numpy(rgb)[None])[0].numpy(), expected)
    # No bit is lost: they are copied as bytes.
    planes = torch.arange(4 * 6 * 8, dtype=torch.int32).mul(321).to(torch.uint16).view(4, 6, 8)
    places = [FrameTime(pts=n, end_pts=n + 1, n_bytes=1) for n in range(4)]
    form = Form(width=8, height=4, bits=10)
    batch = DeviceBatch(planes=planes, places=places, form=form, rotation_deg=0)
    taken = batch.taken([3, 1])
    assert taken.dtype == torch.uint16
    assert np.array_equal(taken.numpy(), planes.numpy()[[3, 1]])
    part = batch.part(slice(1, 3))
    assert [place.pts for place in part.places] == [1, 2]
    assert np.array_equal(part.planes.numpy(), planes.numpy()[1:3])


def test_tensors_of_unlike_types_and_shapes_come_in_one_copy() -> None:
    generator = torch.Generator().manual_seed(0)
    bytes_ = torch.randint(0, 256, (3, 5, 7), generator=generator, dtype=torch.uint8)
    tensors = {
        "strided": bytes_[:, ::2, 1::3],
        "turned": bytes_.transpose(0, 2),
        "float32": torch.rand(2, 3, generator=generator),
        "float16": torch.rand(5, generator=generator).half(),
        "none": torch.empty(0, 4),
        "one": torch.tensor([7], dtype=torch.int32),
    }
    found = HostCopy(tensors).arrays()
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.numpy().dtype
        assert np.array_equal(found[name], tensor.numpy()), name
    assert HostCopy({}).arrays() == {}
