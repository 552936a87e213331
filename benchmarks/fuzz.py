"""Damages videos at random, and has each probed, analyzed, proposed and cut in a child process.

Each file must end accounted for: probed and cut, or failed under a documented code that fits. A
crash, a hang, too much memory, an error `internal`, a clip that does not decode to what its row
says, or another result the second time is a finding, and its file is kept.

    python benchmarks/fuzz.py --n 1000                       # footage made by code
    python benchmarks/fuzz.py --n 1000 --videos FOLDER       # short pieces of these films
    python benchmarks/fuzz.py --n 20000 --sandbox            # in a sandbox, in batches
    python benchmarks/fuzz.py --replay found/17.mp4          # a file that was kept, once more
    python benchmarks/fuzz.py --n 100 --run                  # and `curate run` over all of them

What was found by it: benchmarks/results/robustness.md.
"""

import argparse
import contextlib
import faulthandler
import hashlib
import io
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count, islice
from pathlib import Path
from typing import Any

import av
import av.error
import pyarrow as pa
import pyarrow.compute as pc
import tests_path  # noqa: F401
from measure import CURATE, arguments, peak_bytes, sets, tell
from mutations import mutated

from curator.errors import CuratorError, ErrorCode
from curator.storage import Store

LIMIT_S, LIMIT_S_PER_MB = 90.0, 30.0
"""Wall time for one file, on a machine that does other work too."""
BOX_BATCH = 500
MOST_BYTES = 2 << 30
"""Of memory: what a worker says it may need (`graph.chain.WORKER_BYTES`)."""
RECIPES = (
    ["cut.mode=auto", "cut.audio=copy"],
    ["cut.mode=encode", "cut.audio=aac", "cut.hdr=tonemap", "filters.hdr.max=1"],
    ["cut.mode=auto", "cut.fps=24", "propose.min_s=0.4", "propose.max_s=1"],
    ["cut.mode=auto", "cut.size=[128, 128]", "analyze.samples_per_s=8"],
)
SIDECARS = (
    b"", b"{", b"\xff\xfe{", b"[" * 100_000, b'{"a": 1e999}', b'{"a": NaN}', b'{"a": "\\ud800"}',
    b'{"a": {"b": {"c": {"d": {"e": {"f": {"g": 1}}}}}}}', b'{"": null, "x": [[[]]]}', b"\0" * 100,
    b'{"label": ["x"], "events": [{"start_s": -1e308, "end_s": "x"}]}',
    b'{"n": ' + b"9" * 5000 + b"}",
)  # fmt: skip
DOCUMENTED = {str(code) for code in ErrorCode} - {"internal", "worker_died"}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A file to try."""

    path: str
    recipe: int
    twice: bool


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of it."""

    code: str = "done"
    stage: str = ""
    message: str = ""
    n_clips: int = 0
    cut_errors: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    digest: str = ""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_bytes: int = 0
    modes: list[str] = field(default_factory=list)


