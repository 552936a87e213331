"""Accuracy and cost of reading text in pictures.

    python benchmarks/read_text.py [--media FOLDER] [--half tune|report] [--seed N]

Lines are drawn over frames of real footage that has no text, in several fonts, styles and sizes,
and read. The files of `tune` chose `MIN_CONFIDENCE`, those of `report` are for the results. Prints
tables, then JSON.
"""

import argparse
import json
import os
import random
import sys
import time
from collections import defaultdict
from pathlib import Path

import av
import cv2
import numpy as np
import tests_path  # noqa: F401
from PIL import ImageFont

sys.path.insert(0, str(Path(__file__).parent.parent))

from overlays import Style, drawn, lettering

from curator.footage.scenes import Picture
from curator.models.text_reader import MIN_CONFIDENCE, TextReader, merged
from curator.records.cuts import TextLine

# One take without text in it, as in benchmarks/overlay.py.
FILES = {
    "tune": ("bottle-detection.mp4", "chaplin.mp4", "dog_play.mp4", "rooftops_60fps_pans.mp4"),
    "report": (
        "car-detection.mp4", "climbing_portrait.mp4", "juggle.mp4", "meeting_two_people.webm",
        "solidWhiteRight.mp4",
    ),
}  # fmt: skip
FONTS = (
    "dejavu/DejaVuSans.ttf", "dejavu/DejaVuSerif-Bold.ttf", "dejavu/DejaVuSansMono.ttf",
    "liberation/LiberationSansNarrow-Regular.ttf", "liberation/LiberationSerif-Italic.ttf",
)  # fmt: skip
FONT_FOLDER = Path("/usr/share/fonts/truetype")
SENTENCES = {
    "English": (
        "I told you not to come here.", "Where were you last night?", "Behind the hill, over there",
        "We have to leave before dawn", "Nobody knows what happened next.", "EXIT 14 North",
        "Take the second road on the left", "Markets close 2.4% higher", "Channel 7 News at 18:30",
    ),
    "accents": (
        "\u00bfD\u00f3nde est\u00e1n los ni\u00f1os?", "Es ist schon sp\u00e4t, gehen wir",
        "\u00c7a va tr\u00e8s bien, merci", "Sm\u00f6rg\u00e5s p\u00e5 \u00e4lven",
    ),
    "Greek": (
        "\u0394\u03b5\u03bd \u03be\u03ad\u03c1\u03c9 \u03c4\u03b9 "
        "\u03ad\u03b3\u03b9\u03bd\u03b5",
    ),
    "Cyrillic": (
        "\u041a\u0442\u043e \u0437\u0434\u0435\u0441\u044c? "
        "\u041f\u043e\u0434\u043e\u0436\u0434\u0438\u0442\u0435",
    ),
}  # fmt: skip
CAPITALS_PX = (6, 8, 10, 12, 16, 24, 40)
LONG_SIDES_PX = (448, 640, 1280)
STYLES: tuple[tuple[str, Style, float], ...] = (
    ("outlined", "outlined", 1.0), ("boxed", "boxed", 1.0), ("plain", "plain", 1.0),
    ("faint", "outlined", 0.4),
)  # fmt: skip


def frames_of(path: Path, n: int) -> list[Picture]:
    """Frames evenly spread over a file."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        pictures = [frame for index, frame in enumerate(container.decode(stream)) if index < 300]
        step = max(1, len(pictures) // n)
        return [frame.to_ndarray(format="rgb24") for frame in pictures[::step][:n]]


def sized(picture: Picture, long_side_px: int) -> Picture:
    scale = long_side_px / max(picture.shape[:2])
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(picture, None, fx=scale, fy=scale, interpolation=method))


def font_size(font: Path, capitals_px: int) -> int:
    """Size of a font whose capitals are so high."""
    left, top, right, bottom = ImageFont.truetype(str(font), 200).getbbox("H")
    assert left < right
    return max(4, round(capitals_px * 200 / (bottom - top)))


def edits(a: str, b: str) -> int:
    """Characters to put in, take out or change."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def said(lines: list[TextLine], box: tuple[float, float, float, float]) -> str:
    """What was read within a box (x0, y0, x1, y1, shares), from left to right."""
    inside = []
    for line in lines:
        x = sum(x for x, _ in line.box) / 4
        y = sum(y for _, y in line.box) / 4
        if box[0] <= x <= box[2] and box[1] <= y <= box[3]:
            inside.append((x, line.text))
    return " ".join(text for _, text in sorted(inside))


