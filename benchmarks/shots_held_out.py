#!/usr/bin/env python3
"""Compares shot detectors on footage that no detector was fitted to.

    shots_held_out.py --footage FOOTAGE --work DIR [--part blind] [--sets kinds,edits,singles]
        [--media MEDIA] [--films FILMS ...] [--method 'NAME: KEY=VALUE ...']...

The test files are made from the clips of one part of FOOTAGE (`footage_split.py`), and stay in DIR:

- kinds: every transition of ffmpeg's `xfade` in four lengths, each between two recordings;
- edits: films of 30 to 60 s with cuts and gradual transitions, half of them with distractors;
- jumps: the same with many cuts within a take;
- singles: the unchanged clips, in which every detected boundary is false;
- takes: eight single-shot files per clip, which differ in rate, codec and size;
- disturbed: the same with a distractor in each, such as a flash or an inset;
- effects, dark, stop_motion: effects of editing programs, dim shots with fades through black, and
  takes of stop motion (`shot_effect_sets.py`);
- hard: films of short shots with such joins, camera motion and distractors (`shot_hard_sets.py`);
- labelled: MEDIA with `shots.json` and `shots_ignore.json`, which is development data;
- films: edited films with `truth.json`; each folder of FILMS is a set, and all together are one.

The last two need no FOOTAGE.

Each method is a run of `curate run` with the default recipe and the method's keys. Rules, text,
audio, duplicates and captions are off, and no clip is written. Methods share stored tracks, so a
changed bound needs no decoding. Clips are those of sufficient length. Intervals are bootstraps over
files, or over recordings with several files. `--verbose` lists failures; the blind part refuses it.

`--probability COLUMN` names a column of the tracks with the probability that a frame ends a shot.
The script then compares these forecasts with the labels.

Prints tables and stores all figures in DIR/<part>.json.
"""

import argparse
import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import av
import numpy as np
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from footage_split import Part, recordings
from measure import CURATE, arguments, commit, machine
from numpy.typing import NDArray
from shot_effect_sets import make_dark, make_effects, make_stop_motion
from shot_hard_sets import make_hard
from shot_scores import (
    Found,
    Label,
    Labelled,
    Span,
    Tally,
    film_labels,
    forecasts,
    media_labels,
    reliability,
    summary,
    tally,
)
from shot_sets import make_disturbed, make_edits, make_jumps, make_kinds, make_takes, read_truth

SETS = (
    "kinds", "edits", "jumps", "singles", "takes", "disturbed", "effects", "dark", "stop_motion",
    "hard", "labelled", "films",
)  # fmt: skip
FIXED = (
    "analyze.text=false", "analyze.audio=false", "dedup.enabled=false", "caption.enabled=false",
    "filters={}", "shard.resolutions=[16]", "shard.lengths=[1]", "select.keep_fraction=0",
)  # fmt: skip
"""Settings of all runs: only shots and clip lengths decide, and no clip is written."""
METHODS = (
    "default:",
    "network 0.4: propose.shots=network propose.shot_threshold=0.4",
    "network 0.2: propose.shots=network propose.shot_threshold=0.2",
)
SAME_RECORDING = (
    {"multishot/chrome.mp4", "neardup/chrome.webm", "neardup/chrome_small.mp4",
     "neardup/chrome_small.webm"},
    {"neardup/cockatoo.mp4", "neardup/cockatoo_yuv420.mp4"},
    {"neardup/carphone_pristine.mp4", "neardup/carphone_distorted.mp4"},
    {"neardup/dog_on_bed.mp4", "neardup/dog_on_bed_rot270flag.mp4"},
    {"multishot/big_buck_bunny_0_30.webm", "multishot/bbb_642x642_vp9.webm"},
)  # fmt: skip
"""Labelled files that come from one recording."""

Results = dict[Path, Found]


