"""Makes takes of stop motion and of time lapse, for training films.

Each is one take: its jumps are no boundaries. Pictures are held for some frames. From one to the
next, things move at once and the light changes a little.

Shape letters: F frames, H, W height and width.
"""

from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray
from shot_distractors import outline_of
from shot_transitions import HEIGHT, WIDTH, Clip, Rng

Source = Callable[[Rng, int], Clip]
"""Returns frames of any take, uint8 [F, H, W, 3]."""


def stop_motion_take(rng: Rng, n: int, other: Source) -> Clip:
    """Returns a take of stop motion, or of a recording at a reduced rate, uint8 [n, H, W, 3]."""
    holds = _holds(rng, n)
    n_poses = int(holds[-1]) + 1
    poses = _posed(rng, n_poses, other) if rng.random() < 0.7 else _thinned(rng, n_poses, other)
    return _exposed(rng, poses)[holds]


def _holds(rng: Rng, n: int) -> NDArray[np.int64]:
    """Returns the number of the pose at each frame: on twos, threes, sixes, or at random."""
    hold = int(rng.choice([1, 2, 2, 3, 3, 4, 6, 8, 12]))
    if rng.random() < 0.3:
        lengths = rng.integers(1, 2 * hold + 1, n)
        return np.repeat(np.arange(n), lengths)[:n]
    return np.arange(n) // hold


def _exposed(rng: Rng, poses: Clip) -> Clip:
    """Changes the light and the camera's place a little from picture to picture."""
    flicker, cast = float(rng.choice([0.0, 0.01, 0.03, 0.08])), float(rng.choice([0.0, 0.02]))
    shake = float(rng.choice([0.0, 0.0, 0.4, 1.5]))
    knocked = np.zeros(2)
    out = np.empty_like(poses)
    for i, pose in enumerate(poses):
        if rng.random() < 0.02:
            knocked = rng.normal(0, 3, 2)
        gain = rng.normal(1, flicker) * np.exp(rng.normal(0, cast, 3))
        x, y = knocked + rng.normal(0, shake, 2)
        matrix = np.array([[1, 0, x], [0, 1, y]])
        moved = cv2.warpAffine(pose, matrix, (WIDTH, HEIGHT), borderMode=cv2.BORDER_REPLICATE)
        out[i] = np.clip(moved * gain, 0, 255)
    return out


def _thinned(rng: Rng, n: int, other: Source) -> Clip:
    """Shows every few frames of a recording: pixilation, or a time lapse with clouds and sun."""
    skip = int(np.exp(rng.uniform(np.log(2), np.log(24))))
    shown = other(rng, min(n * skip, 400))
    poses = shown[np.arange(n) * skip % len(shown)]
    if rng.random() < 0.3:
        beat = rng.uniform(6, 80)
        light = 1 + rng.uniform(0, 0.4) * np.sin(np.arange(n) / beat * 6.28 + rng.uniform(0, 6))
        poses = np.clip(poses * light[:, None, None, None].astype(np.float32), 0, 255)
    return np.asarray(poses, np.uint8)


def _posed(rng: Rng, n: int, other: Source) -> Clip:
    """Moves puppets, cut-outs and lumps over a still set; a hand may be in a picture."""
    out = np.repeat(other(rng, 1), n, 0)
    if rng.random() < 0.4:
        out[:] = cv2.GaussianBlur(out[0], (0, 0), float(rng.uniform(2, 12)))
    for _ in range(int(rng.integers(1, 6))):
        _puppet(rng, out, other(rng, 1)[0])
    for i in np.flatnonzero(rng.random(n) < rng.choice([0.0, 0.0, 0.02, 0.06])).tolist():
        hand = outline_of(rng) * rng.uniform(12, 45) + rng.uniform(0, 1, 2) * (WIDTH, HEIGHT)
        skin = (rng.uniform(0.4, 1) * np.array([225.0, 170.0, 140.0])).tolist()
        cv2.fillPoly(out[i], [hand.round().astype(np.int32)], skin, cv2.LINE_AA)
    return out


def _puppet(rng: Rng, poses: Clip, skin: NDArray[np.uint8]) -> None:
    """Draws a thing into all pictures; it walks, jerks, turns, changes shape, comes and goes."""
    n = len(poses)
    size, pace = float(np.exp(rng.uniform(np.log(6), np.log(48)))), float(rng.choice([1, 3, 8, 20]))
    steps = rng.normal(0, pace, (n, 2)) * (rng.random((n, 1)) < rng.uniform(0.2, 1))
    steps += rng.normal(0, pace / 2, 2)
    path = rng.uniform(0.15, 0.85, 2) * (WIDTH, HEIGHT) + np.cumsum(steps, axis=0)
    # A thing that leaves the set turns back at its edge.
    room = np.array([WIDTH, HEIGHT], np.float64)
    path = np.abs((path + room) % (2 * room) - room)
    turns = np.cumsum(rng.normal(0, rng.choice([0.02, 0.15, 0.6]), n))
    scales = np.exp(np.clip(np.cumsum(rng.normal(0, rng.choice([0, 0.05]), n)), -0.7, 0.7))
    shape, is_new_shape = outline_of(rng) * size, rng.random(n) < rng.choice([0.0, 0.1, 1.0])
    is_there = np.ones(n, np.bool_)
    if rng.random() < 0.3:
        first, last = sorted(rng.integers(0, n + 1, 2).tolist())
        is_there[first:last] = False
    for i in np.flatnonzero(is_there).tolist():
        if is_new_shape[i]:
            shape = shape * 0.6 + outline_of(rng) * size * 0.4
        cos, sin = np.cos(turns[i]), np.sin(turns[i])
        points = shape @ np.array([[cos, -sin], [sin, cos]]) * scales[i] + path[i]
        mask = np.zeros((HEIGHT, WIDTH), np.uint8)
        cv2.fillPoly(mask, [points.round().astype(np.int32)], 255)
        moved = np.roll(skin, path[i].astype(int)[::-1], (0, 1))
        poses[i] = np.where(mask[:, :, None] > 0, moved, poses[i])
