"""A score has one value under its name: in rules, histograms, conditions, orders and `explain`."""

from pathlib import Path

import numpy as np
from made_out import candidates_table, made_out, unlike_vectors

from curator.measures.score_list import SCORES
from curator.recipe import Recipe
from curator.records.clips import Clip
from curator.records.columns import columns_of
from curator.storage import open_store
from curator.tables.clip_rows import ClipRows
from curator.tables.mark_table import MarkWriter
from curator.tools.report.histogram import histograms
from curator.tools.review.clip_explanation import explain
from curator.tools.review.finished_run import open_finished
from curator.tools.view.viewed_run import ClipQuery, ViewedRun

N, LOW, BOUND, HIGH = 30, 1.0, 1.5, 2.0


def test_each_score_is_compared_drawn_found_and_sorted_by_one_value(tmp_path: Path) -> None:
    """Pins all scores against facts of written clips, such as the frame rate, that differ."""
    rng = np.random.default_rng(3)
    is_low = {name: rng.permutation(N) < N // 3 for name in SCORES}
    scores = {name: np.where(low, LOW, HIGH).tolist() for name, low in is_low.items()}
    rules = {name: {"min": BOUND, "severity": "flag"} for name in SCORES}
    clips = candidates_table(N, written_fps=[24.0] * N, **scores)
    summary = made_out(
        tmp_path, clips, Recipe.model_validate({"filters": rules}), unlike_vectors(N)
    )
    finished = open_finished(str(tmp_path))
    run = ViewedRun(finished, MarkWriter(open_store(str(tmp_path))))
    ids = np.array(finished.clips["clip_id"].to_pylist())
    tags = finished.clips["tags"].to_pylist()
    drawn, _ = histograms(summary, ClipRows(finished.clips, finished.clips.schema))
    bars = {chart.name: [sum(bar) for bar in chart.bins] for chart in drawn}
    charts = {chart["score"]: chart for chart in run.funnel_of([], list(SCORES))["charts"]}
    explained = {line.split()[0]: line.split()[1] for line in explain(finished, ids[0]).splitlines()
                 if "min 1.5" in line}  # fmt: skip
    candidates = ClipRows(clips, clips.schema)
    of_candidates = np.array(candidates.values("clip_id"))
    for name, spec in finished.measures.specs.items():
        below = set(of_candidates[is_low[name]])
        flagged = {k for k, own in zip(ids, tags, strict=True) if spec.low in own}
        found = run.page(ClipQuery(where=f"{name} < {BOUND}"), 0, N)
        order = [c["clip_id"] for c in run.page(ClipQuery(sort=name), 0, N)["clips"]]
        assert {c["clip_id"] for c in found["clips"]} == below, name
        named = [is_low[n] for n, other in SCORES.items() if other.low == spec.low]
        assert flagged == set(of_candidates[np.any(named, axis=0)]), name
        assert set(order[: len(below)]) == below, name
        assert (bars[name][0], bars[name][-1]) == (len(below), N - len(below)), name
        assert sum(charts[name]["bins"][0]) == len(below), name
        assert float(explained[name]) == (LOW if ids[0] in below else HIGH), name
    assert not {*SCORES} & {*columns_of(Clip)}
