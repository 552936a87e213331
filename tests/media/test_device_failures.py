"""Each failure of a driver ends in the right place on each path, and none in wrong pixels.

Only with PyNvVideoCodec itself over the software driver: `test_nvdec_package` runs it. Pixels and
tracks are compared with those of the CPU.
"""

import gc
import time
from collections.abc import Iterator
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_nvdec import USES_PACKAGE, driver, fake_module
from film_makers import MAKERS, write_video
from film_shots import moving_texture
from joined_films import join
from samples import analyzed

from curator.errors import CutError, DeviceLostError, DeviceMemoryError
from curator.loading.device_windows import DeviceDecoder
from curator.loading.window_decoder import ClipWindow, FrameWindow, decode_window
from curator.media import nvdec as engines
from curator.media.encode import refuse_without
from curator.media.nvdec import Nvdec
from curator.records.sources import Note
from curator.records.tracks import Track
from curator.stages.analyze.config import AnalyzeConfig
from tests.made_shards import FPS, clip_bytes

pytestmark = pytest.mark.skipif(not USES_PACKAGE, reason="run by test_nvdec_package")

CONFIG = AnalyzeConfig(text=False)
LOST, SHORT, DECODER = "device lost", "memory", "decoder_error"

FAILURES: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "parser": ("cuvidCreateVideoParser", {"result": 1}, DECODER),
    "create": ("cuvidCreateDecoder", {"result": 801}, DECODER),
    "create, memory": ("cuvidCreateDecoder", {"result": 2}, None),
    "decode": ("cuvidDecodePicture", {"at": 9, "result": 1}, DECODER),
    "decode, stays": ("cuvidDecodePicture", {"at": 9, "result": 700, "stays": True}, LOST),
    "map": ("cuvidMapVideoFrame64", {"at": 9, "result": 205}, DECODER),
    "map, stays": ("cuvidMapVideoFrame64", {"at": 9, "result": 719, "stays": True}, LOST),
    "allocate": ("cuMemAlloc_v2", {"result": 2}, None),
    "allocate, stays": ("cuMemAlloc_v2", {"result": 2, "stays": True}, SHORT),
    "copy, stays": ("cuMemcpy2DAsync_v2", {"at": 9, "result": 214, "stays": True}, LOST),
}
"""Call, how it fails, and how an analysis ends: a refusal, an error, or as if nothing had been."""


@pytest.fixture(autouse=True)
def _mended() -> Iterator[None]:
    yield
    driver().mend()


@pytest.fixture
def film(tmp_path: Path) -> Path:
    path = tmp_path / "b_frames.mp4"
    MAKERS[path.name](path)
    return path


def engine() -> Nvdec:
    return Nvdec(module=fake_module(), device="cpu")


def assert_same(one: Track, other: Track, *, besides: tuple[str, ...] = ()) -> None:
    for field in fields(Track):
        if field.name in besides:
            continue
        a, b = getattr(one, field.name), getattr(other, field.name)
        pairs = [(a[key], b[key]) for key in a] if isinstance(a, dict) else [(a, b)]
        for left, right in pairs:
            is_float = isinstance(left, np.ndarray) and left.dtype.kind == "f"
            assert np.array_equal(left, right, equal_nan=is_float), field.name


@pytest.mark.parametrize("name", FAILURES)
def test_an_analysis_ends_with_the_cpus_track_or_with_the_devices_error(
    name: str, film: Path
) -> None:
    call, how, ends = FAILURES[name]
    nvdec = engine()
    sound = analyzed(film, config=CONFIG, nvdec=nvdec)
    nvdec.kept.drop()
    driver().fail(call, **how)
    if ends in (LOST, SHORT):
        error = DeviceLostError if ends == LOST else DeviceMemoryError
        with pytest.raises(error):
            analyzed(film, config=CONFIG, nvdec=nvdec)
    else:
        track = analyzed(film, config=CONFIG, nvdec=nvdec)
        if ends is None:
            assert_same(track, sound)
        else:
            assert track.notes == (Note(f"not_on_gpu_{ends}"),)
            assert_same(track, analyzed(film, config=CONFIG), besides=("notes",))
    driver().mend()
    made = driver().n_decoders()[1]
    if ends == LOST:
        # At some errors the package ends the process: it is not called again.
        with pytest.raises(DeviceLostError):
            analyzed(film, config=CONFIG, nvdec=nvdec)
        assert driver().n_decoders()[1] == made
    else:
        assert_same(analyzed(film, config=CONFIG, nvdec=nvdec), sound)


def test_what_fails_gives_its_memory_back(film: Path) -> None:
    gc.collect()
    before = driver().n_decoders()[0], driver().n_bytes()
    driver().fail("cuvidMapVideoFrame64", at=20, result=1)
    analyzed(film, config=CONFIG, nvdec=engine())
    gc.collect()
    assert (driver().n_decoders()[0], driver().n_bytes()) == before


