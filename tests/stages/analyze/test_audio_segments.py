"""The audio of a source in segments is that of one decode, however it lies in the file."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from samples import FEW_SAMPLES, framed
from segmented import segment_tracks, short_segments
from sound import Sound, steps, write_film

from curator.records.sources import Note
from curator.records.tracks import Track
from curator.stages.analyze.decode_source import HeaderClaims
from curator.stages.analyze.segment_join import join_segments
from curator.storage import ContentHashes

SECONDS = 24


@pytest.fixture(scope="module", autouse=True)
def short() -> Iterator[None]:
    yield from short_segments(240)


def joined(tracks: list[Track], whole: Track) -> Track:
    """The source's track from those of its segments."""
    header = HeaderClaims(n_frames=whole.n_frames, duration_s=whole.duration_s)
    hashes = ContentHashes(sha256=whole.sha256, blocks=whole.block_hashes)
    return join_segments(tracks, hashes, header)


@pytest.mark.parametrize(
    ("name", "codec", "behind_s"),
    [
        ("side_by_side.mp4", "aac", 0.0),
        pytest.param(*("audio_last.mp4", "aac", 1e6), marks=pytest.mark.long),
        pytest.param(*("audio_first.mp4", "libmp3lame", -1e6), marks=pytest.mark.long),
        pytest.param(*("side_by_side.avi", "pcm_s16le", 0.0), marks=pytest.mark.long),
        pytest.param(*("mp3.avi", "libmp3lame", 0.0), marks=pytest.mark.long),
        pytest.param(*("side_by_side.mkv", "libopus", 0.0), marks=pytest.mark.long),
        pytest.param(*("audio_behind.mkv", "flac", 6.0), marks=pytest.mark.long),
        pytest.param(*("audio_ahead.mkv", "flac", -3.0), marks=pytest.mark.long),
    ],
)
def test_segments_hear_what_one_decode_hears(
    tmp_path: Path, name: str, codec: str, behind_s: float
) -> None:
    """Pins all levels; AAC fills in noise, which differs where a cell is far below those around."""
    path = tmp_path / name
    sound = Sound(wave=steps(SECONDS), codec=codec, behind_s=behind_s)
    write_film(path, [sound], n_frames=30 * SECONDS, gop=60)
    whole = framed(path)
    assert len(whole.audio_rms_db) >= 10 * SECONDS - 1
    assert np.std(whole.audio_rms_db) > 5
    track = joined(segment_tracks(path, config=FEW_SAMPLES), whole)
    assert track.audio_rms_first == whole.audio_rms_first
    assert not set(track.notes) & {Note.AUDIO_ERRORS, Note.AUDIO_UNPROVEN, Note.AUDIO_TIMESTAMPS}
    if codec == "aac":
        differences = np.abs(track.audio_rms_db - whole.audio_rms_db)
        assert len(differences) == len(whole.audio_rms_db)
        assert (differences <= 0.1).mean() >= 0.99
    else:
        np.testing.assert_array_equal(track.audio_rms_db, whole.audio_rms_db)


@pytest.mark.long
def test_audio_that_one_segment_places_elsewhere_is_not_used(tmp_path: Path) -> None:
    """Pins that a seek that brings other audio is found out, and that pictures do not suffer."""
    path = tmp_path / "a.mov"
    write_film(path, [Sound(wave=steps(SECONDS), codec="pcm_s16le")], n_frames=30 * SECONDS, gop=60)
    whole = framed(path)
    first, second, *rest = segment_tracks(path, config=FEW_SAMPLES)
    shifted = replace(second, audio_rms_first=second.audio_rms_first + 5)
    track = joined([first, shifted, *rest], whole)
    assert (len(track.audio_rms_db), track.notes) == (0, (Note.AUDIO_UNPROVEN,))
    np.testing.assert_array_equal(track.frame_pts, whole.frame_pts)


@pytest.mark.long
def test_audio_that_is_damaged_or_begins_within_a_segment_is_heard_as_in_one_decode(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.mp4"
    write_film(path, [Sound(wave=steps(SECONDS), behind_s=1e6)], n_frames=30 * SECONDS, gop=60)
    data = bytearray(path.read_bytes())
    audio = range(data.index(b"mdat"), len(data))
    for position in audio[len(audio) * 6 // 10 : len(audio) * 7 // 10]:
        data[position] = 0xFF
    path.write_bytes(bytes(data))
    whole = framed(path)
    assert whole.notes == (Note.AUDIO_ERRORS,)
    assert 20 < np.isnan(whole.audio_rms_db).sum() < 200
    track = joined(segment_tracks(path, config=FEW_SAMPLES), whole)
    assert track.notes == whole.notes
    np.testing.assert_array_equal(np.isnan(track.audio_rms_db), np.isnan(whole.audio_rms_db))
    # Audio that begins or ends within a segment is all heard.
    path = tmp_path / "a.mkv"
    sound = Sound(wave=steps(3.27), codec="flac", start_s=Fraction(13))
    write_film(path, [sound], n_frames=30 * SECONDS, gop=60)
    whole = framed(path)
    assert (whole.audio_rms_first, len(whole.audio_rms_db)) == (130, 33)
    track = joined(segment_tracks(path, config=FEW_SAMPLES), whole)
    assert (track.audio_rms_first, track.notes) == (130, ())
    np.testing.assert_array_equal(track.audio_rms_db, whole.audio_rms_db)
