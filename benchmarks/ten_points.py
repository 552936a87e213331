"""Tries the ten points that trust began with on a tree of this project, by its command line alone.

The tests in `tests/faults` and `tests/hostile` import modules that older trees do not have; this
runs `curate` of any tree on the same input, and prints what it does.

    python benchmarks/ten_points.py TREE                  # such as a checkout of an older commit
    python benchmarks/ten_points.py TREE --only 4 6
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import tests_path  # noqa: F401
from film_makers import write_video
from film_shots import moving_texture
from flipping_proxy import flipping_proxy
from hostile import _descendants, _peak_bytes
from hostile_films import black_png, film
from s3_faults import noisy

SETTINGS = (
    "shard.resolutions=[64, 120, 480]", "filters.short_side_px.min=60", "propose.min_s=0.5",
    "propose.max_s=2", "dedup.enabled=false", "filters.sharpness.min=0", "filters.noise.max=1000",
    "analyze.text=false",
)  # fmt: skip
LIMIT_S = 120
KILLED = """
import os, signal, sys
from contextlib import contextmanager
try:
    from curator.storage.local_store import LocalStore
except ImportError:
    from curator.storage.local import LocalStore
create = LocalStore.create
@contextmanager
def killing(self, key):
    with create(self, key) as stream:
        yield stream
    if key == "shards/dataset.parquet":
        os.kill(os.getpid(), signal.SIGKILL)
LocalStore.create = killing
from curator.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""`curate`, killed right after it wrote an index."""


@dataclass(frozen=True)
class Ran:
    """A command that ended, or was ended after `LIMIT_S`."""

    code: int | str
    said: str
    peak_bytes: int
    open_ports: frozenset[str]

    def __str__(self) -> str:
        return f"exit {self.code}" + (" and a traceback" if "Traceback" in self.said else "")


class Trial:
    """A folder with footage, and a tree's command."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self._tree = tree
        self.folder, self.films, self.out = folder, folder / "in", folder / "out"
        self.films.mkdir()

    def film(self, name: str, seed: int) -> Path:
        """Two seconds of moving texture."""
        write_video(self.films / name, moving_texture(60, seed=seed), fps=Fraction(25))
        return self.films / name

    def curate(self, *words: object, killed: bool = False, **environment: str) -> Ran:
        """Runs a command of the tree."""
        start = ["-c", KILLED] if killed else ["-m", "curator.cli"]
        settings = os.environ | {"PYTHONPATH": str(self._tree)} | environment
        peak, ports, begun = 0, set[str](), time.monotonic()
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                [sys.executable, *start, *map(str, words)], stdout=said, stderr=said, env=settings,
                cwd=self.folder, start_new_session=True,
            )  # fmt: skip
            while process.poll() is None and time.monotonic() < begun + LIMIT_S:
                numbers = list(_descendants(process.pid))
                for number in numbers:
                    with contextlib.suppress(OSError, StopIteration):
                        peak = max(peak, _peak_bytes(number))
                ports |= open_ports(numbers)
                time.sleep(0.05)
            code: int | str = process.returncode
            if process.poll() is None:
                code = f"none after {LIMIT_S} s"
                os.killpg(process.pid, 15)
                process.wait()
            said.seek(0)
            return Ran(code, said.read(), peak, frozenset(ports))

    def run(self, source: object = None, *more: object, **options: object) -> Ran:
        """Curates."""
        sets = [word for setting in SETTINGS for word in ("--set", setting)]
        return self.curate(
            "run", "--recipe", "quickstart", source or self.films, self.out, *sets, *more, **options
        )  # type: ignore[arg-type]

    def sources(self) -> dict[str, dict[str, object]]:
        """Rows of the table by name."""
        rows = pq.read_table(self.out / "sources").to_pylist()
        return {Path(row["uri"]).name: row for row in rows}

    def mp4s(self) -> list[bytes]:
        """All clips in the tars."""
        clips = []
        for path in sorted((self.out / "shards").rglob("*.tar")):
            with tarfile.open(path) as tar:
                for member in tar:
                    file = tar.extractfile(member)
                    if member.name.endswith(".mp4") and file is not None:
                        clips.append(file.read())
        return clips


