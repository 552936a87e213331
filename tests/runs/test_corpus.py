"""What runs stages that decide about a corpus: all of it, or the clips of some sources."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from filtered_clips import needs
from made_out import candidates_table

from curator.errors import CuratorError
from curator.executor.corpus_work import CorpusWork
from curator.measures.rule_config import FilterConfig
from curator.runs.corpus import CLIP_ORDER, CorpusState, RunCorpus
from curator.stage import (
    AnyCorpusStage,
    CarriedState,
    ClipFilter,
    CorpusStage,
    Decisions,
    Rejection,
    Remainders,
    StageConfig,
    Work,
)
from curator.stage import Corpus as CorpusOfStage
from curator.stages.filter.stage import FilterStage
from curator.stages.shard.config import ShardConfig
from curator.storage import open_store
from curator.tables.corpus_tables import CorpusTables
from curator.tables.disk_table import SortedRows
from curator.tables.mark_table import Mark, utc_now
from curator.tables.schemas import embeddings_schema

RULES = {"luma": {"min": 0.5}}


def filter_stage(**rules: object) -> FilterStage:
    return FilterStage(FilterConfig.model_validate(rules), needs(ShardConfig()))


def corpus_of(*tables: pa.Table, **options: Any) -> RunCorpus:  # noqa: ANN401 - as `RunCorpus`
    corpus = RunCorpus(lambda clips: clips, 1 << 24, **options)
    corpus._candidates = SortedRows(tables[0].schema, CLIP_ORDER, 1 << 20)
    for table in tables:
        corpus._candidates.add(table)
    return corpus


def decide(corpus: RunCorpus, *stages: AnyCorpusStage) -> None:
    for stage in stages:
        corpus.decide(stage, CorpusWork(stage.name))


@pytest.mark.parametrize("unmeasured", ["keep", "reject"])
@pytest.mark.parametrize("severity", ["flag", "reject"])
def test_clips_without_a_score_that_only_cpus_give_are_counted_aloud(
    unmeasured: str, severity: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins tracks that a GPU made: no such clip is kept, rejected or left without a tag in silence.

    Other absent scores, as luma here, are the clip's own.
    """
    given = {"max": 38, "severity": severity, "unmeasured": unmeasured}
    clips = candidates_table(5, quantizer=[30.0, None, 45.0, None, 1.0], luma=[None] * 5)
    corpus = corpus_of(clips)
    decide(corpus, filter_stage(quantizer=given, luma={"min": 0.1}))
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("filters.quantizer: 2 clips without quantizer, because a GPU decoded")


class Early(CorpusStage[StageConfig]):
    """Rejects the first clip of a shot; it needs no other clip for that."""

    name, version = "early", 1
    n_setups = 0

    def setup(self) -> None:
        self.n_setups += 1

    def decide(self, corpus: CorpusOfStage, work: Work, /) -> Iterator[Decisions | CarriedState]:
        shots = corpus["shot"].to_numpy()
        rows = np.flatnonzero(shots == 0)
        yield Decisions(rows, pa.table({"reason": ["early"] * len(rows)}))
        yield CarriedState("early", len(rows))


def test_clips_of_some_sources_are_decided_about_as_among_all() -> None:
    """Pins what clips that are cut at once follow from, and that a stage is set up once."""
    luma = np.random.default_rng(0).random(120)
    luma[::50] = 1
    whole = candidates_table(120, luma=luma)
    parts = [whole.slice(0, 50), whole.slice(50, 50), whole.slice(100)]
    corpus, stages = corpus_of(*parts), [filter_stage(**RULES), Early(StageConfig())]
    alone = [name for part in parts for name in corpus.passing(stages, part).kept_ids().to_pylist()]
    decide(corpus, *stages)
    assert alone == corpus.rows.kept_ids().to_pylist()
    (rejected,) = {tuple(row.reasons) for row in corpus.rows if row.decision == "rejected"}
    assert rejected == ("early",)
    assert (stages[1].n_setups, corpus.carried_state["early"]) == (1, 3)


