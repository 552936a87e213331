"""Tries random histories of an output root: is anything deleted that a snapshot names?

    python benchmarks/histories.py [--seeds 62] [--branches 3 3 3 3 4] [--first 100]

Each seed makes a tree of histories of small runs (`tests/faults/out_histories.py`). The promises:
no object that an existing snapshot names is deleted, no kept clip leaves without a message and
`--replace`, and `verify` advises to delete nothing that a snapshot names. Prints each violation
with its steps.
"""

import logging
import shutil
import tempfile
import time
from math import prod
from pathlib import Path

import tests_path  # noqa: F401
from faults.out_histories import explore
from measure import arguments, tell


def main() -> None:
    """Runs the benchmark."""
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=62, help="trees (default: %(default)s)")
    parser.add_argument("--first", type=int, default=100, help="seed of the first tree")
    parser.add_argument("--branches", type=int, nargs="+", default=[3, 3, 3, 3, 4])
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    n_histories, violations, begun = 0, [], time.process_time()
    for seed in range(options.first, options.first + options.seeds):
        folder = Path(tempfile.mkdtemp())
        n, more = explore(folder, seed, options.branches)
        shutil.rmtree(folder)
        n_histories += n
        violations += more
        print(f"seed {seed}: {n} of {prod(options.branches)} histories to the end", flush=True)
        print(*more, sep="\n", end="\n" if more else "", flush=True)
    print(f"\n| histories | steps each | violations |\n|---|---|---|\n"
          f"| {n_histories} | {len(options.branches)} | {len(violations)} |")  # fmt: skip
    tell({
        "histories": n_histories, "steps": len(options.branches), "violations": len(violations),
        "cpu_s": round(time.process_time() - begun, 1),
    })  # fmt: skip


if __name__ == "__main__":
    main()
