"""Video VAEs of the real classes with few random weights, as `save_pretrained` writes them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_HUNYUAN_BLOCKS = {
    "down_block_types": ("HunyuanVideoDownBlock3D",) * 4,
    "up_block_types": ("HunyuanVideoUpBlock3D",) * 4,
}
TINY: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "wan2.1": ("AutoencoderKLWan", {
        "base_dim": 4, "z_dim": 4, "num_res_blocks": 1, "latents_mean": [0.5, -1.0, 0.1, 0.2],
        "latents_std": [2.8184, 1.4541, 2.3275, 0.7],
    }),
    "wan2.2": ("AutoencoderKLWan", {
        "base_dim": 8, "z_dim": 4, "num_res_blocks": 1, "latents_mean": [0.5, -1.0, 0.1, 0.2],
        "latents_std": [2.8184, 1.4541, 2.3275, 0.7], "is_residual": True, "patch_size": 2,
        "in_channels": 12, "out_channels": 12, "scale_factor_spatial": 16,
    }),
    "ltx": ("AutoencoderKLLTXVideo", {
        "latent_channels": 8, "block_out_channels": (8, 8, 8, 8),
        "decoder_block_out_channels": (8, 8, 8, 8), "layers_per_block": (1, 1, 1, 1, 1),
        "decoder_layers_per_block": (1, 1, 1, 1, 1),
    }),
    "ltx2": ("AutoencoderKLLTX2Video", {
        "latent_channels": 8, "block_out_channels": (8, 16, 32, 64),
        "decoder_block_out_channels": (8, 16, 32), "layers_per_block": (1, 1, 1, 1, 1),
        "decoder_layers_per_block": (1, 1, 1, 1), "spatial_compression_ratio": 32,
        "temporal_compression_ratio": 8,
    }),
    "hunyuan": ("AutoencoderKLHunyuanVideo", {
        "latent_channels": 4, "block_out_channels": (8, 8, 8, 8), "layers_per_block": 1,
        "norm_num_groups": 4, "mid_block_add_attention": True,
    }),
    "hunyuan1.5": ("AutoencoderKLHunyuanVideo15", {
        "latent_channels": 4, "block_out_channels": (8, 8, 8, 8, 8), "layers_per_block": 1,
    }),
    "cogvideox": ("AutoencoderKLCogVideoX", {
        "latent_channels": 4, "block_out_channels": (8, 8, 8, 8), "layers_per_block": 1,
        "norm_num_groups": 2,
    }),
    "cosmos": ("AutoencoderKLCosmos", {
        "latent_channels": 4, "encoder_block_out_channels": (8, 8, 8, 8),
        "decode_block_out_channels": (8, 8, 8, 8), "attention_resolutions": (8,),
        "resolution": 64, "num_layers": 1, "latents_mean": [n / 10 for n in range(64)],
        "latents_std": [1 + n / 7 for n in range(64)],
    }),
    "mochi": ("AutoencoderKLMochi", {
        "latent_channels": 4, "encoder_block_out_channels": (32, 32, 32, 32),
        "decoder_block_out_channels": (32, 32, 32, 32), "layers_per_block": (1, 1, 1, 1, 1),
        "latents_mean": [0.5, -1.0, 0.1, 0.2], "latents_std": [2.8184, 1.4541, 2.3275, 0.7],
    }),
}  # fmt: skip
"""Class and its settings by name."""


def write_vae(folder: Path, name: str, seed: int = 0, **settings: object) -> Path:
    """Writes a VAE with random weights; returns its folder."""
    import diffusers
    import torch

    class_name, own = TINY[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(diffusers, class_name)(**(dict(own) | settings))
        for buffer, values in model.named_buffers():
            if buffer.startswith("latents_"):
                values.uniform_(0.5, 2.0)
        model.save_pretrained(folder)
    return folder
