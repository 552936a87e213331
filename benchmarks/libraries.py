"""Libraries against our own code: start-up, CPU-seconds, wall time and installed size.

    python benchmarks/libraries.py --report BEFORE AFTER   # imports, and the report of two trees
    eval "$(an S3 server's exports)"; python benchmarks/libraries.py --s3 [--fsspec PYTHON]

Every measurement is a process of its own, so that CPU-seconds include threads and imports are
cold; the ways take turns. PYTHON is an interpreter of an environment with s3fs, which wants
another botocore than boto3 does.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import random
import re
import resource
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

MODULES = ("jinja2", "huggingface_hub.file_download", "boto3", "obstore.store", "fsspec")
DISTRIBUTIONS = ("jinja2", "huggingface-hub", "boto3", "obstore")
TASKS = ("list", "put", "get", "read")
N_LISTED, N_SMALL, SMALL_BYTES, LARGE_BYTES, READ_BYTES = 10_000, 1_000, 4096, 256 << 20, 64 << 10


def main() -> None:
    options = _options()
    if options.worker is not None:
        print(json.dumps(_worker(*options.worker)))
        return
    results: dict[str, Any] = {"versions": _versions(), "repeats": options.repeats}
    results["imports"] = _imports(options.repeats)
    results["sizes_mb"] = {name: _installed_mb(name) for name in DISTRIBUTIONS}
    if options.report is not None:
        results["report"] = _report(*options.report, options.repeats)
    if options.s3:
        results["s3"] = _s3(options.fsspec, options.repeats)
    print(json.dumps(results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--report", nargs=2, metavar="TREE", help="checkouts before and after 4d23852 to be timed"
    )
    parser.add_argument(
        "--s3", action="store_true", help="measure on the server of AWS_ENDPOINT_URL"
    )
    parser.add_argument("--fsspec", metavar="PYTHON", help="interpreter that has s3fs")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--worker", nargs=3, metavar=("WAY", "TASK", "BUCKET"), help=argparse.SUPPRESS
    )
    return parser.parse_args()


def _versions() -> dict[str, str]:
    names = (*DISTRIBUTIONS, "fsspec", "torch")
    return {name: importlib.metadata.version(name) for name in names} | {
        "python": sys.version.split()[0]
    }


def _shown(values: Iterable[float]) -> str:
    known = sorted(values)
    return f"{statistics.median(known):.3f} [{known[0]:.3f}, {known[-1]:.3f}]"


def _child(command: list[str], folder: str | None = None) -> tuple[float, float, str]:
    """Wall and CPU seconds of a process, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr[-2000:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_s, cpu_s, done.stdout


def _imports(repeats: int) -> dict[str, dict[str, float]]:
    """CPU-seconds of an import, less those of an interpreter that imports nothing."""
    taken: dict[str, list[float]] = {name: [] for name in ("", *MODULES)}
    for _ in range(repeats + 1):
        for name, values in taken.items():
            values.append(_child([sys.executable, "-c", f"import {name}" if name else "pass"])[1])
    print("import, CPU-seconds (median [min, max])")
    nothing = statistics.median(taken.pop("")[1:])
    found = {}
    for name, values in taken.items():
        net = [value - nothing for value in values[1:]]
        print(f"  {name:32}{_shown(net)}")
        found[name] = {"median": statistics.median(net), "min": min(net), "max": max(net)}
    return found


def _installed_mb(name: str) -> dict[str, float]:
    """Megabytes of a distribution, and of all that it requires."""
    own: dict[str, float] = {}
    waiting = [name]
    while waiting:
        one = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if one in own:
            continue
        try:
            found = importlib.metadata.distribution(one)
        except importlib.metadata.PackageNotFoundError:
            continue
        files = (found.locate_file(file) for file in found.files or ())
        own[one] = (
            sum(os.path.getsize(str(file)) for file in files if os.path.exists(str(file))) / 1e6
        )
        for requirement in found.requires or ():
            if "extra ==" not in requirement:
                waiting.append(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])
    return {"own": round(own[name], 2), "with_required": round(sum(own.values()), 2)}


_PAGE = """
import json, sys, time
from curator.report import render_report
from curator.measures.score_list import SCORES
clips = [
    dict.fromkeys(SCORES, (n % 97) / 97) | dict(
        clip_id=f"{n * 2654435761 % 2**64:016x}", source_uri=f"/f/{n % 50}.mp4", start_s=1.0 * n,
        end_s=n + 4.0, width=1280, height=720, fps=24.0, caption=f"caption {n}", reasons=[],
        decision="kept" if n % 3 else "rejected", reason=None if n % 3 else "too_dark",
    ) for n in range(int(sys.argv[1]))
]
summary = {"counts": {"clips": len(clips)}, "recipe": {"filters": {"luma": {"min": 0.1}}}}
began = time.process_time()
render_report(summary=summary, sources=[], clips=clips,
              thumbnails={clip["clip_id"]: b"x" * 6000 for clip in clips})
first = time.process_time() - began
began = time.process_time()
page = render_report(summary=summary, sources=[], clips=clips,
                     thumbnails={clip["clip_id"]: b"x" * 6000 for clip in clips})
print(json.dumps([first, time.process_time() - began, len(page)]))
"""


