"""Restricts a sandboxed worker to a list of system calls.

Calls that are not listed fail: older ones with EPERM, newer ones with ENOSYS, so that libraries
fall back to older calls. For example, `pthread_create` falls back from `clone3` to `clone`, and a
filter can check the flags of `clone`. A call of another architecture (32 bits) kills the process.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Architecture -> its number for seccomp, and its place in the tables."""
_Numbers = tuple[int | None, int]
"""Numbers of a call on x86_64 and on aarch64; None if x86_64 lacks the call."""

_PLAIN: dict[str, _Numbers] = {
    # Files. Landlock decides which files can be opened.
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "pwrite64": (18, 68), "lseek": (8, 62), "close": (3, 57), "openat": (257, 56), "fstat": (5, 80),
    "newfstatat": (262, 79), "statx": (332, 291), "statfs": (137, 43), "fstatfs": (138, 44),
    "faccessat": (269, 48), "readlinkat": (267, 78), "getdents64": (217, 61), "getcwd": (79, 17),
    "ftruncate": (77, 46), "fsync": (74, 82), "fdatasync": (75, 83), "fadvise64": (221, 223),
    "dup": (32, 23), "dup3": (292, 24), "pipe2": (293, 59), "eventfd2": (290, 19),
    "ppoll": (271, 73), "pselect6": (270, 72), "epoll_create1": (291, 20), "epoll_ctl": (233, 21),
    "epoll_pwait": (281, 22),
    # The process's own memory.
    "brk": (12, 214), "munmap": (11, 215), "mremap": (25, 216), "mprotect": (10, 226),
    "msync": (26, 227), "mincore": (27, 232), "madvise": (28, 233), "membarrier": (324, 283),
    "get_mempolicy": (239, 236),
    # Threads, handling of signals, exit.
    "futex": (202, 98), "set_robust_list": (273, 99), "set_tid_address": (218, 96),
    "rseq": (334, 293), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126),
    "getcpu": (309, 168), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "sigaltstack": (131, 132), "restart_syscall": (219, 128),
    "exit": (60, 93), "exit_group": (231, 94),
    # Time, ids of the process, the machine.
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "gettimeofday": (96, 169), "times": (100, 153),
    "getrusage": (98, 165), "getrlimit": (97, 163), "getpid": (39, 172), "gettid": (186, 178),
    "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176),
    "getegid": (108, 177), "uname": (63, 160), "sysinfo": (99, 179), "getrandom": (318, 278),
}  # fmt: skip
_ONLY_X86_64 = {
    "open": 2, "stat": 4, "lstat": 6, "poll": 7, "access": 21, "pipe": 22, "select": 23,
    "dup2": 33, "readlink": 89, "arch_prctl": 158, "time": 201, "epoll_wait": 232,
}  # fmt: skip
"""Older variants of calls, and `arch_prctl`, which sets registers of a thread."""

_CLONE, _MMAP, _IOCTL = (56, 220), (9, 222), (16, 29)
_KILL, _TGKILL, _PRLIMIT, _FCNTL, _PRCTL = (62, 129), (234, 131), (302, 261), (72, 25), (157, 167)

_GPU_PLAIN: dict[str, _Numbers] = {
    "bind": (49, 200), "listen": (50, 201), "getsockname": (51, 204), "getsockopt": (55, 209),
    "setsockopt": (54, 208), "sendto": (44, 206), "recvfrom": (45, 207), "sendmsg": (46, 211),
    "recvmsg": (47, 212), "shutdown": (48, 210), "memfd_create": (319, 279), "mlock": (149, 228),
    "munlock": (150, 229), "mbind": (237, 235), "set_mempolicy": (238, 237),
    "sched_getscheduler": (145, 120), "sched_getparam": (143, 121), "getpriority": (140, 141),
}  # fmt: skip
"""Further calls for a process with a GPU; no limit counts the memory of its driver anyway."""
_MPS_PLAIN: dict[str, _Numbers] = {
    "connect": (42, 203), "accept": (43, 202), "accept4": (288, 242), "unlinkat": (263, 35),
    "mkdirat": (258, 34), "unlink": (87, 35), "mkdir": (83, 34),
}  # fmt: skip
_GPU_ANSWERS: dict[_Numbers, int] = {
    (87, 35): errno.ENOENT, (83, 34): errno.EEXIST, (88, 36): errno.ENOENT,
}  # fmt: skip
"""Errors of `unlink`, `mkdir` and `symlink` that pretend that no file and every folder exists. CUDA
does not start if it may not unlink an unnamed socket, but works without its links and folders."""
_SETPRIORITY = (141, 140)
_SOCKET, _CONNECT = (41, 198), (42, 203)

