"""The tests of GPU decoding hold on PyNvVideoCodec itself, over a driver that needs no GPU.

In a process of its own: libraries named like NVIDIA's are loaded in it.
"""

import importlib.util
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import software_driver

TESTS = Path(__file__).parents[1]
FILES = (
    "media/test_nvdec_wheel.py", "media/test_nvdec.py", "media/test_nvdec_streams.py",
    "media/test_device_failures.py", "stages/analyze/test_device_tracks.py",
    "stages/analyze/test_device_samples.py", "loading/test_device_windows.py",
)  # fmt: skip


HAS_WHEEL = sys.platform == "linux" and platform.machine() == "x86_64"
"""Where the extra `test` installs the package."""


@pytest.mark.long
@pytest.mark.skipif(not HAS_WHEEL, reason="PyNvVideoCodec is tested on Linux on x86-64 alone")
def test_the_package_gives_the_frames_that_its_stand_in_gives() -> None:
    assert importlib.util.find_spec("PyNvVideoCodec") is not None, "install the extra `test`"
    assert software_driver.compiler() is not None, "install a C compiler, such as gcc"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command + [str(TESTS / name) for name in FILES],
        env=os.environ | {"NVDEC_TESTS": "package"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    # Tests of the package alone are skipped without it, and would not be missed.
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout[-400:]
    assert int(passed[1]) > 150
