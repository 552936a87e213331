"""`curate learn`: from marks to a score that runs, rules and tune use like any other."""
# ruff: noqa: N806 - shape letters

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_corpus
import numpy as np
import pyarrow as pa
import pytest
from command_line import Curate

from curator.errors import UsageError
from curator.measures.learned_score import LearnedScore
from curator.measures.score_list import SUITABILITY
from curator.recipe_models import learned_score_of
from curator.storage import open_store
from curator.tables.mark_table import Mark, MarkWriter, utc_now
from curator.tables.out_layout import LEARNED_MODEL
from curator.tools.commands.arguments import EXIT_FAILED, EXIT_USAGE
from curator.tools.review import score_learning
from curator.tools.review.finished_run import Finished, open_finished
from curator.tools.review.score_learning import (
    Fitted,
    MarkedScores,
    RankGrid,
    auc,
    calibration_error,
)

N, N_SOURCES, N_MARKS = 1000, 20, 200


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less work: what is pinned does not depend on it."""
    # Not by the module: its import takes a second in each process of xdist.
    pytest.importorskip("sklearn")
    monkeypatch.setattr(score_learning, "STRENGTHS", (1.0,))
    monkeypatch.setattr(score_learning, "_REPEATS", 1)
    monkeypatch.setattr(score_learning, "_RESAMPLES", 200)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without rules and duplicates; not to be changed."""
    out = tmp_path_factory.mktemp("learn") / "out"
    made_corpus.make(out, N, recipe(), copies=0)
    made_corpus.execute(out, recipe(), N_SOURCES)
    return out


def recipe(*more: str) -> Any:  # noqa: ANN401 - a recipe
    return made_corpus.recipe_of(["dedup.enabled=false", *more])


def mark_by_rule(run: Finished, n_marks: int, *, random: bool = False) -> None:
    """Keeps what is inside bounds of three scores, but for a tenth; or marks by lot."""
    rng = np.random.default_rng(3)
    clips = run.clips
    is_kept = np.ones(clips.num_rows, np.bool_)
    rules = (("luma", 1, 0.25), ("contrast", -1, 0.25), ("camera_jitter", -1, 0.2))
    for name, side, share in rules:
        values = side * clips[name].to_numpy()
        is_kept &= values > np.quantile(values, share)
    is_kept ^= rng.random(len(is_kept)) < 0.1
    if random:
        is_kept = rng.random(len(is_kept)) < 0.5
    rows = rng.permutation(len(is_kept))[:n_marks]
    spans = clips.select(["clip_id", "source_id", "start_frame", "end_frame"]).take(pa.array(rows))
    verdicts = np.where(is_kept[rows], "keep", "drop").tolist()
    marks = (
        Mark(**span, verdict=verdict, marked_at=utc_now())
        for span, verdict in zip(spans.to_pylist(), verdicts, strict=True)
    )
    MarkWriter(run.store).put(*marks)


@pytest.mark.long
def test_marks_become_a_score_like_any_other(
    finished: Path, tmp_path: Path, curate: Curate
) -> None:
    """Pins the model against the run, tune, explain and another output of the same scores."""
    out = made_corpus.copied(finished, tmp_path / "out")
    mark_by_rule(open_finished(str(out)), N_MARKS)
    curate("learn", out, "--dry-run")
    assert not (out / LEARNED_MODEL).exists()
    assert "camera_jitter" in curate("learn", out, "--min", "0.4")
    page = (out / "report" / "learn.html").read_text()
    assert "calibration error" in page
    assert "below 0.4" in page
    copy = tmp_path / "copied.json"
    copy.write_bytes((out / LEARNED_MODEL).read_bytes())
    model = LearnedScore.read(str(copy))
    assert model.fingerprint == LearnedScore.read(str(out / LEARNED_MODEL)).fingerprint
    own = recipe(f"suitability.model={out / LEARNED_MODEL}")
    (out / LEARNED_MODEL).write_bytes(b"{}")
    read = learned_score_of(own)
    assert read is not None
    assert read.fingerprint == model.fingerprint
    (out / "copies" / LEARNED_MODEL).unlink()
    with pytest.raises(UsageError, match="restore it from a backup, write it anew with `curate le"):
        learned_score_of(own)
    with pytest.raises(UsageError, match=rf"{LEARNED_MODEL} is damaged .*lost: \d+ curves of 20"):
        MarkWriter(open_store(str(out)))
    # Another output, without marks: the copied model decides there.
    other = made_corpus.copied(finished, tmp_path / "other")
    settings = (f"suitability.model={copy}", "filters.suitability.min=0.4")
    summary = made_corpus.execute(other, recipe(*settings), N_SOURCES)
    assert summary["counts"]["by_reason"]["suitability_too_low"] > 100
    assert summary[SUITABILITY] == model.fingerprint
    values = open_finished(str(other)).clips[SUITABILITY].to_numpy()
    assert np.isfinite(values).mean() > 0.9
    assert (np.nanmin(values), np.nanmax(values)) > (0, 0.6)
    # The tars of the run before stay in the folder.
    shards = json.loads((other / "shards" / "manifest.json").read_text())["shards"]
    index = [(other / "shards" / s["name"]).with_suffix(".meta.jsonl") for s in shards]
    lines = [line for path in index for line in path.open()]
    found = [json.loads(line)["scores"].get(SUITABILITY) for line in lines]
    written = [score for score in found if score is not None]
    assert len(written) > 0.9 * len(found)
    assert 0.4 <= min(written) <= max(written) <= 1
    assert "suitability: min 0.4 -> min 0.6" in curate("tune", other, "suitability.min=0.6")
    clip = open_finished(str(other)).clips["clip_id"][0].as_py()
    assert SUITABILITY in curate("explain", other, clip)
    copy.write_text(json.dumps(json.loads(copy.read_text()) | {"noise": 0.01}))
    with pytest.raises(UsageError, match="was changed"):
        LearnedScore.read(str(copy))


