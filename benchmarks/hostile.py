"""Runs `curate run` on files made to exhaust, deceive or take over the programs that open them.

Each file must end with a fitting outcome, within 1 GiB in its sandbox and 60 CPU-seconds. A local
listener and watched canary files detect access to anything but the files themselves.

    python benchmarks/hostile.py                     # each file alone, then all in one run
    python benchmarks/hostile.py --together          # only all in one run
    python benchmarks/hostile.py --only gif nested   # only files whose names have such a word
    python benchmarks/hostile.py --strace            # also trace all opened files and addresses
    python benchmarks/hostile.py --only "black 8K" --networks --before FILM  # as in a run
"""

import argparse
import contextlib
import ctypes
import os
import re
import resource
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import tests_path  # noqa: F401
from fuzz_box import BoxedFuzz
from hostile_corpus import Hostile, aliases, corpus, long_manifest, sidecars
from measure import CURATE, arguments, peak_bytes, tell

from curator.executor.sandboxed_process import process_sandbox

MOST_BYTES, MOST_S = 1 << 30, 60.0
_BOX, _EVERY_S = b"curator.executor.sandbox_main", 0.02
_IN_OPEN = 0x20
_STARTED = re.compile(r"^(?:<\.\.\. )?(?:clone3?|v?fork)\b.* = (\d+)$")


@dataclass(slots=True, kw_only=True)
class Measured:
    """Measurements of one run."""

    exit_code: int
    codes: Counter[str]
    box_bytes: int
    driver_bytes: int
    cpu_s: float
    wall_s: float
    messages: str
    problems: list[str] = field(default_factory=list)


class Listener:
    """A local server that records connections."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, peer = self._server.accept()
            connection.settimeout(1)
            with contextlib.suppress(OSError):
                self.seen.append(f"{peer}: {connection.recv(200)!r}")
                connection.sendall(b"HTTP/1.0 404 Not Found\r\n\r\n")
            connection.close()


class Canary:
    """A file that no process may open; inotify reports any access."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True)
        path.write_text('{"label": "a secret of the user"}')
        libc = ctypes.CDLL(None)
        self._events = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert libc.inotify_add_watch(self._events, os.fsencode(path), _IN_OPEN) >= 0

    def was_opened(self) -> bool:
        """Returns whether the file was opened since the last call."""
        ready, _, _ = select.select([self._events], [], [], 0)
        return bool(ready) and bool(os.read(self._events, 4096))


def run(words: Sequence[str | Path], out: Path, *, trace: Path | None = None) -> Measured:
    """Runs `curate run`, and measures its processes and sandboxes."""
    command = [*CURATE, "run", *map(str, words), str(out)]
    if trace is not None:
        calls = "trace=open,openat,openat2,connect,execve,socket,clone,clone3,fork,vfork"
        strace = ["strace", "-f", "--seccomp-bpf", "-qq", "-s", "4096"]
        command = [*strace, "-o", str(trace), "-e", calls, *command]
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, cwd=out.parent)
        peaks = {"box": 0, "driver": 0}
        while process.poll() is None:
            for number in _descendants(process.pid):
                with contextlib.suppress(OSError):
                    is_box = _BOX in Path(f"/proc/{number}/cmdline").read_bytes()
                    kind = "box" if is_box else "driver"
                    peaks[kind] = max(peaks[kind], peak_bytes(number))
            if time.monotonic() - begun > 20 * MOST_S:
                process.kill()
            time.sleep(_EVERY_S)
        wall_s = time.monotonic() - begun
        said.seek(0)
        messages = said.read()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    codes: Counter[str] = Counter()
    if (out / "sources").exists():
        for row in pq.read_table(out / "sources").to_pylist():
            codes[row["error_code"] or "done"] += 1
    return Measured(
        exit_code=process.returncode, codes=codes, box_bytes=peaks["box"],
        driver_bytes=peaks["driver"], wall_s=wall_s, messages=messages,
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    )  # fmt: skip


def _descendants(number: int) -> Iterator[int]:
    yield number
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{number}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _descendants(int(child))


