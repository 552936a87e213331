"""Checks of cores, memory, disk and limits at their bounds, and of packages."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from curator.installation import install_extra, pip_command
from curator.tools.doctor import machine_check
from curator.tools.doctor.diagnosis import CheckRow, State
from curator.tools.doctor.machine_check import ASKED, are_sound, package_rows
from curator.tools.doctor.probe_process import DECODERS, ProbeResult

GB, GIB = 10**9, 1 << 30
SOUND = {name: ProbeResult({}) for name in ASKED} | {
    "av": ProbeResult({"ffmpeg": "8.1", "decoders": list(DECODERS), "encoders": ["libx264"]}),
    "faiss": ProbeResult({"gpu_build": True}),
}
VERSIONS = {
    "av": "18.1.0", "boto3": "1.44", "faiss-gpu": "1.15", "opencv-python-headless": "5.0",
    "pyarrow": "26.0", "ray": "2.60", "torch": "2.15.0",
}  # fmt: skip
NO_LIBRARY = "ImportError: {}: cannot open shared object file: No such file or directory"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine in order; a test changes what it has."""
    here = SimpleNamespace(cpus=8, memory=64 * GIB, free=500 * GB, files=(1024, -1), landlock=6)
    for name, fake in {
        "available_cpus": lambda: here.cpus,
        "memory_bytes": lambda: here.memory,
        "object_store_bytes": lambda: 2 * GIB,
        "landlock_version": lambda: here.landlock,
        "has_seccomp": lambda: True,
        "resource.getrlimit": lambda which: here.files,
        "shutil.disk_usage": lambda path: SimpleNamespace(free=here.free, total=1000 * GB),
    }.items():
        monkeypatch.setattr(f"curator.tools.doctor.machine_check.{name}", fake)
    return here


def rows_of(out: str | None = None) -> dict[str, CheckRow]:
    return {row.name: row for row in machine_check.machine_rows(out)}


def test_a_machine_in_order(tmp_path: Path) -> None:
    rows = rows_of(str(tmp_path / "not" / "there"))
    assert {row.state for name, row in rows.items() if name != "/dev/shm"} == {State.OK}
    assert rows["disk of OUT"].found == f"500.0 GB free of 1000.0 GB at {tmp_path}"
    assert rows["memory"].found == "64.0 GiB"
    assert rows["open files"].found == "limit 1024, up to unlimited"
    assert "disk of OUT" not in rows_of("s3://bucket/out")


