"""What is relied on in PyNvVideoCodec itself, at the lowest version that is allowed.

`test_nvdec_package` runs this in a process of its own, over a driver in software.
"""

import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
import torch.utils.dlpack
from fake_nvdec import USES_PACKAGE, decoder_options, driver, fake_module, planes_of
from film_makers import write_video

from curator.media import nvdec_check
from curator.media.gpu_versions import CODEC, FIRST_CODEC
from curator.media.nvdec import Nvdec, bitstream_filter

pytestmark = pytest.mark.skipif(
    not USES_PACKAGE, reason="runs in a process of its own, by test_nvdec_package"
)

WIDTH, HEIGHT = 1000, 600
"""The engine pads rows of its surfaces to 1024 bytes for 8 bits, and to 2048 for 10."""


@pytest.fixture(scope="module")
def package() -> Any:  # noqa: ANN401
    driver()
    import PyNvVideoCodec

    return PyNvVideoCodec


def arguments(function: Any) -> list[dict[str, str]]:  # noqa: ANN401
    """Name and default of each argument, of each overload, as pybind11's documentation says."""
    signatures = re.findall(r"^(?:\d+\. )?\w+\((\w.*)\) -> ", function.__doc__, re.M)
    return [dict(re.findall(r"(\w+): \S+ = (<[^>]*>|[^,]+)", found)) for found in signatures]


def test_the_version_is_the_lowest_that_is_allowed() -> None:
    """Pins that CI tests what is promised: constraints.txt holds the lowest version."""
    assert version(CODEC) == FIRST_CODEC, (
        f"hold PyNvVideoCodec=={FIRST_CODEC} in constraints.txt, or raise the lowest version in "
        "pyproject.toml and gpu_versions.py"
    )


def test_the_arguments_of_calls_are_those_of_the_package(package: Any) -> None:  # noqa: ANN401
    (caps,) = arguments(package.GetDecoderCaps)
    assert caps == {
        "gpuid": "0", "codec": "<cudaVideoCodec.H264: 4>",
        "chromaformat": "<cudaVideoChromaFormat.420: 1>", "bitdepth": "8",
    }  # fmt: skip
    for overload in arguments(package.CreateDecoder):
        assert set(decoder_options("H264", 0)) <= set(overload)
        assert overload["latency"] == "<DisplayDecodeLatencyType.NATIVE: 0>", "in order of display"
        assert overload["outputColorType"] == "<OutputColorType.NATIVE: 0>", "NV12 and P016"
    # An overload takes what names an argument that is its own; calls here fit both.
    assert len(arguments(package.CreateDecoder)) == 2
    with pytest.raises(TypeError, match="incompatible function arguments"):
        package.CreateDecoder(gpu=0)


def test_packets_have_the_fields_that_are_set(package: Any) -> None:  # noqa: ANN401
    """Pins addresses, sizes and times of 64 bits, negative times too."""
    packet = package.PacketData()
    packet.bsl_data, packet.bsl, packet.key = (1 << 47) - 1, 1 << 24, 1
    packet.pts = packet.dts = -(1 << 40)
    assert (packet.bsl_data, packet.bsl, packet.key) == ((1 << 47) - 1, 1 << 24, 1)
    assert packet.pts == packet.dts == -(1 << 40)


def test_errors_of_the_package_are_no_runtime_errors(package: Any) -> None:  # noqa: ANN401
    """Pins why `except RuntimeError` catches none of them."""
    for error in (package.PyNvVCException, package.PyNvVCExceptionUnsupported):
        assert error.__bases__ == (Exception,)


def test_the_capabilities_have_the_keys_that_are_read(package: Any) -> None:  # noqa: ANN401
    caps = package.GetDecoderCaps(gpuid=0, codec=package.cudaVideoCodec.H264, bitdepth=8)
    read = {"supported", "width_min", "height_min", "width_max", "height_max"}
    assert read | {"num_decoder_engines"} <= set(caps)


def frames_of(path: Path) -> Iterator[tuple[int, torch.Tensor]]:
    """Times and planes of a file's frames, not copied: valid until the next."""
    nvdec = Nvdec(module=fake_module(), device="cpu")
    decoder = nvdec.decoder("h264")
    with av.open(path) as container:
        stream = container.streams.video[0]
        to_start_codes = bitstream_filter(stream)
        assert to_start_codes is not None
        packets = [found for packet in container.demux(stream) if packet.size
                   for found in to_start_codes.filter(packet)]  # fmt: skip
    for packet in (*packets, None):
        for frame in decoder.Decode(nvdec.packet(packet, packet.pts if packet is not None else 0)):
            yield frame.getPTS(), torch.utils.dlpack.from_dlpack(frame.__dlpack__(stream=-1))


@pytest.mark.parametrize(
    ("pix_fmt", "kind"), [("yuv420p", torch.uint8), ("yuv420p10le", torch.uint16)]
)
def test_frames_have_the_shape_type_and_strides_that_are_read(
    pix_fmt: str, kind: torch.dtype, tmp_path: Path
) -> None:
    """Pins that rows of both depths are copied without padding, and that strides count samples."""
    path = tmp_path / "film.mp4"
    noise = np.random.default_rng(0).integers(0, 255, (8, HEIGHT, WIDTH, 3), np.uint8)
    write_video(path, noise, pix_fmt=pix_fmt)
    with av.open(path) as container:
        expected = {frame.pts: planes_of(frame) for frame in container.decode(video=0)}
    n = 0
    for pts, planes in frames_of(path):
        assert (tuple(planes.shape), planes.dtype) == ((HEIGHT * 3 // 2, WIDTH), kind)
        assert planes.stride() == (WIDTH, 1)
        assert np.array_equal(planes.numpy(), expected[pts].numpy())
        n += 1
    assert n == len(expected) == 8


def test_the_check_of_a_run_finds_an_engine(
    package: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Pins versions, driver and engine together: this driver says CUDA 13.0."""
    monkeypatch.setattr(nvdec_check, "torch_cuda_build", lambda _: "13.2")
    assert (nvdec_check._main(), capsys.readouterr().out) == (0, "")
    monkeypatch.setattr(nvdec_check, "torch_cuda_build", lambda _: "14.0")
    assert nvdec_check._main() == 1
    assert "the driver knows CUDA up to 13.0: it is too old" in capsys.readouterr().out
