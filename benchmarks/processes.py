"""Runs work in separate processes, which may crash or hang without affecting the caller."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import IO, Any

Begin = Callable[[], float]
"""Waits until all processes of a measurement are ready; returns the time."""
Task = Callable[..., Iterable[Any]]
"""Called with a `Begin` and the job's arguments; yields results."""


class ProcessDiedError(RuntimeError):
    """A process raised an error, died, or exceeded its time limit."""


def run_limited(command: Sequence[str], limit_s: float, log: IO[str]) -> str | None:
    """Runs a command; kills it and its process group at the time limit or its end.

    Args:
        command: Program and arguments.
        limit_s: Time limit in seconds.
        log: Receives the output.

    Returns:
        None if the command succeeded, else how it ended.
    """
    process = subprocess.Popen(
        command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"stopped after {limit_s:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return None if code == 0 else f"ended with code {code}"


def streamed(
    task: Task, jobs: Sequence[tuple[Any, ...]], *, limit_s: float = 600.0
) -> Iterator[tuple[int, Any]]:
    """Runs all jobs at once, each in a new process.

    Args:
        task: A module's function, called with a `Begin` and a job's arguments.
        jobs: Arguments of each job.
        limit_s: Time limit of all jobs together, in seconds.

    Yields:
        The number of a job and a value of its task, as values arrive.

    Raises:
        ProcessDiedError: A process raised, died or took too long; all others are killed.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(jobs))
    ends_at = time.monotonic() + limit_s
    processes: list[Any] = []
    open_ends: dict[Connection, int] = {}
    try:
        for number, job in enumerate(jobs):
            receive, send = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(task, send, barrier, job), daemon=True)
            process.start()
            send.close()
            processes.append(process)
            open_ends[receive] = number
        while open_ends:
            ready = wait(list(open_ends), timeout=max(0.0, ends_at - time.monotonic()))
            if not ready:
                raise ProcessDiedError(f"{len(open_ends)} processes were not done in {limit_s} s")
            for end in ready:
                assert isinstance(end, Connection)
                number = open_ends[end]
                try:
                    kind, value = end.recv()
                except EOFError:
                    processes[number].join(10)
                    code = processes[number].exitcode
                    raise ProcessDiedError(f"a process ended with code {code}") from None
                if kind == "raised":
                    raise ProcessDiedError(value)
                if kind == "done":
                    del open_ends[end]
                else:
                    yield number, value
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()


def in_processes(
    task: Task, jobs: Sequence[tuple[Any, ...]], *, limit_s: float = 600.0
) -> list[Any]:
    """Runs tasks that yield once; returns their values in the order of the jobs."""
    found = dict(streamed(task, jobs, limit_s=limit_s))
    return [found[number] for number in range(len(jobs))]


def _work(task: Task, send: Connection, barrier: Any, job: tuple[Any, ...]) -> None:  # noqa: ANN401
    def begin() -> float:
        barrier.wait()
        return time.time()

    try:
        for value in task(begin, *job):
            send.send(("value", value))
        send.send(("done", None))
    except Exception as error:  # noqa: BLE001 - reported to the parent process
        send.send(("raised", f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"))