def error_rates(
    reader: TextReader, pictures: list[Picture], rng: random.Random, repeats: int
) -> dict[str, dict[str, list[float]]]:
    """Errors and characters by what is varied."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0] * 5))

    def once(
        key: tuple[str, str], text: str, font: Path, size: int, style: tuple[Style, float],
        long_side: int,
    ) -> None:  # fmt: skip
        picture = sized(rng.choice(pictures), long_side)
        patch = lettering(text, size_px=size, style=style[0], font=font)
        height, width = picture.shape[:2]
        if patch.shape[1] > width or patch.shape[0] > height:
            return
        x, y = rng.randint(0, width - patch.shape[1]), rng.randint(0, height - patch.shape[0])
        lines = reader.read(drawn(picture, patch, x, y, opacity=style[1]))
        box = (x / width, y / height, (x + patch.shape[1]) / width, (y + patch.shape[0]) / height)
        sure = [line for line in lines if line.confidence >= MIN_CONFIDENCE]
        cell = found[key[0]][key[1]]
        cell[0] += edits(said(sure, box), text)
        cell[1] += edits(said(lines, box), text)
        cell[2] += len(text)
        told = said(sure, box)
        cell[3] += told == text
        cell[4] += told != "" and edits(told, text) > 0.5 * len(text)
        found["n"][f"{key[0]} {key[1]}"][0] += 1

    fonts = [FONT_FOLDER / name for name in FONTS]
    for long_side in LONG_SIDES_PX:
        for capitals in CAPITALS_PX:
            for font in fonts:
                for _ in range(repeats):
                    name, style, opacity = rng.choice(STYLES[:2])
                    once((f"{long_side} px", f"{capitals}"), rng.choice(SENTENCES["English"]), font,
                         font_size(font, capitals), (style, opacity), long_side)  # fmt: skip
    for name, style, opacity in STYLES:
        for font in fonts:
            for _ in range(repeats):
                once(("style, 16 px of 640", name), rng.choice(SENTENCES["English"]), font,
                     font_size(font, 16), (style, opacity), 640)  # fmt: skip
    for script, texts in SENTENCES.items():
        for font in fonts[:3]:
            for _ in range(repeats):
                once(("script, 16 px of 640", script), rng.choice(texts), font, font_size(font, 16),
                     ("outlined", 1.0), 640)  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    media = os.environ.get("CURATE_TEST_MEDIA", "../shared/media")
    parser.add_argument("--media", type=Path, default=Path(media))
    parser.add_argument("--half", choices=tuple(FILES), default="report")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    cv2.setNumThreads(1)
    rng = random.Random(args.seed)
    begun = time.process_time()
    reader = TextReader()
    start_s = time.process_time() - begun
    clips = {name: frames_of(args.media / "single" / name, 8) for name in FILES[args.half]}
    result: dict[str, object] = {"half": args.half, "seed": args.seed, "start_cpu_s": start_s}

    # Nothing is drawn: whatever is read is false.
    confidences, told, costs, n_pictures = [], [], [], 0
    for name, frames in clips.items():
        lines = []
        for frame in frames:
            begun = time.process_time()
            lines.append(reader.read(frame))
            costs.append(time.process_time() - begun)
        n_pictures += len(frames)
        confidences += [line.confidence for some in lines for line in some]
        told += [f"{name}: {text}" for text in merged(lines)]
        for line in (line for some in lines for line in some if line.confidence > 0.6):
            print(f"false: {name} {line.text!r} {line.confidence:.2f}")
    result["false"] = {
        "pictures": n_pictures,
        "lines": len(confidences),
        "sure": sum(c >= MIN_CONFIDENCE for c in confidences),
        "told of clips": told,
        "cpu_s_median": float(np.median(costs)),
    }
    print(result["false"])

    found = error_rates(reader, [f for frames in clips.values() for f in frames], rng, args.repeats)
    counts = found.pop("n")
    table = {}
    print(
        "what                        lines   CER of sure   CER of all   without an error   nonsense"
    )
    for group, cells in found.items():
        for name, (sure, everything, total, whole, nonsense) in cells.items():
            n = counts[f"{group} {name}"][0]
            table[f"{group} {name}"] = [
                n,
                sure / total,
                everything / total,
                whole / n,
                nonsense / n,
            ]
            shares = (sure / total, everything / total, whole / n, nonsense / n)
            cells = " ".join(f"{share:12.3f}" for share in shares)
            print(f"{group:20s} {name:10s} {n:5.0f} {cells}", flush=True)
    result["errors"] = table

    costs = []
    for n_lines in (0, 1, 3, 10):
        picture = np.full((720, 1280, 3), 90, np.uint8)
        for index in range(n_lines):
            picture = drawn(picture, lettering(SENTENCES["English"][index % 9], size_px=30), 60,
                            20 + 68 * index)  # fmt: skip
        spent = []
        for _ in range(7):
            begun = time.process_time()
            reader.read(picture)
            spent.append(time.process_time() - begun)
        costs.append((n_lines, float(np.median(spent)), float(min(spent)), float(max(spent))))
        print(f"{n_lines} lines in 1280x720: {costs[-1][1]:.3f} CPU-s "
              f"({costs[-1][2]:.3f} to {costs[-1][3]:.3f})")  # fmt: skip
    result["cost"] = costs
    print(json.dumps(result))


if __name__ == "__main__":
    main()