_CLONE_THREAD, _CLONE_OTHERS = 0x00010000, 0x7E02A000
"""Flags of `clone`: a thread; a namespace, being traced, or a sibling of the parent."""
_HARMLESS_PRCTL = (15, 16, 51, 64, 0x53564D41)
"""Options of `prctl`: names of threads and of memory, lengths of ARM's vectors."""
_DUPLICATE, _FLAGS, _LOCKS = (0, 1030), (1, 2, 3, 4), (5, 6, 7, 36, 37, 38)
_DESCRIPTOR_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""Kinds of `ioctl`: attributes and size of a terminal, bytes to read, blocking, close-on-exec."""
_SHARED_ANONYMOUS, _GROWS_OR_HUGE = 0x21, 0x40100
_NVIDIA = ord("F") << 8
"""Type byte of the driver's `ioctl` numbers; unified memory has numbers with type 0."""
_AF_UNIX, _SOCK_SEQPACKET = 1, 5

_EVERY = 0xFFFFFFFF
_KILLED, _ALLOWED, _ERROR = 0x80000000, 0x7FFF0000, 0x00050000
_NEWER = 424
"""Calls from this number on are newer (Linux 5.1), with equal numbers on all architectures."""
_LOAD, _EQUAL, _AT_LEAST, _JUMP, _AND, _RETURN = 0x20, 0x15, 0x35, 0x05, 0x54, 0x06
"""Instructions of a filter: load the word to compare, jumps, mask, return."""
_CALL, _MACHINE = 0, 4
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_Instruction = tuple[int, int, int, int]


class _ArgumentCheck(NamedTuple):
    """A condition on an argument: its masked word equals one of `values`."""

    argument: int
    values: tuple[int, ...]
    mask: int = _EVERY
    is_high: bool = False
    """Whether to check the upper word of the argument instead of the lower one."""


class _CallRule(NamedTuple):
    """The result of a call with certain arguments."""

    numbers: _Numbers
    checks: tuple[_ArgumentCheck, ...] = ()
    result: int = _ALLOWED


def has_seccomp() -> bool:
    """Returns whether this module knows the numbers of system calls on this machine."""
    return platform.system() == "Linux" and platform.machine() in _MACHINES


def allow_only_needed(*, has_gpu: bool, has_mps: bool) -> None:
    """Makes the kernel refuse all unlisted system calls of this process, for good.

    Args:
        has_gpu: Whether to allow the calls that NVIDIA's driver needs.
        has_mps: Whether to allow the calls that reach the server of NVIDIA's MPS.

    Raises:
        OSError: The kernel refuses.
    """
    machine, place = _MACHINES[platform.machine()]
    numbers = [plain[place] for plain in _PLAIN.values()]
    rules = [_CallRule((number, number)) for number in numbers if number is not None]
    if place == 0:
        rules += [_CallRule((number, number)) for number in _ONLY_X86_64.values()]
    rules += _rules()
    rules += _gpu_rules(has_mps) if has_gpu else [_CallRule(_MMAP, _COUNTED_MEMORY)]
    program = b"".join(struct.pack("=HBBI", *call) for call in _program(machine, place, rules))
    code = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, head, 0, 0) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"this kernel refuses a seccomp filter: {os.strerror(number)}")


