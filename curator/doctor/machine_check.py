"""The machine: Python, cores, memory, disk, limits."""

import os
import platform
import resource
import shutil
import tempfile
from pathlib import Path

from curator.doctor.diagnosis import CheckRow, Group, State
from curator.executor.host_resources import available_cpus, memory_bytes, object_store_bytes
from curator.executor.sandbox import landlock_version
from curator.executor.system_calls import has_seccomp
from curator.storage.object_service import scheme_of

WORKER_BYTES = 2 << 30
"""Memory that the engine plans for a worker."""

MIN_DISK_BYTES = 5 * 10**9
"""Free space below which a run over more than a few films is likely to fill the disk."""

STOP_DISK_BYTES = 200 * 10**6
"""Free space that Ray's own files and one track of a film need."""

MIN_OPEN_FILES = 1024
"""Linux's default soft limit."""

_SHM = "/dev/shm"


def machine_rows(out: str | None) -> list[CheckRow]:
    """Returns the checks of the machine and of the output root, if one was named."""
    python = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    rows = [_row("Python", python), _row("cores", str(available_cpus())), _memory(), _shared()]
    if out is not None and scheme_of(out) is None:
        rows.append(_disk("disk of OUT", existing(out), "free some, or choose another OUT"))
    temporary = tempfile.gettempdir()
    rows.append(_disk("disk for temporary files", temporary, "free some, or set TMPDIR"))
    return [*rows, _open_files(), _protections()]


def existing(path: str) -> str:
    """Returns a path, or the nearest folder above it that exists."""
    place = Path(path).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return str(place)


def size(n_bytes: int) -> str:
    """Formats bytes in binary units, as memory is sold: `16.0 GiB`."""
    gib = n_bytes / (1 << 30)
    return f"{gib:.1f} GiB" if gib >= 1 else f"{n_bytes / (1 << 20):.0f} MiB"


def _row(name: str, finding: str, remedy: str | None = None, *, needed: bool = False) -> CheckRow:
    state = State.OK if remedy is None else State.MISSING
    return Group.MACHINE.row(name, state, finding, remedy, needed=needed)


def _memory() -> CheckRow:
    memory, cores = memory_bytes(), available_cpus()
    fits = memory // WORKER_BYTES
    if fits == 0:
        finding = f"{size(memory)}; one worker takes up to {size(WORKER_BYTES)}"
        return _row("memory", finding, "give the machine or container 4 GiB or more", needed=True)
    few = f"; room for {fits} of {cores} workers, and no more are started" if fits < cores else ""
    return _row("memory", size(memory) + few)


def _shared() -> CheckRow:
    if not os.path.exists(_SHM):
        return Group.MACHINE.row(_SHM, State.NOT_NEEDED, "not on this system")
    wanted, usage = object_store_bytes(), shutil.disk_usage(_SHM)
    finding, remedy = f"{size(usage.free)} free of {size(usage.total)}", None
    if usage.free < wanted:
        finding += f"; Ray's object store takes {size(wanted)}, and is on disk otherwise"
        remedy = (
            f"docker run --shm-size={-(-wanted >> 30) or 1}g, or an emptyDir of medium Memory "
            "under /dev/shm in Kubernetes"
        )
    return _row(_SHM, finding, remedy)


def _disk(name: str, path: str, remedy: str) -> CheckRow:
    usage = shutil.disk_usage(path)
    finding = f"{usage.free / 1e9:.1f} GB free of {usage.total / 1e9:.1f} GB at {path}"
    if usage.free < MIN_DISK_BYTES:
        finding += f"; less than {MIN_DISK_BYTES / 1e9:.0f} GB"
        return _row(name, finding, remedy, needed=usage.free < STOP_DISK_BYTES)
    return _row(name, finding)


def _open_files() -> CheckRow:
    # Ray raises the soft limit to the hard one.
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = ("without end" if limit < 0 else str(limit) for limit in limits)
    finding, remedy = f"limit {soft}, up to {hard}", None
    if 0 <= limits[1] < MIN_OPEN_FILES:
        finding += "; Ray opens more"
        remedy = (
            "raise it: ulimit -n 65536, LimitNOFILE= of systemd, docker run --ulimit nofile=65536"
        )
    return _row("open files", finding, remedy)


def _protections() -> CheckRow:
    landlock, seccomp = landlock_version(), has_seccomp()
    finding = f"Landlock {landlock or 'none'}, seccomp {'yes' if seccomp else 'no'}"
    if landlock and seccomp:
        return _row("sandbox", finding)
    return _row(
        "sandbox",
        f"{finding}; decoders have no credentials, but reach files or network",
        "run on Linux 5.13 or newer, on x86-64 or ARM, and let containers use Landlock",
    )
