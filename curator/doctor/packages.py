"""Packages that a run uses on CPUs: whether they are installed and work."""

import importlib.util
from collections.abc import Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

from curator.doctor.diagnosis import CheckRow, Group, Needs, State
from curator.doctor.probe_process import DECODERS, ProbeResult
from curator.errors import install_extra
from curator.media.nvdec_check import torch_cuda_build

ASKED = ("faiss", "ray", "boto3", "others", "cv2", "pyarrow", "av")
"""Questions about packages that every installation has, the slowest first."""

_OPENCV = ("opencv-python-headless", "opencv-python", "opencv-contrib-python")
_SYSTEM_LIBRARY = "cannot open shared object file"
_row = partial(Group.VIDEO.row, needed=True)


def version(distribution: str) -> str | None:
    """Returns the version of an installed distribution, from its metadata."""
    try:
        return version_of(distribution)
    except PackageNotFoundError:
        return None


def torch_build() -> str | None:
    """Returns the CUDA that torch was built for, such as `13.2`; None for CPU-only, or no torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return torch_cuda_build(Path(spec.origin).with_name("version.py").read_text())


def torch_words(release: str) -> str:
    """Describes an installed torch."""
    build = torch_build()
    return f"{release}, {f'for CUDA {build}' if build else 'a CPU-only build'}"


def are_sound(answers: Mapping[str, ProbeResult]) -> bool:
    """Returns whether this process can import the packages that read recipes and stores."""
    return all(answers[name].facts is not None for name in ASKED if name != "ray")


def package_rows(answers: Mapping[str, ProbeResult], needs: Needs) -> list[CheckRow]:
    """Returns the checks of packages; `answers` are those to `ASKED`."""
    faiss = answers["faiss"].facts or {}
    build = ", with GPU code" if faiss.get("gpu_build") else ", CPU only"
    torch, clip = version("torch"), version("open-clip-torch")
    return [
        *_ffmpeg(answers["av"]),
        _package("OpenCV", _OPENCV, answers["cv2"]),
        _row("torch", State.OK, torch_words(torch))
        if torch is not None
        else _row("torch", State.MISSING, "not installed", install_extra("run")),
        _package("FAISS", ("faiss-gpu", "faiss-cpu"), answers["faiss"], build),
        _package("Arrow", ("pyarrow",), answers["pyarrow"]),
        _package("Ray", ("ray",), answers["ray"]),
        _package("boto3", ("boto3",), answers["boto3"], needed=needs.s3),
        _others(answers["others"]),
        _row("open_clip", State.OK, clip, needed=needs.clip)
        if clip is not None
        else _row(
            "open_clip",
            State.MISSING if needs.clip else State.NOT_NEEDED,
            "not installed",
            install_extra("clip") + ("" if needs.clip else ", for recipes with CLIP"),
            needed=needs.clip,
        ),
    ]


def _package(
    name: str,
    distributions: tuple[str, ...],
    answer: ProbeResult,
    more: str = "",
    *,
    needed: bool = True,
) -> CheckRow:
    """Checks a package by its metadata and by the answer of a process that imported it."""
    installed = {
        distribution: release
        for distribution in distributions
        if (release := version(distribution)) is not None
    }
    words = ", ".join(map(" ".join, installed.items())) or "of unknown version"
    if answer.facts is not None:
        return _row(name, State.OK, words + more, needed=needed)
    if not installed:
        return _row(name, State.MISSING, "not installed", install_extra("run"), needed=needed)
    remedy = f"uv pip install --reinstall {' '.join(installed)}"
    if distributions is _OPENCV and ("libGL" in answer.error or len(installed) > 1):
        others = " ".join(name for name in installed if name != _OPENCV[0]) or "opencv-python"
        remedy = (
            f"uv pip uninstall {others}; uv pip install --reinstall opencv-python-headless, which "
            "needs no libGL"
        )
    elif _SYSTEM_LIBRARY in answer.error:
        library = answer.error.split(": ")[1]
        remedy = f"install the system library {library}, or {remedy}"
    return _row(name, State.BROKEN, f"{words}; {answer.error}", remedy, needed=needed)


def _ffmpeg(answer: ProbeResult) -> list[CheckRow]:
    package = _package("PyAV", ("av",), answer)
    if answer.facts is None:
        return [package]
    decoders, encoders = answer.facts["decoders"], answer.facts["encoders"]
    lacking = [name for name in DECODERS if name not in decoders]
    no_x264 = [] if "libx264" in encoders else ["libx264"]
    return [
        _row(package.name, State.OK, f"{package.found}, FFmpeg {answer.facts['ffmpeg']}"),
        # Sources in another codec fail; the run continues.
        _codecs("decoders", decoders, lacking, needed="h264" in lacking),
        _codecs("encoder", encoders, no_x264, needed=not encoders),
    ]


def _codecs(name: str, codecs: list[str], lacking: list[str], *, needed: bool) -> CheckRow:
    if not lacking:
        return _row(name, State.OK, ", ".join(codecs), needed=needed)
    other = "uv pip install --reinstall --only-binary av av: PyAV's own wheel has it"
    return _row(name, State.MISSING, f"no {', '.join(lacking)}", other, needed=needed)


def _others(answer: ProbeResult) -> CheckRow:
    if answer.facts is not None:
        return _row("other packages", State.OK, "numpy, pydantic, PyYAML, orjson, rich, pillow")
    again = "uv pip install --reinstall . in the checkout of this package"
    return _row("other packages", State.BROKEN, answer.error, again)
