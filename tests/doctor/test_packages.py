"""What is said of packages that are missing, broken, or of another build."""

import pytest
from fake_host import SOUND, FakeHost

from curator.doctor.diagnosis import Needs, Row, State, can_run
from curator.doctor.host import Answer
from curator.doctor.packages import ASKED, are_sound, package_rows, torch_build

NOTHING = Needs()


def rows_of(host: FakeHost, needs: Needs = NOTHING, **other: Answer) -> dict[str, Row]:
    answers = {name: other.get(name, Answer(facts=SOUND[name])) for name in ASKED}
    return {row.name: row for row in package_rows(host, answers, needs)}


def test_a_sound_installation() -> None:
    rows = rows_of(FakeHost())
    assert can_run(rows.values())
    assert {name for name, row in rows.items() if row.state != State.OK} == {"open_clip"}
    assert rows["PyAV"].found == "av 18.1.0, FFmpeg 8.1"
    assert rows["torch"].found == "2.15.0, for CUDA 13.2"
    assert rows["FAISS"].found == "faiss-gpu 1.15, with GPU code"


def test_a_package_that_is_not_installed() -> None:
    host = FakeHost()
    del host.versions["ray"]
    row = rows_of(host, ray=Answer(error="ModuleNotFoundError: No module named 'ray'"))["Ray"]
    assert (row.state, row.stops, row.remedy) == (
        State.MISSING,
        True,
        "uv pip install '.[run]' in the checkout of this package",
    )


def test_a_package_that_crashes() -> None:
    row = rows_of(FakeHost(), faiss=Answer(error="the process died of SIGILL"))["FAISS"]
    assert (row.state, row.stops) == (State.BROKEN, True)
    assert row.found == "faiss-gpu 1.15; the process died of SIGILL"
    assert row.remedy == "uv pip install --reinstall faiss-gpu"


def test_opencv_with_windows_is_named() -> None:
    host = FakeHost()
    del host.versions["opencv-python-headless"]
    host.versions["opencv-python"] = "4.10"
    error = "ImportError: libGL.so.1: cannot open shared object file: No such file or directory"
    row = rows_of(host, cv2=Answer(error=error))["OpenCV"]
    assert row.stops
    assert "uninstall opencv-python;" in (row.remedy or "")
    assert "opencv-python-headless" in (row.remedy or "")


def test_a_missing_system_library_is_named() -> None:
    error = "ImportError: libgomp.so.1: cannot open shared object file: No such file"
    row = rows_of(FakeHost(), onnxruntime=Answer(error=error))["onnxruntime"]
    assert "system library libgomp.so.1" in (row.remedy or "")


@pytest.mark.parametrize(("needs", "stops"), [(Needs(text=True), True), (Needs(text=False), False)])
def test_only_what_the_recipe_uses_stops_it(needs: Needs, stops: bool) -> None:
    rows = rows_of(FakeHost(), needs, onnxruntime=Answer(error="bad"))
    assert can_run(rows.values()) is not stops


def test_boto3_is_for_s3() -> None:
    broken = Answer(error="bad")
    assert can_run(rows_of(FakeHost(), Needs(s3=False), boto3=broken).values())
    assert not can_run(rows_of(FakeHost(), Needs(s3=True), boto3=broken).values())


def test_another_ffmpeg() -> None:
    """Pins a PyAV built on a distribution's FFmpeg: no AV1 is less, no x264 is the end."""
    facts = {"ffmpeg": "5.1", "decoders": ["h264", "hevc", "vp9"], "encoders": []}
    rows = rows_of(FakeHost(), av=Answer(facts=facts))
    assert (rows["decoders"].state, rows["decoders"].found) == (State.MISSING, "no av1")
    assert not rows["decoders"].stops
    assert rows["encoder"].stops


def test_open_clip_is_for_recipes_with_clip() -> None:
    assert rows_of(FakeHost())["open_clip"].state == State.NOT_NEEDED
    row = rows_of(FakeHost(), Needs(clip=True))["open_clip"]
    assert row.stops
    assert row.remedy == "uv pip install '.[clip]' in the checkout of this package"


def test_the_build_of_torch() -> None:
    assert torch_build(FakeHost()) == "13.2"
    assert torch_build(FakeHost(torch_version="cuda: Optional[str] = None\n")) is None
    assert torch_build(FakeHost(torch_version="cuda = '12.8'\n")) == "12.8"
    assert torch_build(FakeHost(torch_version="")) is None


def test_a_recipe_is_read_only_with_sound_packages() -> None:
    sound = {name: Answer(facts={}) for name in ASKED}
    assert are_sound(sound)
    assert are_sound(sound | {"ray": Answer(error="bad")}), "nothing is read with ray"
    assert not are_sound(sound | {"cv2": Answer(error="bad")})
