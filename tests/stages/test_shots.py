"""Shots from a track: conventions at every edge, and what the fusion takes for a boundary."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from samples import made_track

from curator.records import Shot
from curator.stages.propose import ProposeConfig, propose_clips
from curator.stages.shots import find_shots as shots_of

F = 100
CONFIG = ProposeConfig(shots="network")
Heads = tuple[NDArray[np.float32], NDArray[np.float32]]


def heads(
    single: dict[int, float] | None = None, many: tuple[int, int] | None = None, n: int = F
) -> Heads:
    """Probabilities: the first head at frames, the second on an inclusive run."""
    first, second = np.zeros(n, np.float32), np.zeros(n, np.float32)
    for frame, value in (single or {}).items():
        first[frame] = value
    if many is not None:
        second[many[0] : many[1] + 1] = 0.9
    return first, second


def find_shots(
    single: NDArray[np.float32], many: NDArray[np.float32], config: ProposeConfig
) -> list[Shot]:
    track = made_track(len(single), shot_probability=single, transition_probability=many)
    return shots_of(track, config)


def spans(shots: list[Shot]) -> list[tuple[int, int, str, str]]:
    return [(s.start_frame, s.end_frame, s.transition_in, s.transition_out) for s in shots]


def test_a_peak_marks_the_last_frame_before_a_cut() -> None:
    """Pins the network's convention, turned into half-open spans: frame 39 ends the shot."""
    assert spans(find_shots(*heads({39: 0.9}), CONFIG)) == [
        (0, 40, "none", "cut"),
        (40, F, "cut", "none"),
    ]


def test_a_gradual_transition_belongs_to_no_shot() -> None:
    """Pins that the second head's run widens the peak, and is named gradual on both sides."""
    assert spans(find_shots(*heads({45: 0.7}, many=(40, 50)), CONFIG)) == [
        (0, 41, "none", "gradual"),
        (51, F, "gradual", "none"),
    ]


def test_a_run_of_peaks_is_one_transition() -> None:
    """Pins that neighbouring frames above the threshold make no shot of one frame."""
    assert spans(find_shots(*heads({39: 0.9, 40: 0.8}), CONFIG)) == [
        (0, 40, "none", "gradual"),
        (41, F, "gradual", "none"),
    ]


def test_the_second_head_alone_makes_no_transition() -> None:
    """Pins that only the first head decides whether there is one."""
    assert spans(find_shots(*heads(many=(40, 50)), CONFIG)) == [(0, F, "none", "none")]


def test_a_run_beside_the_peak_still_widens_it() -> None:
    """Pins that runs touch when no frame lies between them, and not when one does."""
    assert spans(find_shots(*heads({39: 0.9}, many=(40, 45)), CONFIG))[0][:2] == (0, 40)
    assert spans(find_shots(*heads({39: 0.9}, many=(40, 45)), CONFIG))[1][:2] == (46, F)
    assert spans(find_shots(*heads({39: 0.9}, many=(41, 45)), CONFIG))[1][:2] == (40, F)


def test_two_peaks_in_one_run_are_one_transition() -> None:
    """Pins that a dissolve with two peaks of the first head leaves no shot inside."""
    assert spans(find_shots(*heads({42: 0.8, 47: 0.8}, many=(40, 50)), CONFIG)) == [
        (0, 41, "none", "gradual"),
        (51, F, "gradual", "none"),
    ]


def test_thresholds_are_exclusive() -> None:
    """Pins that a probability at the threshold is none."""
    config = ProposeConfig(shots="network", shot_threshold=0.5)
    assert len(find_shots(*heads({39: 0.5}), config)) == 1
    assert len(find_shots(*heads({39: 0.501}), config)) == 2


def test_a_peak_on_the_last_frame_is_the_end_of_the_film() -> None:
    """Pins that no shot stands after the last frame, and that the film ends without transition."""
    assert spans(find_shots(*heads({F - 1: 0.9}), CONFIG)) == [(0, F, "none", "none")]


def test_a_transition_at_the_end_ends_the_last_shot() -> None:
    """Pins a fade-out: its frames belong to no shot."""
    assert spans(find_shots(*heads({F - 4: 0.9}, many=(F - 8, F - 1)), CONFIG)) == [
        (0, F - 7, "none", "gradual")
    ]


def test_a_transition_at_the_start_leaves_its_first_frame_as_a_shot() -> None:
    """Pins that a fade-in costs one shot of one frame, which is later rejected as too short."""
    assert spans(find_shots(*heads({3: 0.9}, many=(0, 6)), CONFIG)) == [
        (0, 1, "none", "gradual"),
        (7, F, "gradual", "none"),
    ]


@pytest.mark.parametrize("seed", range(60))
def test_shots_are_disjoint_ordered_inside_and_not_empty(seed: int) -> None:
    """Pins, for any probabilities, what later stages rely on."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 400))
    sharpness = rng.uniform(0.5, 12)
    single = (rng.random(n) ** sharpness).astype(np.float32)
    many = (np.repeat(rng.random(n), int(rng.integers(1, 9)))[:n] ** 2).astype(np.float32)
    shots = find_shots(single, many, CONFIG)
    assert shots[0].start_frame == 0
    assert shots[0].transition_in == "none"
    assert all(0 <= s.start_frame < s.end_frame <= n for s in shots)
    for before, after in pairwise(shots):
        gap = after.start_frame - before.end_frame
        assert gap >= 0
        assert before.transition_out == after.transition_in == ("gradual" if gap else "cut")
    for frame in np.flatnonzero(single[:-1] > CONFIG.shot_threshold):
        assert not any(s.start_frame <= frame and frame + 1 < s.end_frame for s in shots)
    clips = propose_clips(made_track(n), shots, CONFIG)
    for clip in clips:
        shot = shots[clip.shot]
        assert shot.start_frame <= clip.start_frame < clip.end_frame <= shot.end_frame
    assert all(a.end_frame <= b.start_frame for a, b in pairwise(clips))
    assert {clip.shot for clip in clips} == set(range(len(shots)))
