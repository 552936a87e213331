#!/usr/bin/env python3
"""Scores shot boundaries against labels.

    shots.py --media MEDIA --films FILMS --work DIR [--set propose.shot_threshold=0.4]...

MEDIA holds `shots.json` and `shots_ignore.json` beside labelled videos; FILMS holds `truth.json`
beside edited films. Detection is `curate run` into DIR, which keeps its tracks, so that a second
call with another `--set` decodes nothing. Scoring is apart from it and reads the table `shots`.

Scoring convention: a labelled transition is the gap [end of a shot, start of the next]; a detection
within 2 frames of the gap is right, and several in one gap count once. A detection is a cut's
position or a gradual transition's middle. Detections and labels within an ignore range count
neither way. Any detection in a single-shot file is false.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq

TOLERANCE_FRAMES = 2


@dataclass(frozen=True, slots=True)
class Label:
    """A labelled transition: half-open gap between two shots, empty for a cut."""

    start: int
    end: int
    kind: str


@dataclass(slots=True)
class Score:
    """Counts of one set of files."""

    found: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    false: int = 0
    lines: list[str] = field(default_factory=list)

    def add(self, name: str, labels: list[Label], detections: list[float]) -> None:
        """Scores one file."""
        used: set[float] = set()
        for label in labels:
            low, high = label.start - TOLERANCE_FRAMES, label.end + TOLERANCE_FRAMES
            hits = [d for d in detections if low <= d <= high]
            used.update(hits)
            (self.found if hits else self.missed)[label.kind] += 1
            if not hits:
                self.lines.append(f"  missed {label.kind} at {label.start}-{label.end} in {name}")
        wrong = [d for d in detections if d not in used]
        self.false += len(wrong)
        if wrong:
            self.lines.append(f"  false at {', '.join(f'{d:g}' for d in wrong)} in {name}")

    def rates(self) -> dict[str, object]:
        """Precision, recall and F1 in all, and recall by kind."""
        found, missed = self.found.total(), self.missed.total()
        precision = found / (found + self.false) if found + self.false else 1.0
        recall = found / (found + missed) if found + missed else 1.0
        both = precision + recall
        return {
            "precision": round(precision, 4),
            "recall": round(recall, 4),
            "f1": round(2 * precision * recall / both if both else 0.0, 4),
            "found": found,
            "missed": missed,
            "false": self.false,
            "recall_by_kind": {
                kind: f"{self.found[kind]}/{self.found[kind] + self.missed[kind]}"
                for kind in sorted({*self.found, *self.missed})
            },
        }


def media_labels(media: Path) -> dict[str, tuple[list[Label], list[tuple[int, int]]]]:
    """Labels and ignore ranges of each labelled file."""
    shots = json.loads((media / "shots.json").read_text())
    ignored = json.loads((media / "shots_ignore.json").read_text())
    return {
        name: (
            [Label(a[1], b[0], str(a[2])) for a, b in pairwise(spans)],
            [(first, last) for first, last, _ in ignored.get(name, [])],
        )
        for name, spans in shots.items()
    }


def film_labels(films: Path) -> dict[str, tuple[list[Label], list[tuple[int, int]]]]:
    """Labels of the edited films."""
    truth = json.loads((films / "truth.json").read_text())
    return {
        name: ([Label(a["end"], b["start"], a["transition"]) for a, b in pairwise(shots)], [])
        for name, shots in truth.items()
    }


def detections(out: Path) -> dict[str, list[float]]:
    """Boundary positions in frames of each source URI, from the tables of a run."""
    uris = {}
    for row in pq.read_table(out / "sources").to_pylist():
        uris.setdefault(row["source_id"], []).append(row["uri"])
    spans: dict[str, list[tuple[int, int]]] = {}
    for row in pq.read_table(out / "shots").to_pylist():
        spans.setdefault(row["source_id"], []).append((row["start_frame"], row["end_frame"]))
    positions: dict[str, list[float]] = {}
    for source_id, shots in spans.items():
        found = [(a[1] + b[0]) / 2 for a, b in pairwise(sorted(shots))]
        for uri in uris[source_id]:
            positions[uri] = found
    return positions


def score(
    root: Path,
    labels: dict[str, tuple[list[Label], list[tuple[int, int]]]],
    found: dict[str, list[float]],
) -> tuple[Score, Score]:
    """Scores files with several shots and files with one."""
    multi, single = Score(), Score()
    for name, (gaps, ignored) in sorted(labels.items()):
        positions = found.get(str((root / name).absolute()))
        if positions is None:
            raise SystemExit(f"{name} has no shots in the run; was it left out or did it fail?")
        positions = [
            p
            for p in positions
            if not any(a - TOLERANCE_FRAMES <= p <= b + TOLERANCE_FRAMES for a, b in ignored)
        ]
        gaps = [g for g in gaps if not any(a <= g.start <= b for a, b in ignored)]
        (multi if gaps else single).add(name, gaps, positions)
    return multi, single


def run_curate(sources: list[str], out: Path, overrides: list[str]) -> None:
    """Detects shots by a run of the command."""
    command = [sys.executable, "-m", "curator.cli", "run", *sources, str(out)]
    for override in overrides:
        command += ["--set", override]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Runs, scores and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--media", type=Path, required=True)
    parser.add_argument("--films", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--verbose", action="store_true", help="list every miss and false one")
    args = parser.parse_args()
    results = {}
    for name, root, labels in (
        ("media", args.media, media_labels(args.media)),
        ("films", args.films, film_labels(args.films)),
    ):
        sources = [str(root / file) for file in labels]
        run_curate(sources, args.work / name, args.overrides)
        multi, single = score(root, labels, detections(args.work / name))
        both = Score()
        both.found, both.missed = multi.found, multi.missed
        both.false = multi.false + single.false
        results[name] = {
            "all": both.rates(),
            "multi_shot": multi.rates(),
            "single_shot_files": sum(not gaps for gaps, _ in labels.values()),
            "false_on_single_shot": single.false,
        }
        print(f"{name}: {len(labels)} files")
        for kind, rates in (("all", both.rates()), ("multi-shot files", multi.rates())):
            print(
                f"  {kind:18} precision {rates['precision']:.3f}  recall {rates['recall']:.3f}  "
                f"F1 {rates['f1']:.3f}  ({rates['found']} found, {rates['missed']} missed, "
                f"{rates['false']} false)"
            )
        print(f"  recall by kind     {results[name]['all']['recall_by_kind']}")
        print(f"  false boundaries on single-shot files: {single.false}")
        if args.verbose:
            print("\n".join(multi.lines + single.lines))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
