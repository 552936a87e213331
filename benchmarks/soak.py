"""Runs `curate run` repeatedly over a changing corpus, and kills it at random times.

Each round changes files and recipe, kills several runs, and lets one finish. Then it checks that
`curate verify` finds nothing, that each source has one row, that a rerun decodes nothing, and that
the results equal those of a new run into another place. Nothing may be left over: no process, no
temporary object, no temporary folder, no shared memory.

    python benchmarks/soak.py --minutes 30
    python benchmarks/soak.py --minutes 30 --place s3    # needs moto's server

Results: benchmarks/results/robustness.md.
"""

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import tests_path  # noqa: F401
from film_makers import MAKERS, write_video
from film_shots import moving_texture
from measure import CURATE, arguments, hashes, machine, sets, work_folder

from curator.storage import Store, open_store
from curator.storage.scratch import LOCK
from curator.tables.out_layout import LEASE

MARK = "CURATE_SOAK"
LIMIT_S = 1500.0
"""A run that takes longer has hung; it takes 10 to 60 s on an otherwise idle machine."""
PASSED_ON_S = 30.0
"""Time limit for all processes of a killed run to end."""
SOON_S = 15.0
"""Time limit for a signal to end a run."""
BASE = ["filters.short_side_px.min=100", "shard.resolutions=[120]", "propose.min_s=0.5"]
CHOICES = [
    ["propose.max_s=1", "propose.max_s=1.5", "propose.max_s=60"],
    ["filters.motion.min=0", "filters.motion.min=0.01", "filters.motion.min=0.05"],
    ["cut.mode=auto", "cut.mode=encode"],
    ["cut.crf=20", "cut.crf=24"],
    ["cut.audio=drop", "cut.audio=copy"],
    ["dedup.enabled=true", "dedup.enabled=false"],
    ["shard.max_bytes=1000000000", "shard.max_bytes=200000"],
    ["shard.append=true", "shard.append=false"],
    ["shard.val_share=0", "shard.val_share=0.3"],
    ["analyze.samples_per_s=2", "analyze.samples_per_s=2", "analyze.samples_per_s=4"],
    ["analyze.thumbnail_every=1"],
]
CODES = {"driver SIGKILL": {-9}, "driver SIGTERM": {143}, "driver SIGINT": {130},
         "driver SIGHUP": {129}, "driver SIGTERM SIGTERM": {143}, "driver SIGINT SIGINT": {130},
         "driver SIGTERM SIGINT": {143, 130}, "driver SIGHUP SIGTERM": {129, 143},
         "worker SIGKILL": {0}, "raylet SIGKILL": {0, 1}, "gcs SIGKILL": {0, 1}}  # fmt: skip
"""Allowed exit codes by kill: a process, and the signals that it gets. 0 is always allowed, because
the run may have finished before. Of two signals that arrive together, Python handles the lower one
first."""
OF_RAY = ("raylet", "gcs")
"""Processes that only a run on Ray has."""
HISTORY = {"shard", "key", "mp4_offset"}
"""Columns of `clips` that may differ with appended shards."""


@dataclass(slots=True)
class Findings:
    """Counts and findings."""

    log: Path | None
    counts: Counter[str] = field(default_factory=Counter)
    found: list[str] = field(default_factory=list)

    def tell(self, text: str) -> None:
        """Prints a line, and appends it to the log."""
        line = f"{time.strftime('%H:%M:%S')} {text}"
        print(line, flush=True)
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(line + "\n")

    def check(self, holds: bool, text: str) -> None:
        """Counts a check, and records a failed one."""
        self.counts["checks"] += 1
        if not holds:
            self.found.append(text)
            self.tell(f"FOUND {text}")


