"""What a decoder that was taken over tries, from inside a sandbox: each has to be refused.

As a program it locks itself as another user, and prints as JSON what was not refused:

    python sandbox_probe.py UID FOLDER
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REFUSALS = {errno.EPERM, errno.EACCES, errno.ENOSYS}
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_NUMBERS = {
    "clone": (56, 220), "clone3": (435, 435), "execveat": (322, 281), "unshare": (272, 97),
    "setns": (308, 268), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424), "prlimit64": (302, 261), "setpriority": (141, 140),
    "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "sched_setattr": (314, 274),
    "ioprio_set": (251, 30), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "process_madvise": (440, 440), "kcmp": (312, 272),
    "move_pages": (279, 239), "migrate_pages": (256, 238), "prctl": (157, 167),
    "setsid": (112, 157), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "mount": (165, 40), "umount2": (166, 39), "fsopen": (430, 430), "open_tree": (428, 428),
    "pivot_root": (155, 41), "chroot": (161, 51), "swapon": (167, 224), "quotactl": (179, 60),
    "inotify_init1": (294, 26), "fanotify_init": (300, 262), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "mlock": (149, 228), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "mq_open": (240, 180), "bpf": (321, 280), "io_uring_setup": (425, 425),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "init_module": (175, 105),
    "finit_module": (313, 273), "kexec_load": (246, 104), "reboot": (169, 142), "acct": (163, 89),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "sethostname": (170, 161),
    "setdomainname": (171, 162), "syslog": (103, 116), "personality": (135, 92),
    "setuid": (105, 146), "setgid": (106, 144), "setgroups": (116, 159), "capset": (126, 91),
    "mmap": (9, 222), "timer_create": (222, 107), "mbind": (237, 235), "sendmsg": (46, 211),
    "splice": (275, 76), "chdir": (80, 49), "remap_file_pages": (216, 234),
}  # fmt: skip
"""Numbers on x86_64 and on aarch64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """What belongs to the user, and not to the sandbox.

    Attributes:
        pid: Process of the same user.
        folder: On `sys.path`, and the folder in which the run was started.
        secret: File in it.
    """

    pid: int
    folder: str
    secret: str


def call(name: str, *arguments: Any, number: int | None = None) -> int:  # noqa: ANN401
    """A system call; raises `OSError`."""
    if number is None:
        number = _NUMBERS[name][platform.machine() == "aarch64"]
    full = [*arguments, *[0] * (6 - len(arguments))]
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in full]
    result: int = _libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


def _child(start: Callable[[], int]) -> str:
    """Starts a process, which ends at once where it is allowed."""
    pid = start()
    if pid == 0:
        os._exit(0)
    with contextlib.suppress(OSError):
        os.waitpid(pid, 0)
    return "a process"


def _clone3(flags: int) -> int:
    return call("clone3", (ctypes.c_uint64 * 8)(flags, 0, 0, 0, signal.SIGCHLD), 64)


def _lifts(kind: int) -> str:
    """Raises a soft limit, or sets it as it is."""
    _, hard = resource.getrlimit(kind)
    resource.prlimit(0, kind, (hard, hard))
    return f"limit {kind} is {hard}"


def _owner(victim: Victim) -> None:
    """Lets the kernel send a signal to another process when a pipe has data."""
    reader, writer = os.pipe()
    try:
        fcntl.fcntl(reader, fcntl.F_SETOWN, victim.pid)
    finally:
        os.close(reader)
        os.close(writer)


def _opens(path: str, flags: int = os.O_RDONLY) -> None:
    os.close(os.open(path, flags, 0o600))


def _map(flags: int, protection: int = 3) -> str:
    at = call("mmap", 0, 1 << 20, protection, flags, -1, 0)
    _libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(1 << 20))
    return "memory that no limit counts"


def _zero_map() -> None:
    descriptor = os.open("/dev/zero", os.O_RDWR)
    mmap.mmap(descriptor, 1 << 20).close()


def _attributes(path: str) -> None:
    """Changes flags of a file that may only be read."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, 0x40086602, (0).to_bytes(8, "little"))
    finally:
        os.close(descriptor)


def _sends_a_descriptor() -> None:
    """Keeps memory in a socket, which no limit counts."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.send(b"0")


def _temporary() -> None:
    with tempfile.TemporaryFile(dir=os.environ.get("TMPDIR", "/tmp")):
        pass


_SIGINFO = bytes(128)
_READABLE = os.__file__

