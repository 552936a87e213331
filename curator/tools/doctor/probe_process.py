"""Probes of packages that may crash or hang, each in a separate process.

`python -m curator.tools.doctor.probe_process QUESTION` prints JSON on its last line: facts, or an
`error`. `ask` runs this command.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from curator.executor.host_resources import available_cpus

ANSWER_S = 60.0
"""Longest wait for a probe. Importing torch takes 4 CPU-seconds. If the GPU hangs, a probe never
answers."""
DECODERS = ("h264", "hevc", "vp9", "av1")
LIBRARIES = ("libcuda.so.1", "libnvcuvid.so.1", "libnvidia-encode.so.1")
"""Parts of the NVIDIA driver: CUDA, NVDEC, NVENC."""
NVDEC_FORMATS = (
    ("h264", "420", 8), ("h264", "420", 10), ("h264", "422", 8), ("hevc", "420", 8),
    ("hevc", "420", 10), ("hevc", "422", 10), ("hevc", "444", 8), ("vp9", "420", 8),
    ("vp9", "420", 10), ("av1", "420", 8), ("av1", "420", 10),
)  # fmt: skip
"""Codec, chroma and bits per sample of usual videos. Each probe makes a CUDA context, which takes a
tenth of a second or more, so only these combinations are probed."""

Facts = dict[str, Any]


class ProbeResult(NamedTuple):
    """Answer of a probe: facts, or an error."""

    facts: Mapping[str, Any] | None = None
    error: str = ""


def ask_all(questions: Iterable[str]) -> dict[str, ProbeResult]:
    """Returns the answers to questions; runs one probe per core at a time."""
    names = list(questions)
    with ThreadPoolExecutor(available_cpus(), thread_name_prefix="doctor") as pool:
        return dict(zip(names, pool.map(ask, names), strict=True))


def ask(question: str) -> ProbeResult:
    """Returns the answer to one of `QUESTIONS`. A crash of the process is also an answer."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, question],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=ANSWER_S,
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ProbeResult(error="did not answer in time")
    if done.returncode < 0:
        return ProbeResult(error=f"the process died of {signal.Signals(-done.returncode).name}")
    # Packages print when they are imported; the answer is the last line.
    try:
        facts = json.loads(done.stdout.splitlines()[-1])
        return ProbeResult(error=str(facts["error"])) if "error" in facts else ProbeResult(facts)
    except (ValueError, IndexError, TypeError):
        lines = [*f"{done.stdout}\n{done.stderr}".split("\n"), f"ended with {done.returncode}"]
        return ProbeResult(error=next(line.strip() for line in lines if line.strip()))


def _imported(*modules: str) -> Facts:
    for module in modules:
        import_module(module)
    return {}


def _av() -> Facts:
    """Returns the version, decoders and encoders of FFmpeg behind PyAV."""
    import av
    from av.codec import Codec

    def has(name: str, mode: str) -> bool:
        try:
            Codec(name, mode)  # type: ignore[arg-type]
        except ValueError:
            return False
        return True

    return {
        "ffmpeg": str(getattr(av, "ffmpeg_version_info", "unknown")),
        "decoders": [name for name in DECODERS if has(name, "r")],
        "encoders": [name for name in ("libx264", "libvpx-vp9") if has(name, "w")],
    }


def _faiss() -> Facts:
    import faiss

    return {"gpu_build": hasattr(faiss, "StandardGpuResources")}


def _faiss_gpus() -> Facts:
    """Counts the GPUs that FAISS sees. A broken driver makes FAISS end the process."""
    import faiss

    return {"gpus": int(faiss.get_num_gpus())}


def _libraries() -> Facts:
    """Checks which libraries of the driver load, and whether CUDA starts.

    `loads` maps each library to None, or to its error. `cuda` is the newest CUDA version of the
    driver (13020 for 13.2), `init` is the code of `cuInit` (0 is success), and `devices` is the
    number of GPUs. These three are None if `libcuda.so.1` does not load.
    """
    loads: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            ctypes.CDLL(name)
            loads[name] = None
        except OSError as error:
            loads[name] = str(error)
    facts: Facts = {"loads": loads, "cuda": None, "init": None, "devices": None}
    if loads["libcuda.so.1"] is None:
        cuda, version, devices = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0), ctypes.c_int(0)
        cuda.cuDriverGetVersion(ctypes.byref(version))
        facts |= {"cuda": version.value, "init": cuda.cuInit(0)}
        cuda.cuDeviceGetCount(ctypes.byref(devices))
        facts["devices"] = devices.value
    return facts


def _torch() -> Facts:
    """Adds numbers with torch on each GPU, and returns names and memory of the GPUs."""
    import torch

    torch.cuda.init()
    names = []
    for gpu in range(torch.cuda.device_count()):
        assert torch.ones(8, device=f"cuda:{gpu}").sum().item() == 8
        about = torch.cuda.get_device_properties(gpu)
        names.append(f"{about.name}, {about.total_memory >> 20} MiB")
    return {"devices": names}


def _nvdec() -> Facts:
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


def _nvenc() -> Facts:
    from curator.media.encode import nvenc_problem

    return {"problem": nvenc_problem()}


QUESTIONS: dict[str, Callable[[], Facts]] = {
    "av": _av,
    "cv2": partial(_imported, "cv2"),
    "faiss": _faiss,
    "pyarrow": partial(_imported, "pyarrow.parquet"),
    "boto3": partial(_imported, "boto3"),
    "ray": partial(_imported, "ray"),
    "others": partial(_imported, "numpy", "pydantic", "yaml", "orjson", "rich", "PIL"),
    "libraries": _libraries,
    "torch": _torch,
    "faiss_gpus": _faiss_gpus,
    "nvdec": _nvdec,
    "nvenc": _nvenc,
}


if __name__ == "__main__":
    try:
        answer = QUESTIONS[sys.argv[1]]()
    except Exception as error:  # noqa: BLE001 - any error is the answer
        answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    print("\n" + json.dumps(answer), flush=True)