def main() -> None:
    """Makes the files, detects shots, scores and prints."""
    args = _arguments()
    sets = args.sets.split(",")
    if args.verbose and args.part == "blind" and {*sets} - {"labelled", "films"}:
        raise SystemExit("--verbose lists failures; failures of the blind part must stay unseen")
    part = args.work / args.part
    results = json.loads(_read(args.work / f"{args.part}.json") or "{}")
    everything: dict[str, list[Labelled]] = {}
    found: dict[str, dict[str, Results]] = {}
    for name, files in _all_sets(args, sets, part):
        shared = args.work if name.startswith(("labelled", "films")) else part
        found[name] = _detected(files, shared / "runs" / name, args)
        everything[name] = files
    films = [name for name in everything if name.startswith("films")]
    if len(films) > 1:
        everything["films"] = [file for name in films for file in everything[name]]
        found["films"] = {
            method: {path: f for name in films for path, f in found[name][method].items()}
            for method in found[films[0]]
        }
    for name, files in everything.items():
        figures = _scored(files, found[name], verbose=args.verbose)
        print(f"\n## {name}\n\n{_table(figures)}\n")
        if args.probability is not None and name != "films":
            shared = args.work if name.startswith(("labelled", "films")) else part
            figures["default"]["reliability"] = _reliability(
                files, shared / "runs" / name, args.probability
            )
            print(_reliability_text(figures["default"]["reliability"]))
        results[name] = {"commit": commit(Path(__file__).parents[1]), "methods": figures}
    results["machine"] = machine()
    (args.work / f"{args.part}.json").write_text(json.dumps(results, indent=1))


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--footage", type=Path, help="needed by all sets but labelled and films")
    parser.add_argument("--work", type=Path, required=True, help="folder of files and figures")
    parser.add_argument("--part", choices=get_args(Part), default="blind")
    parser.add_argument("--sets", default="kinds,edits,singles", help=",".join(SETS))
    parser.add_argument("--media", type=Path, help="labelled files, for the set labelled")
    parser.add_argument("--films", type=Path, nargs="+", default=[], help="for the set films")
    parser.add_argument("--method", action="append", default=[], help="'NAME: KEY=VALUE ...'")
    parser.add_argument("--probability", help="column of the tracks with the boundary probability")
    parser.add_argument("--verbose", action="store_true", help="list missed and false boundaries")
    args = parser.parse_args()
    if unknown := {*args.sets.split(",")} - {*SETS}:
        parser.error(f"--sets: {', '.join(unknown)}; expected some of {','.join(SETS)}")
    if args.footage is None and {*args.sets.split(",")} - {"labelled", "films"}:
        parser.error("--footage is needed for other sets than labelled and films")
    if "labelled" in args.sets and args.media is None:
        parser.error("--sets labelled needs --media")
    args.work = args.work.absolute()
    return args


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def _all_sets(
    args: argparse.Namespace, sets: Sequence[str], part: Path
) -> list[tuple[str, list[Labelled]]]:
    """Returns the labelled files of each set; makes missing sets."""
    footage = recordings(args.footage.absolute(), args.part) if args.footage else []
    made: list[tuple[str, list[Labelled]]] = []
    makers: dict[str, Callable[..., None]] = {
        "kinds": make_kinds, "edits": make_edits, "jumps": make_jumps, "takes": make_takes,
        "disturbed": make_disturbed, "dark": make_dark, "stop_motion": make_stop_motion,
        "effects": partial(make_effects, part=args.part),
        "hard": partial(make_hard, part=args.part),
    }  # fmt: skip
    for name in sets:
        if name in makers:
            if not read_truth(part / name):
                makers[name](footage, part / name)
            files = _made_files(part / name)
            if name in ("takes", "disturbed", "stop_motion"):
                files = [replace(f, unit=f.path.stem.rpartition("_")[0]) for f in files]
            made.append((name, files))
        elif name == "singles":
            made.append((name, [_labelled(c.path, [], [], c.recording) for c in footage]))
        elif name == "labelled":
            made.append((name, _media_files(args.media.absolute())))
        else:
            made += [(f"films-{f.name}", _film_files(f.absolute())) for f in args.films]
    return made


def _made_files(folder: Path) -> list[Labelled]:
    files = []
    for made in read_truth(folder):
        rate = f"{_ratio(made.rate):.4g}"
        labels = tuple(Label(*label) for label in made.labels)
        duration_s = made.n_frames / _ratio(made.rate)
        files.append(
            Labelled(folder / made.name, labels, (), made.name, duration_s, rate, made.codec)
        )
    return files


