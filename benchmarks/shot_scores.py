"""Scores detected shots and clips against labels.

A labelled transition is the gap [end of a shot, start of the next]. A detection is the position of
a cut, or the middle of a gradual transition. A detection within 2 frames of a gap is right; several
in one gap count once. Detections and labels in ignored ranges are not scored. In a file with one
shot, every detection is false.

Shape letters: U units that are resampled, R resamples, K peaks.
"""

# ruff: noqa: N803, N806 - shape letters

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.measures.boundaries import boundary_peaks

RESAMPLES = 1000
LENGTHS = ((0, "cut"), (5, "1-5"), (10, "6-10"), (20, "11-20"), (40, "21-40"), (10**9, "41+"))
"""Largest number of frames in each class of lengths."""
LEAST_PEAK = 0.01
"""Peaks with a lower probability are not forecasts of a boundary."""

Span = tuple[int, int]
TOLERANCE_FRAMES = 2


@dataclass(frozen=True, slots=True)
class Label:
    """A labelled transition: the half-open gap between two shots, empty for a cut."""

    start: int
    end: int
    kind: str


def media_labels(media: Path) -> dict[str, tuple[list[Label], list[tuple[int, int]]]]:
    """Returns labels and ignored ranges of each labelled file."""
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
    """Returns the labels of the edited films."""
    truth = json.loads((films / "truth.json").read_text())
    return {
        name: ([Label(a["end"], b["start"], a["transition"]) for a, b in pairwise(shots)], [])
        for name, shots in truth.items()
    }


@dataclass(frozen=True, slots=True)
class Labelled:
    """A file with labels.

    Attributes:
        path: The file.
        labels: Boundaries outside ignored ranges.
        ignored: First and last frame of ranges that are not scored.
        unit: Resampling unit; all files of one recording belong to one unit.
        duration_s: Duration in seconds.
        rate: Frames per second, as shown in tables.
        codec: Name of the codec, as shown in tables.
    """

    path: Path
    labels: tuple[Label, ...]
    ignored: tuple[Span, ...]
    unit: str
    duration_s: float
    rate: str
    codec: str


@dataclass(frozen=True, slots=True)
class Found:
    """Shots and clips that a method finds in a file, in frames, half-open.

    Attributes:
        shots: Shots in order; a boundary, with all frames of a gradual one, is between two shots.
        clips: Kept clips.
        fps: Frames per second of the clips.
    """

    shots: list[Span]
    clips: list[Span]
    fps: float


@dataclass(frozen=True, slots=True)
class Tally:
    """The score of a method on one file.

    Attributes:
        spans: For each label the widest detected gap there; None if missed.
        false: Number of false boundaries.
        leaked_frames: Frames of labelled transitions within kept clips.
        clips: Number of kept clips.
        dirty_clips: Number of kept clips with a cut or a frame of a transition.
        kept_s: Duration of kept clips in seconds.
    """

    spans: list[Span | None]
    false: int
    leaked_frames: int
    clips: int
    dirty_clips: int
    kept_s: float


def tally(file: Labelled, found: Found) -> Tally:
    """Compares the labels of a file with the detections."""
    gaps = [
        (a[1], b[0])
        for a, b in pairwise(sorted(found.shots))
        if not _is_ignored((a[1] + b[0]) / 2, file.ignored)
    ]
    spans: list[Span | None] = []
    used: set[Span] = set()
    for label in file.labels:
        low, high = label.start - TOLERANCE_FRAMES, label.end + TOLERANCE_FRAMES
        hits = [gap for gap in gaps if low <= (gap[0] + gap[1]) / 2 <= high]
        used.update(hits)
        spans.append(max(hits, key=lambda gap: gap[1] - gap[0]) if hits else None)
    return Tally(
        spans=spans,
        false=sum(gap not in used for gap in gaps),
        leaked_frames=sum(
            max(0, min(label.end, end) - max(label.start, start))
            for label in file.labels
            for start, end in found.clips
        ),
        clips=len(found.clips),
        dirty_clips=sum(any(_holds(clip, label) for label in file.labels) for clip in found.clips),
        kept_s=sum(end - start for start, end in found.clips) / found.fps,
    )


def _is_ignored(position: float, ignored: Sequence[Span]) -> bool:
    return any(a - TOLERANCE_FRAMES <= position <= b + TOLERANCE_FRAMES for a, b in ignored)


def _holds(clip: Span, label: Label) -> bool:
    if label.start == label.end:
        return clip[0] < label.start < clip[1]
    return clip[0] < label.end and label.start < clip[1]


def rates(found: float, missed: float, false: float) -> tuple[float, float, float]:
    """Returns precision, recall and F1; 1 if there is nothing to find and nothing was found."""
    precision = found / (found + false) if found + false else 1.0
    recall = found / (found + missed) if found + missed else 1.0
    total = 2 * found + missed + false
    return precision, recall, 2 * found / total if total else 1.0