class FuzzStep:
    """The pipeline's own steps on one file, in a child process."""

    def __init__(self, *, folder: str) -> None:
        self._folder = folder
        self._made: dict[int, list[Any]] = {}
        sys.path.insert(0, str(Path(__file__).parent))

    def __call__(self, case: Case) -> Outcome:
        """Tries a file, and looks at every clip with plain PyAV."""
        n_bytes = os.stat(case.path).st_size
        limit_s = LIMIT_S + LIMIT_S_PER_MB * n_bytes / 1e6
        begun, cpu = time.monotonic(), time.process_time()
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        faulthandler.dump_traceback_later(limit_s, exit=True)
        try:
            outcome = self._try(case)
            if case.twice:
                again = self._try(case)
                if again.digest != outcome.digest:
                    outcome.problems.append(
                        f"another result the second time: {outcome.code} {outcome.digest}, "
                        f"{again.code} {again.digest}"
                    )
        finally:
            faulthandler.cancel_dump_traceback_later()
        outcome.wall_s = time.monotonic() - begun
        outcome.cpu_s = time.process_time() - cpu
        outcome.peak_bytes = peak_bytes()
        return outcome

    def _try(self, case: Case) -> Outcome:
        try:
            return self._outcome(case)
        except Exception as error:
            logger.exception("%s", case.path)
            problem = f"raised {type(error).__name__}: {error}"
            return Outcome(code="raised", problems=[problem])

    def _steps(self, number: int) -> list[Any]:
        if number not in self._made:
            from curator.executor.unit_worker import UnitWorker
            from curator.recipe import load_recipe
            from curator.stages.analyze.families import families_of
            from curator.stages.analyze.stage import AnalyzeStage
            from curator.stages.cut.cut_driver import CutKeeper, TrackLoader
            from curator.stages.cut.stage import CutStage, CutStageConfig
            from curator.stages.propose.stage import KeepProposed, ProposeStage
            from curator.stages.scan.config import ScanConfig
            from curator.stages.scan.stage import ScanStage
            from curator.storage import open_store
            from curator.tables.family_store import FamilyRows
            from curator.tables.parts import Parts
            from curator.tables.track_items import SourceItem
            from curator.tables.track_parts import TrackParts

            recipe = load_recipe("quickstart", RECIPES[number])
            store = open_store(f"{self._folder}/out{number}-{os.getpid()}")
            load = TrackLoader(store)
            scan = ScanStage(ScanConfig())
            config = CutStageConfig(cut=recipe.cut, max_pixels=recipe.analyze.max_pixels)
            stored = families_of(recipe.analyze)
            families, parts = frozenset(one.name for one in stored), TrackParts(store, stored)
            stage = AnalyzeStage(recipe.analyze, families=families)
            analyze = UnitWorker(stage=stage, keep=parts.keep)
            propose = UnitWorker(
                stage=ProposeStage(recipe.propose, aggregates=recipe.scores.root),
                load=parts.load,
                keep=KeepProposed(None),
            )
            cut = UnitWorker(stage=CutStage(config), keep=CutKeeper(Parts(store, "cuts", "c")))
            self._made[number] = [
                recipe,
                store,
                UnitWorker(stage=scan, keep=FamilyRows(scan, store).put),
                lambda refs: analyze([SourceItem(source=r, families=families) for r in refs]),
                propose,
                lambda unit: cut(load(unit)),
            ]
        return self._made[number]

    def _outcome(self, case: Case) -> Outcome:
        from curator.records.sources import SourceRef
        from curator.stages.cut.output_form import as_written
        from curator.stages.filter.judging import FilterNeeds, corpus_of, judge_table
        from curator.stages.filter.rules import resolve
        from curator.storage.source_reader import stat_source
        from curator.tables.source_table import SourceTable

        recipe, store, scan, analyze, propose, cut = self._steps(case.recipe)
        n_bytes, version = stat_source(case.path)
        sources = SourceTable()
        unit = [SourceRef(uri=case.path, n_bytes=n_bytes, version=version)]
        sources.add_probes(scan(unit).results)
        refs = list(sources.to_analyze())
        outcome = Outcome()
        digest = hashlib.sha256()
        if refs:
            proposed = propose(analyze(refs)).results
            sources.measured(proposed.sources)
            clips = as_written(proposed.clips, recipe.cut, recipe.shard)
            bounds = resolve(recipe.filters.root, corpus_of(clips, min_s=recipe.propose.min_s))
            decided = judge_table(
                clips, bounds,
                FilterNeeds(
                    min_s=recipe.propose.min_s, max_s=recipe.propose.max_s, min_frames=None,
                    classes=recipe.shard, semantic=recipe.semantic,
                ),
            )  # fmt: skip
            digest.update(str(proposed.clips.to_pylist()).encode())
            digest.update(str(proposed.vectors.to_pylist()).encode())
            # A picture that stands for hours is rejected by any recipe.
            clips = clips.filter(
                pc.not_equal(pc.fill_null(decided.clips["reason"], ""), "too_long")
            )
            part = proposed.track_parts.get(str(refs[0].source_id))
            if part is not None and clips.num_rows:
                self._cut(outcome, cut, store, refs[0], part, clips, recipe, digest)
        (row,) = [row for table in sources.rows({}) for row in table.to_pylist()]
        if refs and row["outcome"] not in ("done", "failed"):
            outcome.problems.append(f"outcome {row['outcome']}")
        if row["error_code"] is not None:
            outcome.code, outcome.stage = row["error_code"], row["error_stage"]
            outcome.message = row["error_message"]
            if outcome.code not in DOCUMENTED:
                outcome.problems.append(f"{outcome.code}: {outcome.message}")
        digest.update(str({**row, "version": ""}).encode())
        outcome.digest = digest.hexdigest()[:12]
        store.delete([info.key for info in store.list()])
        return outcome

    def _cut(
        self, outcome: Outcome, cut: Any, store: Store, source: Any, part: str,  # noqa: ANN401
        clips: pa.Table, recipe: Any, digest: Any,  # noqa: ANN401
    ) -> None:  # fmt: skip
        from curator.records.clips import Span
        from curator.stages.cut.cut_driver import CutUnit
        from curator.stages.cut.stage import ClipToCut

        size = recipe.cut.size if isinstance(recipe.cut.size, tuple) else None
        wanted = [
            ClipToCut(
                source=source, track_part=part, clip_id=row["clip_id"], min_frames=1, size=size,
                span=Span(start_frame=row["start_frame"], end_frame=row["end_frame"],
                          shot=row["shot"]),
            )
            for row in clips.to_pylist()[:6]
        ]  # fmt: skip
        ids, n_frames = (clips[name].to_pylist() for name in ("clip_id", "n_frames"))
        proposed = dict(zip(ids, n_frames, strict=True))
        result: CutUnit = cut(wanted).results
        mp4s = {
            row["clip_id"]: row["mp4"]
            for info in store.list("cuts/")
            for row in _rows(store.read(info.key))
        }
        for clip_id, failure in result.failures.items():
            digest.update(f"{clip_id} {failure.message}".encode())
            outcome.cut_errors.append(failure.message)
            if "please report it" in failure.message:
                outcome.problems.append(f"cut: {failure.message}")
        for clip_id, one in result.facts().items():
            digest.update(f"{clip_id} {one['mp4_sha256']}".encode())
            outcome.n_clips += 1
            outcome.modes.append(str(one["cut_mode"]))
            planned = proposed[clip_id]
            if one["cut_mode"] == "encode" and one["n_frames"] != planned:
                outcome.problems.append(f"clip of {one['n_frames']} frames, proposed {planned}")
            size = one["width"], one["height"]
            wrong = wrong_clip(mp4s[clip_id], one["n_frames"], size)
            if wrong is not None:
                outcome.problems.append(f"{one['cut_mode']} clip {wrong}")


