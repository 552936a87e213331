"""Signals of quality: each follows its own degradation and leaves clean pictures alone."""

import io
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from film_makers import write_video
from film_shots import pan, photograph, texture
from numpy.typing import NDArray
from samples import analyzed

from curator.measures.noise import full_frame_noise
from curator.measures.picture_quality import change_signals, sharpness, stripes
from curator.measures.sample_signals import SIGNALS, native_signals, picture_signals
from curator.stages.analyze.config import AnalyzeConfig
from curator.tools.footage.scenes import render_shot

Luma = NDArray[np.uint8]


def gray(seed: int = 3, width: int = 960, height: int = 540) -> Luma:
    """A texture as a camera gives it: the finest octaves are soft."""
    picture = cv2.cvtColor(texture(seed, width_px=width, height_px=height), cv2.COLOR_RGB2GRAY)
    return np.asarray(cv2.GaussianBlur(picture, (0, 0), 0.8), np.uint8)


def edged(width: int = 640, height: int = 360) -> Luma:
    """A texture with hard edges in it."""
    luma = gray(width=width, height=height).copy()
    for x in range(40, width - 60, 90):
        for y in range(30, height - 60, 80):
            cv2.rectangle(luma, (x, y), (x + 45, y + 30), int(luma[y, x]) // 2, -1)
    return luma


def sky() -> Luma:
    y, x = np.mgrid[0:540, 0:960]
    return (100 + 70 * y / 540 + 15 * x / 960).astype(np.uint8)


def noisy(luma: Luma, sigma: float) -> Luma:
    noise = np.random.default_rng(1).normal(0, sigma, luma.shape)
    return np.clip(np.rint(luma + noise), 0, 255).astype(np.uint8)


def jpeg(luma: Luma, quality: int) -> Luma:
    data = cv2.imencode(".jpg", luma, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    return np.asarray(cv2.imdecode(data, cv2.IMREAD_GRAYSCALE), np.uint8)


def h264(luma: Luma, qp: int) -> Luma:
    """The last of five frames of a slow pan."""
    buffer = io.BytesIO()
    height, width = luma.shape[0] - 12, luma.shape[1] - 16
    with av.open(buffer, "w", format="matroska") as container:
        stream = container.add_stream("libx264", rate=25, options={"qp": str(qp)})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for index in range(5):
            view = luma[index : index + height, 3 * index : 3 * index + width]
            planes = np.vstack([view, np.full((height // 2, width), 128, np.uint8)])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(planes, format="yuv420p")))
        container.mux(stream.encode(None))
    with av.open(io.BytesIO(buffer.getvalue())) as container:
        frame = list(container.decode(video=0))[-1]
    return np.asarray(frame.to_ndarray()[:height], np.uint8)


def blurred(luma: Luma, sigma: float) -> Luma:
    return np.asarray(cv2.GaussianBlur(luma, (0, 0), sigma), np.uint8)


def resized(luma: Luma, size: tuple[int, int], how: int) -> Luma:
    return np.asarray(cv2.resize(luma, size, interpolation=how), np.uint8)


def test_all_signals_are_named() -> None:
    """Pins that what is measured is what is documented."""
    given = native_signals(gray()).keys() | picture_signals(gray()).keys()
    given |= change_signals(gray(), gray()).keys() | {"motion"}
    assert given <= set(SIGNALS)


def test_sharpness_falls_with_blur_and_one_sharp_part_is_enough() -> None:
    values = [sharpness(blurred(edged(), sigma)) for sigma in (0.5, 1, 2, 4, 8)]
    assert values == sorted(values, reverse=True)
    assert values[0] > 0.3 > 0.2 > values[3]
    assert sharpness(sky()) == 1.0
    assert sharpness(np.full((360, 640), 90, np.uint8)) == 1.0
    # One sharp part makes a soft picture sharp and a border does not.
    soft = blurred(edged(), 5)
    part = soft.copy()
    part[100:300, 100:400] = edged()[100:300, 100:400]
    assert sharpness(part) > 2 * sharpness(soft)
    boxed = soft.copy()
    boxed[:70], boxed[-70:] = 0, 0
    assert picture_signals(boxed)["sharpness"] < 1.3 * sharpness(soft)


@pytest.mark.parametrize("sigma", [2, 4, 8, 16])
def test_noise_is_measured_in_levels(sigma: float) -> None:
    """Pins the unit within a quarter, on a smooth picture, in limited range too."""
    dirty = noisy(sky(), sigma)
    assert native_signals(dirty)["noise"] == pytest.approx(sigma, rel=0.25)
    scaled = native_signals(dirty, black=16, white=235)["noise"]
    assert scaled == pytest.approx(sigma * 255 / 219, rel=0.25)


def test_texture_and_clipped_pictures_have_no_noise() -> None:
    # Pins less than a level for clean texture, and that noise over it is seen.
    assert native_signals(gray())["noise"] < 0.5
    assert native_signals(noisy(gray(), 8))["noise"] > 6
    # Pins NaN where black and white have swallowed it.
    assert np.isnan(native_signals(np.zeros((540, 960), np.uint8))["noise"])
    assert np.isnan(native_signals(np.full((540, 960), 255, np.uint8))["noise"])


@pytest.mark.parametrize("offset", [(0, 0), (3, 5)])
def test_blocking_rises_with_compression_wherever_the_grid_lies(offset: tuple[int, int]) -> None:
    y, x = offset
    values = [native_signals(jpeg(gray(), q)[y:, x:])["blocking"] for q in (75, 50, 30, 15, 7)]
    assert values == sorted(values)
    assert native_signals(gray())["blocking"] < 0.1 < 1 < values[-1]


@pytest.mark.parametrize("factor", [1.5, 2, 2.25])
def test_blocks_that_were_enlarged_are_seen(factor: float) -> None:
    small = resized(gray(), (640, 360), cv2.INTER_AREA)
    size = (round(640 * factor), round(360 * factor))
    clean, dirty = (
        native_signals(resized(luma, size, cv2.INTER_CUBIC))["blocking"]
        for luma in (small, jpeg(small, 10))
    )
    assert clean < 0.25 < 0.5 < dirty


def test_flattening_banding_and_combs_are_measured() -> None:
    # Pins what `blocking` does not see: H.264 under a moving camera.
    values = [native_signals(gray())["flattening"]]
    values += [native_signals(h264(gray(), qp))["flattening"] for qp in (28, 38, 48)]
    assert values == sorted(values)
    assert values[0] < 0.02 < 0.05 < values[-1]
    # Flattening needs contrast and is no blur.
    assert np.isnan(native_signals(sky())["flattening"])
    assert native_signals(blurred(gray(), 2))["flattening"] < 0.03
    assert native_signals(noisy(gray(), 4))["flattening"] < 0.01
    # Banding rises with coarser steps and noise hides it.
    values = [native_signals(sky() // step * step)["banding"] for step in (1, 2, 4, 8, 16)]
    assert values == sorted(values)
    assert values[-1] > 100 > 20 > values[0]
    assert native_signals(noisy(sky(), 2))["banding"] < 0.1
    assert native_signals(jpeg(gray(), 10))["banding"] < 5
    # Motion between fields is seen, and noise and horizontal detail are not.
    woven = gray().copy()
    woven[1::2] = np.roll(gray(), 12, axis=1)[1::2]
    assert native_signals(woven)["combing"] > 0.05
    assert native_signals(gray())["combing"] < 0.001
    assert native_signals(noisy(gray(), 12))["combing"] < 0.002


def test_resolution_is_that_of_the_detail() -> None:
    # Pins that enlarging leaves the smaller size's share, and a sky is not called enlarged.
    sharp = np.asarray(
        cv2.cvtColor(texture(3, width_px=960, height_px=540), cv2.COLOR_RGB2GRAY), np.uint8
    )
    values = [native_signals(sharp)["resolution"]]
    for factor in (2, 3, 4):
        small = resized(sharp, (960 // factor, 540 // factor), cv2.INTER_AREA)
        values.append(native_signals(resized(small, (960, 540), cv2.INTER_LINEAR))["resolution"])
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.45
    assert native_signals(sky())["resolution"] == 1.0
    # Pins less than half, or not known, where nothing but noise is busy.
    assert not native_signals(noisy(np.full((360, 640), 120, np.uint8), 12))["resolution"] > 0.5


@pytest.mark.parametrize("sigma", [2, 8])
def test_noise_is_no_resolution(sigma: float) -> None:
    soft = blurred(edged(), 2)
    clean = native_signals(soft)["resolution"]
    assert native_signals(noisy(soft, sigma))["resolution"] < clean + 0.1


@pytest.mark.parametrize("offset", [0, 3])
def test_blocks_are_no_resolution(offset: int) -> None:
    """Pins the steps of JPEG, and of pixels that were enlarged eightfold without filtering."""
    soft = blurred(edged(), 2)
    clean = native_signals(soft)["resolution"]
    assert native_signals(jpeg(soft, 8)[:, offset:])["resolution"] < clean + 0.1
    large = resized(resized(edged(), (80, 45), cv2.INTER_AREA), (640, 360), cv2.INTER_NEAREST)
    assert native_signals(large[:, offset:])["resolution"] < 0.3


def test_scratches_static_and_change_are_told_from_blocks_and_moves() -> None:
    # Pins that edges of blocks, short and at right angles, are not taken for scratches.
    assert stripes(jpeg(gray(width=640, height=360), 8)) < 2
    # Scratches stand out in one direction.
    scratched = gray(width=640, height=360).copy()
    for x in range(150, 500, 37):
        scratched[:, x : x + 2] = np.minimum(255, scratched[:, x : x + 2].astype(int) + 50)
    assert stripes(gray(width=640, height=360)) < 2 < 4 < stripes(scratched)
    assert stripes(np.ascontiguousarray(scratched[:360, 100:460].T)) > 4
    # Static is noise and change sees a small part move.
    rng = np.random.default_rng(5)
    static = [np.clip(rng.normal(128, 40, (180, 320)), 0, 255).astype(np.uint8) for _ in range(2)]
    assert full_frame_noise(*static) == pytest.approx(40, rel=0.1)
    soft = [blurred(picture, 0.8) for picture in static]
    assert full_frame_noise(*soft) > 10
    still = gray(width=320, height=180)
    assert full_frame_noise(still, gray(seed=4, width=320, height=180)) == 0
    assert full_frame_noise(noisy(still, 10), noisy(np.roll(still, 9, axis=1), 10)) == 0
    assert full_frame_noise(noisy(static[0], 1), static[0]) == 0
    # Change is zero for a still picture and sees a small part move.
    before = gray(width=320, height=180)
    after = before.copy()
    after[80:100, 100:140] = np.roll(before, 9, axis=1)[80:100, 100:140]
    assert change_signals(before, before)["change"] == 0
    assert change_signals(before, after)["change"] > 4
    assert change_signals(before, noisy(before, 0.6))["change"] < 2


@pytest.mark.parametrize("shape", [(1, 1), (6, 10), (33, 40), (16, 2000)])
def test_tiny_pictures_break_nothing(shape: tuple[int, int]) -> None:
    luma = np.full(shape, 90, np.uint8)
    values = native_signals(luma) | picture_signals(luma)
    assert all(isinstance(value, float) for value in values.values())


CONFIG = AnalyzeConfig(text=False, audio=False)


def test_static_is_noise_and_a_fast_pan_over_grass_is_not(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frames = (rng.integers(0, 256, (180, 320, 1), np.uint8).repeat(3, 2) for _ in range(45))
    write_video(tmp_path / "static.mp4", frames, options={"crf": "20"})
    noise = analyzed(tmp_path / "static.mp4", config=CONFIG).signals["noise"]
    assert noise.min() > 8
    # A fast pan over grass is not.
    shot = pan(photograph("grass"), 60, span=0.7, start=(0.9, 0.7), end=(0.5, 0.4), seed=12)
    write_video(tmp_path / "grass.mp4", render_shot(shot, width_px=640, height_px=360))
    noise = analyzed(tmp_path / "grass.mp4", config=CONFIG).signals["noise"]
    assert np.fmax(noise, 0).max() < 4
