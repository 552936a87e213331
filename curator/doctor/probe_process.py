"""Probes in a separate process: `python -m curator.doctor.probe_process QUESTION`.

Each function imports a package that could crash, and returns facts as JSON. An exception becomes
the answer `error`.
"""

import ctypes
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

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


def cv2() -> dict[str, Any]:
    """Checks that OpenCV computes."""
    import cv2 as package
    import numpy as np

    package.resize(np.zeros((8, 8), np.uint8), (4, 4))
    return {}


def faiss() -> dict[str, Any]:
    """Checks that FAISS searches on a CPU, and whether it was built for GPUs."""
    import faiss as package
    import numpy as np

    index = package.IndexFlatIP(4)
    index.add(np.eye(4, dtype=np.float32))
    assert index.search(np.eye(4, dtype=np.float32), 1)[1].ravel().tolist() == [0, 1, 2, 3]
    return {"gpu_build": hasattr(package, "StandardGpuResources")}


def faiss_gpus() -> dict[str, Any]:
    """Counts GPUs that FAISS sees. A driver that does not work makes this end the process."""
    import faiss as package

    return {"gpus": int(package.get_num_gpus())}


def onnxruntime() -> dict[str, Any]:
    """Imports onnxruntime, which reports nothing to its makers then."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return imported("onnxruntime")


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
    """Checks whether torch computes on a GPU: adds numbers on each."""
    import torch as package

    facts: dict[str, Any] = {"build": package.version.cuda, "devices": [], "why_not": None}
    try:
        package.cuda.init()
        for index in range(package.cuda.device_count()):
            total = package.ones(8, device=f"cuda:{index}").sum().item()
            assert total == 8
            facts["devices"].append(package.cuda.get_device_name(index))
    except (RuntimeError, AssertionError) as error:
        facts["why_not"] = " ".join(str(error).split())
    return facts


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
    """Returns capabilities of the first GPU's H.264 encoder; an error if it has none."""
    package = import_module("PyNvVideoCodec")

    return {"caps": dict(package.GetEncoderCaps(gpuid=0, codec="h264"))}


QUESTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    question.__name__: question
    for question in (av, cv2, faiss, onnxruntime, libraries, torch, faiss_gpus, nvdec, nvenc)
} | {
    "pyarrow": partial(imported, "pyarrow.parquet"),
    "boto3": partial(imported, "boto3"),
    "ray": partial(imported, "ray"),
    "dali": partial(imported, "nvidia.dali.fn"),
    "others": partial(imported, "numpy", "pydantic", "yaml", "orjson", "rich", "PIL"),
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