def _rows(data: bytes) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(data)).to_pylist()
    return rows


def wrong_clip(mp4: bytes, n_frames: int, size: tuple[int, int]) -> str | None:
    """What plain PyAV finds wrong with a clip; None for nothing."""
    try:
        with av.open(io.BytesIO(mp4), mode="r") as container:
            stream = container.streams.video[0]
            frames = [(f.pts, f.key_frame, f.width, f.height, f.is_corrupt)
                      for f in container.decode(stream)]  # fmt: skip
            tick = 1 / (Fraction(stream.average_rate or 0) * Fraction(stream.time_base or 1))
    except (av.error.FFmpegError, ZeroDivisionError, IndexError) as error:
        return f"does not decode: {error}"
    if len(frames) != n_frames:
        return f"decodes to {len(frames)} frames, not {n_frames}"
    if frames[0][0] != 0 or not frames[0][1]:
        return f"begins at {frames[0][0]}, key frame: {frames[0][1]}"
    if any(frame[4] for frame in frames):
        return "has corrupt frames"
    if {frame[2:4] for frame in frames} != {size}:
        return f"has sizes {set(frame[2:4] for frame in frames)}, not {size}"
    if [frame[0] for frame in frames] != [number * tick for number in range(n_frames)]:
        return "has times that are not those of a constant rate"
    return None


