"""Programs and questions are run for real: answers, crashes, hangs."""

import sys
from pathlib import Path

import pytest

from curator.doctor import probe_process as inside
from curator.doctor.host import Answer, Host, Ran


def test_a_program_that_is_not_there_is_none() -> None:
    assert Host().run(["no-such-program-4711"], timeout_s=5) is None


def test_a_program_that_hangs_is_ended() -> None:
    ran = Host().run([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.5)
    assert ran == Ran(code=None)
    assert ran.words() == "did not answer in time"


def test_a_crash_is_an_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Pins that a package which ends its process does not end ours."""
    (tmp_path / "boto3.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Host().ask("boto3") == Answer(error="the process died of SIGSEGV")


def test_a_package_that_raises_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "boto3.py").write_text("raise OSError('libGL.so.1:\\n no such file')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Host().ask("boto3") == Answer(error="OSError: libGL.so.1: no such file")


def test_a_package_that_prints_is_understood(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "boto3.py").write_text("print('welcome to boto3')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Host().ask("boto3") == Answer(facts={})


def test_a_process_that_ends_without_an_answer_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "boto3.py").write_text("import os; os.write(2, b'bad luck'); os._exit(0)")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Host().ask("boto3") == Answer(error="bad luck")


@pytest.mark.parametrize("question", ["av", "cv2", "faiss", "onnxruntime", "pyarrow", "others"])
def test_the_installed_packages_answer(question: str) -> None:
    assert inside.QUESTIONS[question]() is not None


def test_the_installed_ffmpeg_has_what_is_used() -> None:
    facts = inside.av()
    assert facts["decoders"] == list(inside.DECODERS)
    assert facts["encoders"] == ["libx264", "libvpx-vp9"]


def test_libraries_are_looked_for_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins the answer where the loader finds none, whatever this machine has."""

    def none(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(inside.ctypes, "CDLL", none)
    facts = inside.libraries()
    assert list(facts["loads"]) == list(inside.LIBRARIES)
    assert all("cannot open" in words for words in facts["loads"].values())
    assert (facts["cuda"], facts["init"], facts["devices"]) == (None, None, None)


def test_the_version_of_torch_is_read_without_importing_it() -> None:
    text = Host().package_file("torch", "version.py")
    assert text is not None
    assert "cuda" in text
