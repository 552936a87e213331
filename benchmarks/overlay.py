"""Accuracy and cost of the scores of text and logos; `split_screens.py` is about divided ones.

    python benchmarks/overlay.py [--media FOLDER] [--film FILE ...] [--only WORD] [--seed N]

Overlays are drawn over real clips and over made footage, encoded, and analyzed by the stage itself.
A clip counts as found when its score is above `FOUND`. Prints tables, then JSON.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import tests_path  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent.parent))

from film_makers import write_video
from film_shots import PHOTOGRAPHS, pan, pan_zoom, photograph, static, texture, zoom
from overlays import Corner, Style, emblem, lettering, subtitled, with_mark, with_sign, with_ticker

from curator.footage.scenes import Picture, ShotSpec, View, render_shot
from curator.measures.score_list import BUILT_IN, SCORES
from curator.models.text_detector import TextDetector
from curator.records.clips import Span
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.decode_source import analyze_source
from curator.stages.analyze.measurer import Instruments
from tests.samples import StillNetwork

FOUND = {"overlay_text_area": 0.0005, "logo_area": 0.0005}
SECONDS, FPS, WIDTH = 6, 25, 640
# One take without text in it; those shorter than SECONDS are left out.
REAL = (
    "bottle-detection.mp4", "car-detection.mp4", "chaplin.mp4", "climbing_portrait.mp4",
    "dog_play.mp4", "juggle.mp4", "meeting_two_people.webm", "rooftops_60fps_pans.mp4",
    "solidWhiteRight.mp4",
)  # fmt: skip
SENTENCES = (
    "I told you not to come here.", "Where were you last night?", "Behind the hill, over there",
    "No.", "We have to leave before dawn", "And then she laughed at all of us.", "Why?",
    "Nobody knows what happened next.", "Take the second road on the left",
)  # fmt: skip
OTHER_SCRIPTS = (
    "\u041a\u0442\u043e \u0437\u0434\u0435\u0441\u044c? "
    "\u041f\u043e\u0434\u043e\u0436\u0434\u0438\u0442\u0435 \u043c\u0435\u043d\u044f",
    "\u0394\u03b5\u03bd \u03be\u03ad\u03c1\u03c9 \u03c4\u03b9 "
    "\u03ad\u03b3\u03b9\u03bd\u03b5 \u03b5\u03b4\u03ce",
    "\u00bfD\u00f3nde est\u00e1n los ni\u00f1os? \u00a1Aqu\u00ed!",
    "Es ist schon sp\u00e4t, gehen wir",
)
"""Cyrillic, Greek, and Latin with accents."""
NEWS = (
    "Markets close higher  +++  Rain is expected in the north until Friday  +++  The bridge opens"
)
DEJAVU = Path("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf")
Draw = Callable[[Iterable[Picture], random.Random], Iterable[Picture]]


def real_clip(path: Path) -> list[Picture]:
    """Frames of the first seconds of a file, at most `WIDTH` px, on an even grid of `FPS`."""
    frames: list[Picture] = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        begin = None
        for frame in container.decode(stream):
            begin = frame.time if begin is None else begin
            if frame.time - begin > SECONDS:
                break
            picture = frame.to_ndarray(format="rgb24")
            scale = min(1.0, WIDTH / max(picture.shape[:2]))
            size = tuple(round(side * scale / 2) * 2 for side in picture.shape[1::-1])
            picture = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
            while len(frames) <= (frame.time - begin) * FPS:
                frames.append(picture)
    return frames[: SECONDS * FPS]


def made_shots(seed: int, picture: Picture | None = None) -> Iterator[tuple[str, ShotSpec]]:
    """Shots over made or photographed pictures, by what the camera does."""
    n, names = SECONDS * FPS, sorted(PHOTOGRAPHS)

    def shown(index: int) -> Picture:
        if picture is not None:
            return picture
        if index % 2:
            return texture(seed + index, width_px=900, height_px=600)
        return photograph(names[(seed + index) % len(names)])

    yield "pan", pan(shown(0), n, span=0.7, seed=seed)
    yield "slow pan", pan(shown(1), n, span=0.9, end=(0.6, 0.5), seed=seed)
    yield "tilt", pan(shown(2), n, span=0.6, start=(0.5, 0), end=(0.5, 1), seed=seed)
    yield "zoom", zoom(shown(3), n, seed=seed)
    yield "zoom out", zoom(shown(4), n, span=(0.5, 0.9), seed=seed)
    view = View(x=0.2, y=0.3, span=0.6), View(x=0.7, y=0.8, span=0.8)
    yield "pan and zoom", pan_zoom(shown(5), n, start=view[0], end=view[1], seed=seed)
    yield "static", static(shown(6), n, seed=seed)


def subtitles(frames: Iterable[Picture], rng: random.Random) -> Iterable[Picture]:
    first = list(frames)
    height = first[0].shape[0]
    size = max(9, round(height * rng.choice((0.045, 0.06, 0.08))))
    style: Style = rng.choice(("outlined", "boxed", "outlined"))
    colour = rng.choice(((255, 255, 255), (255, 255, 255), (250, 230, 60)))
    texts = rng.sample(SENTENCES, 4)
    font = None
    if DEJAVU.is_file() and rng.random() < 0.4:
        texts, font = rng.sample(OTHER_SCRIPTS, 4), DEJAVU
    patches: list[np.ndarray | None] = [
        lettering(text, size_px=size, style=style, colour=colour, font=font) for text in texts
    ]
    if rng.random() < 0.5:
        patches.insert(rng.randrange(4), None)
    return subtitled(first, patches, n_frames=round(FPS * rng.uniform(1.5, 3)))


def ticker(frames: Iterable[Picture], rng: random.Random) -> Iterable[Picture]:
    first = list(frames)
    height, width = first[0].shape[:2]
    patch = lettering(
        NEWS + "  +++  ", size_px=max(10, round(height * rng.choice((0.045, 0.06)))), style="boxed"
    )
    speed = width * rng.uniform(0.08, 0.2) / FPS
    return with_ticker(first, patch, px_per_frame=speed, y=rng.choice((0.03, 0.88, 0.9)))


def watermark(frames: Iterable[Picture], rng: random.Random) -> Iterable[Picture]:
    first = list(frames)
    size = max(12, round(first[0].shape[0] * rng.choice((0.05, 0.07))))
    patch = lettering(rng.choice(("STOCKFILM", "Channel 7", "@someone")), size_px=size)
    corner: Corner = rng.choice(("top left", "top right", "bottom left", "bottom right"))
    return with_mark(first, patch, corner=corner, opacity=rng.choice((0.5, 0.8, 1.0)))


def logo(frames: Iterable[Picture], rng: random.Random) -> Iterable[Picture]:
    first = list(frames)
    size = round(first[0].shape[0] * rng.choice((0.1, 0.15)))
    corner: Corner = rng.choice(("top left", "top right", "bottom right"))
    patch = emblem(size, seed=rng.randrange(99))
    return with_mark(first, patch, corner=corner, opacity=rng.choice((0.8, 1.0)))


def sign(rng: random.Random, index: int) -> Picture:
    """A picture with a sign, or several, painted into it."""
    names = sorted(PHOTOGRAPHS)
    base = photograph(names[index % len(names)])
    base = texture(index, width_px=900, height_px=600) if index % 3 == 0 else base
    scale = 900 / base.shape[1]
    picture = np.asarray(cv2.resize(base, None, fx=scale, fy=scale))
    for _ in range(rng.choice((1, 2, 3))):
        patch = lettering(
            rng.choice(("BAKERY", "Town hall 200 m", "EXIT 14 North", "Hotel", "SALE 50% OFF")),
            size_px=rng.choice((26, 36, 50)),
            style="plain",
            colour=(20, 30, 60),
        )
        picture = with_sign(picture, patch, x=rng.uniform(0.25, 0.75), y=rng.uniform(0.25, 0.75))
    return picture


def scored(frames: Iterable[Picture], folder: Path, detector: TextDetector) -> dict[str, float]:
    """Scores of a clip of these frames, encoded and analyzed."""
    path = folder / "clip.mp4"
    write_video(path, frames, fps=Fraction(FPS), options={"preset": "veryfast", "crf": "26"})
    with path.open("rb") as reader:
        track = analyze_source(
            reader, str(path), source_id="0" * 32, n_bytes=path.stat().st_size,
            instruments=Instruments(network=StillNetwork(), detector=detector),
            config=AnalyzeConfig(), decoder_threads=1,
        )  # fmt: skip
    return BUILT_IN.score_clip(track, Span(start_frame=0, end_frame=track.n_frames, shot=0))


def cases(media: Path, only: str, base_seed: int) -> Iterator[tuple[str, str, str, list[Picture]]]:
    """What is drawn, what it is drawn on, whether that moves, and the frames."""
    draws: dict[str, Draw] = {
        "nothing": lambda frames, _rng: frames,
        "subtitles": subtitles,
        "ticker": ticker,
        "watermark": watermark,
        "logo": logo,
    }
    draws = {name: draw for name, draw in draws.items() if only in name}
    rng = random.Random(base_seed)
    for name in REAL if media.is_dir() else ():
        frames = real_clip(media / "single" / name)
        for drawn, draw in draws.items():
            yield drawn, "real", name, list(draw(frames, rng))
    for seed in (base_seed - 3, base_seed - 2):
        for name, shot in made_shots(seed):
            frames = list(render_shot(shot, width_px=640, height_px=360))
            for drawn, draw in draws.items():
                yield drawn, "made", name, list(draw(frames, rng))
    for index in range(3 if only in "sign" else 0):
        for name, shot in made_shots(7 * index, sign(rng, index + base_seed - 4)):
            yield "sign", "made", name, list(render_shot(shot, width_px=640, height_px=360))


def cost(path: Path, detector: TextDetector | None) -> dict[str, float]:
    """CPU-seconds of looking for overlays in a file, per minute of video."""
    spent: dict[str, float] = {}
    begun = time.process_time()
    with path.open("rb") as reader:
        track = analyze_source(
            reader, str(path), source_id="0" * 32, n_bytes=path.stat().st_size,
            instruments=Instruments(network=StillNetwork(), detector=detector),
            config=AnalyzeConfig(), decoder_threads=1,
            spent=spent,
        )  # fmt: skip
    per_minute = 60 / track.duration_s
    return {
        "overlay_s": spent["overlay"] * per_minute,
        "all_but_network_s": (time.process_time() - begun) * per_minute,
        "lines": float(len(track.text_frame)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    media = os.environ.get("CURATE_TEST_MEDIA", "../shared/media")
    parser.add_argument("--media", type=Path, default=Path(media))
    parser.add_argument("--film", type=Path, nargs="*", default=[])
    parser.add_argument("--only", default="", help="only overlays with this word in their name")
    parser.add_argument("--seed", type=int, default=4, help="the thresholds were set on 4")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    cv2.setNumThreads(1)
    detector = TextDetector()
    found: dict[tuple[str, str], list[tuple[str, dict[str, float]]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for drawn, kind, name, frames in cases(args.media, args.only, args.seed):
            scores = scored(frames, Path(folder), detector)
            found[drawn, kind].append((name, scores))
            if args.verbose:
                shown = {score: round(scores[score] or 0, 4) for score in FOUND if score in SCORES}
                print(drawn, kind, name, shown, flush=True)
    table = {}
    print("drawn      over   clips  " + "  ".join(name for name in FOUND if name in SCORES))
    for (drawn, kind), rows in sorted(found.items()):
        counts = {
            score: sum((scores[score] or 0) > bound for _, scores in rows)
            for score, bound in FOUND.items()
            if score in SCORES
        }
        table[f"{drawn} {kind}"] = {"clips": len(rows), **counts}
        cells = "  ".join(f"{counts[name]:{len(name)}d}" for name in counts)
        print(f"{drawn:10s} {kind:5s} {len(rows):5d}  {cells}")
    costs = {}
    for path in args.film:
        costs[path.name] = {"text on": cost(path, detector), "text off": cost(path, None)}
        print(path.name, costs[path.name])
    print(json.dumps({"found": table, "cost": costs}))


if __name__ == "__main__":
    main()
