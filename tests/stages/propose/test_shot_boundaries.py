"""Shots from a track: conventions at every edge, by the network alone and by the learned head."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from samples import made_track

from curator.errors import RecipeError
from curator.recipe import load_recipe
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


WHOLE = [(0, F, "none", "none")]


def parted(end: int, start: int) -> list[tuple[int, int, str, str]]:
    """Two shots, with a transition of some frames between them, or a cut."""
    kind = "cut" if end == start else "gradual"
    return [(0, end, "none", kind), (start, F, kind, "none")]


@pytest.mark.parametrize(
    ("single", "many", "expected"),
    [
        # The network's convention, turned into half-open spans: frame 39 ends the shot.
        ({39: 0.9}, None, parted(40, 40)),
        # The second head's run widens the peak; neighbours above the threshold make no shot.
        ({45: 0.7}, (40, 50), parted(41, 51)),
        ({39: 0.9, 40: 0.8}, None, parted(40, 41)),
        # Only the first head decides whether there is one.
        ({}, (40, 50), WHOLE),
        # Runs touch when no frame lies between them, and not when one does.
        ({39: 0.9}, (40, 45), parted(40, 46)),
        ({39: 0.9}, (41, 45), parted(40, 40)),
        # A dissolve with two peaks of the first head leaves no shot inside.
        ({42: 0.8, 47: 0.8}, (40, 50), parted(41, 51)),
        # No shot stands after the last frame, and frames of a fade-out belong to no shot.
        ({F - 1: 0.9}, None, WHOLE),
        ({F - 4: 0.9}, (F - 8, F - 1), [(0, F - 7, "none", "gradual")]),
        # A fade-in costs one shot of one frame, which is later rejected as too short.
        ({3: 0.9}, (0, 6), parted(1, 7)),
    ],
)
def test_a_peak_marks_the_last_frame_before_a_cut_or_a_transition(
    single: dict[int, float], many: tuple[int, int] | None, expected: list[object]
) -> None:
    assert spans(find_shots(*heads(single, many), CONFIG)) == expected


def test_a_probability_at_the_threshold_is_none() -> None:
    config = ProposeConfig(shots="network", shot_threshold=0.5)
    assert len(find_shots(*heads({39: 0.5}), config)) == 1
    assert len(find_shots(*heads({39: 0.501}), config)) == 2


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


def learned(peaks: dict[int, float], inside: tuple[int, int] | None = None, n: int = F) -> Track:
    """A track with the head's probabilities: of boundaries, and inside on an inclusive run."""
    boundary, within = heads(peaks, inside, n)
    return made_track(
        n, boundary_probability=boundary, inside_probability=within,
        descriptor=np.zeros((0, 8), np.float32),
    )  # fmt: skip


HEAD = ProposeConfig()


@pytest.mark.parametrize(
    ("peaks", "inside", "expected"),
    [
        ({39: 0.9}, None, parted(40, 40)),
        # The cut of interlaced and of blended films leaves one frame of both shots.
        ({39: 0.9}, (40, 40), parted(40, 41)),
        # A run without a peak and one far from it change nothing.
        ({}, (40, 50), WHOLE),
        ({30: 0.9}, (40, 50), parted(31, 31)),
        # Of a run with the peak about its middle all frames are inside.
        *(({peak: 0.7}, (40, 50), parted(40, 51)) for peak in (43, 45, 46)),
        # A run is followed as far as twice its other side and a frame.
        ({40: 0.7}, (40, 50), parted(40, 44)),
        ({50: 0.7}, (40, 50), parted(50, 51)),
    ],
)
def test_a_peak_of_the_head_is_a_cut_or_a_transition(
    peaks: dict[int, float], inside: tuple[int, int] | None, expected: list[object]
) -> None:
    assert spans(shots_of(learned(peaks, inside), HEAD)) == expected


