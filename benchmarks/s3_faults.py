"""Runs `curate` on S3 with network faults and expiring credentials, and on full disks.

    eval "$(SERVER)"      # AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY of any server
    python benchmarks/s3_faults.py [--scenarios faults credentials "stale listing" disk] [--ray]

A proxy (`tests/fault_proxy.py`) is between all processes of a run and the server. Synthetic films
are stored in a new bucket, which is removed at the end. One film exceeds 8 MiB, so its shard is
uploaded in parts. A run without faults gives the expected result. Scenarios:

- faults: 5% of the requests get an error, a reset before or after the server handles them, a cut or
  slow body, or a flipped bit in an upload; `--rounds` runs, and a second run over each output;
- credentials: all requests after the N-th are refused with `ExpiredToken`, for several N;
- one object: 403 for one film, and for one kind of output;
- stale listing: a run that adds a film, once for each of its listings. This listing
  is as old as the first run, or empty. The source of the first run
  is gone. And a tar of the first snapshot is away during one run, and comes back;
- disk: OUT, then TMPDIR, is a small tmpfs, which needs root.

A run that cannot continue must end with its documented code and one line. The next must end with
0 and the same objects. Results: benchmarks/results/robustness.md.
"""

import argparse
import itertools
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import tests_path  # noqa: F401
from fault_proxy import FaultProxy
from film_makers import write_video
from film_shots import moving_texture
from measure import CURATE, hashes, sets, tell

from curator.storage import Store, open_store
from curator.storage.s3_client import client
from curator.tables.checksums import read_parquet
from curator.tables.snapshot_store import named_objects, read_snapshot, snapshot_numbers
from curator.tools.footage.scenes import Picture

SETTINGS = (
    "filters.short_side_px.min=60", "shard.resolutions=[64, 120, 480]", "propose.min_s=0.5",
    "propose.max_s=1", "dedup.enabled=false", "filters.sharpness.min=0", "filters.noise.max=1000",
    "shard.append=false",
)  # fmt: skip
COMPARED = ("shards", "sources", "clips", "shots", "embeddings")
SCENARIOS = ("faults", "credentials", "one object", "stale listing", "disk")
LIMIT_S = 600.0


