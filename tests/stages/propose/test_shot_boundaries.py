"""Shots from a track: conventions at every edge, and what the fusion takes for a boundary."""

from itertools import pairwise

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from samples import made_track

from curator.measures.change import ChangeStream
from curator.records.clips import Shot
from curator.records.tracks import Track
from curator.stages.propose.clip_spans import propose_clips
from curator.stages.propose.config import ProposeConfig
from curator.stages.propose.shot_boundaries import find_shots as shots_of

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


def film(frames: list[NDArray[np.uint8]], peaks: dict[int, float] | None = None) -> Track:
    """A track of pictures with the network's peaks, both heads alike, at 30 frames/s."""
    stream = ChangeStream()
    for frame in frames:
        stream.push(frame)
    n = len(frames)
    single = np.full(n, 0.001, np.float32)
    for frame_number, value in (peaks or {}).items():
        single[frame_number] = value
    return made_track(
        n, shot_probability=single, transition_probability=single, changes=stream.finish()
    )


def wall(figure_x: int, noise_seed: int = 0) -> NDArray[np.uint8]:
    """A small figure before a plain wall."""
    frame = np.full((27, 48, 3), 120, np.uint8)
    frame[8:24, figure_x : figure_x + 6] = (90, 20, 40)
    frame[6:9, figure_x + 1 : figure_x + 5] = (200, 160, 140)
    noise = np.random.default_rng(noise_seed).integers(0, 2, frame.shape)
    return np.asarray(frame + noise, np.uint8)


def scene(seed: int) -> NDArray[np.uint8]:
    small = np.random.default_rng(seed).integers(0, 256, (5, 8, 3)).astype(np.uint8)
    return np.asarray(np.kron(small, np.ones((6, 6, 1), np.uint8))[:27, :48])


FUSED = ProposeConfig()


def cuts(track: Track, config: ProposeConfig = FUSED) -> list[int]:
    return [shot.start_frame for shot in shots_of(track, config)][1:]


def test_a_jump_cut_before_a_plain_wall_is_found_without_the_network() -> None:
    """Pins what the network misses; it alone finds nothing here."""
    frames = [wall(10, n) for n in range(40)] + [wall(30, n) for n in range(40)]
    assert cuts(film(frames)) == [40]
    assert cuts(film(frames), ProposeConfig(shots="network")) == []


def test_a_figure_that_walks_makes_no_boundary() -> None:
    assert cuts(film([wall(n // 3, n) for n in range(120)])) == []


def test_a_flash_is_no_boundary_though_the_network_fires() -> None:
    frames = [scene(1)] * 80
    frames[40:42] = [np.full_like(frames[0], 250)] * 2
    track = film(frames, {39: 0.6, 41: 0.6})
    assert cuts(track) == []
    assert len(cuts(track, ProposeConfig(shots="network"))) == 2


def test_a_cut_that_the_network_half_sees_is_one() -> None:
    """Pins that other colours and contrasts on both sides make a weak peak a boundary."""
    frames = [scene(1)] * 40 + [scene(2)] * 40
    assert cuts(film(frames, {38: 0.3})) == [40]


def test_a_weak_peak_with_the_same_on_both_sides_is_none() -> None:
    assert cuts(film([scene(1)] * 80, {38: 0.5})) == []


def drifting(places: list[float]) -> list[NDArray[np.uint8]]:
    """A wide picture that a camera of the network's size looks at from these places, in pixels."""
    small = np.random.default_rng(5).integers(0, 256, (4, 40, 3)).astype(np.uint8)
    wide = cv2.resize(small, (400, 27), interpolation=cv2.INTER_CUBIC)
    matrices = [np.array([[1.0, 0, -place], [0, 1, 0]]) for place in places]
    return [np.asarray(cv2.warpAffine(wide, matrix, (48, 27))) for matrix in matrices]


def test_lost_frames_of_a_moving_camera_make_no_boundary() -> None:
    """Pins that a step is one where the picture rests beside it, and none where it moves anyway."""
    before, after = [0.3 * n for n in range(40)], [0.3 * n + 3.6 for n in range(40, 80)]
    assert cuts(film(drifting(before + after))) == []
    assert cuts(film(drifting([before[-1]] * 40 + [after[0]] * 40))) == [40]


def test_the_threshold_of_the_fusion_is_the_recipe_s() -> None:
    track = film([scene(1)] * 80, {38: 0.9})
    assert cuts(track, ProposeConfig(boundary_threshold=0.01)) == [39]
    assert cuts(track, ProposeConfig(boundary_threshold=0.99)) == []


def test_black_and_flat_stretches_belong_to_no_shot() -> None:
    """Pins pauses of 0.5 s and trailing black; two black frames are no pause."""
    luma_spread = np.full(200, 0.2, np.float32)
    luma_spread[60:75] = 0.005
    luma_spread[120:122] = 0.005
    luma_spread[180:] = 0.005
    shots = shots_of(made_track(200, luma_spread=luma_spread), FUSED)
    assert spans(shots) == [
        (0, 60, "none", "gradual"),
        (75, 180, "gradual", "gradual"),
    ]
    assert shots_of(made_track(200, luma_spread=np.zeros(200, np.float32)), FUSED) == []


def test_a_fade_to_black_goes_with_the_black() -> None:
    """Pins that the second head's run widens a black stretch, small print in it or not."""
    luma_mean, luma_spread = np.full(200, 0.4, np.float32), np.full(200, 0.2, np.float32)
    luma_mean[100:120], luma_spread[100:120] = 0.005, 0.02
    fading = np.zeros(200, np.float32)
    fading[90:101] = 0.9
    track = made_track(
        200, luma_mean=luma_mean, luma_spread=luma_spread, transition_probability=fading
    )
    assert spans(shots_of(track, FUSED)) == [
        (0, 90, "none", "gradual"),
        (120, 200, "gradual", "none"),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_fused_shots_are_disjoint_ordered_and_not_empty(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 200))
    frames = [scene(int(rng.integers(0, 3))) if rng.random() < 0.2 else scene(1) for _ in range(n)]
    track = film(frames, {int(k): 0.9 for k in rng.integers(0, n, 5)})
    shots = shots_of(track, FUSED)
    assert all(0 <= s.start_frame < s.end_frame <= n for s in shots)
    assert all(a.end_frame <= b.start_frame for a, b in pairwise(shots))
