"""Which clips stay, and what others retain: no footage twice, none lost, in any order."""

from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pytest

from curator.matching.verify_pair import Match
from curator.stages.dedup.retention import (
    Division,
    Ranked,
    ShortestClip,
    ShownParts,
    divisions,
    dropped_clips,
)
from curator.tables.clip_rank import rank_order
from curator.tables.duplicate_pairs import NearDuplicatePairs, Pair

Pairs = list[tuple[int, int, float, float]]


def ranked(
    n: int,
    *,
    order: list[int] | None = None,
    pixels: list[int] | None = None,
    n_frames: list[int] | None = None,
) -> Ranked:
    return Ranked(
        order=np.array(order if order is not None else range(n), np.int64),
        pixels=np.array(pixels if pixels is not None else [1] * n, np.int64),
        n_frames=np.array(n_frames if n_frames is not None else [10] * n, np.int64),
    )


def dropped(of: Ranked, pairs: Pairs, least: float = 0.8) -> dict[int, int]:
    first, second, a, b = (np.array(column) for column in zip(*pairs, strict=True))
    found = dropped_clips(of, first, second, a, b, min_share=least)
    for clip, (other, pair) in found.items():
        assert {clip, other} == {first[pair], second[pair]}
    return {clip: other for clip, (other, _) in found.items()}


def test_the_worse_or_shorter_clip_goes_and_a_chain_drops_its_middle() -> None:
    assert dropped(ranked(2), [(0, 1, 1.0, 1.0)]) == {1: 0}
    assert dropped(ranked(2, order=[1, 0]), [(0, 1, 1.0, 1.0)]) == {0: 1}
    # 1 shows what 0 shows, and 2 what 1 shows; 0 and 2 have nothing in common.
    pairs: Pairs = [(0, 1, 1.0, 1.0), (1, 2, 1.0, 1.0)]
    assert dropped(ranked(3), pairs) == {1: 0}
    # Less than the share drops nothing.
    assert dropped(ranked(2), [(0, 1, 0.79, 0.79)]) == {}
    assert dropped(ranked(2), [(0, 1, 0.8, 0.8)]) == {1: 0}
    # The shorter one ranks first, by quality; the longer one loses only a tenth of itself.
    clips = ranked(2, n_frames=[10, 100])
    assert dropped(clips, [(0, 1, 1.0, 0.1)]) == {0: 1}
    # A short clip of more pixels stays.
    clips = ranked(2, n_frames=[10, 100], pixels=[4, 1])
    assert dropped(clips, [(0, 1, 1.0, 0.1)]) == {}
    # 2 is a copy of 0, which goes for the longer 1; 2 is in 1 as well, or else stays.
    clips = ranked(3, n_frames=[10, 100, 9])
    both: Pairs = [(0, 1, 1.0, 0.1), (0, 2, 1.0, 1.0), (1, 2, 0.1, 1.0)]
    assert dropped(clips, both) == {0: 1, 2: 1}
    assert dropped(clips, both[:2]) == {0: 1}
    # The clip that shows most is named.
    pairs: Pairs = [(0, 2, 1.0, 0.85), (1, 2, 1.0, 0.95)]
    assert dropped(ranked(3), pairs) == {2: 1}


def made_pairs(rng: np.random.Generator, n: int) -> Pairs:
    pairs = {tuple(sorted(rng.choice(n, 2, replace=False).tolist())) for _ in range(2 * n)}
    return [(a, b, *rng.choice([0.5, 0.9, 1.0], 2).tolist()) for a, b in sorted(pairs)]


@pytest.mark.parametrize("seed", range(20))
def test_every_dropped_clip_names_one_that_stays_in_any_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = 30
    clips = ranked(
        n,
        order=rng.permutation(n).tolist(),
        n_frames=rng.integers(5, 50, n).tolist(),
        pixels=rng.integers(1, 3, n).tolist(),
    )
    pairs = made_pairs(rng, n)
    found = dropped(clips, pairs)
    share = {(a, b): s for a, b, s, _ in pairs} | {(b, a): s for a, b, _, s in pairs}
    assert found, "else nothing is tested"
    assert not set(found.values()) & set(found)
    assert all(share[clip, other] >= 0.8 for clip, other in found.items())
    for a, b, of_a, of_b in pairs:
        assert min(of_a, of_b) < 0.8 or a in found or b in found
    turned = [(b, a, of_b, of_a) for a, b, of_a, of_b in reversed(pairs)]
    assert dropped(clips, turned) == found


def test_rank_order_takes_criteria_in_turn() -> None:
    pixels, length = np.array([1.0, 2.0, 2.0]), np.array([9.0, 1.0, 5.0])
    assert rank_order([pixels, length]).tolist() == [2, 1, 0]
    assert rank_order([length, pixels]).tolist() == [0, 2, 1]
    # A criterion without order is refused.
    with pytest.raises(ValueError, match="a criterion is nan, expected finite numbers"):
        rank_order([np.array([1.0, np.nan])])


LEAST_S = 2.0
Interval = tuple[float, float]


def pair(
    a: str, b: str, of_a: Interval, of_b: Interval, *, speed: float = 1.0, lacks_s: float = 0.0
) -> Pair:
    """A pair of clips, each an interval of one film; `lacks_s` is not agreed upon."""
    offset_s = (of_a[0] - of_b[0]) * speed
    overlap_s = min(of_a[1], of_b[1]) - max(of_a[0], of_b[0]) - lacks_s
    match = Match(
        offset_s=offset_s, speed=speed, start_s=max(0.0, -offset_s / speed), overlap_s=overlap_s,
        share_a=overlap_s / (of_a[1] - of_a[0]), share_b=overlap_s / (of_b[1] - of_b[0]),
        mirrored=False, similarity=0.9, n_inliers=40,
    )  # fmt: skip
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
        [n for n in numbers if names[n] not in going], [n for n in numbers if names[n] in going],
        ShownParts(table, first, second), lengths, np.full(len(names), LEAST_S),
        np.zeros(len(names), np.bool_), max_lost=0.2,
    )  # fmt: skip
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


@pytest.mark.parametrize(("start_s", "is_whole"), [(19.97, True), (19.8, False)])
def test_a_clip_of_which_no_other_one_retains_more_than_frames_stays(
    start_s: float, is_whole: bool
) -> None:
    """Pins that the rest of a dropped clip is not a second clip of the same frames."""
    clips = {"a": (0.0, 20.0), "b": (start_s, 30.0)}
    divided = found(clips, [pair("a", "b", *clips.values())], going="b")
    assert (divided["b"].is_whole, len(divided["b"].pieces)) == (is_whole, 1)


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
    # Footage of reference clips is taken too.
    own = pair("a", "far", (0.0, 20.0), (5.0, 12.0))
    far = Pair(clip_id="a", other="far", place="x", match=Match(**asdict(own.match)))
    assert pieces(found({"a": (0.0, 20.0)}, [far])["a"]) == [(0.0, 5.0), (12.0, 20.0)]
    # The shortest clip has enough seconds and frames.
    shortest = ShortestClip(seconds=2.0, n_frames=50)
    assert shortest.seconds_at(np.array([30.0, 10.0])).tolist() == [2.0, 5.0]