def _report(before: str, after: str, repeats: int) -> dict[str, Any]:
    """CPU-seconds of a page of two trees: the first of a process, and one more."""
    found: dict[str, Any] = {}
    for n_clips in (3, 2000):
        taken: dict[str, list[list[float]]] = {"before": [], "after": []}
        for _ in range(repeats):
            for way, tree in (("before", before), ("after", after)):
                command = [sys.executable, "-c", _PAGE, str(n_clips)]
                _, _, printed = _child(command, tree)
                taken[way].append(json.loads(printed))
        print(f"report of {n_clips} clips, CPU-seconds")
        for way, rows in taken.items():
            first, again, n_bytes = zip(*rows, strict=True)
            print(
                f"  {way:8} first {_shown(first)}  again {_shown(again)}  {int(n_bytes[0]):,} bytes"
            )
            found[f"{way}_{n_clips}"] = {
                "first": statistics.median(first), "again": statistics.median(again),
                "bytes": n_bytes[0],
            }  # fmt: skip
    return found


def _s3(fsspec: str | None, repeats: int) -> dict[str, Any]:
    """Each task on one server, the ways in turns."""
    from curator.storage.s3_client import client

    ways = {"ours": sys.executable, "obstore": sys.executable} | (
        {"fsspec": fsspec} if fsspec else {}
    )
    bucket = f"libraries-{secrets.token_hex(4)}"
    client().create_bucket(Bucket=bucket)
    try:
        return _s3_tasks(bucket, ways, repeats)
    finally:
        _emptied(bucket)
        client().delete_bucket(Bucket=bucket)


def _s3_tasks(bucket: str, ways: dict[str, str], repeats: int) -> dict[str, Any]:
    from curator.storage import open_store

    store = open_store(f"s3://{bucket}")
    large = random.Random(1).randbytes(1 << 20) * (LARGE_BYTES >> 20)
    store.write("large/object", large)
    digest = hashlib.sha256(large).hexdigest()
    for number in range(N_LISTED):
        store.write(f"listed/{number // 1000}/{number:06}", b"")
    found: dict[str, Any] = {}
    for task in TASKS:
        taken: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        for _ in range(repeats):
            for way, python in ways.items():
                command = [python, os.path.abspath(__file__), "--worker", way, task, bucket]
                done = json.loads(_child(command)[2])
                done["right"] = done["result"] == {"read": digest}.get(task, done["expected"])
                taken[way].append(done)
        print(f"{task}: wall seconds, CPU-seconds (median [min, max])")
        for way, rows in taken.items():
            wall, cpu = ([row[key] for row in rows] for key in ("wall_s", "cpu_s"))
            errors = sum(not row["right"] for row in rows)
            print(f"  {way:8} {_shown(wall)}  {_shown(cpu)}  wrong {errors}")
            found[f"{task}_{way}"] = {
                "wall_s": statistics.median(wall), "cpu_s": statistics.median(cpu), "wrong": errors,
            }  # fmt: skip
    return found


def _emptied(bucket: str) -> None:
    from curator.storage import open_store

    store = open_store(f"s3://{bucket}")
    store.delete([found.key for found in store.list()])


def _worker(way: str, task: str, bucket: str) -> dict[str, Any]:
    """One task; imports and the first connection are not counted."""
    do = {"ours": _ours, "obstore": _obstore, "fsspec": _s3fs}[way](bucket)[task]
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    result = do()
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    expected = {"list": N_LISTED, "put": N_SMALL, "get": N_SMALL * SMALL_BYTES}.get(task)
    return {"wall_s": wall_s, "cpu_s": cpu_s, "result": result, "expected": expected}


def _small() -> Iterator[str]:
    return (f"small/{number:06}" for number in range(N_SMALL))


def _hashed(read: Callable[[int], Any]) -> str:
    digest = hashlib.sha256()
    while block := read(READ_BYTES):
        digest.update(block)
    return digest.hexdigest()


def _ours(bucket: str) -> dict[str, Callable[[], Any]]:
    from curator.storage import open_source, open_store

    store = open_store(f"s3://{bucket}")
    store.exists("nothing")

    def put() -> int:
        for key in _small():
            store.write(key, bytes(SMALL_BYTES))
        return N_SMALL

    def read() -> str:
        with open_source(f"s3://{bucket}/large/object") as stream:
            return _hashed(stream.read)

    return {
        "list": lambda: sum(1 for _ in store.list("listed/")),
        "put": put,
        "get": lambda: sum(len(store.read(key)) for key in _small()),
        "read": read,
    }


def _obstore(bucket: str) -> dict[str, Callable[[], Any]]:
    import obstore
    from obstore.store import S3Store

    endpoint = os.environ["AWS_ENDPOINT_URL"]
    store = S3Store(
        bucket, endpoint=endpoint, client_options={"allow_http": True},
        virtual_hosted_style_request=False,
    )  # fmt: skip
    list(obstore.list(store, "nothing"))

    def put() -> int:
        for key in _small():
            obstore.put(store, key, bytes(SMALL_BYTES), use_multipart=False)
        return N_SMALL

    def read() -> str:
        stream = obstore.open_reader(store, "large/object", buffer_size=8 << 20)
        return _hashed(stream.read)

    return {
        "list": lambda: sum(len(page) for page in obstore.list(store, "listed")),
        "put": put,
        "get": lambda: sum(len(obstore.get(store, key).bytes()) for key in _small()),
        "read": read,
    }


def _s3fs(bucket: str) -> dict[str, Callable[[], Any]]:
    import s3fs

    files = s3fs.S3FileSystem(use_listings_cache=False)
    files.exists(f"{bucket}/nothing")

    def put() -> int:
        for key in _small():
            files.pipe_file(f"{bucket}/{key}", bytes(SMALL_BYTES))
        return N_SMALL

    def read() -> str:
        with files.open(f"{bucket}/large/object", block_size=8 << 20) as stream:
            return _hashed(stream.read)

    return {
        "list": lambda: len(files.find(f"{bucket}/listed")),
        "put": put,
        "get": lambda: sum(len(files.cat_file(f"{bucket}/{key}")) for key in _small()),
        "read": read,
    }


if __name__ == "__main__":
    main()