@pytest.mark.parametrize(
    ("n_marks", "random", "code", "said"),
    [
        (30, False, EXIT_USAGE, "expected 50 or more"),
        (120, True, EXIT_FAILED, "nothing is written"),
    ],
)
def test_what_is_not_worth_a_model_is_refused(
    finished: Path, tmp_path: Path, curate: Curate, n_marks: int, random: bool, code: int, said: str
) -> None:
    out = made_corpus.copied(finished, tmp_path / "out")
    mark_by_rule(open_finished(str(out)), n_marks, random=random)
    assert said in curate("learn", out, code=code)
    assert not (out / LEARNED_MODEL).exists()
    assert not (out / "report" / "learn.html").exists()


def test_one_kind_and_few_recordings_are_refused() -> None:
    rng = np.random.default_rng(0)
    kept, recordings = rng.random(60) < 0.5, np.arange(60) % 20
    ranks_NC = rng.random((60, 1))
    marked = MarkedScores(
        names=("a",), n_scores=1, ranks_NC=ranks_NC, is_kept=kept, recordings=recordings
    )
    marked.check()
    with pytest.raises(UsageError, match="60 keep and 0 drop"):
        replace(marked, is_kept=np.ones(60, np.bool_)).check()
    with pytest.raises(UsageError, match="of 3 recordings"):
        replace(marked, recordings=np.arange(60) % 3).check()


def test_auc_and_calibration_error_are_those_of_their_definition() -> None:
    values, kept = np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, True, False, True])
    assert auc(values, kept) == 0.875
    rng = np.random.default_rng(0)
    probability = rng.random(5000)
    is_kept = rng.random(5000) < probability
    assert calibration_error(probability, is_kept) < 0.03
    assert calibration_error(np.full(5000, 0.9), is_kept) == pytest.approx(0.4, abs=0.02)


def test_a_model_is_what_was_fitted() -> None:
    """Pins curves, of scores and directions of vectors, against the features they are made of."""
    rng = np.random.default_rng(1)
    scores, vectors_ND = rng.gamma(1, 1, (300, 3)), rng.standard_normal((300, 5)).astype(np.float32)
    scores[:150, 2] = 0
    weights_D = rng.standard_normal(5)
    columns = dict(zip("abc", scores.T, strict=True)) | {"scene_0": vectors_ND @ weights_D - 0.3}
    grids = {name: RankGrid.of(values) for name, values in columns.items()}
    fitted = Fitted(
        has_knots=True, n_columns=4, weights=rng.standard_normal(4 * 4), bias=0.1, noise=0.05
    )
    model = LearnedScore(
        intercept=fitted.bias,
        noise=fitted.noise,
        curves={name: grids[name].curve(fitted, at) for at, name in enumerate(columns)},
        directions={"scene_0": [-0.3, *weights_D.tolist()]},
        about={},
    )
    ranks_NC = np.stack([grids[name].rank(x) for name, x in columns.items()], axis=1)
    values = model.values(columns.__getitem__, vectors_ND)
    assert values == pytest.approx(fitted.probability(ranks_NC), abs=2e-6)
