"""Accuracy and cost of `picture_in_picture` and `logo_area` on made insets and marks.

    python benchmarks/insets.py [--media FOLDER] [--half tune|report] [--seed N] [--verbose]

Real clips are put over real clips (and marks over clips), encoded, and analyzed by the stage
itself. The clips are in two halves that share no footage: thresholds were set on the one, the other
is for the report. Prints a table of what was found by what was drawn, then JSON.
"""

import argparse
import json
import os
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

import av
import cv2
import numpy as np
import tests_path  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent.parent))

from film_makers import write_video
from film_shots import PHOTOGRAPHS, pan, pan_zoom, photograph, static, zoom
from overlays import (
    Corner,
    Inset,
    drawn,
    emblem,
    lettering,
    subtitled,
    with_inset,
    with_mark,
    with_ticker,
)

from curator.footage.scenes import Picture, View, render_shot
from curator.measures.score_list import BUILT_IN
from curator.records.clips import Span
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.decode_source import analyze_source
from curator.stages.analyze.measurer import Instruments
from tests.samples import StillNetwork

SECONDS, FPS, WIDTH = 6, 25, 640
FOUND = {"picture_in_picture": 0.005, "logo_area": 0.0005}
Half = Literal["tune", "report"]
# File, and where its pieces of SECONDS begin: each within one shot.
CLIPS: dict[Half, tuple[tuple[str, tuple[float, ...]], ...]] = {
    "tune": (
        ("single/bottle-detection.mp4", (0, 20)),
        ("single/chaplin.mp4", (0,)),
        ("single/dog_play.mp4", (0,)),
        ("single/juggle.mp4", (0,)),
        ("single/rooftops_60fps_pans.mp4", (0, 8)),
        ("single/awesome movie.mov", (0.5,)),
        ("multishot/big_buck_bunny_0_30.webm", (16,)),
        ("neardup/cockatoo_yuv420.mp4", (0, 7)),
        ("single/meeting_two_people.webm", (0, 20)),
        ("single/solidWhiteRight.mp4", (0,)),
        ("single/blocks_hands.mp4", (0,)),
    ),
    "report": (
        ("single/car-detection.mp4", (0, 15)),
        ("single/climbing_portrait.mp4", (0, 7)),
        ("single/tractor_pan_vp9.webm", (2,)),
        ("multishot/dancer_jumpcuts.webm", (2, 25)),
        ("multishot/chrome.mp4", (0,)),
        ("multishot/nasa_13013.mp4", (0,)),
        ("multishot/bbb_logo_60fps.ts", (4.9,)),
        ("neardup/dog_on_bed.mp4", (0,)),
        ("neardup/carphone_pristine.mp4", (0,)),
        ("formats/hevc_5.1.ts", (0,)),
        ("formats/mpeg4_mp3.avi", (0,)),
    ),
}
MARKED = ("tractor_pan_vp9",)
"""Clips with something drawn on them to begin with."""
ENDS = {"multishot/nasa_13013.mp4": 5.0}
"""Where the piece's shot ends before the piece does."""
SLIDES: dict[Half, tuple[tuple[str, tuple[float, ...]], ...]] = {
    "tune": (("multishot/laion_slides.mp4", (12, 52)),),
    "report": (("multishot/laion_slides.mp4", (75, 104)),),
}
SHOTS = ("pan", "slow pan", "zoom", "pan and zoom", "static")
SENTENCES = ("I told you not to come here.", "Where were you last night?", "No.", "Why?")


@dataclass(frozen=True, slots=True)
class Case:
    """A made clip: what was drawn, over what, its frames, and the area of its inset and mark."""

    drawn: str
    over: str
    frames: list[Picture]
    inset_area: float = 0.0
    has_mark: bool = False


def real_clip(path: Path, begin_s: float, end_s: float = 1e9) -> list[Picture]:
    """Frames of `SECONDS` of a file, at most `WIDTH` px, on an even grid of `FPS`.

    What ends before is played backwards, and forwards again.
    """
    frames: list[Picture] = []
    with av.open(str(path)) as container:
        first = None
        for frame in container.decode(container.streams.video[0]):
            first = frame.time if first is None else first
            at = frame.time - first - begin_s
            if at > SECONDS or at + begin_s > end_s:
                break
            if at < 0:
                continue
            picture = frame.to_ndarray(format="rgb24")
            scale = min(1.0, WIDTH / max(picture.shape[:2]))
            size = tuple(round(side * scale / 2) * 2 for side in picture.shape[1::-1])
            picture = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
            while len(frames) <= at * FPS:
                frames.append(picture)
    while len(frames) < SECONDS * FPS:
        frames += frames[::-1]
    return frames[: SECONDS * FPS]


