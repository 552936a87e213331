"""Films after public bug reports, where they are at hand: see `reported_films`."""

from itertools import islice

import av
import numpy as np
import pytest
from made_cuts import cutter_of, pictures, request_of
from reported_films import reported
from samples import analyzed

from curator.errors import ErrorCode, SourceError
from curator.records.cuts import Crop
from curator.records.sources import Note
from curator.records.tracks import DAMAGED
from curator.stages.cut.config import CutConfig
from curator.stages.scan.probe import header_facts

pytestmark = pytest.mark.needs_media


def test_mirrored_films_are_upright_in_their_clips() -> None:
    plain = None
    for name, flip in (("k01_hflip.mp4", 1), ("k01_vflip.mp4", 0)):
        path = reported(name)
        track = analyzed(path)
        assert Note.MIRRORED in track.notes
        clip = cutter_of(path, CutConfig()).cut(request_of(track, 0, 10))
        coded = np.flip(pictures(clip.mp4)[5], axis=flip).astype(int)
        # Both are the same pictures with another matrix.
        assert plain is None or np.abs(coded - plain).mean() < 4
        plain = coded


@pytest.mark.parametrize(("name", "begin", "end"), [
    ("k03_lost_packets_h264.ts", 60, 221), ("k03_zeroed_middle.mp4", 107, 146),
])  # fmt: skip
def test_damage_lasts_to_the_next_key_frame(name: str, begin: int, end: int) -> None:
    track = analyzed(reported(name))
    assert np.flatnonzero(track.frame_flags & DAMAGED).tolist() == list(range(begin, end))
    assert Note.CORRUPT_FRAMES in track.notes


@pytest.mark.parametrize(("name", "size", "n_frames", "has_others"), [
    ("k04_still_first.mp4", (1280, 720), 90, False),
    ("k04_proxy_first.mp4", (1280, 720), 90, True),
    ("k04_two_cameras.mp4", (1280, 720), 90, True),
    ("k04_real_libavif_chimera.avif", (480, 270), 95, False),
])  # fmt: skip
def test_clips_are_made_of_the_film_among_the_streams(
    name: str, size: tuple[int, int], n_frames: int, has_others: bool
) -> None:
    track = analyzed(reported(name))
    assert (track.width, track.height, track.n_frames) == (*size, n_frames)
    assert (Note.OTHER_VIDEO in track.notes) is has_others


def test_colours_of_the_container_count() -> None:
    for name in ("k05_hevc_pq_colr_only.mp4", "k05_pass_av1_pq_colr_only.mp4"):
        assert analyzed(reported(name)).is_hdr
    path = reported("k06_dolby_vision_5_dvh1.mp4")
    with path.open("rb") as file, pytest.raises(SourceError, match="Dolby Vision") as caught:
        header_facts(file, path.name, path.stat().st_size)
    assert caught.value.code is ErrorCode.UNSUPPORTED_CODEC


def test_untagged_hd_has_one_matrix_with_and_without_borders() -> None:
    for name in ("k07_letterbox_1280x720_untagged.mp4", "k07_pass_1280x720_untagged.mp4"):
        request = request_of(analyzed(reported(name)), 0, 6)
        config = CutConfig(mode="encode", max_size_factor=None)
        shown = pictures(cutter_of(reported(name), config).cut(request).mp4)[3]
        with av.open(str(reported(name))) as opened:
            frame = list(islice(opened.decode(video=0), 4))[3]
        meant = frame.reformat(format="rgb24", src_colorspace=1).to_ndarray()
        crop = request.crop or Crop(x=0, y=0, width=1280, height=720)
        meant = meant[crop.y : crop.y + crop.height, crop.x : crop.x + crop.width]
        assert (request.crop is not None) is ("letterbox" in name)
        assert np.abs((shown.astype(int) - meant).mean(axis=(0, 1))).max() < 1.5


def test_pixels_of_another_shape_from_the_second_shot_on() -> None:
    path = reported("k12_4x3_then_16x9_mpeg2.ts")
    track = analyzed(path)
    assert Note.ASPECT_CHANGES in track.notes
    sizes = []
    for start in (5, 70):
        clip = cutter_of(path, CutConfig()).cut(request_of(track, start, start + 20))
        sizes.append((clip.width, clip.height))
    assert sizes == [(768, 576), (1024, 576)]
