"""Computes CLIP image and text embeddings with `open_clip`, in batches.

A worker builds and loads only the image tower, without random initialisation. Pictures are prepared
as in open_clip: Pillow's bicubic filter scales the shorter side to the network's size, and the
middle is cropped. For SigLIP, it scales both sides to the network's size, and nothing is cropped.

Arithmetic is float16 on GPUs, and bfloat16 on CPUs that support it. One core with AVX-512 BF16
prepares and embeds 30 pictures per second with ViT-B/32 in bfloat16, and 10 in float32
(results/clip.md). All batches have the same size, and the last one is padded, so that a picture's
embedding hardly depends on the number of pictures.

Importing open_clip takes six CPU-seconds, mostly for torch's compiler. Therefore it is imported
when an encoder is made, and a run without CLIP does not import it.

Shape letters: N pictures, C channels (RGB), H, W height and width, D dimensions, P prompts.
"""

# ruff: noqa: N803 - shape letters

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from curator.errors import ModelError, one_line
from curator.installation import install_extra
from curator.models.catalogue import ModelEntry
from curator.models.picture_network import PUSHED, Picture, PictureNetwork

if TYPE_CHECKING:
    from torch import Tensor

BATCH = PUSHED
"""Pictures per batch. Batches of 16 are 6% faster; batches of 1 take 1.7 times as long."""

Device = Literal["auto", "cpu", "cuda"]

