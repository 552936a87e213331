"""Encodes windows of video with the VAE classes of `diffusers`, and says what the latents are.

A folder's `config.json` and the hash of its weights say all that a trainer must know of latents.
Only `VideoVae.load` needs diffusers and torch, so a trainer can compare facts without them.

Stored latents are `(z - shift) * scale`, where z is what the class's `encode` returns, and shift
and scale are those of the class's pipelines. Normalisation is in float32.

Shape letters: B windows, C channels, T frames, H, W height and width.
"""

# ruff: noqa: N803 - shape letters

import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from curator.errors import ModelError, UsageError, one_line
from curator.installation import install_extra
from curator.models.saved_weights import (
    AS_SAVED,
    SavedWeights,
    json_sha256,
    model_folder,
    read_settings,
    settings_sha256,
)

if TYPE_CHECKING:
    from torch import Tensor, device

Sample = Literal["mean", "draw"]
Dtype = Literal["bf16", "f16", "f32"]
Size = tuple[int, int]

_TORCH = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _VaeClass:
    """What the configuration of a class does not say in one way for all classes.

    Attributes:
        sides: Key of the pixels per latent along height and width, and its value in older files.
        frames: Key of the frames per latent, and its value in older files.
        channels: Key of the number of channels.
        statistics: Whether mean and deviation of latents are in the configuration (`config`), in
            the weights (`weights`), or are not used (None).
        multiplies: Whether its pipelines multiply by 1 / deviation in place of dividing, which
            rounds otherwise.
        draws: Whether the class returns a distribution.
        batches: Whether the class encodes several windows at once: the mask of an attention of
            HunyuanVideo 1.5 fits one window alone (diffusers 0.42).
    """

    sides: tuple[str, int] = ("spatial_compression_ratio", 8)
    frames: tuple[str, int] = ("temporal_compression_ratio", 4)
    channels: str = "latent_channels"
    statistics: Literal["config", "weights"] | None = None
    multiplies: bool = False
    draws: bool = True
    batches: bool = True


