"""Learns `suitability` from synthetic marks, and measures it on recordings without marks.

    python benchmarks/learn.py [OUT...] [--seeds N] [--flips SHARE]

A rule of three scores makes the marks. Each score has a bound at a quantile of the corpus; a clip
inside all three bounds is kept. A tenth of the marks is flipped. The scores come from a synthetic
corpus, in which they depend on each other and on the recording, or from the finished runs OUT. A
model learns from N marks in half of the recordings. It is scored on all clips of the other half: by
the rule itself (clean), and by marks with as many flips (noisy).

Prints a table for people, then JSON. benchmarks/results/learn.md has results.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.measures.score_list import SCORES
from curator.tools.review.finished_run import open_finished
from curator.tools.review.score_learning import (
    LEAST_LIKELY,
    MarkedScores,
    RankGrid,
    auc,
    calibration_error,
    learn,
)

Floats = NDArray[np.float64]
N_MARKS = (50, 100, 200, 500)
N_RECORDINGS, CLIPS_PER_RECORDING = 1200, 10
N_SCORES, N_FACTORS, N_COMPONENTS = 40, 6, 8


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Scores of clips [N, S], components of vectors [N, K], both float64, and recordings [N]."""

    names: tuple[str, ...]
    scores: Floats
    vectors: Floats
    recordings: NDArray[np.int64]


def made_corpus(rng: np.random.Generator) -> Corpus:
    """Makes scores of many distributions from a few factors that recordings share.

    About a third of a score's variance comes from the recording, a third from the clip's factors,
    and a third is independent. Some scores are zero for most clips, like text areas, or rounded.
    """
    n = N_RECORDINGS * CLIPS_PER_RECORDING
    recordings = np.repeat(np.arange(N_RECORDINGS), CLIPS_PER_RECORDING)
    of_recording = rng.standard_normal((N_RECORDINGS, N_FACTORS))[recordings]
    factors = 0.7 * of_recording + 0.7 * rng.standard_normal((n, N_FACTORS))
    loadings = rng.standard_normal((N_FACTORS, N_SCORES))
    loadings *= rng.choice([0.2, 1], (N_FACTORS, N_SCORES))
    own = rng.standard_normal((n, N_SCORES))
    plain = factors @ loadings
    plain = 0.8 * plain / plain.std(axis=0) + 0.6 * own
    for column in range(N_SCORES):
        values = plain[:, column]
        match column % 5:
            case 1:
                plain[:, column] = np.exp(values)
            case 2:
                plain[:, column] = np.maximum(0, values - 0.8)
            case 3:
                plain[:, column] = np.round(1 / (1 + np.exp(-values)), 2)
            case 4:
                plain[:, column] = values**3
    directions = rng.standard_normal((N_FACTORS, N_COMPONENTS))
    vectors = factors @ directions + rng.standard_normal((n, N_COMPONENTS))
    vectors = vectors / vectors.std(axis=0)
    names = tuple(f"score_{column}" for column in range(N_SCORES))
    return Corpus(names=names, scores=plain, vectors=vectors, recordings=recordings)


def corpus_of(outs: Sequence[str]) -> Corpus:
    """Returns clips of finished runs with the scores that nearly all clips have."""
    tables = []
    for out in outs:
        clips = open_finished(out).clips
        tables.append(clips.select(["source_id", *(n for n in SCORES if n in clips.column_names)]))
    clips = pa.concat_tables(tables)
    scores, names = [], []
    for name in clips.column_names[1:]:
        values = clips[name].cast(pa.float64()).to_numpy()
        if np.isfinite(values).mean() > 0.95 and len(np.unique(values[np.isfinite(values)])) > 20:
            scores.append(values)
            names.append(name)
    matrix = np.stack(scores, axis=1)
    is_whole = np.isfinite(matrix).all(axis=1)
    _, recordings = np.unique(np.array(clips["source_id"].to_pylist()), return_inverse=True)
    matrix = matrix[is_whole]
    none = np.zeros((len(matrix), 0))
    return Corpus(names=tuple(names), scores=matrix, vectors=none, recordings=recordings[is_whole])