@pytest.mark.parametrize(
    "nothing",
    [
        Decisions(np.array([]), pa.table({"reason": []})),
        Decisions(np.array([0]), pa.table({"reason": pa.nulls(1)})),
        Decisions(np.array([0], np.int32), pa.table({"reason": pa.nulls(1, pa.large_string())})),
    ],
)
def test_a_stage_may_reject_nothing(nothing: Decisions) -> None:
    """Pins arrays as NumPy and Arrow make them of an empty list."""

    class Nothing(Early):
        def decide(self, corpus: CorpusOfStage, work: Work, /) -> Iterator[Decisions]:
            yield nothing

    corpus = corpus_of(candidates_table(5))
    decide(corpus, filter_stage(**RULES), Nothing(StageConfig()))
    assert len(corpus.rows.kept_ids()) == 5


class Everything(ClipFilter[StageConfig]):
    """Rejects all clips, the first one twice."""

    name, version = "everything", 1
    n_rows: int | None = None

    def process(self, unit: pa.Table, /) -> Iterator[Rejection]:
        self.n_rows = unit.num_rows
        for clip_id in unit["clip_id"].to_pylist():
            yield Rejection(clip_id=clip_id, reason="unwanted")
        if unit.num_rows:
            yield Rejection(clip_id=unit["clip_id"][0].as_py(), reason="twice", detail="so")
        yield Rejection(clip_id="of no clip", reason="unwanted")


@pytest.mark.parametrize("n", [0, 5])
def test_a_filter_of_a_user_gets_one_table_though_there_be_no_clips(n: int) -> None:
    """Pins the form that filters have had: no clips are a table too, and other ids are no error."""
    corpus, stage = corpus_of(candidates_table(n)), Everything(StageConfig())
    decide(corpus, filter_stage(**RULES), stage)
    assert stage.n_rows == n
    found = [(row.reason, row.reasons, row.reason_detail) for row in corpus.rows]
    all_ = [("twice", ["unwanted", "twice"], "so"), *(n * [("unwanted", ["unwanted"], None)])]
    assert found == all_[:n]


