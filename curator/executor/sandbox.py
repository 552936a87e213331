"""Locks this process: takes away its rights to files, network and other processes, for good.

Landlock (Linux 5.13; TCP from 6.7, signals from 6.12) allows reading some folders and writing some
files. A seccomp filter allows only the system calls of `system_calls`, none of which starts or
reaches another process. Hard limits cap resources. A superuser's capabilities are dropped. These
steps need no privilege, apply to all later threads, and cannot be undone.

A process with a GPU keeps only what NVIDIA's driver needs (`GpuAccess`): device files with `ioctl`,
the names of its own threads, and sockets that lead nowhere. The driver starts threads, so it is
opened after the lock. `docs/design/gpu.md` gives the source of each of these needs.
"""

import ctypes
import os
import resource
import struct
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from glob import glob
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

from curator.executor.host_resources import open_error
from curator.executor.system_calls import allow_only_needed, has_seccomp

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_ABI_QUERY, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
"""All file rights of each version of Landlock; later versions add `ioctl` of devices."""
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
"""Rights that a rule on a file may give; a rule on a folder may give all."""

_SYSTEM = (
    "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64", "/lib", "/lib32",
    "/lib64", "/usr/share/zoneinfo", "/usr/share/locale", "/etc/ld.so.cache", "/etc/localtime",
    "/sys/devices", "/sys/bus/pci", "/sys/fs/cgroup", "/sys/kernel/mm", "/dev/urandom",
    "/dev/random",
    "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm",
)  # fmt: skip
"""Libraries and descriptions of the machine, without files of users."""

MAX_FILE_BYTES = 4 << 30
"""Largest size of a file that a sandboxed worker writes. It has two files."""
_MAX_ADDRESSES = 1 << 38
"""Bytes of address space. Page tables of reserved addresses may take a 512th of this as memory."""
_MORE_THREADS, _THREADS_PER_CORE = 4096, 256
"""Threads that the user may start beyond those that the machine has when the worker is locked."""

GPU_FILES = ("/dev/nvidia*",)
"""Device files of NVIDIA's driver: GPUs, control, unified memory, folders of MIG's capabilities."""
NEEDED_GPU_FILES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
"""Device files that CUDA needs to start. CUDA makes missing ones with a program, which a locked
process cannot start."""
_GPU_PROC = (
    "/proc/driver/nvidia", "/proc/driver/nvidia-uvm", "/proc/driver/nvidia-caps",
    "/proc/devices", "/proc/modules", "/etc/nvidia", "/sys", "/usr/local/cuda*",
    "/usr/local/nvidia", "/usr/share/nvidia",
)  # fmt: skip
_OWN_THREADS = "/proc/self/task"
"""Folder in which CUDA names its threads; CUDA does not start without write access."""
_MPS_PIPES, _MPS_MEMORY = "/tmp/nvidia-mps", "/dev/shm"

_CAPABILITY_VERSION, _DAC_READ_SEARCH = 0x20080522, 1 << 2

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAccess:
    """Paths that a locked process may access for a GPU's driver.

    Attributes:
        devices: Device files, and folders of device files, to open and control.
        readable: Files and folders to read.
        writable: Folders shared with the server of NVIDIA's MPS; empty if MPS does not run.
    """

    devices: tuple[str, ...]
    readable: tuple[str, ...]
    writable: tuple[str, ...]

    def problems(self) -> list[str]:
        """Describes device files that are missing, or that this process cannot open."""
        missing = [path for path in NEEDED_GPU_FILES if not os.path.exists(path)]
        errors = {path: open_error(path) for path in self.devices if not Path(path).is_dir()}
        return [
            *(f"there is no {path}; `nvidia-modprobe -u -c 0` makes it" for path in missing),
            *(f"{path}: {error}" for path, error in errors.items() if error is not None),
        ]


