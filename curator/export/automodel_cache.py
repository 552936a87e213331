"""Caches of NeMo Automodel for Wan: `.meta` files by size, with indexes.

Automodel joins the texts of a batch, so all have one length: zeros follow the last token, as after
its own preprocessing. A file says whether its latents are means.

Source: NeMo Automodel 36044ad: `tools/diffusion/preprocessing_multiprocess.py`,
`tools/diffusion/processors/wan.py`, `nemo_automodel/components/datasets/diffusion`.
"""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from curator.dataset.tar_reader import Shard
from curator.export.job import Job
from curator.export.window_values import (
    WAN_VAE,
    ValueExporter,
    ValueOptions,
    WindowValue,
    latents_of,
    saved,
)

Entries = list[dict[str, Any]]


class AutomodelOptions(ValueOptions):
    """Options of the format."""

    # `MAX_SEQUENCE_LENGTH` of the trainer's processor of Wan.
    tokens: int = Field(226, ge=1)
    """length of all texts, with zeros after the last token (default: 226)"""


class AutomodelCache(ValueExporter[AutomodelOptions, Entries]):
    """Writes `<split>/<width>x<height>/<window>.meta`, and the indexes of a split."""

    about = "<split>/WxH/*.meta and metadata.json, latents and texts: NeMo Automodel, Wan"
    options_type = AutomodelOptions
    suffixes = (".meta",)
    reader = "NeMo Automodel"
    latent_facts = latents_of(WAN_VAE, scaled=True, samples=("mean", "draw"))

    def __init__(self, options: AutomodelOptions) -> None:
        super().__init__(options)
        self.max_tokens = options.tokens

    def shard(self, job: Job, shard: Shard) -> Entries:
        """Writes the files of a shard; returns their entries of the index."""
        entries = []
        for clip in self.clips(job, shard):
            for window in self.values(job, clip):
                facts = self._facts(job, window)
                width, height = window.size
                key = f"{shard.split}/{width}x{height}/{window.name}.meta"
                job.place.put(key, saved(self._tensors(window) | facts))
                address = {"cache_file": f"{job.store.uri}/{key}", "pixels": width * height}
                entries.append(address | facts)
        return entries

    def _facts(self, job: Job, window: WindowValue) -> dict[str, Any]:
        """Returns what files and index say of a window."""
        clip, (width, height) = window.clip, window.size
        return {
            "video_path": f"{job.shards.uri(clip.shard.name)}#{clip.file_name}",
            "original_resolution": [clip.fields["width"], clip.fields["height"]],
            "bucket_resolution": [width, height],
            "bucket_id": None,
            "aspect_ratio": width / height,
            "num_frames": window.n_frames,
            "prompt": clip.text,
            "model_type": "wan",
        }

    def _tensors(self, window: WindowValue) -> dict[str, Any]:
        """Returns the values of a window, each with an axis for the batch."""
        import torch

        assert window.text is not None
        n_padding = self.options.tokens - len(window.text)
        return {
            "video_latents": window.latents[None],
            "text_embeddings": torch.nn.functional.pad(window.text, (0, 0, 0, n_padding))[None],
            "first_frame": None,
            "deterministic_latents": self.facts["sample"] == "mean",
            "processing_mode": "video",
        }

    def split(self, job: Job, split: str, results: Iterator[Entries]) -> None:
        """Writes the indexes; the one that readers open comes last."""
        entries = [entry for entries in results for entry in entries]
        name = "metadata_shard_0000.json"
        index = {
            "processor": "wan", "model_type": "wan", "total_items": len(entries),
            "num_shards": 1, "shard_size": len(entries), "shards": [name],
        }  # fmt: skip
        for path, value in ((name, entries), ("metadata.json", index)):
            data = json.dumps(value, indent=1).encode()
            job.place.put(f"{split}/{path}", data)
