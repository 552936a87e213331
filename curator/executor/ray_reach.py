"""Checks that a Ray cluster answers, in a process that can be ended.

`ray.init` with a wrong address blocks for minutes in native code, which no signal interrupts.
Therefore a child process tries the address, and its parent ends the child when a step takes too
long or a signal arrives. The child reports each step before it begins.
"""

import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from curator.errors import UsageError

LIMITS_S = {"start": 30.0, "connect": 4.0, "load": 60.0, "ask": 5.0, "join": 20.0}
"""Longest time of each step: start of the child, name and connection, import of Ray, the first
answer of the head, and its further answers. A wrong address fails in `connect` or `ask`."""

_ADDRESS = "expected the address of the head's GCS, such as ray-head:6379, or auto"
_START = "start the cluster, or correct --ray-address or RAY_ADDRESS"
_TOO_LONG = {
    "start": "was not tried: no process started in {s:g} s; the machine may be overloaded",
    "connect": "cannot be connected to in {s:g} s (no answer from the name server or the network); "
    + _START,
    "load": "was not tried: Ray was not imported in {s:g} s; the machine may be overloaded",
    "ask": "accepts connections, and does not answer as the head of a Ray cluster within {s:g} s; "
    + _ADDRESS,
    "join": "answers, but not in full within {s:g} s; the head may be overloaded",
}


def check_reachable(address: str) -> str:
    """Checks that a run on this machine can join a cluster; returns a description of the cluster.

    Raises:
        UsageError: The address is wrong, or nothing answers, or the cluster refuses this machine's
            token or versions, or this machine is no node of the cluster.
    """
    if address != "auto":
        _split(address)
    process = subprocess.Popen(
        # -P: the current folder may hold untrusted files.
        [sys.executable, "-P", "-m", __name__, address],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        # Native code of Ray prints here.
        stderr=subprocess.DEVNULL,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path))),
            "RAY_BACKEND_LOG_LEVEL": "fatal",
        },
        # Only the parent gets interrupts from the terminal, and ends this process.
        process_group=0,
    )
    step = "start"
    try:
        for report in _reports(process):
            step = report.get("step", step)
            if "error" in report:
                raise UsageError(f"the Ray cluster at {address} {report['error']}")
            if "found" in report:
                return str(report["found"])
    except TimeoutError:
        words = _TOO_LONG[step].format(s=LIMITS_S[step])
        raise UsageError(f"the Ray cluster at {address} {words}") from None
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    # Ray ends a process whose connection fails in some ways.
    raise UsageError(f"the Ray cluster at {address} broke the connection at {step!r}; {_ADDRESS}")


def _reports(process: "subprocess.Popen[bytes]") -> Iterator[dict[str, Any]]:
    """Yields what the child reports; raises `TimeoutError` if a step takes too long."""
    assert process.stdout is not None
    step, text = "start", b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            until_s = time.monotonic() + LIMITS_S[step]
            while b"\n" not in text:
                if not selector.select(max(0.0, until_s - time.monotonic())):
                    raise TimeoutError
                data = os.read(process.stdout.fileno(), 1 << 16)
                if not data:
                    return
                text += data
            line, _, text = text.partition(b"\n")
            report: dict[str, Any] = json.loads(line)
            step = report.get("step", step)
            yield report


def _split(address: str) -> tuple[str, int]:
    """Returns host and port of `HOST:PORT`; raises `UsageError` for other addresses."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if "://" in address:
        raise UsageError(
            f"the Ray address {address!r} is for Ray Client, for jobs or for a web page; {_ADDRESS}"
        )
    is_whole = host and not any(char.isspace() or char in "/@" for char in host)
    if not is_whole or not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise UsageError(f"the Ray address {address!r} has no host and port; {_ADDRESS}")
    return host, int(port)


def _report(**report: object) -> None:
    print(json.dumps(report), flush=True)


def _connect(address: str, named: str) -> None:
    """Connects once, because Ray gives no reason when it cannot."""
    try:
        socket.create_connection(_split(address)).close()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if address != named:
            reason = f"{reason} at {address}, which Ray takes instead"
        raise UsageError(f"cannot be connected to ({reason}); {_START}") from error


def _try(address: str) -> str:
    """Asks the head for its versions and this machine's node; returns words about the cluster."""
    _report(step="connect")
    if address != "auto":
        _connect(address, address)
    _report(step="load")
    import ray
    from ray._common.usage import usage_lib
    from ray._private import services, utils

    raylet: Any = ray._raylet

    _report(step="connect")
    try:
        found = services.canonicalize_bootstrap_address(address)
    except (ConnectionError, ValueError) as error:
        raise UsageError(f"was not found ({_line(error)}); {_START}") from error
    if found is None:
        raise UsageError(f"was not found; {_ADDRESS}")
    # Ray replaces loopback addresses. `auto` may come from the file of a dead cluster.
    _connect(found, address)
    _report(step="ask")
    try:
        client = raylet.GcsClient(address=found)
        metadata = usage_lib.get_cluster_metadata(client)
    except Exception as error:
        raise UsageError(
            f"answers with an error ({_line(error)}); check that this is the address of the "
            "head's GCS, the cluster's token (RAY_AUTH_MODE and RAY_AUTH_TOKEN), and that this "
            "machine has the cluster's versions of Ray and Python"
        ) from error
    _report(step="join")
    if metadata:
        try:
            utils.check_version_info(metadata, "this machine")
        except Exception as error:
            raise UsageError(
                f"has other versions ({_line(error)}); install the cluster's versions of Ray and "
                "Python here"
            ) from error
    try:
        services.get_node_to_connect_for_driver(client)
    except Exception as error:
        raise UsageError(
            f"answers, and this machine is no node of it ({_line(error)}); start a node here with "
            f"`ray start --address={found}`, or run on a node"
        ) from error
    n_nodes = sum(node.state == 0 for node in client.get_all_node_info().values())
    versions = f"Ray {metadata['ray_version']}" if metadata else "Ray"
    return f"{versions} at {found}, {n_nodes} nodes"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def main(address: str) -> None:
    """Tries an address, and reports steps and outcome to the parent."""
    from curator.executor.sandbox import end_with_parent

    end_with_parent()
    try:
        _report(found=_try(address))
    except UsageError as error:
        _report(error=str(error))


if __name__ == "__main__":
    main(sys.argv[1])
