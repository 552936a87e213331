"""Which rectangles of a picture are drawn boxes, and which of them count for a clip."""

from collections.abc import Sequence

import numpy as np
import pytest
from film_shots import photograph, texture

from curator.measures.drawn_boxes import ALL_VALUES, boxes_of, drawn_boxes
from curator.measures.score_list import BUILT_IN
from curator.media.opencv import cv2
from curator.records.clips import Span
from curator.tools.footage.scenes import Picture
from tests.samples import made_track

Box = tuple[int, int, int, int]
SCENE = texture(7, width_px=640, height_px=360)


def with_boxes(
    *boxes: Box, colour: tuple[int, int, int] = (0, 255, 0), thick: int = 2, back: Picture = SCENE
) -> Picture:
    made = back.copy()
    for x0, y0, x1, y1 in boxes:
        cv2.rectangle(made, (x0, y0), (x1, y1), colour, thick)
    return made


def found(picture: Picture) -> list[list[int]]:
    """The boxes of a picture of 640x360, in pixels, from left to right."""
    rows = boxes_of(drawn_boxes(picture)[None])[0].astype(float)
    return sorted((row[:4] * [640, 360, 640, 360] / 65535).astype(int).tolist()
                  for row in rows if row.any())  # fmt: skip


@pytest.mark.parametrize("colour", [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0)])
@pytest.mark.parametrize("thick", [1, 4])
def test_boxes_are_found_where_they_are_even_if_they_cross(
    colour: tuple[int, int, int], thick: int
) -> None:
    boxes = (100, 60, 220, 300), (160, 120, 400, 330), (500, 40, 540, 90)
    shown = found(with_boxes(*boxes, colour=colour, thick=thick))
    assert np.array(shown) == pytest.approx(np.array(boxes), abs=4)


def test_a_label_hides_a_part_of_the_top() -> None:
    picture = with_boxes((200, 100, 330, 280), colour=(255, 0, 0))
    cv2.rectangle(picture, (200, 82), (270, 100), (255, 0, 0), -1)
    assert len(found(picture)) == 1


@pytest.mark.parametrize("colour", [(255, 255, 255), (0, 0, 0), (120, 130, 125)])
def test_grey_rectangles_are_part_of_many_scenes(colour: tuple[int, int, int]) -> None:
    assert not found(with_boxes((100, 60, 220, 300), colour=colour))


def test_surfaces_open_rectangles_and_pictures_are_no_boxes() -> None:
    surface = SCENE.copy()
    cv2.rectangle(surface, (100, 60), (220, 300), (255, 0, 0), -1)
    assert not found(surface)
    opened = with_boxes((100, 60, 220, 300))
    opened[200:, :] = SCENE[200:]
    assert not found(opened)
    for name in ("coffee", "astronaut"):
        assert not found(np.asarray(cv2.resize(photograph(name), (640, 360)), np.uint8))
    assert not drawn_boxes(np.zeros((12, 12, 3), np.uint8)).any()


def score(looks: Sequence[Picture]) -> float | None:
    frames = np.arange(len(looks), dtype=np.int32) * 30
    none = made_track(30 * len(looks))
    track = made_track(
        30 * len(looks),
        look_frame=frames,
        look_next_frame=frames + 15,
        look_edges=none.look_edges[:1].repeat(len(looks), 0),
        look_boxes=np.stack([drawn_boxes(look) for look in looks]),
        look_standing=none.look_standing[:1].repeat(len(looks), 0),
        look_moved=none.look_moved[:1].repeat(len(looks), 0),
    )
    return BUILT_IN.score_clip(track, Span(start_frame=0, end_frame=track.n_frames, shot=0))[
        "drawn_boxes"
    ]


def test_boxes_count_unless_they_keep_their_place() -> None:
    moving = [with_boxes((100 + 30 * i, 60, 220 + 30 * i, 300)) for i in range(4)]
    display = [with_boxes((20, 20, 180, 80)) for _ in range(4)]
    assert score(moving) == 1
    assert score(display) == 0
    assert score([SCENE, *moving[1:3], SCENE]) == 0.5
    assert score(moving[:1]) is None
    assert len(drawn_boxes(SCENE)) == ALL_VALUES
