"""How well does the end time hold? Simulated runs of mixed corpora, and records of real runs.

    python benchmarks/end_times.py --set tune|blind [--as-before]
    python benchmarks/end_times.py STATES.json ...

A simulated run draws what each source and clip costs from measured costs and deviations
(`results/end_times.md`), lets workers take them in turn, and tells the progress what real workers
would tell. The estimate knows no drawn cost. `plan.py --record STATES.json run ...` records a run.
"""

import argparse
import io
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import curator.executor.progress as module
from curator.executor.end_time import Expected
from curator.pipeline import graph_of
from curator.recipe import Recipe
from curator.records.sources import SourceRef
from curator.stages.cut.cut_driver import CLIP_S, ForeseenCut, encode_s, typical_cut_s

POINTS = (1 / 3, 1 / 2, 2 / 3, 5 / 6)
SIZES = {(640, 360): 2, (1280, 720): 4, (1920, 1080): 5, (3840, 2160): 1}
CODECS = {"h264": 1.0, "hevc": 1.0, "vp9": 1.1, "mpeg4": 0.4, "av1": 1.5}
"""Cost of decoding a frame, relative to H.264."""
SEGMENT_S = 240.0


@dataclass(slots=True)
class Job:
    """A source, a segment or a clip: seconds of a worker, and what the progress counts."""

    cost_s: float
    video_s: float
    work_s: float
    spent_s: float = 0.0
    seen: tuple[str, float, int, bool, bool] = ("", 0.0, 0, False, False)
    """Of a clip, what `ForeseenCut.add` gets."""


def source_of(chance: random.Random, number: int, codec: str, median_s: float) -> SourceRef:
    """Draws a source."""
    seconds = min(3600.0, median_s * math.exp(chance.gauss(0, 0.9)))
    width, height = chance.choices(list(SIZES), list(SIZES.values()))[0]
    return SourceRef(
        uri=str(number), n_bytes=1, version="", header_duration_s=seconds, codec=codec,
        header_n_frames=round(seconds * chance.choice((24, 25, 30, 30, 60))),
        n_pixels=width * height,
    )  # fmt: skip


