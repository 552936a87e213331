"""What is said of GPUs: answers of probes are tables here; one test asks a real GPU."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from curator.doctor import gpu
from curator.doctor.diagnosis import CheckRow, State
from curator.doctor.probe_process import LIBRARIES, NVDEC_FORMATS, ProbeResult, ask_all

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


@pytest.mark.parametrize("needed", [False, True])
def test_without_a_driver_nothing_else_is_asked(
    needed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = libraries(absent=LIBRARIES, cuda=None)
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


@pytest.mark.parametrize("value", [None, "compute,utility"])
def test_a_container_without_video_is_told_the_capability(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins the commonest fault: the driver's video libraries are not mounted."""
    monkeypatch.delenv(gpu.CAPABILITIES, raising=False)
    if value is not None:
        monkeypatch.setenv(gpu.CAPABILITIES, value)
    absent = libraries(absent=LIBRARIES[1:])
    refusal = "libnvcuvid.so.1: cannot open shared object file"
    rows = rows_of(monkeypatch, needed=True, libraries=absent, refusal=refusal)
    for name in LIBRARIES[1:]:
        assert rows[name].stops
        assert (repr(value) in rows[name].found) == (value is not None)
        assert f"-e {gpu.CAPABILITIES}=compute,utility,video" in (rows[name].remedy or "")
    assert (rows["PyNvVideoCodec"].found, rows["PyNvVideoCodec"].stops) == (refusal, True)
    assert "NVDEC h264" not in rows
    assert not any(row.stops for row in rows_of(monkeypatch, libraries=absent).values())


def test_a_library_where_the_loader_does_not_look_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "libnvcuvid.so.1").touch()
    monkeypatch.setattr(gpu, "_FOLDERS", (str(tmp_path),))
    row = rows_of(monkeypatch, libraries=libraries(absent=["libnvcuvid.so.1"]))["libnvcuvid.so.1"]
    assert f"LD_LIBRARY_PATH={tmp_path}:" in (row.remedy or "")


@pytest.mark.parametrize(
    ("init", "devices", "remedy"),
    [
        (100, 0, "CUDA_VISIBLE_DEVICES"),
        (802, 0, "nvidia-fabricmanager"),
        (803, 0, "restart the machine"),
        (999, 0, "nvidia_uvm"),
        (719, 0, "dmesg"),
        (0, 0, "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_cuda_that_does_not_start_is_explained(
    init: int, devices: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    answer = libraries(init=init, devices=devices)
    rows = rows_of(monkeypatch, needed=True, libraries=answer)
    assert rows["CUDA"].stops
    assert remedy in (rows["CUDA"].remedy or "")
    assert "CUDA_VISIBLE_DEVICES is ''" in rows["CUDA"].found
    assert "torch on the GPU" not in rows, "nothing that would crash is asked"


def test_a_driver_that_crashes_torch_that_does_not_fit_and_a_missing_package_say_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crash = ProbeResult(error="the process died of SIGSEGV")
    (crashed,) = rows_of(monkeypatch, needed=True, libraries=crash).values()
    assert (crashed.name, crashed.found, crashed.stops) == ("CUDA", crash.error, True)
    row = rows_of(monkeypatch, needed=True, fault="it is too old; update the driver")
    assert row["torch on the GPU"].stops
    assert row["torch on the GPU"].remedy == "update the driver"
    why = "RuntimeError: no kernel image is available for execution on the device"
    row = rows_of(monkeypatch, torch=ProbeResult(error=why))
    assert (row["torch on the GPU"].found, row["torch on the GPU"].stops) == (why, False)
    refusal = "PyNvVideoCodec is not installed; uv pip install it"
    codec = rows_of(monkeypatch, refusal=refusal)["PyNvVideoCodec"]
    assert (codec.state, codec.remedy, codec.stops) == (State.MISSING, "uv pip install it", False)


@pytest.mark.parametrize(
    ("faiss", "gpus", "state", "words"),
    [
        (ProbeResult({"gpu_build": False}), ProbeResult(), State.MISSING, "CPU-only build"),
        (FAISS, ProbeResult(error="the process died of SIGABRT"), State.BROKEN, "SIGABRT"),
        (FAISS, ProbeResult({"gpus": 0}), State.BROKEN, "it sees no GPU"),
    ],
)
def test_faiss_on_the_gpu(
    faiss: ProbeResult, gpus: ProbeResult, state: State, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = rows_of(monkeypatch, faiss=faiss, faiss_gpus=gpus)["FAISS on the GPU"]
    assert row.state == state
    assert words in row.found


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
