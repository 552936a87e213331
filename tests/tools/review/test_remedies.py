"""Each remedy that `curate explain` prints keeps the clip: of made clips, without films.

`benchmarks/remedies.py` does the same with a run over films.
"""

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from made_out import (
    SAME,
    candidates_table,
    finish_rows,
    store_candidates,
    unlike_vectors,
)

from curator.dataset.output_form import as_written
from curator.executor.corpus_work import CorpusWork
from curator.pipeline import graph_of
from curator.recipe import Recipe, with_changes
from curator.records.clips import Reason
from curator.runs.corpus import CorpusState
from curator.stage import CorpusStage
from curator.storage import Store, open_store
from curator.tables.clip_rows import reject
from curator.tables.clip_vectors import StoredVectors, vectors_table
from curator.tables.corpus_tables import CorpusTables
from curator.tables.duplicate_pairs import PAIRS, NearDuplicatePairs, Pair
from curator.tables.mark_table import Mark, MarkWriter, read_marks
from curator.tools.review.bound_tuning import tune
from curator.tools.review.changed_decisions import NOT_PROPOSED
from curator.tools.review.clip_explanation import explain
from curator.tools.review.finished_run import Finished, open_finished
from curator.tools.review.remedies import _ways

CASES: dict[str, dict[str, Any]] = {
    "hdr": {"hdr": 1.0},
    "hdr, and still": {"hdr": 1.0, "motion": 0.1},
    "small": {"width": 100, "height": 80},
    "few frames": {"n_frames": 10},
    "small, few frames": {"width": 100, "height": 80, "n_frames": 10},
    "one frame": {"n_frames": 1},
    "end of a take": {"n_frames": 50, "window_frames": 81, "window_fps": 16.0},
    "no picture": {"width": 1, "height": 0},
    "wide": {"width": 2400, "height": 240},
    "not measured": {"motion": None},
    "soft": {"sharpness": 0.1},
    "short, soft": {"seconds": 1.0, "end_s": 1.0, "sharpness": 0.2},
    "short": {"seconds": 1.1234567, "end_s": 1.1234567},
    "standing": {"seconds": 130.0, "end_s": 130.0},
    "copy": {},
    "most of it": {},
    "two originals": {},
    "still copy": {"motion": 0.1},
    "bright, still, noisy": {"luma": 2.0, "motion": 0.2, "noise": 3.0},
    "crowd": {"content_type": "crowd", "content_probability": 0.7},
    "sure crowd": {"content_type": "crowd", "content_probability": 1.0},
    "dropped": {},
    "dropped, still": {"motion": 0.1},
}
NAMES = [*CASES, *(f"good {number}" for number in range(24))]
DUPLICATES = [
    ("copy", "good 0", 1.0), ("most of it", "good 1", 0.85), ("two originals", "good 2", 0.85),
    ("two originals", "good 3", 0.95), ("still copy", "good 4", 0.9),
]  # fmt: skip
RECIPE = {
    "propose": {"windows": ["81@16", "33"]},
    "analyze": {"clip": "openai-vit-b-32"},
    "filters": {
        "hdr": {"max": 0},
        "motion": {"min": 0.5},
        "luma": {"max": 1.5},
        "noise": {"max": 2.0},
        "sharpness": {"drop_lowest": 0.05},
    },
    "semantic": {"reject": ["crowd"], "reject_from": 0.6},
    "shard": {"aspects_strict": True},
    "select": {"by": ["is_vfr"], "keep_fraction": 0.9},
}


@dataclass(frozen=True)
class Corpus:
    """Candidates under an output root, about which any recipe can decide as a run does."""

    store: Store
    clips: pa.Table
    vectors: StoredVectors

    def decided(self, recipe: Recipe, marks: Mapping[str, Mark]) -> CorpusState:
        tables = CorpusTables(self.store, open_fingerprint(self.store))
        clips = CorpusState(
            as_written(self.clips, recipe.cut, recipe.shard), 1 << 30, tables=tables,
            vectors=lambda _: self.vectors, marks=marks,
        )  # fmt: skip
        for stage in graph_of(recipe).deciding():
            clips.decide(stage, CorpusWork(stage.name))
        for row in clips.rows.kept():
            if recipe.cut.hdr == "reject" and row.scores["hdr"]:
                reject(row, Reason.HIGH_DYNAMIC_RANGE, detail="cut.hdr is reject")
            else:
                row.cut_mode = "copy"
        return clips

    def reasons(self, recipe: Recipe, marks: Mapping[str, Mark]) -> dict[str, str | None]:
        table = pa.concat_tables(self.decided(recipe, marks).clips.blocks())
        names = (table[name].to_pylist() for name in ("clip_id", "decision", "reason"))
        return {i: None if d == "kept" else r for i, d, r in zip(*names, strict=True)}


