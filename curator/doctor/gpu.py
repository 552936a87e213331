"""Packages that use a GPU: torch, FAISS, PyNvVideoCodec with NVDEC and NVENC, DALI."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from curator.doctor.diagnosis import Needs, Row, State
from curator.doctor.driver import Driver, driver_rows, find_driver, gpu_row
from curator.doctor.host import Answer, Host
from curator.doctor.packages import ask_all, torch_build, torch_build_words
from curator.doctor.probe_process import DECODERS
from curator.errors import install_extra
from curator.media.gpu_versions import CODEC, codec_fault, driver_fault

_DALI = ("nvidia-dali-cuda130", "nvidia-dali-cuda120", "nvidia-dali-cuda110")
_EXTRA = install_extra("gpu")
_FLOW_EXTRA = f"{install_extra('gpu-flow')}, for analyze.flow: hardware alone"

_NO_ENCODER = ("Error code : 1 ", "Error code : 2 ")
"""Errors of opening NVENC on a GPU without it: no encode device, unsupported device."""


def gpu_rows(host: Host, faiss: Answer, needs: Needs) -> list[Row]:
    """Returns the checks of the GPU, and of packages that would use it.

    Without a GPU, all are *not needed* for a recipe that needs none. With one, every fault is
    reported, and stops only a recipe that needs a GPU.
    """
    driver = find_driver(host)
    answers: Mapping[str, Answer] = {}
    if driver.works:
        answers = ask_all(host, _questions(host, driver, faiss))
    rows = driver_rows(host, driver, needs)
    return [
        *rows,
        _torch(host, driver, answers, needs),
        *_video(host, driver, answers, needs),
        _dali(host, driver, answers),
        _faiss(driver, faiss, answers.get("faiss_gpus")),
    ]


def _questions(host: Host, driver: Driver, faiss: Answer) -> list[str]:
    asked = []
    build = torch_build(host)
    if build is not None and driver_fault(build, driver.cuda or 0) is None:
        asked.append("torch")
    if host.version(CODEC) is not None and _video_loads(driver):
        asked += ["nvdec", "nvenc"]
    if _dali_version(host) is not None:
        asked.append("dali")
    if faiss.facts is not None and faiss.facts["gpu_build"]:
        asked.append("faiss_gpus")
    return asked


def _torch(host: Host, driver: Driver, answers: Mapping[str, Answer], needs: Needs) -> Row:
    name = "torch on the GPU"
    found = host.version("torch")
    if found is None:
        return _absent(name, "torch is not installed", "uv pip install torch torchvision", needs)
    wrong = partial(gpu_row, name, needed=needs.gpu)
    build = torch_build(host)
    words = f"torch {found}, {torch_build_words(build)}"
    if not driver.works:
        return _no_gpu(name, words, driver, needs)
    if build is None:
        remedy = "uv pip install --reinstall torch torchvision: the registry's own builds have CUDA"
        return wrong(State.MISSING, f"{words}; there is a GPU", remedy)
    fault = driver_fault(build, driver.cuda or 0)
    if fault is not None:
        why, _, remedy = fault.partition("; ")
        return wrong(State.BROKEN, f"{words}; {why}", remedy)
    answer = answers["torch"]
    why_not = answer.facts["why_not"] if answer.facts is not None else answer.error
    if why_not is None and answer.facts is not None and answer.facts["devices"]:
        return gpu_row(name, State.OK, f"{words}, computes on {_counted(answer.facts['devices'])}")
    return wrong(
        State.BROKEN,
        f"{words}; {why_not or 'sees no GPU'}",
        "install a torch whose CUDA and GPU architectures fit this GPU and driver; check "
        "CUDA_VISIBLE_DEVICES",
    )


def _counted(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _absent(name: str, found: str, install: str, needs: Needs) -> Row:
    if needs.gpu:
        return gpu_row(name, State.MISSING, found, install, needed=True)
    return gpu_row(name, State.NOT_NEEDED, found, f"{install}, for recipes that decode on the GPU")


def _no_gpu(name: str, found: str, driver: Driver, needs: Needs) -> Row:
    """Returns the row of a package that cannot be tried because CUDA does not start."""
    if driver.is_here or needs.gpu:
        found += "; was not tried, because there is no GPU that works"
        remedy = f"see the row `{'CUDA' if driver.is_here else 'driver'}`"
        return gpu_row(name, State.MISSING, found, remedy, needed=needs.gpu)
    return gpu_row(name, State.NOT_NEEDED, f"{found}; no driver")


def _video_loads(driver: Driver) -> bool:
    return driver.has("libnvcuvid.so.1") and driver.has("libnvidia-encode.so.1")


def _video(host: Host, driver: Driver, answers: Mapping[str, Answer], needs: Needs) -> list[Row]:
    found = host.version(CODEC)
    if found is None:
        if driver.works and not needs.gpu:
            words = "not installed; CPUs decode although there is a GPU"
            return [gpu_row(CODEC, State.MISSING, words, _EXTRA)]
        return [_absent(CODEC, "not installed", _EXTRA, needs)]
    fault = codec_fault(found)
    if fault is not None:
        why, _, remedy = fault.partition("; ")
        return [gpu_row(CODEC, State.BROKEN, why, remedy, needed=needs.gpu)]
    if not driver.works:
        return [_no_gpu(CODEC, found, driver, needs)]
    broken = partial(gpu_row, CODEC, State.BROKEN, needed=needs.gpu)
    if not _video_loads(driver):
        why = "does not load without libnvcuvid.so.1 and libnvidia-encode.so.1"
        return [broken(f"{found}; {why}", "see the rows of these libraries")]
    answer = answers["nvdec"]
    if answer.facts is None:
        again = f"uv pip install --reinstall {CODEC}; it needs a driver of 530 or newer"
        return [broken(f"{found}; {answer.error}", again)]
    rows = [gpu_row(CODEC, State.OK, f"{found}, loads; GPU 0 was tried")]
    rows += [_nvdec(codec, answer.facts["formats"], needs) for codec in DECODERS]
    return [*rows, _nvenc(answers["nvenc"])]


def _nvdec(codec: str, formats: Sequence[Mapping[str, Any]], needs: Needs) -> Row:
    """Returns formats of a codec that NVDEC decodes; the CPU decodes sources in others."""
    name = f"NVDEC {codec}"
    mine = [one for one in formats if one["codec"] == codec]
    takes = [one for one in mine if one["caps"].get("supported")]
    leaves = [_format(one) for one in mine if one not in takes]
    if not takes and needs.gpu and codec == "h264":
        remedy = "use a GPU with NVDEC, or a recipe that decodes on CPUs"
        return gpu_row(name, State.MISSING, "not on this GPU", remedy, needed=True)
    if not takes:
        return gpu_row(name, State.NOT_NEEDED, f"not on this GPU; {codec} is decoded on CPUs")
    caps = takes[0]["caps"]
    words = f"{', '.join(map(_format, takes))}, up to {caps['width_max']}x{caps['height_max']}"
    words += f", engines: {caps['num_decoder_engines']}"
    return gpu_row(name, State.OK, words + (f"; not {', '.join(leaves)}" if leaves else ""))


def _format(one: Mapping[str, Any]) -> str:
    return f"{':'.join(one['chroma'])} of {one['bits']} bits"


def _nvenc(answer: Answer) -> Row:
    name = "NVENC h264"
    if answer.facts is not None:
        engines = answer.facts["caps"].get("num_encoder_engines", "unknown")
        return gpu_row(name, State.OK, f"engines: {engines}")
    why = "no encoder on this GPU"
    if not any(code in answer.error for code in _NO_ENCODER):
        why = f"does not open: {answer.error}"
    return gpu_row(name, State.OK, f"x264 on CPUs; {why}")


def _dali_version(host: Host) -> str | None:
    return next((found for name in _DALI if (found := host.version(name)) is not None), None)


def _dali(host: Host, driver: Driver, answers: Mapping[str, Answer]) -> Row:
    found = _dali_version(host)
    if found is None:
        return gpu_row("DALI", State.NOT_NEEDED, "not installed", _FLOW_EXTRA)
    if not driver.works:
        return gpu_row("DALI", State.NOT_NEEDED, f"{found}; there is no GPU that works")
    answer = answers["dali"]
    if answer.facts is None:
        again = f"uv pip install --reinstall {_DALI[0]}"
        return gpu_row("DALI", State.BROKEN, f"{found}; {answer.error}", again)
    return gpu_row("DALI", State.OK, f"{found}, loads")


def _faiss(driver: Driver, faiss: Answer, gpus: Answer | None) -> Row:
    name = "FAISS on the GPU"
    if faiss.facts is None:
        return gpu_row(name, State.NOT_NEEDED, "FAISS does not work: see its row")
    has_code = faiss.facts["gpu_build"]
    build = "a build with GPU code" if has_code else "a CPU-only build"
    if not driver.works:
        return gpu_row(name, State.NOT_NEEDED, f"{build}; there is no GPU that works")
    if not has_code or gpus is None:
        install = "uv pip uninstall faiss-cpu; uv pip install faiss-gpu"
        return gpu_row(name, State.MISSING, f"{build}; CPUs search for duplicates", install)
    if gpus.facts is None or not gpus.facts["gpus"]:
        why = gpus.error or "it sees no GPU"
        remedy = "update the driver to 580 or newer, or see the row `torch on the GPU`"
        return gpu_row(name, State.BROKEN, f"{build}; {why}", remedy)
    return gpu_row(name, State.OK, f"{build}, GPUs: {gpus.facts['gpus']}")