def _ratio(rate: str) -> float:
    above, _, below = rate.partition("/")
    return int(above) / int(below or 1)


def _media_files(media: Path) -> list[Labelled]:
    unit = {name: sorted(files)[0] for files in SAME_RECORDING for name in files}
    return [
        _labelled(media / name, gaps, ignored, unit.get(name, name))
        for name, (gaps, ignored) in media_labels(media).items()
    ]


def _film_files(films: Path) -> list[Labelled]:
    return [
        _labelled(films / name, gaps, ignored, f"{films.name}/{name}")
        for name, (gaps, ignored) in film_labels(films).items()
    ]


def _labelled(path: Path, gaps: list[Label], ignored: list[Span], unit: str) -> Labelled:
    """Returns a file with its duration, rate and codec, as the container states them."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        rate, codec = float(stream.average_rate or 0), stream.codec_context.name
        length = (container.duration or 0) / 1e6
    kept = tuple(gap for gap in gaps if not any(a <= gap.start <= b for a, b in ignored))
    return Labelled(path, kept, tuple(ignored), unit, length, f"{rate:.4g}", codec)


def _detected(files: Sequence[Labelled], out: Path, args: argparse.Namespace) -> dict[str, Results]:
    """Returns the detections of each method."""
    out.parent.mkdir(parents=True, exist_ok=True)
    found = {}
    for method in (*METHODS[1:], *args.method, METHODS[0]):
        name, _, keys = method.partition(":")
        found[name] = _by_curate(files, out, keys.split())
    return {"default": found.pop("default")} | found


def _by_curate(files: Sequence[Labelled], out: Path, keys: Sequence[str]) -> Results:
    """Runs the command, and reads shots and clips from its tables."""
    manifest = out.parent / f"{out.name}.txt"
    manifest.write_text("".join(f"{file.path}\n" for file in files))
    # Without --recipe, the run would reuse the recipe of the previous method.
    command = [*CURATE, "run", "--recipe", "quickstart", str(manifest), str(out)]
    for key in (*FIXED, *keys):
        command += ["--set", key]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"curate run ended with {done.returncode}: {done.stderr[-2000:]}")
    sources = {row["uri"]: row for row in pq.read_table(out / "sources").to_pylist()}
    if failed := [uri for uri, row in sources.items() if row["outcome"] != "done"]:
        raise SystemExit(f"{len(failed)} sources failed, such as {failed[0]}")
    shots, clips = _spans(out / "shots"), _spans(out / "clips", reason="not_selected")
    return {
        file.path: Found(
            shots.get(row["source_id"], []), clips.get(row["source_id"], []), row["fps"]
        )
        for file in files
        for row in (sources[str(file.path)],)
    }


def _spans(table: Path, **equal: str) -> dict[str, list[Span]]:
    """Returns the spans of the rows with these values, by source id."""
    spans: dict[str, list[Span]] = {}
    for row in pq.read_table(table).to_pylist() if table.exists() else []:
        if all(row[name] == value for name, value in equal.items()):
            spans.setdefault(row["source_id"], []).append((row["start_frame"], row["end_frame"]))
    return spans


def _scored(
    files: Sequence[Labelled], found: dict[str, Results], *, verbose: bool
) -> dict[str, dict[str, Any]]:
    figures = {}
    for method, results in found.items():
        tallies = [tally(file, results[file.path]) for file in files]
        figures[method] = summary(files, tallies)
        if verbose:
            print(f"{method}:", *_failures(files, tallies, results), sep="\n  ")
    return figures


def _failures(files: Sequence[Labelled], tallies: Sequence[Tally], results: Results) -> list[str]:
    lines = []
    for file, done in zip(files, tallies, strict=True):
        for label, span in zip(file.labels, done.spans, strict=True):
            if span is None:
                lines.append(f"missed {label.kind} {label.start}-{label.end} in {file.path.name}")
        if done.false:
            ends = [end for _, end in results[file.path].shots[:-1]]
            lines.append(f"{done.false} false in {file.path.name}, shots end at {ends}")
    return lines


def _table(figures: dict[str, dict[str, Any]]) -> str:
    """Returns Markdown tables: a row per method, then the found labels by group."""
    first = next(iter(figures.values()))
    n_labels = first["found"] + first["missed"]
    head = f"{first['files']} files, {first['units']} recordings or films, "
    head += f"{first['minutes']:.1f} minutes, {n_labels} boundaries, {first['gradual']} gradual"
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "false": lambda f: str(f["false"]),
        "false / 10 min": lambda f: (
            f"{f['false_per_10_min']:.1f} [{_pair(f['false_per_10_min_95'], 1)}]"
        ),
        "kept s": lambda f: f"{f['kept_s']:.0f}",
    }
    repeats = first["units"] < first["files"]
    if n_labels:
        columns = {
            "precision": lambda f: f"{f['precision']:.3f}",
            "recall": lambda f: f"{f['recall']:.3f}",
            "F1": lambda f: f"{f['f1']:.3f} [{_pair(f['f1_95'], 3)}]",
            **({"F1, recordings once": lambda f: f"{f['f1_units_once']:.3f}"} if repeats else {}),
            "cuts": lambda f: _of(f["by_type"].get("cut")),
            "gradual": lambda f: _of(f["by_type"].get("gradual")),
            "with extent": lambda f: _share(f["marked_share"]),
            "IoU": lambda f: _share(f["marked_iou"], 2),
            "transition frames in clips": lambda f: _share(f["leaked_share"]),
            "clips with a boundary": lambda f: _share(f["dirty_clips_share"]),
            **columns,
        }
    lines = [head, "", _row(["", *columns]), _row(["---"] * (1 + len(columns)))]
    lines += [_row([name, *(show(f) for show in columns.values())]) for name, f in figures.items()]
    for group in ("by_kind", "by_frames", "by_rate", "by_codec"):
        names = list(dict.fromkeys(name for f in figures.values() for name in f[group]))
        if n_labels and len(names) > 1:
            lines += ["", _row([group.replace("_", " "), *figures])]
            lines.append(_row(["---"] * (1 + len(figures))))
            lines += [
                _row([name, *(_of(f[group].get(name)) for f in figures.values())])
                for name in sorted(names, key=_in_order)
            ]
    return "\n".join(lines)


def _in_order(name: str) -> tuple[float, str]:
    number = name.split("-")[0].rstrip("+")
    return (float(number) if number.replace(".", "").isdigit() else 0.0, name)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _pair(values: Sequence[float], digits: int) -> str:
    return ", ".join(f"{value:.{digits}f}" for value in values)


def _share(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _of(group: dict[str, float] | None) -> str:
    if group is None:
        return ""
    text = f"{group['found']:.0f}/{group['of']:.0f}"
    return f"{text}, {group['false']:.0f} false, {group['f1']:.3f}" if "f1" in group else text


def _reliability(files: Sequence[Labelled], out: Path, column: str) -> dict[str, Any]:
    """Compares the forecasts of a run's tracks with labels."""
    ids = {row["uri"]: row["source_id"] for row in pq.read_table(out / "sources").to_pylist()}
    values: dict[str, NDArray[np.float32]] = {}
    for family in sorted((out / "tracks").iterdir()):
        for path in sorted(family.rglob("*.parquet"), key=lambda path: path.stat().st_mtime):
            if column in pq.read_schema(path).names:
                for row in ds.dataset(path).to_table(["source_id", column]).to_pylist():
                    if row[column] is not None:
                        values[row["source_id"]] = np.array(row[column], np.float32)
    if not values:
        raise SystemExit(f"--probability {column}: no track has such a column")
    by_path = {file.path: values[ids[str(file.path)]] for file in files}
    return reliability(forecasts(files, by_path))


def _reliability_text(figures: dict[str, Any]) -> str:
    lines = [f"ECE {figures['ece']:.4f}", "", _row(["forecast", "n", "mean", "came true"])]
    lines.append(_row(["---"] * 4))
    for bin_ in figures["bins"]:
        shown = [_share(bin_.get("forecast"), 2), _share(bin_.get("true"), 2)]
        lines.append(_row([f"{bin_['from']:.1f}", str(bin_["n"]), *shown]))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