def open_fingerprint(store: Store) -> str:
    (name,) = (info.key for info in store.list("duplicate_pairs/"))
    return name.rpartition("/")[2].partition("-")[0]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    store = open_store(str(tmp_path_factory.mktemp("remedies") / "out"))
    n, cases = len(NAMES), [CASES.get(name, {}) for name in NAMES]
    plain = candidates_table(n)
    rows = [{**row, **case} for row, case in zip(plain.to_pylist(), cases, strict=True)]
    for row, case in zip(rows, cases, strict=True):
        row["end_s"] = row["start_s"] + case.get("end_s", 5.0)
        row["bits_per_pixel"] = 1.0 if not case else 2.0
    clips = pa.Table.from_pylist(rows, plain.schema)
    # Copies have fewer pixels, so that the others stay.
    height = clips.schema.get_field_index("height")
    copies = {first for first, *_ in DUPLICATES}
    heights = [
        700 if name in copies else row["height"] for name, row in zip(NAMES, rows, strict=True)
    ]
    clips = clips.set_column(height, "height", pa.array(heights, pa.int32()))
    recipe, vectors = Recipe.model_validate(RECIPE), unlike_vectors(n)
    candidates = store_candidates(store, recipe, clips, vectors, pictures=False)
    ids = clips["clip_id"].to_pylist()
    of = dict(zip(NAMES, ids, strict=True))
    pairs = [
        Pair(
            clip_id=of[a], other=of[b],
            match=replace(SAME, overlap_s=5 * share, share_a=share, share_b=share),
        )
        for a, b, share in DUPLICATES
    ]  # fmt: skip
    none = NearDuplicatePairs.of(None, recipe.dedup.search_fingerprint)
    table = none.with_new(pa.array(ids, pa.string()), [], pairs).table()
    shutil.rmtree(Path(store.uri) / "duplicate_pairs")
    CorpusTables(store, candidates.fingerprint).write(PAIRS, table)
    writer = MarkWriter(store)
    for name in ("dropped", "dropped, still"):
        (row,) = (row for row in clips.to_pylist() if row["clip_id"] == of[name])
        span = {key: row[key] for key in ("clip_id", "source_id", "start_frame", "end_frame")}
        writer.put(Mark(**span, verdict="drop", marked_at="2020-01-01T00:00:00Z"))
    stored = StoredVectors.of(vectors_table(list(zip(ids, vectors, strict=True))))
    made = Corpus(store, clips, stored)
    finish_rows(store, recipe, candidates, made.decided(recipe, read_marks(store)), stored)
    return made


def remedies(text: str) -> list[list[str]]:
    """The remedies in an explanation, each with its options."""
    found: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith(("It would be kept", "or by:", "or with all of this:")):
            found.append([])
        elif found and line.startswith("  "):
            found[-1].append(line.strip())
    return found


def marked(corpus: Corpus, words: Sequence[Sequence[str]]) -> dict[str, Mark]:
    marks = dict(read_marks(corpus.store))
    for _, _, _, clip_id, verdict in (line for line in words if line[0] == "curate"):
        marks[clip_id] = replace(marks[clip_id], verdict=verdict.removeprefix("--"))
    return marks


@pytest.fixture(scope="module")
def finished(corpus: Corpus) -> Finished:
    return open_finished(corpus.store.uri)


def test_every_remedy_keeps_its_clip(corpus: Corpus, finished: Finished) -> None:
    """Pins all remedies for each reason, also where one reason waits behind another."""
    candidates, n_remedies = finished.candidates(), 0
    of = dict(zip(corpus.clips["clip_id"].to_pylist(), NAMES, strict=True))
    now = corpus.reasons(finished.recipe, finished.marks)
    assert {now[clip] for clip in of if of[clip] in CASES} >= {
        "high_dynamic_range", "motion_too_low", "no_bucket", "no_aspect_class", "not_measured",
        "sharpness_too_low", "too_short", "too_long", "duplicate", "content_type_unwanted",
        "marked_drop", "shorter_than_window",
    }  # fmt: skip
    assert "not_selected" in now.values()
    without = set()
    for clip_id, reason in now.items():
        if reason is None:
            continue
        text = explain(finished, clip_id, candidates)
        found = remedies(text)
        n_remedies += len(found)
        if not found:
            without.add(of[clip_id])
            assert "Nothing is known to keep it" in text
        for lines in found:
            words = [shlex.split(line) for line in lines]
            changes = [line[1] for line in words if line[0] == "--set"]
            recipe = with_changes(finished.recipe, changes)
            then = corpus.reasons(recipe, marked(corpus, words))
            assert then[clip_id] is None, (of[clip_id], lines, then[clip_id])
    assert without == {"no picture"}
    assert n_remedies >= 24


