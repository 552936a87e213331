"""Questions to packages that may crash or hang, each in a process of its own.

`python -m curator.doctor.probe_process QUESTION` prints facts as JSON on its last line, or an
`error`; `ask` runs it.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from curator.executor.host_resources import available_cpus

ANSWER_S = 60.0
"""Longest wait for a probe. Importing torch takes 4 CPU-seconds; a machine whose GPU hangs never
answers."""

DECODERS = ("h264", "hevc", "vp9", "av1")

LIBRARIES = ("libcuda.so.1", "libnvcuvid.so.1", "libnvidia-encode.so.1")
"""Parts of the NVIDIA driver: CUDA, NVDEC, NVENC."""

NVDEC_FORMATS = (
    ("h264", "420", 8),
    ("h264", "420", 10),
    ("h264", "422", 8),
    ("hevc", "420", 8),
    ("hevc", "420", 10),
    ("hevc", "422", 10),
    ("hevc", "444", 8),
    ("vp9", "420", 8),
    ("vp9", "420", 10),
    ("av1", "420", 8),
    ("av1", "420", 10),
)
"""Codec, chroma and bits per sample of usual videos. Each probe makes a CUDA context, which takes a
tenth of a second or more, so only these combinations are probed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """Answer of a probe: facts, or an error."""

    facts: Mapping[str, Any] | None = None
    error: str = ""


def ask(question: str) -> ProbeResult:
    """Returns the answer to one of `QUESTIONS`; the end of its process is an answer too."""
    return _answer([sys.executable, "-m", __name__, question], ANSWER_S)


def ask_all(questions: Iterable[str]) -> dict[str, ProbeResult]:
    """Returns answers to questions, as many at a time as there are cores."""
    names = list(questions)
    with ThreadPoolExecutor(available_cpus(), thread_name_prefix="doctor") as pool:
        return dict(zip(names, pool.map(ask, names), strict=True))


def _answer(command: list[str], timeout_s: float) -> ProbeResult:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ProbeResult(error="did not answer in time")
    if done.returncode < 0:
        return ProbeResult(error=f"the process died of {signal.Signals(-done.returncode).name}")
    # Packages print when they are imported; the answer is the last line.
    try:
        facts = json.loads(done.stdout.splitlines()[-1])
        return (
            ProbeResult(error=str(facts["error"])) if "error" in facts else ProbeResult(facts=facts)
        )
    except (ValueError, IndexError, TypeError):
        lines = [*f"{done.stdout}\n{done.stderr}".split("\n"), f"ended with {done.returncode}"]
        return ProbeResult(error=next(line.strip() for line in lines if line.strip()))


def av() -> dict[str, Any]:
    """Returns the version, decoders and encoders of FFmpeg behind PyAV."""
    import av as package
    from av.codec import Codec

    def has(name: str, mode: str) -> bool:
        try:
            Codec(name, mode)  # type: ignore[arg-type]
        except ValueError:
            return False
        return True

    return {
        "ffmpeg": str(getattr(package, "ffmpeg_version_info", "unknown")),
        "decoders": [name for name in DECODERS if has(name, "r")],
        "encoders": [name for name in ("libx264", "libvpx-vp9") if has(name, "w")],
    }


def faiss() -> dict[str, Any]:
    """Returns whether FAISS was built for GPUs."""
    import faiss as package

    return {"gpu_build": hasattr(package, "StandardGpuResources")}


def faiss_gpus() -> dict[str, Any]:
    """Counts GPUs that FAISS sees. A driver that does not work makes this end the process."""
    import faiss as package

    return {"gpus": int(package.get_num_gpus())}


def imported(*modules: str) -> dict[str, Any]:
    """Checks whether modules can be imported."""
    for module in modules:
        import_module(module)
    return {}


def libraries() -> dict[str, Any]:
    """Checks which parts of the driver load, and how CUDA starts.

    `loads` maps each library to None, or to its error. `cuda` is the newest CUDA of the
    driver (13020 for 13.2), `init` the code of `cuInit` (0 is success), `devices` the number of
    GPUs; they are None if `libcuda.so.1` does not load.
    """
    loads: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            ctypes.CDLL(name)
            loads[name] = None
        except OSError as error:
            loads[name] = str(error)
    facts: dict[str, Any] = {"loads": loads, "cuda": None, "init": None, "devices": None}
    if loads["libcuda.so.1"] is None:
        cuda = ctypes.CDLL("libcuda.so.1")
        number = ctypes.c_int(0)
        cuda.cuDriverGetVersion(ctypes.byref(number))
        facts |= {"cuda": number.value, "init": cuda.cuInit(0)}
        number = ctypes.c_int(0)
        cuda.cuDeviceGetCount(ctypes.byref(number))
        facts["devices"] = number.value
    return facts


def torch() -> dict[str, Any]:
    """Adds numbers on each GPU by torch; returns names and memory of the GPUs."""
    import torch as package

    package.cuda.init()
    names = []
    for gpu in range(package.cuda.device_count()):
        assert package.ones(8, device=f"cuda:{gpu}").sum().item() == 8
        about = package.cuda.get_device_properties(gpu)
        names.append(f"{about.name}, {about.total_memory >> 20} MiB")
    return {"devices": names}


def nvdec() -> dict[str, Any]:
    """Returns capabilities of the first GPU's decoder: PyNvVideoCodec's dictionary by format."""
    package = import_module("PyNvVideoCodec")
    formats = []
    for codec, chroma, bits in NVDEC_FORMATS:
        caps = package.GetDecoderCaps(
            gpuid=0,
            codec=getattr(package.cudaVideoCodec, codec.upper()),
            chromaformat=getattr(package.cudaVideoChromaFormat, chroma),
            bitdepth=bits,
        )
        formats.append({"codec": codec, "chroma": chroma, "bits": bits, "caps": dict(caps)})
    return {"formats": formats}


def nvenc() -> dict[str, Any]:
    """Returns why FFmpeg's encoder on the GPU does not open, or None."""
    from curator.media.encode import nvenc_problem

    return {"problem": nvenc_problem()}


QUESTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "av": av,
    "cv2": partial(imported, "cv2"),
    "faiss": faiss,
    "pyarrow": partial(imported, "pyarrow.parquet"),
    "boto3": partial(imported, "boto3"),
    "ray": partial(imported, "ray"),
    "others": partial(imported, "numpy", "pydantic", "yaml", "orjson", "rich", "PIL"),
    "libraries": libraries,
    "torch": torch,
    "faiss_gpus": faiss_gpus,
    "nvdec": nvdec,
    "nvenc": nvenc,
}


def main(name: str) -> None:
    """Prints the answer to a question as the last line of standard output."""
    try:
        facts = QUESTIONS[name]()
    except Exception as error:  # noqa: BLE001 - any error is the answer
        facts = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    print("\n" + json.dumps(facts), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
