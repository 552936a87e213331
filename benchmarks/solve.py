"""Compares `curate fit --solve` with brute force over made corpora, and with runs of its recipes.

`corpora` makes takes: lengths are log-normal, and rates, sizes, sound and trainers are mixed. Brute
force tries all numbers of frames from the shortest to 160 at five rates, with three strides, kept
and overlapping ends; then the likeliest of all pairs; then equal parts. Both use the same
takes, and no clip is shorter than `--solve` would make it.

`outputs` solves for each trainer alone, cuts all windows in a run over a copy of OUT, and compares.
With `--each`, a run per trainer cuts its recipe over a copy, WORK/TRAINER, which is kept and used
again. "Within" is what the trainer sees of the very spans that OUT found usable, without other
copies of repeated shots. With `--truth`, the list of shots that the films were edited from, the
same is counted in seconds of the recordings: a second is seen if any of its copies is. "Again" are
seconds that are seen in another copy, too.

    python benchmarks/solve.py corpora [--first N] [--corpora N]
    python benchmarks/solve.py outputs SOURCES OUT WORK
    python benchmarks/solve.py outputs SOURCES OUT WORK --each [--truth SOURCES/truth.json]
"""

import json
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from measure import CURATE, arguments, sets, tell
from numpy.typing import NDArray

from curator.recipe import Recipe, load_recipe
from curator.stages.propose.config import WindowConfig
from curator.storage import open_store
from curator.tables.checksums import read_parquet
from curator.tables.kept_clips import selected_clips
from curator.tables.output_format import existing
from curator.tables.snapshot_store import find_summary
from curator.tools.commands.fit_solving import recipe_text
from curator.tools.planning.divided_takes import Division, divided
from curator.tools.planning.recipe_search import shortest_s, solved
from curator.tools.planning.seen_footage import Watcher, seen, seen_spans
from curator.tools.planning.usable_takes import Takes, _spans, written_clips
from curator.trainers.trainer_files import load_trainer

TRAINERS = (
    "wan-diffsynth", "ltx2", "ltx2-diffsynth", "musubi", "musubi-hunyuan", "diffusion-pipe",
    "cosmos3", "automodel", "fastvideo", "simpletuner", "hunyuanvideo", "cosmos-predict2",
    "clip-dataset", "opensora", "ai-toolkit", "videox-fun",
)  # fmt: skip
TEN = (
    "wan-diffsynth", "ltx2", "ltx2-diffsynth", "musubi", "diffusion-pipe", "cosmos3", "fastvideo",
    "ai-toolkit", "automodel", "clip-dataset",
)  # fmt: skip
RATES = (12.5, 15.0, 24000 / 1001, 24.0, 25.0, 30000 / 1001, 30.0, 50.0, 60.0)
SIZES = ((1920, 1080), (1280, 720), (1080, 1920), (854, 480), (640, 480), (3840, 2160))
TAKES, MOST_FRAMES, CELL_S, PAIRS = 30, 160, 0.1, 20
FINE_S = 0.02
N_CELLS = round(3600 / FINE_S)
FILM_FPS = 30
Cells: TypeAlias = dict[str, NDArray[np.bool_]]
"""Whether a span of `FINE_S` is covered, by source or recording."""
# Encoding takes most of a run, and pictures do not matter here. No clip is lost to its size.
FAST = (
    "cut.preset=ultrafast", "cut.verify_share=0", "caption.enabled=false", "cut.size=426x240",
    "cut.enlarge=always", "cut.most_cropped=1",
)  # fmt: skip


def corpus(number: int) -> tuple[Takes, list[str], Recipe]:
    """Makes the takes, trainers and recipe of a corpus."""
    random = np.random.default_rng(number)
    rates = random.choice(RATES, random.integers(1, 5), replace=False)
    sizes = random.choice(len(SIZES), random.integers(1, 4), replace=False)
    kinds = np.array([(*SIZES[n], sound) for n in sizes for sound in (0, 1)], np.int64)
    fps = random.choice(rates, TAKES)
    seconds = random.lognormal(np.log(random.uniform(2, 12)), random.uniform(0.4, 1.1), TAKES)
    takes = Takes(
        n_frames=np.maximum(1, np.rint(np.clip(seconds, 0.3, 120) * fps)).astype(np.int64),
        fps=fps,
        kind=random.integers(0, len(kinds), TAKES),
        kinds=kinds,
        weight=np.ones(TAKES),
    )
    names = random.choice(TRAINERS, random.integers(1, 4), replace=False).tolist()
    changes = ["cut.size=832x480"] if number % 4 == 3 else []
    return takes, names, load_recipe("quickstart", [*changes, "cut.audio=copy"])


