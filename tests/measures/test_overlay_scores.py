"""How text, logos and divided screens become scores of a clip."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from curator.measures.drawn_marks import EDGE_SIDE
from curator.measures.look_maps import MOVED_SIDE
from curator.measures.score_list import BUILT_IN, SCORES
from curator.records.clips import Span
from curator.records.tracks import Track
from tests.samples import made_track

Line = tuple[float, float, float, float, float, float, float]
"""x0, y0, x1, y1, stay, around, slide."""

NAN = float("nan")
MIDDLE = (0.3, 0.4, 0.6, 0.5)
"""A place where no overlay is expected."""
BOTTOM = (0.3, 0.85, 0.7, 0.92)


def track_with(*looks: Sequence[Line], n_frames: int | None = None, **changes: object) -> Track:
    """A track with a look a second, and the lines of text in each."""
    frames = [30 * index for index, lines in enumerate(looks) for _ in lines]
    rows = [
        (*line[:4], 0.9, (line[2] - line[0]) * (line[3] - line[1]), *line[4:])
        for lines in looks
        for line in lines
    ]
    values: dict[str, object] = {
        "has_text": True,
        "text_frame": np.array(frames, np.int32),
        "text_line": np.array(rows, np.float32).reshape(-1, 9),
    }
    return made_track(n_frames or 30 * len(looks), **(values | changes))


def scores(track: Track, start: int = 0, end: int | None = None) -> dict[str, float | None]:
    end = track.n_frames if end is None else end
    return BUILT_IN.score_clip(track, Span(start_frame=start, end_frame=end, shot=0))


def test_text_area_is_the_mean_over_looks_and_overlay_the_largest() -> None:
    found = scores(made_track())
    assert found["text_area"] is None
    assert found["overlay_text_area"] is None
    assert SCORES["text_area"].needs == SCORES["overlay_text_area"].needs == "analyze.text"
    # Text area is the mean over looks and overlay the largest.
    line: Line = (*BOTTOM, 1.0, 0.1, 0.0)
    found = scores(track_with([line], [], [line], []))
    assert found["text_area"] == pytest.approx(0.4 * 0.07 / 2)
    assert found["overlay_text_area"] == pytest.approx(0.4 * 0.07)
    assert scores(track_with([], []))["text_area"] == 0
    # A clip sees its own looks only.
    track = track_with([(*MIDDLE, 1.0, 0.1, 0.0)], [], [], [])
    assert scores(track, 30)["text_area"] == 0


@pytest.mark.parametrize(
    ("stay", "around", "is_overlay"),
    [(0.95, 0.1, True), (0.6, 0.1, True), (0.95, NAN, False), (0.95, 0.9, False),
     (0.99, 0.65, False),
     (0.1, 0.1, False)],
)  # fmt: skip
def test_text_that_stays_while_its_surrounding_moves_is_drawn_over(
    stay: float, around: float, is_overlay: bool
) -> None:
    lines: list[Line] = [(*MIDDLE, stay, around, 0.0)]
    assert bool(scores(track_with(lines, lines, lines))["overlay_text_area"]) == is_overlay


def test_evidence_counts_for_the_place_and_not_by_itself() -> None:
    moving: Line = (*MIDDLE, 0.9, 0.1, 0.0)
    still: Line = (*MIDDLE, 0.9, 0.9, 0.0)
    found = scores(track_with([still], [still], [moving], [still]), 0, 60)
    assert found["overlay_text_area"] == 0
    assert scores(track_with([still], [still], [moving], [still]))["overlay_text_area"]
    # A sign that goes by slowly agrees with itself and is none.
    looks: list[list[Line]] = [[(0.3 + x, 0.4, 0.6 + x, 0.5, 0.3, 0.02, 0.0)] for x in
                               (0, 0.01, 0.02, 0.03)]  # fmt: skip
    assert scores(track_with(*looks))["overlay_text_area"] == 0
    # Blocks that a hand rearranges are no captions.
    narrow: Line = (0.4, 0.4, 0.5, 0.5, 0.99, 0.99, 0.0)
    wide: Line = (0.35, 0.4, 0.55, 0.5, 0.99, 0.99, 0.0)
    assert scores(track_with([narrow], [wide], [wide]))["overlay_text_area"] == 0


@pytest.mark.parametrize(("stay", "is_overlay"), [(0.3, True), (0.1, False)])
def test_thin_letters_keep_their_place_a_little_and_often(stay: float, is_overlay: bool) -> None:
    line: Line = (*MIDDLE, stay, 0.02, 0.0)
    assert bool(scores(track_with([line], [line], [line]))["overlay_text_area"]) == is_overlay
    assert scores(track_with([line], [line]))["overlay_text_area"] == 0


def sliding(y: float, slide: float, width: float = 0.9) -> Line:
    return (0.05, y, 0.05 + width, y + 0.05, 0.1, 0.9, slide)


def test_a_wide_band_of_text_that_slides_is_a_ticker() -> None:
    found = scores(track_with(*[[sliding(0.9, -0.15)]] * 3))
    assert found["overlay_text_area"] == pytest.approx(0.9 * 0.05)


@pytest.mark.parametrize(
    "lines",
    [[sliding(0.5, -0.15, 0.2)] * 1, [sliding(0.5, -0.01)]],
    ids=["a lorry's writing", "with its surrounding"],
)
def test_other_text_that_slides_is_the_scenes(lines: list[Line]) -> None:
    assert scores(track_with(lines, lines, lines))["overlay_text_area"] == 0


def test_text_that_other_text_replaces_before_a_standing_scene_is_drawn_over() -> None:
    short: Line = (0.4, 0.4, 0.6, 0.47, 0.99, 0.99, 0.0)
    long: Line = (0.25, 0.4, 0.75, 0.47, 0.99, 0.99, 0.0)
    changing = scores(track_with([short], [short], [long], [long]))
    assert changing["overlay_text_area"] == pytest.approx(0.5 * 0.07)
    assert scores(track_with([short], [short], [short]))["overlay_text_area"] == 0
    # A line that is parted between words has not changed.
    whole: Line = (0.25, 0.4, 0.75, 0.47, 0.99, 0.99, 0.0)
    left: Line = (0.25, 0.4, 0.48, 0.47, 0.99, 0.99, 0.0)
    right: Line = (0.52, 0.4, 0.75, 0.47, 0.99, 0.99, 0.0)
    track = track_with([whole], [left, right], [whole], [whole])
    assert scores(track)["overlay_text_area"] == 0


def test_where_nothing_changes_place_and_other_scenes_decide() -> None:
    corner: Line = (0.02, 0.04, 0.2, 0.09, 1.0, 1.0, 0.0)
    caption: Line = (*BOTTOM, 1.0, 1.0, 0.0)
    sign: Line = (*MIDDLE, 1.0, 1.0, 0.0)
    looks = [[corner, caption, sign]] * 3
    found = scores(track_with(*looks))
    assert found["overlay_text_area"] == pytest.approx(0.18 * 0.05 + 0.4 * 0.07)
    # The same text in unlike scenes is drawn over.
    sign: Line = (*MIDDLE, 1.0, 1.0, 0.0)
    n_samples = len(made_track(240).sample_frame)
    same = np.eye(1, 8, dtype=np.float32).repeat(n_samples, 0)
    unlike = same.copy()
    unlike[n_samples // 2 :] = np.eye(2, 8, dtype=np.float32)[1]
    for descriptor, is_overlay in ((same, False), (unlike, True)):
        track = track_with(*[[sign]] * 8, descriptor=descriptor)
        assert bool(scores(track, 0, 90)["overlay_text_area"]) == is_overlay


def edge_maps(n_looks: int, *, mark: bool, moving: bool) -> NDArray[np.uint8]:
    """Packed edges of a scene, with or without a mark of 6 by 6 cells in a corner."""
    rng = np.random.default_rng(1)
    maps = np.repeat(rng.random((1, 2, EDGE_SIDE, EDGE_SIDE)) < 0.2, n_looks, 0)
    if moving:
        maps = rng.random((n_looks, 2, EDGE_SIDE, EDGE_SIDE)) < 0.2
    if mark:
        maps[:, :, 4:10, 60:66] = True
    return np.packbits(maps.reshape(n_looks, -1), axis=1)


def moved_maps(n_looks: int, *, mark: bool, moving: bool) -> NDArray[np.uint8]:
    """Packed maps of what moved: everything or nothing, but for the cells of the mark."""
    codes = np.full((n_looks, MOVED_SIDE, MOVED_SIDE), 10 if moving else 0, np.uint8)
    if mark:
        codes[:, 2:5, 27:31] = 0
    pairs = codes.reshape(n_looks, -1, 2)
    return (pairs[..., 0] << 4) | pairs[..., 1]


@pytest.mark.parametrize(("mark", "found"), [(True, True), (False, False)])
def test_a_mark_whose_edges_stay_while_the_rest_moves_is_a_logo(mark: bool, found: bool) -> None:
    edges = edge_maps(10, mark=mark, moving=True)
    track = made_track(300, look_edges=edges, look_moved=moved_maps(10, mark=mark, moving=True))
    area = scores(track)["logo_area"]
    assert area is not None
    assert area == pytest.approx(36 / EDGE_SIDE**2 if found else 0, rel=0.4)


def test_edges_that_stay_are_a_logo_only_where_it_can_be_told() -> None:
    edges = edge_maps(10, mark=True, moving=True)
    track = made_track(300, look_edges=edges, look_moved=moved_maps(10, mark=False, moving=True))
    assert scores(track)["logo_area"] == 0
    # Where the picture stands still nothing can tell a logo.
    edges = edge_maps(10, mark=True, moving=False)
    track = made_track(300, look_edges=edges, look_moved=moved_maps(10, mark=True, moving=False))
    assert scores(track)["logo_area"] is None
    # A standing clip borrows looks from the moving source around it.
    still = edge_maps(8, mark=True, moving=False)
    rest = edge_maps(32, mark=True, moving=True)
    stays, moves = (moved_maps(n, mark=True, moving=n == 32) for n in (8, 32))
    track = made_track(
        1200,
        look_edges=np.vstack([rest[:16], still, rest[16:]]),
        look_moved=np.vstack([moves[:16], stays, moves[16:]]),
    )
    assert scores(track, 480, 720)["logo_area"]
    # Two looks are too few for a logo.
    assert scores(made_track(60))["logo_area"] is None
