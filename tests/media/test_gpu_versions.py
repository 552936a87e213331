"""Versions that do not fit are said with their remedy, by `curate doctor` and by runs alike."""

import re
from pathlib import Path

import pytest

from curator.media import nvdec_check
from curator.media.gpu_versions import FIRST_CODEC, codec_fault, driver_fault, torch_cuda_build

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("found", ["2.2.4", "2.2.10", "2.3", "3.0.0"])
def test_a_new_enough_package_is_used(found: str) -> None:
    assert codec_fault(found) is None


@pytest.mark.parametrize("found", ["2.2.3", "2.1", "1.0.2"])
def test_an_older_package_is_refused_with_the_remedy(found: str) -> None:
    """Pins the first version whose frames of 10 bits have the right strides."""
    fault = codec_fault(found)
    assert fault is not None
    assert fault.startswith(f"PyNvVideoCodec is {found}, and before 2.2.4 ")
    assert "; uv pip install '.[gpu]'" in fault


def test_the_lowest_version_is_that_of_the_extras() -> None:
    asked = re.findall(r"PyNvVideoCodec>=([\d.]+)", (ROOT / "pyproject.toml").read_text())
    assert asked == [FIRST_CODEC, FIRST_CODEC]


@pytest.mark.parametrize(("build", "cuda"), [("13.2", 13000), ("12.8", 12020), ("12.8", 13020)])
def test_a_driver_of_the_same_major_version_of_cuda_fits(build: str, cuda: int) -> None:
    assert driver_fault(build, cuda) is None


def test_an_older_driver_is_told_the_torch_that_fits_it() -> None:
    assert driver_fault("13.2", 12040) == (
        "the driver knows CUDA up to 12.4: it is too old; update the driver to 580 or newer, or "
        "install a torch for CUDA 12: uv pip install 'torch<2.11' in the checkout of this package"
    )
    assert "torch for CUDA 11" in (driver_fault("12.8", 11080) or "")


def test_the_build_of_torch_is_read_from_its_file() -> None:
    assert torch_cuda_build("cuda: Optional[str] = '13.2'\n") == "13.2"
    assert torch_cuda_build("cuda: Optional[str] = None\n") is None
    assert torch_cuda_build(None) is None


def test_the_check_of_a_run_says_which_versions_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins that it is said before the package is imported and before a worker needs torch."""
    monkeypatch.setattr(nvdec_check, "_codec_version", lambda: "2.1.0")
    assert nvdec_check._main() == 1
    assert capsys.readouterr().out.startswith("PyNvVideoCodec is 2.1.0, and before 2.2.4 ")
    monkeypatch.setattr(nvdec_check, "_codec_version", lambda: "2.2.4")
    monkeypatch.setattr(nvdec_check, "_driver_cuda", lambda: 12040)
    monkeypatch.setattr(nvdec_check, "torch_cuda_build", lambda _: "13.2")
    assert nvdec_check._main() == 1
    said = capsys.readouterr().out
    assert said.startswith("torch is built for CUDA 13.2, and the driver knows CUDA up to 12.4")
    assert "uv pip install 'torch<2.11'" in said
    monkeypatch.setattr(nvdec_check, "torch_cuda_build", lambda _: None)
    assert nvdec_check._main() == 1
    assert capsys.readouterr().out.startswith("torch is a CPU-only build")
