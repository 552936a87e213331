"""The machine: Python, cores, memory, disk, limits."""

import platform
import sys
import tempfile
from pathlib import Path

from curator.doctor.diagnosis import Group, Row, State
from curator.doctor.host import Host
from curator.storage.object_service import scheme_of

MIN_PYTHON = (3, 11)

WORKER_BYTES = 2 << 30
"""Memory that the engine plans for a worker."""

MIN_DISK_BYTES = 5 * 10**9
"""Free space below which a run over more than a few films is likely to fill the disk."""

STOP_DISK_BYTES = 200 * 10**6
"""Free space that Ray's own files and one track of a film need."""

MIN_OPEN_FILES = 1024
"""Linux's default soft limit."""

_SHM = "/dev/shm"


def machine_rows(host: Host, out: str | None) -> list[Row]:
    """Returns the checks of the machine and of the output root, if one was named."""
    rows = [_python(host), _row("cores", str(host.cpus())), _memory(host), _shared_memory(host)]
    if out is not None and scheme_of(out) is None:
        rows.append(_disk(host, "disk of OUT", existing(out), "free some, or choose another OUT"))
    temporary = tempfile.gettempdir()
    rows.append(_disk(host, "disk for temporary files", temporary, "free some, or set TMPDIR"))
    return [*rows, _open_files(host), _protections(host)]


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


def _row(name: str, found: str, remedy: str | None = None, *, needed: bool = False) -> Row:
    state = State.OK if remedy is None else State.MISSING
    return Group.MACHINE.row(name, state, found, remedy, needed=needed)


def _python(host: Host) -> Row:
    found = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    if host.version("elasticsearch-curator") is not None:
        found += "; elasticsearch-curator installs a package `curator` too"
        remedy = "give each of the two its own environment"
        return Group.MACHINE.row("Python", State.BROKEN, found, remedy)
    if sys.version_info < MIN_PYTHON:
        return _row("Python", found, "make an environment with Python 3.11 or newer", needed=True)
    return _row("Python", found)


def _memory(host: Host) -> Row:
    memory, cores = host.memory_bytes(), host.cpus()
    fits = memory // WORKER_BYTES
    if fits == 0:
        return _row(
            "memory",
            f"{size(memory)}; one worker takes up to {size(WORKER_BYTES)}",
            "give the machine or container 4 GiB or more",
            needed=True,
        )
    few = f"; room for {fits} of {cores} workers, and no more are started" if fits < cores else ""
    return _row("memory", size(memory) + few)


def _shared_memory(host: Host) -> Row:
    wanted = host.object_store_bytes()
    if not host.exists(_SHM):
        return Group.MACHINE.row(_SHM, State.NOT_NEEDED, "not on this system")
    free, total = host.disk(_SHM)
    found = f"{size(free)} free of {size(total)}"
    if free < wanted:
        return _row(
            _SHM,
            f"{found}; Ray's object store takes {size(wanted)}, and is on disk otherwise",
            f"docker run --shm-size={-(-wanted >> 30) or 1}g, or an emptyDir of medium Memory "
            "under /dev/shm in Kubernetes",
        )
    return _row(_SHM, found)


def _disk(host: Host, name: str, path: str, remedy: str) -> Row:
    free, total = host.disk(path)
    found = f"{free / 1e9:.1f} GB free of {total / 1e9:.1f} GB at {path}"
    if free < MIN_DISK_BYTES:
        found += f"; less than {MIN_DISK_BYTES / 1e9:.0f} GB"
        return _row(name, found, remedy, needed=free < STOP_DISK_BYTES)
    return _row(name, found)


def _open_files(host: Host) -> Row:
    limits = host.open_files()
    if limits is None:
        return Group.MACHINE.row("open files", State.NOT_NEEDED, "no such limit")
    # Ray raises the soft limit to the hard one.
    soft, hard = ("without end" if limit < 0 else str(limit) for limit in limits)
    found = f"limit {soft}, up to {hard}"
    if 0 <= limits[1] < MIN_OPEN_FILES:
        return _row(
            "open files",
            f"{found}; Ray opens more",
            "raise it: ulimit -n 65536, LimitNOFILE= of systemd, docker run --ulimit nofile=65536",
        )
    return _row("open files", found)


def _protections(host: Host) -> Row:
    landlock, has_seccomp = host.protections()
    found = f"Landlock {landlock or 'none'}, seccomp {'yes' if has_seccomp else 'no'}"
    if not landlock or not has_seccomp:
        return _row(
            "sandbox",
            f"{found}; decoders have no credentials, but reach files or network",
            "run on Linux 5.13 or newer, on x86-64 or ARM, and let containers use Landlock",
        )
    return _row("sandbox", found)
