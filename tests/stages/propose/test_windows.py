"""Windows: exact numbers of frames at a rate, and what becomes of each frame of a take."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from pydantic import ValidationError
from samples import made_track

from curator.cut_requests import cut_request, frame_plan, windowed
from curator.errors import RecipeError
from curator.recipe import Recipe, with_changes
from curator.records.clips import Shot, Window
from curator.records.tracks import Track
from curator.stages.propose.candidate_row import candidate_of
from curator.stages.propose.clip_spans import clip_id, propose_clips
from curator.stages.propose.config import ProposeConfig, WindowConfig

RATES = ["12.5", "24", "25", "30000/1001", "30", "50", "60", "vfr"]
TIME_BASES = [Fraction(1, 90_000), Fraction(1, 1000)]


def track_of(rate: str, seconds: float, time_base: Fraction) -> Track:
    """A source of a constant rate whose times the container rounds, or of a variable rate."""
    if rate == "vfr":
        steps = np.random.default_rng(1).integers(15, 70, int(seconds / 0.042)) / 1000
    else:
        steps = np.full(round(seconds * float(Fraction(rate))), 1 / float(Fraction(rate)))
    times = np.rint(np.concatenate([[0.0], np.cumsum(steps)]) / float(time_base)).astype(np.int64)
    times += 900
    n = len(times) - 1
    return made_track(n, time_base=time_base, frame_pts=times[:-1], end_pts=int(times[-1]))


def windows_of(track: Track, *windows: object, n_shots: int = 1, **config: object) -> list[Window]:
    edges = np.linspace(0, track.n_frames, n_shots + 1).astype(int).tolist()
    shots = [
        Shot(start_frame=a, end_frame=b, transition_in="none", transition_out="none")
        for a, b in pairwise(edges)
    ]
    settings = ProposeConfig.model_validate({"windows": list(windows), **config})
    spans = propose_clips(track, shots, settings)
    assert all(isinstance(span, Window) for span in spans)
    return spans  # type: ignore[return-value]


def spans_of(track: Track, *windows: object, **config: object) -> list[tuple[int, int, int]]:
    return [
        (w.start_frame, w.end_frame, w.n_written) for w in windows_of(track, *windows, **config)
    ]


@pytest.mark.parametrize("time_base", TIME_BASES)
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("window", ["81@16", "17@30", "33", "49@60"])
def test_every_window_is_exact_and_every_frame_is_in_one_clip(
    rate: str, time_base: Fraction, window: str
) -> None:
    """Pins counts, the frame shown at each time, and that spans cover the take without overlap."""
    track = track_of(rate, 23.0, time_base)
    made = windows_of(track, window)
    edges = [(w.start_frame, w.end_frame) for w in made]
    assert [edges[0][0], *(end for _, end in edges)] == [*(a for a, _ in edges), track.n_frames]
    frames, fps, _ = WindowConfig.model_validate(window).form
    short = [w for w in made if w.n_written < frames]
    assert len(made) >= 4
    assert short == ([made[-1]] if made[-1].n_written < frames else [])
    for w in made:
        plan = frame_plan(windowed(cut_request(track, "a", w), fps=w.fps, n_frames=w.n_written))
        assert len(plan) == w.n_written
        assert fps is None or w.fps == fps
        pts = track.frame_pts[w.start_frame : w.end_frame]
        at = pts[0] + (np.arange(w.n_written) + 0.25) / float(w.fps * time_base)
        assert plan.tolist() == (np.searchsorted(pts, at, "right") - 1).tolist()
        assert abs(track.seconds(int(pts[-1])) - track.seconds(int(pts[0]))) <= w.n_written / w.fps


@pytest.mark.parametrize("rate", ["12.5", "25", "vfr"])
def test_the_row_says_the_window_its_rate_and_what_it_repeats(rate: str) -> None:
    track = track_of(rate, 6.0, Fraction(1, 90_000))
    for window in ("81@16", "33"):
        w = windows_of(track, window)[0]
        row = candidate_of(track, w, "a.mp4", aggregates={}, crop_borders=False)
        frames, fps, _ = WindowConfig.model_validate(window).form
        assert (row.n_frames, row.window_frames, row.window_fps) == (frames, frames, fps)
        assert Fraction(row.fps_fraction) == w.fps
        plan = frame_plan(windowed(cut_request(track, "a", w), fps=w.fps, n_frames=frames))
        assert (row.rate_factor is None) == (fps is None)
        if fps is not None:
            assert row.repeated_share == pytest.approx(
                np.count_nonzero(np.diff(plan) == 0) / frames
            )
            assert row.clip_id == clip_id(track.source_id, row.start_pts, row.end_pts, w.size)


def test_the_source_s_own_rate_counts_frames_and_shows_each_once() -> None:
    for rate in ("25", "30000/1001"):
        track = track_of(rate, 10.0, Fraction(1, 1000))
        n = track.n_frames
        for window in ("81", f"81@{rate}"):
            expected = [(81 * k, 81 * k + 81, 81) for k in range(n // 81)]
            rest = (n // 81 * 81, n, n % 81)
            assert spans_of(track, window) == [*expected, rest]
            first = windows_of(track, window)[0]
            request = windowed(cut_request(track, "a", first), fps=first.fps, n_frames=81)
            assert not request.is_resampled
            assert request.min_frames == 81


def test_the_end_of_a_take_is_dropped_kept_or_overlapped() -> None:
    """Pins the three policies, at the source's rate and at another one, and a stride."""
    track = track_of("25", 8.0, Fraction(1, 90_000))

    def spans(**changes: object) -> list[tuple[int, int, int]]:
        return spans_of(track, {"frames": 81, **changes})

    assert spans() == spans(remainder="keep") == [(0, 81, 81), (81, 162, 81), (162, 200, 38)]
    assert spans(remainder="overlap") == [(0, 81, 81), (81, 162, 81), (119, 200, 81)]
    assert spans(stride=50) == [(0, 81, 81), (50, 131, 81), (100, 181, 81), (181, 200, 19)]
    assert spans(fps=12.5, remainder="overlap") == [(0, 162, 81), (38, 200, 81)]
    # 200 frames at 25 are 128 at 16: a window more than the take is no window.
    assert spans_of(track, "128@16") == [(0, 200, 128)]
    assert spans_of(track, {"frames": 129, "fps": 16, "remainder": "overlap"}) == [(0, 200, 128)]
    # Each frame of the take is in a clip, and the last window ends with the take.
    for rate in RATES[:-1]:
        some = track_of(rate, 11.3, Fraction(1, 1000))
        last = spans_of(some, {"frames": 49, "fps": 16, "remainder": "overlap"})[-1]
        assert last[1:] == (some.n_frames, 49)


