"""Measures the annotator `camera_track` on made footage of known motions.

    python benchmarks/camera_tracks.py [--seeds N ...]

Each film goes through H.264 and the analysis, at some rates of samples. A cell has the
error of the motion per frame, relative to the motion (both root mean square); the delay in frames;
and the rate of components that do not move.
Seeds below 100 were used to choose the method; by default the others are measured.
"""

import argparse
import json
import sys
import tempfile
import time
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from film_makers import write_video
from moving_cameras import MOTIONS, Floats, MovingCamera, Velocity, signals_of, velocity_of
from samples import analyzed

from curator.measures.camera_path import frame_motion
from curator.stages.analyze.config import AnalyzeConfig

SEEDS = (100, 101, 102)
N_FRAMES, FPS = 200, 25
RATES = {2.0: 0.1, 5.0: 0.1, 10.0: 0.07, 25.0: 0.04}
"""Samples per second, and seconds between the frames of a pair."""
LENSES = (30.0, 45.0, 60.0)
"""Angles of the short side of cameras that turn on their place, in degrees."""
DEGREES = 20.0
"""Degrees of a turn per short side of a motion along the picture."""
UNITS = np.array([1, 1, 1, 0.01])
TURNED_UNITS = np.array([0.02, 0.02, 1, 0.01])
"""Components as motions of about the same size in the picture: of degrees, a hundredth or so."""


TURNS = ("steady", "pan", "tilt", "sway")


def turning(velocity: Velocity) -> Velocity:
    """Returns a velocity with turns in place of motions along the picture."""
    return lambda times_s: velocity(times_s) * np.array([DEGREES, DEGREES, 1, 1])


class Error(NamedTuple):
    """Error of the motion of a film.

    Attributes:
        share: Root mean square of the error, relative to the motion, over moving components.
        lag_frames: Delay of the found motion; None for a motion that does not change.
        others: Root mean square in components that do not move, per second; degrees count 0.01.
    """

    share: float
    lag_frames: float | None
    others: float


def error_of(found: Floats, true: Floats, units: Floats = UNITS) -> Error:
    """Returns the error of a film's motion."""
    found, true = found[1:] * units, true[1:] * units
    moves = np.abs(true).max(axis=0) > 0
    rest = float(np.sqrt((found[:, ~moves] ** 2).mean())) * FPS if not moves.all() else 0.0
    if not moves.any():
        return Error(0.0, None, rest)
    found, true = found[:, moves], true[:, moves]
    share = float(np.sqrt(((found - true) ** 2).sum() / (true**2).sum()))
    slope = np.gradient(true, axis=0)
    changes = float((slope**2).sum()) > 1e-4 * float((true**2).sum())
    lag = -float(((found - true) * slope).sum() / (slope**2).sum()) if changes else None
    return Error(share, lag, rest)


def measured(
    folder: Path, camera: MovingCamera, samples_per_s: float, pair_s: float
) -> tuple[Error, float]:
    """Returns the error of a film, and the CPU-seconds of its analysis."""
    path = folder / "film.mp4"
    if not path.exists():
        write_video(path, camera.frames(), fps=Fraction(camera.fps), options={"crf": "20"})
    config = AnalyzeConfig(
        samples_per_s=samples_per_s, motion_pair_s=pair_s, text=False, scenes=False
    )
    start_s = time.process_time()
    track = analyzed(path, config=config)
    cpu_s = time.process_time() - start_s
    angle = camera.field_of_view_deg
    focal = None if angle is None else 0.5 / np.tan(np.radians(angle) / 2)
    size = camera.width_px, camera.height_px
    found = frame_motion(signals_of(track), focal=focal, size=size)
    return error_of(found, camera.motion(), UNITS if focal is None else TURNED_UNITS), cpu_s


def main() -> None:
    """Prints tables, and JSON as the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--motions", nargs="+", default=MOTIONS)
    parser.add_argument("--rates", type=float, nargs="+", default=tuple(RATES))
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    rates = " | ".join(f"{rate:g}/s" for rate in options.rates)
    print(f"| motion | seed | {rates} |\n|---|---|" + "---|" * len(options.rates))
    films = [
        *product(options.motions, [None], options.seeds),
        *product([m for m in options.motions if m in TURNS], LENSES, options.seeds),
    ]
    for motion, angle_deg, seed in films:
        velocity = velocity_of(motion, seed)
        name = motion if angle_deg is None else f"{motion}, turning, {angle_deg:g} degrees"
        camera = MovingCamera(
            velocity=velocity if angle_deg is None else turning(velocity),
            n_frames=N_FRAMES, seed=seed, fps=FPS, field_of_view_deg=angle_deg,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            cells = []
            for rate in options.rates:
                error, cpu_s = measured(Path(folder), camera, rate, RATES[rate])
                lag = "-" if error.lag_frames is None else f"{error.lag_frames:+.2f}"
                cells.append(f"{error.share:.1%}, {lag}, {error.others:.4f}")
                facts = {"motion": name, "seed": seed, "samples_per_s": rate, "cpu_s": cpu_s}
                rows.append(facts | error._asdict())
            print(f"| {name} | {seed} | " + " | ".join(cells) + " |", flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
