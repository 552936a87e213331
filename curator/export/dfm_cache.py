"""Caches of NeMo DFM for Wan: tars for Energon, with the members `pth`, `pickle` and `json`.

DFM pads texts itself. Energon opens the folder as it is, because the export writes its indexes.

Source: NeMo DFM 7cb7634: `examples/common/wan/prepare_dataset_wan.py`,
`dfm/src/megatron/data/wan/wan_taskencoder.py`.
"""

import io
import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import orjson

from curator.dataset.shard_index import DATASET_SCHEMA, DescribedTar, energon_files, index_bytes
from curator.dataset.shard_plan import tar_header
from curator.dataset.tar_reader import BLOCK, Shard, index_name
from curator.export.job import Job
from curator.export.window_values import (
    WAN_VAE,
    ValueExporter,
    ValueOptions,
    WindowValue,
    latents_of,
    saved,
)

if TYPE_CHECKING:
    from torch import Tensor


class DfmCache(ValueExporter[ValueOptions, DescribedTar]):
    """Writes `<split>/<bucket>_<number>-<hash>-<settings>.tar`, `.tar.idx`, and `.nv-meta`."""

    about = "<split>/*.tar and .nv-meta, latents and texts for Energon: NeMo DFM, Wan"
    options_type = ValueOptions
    folder = ""
    suffixes = (".tar",)
    reader = "NeMo DFM"
    latent_facts = latents_of(WAN_VAE, scaled=True, samples=("mean", "draw"))

    def __init__(self, options: ValueOptions) -> None:
        super().__init__(options)
        self._tars: list[DescribedTar] = []

    def shard(self, job: Job, shard: Shard) -> DescribedTar:
        """Writes a shard's tar and its index."""
        key = f"{shard.split}/{self.object_name(job, shard)}.tar"
        n_index_bytes = job.place.size(index_name(key))
        if job.place.size(key) is not None and n_index_bytes is not None:
            self.reuse(job, shard, key, index_name(key))
            return _described(shard, key, n_index_bytes // 8 - 1)
        offsets = [0]
        with job.place.create(key) as output:
            for clip in self.clips(job, shard):
                for window in self.values(job, clip):
                    data = b"".join(self._members(job, window))
                    output.write(data)
                    offsets.append(offsets[-1] + len(data))
            output.write(bytes(2 * BLOCK))
        job.exported.add(bytes=offsets[-1] + 2 * BLOCK)
        job.place.put(index_name(key), index_bytes(offsets))
        return _described(shard, key, len(offsets) - 1)

    def _members(self, job: Job, window: WindowValue) -> Iterator[bytes]:
        """Yields the members of a sample, each with its header."""
        assert window.text is not None
        clip, (width, height) = window.clip, window.size
        facts = {
            "video_path": f"{job.shards.uri(clip.shard.name)}#{clip.file_name}",
            "start_frame": window.start,
            "processed_frames": window.n_frames,
            "processed_height": height,
            "processed_width": width,
            "fps": float(window.fps),
            "caption": clip.text,
            "deterministic_latents": self.facts["sample"] == "mean",
            "processing_mode": "video",
        }
        members = {
            "pth": saved(window.latents),
            "pickle": pickled(window.text),
            "json": orjson.dumps(facts, option=orjson.OPT_SORT_KEYS),
        }
        for suffix, data in members.items():
            yield tar_header(f"{window.name}.{suffix}", len(data))
            yield data + bytes(-len(data) % BLOCK)

    def split(self, job: Job, split: str, results: Iterator[DescribedTar]) -> None:
        """Stores the tars that have samples."""
        self._tars += [tar for tar in results if tar.samples]

    def finish(self, job: Job) -> None:
        """Writes the files that name all tars."""
        tars = sorted(self._tars, key=lambda tar: tar.name)
        for name, data in energon_files(tars, DATASET_SCHEMA.empty_table(), prefix=""):
            job.place.put(f".nv-meta/{name}", data)
        # For Energon 6, which DFM pins. JSON is YAML.
        counts = {tar.name: tar.samples for tar in tars}
        job.place.put(".nv-meta/.info.yaml", orjson.dumps({"shard_counts": counts}))


def _described(shard: Shard, key: str, n_samples: int) -> DescribedTar:
    return DescribedTar(
        name=key, bucket=shard.bucket, split=shard.split, samples=n_samples, bytes=0
    )


class _Loaded:
    """Bytes that `pickle.loads` reads with `torch.load`."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[io.BytesIO]]:
        import torch

        return torch.load, (io.BytesIO(self._data),)


def pickled(tensor: "Tensor") -> bytes:
    """Returns a tensor as a pickle; torch's own pickles contain addresses of memory."""
    return pickle.dumps(_Loaded(saved(tensor)), protocol=4)
