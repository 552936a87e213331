"""Frames that the GPU's reader gives are the CPU's, or the source is refused with a reason.

The video engine is FFmpeg behind the calls of PyNvVideoCodec (`fake_nvdec`): what is tested is all
that lies around it. `needs_gpu` tests run on the real one.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_nvdec import (
    Decoded,
    Decoder,
    Failing,
    PacketData,
    PyNvVCException,
    Shifted,
    Smaller,
    dropping,
    fake_module,
    planes_of,
)
from film_makers import made_in

from curator.errors import CuratorError, DecodeError, DeviceMemoryError
from curator.media.container import open_container, video_stream
from curator.media.decode import DecodedFrame, DecodeReport, DeviceFrame, FrameReader
from curator.media.nvdec import AHEAD, NotOnDeviceError, Nvdec, NvdecReader, Refusal

Maker = Callable[[str], Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return made_in(tmp_path_factory.mktemp("nvdec"))


def on_cpu(path: Path) -> tuple[DecodeReport, list[DecodedFrame]]:
    with (
        path.open("rb") as file,
        open_container(file, path.name, n_bytes=path.stat().st_size) as container,
    ):
        stream = video_stream(container, path.name)
        reader = FrameReader(container, stream, path.name, threads=1, max_pixels=10**7)
        return reader.report, list(reader)


def on_device(
    path: Path,
    nvdec: Nvdec | None = None,
    **options: Any,  # noqa: ANN401
) -> tuple[DecodeReport, list[DeviceFrame]]:
    nvdec = nvdec or Nvdec(module=fake_module(), device="cpu")
    with (
        path.open("rb") as file,
        open_container(file, path.name, n_bytes=path.stat().st_size) as container,
    ):
        stream = video_stream(container, path.name)
        options = {"max_pixels": 10**7} | options
        reader = NvdecReader(container, stream, path.name, nvdec=nvdec, **options)
        return reader.report, list(reader)


SOUND = [
    "constant_rate.mp4", "constant_rate.mkv", "constant_rate.ts", "constant_rate.webm",
    "b_frames.mp4", "b_frames.ts", "open_gop.mp4", "variable_rate.mp4", "rotated.mp4",
    "ten_bit.mp4", "one_frame.mp4", "audio_outlasts_video.mp4", "edited.mp4", "mirrored.mp4",
]  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_frames_are_the_cpus_in_number_order_and_time(name: str, made: Maker) -> None:
    """Pins numbers, timestamps, bytes, key frames, the report, and that no frame is overwritten."""
    expected, frames = on_cpu(made(name))
    for batch in (1, 7, 32):
        report, found = on_device(made(name), batch=batch)
        assert report == expected
        assert [(f.index, f.pts, f.n_bytes, f.picture.key_frame) for f in found] == [
            (f.index, f.pts, f.n_bytes, bool(f.picture.key_frame)) for f in frames
        ]
        for frame, shown in zip(frames, found, strict=True):
            assert torch.equal(shown.picture.view, planes_of(frame.picture))


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("constant_rate.avi", Refusal.CODEC),
        ("one_pixel.mp4", Refusal.PIXELS),
        ("interlaced.mp4", Refusal.INTERLACED),
        ("truncated.mp4", Refusal.DAMAGED),
        ("frame_lost.mp4", Refusal.DAMAGED),
    ],
)
def test_what_the_cpu_must_decode_is_refused(name: str, refusal: Refusal, made: Maker) -> None:
    with pytest.raises(NotOnDeviceError) as refused:
        on_device(made(name))
    assert refused.value.refusal == refusal
    assert name in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "words", "refusal"),
    [
        (dropping(11), "47 frames of 48 packets", Refusal.FRAMES_DIFFER),
        (Smaller, "90 rows and 320 columns", Refusal.SIZE_CHANGES),
        (Shifted, r"the first picture is .* levels off", Refusal.FRAMES_DIFFER),
        (Failing, "cuvidDecodePicture returned error 1", Refusal.DECODER),
    ],
)
def test_an_engine_that_errs_is_found_out(
    kind: type[Decoder], words: str, refusal: Refusal, made: Maker
) -> None:
    module = fake_module(CreateDecoder=lambda *, codec, **_: kind(codec))
    with pytest.raises(NotOnDeviceError, match=words) as refused:
        on_device(made("constant_rate.mp4"), Nvdec(module=module, device="cpu"))
    assert refused.value.refusal == refusal


def test_frames_are_decoded_while_those_before_them_are_measured(made: Maker) -> None:
    decoded: list[int] = []

    class Counting(Decoder):
        def Decode(self, packet: PacketData) -> list[Decoded]:
            frames = super().Decode(packet)
            decoded.extend(frame.getPTS() for frame in frames)
            return frames

    path = made("constant_rate.mp4")
    module = fake_module(CreateDecoder=lambda *, codec, **_: Counting(codec))
    with path.open("rb") as file, open_container(file, "x", n_bytes=path.stat().st_size) as opened:
        reader = NvdecReader(
            opened, video_stream(opened, "x"), "x", nvdec=Nvdec(module=module, device="cpu"),
            max_pixels=10**7, batch=4,
        )  # fmt: skip
        frames = iter(reader)
        next(frames)
        until = time.monotonic() + 10
        while len(decoded) < 4 * (1 + AHEAD) and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.05)
        # The last batch may have been one frame of several that a packet gave.
        assert 4 * (1 + AHEAD) <= len(decoded) < 4 * (2 + AHEAD)
        frames.close()


@pytest.mark.parametrize(
    ("caps", "refusal"),
    [
        ({"supported": 0}, Refusal.CODEC),
        ({"supported": 1, "width_max": 300, "height_max": 4096}, Refusal.SIZE),
        ({"supported": 1, "width_min": 48, "height_min": 200}, Refusal.SIZE),
        (PyNvVCException("cuvidGetDecoderCaps", 801), Refusal.CODEC),
    ],
    ids=["unsupported", "too large", "too small", "error"],
)
def test_the_device_is_asked_what_it_decodes(
    caps: dict[str, int] | Exception, refusal: Refusal, made: Maker
) -> None:
    def answer(**_: object) -> dict[str, int]:
        if isinstance(caps, Exception):
            raise caps
        return caps

    nvdec = Nvdec(module=fake_module(GetDecoderCaps=answer), device="cpu")
    with pytest.raises(NotOnDeviceError) as refused:
        on_device(made("constant_rate.mp4"), nvdec)
    assert refused.value.refusal == refusal


def test_batches_are_halved_when_memory_runs_out(
    made: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that no frame is lost or moved, and that no room for one is no fault of the source."""
    empty, most = torch.empty, [16]

    def small_empty(shape: tuple[int, ...], **options: object) -> torch.Tensor:
        if shape[0] > most[0]:
            raise torch.OutOfMemoryError("made by the test")
        return empty(shape, **options)  # type: ignore[call-overload,no-any-return]

    expected = on_device(made("b_frames.mp4"))[1]
    monkeypatch.setattr(torch, "empty", small_empty)
    nvdec = Nvdec(module=fake_module(), device="cpu")
    found = on_device(made("b_frames.mp4"), nvdec)[1]
    assert nvdec.n_halved == 1
    assert [f.pts for f in found] == [f.pts for f in expected]
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.picture.view, b.picture.view)
    most[0] = 0
    with pytest.raises(DeviceMemoryError, match="does not hold one frame"):
        on_device(made("b_frames.mp4"))


def test_limits_hold_on_the_device_too(made: Maker) -> None:
    with pytest.raises(DecodeError, match="more than 20 frames"):
        on_device(made("constant_rate.mp4"), max_frames=20)
    with pytest.raises(DecodeError, match="more than 100 pixels"):
        on_device(made("constant_rate.mp4"), max_pixels=100)


def test_without_the_package_or_the_driver_it_is_said_what_to_do() -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    with pytest.raises(CuratorError, match=r"analyze\.device to cpu"):
        Nvdec()


@pytest.mark.needs_gpu
@pytest.mark.parametrize("name", ["constant_rate.mp4", "b_frames.ts", "open_gop.mp4"])
def test_the_real_engine_gives_the_cpus_frames(name: str, made: Maker) -> None:
    """Pins NVDEC itself: H.264 decoding is exact to the bit."""
    expected, frames = on_cpu(made(name))
    report, found = on_device(made(name), Nvdec())
    torch.cuda.synchronize()
    assert report == expected
    assert [(f.index, f.pts, f.n_bytes) for f in found] == [
        (f.index, f.pts, f.n_bytes) for f in frames
    ]
    for frame, shown in zip(frames, found, strict=True):
        assert torch.equal(shown.picture.view.cpu(), planes_of(frame.picture))
