"""Takes rights away from this process for good: files, network, other processes.

Landlock (Linux 5.13; TCP from 6.7, signals from 6.12) leaves some folders to read and one to write.
A seccomp filter refuses sockets, new programs, reaching other processes, keys and mounts.
Capabilities of a superuser go. All need no privilege, hold for all threads that are started later,
and cannot be undone.

A process that holds a GPU keeps what NVIDIA's driver needs, and no more (`GpuAccess`): its device
files with `ioctl`, the names of its own threads, and sockets that lead nowhere. The driver is
opened afterwards, because it starts threads. `docs/design/gpu.md` says where each of these is from.
"""

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 1, 38, 22, 2
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_ABI_QUERY, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
"""Rights over files that each version of Landlock knows; from 5 on also `ioctl` of devices."""
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
"""Rights that a rule on a file, and not on a folder, may give."""

_REFUSED_CALLS = {
    # connect, bind, listen, accept need a socket; socketpair stays.
    "socket": (41, 198), "execve": (59, 221), "execveat": (322, 281),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kill": (62, 129), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424), "shmget": (29, 194), "shmat": (30, 196),
    "mq_open": (240, 180), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "open_by_handle_at": (304, 265), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268),
    "bpf": (321, 280), "io_uring_setup": (425, 425), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "init_module": (175, 105), "finit_module": (313, 273),
    "kexec_load": (246, 104), "reboot": (169, 142),
}  # fmt: skip
"""System calls by name, with their numbers on x86_64 and on aarch64."""
_CONNECT, _ACCEPT = (42, 203), ((43, 202), (288, 242))
"""Numbers of further calls, which a process that holds a GPU may not make: `accept` has two."""
_AF_UNIX, _SOCK_SEQPACKET = 1, 5
_MACHINES = {"x86_64": (0xC000003E, 0, 234), "aarch64": (0xC00000B7, 1, 131)}
"""By machine: its number for seccomp, its place in `_REFUSED_CALLS`, and its number of tgkill."""
_X32 = 0x40000000
"""From here on the numbers of x86_64 are the same calls once more, for 32-bit pointers."""

SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/opt", "/etc/ld.so.cache", "/sys")
"""Libraries and descriptions of the machine; nothing of users."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_PROC = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm")

GPU_FILES = ("/dev/nvidia*",)
"""Device files of NVIDIA's driver: GPUs, control, unified memory, folders of MIG's capabilities."""
NEEDED_GPU_FILES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
"""Those without which CUDA does not start; it would make them by a program, which a locked process
cannot start."""
_GPU_PROC = (
    "/proc/driver/nvidia", "/proc/driver/nvidia-uvm", "/proc/driver/nvidia-caps",
    "/proc/devices", "/proc/modules", "/etc/nvidia",
)  # fmt: skip
_OWN_THREADS = "/proc/self/task"
"""CUDA names its threads here, and does not start where it cannot."""
_MPS_PIPES, _MPS_MEMORY = "/tmp/nvidia-mps", "/dev/shm"

_CAPABILITY_VERSION, _DAC_OVERRIDE, _DAC_READ_SEARCH = 0x20080522, 1 << 1, 1 << 2

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAccess:
    """What a locked process keeps for a GPU's driver.

    Attributes:
        devices: Device files, and folders of them, to open and control.
        readable: Files and folders to read.
        writable: Folders that it shares with the server of NVIDIA's MPS; none without that.
    """

    devices: tuple[str, ...]
    readable: tuple[str, ...]
    writable: tuple[str, ...]

    def problems(self) -> list[str]:
        """Returns the device files that are missing, or that this process cannot open."""
        files = [path for path in self.devices if not Path(path).is_dir()]
        found = [
            f"there is no {path}, which `nvidia-modprobe -u -c 0` makes"
            for path in NEEDED_GPU_FILES
            if not os.path.exists(path)
        ]
        for path in files:
            try:
                os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
            except OSError as error:
                found.append(f"{path}: {error.strerror}")
        return found


def gpu_access(environment: Mapping[str, str]) -> GpuAccess:
    """Returns what processes need for the GPUs of this machine.

    Args:
        environment: Has the folders of libraries (LD_LIBRARY_PATH) and of MPS.
    """
    folder = environment.get("CUDA_MPS_PIPE_DIRECTORY") or _MPS_PIPES
    has_mps = os.path.exists(os.path.join(folder, "control"))
    libraries = environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return GpuAccess(
        devices=tuple(sorted(path for pattern in GPU_FILES for path in glob(pattern))),
        readable=(*_GPU_PROC, *filter(os.path.isabs, libraries)),
        writable=(folder, _MPS_MEMORY) if has_mps else (),
    )


def landlock_version() -> int:
    """Returns the version of Landlock that this kernel offers; 0 for none."""
    if sys.platform != "linux":
        return 0
    found: int = _libc.syscall(_LANDLOCK_CREATE, None, 0, _ABI_QUERY)
    return max(0, found)


def has_seccomp() -> bool:
    """Returns whether the filter of system calls is known for this machine."""
    return sys.platform == "linux" and platform.machine() in _MACHINES


def end_with_parent() -> None:
    """Lets the kernel kill this process when the thread that started it ends."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)


