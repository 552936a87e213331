"""What a worker sets before it measures."""

import subprocess
import sys

TOUCHES = """
import resource, sys
import numpy as np
if sys.argv[1] == "kept":
    from curator.stages.analyze.instruments import keep_freed_memory
    keep_freed_memory()
np.ones(48 << 20, np.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    np.ones(48 << 20, np.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    """Pages that were mapped anew for four blocks of 48 MB, one after the other."""
    done = subprocess.run(
        [sys.executable, "-c", TOUCHES, how], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_large_blocks_of_memory_are_used_again() -> None:
    """Glibc gives blocks above 32 MiB back whenever they are freed."""
    kept, given_back = faults("kept"), faults("as it is")
    assert kept < 100
    assert given_back > 10 * kept
