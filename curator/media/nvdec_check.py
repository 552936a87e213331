"""Whether this machine's GPU decodes: `python -m curator.media.nvdec_check` says why not."""

import subprocess
import sys

from curator.errors import CuratorError
from curator.media.nvdec import Nvdec

TIMEOUT_S = 120


def nvdec_refusal() -> str | None:
    """Returns why sources cannot be decoded on the first GPU that this process sees, or None.

    It is asked in a process of its own: a CUDA context takes hundreds of MB of the GPU's memory,
    and a driver that does not work may end the process.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"NVDEC does not answer within {TIMEOUT_S} s"
    if done.returncode == 0:
        return None
    return done.stdout.strip() or f"the check of NVDEC ended with {done.returncode}"


def _main() -> int:
    try:
        refusal = Nvdec().decodes_nothing()
    except CuratorError as error:
        refusal = str(error)
    if refusal is not None:
        print(refusal)
    return int(refusal is not None)


if __name__ == "__main__":
    sys.exit(_main())
