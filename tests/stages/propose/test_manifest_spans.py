"""Borders of spans are borders of clips, to the frame, and footage outside of spans is none."""

import math

import numpy as np
import pytest
from samples import made_track

from curator.records.clips import Shot
from curator.records.time_spans import TimeSpan
from curator.stages.propose.clip_spans import propose_clips
from curator.stages.propose.config import ProposeConfig
from curator.stages.propose.manifest_spans import divided, frames_of

FPS = 30  # of `made_track`


def shots_of(*edges: int) -> list[Shot]:
    kinds = ["none", *["cut"] * (len(edges) - 2), "none"]
    return [
        Shot(start_frame=a, end_frame=b, transition_in=kind, transition_out=after)  # type: ignore[arg-type]
        for a, b, kind, after in zip(edges, edges[1:], kinds, kinds[1:], strict=False)
    ]


def clips_of(spans: list[TimeSpan], *edges: int) -> list[tuple[int, int]]:
    track = made_track(edges[-1])
    shots, within = divided(track, shots_of(*edges), spans)
    found = propose_clips(track, shots, ProposeConfig(guard_frames=3, max_s=60))
    return [(c.start_frame, c.end_frame) for c in found if within[c.shot] is not None]


def test_spans_that_touch_are_clips_without_a_frame_between_them() -> None:
    spans = [TimeSpan(0, 4), TimeSpan(4, 8), TimeSpan(8, math.inf)]
    assert clips_of(spans, 0, 300) == [(0, 120), (120, 240), (240, 300)]


@pytest.mark.parametrize("cut", [118, 119, 120, 121, 122])
def test_a_cut_at_a_border_is_the_border_and_has_no_guard(cut: int) -> None:
    assert clips_of([TimeSpan(0, 4), TimeSpan(4, 10)], 0, cut, 300) == [(0, 120), (120, 300)]


def test_other_cuts_divide_a_span_and_footage_outside_is_left_out() -> None:
    found = clips_of([TimeSpan(1, 6), TimeSpan(8, 9)], 0, 100, 300)
    assert found == [(30, 97), (103, 180), (240, 270)]


def test_a_gap_of_a_few_frames_gives_way_and_a_dissolve_does_not() -> None:
    def gradual(gap: tuple[int, int]) -> list[tuple[int, int]]:
        shots = [
            Shot(start_frame=0, end_frame=gap[0], transition_in="none", transition_out="gradual"),
            Shot(start_frame=gap[1], end_frame=300, transition_in="gradual", transition_out="none"),
        ]
        made, _ = divided(made_track(300), shots, [TimeSpan(0, 4), TimeSpan(4, 10)])
        return [(shot.start_frame, shot.end_frame) for shot in made]

    assert gradual((118, 122)) == [(0, 120), (120, 300)]
    assert gradual((110, 130)) == [(0, 110), (130, 300)]


def test_borders_are_at_the_nearest_frame() -> None:
    """Pins rounded times, an irregular rate, and spans behind the end, which are empty."""
    track = made_track(300)
    spans = [TimeSpan(0.033, 0.0667), TimeSpan(9.99, 12), TimeSpan(12, math.inf)]
    assert frames_of(track, spans) == [(1, 2), (300, 300), (300, 300)]
    pts = np.cumsum(np.random.default_rng(3).integers(1, 9, 300)) * 3000
    times = (pts - pts[0]) * float(track.time_base)
    varied = made_track(300, frame_pts=pts)
    for frame in (7, 100, 250):
        ((start, _),) = frames_of(varied, [TimeSpan(float(times[frame]) + 1e-4, math.inf)])
        assert start == frame


def test_each_shot_has_the_span_that_it_lies_in() -> None:
    spans = [TimeSpan(1, 2), TimeSpan(5, 6)]
    shots, within = divided(made_track(300), shots_of(0, 300), spans)
    assert [shot.start_frame for shot in shots] == [0, 30, 60, 150, 180]
    assert within == [None, spans[0], None, spans[1], None]
    assert divided(made_track(300), shots_of(0, 300), []) == (shots_of(0, 300), [None])
