"""Scores insets, divided pictures, title cards and drawn boxes on made clips and recordings.

    overlay_accuracy.py --part train|blind --work DIR [--footage DIR] [--media DIR] [--verbose]

The recordings are split by repository (`footage_split.py`), and the labelled media by file. Bounds
and weights were set on `train`; `blind` was scored once after that. DIR keeps the made clips and
their tracks, so that a second run with the same DIR only scores. Prints a table, then JSON.
"""

import argparse
import json
import os
import pickle
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import tests_path  # noqa: F401
from film_makers import write_video
from overlay_cases import cases
from recorded_clips import FPS, Part, Truth
from samples import analyzed

from curator.measures.score_list import BUILT_IN
from curator.models.text_detector import TextDetector
from curator.records.clips import Span
from curator.records.tracks import Track

FOUND = {
    "inset": ("picture_in_picture", 0.005),
    "split": ("split_screen", 0.5),
    "card": ("title_card", 0.5),
    "boxes": ("drawn_boxes", 0.25),
}
"""Score and bound of each truth of a case; the bounds of the recipe `quickstart`."""


def make(folder: Path, footage: Path, media: Path, part: Part, seed: int) -> None:
    """Encodes all clips of a part that DIR lacks, and writes the list of them last."""
    made = []
    for number, case in enumerate(cases(footage, media, part, seed)):
        path = folder / f"{number:05d}.mp4"
        if not path.exists():
            options = {"preset": "veryfast", "crf": "26", "threads": "1"}
            partial = path.with_suffix(".part.mp4")
            write_video(partial, case.frames, fps=Fraction(FPS), options=options)
            partial.rename(path)
        made.append({"file": path.name, "kind": case.kind, "of": case.of, "truth": case.truth})
    (folder / "cases.json").write_text(json.dumps(made))


def tracks(folder: Path) -> Iterator[tuple[dict[str, Any], Track]]:
    """Yields each case with its track, which is analyzed unless DIR has it."""
    detector = TextDetector(precision="auto")
    for case in json.loads((folder / "cases.json").read_text()):
        path = folder / str(case["file"])
        kept = path.with_suffix(".track")
        if not kept.exists():
            partial = kept.with_suffix(".part")
            # Text takes half of the time, and only `title_card` reads it.
            has_text = case["truth"]["card"] is not None or case["kind"].startswith("card")
            own = detector if has_text else None
            partial.write_bytes(pickle.dumps(analyzed(path, detector=own)))
            partial.rename(kept)
        yield case, pickle.loads(kept.read_bytes())


def main() -> None:
    """Makes, analyzes and scores the clips of a part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    media = os.environ.get("CURATE_TEST_MEDIA", "../shared/media")
    parser.add_argument("--part", choices=("train", "blind"), required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder of the made clips")
    parser.add_argument("--footage", type=Path, default=Path("../shared/footage"))
    parser.add_argument("--media", type=Path, default=Path(media))
    parser.add_argument("--seed", type=int, default=51)
    parser.add_argument("--verbose", action="store_true", help="name misses and false detections")
    parser.add_argument("--only-make", action="store_true", help="make and analyze, score nothing")
    args = parser.parse_args()
    cv2.setNumThreads(1)
    folder = args.work / args.part
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "cases.json").exists():
        make(folder, args.footage, args.media, args.part, args.seed)
    if args.only_make:
        print(sum(1 for _ in tracks(folder)), "clips")
        return
    counts: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0, 0]))
    totals = {name: {"with": 0, "found": 0, "without": 0, "false": 0} for name in FOUND}
    for case, track in tracks(folder):
        span = Span(start_frame=0, end_frame=track.n_frames, shot=0)
        scores = BUILT_IN.score_clip(track, span)
        truth: Truth = case["truth"]
        for name, (score, bound) in FOUND.items():
            value = scores[score]
            found = value is not None and value > bound
            row = counts[str(case["kind"])][name]
            row[0] += 1
            row[1] += found
            row[2] += value is None
            if (wanted := truth.get(name)) is not None:
                totals[name]["with" if wanted else "without"] += 1
                totals[name]["found" if wanted else "false"] += found
                if args.verbose and found != wanted:
                    said = "missed" if wanted else "false"
                    print(name, said, case["file"], case["kind"], case["of"], value, flush=True)
    print("found of clips (null)   " + "".join(f"{name:>16s}" for name in FOUND))
    for kind, rows in counts.items():
        cells = (f"{rows[name][1]} of {rows[name][0]} ({rows[name][2]})" for name in FOUND)
        print(f"{kind:22s}" + "".join(f"{cell:>18s}" for cell in cells))
    print(json.dumps({"part": args.part, "seed": args.seed, **totals}))


if __name__ == "__main__":
    main()
