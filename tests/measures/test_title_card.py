"""Which overlay samples show a title card."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from curator.measures.drawn_marks import EDGE_SIDE
from curator.measures.score_list import BUILT_IN
from curator.records.clips import Span
from tests.samples import made_track

Box = tuple[float, float, float, float]
TITLE = (0.3, 0.4, 0.7, 0.5)
ROLES = (0.28, 0.3, 0.49, 0.35)
NAMES = (0.51, 0.3, 0.8, 0.35)


def edges(*boxes: Box) -> NDArray[np.uint8]:
    """A packed map with edges in all cells of boxes."""
    plane = np.zeros((2, EDGE_SIDE, EDGE_SIDE), bool)
    for box in boxes:
        x0, y0, x1, y1 = (round(v * EDGE_SIDE) for v in box)
        plane[:, y0:y1, x0:x1] = True
    return np.packbits(plane)


def score(
    looks: Sequence[Sequence[Box]],
    scene: Sequence[Box] = (),
    motion: tuple[float, float] = (0.2, 0.2),
) -> float | None:
    """The score of a clip whose overlay samples have lines of text, and edges elsewhere.

    `motion` is `stay` and `around` of the lines.
    """
    none = made_track(30 * len(looks))
    frames = np.arange(len(looks), dtype=np.int32) * 30
    rows = [
        (*box, 0.9, (box[2] - box[0]) * (box[3] - box[1]), *motion, 0.0)
        for lines in looks
        for box in lines
    ]
    track = made_track(
        30 * len(looks),
        has_text=True,
        text_frame=np.repeat(frames, [len(lines) for lines in looks]),
        text_line=np.array(rows, np.float32).reshape(-1, 9),
        look_frame=frames,
        look_next_frame=frames + 15,
        look_edges=np.stack([edges(*lines, *scene) for lines in looks]),
        look_boxes=none.look_boxes[:1].repeat(len(looks), 0),
        look_standing=none.look_standing[:1].repeat(len(looks), 0),
        look_moved=none.look_moved[:1].repeat(len(looks), 0),
    )
    span = Span(start_frame=0, end_frame=track.n_frames, shot=0)
    return BUILT_IN.score_clip(track, span)["title_card"]


@pytest.mark.parametrize("lines", [[TITLE], [TITLE, (0.4, 0.55, 0.6, 0.6)], [ROLES, NAMES]])
def test_centred_lines_over_little_else_are_a_card(lines: list[Box]) -> None:
    assert score([lines, lines, [], lines]) == 0.75


def test_a_large_title_before_a_scene_is_a_card_if_the_scene_stands_still() -> None:
    scene = [(0.0, 0.6, 1.0, 0.9)]
    assert score([[TITLE]] * 3, scene, motion=(0.99, 0.9)) == 1
    assert score([[TITLE]] * 3, scene, motion=(0.99, 0.1)) == 0
    assert score([[(0.44, 0.4, 0.56, 0.44)]] * 3, scene, motion=(0.99, 0.9)) == 0


@pytest.mark.parametrize(
    ("lines", "scene"),
    [
        ([(0.1, 0.4, 0.5, 0.5)], []),  # a sign beside the middle
        ([(0.3, 0.85, 0.7, 0.92)], []),  # a caption in the dark
        ([TITLE, (0.1, 0.1, 0.4, 0.2), (0.6, 0.6, 0.9, 0.8)], []),  # one sign of several
        ([TITLE], [(0.0, 0.6, 1.0, 0.9)]),  # a scene with a sign in the middle
        ([(0.48, 0.4, 0.52, 0.43)], []),  # a word far away
        ([(0.05, y / 10, 0.95, y / 10 + 0.06) for y in range(1, 9)], []),  # a printed page
        ([], []),
    ],
)
def test_text_of_a_scene_is_no_card(lines: list[Box], scene: list[Box]) -> None:
    assert score([lines] * 3, scene) == 0


def test_without_text_detection_there_is_no_score() -> None:
    span = Span(start_frame=0, end_frame=300, shot=0)
    assert BUILT_IN.score_clip(made_track(300), span)["title_card"] is None
