"""Shots from probabilities, and candidate clips from shots: conventions at every edge."""

from fractions import Fraction

import numpy as np
import pytest
from pydantic import ValidationError
from samples import made_track

from curator.cut_requests import cut_request
from curator.records.clips import Shot, Span, Transition
from curator.records.tracks import DAMAGED, holes
from curator.stages.propose.clip_spans import ClipPart, clip_id, duration_s, propose_clips
from curator.stages.propose.config import ProposeConfig

CONFIG = ProposeConfig()


def shot(start: int, end: int, kind_in: str = "cut", kind_out: str = "cut") -> Shot:
    return Shot(
        start_frame=start,
        end_frame=end,
        transition_in=kind_in,  # type: ignore[arg-type]
        transition_out=kind_out,  # type: ignore[arg-type]
    )


def test_guards_stand_beside_transitions_unless_they_use_up_the_shot() -> None:
    # Pins that the film's own start and end give up no frame.
    track = made_track(300)
    shots = [shot(0, 100, "none", "cut"), shot(100, 200), shot(200, 300, "gradual", "none")]
    clips = propose_clips(track, shots, ProposeConfig(guard_frames=3))
    assert [(c.start_frame, c.end_frame) for c in clips] == [(0, 97), (103, 197), (203, 300)]
    assert [c.shot for c in clips] == [0, 1, 2]
    # Pins that every shot leaves a row, so that nothing is dropped without a reason.
    clips = propose_clips(made_track(300), [shot(10, 16)], ProposeConfig(guard_frames=3))
    assert clips == [Span(start_frame=10, end_frame=16, shot=0)]


@pytest.mark.parametrize(
    ("transition_in", "key_every", "start"),
    [("cut", 50, 100), ("gradual", 50, 103), ("cut", 70, 103), ("cut", 5, 103)],
    ids=["key frame at the cut", "no cut", "key frame elsewhere", "key frames everywhere"],
)
def test_a_cut_at_a_key_frame_needs_no_guard_after_it(
    transition_in: Transition, key_every: int, start: int
) -> None:
    flags = np.zeros(300, np.uint8)
    flags[::key_every] = 1
    shots = [shot(0, 100, "none", transition_in), shot(100, 300, transition_in, "none")]
    clips = propose_clips(made_track(300, frame_flags=flags), shots, ProposeConfig(guard_frames=3))
    assert [(c.start_frame, c.end_frame) for c in clips] == [(0, 97), (start, 300)]


def test_long_shots_are_split_evenly_and_just_as_much_as_needed() -> None:
    # Pins equal pieces that cover the shot: 9 s at most 4 s long are three of 3 s.
    track = made_track(270)
    config = ProposeConfig(min_s=1, max_s=4)
    clips = propose_clips(track, [shot(0, 270, "none", "none")], config)
    assert [(c.start_frame, c.end_frame) for c in clips] == [(0, 90), (90, 180), (180, 270)]
    # Pins that rounding of seconds splits nothing.
    track = made_track(
        240, time_base=Fraction(1, 90_000), frame_pts=np.arange(240) * 3003, end_pts=240 * 3003
    )
    config = ProposeConfig(min_s=1, max_s=240 * 3003 / 90_000)
    assert len(propose_clips(track, [shot(0, 240, "none", "none")], config)) == 1
    # Pins that a split shot's halves must be long enough, with both values in the message.
    with pytest.raises(ValidationError, match=r"max_s is 3\.0 and min_s 2\.0; max_s must be at"):
        ProposeConfig(min_s=2, max_s=3)
    with pytest.raises(ValidationError, match="less than 1"):
        ProposeConfig(shot_threshold=1.0)


@pytest.mark.parametrize("n_frames", [181, 239, 240, 241, 359, 360, 361, 479, 480])
def test_no_piece_is_longer_than_the_limit(n_frames: int) -> None:
    """Pins the limit at a constant rate, wherever the edges fall between frames."""
    config = ProposeConfig(min_s=1, max_s=4.01)
    track = made_track(n_frames)
    clips = propose_clips(track, [shot(0, n_frames, "none", "none")], config)
    lengths = [duration_s(track, c.start_frame, c.end_frame) for c in clips]
    assert max(lengths) <= config.max_s
    assert min(lengths) >= config.min_s
    assert sum(c.n_frames for c in clips) == n_frames


def test_time_decides_where_rates_vary_and_ids_come_from_content_and_span() -> None:
    # Pins halves of equal time where the second half has a tenth of the frames.
    pts = np.concatenate([np.arange(100) * 10, 1000 + np.arange(10) * 100]).astype(np.int64)
    track = made_track(110, time_base=Fraction(1, 100), frame_pts=pts, end_pts=2000)
    clips = propose_clips(
        track, [shot(0, 110, "none", "none")], ProposeConfig(min_s=2, max_s=10, guard_frames=0)
    )
    assert [(c.start_frame, c.end_frame) for c in clips] == [(0, 100), (100, 110)]
    assert [duration_s(track, c.start_frame, c.end_frame) for c in clips] == [10, 10]
    # Pins a slide show: one frame cannot be cut, and no clip is empty.
    pts = np.array([0, 1, 2, 5000, 5001], np.int64)
    track = made_track(5, time_base=Fraction(1, 100), frame_pts=pts, end_pts=5002)
    clips = propose_clips(track, [shot(0, 5, "none", "none")], ProposeConfig(min_s=1, max_s=4))
    assert sum(c.n_frames for c in clips) == 5
    assert all(c.n_frames > 0 for c in clips)
    # Pins that a jump of days makes no clip of as many frames as fit in days.
    pts = np.array([*range(300), *range(10**12, 10**12 + 300)], np.int64)
    track = made_track(600, time_base=Fraction(1, 30), frame_pts=pts, end_pts=10**12 + 300)
    clips = propose_clips(track, [shot(0, 600, "none", "none")], ProposeConfig(max_s=60))
    assert [(c.start_frame, c.end_frame) for c in clips] == [(0, 300), (300, 600)]
    # Clip ids: stable, 24 hex digits without a dot, and other for every other span.
    assert clip_id("abc", 0, 512) == "b55380bb150d1b20865141cd"
    ids = {clip_id(s, a, b) for s in ("x", "y") for a in range(9) for b in range(10, 19)}
    assert len(ids) == 2 * 9 * 9
    assert all(len(i) == 24 and i.isalnum() for i in ids)


