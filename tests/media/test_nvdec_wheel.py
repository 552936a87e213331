"""What is relied on in PyNvVideoCodec itself, at the lowest version that is allowed.

Without a driver the package loads over empty libraries of the driver's names. A process that has
loaded those must not be asked for a real GPU, so another process answers.
"""

import json
import platform
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import pytest
from fake_nvdec import fake_module

from curator.media.nvdec import Nvdec
from curator.media.nvdec_check import CODEC, FIRST_CODEC
from curator.tools.doctor.probe_process import LIBRARIES, NVDEC_FORMATS

HAS_WHEEL = sys.platform == "linux" and platform.machine() == "x86_64"
"""Where the extra `test` installs the package."""
pytestmark = pytest.mark.skipif(not HAS_WHEEL, reason="PyNvVideoCodec has a wheel for Linux alone")

DRIVER = (
    "int NvEncodeAPIGetMaxSupportedVersion(unsigned *version) { *version = 13 << 4; return 0; }"
)
ANSWER = """
import ctypes, json, os, sys
for path in sys.argv[1:]:
    ctypes.CDLL(path, mode=os.RTLD_GLOBAL | os.RTLD_LAZY)
sys.setdlopenflags(os.RTLD_LAZY)
import PyNvVideoCodec as package
packet = package.PacketData()
packet.bsl_data, packet.bsl, packet.key = (1 << 47) - 1, 1 << 24, 1
packet.pts = packet.dts = -(1 << 40)
print(json.dumps({
    "caps": package.GetDecoderCaps.__doc__,
    "create": package.CreateDecoder.__doc__,
    "packet": [packet.bsl_data, packet.bsl, packet.key, packet.pts, packet.dts],
    "errors": [
        [base.__name__ for base in error.__bases__]
        for error in (package.PyNvVCException, package.PyNvVCExceptionUnsupported)
    ],
    "codecs": list(package.cudaVideoCodec.__members__),
    "chroma": list(package.cudaVideoChromaFormat.__members__),
}))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler is not None, "install a C compiler, such as gcc"
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    for name in LIBRARIES:
        command = [compiler, "-shared", "-fPIC", "driver.c", f"-Wl,-soname,{name}", "-o", name]
        subprocess.run(command, check=True, cwd=folder)
    paths = [str(folder / name) for name in LIBRARIES]
    command = [sys.executable, "-c", ANSWER, *paths]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, Any] = json.loads(answer.splitlines()[-1])
    return found


def arguments(documentation: str) -> list[dict[str, str]]:
    """Name and default of each argument, of each overload, as pybind11's documentation says."""
    signatures = re.findall(r"^(?:\d+\. )?\w+\((\w.*)\) -> ", documentation, re.M)
    return [dict(re.findall(r"(\w+): \S+ = (<[^>]*>|[^,]+)", found)) for found in signatures]


def test_the_wheel_is_the_lowest_allowed_and_takes_our_calls(package: dict[str, Any]) -> None:
    """Pins that CI tests what is promised: constraints.txt holds the lowest version."""
    assert version(CODEC) == FIRST_CODEC, (
        f"hold PyNvVideoCodec=={FIRST_CODEC} in constraints.txt, or raise the lowest version in "
        "pyproject.toml and nvdec_check.py"
    )
    # Defaults that are relied on, and that both overloads take what a decoder is made of.
    (caps,) = arguments(package["caps"])
    assert caps == {
        "gpuid": "0", "codec": "<cudaVideoCodec.H264: 4>",
        "chromaformat": "<cudaVideoChromaFormat.420: 1>", "bitdepth": "8",
    }  # fmt: skip
    given: dict[str, Any] = {}
    Nvdec(module=fake_module(CreateDecoder=given.update), device="cpu").decoder("h264")
    overloads = arguments(package["create"])
    assert len(overloads) == 2
    for overload in overloads:
        assert set(given) <= set(overload)
        assert overload["latency"] == "<DisplayDecodeLatencyType.NATIVE: 0>", "in order of display"
        assert overload["outputColorType"] == "<OutputColorType.NATIVE: 0>", "NV12 and P016"
    assert set(vars(fake_module().cudaVideoCodec)) <= set(package["codecs"])
    for codec, chroma, _ in NVDEC_FORMATS:
        assert codec.upper() in package["codecs"]
        assert chroma in package["chroma"]
    # Negative times too, and why `except RuntimeError` catches no error of the package.
    assert package["packet"] == [(1 << 47) - 1, 1 << 24, 1, -(1 << 40), -(1 << 40)]
    assert package["errors"] == [["Exception"]] * 2
