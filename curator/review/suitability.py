"""Learns `suitability` of a finished run: gathers marks, scores and vectors; shows what it does."""
# ruff: noqa: N806 - shape letters

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.measures.learned_score import LearnedScore
from curator.measures.score_list import SUITABILITY
from curator.recipe import measures_of, stored_measures_of, with_changes
from curator.review.bound_tuning import Tuned, tune
from curator.review.finished_run import Finished
from curator.review.score_learning import KNOTS, Fitted, Floats, Learned, MarkedScores, learn
from curator.stages.filter.judging import score_values
from curator.tables.clip_vectors import StoredVectors
from curator.tables.disk_table import in_blocks
from curator.tables.mark_table import read_marks, utc_now
from curator.tables.out_layout import LEARNED_MODEL

LEAST_MEASURED = 0.95
"""Share of the clips that must have a score or a vector, so that few have no suitability."""
N_DIRECTIONS, _MOST_DESCRIBED, _N_RANKS = 8, 5_000, 33


@dataclass(frozen=True, slots=True)
class RankGrid:
    """Distinct values, ascending, and the mean rank of each among all clips, 0 to 1."""

    values: Floats
    ranks: Floats

    @classmethod
    def of(cls, values: Floats) -> "RankGrid":
        """Returns the grid of some values, of which none is NaN."""
        at = np.linspace(0, 1, _N_RANKS)
        own, first, counts = np.unique(
            np.quantile(values, at), return_index=True, return_counts=True
        )
        return cls(own, (at[first] + at[first + counts - 1]) / 2)

    def rank(self, values: Floats) -> Floats:
        """Returns ranks from 0 to 1."""
        ranks: Floats = np.interp(values, self.values, self.ranks)
        return ranks

    def curve(self, fitted: Fitted, column: int) -> tuple[list[float], list[float]]:
        """Returns values and what each adds to the sum; the curve may bend between two, too."""
        values = np.union1d(self.values, np.interp(KNOTS, self.ranks, self.values))
        return values.tolist(), fitted.logits(column, self.rank(values)).tolist()


def learn_suitability(
    finished: Finished, label: str | None = None
) -> tuple[LearnedScore, Learned, list[str]]:
    """Learns from the marks of an output; with `label` only from those that have it.

    Returns:
        The model, how good it is, and lines about it. A score that a marked clip lacks counts as
        its median.

    Raises:
        UsageError: There are too few marks of either kind or recordings.
    """
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
    own = finished.clips.select(["clip_id", "source_id"]).take(pa.array(rows)).to_pydict()
    marked = MarkedScores(
        names=tuple(columns),
        n_scores=n_scores,
        ranks_NC=np.stack(ranked, axis=1),
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
    """Returns what a bound of `suitability` would change, as `curate tune` does."""
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
    """Returns scores that nearly all clips have, and that differ: those of marked clips, grids."""
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
    """Adds the directions in which vectors differ most; returns offset and weights of each.

    There are none where some clips have no vector.
    """
    every = np.arange(0, len(ids), max(1, len(ids) // _MOST_DESCRIBED))
    some = ids.take(pa.array(every)).combine_chunks()
    some = some.filter(pa.array(stored.known(some)))
    if len(some) < max(LEAST_MEASURED * len(every), 2 * N_DIRECTIONS):
        return {}
    vectors_ND = stored.matrix(some).astype(np.float64)
    mean_D = vectors_ND.mean(axis=0)
    weights_KD = np.linalg.svd(vectors_ND - mean_D, full_matrices=False)[2][:N_DIRECTIONS]
    own = ids.take(pa.array(rows)).combine_chunks()
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