def test_near_peaks_are_one_boundary_and_flat_stretches_belong_to_no_shot() -> None:
    """Pins that frames 6 apart are one boundary, and frames 7 apart two."""
    assert [s.start_frame for s in shots_of(learned({39: 0.7, 45: 0.9}), HEAD)] == [0, 46]
    assert [s.start_frame for s in shots_of(learned({39: 0.7, 46: 0.9}), HEAD)] == [0, 40, 47]
    track = learned({38: 0.6})
    assert len(shots_of(track, ProposeConfig(boundary_threshold=0.59))) == 2
    assert len(shots_of(track, ProposeConfig(boundary_threshold=0.61))) == 1
    # Pins pauses of 0.5 s and trailing black; two black frames are no pause.
    luma_spread = np.full(200, 0.2, np.float32)
    luma_spread[60:75] = 0.005
    luma_spread[120:122] = 0.005
    luma_spread[180:] = 0.005
    shots = shots_of(made_track(200, luma_spread=luma_spread), HEAD)
    assert spans(shots) == [(0, 60, "none", "gradual"), (75, 180, "gradual", "gradual")]
    assert shots_of(made_track(200, luma_spread=np.zeros(200, np.float32)), HEAD) == []
    # Pins that frames inside of a transition widen a black stretch, small print in it or not.
    luma_mean, luma_spread = np.full(200, 0.4, np.float32), np.full(200, 0.2, np.float32)
    luma_mean[100:120], luma_spread[100:120] = 0.005, 0.02
    fading = np.zeros(200, np.float32)
    fading[90:101] = 0.9
    track = made_track(200, luma_mean=luma_mean, luma_spread=luma_spread, inside_probability=fading)
    assert spans(shots_of(track, HEAD)) == [
        (0, 90, "none", "gradual"),
        (120, 200, "gradual", "none"),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_shots_of_the_head_are_disjoint_ordered_and_not_empty(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 400))
    inside = np.repeat(rng.random(n) < 0.2, int(rng.integers(1, 9)))[:n].astype(np.float32)
    boundary = (rng.random(n) ** 8).astype(np.float32)
    blank = np.zeros((0, 8), np.float32)
    track = made_track(
        n, boundary_probability=boundary, inside_probability=inside, descriptor=blank
    )
    shots = shots_of(track, HEAD)
    assert all(0 <= s.start_frame < s.end_frame <= n for s in shots)
    assert all(a.end_frame <= b.start_frame for a, b in pairwise(shots))


def test_a_take_that_a_flash_parts_is_one_shot() -> None:
    """Pins that both sides are compared: all samples of `made_track` are alike."""
    flash = heads({39: 0.8})[0]
    alike = made_track(F, boundary_probability=flash)
    assert spans(shots_of(alike, HEAD)) == [(0, F, "none", "none")]
    sure = made_track(F, boundary_probability=np.where(flash > 0, np.float32(0.9999), flash))
    assert len(shots_of(sure, HEAD)) == 2


def seen(frames: tuple[int, ...], scenes: str, **heads: NDArray[np.float32]) -> Track:
    """A track with scene vectors at frames: of scene A or B, and of none for `-`."""
    vectors = {"A": [1, 0], "a": [0.9, 0.43589], "B": [0, 1], "-": [0, 0]}
    return made_track(
        F, scene_frame=np.array(frames, np.int32), descriptor=np.zeros((0, 8), np.float32),
        scene_vector=np.array([vectors[scene] for scene in scenes], np.float16), **heads,
    )  # fmt: skip


JOINING = ProposeConfig(join_similarity=0.8)


@pytest.mark.parametrize(
    ("frames", "scenes", "ends"),
    [
        ((10, 30, 45, 80), "BAaB", [70, F]),
        ((10, 30, 45, 80), "AABB", [40, F]),
        ((10, 30, 45, 80), "AAAA", [F]),
        ((10, 45, 80), "-AA", [40, F]),
        ((45, 80), "AA", [40, F]),
        ((10, 80), "AA", [40, 70, F]),
    ],
)
def test_shots_are_joined_where_both_sides_show_one_scene(
    frames: tuple[int, ...], scenes: str, ends: list[int]
) -> None:
    """Pins that the vectors next to a boundary count, and that a shot without one stays."""
    peaks = heads({39: 0.9, 69: 0.9})[0]
    track = seen(frames, scenes, boundary_probability=peaks, inside_probability=0 * peaks)
    assert [shot.end_frame for shot in shots_of(track, JOINING)] == ends
    assert [shot.end_frame for shot in shots_of(track, HEAD)] == [40, 70, F]


def test_joined_shots_have_vectors_and_no_black_between_them() -> None:
    marked = heads({45: 0.9}, (40, 50))
    track = seen((10, 80), "AA", boundary_probability=marked[0], inside_probability=marked[1])
    assert spans(shots_of(track, JOINING)) == [(0, F, "none", "none")]
    luma_spread = np.full(F, 0.2, np.float32)
    luma_spread[40:60] = 0.005
    black = seen((10, 80), "AA", luma_spread=luma_spread)
    assert len(shots_of(black, JOINING)) == 2
    # Shots are not joined without vectors.
    with pytest.raises(RecipeError, match=r"join_similarity is 0.9, and analyze.scenes is false"):
        load_recipe("quickstart", ["propose.join_similarity=0.9", "analyze.scenes=false"])
