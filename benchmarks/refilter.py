"""What it costs to judge all clips of a corpus again with other bounds.

Candidates with scores, vectors and thumbnails are made as a run would have stored them, then
everything of a rerun between the listing and the cut is timed, in CPU-seconds of this process with
one thread: reading the candidates, judging them by the rules of a recipe with three bounds by
quantile and two flags, the rows that later stages take, captions, the plan of shards, funnel,
tables, summary and report. The search for duplicates is timed apart, and so is `curate tune`.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa
from measure import machine

if TYPE_CHECKING:
    from curator.recipe import Recipe
    from curator.tables.clip_rows import ClipRows

pa.set_cpu_count(1)
pa.set_io_thread_count(1)

RUNS = 5
OTHER_BOUNDS = [
    "filters.motion.min=0.02",
    "filters.sharpness.drop_lowest=0.15",
    "filters.bits_per_pixel.drop_lowest=0.05",
    "filters.noise={drop_highest: 0.1, severity: flag}",
    "filters.grainy={score: noise, max: 2, severity: flag}",
]


def made_clips(n: int) -> pa.Table:
    """Candidates whose scores are spread about as in footage; some are absent, some too short."""
    from made_out import candidates_table

    rng = np.random.default_rng(0)
    noise = rng.gamma(2.0, 0.8, n)
    motion = [None if gap else float(v) for gap, v in zip(
        rng.random(n) < 0.01, rng.lognormal(-2.5, 1.2, n), strict=True)]  # fmt: skip
    return candidates_table(
        n,
        motion=motion,
        noise=noise,
        sharpness=rng.beta(2.0, 3.0, n),
        luma=rng.beta(4.0, 4.0, n),
        contrast=rng.beta(3.0, 6.0, n) / 2,
        clipped_fraction=rng.beta(1.0, 20.0, n),
        bits_per_pixel=rng.lognormal(-3.0, 0.7, n),
        aspect=[16 / 9] * n,
        short_side_px=[720.0] * n,
        measured_fps=[30.0] * n,
        hdr=[0.0] * n,
        corrupt_fraction=[0.0] * n,
        camera_motion=rng.lognormal(-3.0, 1.2, n),
        camera_jitter=rng.lognormal(-4.0, 1.0, n),
        black_fraction=[0.0] * n,
        frozen_fraction=[0.0] * n,
        content_area=[1.0] * n,
        blocking=rng.gamma(1.0, 0.2, n),
        combing=[0.0] * n,
        seconds=np.where(rng.random(n) < 0.05, 1.0, 5.0),
    )


class Clock:
    """CPU-seconds by what they went into."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Times a block."""
        begun = time.process_time()
        yield
        self.spent.setdefault(name, []).append(time.process_time() - begun)

    def medians(self) -> dict[str, float]:
        """Median of each."""
        return {name: round(median(values), 3) for name, values in self.spent.items()}


def main() -> None:
    """Runs the measurement; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--dedup", action="store_true", help="time the search for duplicates too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), options.clips, options.runs, dedup=options.dedup)
    print(json.dumps(result | machine()))


def plan_all(rows: "ClipRows", recipe: "Recipe") -> None:
    """Plans shards as if the clips that are kept had been written, 2 MB each, and indexes them."""
    from curator.stages.shard.sample_plan import place_samples, plan_samples
    from curator.stages.shard.shard_index import Shard, ShardFacts, set_files
    from curator.stages.shard.shard_plan import plan_shards, tar_layout
    from curator.tables.clip_locations import Location

    kept = rows.kept()
    for row in kept:
        row.cut_mode, row.audio = "copy", "none"
        row.mp4_bytes, row.mp4_sha256 = 2_000_000, "0" * 64
    where = Location(name="shards/old.tar", offset=0, n_bytes=2_000_000)
    locations = {row.clip_id: where for row in kept}
    shards = []
    for plan in plan_shards(plan_samples(rows, locations, recipe.shard), recipe.shard):
        layout = tar_layout(plan)
        facts = ShardFacts(bytes=layout.n_bytes, sha256="", md5="", idx_sha256="", meta_sha256="")
        shards.append(Shard(plan=plan, layout=layout, facts=facts))
    place_samples([(shard.plan, shard.layout) for shard in shards], rows)
    set_files(shards, seed=0, stamp="0", made_by="")


def measure(folder: Path, n: int, runs: int, *, dedup: bool) -> dict[str, object]:
    """Makes an output root, and times reruns over it."""
    from made_out import candidates_stamp, finish_rows, made_out

    from curator.executor.corpus_work import CorpusWork
    from curator.pipeline import graph_of
    from curator.recipe import load_recipe, with_changes
    from curator.review.bound_tuning import summary_lines, tune
    from curator.review.finished_run import open_finished
    from curator.review.tune_page import render_tune
    from curator.runs.corpus import Corpus, DecidedClips
    from curator.stages.caption.measured_caption import measured_captions
    from curator.stages.dedup.stage import DedupStage
    from curator.stages.propose.candidate_store import Candidates
    from curator.storage import open_store
    from curator.tables.corpus_tables import CorpusTables

    recipe = with_changes(load_recipe("quickstart"), ["dedup.enabled=false"])
    clips = made_clips(n)
    made_out(folder / "out", clips, recipe)
    store = open_store(str(folder / "out"))
    flagged = with_changes(recipe, OTHER_BOUNDS)
    uris = dict(zip(clips["source_id"].to_pylist(), clips["source_uri"].to_pylist(), strict=True))
    clock = Clock()
    for _ in range(runs):
        with clock.of("all"):
            with clock.of("read candidates"):
                candidates = Candidates(store, candidates_stamp(flagged), has_clip=False)
                corpus = Corpus(lambda clips: clips, 4 << 30)
                for stored in candidates.load(uris):
                    corpus.add(stored)
            with clock.of("judge"):
                corpus.decide(graph_of(flagged)["filter"], CorpusWork("filter"))
            rows = corpus.rows
            with clock.of("captions and plan of shards"):
                measured_captions(rows, flagged.caption)
                plan_all(rows, flagged)
            with clock.of("tables, summary, report"):
                summary = finish_rows(
                    store, flagged, candidates, corpus.decided, corpus.vectors["embeddings"]
                )
    if dedup:
        exact = with_changes(flagged, ["dedup.enabled=true"]).dedup
        kept = rows.kept_numbers()
        # As a run with other bounds would have left them: 3 of 100 of these clips are new now.
        earlier = [row for number, row in enumerate(kept) if number % 100 >= 3]
        for name, compared in (("all new", earlier), ("3% new", kept), ("none new", kept)):
            copies = rows.take(compared)
            with clock.of(f"duplicates, {name}"):
                again = DecidedClips(
                    copies,
                    4 << 30,
                    vectors=corpus.vectors.__getitem__,
                    tables=CorpusTables(store, candidates.stamp),
                )
                again.decide(DedupStage(exact), CorpusWork("dedup"))
    for _ in range(runs):
        with clock.of("curate tune"):
            tuned = tune(open_finished(str(folder / "out")), ["motion.min=0.05"])
            render_tune(tuned)
            lines = summary_lines(tuned)
    spent = clock.medians()
    print(f"{n:,} clips, {summary['counts']['kept']:,} kept; CPU-seconds, median of {runs}:")
    for name, seconds in spent.items():
        print(f"  {name:<28}{seconds:>8.2f}")
    print("\n".join(lines))
    return {"clips": n, "kept": summary["counts"]["kept"], "runs": runs, "cpu_s": spent}


if __name__ == "__main__":
    import sys

    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    main()
