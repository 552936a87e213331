"""Makes test files for effects of editing programs, dark fades and stop motion.

The files share no kind with the training films: effects are those of `shot_effects_held_out.py` for
the part; dimming, fades and stop motion are other functions, on luma and chroma. Recordings are
those of one part of the footage.

Shape letters: F frames, H, W height and width.
"""

# ruff: noqa: N803 - shape letters

from collections.abc import Sequence
from pathlib import Path
from random import Random

import cv2
import numpy as np
from film_frames import Film, Made, Pictures, any_take, decode, length_of, pace_of
from footage_split import Part, Recording
from numpy.typing import NDArray
from shot_effects import rendered
from shot_effects_held_out import BLIND, TUNE
from shot_sets import write_truth

SIZE = (320, 180)
EFFECT_LENGTHS = (8, 20, 45)
"""Lengths in frames of each effect."""
SIDE_S = 1.8
"""Longest side of a transition, in seconds."""
N_DARK = 40
DARK_KINDS = ("night", "slow", "dip", "cut")
"""Fades of dim shots, slow ones with mostly black frames, partial dips, and cuts in the dark."""
STOP_MOTION_RATES = ("12", "15", "24")
LONGEST_STOP_MOTION_S = 16.0


def make_effects(footage: Sequence[Recording], folder: Path, part: Part) -> None:
    """Makes a file per effect of the part and length, each between two random recordings."""
    kinds = BLIND if part == "blind" else TUNE
    made = []
    for kind, draw in kinds.items():
        for n in EFFECT_LENGTHS:
            rng = Random(f"effects {kind} {n}")
            a, b = _sides(rng, footage, n)
            film = _film(folder / f"{kind}_{n}.mp4", "25")
            film.write(a[: len(a) - n])
            film.mark(n, kind)
            drawn = np.random.default_rng(rng.randrange(2**32))
            film.write(yuv(rendered(drawn, draw, rgb(a[len(a) - n :]), rgb(b[:n]))))
            film.write(b[n:])
            made.append(film.close())
    write_truth(folder, made)


def make_dark(footage: Sequence[Recording], folder: Path) -> None:
    """Makes files with two dim shots, joined by a fade through black, a dip, or a cut."""
    write_truth(folder, [_dark(footage, folder, number) for number in range(N_DARK)])


def make_stop_motion(footage: Sequence[Recording], folder: Path) -> None:
    """Makes two single-shot files per recording: cut-outs that move, and a reduced rate."""
    made = [
        _stop_motion(footage, recording, folder, kind)
        for recording in footage
        for kind in ("cutouts", "reduced")
    ]
    write_truth(folder, made)


def _film(path: Path, rate: str) -> Film:
    return Film(path, rate, "h264", SIZE)


def _sides(rng: Random, footage: Sequence[Recording], n: int) -> tuple[Pictures, Pictures]:
    """Returns the pictures of two recordings, each with `n` frames and a side."""
    names = rng.sample(sorted({clip.repository for clip in footage}), 2)
    side = n + round(SIDE_S * 25)
    sides = []
    for name in names:
        clips = [c for c in footage if c.repository == name]
        long = [c for c in clips if length_of(c, pace_of(c, 25)) > n + 20] or clips
        pictures = decode(any_take(rng, rng.choice(long), 25, side), *SIZE)
        # A short recording plays to and fro.
        at = np.abs((np.arange(side) + len(pictures)) % (2 * len(pictures)) - len(pictures))
        sides.append(pictures[np.minimum(at, len(pictures) - 1)[::-1].tolist()])
    return sides[0], sides[1]


def rgb(pictures: Pictures) -> NDArray[np.uint8]:
    """Converts frames to RGB, uint8 [F, H, W, 3]."""
    shape = pictures.height * 3 // 2, pictures.width
    frames = [cv2.cvtColor(f.reshape(shape), cv2.COLOR_YUV2RGB_I420) for f in pictures.flat]
    return np.asarray(np.stack(frames), np.uint8)


def yuv(rgb_FHWC: NDArray[np.uint8]) -> Pictures:
    """Converts RGB frames, uint8 [F, H, W, 3], to 4:2:0."""
    flat = [cv2.cvtColor(frame, cv2.COLOR_RGB2YUV_I420).ravel() for frame in rgb_FHWC]
    high, wide = rgb_FHWC.shape[1:3]
    return Pictures(np.stack(flat), wide, high)


def scaled(pictures: Pictures, levels: NDArray[np.float64]) -> Pictures:
    """Multiplies the light of each frame by its level."""
    dim = Pictures(pictures.flat.copy(), pictures.width, pictures.height)
    luma, *chroma = dim.planes()
    by_frame = levels[:, None, None]
    luma[:] = (16 + np.clip(luma - 16.0, 0, None) * by_frame).round().astype(np.uint8)
    for plane in chroma:
        plane[:] = (128 + (plane - 128.0) * by_frame).round().astype(np.uint8)
    return dim


