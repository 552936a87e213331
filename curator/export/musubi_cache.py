"""Caches of musubi-tuner for Wan: a file of latents per window, and a file of the text per clip.

musubi-tuner knows a window by the name of its file: clip, first frame, frames, width and height.
Its encoder returns scaled means, and it stores texts without padding.

Source: musubi-tuner 30c658c: `dataset/cache_io.py`, `dataset/image_video_dataset.py` and
`wan_cache_latents.py` of `src/musubi_tuner`.
"""

import json
from collections.abc import Iterator

from curator.dataset.tar_reader import Shard
from curator.export.job import Job
from curator.export.window_values import (
    WAN_VAE,
    ValueExporter,
    ValueOptions,
    WindowValue,
    dtype_name,
    latents_of,
)
from curator.value_header import sorted_safetensors

_VERSION = {"architecture": "wan", "format_version": "1.0.1"}
_CONFIG = """[general]
resolution = [{width}, {height}]
batch_size = 1
enable_bucket = false

[[datasets]]
video_directory = {folder}
cache_directory = {folder}
target_frames = [{n_frames}]
"""
"""A dataset file. The trainer reads only the caches, but wants a folder of videos and a length."""


class MusubiCache(ValueExporter[ValueOptions, None]):
    """Writes `<split>/*_wan.safetensors`, `<split>/*_wan_te.safetensors`, `<split>/musubi.toml`."""

    about = "<split>/*.safetensors and musubi.toml, caches of latents and texts: musubi-tuner, Wan"
    options_type = ValueOptions
    suffixes = (".safetensors",)
    reader = "musubi-tuner"
    latent_facts = latents_of(WAN_VAE, scaled=True)

    def shard(self, job: Job, shard: Shard) -> None:
        """Writes the files of a shard."""
        for clip in self.clips(job, shard):
            for number, window in enumerate(self.values(job, clip)):
                if number == 0:
                    key = f"{shard.split}/{clip.key}_wan_te.safetensors"
                    job.place.put(key, _text(window))
                job.place.put(f"{shard.split}/{_name(window)}", _latents(window))

    def split(self, job: Job, split: str, results: Iterator[None]) -> None:
        """Writes the dataset file, after all caches."""
        for _ in results:
            pass
        width, height = self.size
        folder = json.dumps(f"{job.store.uri}/{split}", ensure_ascii=False)
        config = _CONFIG.format(
            width=width, height=height, folder=folder, n_frames=self.windows.frames
        )
        # A folder may have a name that is no UTF-8.
        job.place.put(f"{split}/musubi.toml", config.encode(errors="surrogateescape"))


def _name(window: WindowValue) -> str:
    width, height = window.size
    place = f"{window.start:05d}-{window.n_frames:03d}"
    return f"{window.clip.key}_{place}_{width:04d}x{height:04d}_wan.safetensors"


def _latents(window: WindowValue) -> bytes:
    from safetensors.torch import save

    _, n_frames, height, width = window.latents.shape
    key = f"latents_{n_frames}x{height}x{width}_{dtype_name(window.latents)}"
    facts = {
        "width": str(window.size[0]), "height": str(window.size[1]),
        "frame_count": str(window.n_frames),
    }  # fmt: skip
    return sorted_safetensors(save({key: window.latents}, _VERSION | facts))


def _text(window: WindowValue) -> bytes:
    from safetensors.torch import save

    assert window.text is not None
    key = f"varlen_t5_{dtype_name(window.text)}"
    metadata = _VERSION | {"caption1": window.clip.text}
    return sorted_safetensors(save({key: window.text.contiguous()}, metadata))
