"""What clips retain: no footage twice, none lost in silence, whatever the order of pairs."""

from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pytest

from curator.matching.verify_pair import Match
from curator.stages.dedup.near_duplicates import NearDuplicatePairs, Pair
from curator.stages.dedup.retention import Division, ShortestClip, ShownParts, divisions

LEAST_S = 2.0
Interval = tuple[float, float]


def pair(
    a: str, b: str, of_a: Interval, of_b: Interval, *, speed: float = 1.0, lacks_s: float = 0.0
) -> Pair:
    """A pair of clips, each an interval of one film; `lacks_s` is not agreed upon."""
    offset_s = (of_a[0] - of_b[0]) * speed
    overlap_s = min(of_a[1], of_b[1]) - max(of_a[0], of_b[0]) - lacks_s
    match = Match(
        offset_s=offset_s,
        speed=speed,
        overlap_s=overlap_s,
        share_a=overlap_s / (of_a[1] - of_a[0]),
        share_b=overlap_s / (of_b[1] - of_b[0]),
        mirrored=False,
        similarity=0.9,
        n_inliers=40,
    )
    return Pair(clip_id=a, other=b, match=match)


def found(
    clips: dict[str, Interval], pairs: list[Pair], *, going: str = "", b_speed: float = 1.0
) -> dict[str, Division]:
    """Divides clips, the best first; those in `going` go."""
    names = list(clips)
    table = NearDuplicatePairs.of(None, "").with_new(pa.array(names), ["x"], pairs).pairs
    first, second = (
        np.array([names.index(n) if n in names else -1 for n in table[column].to_pylist()])
        for column in ("clip_id", "other")
    )
    lengths = np.array([(b - a) * (b_speed if n == "b" else 1.0) for n, (a, b) in clips.items()])
    numbers = range(len(names))
    divided = divisions(
        [n for n in numbers if names[n] not in going],
        [n for n in numbers if names[n] in going],
        ShownParts(table, first, second),
        lengths,
        np.full(len(names), LEAST_S),
        max_lost=0.2,
    )
    return {names[n]: one for n, one in divided.items()}


def pieces(division: Division) -> list[Interval]:
    return [(round(a, 3), round(b, 3)) for a, b in division.pieces]


@pytest.mark.parametrize("is_turned", [False, True])
def test_the_worse_of_two_clips_that_share_a_part_retains_the_rest(is_turned: bool) -> None:
    clips = {"a": (0.0, 20.0), "b": (12.0, 32.0)}
    ab = pair("b", "a", clips["b"], clips["a"]) if is_turned else pair("a", "b", *clips.values())
    divided = found(clips, [ab])
    assert divided.keys() == {"b"}
    assert pieces(divided["b"]) == [(8.0, 20.0)]
    assert (divided["b"].shared_s, divided["b"].lost_s) == pytest.approx((8, 0), abs=1e-4)


def test_a_clip_that_goes_retains_what_no_other_one_has() -> None:
    clips = {"a": (3.0, 30.0), "b": (0.0, 31.0)}
    divided = found(clips, [pair("a", "b", *clips.values())], going="b")
    assert pieces(divided["b"]) == [(0.0, 3.0)]
    assert divided["b"].lost_s == pytest.approx(1.0, abs=1e-4)
    # A clip of which two better ones have all is divided into nothing.
    clips = {"a": (0.0, 10.0), "b": (10.0, 20.0), "c": (0.0, 20.0)}
    pairs = [pair(name, "c", clips[name], clips["c"]) for name in "ab"]
    divided = found(clips, pairs)
    assert (divided["c"].pieces, divided["c"].lost_s) == ([], pytest.approx(0, abs=1e-4))
    # Two copies retain the same rest once.
    clips = {"a": (0.0, 20.0), "b": (0.0, 23.0), "c": (0.0, 23.0)}
    pairs = [pair(x, y, clips[x], clips[y]) for x, y in ("ab", "ac", "bc")]
    divided = found(clips, pairs, going="bc")
    assert (pieces(divided["b"]), divided["c"].pieces) == ([(20.0, 23.0)], [])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param((0.0, 13.0), (11.5, 30.0), id="shares less than the shortest clip"),
        pytest.param((1.9, 5.0), (0.0, 8.0), id="more than a fifth would be lost"),
    ],
)
def test_a_clip_that_stays_is_divided_only_where_it_is_worth_it(a: Interval, b: Interval) -> None:
    assert found({"a": a, "b": b}, [pair("a", "b", a, b)]) == {}


def test_only_what_others_retain_is_taken_at_its_time() -> None:
    clips = {"a": (0.0, 20.0), "b": (10.0, 32.0)}
    pairs = [pair("a", "b", *clips.values(), lacks_s=3.0)]
    assert found(clips, pairs) == {}
    assert pieces(found(clips, pairs, going="b")["b"]) == [(10.0, 22.0)]
    # `b` retains its end alone. Of what it had, `c` has the part that no pair says `a` has.
    clips = {"a": (0.0, 20.0), "b": (10.0, 30.0), "c": (15.0, 40.0)}
    ab, bc = pair("a", "b", clips["a"], clips["b"]), pair("b", "c", clips["b"], clips["c"])
    divided = found(clips, [ab, bc])
    assert pieces(divided["b"]) == [(10.0, 20.0)]
    assert pieces(divided["c"]) == [(0.0, 5.0), (15.0, 25.0)]
    ac = pair("a", "c", clips["a"], clips["c"])
    assert pieces(found(clips, [ab, bc, ac])["c"]) == [(15.0, 25.0)]
    # `b` plays 1.25 times as fast: its seconds are 0.8 of those of the film.
    clips = {"a": (0.0, 20.0), "b": (10.0, 30.0)}
    ab = pair("a", "b", *clips.values(), speed=0.8)
    assert pieces(found(clips, [ab], b_speed=0.8)["b"]) == [(8.0, 16.0)]
    # Footage elsewhere is taken too.
    own = pair("a", "far", (0.0, 20.0), (5.0, 12.0))
    far = Pair(clip_id="a", other="far", place="x", match=Match(**asdict(own.match)))
    assert pieces(found({"a": (0.0, 20.0)}, [far])["a"]) == [(0.0, 5.0), (12.0, 20.0)]
    # The shortest clip has enough seconds and frames.
    shortest = ShortestClip(seconds=2.0, n_frames=50)
    assert shortest.seconds_at(np.array([30.0, 10.0])).tolist() == [2.0, 5.0]
