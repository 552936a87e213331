"""Where black borders end, in one picture and over the samples of a clip."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
from film_shots import texture
from numpy.typing import NDArray
from samples import made_signals, made_track

from curator.measures.borders import (
    Crop,
    borders_of,
    content_area,
    content_of,
    crop_of,
    find_borders,
)
from curator.measures.clip_view import ClipView
from curator.measures.sample_signals import picture_signals
from curator.measures.score_list import BUILT_IN
from curator.models.transnet import tiny_luma
from curator.records.clips import Span

Luma = NDArray[np.uint8]
WIDTH, HEIGHT = 960, 540


def framed(left: int, top: int, right: int, bottom: int, *, light: float = 1.0) -> Luma:
    """A texture in black borders, limited range."""
    size = WIDTH - left - right, HEIGHT - top - bottom
    inner = cv2.cvtColor(texture(1, width_px=size[0], height_px=size[1]), cv2.COLOR_RGB2GRAY)
    frame = np.full((HEIGHT, WIDTH), 16, np.uint8)
    frame[top : HEIGHT - bottom, left : WIDTH - right] = 16 + inner * (light * 219 / 255)
    return frame


def found(luma: Luma) -> tuple[float, ...]:
    sides = find_borders(luma, black=16, white=235)
    pixels = (sides.left * WIDTH, sides.top * HEIGHT, sides.right * WIDTH, sides.bottom * HEIGHT)
    return tuple(pixels)


@pytest.mark.parametrize(
    "sides",
    [
        (0, 0, 0, 0),
        (0, 69, 0, 69),
        (120, 0, 120, 0),
        (81, 40, 95, 62),
        (0, 0, 0, 33),
        (300, 150, 300, 150),
    ],
)
def test_borders_are_exact_to_a_pixel(sides: tuple[int, int, int, int]) -> None:
    """Pins letterbox, pillarbox, both, unequal and one-sided borders."""
    assert found(framed(*sides)) == pytest.approx(sides, abs=1)


@pytest.mark.parametrize("sides", [(0, 69, 0, 69), (81, 40, 95, 62), (299, 0, 301, 0)])
def test_rows_and_columns_of_one_grid_are_all_that_is_read(sides: tuple[int, ...]) -> None:
    """Pins that a device copies them before anything of the borders is known."""
    frame = framed(*sides)
    elsewhere = np.random.default_rng(1).integers(0, 255, frame.shape).astype(np.uint8)
    elsewhere[4::8], elsewhere[:, 4::8] = frame[4::8], frame[:, 4::8]
    whole = find_borders(frame, black=16, white=235)
    assert find_borders(elsewhere, black=16, white=235) == whole
    assert borders_of(frame[4::8], frame[:, 4::8].T, black=16, white=235) == whole


def test_only_what_is_black_constant_and_straight_is_a_border() -> None:
    # Pins no error where less than eight columns are left.
    frame = np.full((64, 64), 16, np.uint8)
    frame[:, 29:35] = np.arange(64, dtype=np.uint8)[:, None] % 32 * 6 + 40
    sides = find_borders(frame, black=16, white=235)
    assert (sides.left, sides.right) == (29 / 64, 29 / 64)
    # Pins that subtitles and a noisy border change nothing.
    frame = framed(0, 70, 0, 90)
    cv2.putText(frame, "Where have you been?", (150, 500), cv2.FONT_HERSHEY_SIMPLEX, 1.5, 220, 3)
    noisy = frame + np.random.default_rng(1).normal(0, 1.5, frame.shape)
    assert found(np.clip(noisy, 0, 255).astype(np.uint8)) == pytest.approx((0, 70, 0, 90), abs=1)
    # Pins NaN for black, and no straight line in a vignette.
    assert all(np.isnan(found(np.full((HEIGHT, WIDTH), 16, np.uint8))))
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    near = np.clip(1 - 2.6 * np.hypot((x / WIDTH - 0.5), (y / HEIGHT - 0.5)), 0, 1)
    dim = 16 + (framed(0, 0, 0, 0) - 16.0) * near
    assert not any(pixels > 0 for pixels in found(dim.astype(np.uint8)))
    # Pins that a slide's white margins stay.
    frame = framed(0, 70, 0, 70)
    frame[frame == 16] = 200
    assert found(frame) == (0, 0, 0, 0)
    # Pins that measurements inside see no edge of a border; unknown sides cut nothing.
    frame = framed(0, 69, 0, 69)
    assert content_of(frame, find_borders(frame)).min() >= 16
    assert content_of(frame, find_borders(frame)).shape == (HEIGHT - 2 * 71, WIDTH)
    black = np.full((HEIGHT, WIDTH), 16, np.uint8)
    assert content_of(black, find_borders(black)).shape == black.shape


def clip(rotation_deg: int = 0, **shares: object) -> ClipView:
    signals = made_signals(20, **{f"border_{side}": value for side, value in shares.items()})
    width, height = (1280, 720) if rotation_deg % 180 == 0 else (720, 1280)
    track = made_track(300, width=width, height=height, rotation_deg=rotation_deg, signals=signals)
    return ClipView(track, Span(start_frame=0, end_frame=300, shot=0))


def test_the_crop_is_what_the_samples_agree_on() -> None:
    # Pins the pixels of a letterbox: 91 and 90 lines become 92 and 90, inwards and even.
    view = clip(top=91 / 720, bottom=90 / 720)
    assert crop_of(view) == Crop(x=0, y=92, width=1280, height=538)
    assert content_area(view) == pytest.approx(538 / 720)
    assert BUILT_IN.score_clip(view.track, view.span)["content_area"] == pytest.approx(538 / 720)
    assert crop_of(clip()) is None
    assert content_area(clip()) == 1.0
    # Pins fades (NaN) and subtitles, and that a picture at the side in a third is no border.
    top = np.full(20, 90 / 720)
    top[:8] = np.nan
    top[8] = 30 / 720
    assert crop_of(clip(top=top)) == Crop(x=0, y=90, width=1280, height=630)
    top[8:13] = 30 / 720
    assert crop_of(clip(top=top)) == Crop(x=0, y=90, width=1280, height=630)
    top[8:13] = 0
    assert crop_of(clip(top=top)) is None
    top[8:13] = 130 / 720
    assert crop_of(clip(top=top)) is None
    # Pins that a single sample of twenty is not enough.
    top = np.full(20, np.nan)
    top[3] = 0.2
    assert crop_of(clip(top=top)) is None
    assert content_area(clip(top=np.full(20, np.nan))) == 1.0
    # Pins the smallest border: half a percent.
    assert crop_of(clip(left=5 / 1280)) is None
    assert crop_of(clip(left=8 / 1280)) == Crop(x=8, y=0, width=1272, height=720)


@pytest.mark.parametrize(
    ("rotation_deg", "expected"),
    [
        (0, Crop(x=0, y=100, width=1280, height=620)),
        (90, Crop(x=0, y=0, width=620, height=1280)),
        (180, Crop(x=0, y=0, width=1280, height=620)),
        (270, Crop(x=100, y=0, width=620, height=1280)),
    ],
)
def test_borders_as_coded_are_turned_upright(rotation_deg: int, expected: Crop) -> None:
    """Pins where a border at the coded top is when the picture is shown upright."""
    assert crop_of(clip(rotation_deg, top=100 / 720)) == expected


def test_exposure_is_that_of_the_picture_inside() -> None:
    """Pins luma, contrast and clipping: a letterbox makes a clip no darker."""
    inner = texture(1, width_px=WIDTH, height_px=HEIGHT - 160)
    whole = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    whole[80 : HEIGHT - 80] = inner
    scores = []
    for picture, border in ((inner, 0.0), (whole, 80 / HEIGHT)):
        mean, spread = tiny_luma(picture)
        measured = picture_signals(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY))
        shares = {name: measured[name] for name in ("dark_fraction", "bright_fraction")}
        signals = made_signals(20, border_top=border, border_bottom=border, **shares)
        height = picture.shape[0]
        track = replace(
            made_track(300, width=WIDTH, height=height, signals=signals),
            luma_mean=np.full(300, mean, np.float32),
            luma_spread=np.full(300, spread, np.float32),
        )
        scores.append(BUILT_IN.score_clip(track, Span(start_frame=0, end_frame=300, shot=0)))
    for name in ("luma", "contrast", "clipped_fraction"):
        assert scores[1][name] == pytest.approx(scores[0][name], abs=0.002), name
    assert scores[1]["content_area"] == pytest.approx(380 / 540)
