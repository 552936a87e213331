"""What is said of GPUs, on machines that answer as one with a GPU would."""

import os

import pytest
from fake_host import FakeHost, formats, laptop, libraries, server

from curator.doctor.diagnosis import Needs, Row, State, can_run
from curator.doctor.driver import find_driver
from curator.doctor.gpu import gpu_rows
from curator.doctor.host import Answer, Host, Ran

NOTHING = Needs()
FAISS = Answer(facts={"gpu_build": True})
GPU = Needs(gpu=True)


def rows_of(host: FakeHost, needs: Needs = NOTHING, faiss: Answer = FAISS) -> dict[str, Row]:
    return {row.name: row for row in gpu_rows(host, faiss, needs)}


def states(rows: dict[str, Row]) -> dict[str, State]:
    return {name: row.state for name, row in rows.items()}


def test_without_a_gpu_nothing_is_needed_and_nothing_is_asked() -> None:
    """Pins the laptop: no row is red, and no package is imported for a GPU's sake."""
    host = laptop()
    rows = rows_of(host)
    assert set(states(rows).values()) == {State.NOT_NEEDED}
    assert host.asked == ["libraries"]
    assert rows["torch on the GPU"].found == "torch 2.15.0, for CUDA 13.2; no driver"


def test_without_a_gpu_a_recipe_that_needs_one_cannot_run() -> None:
    rows = rows_of(laptop(), GPU)
    assert not can_run(rows.values())
    assert {name for name, row in rows.items() if row.stops} == {
        "driver", "torch on the GPU", "PyNvVideoCodec",
    }  # fmt: skip
    assert "install NVIDIA's driver" in (rows["driver"].remedy or "")


def test_a_gpu_on_the_bus_without_a_driver_is_said() -> None:
    host = laptop()
    host.files = {"/sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n", "/.dockerenv": ""}
    row = rows_of(host)["driver"]
    assert row.state == State.NOT_NEEDED
    assert "is on the PCI bus" in row.found
    assert "--gpus all" in (row.remedy or "")


def test_on_a_server_all_is_ok_and_x264_encodes() -> None:
    rows = rows_of(server(), GPU)
    assert can_run(rows.values())
    assert states(rows) == {
        **dict.fromkeys(rows, State.OK),
        "NVDEC av1": State.NOT_NEEDED,
    }
    assert rows["nvidia-smi"].found == "1 x NVIDIA H100 80GB HBM3, 81559 MiB, driver 580.95.05"
    assert rows["CUDA"].found == "libcuda.so.1, up to CUDA 13.0, GPUs: 1"
    assert rows["NVENC h264"].found == "x264 on CPUs; no encoder on this GPU"
    assert rows["NVDEC h264"].found == (
        "4:2:0 of 8 bits, up to 8192x8192, engines: 7; not 4:2:0 of 10 bits, 4:2:2 of 8 bits"
    )
    assert rows["torch on the GPU"].found.endswith("computes on 1 x H100")


def test_equal_gpus_are_counted() -> None:
    host = server()
    host.programs["nvidia-smi"] = Ran(code=0, out="A, 1, 2 MiB\nA, 1, 2 MiB\nB, 1, 3 MiB\n")
    found = rows_of(host)["nvidia-smi"].found
    assert found == "2 x A, 2 MiB, driver 1; 1 x B, 3 MiB, driver 1"


def test_an_encoder_is_ok_too() -> None:
    host = server()
    host.answers["nvenc"] = Answer(facts={"caps": {"num_encoder_engines": 2}})
    assert rows_of(host)["NVENC h264"].found == "engines: 2"


def test_an_encoder_that_fails_otherwise_says_how() -> None:
    host = server()
    host.answers["nvenc"] = Answer(error="PyNvVCException: Error code : 15 x")
    row = rows_of(host)["NVENC h264"]
    assert row.state == State.OK
    assert row.found.endswith("does not open: PyNvVCException: Error code : 15 x")