_COUNTED_MEMORY = (
    _ArgumentCheck(3, (0, 0x01, 0x20), _SHARED_ANONYMOUS),
    _ArgumentCheck(3, (0,), _GROWS_OR_HUGE),
)


def _rules() -> list[_CallRule]:
    own = (_ArgumentCheck(0, (os.getpid(),)),)
    return [
        _CallRule(_CLONE, (_ArgumentCheck(0, (_CLONE_THREAD,), _CLONE_THREAD | _CLONE_OTHERS),)),
        _CallRule(_KILL, own),
        _CallRule(_TGKILL, own),
        # A process may only read limits, and only its own.
        _CallRule(
            _PRLIMIT,
            (
                _ArgumentCheck(0, (0,)),
                _ArgumentCheck(2, (0,)),
                _ArgumentCheck(2, (0,), is_high=True),
            ),
        ),
        _CallRule(_FCNTL, (_ArgumentCheck(1, _DUPLICATE + _FLAGS + _LOCKS),)),
        _CallRule(_PRCTL, (_ArgumentCheck(0, _HARMLESS_PRCTL),)),
        _CallRule(_IOCTL, (_ArgumentCheck(1, _DESCRIPTOR_IOCTLS),)),
    ]


def _gpu_rules(has_mps: bool) -> Iterator[_CallRule]:
    yield _CallRule(_MMAP)
    yield _CallRule(_IOCTL, (_ArgumentCheck(1, (0, _NVIDIA), 0xFF00),))
    # The mask removes the flags of the socket's type.
    yield _CallRule(
        _SOCKET, (_ArgumentCheck(0, (_AF_UNIX,)), _ArgumentCheck(1, (_SOCK_SEQPACKET,), 0xF))
    )
    yield from (_CallRule(numbers) for numbers in _GPU_PLAIN.values())
    # Threads of the video decoder set the priority that they already have.
    own = os.getpriority(os.PRIO_PROCESS, 0) & _EVERY
    yield _CallRule(_SETPRIORITY, (_ArgumentCheck(0, (0,)), _ArgumentCheck(2, (own,))))
    if has_mps:
        yield from (_CallRule(numbers) for numbers in _MPS_PLAIN.values())
    else:
        # The same error as if MPS did not run, so CUDA works without MPS.
        yield _CallRule(_CONNECT, result=_ERROR | errno.ENOENT)
    for numbers, number in _GPU_ANSWERS.items():
        yield _CallRule(numbers, result=_ERROR | number)


def _program(machine: int, place: int, rules: Iterable[_CallRule]) -> Iterator[_Instruction]:
    yield from ((_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, machine), (_RETURN, 0, 0, _KILLED))
    yield (_LOAD, 0, 0, _CALL)
    for rule in rules:
        number = rule.numbers[place]
        assert number is not None
        body = [*_checked(rule.checks), (_RETURN, 0, 0, rule.result)]
        if rule.checks:
            body.append((_LOAD, 0, 0, _CALL))
        yield (_EQUAL, 0, len(body), number)
        yield from body
    yield from (
        (_AT_LEAST, 1, 0, _NEWER),
        (_RETURN, 0, 0, _ERROR | errno.EPERM),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
    )


def _checked(checks: tuple[_ArgumentCheck, ...]) -> Iterator[_Instruction]:
    """Continues if all checks hold, else jumps to the last instruction of the rule."""
    left = sum(len(check.values) + 3 for check in checks) + 1
    for check in checks:
        yield (_LOAD, 0, 0, 16 + 8 * check.argument + 4 * check.is_high)
        yield (_AND, 0, 0, check.mask)
        n_values = len(check.values)
        yield from ((_EQUAL, n_values - at, 0, value) for at, value in enumerate(check.values))
        left -= n_values + 3
        yield (_JUMP, 0, 0, left)
