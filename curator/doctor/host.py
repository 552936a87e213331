"""What checks ask of the machine; tests give one that answers as they like."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from curator.doctor.diagnosis import first_line
from curator.executor.host_resources import available_cpus, memory_bytes, object_store_bytes

ANSWER_S = 60.0
"""Longest wait for a process that was asked something. Importing torch takes 4 CPU-seconds here;
a machine whose GPU hangs never answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a program ended; `code` is None if it did not in time, negative if by a signal."""

    code: int | None
    out: str = ""
    err: str = ""

    def words(self) -> str:
        """Why it did not end well, in one line."""
        if self.code is None:
            return "did not answer in time"
        if self.code < 0:
            return f"the process died of {signal.Signals(-self.code).name}"
        return first_line(self.out) or first_line(self.err) or f"ended with {self.code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a process of its own said: facts, or why there are none."""

    facts: Mapping[str, Any] | None = None
    error: str = ""


class Host:
    """This machine."""

    @property
    def environ(self) -> Mapping[str, str]:
        """Environment variables."""
        return os.environ

    def run(self, command: Sequence[str], *, timeout_s: float) -> Ran | None:
        """Runs a program and waits; None if there is no such program.

        Args:
            command: Program and arguments.
            timeout_s: It is killed after this.
        """
        environment = dict(self.environ)
        if command[0] == sys.executable:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                timeout=timeout_s,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Ran(code=None)
        except OSError:
            return None
        return Ran(code=done.returncode, out=done.stdout, err=done.stderr)

    def ask(self, question: str, *, timeout_s: float = ANSWER_S) -> Answer:
        """Asks a process of its own, so that a crash in there is an answer too.

        Args:
            question: Name of a function of `curator.doctor.probe_process`.
            timeout_s: It is killed after this.
        """
        ran = self.run(
            [sys.executable, "-m", "curator.doctor.probe_process", question], timeout_s=timeout_s
        )
        if ran is None:
            return Answer(error=f"{sys.executable} cannot be started")
        # Packages print when they are imported; the answer is the last line.
        try:
            facts = json.loads(ran.out.splitlines()[-1]) if ran.code == 0 else None
        except (ValueError, IndexError):
            facts = None
        if not isinstance(facts, dict):
            return Answer(error=ran.words())
        if "error" in facts:
            return Answer(error=str(facts["error"]))
        return Answer(facts=facts)

    def version(self, distribution: str) -> str | None:
        """Version of an installed distribution, from its metadata."""
        try:
            return version(distribution)
        except PackageNotFoundError:
            return None

    def package_file(self, package: str, name: str) -> str | None:
        """Text of a file in the folder of a top-level package, without importing it."""
        spec = importlib.util.find_spec(package)
        origin = spec.origin if spec is not None else None
        return self.read_text(str(Path(origin).parent / name)) if origin else None

    def exists(self, path: str) -> bool:
        """Whether there is something under a path."""
        return os.path.exists(path)

    def read_text(self, path: str) -> str | None:
        """Content of a file; None if it cannot be read."""
        try:
            return Path(path).read_text(errors="replace")
        except OSError:
            return None

    def glob(self, pattern: str) -> list[str]:
        """Paths that match a pattern, sorted."""
        return sorted(glob(pattern))

    def disk(self, path: str) -> tuple[int, int]:
        """Free and all bytes of the file system of a path."""
        usage = shutil.disk_usage(path)
        return usage.free, usage.total

    def open_files(self) -> tuple[int, int] | None:
        """Soft and hard limit of open files; None where there is no such limit."""
        try:
            import resource
        except ImportError:
            return None
        return resource.getrlimit(resource.RLIMIT_NOFILE)

    def cpus(self) -> int:
        """Cores that this process may use."""
        return available_cpus()

    def memory_bytes(self) -> int:
        """Memory of the machine or container."""
        return memory_bytes()

    def object_store_bytes(self) -> int:
        """Memory that Ray's object store would take."""
        return object_store_bytes()

    def now(self) -> float:
        """Seconds since 1970."""
        return time.time()
