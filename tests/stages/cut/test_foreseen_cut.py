"""The work of the cut, estimated while sources are analyzed."""

import pytest

from curator.records.sources import SourceRef
from curator.stages.cut.cut_driver import (
    CLIP_S,
    ENCODED_SHARE,
    ForeseenCut,
    encode_s,
    typical_cut_s,
)

PIXELS = 1920 * 1080


def source(seconds: float, fps: float = 25.0, n_pixels: int = PIXELS) -> SourceRef:
    return SourceRef(
        uri="a", n_bytes=1, version="", header_duration_s=seconds,
        header_n_frames=round(seconds * fps), n_pixels=n_pixels,
    )  # fmt: skip


def test_a_second_of_1080p_is_the_unit_and_frames_and_pixels_count() -> None:
    assert source(10.0).analysis_s == pytest.approx(10.0)
    assert source(10.0, fps=50.0).analysis_s == pytest.approx(16.9)
    assert source(10.0, n_pixels=PIXELS // 4).analysis_s == pytest.approx(6.7)
    assert SourceRef(uri="a", n_bytes=1, version="").analysis_s == 0.0


def test_sources_to_come_are_like_those_seen() -> None:
    each_s = typical_cut_s(source(60.0), PIXELS, may_copy=True)
    foreseen = ForeseenCut(10 * each_s, 10)
    assert foreseen.work_s == pytest.approx(10 * each_s)
    # Four sources without a kept clip: the other six count as a typical one among five.
    foreseen.seen_s = 4 * each_s
    assert foreseen.work_s == pytest.approx(6 * each_s / 5)
    foreseen.seen_s = 10 * each_s
    assert foreseen.work_s == 0.0


def test_key_frames_of_clips_tell_which_share_is_encoded() -> None:
    foreseen = ForeseenCut(1000.0, 10)
    assert foreseen.encoded_share == ENCODED_SHARE
    for _ in range(100):
        foreseen.add("copied", 100, PIXELS, may_copy=True, encoded=0.0)
        foreseen.add("encoded", 100, PIXELS, may_copy=True, encoded=1.0)
        foreseen.add("hevc", 100, PIXELS, may_copy=False, encoded=0.0)
    assert foreseen.encoded_share == pytest.approx(0.5, abs=0.01)
    assert foreseen.share_of("copied") < 0.01
    assert foreseen.share_of("encoded") > 0.99
    assert foreseen.share_of("not seen") == foreseen.encoded_share
    assert foreseen.sure_s == pytest.approx(300 * CLIP_S + 100 * encode_s(100, PIXELS))
    assert foreseen.wants_more
    foreseen.n_seen = 1 << 20
    assert not foreseen.wants_more