def brute_force(takes: Takes, watchers: list[Watcher], recipe: Recipe) -> tuple[float, str]:
    """Returns the greatest mean share that is seen well, and the windows that reach it."""
    least_s = shortest_s([watcher.trainer for watcher in watchers], recipe)

    def reached(*windows: WindowConfig) -> float:
        division = Division(windows=windows, min_s=least_s, max_s=60.0)
        clips = divided(takes, division, recipe)
        well = [seen(watcher, clips, takes.weight).well_s for watcher in watchers]
        return sum(well) / len(well) / takes.total_s

    best: dict[tuple[int, str | None], tuple[float, WindowConfig]] = {}
    for window in every_window(takes, watchers, least_s):
        share = reached(window)
        key = window.frames, window.fps
        if key not in best or share > best[key][0]:
            best[key] = share, window
    ranked = sorted(best.values(), key=lambda each: -each[0])
    share, one = ranked[0]
    found = share, f"{one} {one.remainder}"
    for a, b in likely_pairs([window for _, window in ranked], takes, watchers, recipe, least_s):
        share = reached(a, b)
        if share > found[0]:
            found = share, f"{a} {a.remainder}, {b} {b.remainder}"
    for fps in (None, 16, 24, 25, 30):
        for max_s in np.geomspace(2 * least_s, 60, 40):
            parts = Division(
                min_s=least_s, max_s=float(max_s), fps=None if fps is None else Fraction(fps)
            )
            clips = divided(takes, parts, recipe)
            well = [seen(watcher, clips, takes.weight).well_s for watcher in watchers]
            share = sum(well) / len(well) / takes.total_s
            if share > found[0]:
                found = share, f"parts of {max_s:.2f} s at {fps}"
    return found