def faded(rng: Random, a: Pictures, b: Pictures, n_black: int, kind: str) -> Pictures:
    """Fades a stretch to black and another one from it; a "dip" does not reach black.

    A "slow" fade is nearly black for most of its frames.
    """
    low = rng.uniform(0.08, 0.4) if kind == "dip" else 0.0
    falls, rises = (np.arange(1, len(x) + 1) / (len(x) + 1) * np.pi / 2 for x in (a, b))
    falls, rises = low + (1 - low) * np.cos(falls), low + (1 - low) * np.sin(rises) ** 2
    if kind == "slow":
        falls, rises = falls**4, rises**3
    black = scaled(b[[0] * n_black], np.zeros(n_black))
    return joined(joined(scaled(a, falls), black), scaled(b, rises))


def joined(a: Pictures, b: Pictures) -> Pictures:
    """Returns one stretch after the other."""
    return Pictures(np.concatenate([a.flat, b.flat]), a.width, a.height)


def _dark(footage: Sequence[Recording], folder: Path, number: int) -> Made:
    rng = Random(f"dark {number}")
    kind = DARK_KINDS[number % len(DARK_KINDS)]
    n_out, n_in = (rng.randint(4, 30) for _ in range(2))
    n_black = rng.randint(0, 12)
    if kind == "slow":
        n_out, n_in, n_black = rng.randint(30, 60), rng.randint(30, 60), rng.randint(0, 50)
    elif kind == "dip":
        n_black = 0
    a, b = _sides(rng, footage, max(n_out, n_in))
    a, b = (scaled(x, np.full(len(x), rng.uniform(0.12, 0.5))) for x in (a, b))
    film = _film(folder / f"{kind}_{number:02d}.mp4", "25")
    if kind == "cut":
        film.write(a)
        film.mark(0, "dark cut")
        film.write(b)
        return film.close()
    film.write(a[: len(a) - n_out])
    film.mark(n_out + n_black + n_in, f"dark {kind}")
    film.write(faded(rng, a[len(a) - n_out :], b[:n_in], n_black, kind))
    film.write(b[n_in:])
    return film.close()


def _stop_motion(
    footage: Sequence[Recording], recording: Recording, folder: Path, kind: str
) -> Made:
    rng = Random(f"stop motion {recording.path.stem} {kind}")
    rate = rng.choice(STOP_MOTION_RATES)
    hold = rng.choice((1, 2, 2, 3, 4, 6))
    n = round(float(rate) * min(LONGEST_STOP_MOTION_S, 4 + recording.n_frames / recording.fps))
    n_poses = -(-n // hold)
    if kind == "reduced":
        poses = _reduced(rng, recording, n_poses)
    else:
        poses = _cutouts(rng, footage, recording, n_poses)
    flicker = rng.choice((0.0, 0.015, 0.05))
    lit = scaled(
        poses, np.array([np.clip(rng.gauss(1, flicker), 0.8, 1.15) for _ in range(n_poses)])
    )
    film = _film(folder / f"{recording.path.stem}_{kind}.mp4", rate)
    film.write(lit[[i // hold for i in range(n)]])
    return film.close()


def _reduced(rng: Random, recording: Recording, n: int) -> Pictures:
    """Returns every few frames of a recording, to and fro if it is short."""
    take = any_take(rng, recording, recording.fps, recording.n_frames)
    pictures = decode(take, *SIZE)
    skip = rng.randint(3, max(3, min(12, len(pictures) // 8)))
    last = len(pictures) - 1
    return pictures[[last - abs(i * skip % (2 * last) - last) for i in range(n)]]


def _cutouts(rng: Random, footage: Sequence[Recording], of: Recording, n: int) -> Pictures:
    """Moves pieces of other recordings over a still of one, a step for each picture."""
    still = rgb(decode(any_take(rng, of, of.fps, 1), *SIZE))
    out = np.repeat(still, n, 0)
    wide, high = SIZE
    for _ in range(rng.randint(1, 4)):
        source = rng.choice(footage)
        skin = rgb(decode(any_take(rng, source, source.fps, 1), *SIZE))[0]
        w, h = rng.randint(20, 130), rng.randint(20, 90)
        x0, y0 = rng.randint(0, wide - w), rng.randint(0, high - h)
        piece = np.ascontiguousarray(skin[y0 : y0 + h, x0 : x0 + w])
        mask = np.zeros((h, w), np.uint8)
        cv2.ellipse(mask, (w // 2, h // 2), (w // 2 - 1, h // 2 - 1), 0, 0, 360, 255, -1)
        x, y, angle = rng.uniform(0, wide), rng.uniform(0, high), 0.0
        goal, pace = (x, y), rng.choice((4, 10, 25))
        for i in range(n):
            if rng.random() < 0.1:
                goal = rng.uniform(0, wide), rng.uniform(0, high)
            away = np.hypot(goal[0] - x, goal[1] - y) + 1e-6
            step = min(away, pace * rng.uniform(0.3, 1.7))
            x, y = x + (goal[0] - x) / away * step, y + (goal[1] - y) / away * step
            angle += rng.gauss(0, 6)
            matrix = cv2.getRotationMatrix2D((w / 2, h / 2), angle, 1.0)
            matrix[:, 2] += (x - w / 2, y - h / 2)
            shown = cv2.warpAffine(piece, matrix, SIZE)
            inside = cv2.warpAffine(mask, matrix, SIZE)
            out[i] = np.where(inside[:, :, None] > 127, shown, out[i])
    return yuv(out)
