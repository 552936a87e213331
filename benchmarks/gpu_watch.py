"""Records the use of the GPU's engines, cores and memory while other code runs."""

import contextlib
import math
import statistics
import subprocess
import sys
import threading
import time
from typing import Any


class Watch:
    """Reads the GPU's engines, cores and memory about four times a second.

    Uses pynvml if it is installed, because each start of nvidia-smi costs CPU time.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[float, float, float, float]] = []
        """Decoder and core utilisation in percent, memory in use in MiB, and the time."""
        self._stop = threading.Event()

    def __enter__(self) -> "Watch":
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _read(self) -> None:
        by_library = _library()
        while not self._stop.wait(0.25):
            with contextlib.suppress(OSError, ValueError, IndexError):
                row = by_library() if by_library is not None else _by_command()
                self.rows.append((*row, time.time()))

    def found(self, begun: float = 0.0, ended: float = math.inf) -> dict[str, float]:
        """Returns the mean utilisations in percent, and the largest memory use in MiB.

        Args:
            begun: Time of the first reading to include.
            ended: Time of the last reading to include.
        """
        rows = [row[:3] for row in self.rows if begun <= row[3] <= ended]
        if not rows:
            return {}
        decoder, cores, memory = zip(*rows, strict=True)
        return {
            "nvdec_percent": round(statistics.mean(decoder), 1),
            "nvdec_percent_most": max(decoder),
            "sm_percent": round(statistics.mean(cores), 1),
            "memory_mib": round(max(memory)),
        }


def gpu_name() -> str:
    """Returns name, driver and memory of the first GPU; exits if nvidia-smi fails."""
    command = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total",
        "--format=csv,noheader",
    ]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"no GPU: nvidia-smi says {error}")


def _library() -> Any:  # noqa: ANN401
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)

        def read() -> tuple[float, float, float]:
            return (
                float(nvml.nvmlDeviceGetDecoderUtilization(gpu)[0]),
                float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
                nvml.nvmlDeviceGetMemoryInfo(gpu).used / 2**20,
            )

        read()
    except Exception:  # noqa: BLE001 - pynvml is missing, or lacks one of the readings
        return None
    return read


def _by_command() -> tuple[float, float, float]:
    fields = "utilization.decoder,utilization.gpu,memory.used"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    decoder, cores, memory = (float(value) for value in answer.stdout.splitlines()[0].split(","))
    return decoder, cores, memory
