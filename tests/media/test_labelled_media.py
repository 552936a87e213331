"""Probes of real files, sound, odd and broken, where the labelled test videos are at hand."""

import os
from pathlib import Path

import pytest

from curator.stages.scan.listing_records import ListedSource
from curator.stages.scan.probe import scan_source
from curator.stages.scan.source_listing import list_sources

pytestmark = pytest.mark.needs_media

BROKEN = {
    "audio_only.mp4": "unused_medium", "derived_audio_only.m4a": "unused_medium",
    "header_only.flv": "not_a_video", "html_error_page.mp4": "not_a_video",
    "malformed_free_box.mp4": "not_a_video", "moov_missing.mp4": "not_a_video",
    "png_named.mp4": "unused_medium", "random_bytes.avi": "not_a_video",
    "truncated_no_moov.mp4": "not_a_video", "zero_byte.mp4": "empty_file",
    "zero_byte.webm": "empty_file",
}  # fmt: skip
UPRIGHT = {
    "ios9_rot90.mov": (720, 1280, 90),
    "sideways_iphone.mov": (480, 640, 90),
    "whip_pan_vfr_rot180.mp4": (1280, 720, 180),
    "dog_on_bed_rot270flag.mp4": (720, 1280, 270),
}


@pytest.fixture(scope="module")
def probes() -> dict[str, dict[str, object]]:
    """Rows of the scan by file name."""
    beside = Path(__file__).parents[3] / "shared" / "media"
    media = Path(os.environ.get("CURATE_TEST_MEDIA", beside))
    if not media.is_dir():
        pytest.skip(f"no labelled test videos in {media}; set CURATE_TEST_MEDIA")
    listed = [item for item in list_sources([str(media)]) if isinstance(item, ListedSource)]
    assert len(listed) == 99
    return {Path(s.uri).name: scan_source(s.uri, s.bytes, s.version) for s in listed}


def test_labelled_files_end_with_their_code_size_and_form(
    probes: dict[str, dict[str, object]],
) -> None:
    failed = {name: row["error_code"] for name, row in probes.items() if "error_code" in row}
    assert failed == BROKEN
    # Rotation and size are known without a decode.
    for name, expected in UPRIGHT.items():
        row = probes[name]
        assert (row["width"], row["height"], row["rotation_deg"]) == expected
    # Odd formats have codes of their own.
    assert probes["derived_vfr.mp4"]["is_vfr"] is True
    assert probes["juggle.mp4"]["is_vfr"] is False
    assert probes["hdr10_pq_hevc.mp4"]["is_hdr"] is True
    assert probes["hlg_fragment.mp4"]["is_hdr"] is True
    assert probes["hevc_timer.mp4"]["is_hdr"] is False
    assert probes["av1_testcard.mkv"]["codec"] == "av1"
    assert probes["carphone_pristine.mp4"]["pixel_aspect"] == "128/117"
    assert probes["mp4_no_extension"]["source_id"] == probes["mp4_named.webm"]["source_id"]
