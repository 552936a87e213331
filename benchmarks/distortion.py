#!/usr/bin/env python3
"""Measures the distortion score on made damage, and on footage that is not damaged.

    distortion.py made SET [--part blind]
    distortion.py natural --footage DIR --media DIR [--part blind]
    distortion.py repeated --footage DIR --media DIR [--part blind]
    distortion.py cost FILM ...

`made`: by kind, the rank correlation (Spearman) of strength and score within a clip, mean over
clips, and over all clips together; the share of pairs of a clean and a damaged picture that the
score orders rightly (AUC), for all strengths and for those of VMAF below 80; the same of BRISQUE.

`natural`: whole undamaged files through the analysis; for comparison with the scores of `made`.

`repeated`: films with frames repeated at random, or left out, encoded again, through the analysis.

`cost`: CPU-seconds of the analysis, and the part of the score.
"""

import argparse
import json
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import av
import cv2
import numpy as np
import tests_path  # noqa: F401
from distortion_figures import read, score_of, show_kinds, spearman
from distortion_set import MEDIA, coded
from footage_split import recordings
from numpy.typing import NDArray

from curator.measures.clip_view import ClipView, aggregate
from curator.measures.distortion import repeated_frames
from curator.models.distortion_network import DistortionHead, DistortionNetwork
from curator.models.scene_network import SceneNetwork
from curator.models.text_detector import TextDetector
from curator.models.transnet import ShotNetwork
from curator.records.clips import Span
from curator.records.tracks import Track
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.decode_source import analyze_source
from curator.stages.analyze.measurer import AnalysisModels


def made(args: argparse.Namespace) -> None:
    """Scores the made damage of a part."""
    clips, head = read(args.set / args.part), DistortionHead()
    scores = [score_of(head, clip) for clip in clips]
    table = show_kinds(clips, scores)
    quality = np.concatenate(scores)
    bound = float(np.quantile(quality, 0.85))
    print(f"\nworst 15% of all versions: above {bound:.3f}; clean clips among them:")
    for clip, score in zip(clips, scores, strict=True):
        if score[1] > bound:
            print(f"    {clip.name} {score[1]:.3f}")
    print(json.dumps({"part": args.part, "bound_of_worst_15_percent": round(bound, 3), **table}))


def _files(args: argparse.Namespace) -> Iterator[Path]:
    yield from (args.media / name for name in MEDIA[args.part])
    yield from (recording.path for recording in recordings(args.footage, args.part))


def _analyzed(
    path: Path,
    models: AnalysisModels,
    families: Sequence[str],
    spent: dict[str, float] | None = None,
) -> Track:
    with path.open("rb") as reader:
        return analyze_source(
            reader,
            path.name,
            source_id=path.name,
            n_bytes=path.stat().st_size,
            analysis_models=models,
            config=AnalyzeConfig(),
            decoder_threads=1,
            families=frozenset(families),
            spent=spent,
        )


def _scores(track: Track) -> tuple[float | None, float]:
    """Returns `distortion` and `repeated_fraction` of a whole file."""
    view = ClipView(track, Span(start_frame=0, end_frame=track.n_frames, shot=0))
    repeats = repeated_frames(track.luma_mean, track.luma_spread)
    return aggregate(view.signal("distortion"), "mean"), repeats


def natural(args: argparse.Namespace) -> None:
    """Prints the scores of each undamaged file, worst first."""
    rows, models = [], AnalysisModels(distortion=DistortionNetwork())
    for path in _files(args):
        value, repeats = _scores(_analyzed(path, models, ("frames", "pictures", "distortion")))
        if value is not None:
            rows.append((value, path.stem, repeats))
    print("| file | `distortion` | `repeated_fraction` |\n|---|---|---|")
    for value, name, repeats in sorted(rows, reverse=True):
        print(f"| {name} | {value:.3f} | {repeats:.2f} |")
    values = np.array([value for value, _, _ in rows])
    print(json.dumps({"files": len(rows), "median": round(float(np.median(values)), 3),
                      "above_0.5": int((values > 0.5).sum())}))  # fmt: skip


