"""What is said of packages that are missing, broken, or of another build."""

import pytest

from curator.doctor import packages
from curator.doctor.diagnosis import CheckRow, Needs, State
from curator.doctor.packages import ASKED, are_sound, package_rows
from curator.doctor.probe_process import ProbeResult

NOTHING = Needs()
SOUND = {name: ProbeResult(facts={}) for name in ASKED} | {
    "av": ProbeResult(
        facts={"ffmpeg": "8.1", "decoders": list(packages.DECODERS), "encoders": ["libx264"]}
    ),
    "faiss": ProbeResult(facts={"gpu_build": True}),
}
VERSIONS = {
    "av": "18.1.0",
    "boto3": "1.44",
    "faiss-gpu": "1.15",
    "opencv-python-headless": "5.0",
    "pyarrow": "26.0",
    "ray": "2.60",
    "torch": "2.15.0",
}


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Versions of the installed distributions, which a test may change."""
    found = dict(VERSIONS)
    monkeypatch.setattr(packages, "version", found.get)
    monkeypatch.setattr(packages, "torch_build", lambda: "13.2")
    return found


def rows_of(needs: Needs = NOTHING, **other: ProbeResult) -> dict[str, CheckRow]:
    return {row.name: row for row in package_rows(SOUND | other, needs)}


def stops(rows: dict[str, CheckRow]) -> list[str]:
    return [name for name, row in rows.items() if row.stops]


@pytest.mark.usefixtures("versions")
def test_a_sound_installation() -> None:
    rows = rows_of()
    assert {name for name, row in rows.items() if row.state != State.OK} == {"open_clip"}
    assert rows["PyAV"].found == "av 18.1.0, FFmpeg 8.1"
    assert rows["torch"].found == "2.15.0, for CUDA 13.2"
    assert rows["FAISS"].found == "faiss-gpu 1.15, with GPU code"
    assert rows["open_clip"].state == State.NOT_NEEDED


def test_a_package_that_is_not_installed(versions: dict[str, str]) -> None:
    del versions["ray"]
    row = rows_of(ray=ProbeResult(error="ModuleNotFoundError: No module named 'ray'"))["Ray"]
    assert (row.state, row.stops) == (State.MISSING, True)
    assert row.remedy == "uv pip install '.[run]' in the checkout of this package"


@pytest.mark.usefixtures("versions")
def test_a_package_that_crashes() -> None:
    row = rows_of(faiss=ProbeResult(error="the process died of SIGILL"))["FAISS"]
    assert (row.state, row.stops) == (State.BROKEN, True)
    assert row.found == "faiss-gpu 1.15; the process died of SIGILL"
    assert row.remedy == "uv pip install --reinstall faiss-gpu"


def test_opencv_with_windows_is_named(versions: dict[str, str]) -> None:
    del versions["opencv-python-headless"]
    versions["opencv-python"] = "4.10"
    error = "ImportError: libGL.so.1: cannot open shared object file: No such file or directory"
    row = rows_of(cv2=ProbeResult(error=error))["OpenCV"]
    assert row.stops
    assert "uninstall opencv-python;" in (row.remedy or "")
    assert "opencv-python-headless" in (row.remedy or "")


@pytest.mark.usefixtures("versions")
def test_a_missing_system_library_is_named() -> None:
    error = "ImportError: libgomp.so.1: cannot open shared object file: No such file"
    row = rows_of(pyarrow=ProbeResult(error=error))["Arrow"]
    assert "system library libgomp.so.1" in (row.remedy or "")


@pytest.mark.usefixtures("versions")
def test_only_what_the_recipe_uses_stops_it() -> None:
    bad = {"boto3": ProbeResult(error="bad")}
    assert stops(rows_of(NOTHING, **bad)) == []
    assert stops(rows_of(Needs(s3=True, clip=True), **bad)) == ["boto3", "open_clip"]


@pytest.mark.usefixtures("versions")
def test_another_ffmpeg() -> None:
    """Pins a PyAV built on a distribution's FFmpeg: no AV1 is less, no x264 is the end."""
    facts = {"ffmpeg": "5.1", "decoders": ["h264", "hevc", "vp9"], "encoders": []}
    rows = rows_of(av=ProbeResult(facts=facts))
    assert (rows["decoders"].state, rows["decoders"].found) == (State.MISSING, "no av1")
    assert stops(rows) == ["encoder"]


def test_a_recipe_is_read_only_with_sound_packages() -> None:
    assert are_sound(SOUND)
    assert are_sound(SOUND | {"ray": ProbeResult(error="bad")}), "nothing is read with ray"
    assert not are_sound(SOUND | {"cv2": ProbeResult(error="bad")})