class Corpus:
    """A folder of sources that change."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.folder = folder
        self._draw = draw
        self._number = 0
        folder.mkdir()
        for _ in range(4):
            self._add()

    def change(self) -> str:
        """Makes one random change; returns its description."""
        names = sorted(path for path in self.folder.rglob("*") if path.is_file())
        kinds = ["add", "add", "remove", "replace", "touch", "copy", "rename", "cut short", "json"]
        kind = self._draw.choice(kinds if names else ["add"])
        if kind == "remove" and len(names) < 3:
            kind = "add"
        if kind == "add" and len(names) > 9:
            kind = "remove"
        path = self._draw.choice(names) if names else None
        if kind == "add" or path is None:
            path = self._add()
        elif kind == "remove":
            path.unlink()
        elif kind == "replace":
            self._replace(path)
        elif kind == "touch":
            os.utime(path)
        elif kind == "copy":
            self._number += 1
            shutil.copyfile(path, self.folder / f"copy{self._number}{path.suffix}")
        elif kind == "rename":
            self._number += 1
            path.rename(self.folder / f"moved{self._number}{path.suffix}")
        elif kind == "cut short":
            data = path.read_bytes()
            path.write_bytes(data[: int(len(data) * self._draw.uniform(0.3, 1))])
        else:
            text = self._draw.choice(['{"caption": "a film"}', "{", "[]", "\0" * 50, '"\\ud800"'])
            path.with_name(path.name + ".json").write_text(text)
        return f"{kind} {path.name}"

    def _add(self) -> Path:
        self._number += 1
        if self._draw.random() < 0.3:
            name = self._draw.choice(sorted(MAKERS))
            path = self.folder / f"{self._number}-{name}"
            MAKERS[name](path)
            return path
        suffix = self._draw.choice([".mp4", ".mp4", ".mp4", ".mkv", ".ts", ".mov"])
        folder = self.folder / self._draw.choice(["", "deep", "a b"])
        folder.mkdir(exist_ok=True)
        path = folder / f"{self._number}{suffix}"
        frames = moving_texture(self._draw.choice([30, 50, 75]), seed=self._draw.randrange(1 << 20))
        gop = self._draw.choice([None, 12])
        tone = self._draw.choice([None, 2.0])
        write_video(path, frames, fps=Fraction(25), gop=gop, audio_tone_s=tone)
        return path

    def _replace(self, path: Path) -> None:
        """Changes bytes but not name or size; the file mostly stays a film."""
        data = bytearray(path.read_bytes())
        for _ in range(self._draw.choice([1, 5, 50])):
            if data:
                at = self._draw.randrange(len(data) // 2, len(data))
                data[at] ^= 1 << self._draw.randrange(8)
        path.write_bytes(data)


class Place:
    """The place of sources and outputs: folders, or buckets of a server in this process."""

    def __init__(self, work: Path, kind: str) -> None:
        self._work, self._kind = work, kind
        self._there: dict[str, tuple[int, int]] = {}
        if kind == "s3":
            from moto.server import ThreadedMotoServer

            self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
            self._server.start()
            host, port = self._server.get_host_and_port()
            os.environ |= {
                "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "testtest", "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_EC2_METADATA_DISABLED": "true",
            }  # fmt: skip
            from curator.storage.s3_client import client

            self._client = client()
            self._client.create_bucket(Bucket="soak")

    def sources(self, corpus: Path) -> str:
        """Copies the corpus to the place that runs read; returns its address."""
        if self._kind == "folder":
            return str(corpus)
        now = {}
        for path in corpus.rglob("*"):
            if path.is_file():
                info = path.stat()
                key = str(path.relative_to(corpus))
                now[key] = (info.st_size, info.st_mtime_ns)
                if self._there.get(key) != now[key]:
                    self._client.put_object(Bucket="soak", Key=f"in/{key}", Body=path.read_bytes())
        for key in self._there.keys() - now.keys():
            self._client.delete_object(Bucket="soak", Key=f"in/{key}")
        self._there = now
        return "s3://soak/in/"

    def out(self, name: str) -> str:
        """Returns the address of an output root."""
        return str(self._work / name) if self._kind == "folder" else f"s3://soak/{name}"

    def clear(self, out: str) -> None:
        """Removes an output root."""
        store = open_store(out)
        store.delete([info.key for info in store.list()])
        if self._kind == "folder":
            shutil.rmtree(out, ignore_errors=True)

    def unfinished(self, out: str) -> int:
        """Counts unfinished objects; makes files a week old, so a run clears them."""
        if self._kind == "s3":
            return len(self._client.list_multipart_uploads(Bucket="soak").get("Uploads", ()))
        week_ago = time.time() - 7 * 86400
        begun = [path for path in Path(out).rglob(".tmp-*") if path.is_file()]
        for path in begun:
            os.utime(path, (week_ago, week_ago))
        return len(begun)

    def close(self) -> None:
        """Stops the server."""
        if self._kind == "s3":
            self._server.stop()


def marked(token: str) -> dict[int, str]:
    """Returns the command lines of processes with the mark in their environment."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={token}".encode() not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            if (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(folder.name)] = words.decode(errors="replace")
    return found