SHARES = (0.05, 0.1, 0.2, 0.33, 0.5)
N_FILM = 120


def repeated(args: argparse.Namespace) -> None:
    """Repeats or leaves out frames of films, encodes them again, and prints what is found."""
    table: dict[str, list[float]] = {"repeated": [], "left out": []}
    print("| file | kind | as it is | " + " | ".join(map(str, SHARES)) + " | rank correlation |")
    print("|---|---|---|" + "---|" * len(SHARES) + "---|")
    for path in _files(args):
        frames = _shrunk(path)
        if len(frames) < N_FILM // 2:
            continue
        rng = np.random.default_rng(zlib.crc32(path.name.encode()))
        for kind, correlations in table.items():
            values = []
            for share in (0.0, *SHARES):
                kept = rng.random(len(frames)) >= share
                kept[0] = True
                numbers = np.flatnonzero(kept)
                if kind == "repeated":
                    numbers = np.maximum.accumulate(np.where(kept, np.arange(len(frames)), 0))
                shown = coded([frames[n] for n in numbers], "libx264", {"crf": "21"})
                luma = np.array([(f.mean() / 255, f.std() / 255) for f in map(_tiny, shown)])
                values.append(repeated_frames(*luma.T.astype(np.float32)))
            correlations.append(spearman(range(6), values))
            cells = " | ".join(f"{value:.2f}" for value in values)
            print(f"| {path.stem[:40]} | {kind} | {cells} | {correlations[-1]:.2f} |")
    print(json.dumps({
        kind: {"mean": round(float(np.mean(found)), 3), "clips": len(found)}
        for kind, found in table.items()
    }))  # fmt: skip


def _shrunk(path: Path) -> list[NDArray[np.uint8]]:
    found = []
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            scale = min(1.0, 320 / max(frame.width, frame.height))
            size = [round(side * scale) // 2 * 2 for side in (frame.width, frame.height)]
            small = frame.reformat(width=size[0], height=size[1], format="gray")
            found.append(np.asarray(small.to_ndarray(), np.uint8))
            if len(found) == N_FILM:
                break
    return found


def _tiny(luma: NDArray[np.uint8]) -> NDArray[np.float32]:
    small = cv2.resize(luma, (48, 27), interpolation=cv2.INTER_AREA)
    return np.asarray(small, np.float32)


def cost(args: argparse.Namespace) -> None:
    """Prints the CPU-seconds of the analysis, and the score's part of them.

    Both are of one pass, so that other work on the machine slows both alike.
    """
    models = AnalysisModels(
        network=ShotNetwork(precision="auto"),
        detector=TextDetector(device="cpu", precision="auto"),
        scenes=(scenes := SceneNetwork()),
        distortion=DistortionNetwork(scenes),
    )
    families = sorted(models.families(AnalyzeConfig()))
    print("| film | seconds | pictures | analysis, CPU s | score, CPU s | share |")
    print("|---|---|---|---|---|---|")
    for path in args.paths:
        spent: dict[str, float] = {}
        begun_s = time.process_time()
        track = _analyzed(path, models, families, spent)
        all_s, own_s = time.process_time() - begun_s, spent["distortion"]
        n_pictures = int(np.isfinite(track.signals["distortion"]).sum())
        share = own_s / (all_s - own_s)
        cells = f"{track.duration_s:.0f} | {n_pictures} | {all_s:.2f} | {own_s:.2f}"
        print(f"| {path.name} | {cells} | {100 * share:.1f}% |", flush=True)


def main() -> None:
    """Runs one of the measurements."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("made", "natural", "repeated", "cost"))
    parser.add_argument("paths", type=Path, nargs="*")
    parser.add_argument("--footage", type=Path)
    parser.add_argument("--media", type=Path)
    parser.add_argument("--part", default="blind", choices=("train", "tune", "blind"))
    args = parser.parse_args()
    if args.what in ("natural", "repeated") and None in (args.footage, args.media):
        parser.error(f"{args.what} needs --footage and --media")
    if args.what == "made":
        (args.set,) = args.paths
    {"made": made, "natural": natural, "repeated": repeated, "cost": cost}[args.what](args)


if __name__ == "__main__":
    main()
