"""Copies of made footage are found with their offset; other footage and other times are not."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from curator.matching.clip_footage import ClipFootage
from curator.matching.edited_footage import without_bars
from curator.matching.verify_pair import ALL_EDITS, verify_pair
from curator.tools.footage.scenes import photograph

Picture = NDArray[np.uint8]
FPS = 25


@cache
def moving_camera(file: str, seed: int = 0, n_frames: int = 150) -> tuple[Picture, ...]:
    """A shaky pan over a photograph."""
    rng = np.random.default_rng(seed)
    picture = photograph(file)
    height, width = picture.shape[:2]
    w, h = 0.6 * width, 0.6 * width * 9 / 16
    knots = rng.uniform(0.1, 0.9, (7, 2))
    at = np.linspace(0, len(knots) - 1, n_frames)
    x, y = (np.interp(at, range(len(knots)), k) for k in knots.T)
    frames = []
    for left, top in zip(x * (width - w), y * (height - h), strict=True):
        box = np.array([[w / 320, 0, left], [0, h / 180, top]])
        frames.append(cv2.warpAffine(picture, box, (320, 180), flags=cv2.WARP_INVERSE_MAP))
    return tuple(np.asarray(f, np.uint8) for f in frames)


@cache
def fixed_camera(seed: int, n_frames: int = 150) -> tuple[Picture, ...]:
    """One room in which a disc moves, differently for every seed."""
    rng = np.random.default_rng(seed)
    room = cv2.resize(photograph("coffee.png"), (320, 180), interpolation=cv2.INTER_AREA)
    knots = rng.uniform(0.15, 0.85, (9, 3))
    at = np.linspace(0, len(knots) - 1, n_frames)
    x, y, size = (np.interp(at, range(len(knots)), k) for k in knots.T)
    frames = []
    for u, v, r in zip(x * 320, y * 180, 12 + 20 * size, strict=True):
        frame = room.copy()
        cv2.circle(frame, (int(u), int(v)), int(r), (240, 240, 60), -1)
        frames.append(frame)
    return tuple(frames)


def footage(
    frames: tuple[Picture, ...],
    edit: Callable[[Picture], Picture] = lambda p: p,
    *,
    fps: float = FPS,
    phase_s: float = 0.0,
) -> ClipFootage:
    """The record of a clip, whose vectors stand for a network: small blurred pictures."""
    shown = [np.ascontiguousarray(edit(p)) for p in frames]
    grey = [cv2.cvtColor(p, cv2.COLOR_RGB2GRAY) for p in shown]
    times = np.arange(phase_s, (len(frames) - 1) / fps, 0.5, np.float32)
    at = np.round(times * fps).astype(int)
    jpegs = tuple(cv2.imencode(".jpg", shown[n][:, :, ::-1])[1].tobytes() for n in at)
    vectors = []
    for n in at[::2]:
        histogram = cv2.calcHist([shown[n]], [0, 1, 2], None, [6, 6, 6], [0, 256] * 3).ravel()
        vectors.append(histogram / np.linalg.norm(histogram))
    values = np.stack([cv2.resize(g, (48, 27), interpolation=cv2.INTER_AREA) for g in grey]) / 255
    flat = values.reshape(len(values), -1).astype(np.float32)
    return ClipFootage(
        clip_id="clip", fps=fps, picture_s=times, pictures=jpegs, vector_s=times[::2],
        vectors_VD=np.stack(vectors).astype(np.float32),
        luma_F=flat.mean(1), luma_spread_F=flat.std(1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("edit", "mirrored"),
    [
        (lambda p: p[27:153, 48:272], False),
        (lambda p: p[:, ::-1], True),
        (lambda p: (p * 0.5).astype(np.uint8), False),
        (lambda p: cv2.resize(p, (80, 45), interpolation=cv2.INTER_AREA), False),
    ],
    ids=["crop", "mirrored", "dark", "quarter size"],
)
def test_an_edit_is_found_where_it_is(edit: Callable[[Picture], Picture], mirrored: bool) -> None:
    frames = moving_camera("coffee.png")
    match = verify_pair(footage(frames), footage(frames[40:], edit, phase_s=0.22))
    assert match is not None
    assert match.offset_s == pytest.approx(-1.6, abs=0.1)
    assert (match.speed, match.mirrored) == (1.0, mirrored)
    assert match.share_b == pytest.approx(1.0, abs=0.03)
    assert match.overlap_s == pytest.approx(4.4, abs=0.1)


def test_another_speed_and_another_frame_rate_are_found() -> None:
    frames = moving_camera("coffee.png")
    faster = footage(tuple(frames[int(n * 1.25)] for n in range(120)))
    match = verify_pair(footage(frames), faster)
    assert match is not None
    assert match.speed == 0.8
    assert match.offset_s == pytest.approx(0, abs=0.1)
    slow = footage(tuple(frames[int(n * 25 / 15)] for n in range(90)), fps=15)
    match = verify_pair(footage(frames), slow)
    assert match is not None
    assert match.speed == 1.0


def test_other_footage_and_other_times_are_not_the_same() -> None:
    a, b = footage(moving_camera("coffee.png")), footage(moving_camera("chelsea.png"))
    assert verify_pair(a, replace(b, vectors_VD=a.vectors_VD)) is None
    # A fixed camera at another time is not the same.
    room = footage(fixed_camera(0))
    assert verify_pair(room, footage(fixed_camera(1))) is None
    match = verify_pair(room, footage(fixed_camera(0), lambda p: p[:, ::-1]))
    assert match is not None
    assert match.mirrored
    # Stills of one picture are the same.
    still = fixed_camera(0)[:1] * 75
    assert verify_pair(footage(still), footage(still, lambda p: p[9:171, 16:304])) is not None
    # Flat pictures match nothing.
    black = (np.zeros((180, 320, 3), np.uint8),) * 75
    made = footage(black)
    made = replace(made, vectors_VD=np.zeros_like(made.vectors_VD))
    assert verify_pair(made, made) is None
    # Series of other lengths are refused.
    made = footage(fixed_camera(0))
    with pytest.raises(ValueError, match="footage of clip: 12 pictures do not fit"):
        replace(made, picture_s=made.picture_s[:3])


def as_removed(clip: ClipFootage) -> ClipFootage:
    """The clip as a removal keeps it: keypoints in place of pictures."""
    return replace(clip, pictures=tuple(clip.keypoints(at) for at in range(len(clip.pictures))))


def test_removed_footage_is_found_by_its_keypoints() -> None:
    frames = moving_camera("coffee.png")
    kept = as_removed(footage(frames))
    assert not any(isinstance(p, bytes) for p in kept.pictures)
    match = verify_pair(kept, footage(frames, lambda p: p[18:162, 32:288]))
    assert match is not None
    assert match.offset_s == pytest.approx(0, abs=0.1)


def boxed(picture: Picture) -> Picture:
    return np.asarray(cv2.copyMakeBorder(picture, 30, 30, 0, 0, cv2.BORDER_CONSTANT), np.uint8)


BACKWARD = range(149, -1, -1)
FASTER, SLOWER = ([int(n) for n in np.arange(0, 149, speed)] for speed in (1.5, 1 / 1.5))


@pytest.mark.parametrize(
    ("edit", "order", "speed"),
    [
        pytest.param(lambda p: p[::-1], range(150), 1, id="upside down"),
        pytest.param(np.rot90, range(150), 1, id="turned left"),
        pytest.param(lambda p: np.rot90(p, -1)[:, ::-1], range(150), 1, id="turned and mirrored"),
        pytest.param(lambda p: 255 - p, range(150), 1, id="negative"),
        pytest.param(lambda p: p, BACKWARD, 1, id="backward"),
        pytest.param(lambda p: p, FASTER, 1.5, id="1.5 times as fast"),
        pytest.param(lambda p: p, SLOWER, 1 / 1.5, id="1.5 times as slow"),
    ],
)
def test_removed_footage_is_found_in_more_edits(
    edit: Callable[[Picture], Picture], order: Sequence[int], speed: float
) -> None:
    frames = moving_camera("coffee.png")
    whole = footage(frames)
    clip = footage(tuple(frames[int(n)] for n in order), edit)
    # Unlike the vectors of these tests, those of the network hardly change.
    nearest = [int(order[round(at * FPS)]) / FPS for at in clip.vector_s]
    at = np.abs(whole.vector_s[None] - np.array(nearest)[:, None]).argmin(1)
    clip = replace(clip, vectors_VD=whole.vectors_VD[at])
    match = verify_pair(clip, as_removed(whole), ALL_EDITS)
    assert match is not None
    assert match.speed == pytest.approx(speed)
    assert match.share_a > 0.9
    if order == range(150):
        # Without these edits, no keypoints agree.
        assert verify_pair(clip, as_removed(whole)) is None
    other = as_removed(footage(moving_camera("chelsea.png")))
    others = replace(other, vectors_VD=whole.vectors_VD)
    assert verify_pair(clip, others, ALL_EDITS) is None


def test_bars_do_not_hide_removed_footage_of_a_fixed_camera() -> None:
    inner, clip = footage(fixed_camera(0)), footage(fixed_camera(0), boxed)
    clip = replace(clip, vectors_VD=inner.vectors_VD)
    freed = without_bars(clip)
    assert freed is not None
    alike = [np.corrcoef(c.luma_spread_F, inner.luma_spread_F)[0, 1] for c in (clip, freed)]
    assert alike[0] < 0.9 < 0.99 < alike[1]
    assert without_bars(inner) is None
    assert verify_pair(clip, as_removed(inner), ALL_EDITS) is not None
    other = replace(footage(fixed_camera(1)), vectors_VD=inner.vectors_VD)
    assert verify_pair(clip, as_removed(other), ALL_EDITS) is None
