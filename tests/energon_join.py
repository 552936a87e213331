"""Reads a folder of shards joined with a family beside the samples, by Megatron-Energon.

usage: energon_join.py FOLDER FAMILY MEMBER NONMATCH

The last line is JSON: for each sample its key, and the numbers of the family's value, or null.
"""

import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from energon_reader import Raw
from megatron.energon import CrudeSample, WorkerConfig, get_loader, get_val_dataset
from megatron.energon.epathlib import EPath
from megatron.energon.metadataset.loader import prepare_metadataset


def joined(sample: CrudeSample, beside: CrudeSample | None) -> CrudeSample:
    """Adds the members of the second sample to the first."""
    return CrudeSample({**(beside or {}), **sample})


if __name__ == "__main__":
    folder, family, member, nonmatch = sys.argv[1:]
    with tempfile.TemporaryDirectory() as work:
        path = Path(work, "joined.yaml")
        both = [{"path": folder}, {"path": f"{folder}/side/{family}", "nonmatch": nonmatch}]
        joiner = {"__module__": "energon_join", "__function__": "joined"}
        meta: dict[str, Any] = {
            "__module__": "megatron.energon",
            "__class__": "MetadatasetV2",
            "splits": {"val": {"split_part": "train", "join": both, "joiner": joiner}},
        }
        path.write_text(yaml.safe_dump(meta))
        prepare_metadataset(EPath(path))
        config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        dataset = get_val_dataset(path, worker_config=config, batch_size=None, task_encoder=Raw())
        found = {}
        for sample in get_loader(dataset):
            value = sample.get(member)
            numbers = None if value is None else np.load(io.BytesIO(value)).tolist()
            found[sample["__key__"]] = numbers
    print(json.dumps(found))
