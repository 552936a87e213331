"""Each failure of an engine ends in the right place on each path, and none in wrong pixels.

Pixels and tracks are compared with those of the CPU.
"""

import threading
import time
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from fake_nvdec import Decoded, Decoder, PacketData, PyNvVCException, fake_module
from film_makers import made_in, write_video
from film_shots import moving_texture
from joined_films import join
from samples import analyzed

from curator.errors import CutError, DeviceLostError, DeviceMemoryError
from curator.loading.device_windows import DeviceDecoder
from curator.loading.window_decoder import ClipWindow, decode_window
from curator.media import nvdec as engines
from curator.media.encode import refuse_without
from curator.media.nvdec import Nvdec
from curator.records.sources import Note
from curator.records.tracks import Track
from curator.stages.analyze.config import AnalyzeConfig
from tests.made_shards import FPS, clip_bytes

CONFIG = AnalyzeConfig(text=False)
LOST, SHORT, DECODER = "device lost", "memory", "decoder_error"


class Failure(NamedTuple):
    """How an engine fails, and how an analysis ends: `ends` is None where it does not notice.

    `at` counts packets, 0 is the making of a decoder; with `stays` each call after it fails too.
    """

    at: int
    result: int
    ends: str | None
    stays: bool = False


FAILURES = {
    "create": Failure(0, 801, DECODER, stays=True),
    "create, memory": Failure(0, 2, None),
    "create, memory stays": Failure(0, 2, SHORT, stays=True),
    "decode": Failure(9, 1, DECODER),
    "decode, stays": Failure(9, 700, LOST, stays=True),
    "map, stays": Failure(9, 719, LOST, stays=True),
    "copy, stays": Failure(9, 214, LOST, stays=True),
}


class Engine:
    """Makes decoders that fail in the given way."""

    def __init__(self) -> None:
        self.failure: Failure | None = None
        self.hangs: threading.Event | None = None
        self.n_made = self.n_calls = 0
        self.nvdec = Nvdec(module=fake_module(CreateDecoder=self._create), device="cpu")

    def fails(self, failure: Failure) -> None:
        """Lets calls from now on fail."""
        self.failure, self.n_calls = failure, 0
        self.nvdec.kept.clear()

    def _create(self, *, codec: str, **_: object) -> Decoder:
        self.n_made += 1
        self.call(is_packet=False)
        engine = self

        class Failing(Decoder):
            def Decode(self, packet: PacketData) -> list[Decoded]:
                engine.call(is_packet=True)
                return super().Decode(packet)

        return Failing(codec)

    def call(self, *, is_packet: bool) -> None:
        """Fails where it is time to."""
        self.n_calls += is_packet
        if self.hangs is not None and self.n_calls == 9:
            self.hangs.wait(60)
        failure = self.failure
        if failure is None or is_packet == (failure.at == 0):
            return
        if self.n_calls >= failure.at:
            if not failure.stays:
                self.failure = None
            raise PyNvVCException("a call", failure.result)


@pytest.fixture
def film(tmp_path: Path) -> Path:
    return made_in(tmp_path)("b_frames.mp4")


def assert_same(one: Track, other: Track, *, besides: tuple[str, ...] = ()) -> None:
    for field in fields(Track):
        if field.name in besides:
            continue
        a, b = getattr(one, field.name), getattr(other, field.name)
        pairs = [(a[key], b[key]) for key in a] if isinstance(a, dict) else [(a, b)]
        for left, right in pairs:
            is_float = isinstance(left, np.ndarray) and left.dtype.kind == "f"
            assert np.array_equal(left, right, equal_nan=is_float), field.name


