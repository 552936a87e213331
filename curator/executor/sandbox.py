"""Takes rights away from this process for good: files, network, other processes.

Landlock (Linux 5.13; TCP from 6.7, signals from 6.12) leaves some folders to read and one to write.
A seccomp filter refuses sockets, new programs, reaching other processes, keys and mounts.
Capabilities of a superuser go. All need no privilege, hold for all threads that are started later,
and cannot be undone.
"""

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 1, 38, 22, 2
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_ABI_QUERY, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
"""Rights over files that each version of Landlock knows; from 5 on also `ioctl` of devices."""
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
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
_MACHINES = {"x86_64": (0xC000003E, 0, 234), "aarch64": (0xC00000B7, 1, 131)}
"""By machine: its number for seccomp, its place in `_REFUSED_CALLS`, and its number of tgkill."""
_X32 = 0x40000000
"""From here on the numbers of x86_64 are the same calls once more, for 32-bit pointers."""

SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/opt", "/etc/ld.so.cache", "/sys")
"""Libraries and descriptions of the machine; nothing of users."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_PROC = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm")

_CAPABILITY_VERSION, _DAC_OVERRIDE, _DAC_READ_SEARCH = 0x20080522, 1 << 1, 1 << 2

_libc = ctypes.CDLL(None, use_errno=True)


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


def lock(readable: Iterable[str], writable: str) -> None:
    """Gives up all that a decoder does not need; protections that the kernel lacks are left out.

    Args:
        readable: Files and folders to read, besides Python's, its packages and the system's.
        writable: The one folder to write in.

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
        _restrict(version, _with_python(readable), writable)
    if has_seccomp():
        machine, place, tgkill = _MACHINES[platform.machine()]
        _filter(machine, [numbers[place] for numbers in _REFUSED_CALLS.values()], tgkill)
    _drop_capabilities()


def _with_python(readable: Iterable[str]) -> Iterator[str]:
    yield from (*SYSTEM, *_PROC, *readable, sys.prefix, sys.base_prefix, sys.exec_prefix)
    yield from (entry for entry in sys.path if os.path.isabs(entry))


def _restrict(version: int, readable: Iterable[str], writable: str) -> None:
    files = _FILE_RIGHTS.get(version, (1 << 16) - 1)
    tcp = 0b11 if version >= 4 else 0
    scoped = 0b11 if version >= 6 else 0
    rules = struct.pack("=QQQ", files, tcp, scoped)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _checked(_libc.syscall(_LANDLOCK_CREATE, rules, size, 0))
    try:
        for path in dict.fromkeys(readable):
            _allow(ruleset, path, _READ & files)
        for path in _DEVICES:
            _allow(ruleset, path, (_READ_FILE | _WRITE_FILE) & files)
        _allow(ruleset, writable, files)
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


def _filter(machine: int, refused: Sequence[int], tgkill: int) -> None:
    """Refuses system calls with EPERM, and kills programs of another machine's numbering.

    `tgkill`, with which a process aborts, reaches this process alone.
    """
    load, equal, at_least, back = 0x20, 0x15, 0x35, 0x06
    allow, refuse, kill = 0x7FFF0000, 0x00050001, 0x80000000
    program = [
        (load, 0, 0, 4),  # The machine,
        (equal, 1, 0, machine),
        (back, 0, 0, kill),
        (load, 0, 0, 0),  # and the number of the call.
        (at_least, len(refused) + 4, 0, _X32),
        *((equal, len(refused) + 3 - at, 0, number) for at, number in enumerate(refused)),
        (equal, 0, 2, tgkill),
        (load, 0, 0, 16),  # Its first argument.
        (equal, 0, 1, os.getpid()),
        (back, 0, 0, allow),
        (back, 0, 0, refuse),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in program))
    head = struct.pack("@HP", len(program), ctypes.addressof(code))
    _checked(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, head, 0, 0))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"this kernel refuses to lock a process: {os.strerror(number)}")
    return result