class Trial:
    """Runs the command, and collects problems.

    Args:
        server: Address of the S3 server.
        sources: Address of the films.
        ray: Whether two Ray workers run the work.
    """

    def __init__(self, server: str, sources: str, *, ray: bool) -> None:
        self.server = server
        self.options = ["--workers", "2"] if ray else []
        self.sources = sources
        self.wrong: list[str] = []
        self.expected: dict[str, str] = {}

    def run(
        self, out: str, *more: str, sources: str = "", url: str = "", **environment: str
    ) -> tuple[int, str, float]:
        """Returns exit code, standard error without progress, and seconds of a run."""
        command = [*CURATE, "run", sources or self.sources, out, *more]
        command += self.options
        command += sets(*SETTINGS)
        settings = os.environ | {"AWS_ENDPOINT_URL": url or self.server} | environment
        start = time.monotonic()
        done = subprocess.run(
            command, env=settings, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        lines = [line for line in done.stderr.splitlines() if not line.startswith("curate 0:")]
        return done.returncode, "\n".join(lines), round(time.monotonic() - start, 1)

    def check(self, holds: bool, text: str) -> None:
        """Records a failed check."""
        if not holds:
            self.wrong.append(text)
            print(f"WRONG {text}", file=sys.stderr, flush=True)

    def whole(self, out: str, name: str, **environment: str) -> None:
        """Checks that a run without faults over the output gives the expected objects."""
        code, said, wall_s = self.run(out, **environment)
        self.check(code == 0, f"{name}: the next run ends with {code}: {said}")
        self.same(out, name)
        print(f"{name}: the next run took {wall_s} s", file=sys.stderr, flush=True)

    def same(self, out: str, name: str) -> None:
        """Compares the objects that readers see with the expected ones."""
        found = hashes(open_store(out), *COMPARED)
        differ = sorted(key for key in found | self.expected
                        if found.get(key) != self.expected.get(key))  # fmt: skip
        self.check(not differ, f"{name}: {len(differ)} objects differ: {differ[:5]}")

    def broken_off(self, name: str, code: int, said: str, words: str) -> None:
        """Checks the end of a run that could not continue."""
        print(f"{name}: exit {code}: {said}", file=sys.stderr, flush=True)
        lines = [line for line in said.splitlines() if line.startswith("curate: ")]
        self.check(code in (1, 2), f"{name}: ends with {code}")
        self.check("Traceback" not in said, f"{name}: traceback: {said}")
        self.check(bool(lines) and words in lines[-1], f"{name}: no line with {words!r}: {said}")


def faults(trial: Trial, out: str, options: argparse.Namespace) -> dict[str, object]:
    """Runs and reruns with faults at a share of requests."""
    results = []
    for number in range(options.rounds):
        with FaultProxy(server=trial.server, share=options.share, seed=number) as proxy:
            for name in ("first run", "rerun"):
                proxy.counts.clear()
                code, said, wall_s = trial.run(f"{out}{number}", url=proxy.url)
                name = f"faults, round {number}, {name}"
                trial.check(code == 0, f"{name}: ends with {code}: {said}")
                trial.same(f"{out}{number}", name)
                results.append(dict(proxy.counts) | {"wall_s": wall_s})
                print(f"{name}: {results[-1]} {said}", file=sys.stderr, flush=True)
    return {"runs": results}


def expired(last: int, number: int, method: str, path: str) -> str | None:
    """Refuses all requests after number `last`; implements `fault_proxy.Refusal`."""
    return "ExpiredToken" if number > last else None


def credentials(trial: Trial, out: str, options: argparse.Namespace) -> dict[str, object]:
    """Runs with tokens that expire at several points."""
    with FaultProxy(server=trial.server, share=0) as proxy:
        trial.run(f"{out}-whole", url=proxy.url)
        n_requests = proxy.counts["requests"]
        for share in (0.01, 0.3, 0.6, 0.95):
            last = int(share * n_requests)
            proxy.counts.clear()
            proxy.refuse = partial(expired, last)
            name = f"credentials, {last} of {n_requests} requests"
            code, said, _ = trial.run(f"{out}{last}", url=proxy.url)
            trial.broken_off(name, code, said, "AWS_")
            trial.whole(f"{out}{last}", name)
    return {"requests": n_requests}


def one_object(trial: Trial, out: str, options: argparse.Namespace) -> dict[str, object]:
    """Runs with 403 for one object."""
    with FaultProxy(server=trial.server, share=0) as proxy:

        def refuse(*parts: str) -> None:
            proxy.refuse = lambda number, method, path: (
                "AccessDenied" if method == parts[0] and all(p in path for p in parts[1:]) else None
            )

        refuse("GET", "/in/2.mp4")
        code, said, _ = trial.run(f"{out}-film", url=proxy.url)
        print(f"one film: exit {code}: {said}", file=sys.stderr, flush=True)
        trial.check(code == 0 and "Traceback" not in said, f"one film: exit {code}: {said}")
        trial.whole(f"{out}-film", "one film")
        code, said, _ = trial.run(f"{out}-film", url=proxy.url)
        trial.check(code == 0, f"one film, analyzed before: exit {code}: {said}")
        trial.same(f"{out}-film", "one film, analyzed before")
        for kind in ("/tracks/", "/shards/", "/summary.json"):
            refuse("PUT", f"/{Path(out).name}-{kind[1:4]}", kind)
            name = f"403 for writing {kind}"
            code, said, _ = trial.run(f"{out}-{kind[1:4]}", url=proxy.url)
            trial.broken_off(name, code, said, "s3:PutObject")
            trial.whole(f"{out}-{kind[1:4]}", name)
    return {}


def stale_listing(trial: Trial, out: str, options: argparse.Namespace) -> dict[str, object]:
    """Runs with one stale listing each, and checks what snapshots name and which clips stay."""
    films = trial.sources
    gone = f"{films}-gone"
    bucket, store = open_store(films.rpartition("/")[0]), open_store(f"{out}-0")
    bucket.copy("in/1.mp4", "in-gone/1.mp4")
    other = sets("shard.id_member=true")
    trial.run(store.uri, sources=gone)
    first = {info.key for info in store.list()}
    trial.run(store.uri, *other, sources=gone)
    bucket.delete(["in-gone/1.mp4"])
    base = {info.key: store.read(info.key) for info in store.list()}
    before = kept_clips(store)
    only_first = [
        key for key in named_by_all(store, {1}) - named_by_all(store, {2}) if key.endswith(".tar")
    ]
    trial.check(bool(only_first), "stale listing: no tar is named by the first snapshot alone")
    with FaultProxy(server=trial.server, share=0) as proxy:
        trial.run(f"{out}-count", *other, sources=films, url=proxy.url)
        n_tries = n_refused = 0
        n_listings = proxy.counts["LIST"]
        for age, number in itertools.product(("first run", "empty"), range(1, n_listings + 1, 2)):
            n_tries += 1
            name = f"stale listing {number} of {n_listings}, {age}"
            target = open_store(f"{out}-{age[0]}{number}")
            for key, data in base.items():
                target.write(key, data)
            root = target.uri.split("/", 3)[3]
            proxy.counts.clear()
            proxy.unlisted = partial(
                unlisted, (number, number + 1), root, first if age == "first run" else set()
            )
            code, said, _ = trial.run(target.uri, *other, sources=f"{films}/2.mp4", url=proxy.url)
            proxy.unlisted = None
            n_refused += code != 0
            trial.check("Traceback" not in said, f"{name}: traceback: {said}")
            trial.check(code in (0, 1, 2), f"{name}: exit {code}")
            trial.check(not missing(target), f"{name}: gone: {missing(target)[:3]}: {said}")
            lost = before - kept_clips(target)
            trial.check(not lost, f"{name}: exit {code}, {len(lost)} clips are gone: {said}")
            code, said, _ = trial.run(target.uri, *other, sources=f"{films}/2.mp4")
            trial.check(code == 0, f"{name}: the next run ends with {code}: {said}")
            trial.check(not missing(target), f"{name}: gone after the next run")
            target.delete([info.key for info in target.list()])
    away = store.read(only_first[0])
    store.delete(only_first[:1])
    trial.run(store.uri, *other, sources=f"{films}/2.mp4")
    store.write(only_first[0], away)
    trial.run(store.uri, *other, sources=films)
    trial.check(not missing(store), f"a tar that was away: gone: {missing(store)[:3]}")
    return {"tries": n_tries, "runs_refused": n_refused}


def unlisted(
    numbers: Collection[int], root: str, there: Collection[str], number: int, key: str
) -> bool:
    """Leaves out of some listings all objects below a root that are not `there`."""
    is_below = key.startswith(f"{root}/")
    return number in numbers and is_below and key.removeprefix(f"{root}/") not in there


def named_by_all(store: Store, numbers: Collection[int] | None = None) -> set[str]:
    """Returns the objects that some snapshots name; None for all."""
    numbers = snapshot_numbers(store) if numbers is None else numbers
    return set().union(*(named_objects(read_snapshot(store, number)) for number in numbers))


def missing(store: Store) -> list[str]:
    """Returns objects that snapshots name and that do not exist."""
    there = {info.key for info in store.list()}
    return sorted(named_by_all(store) - there)


def kept_clips(store: Store) -> set[str]:
    """Returns the kept clips of the newest snapshot that the recipe of all runs keeps."""
    snapshot = read_snapshot(store, max(snapshot_numbers(store)))
    tables = [read_parquet(store, part) for part in snapshot["tables"]["clips"]]
    rows = [row for table in tables for row in table.to_pylist()]
    return {row["clip_id"] for row in rows if row["decision"] == "kept" and row["shard"]}


@contextmanager
def small_disk(n_bytes: int) -> Iterator[str]:
    """Yields a folder that holds only `n_bytes`, and can be remounted larger."""
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "none", folder]
        subprocess.run(mount, check=True)
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def disk(trial: Trial, out: str, options: argparse.Namespace) -> dict[str, object]:
    """Runs with OUT and TMPDIR on disks that become full."""
    for kib in (16, 160, 400, 12000):
        name = f"OUT of {kib} KiB"
        with small_disk(kib << 10) as folder:
            code, said, _ = trial.run(f"{folder}/out")
            trial.broken_off(name, code, said, "free some space")
            subprocess.run(["mount", "-o", "remount,size=1G", folder], check=True)
            trial.whole(f"{folder}/out", name)
    for kib in (64, 4000):
        name = f"TMPDIR of {kib} KiB"
        with small_disk(kib << 10) as folder:
            code, said, _ = trial.run(f"{out}-tmp{kib}", TMPDIR=folder)
            trial.broken_off(name, code, said, "TMPDIR")
            trial.whole(f"{out}-tmp{kib}", name)
    return {}


