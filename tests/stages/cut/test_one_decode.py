"""Clips of one source that overlap or follow each other are written from one decode."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from film_makers import write_video
from film_shots import moving_texture
from made_cuts import cutter_of
from numbered_films import numbered_film
from samples import framed

from curator.cut_requests import cut_request, windowed
from curator.dataset.output_form import as_output
from curator.records.clips import Span
from curator.records.cuts import CutClip, CutRequest
from curator.records.sources import SourceRef
from curator.records.tracks import Track
from curator.stages.cut.clip_cutter import ClipCutter
from curator.stages.cut.config import CutConfig
from curator.stages.cut.cut_driver import pieces_of_footage
from curator.stages.cut.stage import (
    ClipToCut,
    CutItem,
    CutStage,
    CutStageConfig,
    decoded_together,
)

CONFIG = CutConfig(preset="ultrafast", max_size_factor=None)
LARGE, SMALL = (128, 96), (64, 48)
N, GOP = 130, 40


def requests_of(track: Track) -> list[CutRequest]:
    """Two sizes of one span, a window that overlaps it, and one after a gap without a key frame."""
    spans = [(5, 45, LARGE, None), (5, 45, SMALL, None), (30, 70, SMALL, 16), (73, 79, LARGE, None)]
    requests = []
    for number, (start, end, size, rate) in enumerate(spans):
        span = Span(start_frame=start, end_frame=end, shot=0)
        request = cut_request(track, f"clip {number}", span)
        if rate is not None:
            request = windowed(request, fps=Fraction(rate), n_frames=20)
        requests.append(as_output(request, size=size))
    return requests


def cut_all(cutter: ClipCutter, requests: Sequence[CutRequest], track: Track) -> list[CutClip]:
    return [
        cutter.cut(request, requests[number:], track.frame_pts)
        for number, request in enumerate(requests, 1)
    ]


@pytest.mark.parametrize(("rate", "suffix"), [("25", ".mp4"), ("vfr", ".mkv")])
def test_clips_from_one_decode_have_the_bytes_of_clips_cut_one_by_one(
    rate: str, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"film{suffix}"
    track = numbered_film(path, rate, N, GOP)
    requests = requests_of(track)
    apart, together = cutter_of(path, CONFIG), cutter_of(path, CONFIG)
    expected = [apart.cut(request) for request in requests]
    made = cut_all(together, requests, track)
    assert [clip.mp4_sha256 for clip in made] == [clip.mp4_sha256 for clip in expected]
    assert made == expected
    # The decode begins at the key frame before the first clip.
    assert together.n_decoded == 79
    assert apart.n_decoded > 2 * together.n_decoded


def test_a_copy_and_a_clip_that_cannot_be_copied_share_no_decode(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    track = numbered_film(path, "25", N, GOP)
    spans = [Span(start_frame=a, end_frame=b, shot=0) for a, b in ((40, 80), (42, 82), (44, 84))]
    requests = [
        cut_request(track, f"clip {n}", span, min_frames=40) for n, span in enumerate(spans)
    ]
    config = CONFIG.model_copy(update={"encode_head": False})
    apart, together = cutter_of(path, config), cutter_of(path, config)
    expected = [apart.cut(request) for request in requests]
    assert [clip.cut_mode for clip in expected] == ["copy", "encode", "encode"]
    assert cut_all(together, requests, track) == expected
    # A copy that comes later is not encoded, either.
    later = [requests[1], requests[0], requests[2]]
    assert cut_all(together, later, track) == [expected[1], expected[0], expected[2]]


def test_clips_are_cut_one_by_one_from_the_first_wrong_frame_on(tmp_path: Path) -> None:
    """A clip that is good does not fail for one that is decoded with it."""
    path = tmp_path / "film.mp4"
    track = numbered_film(path, "25", N, GOP)
    requests = requests_of(track)
    wrong = requests[2].frame_pts.copy()
    wrong[10] += 1
    requests[2] = replace(requests[2], frame_pts=wrong)
    pts = track.frame_pts.copy()
    pts[40] += 1
    good = [requests[0], requests[3]]
    made = [cutter_of(path, CONFIG).cut(request) for request in good]
    together = cutter_of(path, CONFIG)
    assert together.cut(good[0], requests[1:], pts) == made[0]
    assert together.cut(good[1]) == made[1]
    with pytest.raises(Exception, match="expected the analyzed frame"):
        together.cut(requests[2])


def items_of(track: Track, spans: Sequence[tuple[int, int]], **clip: object) -> list[CutItem]:
    source = SourceRef(uri="film.mp4", version="1", n_bytes=1)
    return [
        CutItem(
            clip=ClipToCut(
                source=source, clip_id=str(number), min_frames=1,
                span=Span(start_frame=start, end_frame=end, shot=0), **clip,  # type: ignore[arg-type]
            ),
            track=track,
        )
        for number, (start, end) in enumerate(spans)
    ]  # fmt: skip


def test_a_decode_reaches_clips_that_no_key_frame_sets_apart(tmp_path: Path) -> None:
    track = numbered_film(tmp_path / "film.mp4", "25", N, GOP)
    spans = [(0, 20), (0, 20), (10, 30), (35, 39), (40, 60), (60, 80), (90, 100), (125, 130)]
    items = decoded_together(items_of(track, spans), CONFIG)
    # Key frames are 0, 40, 80 and 120.
    others = [[clip.clip_id for clip in item.others] for item in items]
    assert others == [["1", "2", "3"], ["2", "3"], ["3"], [], ["5"], [], [], []]
    # With a length, only the first frames of a clip are read.
    short = CONFIG.model_copy(update={"length_frames": 5})
    apart = decoded_together(items_of(track, [(10, 70), (45, 60)]), short)
    assert [item.others for item in apart] == [(), ()]


def test_few_encoders_are_open_at_a_time(tmp_path: Path) -> None:
    """A sandbox has eight files."""
    track = numbered_film(tmp_path / "film.mp4", "25", N, GOP)
    items = decoded_together(items_of(track, [(0, 30)] * 10), CONFIG)
    assert [len(item.others) for item in items] == [7, 6, 5, 4, 3, 2, 1, 0, 1, 0]
    wide = replace(track, width=7680, height=2160)
    items = decoded_together(items_of(wide, [(0, 30)] * 3), CONFIG)
    assert [len(item.others) for item in items] == [1, 0, 0]


def test_coarser_encodes_share_a_second_decode(tmp_path: Path) -> None:
    path = tmp_path / "starved.mp4"
    rng = np.random.default_rng(0)
    noisy = (
        np.clip(picture + rng.normal(0, 20, picture.shape), 0, 255).astype(np.uint8)
        for picture in moving_texture(40, width_px=320, height_px=180)
    )
    write_video(path, noisy, fps=Fraction(30), options={"crf": "34"})
    track = framed(path)
    sizes = (None, (240, 136), (240, 180))
    whole = Span(start_frame=0, end_frame=40, shot=0)
    requests = [as_output(cut_request(track, f"{size}", whole), size=size) for size in sizes]
    config = CutConfig(mode="encode", preset="ultrafast", crf=10, max_size_factor=2.0)
    apart, together = cutter_of(path, config), cutter_of(path, config)
    expected = [apart.cut(request) for request in requests]
    assert all(clip.crf is not None and clip.crf > 10 for clip in expected)
    assert cut_all(together, requests, track) == expected
    assert (together.n_decoded, apart.n_decoded) == (80, 240)


def test_a_clip_is_tried_again_without_others(tmp_path: Path) -> None:
    """Pins that a clip does not fail for another one that ends its worker."""
    track = numbered_film(tmp_path / "film.mp4", "25", N, GOP)
    first, _ = decoded_together(items_of(track, [(0, 30)] * 2), CONFIG)
    stage = CutStage(CutStageConfig(cut=CONFIG, max_pixels=1))
    assert len(first.others) == 1
    assert stage.limit_s(first) == 2 * stage.limit_s(stage.retried(first))
    assert stage.retried(first).others == ()


def clip_row(source: str, start: int, end: int) -> SimpleNamespace:
    return SimpleNamespace(
        source_id=source, start_frame=start, end_frame=end, start_s=start / 25, end_s=end / 25
    )


def test_clips_of_the_same_footage_are_one_piece() -> None:
    """Pins that a unit does not divide them, and that their footage counts once."""
    rows = [
        clip_row("b", 0, 50), clip_row("b", 50, 100), clip_row("a", 0, 25), clip_row("b", 0, 40),
        clip_row("b", 80, 125), clip_row("b", 50, 100), clip_row("a", 30, 55),
    ]  # fmt: skip
    pieces = [
        ([(row.source_id, row.start_frame, row.end_frame) for row in piece], round(seconds, 6))
        for piece, seconds in pieces_of_footage(rows)  # type: ignore[arg-type]
    ]
    assert pieces == [
        ([("b", 0, 50), ("b", 0, 40)], 2.0),
        ([("b", 50, 100), ("b", 50, 100)], 2.0),
        ([("b", 80, 125)], 1.0),
        ([("a", 0, 25)], 1.0),
        ([("a", 30, 55)], 1.0),
    ]


def test_a_clip_that_cannot_be_requested_fails_in_its_own_turn(tmp_path: Path) -> None:
    """Pins that a span outside of the track ends no unit before its clips are cut."""
    track = numbered_film(tmp_path / "film.mp4", "25", N, GOP)
    items = decoded_together(items_of(track, [(0, 30), (500, 600), (10, 30)]), CONFIG)
    assert [item.others for item in items] == [(), (), ()]