def test_an_error_in_a_stages_remedies_leaves_the_other_ways(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: object, reason: str, clip: object) -> object:
        raise TypeError("'ClipRow' object is not subscriptable")

    monkeypatch.setattr(CorpusStage, "remedies", broken)
    trial = SimpleNamespace(candidates=finished.candidates(), number=0)
    assert list(_ways(trial, finished.clips[0], "own_reason", finished.recipe, [])) == []  # type: ignore[arg-type]
    assert "gives no remedies: TypeError: 'ClipRow' object is not subscriptable" in caplog.text


def test_hidden_reasons_are_found(corpus: Corpus, finished: Finished) -> None:
    """Pins the cut behind a rule, a duplicate behind a rule, and a division behind a share."""
    of = dict(zip(NAMES, corpus.clips["clip_id"].to_pylist(), strict=True))
    for name, options in (
        ("hdr", ["filters.hdr.max=1", "cut.hdr=tonemap"]),
        ("still copy", ["filters.motion.min=0.1", "dedup.min_share="]),
        ("dropped, still", [f"{of['dropped, still']} --keep"]),
        ("one frame", ["shard.lengths=[1,"]),
        ("end of a take", ['"fps": "16", "remainder": "keep"}, {"frames": 33}]']),
    ):
        text = " ".join(remedies(explain(finished, of[name]))[0])
        assert all(option in text for option in options), text
    text = explain(finished, of["no picture"])
    assert "no setting of the recipe ends no_bucket: a bucket needs a picture" in text


@pytest.mark.parametrize(
    "changes",
    [
        [], ["filters.motion.min=0.05"], ["filters.hdr.max=1"], ["select.keep_fraction=0.3"],
        ["filters.hdr.max=1", "cut.hdr=tonemap"], ["dedup.min_share=0.9"], ["dedup.enabled=false"],
        ["filters.sharpness.drop_lowest=0.3", "semantic.reject=[]"],
    ],
)  # fmt: skip
def test_tune_predicts_what_a_run_decides(
    corpus: Corpus, finished: Finished, changes: list[str]
) -> None:
    """Pins each clip's outcome, so that the counts are a run's."""
    recipe = with_changes(finished.recipe, changes)
    then = corpus.reasons(recipe, finished.marks)
    ids = finished.clips["clip_id"].to_pylist()
    tuned = tune(finished, changes)
    assert dict(zip(ids, tuned.then, strict=True)) == then
    assert NOT_PROPOSED not in tuned.then
    if not changes:
        assert tuned.then == tuned.now


def test_the_size_that_the_cut_sets_decides_about_buckets(tmp_path: Path) -> None:
    """Pins that tune and explain decide about clips as they are written, not as the source is."""
    store = open_store(str(tmp_path / "out"))
    clips, vectors = candidates_table(4, motion=[0.1, 1.0, 1.0, 1.0]), unlike_vectors(4)
    recipe = Recipe.model_validate(
        {
            "cut": {"size": [320, 240], "length_frames": 100},
            "filters": {"motion": {"min": 0.5}},
            "shard": {"resolutions": [240, 720], "lengths": [33, 121]},
            "select": {"by": ["bucket"], "max_per_group": 1},
        }
    )
    candidates = store_candidates(store, recipe, clips, vectors, pictures=False)
    ids = clips["clip_id"].to_pylist()
    stored = StoredVectors.of(vectors_table(list(zip(ids, vectors, strict=True))))
    made = Corpus(store, clips, stored)
    finish_rows(store, recipe, candidates, made.decided(recipe, {}), stored)
    finished = open_finished(store.uri)
    assert set(finished.clips["bucket"].drop_null().to_pylist()) == {"240p_4-3_33f"}
    assert tune(finished, ["filters.motion.min=0.2"]).then == tune(finished, []).now
    assert tune(finished, ["select.max_per_group=2"]).then.count(None) == 2