@pytest.mark.parametrize(
    ("name", "change", "state", "stops", "words"),
    [
        ("disk of OUT", {"free": 5 * GB}, State.OK, False, "5.0 GB free"),
        ("disk of OUT", {"free": 5 * GB - 1}, State.MISSING, False, "less than 5 GB"),
        ("disk of OUT", {"free": GB // 10}, State.MISSING, True, "less than 5 GB"),
        ("disk for temporary files", {"free": GB // 10}, State.MISSING, True, "TMPDIR"),
        ("memory", {"memory": GIB}, State.MISSING, True, "one worker takes up to 2.0 GiB"),
        ("memory", {"memory": 8 * GIB}, State.OK, False, "room for 4 of 8 workers"),
        ("memory", {"memory": 16 * GIB}, State.OK, False, "16.0 GiB"),
        ("open files", {"files": (256, 512)}, State.MISSING, False, "limit 256, up to 512"),
        # What a decoder could still reach is said, and does not stop a run.
        ("sandbox", {"landlock": 0}, State.MISSING, False, "reach files"),
    ],
)
def test_a_machine_that_lacks_something(
    name: str,
    change: dict[str, object],
    state: State,
    stops: bool,
    words: str,
    machine: SimpleNamespace,
    tmp_path: Path,
) -> None:
    vars(machine).update(change)
    row = rows_of(str(tmp_path))[name]
    assert (row.state, row.stops) == (state, stops)
    assert words in f"{row.found} {row.remedy}"


def test_a_small_shared_memory_has_a_remedy(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Pins a container's default of 64 MiB."""
    monkeypatch.setattr(machine_check, "_SHM", str(tmp_path))
    machine.free = 64 << 20
    row = rows_of()[str(tmp_path)]
    assert (row.state, row.stops) == (State.MISSING, False), "Ray then takes the disk"
    assert "--shm-size=2g" in (row.remedy or "")


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Versions of the installed distributions, which a test may change."""
    installed = dict(VERSIONS)
    monkeypatch.setattr(machine_check, "installed_version", installed.get)
    monkeypatch.setattr(machine_check, "installed_cuda_build", lambda: "13.2")
    return installed


def packages_of(*needs: str, **other: ProbeResult) -> dict[str, CheckRow]:
    return {row.name: row for row in package_rows(SOUND | other, needs)}


def stops(rows: dict[str, CheckRow]) -> list[str]:
    return [name for name, row in rows.items() if row.stops]


@pytest.mark.usefixtures("versions")
def test_a_sound_installation() -> None:
    rows = packages_of()
    assert {name for name, row in rows.items() if row.state != State.OK} == {"open_clip"}
    assert rows["PyAV"].found == "av 18.1.0, FFmpeg 8.1"
    assert rows["torch"].found == "2.15.0, for CUDA 13.2"
    assert rows["FAISS"].found == "faiss-gpu 1.15, with GPU code"
    assert rows["open_clip"].state == State.NOT_NEEDED


@pytest.mark.parametrize(
    ("question", "row", "error", "installed", "state", "remedies"),
    [
        (
            "ray", "Ray", "ModuleNotFoundError: No module named 'ray'", {"ray": None},
            State.MISSING, [install_extra("run")],
        ),
        (
            "faiss", "FAISS", "the process died of SIGILL", {}, State.BROKEN,
            [pip_command("install", "faiss-gpu", again=True)],
        ),
        (
            "cv2", "OpenCV", NO_LIBRARY.format("libGL.so.1"),
            {"opencv-python-headless": None, "opencv-python": "4.10"}, State.BROKEN,
            ["uninstall", "opencv-python;", "opencv-python-headless"],
        ),
        (
            "pyarrow", "Arrow", NO_LIBRARY.format("libgomp.so.1"), {}, State.BROKEN,
            ["system library libgomp.so.1"],
        ),
    ],
)  # fmt: skip
def test_a_package_that_does_not_work_has_a_remedy(
    question: str,
    row: str,
    error: str,
    installed: dict[str, str | None],
    state: State,
    remedies: list[str],
    versions: dict[str, str],
) -> None:
    for name, version in installed.items():
        versions.pop(name, None)
        if version is not None:
            versions[name] = version
    checked = packages_of(**{question: ProbeResult(error=error)})[row]
    assert (checked.state, checked.stops) == (state, True)
    assert state == State.MISSING or checked.found.endswith(f"; {error}")
    assert all(remedy in (checked.remedy or "") for remedy in remedies)


@pytest.mark.usefixtures("versions")
def test_only_what_the_recipe_uses_stops_it() -> None:
    bad = {"boto3": ProbeResult(error="bad")}
    assert stops(packages_of(**bad)) == []
    assert stops(packages_of("s3", "clip", **bad)) == ["boto3", "open_clip"]
    # A PyAV on a distribution's FFmpeg: no AV1 is less, no x264 is the end.
    facts = {"ffmpeg": "5.1", "decoders": ["h264", "hevc", "vp9"], "encoders": []}
    rows = packages_of(av=ProbeResult(facts))
    assert (rows["decoders"].state, rows["decoders"].found) == (State.MISSING, "no av1")
    assert stops(rows) == ["encoder"]


def test_a_recipe_is_read_only_with_sound_packages() -> None:
    assert are_sound(SOUND)
    assert are_sound(SOUND | {"ray": ProbeResult(error="bad")}), "nothing is read with ray"
    assert not are_sound(SOUND | {"cv2": ProbeResult(error="bad")})
