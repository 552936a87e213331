"""A source that a GPU decodes gives the track that the CPU gives, but for the last digits.

The engine is FFmpeg behind PyNvVideoCodec's calls, and the device torch's CPU: scaling, views and
measurements are those of the GPU path.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from fake_nvdec import Decoded, Decoder, PacketData, PyNvVCException, Single, fake_module
from film_makers import made_in, write_video
from film_shots import moving_texture
from samples import StillNetwork, analyzed
from segmented import segment_tracks

from curator.media import source_segments as segments
from curator.media.nvdec import Nvdec
from curator.records.sources import Note
from curator.records.tracks import UNIFORM, Track
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.decode_source import HeaderClaims
from curator.stages.analyze.measurer import AnalysisModels
from curator.stages.analyze.segment_join import join_segments
from curator.storage import NO_HASHES

CONFIG = AnalyzeConfig(text=False)
EXACT = (
    "end_pts", "width", "height", "rotation_deg", "pixel_aspect", "is_interlaced", "is_hdr",
    "notes", "n_decode_errors", "frame_pts", "frame_bytes", "frame_flags", "sample_frame",
    "sample_pair_frame", "look_frame", "thumbnail_frame", "sha256", "time_base",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return made_in(tmp_path_factory.mktemp("device_tracks"))


def both(path: Path) -> tuple[Track, Track]:
    nvdec = Nvdec(module=fake_module(), device="cpu")
    host, device = analyzed(path, config=CONFIG), analyzed(path, config=CONFIG, nvdec=nvdec)
    # A device does not tell which frames are uniform.
    return replace(host, frame_flags=host.frame_flags & ~np.uint8(UNIFORM)), device


@pytest.mark.parametrize(
    "name",
    [
        "b_frames.mp4", "variable_rate.mp4", "rotated.mp4", "mirrored.mp4", "ten_bit.mp4",
        "open_gop.ts",
    ],
)  # fmt: skip
def test_a_track_is_the_same_on_both_paths(name: str, made: Callable[[str], Path]) -> None:
    host, device = both(made(name))
    for field in EXACT:
        assert np.array_equal(getattr(host, field), getattr(device, field)), field
    assert {f.name for f in fields(Track)} >= set(EXACT)
    assert host.luma_mean == pytest.approx(device.luma_mean, abs=0.008)
    assert host.luma_spread == pytest.approx(device.luma_spread, abs=0.008)
    # Full-size luma is the decoder's own, so that only sums in another order differ.
    for signal in ("noise", "blocking", "banding", "combing", "resolution", "flattening",
                   "border_left", "border_top"):  # fmt: skip
        expected, found = host.signals[signal], device.signals[signal]
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3, err_msg=signal)
    for signal, most in (("motion", 0.02), ("sharpness", 0.05), ("dark_fraction", 0.01)):
        assert host.signals[signal] == pytest.approx(device.signals[signal], abs=most), signal
    assert np.isnan(device.signals["quantizer"]).all()
    likeness = (host.descriptor * device.descriptor).sum(axis=1)
    likeness /= np.linalg.norm(host.descriptor, axis=1) * np.linalg.norm(device.descriptor, axis=1)
    assert likeness.min() > 0.98


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("interlaced.mp4", Note.NOT_ON_GPU_INTERLACED),
        ("constant_rate.avi", Note.NOT_ON_GPU_CODEC),
        ("truncated.mp4", Note.NOT_ON_GPU_DAMAGED),
    ],
)
def test_what_the_engine_refuses_is_the_cpus_track_with_a_note(
    name: str, note: Note, made: Callable[[str], Path]
) -> None:
    host, device = both(made(name))
    assert device.notes == (*host.notes, note)
    for field in ("frame_pts", "luma_mean", "descriptor", "sha256"):
        assert np.array_equal(getattr(host, field), getattr(device, field)), field


@pytest.mark.long
def test_segments_on_the_engine_join_to_the_track_of_a_whole_decode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins the seek, the first frame and the frames that neighbours share, on the GPU's path."""
    monkeypatch.setattr(segments, "LEAST_FRAMES", 150)
    path = tmp_path / "long.mp4"
    write_video(path, moving_texture(700, width_px=192, height_px=108), gop=25, bframes=2)
    nvdec = Nvdec(module=fake_module(), device="cpu")
    analysis_models = AnalysisModels(network=StillNetwork(), nvdec=nvdec)  # type: ignore[arg-type]
    tracks = segment_tracks(path, limit_s=8, models=analysis_models, config=CONFIG)
    header = HeaderClaims(n_frames=700, duration_s=700 / 30)
    joined = join_segments(tracks, NO_HASHES, header)
    whole = analyzed(path, config=CONFIG, nvdec=nvdec)
    for field in ("frame_pts", "frame_bytes", "frame_flags", "sample_frame", "notes"):
        assert np.array_equal(getattr(joined, field), getattr(whole, field)), field
    assert joined.notes == ()
    assert joined.luma_mean == pytest.approx(whole.luma_mean, abs=1e-4)
    assert joined.signals["motion"] == pytest.approx(whole.signals["motion"], abs=1e-3)


