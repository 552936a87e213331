"""Makes films that are harder than one transition between two recordings.

Each has 5 to 8 short shots of one part of the footage, joined by the part's held-out effects, fades
through black and partial dips, cuts, and cuts within a take. The camera pans and zooms, a third of
the films are dark, and every few shots an earlier take comes back. Between boundaries the light
flashes, steps or dips, insets and titles appear, and pictures are held as in stop motion.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import cv2
import numpy as np
from film_frames import CODECS, Film, Made, Pictures, Take, decode, length_of, pace_of
from footage_split import Part, Recording
from numpy.typing import NDArray
from shot_effect_sets import SIZE, faded, joined, rgb, scaled, yuv
from shot_effects import rendered
from shot_effects_held_out import BLIND, TUNE
from shot_sets import JUMP_FACTOR, JUMP_LEVELS, distracted, write_truth

N_FILMS: dict[Part, int] = {"train": 0, "tune": 14, "blind": 26}
RATE = 25
JOINS = {"effect": 45, "dark": 10, "cut": 20, "jump": 25}
DARK_JOINS = {"effect": 15, "dark": 60, "cut": 15, "jump": 10}
RETURN_SHARE, MOVING_SHARE, DISTRACTED_SHARE, HELD_SHARE = 0.3, 0.5, 0.6, 0.15


@dataclass(frozen=True, slots=True)
class _View:
    """A window into a take, as shares of the picture: centre and width at its start and end."""

    start: tuple[float, float, float]
    end: tuple[float, float, float]

    @classmethod
    def drawn(cls, rng: Random) -> "_View":
        def window() -> tuple[float, float, float]:
            wide = rng.uniform(0.5, 0.95)
            x, y = (rng.uniform(wide / 2, 1 - wide / 2) for _ in range(2))
            return x, y, wide

        first = window()
        return cls(first, window() if rng.random() < MOVING_SHARE else first)

    def shown(self, frames_FHWC: NDArray[np.uint8]) -> NDArray[np.uint8]:  # noqa: N803
        """Returns the window's picture in each frame, at the size of the frames."""
        out, (high, wide) = np.empty_like(frames_FHWC), frames_FHWC.shape[1:3]
        path = np.linspace(self.start, self.end, len(out))
        for i, (x, y, size) in enumerate(path.tolist()):
            matrix = np.array(
                [[size, 0, (x - size / 2) * wide], [0, size, (y - size / 2) * high]], np.float64
            )
            out[i] = cv2.warpAffine(
                frames_FHWC[i], matrix, (wide, high), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
            )
        return out


