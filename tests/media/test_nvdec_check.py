"""Versions that do not fit are said with their remedy, by `curate doctor` and by runs alike."""

import re
from pathlib import Path

import pytest

from curator.installation import install_extra, pip_command
from curator.media import nvdec_check
from curator.media.nvdec_check import FIRST_CODEC, codec_fault, driver_fault, torch_cuda_build

ROOT = Path(__file__).parents[2]


def test_an_old_package_or_driver_is_told_with_the_remedy() -> None:
    """Pins the first version whose frames of 10 bits have the right strides."""
    for installed in ("2.2.4", "2.2.10", "2.3", "3.0.0"):
        assert codec_fault(installed) is None
    for installed in ("2.2.3", "2.1", "1.0.2"):
        fault = codec_fault(installed) or ""
        assert fault.startswith(f"PyNvVideoCodec is {installed}, and before 2.2.4, ")
        assert f"; {install_extra('gpu')}" in fault
    asked = re.findall(r"PyNvVideoCodec>=([\d.]+)", (ROOT / "pyproject.toml").read_text())
    assert asked == [FIRST_CODEC, FIRST_CODEC]
    # A driver of the same major version of CUDA fits too.
    for build, cuda in (("13.2", 13000), ("12.8", 12020), ("12.8", 13020)):
        assert driver_fault(build, cuda) is None
    assert driver_fault("13.2", 12040) == (
        "the driver is too old, and supports CUDA up to 12.4; update the driver to 580 or newer, "
        f"or install a torch for CUDA 12: {pip_command('install', 'torch<2.11')}"
    )
    assert "torch for CUDA 11" in (driver_fault("12.8", 11080) or "")
    # The build of torch is read from its file.
    assert torch_cuda_build("debug = False\ncuda: Optional[str] = '13.2'\n") == "13.2"
    assert torch_cuda_build("cuda = '12.8'\nhip = 'x'\n") == "12.8"
    assert torch_cuda_build("cuda: Optional[str] = None\nhip: Optional[str] = 'x'\n") is None
    assert torch_cuda_build("") is None


def test_the_check_of_a_run_says_which_versions_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins that it is said before the package is imported and before a worker needs torch."""
    monkeypatch.setattr(nvdec_check, "_driver_cuda", lambda: 12040)
    for codec, build, words in (
        ("2.1.0", "13.2", "PyNvVideoCodec is 2.1.0, and before 2.2.4, 10-bit frames"),
        (
            "2.2.4",
            "13.2",
            "torch is built for CUDA 13.2, and the driver is too old, and supports CUDA up to 12.4",
        ),
        ("2.2.4", None, "torch is a CPU-only build"),
    ):
        monkeypatch.setattr(nvdec_check, "installed_version", lambda _, codec=codec: codec)
        monkeypatch.setattr(nvdec_check, "torch_cuda_build", lambda _, build=build: build)
        assert nvdec_check._main() == 1
        assert capsys.readouterr().out.startswith(words)
