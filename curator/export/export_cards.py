"""Dataset cards for tars that get indexes: without one, indexes mislead `datasets`.

Hugging Face `datasets` goes by suffixes where no card says otherwise, and takes `.tar.idx` for a
tar. Existing cards are kept, because people edit them.
"""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from curator.errors import ShardError
from curator.export.job import Job
from curator.stages.shard.dataset_card import CARD, dataset_card
from curator.stages.shard.tar_reader import SPLITS, TEXT_VECTOR, Shard, TarReader


def put_cards(job: Job) -> None:
    """Writes missing cards next to the tars, one for all of them and one for each bucket.

    Other destinations get none, because they do not have the tars. Cards that a manifest does not
    name are not written either: `curate verify` would report them.
    """
    if job.store.uri != job.shards.uri("").rstrip("/"):
        return
    buckets = sorted({shard.bucket for shard in job.chosen if shard.bucket})
    for folder in ("", *(f"{bucket}/" for bucket in buckets)):
        name = f"{folder}{CARD}"
        inside = [shard for shard in job.chosen if shard.name.startswith(folder)]
        is_of_set = job.shards.manifest is None or name in job.shards.manifest.get("files", {})
        if inside and is_of_set and not job.store.exists(name):
            job.place.put(name, _card(job, inside, folder))


def _card(job: Job, shards: Sequence[Shard], folder: str) -> bytes:
    names: dict[str, list[str]] = {split: [] for split in SPLITS}
    for shard in shards:
        names[shard.split].append(shard.name.removeprefix(folder))
    first = _first_sample(job, shards[0])
    metadata: dict[str, Any] = orjson.loads(first.get("json", b"{}"))
    vector = first.get(TEXT_VECTOR)
    return dataset_card(
        names,
        with_embedding="npy" in first,
        with_id="id" in first,
        with_annotation="annotation" in metadata,
        text_vector_dims=np.load(io.BytesIO(vector)).ndim if vector is not None else 0,
        fields=metadata.keys(),
    )


def _first_sample(job: Job, shard: Shard) -> dict[str, bytes]:
    """Returns members of a tar's first sample by suffix; does not read the MP4.

    Raises:
        ShardError: The tar is damaged.
    """
    found: dict[str, bytes] = {}
    key = None
    with job.shards.store.open(job.shards.key(shard.name)) as stream:
        reader = TarReader(stream.read, job.shards.sizes[shard.name], seek=stream.seek)
        try:
            for member in reader:
                if key not in (None, member.key):
                    break
                key = member.key
                found[member.suffix] = b"" if member.suffix == "mp4" else reader.read(member)
        except ShardError as error:
            raise ShardError(f"{job.shards.uri(shard.name)}: {error}") from error
    return found