def made_videos(folder: Path) -> list[Path]:
    """Small files of many kinds, made by code."""
    from film_makers import MAKERS, write_video
    from film_shots import moving_texture

    for name, make in MAKERS.items():
        make(folder / name)
    small = {"width_px": 192, "height_px": 108}
    kinds: dict[str, dict[str, Any]] = {
        "mpeg2.ts": {"codec": "mpeg2video", "audio_tone_s": 1.0},
        "mpeg4.mp4": {"codec": "mpeg4"},
        "mjpeg.avi": {"codec": "mjpeg", "pix_fmt": "yuvj420p"},
        "vp8.webm": {"codec": "libvpx", "options": {"deadline": "realtime"}},
        "hevc.mp4": {"codec": "libx265", "options": {"x265-params": "log-level=none"}},
        "hevc.mkv": {"codec": "libx265", "options": {"x265-params": "log-level=none"}},
        "av1.mkv": {"codec": "libsvtav1", "options": {"preset": "12"}},
        "ffv1.mkv": {"codec": "ffv1"},
        "sound.mp4": {"audio_tone_s": 2.0, "gop": 10, "bframes": 2},
        "sound.ts": {"audio_tone_s": 2.0, "gop": 10, "bframes": 2},
        "sound.mkv": {"audio_tone_s": 2.0, "gop": 10},
        "pieces.mp4": {"mux_options": {"movflags": "frag_keyframe+empty_moov"}, "gop": 10},
        "turned.mov": {"rotation": 90, "gop": 10},
    }
    for number, (name, options) in enumerate(kinds.items()):
        frames = moving_texture(30, seed=number, **small)
        write_video(folder / name, frames, fps=Fraction(25), **options)
    return sorted(path for path in folder.iterdir() if path.stat().st_size)


def short_pieces(videos: Path, folder: Path, *, seconds: float, most_bytes: int) -> list[Path]:
    """The first seconds of films, with their packets as they are; what is short stays whole."""
    found = []
    for number, path in enumerate(sorted(p for p in videos.rglob("*") if p.is_file())):
        piece = folder / f"{number}{path.suffix}"
        if path.suffix in (".json", ".md", ".txt"):
            continue
        if path.stat().st_size <= 150_000:
            shutil.copyfile(path, piece)
        elif not _shortened(path, piece, seconds):
            continue
        if piece.exists() and 0 < piece.stat().st_size <= most_bytes:
            found.append(piece)
    return found


def _shortened(path: Path, piece: Path, seconds: float) -> bool:
    with contextlib.suppress(av.error.FFmpegError, ValueError, IndexError, OSError):
        with av.open(str(path)) as source, av.open(str(piece), "w") as output:
            streams = [source.streams.video[0], *source.streams.audio[:1]]
            copied = {s.index: output.add_stream_from_template(s, opaque=True) for s in streams}
            for packet in source.demux(streams):
                if packet.dts is None or not packet.size:
                    continue
                if packet.dts * (packet.time_base or 0) > seconds:
                    break
                packet.stream = copied[packet.stream.index]
                output.mux(packet)
        return True
    return False


class MutateStep:
    """Makes mutants in a child process: FFmpeg's muxers abort over some of what they are given."""

    def __init__(self, *, pool: Sequence[str], seed: int) -> None:
        self._pool = [Path(path) for path in pool]
        self._seed = seed

    def __call__(self, number: int) -> tuple[str, str, bytes, int]:
        """Name, what was done, bytes, and number of the recipe."""
        draw = random.Random(f"{self._seed} {number}")
        path, other = draw.choice(self._pool), draw.choice(self._pool)
        name, data = mutated(path.read_bytes(), other.read_bytes(), draw)
        return (
            f"{number}{path.suffix}",
            f"{path.name}: {name}",
            data,
            draw.randrange(len(RECIPES)),
        )


def attempts(
    child: Any, step: Any, units: Iterable[Any]  # noqa: ANN401
) -> Iterator[tuple[Any, Any]]:  # fmt: skip
    """Each unit with the result of a step in a child process, or None where that died."""
    from curator.executor.worker import pack_chain

    chain = pack_chain((step,))
    for unit in units:
        answer = child._ask(chain, unit)
        yield unit, answer[0] if answer is not None else None