PROBES: dict[str, Callable[[Victim], Any]] = {
    # New processes and programs.
    "fork": lambda _: _child(os.fork),
    "clone": lambda _: _child(lambda: call("clone", int(signal.SIGCHLD))),
    "clone with shared memory": lambda _: _child(
        lambda: call("clone", 0x10000000 | int(signal.SIGCHLD))
    ),
    "clone3": lambda _: _child(lambda: _clone3(0)),
    "clone3 of a user namespace": lambda _: _child(lambda: _clone3(0x10000000)),
    "program": lambda _: subprocess.run(["/bin/true"], check=True),
    "spawn": lambda _: os.posix_spawn("/bin/true", ["true"], {}),
    "execve": lambda _: os.execv("/nowhere", ["nowhere"]),
    "execveat": lambda _: call("execveat", -100, b"/nowhere", 0, 0, 0),
    # Namespaces and mounts.
    "user namespace": lambda _: call("unshare", 0x10000000),
    "mount namespace": lambda _: call("unshare", 0x00020000),
    "network namespace": lambda _: call("unshare", 0x40000000),
    "setns": lambda _: call("setns", 0, 0),
    "mount": lambda v: call("mount", b"none", v.folder.encode(), b"tmpfs", 0, 0),
    "umount": lambda v: call("umount2", v.folder.encode(), 0),
    "fsopen": lambda _: call("fsopen", b"tmpfs", 0),
    "open_tree": lambda _: call("open_tree", -100, b"/usr", 1),
    "pivot_root": lambda v: call("pivot_root", v.folder.encode(), v.folder.encode()),
    "chroot": lambda v: call("chroot", v.folder.encode()),
    "chdir": lambda v: os.chdir(v.folder),
    "swapon": lambda v: call("swapon", v.secret.encode(), 0),
    "quotactl": lambda _: call("quotactl", 0, 0, 0, 0),
    # Other processes: signals, priorities, limits, memory.
    "kill": lambda v: os.kill(v.pid, 0),
    "kill the parent": lambda _: os.kill(os.getppid(), 0),
    "kill all": lambda _: os.kill(-1, 0),
    "kill the group": lambda _: os.kill(0, 0),
    "tkill": lambda v: call("tkill", v.pid, 0),
    "tgkill": lambda v: call("tgkill", v.pid, v.pid, 0),
    "rt_sigqueueinfo": lambda v: call("rt_sigqueueinfo", v.pid, 0, _SIGINFO),
    "rt_tgsigqueueinfo": lambda v: call("rt_tgsigqueueinfo", v.pid, v.pid, 0, _SIGINFO),
    "pidfd_open": lambda v: os.close(call("pidfd_open", v.pid, 0)),
    "pidfd_send_signal": lambda _: call("pidfd_send_signal", 0, 0, 0, 0),
    "pidfd_getfd": lambda _: call("pidfd_getfd", 0, 0, 0),
    "owner of a pipe": _owner,
    "signal of a pipe": lambda _: fcntl.fcntl(0, 10, 9),
    "limit of another": lambda v: resource.prlimit(v.pid, resource.RLIMIT_CORE, (0, 0)),
    "read limits of another": lambda v: resource.prlimit(v.pid, resource.RLIMIT_CORE),
    "limit of the parent": lambda _: resource.prlimit(
        os.getppid(), resource.RLIMIT_CORE, resource.getrlimit(resource.RLIMIT_CORE)
    ),
    "priority of another": lambda v: os.setpriority(os.PRIO_PROCESS, v.pid, 5),
    "priority of the user": lambda _: os.setpriority(os.PRIO_USER, 0, 5),
    "cores of another": lambda v: os.sched_setaffinity(v.pid, {0}),
    "scheduler of another": lambda v: os.sched_setscheduler(
        v.pid, os.SCHED_BATCH, os.sched_param(0)
    ),
    "sched_setattr": lambda v: call("sched_setattr", v.pid, bytes([48, *bytes(47)]), 0),
    "priority of another's disk": lambda v: call("ioprio_set", 1, v.pid, 2 << 13),
    "ptrace": lambda v: call("ptrace", 0x4206, v.pid, 0, 0),
    "process_vm_readv": lambda v: call("process_vm_readv", v.pid, 0, 0, 0, 0, 0),
    "process_vm_writev": lambda v: call("process_vm_writev", v.pid, 0, 0, 0, 0, 0),
    "process_madvise": lambda _: call("process_madvise", 0, 0, 0, 4, 0),
    "kcmp": lambda v: call("kcmp", v.pid, os.getpid(), 0, 0, 0),
    "move_pages": lambda v: call("move_pages", v.pid, 0, 0, 0, 0, 0),
    "migrate_pages": lambda v: call("migrate_pages", v.pid, 0, 0, 0),
    "environment of another": lambda v: _opens(f"/proc/{v.pid}/environ"),
    "memory of another": lambda v: _opens(f"/proc/{v.pid}/mem", os.O_RDWR),
    "map of another": lambda v: _opens(f"/proc/{v.pid}/maps"),
    "environment of the parent": lambda _: _opens(f"/proc/{os.getppid()}/environ"),
    "processes": lambda _: os.listdir("/proc"),
    # The process's own bonds and limits.
    "outlive the parent": lambda _: call("prctl", 1, 0),
    "let others trace": lambda _: call("prctl", 0x59616D61, -1),
    "new session": lambda _: call("setsid"),
    "memory limit": lambda _: _lifts(resource.RLIMIT_DATA),
    "time limit": lambda _: _lifts(resource.RLIMIT_CPU),
    "core limit": lambda _: _lifts(resource.RLIMIT_CORE),
    "badness": lambda _: _opens("/proc/self/oom_score_adj", os.O_WRONLY),
    "cores of its own": lambda _: call("sched_setaffinity", 0, 8, (ctypes.c_uint64 * 1)(1)),
    "personality": lambda _: call("personality", 0x0040000),
    "setuid": lambda _: call("setuid", os.getuid()),
    "setgid": lambda _: call("setgid", os.getgid()),
    "setgroups": lambda _: call("setgroups", 0, 0),
    "capset": lambda _: call("capset", bytes(8), bytes(24)),
    "other numbers": lambda _: call("socket", 2, 1, 0, number=0x40000000 + 41),
    # Files.
    "secret": lambda v: Path(v.secret).read_bytes(),
    "secret, by its folder": lambda v: os.listdir(v.folder),
    "passwords": lambda _: Path("/etc/passwd").read_bytes(),
    "home": lambda _: os.listdir("/root" if os.getuid() == 0 else "/home"),
    "root folder": lambda _: os.listdir("/"),
    "folder for temporary files": lambda _: os.listdir("/tmp"),
    "write": lambda v: _opens(v.secret, os.O_WRONLY),
    "append": lambda v: _opens(v.secret, os.O_WRONLY | os.O_APPEND),
    "truncate": lambda v: os.truncate(v.secret, 0),
    "create": lambda v: _opens(f"{v.folder}/new", os.O_CREAT | os.O_WRONLY),
    "temporary file": lambda _: _temporary(),
    "unnamed file": lambda _: _opens("/tmp", os.O_TMPFILE | os.O_RDWR),
    "shared memory file": lambda _: _opens("/dev/shm/probe", os.O_CREAT | os.O_RDWR),
    "folder": lambda v: os.mkdir(f"{v.folder}/new"),
    "unlink": lambda v: os.unlink(v.secret),
    "rename": lambda v: os.rename(v.secret, f"{v.folder}/other"),
    "link": lambda v: os.link(v.secret, f"{v.folder}/other"),
    "symlink": lambda v: os.symlink(v.secret, f"{v.folder}/other"),
    "device": lambda v: os.mknod(f"{v.folder}/device", 0o020600, os.makedev(1, 3)),
    "fifo": lambda v: os.mkfifo(f"{v.folder}/fifo"),
    "mode": lambda v: os.chmod(v.secret, 0o644),
    "mode of a package": lambda _: os.chmod(_READABLE, 0o644),
    "owner": lambda v: os.chown(v.secret, os.getuid(), os.getgid()),
    "times": lambda v: os.utime(v.secret, (0, 0)),
    "attribute": lambda v: os.setxattr(v.secret, "user.probe", b"1"),
    "read attributes": lambda v: os.listxattr(v.secret),
    "remove attribute": lambda v: os.removexattr(v.secret, "user.probe"),
    "flags of a package's file": lambda _: _attributes(_READABLE),
    "lease": lambda _: _leased(1024, 0),
    "news of a folder": lambda _: _leased(1026, 1),
    "inotify": lambda _: call("inotify_init1", 0),
    "fanotify": lambda _: call("fanotify_init", 0, 0),
    "handle of a file": lambda v: call("name_to_handle_at", -100, v.secret.encode(), 0, 0, 0),
    "file of a handle": lambda _: call("open_by_handle_at", -100, 0, 0),
    "devices": lambda _: _opens("/dev/kmsg"),
    "terminal": lambda _: fcntl.ioctl(0, 0x5412, b"x"),
    # Memory that no limit counts.
    "shared map": lambda _: _map(mmap.MAP_SHARED | mmap.MAP_ANONYMOUS),
    "checked shared map": lambda _: _map(3 | mmap.MAP_ANONYMOUS),
    "growing stack": lambda _: _map(mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x100),
    "huge pages": lambda _: _map(mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000),
    "shared map of a device": lambda _: _zero_map(),
    "memfd": lambda _: os.close(call("memfd_create", b"probe", 0)),
    "memfd_secret": lambda _: os.close(call("memfd_secret", 0)),
    "mlock": lambda _: call("mlock", ctypes.create_string_buffer(1), 1),
    "shmget": lambda _: call("shmget", 0, 4096, 0o600),
    "msgget": lambda _: call("msgget", 0, 0o600),
    "semget": lambda _: call("semget", 0, 1, 0o600),
    "mq_open": lambda _: call("mq_open", b"probe", os.O_CREAT | os.O_RDWR, 0o600, 0),
    "mbind": lambda _: call("mbind", 0, 0, 0, 0, 0, 0),
    "remap_file_pages": lambda _: call("remap_file_pages", 0, 0, 0, 0, 0),
    "splice": lambda _: call("splice", 0, 0, 0, 0, 0, 0),
    # The network.
    "internet": lambda _: socket.socket().close(),
    "datagrams": lambda _: socket.socket(type=socket.SOCK_DGRAM).close(),
    "local socket": lambda _: socket.socket(socket.AF_UNIX).close(),
    "netlink": lambda _: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close(),
    "pair of sockets": lambda _: _sends_a_descriptor(),
    "sendmsg": lambda _: call("sendmsg", 0, 0, 0),
    # The kernel.
    "bpf": lambda _: call("bpf", 0, 0, 0),
    "io_uring": lambda _: call("io_uring_setup", 1, ctypes.create_string_buffer(120)),
    "perf": lambda _: call("perf_event_open", 0, 0, -1, -1, 0),
    "userfaultfd": lambda _: os.close(call("userfaultfd", 1)),
    "keyctl": lambda _: call("keyctl", 0, -3, 0),
    "add_key": lambda _: call("add_key", b"user", b"probe", b"x", 1, -1),
    "request_key": lambda _: call("request_key", b"user", b"probe", 0, -1),
    "init_module": lambda _: call("init_module", 0, 0, b""),
    "finit_module": lambda _: call("finit_module", 0, b"", 0),
    "kexec": lambda _: call("kexec_load", 0, 0, 0, 0),
    "reboot": lambda _: call("reboot", 0, 0, 0, 0),
    "acct": lambda v: call("acct", v.secret.encode()),
    "clock": lambda _: call("clock_settime", 0, (ctypes.c_int64 * 2)(1, 0)),
    "adjtimex": lambda _: call("adjtimex", ctypes.create_string_buffer(256)),
    "host name": lambda _: call("sethostname", b"probe", 5),
    "domain name": lambda _: call("setdomainname", b"probe", 5),
    "kernel log": lambda _: call("syslog", 3, ctypes.create_string_buffer(16), 16),
    "timer": lambda _: call("timer_create", 0, 0, ctypes.create_string_buffer(8)),
}


