"""Which clips the search for near-duplicates retains, and whose duplicates the others are."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from curator.stages.dedup.config import DedupConfig
from curator.stages.dedup.retention import Duplicates, find_duplicates, rank_order

Vectors = NDArray[np.float32]
Order = NDArray[np.int64]


def unit(vectors: NDArray[Any]) -> Vectors:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def at_degrees(*degrees: float) -> Vectors:
    """Vectors in a plane, so that cosines are those of differences of angles."""
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def families(n: int, *, seed: int = 0) -> Vectors:
    """Vectors in groups that are alike."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(max(1, n // 5), 24))
    return unit(centres[rng.integers(0, len(centres), n)] + 0.5 * rng.normal(size=(n, 24)))


def best_first(*numbers: int) -> Order:
    """An order of clips by their numbers."""
    return np.array(numbers, np.int64)


def shuffled(n: int, *, seed: int = 0) -> Order:
    return np.random.default_rng(seed).permutation(n)


def by_definition(vectors: Vectors, order: Order, similarity: float) -> Duplicates:
    """The same by its definition: one clip at a time, from the best to the worst."""
    retained: list[int] = []
    of, score = np.arange(len(vectors)), np.ones(len(vectors), np.float32)
    for item in order.tolist():
        cosines = vectors[retained].astype(float) @ vectors[item].astype(float)
        if retained and cosines.max() >= similarity:
            of[item], score[item] = retained[int(cosines.argmax())], cosines.max()
        else:
            retained.append(item)
    return Duplicates(is_duplicate=of != np.arange(len(of)), duplicate_of=of, similarity=score)


def test_better_clip_of_a_pair_is_retained() -> None:
    found = find_duplicates(at_degrees(0, 10, 90), best_first(2, 1, 0), similarity=0.9)
    assert found.is_duplicate.tolist() == [True, False, False]
    assert found.duplicate_of.tolist() == [1, 1, 2]
    assert found.similarity == pytest.approx([np.cos(np.radians(10)), 1, 1], abs=1e-5)


def test_chain_loses_only_what_resembles_a_retained_clip() -> None:
    """A ~ B ~ C with A and C apart: B resembles A; C resembles only B, which is gone."""
    found = find_duplicates(at_degrees(0, 20, 40), best_first(0, 1, 2), similarity=0.9)
    assert found.is_duplicate.tolist() == [False, True, False]


def test_most_similar_retained_clip_is_named_rather_than_the_best() -> None:
    found = find_duplicates(at_degrees(0, 40, 25), best_first(0, 1, 2), similarity=0.85)
    assert found.duplicate_of.tolist() == [0, 1, 1]


def test_of_equally_similar_clips_the_better_ranked_is_named() -> None:
    found = find_duplicates(at_degrees(-20, 20, 0), best_first(1, 0, 2), similarity=0.9)
    assert found.duplicate_of.tolist() == [0, 1, 1]


def test_threshold_is_inclusive_and_exact_copies_reach_one() -> None:
    same = np.repeat(families(1), 3, axis=0)
    found = find_duplicates(same, best_first(1, 0, 2), similarity=1.0)
    assert found.duplicate_of.tolist() == [1, 1, 1]
    assert found.similarity.tolist() == [1, 1, 1]


@pytest.mark.parametrize("exact_below", [0, 10_000], ids=["clusters", "exact"])
@pytest.mark.parametrize("n", [1, 2, 7, 400, 2500])
def test_result_is_that_of_the_definition(n: int, exact_below: int) -> None:
    vectors, order = families(n), shuffled(n)
    expected = by_definition(vectors, order, 0.8)
    found = find_duplicates(vectors, order, similarity=0.8, exact_below=exact_below)
    assert np.array_equal(found.is_duplicate, expected.is_duplicate)
    assert np.array_equal(found.duplicate_of, expected.duplicate_of)
    assert found.similarity == pytest.approx(expected.similarity, abs=1e-5)


def test_order_of_the_input_does_not_matter() -> None:
    vectors, order = families(1500), shuffled(1500)
    found = find_duplicates(vectors, order, similarity=0.8)
    mixed = np.random.default_rng(1).permutation(1500)
    again = find_duplicates(vectors[mixed], np.argsort(mixed)[order], similarity=0.8)
    assert np.array_equal(again.is_duplicate, found.is_duplicate[mixed])
    assert np.array_equal(mixed[again.duplicate_of], found.duplicate_of[mixed])
    assert np.array_equal(again.similarity, found.similarity[mixed])


