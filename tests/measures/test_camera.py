"""The camera's motion between two pictures, and scores and tags from tracks made by hand."""

import cv2
import numpy as np
import pytest
from film_shots import texture
from numpy.typing import NDArray
from one_by_one import verdicts_on
from samples import made_signals, made_track

from curator.measures.camera import SHAKY, SIGNALS, camera_jitter, camera_signals, camera_tags
from curator.measures.clip_view import ClipView
from curator.measures.motion import DenseFlow, fit_camera, fitted_flow, place_texture
from curator.measures.rule_config import Rule
from curator.measures.rules import resolve
from curator.measures.score_list import BUILT_IN, SCORES
from curator.records.clips import Reason, Span

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
    # Where all of the picture follows the camera, nothing else moves.
    fit = fit_camera(flow_of(0.02j, 0.1), EVERYWHERE)
    assert fit is not None
    assert fit.mean_rest == 0
    assert fit.share == 1
    # Flow where there is no texture counts nothing.
    flow = flow_of(0, 0.05)
    flow[:, 160:] = np.random.default_rng(1).normal(0, 5, (H, 160, 2))
    texture = EVERYWHERE.reshape(18, 32).copy()
    texture[:, 15:] = 0
    fit = fit_camera(flow, texture.ravel())
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


N = 10
NAN = float("nan")


def clip_of(n: int = N, **signals: object) -> ClipView:
    """A clip of some samples, two a second; the camera's speed follows from its rates."""
    full = {
        name: np.broadcast_to(np.asarray(signals.pop(name, 0.0), np.float64), n)
        for name in ("pan_rate", "tilt_rate", "zoom_rate", "roll_rate")
    }
    speed = np.hypot(full["pan_rate"], full["tilt_rate"])
    speed = speed + 0.5 * np.abs(full["zoom_rate"]) + 0.5 * np.radians(np.abs(full["roll_rate"]))
    track = made_track(
        15 * n,
        signals=made_signals(n, **{"camera_motion": speed, "camera_share": 1.0, **full, **signals}),
    )
    return ClipView(track, Span(start_frame=0, end_frame=15 * n, shot=0))


def shaking(deviation: float, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(0, deviation, N)


@pytest.mark.parametrize(
    ("signals", "tags"),
    [
        ({}, ["camera_static"]),
        ({"pan_rate": shaking(0.003), "tilt_rate": shaking(0.003, 1)}, ["camera_static"]),
        ({"pan_rate": 0.05}, ["pan_right"]),
        ({"pan_rate": -0.05}, ["pan_left"]),
        ({"tilt_rate": 0.05}, ["tilt_up"]),
        ({"tilt_rate": -0.05}, ["tilt_down"]),
        ({"zoom_rate": 0.05}, ["zoom_in"]),
        ({"zoom_rate": -0.05}, ["zoom_out"]),
        ({"roll_rate": 5.0}, ["roll"]),
        ({"roll_rate": -5.0}, ["roll"]),
        ({"pan_rate": 0.2, "zoom_rate": -0.2}, ["pan_right", "zoom_out"]),
        ({"pan_rate": 1.0, "tilt_rate": 0.05}, ["pan_right"]),
        ({"pan_rate": np.repeat([0.2, -0.2], 5)}, ["pan_left", "pan_right"]),
        ({"pan_rate": np.linspace(0.5, 1.5, N)}, ["pan_right"]),
        ({"pan_rate": shaking(0.05), "tilt_rate": shaking(0.05, 1)}, ["handheld"]),
        ({"pan_rate": shaking(0.3), "tilt_rate": shaking(0.3, 1)}, ["shaky"]),
        ({"pan_rate": 0.3 + shaking(0.05), "tilt_rate": shaking(0.05, 1)},
         ["pan_right", "handheld"]),
    ],
)  # fmt: skip
def test_tags(signals: dict[str, object], tags: list[str]) -> None:
    assert camera_tags(clip_of(**signals)) == tags


def test_what_is_short_wrong_or_not_known_is_no_tag_and_jitter_is_uneven() -> None:
    rates = np.zeros(30)
    rates[4:6] = 0.1
    assert camera_tags(clip_of(30, pan_rate=rates)) == ["camera_static"]
    # Samples whose flow went wrong do not shake the camera.
    rates = np.zeros(N)
    rates[4] = 1.5
    assert camera_tags(clip_of(pan_rate=rates)) == ["camera_static"]
    # Without a known camera there are no tags.
    unknown = np.where(np.arange(N) < 6, NAN, 0.3)
    clip = clip_of(pan_rate=unknown, tilt_rate=unknown, camera_motion=unknown)
    assert camera_tags(clip) == []
    known = np.where(np.arange(N) < 3, NAN, 0.3)
    assert camera_tags(clip_of(pan_rate=known, camera_motion=known)) == ["pan_right"]
    # A single sample has tags and no jitter.
    track = made_track(15, signals=made_signals(1, pan_rate=0.3, camera_motion=0.3))
    clip = ClipView(track, Span(start_frame=0, end_frame=15, shot=0))
    assert camera_jitter(clip) is None
    assert camera_tags(clip) == ["pan_right"]
    # Jitter is the deviation from an even course.
    found = [
        camera_jitter(clip_of(pan_rate=2 + shaking(0.1, seed), tilt_rate=shaking(0.1, seed + 100)))
        for seed in range(40)
    ]
    assert np.mean(found) == pytest.approx(0.1 * np.sqrt(2), rel=0.1)  # type: ignore[arg-type]
    assert camera_jitter(clip_of(pan_rate=np.linspace(0, 2, N))) == pytest.approx(0, abs=1e-6)
    assert camera_jitter(clip_of(pan_rate=NAN)) is None


def test_static_violent_and_shaky_clips_have_different_reasons() -> None:
    rules = {"motion": Rule(min=0.005), "camera_motion": Rule(max=2.0),
             "camera_jitter": Rule(max=0.5)}  # fmt: skip
    bounds = resolve(rules)

    def reasons(**signals: object) -> list[Reason]:
        clip = clip_of(**signals)
        return [
            verdict.reason
            for verdict in verdicts_on(BUILT_IN.score_clip(clip.track, clip.span), bounds)
        ]

    assert reasons(motion=0.001) == ["motion_too_low"]
    assert reasons(pan_rate=3.0) == ["camera_too_violent"]
    assert reasons(pan_rate=shaking(1.0)) == ["camera_too_shaky"]
    assert reasons(pan_rate=0.5) == []
    # Bounds of the recipe leave hand held cameras.
    assert SHAKY < 0.5
    assert SCORES["camera_jitter"].high == "camera_too_shaky"
