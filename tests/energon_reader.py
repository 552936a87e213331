"""Reads all samples of folders of shards by Megatron-Energon, in a process of its own.

usage: energon_reader.py FOLDER WORKERS [FOLDER WORKERS ...]

The last line is JSON. For each folder it has, by split, the key of each sample and the SHA-256 of
each of its members.
"""

import hashlib
import json
import sys
from typing import Any

from megatron.energon import (
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    WorkerConfig,
    get_loader,
    get_val_dataset,
    stateless,
)
from megatron.energon.flavors import EmptyDatasetError


@stateless
def cook(sample: CrudeSample) -> CrudeSample:
    return sample


class Raw(DefaultTaskEncoder):
    """Leaves samples as they are."""

    decoder = None
    cookers = (Cooker(cook),)


def read(folder: str, split: str, workers: int) -> list[list[Any]]:
    config = WorkerConfig(rank=0, world_size=1, num_workers=workers)
    try:
        dataset = get_val_dataset(
            folder, split_part=split, worker_config=config, batch_size=None, task_encoder=Raw()
        )
    except EmptyDatasetError:
        return []
    return [
        [
            sample["__key__"],
            {
                name: hashlib.sha256(data).hexdigest()
                for name, data in sorted(sample.items())
                if not name.startswith("__")
            },
        ]
        for sample in get_loader(dataset)
    ]


if __name__ == "__main__":
    found = [
        {split: read(folder, split, int(workers)) for split in ("train", "val")}
        for folder, workers in zip(sys.argv[1::2], sys.argv[2::2], strict=True)
    ]
    print(json.dumps(found))