def noisy(n_frames: int) -> Iterator[Picture]:
    """Yields frames that hardly compress, so a short film has many bytes."""
    draw = np.random.default_rng(3)
    for picture in moving_texture(n_frames, seed=3, width_px=640, height_px=480):
        noise = draw.integers(-40, 40, picture.shape)
        yield (picture + noise).clip(0, 255).astype(np.uint8)


def films(bucket: str) -> str:
    """Makes and stores the sources; returns their address."""
    with tempfile.TemporaryDirectory() as temporary:
        for number in (1, 2):
            frames = moving_texture(50, seed=number, width_px=160, height_px=120)
            write_video(Path(temporary, f"{number}.mp4"), frames, fps=Fraction(25))
        options = {"preset": "ultrafast", "crf": "8"}
        write_video(Path(temporary, "3.mp4"), noisy(100), fps=Fraction(25), gop=12, options=options)
        for path in Path(temporary).iterdir():
            client().upload_file(str(path), bucket, f"in/{path.name}")
    return f"s3://{bucket}/in"


def main() -> None:
    """Runs the scenarios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", nargs="+", default=SCENARIOS, choices=SCENARIOS)
    parser.add_argument("--share", type=float, default=0.05, help="of faults (default: 0.05)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of faults (default: 3)")
    parser.add_argument("--ray", action="store_true", help="two workers of Ray")
    options = parser.parse_args()
    bucket = f"curate-faults-{secrets.token_hex(4)}"
    client().create_bucket(Bucket=bucket)
    try:
        trial = Trial(os.environ["AWS_ENDPOINT_URL"], films(bucket), ray=options.ray)
        code, said, wall_s = trial.run(f"s3://{bucket}/expected")
        if code:
            sys.exit(f"the run without faults ends with {code}: {said}")
        trial.expected = hashes(open_store(f"s3://{bucket}/expected"), *COMPARED)
        results: dict[str, object] = {"without_faults_s": wall_s, "objects": len(trial.expected)}
        table = {"faults": faults, "credentials": credentials, "one object": one_object,
                 "stale listing": stale_listing, "disk": disk}  # fmt: skip
        for name in options.scenarios:
            results[name] = table[name](trial, f"s3://{bucket}/{name.split()[-1]}", options)
    finally:
        store = open_store(f"s3://{bucket}")
        store.delete([info.key for info in store.list()])
        store.clean_temporary(("expected", "faults0"), lambda key: True, older_than_s=0)
        client().delete_bucket(Bucket=bucket)
    tell({"wrong": trial.wrong} | results)
    sys.exit(bool(trial.wrong))


if __name__ == "__main__":
    main()
