"""What PyNvVideoCodec asks of the driver, and that it gives back what it took.

Only with the package itself, over the software driver: `test_nvdec_package` runs it.
"""

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_nvdec import USES_PACKAGE, decoder_options, driver, fake_module
from film_makers import MAKERS

from curator.doctor import probe_process as inside
from curator.media.container import open_container, video_stream
from curator.media.nvdec import Nvdec, NvdecReader, bitstream_filter

pytestmark = pytest.mark.skipif(not USES_PACKAGE, reason="run by test_nvdec_package")

STREAM = 0x1234
"""Of CUDA; the software driver takes any number for one."""


@pytest.fixture
def film(tmp_path: Path) -> Path:
    path = tmp_path / "b_frames.mp4"
    MAKERS[path.name](path)
    return path


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    yield
    driver().set_wait_us(0)


def calls_on(stream: int, film: Path, monkeypatch: Any, capfd: Any) -> list[list[str]]:  # noqa: ANN401
    """What is called for each frame, up to that torch reads it."""
    monkeypatch.setenv("SOFTWARE_TRACE", "1")
    nvdec = Nvdec(module=fake_module(), device="cpu")
    with film.open("rb") as file, open_container(file, "x", n_bytes=film.stat().st_size) as opened:
        found = video_stream(opened, "x")
        filtered = bitstream_filter(found)
        assert filtered is not None
        decoder = fake_module().CreateDecoder(**decoder_options("H264", stream))
        calls = []
        for packet in opened.demux(found):
            if not packet.size:
                break
            for part in filtered.filter(packet):
                capfd.readouterr()
                frames = decoder.Decode(nvdec.packet(part, part.pts))
                for frame in frames:
                    torch.utils.dlpack.from_dlpack(frame.__dlpack__(stream=-1))
                if frames:
                    calls.append(re.findall(r"^(cu\w+ ?.*)$", capfd.readouterr().err, re.M))
    return calls


def test_on_the_default_stream_each_frame_waits_for_all_that_is_queued_there(
    film: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Why `Nvdec.queued` has a stream of its own."""
    for calls in calls_on(0, film, monkeypatch, capfd):
        assert "cuStreamSynchronize (nil)" in calls


def test_on_a_stream_of_its_own_frames_are_only_queued(
    film: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = calls_on(STREAM, film, monkeypatch, capfd)
    assert len(found) > 10
    for calls in found:
        assert not [call for call in calls if "Synchronize" in call]
        assert f"cuvidMapVideoFrame64 {STREAM:#x}" in calls
        copies = [call for call in calls if call.startswith("cuMemcpy")]
        assert copies == [f"cuMemcpy2DAsync {STREAM:#x}"] * 2


def read(film: Path, n_frames: int | None = None) -> int:
    nvdec = Nvdec(module=fake_module(), device="cpu")
    with film.open("rb") as file, open_container(file, "x", n_bytes=film.stat().st_size) as opened:
        reader = NvdecReader(
            opened, video_stream(opened, "x"), "x", nvdec=nvdec,
            max_pixels=10**7, batch=4,
        )  # fmt: skip
        frames = iter(reader)
        n = sum(1 for _ in zip(frames, range(n_frames or 10**6), strict=False))
        frames.close()
    return n


def test_decoders_and_their_memory_are_given_back(film: Path) -> None:
    n_frames = read(film)
    gc.collect()
    before = driver().n_decoders()[0], driver().n_bytes()
    for stop in (None, 1, 9, None):
        assert read(film, stop) == (stop or n_frames)
    gc.collect()
    assert (driver().n_decoders()[0], driver().n_bytes()) == before
    assert driver().n_decoders()[1] >= 5


def test_leaving_early_waits_for_the_engine_before_the_container_is_closed(film: Path) -> None:
    driver().set_wait_us(20_000)
    for _ in range(5):
        assert read(film, 1) == 1


def test_the_doctor_asks_for_formats_by_the_packages_own_names() -> None:
    formats = inside.QUESTIONS["nvdec"]()["formats"]
    assert [(f["codec"], f["chroma"], f["bits"]) for f in formats] == list(inside.NVDEC_FORMATS)
    caps = {(f["codec"], f["chroma"], f["bits"]): f["caps"] for f in formats}
    assert caps["h264", "420", 8]["supported"] == 1
    assert caps["h264", "420", 8]["num_decoder_engines"] == 7
    assert caps["h264", "422", 8]["supported"] == 0