def test_clusters_miss_few_duplicates() -> None:
    rng = np.random.default_rng(2)
    originals = unit(rng.normal(size=(6000, 64)))
    copies = unit(originals[:2000] + 0.5 * rng.normal(size=(2000, 64)) / 8)
    vectors = np.concatenate([originals, copies])
    order = np.arange(len(vectors))
    found = find_duplicates(vectors, order, similarity=0.8, exact_below=100, probes=32)
    exact = find_duplicates(vectors, order, similarity=0.8)
    assert exact.is_duplicate.sum() >= 1990
    assert found.is_duplicate.sum() >= 0.97 * exact.is_duplicate.sum()
    assert not (found.is_duplicate & ~exact.is_duplicate).any()


def test_float16_embeddings_are_accepted() -> None:
    vectors, order = families(300), shuffled(300)
    full = find_duplicates(vectors, order, similarity=0.8)
    half = find_duplicates(vectors.astype(np.float16), order, similarity=0.8)
    assert (full.is_duplicate == half.is_duplicate).mean() > 0.99


def test_nothing_gives_nothing() -> None:
    found = find_duplicates(np.zeros((0, 8), np.float32), best_first(), similarity=0.9)
    assert found.is_duplicate.shape == found.duplicate_of.shape == found.similarity.shape == (0,)


@pytest.mark.parametrize(
    ("vectors", "order", "message"),
    [
        (np.array([[1, 0], [np.nan, 1]], np.float32), best_first(0, 1), "embedding 1 has norm nan"),
        (np.array([[1, 0], [0, 0]], np.float32), best_first(0, 1), "embedding 1 has norm 0.0"),
        (np.array([[3, 4]], np.float32), best_first(0), "norm 5.0, expected 1"),
        (np.eye(2, dtype=np.float32), best_first(0), "has 1 numbers, expected each below 2"),
        (
            np.eye(2, dtype=np.float32),
            best_first(0, 0),
            "has 2 numbers, expected each",
        ),
        (np.eye(2), best_first(0, 1), r"float64\[2, 2\], expected float32 or float16 \[N, D\]"),
        (np.ones(2, np.float32), best_first(0, 1), r"float32\[2\], expected"),
    ],
    ids=["nan", "zero", "length 5", "few numbers", "equal numbers", "float64", "one dimension"],
)
def test_wrong_input_is_refused(vectors: NDArray[Any], order: Order, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_duplicates(vectors, order, similarity=0.9)


def test_order_prefers_pixels_then_bits_then_length_then_the_first() -> None:
    clips = [(100, 0.1, 50), (100, 0.1, 50), (100, 0.1, 60), (100, 0.2, 10), (200, 0.01, 50)]
    pixels, bits, frames = map(np.array, zip(*clips, strict=True))
    order = rank_order(pixels=pixels, bits_per_pixel=bits, n_frames=frames)
    assert order.tolist() == [4, 3, 2, 0, 1]


def test_what_has_no_order_is_refused() -> None:
    with pytest.raises(ValueError, match="bits_per_pixel is nan"):
        rank_order(pixels=np.array([1]), bits_per_pixel=np.array([np.nan]), n_frames=np.array([1]))


def test_configuration_refuses_unknown_keys_and_impossible_values() -> None:
    with pytest.raises(ValidationError, match="similarty"):
        DedupConfig.model_validate({"similarty": 0.9})
    with pytest.raises(ValidationError, match="less than or equal to 1"):
        DedupConfig(similarity=1.5)


@pytest.mark.needs_gpu
def test_clusters_on_a_gpu_find_the_same_duplicates() -> None:
    faiss = pytest.importorskip("faiss")
    if not hasattr(faiss, "StandardGpuResources"):
        pytest.skip("this FAISS is a build without GPU code")
    vectors, order = families(6000), shuffled(6000)
    on_cpu = find_duplicates(vectors, order, similarity=0.8, exact_below=100)
    on_gpu = find_duplicates(vectors, order, similarity=0.8, exact_below=100, on_gpu=True)
    assert (on_gpu.is_duplicate == on_cpu.is_duplicate).mean() > 0.999