def _leased(command: int, argument: int) -> None:
    path = _READABLE if command == 1024 else os.path.dirname(_READABLE)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.fcntl(descriptor, command, argument)
    finally:
        os.close(descriptor)


def not_refused(victim: Victim) -> dict[str, str]:
    """Tries all; returns what happened instead of a refusal, by name."""
    found = {}
    for name, act in PROBES.items():
        try:
            found[name] = f"allowed: {act(victim)!r:.80}"
        except OSError as error:
            if error.errno not in REFUSALS:
                found[name] = repr(error)
    return found


def main(uid: int, folder: str) -> None:
    """Locks itself as a user, and prints what it can do."""
    from curator.executor import sandbox

    sys.path.append(folder)
    readable = sandbox.importable_code().paths
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    secret = Path(folder, "secret")
    secret.write_text("secret")
    os.chdir(folder)
    reader, writer = os.pipe()
    victim = os.fork()
    if victim == 0:
        # It ends with this process, which may send it no signal.
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    sandbox.lock(readable)
    print(json.dumps(not_refused(Victim(pid=victim, folder=folder, secret=str(secret)))))


def with_32_bits() -> None:
    """Asks for its number by a call of 32 bits, when it is locked."""
    from curator.executor import sandbox

    code = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
    code.write(bytes.fromhex("b814000000cd80c3"))  # getpid, by `int 0x80`
    at = ctypes.addressof(ctypes.c_char.from_buffer(code))
    sandbox.lock(())
    ctypes.CFUNCTYPE(ctypes.c_int)(at)()


if __name__ == "__main__" and sys.argv[1:] == ["32 bits"]:
    with_32_bits()
elif __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