def every_window(takes: Takes, watchers: list[Watcher], least_s: float) -> Iterator[WindowConfig]:
    """Yields all windows of brute force."""
    rates: list[str | None] = [None, "16", "24", "25", "30"]
    lengths = {n for watcher in watchers for n in watcher.lengths}
    for fps in rates:
        fastest = float(takes.fps.max()) if fps is None else float(fps)
        for frames in range(2, MOST_FRAMES + 1):
            if frames < least_s * fastest - 1e-6 and frames not in lengths:
                continue
            for stride in (None, frames - 1, frames // 2):
                for remainder in ("keep", "overlap"):
                    yield WindowConfig(frames=frames, fps=fps, stride=stride, remainder=remainder)


def likely_pairs(
    windows: list[WindowConfig], takes: Takes, watchers: list[Watcher], recipe: Recipe,
    least_s: float,
) -> list[tuple[WindowConfig, WindowConfig]]:  # fmt: skip
    """Returns the pairs of windows that cover most, over cells of `CELL_S` of all takes."""
    n_cells = np.ceil(takes.seconds / CELL_S).astype(np.int64) + 1
    offset = np.cumsum(n_cells) - n_cells
    rows = []
    for window in windows:
        clips = divided(takes, Division(windows=(window,), min_s=least_s, max_s=60.0), recipe)
        cells = np.zeros((len(watchers), int(n_cells.sum())), np.float32)
        for row, watcher in zip(cells, watchers, strict=True):
            clip, begin, end, is_well, _ = seen_spans(watcher, clips)
            first = offset[clips.place[clip]]
            for a, b in zip(
                (first + np.rint(begin / CELL_S))[is_well].astype(int),
                (first + np.rint(end / CELL_S))[is_well].astype(int),
                strict=True,
            ):
                row[a:b] = 1
        rows.append(cells.ravel())
    covered: NDArray[np.float32] = np.array(rows)
    alone = covered.sum(axis=1)
    both = alone[:, None] + alone[None] - covered @ covered.T
    both[np.tril_indices(len(windows))] = 0
    at = np.argsort(both, axis=None)[::-1][:PAIRS]
    return [
        (windows[a], windows[b]) for a, b in zip(*np.unravel_index(at, both.shape), strict=True)
    ]


def over_corpora(first: int, n: int) -> None:
    """Prints a row for each corpus, and the least and median ratio."""
    ratios, rows = [], []
    for number in range(first, first + n):
        takes, names, recipe = corpus(number)
        trainers = [load_trainer(name) for name in names]
        begun = time.perf_counter()
        outcome = solved(takes, trainers, recipe)
        solve_s = time.perf_counter() - begun
        reached = sum(outcome.well) / len(trainers)
        best, how = brute_force(takes, [Watcher(trainer) for trainer in trainers], recipe)
        best = max(best, reached)
        ratio = reached / best if best else 1.0
        ratios.append(ratio)
        windows = ", ".join(f"{w} {w.remainder}" for w in outcome.division.windows) or "parts"
        rows.append([number, names, round(reached, 4), round(best, 4), round(ratio, 4)])
        print(
            f"{number:3} {reached:6.1%} of {best:6.1%} = {ratio:6.1%} {solve_s:4.1f} s "
            f"{'+'.join(names)}: {windows}; best: {how}", flush=True,
        )  # fmt: skip
    least, median = min(ratios), statistics.median(ratios)
    print(f"least {least:.1%}, median {median:.1%}, below 95%: {sum(r < 0.95 for r in ratios)}")
    tell({"least": least, "median": median, "corpora": rows})


def over_outputs(sources: str | None, out: Path, work: Path) -> None:
    """Prints a row for each trainer: shares before, as predicted, and after a real run.

    One run over a copy of OUT cuts the windows of all trainers whose sizes differ, from one decode.
    Without sources, nothing is run.
    """
    facts = {name: _json("fit", str(out), "--for", name, "--solve") for name in TEN}
    windows: dict[str, dict[tuple[int, float | None], Any]] = {}
    used: dict[tuple[int, float | None], Any] = {}
    for name, of in facts.items():
        own = {_size(each): each for each in of["changes"].get("propose", {}).get("windows", [])}
        if own and all(used.get(size, each) == each for size, each in own.items()):
            windows[name] = own
            used |= own
    copy = work / "out"
    if sources is not None:
        _run_windows(sources, out, copy, list(used.values()), facts)
    rows = []
    for name, of in facts.items():
        (trainer,), total = of["trainers"], of["footage_s"]
        row: dict[str, Any] = {
            "trainer": name, "before": trainer["before"]["well_share"],
            "before_any": trainer["before"]["seen_share"],
            "predicted": trainer["after"]["well_share"], "changes": of["changes"],
        }  # fmt: skip
        if name in windows and sources is not None:
            condition = " or ".join(map(_condition, windows[name]))
            (fitted,) = _json("fit", str(copy), "--for", name, "--where", condition)
            now = _reached(copy, name, set(windows[name]))
            row |= {"after": now / total, "clips": fitted["clips"], "fit": fitted["seen_s"] / total}
        rows.append(row)
        print(json.dumps(row), flush=True)
    tell({"rows": rows})


def _run_windows(
    sources: str, out: Path, copy: Path, windows: list[Any], facts: dict[str, Any]
) -> None:
    """Cuts windows over a copy of an output."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    recipe = copy.with_name("solved.yaml")
    shutil.copytree(out, copy)
    min_s = min(of["changes"].get("propose", {}).get("min_s", 2.0) for of in facts.values())
    propose = {"windows": windows, "min_s": min_s}
    lengths = {"lengths": sorted({17, 33, *(_size(window)[0] for window in windows)})}
    base = next(iter(facts.values()))["base"]
    recipe.write_text(json.dumps({"base": base, "propose": propose, "shard": lengths}))
    sets = [word for change in FAST for word in ("--set", change)]
    command = [*CURATE, "run", sources, str(copy), "--recipe", str(recipe), "--max-failed", "1"]
    subprocess.run([*command, *sets], check=True, stdout=subprocess.DEVNULL)


def over_each(
    sources: str, out: Path, work: Path, names: Sequence[str], truth: Path | None
) -> None:
    """Prints a row for each trainer: shares before, as predicted, and after a run of its recipe."""
    work.mkdir(parents=True, exist_ok=True)
    usable = _usable(out)
    shots = None if truth is None else json.loads(truth.read_text())
    rows = []
    for name in names:
        of = _json("fit", str(out), "--for", name, "--solve")
        (trainer,), total = of["trainers"], of["footage_s"]
        row: dict[str, Any] = {
            "trainer": name, "before": trainer["before"]["well_share"],
            "predicted": trainer["after"]["well_share"], "changes": of["changes"],
        }  # fmt: skip
        before = _seen(out, name)
        if of["changes"]:
            recipe, copy = work / f"{name}.yaml", work / name
            if not copy.exists():
                recipe.write_text(recipe_text(of["base"], of["changes"]))
                shutil.copytree(out, copy)
                _run(sources, copy, recipe, work / f"{name}.log")
            after = _seen(copy, name)
        else:
            after = before
        row |= {
            "after": _seconds(after) / total,
            "within": _seconds(_both(after, usable)) / total,
        }
        if shots is not None:
            base = _recorded(usable, shots)
            for key, cells in (("before", before), ("after", after)):
                recorded = _seconds(_both(_recorded(cells, shots), base))
                row[f"recorded_{key}"] = recorded / _seconds(base)
            row["again"] = (_seconds(after) - _seconds(_recorded(after, shots))) / total
        rows.append(row)
        print(json.dumps(row), flush=True)
    means = {
        key: statistics.mean(row[key] for row in rows)
        for key in rows[0]
        if key not in ("trainer", "changes")
    }
    tell({"rows": rows, "means": means})


def _run(sources: str, copy: Path, recipe: Path, log_file: Path) -> None:
    words = ["run", sources, str(copy), "--recipe", str(recipe), "--max-failed", "1"]
    with log_file.open("w") as log:
        subprocess.run([*CURATE, *words, *sets(*FAST)], check=True, stdout=log, stderr=log)


def _usable(out: Path) -> Cells:
    """Returns the usable takes of an output."""
    store = open_store(str(out))
    summary = find_summary(store) or {}
    uris: dict[str, str] = {}
    for part in existing(store, summary, "sources"):
        table = read_parquet(store, part)
        uris |= zip(table["source_id"].to_pylist(), table["uri"].to_pylist(), strict=True)
    spans = _spans(store, summary)
    cells: Cells = {}
    for source, start, end in zip(
        *(spans[key].to_pylist() for key in ("source_id", "start_s", "end_s")), strict=True
    ):
        _mark(cells, uris[source], start, end)
    return cells


def _seen(out: Path, name: str) -> Cells:
    """Returns what a trainer sees well of the kept clips of an output."""
    clips = selected_clips(open_store(str(out)), None)
    uris = clips["source_uri"].to_pylist()
    rows, starts, ends, is_well, _full = seen_spans(
        Watcher(load_trainer(name)), written_clips(clips)
    )
    cells: Cells = {}
    for row, start, end, well in zip(rows, starts, ends, is_well, strict=True):
        if well:
            _mark(cells, uris[row], start, end)
    return cells


def _recorded(cells: Cells, shots: dict[str, list[dict[str, Any]]]) -> Cells:
    """Moves spans of edited films to the recordings that their shots are taken from.

    A shot that holds one frame still is a recording of its own; a transition is part of none.
    """
    recorded: Cells = {}
    for uri, of_film in cells.items():
        film = Path(uri).name
        for shot in shots[film]:
            first, last = (round(shot[key] / FILM_FPS / FINE_S) for key in ("start", "end"))
            part = of_film[first:last]
            still = f"{film} {shot['start']}"
            into = recorded.setdefault(
                still if shot["static"] else shot["clip"], np.zeros(N_CELLS, bool)
            )
            at = round(shot["offset_s"] / FINE_S)
            into[at : at + len(part)] |= part
    return recorded


def _mark(cells: Cells, uri: str, start: float, end: float) -> None:
    of = cells.setdefault(uri, np.zeros(N_CELLS, bool))
    of[round(start / FINE_S) : round(end / FINE_S)] = True


def _both(a: Cells, b: Cells) -> Cells:
    return {key: a[key] & b[key] for key in a.keys() & b.keys()}


def _seconds(cells: Cells) -> float:
    return sum(int(of.sum()) for of in cells.values()) * FINE_S


def _size(window: str | dict[str, Any]) -> tuple[int, float | None]:
    return WindowConfig.model_validate(window).form[:2]


def _condition(size: tuple[int, float | None]) -> str:
    frames, fps = size
    rate = "window_fps is null" if fps is None else f"window_fps = {fps}"
    return f"(window_frames = {frames} and {rate})"


def _reached(out: Path, name: str, sizes: set[tuple[int, float | None]]) -> float:
    """Returns the seconds that a trainer sees well of the clips of some windows, each once."""
    store = open_store(str(out))
    condition = " or ".join(map(_condition, sizes))
    clips = written_clips(selected_clips(store, condition))
    ones = np.ones(int(clips.place.max(initial=0)) + 1)
    return seen(Watcher(load_trainer(name)), clips, ones).well_s


def _json(*words: str) -> Any:  # noqa: ANN401 - of any command
    done = subprocess.run([*CURATE, *words, "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def main() -> None:
    """Runs one of the two comparisons."""
    parser = arguments(__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    made = commands.add_parser("corpora")
    made.add_argument("--first", type=int, default=0)
    made.add_argument("--corpora", type=int, default=100)
    outputs = commands.add_parser("outputs")
    for name in ("sources", "out", "work"):
        outputs.add_argument(name)
    outputs.add_argument("--predict", action="store_true", help="run nothing, and only predict")
    outputs.add_argument("--each", action="store_true", help="a run per trainer")
    outputs.add_argument("--trainers", nargs="*", default=TEN)
    outputs.add_argument("--truth", type=Path, help="shots of the films, by make_edited_set.py")
    options = parser.parse_args()
    if options.what == "outputs" and options.each:
        over_each(
            options.sources, Path(options.out), Path(options.work), options.trainers, options.truth
        )
    elif options.what == "corpora":
        over_corpora(options.first, options.corpora)
    else:
        sources = None if options.predict else options.sources
        over_outputs(sources, Path(options.out), Path(options.work))


if __name__ == "__main__":
    main()
