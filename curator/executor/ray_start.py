"""Starts a Ray of our own: with a token, quietly, and with few processes."""

import contextlib
import os
import secrets
import sys
from collections.abc import Iterator


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
    names = ("start_monitor", "start_log_monitor", "start_api_server")
    kept = {name: getattr(node, name) for name in names if hasattr(node, name)}
    for name in kept:
        setattr(node, name, lambda self, *args, **options: None)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(node, name, method)
