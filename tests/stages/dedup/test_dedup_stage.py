"""What the stage compares: new clips with all that were compared before."""

from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from curator.executor.corpus_work import CorpusWork
from curator.stages.dedup import stage as dedup_stage
from curator.stages.dedup.config import DedupConfig
from curator.stages.dedup.near_duplicates import NearDuplicatePairs, Pair
from curator.stages.dedup.stage import DedupStage, search_settings
from tests.made_out import SAME


def test_a_new_clip_is_compared_with_clips_that_a_rule_rejects_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pins that a rule that keeps them again finds their pairs, although nothing is searched."""
    config = DedupConfig()
    none = NearDuplicatePairs.of(None, search_settings(config))
    stored = none.with_new(pa.array(["stays", "rejected"]), [], []).table()
    corpus = MagicMock(read=lambda _: stored, elsewhere=list)
    asked = {}

    def find_pairs(
        own: object, ids: pa.Array, new: pa.Array, *_: object, **__: object
    ) -> list[Pair]:
        asked["own"], asked["new"] = ids.to_pylist(), new.to_pylist()
        return [Pair(clip_id="new", other="rejected", match=SAME)]

    monkeypatch.setattr(dedup_stage, "find_pairs", find_pairs)
    stage = DedupStage(config)
    now = pa.array(["stays", "new"])
    pairs, is_new = stage._pairs(corpus, now, [], CorpusWork("dedup"))
    assert (asked["own"], asked["new"]) == (["stays", "rejected", "new"], ["new"])
    assert is_new
    again = MagicMock(read=lambda _: pairs.table(), elsewhere=list)
    whole = pa.array(["stays", "rejected", "new"])
    found, is_new = stage._pairs(again, whole, [], CorpusWork("dedup"))
    assert not is_new
    assert found.pairs["other"].to_pylist() == ["rejected"]