def counted(kind: type[Decoder], made: list[object]) -> Nvdec:
    """Engines that note each decoder which they make."""

    def create(*, codec: str, **_: object) -> object:
        made.append(kind(codec))
        return made[-1]

    return Nvdec(module=fake_module(CreateDecoder=create), device="cpu")


def test_sources_of_one_form_and_header_share_a_decoder(
    made: Callable[[str], Path], tmp_path: Path
) -> None:
    # Pins that nothing of a source is left for the next, and that others get their own.
    decoders: list[object] = []
    nvdec = counted(Decoder, decoders)
    names = ["b_frames.mp4", "truncated.mp4", "b_frames.ts", "ten_bit.mp4", "b_frames.mp4"]
    for name in names:
        alone = both(made(name))[1]
        shared = analyzed(made(name), config=CONFIG, nvdec=nvdec)
        for field in (*EXACT, "luma_mean", "descriptor"):
            assert np.array_equal(getattr(alone, field), getattr(shared, field)), (name, field)
    # One of 8 bits, one more after the damage, one of 10 bits.
    assert len(decoders) == 3
    # Pins that a decoder made for one reference picture does not get a stream that needs six.
    decoders: list[object] = []
    nvdec = counted(Decoder, decoders)
    for ref in (1, 6, 1):
        path = tmp_path / f"{ref}.mp4"
        write_video(path, moving_texture(24), options={"x264-params": f"ref={ref}:bframes=0"})
        assert analyzed(path, config=CONFIG, nvdec=nvdec).notes == ()
    assert len(decoders) == 2


def test_where_a_decoder_fails_a_new_one_decides_who_is_to_blame(
    made: Callable[[str], Path], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    decoders: list[object] = []
    nvdec = counted(Single, decoders)
    alone = both(made("b_frames.mp4"))[1]
    with caplog.at_level("WARNING"):
        for _ in range(3):
            track = analyzed(made("b_frames.mp4"), config=CONFIG, nvdec=nvdec)
            assert track.notes == ()
            assert np.array_equal(track.luma_mean, alone.luma_mean)
    assert len(decoders) == 3
    assert caplog.text.count("a used decoder failed where a new one does not") == 1
    # Pins that a source is blamed, and not the decoder, where a new one fails too.
    bad: list[bytes] = []

    class Choosy(Decoder):
        def Decode(self, packet: PacketData) -> list[Decoded]:
            if bad:
                raise PyNvVCException("cuvidDecodePicture", 1)
            return super().Decode(packet)

    decoders: list[object] = []
    nvdec = counted(Choosy, decoders)
    path = made("b_frames.mp4")
    analyzed(path, config=CONFIG, nvdec=nvdec)
    bad.append(b"")
    assert analyzed(path, config=CONFIG, nvdec=nvdec).notes == (Note.NOT_ON_GPU_DECODER_ERROR,)
    bad.clear()
    for _ in range(2):
        assert analyzed(path, config=CONFIG, nvdec=nvdec).notes == ()
    assert len(decoders) == 3