def cases(pool: Sequence[Path], seed: int, start: int) -> Iterator[tuple[str, str, bytes, int]]:
    """Endless mutants: name, what was done to which file, bytes and number of the recipe."""
    from fuzz import MutateStep

    from curator.executor.child_process import Child
    from curator.executor.worker import Step
    from curator.stage import Resources

    child = Child()
    settings = {"pool": [str(path) for path in pool], "seed": seed}
    step = Step(make=MutateStep, settings=settings, resources=Resources())
    try:
        for _, made in attempts(child, step, count(start)):
            if made is not None:
                yield made
    finally:
        child.stop()


def run_over(folder: Path, work: Path) -> list[str]:
    """`curate run` over a folder of mutants and broken sidecars, and what is wrong with it."""
    for number, path in enumerate(sorted(folder.iterdir())):
        if number % 3 == 0:
            sidecar = path.with_name(path.name + ".json")
            sidecar.write_bytes(SIDECARS[number // 3 % len(SIDECARS)])
    problems = []
    settings = ["filters.short_side_px.min=60", "shard.resolutions=[120]", "propose.min_s=0.5"]
    words = sets(*settings)
    command = [*CURATE]
    made: list[Any] = []
    for name in ("a", "b"):
        out = work / name
        done = subprocess.run(
            [*command, "run", str(folder), str(out), *words],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            return [f"curate run ended with {done.returncode}: {done.stderr[-1500:]}"]
        checked = subprocess.run(
            [*command, "verify", str(out), "--frames", "all", "--json"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if checked.returncode:
            problems.append(f"verify: {checked.stdout[-1500:]}{checked.stderr[-500:]}")
        import pyarrow.parquet as pq

        rows = pq.read_table(out / "sources").to_pylist()
        files = [path for path in folder.iterdir() if path.suffix != ".json"]
        if len(rows) != len(files):
            problems.append(f"{len(rows)} rows of {len(files)} files")
        codes = Counter(row["error_code"] for row in rows)
        print("run:", dict(codes), flush=True)
        problems += [row["error_message"] for row in rows
                     if row["error_code"] in ("internal", "worker_died")]  # fmt: skip
        clips = pq.read_table(out / "clips").to_pylist()
        made.append((rows, clips))
        problems += [
            str(c["reason_detail"]) for c in clips if "report it" in str(c["reason_detail"])
        ]
    if made[0] != made[1]:
        problems.append("two runs differ")
    return problems


def main() -> None:
    """Fuzzes, and prints what was found."""
    parser = arguments(__doc__)
    parser.add_argument("--n", type=int, default=1000, help="mutants (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=600.0, help="most time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--videos", type=Path, help="folder of films (default: made by code)")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of pieces of films")
    parser.add_argument("--twice", type=float, default=0.2, help="share that is tried twice")
    parser.add_argument("--found", type=Path, default=Path("found"), help="where finds are kept")
    parser.add_argument("--replay", type=Path, nargs="+", help="files to try instead")
    parser.add_argument("--recipe", type=int, help="number of the recipe (default: drawn)")
    parser.add_argument(
        "--sandbox", action="store_true", help="scan and analyze alone, as a run does"
    )
    parser.add_argument("--run", action="store_true", help="`curate run` over all of them too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        work = Path(name)
        pool = work / "pool"
        pool.mkdir()
        if options.replay:
            given = iter(
                [(p.name, "replayed", p.read_bytes(), n) for p in options.replay
                 for n in ([options.recipe] if options.recipe is not None else range(len(RECIPES)))]
            )  # fmt: skip
        else:
            videos = (
                made_videos(pool)
                if options.videos is None
                else short_pieces(options.videos, pool, seconds=options.seconds,
                                  most_bytes=1_000_000)
            )  # fmt: skip
            given = cases(videos, options.seed, options.start)
        total = fuzzed(given, work, options)
        tell(total)
    sys.exit(1 if total["found"] else 0)


Tries = Callable[[Sequence[Case]], Iterator[Outcome]]
"""Tries files, and yields their outcomes in order."""


@contextlib.contextmanager
def in_child(folder: Path) -> Iterator[Tries]:
    """Tries a file at a time in a child process, which may die."""
    # By its module's name, so that the child finds it.
    from fuzz import FuzzStep

    from curator.executor.child_process import Child
    from curator.executor.worker import Step
    from curator.stage import Resources

    step = Step(make=FuzzStep, settings={"folder": str(folder)}, resources=Resources())
    child = Child()

    def outcomes(some: Sequence[Case]) -> Iterator[Outcome]:
        for case in some:
            begun = time.monotonic()
            try:
                ((_, outcome),) = attempts(child, step, [case])
            except CuratorError as error:
                outcome = Outcome(code="raised", problems=[str(error)])
            if outcome is None:
                problem = f"the process died after {time.monotonic() - begun:.0f} s"
                outcome = Outcome(code="died", problems=[problem])
            if outcome.peak_bytes > MOST_BYTES:
                outcome.problems.append(f"{outcome.peak_bytes >> 20} MiB of memory")
            yield outcome

    try:
        yield outcomes
    finally:
        child.stop()


@contextlib.contextmanager
def in_box(_folder: Path) -> Iterator[Tries]:
    """Scans and analyzes batches of files in a box."""
    from fuzz_box import BoxedFuzz

    tried = BoxedFuzz()
    yield lambda some: (outcome for _, outcome in tried([Path(case.path) for case in some]))


def fuzzed(
    given: Iterator[tuple[str, str, bytes, int]], work: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Tries mutants; returns counts and finds."""
    from fuzz import Case

    (work / "mutants").mkdir()
    counts: Counter[str] = Counter()
    found: list[str] = []
    slowest: list[tuple[float, str]] = []
    peak, end, tried = 0, time.monotonic() + 60 * options.minutes, 0
    draw = random.Random(options.seed)
    os.environ["OMP_NUM_THREADS"] = "1"
    with (in_box if options.sandbox else in_child)(work) as tries:
        while tried < options.n and time.monotonic() < end:
            some = list(islice(given, min(BOX_BATCH if options.sandbox else 1, options.n - tried)))
            if not some:
                break
            batch = []
            for name, _, data, recipe in some:
                path = work / "mutants" / name
                path.write_bytes(data)
                number = recipe if options.recipe is None else options.recipe
                twice = draw.random() < options.twice
                batch.append(Case(path=str(path), recipe=number, twice=twice))
            for (name, what, data, _), case, outcome in zip(some, batch, tries(batch), strict=True):
                tried += 1
                counts[f"outcome {outcome.code}"] += 1
                counts["clips"] += outcome.n_clips
                counts["tried twice"] += case.twice and not options.sandbox
                counts.update(f"clips by {mode}" for mode in outcome.modes)
                counts["clips not cut"] += len(outcome.cut_errors)
                peak = max(peak, outcome.peak_bytes)
                slowest = sorted([*slowest, (outcome.cpu_s, f"{name} {what}")])[-5:]
                if outcome.problems:
                    options.found.mkdir(parents=True, exist_ok=True)
                    (options.found / f"{options.seed}-{name}").write_bytes(data)
                for problem in outcome.problems:
                    found.append(f"{name} ({what}, recipe {case.recipe}): {problem}")
                    print(f"FOUND {found[-1]}", flush=True)
                if options.replay:
                    print(name, case.recipe, outcome)
                for words in outcome.cut_errors:
                    print(f"  not cut: {name} ({what}): {words[:300]}", flush=True)
                if tried % 100 == 0:
                    print(tried, dict(counts), f"{peak >> 20} MiB", slowest[-1], flush=True)
                if not options.run:
                    Path(case.path).unlink()
    if options.run:
        found += [f"run: {problem}" for problem in run_over(work / "mutants", work)]
    return {"mutants": tried, "counts": dict(counts), "peak_mib": peak >> 20,
            "slowest": slowest, "found": found}  # fmt: skip


if __name__ == "__main__":
    main()
