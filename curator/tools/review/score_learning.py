"""Learns `suitability` from marks, and compares it with the best single score.

The features are scores, and projections of scene vectors on their principal directions. The model
uses their ranks among all clips of the output, which limits outliers and needs no scales. A feature
adds a piecewise linear function of its rank to the model; an L1 penalty drops most features.

Folds hold out whole recordings: no source has clips in both training and test data. Inner folds
choose and calibrate the model. Outer folds evaluate the model and the best single score, chosen in
the same way. Shape letters: N marks, C columns: scores, then directions.
"""
# ruff: noqa: N803, N806, N815 - shape letters

import importlib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import UsageError
from curator.installation import install_extra
from curator.measures.filtering import score_values
from curator.measures.learned_score import LearnedScore
from curator.measures.score_list import SUITABILITY
from curator.number_text import amount
from curator.recipe import measures_of, stored_measures_of, with_changes
from curator.tables.clip_vectors import StoredVectors
from curator.tables.disk_table import in_blocks
from curator.tables.long_columns import take_rows, take_values
from curator.tables.mark_table import read_marks, utc_now
from curator.tables.out_layout import LEARNED_MODEL
from curator.tools.review.bound_tuning import Tuned, tune
from curator.tools.review.finished_run import Finished

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Interval = tuple[float, float, float]
"""A value, and the low and high end of its 95% interval over recordings."""
LEAST_MARKS, LEAST_RECORDINGS, LEAST_OF_KIND, LEAST_LIKELY = 50, 5, 10, 0.95
# Strengths are inverse weights of the L1 penalty. Source: benchmarks/results/learn.md.
KNOTS, STRENGTHS = (0.25, 0.5, 0.75), (0.3, 1.0, 3.0)
NOISES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2)
_FOLDS, _CALIBRATION_FOLDS, _REPEATS, _RESAMPLES = 5, 10, 3, 1000
_FEW = 1e-6
LEAST_MEASURED = 0.95
"""Least share of clips that must have a score or vector for it to become a feature."""
N_DIRECTIONS, _MOST_DESCRIBED, _N_RANKS = 8, 5_000, 33


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedScores:
    """Marked clips: ranks of features, 0 to 1, verdicts, and numbers of their sources."""

    names: tuple[str, ...]
    n_scores: int
    ranks_NC: Floats
    is_kept: Mask
    recordings: NDArray[np.int64]

    def some(self, rows: NDArray[np.int64]) -> "MarkedScores":
        """Returns the clips with the numbers `rows`."""
        return replace(
            self,
            ranks_NC=self.ranks_NC[rows],
            is_kept=self.is_kept[rows],
            recordings=self.recordings[rows],
        )

    def check(self) -> None:
        """Raises `UsageError` for too few marks, recordings, or marks of either verdict."""
        n_kept, n_all = int(self.is_kept.sum()), len(self.is_kept)
        of_kinds = [len(np.unique(self.recordings[self.is_kept == kind])) for kind in (False, True)]
        n_recordings = len(np.unique(self.recordings))
        is_enough = n_all >= LEAST_MARKS and n_recordings >= LEAST_RECORDINGS
        if not is_enough or min(n_kept, n_all - n_kept) < LEAST_OF_KIND or min(of_kinds) < 2:
            raise UsageError(
                f"{amount(n_all, 'mark')}, {n_kept} keep and {n_all - n_kept} drop, of "
                f"{amount(n_recordings, 'recording')}; expected {LEAST_MARKS} or more, "
                f"{LEAST_OF_KIND} of either kind, of {LEAST_RECORDINGS} recordings, and either "
                "kind in two of them"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A model: `noise + (1 - 2 noise) / (1 + exp(-z))`, z = features @ weights + bias.

    The noise is the share of marks that contradict even a certain prediction.
    """

    has_knots: bool
    n_columns: int
    weights: Floats
    bias: float
    noise: float

    def probability(self, ranks_NC: Floats) -> Floats:
        """Returns the probability that a reviewer keeps each clip, float64 [N]."""
        features = _features(ranks_NC[:, : self.n_columns], self.has_knots)
        return _probability(features @ self.weights + self.bias, self.noise)

    def logits(self, column: int, ranks: Floats) -> Floats:
        """Returns a column's contributions to z at some ranks."""
        own: Floats = self.weights[column :: self.n_columns]
        return _features(ranks[:, None], self.has_knots) @ own


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """A model of all marks, and its quality on held-out recordings.

    Attributes:
        auc: Area under the ROC curve.
        single_auc: The same for the best single score, chosen in each fold.
        gain: `auc` minus `single_auc`.
        likely: Share of resamples of the recordings in which the gain is above 0.
        single: Name of the best single score for all marks.
        calibration_error: Mean distance of probabilities and shares, in bins of equal size.
    """

    fitted: Fitted
    auc: Interval
    single_auc: Interval
    gain: Interval
    likely: float
    single: str
    calibration_error: float


def learn(marked: MarkedScores) -> Learned:
    """Fits and evaluates the model; raises `UsageError` for too few marks."""
    marked.check()
    probability, single = np.zeros((2, len(marked.is_kept)))
    for train, test in _folds(marked, _FOLDS, 0):
        own, held_out = marked.some(train), marked.some(test)
        probability[test] = _chosen(own).probability(held_out.ranks_NC)
        best, sign = _best_single(own)
        ranks = sign * own.ranks_NC[:, best]
        scale, shift, noise = _calibration(ranks, own.is_kept)
        single[test] = _probability(scale * sign * held_out.ranks_NC[:, best] + shift, noise)
    of_both, likely = _intervals(marked, probability, single)
    return Learned(
        fitted=_chosen(marked),
        auc=of_both[0],
        single_auc=of_both[1],
        gain=of_both[2],
        likely=likely,
        single=marked.names[_best_single(marked)[0]],
        calibration_error=calibration_error(probability, marked.is_kept),
    )


def calibration_error(probability: Floats, is_kept: Mask) -> float:
    """Returns the expected calibration error, in bins with equal numbers of clips."""
    n_bins = int(np.clip(len(is_kept) // 25, 2, 10))
    bins = np.array_split(np.argsort(probability, kind="stable"), n_bins)
    return float(sum(abs((probability[b] - is_kept[b]).sum()) for b in bins) / len(is_kept))


def auc(values: Floats, is_kept: Mask) -> float:
    """Returns the area under the ROC curve of values against the verdicts; ties count half."""
    _, at, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[at]
    n_kept = int(is_kept.sum())
    below = ranks[is_kept].sum() - n_kept * (n_kept + 1) / 2
    return float(below / (n_kept * (len(values) - n_kept)))


def _probability(sums: Floats, noise: float) -> Floats:
    probability: Floats = 0.5 + (0.5 - noise) * np.tanh(sums / 2)
    return probability


def _features(ranks_NC: Floats, has_knots: bool) -> Floats:
    """Returns the centred ranks, then the excess of ranks over each knot."""
    knots = KNOTS if has_knots else ()
    return np.hstack([ranks_NC - 0.5, *(np.maximum(0, ranks_NC - knot) for knot in knots)])


def _module(name: str) -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"`curate learn` needs the package scikit-learn: {install_extra('learn')}"
        ) from error


def _folds(
    marked: MarkedScores, n_folds: int, seed: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yields folds of recordings whose training part has both verdicts."""
    n_folds = min(n_folds, len(np.unique(marked.recordings)))
    split = _module("sklearn.model_selection").StratifiedGroupKFold
    with warnings.catch_warnings():
        # scikit-learn warns if fewer recordings than folds have a verdict.
        warnings.simplefilter("ignore", UserWarning)
        folds = split(n_folds, shuffle=True, random_state=seed).split(
            marked.ranks_NC, marked.is_kept, marked.recordings
        )
        for train, test in folds:
            if 0 < marked.is_kept[train].sum() < len(train):
                yield train, test


def _fit(features: Floats, is_kept: Mask, strength: float) -> tuple[Floats, float]:
    model = _module("sklearn.linear_model").LogisticRegression(
        C=strength, l1_ratio=1, solver="liblinear", random_state=0
    )
    model.fit(features, is_kept)
    return model.coef_[0], float(model.intercept_[0])


def _chosen(marked: MarkedScores) -> Fitted:
    """Returns the model with the least loss on held-out recordings, calibrated on these."""
    widths = sorted({marked.n_scores, len(marked.names)})
    losses = {}
    for form in product((False, True), widths, STRENGTHS):
        sums, is_kept = _held_out(marked, form, [0], _FOLDS)
        scale, shift, noise = _calibration(sums, is_kept)
        losses[form] = _loss(_probability(scale * sums + shift, noise), is_kept)
    best = min(losses, key=losses.__getitem__)
    held_out = _held_out(marked, best, range(_REPEATS), _CALIBRATION_FOLDS)
    scale, shift, noise = _calibration(*held_out)
    has_knots, n_columns, strength = best
    features = _features(marked.ranks_NC[:, :n_columns], has_knots)
    weights, bias = _fit(features, marked.is_kept, strength)
    return Fitted(
        has_knots=has_knots,
        n_columns=n_columns,
        weights=scale * weights,
        bias=scale * bias + shift,
        noise=noise,
    )


def _held_out(
    marked: MarkedScores, form: tuple[bool, int, float], seeds: Iterable[int], n_folds: int
) -> tuple[Floats, Mask]:
    """Returns z by models that were fitted on other recordings, and the verdicts."""
    has_knots, n_columns, strength = form
    features = _features(marked.ranks_NC[:, :n_columns], has_knots)
    sums, is_kept = [np.zeros(0)], [np.zeros(0, np.bool_)]
    for seed in seeds:
        for train, test in _folds(marked, n_folds, seed):
            weights, bias = _fit(features[train], marked.is_kept[train], strength)
            sums.append(features[test] @ weights + bias)
            is_kept.append(marked.is_kept[test])
    return np.concatenate(sums), np.concatenate(is_kept)


def _calibration(sums: Floats, is_kept: Mask) -> tuple[float, float, float]:
    """Returns scale, shift and noise of the probabilities of sums: Platt scaling with noise."""
    minimize = _module("scipy.optimize").minimize
    spread = max(float(np.std(sums)), _FEW)

    def loss(given: Floats, noise: float) -> float:
        # A weak prior, worth one clip, prevents certainty from few separable marks.
        own = _loss(_probability(given[0] / spread * sums + given[1], noise), is_kept)
        return own + float(given[0] ** 2) / (2 * len(sums))

    bounds = [(0.0, None), (None, None)]
    fits = [(minimize(loss, [1.0, 0.0], (n,), "L-BFGS-B", bounds=bounds), n) for n in NOISES]
    fit, noise = min(fits, key=lambda tried: float(tried[0].fun))
    return float(fit.x[0]) / spread, float(fit.x[1]), noise


def _loss(probability: Floats, is_kept: Mask) -> float:
    return float(-np.mean(np.log(np.where(is_kept, probability, 1 - probability) + _FEW)))


def _best_single(marked: MarkedScores) -> tuple[int, float]:
    """Returns the column of the score with the best AUC, and 1, or -1 for a falling score."""
    columns = marked.ranks_NC.T[: marked.n_scores]
    gains = np.array([auc(ranks, marked.is_kept) - 0.5 for ranks in columns])
    best = int(np.argmax(np.abs(gains)))
    return best, 1.0 if gains[best] >= 0 else -1.0


def _intervals(
    marked: MarkedScores, probability: Floats, single: Floats
) -> tuple[list[Interval], float]:
    """Returns both AUCs and their difference, and the share of resamples with a difference > 0."""
    rng = np.random.default_rng(0)
    rows_of = [
        np.flatnonzero(marked.recordings == number) for number in np.unique(marked.recordings)
    ]

    def aucs(rows: NDArray[np.int64]) -> list[float]:
        own, other = (auc(values[rows], marked.is_kept[rows]) for values in (probability, single))
        return [own, other, own - other]

    resamples = (rng.integers(0, len(rows_of), len(rows_of)) for _ in range(_RESAMPLES))
    drawn = (np.concatenate([rows_of[k] for k in numbers]) for numbers in resamples)
    sample = np.array([aucs(r) for r in drawn if 0 < marked.is_kept[r].sum() < len(r)])
    ends = np.quantile(sample, [0.025, 0.975], axis=0).tolist()
    intervals = zip(aucs(np.arange(len(single))), *ends, strict=True)
    return [(a, b, c) for a, b, c in intervals], float((sample[:, 2] > 0).mean())


@dataclass(frozen=True, slots=True)
class RankGrid:
    """Distinct values, ascending, and the mean rank of each among all clips, 0 to 1."""

    values: Floats
    ranks: Floats

    @classmethod
    def of(cls, values: Floats) -> "RankGrid":
        """Returns the grid of values without NaN."""
        at = np.linspace(0, 1, _N_RANKS)
        own, first, counts = np.unique(
            np.quantile(values, at), return_index=True, return_counts=True
        )
        return cls(own, (at[first] + at[first + counts - 1]) / 2)

    def rank(self, values: Floats) -> Floats:
        """Returns the ranks of values, 0 to 1."""
        ranks: Floats = np.interp(values, self.values, self.ranks)
        return ranks

    def curve(self, fitted: Fitted, column: int) -> tuple[list[float], list[float]]:
        """Returns the values of the grid and of the knots, and a column's contributions to z."""
        values = np.union1d(self.values, np.interp(KNOTS, self.ranks, self.values))
        return values.tolist(), fitted.logits(column, self.rank(values)).tolist()


def learn_suitability(
    finished: Finished, label: str | None = None
) -> tuple[LearnedScore, Learned, list[str]]:
    """Learns from the marks of an output, or only from the marks with `label`.

    A missing score of a marked clip counts as the median of the score.

    Returns:
        The model, its quality, and lines that describe both.

    Raises:
        UsageError: There are no clips, or too few marks, recordings, or marks of either verdict.
    """
    finished.require_clips()
    marks = {
        name: mark.verdict
        for name, mark in read_marks(finished.store).items()
        if mark.verdict is not None and label in (None, mark.label)
    }
    ids = finished.clips["clip_id"]
    rows = np.asarray(pc.indices_nonzero(pc.is_in(ids, value_set=pa.array(marks, pa.string()))))
    columns, grids = _scores(finished, rows)
    n_scores, n_all = len(columns), len(rows)
    directions = _directions(ids, finished.vectors("embeddings"), rows, columns, grids)
    ranked = [np.nan_to_num(grids[name].rank(x), nan=0.5) for name, x in columns.items()]
    own = take_rows(finished.clips.select(["clip_id", "source_id"]), pa.array(rows)).to_pydict()
    marked = MarkedScores(
        names=tuple(columns),
        n_scores=n_scores,
        ranks_NC=np.stack(ranked, axis=1) if ranked else np.zeros((n_all, 0)),
        is_kept=np.array([marks[name] == "keep" for name in own["clip_id"]], np.bool_),
        recordings=np.unique(np.array(own["source_id"]), return_inverse=True)[1],
    )
    learned = learn(marked)
    curves = {
        name: curve
        for column, name in enumerate(list(columns)[: learned.fitted.n_columns])
        if np.ptp((curve := grids[name].curve(learned.fitted, column))[1]) > 0
    }
    n_kept = int(marked.is_kept.sum())
    lines = [
        f"{n_kept} keep and {n_all - n_kept} drop, of {len(set(own['source_id']))} recordings",
        f"AUC {_said(learned.auc)}, for recordings that it did not learn from",
        f"AUC {_said(learned.single_auc)} of the best single score, of all marks {learned.single}",
        f"better by {_said(learned.gain)}; calibration error {learned.calibration_error:.3f}",
        f"it uses {', '.join(curves) or 'no score'}",
    ]
    score = LearnedScore(
        intercept=learned.fitted.bias,
        noise=learned.fitted.noise,
        curves=curves,
        directions={name: values for name, values in directions.items() if name in curves},
        about={"learned_at": utc_now(), "said": lines},
    )
    return score, learned, lines


def tuned_by(finished: Finished, score: LearnedScore, least: float) -> Tuned:
    """Returns the effect of a lower bound `least` of `suitability`, as `curate tune` does."""
    address = f"{finished.store.uri}/{LEARNED_MODEL}"
    recipe = with_changes(finished.recipe, [f"suitability.model={address}"])
    others = [name for name in finished.clips.column_names if name != SUITABILITY]
    clips, stored, parts = finished.clips.select(others), finished.vectors("embeddings"), []
    for block in in_blocks(clips):
        ids = block["clip_id"].filter(pa.array(stored.known(block["clip_id"].combine_chunks())))
        flat = pa.array(stored.matrix(ids.combine_chunks()).ravel())
        vector = pa.FixedSizeListArray.from_arrays(
            flat, stored.schema.field("vector").type.list_size
        )
        scored = score.with_score(block, pa.table({"clip_id": ids, "vector": vector}))
        parts += scored[SUITABILITY].chunks
    clips = clips.append_column(SUITABILITY, pa.chunked_array(parts, pa.float64()))
    own = replace(finished, clips=clips, recipe=recipe, measures=measures_of(recipe))
    return tune(own, [f"filters.suitability.min={least:g}"])


def _scores(
    finished: Finished, rows: NDArray[np.int64]
) -> tuple[dict[str, Floats], dict[str, RankGrid]]:
    """Returns varying scores that nearly all clips have: values of marked clips, and grids."""
    columns, grids = {}, {}
    for name in stored_measures_of(finished.recipe).specs:
        values = score_values(finished.clips, name)
        finite = values[np.isfinite(values)]
        if len(finite) and len(finite) >= LEAST_MEASURED * len(values) and np.ptp(finite) > 0:
            columns[name], grids[name] = values[rows], RankGrid.of(finite)
    return columns, grids


def _directions(
    ids: pa.ChunkedArray,
    stored: StoredVectors,
    rows: NDArray[np.int64],
    columns: dict[str, Floats],
    grids: dict[str, RankGrid],
) -> dict[str, list[float]]:
    """Adds the principal directions of vectors; returns the offset and weights of each.

    Adds none if fewer than `LEAST_MEASURED` of the sampled clips have vectors.
    """
    every = np.arange(0, len(ids), max(1, len(ids) // _MOST_DESCRIBED))
    some = take_values(ids, pa.array(every)).combine_chunks()
    some = some.filter(pa.array(stored.known(some)))
    if len(some) < max(LEAST_MEASURED * len(every), 2 * N_DIRECTIONS):
        return {}
    vectors_ND = stored.matrix(some).astype(np.float64)
    mean_D = vectors_ND.mean(axis=0)
    weights_KD = np.linalg.svd(vectors_ND - mean_D, full_matrices=False)[2][:N_DIRECTIONS]
    own = take_values(ids, pa.array(rows)).combine_chunks()
    is_known = stored.known(own)
    own_ND = stored.matrix(own.filter(pa.array(is_known)))
    directions = {}
    for number, weights_D in enumerate(weights_KD):
        name, offset = f"scene_{number}", -float(mean_D @ weights_D)
        columns[name] = np.full(len(rows), np.nan)
        columns[name][is_known] = own_ND @ weights_D + offset
        grids[name] = RankGrid.of(vectors_ND @ weights_D + offset)
        directions[name] = [offset, *weights_D.tolist()]
    return directions


def _said(values: tuple[float, float, float]) -> str:
    value, low, high = values
    return f"{value:.3f} (95% interval {low:.3f} to {high:.3f})"