@pytest.mark.parametrize(
    ("n_frames", "span"),
    [(60, (100, 160)), (62, (101, 161)), (66, (103, 163)), (70, (103, 167)), (59, (100, 159))],
)
def test_guard_frames_give_way_down_to_the_shortest_clip(
    n_frames: int, span: tuple[int, int]
) -> None:
    """Pins shots of exactly `min_s` and a little more; a shorter one is rejected as it is."""
    config = ProposeConfig(min_s=2.0, guard_frames=3)
    shots = [shot(100, 100 + n_frames, "cut", "cut")]
    (clip,) = propose_clips(made_track(300), shots, config)
    assert (clip.start_frame, clip.end_frame) == span


def test_guard_frames_are_dropped_at_transitions_and_not_at_holes() -> None:
    pts = np.arange(300) * 512
    pts[150:] += 3 * 15_360
    track = made_track(300, frame_pts=pts, end_pts=int(pts[-1]) + 512)
    (one, two) = propose_clips(track, [shot(20, 280, "cut", "cut")], ProposeConfig())
    assert [(c.start_frame, c.end_frame) for c in (one, two)] == [(23, 150), (150, 277)]
    assert track.pts_of_end(150) == 150 * 512
    assert duration_s(track, one.start_frame, one.end_frame) == pytest.approx(127 / 30)
    # In a slow part, long intervals are usual; in a recording of a screen, they are pauses.
    slow = np.cumsum([0.04] * 100 + [1.0] * 20)
    pauses = np.cumsum([0.04, 0.04, 0.04, 1.5, 0.2] * 20)
    for times in (slow, pauses):
        pts = np.round(times * 1000).astype(np.int64)
        assert not len(holes(pts, Fraction(1, 1000)))


@pytest.mark.parametrize(
    ("tick_s", "usual", "n_lost"),
    [
        ((1, 15_360), [512], 2),
        ((1, 1000), [33, 33, 34], 1),
        ((1, 60), [2, 3], 1),
        ((1, 60), [2], 0),
    ],
)
def test_frames_lost_after_a_clip_are_no_time_of_the_clip(
    tick_s: tuple[int, int], usual: list[int], n_lost: int
) -> None:
    """Pins the end of the last clean frame, also in rounded ticks and telecined film."""
    steps = np.resize(np.array(usual, np.int64), 120)
    pts = np.concatenate([[0], np.cumsum(steps)])
    pts = np.delete(pts, slice(60, 60 + n_lost))
    flags = np.zeros(len(pts), np.uint8)
    flags[60:70] = DAMAGED
    track = made_track(
        len(pts), time_base=Fraction(*tick_s), frame_pts=pts, frame_flags=flags,
        end_pts=int(pts[-1]) + usual[0],
    )  # fmt: skip
    one, _, three = propose_clips(track, [shot(0, len(pts), "none", "none")], ProposeConfig())
    assert (one.start_frame, one.end_frame, three.start_frame) == (0, 60, 70)
    assert track.pts_of_end(60) == pytest.approx(60 * np.mean(usual), abs=1.5)
    rate = 1 / float(np.mean(usual) * Fraction(*tick_s))
    assert 60 / duration_s(track, 0, 60) == pytest.approx(rate, rel=0.01)
    assert cut_request(track, "a", one).end_pts == track.pts_of_end(60)


def test_takes_are_divided_by_holes_sizes_shapes_and_damage() -> None:
    """Pins every kind of edge in one shot, and guard frames in which damage begins."""
    pts = np.arange(300) * 512
    pts[60:] += 3 * 15_360
    size = np.array([(640, 360)] * 120 + [(320, 180)] * 180, np.uint16)
    flags = np.zeros(300, np.uint8)
    flags[240:250] = DAMAGED
    track = made_track(
        300, frame_pts=pts, end_pts=int(pts[-1]) + 512, frame_size=size, frame_flags=flags,
        aspect_changes=("180 4/3",),
    )  # fmt: skip
    assert track.breaks().tolist() == [60, 120, 180, 240, 250]
    shots = [shot(0, 242, "none", "cut"), shot(242, 300, "cut", "none")]
    clips = propose_clips(track, shots, ProposeConfig(min_s=1, guard_frames=3))
    assert [(c.start_frame, c.end_frame) for c in clips] == [
        (0, 60), (60, 120), (120, 180), (180, 239), (240, 242), (242, 250), (250, 300),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("part_s", "frames"),
    [
        ((0.0, 2.0), (100, 160)),
        # Times that are no frame's: the frame that is shown then belongs to the part.
        ((1.01, 2.99), (130, 190)),
        ((2.0, 10 / 3), (160, 200)),
        ((3.3, 3.4), (199, 200)),
    ],
)
def test_a_part_of_a_clip_is_not_shorter_than_asked_for(
    part_s: tuple[float, float], frames: tuple[int, int]
) -> None:
    clip = Span(start_frame=100, end_frame=200, shot=3)
    span = ClipPart(clip=clip, start_s=part_s[0], end_s=part_s[1]).span(made_track(300))
    assert (span.start_frame, span.end_frame, span.shot) == (*frames, 3)
