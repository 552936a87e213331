#!/usr/bin/env python3
"""Compares shot heads on labelled files; the shot network runs once for all heads.

    shot_heads.py --work DIR --head NAME=FILE [--head ...] FOLDER...

FOLDER has files and `truth.json` (`shot_sets.py`, `shot_effect_sets.py`). Each file is analyzed
once, and the shot network's features stay in DIR. Then each head gives its boundaries, by the
default recipe. Prints a table for each folder, and JSON as the last line. `--each` also lists the
kinds that are not all found; do not use it on the blind part before all choices are made.
"""

import json
import pickle
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from measure import arguments
from numpy.typing import NDArray
from shot_scores import Found, Label, Labelled, summary, tally
from shot_sets import read_truth
from train_shot_head import RawStream, answers, as_film, no_head

from curator.models.shot_head import HeadWeights, head_weights
from curator.models.transnet import ShotAnswers, ShotNetwork
from curator.records.tracks import Track
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.decode_source import analyze_source
from curator.stages.analyze.measurer import AnalysisModels
from curator.stages.propose.config import ProposeConfig
from curator.stages.propose.shot_boundaries import find_shots


class KeptStream(RawStream):
    """Keeps the pictures and the network's answers of a file, for any head."""

    def __init__(self, network: ShotNetwork) -> None:
        super().__init__(network)
        self.frames: list[NDArray[np.uint8]] = []
        self.raw = np.zeros((0, 2), np.float32)

    def push(self, frame_HWC: NDArray[np.uint8]) -> None:  # noqa: N803
        """Keeps a picture, and passes it on."""
        self.frames.append(frame_HWC.copy())
        super().push(frame_HWC)

    def finish(self) -> ShotAnswers:
        """Keeps the answers; those of the head are 0."""
        self.raw = self._end().numpy()
        shot, transition = self.raw[:, :2].T.copy()
        return ShotAnswers(shot, transition, np.zeros_like(shot), np.zeros_like(shot))


class KeptNetwork(ShotNetwork):
    """The shot network without a head, which keeps the stream of the latest file."""

    latest: KeptStream

    def stream(self, *, in_background: bool = False) -> KeptStream:
        """Begins a file."""
        self.latest = KeptStream(self)
        return self.latest


@cache
def _network() -> KeptNetwork:
    torch.set_num_threads(1)
    return KeptNetwork(head=no_head())


def measured(path: Path, kept: Path) -> Path:
    """Analyzes a file, unless `kept` exists; writes its track, pictures and features there."""
    if not kept.exists():
        network = _network()
        with path.open("rb") as reader:
            track = analyze_source(
                reader,
                str(path),
                source_id=path.name,
                n_bytes=path.stat().st_size,
                analysis_models=AnalysisModels(network=network),
                config=AnalyzeConfig(audio=False),
                decoder_threads=1,
                families={"frames", "shots", "pictures"},
            )
        done = network.latest
        track = replace(track, thumbnails=(), thumbnail_frame=track.thumbnail_frame[:0])
        raw = done.raw[:, :2], done.raw[:, 2:].astype(np.float16)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(pickle.dumps((track, np.stack(done.frames), *raw)))
    return kept


def found_by(weights: HeadWeights, kept: Path) -> Found:
    """Returns the shots that a head finds in an analyzed file."""
    track, frames, probabilities, features = pickle.loads(kept.read_bytes())
    film = as_film(frames, probabilities, features)
    both = (1 / (1 + np.exp(-odds)) for odds in answers(weights, film))
    boundary, inside = (np.round(values, 4).astype(np.float32) for values in both)
    track = replace(cast(Track, track), boundary_probability=boundary, inside_probability=inside)
    shots = find_shots(track, ProposeConfig())
    return Found([(shot.start_frame, shot.end_frame) for shot in shots], [], 25.0)


def compared(
    folder: Path, work: Path, heads: dict[str, HeadWeights], processes: int
) -> dict[str, Any]:
    """Returns the figures of each head on the files of a folder."""
    made = read_truth(folder)
    if not made:
        raise SystemExit(f"{folder} has no truth.json; expected a folder of shot_sets.py")
    kept = [work / folder.parent.name / folder.name / f"{one.name}.pickle" for one in made]
    with ProcessPoolExecutor(processes) as pool:
        list(pool.map(measured, [folder / one.name for one in made], kept))
    files = []
    for one in made:
        above, _, below = one.rate.partition("/")
        duration_s = one.n_frames * int(below or 1) / int(above)
        labels = tuple(Label(*label) for label in one.labels)
        # Files of one shot have a recording's name and a number or kind.
        unit = one.name if labels else Path(one.name).stem.rpartition("_")[0]
        files.append(Labelled(folder / one.name, labels, (), unit, duration_s, one.rate, one.codec))
    return {
        name: summary(
            files, [tally(f, found_by(weights, k)) for f, k in zip(files, kept, strict=True)]
        )
        for name, weights in heads.items()
    }


def table(figures: dict[str, Any], *, each: bool) -> list[str]:
    """Returns lines of a Markdown table, a row per head."""
    columns = ["", "F1", "false", "false in 10 min", "cuts", "gradual", "with an extent, IoU"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, f in figures.items():
        low, high = f["f1_95"]
        by = {k: f"{v['found']}/{v['of']}" for k, v in f["by_type"].items()}
        extent = f"{f['marked_share'] or 0:.2f}, {f['marked_iou'] or 0:.2f}"
        low_10, high_10 = f["false_per_10_min_95"]
        cells = [
            name, f"{f['f1']:.3f} [{low:.3f}, {high:.3f}]" if by else "", str(f["false"]),
            f"{f['false_per_10_min']:.1f} [{low_10:.1f}, {high_10:.1f}]",
            by.get("cut", ""), by.get("gradual", ""), extent,
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    for name, f in figures.items() if each else ():
        lacking = [(k, v) for k, v in f["by_kind"].items() if v["found"] < v["of"]]
        lines.append(f"{name}: " + ", ".join(f"{k} {v['found']}/{v['of']}" for k, v in lacking))
    return lines


def main(arguments_: Sequence[str] | None = None) -> None:
    """Analyzes the files, and prints the figures of each head."""
    parser = arguments(__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--head", action="append", required=True, help="NAME=FILE of weights")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--each", action="store_true", help="list kinds that are not all found")
    args = parser.parse_args(arguments_)
    files = dict(head.split("=", 1) for head in args.head)
    heads = {name: head_weights(Path(path)) for name, path in files.items()}
    results = {}
    for folder in args.folders:
        figures = compared(folder, args.work, heads, args.processes)
        first = next(iter(figures.values()))
        counts = f"{first['files']} files, {first['minutes']:.1f} min"
        of = first["found"] + first["missed"]
        print(f"\n## {folder.parent.name} {folder.name}: {counts}, {of} boundaries\n")
        print(*table(figures, each=args.each), sep="\n", flush=True)
        results[str(folder.name)] = figures
    print(json.dumps(results))


if __name__ == "__main__":
    main()
