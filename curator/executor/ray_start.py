"""Starts a Ray of our own: with a token, on loopback, quietly, and with few processes."""

import contextlib
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from curator.errors import UsageError

LOOPBACK = "127.0.0.1"

DAEMONS = ("start_monitor", "start_log_monitor", "start_api_server")
"""Methods of Ray's `Node` that start processes which a run on one machine does not need."""

_LONGEST = 107 - len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
"""Most bytes of the path of Ray's folder."""


def is_loopback(address: str) -> bool:
    """Returns whether an address such as `127.0.0.1:6379` names this machine's loopback."""
    host = address.rpartition(":")[0].strip("[]")
    return host == "localhost" or host == "::1" or host.startswith("127.")


def use_own_token() -> None:
    """Gives clusters of this process a separate token, unless the user set one.

    Ray's default writes and reads one in the home folder, where a stale or foreign one makes the
    start fail. Ray's native code reads the token once per process, so it stays the same for every
    cluster that this process starts.
    """
    if "RAY_AUTH_MODE" in os.environ or "RAY_AUTH_TOKEN" in os.environ:
        return
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def private_folder() -> Path:
    """Returns the folder for Ray's sockets and logs, which it makes writable for everybody.

    The folder above it is this user's alone: other users of the machine can neither read the logs
    nor put a socket of theirs into the place of one of Ray's.

    Raises:
        UsageError: The folder above it is someone else's, or open to others; or its path is too
            long for sockets.
    """
    parent = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    folder = Path(parent) / f"curate-{os.getuid()}"
    if len(os.fsencode(folder / "r")) > _LONGEST:
        raise UsageError(
            f"the temporary folder {parent} has too long a path for Ray's sockets, which may have "
            "107 bytes in all; set RAY_TMPDIR to a shorter one, such as /tmp"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise UsageError(
            f"{folder} must be a folder of this user with mode 0700, "
            f"because Ray's sockets go there; it has mode {stat.S_IMODE(info.st_mode):04o} and "
            f"owner {info.st_uid}. Remove it, or set RAY_TMPDIR to another folder"
        )
    return folder / "r"


@contextlib.contextmanager
def native_stderr_aside() -> Iterator[None]:
    """Keeps messages of Ray's native code during start out of the user's terminal.

    It announces its own log level there. Errors are raised, or in Ray's log files.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def few_daemons(node: type) -> Iterator[None]:
    """Lets a cluster of our own start without unused daemons, by replacing methods of `node`.

    The autoscaler's monitor, the reader of logs for the driver and the dashboard's server are
    Python processes that cost a CPU-second each to start and more while they run. `ray.init` has no
    argument for them; a Ray without these methods starts as usual.
    """
    kept = {name: getattr(node, name) for name in DAEMONS if hasattr(node, name)}
    for name in kept:
        setattr(node, name, lambda self, *args, **options: None)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(node, name, method)


@contextlib.contextmanager
def loopback_kept(services: ModuleType) -> Iterator[None]:
    """Lets every service of a cluster of our own listen on loopback alone.

    Ray's servers listen on all addresses, except on a node whose address is 127.0.0.1; and
    `ray.init` replaces this address by that of a network interface, so that other machines could
    join. It has no argument against that: the function of `ray._private.services` that replaces is
    set aside. `tests/executor/test_listening.py` looks at the sockets.
    """
    name = "resolve_ip_for_localhost"
    kept = getattr(services, name)
    setattr(services, name, lambda host: host)
    try:
        yield
    finally:
        setattr(services, name, kept)
