"""Packages that a run uses on CPUs: whether they are installed and work."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from curator.doctor.diagnosis import Group, Needs, Row, State
from curator.doctor.host import Answer, Host
from curator.doctor.probe_process import DECODERS
from curator.errors import install_extra
from curator.media.gpu_versions import torch_cuda_build

ASKED = ("faiss", "ray", "boto3", "others", "cv2", "pyarrow", "onnxruntime", "av")
"""Questions about packages that every installation has, the slowest first."""

_DISTRIBUTIONS = {
    "av": ("PyAV", ("av",)),
    "cv2": ("OpenCV", ("opencv-python-headless", "opencv-python", "opencv-contrib-python")),
    "faiss": ("FAISS", ("faiss-gpu", "faiss-cpu")),
    "onnxruntime": ("onnxruntime", ("onnxruntime",)),
    "pyarrow": ("Arrow", ("pyarrow",)),
    "boto3": ("boto3", ("boto3",)),
    "ray": ("Ray", ("ray",)),
}
_SYSTEM_LIBRARY = "cannot open shared object file"


def ask_all(host: Host, questions: Iterable[str]) -> dict[str, Answer]:
    """Returns answers to questions, as many at a time as there are cores."""
    names = list(questions)
    with ThreadPoolExecutor(max(1, host.cpus()), thread_name_prefix="doctor") as pool:
        return dict(zip(names, pool.map(host.ask, names), strict=True))


def are_sound(answers: Mapping[str, Answer]) -> bool:
    """Returns whether this process can import the packages that read recipes and stores."""
    return all(answers[name].facts is not None for name in ASKED if name != "ray")


def package_rows(host: Host, answers: Mapping[str, Answer], needs: Needs) -> list[Row]:
    """Returns the checks of packages; `answers` are those to `ASKED`."""
    faiss = answers["faiss"].facts or {}
    build = ", with GPU code" if faiss.get("gpu_build") else ", CPU only"
    return [
        *_ffmpeg(host, answers["av"]),
        _package(host, "cv2", answers),
        _torch(host),
        _package(host, "faiss", answers, build),
        _package(host, "onnxruntime", answers, needed=needs.text),
        _package(host, "pyarrow", answers),
        _package(host, "ray", answers),
        _package(host, "boto3", answers, needed=needs.s3),
        _others(answers["others"]),
        _open_clip(host, needs),
    ]


_row = partial(Group.VIDEO.row, needed=True)


def _package(
    host: Host, module: str, answers: Mapping[str, Answer], more: str = "", *, needed: bool = True
) -> Row:
    """Checks a package by its metadata and by the answer of a process that imported it."""
    name, distributions = _DISTRIBUTIONS[module]
    installed = [(one, found) for one in distributions if (found := host.version(one)) is not None]
    answer = answers[module]
    if answer.facts is None and not installed:
        return _row(name, State.MISSING, "not installed", install_extra("run"), needed=needed)
    words = ", ".join(f"{one} {found}" for one, found in installed) or "of unknown version"
    if answer.facts is None:
        names = [one for one, _ in installed] or list(distributions[:1])
        remedy = _remedy(module, names, answer.error)
        return _row(name, State.BROKEN, f"{words}; {answer.error}", remedy, needed=needed)
    return _row(name, State.OK, words + more, needed=needed)


def _remedy(module: str, installed: list[str], error: str) -> str:
    again = f"uv pip install --reinstall {' '.join(installed)}"
    if module == "cv2" and ("libGL" in error or len(installed) > 1):
        others = " ".join(one for one in installed if one != "opencv-python-headless")
        return (
            f"uv pip uninstall {others or 'opencv-python'}; "
            "uv pip install --reinstall opencv-python-headless, which needs no libGL"
        )
    if _SYSTEM_LIBRARY in error:
        library = error.split(": ")[1] if ": " in error else error
        return f"install the system library {library}, or {again}"
    return again


def _ffmpeg(host: Host, answer: Answer) -> list[Row]:
    package = _package(host, "av", {"av": answer})
    if answer.facts is None:
        return [package]
    decoders, encoders = answer.facts["decoders"], answer.facts["encoders"]
    lacking = [name for name in DECODERS if name not in decoders]
    return [
        _row(package.name, State.OK, f"{package.found}, FFmpeg {answer.facts['ffmpeg']}"),
        # Sources in another codec fail; the run continues.
        _codecs("decoders", decoders, lacking, needed="h264" in lacking),
        _codecs(
            "encoder", encoders, [] if "libx264" in encoders else ["libx264"], needed=not encoders
        ),
    ]


def _codecs(name: str, found: list[str], lacking: list[str], *, needed: bool) -> Row:
    if not lacking:
        return _row(name, State.OK, ", ".join(found), needed=needed)
    other = "uv pip install --reinstall --only-binary av av: PyAV's own wheel has it"
    return _row(name, State.MISSING, f"no {', '.join(lacking)}", other, needed=needed)


def torch_build(host: Host) -> str | None:
    """Returns the CUDA version that torch was built for, such as `13.2`; None for CPU-only."""
    return torch_cuda_build(host.package_file("torch", "version.py"))


def _torch(host: Host) -> Row:
    found = host.version("torch")
    if found is None:
        return _row("torch", State.MISSING, "not installed", "uv pip install torch torchvision")
    return _row("torch", State.OK, f"{found}, {torch_build_words(torch_build(host))}")


def torch_build_words(build: str | None) -> str:
    """Describes torch's build."""
    return f"for CUDA {build}" if build else "a CPU-only build"


def _others(answer: Answer) -> Row:
    if answer.facts is None:
        return _row("other packages", State.BROKEN, answer.error, install_extra("run"))
    return _row("other packages", State.OK, "numpy, pydantic, PyYAML, orjson, rich, pillow")


def _open_clip(host: Host, needs: Needs) -> Row:
    found = host.version("open-clip-torch")
    if found is not None:
        return _row("open_clip", State.OK, found, needed=needs.clip)
    return _row(
        "open_clip",
        State.MISSING if needs.clip else State.NOT_NEEDED,
        "not installed",
        install_extra("clip") + ("" if needs.clip else ", for recipes with CLIP"),
        needed=needs.clip,
    )