def rule(corpus: Corpus, n_scores: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Returns whether each clip is inside the bounds of `n_scores` scores.

    The bounds together keep about half of the clips.
    """
    most, least = 1 - 0.4 ** (1 / n_scores), 1 - 0.6 ** (1 / n_scores)
    bounds: list[NDArray[np.bool_]] = []
    for column in rng.permutation(len(corpus.names)).tolist():
        values = corpus.scores[:, column]
        share = rng.uniform(least, most)
        is_low = rng.random() < 0.5
        bound = np.quantile(values, share if is_low else 1 - share)
        is_inside = values >= bound if is_low else values <= bound
        # If most values are equal, a bound may exclude nothing, or nearly everything.
        if 0.75 * least <= 1 - is_inside.mean() <= 1.25 * most:
            bounds.append(is_inside)
    is_kept: NDArray[np.bool_] = np.all(bounds[:n_scores], axis=0)
    return is_kept


def flipped(labels: NDArray[np.bool_], share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Returns labels with a share of them inverted."""
    other: NDArray[np.bool_] = labels ^ (rng.random(len(labels)) < share)
    return other


def one_run(
    corpus: Corpus, n_marks: int, seed: int, flips: float, n_scores: int
) -> dict[str, float]:
    """Learns from marks in half of the recordings; returns measures on the other half."""
    rng = np.random.default_rng([seed, n_marks])
    clean = rule(corpus, n_scores, np.random.default_rng([seed, 7]))
    noisy = flipped(clean, flips, rng)
    half = rng.permutation(np.unique(corpus.recordings))
    is_held = np.isin(corpus.recordings, half[: len(half) // 2])
    train = rng.permutation(np.flatnonzero(~is_held))[:n_marks]
    held = np.flatnonzero(is_held)
    both = np.hstack([corpus.scores, corpus.vectors])
    columns = [RankGrid.of(column).rank(column) for column in both.T]
    ranks = np.stack(columns, axis=1)

    def some(rows: NDArray[np.int64]) -> MarkedScores:
        return MarkedScores(
            names=(*corpus.names, *(f"scene_{k}" for k in range(corpus.vectors.shape[1]))),
            n_scores=len(corpus.names),
            ranks_NC=ranks[rows],
            is_kept=noisy[rows],
            recordings=corpus.recordings[rows],
        )

    begun = time.monotonic()
    learned = learn(some(train))
    seconds = time.monotonic() - begun
    probability = learned.fitted.probability(ranks[held])
    single = corpus.scores[held, corpus.names.index(learned.single)]
    singles = [auc(single, labels) for labels in (clean[held], noisy[held])]
    return {
        "auc_clean": auc(probability, clean[held]),
        "auc_noisy": auc(probability, noisy[held]),
        "single_clean": max(singles[0], 1 - singles[0]),
        "single_noisy": max(singles[1], 1 - singles[1]),
        "ece": calibration_error(probability, noisy[held]),
        "said_auc": learned.auc[0],
        "said_ece": learned.calibration_error,
        "holds": float(learned.auc[1] <= auc(probability, noisy[held]) <= learned.auc[2]),
        "accepted": float(learned.likely >= LEAST_LIKELY),
        "likely": learned.likely,
        "seconds": seconds,
    }


def main() -> None:
    """Measures, and prints a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("outs", nargs="*", metavar="OUT")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--scores", type=int, default=3, help="number of scores in the rule")
    parser.add_argument("--flips", type=float, default=0.1)
    options = parser.parse_args()
    results = []
    print("marks  seed count  AUC clean  single  AUC noisy  single   ECE (p90)  accepted  wins")
    for n_marks in N_MARKS:
        rows = []
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            rng = np.random.default_rng([seed, 1])
            corpus = corpus_of(options.outs) if options.outs else made_corpus(rng)
            if len(corpus.scores) >= 2.5 * n_marks:
                rows.append(one_run(corpus, n_marks, seed, options.flips, options.scores))
        if not rows:
            continue
        mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        wins = sum(row["auc_clean"] > row["single_clean"] for row in rows)
        ece_90 = float(np.quantile([row["ece"] for row in rows], 0.9))
        print(
            f"{n_marks:5d}  {len(rows):10d}  {mean['auc_clean']:9.3f}  {mean['single_clean']:6.3f}"
            f"  {mean['auc_noisy']:9.3f}  {mean['single_noisy']:6.3f}"
            f"  {mean['ece']:.3f} ({ece_90:.3f})  {mean['accepted']:8.0%}  {wins}/{len(rows)}"
        )
        results.append(
            {"marks": n_marks, "seeds": len(rows), "wins": wins, "ece_90": ece_90, **mean}
        )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