def checked(
    one: Measured,
    fits: frozenset[str] | None,
    *,
    most_s: float = MOST_S,
    most_bytes: int = MOST_BYTES,
) -> Measured:
    """Adds the problems of a run to its measurements."""
    wrong = set(one.codes) - (fits or set(one.codes))
    checks = (
        (one.exit_code != 0, f"exit code {one.exit_code}"),
        (bool(wrong), f"outcomes {sorted(wrong)}"),
        (one.box_bytes > most_bytes, f"{one.box_bytes >> 20} MiB in the sandbox"),
        (one.driver_bytes > MOST_BYTES, f"{one.driver_bytes >> 20} MiB in the driver"),
        # CPU time, because other processes may share the machine.
        (one.cpu_s > most_s, f"{one.cpu_s:.0f} CPU-s"),
        ("Traceback" in one.messages, "a traceback"),
    )
    one.problems += [words for is_wrong, words in checks if is_wrong]
    if one.problems:
        print(one.messages[-1500:], flush=True)
    return one


def show(name: str, kind: str, n_bytes: int, one: Measured) -> None:
    """Prints one row of the table."""
    codes = ", ".join(f"{n} {c}" if n > 1 else c for c, n in one.codes.items()) or one.exit_code
    size = f"{n_bytes / 1e6:.2f}" if n_bytes < 1e9 else f"{n_bytes / 1e9:.0f} GB"
    print(
        f"| {ascii(name)[1:-1]:.40} | {kind} | {size} | {codes} | {one.box_bytes >> 20} | "
        f"{one.driver_bytes >> 20} | {one.cpu_s:.1f} | {one.wall_s:.1f} | "
        f"{'; '.join(one.problems)} |",
        flush=True,
    )


def strange_opens(trace: Path, allowed: Sequence[Path]) -> dict[str, list[str]]:
    """Returns accesses outside of system, Python and allowed folders, by sandboxes and others.

    Threads and children of a sandbox count as the sandbox. Other processes may connect to this
    machine, as Ray does.
    """
    inside = (*map(str, allowed), "/usr", "/lib", "/etc", "/proc", "/sys", "/dev", "/opt",
              sys.prefix, sys.base_prefix, *filter(None, sys.path), "/tmp/curate-")  # fmt: skip
    boxes: set[str] = set()
    found: dict[str, set[str]] = {"box": set(), "others": set()}
    for line in trace.read_text(errors="replace").splitlines():
        number, _, call = line.partition(" ")
        call = call.strip()
        if call.startswith("execve(") and _BOX.decode() in call:
            boxes.add(number)
        if number in boxes and (started := _STARTED.search(call)):
            boxes.add(started[1])
        kind = "box" if number in boxes else "others"
        if call.startswith(("connect(", "socket(")) and "AF_UNIX" not in call:
            if kind == "box" or (call.startswith("connect(") and "127.0.0.1" not in call):
                found[kind].add(call)
        elif call.startswith("open"):
            path = call.split('"')[1] if '"' in call else ""
            if path.startswith("/") and not path.startswith(inside):
                found[kind].add(call)
    return {kind: sorted(calls) for kind, calls in found.items()}


def main() -> None:
    """Runs the attacks, and exits with 1 if there are problems."""
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names (default: all)")
    parser.add_argument("--strace", action="store_true", help="trace the run over all files")
    parser.add_argument("--together", action="store_true", help="skip the runs of single files")
    parser.add_argument("--networks", action="store_true", help="detect shots, with two threads")
    parser.add_argument("--before", nargs="+", default=[], type=Path, help="films to analyze first")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        problems = attacked(Path(name), options)
        tell({"problems": problems})
    sys.exit(1 if problems else 0)