def summary(files: Sequence[Labelled], tallies: Sequence[Tally]) -> dict[str, Any]:
    """Returns the figures of a set of files."""
    pairs = list(zip(files, tallies, strict=True))
    labels = [
        (file, label, span)
        for file, done in pairs
        for label, span in zip(file.labels, done.spans, strict=True)
    ]
    gradual = [(label, span) for _, label, span in labels if label.end > label.start]
    marked = [(label, span) for label, span in gradual if span is not None and span[1] > span[0]]
    n_found = sum(span is not None for *_, span in labels)
    n_false = sum(done.false for done in tallies)
    precision, recall, f1 = rates(n_found, len(labels) - n_found, n_false)
    minutes = sum(file.duration_s for file in files) / 60
    frames = sum(label.end - label.start for label, _ in gradual)
    clips = sum(done.clips for done in tallies)
    return {
        "files": len(files),
        "units": len({file.unit for file in files}),
        "minutes": round(minutes, 2),
        "found": n_found,
        "missed": len(labels) - n_found,
        "false": n_false,
        "precision": precision,
        "recall": recall,
        "f1": f1,
        **intervals(files, tallies),
        "false_per_10_min": 10 * n_false / minutes,
        "gradual": len(gradual),
        "marked_share": len(marked) / len(gradual) if gradual else None,
        "marked_iou": float(np.mean([iou(a, b) for a, b in marked])) if marked else None,
        "leaked_share": sum(d.leaked_frames for d in tallies) / frames if frames else None,
        "clips": clips,
        "dirty_clips_share": sum(d.dirty_clips for d in tallies) / clips if clips else None,
        "kept_s": sum(done.kept_s for done in tallies),
        "by_type": _grouped(labels, lambda _, label: "gradual" if _wide(label) else "cut"),
        "by_kind": _grouped(labels, lambda _, label: label.kind),
        "by_frames": _grouped(labels, lambda _, label: _length(label)),
        "by_rate": _grouped(labels, lambda file, _: file.rate, pairs, lambda file: file.rate),
        "by_codec": _grouped(labels, lambda file, _: file.codec, pairs, lambda file: file.codec),
    }


def iou(label: Label, span: Span) -> float:
    """Returns the intersection over union of a label and a span, in frames."""
    both = min(label.end, span[1]) - max(label.start, span[0])
    return max(0, both) / (max(label.end, span[1]) - min(label.start, span[0]))


def intervals(files: Sequence[Labelled], tallies: Sequence[Tally]) -> dict[str, Any]:
    """Returns 95% intervals of F1 and of false boundaries per 10 minutes, by resampling units.

    The result also has F1 with each unit counted once, regardless of its number of files.
    """
    units = sorted({file.unit for file in files})
    counts = np.zeros((len(units), 4))
    n_files = np.zeros((len(units), 1))
    for file, done in zip(files, tallies, strict=True):
        n_files[units.index(file.unit)] += 1
        n_found = sum(span is not None for span in done.spans)
        row = n_found, len(done.spans) - n_found, done.false, file.duration_s / 600
        counts[units.index(file.unit)] += row
    drawn = np.random.default_rng(0).integers(0, len(units), (RESAMPLES, len(units)))
    found_R, missed_R, false_R, tens_R = counts[drawn].sum(axis=1).T
    total = 2 * found_R + missed_R + false_R
    f1_R = np.where(total > 0, 2 * found_R / np.maximum(total, 1), 1.0)
    found, missed, false = (counts / n_files).sum(axis=0)[:3]
    return {
        "f1_units_once": rates(found, missed, false)[2],
        "f1_95": np.percentile(f1_R, [2.5, 97.5]).tolist(),
        "false_per_10_min_95": np.percentile(false_R / tens_R, [2.5, 97.5]).tolist(),
    }


def _wide(label: Label) -> bool:
    return label.end > label.start


def _length(label: Label) -> str:
    return next(name for most, name in LENGTHS if label.end - label.start <= most)


def _grouped(
    labels: Sequence[tuple[Labelled, Label, Span | None]],
    name_of: Callable[[Labelled, Label], str],
    pairs: Sequence[tuple[Labelled, Tally]] = (),
    group_of: Callable[[Labelled], str] | None = None,
) -> dict[str, dict[str, float]]:
    """Counts found labels per group; with `group_of`, also false boundaries and F1."""
    groups: dict[str, dict[str, float]] = defaultdict(lambda: {"found": 0, "of": 0})
    for file, label, span in labels:
        group = groups[name_of(file, label)]
        group["of"] += 1
        group["found"] += span is not None
    if group_of is not None:
        for file, done in pairs:
            group = groups[group_of(file)]
            group["false"] = group.get("false", 0) + done.false
        for group in groups.values():
            group["f1"] = rates(group["found"], group["of"] - group["found"], group["false"])[2]
    return dict(groups)


def forecasts(
    files: Sequence[Labelled], probability: Mapping[Path, NDArray[np.float32]]
) -> NDArray[np.float64]:
    """Returns peaks of the boundary probability: float64 [K, 2], value and correctness.

    The highest of several peaks in a transition is its forecast; the others are ignored.
    """
    rows: list[tuple[float, bool]] = []
    for file in files:
        values = probability[file.path].astype(np.float64)
        peaks = boundary_peaks(values, LEAST_PEAK)
        found: set[Label] = set()
        for frame in peaks[np.argsort(-values[peaks], kind="stable")].tolist():
            if _is_ignored(frame + 1, file.ignored):
                continue
            near = {label for label in file.labels if _is_near(label, frame + 1)}
            if not near or near - found:
                rows.append((values[frame], bool(near)))
            found |= near
    return np.array(rows, np.float64).reshape(-1, 2)


def _is_near(label: Label, position: int) -> bool:
    return label.start - TOLERANCE_FRAMES <= position <= label.end + TOLERANCE_FRAMES


def reliability(forecasts_K2: NDArray[np.float64]) -> dict[str, Any]:
    """Returns ten bins of forecasts with their outcomes, and the expected calibration error."""
    value, right = forecasts_K2.T
    number = np.minimum((value * 10).astype(int), 9)
    bins = []
    error = 0.0
    for i in range(10):
        within = number == i
        row: dict[str, Any] = {"from": i / 10, "n": int(within.sum())}
        if row["n"]:
            row |= {"forecast": float(value[within].mean()), "true": float(right[within].mean())}
            error += row["n"] * abs(row["forecast"] - row["true"])
        bins.append(row)
    return {"bins": bins, "ece": error / max(1, len(value))}
