"""Stored pairs: what was compared is not compared again, wherever its other clip is."""

import pyarrow as pa

from curator.matching.verify_pair import Match
from curator.stages.dedup.near_duplicates import NearDuplicatePairs, Pair

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


def test_pairs_are_stored_and_read_again_for_the_same_search() -> None:
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


def test_pairs_come_and_go_with_clips_and_places() -> None:
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
