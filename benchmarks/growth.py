"""Counts the S3 requests of growth: a first run, twice 1% more sources, and a changed bound.

    eval "$(SERVER)"      # AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY of any server
    python benchmarks/growth.py [--sources 200] [--set run.mode=growing]

Films of three seconds, made by code, are in a bucket of their own, which is removed at the end. A
proxy between the runs and the server counts requests; `--by-key` prints what they were for. What
was found: benchmarks/results/corpus.md.
"""

import argparse
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import tests_path  # noqa: F401
from fault_proxy import FaultProxy
from film_makers import write_video
from film_shots import moving_texture
from measure import machine

from curator.storage import open_store
from curator.storage.s3_client import client

SETTINGS = (
    "filters.short_side_px.min=60", "shard.resolutions=[64, 120]", "propose.min_s=0.5",
    "propose.max_s=1", "filters.sharpness.min=0", "dedup.enabled=false", "shard.max_bytes=1000000",
    "shard.min_bytes=1",
)  # fmt: skip


def run(sources: str, out: str, *more: str) -> float:
    """Runs `curate`; returns seconds."""
    sets = [word for setting in (*SETTINGS, *more) for word in ("--set", setting)]
    begun = time.monotonic()
    command = [sys.executable, "-m", "curator.cli", "run", sources, out, *sets]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - begun


def tars(out: str) -> set[str]:
    """Names of the tars under an output root."""
    return {info.key for info in open_store(out).list("shards/") if info.key.endswith(".tar")}


class Asked(Counter[str]):
    """Counts requests by method and folder, or name where it is no hash."""

    def note(self, _number: int, method: str, path: str) -> None:
        """Counts a request; as `FaultProxy.refuse`, which lets it pass."""
        where = urlsplit(path)
        query = parse_qs(where.query, keep_blank_values=True)
        key = unquote(where.path).partition("/")[2].partition("/")[2]
        if "list-type" in query:
            method, key = "LIST", query["prefix"][0]
        key = re.sub(r"[0-9a-f]{8,}|\d{6,}", "*", key)
        self[
            f"{method} {key}{'?uploads' * ('uploads' in query)}{'?delete' * ('delete' in query)}"
        ] += 1


def main() -> None:
    """Prints a line per run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=int, default=200)
    parser.add_argument("--delay-ms", type=float, default=0.0, help="added to each request")
    parser.add_argument("--by-key", action="store_true", help="print what requests were for")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args()
    server, bucket = os.environ["AWS_ENDPOINT_URL"], f"growth-{secrets.token_hex(4)}"
    n_more = max(1, options.sources // 100)
    print(json.dumps(machine()), flush=True)
    client().create_bucket(Bucket=bucket)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(options.sources + 2 * n_more):
                path = Path(folder) / f"{number:06}.mp4"
                frames = moving_texture(75, seed=number, width_px=160, height_px=120)
                write_video(path, frames, fps=Fraction(25))
                group = "first" if number < options.sources else "more"
                group = "again" if number >= options.sources + n_more else group
                client().upload_file(str(path), bucket, f"in/{group}/{path.name}")
        asked = Asked()
        proxied = FaultProxy(
            server=server, share=0.0, delay_s=options.delay_ms / 1000, refuse=asked.note
        )
        with proxied as proxy:
            os.environ["AWS_ENDPOINT_URL"] = proxy.url
            out = f"s3://{bucket}/out"
            first, more, again = (f"s3://{bucket}/in/{name}" for name in ("first", "more", "again"))
            cases: list[tuple[str, str, tuple[str, ...]]] = [
                ("first run", first, ()),
                ("nothing changed", first, ()),
                ("1% more, named alone", more, ()),
                ("1% more again", again, ()),
                ("a bound changed", more, ("filters.motion.min=0.02",)),
            ]
            whole = 0
            for name, sources, changes in cases:
                standing = tars(out)
                begun = proxy.counts["requests"]
                asked.clear()
                seconds = run(sources, out, *options.overrides, *changes)
                n_requests = proxy.counts["requests"] - begun
                by_key = asked.most_common() if options.by_key else []
                whole = whole or n_requests
                now = tars(out)
                summary: dict[str, Any] = json.loads(open_store(out).read("summary.json"))
                print(
                    f"{name}: {n_requests} requests ({n_requests / whole:.1%} of the first run's), "
                    f"{seconds:.1f} s, {summary['counts']['kept']} clips, tars: "
                    f"{len(now - standing)} new, {len(standing - now)} gone, {len(now)} there",
                    flush=True,
                )
                for key, count in by_key:
                    print(f"{count:>8}  {key}")
            os.environ["AWS_ENDPOINT_URL"] = server
    finally:
        store = open_store(f"s3://{bucket}/")
        store.delete([info.key for info in store.list()])
        client().delete_bucket(Bucket=bucket)


if __name__ == "__main__":
    main()