@pytest.mark.parametrize("value", [None, "compute,utility"])
def test_a_container_without_video_is_told_the_capability(value: str | None) -> None:
    """Pins the commonest fault: the driver's video libraries are not mounted."""
    host = server()
    host.answers["libraries"] = libraries(absent=["libnvcuvid.so.1", "libnvidia-encode.so.1"])
    host.files = {"/.dockerenv": ""}
    if value is not None:
        host.environment = {"NVIDIA_DRIVER_CAPABILITIES": value}
    rows = rows_of(host, GPU)
    for name in ("libnvcuvid.so.1", "libnvidia-encode.so.1"):
        assert rows[name].stops
        remedy = rows[name].remedy or ""
        assert "-e NVIDIA_DRIVER_CAPABILITIES=compute,utility,video" in remedy
        assert ("not set" if value is None else repr(value)) in remedy
    assert rows["PyNvVideoCodec"].state == State.BROKEN
    assert "nvdec" not in host.asked, "it would not load"
    assert "NVDEC h264" not in rows


def test_what_a_gpu_lacks_stops_only_a_recipe_that_needs_it() -> None:
    host = server()
    host.answers["libraries"] = libraries(absent=["libnvcuvid.so.1"])
    rows = rows_of(host)
    assert rows["libnvcuvid.so.1"].state == State.MISSING
    assert can_run(rows.values())


def test_a_library_where_the_loader_does_not_look_is_found() -> None:
    host = server()
    host.answers["libraries"] = libraries(absent=["libnvcuvid.so.1"])
    host.files = {"/usr/local/nvidia/lib64/libnvcuvid.so.1": ""}
    row = rows_of(host)["libnvcuvid.so.1"]
    assert row.state == State.BROKEN
    assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64" in (row.remedy or "")


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
def test_cuda_that_does_not_start_is_explained(init: int, devices: int, remedy: str) -> None:
    host = server()
    host.answers["libraries"] = libraries(init=init, devices=devices)
    rows = rows_of(host, GPU)
    assert rows["CUDA"].stops
    assert remedy in (rows["CUDA"].remedy or "")
    assert host.asked == ["libraries"], "nothing that would crash is asked"
    assert rows["torch on the GPU"].remedy == "see the row `CUDA`"


def test_hidden_gpus_are_said() -> None:
    host = server()
    host.answers["libraries"] = libraries(init=100, devices=0)
    host.environment = {"CUDA_VISIBLE_DEVICES": ""}
    assert "CUDA_VISIBLE_DEVICES is ''" in rows_of(host)["CUDA"].found


@pytest.mark.parametrize(
    ("smi", "state", "words", "remedy"),
    [
        (None, State.MISSING, "no such program", "utility"),
        (Ran(code=None), State.BROKEN, "in time", "dmesg"),
        (
            Ran(code=18, out="Failed to initialize NVML: Driver/library version mismatch\n"),
            State.BROKEN,
            "mismatch",
            "restart the machine",
        ),
        (
            Ran(code=9, out="NVIDIA-SMI has failed because it couldn't communicate with\n"),
            State.BROKEN,
            "communicate",
            "modprobe nvidia",
        ),
        (Ran(code=6, out="No devices were found\n"), State.BROKEN, "No devices", "--gpus all"),
    ],
)
def test_nvidia_smi_that_fails_is_explained(
    smi: Ran | None, state: State, words: str, remedy: str
) -> None:
    host = server()
    host.programs = {} if smi is None else {"nvidia-smi": smi}
    row = rows_of(host, GPU)["nvidia-smi"]
    assert row.state == state
    assert words in row.found
    assert remedy in (row.remedy or "")
    assert not row.stops, "it is a tool; nothing computes with it"


def test_a_driver_that_crashes_is_an_answer() -> None:
    host = server()
    host.answers["libraries"] = Answer(error="the process died of SIGSEGV")
    rows = rows_of(host, GPU)
    assert rows["CUDA"].found == "the process died of SIGSEGV"
    assert rows["libnvcuvid.so.1"].state == State.BROKEN
    assert not can_run(rows.values())


def test_torch_for_a_newer_cuda_than_the_drivers_is_not_asked() -> None:
    host = server()
    host.answers["libraries"] = libraries(cuda=12040)
    row = rows_of(host, GPU)["torch on the GPU"]
    assert row.stops
    assert "knows CUDA up to 12.4: it is too old" in row.found
    assert "580 or newer, or install a torch for CUDA 12: uv pip install 'torch<2.11'" in (
        row.remedy or ""
    )
    assert "torch" not in host.asked


def test_torch_for_an_older_minor_version_is_asked() -> None:
    """Pins that CUDA is compatible within a major version: 13.0 runs what was built for 13.2."""
    assert rows_of(server(), GPU)["torch on the GPU"].state == State.OK


