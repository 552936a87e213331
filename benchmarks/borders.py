#!/usr/bin/env python3
"""Measures how exactly black borders are found, and that dark footage has none.

    borders.py [MEDIA] [--cases 200] [--dark 60] [--seed 1]

Cases are films of 2.5 s over photographs with borders of all kinds, encoded with x264: letterbox,
pillarbox, both, one side, unequal sides; black levels from 8 to 34, noise in the borders, subtitles
and logos in them, dark content, fades, and small pictures that were enlarged. Each is analyzed by
the stage itself (without the shot network), and the crop of the whole film is compared with the
truth. A case is right when all four sides lie within 2 px at 1080 lines (1 px at 540 and below, but
for enlarged ones). Dark films have no borders: the picture at a small part of its brightness,
vignettes, lamps in the night, and a straight roof under a black sky.

MEDIA is a folder of videos; what is found in each is listed, since only people can say what
is right.
"""

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import tests_path  # noqa: F401
from film_shots import PHOTOGRAPHS, photograph
from measure import machine
from numpy.typing import NDArray

from curator.errors import CuratorError
from curator.measures.borders import Crop, crop_of
from curator.measures.clip_view import ClipView
from curator.models.transnet import ShotAnswers, ShotNetwork
from curator.records.clips import Span
from curator.records.tracks import Track
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.decode_source import analyze_source
from curator.stages.analyze.measurer import Instruments

Luma = NDArray[np.uint8]

SIZES = ((1920, 1080), (1280, 720), (854, 480), (640, 360), (1080, 1920), (960, 720))
BLACK_EDGED = ("hubble", "moon", "retina")
"""Pictures of black around something: nobody could say where they end beside a black border."""
FPS, N_FRAMES = 8, 20
SUBTITLES = ("Where have you been?", "I waited at the station for hours,", "and nobody came.")