class Simulated:
    """A simulated run; `states` are those of its progress, a few hundred.

    `as_before` tells the progress finished units only, and no work of the cut.
    """

    def __init__(self, seed: str, *, as_before: bool) -> None:
        chance = self.chance = random.Random(seed)
        self.now, self.step_s, self.load, self.as_before = 0.0, 0.5, 0.0, as_before
        self.states: list[dict[str, Any]] = []
        vars(module)["time"] = self
        self.progress = module.Progress(io.StringIO(), live=False)
        steps = graph_of(Recipe()).steps()
        typical = Expected.typical(steps)
        self.progress.expect(Expected(seconds=typical.seconds) if as_before else typical, steps)
        self.workers, n_sources = (
            chance.choice((1, 2, 2, 8)),
            round(math.exp(chance.uniform(1.6, 5))),
        )
        self.core_s, median_s = chance.uniform(0.3, 0.7), math.exp(chance.uniform(2.3, 5.5))
        self.kept, self.survive = chance.betavariate(1, 1), chance.uniform(0.7, 1)
        self.copying, self.encodes_all = chance.random(), chance.random() < 0.25
        foreign = chance.choice((0.0, 0.2, 0.8))
        codecs = (
            "h264" if chance.random() > foreign else chance.choice(list(CODECS))
            for _ in range(n_sources)
        )
        sources = [source_of(chance, n, codec, median_s) for n, codec in enumerate(codecs)]
        self.run(sorted(sources, key=lambda source: -source.weight))

    def monotonic(self) -> float:
        """Replaces the clock of the progress."""
        return self.now

    def analysis(self, source: SourceRef) -> list[Job]:
        """Draws the cost of a source; returns its segments."""
        seconds, size = source.header_duration_s or 0.0, (source.n_pixels or 0) / (1920 * 1080)
        per_frame = (0.25 + (0.36 * CODECS[source.codec or ""] + 0.08) * size) / 25
        cost_s = self.core_s * (per_frame * source.weight + 0.31 * seconds) * self.noise(0.15)
        n = math.ceil(seconds / SEGMENT_S)
        return [Job(cost_s / n, seconds / n, source.analysis_s / n) for _ in range(n)]

    def clips(self, source: SourceRef) -> list[Job]:
        """Draws the clips of a source that the rules keep."""
        chance, seconds, pixels = self.chance, source.header_duration_s or 0.0, source.n_pixels or 0
        may_copy = source.codec == "h264" and not self.encodes_all
        has_keys, look = chance.random() < self.copying, self.noise(0.4)
        kept, at_s, clips = self.kept * self.noise(0.6), 0.0, list[Job]()
        while at_s < seconds:
            clip_s = min(10.0, 2 + chance.expovariate(1 / 4))
            at_s += clip_s
            if chance.random() < kept:
                frames = clip_s * source.weight / seconds
                again = 1.8 if chance.random() < 0.15 else 1.0
                encode = 0.08 * frames * pixels / (1920 * 1080) * look * again * self.noise(0.3)
                copies = has_keys if chance.random() < 0.9 else not has_keys
                # One in ten is refused, or has key frames, against what its key frames say.
                is_copy = may_copy and (copies if chance.random() < 0.9 else False)
                cost_s = 0.1 if is_copy else 0.2 + self.core_s * encode
                clips.append(
                    Job(cost_s, clip_s, 0.0, seen=(source.uri, frames, pixels, may_copy, copies))
                )
        return clips

    def noise(self, deviation: float) -> float:
        return math.exp(self.chance.gauss(0, deviation))

    def passed(self) -> float:
        """Lets time pass; returns the time that a worker has in it, because the load varies."""
        self.now += self.step_s
        memory = math.exp(-self.step_s / 30)
        self.load = memory * self.load + self.chance.gauss(0, 0.15 * math.sqrt(1 - memory**2))
        self.states.append(self.progress.state())
        return self.step_s * math.exp(self.load)

    def idle(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.passed()

    def work(self, jobs: Sequence[Job]) -> Iterator[Job]:
        """Lets workers do jobs; yields them as they end."""
        waiting, busy, ended = list(jobs), list[Job](), list[Job]()
        while waiting or busy:
            left_s = self.passed()
            for number in range(self.workers):
                free_s = left_s
                while free_s > 0 and (len(busy) > number or waiting):
                    if len(busy) <= number:
                        busy.append(waiting.pop(0))
                    job = busy[number]
                    used_s = min(free_s, job.cost_s - job.spent_s)
                    job.spent_s, free_s = job.spent_s + used_s, free_s - used_s
                    if job.spent_s >= job.cost_s:
                        ended.append(busy.pop(number))
                        yield job
                        if waiting:
                            busy.insert(number, waiting.pop(0))
                        else:
                            break
            parts = [(1.0, job) for job in ended]
            parts += [] if self.as_before else [(job.spent_s / job.cost_s, job) for job in busy]
            sums = (sum(p * getattr(j, name) for p, j in parts) for name in ("video_s", "work_s"))
            self.progress._work.note(len(ended), *sums)

    def typical_s(self, source: SourceRef) -> float:
        may_copy = source.codec == "h264" and not self.encodes_all
        return typical_cut_s(source, source.n_pixels or 0, may_copy=may_copy)

    def see(self, seen: ForeseenCut, source: SourceRef, clips: Sequence[Job]) -> None:
        """Foresees the work of the cut, as the driver does when a source is proposed."""
        if self.as_before or not seen.wants_more:
            return
        for clip in clips:
            uri, n_frames, n_pixels, may_copy, copies = clip.seen
            seen.add(uri, n_frames, n_pixels, may_copy=may_copy, encoded=1.0 - copies)
        seen.n_seen += 1 + len(clips)
        seen.seen_s += self.typical_s(source)
        self.progress.foresee("cut", seen.work_s)

    def run(self, sources: Sequence[SourceRef]) -> None:
        """Runs all stages: segments first, then whole sources, longest first."""
        chance, progress = self.chance, self.progress
        found = [(source, self.analysis(source), self.clips(source)) for source in sources]
        jobs = [job for _, parts, _ in found if len(parts) > 1 for job in parts]
        whole = {id(parts[0]): (s, clips) for s, parts, clips in found if len(parts) == 1}
        jobs += [parts[0] for _, parts, _ in found if len(parts) == 1]
        clips = [clip for *_, own in found for clip in own if chance.random() < self.survive]
        self.step_s = max(0.5, sum(job.cost_s for job in (*jobs, *clips)) / self.workers / 400)
        seen = ForeseenCut(sum(map(self.typical_s, sources)), len(sources))
        if not self.as_before:
            progress.foresee("cut", seen.work_s)
        progress.stage("analyze")
        progress.work(len(jobs), sum(j.video_s for j in jobs), work_s=sum(j.work_s for j in jobs))
        self.idle(chance.uniform(2, 5) if self.workers == 1 else chance.uniform(7, 14))
        for job in self.work(jobs):
            if id(job) in whole:
                self.see(seen, *whole[id(job)])
        # Sources in segments are joined at the end.
        for source, parts, own in found:
            if len(parts) > 1:
                self.see(seen, source, own)
        progress.stage("dedup")
        self.idle(0.5 + 0.05 * len(clips))
        progress.stage("cut")
        for clip in clips:
            share = seen.share_of(clip.seen[0]) if clip.seen[3] else 1.0
            clip.work_s = CLIP_S + share * encode_s(*clip.seen[1:3])
        work_s = None if self.as_before else sum(clip.work_s for clip in clips)
        progress.work(len(clips), sum(clip.video_s for clip in clips), work_s=work_s)
        self.idle(chance.uniform(0.5, 3))
        list(self.work(clips))
        progress.stage("shard")
        self.idle(0.5 + 0.005 * len(clips))
        progress.stage("commit")
        self.idle(1 + 0.01 * len(clips))


def errors(states: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Returns the relative errors of the whole and of the remaining time at `POINTS`."""
    whole_s, found = states[-1]["elapsed_s"], []
    for point in POINTS:
        state = min(states, key=lambda s: abs(s["elapsed_s"] - point * whole_s))
        left_s = math.nan if state["left_s"] is None else sum(state["left_s"].values())
        at_s = state["elapsed_s"]
        found.append(((at_s + left_s) / whole_s - 1, left_s / (whole_s - at_s) - 1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", nargs="*", type=Path)
    parser.add_argument("--set", choices=("tune", "blind"), default="tune")
    parser.add_argument("--as-before", action="store_true", help="units alone, typical shares")
    options = parser.parse_args()
    seeds = [] if options.records else [f"{options.set} {number}" for number in range(20)]
    runs = {path.name: json.loads(path.read_text()) for path in options.records}
    runs |= {seed: Simulated(seed, as_before=options.as_before).states for seed in seeds}
    holds = {"whole": 0, "remaining": 0}
    for name, states in runs.items():
        found = errors(states)
        for kind, own in zip(holds, zip(*found, strict=True), strict=True):
            holds[kind] += all(abs(error) <= 0.25 for error in own)
        text = "  ".join(f"{whole:+5.0%} ({left:+5.0%})" for whole, left in found)
        print(f"{name:<10} {states[-1]['elapsed_s']:7.0f} s  {text}")
    print(f"within 25% at all of 1/3, 1/2, 2/3, 5/6 of {len(runs)}: {holds}")


if __name__ == "__main__":
    main()
