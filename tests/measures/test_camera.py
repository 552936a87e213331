"""The camera's motion between two pictures: signs, values, and what must not disturb them."""

# ruff: noqa: N806 - shape letters

import cv2
import numpy as np
import pytest
from film_shots import texture
from numpy.typing import NDArray

from curator.measures.camera import SIGNALS, camera_signals
from curator.measures.motion import DenseFlow, fit_camera, fitted_flow, place_texture

H, W = 180, 320
PAIR_S = 0.1


def seen(
    *,
    x: float = 0.0,
    y: float = 0.0,
    zoom: float = 0.0,
    roll_deg: float = 0.0,
    seed: int = 3,
    height: int = H,
    width: int = W,
) -> NDArray[np.uint8]:
    """What a camera sees that went right and up by short sides, in, and clockwise."""
    source = cv2.cvtColor(texture(seed, width_px=900, height_px=700), cv2.COLOR_RGB2GRAY)
    angle, short = np.radians(roll_deg), min(height, width)
    turn = np.exp(-zoom) * np.array(
        [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    )
    centre = np.array([450 + x * short, 350 - y * short])
    offset = centre - turn @ np.array([(width - 1) / 2, (height - 1) / 2])
    picture = cv2.warpAffine(
        source,
        np.column_stack([turn, offset]),
        (width, height),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
    )
    return np.asarray(picture, np.uint8)


def signals(before: NDArray[np.uint8], after: NDArray[np.uint8]) -> dict[str, float]:
    return camera_signals(fitted_flow(DenseFlow(), before, after)[1], PAIR_S)


@pytest.mark.parametrize(
    ("move", "signal", "rate"),
    [
        ({"x": 0.05}, "pan_rate", 0.5),
        ({"x": -0.02}, "pan_rate", -0.2),
        ({"y": 0.05}, "tilt_rate", 0.5),
        ({"y": -0.02}, "tilt_rate", -0.2),
        ({"zoom": 0.02}, "zoom_rate", 0.2),
        ({"zoom": -0.02}, "zoom_rate", -0.2),
        ({"roll_deg": 1.0}, "roll_rate", 10.0),
        ({"roll_deg": -1.0}, "roll_rate", -10.0),
    ],
)
@pytest.mark.parametrize("size", [(H, W), (W, H)], ids=["landscape", "portrait"])
def test_signals_say_what_the_camera_does(
    move: dict[str, float], signal: str, rate: float, size: tuple[int, int]
) -> None:
    shape = {"height": size[0], "width": size[1]}
    found = signals(seen(**shape), seen(**move, **shape))  # type: ignore[arg-type]
    assert found[signal] == pytest.approx(rate, rel=0.12)
    others = {"pan_rate": 0.02, "tilt_rate": 0.02, "zoom_rate": 0.02, "roll_rate": 1.0}
    for name, slack in others.items():
        assert name == signal or abs(found[name]) < slack, name


def test_what_follows_the_camera_moves_by_it() -> None:
    assert signals(seen(), seen(x=0.03, y=0.04))["camera_motion"] == pytest.approx(0.5, rel=0.05)
    # Nothing moves beside a camera that all follows.
    fit = fit_camera(flow_of(0.02j, 0.1), EVERYWHERE)
    assert fit is not None
    assert fit.mean_rest == 0
    assert fit.share == 1
    # Flow where there is no texture counts nothing.
    flow = flow_of(0, 0.05)
    flow[:, 160:] = np.random.default_rng(1).normal(0, 5, (H, 160, 2))
    texture_P = EVERYWHERE.reshape(18, 32).copy()
    texture_P[:, 15:] = 0
    fit = fit_camera(flow, texture_P.ravel())
    assert fit is not None
    assert abs(fit.shift - 0.05) < 0.001
    assert fit.share == 1


def flow_of(turn: complex, shift: complex) -> NDArray[np.float32]:
    """Flow of a similarity, in pixels; turn and shift are in short sides."""
    y, x = np.mgrid[0:H, 0:W]
    place = ((x - (W - 1) / 2) + 1j * (y - (H - 1) / 2)) / H
    flow = (turn * place + shift) * H
    return np.stack([flow.real, flow.imag], axis=-1).astype(np.float32)


EVERYWHERE = np.ones(18 * 32, np.float32)


@pytest.mark.parametrize("share", [0.2, 0.4])
def test_objects_on_two_fifths_of_the_picture_do_not_move_the_camera(share: float) -> None:
    flow = flow_of(0.01 + 0.005j, -0.05 + 0.02j)
    columns = slice(20, 20 + round(share * W))
    flow[:, columns] = (9.0, -7.0)
    fit = fit_camera(flow, EVERYWHERE)
    assert fit is not None
    assert abs(fit.shift - (-0.05 + 0.02j)) < 0.002
    assert abs(fit.turn - (0.01 + 0.005j)) < 0.002
    assert fit.share == pytest.approx(1 - share, abs=0.03)
    away = abs((9 - 7j) / H - (-0.05 + 0.02j))
    assert fit.mean_rest == pytest.approx(share * away, rel=0.15)


@pytest.mark.parametrize("seed", range(4))
def test_static_with_noise_and_flicker_stands_still(seed: int) -> None:
    rng = np.random.default_rng(seed)
    still = seen(seed=seed).astype(np.float32)
    before = np.clip(still + rng.normal(0, 4, (H, W)), 0, 255).astype(np.uint8)
    after = np.clip(1.1 * still + rng.normal(0, 4, (H, W)), 0, 255).astype(np.uint8)
    found = signals(before, after)
    assert found["camera_motion"] < 0.015
    assert found["object_motion"] < 0.005


def test_pictures_that_show_no_motion_say_nothing() -> None:
    flat = np.full((H, W), 90, np.uint8)
    found = signals(flat, flat)
    assert found.keys() == set(SIGNALS)
    assert all(np.isnan(value) for value in found.values())
    # Tiny pictures have no flow.
    tiny = np.zeros((10, 40), np.uint8)
    assert fitted_flow(DenseFlow(), tiny, tiny) == (None, None)
    # A straight edge shows no motion.
    edge = np.where(np.arange(W) < W // 2, 40, 200).astype(np.uint8)
    assert place_texture(np.tile(edge, (H, 1))).max() < 0.05
    # Unrelated pictures have no camera motion.
    found = signals(seen(seed=1), seen(seed=2))
    assert found["camera_share"] < 0.3
    assert np.isnan(found["pan_rate"])
    assert np.isnan(found["camera_motion"])


@pytest.mark.parametrize("x", [0.4, -0.45])
def test_whip_pans_that_flow_alone_loses_are_found(x: float) -> None:
    before, after = seen(seed=5), seen(seed=5, x=x)
    alone = fit_camera(DenseFlow().between(before, after), place_texture(before))  # type: ignore[arg-type]
    assert alone is not None
    assert alone.share < 0.3
    assert signals(before, after)["pan_rate"] == pytest.approx(x / PAIR_S, rel=0.03)
