"""Which clips stay: independent of order, without chains, and no footage twice."""

import numpy as np
import pytest

from curator.stages.dedup.retention import Ranked, dropped_clips
from curator.tables.clip_rank import rank_order

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


def test_the_worse_clip_goes_and_a_chain_drops_only_its_middle() -> None:
    assert dropped(ranked(2), [(0, 1, 1.0, 1.0)]) == {1: 0}
    assert dropped(ranked(2, order=[1, 0]), [(0, 1, 1.0, 1.0)]) == {0: 1}
    # 1 shows what 0 shows, and 2 what 1 shows; 0 and 2 have nothing in common.
    pairs: Pairs = [(0, 1, 1.0, 1.0), (1, 2, 1.0, 1.0)]
    assert dropped(ranked(3), pairs) == {1: 0}
    # Less than the share drops nothing.
    assert dropped(ranked(2), [(0, 1, 0.79, 0.79)]) == {}
    assert dropped(ranked(2), [(0, 1, 0.8, 0.8)]) == {1: 0}


def test_a_short_clip_goes_for_the_longer_one_that_has_it() -> None:
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
