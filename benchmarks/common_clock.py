"""Measures the common clock of several cameras on made rigs.

    python benchmarks/common_clock.py made FOLDER --parity odd --groups 30
    python benchmarks/common_clock.py films FOLDER --parity odd --groups 20
    python benchmarks/common_clock.py score FOLDER
    python benchmarks/common_clock.py cost

`made` renders small pictures and measures them with the analysis' own functions, without a file.
`films` writes each camera's film as H.264 with AAC, and runs the analysis on it. Both store series
and true times in FOLDER, once per seed; `score` aligns them and prints tables, and JSON as the last
line. `cost` times a pair of recordings of an hour.

The method was chosen on even seeds. A clip is 5 s; one begins every 2.5 s while both cameras
record. It is used if its residual is at most half a frame of the slower camera, and right if all
of its frames are at most half of such a frame off.
"""

import argparse
import json
import pickle
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import av
import cv2
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from camera_rigs import (
    NEGATIVE,
    POSITIVE,
    SOUND_HZ,
    CameraFilm,
    Floats,
    Kind,
    Rig,
    make_rig,
)  # fmt: skip
from samples import analyzed

from curator.matching.clock_evidence import lag_evidence
from curator.matching.clock_series import RATE, ClockSeries, clock_series, series_of
from curator.matching.common_clock import GroupClock, common_clock
from curator.measures.local_change import LocalChange
from curator.models.transnet import HEIGHT, WIDTH, tiny_luma
from curator.stages.analyze.config import AnalyzeConfig

KINDS: tuple[Kind, ...] = (*POSITIVE, "periodic", *NEGATIVE)
CUES = {
    "all": ("light", "motion", "sound"), "light": ("light",), "motion": ("motion",),
    "sound": ("sound",), "stored before": ("light", "sound"),
}  # fmt: skip
CLIP_S, EVERY_S = 5.0, 2.5
TICKS = 90_000
AUDIO_HZ = 16_000


@dataclass(frozen=True, kw_only=True)
class Source:
    """A camera's series, and the truth."""

    name: str
    fps: float
    series: ClockSeries
    shown_s: Floats
    true_s: Floats
    offset_s: float
    n_drops: int


@dataclass(frozen=True, kw_only=True)
class Group:
    """The sources of a rig."""

    seed: int
    kind: Kind
    is_one: bool
    sources: list[Source]
    cpu_s: float
    """Of rendering and measuring."""


def _source(film: CameraFilm, series: ClockSeries) -> Source:
    return Source(
        name=film.name, fps=film.fps, series=series, shown_s=film.shown_s - film.shown_s[0],
        true_s=film.true_s, offset_s=film.offset_s, n_drops=len(film.drops),
    )  # fmt: skip


