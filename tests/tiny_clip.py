"""A small CLIP of the real architecture with random weights, and a models folder that has it."""

from pathlib import Path
from typing import Any

import numpy as np
import yaml

TINY: dict[str, Any] = {
    "embed_dim": 32,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 64, "layers": 2, "width": 64, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
}


def random_model(config: dict[str, Any], seed: int = 0) -> Any:  # noqa: ANN401
    """open_clip's own model of a configuration."""
    import torch
    from open_clip import CLIP

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CLIP(**config).eval()
        # As initialised, unlike pictures are nearly one to it.
        for parameter in model.visual.parameters():
            parameter.data *= 2.0 if parameter.ndim == 2 else 1.0
        return model


def save_weights(model: Any, path: Path) -> None:  # noqa: ANN401
    """Writes weights as the hub has them."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.clone().contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, str(path))


def tiny_folder(folder: Path, *, seed: int = 0) -> Path:
    """A models folder with `test-tiny`, and `test-head`, an aesthetic head that reads it."""
    import torch

    save_weights(random_model(TINY, seed), folder / "test-tiny" / "model.safetensors")
    random = np.random.default_rng(seed)
    head = {
        "weight": torch.from_numpy(random.normal(size=(1, 32)).astype(np.float32)),
        "bias": torch.tensor([5.0]),
    }
    (folder / "test-head").mkdir(exist_ok=True)
    torch.save(head, folder / "test-head" / "head.pth")
    entries = {
        "test-tiny": {
            "kind": "clip", "about": "for tests", "config": TINY, "dim": 32,
            "file": "model.safetensors", "licence": "none",
        },
        "test-head": {
            "kind": "aesthetic", "about": "for tests", "reads": "test-tiny", "dim": 32,
            "file": "head.pth", "licence": "none",
        },
    }  # fmt: skip
    (folder / "catalogue.yaml").write_text(yaml.safe_dump(entries))
    return folder