def attacked(work: Path, options: argparse.Namespace) -> list[str]:
    """Makes the corpus and runs it; returns the problems."""
    listener, canary_path = Listener(), work / "private" / "canary"
    canary, folder = Canary(canary_path), work / "corpus"
    (work / "made").mkdir()
    problems: list[str] = []
    tried = Alone(networks=options.networks)
    print("| file | what it tries | MB | outcome | MiB of the box | MiB of the driver | "
          "CPU-s | s | wrong |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for film in options.before:
        show(film.name, "a film", film.stat().st_size, tried(film))
    fits: dict[str, frozenset[str]] = {}
    for one in corpus(work / "made", address=listener.address, canary=canary_path):
        shown = os.fsdecode(one.name)
        if any(word in shown for word in options.only):
            path = one.write(folder)
            fits[str(path)] = one.fits
            # No run lists files whose names are not valid text.
            if not options.together and "\udcff" not in shown:
                problems += _alone(one, path, tried, listener, canary)
    process_sandbox().stop()
    if options.only == [""]:
        problems += _texts(work, canary_path)
    trace = work / "trace" if options.strace else None
    whole = checked(run([folder], work / "out", trace=trace), None, most_s=3600, most_bytes=2 << 30)
    show("all", "all of them, in one run", 0, whole)
    for row in pq.read_table(work / "out" / "sources").to_pylist():
        code = row["error_code"] or "done"
        if code not in fits.get(row["uri"], {code}):
            whole.problems.append(f"{row['uri']!r} is {code}")
    if trace is not None:
        opened = strange_opens(trace, [work])
        for kind, calls in opened.items():
            print(f"{kind} besides:", *calls, sep="\n    ")
        # The sandbox refused calls that failed. O_PATH names folders for its own rules.
        strange = [one for one in opened["box"] if "O_PATH" not in one and " = -1 E" not in one]
        whole.problems += strange
    whole.problems += [f"the listener saw {one}" for one in listener.seen]
    if canary.was_opened():
        whole.problems.append("the canary was opened")
    if any(work.rglob("owned")):
        whole.problems.append("a name was run as a command")
    return problems + whole.problems


class Alone:
    """Scans and analyzes one file at a time, in a sandbox of this process.

    Without `networks`, no shots are detected: the network takes 0.7 GB and 2 CPU-seconds for any
    file.
    """

    def __init__(self, *, networks: bool) -> None:
        self._tried = BoxedFuzz(shots=networks, threads=1 + networks)

    def __call__(self, path: Path) -> Measured:
        """Scans and analyzes one file."""
        sandbox = process_sandbox()
        if sandbox._process is not None:
            Path(f"/proc/{sandbox._process.pid}/clear_refs").write_text("5")
        begun = time.monotonic()
        peaks = {"box": 0}
        ended = threading.Event()
        watcher = threading.Thread(target=_watched, args=(peaks, ended))
        watcher.start()
        try:
            ((_, outcome),) = self._tried([path])
        finally:
            ended.set()
            watcher.join()
        return Measured(
            exit_code=0, codes=Counter([outcome.code]), box_bytes=peaks["box"], driver_bytes=0,
            cpu_s=outcome.cpu_s, wall_s=time.monotonic() - begun, messages="",
        )  # fmt: skip


def _watched(peaks: dict[str, int], ended: threading.Event) -> None:
    """Samples the peak memory of this process's sandbox until `ended` is set, and once more."""
    is_last = False
    while not is_last:
        is_last = ended.wait(_EVERY_S)
        process = process_sandbox()._process
        if process is not None:
            peaks["box"] = max(peaks["box"], peak_bytes(process.pid))


def _alone(one: Hostile, path: Path, tried: Alone, listener: Listener, canary: Canary) -> list[str]:
    """Analyzes one file alone; returns the problems."""
    done = checked(tried(path), one.fits)
    done.problems += [f"the listener saw {seen}" for seen in listener.seen]
    listener.seen.clear()
    if canary.was_opened():
        done.problems.append("the canary was opened")
    show(os.fsdecode(one.name), one.kind, path.stat().st_size, done)
    return [f"{os.fsdecode(one.name)!a}: {problem}" for problem in done.problems]


def _texts(work: Path, canary: Path) -> list[str]:
    """Runs untrusted texts, which no decoder reads: sidecars, a recipe and manifests."""
    described = work / "described"
    described.mkdir()
    sidecars(described, canary)
    (work / "bomb.yaml").write_text(aliases())
    (work / "rows.parquet").write_bytes(long_manifest())
    (work / "line.csv").write_bytes(b"uri\n" + b"x" * (100 << 20))
    (work / "others.txt").write_text(f"http://127.0.0.1:1/x.mp4\n{described}/0.mp4\n")
    good = described / "0.mp4"
    cases: tuple[tuple[str, list[str | Path], tuple[int, ...]], ...] = (
        ("sidecars", [described], (0,)),
        ("bomb.yaml", [good, "--recipe", work / "bomb.yaml"], (2,)),
        ("rows.parquet", [work / "rows.parquet", "--limit", "100"], (0, 1, 2)),
        ("line.csv", [work / "line.csv"], (0, 1, 2)),
        ("others.txt", [work / "others.txt"], (0, 1, 2)),
    )
    problems = []
    for name, words, codes in cases:
        # OUT is the last positional argument.
        done = run(words[:1], work / "texts", trace=None) if len(words) == 1 else _with(words, work)
        expected = done.exit_code in codes
        done.exit_code = 0 if expected else done.exit_code
        checked(done, None, most_bytes=2 << 30)
        show(name, "texts", 0, done)
        problems += [f"{name}: {problem}" for problem in done.problems]
        shutil.rmtree(work / "texts", ignore_errors=True)
    return problems


def _with(words: Sequence[str | Path], work: Path) -> Measured:
    return run([*words[1:], words[0]], work / "texts")


if __name__ == "__main__":
    main()
