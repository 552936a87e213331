"""The learned head: exact sums, streams, and what its weights see in made pictures."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from film_shots import photograph
from numpy.typing import NDArray

from curator.measures.boundaries import boundary_peaks
from curator.models.shot_head import (
    BLOCK,
    LOOK,
    N_PAIR_INPUTS,
    REACH,
    WEIGHTS,
    HeadStream,
    head_weights,
    pair_inputs,
    run_head,
    small_pictures,
)
from curator.models.transnet import ShotAnswers, ShotNetwork

Clip = NDArray[np.uint8]
HEAD = head_weights()
N_VALUES = 2 + HEAD.projection.shape[1]


def noise(n_frames: int, seed: int = 0) -> tuple[Clip, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 256, (n_frames, 27, 48, 3)).astype(np.uint8)
    return frames, rng.random((n_frames, N_VALUES)).astype(np.float32)


def streamed(frames: Clip, answers: NDArray[np.float32], step: int, late: int) -> NDArray:
    """All answers of a stream that gets `step` frames at a time, and answers `late` behind.

    They are rounded as the network's stream rounds them: the last bit of an exponential depends on
    its place in a vector.
    """
    stream, found = HeadStream(HEAD), []
    for start in range(0, len(frames) + late, step):
        stream.push(torch.from_numpy(frames[start : start + step]))
        new = torch.from_numpy(answers[max(0, start - late) : max(0, start - late + step)])
        found.append(stream.answer(new, is_last=start + step >= len(frames) + late))
    return np.round(torch.cat(found).numpy(), 4)


@pytest.mark.parametrize(
    ("n_frames", "held"),
    [
        (1, 1), (14, 9), (BLOCK + REACH + LOOK, 9),
        *(pytest.param(700, held, marks=pytest.mark.long) for held in (1, 9)),
    ],
)  # fmt: skip
def test_chunks_change_no_bit(n_frames: int, held: int) -> None:
    """Pictures that are held make each step between them stand out, on seams of blocks too."""
    frames, answers = noise(n_frames)
    frames = np.repeat(frames, held, axis=0)[:n_frames]
    whole = streamed(frames, answers, n_frames, 0)
    assert whole.shape == (n_frames, 4)
    np.testing.assert_array_equal(whole[:, :2], np.round(answers[:, :2].astype(float), 4))
    for step, late in ((1, 40), (64, 75), (37, 200)):
        np.testing.assert_array_equal(streamed(frames, answers, step, late), whole)


def test_weights_are_on_a_grid_on_which_sums_have_no_order() -> None:
    """Pins that sums are exact: inputs and weights in another order give the same bits."""
    frames, answers = noise(60, seed=1)
    pair = pair_inputs(small_pictures(torch.from_numpy(frames)), 0, 60)
    expected = run_head(HEAD, torch.from_numpy(answers), pair)
    order = np.random.default_rng(2).permutation(N_PAIR_INPUTS)
    first = HEAD.enter.shape[1] - N_PAIR_INPUTS
    enter = HEAD.enter.clone()
    enter[:, first:] = HEAD.enter[:, first:][:, order]
    shuffled = run_head(replace(HEAD, enter=enter), torch.from_numpy(answers), pair[:, order])
    assert torch.equal(shuffled, expected)
    # The weights are small and on the grid.
    assert WEIGHTS.stat().st_size < 1 << 20
    for values in (HEAD.enter, HEAD.layers, HEAD.leave):
        assert torch.equal(values * 4096, torch.round(values * 4096))


NETWORK = ShotNetwork(precision="float32")


def seen(frames: list[Clip]) -> ShotAnswers:
    stream = NETWORK.stream()
    for frame in frames:
        stream.push(np.ascontiguousarray(cv2.resize(frame, (48, 27), interpolation=cv2.INTER_AREA)))
    return stream.finish()


def moving(name: str, n: int) -> list[Clip]:
    """A camera that pans over a photograph."""
    wide = cv2.resize(photograph(name), (600, 400), interpolation=cv2.INTER_AREA)
    return [wide[90 : 90 + 216, i : i + 384] for i in range(n)]


def boundaries(answers: ShotAnswers) -> list[int]:
    peaks = boundary_peaks(answers.boundary)
    return [int(frame) + 1 for frame in peaks if answers.boundary[frame] > 0.5]


def test_a_cut_is_found_to_the_frame() -> None:
    answers = seen([*moving("coffee", 60), *moving("astronaut", 60)])
    assert boundaries(answers) == [60]
    assert answers.inside[[40, 80]].max() < 0.5


@pytest.mark.parametrize("kind", ["dissolve", "wipe"])
def test_a_gradual_transition_is_found_with_its_extent(kind: str) -> None:
    a, b = moving("coffee", 80), moving("astronaut", 80)
    between = []
    for i in range(20):
        share = (i + 1) / 21
        if kind == "dissolve":
            between.append(cv2.addWeighted(a[60 + i], 1 - share, b[i], share, 0))
        else:
            edge = int(share * 384)
            between.append(np.concatenate([b[i][:, :edge], a[60 + i][:, edge:]], axis=1))
    answers = seen([*a[:60], *between, *b[20:]])
    (found,) = boundaries(answers)
    assert 60 <= found <= 80
    marked = np.flatnonzero(answers.inside > 0.5)
    around = marked[(marked >= 40) & (marked < 100)]
    assert set(range(60, 80)) <= set(around.tolist())
    assert len(around) <= 20 + 2 * 10


def test_a_flash_and_a_pan_are_no_boundary() -> None:
    frames = [frame.copy() for frame in moving("coffee", 120)]
    for i in (60, 61):
        frames[i] = np.clip(frames[i].astype(int) + 120, 0, 255).astype(np.uint8)
    assert boundaries(seen(frames)) == []