def test_an_engine_that_hangs_is_lost_after_a_while_and_not_waited_for(
    film: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "ENGINE_WAIT_S", 0.5)
    nvdec = engine()
    driver().fail("cuvidDecodePicture", at=9, hangs=True)
    begun = time.monotonic()
    with pytest.raises(DeviceLostError, match="has not answered"):
        analyzed(film, config=CONFIG, nvdec=nvdec)
    assert time.monotonic() - begun < 30


def changing(folder: Path, kind: str) -> Path:
    """A film whose pictures become smaller; `ts` has its headers in the stream alone."""
    codec, suffix = {"vp9": ("libvpx-vp9", "webm"), "hevc": ("libx265", "ts")}.get(
        kind, ("libx264", "ts")
    )
    options = {"deadline": "realtime", "cpu-used": "8"} if kind == "vp9" else None
    parts = []
    for number, (width, height) in enumerate([(320, 192), (224, 144)]):
        parts.append(folder / f"part{number}.{suffix}")
        shown = moving_texture(24, width_px=width, height_px=height)
        write_video(parts[-1], shown, gop=12, codec=codec, options=options)
    path = folder / {"vp9": "joined.webm", "mp4": "joined.mp4"}.get(kind, "joined.ts")
    join(path, *parts)
    return path


@pytest.mark.parametrize("kind", ["ts", "mp4", "hevc", "vp9"])
def test_a_stream_that_changes_its_size_is_the_cpus(kind: str, tmp_path: Path) -> None:
    path = changing(tmp_path, kind)
    nvdec = engine()
    track = analyzed(path, config=CONFIG, nvdec=nvdec)
    assert Note.NOT_ON_GPU_SIZE_CHANGES in track.notes
    assert_same(track, analyzed(path, config=CONFIG), besides=("notes",))


def test_the_package_alone_would_scale_it_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why headers are looked at: shapes and numbers of frames are right, and no error comes."""
    path = changing(tmp_path, "ts")
    monkeypatch.setattr(engines, "sequence_header", lambda *_: None)
    track = analyzed(path, config=CONFIG, nvdec=engine())
    assert Note.NOT_ON_GPU_SIZE_CHANGES not in track.notes
    assert (track.width, track.n_frames) == (320, 48)
    driver().fail("cuvidReconfigureDecoder", result=1)
    track = analyzed(path, config=CONFIG, nvdec=engine())
    assert Note.NOT_ON_GPU_DECODER_ERROR in track.notes
    assert_same(track, analyzed(path, config=CONFIG), besides=("notes",))


def window(mp4: bytes) -> ClipWindow:
    chosen = FrameWindow(frames=12, stride=1, place="first", decoder_threads=1)
    return ClipWindow(
        mp4=mp4, start=3, rate=Fraction(FPS), window=chosen, scaled=False, name="clip 7"
    )


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "new"])
@pytest.mark.parametrize("name", FAILURES)
def test_a_window_is_the_cpus_or_its_error_the_trainers(
    name: str, is_known: bool, tmp_path: Path
) -> None:
    """Pins both decodes: that of the first picture of a header, and that of a window."""
    call, how, ends = FAILURES[name]
    clip = window(clip_bytes(tmp_path, n_frames=24, height=64, width=112, bframes=2))
    expected = torch.zeros((3, 12, 64, 112), dtype=torch.uint8)
    decode_window(clip, expected)
    found = torch.zeros_like(expected)
    nvdec = engine()
    loader = DeviceDecoder(nvdec)
    if is_known:
        assert loader.decode_or_copy(clip, found) is None
        nvdec.kept.drop()
        found.zero_()
    driver().fail(call, **how)
    if ends == LOST:
        with pytest.raises(DeviceLostError, match="while clip 7 was decoded; CUDA does not"):
            loader.decode_or_copy(clip, found)
        return
    refusal = loader.decode_or_copy(clip, found)
    # The decoder of the first picture is used for the window, and a new one in its place.
    is_mended = not is_known and "at" in how
    wanted = None if is_mended else {SHORT: "out_of_memory"}.get(ends or "", ends)
    assert refusal == wanted
    assert torch.equal(found, expected)
    driver().mend()
    found.zero_()
    assert loader.decode_or_copy(clip, found) is None
    assert torch.equal(found, expected)


def test_an_encoder_that_does_not_open_is_told_in_words() -> None:
    """The cut's own decoder is a CPU's; its GPU part is NVENC."""
    with pytest.raises(CutError, match=r"h264_nvenc does not open here .*set cut\.encoder to x264"):
        refuse_without("nvenc")
