"""The contents of `lease.json`, which names the run that holds an output root."""

import getpass
import os
import secrets
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from curator.json_bounds import load_bounded
from curator.number_text import plain
from curator.tables.json_objects import opened_json, sealed_json, to_json
from curator.tables.out_layout import LEASE

IN_THIS_PROCESS: set[str] = set()
"""Ids of the holders with active runs in this process. A holder with the PID of this process
and an id outside this set is dead: its run in this process has ended, or an earlier process had the
same PID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The contents of `lease.json`.

    Attributes:
        holder: A random id of the run.
        state: `held`, or `released` in the moment before the object is removed.
        machine: Identifies the running kernel and the PID namespace. Two processes that see each
            other have the same value. Empty on systems without `/proc`.
        started: When the driver's process started, in the kernel's ticks. A later process with
            the same number has another value.
        command: The subcommand of `curate`.
        since: When the root was taken, in UTC.
        renewed: Last sign of life, in UTC.
        expires_s: Seconds without a sign of life after which others may take over.
    """

    holder: str
    state: str
    host: str
    machine: str
    pid: int
    started: str
    user: str
    command: str
    since: str
    renewed: str
    expires_s: float

    def to_bytes(self) -> bytes:
        """Returns JSON with a checksum: a flipped bit must not look like another holder."""
        return sealed_json(asdict(self), to_json, LEASE)

    @property
    def words(self) -> str:
        """Describes the holder on one line."""
        return plain(
            f"`curate {self.command}` of {self.user or 'an unknown user'} on {self.host}, process "
            f"{self.pid}, since {self.since}"
        )

    def silent_s(self) -> float:
        """Seconds since the last sign of life; wrong by the difference of two machines' clocks."""
        try:
            return (datetime.now(UTC) - datetime.fromisoformat(self.renewed)).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return float("inf")

    def is_dead(self) -> bool:
        """Whether the run has surely ended; False if it is on another machine or container."""
        if not self.machine or self.machine != _machine() or self.pid <= 0:
            return False
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except OSError:
            # The process belongs to another user.
            pass
        state, started = _process(self.pid)
        if state in ("Z", "X") or (started and started != self.started):
            return True
        return self.pid == os.getpid() and self.holder not in IN_THIS_PROCESS


def this_process(command: str, expires_s: float) -> Holder:
    """Describes this process as a holder that begins now."""
    user = ""
    with suppress(KeyError, OSError, ImportError):
        user = getpass.getuser()
    now = utc_now()
    return Holder(
        holder=secrets.token_hex(16),
        state="held",
        host=socket.gethostname(),
        machine=_machine(),
        pid=os.getpid(),
        started=_process(os.getpid())[1],
        user=user,
        command=command,
        since=now,
        renewed=now,
        expires_s=expires_s,
    )


def read_holder(data: bytes) -> Holder | None:
    """Reads `lease.json`; None if it is truncated, damaged, or has other fields."""
    try:
        load_bounded(data)
        content: Any = opened_json(data, LEASE)
        values = {field.name: content[field.name] for field in fields(Holder)}
    except (ValueError, KeyError, TypeError):
        return None
    kinds = {"pid": (int,), "expires_s": (int, float)}
    if not all(isinstance(value, kinds.get(name, (str,))) for name, value in values.items()):
        return None
    return Holder(**values)


def utc_now() -> str:
    """Returns the time, for messages and for a first guess whether a holder is alive.

    A takeover does not depend on this time.
    """
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _process(pid: int) -> tuple[str, str]:
    """Returns state and start of a process; empty strings if `/proc` does not show them."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The process's name comes before these columns, and may hold spaces and parentheses.
            columns = file.read().rpartition(")")[2].split()
            return columns[0], columns[19]
    except (OSError, IndexError):
        return "", ""
