"""What is said of GPUs: answers of probes are tables here; one test asks a real GPU."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from curator.tools.doctor import gpu
from curator.tools.doctor.diagnosis import CheckRow, State
from curator.tools.doctor.probe_process import LIBRARIES, NVDEC_FORMATS, ProbeResult, ask_all

NO_FILE = "cannot open shared object file: No such file or directory"
FAISS = ProbeResult({"gpu_build": True})


def libraries(
    *, absent: Iterable[str] = (), cuda: int | None = 13000, init: int = 0, devices: int = 1
) -> ProbeResult:
    """The answer to `libraries` on a machine with a driver."""
    loads = {name: f"{name}: {NO_FILE}" if name in absent else None for name in LIBRARIES}
    return ProbeResult({"loads": loads, "cuda": cuda, "init": init, "devices": devices})


def formats(*, without: Iterable[str] = ()) -> ProbeResult:
    """What a GPU decodes: everything but some codecs, with the keys of PyNvVideoCodec 2.2.4."""
    caps = {"num_decoder_engines": 7, "width_max": 8192, "height_max": 8192}
    listed = [
        {"codec": c, "chroma": chroma, "bits": bits, "caps": caps | {"supported": c not in without}}
        for c, chroma, bits in NVDEC_FORMATS
    ]
    return ProbeResult({"formats": listed})


SERVER = {
    "libraries": libraries(),
    "torch": ProbeResult({"devices": ["H100, 81559 MiB", "H100, 81559 MiB"]}),
    "nvdec": formats(without=["av1"]),
    "nvenc": ProbeResult({"problem": "no capable devices found"}),
    "faiss_gpus": ProbeResult({"gpus": 1}),
}


def rows_of(
    monkeypatch: pytest.MonkeyPatch,
    *,
    needed: bool = False,
    faiss: ProbeResult = FAISS,
    refusal: str | None = None,
    fault: str | None = None,
    **answers: ProbeResult,
) -> dict[str, CheckRow]:
    """The rows of a server whose probes give other answers than `SERVER`."""
    everything = SERVER | answers
    monkeypatch.setattr(gpu, "ask_all", lambda names: {name: everything[name] for name in names})
    monkeypatch.setattr(gpu, "nvdec_refusal", lambda: refusal)
    monkeypatch.setattr(gpu, "torch_fault", lambda: fault)
    return {row.name: row for row in gpu.gpu_rows(faiss, needed=needed)}


def test_without_a_driver_nothing_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = libraries(absent=LIBRARIES, cuda=None)
    for needed in (False, True):
        (row,) = rows_of(monkeypatch, needed=needed, libraries=absent).values()
        assert row.found.startswith("no NVIDIA driver: libcuda.so.1: cannot open")
        assert (row.state, row.stops) == (State.MISSING if needed else State.NOT_NEEDED, needed)
        assert ("install NVIDIA's driver" in (row.remedy or "")) == needed


def test_on_a_server_all_is_ok_and_x264_encodes(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(monkeypatch, needed=True)
    states = {name: row.state for name, row in rows.items()}
    assert states == {**dict.fromkeys(rows, State.OK), "NVDEC av1": State.NOT_NEEDED}
    assert rows["CUDA"].found == "libcuda.so.1, up to CUDA 13.0, GPUs: 1"
    assert rows["torch on the GPU"].found == "computes on 2 x H100, 81559 MiB"
    assert rows["NVDEC vp9"].found == (
        "4:2:0 of 8 bits, 4:2:0 of 10 bits, up to 8192x8192, engines: 7"
    )
    assert rows["NVENC h264"].found.endswith("does not open: no capable devices found")


def test_a_container_without_video_is_told_the_capability(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Pins the commonest fault: the driver's video libraries are not mounted."""
    absent = libraries(absent=LIBRARIES[1:])
    refusal = "libnvcuvid.so.1: cannot open shared object file"
    for value in ("", "compute,utility"):
        monkeypatch.setenv(gpu.CAPABILITIES, value)
        rows = rows_of(monkeypatch, needed=True, libraries=absent, refusal=refusal)
        for name in LIBRARIES[1:]:
            assert rows[name].stops
            assert repr(value) in rows[name].found
            assert f"-e {gpu.CAPABILITIES}=compute,utility,video" in (rows[name].remedy or "")
        assert (rows["PyNvVideoCodec"].found, rows["PyNvVideoCodec"].stops) == (refusal, True)
        assert "NVDEC h264" not in rows
    assert not any(row.stops for row in rows_of(monkeypatch, libraries=absent).values())
    # A library where the loader does not look is found.
    (tmp_path / "libnvcuvid.so.1").touch()
    monkeypatch.setattr(gpu, "_FOLDERS", (str(tmp_path),))
    row = rows_of(monkeypatch, libraries=absent)["libnvcuvid.so.1"]
    assert f"LD_LIBRARY_PATH={tmp_path}:" in (row.remedy or "")


