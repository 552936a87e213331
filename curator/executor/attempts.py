"""CPU-seconds of a worker's tasks, and unforeseen failures."""

import logging
import time
import traceback
from pathlib import Path

from curator.errors import ErrorCode
from curator.executor.cpu_accounting import is_driver
from curator.records.sources import Failure

logger = logging.getLogger(__name__)


class CpuClock:
    """Divides the CPU-seconds of a worker's process among its tasks.

    Time before the first call of a step is start-up, with the loading of models; time between two
    calls is the engine's own work. In the driver, whose time is counted as a whole, it divides
    nothing but the time of its sandbox.
    """

    _of_process: float | None = None
    """CPU-seconds of this process that are given out already, by whichever clock."""

    def __init__(self) -> None:
        self._between = "start_up"
        self._last = 0.0

    def begin(self) -> dict[str, float]:
        """Begins a call; returns the CPU-seconds since the last one, by name."""
        now = _own_cpu_s()
        passed = {self._between: now - (CpuClock._of_process or 0.0)}
        self._last, self._between = now, "between_units"
        return passed

    def end(self, seconds: dict[str, float], *, rest: str, more_s: float = 0.0) -> dict[str, float]:
        """Ends a call; returns all CPU-seconds of this process since the previous one.

        `seconds` are from `begin`, with measurements inside the call; the rest of it is for `rest`,
        with `more_s` of the call that another process took.
        """
        now = _own_cpu_s()
        inside = sum(s for name, s in seconds.items() if name not in ("start_up", "between_units"))
        seconds[rest] = seconds.get(rest, 0.0) + max(0.0, now - self._last + more_s - inside)
        self._last = CpuClock._of_process = now
        return seconds


def _own_cpu_s() -> float:
    return 0.0 if is_driver() else time.process_time()


def thread_cpu_s() -> float:
    """Returns CPU-seconds of this thread; 0 in the driver, whose time is counted as a whole."""
    return 0.0 if is_driver() else time.thread_time()


def internal_failure(uri: str, stage: str, error: Exception) -> Failure:
    """Logs an unforeseen error, and makes it the outcome of its source."""
    logger.exception("%s of %r failed", stage, uri)
    return Failure(
        uri=uri,
        stage=stage,
        code=ErrorCode.INTERNAL,
        message=f"{uri}: {type(error).__name__}: {error}; {_blame(error)}",
    )


def _blame(error: Exception) -> str:
    """Whom to turn to: users' own classes run between this package's frames of the stack."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [not any(part in frame.filename for part in _OURS) for frame in frames]
    if not any(own):
        return "please report it"
    frame = frames[max(number for number, is_own in enumerate(own) if is_own)]
    return f"raised at {frame.filename}:{frame.lineno} in {frame.name}, outside of curate"


_OURS = (str(Path(__file__).parents[1]), "site-packages", str(Path(traceback.__file__).parent))
"""Parts of file names of this package, installed ones and the standard library."""
