#!/usr/bin/env python3
"""Compares the CPU time of the search for duplicates in two checkouts, among the clips of a run.

    pair_cost.py OUT CHECKOUT CHECKOUT [--repeats 5]

Each process proposes and verifies all pairs of the clips of OUT, as a run without stored pairs
does. The checkouts take turns, so that other work on the machine reaches both. The pairs must be
the same, with all their values.
"""

import json
import statistics
from pathlib import Path

from measure import arguments, in_checkout, tell

SEARCH = """
import hashlib, json, sys, time
import pyarrow.parquet as pq
from curator.executor.corpus_work import CorpusWork
from curator.stages.dedup.near_duplicates import find_pairs
from curator.storage import open_store
from curator.tables.footage_store import FootageStore

out = sys.argv[1]
store = open_store(out)
names = [info.key for info in store.list("candidates/footage/")]
ids = pq.read_table(out + "/clips", columns=["clip_id"])["clip_id"].combine_chunks()
begun_s = time.process_time()
pairs = find_pairs(
    FootageStore.of(store, names), ids, ids, (), CorpusWork("dedup"),
    known_places=(), similarity=0.5, neighbours=16,
)
found = sorted(map(repr, pairs))
spent_s = time.process_time() - begun_s
digest = hashlib.sha256("".join(found).encode()).hexdigest()
print(json.dumps({"cpu_s": spent_s, "n_pairs": len(found), "digest": digest}))
"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("out", type=Path, help="the folder of a finished run")
    parser.add_argument("checkouts", type=Path, nargs="+", help="folders of checkouts")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    spent: dict[str, list[float]] = {str(checkout): [] for checkout in options.checkouts}
    found = set()
    for _ in range(options.repeats):
        for checkout in options.checkouts:
            cost = in_checkout(checkout.resolve(), ["-c", SEARCH, str(options.out.resolve())])
            searched = json.loads(cost.output.splitlines()[-1])
            spent[str(checkout)].append(round(searched["cpu_s"], 2))
            found.add((searched["n_pairs"], searched["digest"]))
    if len(found) != 1:
        raise SystemExit(f"the checkouts find different pairs: {sorted(found)}")
    ((n_pairs, _),) = found
    for name, values in spent.items():
        print(f"{name}: {statistics.median(values):.2f} CPU-s (least {min(values):.2f})")
    tell({"n_pairs": n_pairs, "cpu_s": spent})


if __name__ == "__main__":
    main()
