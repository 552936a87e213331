"""The costs of OpenCV: threads that wait, and memory that is mapped again for each picture."""

import subprocess
import sys

import cv2
import pytest

from curator.media.opencv import for_small_pictures

MAPS = """
import resource, sys
import numpy as np
from curator.media.opencv import for_small_pictures

def touch():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        blocks = [np.ones(1 << 20, np.uint8) for _ in range(8)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

usual = touch()
with for_small_pictures():
    touch()
    print(usual, touch())
"""


def test_pictures_are_compared_in_one_thread_and_the_number_of_threads_returns() -> None:
    usual = cv2.getNumThreads()
    cv2.setNumThreads(3)
    try:
        with for_small_pictures():
            assert cv2.getNumThreads() == 1
        assert cv2.getNumThreads() == 3
    finally:
        cv2.setNumThreads(usual)


@pytest.mark.skipif(sys.platform != "linux", reason="about glibc")
def test_the_memory_of_freed_pictures_is_not_mapped_again() -> None:
    """Mapping took a sixth of the time of verifying duplicates."""
    done = subprocess.run([sys.executable, "-c", MAPS], stdout=subprocess.PIPE, check=True)
    usual, kept = map(int, done.stdout.split())
    assert kept < usual / 10