def measured_frames(film: CameraFilm) -> ClockSeries:
    """Measures a camera's frames as the analysis does, without a file."""
    change, luma = LocalChange(), []
    for picture in film.frames():
        tiny = cv2.resize(picture, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
        rgb = np.repeat(tiny[:, :, None], 3, axis=2).astype(np.uint8)
        change.push(rgb)
        luma.append(tiny_luma(rgb)[0])
    shown_s = film.shown_s - film.shown_s[0]
    return series_of(
        shown_s,
        duration_s=float(shown_s[-1]) + 1 / film.fps,
        luma_F=np.array(luma, np.float32),
        change_F=change.finish(),
        level_A=np.zeros(0) if film.sound_db is None else film.sound_db,
        first_level_s=-float(film.shown_s[0]),
    )


def write_film(path: Path, film: CameraFilm, rng: np.random.Generator) -> None:
    """Writes a camera's film as H.264, with its sound as AAC."""
    packets: list[Any] = []
    with av.open(str(path), "w") as container:
        rate = Fraction(film.fps).limit_denominator(1001)
        video = cast(Any, container.add_stream("libx264", rate=rate))
        frames = film.frames()
        first = next(frames)
        video.height, video.width = first.shape
        video.pix_fmt = "yuv420p"
        video.codec_context.options = {"preset": "veryfast", "crf": str(rng.integers(20, 32))}
        video.codec_context.time_base = Fraction(1, TICKS)
        video.codec_context.thread_count = 1
        audio = None
        if film.sound is not None:
            audio = cast(Any, container.add_stream("aac", rate=AUDIO_HZ, layout="mono"))
        for number, picture in enumerate([first, *frames]):
            gray = np.ascontiguousarray(picture)
            frame = av.VideoFrame.from_ndarray(gray, format="gray").reformat(format="yuv420p")
            frame.pts, frame.time_base = round(film.shown_s[number] * TICKS), Fraction(1, TICKS)
            packets += video.encode(frame)
        packets += video.encode(None)
        if audio is not None:
            wave = _wave(film, rng)
            for begin in range(0, len(wave), 1024):
                part = wave[None, begin : begin + 1024]
                frame_a = av.AudioFrame.from_ndarray(part, format="fltp", layout="mono")
                frame_a.sample_rate, frame_a.pts = AUDIO_HZ, begin
                frame_a.time_base = Fraction(1, AUDIO_HZ)
                packets += audio.encode(frame_a)
            packets += audio.encode(None)
        for packet in sorted(packets, key=lambda p: float(p.dts * p.time_base)):
            container.mux(packet)


def _wave(film: CameraFilm, rng: np.random.Generator) -> NDArray[np.float32]:
    assert film.sound is not None
    own_s = np.arange(int(film.shown_s[-1] * AUDIO_HZ)) / AUDIO_HZ
    coarse_s = np.arange(0, film.shown_s[-1] + 0.01, 1 / SOUND_HZ)
    power = film.sound.power(film.offset_s + coarse_s * (1 + film.drift))
    carrier = np.convolve(rng.normal(size=len(own_s)), [0.5, 0.5, 0.3, 0.2], "same")
    wave = carrier * np.sqrt(np.interp(own_s, coarse_s, power)) * 0.2
    return np.clip(wave, -1, 1).astype(np.float32)


def measured_film(film: CameraFilm, folder: Path, seed: int) -> ClockSeries:
    """Writes and analyzes a camera's film."""
    path = folder / "film.mp4"
    write_film(path, film, np.random.default_rng(seed))
    track = analyzed(path, config=AnalyzeConfig(activity=True, text=False, scenes=False))
    path.unlink()
    return clock_series(track)


def measured_rig(rig: Rig, *, as_films: bool) -> Group:
    """Measures the cameras of a rig."""
    begun_s = time.process_time()
    sources = []
    with tempfile.TemporaryDirectory() as folder:
        for number, film in enumerate(rig.films):
            series = (
                measured_film(film, Path(folder), rig.seed + number)
                if as_films
                else measured_frames(film)
            )
            sources.append(_source(film, series))
    cpu_s = time.process_time() - begun_s
    return Group(seed=rig.seed, kind=rig.kind, is_one=rig.is_one, sources=sources, cpu_s=cpu_s)


def seeds_of(parity: str, groups: int, kinds: Sequence[Kind]) -> Iterator[tuple[int, Kind, float]]:
    """Yields seed, kind and length in seconds of the rigs of a part."""
    for number in range(groups):
        for kind in kinds:
            seed = 2 * (number * len(KINDS) + KINDS.index(kind)) + (parity == "odd")
            yield 100_000 + seed, kind, (40.0, 30.0, 25.0)[number % 3]


def make(options: argparse.Namespace, *, as_films: bool) -> None:
    """Measures the rigs that are not stored yet."""
    options.folder.mkdir(parents=True, exist_ok=True)
    cv2.setNumThreads(1)
    for seed, kind, length_s in seeds_of(options.parity, options.groups, options.kinds):
        path = options.folder / f"{seed}_{kind.replace(' ', '-')}.pickle"
        if path.exists():
            continue
        size = (192, 108) if as_films else (64, 36)
        # All pairs of a group without a common event count, so that more cameras are cheaper.
        n_cameras = 4 if kind in NEGATIVE else None
        rig = make_rig(seed, kind, length_s=length_s, size=size, n_cameras=n_cameras)
        path.write_bytes(pickle.dumps(measured_rig(rig, as_films=as_films)))


@dataclass(kw_only=True)
class Tally:
    """Counts over the pairs of some groups."""

    groups: int = 0
    pairs: int = 0
    accepted: int = 0
    clips: int = 0
    """Clips of accepted pairs."""
    used: int = 0
    right: int = 0
    right_of_faster: int = 0
    """Used clips within half a frame of the faster camera."""
    wrong: int = 0
    """Used clips off by more than a frame, or of cameras that share no event."""
    covered: int = 0
    """Used clips whose error is at most their residual."""
    wrong_pairs: int = 0
    cpu_s: float = 0.0
    pair_hours: float = 0.0


def with_cues(series: ClockSeries, cues: Sequence[str]) -> ClockSeries:
    """Returns the series with some of its cues."""
    return replace(series, values={n: v for n, v in series.values.items() if n in cues})


def share_event(group: Group, a: Source, b: Source) -> bool:
    """Returns whether two sources recorded one event, within the bounds of clocks."""
    if group.kind == "too late":
        return abs(a.offset_s - b.offset_s) <= 2.0
    return group.is_one


@dataclass(frozen=True, kw_only=True)
class Aligned:
    """A group and its clocks."""

    group: Group
    found: GroupClock
    cpu_s: float


def aligned(groups: Sequence[Group], cues: Sequence[str]) -> list[Aligned]:
    """Aligns groups by some cues."""
    made = []
    for group in groups:
        begun_s = time.process_time()
        found = common_clock({s.name: with_cues(s.series, cues) for s in group.sources})
        made.append(Aligned(group=group, found=found, cpu_s=time.process_time() - begun_s))
    return made


def tally(groups: Sequence[Aligned], *, sharing: bool) -> Tally:
    """Counts pairs that share an event, or that do not."""
    total = Tally()
    for one in groups:
        total.cpu_s += one.cpu_s
        total.groups += 1
        for a, b in combinations(one.group.sources, 2):
            total.pair_hours += min(a.series.duration_s, b.series.duration_s) / 3600
            shares = share_event(one.group, a, b)
            if shares is sharing:
                total.pairs += 1
                if a.name in one.found.clocks and b.name in one.found.clocks:
                    total.accepted += 1
                    _count_clips(total, one.found, a, b, shares)
    return total


def _count_clips(total: Tally, found: GroupClock, a: Source, b: Source, shares: bool) -> None:
    clock_a, clock_b = found.clocks[a.name], found.clocks[b.name]
    slower_s, faster_s = 1 / min(a.fps, b.fps), 1 / max(a.fps, b.fps)
    n_wrong = total.wrong
    for begin_s in np.arange(0, a.shown_s[-1] - CLIP_S, EVERY_S):
        inside = (a.shown_s >= begin_s) & (a.shown_s <= begin_s + CLIP_S)
        true_s, shown_s = a.true_s[inside], a.shown_s[inside]
        if len(true_s) < 2 or true_s[0] < b.true_s[0] or true_s[-1] > b.true_s[-1]:
            continue
        total.clips += 1
        found_s = clock_b.source_s(clock_a.common_s(shown_s))
        residual_s = float(
            np.hypot(
                clock_a.residual_at(float(shown_s[0]), float(shown_s[-1])),
                clock_b.residual_at(float(found_s[0]), float(found_s[-1])),
            )
        )
        if not residual_s <= slower_s / 2:
            continue
        total.used += 1
        off_s = np.abs(found_s - np.interp(true_s, b.true_s, b.shown_s)).max()
        error_s = float(off_s) if shares else np.inf
        total.right += error_s <= slower_s / 2
        total.right_of_faster += error_s <= faster_s / 2
        total.wrong += error_s > slower_s
        total.covered += error_s <= residual_s
    total.wrong_pairs += total.wrong > n_wrong or not shares


def row(name: str, of: Tally) -> str:
    """Returns a row of a table."""
    used = max(1, of.used)
    return (
        f"| {name} | {of.groups} | {of.pairs} | {of.accepted} | {of.wrong_pairs} | {of.clips} | "
        f"{of.used} | {of.right / used:.1%} | {of.right_of_faster / used:.1%} | "
        f"{of.wrong / used:.2%} | {of.covered / used:.1%} |"
    )


HEAD = (
    "| {} | groups | pairs | accepted | wrong | clips of accepted pairs | used | within half a "
    "frame of the slower | of the faster | off by more than a frame | error within residual |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def stranger_pairs(groups: Sequence[Group], n: int, seed: int = 1) -> Tally:
    """Aligns sources of different groups, which share no event."""
    rng = np.random.default_rng(seed)
    total = Tally()
    while total.pairs < n:
        first, second = rng.choice(len(groups), 2, replace=False)
        a, b = (groups[k].sources[rng.integers(len(groups[k].sources))] for k in (first, second))
        found = common_clock({"a": a.series, "b": b.series})
        total.pairs += 1
        total.accepted += len(found.clocks) == 2
        total.wrong_pairs += len(found.clocks) == 2
    return total


def score(options: argparse.Namespace) -> None:
    """Prints tables."""
    paths = sorted(options.folder.glob("*.pickle"))
    groups: list[Group] = [pickle.loads(path.read_bytes()) for path in paths]
    groups = [group for group in groups if group.kind in options.kinds]
    facts: dict[str, Mapping[str, object]] = {}

    def report(name: str, made: Sequence[Aligned], *, sharing: bool) -> None:
        if made:
            one = tally(made, sharing=sharing)
            print(row(name, one), flush=True)
            facts[name] = asdict(one)

    made: list[Aligned] = []
    print(HEAD.format("cameras share"))
    for kind in (*POSITIVE, "periodic"):
        own = aligned([g for g in groups if g.kind == kind], CUES["all"])
        report(kind, own, sharing=True)
        made += own if kind in POSITIVE else []
    report("any of the first five", made, sharing=True)
    steady = [one for one in made if not any(s.n_drops for s in one.group.sources)]
    report("of these, no camera lost frames", steady, sharing=True)
    report("of these, one did", [one for one in made if one not in steady], sharing=True)
    print("\n" + HEAD.format("cameras share nothing"))
    for kind in NEGATIVE:
        own = aligned([g for g in groups if g.kind == kind], CUES["all"])
        report(kind, own, sharing=False)
    shared = [g for kind in POSITIVE for g in groups if g.kind == kind]
    few = shared[:: max(1, len(shared) // max(1, options.cue_groups))]
    print("\n" + HEAD.format("cue"))
    for name, cues in CUES.items():
        report(f"cue {name}", aligned(few, cues), sharing=True)
    if options.strangers:
        strangers = stranger_pairs(shared, options.strangers)
        print(f"\npairs of different groups: {strangers.pairs}, accepted {strangers.accepted}")
        facts["strangers"] = asdict(strangers)
    print(json.dumps(facts))


def cost() -> None:
    """Prints the CPU time of a pair of an hour, and of `LocalChange` per frame."""
    rng = np.random.default_rng(0)
    n = int(3600 * RATE)
    shared = rng.normal(size=n)
    series = [
        ClockSeries(
            duration_s=3600.0, frame_s=1 / 30,
            values={name: shared + rng.normal(size=n) for name in CUES["all"]},
        )
        for _ in "ab"
    ]  # fmt: skip
    begun_s = time.process_time()
    lag_evidence(*series, start_s=(0.0, 0.0), max_offset_s=2.0, max_drift=1e-4)
    pair_s = time.process_time() - begun_s
    frames = rng.integers(0, 256, (64, HEIGHT, WIDTH, 3), dtype=np.uint8)
    change = LocalChange()
    begun_s = time.process_time()
    for _ in range(50):
        for frame in frames:
            change.push(frame)
    frame_s = (time.process_time() - begun_s) / (50 * len(frames))
    print(f"{pair_s:.2f} CPU-seconds per pair of an hour, {frame_s * 1e6:.0f} us per frame")
    print(json.dumps({"pair_hour_cpu_s": pair_s, "local_change_cpu_s": frame_s}))


def main() -> None:
    """Runs a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("made", "films"):
        making = commands.add_parser(name)
        making.add_argument("folder", type=Path)
        making.add_argument("--parity", choices=("even", "odd"), default="even")
        making.add_argument("--groups", type=int, default=4, help="of each kind")
        making.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    scoring = commands.add_parser("score")
    scoring.add_argument("folder", type=Path)
    scoring.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    scoring.add_argument("--strangers", type=int, default=0, help="pairs of different groups")
    scoring.add_argument("--cue-groups", type=int, default=40, help="about so many, by each cue")
    commands.add_parser("cost")
    options = parser.parse_args()
    if options.command == "score":
        score(options)
    elif options.command == "cost":
        cost()
    else:
        make(options, as_films=options.command == "films")


if __name__ == "__main__":
    main()