def gpu_access(environment: Mapping[str, str]) -> GpuAccess:
    """Returns the access that a process needs for the GPUs of this machine.

    Args:
        environment: Environment variables, which may name the folder of MPS.
    """
    folder = environment.get("CUDA_MPS_PIPE_DIRECTORY") or _MPS_PIPES
    has_mps = os.path.exists(os.path.join(folder, "control"))
    return GpuAccess(
        devices=tuple(sorted(path for pattern in GPU_FILES for path in glob(pattern))),
        readable=tuple(path for pattern in _GPU_PROC for path in glob(pattern)),
        writable=(folder, _MPS_MEMORY) if has_mps else (),
    )


def landlock_version() -> int:
    """Returns the version of Landlock in this kernel; 0 if the kernel has no Landlock."""
    if sys.platform != "linux":
        return 0
    version: int = _libc.syscall(_LANDLOCK_CREATE, None, 0, _ABI_QUERY)
    return max(0, version)


def end_with_parent() -> None:
    """Makes the kernel kill this process when the thread that started it ends."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)


Plugins = Mapping[str, tuple[str | None, tuple[str, ...]]]
"""Name of a module -> its file, and its folders if it is a package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportableCode:
    """Python's packages and plug-ins of users that a sandboxed worker may import.

    Attributes:
        paths: Folders and files to read.
        plugins: Modules outside of package folders. A `PluginFinder` finds them by name, because
            the folder around them cannot be read.
    """

    paths: tuple[str, ...]
    plugins: Plugins


def importable_code() -> ImportableCode:
    """Returns the code that this process can import.

    It contains the folders of installed packages, and the file or folder of each other loaded
    module. It never contains the whole current or home folder, even if `sys.path` does.
    """
    installed = [
        os.path.dirname(os.__file__),
        *(
            f"{prefix}/{lib}"
            for prefix in (sys.prefix, sys.base_prefix)
            for lib in ("lib", "lib64")
        ),
        *(path for path in sys.path if _has_packages(path) and not _is_personal(path)),
    ]
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    # The import of OpenCV adds a folder inside an installed one. As another path, it would make a
    # sandbox of before that import look as if it could not read what it needs.
    paths = [
        *installed,
        *(p for p in libraries if not _is_personal(p) and not _is_inside(p, installed)),
    ]
    plugins = {}
    # A copy, because another thread may import meanwhile.
    modules = {name: module for name, module in sys.modules.copy().items() if "." not in name}
    for name, module in modules.items():
        file = getattr(module, "__file__", None)
        folders = tuple(getattr(module, "__path__", ()))
        package = folders or (file,)
        if name == "__main__" or not all(map(_is_path, package)):
            continue
        is_own = name == __name__.partition(".")[0]
        if not any(Path(package[0]).is_relative_to(path) for path in installed) and (
            is_own or not any(map(_is_personal, package))
        ):
            plugins[name] = file, folders
            paths += package
    return ImportableCode(paths=tuple(dict.fromkeys(paths)), plugins=plugins)


def _is_path(path: object) -> bool:
    return isinstance(path, str) and os.path.isabs(path)


@cache
def _has_packages(path: str) -> bool:
    with suppress(OSError):
        return os.path.isabs(path) and any(name.endswith(".dist-info") for name in os.listdir(path))
    return False


def _is_personal(path: str) -> bool:
    """Whether `path` contains the current or the home folder, or is not absolute."""
    personal = [os.path.expanduser("~")]
    with suppress(OSError):
        personal.append(os.getcwd())
    real = os.path.realpath(path)
    return not os.path.isabs(path) or any(
        Path(os.path.realpath(folder)).is_relative_to(real) for folder in personal
    )


def _is_inside(path: str, folders: Iterable[str]) -> bool:
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(os.path.realpath(folder)) for folder in folders)


