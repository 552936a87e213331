"""Checks the machine, and the packages that a run uses on CPUs."""

import os
import platform
import resource
import shutil
import tempfile
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

from curator.executor.host_resources import available_cpus, memory_bytes, object_store_bytes
from curator.executor.sandbox import landlock_version
from curator.executor.system_calls import has_seccomp
from curator.installation import install_extra, pip_command, reinstall
from curator.media.nvdec_check import installed_cuda_build, installed_version
from curator.storage.object_service import scheme_of
from curator.tools.doctor.diagnosis import CheckRow, Fault, Group, State
from curator.tools.doctor.probe_process import DECODERS, ProbeResult

WORKER_BYTES = 2 << 30
"""Memory that the engine plans for a worker."""
MIN_DISK_BYTES = 5 * 10**9
"""Free space below which a run over many films probably fills the disk."""
STOP_DISK_BYTES = 200 * 10**6
"""Free space that Ray's own files and the track of one film need."""
MIN_OPEN_FILES = 1024
"""Linux's default soft limit."""
ASKED = ("faiss", "ray", "boto3", "others", "cv2", "pyarrow", "av")
"""Probes of packages that every installation has, the slowest first."""

_SHM = "/dev/shm"
_OPENCV = ("opencv-python-headless", "opencv-python", "opencv-contrib-python")
_SYSTEM_LIBRARY = "cannot open shared object file"


def machine_rows(out: str | None) -> list[CheckRow]:
    """Checks the machine, and the disk of OUT if `out` is a local path."""
    python = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    outcomes = {
        "Python": python, "cores": str(available_cpus()), "memory": _memory(), _SHM: _shared(),
    }  # fmt: skip
    if out is not None and scheme_of(out) is None:
        outcomes["disk of OUT"] = _disk(existing(out), "free some, or choose another OUT")
    outcomes |= {
        "disk for temporary files": _disk(tempfile.gettempdir(), "free some, or set TMPDIR"),
        "open files": _open_files(),
        "sandbox": _protections(),
    }
    return [Group.MACHINE.row(name, outcome) for name, outcome in outcomes.items()]


def existing(path: str) -> str:
    """Returns a path, or the nearest folder above it that exists."""
    place = Path(path).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return str(place)


def _size(n_bytes: int) -> str:
    """Formats bytes in binary units, as is usual for memory: `16.0 GiB`."""
    gib = n_bytes / (1 << 30)
    return f"{gib:.1f} GiB" if gib >= 1 else f"{n_bytes / (1 << 20):.0f} MiB"


def _memory() -> str | Fault:
    memory, cores = memory_bytes(), available_cpus()
    fits = memory // WORKER_BYTES
    if fits == 0:
        finding = f"{_size(memory)}; one worker takes up to {_size(WORKER_BYTES)}"
        return Fault(finding, "give the machine or container 4 GiB or more", needed=True)
    few = f"; room for {fits} of {cores} workers; a run starts only these" if fits < cores else ""
    return _size(memory) + few


def _shared() -> str | Fault:
    if not os.path.exists(_SHM):
        return Fault("not on this system", None, State.NOT_NEEDED)
    wanted, usage = object_store_bytes(), shutil.disk_usage(_SHM)
    finding = f"{_size(usage.free)} free of {_size(usage.total)}"
    if usage.free >= wanted:
        return finding
    return Fault(
        f"{finding}; Ray's object store needs {_size(wanted)}, or else uses the disk",
        f"docker run --shm-size={-(-wanted >> 30) or 1}g, or an emptyDir of medium Memory under "
        "/dev/shm in Kubernetes",
    )


def _disk(path: str, remedy: str) -> str | Fault:
    usage = shutil.disk_usage(path)
    finding = f"{usage.free / 1e9:.1f} GB free of {usage.total / 1e9:.1f} GB at {path}"
    if usage.free >= MIN_DISK_BYTES:
        return finding
    finding += f"; less than {MIN_DISK_BYTES / 1e9:.0f} GB"
    return Fault(finding, remedy, needed=usage.free < STOP_DISK_BYTES)


def _open_files() -> str | Fault:
    # Ray raises the soft limit to the hard one.
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = ("unlimited" if limit < 0 else str(limit) for limit in limits)
    finding = f"limit {soft}, up to {hard}"
    if not 0 <= limits[1] < MIN_OPEN_FILES:
        return finding
    remedy = "raise it: ulimit -n 65536, LimitNOFILE= of systemd, docker run --ulimit nofile=65536"
    return Fault(f"{finding}; Ray opens more", remedy)