VAE_CLASSES: Mapping[str, _VaeClass] = {
    "AutoencoderKLWan": _VaeClass(
        sides=("scale_factor_spatial", 8), frames=("scale_factor_temporal", 4), channels="z_dim",
        statistics="config", multiplies=True,
    ),
    "AutoencoderKLLTXVideo": _VaeClass(statistics="weights"),
    "AutoencoderKLLTX2Video": _VaeClass(statistics="weights"),
    "AutoencoderKLHunyuanVideo": _VaeClass(),
    "AutoencoderKLHunyuanVideo15": _VaeClass(
        sides=("spatial_compression_ratio", 16), batches=False
    ),
    "AutoencoderKLCogVideoX": _VaeClass(),
    "AutoencoderKLCosmos": _VaeClass(
        frames=("temporal_compression_ratio", 8), statistics="config", draws=False
    ),
    "AutoencoderKLMochi": _VaeClass(statistics="config"),
}  # fmt: skip
"""VAE classes by their names in diffusers."""
_LTX2_STEPS = ("spatial", "temporal", "spatiotemporal", "spatiotemporal")


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoVae:
    """A VAE in a folder.

    Attributes:
        folder: Folder with `config.json` and the weights.
        name: Name of the class in diffusers.
        config: Contents of `config.json`.
    """

    folder: Path
    name: str
    config: Config

    @classmethod
    def find(cls, place: str) -> "VideoVae":
        """Returns the VAE of a folder, of its subfolder `vae`, or of the local cache of the hub.

        Args:
            place: Path of a folder, or `owner/name` of a repository that the cache has.

        Raises:
            ModelError: There is no such folder, or it holds no supported VAE.
        """
        root = model_folder(place, "vae")
        path = next((p for p in (root, root / "vae") if (p / "config.json").is_file()), None)
        if path is None:
            raise ModelError(
                f"vae {place!r}: neither {root} nor its folder vae has config.json; expected the "
                "folder of a VAE as `save_pretrained` of diffusers writes it"
            )
        config = read_settings(path / "config.json", f"vae {place!r}")
        name = config.get("_class_name")
        if not isinstance(name, str):
            other = config.get("architectures") or config.get("model_type")
            what = f"is of {other!r} of transformers" if other else "names no class of diffusers"
            raise ModelError(
                f"vae {place!r}: {path / 'config.json'} {what}; expected `_class_name`, one of "
                f"{', '.join(VAE_CLASSES)}: name the folder of the VAE"
            )
        if name not in VAE_CLASSES:
            raise ModelError(
                f"vae {place!r} is of the class {name!r}; expected one of "
                f"{', '.join(VAE_CLASSES)}: name the folder of the VAE"
            )
        return cls(folder=path, name=name, config=config)

    @property
    def _ratios(self) -> tuple[int, int]:
        """Pixels along height and width, and frames after the first, for each latent."""
        config, known = self.config, VAE_CLASSES[self.name]
        if self.name == "AutoencoderKLCogVideoX":
            sides = 2 ** (len(config["block_out_channels"]) - 1)
            return sides, int(config["temporal_compression_ratio"])
        if self.name == "AutoencoderKLMochi":
            return _product(config["spatial_expansions"]), _product(config["temporal_expansions"])
        if self.name.startswith("AutoencoderKLLTX"):
            # The layers decide; a ratio in the file is optional.
            default = _LTX2_STEPS if self.name == "AutoencoderKLLTX2Video" else ("conv",) * 8
            layers = zip(
                config.get("downsample_type", default), config["spatio_temporal_scaling"],
                strict=False,
            )  # fmt: skip
            used = [step for step, is_used in layers if is_used]
            sides = sum(step != "temporal" for step in used)
            frames = sum(step != "spatial" for step in used)
            return config["patch_size"] * 2**sides, config["patch_size_t"] * 2**frames
        (sides_key, sides), (frames_key, frames) = known.sides, known.frames
        return int(config.get(sides_key) or sides), int(config.get(frames_key) or frames)

    def shape(self, n_frames: int, size: Size, *, scaled: bool) -> tuple[int, int, int, int]:
        """Returns the shape [C, T, H, W] of the latents of a window.

        Args:
            n_frames: Frames of the window.
            size: Width and height of its frames, in pixels.
            scaled: Whether latents are normalised.

        Raises:
            UsageError: The class encodes no such window; the message names the nearest ones.
            ModelError: `config.json` lacks a key.
        """
        with self._readable():
            per_side, per_latent = self._ratios
            channels = int(self.config[VAE_CLASSES[self.name].channels])
            # Cosmos has statistics for each channel and each of the first latent frames.
            n_known = len(self.config.get("latents_mean") or ()) // channels
        if n_frames < 1 or (n_frames - 1) % per_latent:
            below = max(0, (n_frames - 1) // per_latent) * per_latent + 1
            raise UsageError(
                f"windows of {n_frames} frames; {self.name} encodes {per_latent}n + 1 frames: take "
                f"{below} or {below + per_latent}"
            )
        for what, n_pixels in zip(("width", "height"), size, strict=True):
            if n_pixels < 1 or n_pixels % per_side:
                below = max(1, n_pixels // per_side) * per_side
                raise UsageError(
                    f"a {what} of {n_pixels} pixels; {self.name} encodes multiples of {per_side}: "
                    f"take {below} or {below + per_side}"
                )
        width, height = size
        n_latents = (n_frames - 1) // per_latent + 1
        if scaled and 1 < n_known < n_latents:
            raise UsageError(
                f"windows of {n_frames} frames; the statistics of {self.folder} reach for "
                f"{(n_known - 1) * per_latent + 1}: take at most so many, or scaled: false"
            )
        return channels, n_latents, height // per_side, width // per_side

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Raises `ModelError` if the block meets a missing or wrong value of the configuration."""
        try:
            yield
        except KeyError as error:
            raise ModelError(
                f"vae {self.folder}: config.json lacks {error}, which {self.name} has; {AS_SAVED}"
            ) from error
        except (TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
            raise ModelError(
                f"vae {self.folder}: config.json has a value that {self.name} cannot have "
                f"({one_line(error)}); {AS_SAVED}"
            ) from error

    def check_sample(self, sample: Sample) -> None:
        """Raises `UsageError` if latents are to be drawn, and the class has no distribution."""
        if sample == "draw" and not VAE_CLASSES[self.name].draws:
            raise UsageError(f"sample: draw; {self.name} has no distribution: take sample: mean")

    @property
    def weights(self) -> SavedWeights:
        """The files of the weights; raises `ModelError` if there are none in safetensors."""
        return SavedWeights.find(self.folder, "diffusion_pytorch_model")

    def settings_sha256(self) -> str:
        """Returns the SHA-256 of the configuration, without the keys that diffusers adds."""
        return settings_sha256(self.config)

    def facts(
        self, *, size: Size, dtype: Dtype, sample: Sample, scaled: bool
    ) -> dict[str, str | int | float | bool | None]:
        """Returns what a trainer must know of the latents; see `latents_facts`."""
        self.check_sample(sample)
        with self._readable():
            shift, scale = self._normalisation() if scaled else (0.0, 1.0)
        return {
            "vae": self.name, "weights": self.weights.sha256(), "sample": sample, "scaled": scaled,
            "shift": shift, "scale": scale, "layout": "CTHW", "size": f"{size[0]}x{size[1]}",
            "dtype": dtype,
        }  # fmt: skip

    def _normalisation(self) -> tuple[float | str, float | str]:
        """Returns shift and scale: numbers, or where lists of them come from."""
        config, statistics = self.config, VAE_CLASSES[self.name].statistics
        factor = self._factor()
        if statistics == "weights":
            return "latents_mean of the weights", f"{factor:g} / latents_std of the weights"
        if statistics is None or config.get("latents_mean", 0) is None:
            return 0.0, factor
        for name in ("latents_mean", "latents_std"):
            if name not in config:
                raise ModelError(
                    f"vae {self.folder}: config.json has no {name}, which `scaled` latents need; "
                    "write the folder again with `save_pretrained` of diffusers, or set "
                    "scaled: false"
                )
        mean, deviation = (
            f"sha256 {json_sha256(list(config[name]))[:16]}"
            for name in ("latents_mean", "latents_std")
        )
        return f"latents_mean ({mean})", f"{factor:g} / latents_std ({deviation})"

    def _factor(self) -> float:
        if self.name == "AutoencoderKLWan":
            return 1.0
        if "scaling_factor" not in self.config:
            raise ModelError(
                f"vae {self.folder}: config.json has no scaling_factor, which `scaled` latents "
                "need; write the folder again with `save_pretrained` of diffusers, or set "
                "scaled: false"
            )
        return float(self.config["scaling_factor"])

    def load(self, *, dtype: Dtype, on: "device | str", tiling: bool) -> "VideoEncoder":
        """Loads the weights.

        Args:
            dtype: Type of weights and arithmetic.
            on: Device.
            tiling: Whether large frames are encoded in overlapping tiles.

        Raises:
            ModelError: diffusers is missing or lacks the class, or the weights do not fit it.
        """
        check_diffusers()
        torch = importlib.import_module("torch")
        diffusers = importlib.import_module("diffusers")
        known = getattr(diffusers, self.name, None)
        if known is None:
            raise ModelError(
                f"vae {self.folder}: diffusers {diffusers.__version__} has no {self.name}; "
                f"{install_extra('latents')} installs a newer one"
            )
        try:
            # Missing tensors are drawn at random, which must not advance the process's generator.
            with torch.random.fork_rng(devices=[]):
                model, report = known.from_pretrained(
                    str(self.folder), torch_dtype=getattr(torch, _TORCH[dtype]),
                    use_safetensors=True, local_files_only=True, output_loading_info=True,
                )  # fmt: skip
        except Exception as error:
            raise ModelError(
                f"vae {self.folder}: cannot be loaded as {self.name}: {one_line(error)}"
            ) from error
        wrong = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
        if wrong:
            raise ModelError(f"vae {self.folder}: lacks {len(wrong)} tensors, such as {wrong[0]}")
        if tiling:
            model.enable_tiling()
        if not VAE_CLASSES[self.name].batches:
            model.enable_slicing()
        # Frozen weights would choose other kernels, which round otherwise than a pipeline's.
        return VideoEncoder(self, model.eval().to(on))


class VideoEncoder:
    """A loaded VAE."""

    def __init__(self, vae: VideoVae, model: Any) -> None:  # noqa: ANN401 - a class of diffusers
        self.vae, self.model = vae, model

    def encode(
        self, frames_BTHWC: "Tensor", seeds: Sequence[int] | None, *, scaled: bool
    ) -> "Tensor":
        """Returns the latents of windows, float32 [B, C, T, H, W] on the VAE's device.

        Args:
            frames_BTHWC: uint8 RGB.
            seeds: Seed of each window's draw; None takes the mean.
            scaled: Whether latents are normalised.
        """
        import torch

        # As the loader of shards and the video processor of diffusers: -1 to 1.
        video = frames_BTHWC.to(self.model.device).permute(0, 4, 1, 2, 3).contiguous()
        with torch.inference_mode():
            unit = video.float().div_(127.5).sub_(1.0).to(self.model.dtype)
            distribution = self.model.encode(unit).latent_dist
            if seeds is None:
                latents = distribution.mode()
            else:
                # Generators of the CPU draw the same numbers for all devices.
                generators = [torch.Generator().manual_seed(seed) for seed in seeds]
                latents = distribution.sample(generators)
            return self._normalised(latents.float()) if scaled else latents.float()

    def _normalised(self, latents_BCTHW: "Tensor") -> "Tensor":
        import torch

        vae, known = self.vae, VAE_CLASSES[self.vae.name]
        config, factor = vae.config, vae._factor()
        if known.statistics == "weights":
            mean, deviation = self.model.latents_mean, self.model.latents_std
        elif known.statistics is None or config["latents_mean"] is None:
            return latents_BCTHW * factor
        else:
            mean, deviation = map(torch.tensor, (config["latents_mean"], config["latents_std"]))

        def placed(values: "Tensor") -> "Tensor":
            per_frame = values.to(latents_BCTHW).view(1, latents_BCTHW.shape[1], -1, 1, 1)
            return per_frame[:, :, : latents_BCTHW.shape[2]]

        mean, deviation = placed(mean), placed(deviation)
        if known.multiplies:
            return (latents_BCTHW - mean) * (1.0 / deviation)
        return (latents_BCTHW - mean) * factor / deviation


def latents_facts(
    vae: str | Path,
    *,
    size: Size,
    dtype: Dtype = "bf16",
    sample: Sample = "mean",
    scaled: bool = True,
) -> dict[str, str | int | float | bool | None]:
    """Returns the facts that the annotator `latents` declares with these settings.

    A trainer gives them to the loader, which refuses other latents. Neither diffusers nor torch is
    imported; the file of weights is read once.

        facts = latents_facts("Wan2.1-T2V-1.3B-Diffusers", size=(832, 480))
        ClipDataset("out", members={"latents": facts}, window="latents")

    Args:
        vae: Folder or cached repository, as in the recipe.
        size: Width and height of the frames, in pixels.
        dtype: Type of the stored numbers.
        sample: `mean` of the distribution, or a `draw`.
        scaled: Whether latents are normalised as in the pipelines of the class.

    Raises:
        ModelError: The folder holds no supported VAE.
        UsageError: The class has no such latents.
    """
    return VideoVae.find(str(vae)).facts(size=size, dtype=dtype, sample=sample, scaled=scaled)


def check_diffusers() -> None:
    """Raises `ModelError` if the package is not installed; imports nothing."""
    if importlib.util.find_spec("diffusers") is None:
        raise ModelError(f"latents need diffusers: {install_extra('latents')}")


def _product(factors: Sequence[int]) -> int:
    product = 1
    for factor in factors:
        product *= factor
    return product