@dataclass(frozen=True, slots=True)
class _Shot:
    """A recording from a frame on, seen through a window, with its light.

    With `hold`, each picture stands for as many frames, and the next is `skip` times as far away.
    """

    recording: Recording
    first: int
    view: _View
    light: float
    hold: int = 1
    skip: int = 1

    def pictures(self, n: int) -> Pictures:
        """Returns `n` frames of the film; a short recording plays to and fro."""
        whole = _whole(self.recording)
        period = max(1, 2 * (len(whole) - 1))
        at = self.first + np.arange(n) // self.hold * self.hold * self.skip
        at = np.abs((at + period // 2) % period - period // 2)
        shown = yuv(self.view.shown(rgb(whole[at.tolist()])))
        return shown if self.light == 1 else scaled(shown, np.full(n, self.light))


def make_hard(footage: Sequence[Recording], folder: Path, part: Part) -> None:
    """Makes the films of a part."""
    write_truth(folder, [_film(footage, folder, part, number) for number in range(N_FILMS[part])])


_decoded: dict[Path, Pictures] = {}


def _whole(recording: Recording) -> Pictures:
    """Returns a whole recording at the film's rate; the latest ones are kept."""
    if recording.path not in _decoded:
        pace = pace_of(recording, RATE)
        take = Take(recording, pace, 0, min(400, length_of(recording, pace)))
        _decoded[recording.path] = decode(take, *SIZE)
    return _decoded[recording.path]


def _film(footage: Sequence[Recording], folder: Path, part: Part, number: int) -> Made:
    rng = Random(f"hard {part} {number}")
    is_dark = number % 3 == 2
    joins, effects = DARK_JOINS if is_dark else JOINS, BLIND if part == "blind" else TUNE
    codec = CODECS[number % len(CODECS)]
    suffix = "webm" if codec == "vp9" else "mp4"
    film = Film(folder / f"hard_{number:02d}.{suffix}", str(RATE), codec, SIZE)
    shots: list[_Shot] = []
    tail: Pictures | None = None
    for place in range(n_shots := rng.randint(5, 8)):
        # A shot has its own frames, and those of the join after it; the join before it takes some.
        body, reach = round(14 * 5 ** rng.random()), round(4 * 15 ** rng.random())
        join = rng.choices(list(joins), list(joins.values()))[0]
        shot = None
        if tail is not None and join == "jump":
            shot = _jumped(rng, shots[-1], tail[len(tail) - 4 :]) if shots[-1].hold == 1 else None
            join = "effect" if shot is None else join
        is_gradual = tail is not None and join in ("effect", "dark")
        n_in = (len(tail) if join == "effect" else reach) if tail is not None and is_gradual else 0
        is_jump = shot is not None
        shot = shot or _next(rng, footage, shots, is_dark=is_dark)
        pictures = shot.pictures(n_in + body + reach)
        if rng.random() < DISTRACTED_SHARE:
            pictures = _disturbed(rng, pictures, (n_in, reach), footage)
        if tail is not None and not is_gradual:
            film.write(tail)
            film.mark(0, "jump" if is_jump else "cut")
        elif tail is not None and join == "effect":
            kind = rng.choice(list(effects))
            drawn = np.random.default_rng(rng.randrange(2**32))
            film.mark(n_in, kind)
            film.write(yuv(rendered(drawn, effects[kind], rgb(tail), rgb(pictures[:n_in]))))
        elif tail is not None:
            kind = rng.choice(("slow", "dip", "black"))
            n_black = rng.choice((0, rng.randint(1, 30))) if kind != "dip" else 0
            film.mark(len(tail) + n_black + n_in, f"dark {kind}")
            film.write(faded(rng, tail, pictures[:n_in], n_black, kind))
        film.write(pictures[n_in : n_in + body])
        tail = pictures[n_in + body :]
        shots.append(replace(shot, first=shot.first + len(pictures), view=_rest(shot.view)))
        if place == n_shots - 1:
            film.write(tail)
    return film.close()


def _rest(view: _View) -> _View:
    """Returns the window at which a camera motion ended."""
    return _View(view.end, view.end)


def _next(
    rng: Random, footage: Sequence[Recording], shots: Sequence[_Shot], *, is_dark: bool
) -> _Shot:
    """Returns an earlier take, as if it had gone on, or a new one of another repository."""
    last = shots[-1].recording.repository if shots else None
    earlier = [shot for shot in shots[:-1] if shot.recording.repository != last]
    if earlier and rng.random() < RETURN_SHARE:
        return rng.choice(earlier)
    name = rng.choice(sorted({clip.repository for clip in footage} - {last}))
    recording = rng.choice([clip for clip in footage if clip.repository == name])
    light = rng.uniform(0.12, 0.5) if is_dark else 1.0
    shot = _Shot(recording, rng.randrange(recording.n_frames), _View.drawn(rng), light)
    if rng.random() < HELD_SHARE:
        return replace(shot, hold=rng.choice((2, 3, 6)), skip=rng.choice((1, 2, 3)))
    return shot


def _jumped(rng: Random, last: _Shot, before: Pictures) -> _Shot | None:
    """Returns the same take at another time, if the jump stands out; else None."""
    for _ in range(12):
        shot = replace(last, first=rng.randrange(2 * len(_whole(last.recording))))
        luma = joined(before, shot.pictures(4)).planes()[0]
        small = [cv2.resize(y, (48, 27), interpolation=cv2.INTER_AREA) for y in luma]
        steps = np.abs(np.diff(np.stack(small).astype(np.float32), axis=0)).mean(axis=(1, 2))
        around = float(np.delete(steps, 3).max())
        # Dim pictures differ by less.
        if steps[3] > max(JUMP_LEVELS * last.light, JUMP_FACTOR * around):
            return shot
    return None


def _disturbed(
    rng: Random, pictures: Pictures, ends: tuple[int, int], footage: Sequence[Recording]
) -> Pictures:
    """Adds a dip of the light, a stretch of stop motion, or another distractor within a shot."""
    kind, n = rng.choice(("dip", "stop motion", "other", "other")), len(pictures)
    if kind == "other":
        return distracted(rng, pictures, ends, RATE, footage)
    first, last = ends[0] + 6, n - ends[1] - 6
    if last - first < 12:
        return pictures
    if kind == "dip":
        middle, half = rng.uniform(first + 4, last - 4), rng.uniform(2, (last - first) / 2)
        near = np.clip(1.5 - np.abs(np.arange(n) - middle) / half, 0, 1)
        near[[*range(ends[0]), *range(n - ends[1], n)]] = 0
        return scaled(pictures, 1 - rng.uniform(0.3, 0.95) * near)
    hold = rng.choice((2, 3, 6))
    places = [first + (i - first) // hold * hold if first <= i < last else i for i in range(n)]
    return pictures[places]