def none_left(token: str, within_s: float) -> dict[int, str]:
    """Returns the processes that still run after a time."""
    end = time.monotonic() + within_s
    while (left := marked(token)) and time.monotonic() < end:
        time.sleep(0.3)
    return left


class Soak:
    """Runs rounds of changes, kills and checks."""

    def __init__(self, work: Path, place: Place, seed: int, findings: Findings) -> None:
        self._draw = random.Random(seed)
        self._work, self._place, self._findings = work, place, findings
        self._corpus = Corpus(work / "in", self._draw)
        self._out = place.out("out")
        self._token = ""
        self._number = 0
        self._temp = work / "t"
        self._temp.mkdir()
        self._took_s = {True: 25.0, False: 10.0}
        self._output = ""

    def round(self) -> None:
        """Changes the corpus, runs with kills, runs to the end, and checks the results."""
        self._number += 1
        counts, tell = self._findings.counts, self._findings.tell
        changes = [self._corpus.change() for _ in range(self._draw.randrange(4))]
        settings = [*BASE, *(self._draw.choice(choice) for choice in CHOICES)]
        tell(f"round {self._number}: {'; '.join(changes)} | {' '.join(settings[3:])}")
        for _ in range(self._draw.choice([1, 2, 3, 4])):
            self._killed_run(settings)
        workers = self._draw.choice([None, None, 1, 2])
        code = self._run(self._out, settings, workers)
        if not self._ended(code == 0, f"plain run ended with {code}"):
            return
        counts["rounds"] += 1
        self._questions(settings)

    def _ended(self, holds: bool, text: str) -> bool:
        tail = " / ".join(self._output.strip().splitlines()[-30:])
        self._findings.check(
            holds, f"round {self._number}: {text}" + ("" if holds else f": {tail}")
        )
        return holds

    def _command(self, out: str, settings: list[str], workers: int | None) -> list[str]:
        sources = self._place.sources(self._corpus.folder)
        command = [*CURATE, "run", "--recipe", "quickstart", sources, out, *sets(*settings)]
        command.append("--replace")
        return command + ([] if workers is None else ["--workers", str(workers)])

    def _start(self, command: list[str]) -> "subprocess.Popen[str]":
        self._token = f"{os.getpid()}-{time.monotonic_ns()}"
        environment = os.environ | {MARK: self._token, "TMPDIR": str(self._temp)}
        self._findings.counts["runs"] += 1
        return subprocess.Popen(
            command,
            stdout=(self._work / "output").open("w"),
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def _wait(self, process: "subprocess.Popen[str]", passed_on_s: float = PASSED_ON_S) -> int:
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self._ended(False, f"no end after {LIMIT_S:g} s")
            code = -99
        if code == -99:
            self._sweep()
            process.wait()
        self._output = (self._work / "output").read_text(errors="replace")
        left = none_left(self._token, passed_on_s)
        words = "; ".join(sorted({command[:60] for command in left.values()}))
        self._findings.check(not left, f"round {self._number}: processes left: {words}")
        self._sweep()
        return code

    def _sweep(self) -> None:
        for pid in marked(self._token):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _run(self, out: str, settings: list[str], workers: int | None) -> int:
        begun = time.monotonic()
        code = self._wait(self._start(self._command(out, settings, workers)))
        self._took_s[workers is not None] = time.monotonic() - begun
        return code

    def _killed_run(self, settings: list[str]) -> None:
        workers = self._draw.choice([None, None, 1, 2])
        kinds = [k for k in CODES if workers is not None or not k.startswith(OF_RAY)]
        kind = self._draw.choice(kinds)
        longest = 0.9 * self._took_s[workers is not None]
        after_s = longest ** self._draw.uniform(0.1, 1)
        process = self._start(self._command(self._out, settings, workers))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(after_s)
        hit = process.poll() is None and self._kill(kind, process)
        during = ""
        if self._draw.random() < 0.2:
            during = self._corpus.change()
            self._place.sources(self._corpus.folder)
        begun = time.monotonic()
        code = self._wait(process)
        took_s = time.monotonic() - begun
        self._findings.counts[f"kill: {kind}" if hit else "kill: came too late"] += 1
        self._findings.tell(f"  {kind} after {after_s:.1f} s, workers {workers}: {code} {during}")
        # Python itself handles SIGINT and SIGTERM before the command begins, and after the command
        # has printed its results.
        is_told = "/summary.json  counts" in self._output
        early = {-1, -2, -15, 1} if after_s < 3 or is_told else set()
        fits = code in CODES[kind] | {0} | early if hit else code == 0
        self._ended(fits, f"{kind} after {after_s:.1f} s ended with {code}")
        is_soon = not hit or not kind.startswith("driver") or took_s < SOON_S
        words = f"{kind} after {after_s:.1f} s: ended {took_s:.0f} s later with {code}"
        self._ended(is_soon, words)
        is_traced = "Traceback" in self._output and not (early and code in early)
        self._ended(not is_traced, f"{kind} after {after_s:.1f} s told a traceback")
        if not hit or kind == "driver SIGKILL":
            return
        store = open_store(self._out)
        lease = json.loads(store.read(LEASE)) if store.exists(LEASE) else {}
        # The lease of a run that was killed before stays until a run takes it over.
        is_left = lease.get("pid") == process.pid
        self._ended(not is_left, f"{kind} after {after_s:.1f} s left a lease")
        # The processes have ended, and the shells that remove their folders follow at once.
        time.sleep(1.0)
        folders = [path.name for path in self._temp.glob("curate-sandbox-*")]
        self._ended(not folders, f"{kind} after {after_s:.1f} s left {folders[:3]}")

    def _kill(self, kind: str, process: "subprocess.Popen[str]") -> bool:
        who, *numbers = kind.split()
        if who == "driver":
            for place, number in enumerate(numbers):
                time.sleep(self._draw.choice([0, 0.05, 0.5, 2]) if place else 0)
                process.send_signal(getattr(signal, number))
            return True
        patterns = {
            "worker": ("curator.executor.child_process", "ray::"),
            "raylet": ("raylet/raylet",),
            "gcs": ("gcs_server",),
        }[who]
        pids = [
            pid
            for pid, command in marked(self._token).items()
            if any(pattern in command for pattern in patterns) and pid != process.pid
        ]
        if not pids:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._draw.choice(sorted(pids)), signal.SIGKILL)
            return True
        return False

    def _questions(self, settings: list[str]) -> None:
        check, number = self._findings.check, self._number
        shared = set(os.listdir("/dev/shm"))
        store = open_store(self._out)
        self._verified()
        sources = table(store, "sources")
        files = [p for p in self._corpus.folder.rglob("*") if p.is_file() and p.suffix != ".json"]
        uris = sources["uri"].to_pylist()
        listed = sorted(set(uris))
        is_one = len(uris) == len(listed) == len(files)
        check(is_one, f"round {number}: {len(uris)} rows, {len(listed)} URIs, {len(files)} files")
        codes = Counter(sources["error_code"].to_pylist())
        check("internal" not in codes, f"round {number}: internal errors")
        died = [u for u, c in zip(uris, sources["error_code"].to_pylist(), strict=True)
                if c == "worker_died"]  # fmt: skip
        check(not died, f"round {number}: a worker died over {died}")
        n_unfinished = self._place.unfinished(self._out)
        before = content(store)
        if not self._ended(self._run(self._out, settings, None) == 0, "rerun failed"):
            return
        work = json.loads(store.read("summary.json"))["work"]
        again = {name: n for name, n in work.items() if n and name != "sources_joined"}
        check(not again, f"round {number}: a rerun did {again}")
        check(content(store) == before, f"round {number}: a rerun changed shards or tables")
        self._findings.counts["unfinished objects, cleared"] += n_unfinished
        n_left = self._place.unfinished(self._out) if n_unfinished else 0
        check(n_left == 0, f"round {number}: {n_left} unfinished objects stay")
        # Earlier snapshots keep their tars.
        subprocess.run(
            [*CURATE, "clean", self._out, "--keep", "1"], capture_output=True, check=True
        )
        if not self._compared(store, settings):
            return
        of_ray = (f"curate-{os.getuid()}", ".ses")
        left = sorted(p.name for p in self._temp.iterdir() if p.name not in of_ray)
        check(not left, f"round {number}: left in the temporary folder: {left[:5]}")
        # The last session stays. A session that was killed before Ray started has no mark.
        sessions = list((self._temp / of_ray[0] / "r").glob("session_2*"))
        marked_ones = [path for path in sessions if (path / LOCK).exists()]
        check(len(marked_ones) <= 1, f"round {number}: {len(marked_ones)} Ray sessions stay")
        # Python's semaphores belong to other programs.
        fresh = {n for n in os.listdir("/dev/shm") if not n.startswith("sem.")} - shared
        check(not fresh, f"round {number}: left in shared memory: {sorted(fresh)[:5]}")

    def _verified(self) -> None:
        command = [*CURATE, "verify", self._out, "--frames", "all"]
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
        text = done.stdout or done.stderr
        is_empty = done.returncode == 2 and not has_clips(open_store(self._out))
        is_good = done.returncode == 0 and not json.loads(text).get("findings")
        self._findings.check(is_good or is_empty, f"round {self._number}: verify: {text[:600]}")

    def _compared(self, store: Store, settings: list[str]) -> bool:
        other = self._place.out(f"fresh{self._number}")
        workers = self._draw.choice([None, None, 2])
        if not self._ended(self._run(other, settings, workers) == 0, "run from nothing failed"):
            return False
        fresh = open_store(other)
        appends = "shard.append=true" in settings
        for name in ("sources", "shots", "clips", "embeddings"):
            ours, theirs = table(store, name), table(fresh, name)
            drop = [c for c in ours.column_names if appends and c in HISTORY]
            same = ours.drop_columns(drop) == theirs.drop_columns(drop)
            words = "" if same else difference(ours.drop_columns(drop), theirs.drop_columns(drop))
            self._findings.check(same, f"round {self._number}: table {name} differs: {words}")
        ours, theirs = (
            members(one) if appends else hashes(one, "shards") for one in (store, fresh)
        )
        odd = sorted(
            name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)
        )
        self._findings.check(
            not odd, f"round {self._number}: shards differ from nothing's: {odd[:5]}"
        )
        self._place.clear(other)
        return True