def test_windows_stay_within_shots_and_takes_and_have_guards() -> None:
    """Pins that a window shorter than min_s costs no guard, and that a still is its own take."""
    track = track_of("25", 8.0, Fraction(1, 90_000))
    two = windows_of(track, "33", n_shots=2)
    assert [(w.start_frame, w.shot) for w in two] == [
        (0, 0), (33, 0), (66, 0), (99, 0), (100, 1), (133, 1), (166, 1), (199, 1),
    ]  # fmt: skip
    shots = [Shot(start_frame=0, end_frame=50, transition_in="gradual", transition_out="cut")]
    (span, rest) = propose_clips(track, shots, ProposeConfig(windows=("17@12.5",)))  # type: ignore[arg-type]
    assert (span.start_frame, span.end_frame, rest.end_frame) == (3, 37, 47)
    # Two sizes are divided each for itself.
    both = windows_of(track, "81@16", "121@24")
    assert [w.size[0] for w in both] == [81, 81, 121, 121]


def test_the_id_says_the_window_and_stays_without_one() -> None:
    before = clip_id("a", 0, 100)
    assert before == "3d3c4b89681ed96ddb797603"
    ids = {before, *(clip_id("a", 0, 100, size) for size in ((81, None), (81, Fraction(16)),
           (121, Fraction(16)), (81, Fraction(24_000, 1001))))}  # fmt: skip
    assert len(ids) == 5


@pytest.mark.parametrize(
    ("windows", "words"),
    [
        (["81@"], "expected frames and rate such as 81@16"),
        (["81@0"], "fps 0; expected 1 to 240"),
        ([1], "greater than or equal to 2"),
        ([{"frames": 81, "stride": 82}], "expected a stride of at most 81"),
        (["81@16", {"frames": 81, "fps": "16", "stride": 9}], "windows has 81@16 twice"),
        ([{"frames": 81, "remainder": "cut"}], "'drop', 'overlap' or 'keep'"),
    ],
)
def test_wrong_windows_are_refused_with_what_is_expected(windows: list[object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ProposeConfig.model_validate({"windows": windows})


def test_a_recipe_with_windows_sets_no_other_rate_or_length() -> None:
    recipe = with_changes(Recipe(), ["propose.windows=[81@16, {frames: 121, fps: 29.97}]"])
    assert [str(w) for w in recipe.propose.windows] == ["81@16", "121@29.97"]
    assert recipe.propose.windows[1].rate == Fraction(30_000, 1001)
    assert with_changes(Recipe(), ["propose.windows=81@16"]).propose.windows == (
        WindowConfig(frames=81, fps="16"),
    )
    for change in ("cut.fps=24", "cut.length_frames=81"):
        with pytest.raises(RecipeError, match=r"propose.windows is \[81@16.*set cut.\w+ to null"):
            with_changes(recipe, [change])