class NoShots:
    """Stands for the shot network, which borders do not need."""

    cpu_s = 0.0

    def __init__(self) -> None:
        self._n_frames = 0

    def stream(self, *, in_background: bool) -> "NoShots":
        """Begins a video."""
        return NoShots()

    def push(self, _frame: Luma) -> None:
        """Counts a frame."""
        self._n_frames += 1

    def finish(self) -> ShotAnswers:
        """Zeros, one for each frame."""
        return ShotAnswers(*(np.zeros(self._n_frames, np.float32) for _ in ShotAnswers._fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A film and its truth."""

    kind: str
    size: tuple[int, int]
    sides: tuple[int, int, int, int]
    """Left, top, right and bottom, in pixels."""
    black: int
    bar_noise: float
    words: str
    light: str
    enlarged: bool
    crf: int
    picture: str
    seed: int


def drawn_case(rng: np.random.Generator) -> Case:
    """A case with borders."""
    width, height = SIZES[int(rng.integers(len(SIZES)))]
    kind = str(rng.choice(["letterbox", "pillarbox", "both", "one side", "unequal"]))
    part_x, part_y = rng.uniform(0.012, 0.3, 2)
    x, y = max(4, round(part_x * width)), max(4, round(part_y * height))
    sides = {
        "letterbox": (0, y, 0, y),
        "pillarbox": (x, 0, x, 0),
        "both": (x, y, x, y),
        "one side": [(x, 0, 0, 0), (0, y, 0, 0), (0, 0, x, 0), (0, 0, 0, y)][int(rng.integers(4))],
        "unequal": (0, y, 0, max(4, y // 2)) if rng.random() < 0.5 else (x, 0, max(4, x // 3), 0),
    }[kind]
    picture = str(rng.choice([name for name in PHOTOGRAPHS if name not in BLACK_EDGED]))
    return Case(
        kind=kind,
        size=(width, height),
        sides=sides,
        black=int(rng.choice([16, 16, 16, 8, 20, 26, 34])),
        bar_noise=float(rng.choice([0, 0, 0, 1.0, 2.5])),
        words=str(rng.choice(["none", "none", "subtitles", "logo"])),
        light=str(rng.choice(["normal", "normal", "dim", "fade in", "fade out"])),
        enlarged=bool(rng.random() < 0.15),
        crf=int(rng.choice([18, 23, 28, 34])),
        picture=picture,
        seed=int(rng.integers(1 << 30)),
    )


def film(case: Case) -> Iterator[Luma]:
    """Luma of the frames, limited range."""
    rng = np.random.default_rng(case.seed)
    width, height = case.size
    left, top, right, bottom = case.sides
    inner_w, inner_h = width - left - right, height - top - bottom
    sheet = _sheet(case.picture, inner_w + 96, inner_h + 96)
    plate = rng.standard_normal((height + 64, width + 64), np.float32)
    for index in range(N_FRAMES):
        at = 4 * index
        scene = sheet[at : at + inner_h, at : at + inner_w] * _light(case.light, index)
        scene += 1.5 * _window(plate, scene.shape, rng)
        frame = np.full((height, width), case.black, np.float32)
        frame[top : height - bottom, left : width - right] = case.black + scene * 219 / 255
        if case.bar_noise:
            frame += case.bar_noise * _window(plate, frame.shape, rng)
        _write_words(frame, case, index)
        yield np.clip(np.rint(frame), 0, 255).astype(np.uint8)


def _window(
    plate: NDArray[np.float32], shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.float32]:
    y, x = (int(v) for v in rng.integers(0, 64, 2))
    return plate[y : y + shape[0], x : x + shape[1]]


def _sheet(name: str, width: int, height: int) -> NDArray[np.float32]:
    gray = cv2.cvtColor(photograph(name), cv2.COLOR_RGB2GRAY)
    scale = max(width / gray.shape[1], height / gray.shape[0])
    size = (int(np.ceil(gray.shape[1] * scale)), int(np.ceil(gray.shape[0] * scale)))
    large = cv2.resize(gray, size, interpolation=cv2.INTER_CUBIC if scale > 1 else cv2.INTER_AREA)
    return large[:height, :width].astype(np.float32)


def _light(kind: str, index: int) -> float:
    t = index / (N_FRAMES - 1)
    return {
        "normal": 1.0,
        "dim": 0.25,
        "fade in": min(1.0, 2 * t),
        "fade out": min(1.0, 2 * (1 - t)),
    }[kind]


def _write_words(frame: NDArray[np.float32], case: Case, index: int) -> None:
    left, top, right, bottom = case.sides
    height, width = frame.shape
    depth = max(case.sides)
    if case.words == "none" or depth < 24:
        return
    if case.words == "subtitles" and bottom >= 24:
        words = SUBTITLES[index * len(SUBTITLES) // N_FRAMES]
        inner_w = width - left - right
        scale = min(bottom / 60, height / 500, inner_w / 620)
        _text(frame, words, (left + inner_w // 16, height - bottom // 3), scale)
    elif case.words == "logo":
        x = width - right + 4 if right >= 24 else 8
        y = top - 6 if top >= 24 else height - bottom // 4 if bottom >= 24 else height // 8
        _text(frame, "TV 5", (min(x, width - 60), max(y, 16)), depth / 90)


def _text(frame: NDArray[np.float32], words: str, at: tuple[int, int], scale: float) -> None:
    thick = max(1, round(2 * scale))
    glyphs = np.zeros(frame.shape, np.uint8)
    cv2.putText(glyphs, words, at, cv2.FONT_HERSHEY_SIMPLEX, scale, 255, thick, cv2.LINE_AA)
    frame += (225 - frame) * (glyphs / np.float32(255))


DARK = ("faint", "vignette", "lamps", "roof", "noisy night", "black with a title")


def dark_film(kind: str, size: tuple[int, int], name: str, seed: int) -> Iterator[Luma]:
    """Luma of the frames of a dark film without borders."""
    rng = np.random.default_rng(seed)
    width, height = size
    sheet = _sheet(name, width + 96, height + 96)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    distance = np.hypot((x - width / 2) / width, (y - height / 2) / height)
    lamps = rng.uniform(0, 1, (9, 2)) * (width, height)
    gain = float(rng.uniform(0.03, 0.12))
    roof = rng.uniform(0.2, 0.6) * height
    for index in range(N_FRAMES):
        scene = sheet[4 * index : 4 * index + height, 4 * index : 4 * index + width].copy()
        if kind == "faint":
            scene *= gain
        elif kind == "vignette":
            scene *= np.clip(1 - 2.6 * distance, 0, 1)
        elif kind == "lamps":
            glow = sum(np.exp(-((x - a) ** 2 + (y - b) ** 2) / 900) for a, b in lamps)
            scene = scene * 0.02 + 230 * np.minimum(1, glow)
        elif kind == "roof":
            scene *= 0.5 * (y > roof + 0.06 * x + 2 * index)
        elif kind == "noisy night":
            scene = scene * 0.03 + rng.normal(3, 4, scene.shape)
        else:
            scene = np.zeros_like(scene)
            _text(scene, "THE END", (width // 3, height // 2), width / 500)
        noisy = scene + rng.normal(0, 0.7, scene.shape)
        yield np.clip(np.rint(16 + noisy * 219 / 255), 0, 255).astype(np.uint8)


def written(
    path: Path, frames: Iterator[Luma], *, crf: int, enlarge_to: tuple[int, int] | None
) -> None:
    """Encodes luma with gray chroma."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS)
        stream.codec_context.thread_count = 1
        stream.options = {"preset": "superfast", "crf": str(crf)}
        stream.pix_fmt = "yuv420p"
        for index, luma in enumerate(frames):
            shown = luma
            if enlarge_to is not None:
                shown = cv2.resize(luma, enlarge_to, interpolation=cv2.INTER_CUBIC)
            height, width = shown.shape
            if index == 0:
                stream.width, stream.height = width, height
            chroma = np.full((height // 2, width), 128, np.uint8)
            frame = av.VideoFrame.from_ndarray(np.vstack([shown, chroma]), format="yuv420p")
            frame.pts = index
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def track_of(path: Path) -> Track:
    """Analyzes a film without the shot network."""
    with path.open("rb") as reader:
        return analyze_source(
            reader,
            str(path),
            source_id="0" * 32,
            n_bytes=path.stat().st_size,
            instruments=Instruments(network=_no_shots()),
            config=AnalyzeConfig(),
            decoder_threads=1,
        )


def _no_shots() -> ShotNetwork:
    return NoShots()  # type: ignore[return-value]


def found_in(path: Path) -> tuple[Crop | None, Track]:
    """The crop of a whole film."""
    track = track_of(path)
    return crop_of(ClipView(track, Span(start_frame=0, end_frame=track.n_frames, shot=0))), track


def error_px(crop: Crop | None, sides: tuple[int, int, int, int], size: tuple[int, int]) -> int:
    """Largest distance of a side from the truth, in pixels."""
    width, height = size
    got = (0, 0, 0, 0)
    if crop is not None:
        got = (crop.x, crop.y, width - crop.x - crop.width, height - crop.y - crop.height)
    return max(abs(a - b) for a, b in zip(got, sides, strict=True))


def main() -> None:
    """Runs the measurement and prints tables, then JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("media", nargs="?", type=Path, help="folder of videos to list")
    parser.add_argument("--cases", type=int, default=200, help="films with borders")
    parser.add_argument("--dark", type=int, default=60, help="dark films without")
    parser.add_argument("--seed", type=int, default=1, help="of all draws")
    args = parser.parse_args()
    cv2.setNumThreads(1)
    begun_s = time.process_time()
    rng = np.random.default_rng(args.seed)
    outcomes: dict[str, list[bool]] = defaultdict(list)
    errors: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "film.mp4"
        for number in range(args.cases):
            case = drawn_case(rng)
            error, limit = run_case(case, path)
            errors.append(error)
            for key in (case.kind, f"words: {case.words}", f"light: {case.light}", "all"):
                outcomes[key].append(error <= limit)
            if error > limit:
                print(f"case {number}: {error} px off, {case}", flush=True)
        false = 0
        for number in range(args.dark):
            kind, name = DARK[number % len(DARK)], list(PHOTOGRAPHS)[number % len(PHOTOGRAPHS)]
            size = SIZES[int(rng.integers(len(SIZES)))]
            written(path, dark_film(kind, size, name, number), crf=26, enlarge_to=None)
            crop, _ = found_in(path)
            false += crop is not None
            if crop is not None:
                print(f"dark film {number} ({kind}, {name}, {size}): {crop}", flush=True)
    print("\n| films with borders | right | of |\n|---|---|---|")
    for key, right in sorted(outcomes.items()):
        print(f"| {key} | {sum(right)} | {len(right)} |")
    print(f"\nLargest error {max(errors, default=0)} px, median {np.median(errors):.0f} px.")
    print(f"Dark films: {args.dark}, with borders found in {false}.")
    media = listed(args.media) if args.media else {}
    result = {
        "cases": args.cases,
        "right": sum(outcomes["all"]),
        "dark": args.dark,
        "dark_found": false,
        "media": media,
        "cpu_s": round(time.process_time() - begun_s, 1),
        **machine(),
    }
    print(json.dumps(result))


def run_case(case: Case, path: Path) -> tuple[int, float]:
    """Largest error of a case in pixels, and the one allowed."""
    width, height = case.size
    if not case.enlarged:
        written(path, film(case), crf=case.crf, enlarge_to=None)
        crop, _ = found_in(path)
        return error_px(crop, case.sides, case.size), 2
    factor = Fraction(3, 2)
    size = (int(width * factor) // 2 * 2, int(height * factor) // 2 * 2)
    written(path, film(case), crf=case.crf, enlarge_to=size)
    crop, _ = found_in(path)
    left, top, right, bottom = (round(side * factor) for side in case.sides)
    return error_px(crop, (left, top, right, bottom), size), 3


def listed(media: Path) -> dict[str, list[int]]:
    """Borders found in the videos of a folder."""
    print("\n| file | size | x, y, width, height |\n|---|---|---|")
    found: dict[str, list[int]] = {}
    for path in sorted(
        p for p in media.rglob("*") if p.is_file() and p.suffix not in {".md", ".json"}
    ):
        if path.stat().st_size > 3_000_000 or "av1_black" in path.name:
            continue
        try:
            crop, track = found_in(path)
        except CuratorError:
            continue
        if crop is not None:
            name = str(path.relative_to(media))
            found[name] = [crop.x, crop.y, crop.width, crop.height]
            print(f"| {name} | {track.width}x{track.height} | {found[name]} |", flush=True)
    return found


if __name__ == "__main__":
    main()