def has_clips(store: Store) -> bool:
    """Returns whether any tar exists."""
    return any(info.key.endswith(".tar") for info in store.list("shards/"))


def table(store: Store, name: str) -> pa.Table:
    """Returns a table of an output root."""
    parts = [pq.read_table(BytesIO(store.read(i.key))) for i in store.list(f"{name}/")]
    return pa.concat_tables(parts)


def difference(ours: pa.Table, theirs: pa.Table) -> str:
    """Describes the differences between two tables."""
    if ours.num_rows != theirs.num_rows:
        return f"{ours.num_rows} rows, {theirs.num_rows} from nothing"
    names = [n for n in ours.column_names if ours[n] != theirs[n]]
    pairs = zip(ours.to_pylist(), theirs.to_pylist(), strict=True)
    some = [(n, a[n], b[n]) for a, b in pairs for n in names if a[n] != b[n]]
    return f"columns {names}: {some[:3]}"[:600]


def members(store: Store) -> dict[str, str]:
    """Returns hashes of the members of all tars by name, regardless of the tar."""
    found: dict[str, str] = {}
    for info in store.list("shards/"):
        if info.key.endswith(".tar"):
            with tarfile.open(fileobj=BytesIO(store.read(info.key))) as tar:
                for member in tar:
                    file = tar.extractfile(member)
                    assert file is not None
                    found[Path(member.name).name] = hashlib.sha256(file.read()).hexdigest()
    return found


def content(store: Store) -> dict[str, str]:
    """Returns hashes of shards and tables."""
    return hashes(store, "shards", "sources", "clips", "shots", "embeddings")


def main() -> None:
    """Runs rounds for a time, and prints the findings."""
    parser = arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--place", choices=("folder", "s3"), default="folder")
    parser.add_argument("--work", type=Path, help="folder to make and keep (default: temporary)")
    parser.add_argument("--log", type=Path, help="file to append all lines to")
    options = parser.parse_args()
    findings = Findings(log=options.log)
    end = time.monotonic() + 60 * options.minutes
    with work_folder(options.work, "sk") as work:
        place = Place(work, options.place)
        soak = Soak(work, place, options.seed, findings)
        try:
            while time.monotonic() < end:
                soak.round()
        finally:
            place.close()
    for name, number in sorted(findings.counts.items()):
        findings.tell(f"{number:6d} {name}")
    for text in findings.found:
        findings.tell(f"FOUND {text}")
    findings.tell(json.dumps({"counts": findings.counts, "found": findings.found} | machine()))
    sys.exit(1 if findings.found else 0)


if __name__ == "__main__":
    main()
