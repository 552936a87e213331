#!/usr/bin/env python3
"""Measures the loader's arithmetic: planning an epoch, and moving a state to other ranks.

    epoch_plan.py [--clips 10000000] [--ranks 64] [--workers 8]

No clip is read. *Plan* divides an epoch and draws the first batch of a worker. *Move* replays what
a state within the epoch consumed, and divides the rest for half as many ranks.
"""

import time

import numpy as np
from measure import arguments, spread, tell

from curator.loading.batch_plan import BatchClass, Corpus, Geometry, Plan, Stretch

CLIPS_PER_TAR, BATCH, ROUNDS = 1000, 4, 5


def main() -> None:
    """Measures, and prints a table and a line of JSON."""
    parser = arguments(__doc__)
    parser.add_argument("--clips", type=int, default=10_000_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--workers", type=int, default=8)
    args = parser.parse_args()
    n_tars = max(1, args.clips // CLIPS_PER_TAR)
    corpus = Corpus(
        sizes=np.full(n_tars, CLIPS_PER_TAR),
        classes=np.zeros(n_tars, np.int64),
        outputs=np.zeros(n_tars, np.int64),
        batch_classes=(BatchClass(name="*", streams=8),),
        shuffle=64,
    )
    old = Geometry(args.ranks, args.workers, (BATCH,), True)
    steps = args.clips // (BATCH * args.ranks) // 2
    seconds: dict[str, list[float]] = {"plan": [], "move": []}
    for _ in range(ROUNDS):
        begun_s = time.process_time()
        next(Plan(corpus, old).schedule(0, (), args.workers).batches(0, 0))
        seconds["plan"].append(time.process_time() - begun_s)
        begun_s = time.process_time()
        plan = Plan(corpus, old._replace(world_size=max(1, args.ranks // 2)))
        stretch = Stretch(old, (steps,) * args.ranks)
        next(plan.schedule(0, (stretch,), args.workers).batches(0, 0))
        seconds["move"].append(time.process_time() - begun_s)
    for name, values in seconds.items():
        print(f"{name}: {spread(values)} CPU-s")
    tell({"options": {key: str(value) for key, value in vars(args).items()}, "cpu_s": seconds})


if __name__ == "__main__":
    main()