def test_a_cpu_only_torch_beside_a_gpu_is_missing() -> None:
    host = server()
    host.torch_version = "__version__ = '2.15.0+cpu'\ncuda: Optional[str] = None\n"
    row = rows_of(host, GPU)["torch on the GPU"]
    assert (row.state, row.stops) == (State.MISSING, True)
    assert "a CPU-only build; there is a GPU" in row.found


def test_torch_that_does_not_compute_says_why() -> None:
    host = server()
    why = "no kernel image is available for execution on the device"
    host.answers["torch"] = Answer(facts={"build": "13.2", "devices": [], "why_not": why})
    row = rows_of(host, GPU)["torch on the GPU"]
    assert row.stops
    assert why in row.found


def test_a_codec_package_that_crashes_is_an_answer() -> None:
    host = server()
    host.answers["nvdec"] = Answer(error="the process died of SIGSEGV")
    rows = rows_of(host, GPU)
    assert rows["PyNvVideoCodec"].stops
    assert "SIGSEGV" in rows["PyNvVideoCodec"].found
    assert "NVDEC h264" not in rows


@pytest.mark.parametrize("needs", [NOTHING, GPU])
def test_a_codec_package_with_wrong_strides_is_broken(needs: Needs) -> None:
    host = server()
    host.versions["PyNvVideoCodec"] = "2.1.0"
    row = rows_of(host, needs)["PyNvVideoCodec"]
    assert (row.state, row.stops) == (State.BROKEN, needs.gpu)
    assert "before 2.2.4 frames of 10 bits are wrong" in row.found
    assert "uv pip install '.[gpu]'" in (row.remedy or "")


def test_a_gpu_that_is_left_idle_for_want_of_a_package_is_missed() -> None:
    host = server()
    del host.versions["PyNvVideoCodec"]
    row = rows_of(host)["PyNvVideoCodec"]
    assert (row.state, row.stops) == (State.MISSING, False)
    assert "CPUs decode although there is a GPU" in row.found


def test_a_gpu_that_cannot_decode_h264_stops_a_recipe_that_decodes_there() -> None:
    host = server()
    host.answers["nvdec"] = Answer(facts={"formats": formats(without=("h264", "vp9"))})
    rows = rows_of(host, GPU)
    assert rows["NVDEC h264"].stops
    assert rows["NVDEC vp9"].state == State.NOT_NEEDED


def test_faiss_on_the_gpu() -> None:
    cpu_build = Answer(facts={"gpu_build": False})
    assert rows_of(server(), faiss=cpu_build)["FAISS on the GPU"].state == State.MISSING
    host = server()
    rows_of(host, faiss=cpu_build)
    assert "faiss_gpus" not in host.asked
    host.answers["faiss_gpus"] = Answer(error="the process died of SIGABRT")
    row = rows_of(host)["FAISS on the GPU"]
    assert row.state == State.BROKEN
    assert "SIGABRT" in row.found
    host.answers["faiss_gpus"] = Answer(facts={"gpus": 0})
    assert "it sees no GPU" in rows_of(host)["FAISS on the GPU"].found


def test_dali() -> None:
    host = server()
    host.answers["dali"] = Answer(error="OSError: libdali.so")
    assert rows_of(host)["DALI"].state == State.BROKEN
    del host.versions["nvidia-dali-cuda130"]
    row = rows_of(host, GPU)["DALI"]
    assert (row.state, row.found) == (State.NOT_NEEDED, "not installed")


@pytest.mark.needs_gpu
def test_this_gpu_answers() -> None:
    """Pins the probes themselves: what a fake cannot show."""
    host = Host()
    if not find_driver(host).works:
        assert os.environ.get("FAIL_WITHOUT_GPU") != "1", "FAIL_WITHOUT_GPU=1, and no GPU is here"
        pytest.skip("no GPU")
    rows = {row.name: row for row in gpu_rows(host, FAISS, NOTHING)}
    assert rows["CUDA"].state == State.OK
    assert rows["torch on the GPU"].state == State.OK, rows["torch on the GPU"].found
    if rows["PyNvVideoCodec"].state == State.OK:
        assert "4:2:0 of 8 bits" in rows["NVDEC h264"].found
        assert rows["NVENC h264"].state == State.OK