_NORMALISATION = {
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "siglip": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
"""Mean and standard deviation of pixels in OpenAI's CLIP, and in SigLIP."""


def check_open_clip() -> None:
    """Raises ModelError if the package is not installed; imports nothing."""
    if importlib.util.find_spec("open_clip") is None:
        raise ModelError(f"CLIP needs open-clip-torch: {install_extra('clip')}")


class ClipEncoder(PictureNetwork):
    """The image tower of a CLIP model; a worker has one.

    Args:
        entry: The model.
        weights: File of its weights.
        precision: Arithmetic on a CPU; a GPU always uses float16.
        device: `auto` is a GPU if there is one.

    Raises:
        ModelError: open_clip is missing, or the file holds another model.
    """

    def __init__(
        self,
        entry: ModelEntry,
        weights: Path,
        *,
        precision: Literal["float32", "bfloat16"] = "float32",
        device: Device = "auto",
    ) -> None:
        check_open_clip()
        import torch
        from open_clip.model import CLIP, CustomTextCLIP, convert_weights_to_lp

        config = clip_config(entry)
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        side_px, dim = _square(config["vision_cfg"]), int(config["embed_dim"])
        super().__init__(device=device, batch=BATCH, side_px=side_px, dim=dim, name="clip")
        self.precision = "float16" if device == "cuda" else precision
        self._dtype: Any = getattr(torch, self.precision)
        cast = None if self._dtype == torch.float32 else self._dtype
        self._squashes = entry.preparation == "siglip"
        tower = CustomTextCLIP if config.pop("custom_text", False) else CLIP
        with torch.device("meta"):
            visual = tower(**config, cast_dtype=cast).visual.eval()
        state = {
            name.removeprefix("visual."): tensor.float()
            for name, tensor in read_state(weights).items()
            if name.startswith("visual.")
        }
        try:
            visual.load_state_dict(state, strict=True, assign=True)
        except RuntimeError as error:
            raise ModelError(f"{weights} holds no {entry.name}: {one_line(error)}") from error
        if cast is not None and tower is CLIP:
            convert_weights_to_lp(visual, cast)
        elif cast is not None:
            visual = visual.to(cast)
        self._visual = visual.to(device).requires_grad_(False)
        self._mean, self._std = (
            torch.tensor(v, device=device).view(1, 3, 1, 1)
            for v in _NORMALISATION[entry.preparation]
        )

    def prepare(self, rgb_HWC: Picture) -> Picture:
        """Returns the network's picture of a frame: see `prepared`."""
        return prepared(rgb_HWC, self.size_px, squash=self._squashes)

    def _features(self, pictures_NCHW: "Tensor") -> "Tensor":
        x = (pictures_NCHW / 255 - self._mean) / self._std
        return self._visual(x.to(self._dtype)).float()  # type: ignore[no-any-return]


def prepared(rgb_HWC: Picture, size_px: int, *, squash: bool = False) -> Picture:
    """Prepares uint8 RGB of any size as open_clip does: uint8 [size_px, size_px, 3].

    `squash` scales both sides, as for SigLIP, where nothing is cropped.
    """
    from PIL import Image

    height, width = (size_px, size_px) if squash else rgb_HWC.shape[:2]
    # Rounded down, as torchvision does.
    w, h = (max(size_px, int(size_px * side / min(width, height))) for side in (width, height))
    size = w, h
    image = Image.fromarray(rgb_HWC)
    if image.size != size:
        image = image.resize(size, Image.Resampling.BICUBIC)
    left, top = round((size[0] - size_px) / 2.0), round((size[1] - size_px) / 2.0)
    return np.asarray(image.crop((left, top, left + size_px, top + size_px)), np.uint8)


def embed_texts(
    entry: ModelEntry, weights: Path, prompts: Sequence[str]
) -> tuple[NDArray[np.float32], float]:
    """Loads a model and embeds prompts once: see `text_embedder`."""
    return text_embedder(entry, weights)(prompts)


def text_embedder(
    entry: ModelEntry, weights: Path
) -> Callable[[Sequence[str]], tuple[NDArray[np.float32], float]]:
    """Loads the whole model in float32 on the CPU; returns a function that embeds prompts.

    The function returns unit embeddings, float32 [P, D], and the trained scale by which cosines are
    multiplied before a softmax.

    Raises:
        ModelError: open_clip is missing, or the file holds another model.
    """
    check_open_clip()
    import torch
    from open_clip import CLIP, SimpleTokenizer

    config = clip_config(entry)
    if "hf_tokenizer_name" in config["text_cfg"]:
        raise ModelError(
            f"model {entry.name} embeds only pictures here: its tokenizer is not in the catalogue; "
            "use a CLIP model for content types, safety and texts"
        )
    with torch.random.fork_rng(devices=[]):
        model = CLIP(**config).eval()
    try:
        model.load_state_dict({name: t.float() for name, t in read_state(weights).items()})
    except RuntimeError as error:
        raise ModelError(f"{weights} holds no {entry.name}: {one_line(error)}") from error
    tokenizer = SimpleTokenizer(context_length=model.context_length)

    def embed(prompts: Sequence[str]) -> tuple[NDArray[np.float32], float]:
        with torch.inference_mode():
            parts = [
                model.encode_text(tokenizer(list(prompts[begin : begin + 64])), normalize=True)
                for begin in range(0, len(prompts), 64)
            ]
            vectors: NDArray[np.float32] = torch.cat(parts).numpy()
            return vectors, float(model.logit_scale.exp())

    return embed


def clip_config(entry: ModelEntry) -> dict[str, Any]:
    """Returns open_clip's configuration: that of the catalogue's entry, or of its architecture.

    Raises:
        ModelError: open_clip does not know the architecture, or the model is not a plain CLIP.
    """
    import open_clip

    config = entry.config or open_clip.get_model_config(entry.architecture)
    if config is None or not {"embed_dim", "vision_cfg", "text_cfg"} <= set(config):
        raise ModelError(
            f"model {entry.name}: open_clip has no architecture {entry.architecture!r}"
        )
    if config["embed_dim"] != entry.dim or "hf_model_name" in config["text_cfg"]:
        raise ModelError(
            f"model {entry.name}: {entry.architecture!r} is not a plain CLIP of {entry.dim} "
            "dimensions"
        )
    return dict(config)


def read_state(path: Path) -> dict[str, Any]:
    """Reads a file's tensors by name: safetensors, or PyTorch's format without code.

    Raises:
        ModelError: The file cannot be read.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        import torch

        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        return dict(state.get("state_dict", state))
    except Exception as error:
        raise ModelError(f"{path} cannot be read as weights: {one_line(error)}") from error


def _square(vision: dict[str, Any]) -> int:
    size = vision.get("image_size", 224)
    if not isinstance(size, int):
        raise ModelError(f"the model reads pictures of {size} pixels; expected a square")
    return size