@pytest.mark.long
def test_an_analysis_ends_with_the_cpus_track_or_with_the_devices_error(film: Path) -> None:
    on_cpu = analyzed(film, config=CONFIG)
    for name, failure in FAILURES.items():
        engine = Engine()
        sound = analyzed(film, config=CONFIG, nvdec=engine.nvdec)
        engine.fails(failure)
        if failure.ends in (LOST, SHORT):
            error = DeviceLostError if failure.ends == LOST else DeviceMemoryError
            with pytest.raises(error):
                analyzed(film, config=CONFIG, nvdec=engine.nvdec)
        else:
            track = analyzed(film, config=CONFIG, nvdec=engine.nvdec)
            if failure.ends is None:
                assert_same(track, sound)
            else:
                assert track.notes == (Note(f"not_on_gpu_{failure.ends}"),), name
                assert_same(track, on_cpu, besides=("notes",))
        engine.failure, n_made = None, engine.n_made
        if failure.ends == LOST:
            # At some errors the package ends the process: it is not called again.
            with pytest.raises(DeviceLostError):
                analyzed(film, config=CONFIG, nvdec=engine.nvdec)
            assert engine.n_made == n_made
        else:
            assert_same(analyzed(film, config=CONFIG, nvdec=engine.nvdec), sound)


def test_an_engine_that_hangs_is_lost_after_a_while_and_not_waited_for(
    film: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "ENGINE_WAIT_S", 0.5)
    engine = Engine()
    engine.hangs = threading.Event()
    begun = time.monotonic()
    with pytest.raises(DeviceLostError, match="has not answered"):
        analyzed(film, config=CONFIG, nvdec=engine.nvdec)
    assert time.monotonic() - begun < 30
    engine.hangs.set()


@pytest.mark.parametrize(
    ("codec", "suffix", "name"),
    [
        ("libx264", "ts", "joined.ts"),
        ("libx264", "ts", "joined.mp4"),
        ("libvpx-vp9", "webm", "joined.webm"),
    ],
)
def test_a_stream_that_changes_its_size_is_the_cpus(
    codec: str, suffix: str, name: str, tmp_path: Path
) -> None:
    """Pins headers in the stream alone, in the container, and in frames."""
    options = {"deadline": "realtime", "cpu-used": "8"} if suffix == "webm" else None
    parts = [tmp_path / f"part{number}.{suffix}" for number in range(2)]
    for part, (width, height) in zip(parts, [(320, 192), (224, 144)], strict=True):
        shown = moving_texture(24, width_px=width, height_px=height)
        write_video(part, shown, gop=12, codec=codec, options=options)
    join(tmp_path / name, *parts)
    track = analyzed(tmp_path / name, config=CONFIG, nvdec=Engine().nvdec)
    assert Note.NOT_ON_GPU_SIZE_CHANGES in track.notes
    assert_same(track, analyzed(tmp_path / name, config=CONFIG), besides=("notes",))


def window(mp4: bytes) -> ClipWindow:
    wanted = np.arange(3, 15)
    return ClipWindow(
        mp4=mp4, wanted=wanted, rate=Fraction(FPS), decoder_threads=1, scaled=False, name="clip 7"
    )


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "new"])
def test_a_window_is_the_cpus_or_its_error_the_trainers(is_known: bool, tmp_path: Path) -> None:
    """Pins both decodes: that of the first picture of a header, and that of a window."""
    clip = window(clip_bytes(tmp_path, n_frames=24, height=64, width=112, bframes=2))
    expected = torch.zeros((3, 12, 64, 112), dtype=torch.uint8)
    decode_window(clip, expected)
    for name, failure in FAILURES.items():
        found = torch.zeros_like(expected)
        engine = Engine()
        loader = DeviceDecoder(engine.nvdec)
        if is_known:
            assert loader.decode_or_copy(clip, found) is None
            found.zero_()
        engine.fails(failure)
        if failure.ends == LOST:
            with pytest.raises(DeviceLostError, match="while clip 7 was decoded; CUDA does not"):
                loader.decode_or_copy(clip, found)
            continue
        refusal = loader.decode_or_copy(clip, found)
        # The decoder of the first picture is used for the window, and a new one in its place.
        is_mended = not is_known and failure.at > 0
        wanted = {SHORT: "out_of_memory"}.get(failure.ends or "", failure.ends)
        assert refusal == (None if is_mended else wanted), name
        assert torch.equal(found, expected)
        engine.failure = None
        found.zero_()
        assert loader.decode_or_copy(clip, found) is None
        assert torch.equal(found, expected)


def test_an_encoder_that_does_not_open_is_told_in_words() -> None:
    """The cut's own decoder is a CPU's; its GPU part is NVENC."""
    with pytest.raises(CutError, match=r"h264_nvenc does not open here .*set cut\.encoder to x264"):
        refuse_without("nvenc")
