"""The machine as checks see it; tests replace it."""

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
from curator.executor.sandbox import landlock_version
from curator.executor.system_calls import has_seccomp

ANSWER_S = 60.0
"""Longest wait for a probe. Importing torch takes 4 CPU-seconds; a machine whose GPU hangs never
answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Result of a program; `code` is None after a time-out, negative for a signal."""

    code: int | None
    out: str = ""
    err: str = ""

    def words(self) -> str:
        """The reason of a failure, in one line."""
        if self.code is None:
            return "did not answer in time"
        if self.code < 0:
            return f"the process died of {signal.Signals(-self.code).name}"
        return first_line(self.out) or first_line(self.err) or f"ended with {self.code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer of a probe: facts, or an error."""

    facts: Mapping[str, Any] | None = None
    error: str = ""


class Host:
    """This machine."""

    environ: Mapping[str, str] = os.environ
    exists = staticmethod(os.path.exists)
    cpus = staticmethod(available_cpus)
    memory_bytes = staticmethod(memory_bytes)
    object_store_bytes = staticmethod(object_store_bytes)
    now = staticmethod(time.time)

    def run(self, command: Sequence[str], *, timeout_s: float) -> Ran | None:
        """Runs a program, killed after `timeout_s`; None if the program does not exist."""
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
        """Runs a function of `probe_process` in a process of its own: a crash is an answer too."""
        command = [sys.executable, "-m", "curator.doctor.probe_process", question]
        ran = self.run(command, timeout_s=timeout_s)
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
        """Returns the version of an installed distribution, from its metadata."""
        try:
            return version(distribution)
        except PackageNotFoundError:
            return None

    def package_file(self, package: str, name: str) -> str | None:
        """Reads a text file in the folder of a top-level package, without importing it."""
        spec = importlib.util.find_spec(package)
        origin = spec.origin if spec is not None else None
        return self.read_text(str(Path(origin).parent / name)) if origin else None

    def read_text(self, path: str) -> str | None:
        """Reads a file; None if it cannot be read."""
        try:
            return Path(path).read_text(errors="replace")
        except OSError:
            return None

    def glob(self, pattern: str) -> list[str]:
        """Returns paths that match a pattern, sorted."""
        return sorted(glob(pattern))

    def disk(self, path: str) -> tuple[int, int]:
        """Returns free and total bytes of a path's file system."""
        usage = shutil.disk_usage(path)
        return usage.free, usage.total

    def open_files(self) -> tuple[int, int] | None:
        """Returns soft and hard limit of open files; None for no limit."""
        try:
            import resource
        except ImportError:
            return None
        return resource.getrlimit(resource.RLIMIT_NOFILE)

    def protections(self) -> tuple[int, bool]:
        """Version of the kernel's Landlock, 0 for none, and whether it has seccomp."""
        return landlock_version(), has_seccomp()