def open_ports(numbers: list[int]) -> set[str]:
    """Addresses beyond this machine's own on which processes listen."""
    inodes = set()
    for number in numbers:
        with contextlib.suppress(OSError):
            inodes |= {os.readlink(fd) for fd in Path(f"/proc/{number}/fd").iterdir()}
    found = set()
    lines = "".join(Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
    for line in lines.splitlines():
        parts = line.split()
        is_local = parts[1].startswith(("0100007F:", "0000000000000000FFFF00000100007F:"))
        if parts[3] == "0A" and not is_local and f"socket:[{parts[9]}]" in inodes:
            found.add(parts[1])
    return found


def sha256(path: Path) -> str:
    """The hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def nearest(mp4: bytes) -> int:
    """Which seed of moving texture a clip's first frame shows, 1 or 2."""
    with av.open(io.BytesIO(mp4)) as container:
        shown = next(container.decode(video=0)).to_ndarray(format="rgb24").astype(float)
    first = [next(iter(moving_texture(60, seed=seed))).astype(float) for seed in (1, 2)]
    return 1 + int(np.argmin([np.abs(one - shown).mean() for one in first]))


def replaced(trial: Trial) -> str:
    """1: another film with the same modification time."""
    path = trial.film("v.mp4", 1)
    old, times = sha256(path), path.stat()
    time.sleep(2.5)
    trial.run()
    trial.film("v.mp4", 2)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    ran = trial.run(None, "--set", "cut.mode=encode")
    said = "old" if trial.sources()["v.mp4"]["sha256"] == old else "new"
    shows = {1: "old", 2: "new"}[nearest(trial.mp4s()[0])]
    verified = trial.curate("verify", trial.out)
    return f"{ran}; SHA-256 of the {said} film, pixels of the {shows} one; verify: {verified}"


def sampled(trial: Trial) -> str:
    """2: a large file, and one that differs between the samples of the id."""
    options = {"preset": "ultrafast", "crf": "8"}
    path = trial.films / "a.mp4"
    write_video(path, noisy(50), fps=Fraction(25), gop=12, options=options)
    data = bytearray(path.read_bytes())
    at = (len(data) - 65536) // 30 + 40_000
    data[at : at + 4000] = bytes(4000)
    path.with_name("b.mp4").write_bytes(data)
    ran = trial.run()
    rows = trial.sources()
    right = sum(row["sha256"] == sha256(trial.films / name) for name, row in rows.items())
    return f"{ran}; {right} of 2 files of {len(data) >> 20} MiB have their own SHA-256"


def fewer(trial: Trial) -> str:
    """3: a rerun over one of three films."""
    for seed in (1, 2, 3):
        trial.film(f"{seed}.mp4", seed)
    trial.run()
    before = len(trial.mp4s())
    ran = trial.run(trial.films / "1.mp4")
    return f"{ran}; {len(trial.mp4s())} of {before} clips left"


def damaged(trial: Trial) -> str:
    """4: a table, the manifest and the summary cut to half, each alone."""
    trial.film("1.mp4", 1)
    trial.run()
    whole = trial.folder / "whole"
    shutil.copytree(trial.out, whole)
    ended = []
    for pattern in ("clips/*.parquet", "shards/manifest.json", "summary.json", "candidates/**/*"):
        path = next(one for one in sorted(trial.out.glob(pattern)) if one.is_file())
        os.truncate(path, path.stat().st_size // 2)
        ended.append(f"{pattern.partition('/*')[0]}: {trial.run()}")
        shutil.rmtree(trial.out)
        shutil.copytree(whole, trial.out)
    return "; ".join(ended)


def covers(trial: Trial) -> str:
    """5: a film with five covers of 256 million pixels."""
    film(trial.films / "covers.mp4", (black_png(16_000, 16_000),) * 5)
    ran = trial.run()
    return f"{ran}; at most {ran.peak_bytes >> 20} MiB in a process"


def holes(trial: Trial) -> str:
    """6: a film and 128 GiB of holes."""
    film(trial.films / "holes.mp4")
    os.truncate(trial.films / "holes.mp4", 128 << 30)
    ran = trial.run()
    found = (
        {name: row["error_code"] for name, row in trial.sources().items()} if ran.code == 0 else ""
    )
    return f"{ran} {found}"


def killed(trial: Trial) -> str:
    """7: a driver killed after it wrote an index."""
    trial.film("1.mp4", 1)
    trial.film("2.mp4", 2)
    trial.run()
    ran = trial.run(None, "--set", "shard.max_bytes=65536", killed=True)
    assert ran.code == -9, ran.said
    return f"verify: {trial.curate('verify', trial.out)}"


def unanswered(trial: Trial) -> str:
    """8: recaption by a server without a single answer."""
    trial.film("1.mp4", 1)
    trial.run()
    before = {path: sha256(path) for path in (trial.out / "shards").rglob("*.tar")}

    class Handler(BaseHTTPRequestHandler):
        def _say(self, answer: object) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self._say({"data": [{"id": "m"}]})

        def do_POST(self) -> None:
            message = {"role": "assistant", "content": ""}
            self._say({"choices": [{"message": message, "finish_reason": "stop"}], "model": "m"})

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    sets = ("caption.captioner=openai", "caption.model=m", f"caption.url={url}")
    ran = trial.curate("recaption", trial.out, *(w for one in sets for w in ("--set", one)))
    server.shutdown()
    after = {path: sha256(path) for path in (trial.out / "shards").rglob("*.tar")}
    return f"{ran}; tars {'unchanged' if after == before else 'new'}: {ran.said.strip()[-160:]!r}"


@contextlib.contextmanager
def s3() -> Iterator[tuple[str, object]]:
    """An S3 server with a bucket `films`; its address and a client."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    client = boto3.client("s3", endpoint_url=address, region_name="us-east-1")
    client.create_bucket(Bucket="films")
    try:
        yield address, client
    finally:
        server.stop()


def flips(trial: Trial) -> str:
    """9: two bodies of five with a flipped bit, over plain HTTP."""
    path = trial.film("1.mp4", 1)
    chance = random.Random(1)
    with s3() as (address, client), flipping_proxy(address) as (proxy, flips):
        for number in range(6):
            client.upload_file(str(path), "films", f"in/{number}.mp4")  # type: ignore[attr-defined]
        flips.choose = lambda kind, n: chance.randrange(1 << 20) if chance.random() < 0.4 else None
        ran = trial.run("s3://films/in", AWS_ENDPOINT_URL=proxy, AWS_REGION="us-east-1")
    rows = trial.sources().values() if ran.code == 0 else ()
    right = sum(row["sha256"] == sha256(path) for row in rows)
    return f"{ran}; {flips.n_flipped} flips; {right} of 6 films have their own SHA-256"


def rest(trial: Trial) -> str:
    """10: open ports, a sidecar's link, a manifest on S3 that names a file, aliases, hashes."""
    path = trial.film("v.mp4", 1)
    secret = trial.folder / "secret.json"
    secret.write_text('{"label": "a secret of the user"}')
    path.with_suffix(".json").symlink_to(secret)
    ran = trial.run(
        None,
        "--set",
        "caption.enabled=true",
        "--set",
        "caption.captioner=metadata",
        "--workers",
        "2",
    )
    assert ran.code == 0, ran.said
    tables = [pq.ParquetFile(path).read().to_pylist() for path in trial.out.rglob("*.parquet")]
    leaks = "a secret of the user" in str(tables)
    ports = f"listens on {len(ran.open_ports)} ports of all addresses"
    with s3() as (address, client):
        client.put_object(Bucket="films", Key="list.txt", Body=str(path).encode())  # type: ignore[attr-defined]
        named = trial.run("s3://films/list.txt", AWS_ENDPOINT_URL=address, AWS_REGION="us-east-1")
    lines = ["a0: &a0 {k: v}"]
    for level in range(1, 9):
        merged = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} {{<<: [{merged}]}}")
    (trial.folder / "bomb.yaml").write_text("\n".join(lines))
    bomb = trial.run(None, "--recipe", trial.folder / "bomb.yaml")
    hashed = "--hash=" in (trial._tree / "constraints.txt").read_text()
    return (
        f"{ports}; linked secret in a table: {leaks}; local path of an S3 manifest: {named}; "
        f"aliases: {bomb}, {bomb.peak_bytes >> 20} MiB; hashes in constraints: {hashed}"
    )


POINTS = (replaced, sampled, fewer, damaged, covers, holes, killed, unanswered, flips, rest)


def main() -> None:
    """Tries the points."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tree", type=Path, help="folder that holds `curator`")
    parser.add_argument("--only", type=int, nargs="+", default=range(1, 11), help="numbers")
    options = parser.parse_args()
    for number in options.only:
        point = POINTS[number - 1]
        with tempfile.TemporaryDirectory(prefix="points-") as name:
            try:
                seen = point(Trial(options.tree.resolve(), Path(name)))
            except Exception as error:  # noqa: BLE001 - the other points go on
                seen = f"the trial broke off: {type(error).__name__}: {error}"
        what = re.sub(r"^\d+: ", "", (point.__doc__ or "").rstrip("."))
        print(f"| {number} | {what} | {seen.replace(name, '…')} |", flush=True)


if __name__ == "__main__":
    main()
