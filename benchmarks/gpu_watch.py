"""The GPU's engines, cores and memory while something runs."""

import contextlib
import math
import statistics
import subprocess
import sys
import threading
import time
from typing import Any


class Watch:
    """Reads the GPU's engines, cores and memory a few times a second.

    By NVIDIA's library where Python has it: starting nvidia-smi takes a part of a core.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[float, float, float, float]] = []
        """Percent of the decoders and of the cores, MiB in use, and the time."""
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
        """Means of utilisation in percent, and the largest memory in MiB.

        Args:
            begun: Time of the first reading that counts.
            ended: Time of the last.
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
    """Name, driver and memory of the first GPU; ends the program where there is none."""
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
    except Exception:  # noqa: BLE001 - not installed, or it answers not all of it
        return None
    return read


def _by_command() -> tuple[float, float, float]:
    fields = "utilization.decoder,utilization.gpu,memory.used"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    decoder, cores, memory = (float(value) for value in answer.stdout.splitlines()[0].split(","))
    return decoder, cores, memory
