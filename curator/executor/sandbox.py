"""Takes rights away from this process for good: files, network, other processes.

Landlock (Linux 5.13; TCP from 6.7, signals from 6.12) leaves some folders to read and one to write.
A seccomp filter refuses sockets, new programs and looking into other processes. Both need no
privilege, hold for all threads that are started later, and cannot be undone.
"""

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable, Iterator
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

_REFUSED = {
    # connect, bind, listen, accept need a socket; socketpair stays.
    "x86_64": (0xC000003E, (41, 59, 101, 310, 311, 321, 322, 304, 425, 434, 438)),
    "aarch64": (0xC00000B7, (198, 221, 117, 270, 271, 280, 281, 265, 425, 434, 438)),
}
"""By machine: its number for seccomp, and its numbers of socket, execve, ptrace, process_vm_readv,
process_vm_writev, bpf, execveat, open_by_handle_at, io_uring_setup, pidfd_open, pidfd_getfd."""

SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/opt", "/etc/ld.so.cache", "/sys")
"""Libraries and descriptions of the machine; nothing of users."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_PROC = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm")

_libc = ctypes.CDLL(None, use_errno=True)


def landlock_version() -> int:
    """Returns the version of Landlock that this kernel offers; 0 for none."""
    if sys.platform != "linux":
        return 0
    found: int = _libc.syscall(_LANDLOCK_CREATE, None, 0, _ABI_QUERY)
    return max(0, found)


def has_seccomp() -> bool:
    """Returns whether the filter of system calls is known for this machine."""
    return sys.platform == "linux" and platform.machine() in _REFUSED


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
    """
    if sys.platform != "linux":
        return
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    version = landlock_version()
    if version:
        _restrict(version, _with_python(readable), writable)
    if has_seccomp():
        _filter(*_REFUSED[platform.machine()])


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


def _filter(machine: int, refused: tuple[int, ...]) -> None:
    """Refuses system calls with EPERM, and kills programs of another machine's numbering."""
    load, equal, back = 0x20, 0x15, 0x06
    allow, refuse, kill = 0x7FFF0000, 0x00050001, 0x80000000
    program = [
        (load, 0, 0, 4),  # The machine,
        (equal, 1, 0, machine),
        (back, 0, 0, kill),
        (load, 0, 0, 0),  # and the number of the call.
        *((equal, len(refused) - at, 0, number) for at, number in enumerate(refused)),
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
