"""Questions to packages are asked for real: answers, crashes, hangs."""

from pathlib import Path

import pytest

from curator.tools.doctor import probe_process
from curator.tools.doctor.probe_process import ProbeResult, ask


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "the process died of SIGSEGV"),
        ("raise OSError('libGL.so.1:\\n no such file')", "OSError: libGL.so.1: no such file"),
        ("import os; os.write(2, b'bad luck'); os._exit(0)", "bad luck"),
        ("print('welcome to boto3')", ""),
    ],
    ids=["crash", "error", "no answer", "prints"],
)
def test_whatever_a_package_does_is_an_answer(
    module: str, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Pins that a package which ends its process does not end ours."""
    (tmp_path / "boto3.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert ask("boto3") == (ProbeResult(error=expected) if expected else ProbeResult({}))
    if not expected:
        (tmp_path / "boto3.py").write_text("import time; time.sleep(60)")
        monkeypatch.setattr(probe_process, "ANSWER_S", 1.0)
        assert ask("boto3") == ProbeResult(error="did not answer in time")


def test_the_installed_packages_answer() -> None:
    for question in ("cv2", "faiss", "pyarrow", "others"):
        assert probe_process.QUESTIONS[question]() is not None
    facts = probe_process.QUESTIONS["av"]()
    assert facts["decoders"] == list(probe_process.DECODERS)
    assert facts["encoders"] == ["libx264", "libvpx-vp9"]


def test_libraries_are_looked_for_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins the answer where the loader finds none, whatever this machine has."""

    def none(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(probe_process.ctypes, "CDLL", none)
    facts = probe_process.QUESTIONS["libraries"]()
    assert list(facts["loads"]) == list(probe_process.LIBRARIES)
    assert all("cannot open" in words for words in facts["loads"].values())
    assert (facts["cuda"], facts["init"], facts["devices"]) == (None, None, None)