def decisions(rows: list[int], **columns: list[Any]) -> Decisions:
    given = {"reason": ["x"] * len(rows)} | columns
    return Decisions(np.array(rows), pa.table(given))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (CarriedState("bounds", {}), "stage early leaves 'bounds', a name that the run"),
        (CarriedState("fingerprint", {}), "stage early leaves 'fingerprint', a name that the run"),
        (
            CarriedState("early", pa.table({})),
            "'early' is a table, and an output root has no folder",
        ),
        (
            Decisions(np.zeros(1, np.int64), pa.table({"reason": ["x"], "wron": [1]})),
            "columns \\['reason', 'wron'\\]; expected reason, and perhaps",
        ),
        (decisions([0, 0]), "a stage decides twice about a clip"),
        (decisions([-1]), "clips numbered from -1 to -1; expected 0 to 4"),
        (decisions([5]), "clips numbered from 5 to 5; expected 0 to 4"),
        (decisions([True, False]), "rows are bool \\[2\\]; expected int64"),
        (decisions([0], reason=["x", "y"]), "2 rows of columns for 1 clips"),
        (decisions([0], reason=[""]), "the reason ''; expected lower case letters"),
        (decisions([0], reason=["kept"]), "and not 'kept'"),
        (decisions([0], reason=[5]), "reason is int64; expected string"),
        (decisions([0], clip_id=["other"]), "columns \\['reason', 'clip_id'\\]; expected reason"),
        (5, "decide yields 5; expected Decisions, CarriedState, or a text"),
        (CarriedState("early", {"a": object()}), "JSON cannot hold the value of 'early'"),
        (CarriedState("early", "a" * (9 << 20)), "takes 9437186 bytes as JSON; expected at most"),
        (CarriedState("../early", 1), "leaves '../early'; expected lower case letters"),
    ],
)
def test_what_a_stage_may_not_leave_is_said(
    found: object, said: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    class Wrong(Early):
        def decide(self, corpus: CorpusOfStage, work: Work, /) -> Iterator[Any]:
            yield found

    store = open_store(str(tmp_path_factory.mktemp("out")))
    decided = CorpusState(
        candidates_table(5), 1 << 20, vectors={}.__getitem__, tables=CorpusTables(store, "0" * 16)
    )
    decided.decide(filter_stage(**RULES), CorpusWork("filter"))
    with pytest.raises(CuratorError, match=said):
        decided.decide(Wrong(StageConfig()), CorpusWork("early"))


class Divides(CorpusStage[StageConfig]):
    """Rejects clip 1, of which two parts become clips."""

    name, version = "divides", 1

    def decide(self, corpus: CorpusOfStage, work: Work, /) -> Iterator[Decisions | Remainders]:
        rows = np.array([1])
        yield Decisions(rows, pa.table({"reason": ["divided"]}))
        yield Remainders(np.array([1, 1]), np.array([0.0, 3.0]), np.array([2.0, 5.0]))


def test_a_divided_clip_that_is_marked_keep_has_no_parts() -> None:
    clips = candidates_table(3)
    names = ("clip_id", "source_id", "start_frame", "end_frame")
    span = {name: clips[name][1].as_py() for name in names}
    mark = Mark(**span, verdict="keep", marked_at=utc_now())
    propose = MagicMock(side_effect=AssertionError("there are no parts"))
    corpus = corpus_of(clips, propose=propose, marks={mark.clip_id: mark})
    decide(corpus, filter_stage(), Divides(StageConfig()))
    assert [clip.decision for clip in corpus.clips.take(range(3))] == ["kept"] * 3


def test_parts_of_clips_are_filtered_by_the_bounds_of_all_others() -> None:
    """Pins rows, counts of rules, and that later stages decide about parts too."""
    asked = []

    def propose(parts: pa.Table) -> MagicMock:
        asked.extend(parts.select(["clip_id", "part_start_s", "part_end_s"]).to_pylist())
        first = pa.array([clips["start_frame"][2].as_py()] * 2)
        made = candidates_table(
            2,
            clip_id=["dark", "light"],
            start_frame=first,
            end_frame=pc.add(first, 60),
            shot=[1, 0],
            luma=[0.05, 0.9],
            tags=[["remainder"]] * 2,
        )
        none = embeddings_schema(1).empty_table()
        return MagicMock(clips=made, vectors=none, clip_vectors=none)

    clips = candidates_table(10, luma=[n / 10 for n in range(10)])
    corpus = corpus_of(clips, propose=propose)
    decide(corpus, filter_stage(luma={"drop_lowest": 0.1}), Divides(StageConfig()))
    whole = clips["clip_id"][2].as_py()
    assert [part["clip_id"] for part in asked] == [whole, whole]
    assert [(part["part_start_s"], part["part_end_s"]) for part in asked] == [(0, 2), (3, 5)]
    rows = pa.concat_tables(corpus.clips.blocks()).to_pylist()
    assert [row["reason"] for row in rows[:4]] == ["too_dark", None, "divided", None]
    # With the parts among the clips, the bound by quantile would be another one.
    assert [(row["clip_id"], row["reason"]) for row in rows[10:]] == [
        ("dark", "too_dark"), ("light", None),
    ]  # fmt: skip
    assert {row["reason_detail"] for row in rows[10:]} == {f"remainder of {whole}"}
    (rule,) = (rule for rule in corpus.carried_state["rules"] if rule["rule"] == "luma")
    assert (rule["first"], rule["n_measured"]) == (2, 10)
    decide(corpus, Early(StageConfig()))
    assert "light" not in corpus.rows.kept_ids().to_pylist()
    assert corpus.clips.floats("luma")[10:].tolist() == [0.05, 0.9]