def photographed(half: Half, seed: int) -> Iterator[tuple[str, list[Picture]]]:
    """Photographs under a moving and a standing camera."""
    names = sorted(PHOTOGRAPHS)[0 if half == "tune" else 1 :: 2]
    n = SECONDS * FPS
    pictures = [photograph(name) for name in random.Random(seed).sample(names, 4)]
    view = View(x=0.2, y=0.3, span=0.6), View(x=0.7, y=0.8, span=0.8)
    shots = {  # the keys are `SHOTS`
        "pan": pan(pictures[0], n, span=0.7, seed=seed),
        "slow pan": pan(pictures[1], n, span=0.9, end=(0.6, 0.5), seed=seed),
        "zoom": zoom(pictures[2], n, seed=seed),
        "pan and zoom": pan_zoom(pictures[3], n, start=view[0], end=view[1], seed=seed),
        "static": static(pictures[0], n, seed=seed),
    }
    for name, shot in shots.items():
        yield name, list(render_shot(shot, width_px=640, height_px=360))


def screen(seed: int) -> list[Picture]:
    """A recording of a screen: windows, one with a page that scrolls, one that is written in."""
    rng = random.Random(seed)
    back = np.full((360, 640, 3), rng.randrange(20, 90), np.uint8)
    page = np.full((1400, 400, 3), 245, np.uint8)
    for row in range(14, 1380, 22):
        words = " ".join(rng.choice(("while", "the", "value", "returns", "of", "a", "longer",
                                     "sentence")) for _ in range(rng.randrange(4, 9)))  # fmt: skip
        patch = lettering(words, size_px=12, style="plain", colour=(30, 30, 40))
        page = drawn(page, patch[:, :380], 10, row)
    page[:, 396:] = 200
    typed = [rng.choice("abcdefghijklmnop =+().") for _ in range(180)]
    frames, offset = [], 0.0
    left = rng.choice((8, 100))
    for index in range(SECONDS * FPS):
        frame = back.copy()
        frame[20:352, left : left + 400] = page[int(offset) : int(offset) + 332]
        frame[8:20, left : left + 400] = 120
        right = 0 if left == 100 else 420
        width = 96 if left == 100 else 212
        frame[60:300, right : right + width] = 252
        shown = "".join(typed[: index + 20])
        per_line = max(8, width // 8)
        for row in range(0, len(shown), per_line):
            text = shown[row : row + per_line].strip() or "."
            patch = lettering(text, size_px=11, style="plain", colour=(10, 10, 10))
            frame = drawn(frame, patch[:, : width - 4], right + 2, 62 + row // per_line * 15)
        if 40 < index % 90 < 70:
            offset = min(offset + 4, 1060)
        frames.append(frame)
    return frames


def television(
    picture: Picture, video: list[Picture], rng: random.Random, *, moving: bool
) -> list[Picture]:
    """A scene with a screen in it that shows a video, seen a little from the side."""
    height, width = 480, 854
    scene = np.asarray(cv2.resize(picture, (width, height)))
    w, h = rng.uniform(0.15, 0.4) * width, rng.uniform(0.18, 0.4) * height
    x, y = rng.uniform(0.1, 0.85) * (width - w), rng.uniform(0.1, 0.85) * (height - h)
    tilt = [rng.choice((-1, 1)) * rng.uniform(0.015, 0.06) for _ in range(4)]
    corners = np.float32(
        [[x, y + tilt[0] * w / 2], [x + w, y - tilt[0] * w / 2],
         [x + w + tilt[1] * h, y + h + tilt[2] * w], [x + tilt[3] * h, y + h]]
    )  # fmt: skip
    frames = []
    for index, shown in enumerate(video):
        size = shown.shape[1], shown.shape[0]
        whole = np.float32([[0, 0], [size[0], 0], [size[0], size[1]], [0, size[1]]])
        matrix = cv2.getPerspectiveTransform(whole, corners)
        lit = cv2.warpPerspective(shown, matrix, (width, height), flags=cv2.INTER_AREA)
        mask = cv2.warpPerspective(np.full(shown.shape[:2], 255, np.uint8), matrix, (width, height))
        rim = cv2.dilate(mask, np.ones((9, 9), np.uint8)) > 0
        frame = np.where(rim[..., None], np.uint8(18), scene)
        frame = np.where((mask > 127)[..., None], lit, frame)
        t = index / len(video) if moving else 0.5
        left, top = round(t * (width - 640)), round((0.3 + 0.4 * t) * (height - 360))
        frames.append(np.ascontiguousarray(frame[top : top + 360, left : left + 640]))
    return frames


def placed(rng: random.Random, shape: tuple[int, ...]) -> Inset:
    """An inset in a corner or at a side."""
    height, width = shape[:2]
    share = rng.uniform(0.1, 0.4) if width > height else rng.uniform(0.25, 0.5)
    aspect = rng.choice((16 / 9, 16 / 9, 4 / 3, 1.0, 0.75))
    tall = min(share * width / aspect / height, 0.5)
    line = rng.choice((0, 0, 2, 3))
    margin = rng.choice((0.0, rng.uniform(0.01, 0.05), rng.uniform(0.01, 0.05)))
    x, y = (margin, margin * width / height) if margin else (0.0, 0.0)
    if margin == 0.0:
        line = 0
    across = rng.choice((x, 1 - share - x, x, 1 - share - x, rng.uniform(0.1, 0.9) * (1 - share)))
    down = rng.choice((y, 1 - tall - y))
    if across not in (x, 1 - share - x):
        down = rng.choice((y, 1 - tall - y))
    colour = rng.choice(((255, 255, 255), (0, 0, 0), (200, 30, 30)))
    radius = rng.choice((0, 0, 0, 0, round(0.1 * min(share * width, tall * height))))
    return Inset(
        x=across, y=down, width=share, height=tall, border_px=line, border=colour, radius_px=radius
    )


def banner(frames: list[Picture], rng: random.Random) -> list[Picture]:
    """A lower third: a flat box with text, and a smaller one in a corner."""
    height, width = frames[0].shape[:2]
    box = np.full((round(0.14 * height), round(rng.uniform(0.35, 0.6) * width), 4), 255, np.uint8)
    box[..., :3] = [rng.randrange(256) for _ in range(3)]
    text = lettering("Reporting from the north", size_px=max(9, round(0.05 * height)))
    small = np.full((round(0.12 * height), round(0.14 * width), 4), 255, np.uint8)
    small[..., :3] = [rng.randrange(256) for _ in range(3)]
    made = []
    for frame in frames:
        shown = drawn(frame, box, round(0.06 * width), round(0.8 * height))
        shown = drawn(shown, text, round(0.08 * width), round(0.83 * height))
        made.append(drawn(shown, small, round(0.84 * width), round(0.04 * height)))
    return made


def letterboxed(frames: list[Picture], rng: random.Random) -> list[Picture]:
    """The frames within black bars, at the top and bottom or at the sides."""
    height, width = frames[0].shape[:2]
    bars = rng.uniform(0.08, 0.14)
    made = []
    across = rng.random() < 0.5
    for frame in frames:
        shown = np.zeros_like(frame)
        if across:
            x = round(bars * width)
            shown[:, x:-x] = cv2.resize(frame, (width - 2 * x, height))
        else:
            y = round(bars * height)
            shown[y:-y] = frame[y:-y]
        made.append(shown)
    return made


def subtitles(frames: list[Picture], rng: random.Random) -> list[Picture]:
    """Boxed or outlined captions."""
    size = max(9, round(frames[0].shape[0] * 0.06))
    style = rng.choice(("outlined", "boxed"))
    patches = [lettering(text, size_px=size, style=style) for text in SENTENCES]
    return list(subtitled(frames, patches, n_frames=round(FPS * rng.uniform(1.5, 3))))


def ticker(frames: list[Picture], rng: random.Random) -> list[Picture]:
    """A band of text that scrolls."""
    height, width = frames[0].shape[:2]
    news = "Markets close higher  +++  Rain is expected in the north until Friday  +++  "
    patch = lettering(news, size_px=max(10, round(height * 0.05)), style="boxed")
    return list(with_ticker(frames, patch, px_per_frame=width * rng.uniform(0.08, 0.2) / FPS))


def logo(frames: list[Picture], rng: random.Random) -> list[Picture]:
    """A mark without text in a corner, opaque or half so."""
    size = round(frames[0].shape[0] * rng.choice((0.08, 0.1, 0.15)))
    corner: Corner = rng.choice(("top left", "top right", "bottom left", "bottom right"))
    patch = emblem(size, seed=rng.randrange(999))
    return list(with_mark(frames, patch, corner=corner, opacity=rng.choice((0.5, 0.8, 1.0))))


def cases(media: Path, half: Half, seed: int) -> Iterator[Case]:
    """All made clips of a half."""
    rng = random.Random(seed)
    pieces = [(f"{Path(name).stem}@{at:g}", real_clip(media / name, at, ENDS.get(name, 1e9)))
              for name, starts in CLIPS[half] for at in starts]  # fmt: skip
    slides = [(f"{Path(name).stem}@{at:g}", real_clip(media / name, at))
              for name, starts in SLIDES[half] for at in starts]  # fmt: skip
    slides.append(("screen", screen(seed)))
    made = list(photographed(half, seed))
    changes = {
        "nothing": lambda frames, _rng: frames,
        "letterbox": letterboxed,
        "subtitles": subtitles,
        "ticker": ticker,
        "banner": banner,
        "logo": logo,
    }
    still = [name for name, _ in slides]
    for name, frames in [*pieces, *slides, *made]:
        kind = "screen" if name in still else "scene"
        for what, change in changes.items():
            yield Case(what, f"{kind} {name}", list(change(frames, rng)), has_mark=what == "logo")
        for _ in range(1 if name in SHOTS else 2):
            other, video = rng.choice([piece for piece in pieces if piece[0][:6] != name[:6]])
            inset = placed(rng, frames[0].shape)
            yield Case("inset", f"{kind} {name} < {other} {_told(inset)}",
                       list(with_inset(frames, video, inset)),
                       inset_area=inset.width * inset.height)  # fmt: skip
    for index, (name, video) in enumerate(pieces):
        picture = made[index % len(made)][1][0]
        frames = television(picture, video, rng, moving=index % 2 == 1)
        yield Case("television", f"{'moving' if index % 2 else 'static'} {name}", frames)


def _told(inset: Inset) -> str:
    return (f"{inset.width:.2f}x{inset.height:.2f} at {inset.x:.2f},{inset.y:.2f}"
            f" line {inset.border_px} round {inset.radius_px}")  # fmt: skip


def scored(case: Case, folder: Path) -> dict[str, float | None]:
    """Scores of a clip of these frames, encoded and analyzed."""
    path = folder / "clip.mp4"
    options = {"preset": "veryfast", "crf": "26"}
    write_video(path, case.frames, fps=Fraction(FPS), options=options)
    with path.open("rb") as reader:
        track = analyze_source(
            reader, str(path), source_id="0" * 32, n_bytes=path.stat().st_size,
            instruments=Instruments(network=StillNetwork()), config=AnalyzeConfig(),
            decoder_threads=1,
        )  # fmt: skip
    return BUILT_IN.score_clip(track, Span(start_frame=0, end_frame=track.n_frames, shot=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    media = os.environ.get("CURATE_TEST_MEDIA", "../shared/media")
    parser.add_argument("--media", type=Path, default=Path(media))
    parser.add_argument("--half", choices=("tune", "report"), default="report")
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--verbose", action="store_true", help="name what was missed and invented")
    args = parser.parse_args()
    cv2.setNumThreads(1)
    counts: dict[str, dict[str, list[int]]] = {
        score: defaultdict(lambda: [0, 0, 0]) for score in FOUND
    }
    off = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(args.media, args.half, args.seed):
            scores = scored(case, Path(folder))
            for score, bound in FOUND.items():
                if score == "logo_area" and any(name in case.over for name in MARKED):
                    continue
                value = scores[score]
                told = counts[score][case.drawn]
                told[0] += 1
                told[1] += value is not None and value > bound
                told[2] += value is None
                wanted = case.inset_area > 0 if score == "picture_in_picture" else case.has_mark
                if args.verbose and value is not None and (value > bound) != wanted:
                    print(score, "missed" if wanted else "invented", case.drawn, case.over)
            area = scores["picture_in_picture"]
            if case.inset_area and area:
                off.append(abs(area / case.inset_area - 1))
    print("drawn        clips  " + "  ".join(f"{score}: found, null" for score in FOUND))
    for drawn_name in counts["logo_area"]:
        cells = "  ".join(
            f"{counts[score][drawn_name][1]:17d} {counts[score][drawn_name][2]:5d}"
            for score in FOUND
        )
        print(f"{drawn_name:12s} {counts['logo_area'][drawn_name][0]:5d}  {cells}")
    summary = {score: _told_apart(counts[score], score) for score in FOUND}
    summary["area_off_median"] = {"share": float(np.median(off)) if off else float("nan")}
    print(json.dumps({"half": args.half, "seed": args.seed, **summary}))


def _told_apart(counts: dict[str, list[int]], score: str) -> dict[str, float]:
    """Recall and precision. What is null counts as missed in `recall`, not in `recall_told`."""
    right = "inset" if score == "picture_in_picture" else "logo"
    # A banner has a box that is a mark, and what an inset shows may have one.
    left_out = ("television",) if right == "inset" else ("banner", "inset", "television")
    clips, found, unknown = counts[right]
    false = sum(row[1] for name, row in counts.items() if name != right and name not in left_out)
    others = sum(row[0] for name, row in counts.items() if name != right and name not in left_out)
    return {
        "clips": clips,
        "recall": found / max(clips, 1),
        "recall_told": found / max(clips - unknown, 1),
        "precision": found / max(found + false, 1),
        "false": false,
        "without": others,
    }


if __name__ == "__main__":
    main()
