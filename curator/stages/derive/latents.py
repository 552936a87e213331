"""The annotator `latents`: latents of windows of each clip, by a VAE class of `diffusers`.

    stages:
      - use: latents
        config: {vae: Wan2.1-T2V-1.3B-Diffusers, size: [832, 480], frames: 81}

`curator/models/video_vae.py` knows the classes, and `latents_facts` gives trainers the facts.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from curator.errors import ModelError, RecipeError, UsageError, raised_as
from curator.family import Array, Family, Place, Scope, Windows
from curator.models.video_vae import (
    Dtype,
    Sample,
    VideoEncoder,
    VideoVae,
    check_diffusers,
    latents_facts,
)
from curator.stage import Annotator, FrameRequest, Resources, SampledClip, StageConfig, setting

__all__ = ("Latents", "LatentsConfig", "latents_facts")

ACTIVATION_BYTES = 4 << 30
"""Memory of a worker besides the weights."""


class LatentsConfig(StageConfig):
    """Settings of latents."""

    vae: str = setting(unit="folder, or owner/name")
    """folder of a VAE as diffusers writes it, or with a folder `vae`; or a repository of the hub
    that is in the local cache"""
    size: tuple[int, int] = setting(unit="px")
    """width and height of the encoded frames; frames are scaled to cover the size, and cropped"""
    frames: int = setting(unit="frames", ge=1)
    """frames of a window, such as 81 for Wan (4n + 1) or 121 for LTX (8n + 1)"""
    every: int | None = setting(None, unit="frames", ge=1)
    """distance between the starts of windows; null: windows follow each other"""
    most: int | None = setting(None, unit="windows", ge=1)
    """maximum number of windows of a clip, spread evenly over it; null: all"""
    stride: int = setting(1, unit="frames", ge=1)
    """a window takes every `stride`-th frame"""
    dtype: Dtype = setting("bf16", unit="bf16, f16 or f32")
    """type of the stored numbers"""
    # diffusers' page on Wan loads the VAE in float32 "for better decoding quality".
    compute: Dtype = setting("f32", unit="bf16, f16 or f32")
    """type of weights and arithmetic; bf16 is faster on a GPU"""
    sample: Sample = setting("mean", unit="mean or draw")
    """mean of the distribution, or a draw from it, which depends only on the clip and its window"""
    scaled: bool = setting(True, unit="true or false")
    """whether latents are normalised as in the pipelines of the VAE's class"""
    tiling: bool = setting(False, unit="true or false")
    """whether large frames are encoded in overlapping tiles: less memory, and other values"""
    batch: int = setting(1, unit="windows", ge=1)
    """windows that are encoded together; with more than one, the last bits depend on the others"""
    place: Place = setting(Place.SIDE, unit="sample or side")
    """in the samples, or in tars of their own, so that other latents write no MP4s again"""


class Latents(Annotator[LatentsConfig]):
    """Encodes windows of each clip; a value is [windows, C, T, H, W]."""

    name = "latents"
    version = 1
    config_type = LatentsConfig
    # The hash of the weights is among the facts.
    results_ignore = frozenset({"vae", "batch", "place"})
    noun = "clip"

    def __init__(self, config: LatentsConfig) -> None:
        super().__init__(config)
        with raised_as(RecipeError, UsageError, ModelError, of="stages: 'latents': "):
            vae = VideoVae.find(config.vae)
            shape = vae.shape(config.frames, config.size, scaled=config.scaled)
            facts = vae.facts(
                size=config.size, dtype=config.dtype, sample=config.sample, scaled=config.scaled
            )
            n_bytes = vae.weights.n_bytes
        self._settings_sha256 = vae.settings_sha256()
        self._encoder: VideoEncoder | None = None
        self.windows = Windows(
            frames=config.frames, every=config.every, most=config.most, stride=config.stride
        )
        self.frames = (FrameRequest(size=config.size, device="gpu"),)
        self.batch = config.batch
        memory_bytes = ACTIVATION_BYTES + 2 * n_bytes
        self.kinds = (
            Resources(gpus=1, memory_bytes=memory_bytes), Resources(memory_bytes=memory_bytes),
        )  # fmt: skip
        self.families = (
            Family(
                "latents",
                Scope.CLIP,
                Array(config.dtype, shape),
                member="latents.safetensors",
                place=config.place,
                facts=facts,
            ),
        )

    def models(self) -> tuple[object, ...]:
        """Returns the digest of the VAE's configuration; the facts have that of its weights."""
        return (self._settings_sha256,)

    def preflight(self) -> None:
        """Raises `ModelError` if diffusers is missing."""
        check_diffusers()

    def setup(self) -> None:
        """Loads the weights.

        Raises:
            ModelError: This machine has other weights than the one that planned the run.
        """
        import torch

        config = self.config
        vae = VideoVae.find(config.vae)
        expected = str(self.families[0].facts["weights"])
        if (digest := vae.weights.sha256()) != expected:
            raise ModelError(
                f"vae {config.vae!r}: the weights of {vae.folder} have the SHA-256 "
                f"{digest[:12]}…; expected {expected[:12]}…, which the run was planned with"
            )
        on = "cuda" if torch.cuda.is_available() else "cpu"
        self._encoder = vae.load(dtype=config.compute, on=on, tiling=config.tiling)

    def process(self, unit: Sequence[SampledClip]) -> list[Any]:
        """Returns a tensor [C, T, H, W] for each window."""
        import torch

        assert self._encoder is not None
        frames = torch.stack([window.frames for window in unit])
        seeds = [_seed(window) for window in unit] if self.config.sample == "draw" else None
        latents = self._encoder.encode(frames, seeds, scaled=self.config.scaled)
        kinds = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
        stored = latents.to(kinds[self.config.dtype])
        for window, values in zip(unit, stored, strict=True):
            if not torch.isfinite(values).all():
                raise ValueError(
                    f"the window from frame {window.start} gave NaN or infinity as "
                    f"{self.config.dtype}, computed in {self.config.compute}; try compute: f32 and "
                    "dtype: bf16"
                )
        return list(stored.cpu())


def _seed(window: SampledClip) -> int:
    """Returns a seed that depends only on the clip and on its window."""
    text = f"{window.facts.clip_id} {window.start}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])
