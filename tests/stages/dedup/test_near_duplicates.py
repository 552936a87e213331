"""Stored pairs: what was compared is not compared again, wherever its other clip is."""

from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from curator.executor.corpus_work import CorpusWork
from curator.matching.verify_pair import Match
from curator.stages.dedup import stage as dedup_stage
from curator.stages.dedup.config import DedupConfig
from curator.stages.dedup.near_duplicates import NearDuplicatePairs, Pair
from curator.stages.dedup.stage import DedupStage, search_settings
from tests.made_out import SAME

MATCH = Match(
    offset_s=1.5, speed=1.0, overlap_s=3.0, share_a=0.75, share_b=1.0, mirrored=True,
    similarity=0.9, n_inliers=40,
)  # fmt: skip


def pair(clip_id: str, other: str, place: str = "") -> Pair:
    return Pair(clip_id=clip_id, other=other, place=place, match=MATCH)


def ids(*names: str) -> pa.Array:
    return pa.array(names, pa.string())


def none() -> NearDuplicatePairs:
    return NearDuplicatePairs.of(None, "settings")


def named(pairs: NearDuplicatePairs) -> list[tuple[str, str, str]]:
    rows = pairs.pairs.to_pylist()
    return [
        (row["clip_id"], row["other"], pairs.places[row["place"]] if row["place"] >= 0 else "")
        for row in rows
    ]


def test_pairs_are_stored_for_the_same_search_and_go_with_clips_and_places() -> None:
    pairs = none().with_new(ids("a", "b"), ["x"], [pair("a", "b"), pair("b", "far", "x")])
    again = NearDuplicatePairs.of(pairs.table(), "settings")
    assert named(again) == named(pairs) == [("a", "b", ""), ("b", "far", "x")]
    assert again.compared.equals(ids("a", "b"))
    assert again.places == ("x",)
    row = again.pairs.to_pylist()[0]
    assert (row["offset_s"], row["share"], row["share_of_other"]) == (1.5, 0.75, 1.0)
    assert (row["mirrored"], row["inliers"]) == (True, 40)
    # Pairs of another search do not count.
    pairs = none().with_new(ids("a", "b"), [], [pair("a", "b")])
    other = NearDuplicatePairs.of(pairs.table(), "other settings")
    assert (len(other.compared), other.pairs.num_rows) == (0, 0)
    # Pairs come and go with clips and places.
    pairs = none().with_new(ids("a", "b"), [], [pair("a", "b")])
    more = pairs.with_new(ids("a", "b", "c"), [], [pair("a", "c")])
    assert named(more) == [("a", "b", ""), ("a", "c", "")]
    # Clips that are gone take their pairs.
    pairs = none().with_new(ids("a", "b", "c"), [], [pair("a", "b"), pair("b", "c")])
    assert named(pairs.with_new(ids("b", "c"), [], [])) == [("b", "c", "")]
    # Places that are gone take their pairs and others are numbered anew.
    new = [pair("a", "far", "x"), pair("a", "near", "y"), pair("a", "b")]
    pairs = none().with_new(ids("a", "b"), ["x", "y"], new)
    now = pairs.with_new(ids("a", "b"), ["y", "z"], [pair("b", "new", "z")])
    assert sorted(named(now)) == [("a", "b", ""), ("a", "near", "y"), ("b", "new", "z")]
    assert now.places == ("y", "z")


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