class PluginFinder:
    """Finds modules by the names of `ImportableCode.plugins`, for `sys.meta_path`."""

    def __init__(self) -> None:
        self.plugins: Plugins = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Returns the location of a plug-in; None for other modules."""
        if name not in self.plugins:
            return None
        file, folders = self.plugins[name]
        if file is not None:
            return spec_from_file_location(
                name, file, submodule_search_locations=list(folders) or None
            )
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = list(folders)
        return spec


def lock(
    readable: Iterable[str], *, writable: Iterable[str] = (), gpu: GpuAccess | None = None
) -> None:
    """Gives up all rights that a decoder does not need, as far as the kernel supports it.

    Args:
        readable: Files and folders to read besides the system's: code and a stage's files.
        writable: Existing files to write.
        gpu: Access to GPUs; None for no GPU.

    Raises:
        OSError: The kernel has a protection, but refuses to switch it on.
        RuntimeError: The process has other threads, which would keep their rights.
    """
    if sys.platform != "linux":
        return
    names = [(thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()]
    if len(names) > 1:
        raise RuntimeError(f"threads that already run cannot be locked: {', '.join(names)}")
    _limit(has_gpu=gpu is not None)
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    version = landlock_version()
    if version:
        _restrict(version, (*_SYSTEM, *readable), writable, gpu)
    _drop_capabilities()
    if has_seccomp():
        has_mps = gpu is not None and bool(gpu.writable)
        allow_only_needed(has_gpu=gpu is not None, has_mps=has_mps)


def _limit(*, has_gpu: bool) -> None:
    """Sets hard limits. The seccomp filter later refuses the call that changes limits."""
    n_threads = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    n_cores = os.cpu_count() or 1
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 1024,
        resource.RLIMIT_FSIZE: MAX_FILE_BYTES,
        resource.RLIMIT_NPROC: n_threads + _MORE_THREADS + _THREADS_PER_CORE * n_cores,
    }
    if not has_gpu:
        # The driver reserves addresses for all memory of the GPUs and of the machine.
        limits[resource.RLIMIT_AS] = _MAX_ADDRESSES
    for kind, value in limits.items():
        _, hard = resource.getrlimit(kind)
        most = value if hard == resource.RLIM_INFINITY else min(hard, value)
        resource.setrlimit(kind, (most, most))


def _restrict(
    version: int, readable: Iterable[str], writable: Iterable[str], gpu: GpuAccess | None
) -> None:
    files = _FILE_RIGHTS.get(version, (1 << 16) - 1)
    tcp = 0b11 if version >= 4 else 0
    scoped = 0b11 if version >= 6 else 0
    rules = struct.pack("=QQQ", files, tcp, scoped)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _checked(_libc.syscall(_LANDLOCK_CREATE, rules, size, 0))
    try:
        for path in dict.fromkeys((*readable, *(gpu.readable if gpu is not None else ()))):
            _allow(ruleset, path, _READ & files)
        _allow(ruleset, "/dev/null", (_READ_FILE | _WRITE_FILE) & files)
        for path in writable:
            _allow(ruleset, path, (_READ_FILE | _WRITE_FILE | _TRUNCATE) & files)
        if gpu is not None:
            for path in gpu.devices:
                _allow(ruleset, path, (_READ_FILE | _READ_DIR | _WRITE_FILE | _IOCTL) & files)
            _allow(ruleset, _OWN_THREADS, (_READ | _WRITE_FILE | _TRUNCATE) & files)
            for path in gpu.writable:
                _allow(ruleset, path, files)
        _checked(_libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Adds a rule for a path; a missing path needs no rule."""
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not Path(path).is_dir():
            rights &= _ON_FILES
        rule = struct.pack("=Qi", rights, opened)
        _checked(_libc.syscall(_LANDLOCK_ADD, ruleset, _PATH_BENEATH, rule, 0))
    finally:
        os.close(opened)


def _drop_capabilities() -> None:
    """Drops a superuser's capabilities, except to read the files of other users' installations."""
    head = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    now = ctypes.create_string_buffer(24)
    _checked(_libc.capget(head, now))
    kept = struct.unpack("=6I", now.raw)[1] & _DAC_READ_SEARCH
    _checked(_libc.capset(head, struct.pack("=6I", kept, kept, 0, 0, 0, 0)))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"this kernel refuses to lock a process: {os.strerror(number)}")
    return result