def not_started(init: int) -> dict[str, ProbeResult]:
    return {"libraries": libraries(init=init, devices=0)}


@pytest.mark.parametrize(
    ("name", "answers", "state", "words"),
    [
        ("CUDA", not_started(100), State.BROKEN, "check CUDA_VISIBLE_DEVICES"),
        ("CUDA", not_started(802), State.BROKEN, "nvidia-fabricmanager"),
        ("CUDA", not_started(803), State.BROKEN, "restart the machine"),
        ("CUDA", not_started(999), State.BROKEN, "nvidia_uvm"),
        ("CUDA", not_started(719), State.BROKEN, "dmesg"),
        ("CUDA", not_started(0), State.BROKEN, "(CUDA_VISIBLE_DEVICES is '')"),
        ("CUDA", {"libraries": ProbeResult(error="died of SIGSEGV")}, State.BROKEN, "SIGSEGV"),
        ("torch on the GPU", {"fault": "too old; update it"}, State.BROKEN, "too old update it"),
        ("torch on the GPU", {"torch": ProbeResult(error="no kernel")}, State.BROKEN, "no kernel"),
        (
            "PyNvVideoCodec", {"refusal": "it is not installed; uv pip install it"}, State.MISSING,
            "it is not installed uv pip install it",
        ),
        (
            "FAISS on the GPU", {"faiss": ProbeResult({"gpu_build": False})}, State.MISSING,
            "CPU-only build",
        ),
        ("FAISS on the GPU", {"faiss_gpus": ProbeResult(error="SIGABRT")}, State.BROKEN, "SIGABRT"),
        (
            "FAISS on the GPU", {"faiss_gpus": ProbeResult({"gpus": 0})}, State.BROKEN,
            "it sees no GPU",
        ),
    ],
)  # fmt: skip
def test_a_gpu_that_does_not_work_says_why(
    name: str, answers: dict[str, Any], state: State, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins what stops a recipe that needs a GPU, and no other; FAISS stops none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for needed in (False, True):
        rows = rows_of(monkeypatch, needed=needed, **answers)
        assert rows[name].state == state
        assert rows[name].stops == (needed and name != "FAISS on the GPU")
        assert words in f"{rows[name].found} {rows[name].remedy}"
        assert name != "CUDA" or len(rows) <= len(LIBRARIES), "nothing that would crash is asked"


@pytest.mark.needs_gpu
def test_this_gpu_answers() -> None:
    """Pins the probes themselves: what a table cannot show."""
    facts = ask_all(["libraries"])["libraries"].facts
    if facts is None or not facts["devices"]:
        assert os.environ.get("FAIL_WITHOUT_GPU") != "1", "FAIL_WITHOUT_GPU=1, and no GPU is here"
        pytest.skip("no GPU")
    rows = {row.name: row for row in gpu.gpu_rows(FAISS, needed=False)}
    assert rows["CUDA"].state == State.OK
    assert rows["torch on the GPU"].state == State.OK, rows["torch on the GPU"].found
    if rows["PyNvVideoCodec"].state == State.OK:
        assert "4:2:0 of 8 bits" in rows["NVDEC h264"].found
        assert rows["NVENC h264"].state == State.OK
