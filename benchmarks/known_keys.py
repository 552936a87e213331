"""Times how a run finds what is stored: by the index of keys, and by the footers of all parts.

    python benchmarks/known_keys.py [--sources 10000 100000]

Parts of 32 sources each are made in a folder without their rows. Requests are opened objects; each
way is taken five times, the first not counted. What was found: benchmarks/results/corpus.md.
"""

import argparse
import hashlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import BinaryIO

import pyarrow as pa
from measure import machine

from curator.storage.local_store import LocalStore
from curator.tables.key_index import KnownKeys, part_versions
from curator.tables.parts import Parts

PER_PART = 32
ROUNDS = 5
FOLDER = "tracks/frames"


class CountingStore(LocalStore):
    """Counts opened objects."""

    n_opened = 0

    def open(self, key: str) -> BinaryIO:
        """Opens an object."""
        CountingStore.n_opened += 1
        return super().open(key)


def spent(work: Callable[[], object]) -> tuple[int, list[float]]:
    """Returns requests, and CPU-seconds of each round but the first."""
    seconds = []
    for _ in range(1 + ROUNDS):
        CountingStore.n_opened, begun = 0, time.process_time()
        work()
        seconds.append(time.process_time() - begun)
    return CountingStore.n_opened, seconds[1:]


def measured(n_sources: int) -> dict[str, object]:
    """Measures both ways for some number of sources."""
    ids = [hashlib.md5(str(n).encode()).hexdigest() for n in range(n_sources)]
    with tempfile.TemporaryDirectory() as root:
        store = CountingStore(root)
        parts = Parts(store, FOLDER, 16 * "a")
        for start in range(0, n_sources, PER_PART):
            parts.write(pa.table({"n": [0]}), ids[start : start + PER_PART])
        new = ids[-n_sources // 100 :]

        def find(*, may_write: bool = False) -> None:
            there = part_versions(store, FOLDER)
            known = KnownKeys.of(store, FOLDER, there, list(there), may_write=may_write)
            assert None not in known.find(new)

        result: dict[str, object] = {"sources": n_sources, "parts": len(parts.names())}
        for name in ("footers", "index"):
            n_requests, seconds = spent(find)
            result[name] = {
                "requests": n_requests,
                "cpu_s": round(statistics.median(seconds), 4),
                "cpu_s_range": [round(bound(seconds), 4) for bound in (min, max)],
            }
            find(may_write=True)
        result["index_bytes"] = sum(info.bytes for info in store.list("index/"))
        return result


def main() -> None:
    """Prints a line per number of sources, and all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=int, nargs="+", default=[10_000, 100_000])
    results = [measured(n_sources) for n_sources in parser.parse_args().sources]
    for result in results:
        print(result)
    print(json.dumps({"machine": machine(), "results": results}))


if __name__ == "__main__":
    main()
