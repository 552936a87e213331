"""The NVIDIA driver, and the packages that use a GPU: torch, PyNvVideoCodec, FAISS."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from curator.installation import pip_command
from curator.media.nvdec_check import CODEC, cuda_words, nvdec_refusal, torch_fault
from curator.tools.doctor.diagnosis import CheckRow, Fault, Group, State
from curator.tools.doctor.probe_process import DECODERS, LIBRARIES, ProbeResult, ask_all

_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/lib/wsl/lib")
"""Folders in which GKE and WSL put the driver's libraries, and the loader may not look."""

CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
_INSTALL = (
    "install NVIDIA's driver (580 or newer for CUDA 13) on this machine; start a container with "
    f"--gpus all -e {CAPABILITIES}=compute,utility,video (in Kubernetes: ask for nvidia.com/gpu, "
    "and set that variable in the pod)"
)
_WHAT_FOR = {
    "libnvcuvid.so.1": "NVDEC, decoding on the GPU",
    "libnvidia-encode.so.1": "NVENC; PyNvVideoCodec does not load without it",
}
_INIT_ERRORS = {
    100: ("no GPU that CUDA can use", f"check CUDA_VISIBLE_DEVICES; {_INSTALL}"),
    802: (
        "the system is not ready",
        "start nvidia-fabricmanager of the driver's version: GPUs on NVSwitch need this service",
    ),
    803: (
        "library and kernel module of the driver have different versions",
        "restart the machine after a driver update; remove the container's own libcuda, such as "
        "cuda-compat",
    ),
    804: (
        "this GPU does not support the compatibility package (cuda-compat)",
        "remove cuda-compat from LD_LIBRARY_PATH, or update the driver",
    ),
    999: (
        "unknown error",
        "load the kernel module nvidia_uvm (nvidia-modprobe -u), or restart the machine; see dmesg",
    ),
}
"""Meaning and remedy of error codes of `cuInit`."""
_OTHER_INIT = "see `dmesg | grep -i -e nvrm -e xid`; restart the machine, or change the GPU"


def gpu_rows(faiss: ProbeResult, *, needed: bool) -> list[CheckRow]:
    """Checks the GPU and the packages that use the GPU.

    Without a driver, a recipe that needs no GPU gets the outcome *not needed*. With a driver, all
    faults are reported, but they stop only a recipe that needs a GPU. Packages are tried only if
    CUDA starts. `faiss` is the answer to the probe `faiss`.
    """
    row, (driver,) = partial(Group.GPU.row, needed=needed), ask_all(["libraries"]).values()
    if driver.facts is None:
        return [row("CUDA", Fault(driver.error, _OTHER_INIT, State.BROKEN))]
    loads = driver.facts["loads"]
    if (error := loads["libcuda.so.1"]) is not None:
        fault = _absent("libcuda.so.1", f"no NVIDIA driver: {error}")
        return [row("driver", fault if needed else Fault(fault.found, None, State.NOT_NEEDED))]
    cuda = row("CUDA", _cuda(driver.facts))
    rows = [cuda, *(row(name, _library(name, loads[name])) for name in LIBRARIES[1:])]
    if cuda.is_bad:
        return rows
    answers = ask_all(["torch", "nvdec", "nvenc", "faiss_gpus"])
    rows.append(row("torch on the GPU", _torch(answers["torch"])))
    if (refusal := nvdec_refusal()) is not None:
        remedy = "see the rows of the driver's libraries; NVDEC needs a driver of 530 or newer"
        state = State.MISSING if "not installed" in refusal.partition("; ")[0] else State.BROKEN
        rows.append(row(CODEC, Fault.of(refusal, remedy, state)))
    else:
        rows.append(row(CODEC, "decodes H.264 on GPU 0"))
        if (formats := answers["nvdec"].facts) is not None:
            rows += [row(f"NVDEC {codec}", _nvdec(codec, formats["formats"])) for codec in DECODERS]
        rows.append(row("NVENC h264", _nvenc(answers["nvenc"])))
    return [*rows, row("FAISS on the GPU", _faiss(faiss, answers["faiss_gpus"]), needed=False)]


def _cuda(facts: Mapping[str, Any]) -> str | Fault:
    words = f"libcuda.so.1, up to CUDA {cuda_words(facts['cuda'])}"
    if facts["init"] == 0 and facts["devices"]:
        return f"{words}, GPUs: {facts['devices']}"
    code = facts["init"] or 100
    why, remedy = _INIT_ERRORS.get(code, (f"error {code}", _OTHER_INIT))
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        why += f" (CUDA_VISIBLE_DEVICES is {visible!r})"
    return Fault(f"{words}: {why}", remedy, State.BROKEN)


def _library(name: str, error: str | None) -> str | Fault:
    what_for = _WHAT_FOR[name]
    return what_for if error is None else _absent(name, f"{error} ({what_for})")


def _absent(library: str, finding: str) -> Fault:
    """Returns the fault of a library that does not load, with a remedy."""
    folder = next((at for at in _FOLDERS if Path(at, library).exists()), None)
    if folder is not None:
        remedy = f"export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH, or run ldconfig"
        return Fault(f"{finding}; it is in {folder}", remedy)
    if (value := os.environ.get(CAPABILITIES)) is not None:
        finding += f"; {CAPABILITIES} is {value!r}"
    return Fault(finding, _INSTALL)


def _torch(answer: ProbeResult) -> str | Fault:
    if (fault := torch_fault()) is not None:
        return Fault.of(fault)
    if answer.facts is not None and answer.facts["devices"]:
        gpus = Counter(answer.facts["devices"]).items()
        return f"computes on {'; '.join(f'{n} x {gpu}' for gpu, n in gpus)}"
    return Fault(
        answer.error or "sees no GPU",
        "install a torch whose CUDA and GPU architectures fit this GPU and driver; check "
        "CUDA_VISIBLE_DEVICES",
        State.BROKEN,
    )


def _nvdec(codec: str, formats: Sequence[Mapping[str, Any]]) -> str | Fault:
    """Returns the formats of a codec that NVDEC decodes. CPUs decode sources in other formats."""
    takes = [row for row in formats if row["codec"] == codec and row["caps"].get("supported")]
    if not takes:
        return Fault(f"not on this GPU; {codec} is decoded on CPUs", None, State.NOT_NEEDED)
    caps = takes[0]["caps"]
    words = ", ".join(f"{':'.join(take['chroma'])} of {take['bits']} bits" for take in takes)
    size = f"{caps['width_max']}x{caps['height_max']}"
    return f"{words}, up to {size}, engines: {caps['num_decoder_engines']}"


def _nvenc(answer: ProbeResult) -> str:
    problem = answer.error if answer.facts is None else answer.facts["problem"]
    return "opens" if problem is None else f"x264 on CPUs; does not open: {problem}"


def _faiss(faiss: ProbeResult, gpus: ProbeResult) -> str | Fault:
    if faiss.facts is None or not faiss.facts["gpu_build"]:
        remove = pip_command("uninstall", "faiss-cpu")
        install = f"{remove}; {pip_command('install', 'faiss-gpu')}"
        return Fault("a CPU-only build; CPUs search for duplicates", install)
    if gpus.facts is None or not gpus.facts["gpus"]:
        remedy = "update the driver to 580 or newer, or see the row `torch on the GPU`"
        return Fault(gpus.error or "it sees no GPU", remedy, State.BROKEN)
    return f"a build with GPU code, GPUs: {gpus.facts['gpus']}"