def _protections() -> str | Fault:
    landlock, seccomp = landlock_version(), has_seccomp()
    finding = f"Landlock {landlock or 'none'}, seccomp {'yes' if seccomp else 'no'}"
    if landlock and seccomp:
        return finding
    return Fault(
        f"{finding}; decoders have no credentials, but can reach files or the network",
        "run on Linux 5.13 or newer, on x86-64 or ARM, and let containers use Landlock",
    )


def are_sound(answers: Mapping[str, ProbeResult]) -> bool:
    """Returns whether this process can import the packages that read recipes and stores."""
    return all(answers[name].facts is not None for name in ASKED if name != "ray")


def package_rows(answers: Mapping[str, ProbeResult], needs: Collection[str]) -> list[CheckRow]:
    """Checks packages. `answers` are the answers to `ASKED`; `needs` are those of the recipe."""
    row, others = partial(Group.VIDEO.row, needed=True), answers["others"]
    faiss = answers["faiss"].facts or {}
    build = ", with GPU code" if faiss.get("gpu_build") else ", CPU only"
    return [
        *_ffmpeg(answers["av"]),
        row("OpenCV", _package(answers["cv2"], *_OPENCV)),
        row("torch", _torch()),
        row("FAISS", _package(answers["faiss"], "faiss-gpu", "faiss-cpu", more=build)),
        row("Arrow", _package(answers["pyarrow"], "pyarrow")),
        row("Ray", _package(answers["ray"], "ray")),
        row("boto3", _package(answers["boto3"], "boto3"), needed="s3" in needs),
        row(
            "other packages",
            "numpy, pydantic, PyYAML, orjson, rich, pillow"
            if others.facts is not None
            else Fault(others.error, reinstall(), State.BROKEN),
        ),
        row("open_clip", _open_clip("clip" in needs), needed="clip" in needs),
    ]


def _torch() -> str | Fault:
    release, build = installed_version("torch"), installed_cuda_build()
    if release is None:
        return Fault("not installed", install_extra("run"))
    return f"{release}, {f'for CUDA {build}' if build else 'a CPU-only build'}"


def _open_clip(is_needed: bool) -> str | Fault:
    if (release := installed_version("open-clip-torch")) is not None:
        return release
    if is_needed:
        return Fault("not installed", install_extra("clip"))
    remedy = f"{install_extra('clip')}, for recipes with CLIP"
    return Fault("not installed", remedy, State.NOT_NEEDED)


def _package(answer: ProbeResult, *distributions: str, more: str = "") -> str | Fault:
    """Checks a package by its metadata and by the answer of a process that imported it."""
    installed = {
        name: release for name in distributions if (release := installed_version(name)) is not None
    }
    words = ", ".join(map(" ".join, installed.items())) or "of unknown version"
    if answer.facts is not None:
        return words + more
    if not installed:
        return Fault("not installed", install_extra("run"))
    remedy = pip_command("install", *installed, again=True)
    if distributions == _OPENCV and ("libGL" in answer.error or len(installed) > 1):
        others = [name for name in installed if name != _OPENCV[0]] or ["opencv-python"]
        again = pip_command("install", _OPENCV[0], again=True)
        remedy = f"{pip_command('uninstall', *others)}; {again}, which needs no libGL"
    elif _SYSTEM_LIBRARY in answer.error:
        remedy = f"install the system library {answer.error.split(': ')[1]}, or {remedy}"
    return Fault(f"{words}; {answer.error}", remedy, State.BROKEN)


def _ffmpeg(answer: ProbeResult) -> list[CheckRow]:
    row, facts = partial(Group.VIDEO.row, needed=True), answer.facts
    if facts is None:
        return [row("PyAV", _package(answer, "av"))]
    lacking = [name for name in DECODERS if name not in facts["decoders"]]
    no_x264 = [] if "libx264" in facts["encoders"] else ["libx264"]
    # Sources in a codec without a decoder fail; the run continues.
    return [
        row("PyAV", _package(answer, "av", more=f", FFmpeg {facts['ffmpeg']}")),
        row("decoders", _codecs(facts["decoders"], lacking), needed="h264" in lacking),
        row("encoder", _codecs(facts["encoders"], no_x264), needed=not facts["encoders"]),
    ]


def _codecs(codecs: list[str], lacking: list[str]) -> str | Fault:
    if not lacking:
        return ", ".join(codecs)
    other = pip_command("install", "--only-binary", "av", "av", again=True)
    return Fault(f"no {', '.join(lacking)}", f"{other}: PyAV's own wheel has it")
