"""What a worker sets before it measures."""

import subprocess
import sys

TOUCHES = """
import resource, sys
import numpy as np
if sys.argv[1] == "kept":
    from curator.executor.freed_memory import keep_freed_memory
    keep_freed_memory()
np.ones(48 << 20, np.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    np.ones(48 << 20, np.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

IN_TURN = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
from curator.executor.freed_memory import keep_freed_memory
keep_freed_memory()
pools = [ThreadPoolExecutor(1) for _ in range(4)]
for pool in pools:
    pool.submit(lambda: [np.ones(1 << 16, np.uint8) for _ in range(1600)]).result().clear()
(line,) = [x for x in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in x]
print(int(line.split()[1]) >> 10)
"""

RETURNED = """
import sys
from pathlib import Path
import numpy as np
from curator.executor.freed_memory import keep_freed_memory, return_freed_memory
keep_freed_memory()
blocks = [np.ones(1 << 20, np.uint8) for _ in range(160)]
last = np.ones(1 << 20, np.uint8)
del blocks
if sys.argv[1] == "returned":
    return_freed_memory()
(line,) = [x for x in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in x]
print(int(line.split()[1]) >> 10)
"""


def printed(script: str, how: str) -> int:
    """What a process of its own prints, that keeps freed memory or not."""
    done = subprocess.run(
        [sys.executable, "-c", script, how], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_memory_that_was_freed_is_used_again_by_any_thread() -> None:
    # Glibc gives blocks above 32 MiB back whenever they are freed.
    kept, given_back = printed(TOUCHES, "kept"), printed(TOUCHES, "as it is")
    assert kept < 100
    assert given_back > 10 * kept
    # Pins one heap: four threads that take 100 MB in turn need 100 MB, and not 400.
    assert printed(IN_TURN, "kept") < 250


def test_a_stage_that_ended_leaves_no_freed_memory_to_the_next_one() -> None:
    assert printed(RETURNED, "kept") - printed(RETURNED, "returned") > 140