def lock(readable: Iterable[str], writable: str, *, gpu: GpuAccess | None = None) -> None:
    """Gives up all that a decoder does not need; protections that the kernel lacks are left out.

    Args:
        readable: Files and folders to read, besides Python's, its packages and the system's.
        writable: The one folder to write in.
        gpu: What it keeps for a GPU; None for no GPU.

    Raises:
        OSError: The kernel offers a protection and refuses to switch it on.
        RuntimeError: The process has other threads, which would keep their rights.
    """
    if sys.platform != "linux":
        return
    names = [(thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()]
    if len(names) > 1:
        raise RuntimeError(f"threads that run already cannot be locked: {', '.join(names)}")
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    version = landlock_version()
    if version:
        _restrict(version, _with_python(readable), writable, gpu)
    if has_seccomp():
        machine, place, tgkill = _MACHINES[platform.machine()]
        refused = {name: numbers[place] for name, numbers in _REFUSED_CALLS.items()}
        special = _own_signal(tgkill)
        if gpu is not None:
            special += _local_socket(refused.pop("socket"))
            if not gpu.writable:
                special += _when(_CONNECT[place], [(_RETURN, 0, 0, _REFUSE_AS_ABSENT)])
                refused |= {f"accept {call}": call[place] for call in _ACCEPT}
        _filter(machine, list(refused.values()), special)
    _drop_capabilities()


def _with_python(readable: Iterable[str]) -> Iterator[str]:
    yield from (*SYSTEM, *_PROC, *readable, sys.prefix, sys.base_prefix, sys.exec_prefix)
    yield from (entry for entry in sys.path if os.path.isabs(entry))


def _restrict(version: int, readable: Iterable[str], writable: str, gpu: GpuAccess | None) -> None:
    files = _FILE_RIGHTS.get(version, (1 << 16) - 1)
    tcp = 0b11 if version >= 4 else 0
    scoped = 0b11 if version >= 6 else 0
    rules = struct.pack("=QQQ", files, tcp, scoped)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _checked(_libc.syscall(_LANDLOCK_CREATE, rules, size, 0))
    try:
        for path in dict.fromkeys((*readable, *(gpu.readable if gpu is not None else ()))):
            _allow(ruleset, path, _READ & files)
        for path in _DEVICES:
            _allow(ruleset, path, (_READ_FILE | _WRITE_FILE) & files)
        _allow(ruleset, writable, files)
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
    """Adds a rule; a path that is not there needs none."""
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
    """Gives up what a superuser may, except for reading the files of other users' installations."""
    head = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    now = ctypes.create_string_buffer(24)
    _checked(_libc.capget(head, now))
    kept = struct.unpack("=6I", now.raw)[1] & (_DAC_OVERRIDE | _DAC_READ_SEARCH)
    _checked(_libc.capset(head, struct.pack("=6I", kept, kept, 0, 0, 0, 0)))


_LOAD, _EQUAL, _AT_LEAST, _JUMP, _AND, _RETURN = 0x20, 0x15, 0x35, 0x05, 0x54, 0x06
"""Instructions of a filter: the word to compare, jumps, a mask, and the end."""
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
_REFUSE_AS_ABSENT = 0x00050002
"""With ENOENT, which CUDA gets from `connect` where MPS does not run, and goes on."""
_MACHINE, _NUMBER, _FIRST, _SECOND = 4, 0, 16, 24
"""Words that a filter reads: the machine, the call's number, its first and second argument."""
_Program = list[tuple[int, int, int, int]]


def _filter(machine: int, refused: Sequence[int], special: _Program) -> None:
    """Refuses system calls with EPERM, and kills programs of another machine's numbering."""
    program = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, machine),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, len(refused) + 1, 0, _X32),
        *((_EQUAL, len(refused) - at, 0, number) for at, number in enumerate(refused)),
        (_JUMP, 0, 0, 1),  # Past the refusal, to which the others jump.
        (_RETURN, 0, 0, _REFUSE),
        *special,
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in program))
    head = struct.pack("@HP", len(program), ctypes.addressof(code))
    _checked(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, head, 0, 0))


def _when(number: int, then: _Program) -> _Program:
    """What is done at a call; `then` returns on all ways."""
    return [(_EQUAL, 0, len(then), number), *then]


def _own_signal(tgkill: int) -> _Program:
    """Allows `tgkill`, with which a process aborts, to reach this process alone."""
    return _when(
        tgkill,
        [
            (_LOAD, 0, 0, _FIRST),
            (_EQUAL, 0, 1, os.getpid()),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _REFUSE),
        ],
    )


def _local_socket(socket: int) -> _Program:
    """Allows the one kind of socket that CUDA makes, listens on, and talks to MPS by."""
    return _when(
        socket,
        [
            (_LOAD, 0, 0, _FIRST),
            (_EQUAL, 0, 4, _AF_UNIX),
            (_LOAD, 0, 0, _SECOND),
            (_AND, 0, 0, 0xF),  # Without its flags.
            (_EQUAL, 0, 1, _SOCK_SEQPACKET),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _REFUSE),
        ],
    )


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"this kernel refuses to lock a process: {os.strerror(number)}")
    return result
