"""Compares `curate plan` with real runs over small corpora: CPU-seconds, clips kept, time left.

A corpus mixes synthetic films and labelled media, in several codecs and sizes; recipes alternate.
`plan` runs a third of a corpus. Then the same command runs all of it into the same OUT.

    python benchmarks/plan.py FILMS MEDIA WORK --set dev|blind [--corpora N]
"""

import hashlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import CURATE, Cost, arguments, measured, sets, tell

RECIPES = {
    "quickstart": (),
    "short clips": ("propose.max_s=4", "dedup.enabled=false"),
    "lenient": ("propose.min_s=1", "propose.max_s=3", "filters.motion.min=0",
                "filters.frozen_fraction.max=1", "dedup.enabled=false"),
    "no text": ("analyze.text=false", "propose.max_s=6"),
    "half of each": ("select.keep_fraction=0.5", "propose.max_s=4"),
}  # fmt: skip
SUFFIXES = {".mp4", ".webm", ".mov", ".mkv", ".ts", ".avi"}
MEDIA_FOLDERS = ("single", "multishot", "neardup", "quality", "formats")
MOST_BYTES = 5_000_000
SECONDS = (70.0, 100.0)
POINTS = (0.1, 0.25, 0.5, 0.75)


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Sources of one half, `dev` or `blind`."""

    films: Sequence[Path]
    media: Sequence[Path]


def pool_of(films: Path, media: Path, half: str) -> Pool:
    """Selects films by the name of their folder, and media by hash; a third of them is `dev`."""
    files = [
        path
        for folder in MEDIA_FOLDERS
        for path in sorted((media / folder).iterdir())
        if path.suffix in SUFFIXES and path.stat().st_size <= MOST_BYTES
    ]
    is_dev = {p: int(hashlib.sha256(p.stem.encode()).hexdigest(), 16) % 3 == 0 for p in files}
    return Pool(
        films=sorted(films.glob(f"{half}_*/film_*.*")),
        media=[p for p in files if is_dev[p] == (half == "dev") and 4 <= seconds_of(p) <= 15],
    )


def seconds_of(path: Path) -> float:
    """Returns the duration by the container; 0 if unknown."""
    probe = ("ffprobe", "-v", "error", "-show_entries", "format=duration", "-of", "csv=p=0")
    text = subprocess.run([*probe, str(path)], capture_output=True, text=True, check=False).stdout
    try:
        return float(text)
    except ValueError:
        return 0.0


def make_corpus(pool: Pool, folder: Path, seed: str) -> float:
    """Links sources into a folder; returns their total duration in seconds."""
    chance = random.Random(seed)
    wanted_s, total_s, used = chance.uniform(*SECONDS), 0.0, set()
    folder.mkdir(parents=True)
    while total_s < wanted_s:
        source = chance.choice(pool.films if chance.random() < 0.6 else pool.media)
        # Another encoding of a film would be a duplicate, which only few corpora have.
        key = (source.parent, source.stem[:7]) if source in pool.films else source
        if key in used and chance.random() < 0.95:
            continue
        target = folder / f"{source.parent.name}_{source.name}"
        if not target.exists():
            used.add(key)
            target.symlink_to(source)
            total_s += seconds_of(source)
    return total_s


def record(arguments_: Sequence[str]) -> None:
    """Runs `curate run`, and writes its progress to a file, two states a second."""
    import curator.executor.progress as module
    from curator.cli import main as curate

    states: list[dict[str, Any]] = []

    class Recorded(module.Progress):
        def __enter__(self) -> module.Progress:
            threading.Thread(target=self._record, daemon=True).start()
            return super().__enter__()

        def _record(self) -> None:
            while True:
                time.sleep(0.5)
                states.append(self.state())

    module.Progress = Recorded  # type: ignore[misc]
    path, *command = arguments_
    code = curate(command)
    Path(path).write_text(json.dumps(states))
    sys.exit(code)


def errors_of_end(states: Sequence[Mapping[str, Any]], wall_s: float) -> list[float]:
    """Returns relative errors of the predicted wall time at `POINTS`."""
    found: list[float] = []
    for point in POINTS:
        state = min(states, key=lambda s: abs(s["elapsed_s"] - point * wall_s))
        left = state["left_s"]
        left_s = math.nan if left is None else sum(left.values())
        found.append(round((state["elapsed_s"] + left_s) / wall_s - 1, 3))
    return found


def measure(
    folder: Path, out: Path, recipe: str, sample_s: float, workers: int | None
) -> dict[str, Any]:
    """Plans, runs, and compares."""
    words = [str(folder), str(out), "--recipe", "quickstart", *sets(*RECIPES[recipe])]
    words += ["--workers", str(workers)] if workers else []
    sample = ["--sample", str(sample_s / 60), "--json"]
    planned = checked(measured([*CURATE, "plan", *words, *sample]))
    plan = json.loads((out / "plan.json").read_text())
    states = out.with_suffix(".states.json")
    run = checked(measured([sys.executable, __file__, "--record", str(states), "run", *words]))
    summary = json.loads((out / "summary.json").read_text())
    history = json.loads(states.read_text())
    wall_s = history[-1]["elapsed_s"]
    actual = {
        "cpu_s": summary["cpu_seconds"]["total"] + plan["sample"]["reused_cpu_s"],
        "clips": summary["counts"]["kept"],
        "candidates": summary["counts"]["clips"],
    }
    return {
        "recipe": recipe,
        "workers": workers,
        "sources": plan["sources"],
        "video_s": round(plan["video_s"], 1),
        "share": round(plan["sample"]["share"], 3),
        "cpu_s_outside": round(run.cpu_s, 2),
        "cpu_s_of_plan": round(planned.cpu_s, 2),
        "wall_s": round(wall_s, 1),
        "planned_wall_s": round(sum(plan["stage_s"].values()), 1),
        "parts": {"planned": plan["cpu_s_by_part"], "actual": summary["cpu_seconds"]},
        "left": errors_of_end(history, wall_s),
        **{name: {"actual": actual[name], **plan[name]} for name in actual},
    }


def checked(cost: Cost) -> Cost:
    """Returns the cost of a command; exits if the command failed."""
    if cost.code:
        raise SystemExit(cost.output)
    return cost


def geometric_error(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    """Returns exp(mean |ln(planned / actual)|) - 1; for clips, both counts are raised by 1."""
    plus = 1.0 if name == "clips" else 0.0
    logs = [
        abs(math.log((row[name]["value"] + plus) / (row[name]["actual"] + plus))) for row in rows
    ]
    return math.exp(statistics.fmean(logs)) - 1


def n_held(rows: Sequence[Mapping[str, Any]], name: str) -> int:
    """Returns the number of corpora whose interval holds the actual value."""
    return sum(
        round(row[name]["low"]) <= row[name]["actual"] <= math.ceil(row[name]["high"])
        for row in rows
    )


def print_row(*cells: object) -> None:
    """Prints a row of a table."""
    print(f"| {' | '.join(map(str, cells))} |")


def print_tables(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints the tables of the results."""
    print_row(
        "corpus", "recipe", "workers", "sources", "video", "sample", "CPU planned", "90%", "actual",
        "error", "clips planned", "90%", "actual",
    )  # fmt: skip
    print_row(*["---"] * 13)
    for number, row in enumerate(rows, 1):
        cpu, clips = row["cpu_s"], row["clips"]
        print_row(
            number,
            row["recipe"],
            row["workers"] or "auto",
            row["sources"],
            f"{row['video_s']:.0f} s",
            f"{100 * row['share']:.0f}%",
            f"{cpu['value']:.1f} s",
            f"{cpu['low']:.1f}-{cpu['high']:.1f}",
            f"{cpu['actual']:.1f} s",
            f"{100 * (cpu['value'] / cpu['actual'] - 1):+.1f}%",
            f"{clips['value']:.1f}",
            f"{clips['low']:.0f}-{clips['high']:.0f}",
            clips["actual"],
        )
    for name in ("cpu_s", "clips"):
        print(
            f"\n{name}: geometric mean of the error {100 * geometric_error(rows, name):.1f}%, "
            f"intervals that hold {n_held(rows, name)} of {len(rows)}"
        )
    print("\nerror of the end time: median, and how many are within 25%")
    print_row("at", "median", "within 25%")
    print_row(*["---"] * 3)
    for at, point in enumerate(POINTS):
        given = [abs(row["left"][at]) for row in rows if not math.isnan(row["left"][at])]
        median = f"{100 * statistics.median(given):.0f}%" if given else "-"
        n_within = sum(value <= 0.25 for value in given)
        print_row(f"{100 * point:.0f}%", median, f"{n_within} of {len(given)}")


def main() -> None:
    """Measures corpora of one half."""
    if sys.argv[1:2] == ["--record"]:
        record(sys.argv[2:])
    parser = arguments(__doc__)
    parser.add_argument("films", type=Path, help="folders dev_* and blind_* with film_*.mp4")
    parser.add_argument("media", type=Path, help="labelled media")
    parser.add_argument("work", type=Path, help="new folder for corpora and outputs")
    parser.add_argument("--set", choices=("dev", "blind"), default="blind")
    parser.add_argument("--corpora", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first corpus")
    options = parser.parse_args()
    # By default, Ray raises the niceness of its workers to 15.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    pool, names = pool_of(options.films, options.media, options.set), list(RECIPES)
    rows: list[dict[str, Any]] = []
    for number in range(options.first, options.corpora):
        folder = options.work / f"corpus_{number}"
        seconds = make_corpus(pool, folder, f"{options.set}, second drawing, {number}")
        workers = 2 if number % 6 == 3 else None
        out = options.work / f"out_{number}"
        rows.append(measure(folder, out, names[number % len(names)], seconds / 3, workers))
        (options.work / "rows.json").write_text(json.dumps(rows))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print_tables(rows)
    tell({"rows": rows})


if __name__ == "__main__":
    main()
