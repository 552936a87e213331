"""Latents of each VAE class: those of diffusers' own call to the bit, and what is refused."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from sweeps import sampled
from tiny_vae import TINY, write_vae

from curator.errors import ModelError, UsageError
from curator.models.video_vae import VAE_CLASSES, VideoVae, latents_facts

pytestmark = pytest.mark.skipif(find_spec("diffusers") is None, reason="no diffusers")

SIZE = (64, 64)
FRAMES = {
    "AutoencoderKLLTXVideo": 17, "AutoencoderKLLTX2Video": 17, "AutoencoderKLCosmos": 17,
    "AutoencoderKLMochi": 13,
}  # fmt: skip
"""Frames of the windows, where they are not 9."""


def pipeline_scale(vae: Any, latents: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
    """Normalises as the pipelines of the class: each is written in its pipeline's own words."""
    name, config = type(vae).__name__, vae.config
    if name == "AutoencoderKLWan":
        mean = torch.tensor(config.latents_mean).view(1, config.z_dim, 1, 1, 1)
        std = 1.0 / torch.tensor(config.latents_std).view(1, config.z_dim, 1, 1, 1)
        return (latents - mean) * std
    if name in ("AutoencoderKLLTXVideo", "AutoencoderKLLTX2Video"):
        mean = vae.latents_mean.view(1, -1, 1, 1, 1)
        std = vae.latents_std.view(1, -1, 1, 1, 1)
        return (latents - mean) * config.scaling_factor / std
    if name == "AutoencoderKLCosmos":
        shape = (1, config.latent_channels, -1, 1, 1)
        mean = torch.tensor(config.latents_mean).view(*shape)[:, :, : latents.size(2)]
        std = torch.tensor(config.latents_std).view(*shape)[:, :, : latents.size(2)]
        return (latents - mean) * 1.0 / std
    if name == "AutoencoderKLMochi":
        mean = torch.tensor(config.latents_mean).view(1, 4, 1, 1, 1)
        std = torch.tensor(config.latents_std).view(1, 4, 1, 1, 1)
        return (latents - mean) * config.scaling_factor / std
    return latents * config.scaling_factor


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of each VAE, written when it is first needed."""
    root = tmp_path_factory.mktemp("vaes")

    def folder(name: str) -> Path:
        path = root / name
        return path if path.is_dir() else write_vae(path, name)

    return folder


def test_all_classes_are_tried() -> None:
    assert {class_name for class_name, _ in TINY.values()} == set(VAE_CLASSES)


@pytest.mark.parametrize("name", sampled(TINY, ["mochi", "hunyuan1.5"]))
def test_latents_are_those_of_diffusers_to_the_bit(
    name: str, folders: Callable[[str], Path]
) -> None:
    class_name = TINY[name][0]
    n_frames = FRAMES.get(class_name, 9)
    generator = torch.Generator().manual_seed(3)
    frames = torch.randint(0, 256, (2, n_frames, 64, 64, 3), generator=generator, dtype=torch.uint8)
    vae = VideoVae.find(str(folders(name)))
    encoder = vae.load(dtype="f32", on="cpu", tiling=False)

    import diffusers

    model = getattr(diffusers, class_name).from_pretrained(folders(name)).eval()
    video = frames.permute(0, 4, 1, 2, 3).float() / 127.5 - 1
    with torch.no_grad():
        if class_name == "AutoencoderKLHunyuanVideo15":
            model.enable_slicing()
        known = model.encode(video.contiguous()).latent_dist
        mean = known.mode()
        scaled = pipeline_scale(model, mean)
        seeds = [1, 2]
        drawn = known.sample([torch.Generator().manual_seed(seed) for seed in seeds])
    assert mean.shape[1:] == vae.shape(n_frames, SIZE, scaled=True)
    assert torch.equal(encoder.encode(frames, None, scaled=False), mean)
    assert torch.equal(encoder.encode(frames, None, scaled=True), scaled)
    assert not torch.equal(scaled, mean)
    assert torch.equal(encoder.encode(frames, seeds, scaled=False), drawn)
    assert torch.equal(drawn, mean) == (class_name == "AutoencoderKLCosmos")


@pytest.mark.parametrize(
    ("name", "n_frames", "size", "words"),
    [
        ("wan2.1", 16, SIZE, r"AutoencoderKLWan encodes 4n \+ 1 frames: take 13 or 17"),
        ("wan2.1", 0, SIZE, "take 1 or 5"),
        ("ltx", 13, SIZE, r"8n \+ 1 frames: take 9 or 17"),
        ("ltx2", 9, (48, 64), "a width of 48 pixels; .* multiples of 32: take 32 or 64"),
        ("wan2.2", 9, (64, 72), "a height of 72 pixels; .* of 16: take 64 or 80"),
        ("hunyuan1.5", 9, (8, 64), "a width of 8 pixels; .* of 16: take 16 or 32"),
        ("mochi", 8, SIZE, r"6n \+ 1 frames: take 7 or 13"),
        ("cosmos", 129, SIZE, "windows of 129 frames; the statistics .* reach for 121"),
    ],
)
def test_windows_that_a_class_does_not_encode_are_refused(
    name: str, n_frames: int, size: tuple[int, int], words: str, folders: Callable[[str], Path]
) -> None:
    vae = VideoVae.find(str(folders(name)))
    with pytest.raises(UsageError, match=words):
        vae.shape(n_frames, size, scaled=True)


def test_a_folder_without_a_vae_is_refused(tmp_path: Path, folders: Callable[[str], Path]) -> None:
    with pytest.raises(ModelError, match="no such folder; expected the folder of a model"):
        VideoVae.find(str(tmp_path / "none"))
    with pytest.raises(ModelError, match=r"neither .* nor its folder vae has config.json"):
        VideoVae.find(str(tmp_path))
    config = tmp_path / "config.json"
    config.write_text('{"_class_name": "UNet2DConditionModel"}')
    with pytest.raises(ModelError, match="of the class 'UNet2DConditionModel'; expected one of Au"):
        VideoVae.find(str(tmp_path))
    config.write_text("{}")
    with pytest.raises(ModelError, match=r"config.json names no class of diffusers"):
        VideoVae.find(str(tmp_path))
    config.write_text('{"_class_name": "AutoencoderKLLTXVideo"}')
    with pytest.raises(ModelError, match=r"config.json lacks 'spatio_temporal_scaling'"):
        VideoVae.find(str(tmp_path)).shape(9, SIZE, scaled=False)
    shutil.copy(folders("wan2.1") / "config.json", config)
    with pytest.raises(ModelError, match=r"diffusion_pytorch_model.safetensors does not exist"):
        latents_facts(tmp_path, size=SIZE)
    with pytest.raises(UsageError, match="AutoencoderKLCosmos has no distribution"):
        latents_facts(folders("cosmos"), size=SIZE, sample="draw")


def test_weights_that_lack_tensors_are_refused(
    tmp_path: Path, folders: Callable[[str], Path]
) -> None:
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(folders("hunyuan"), tmp_path / "vae")
    weights = copy / "diffusion_pytorch_model.safetensors"
    tensors = load_file(weights)
    tensors.pop("quant_conv.weight")
    save_file(tensors, weights, {"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 tensors, such as quant_conv.weight"):
        VideoVae.find(str(copy)).load(dtype="f32", on="cpu", tiling=False)


def test_facts_name_what_decides_the_numbers(
    tmp_path: Path, folders: Callable[[str], Path]
) -> None:
    """Pins the facts of a pipeline's folder, of other weights, and of each setting."""
    shutil.copytree(folders("hunyuan"), tmp_path / "vae")
    facts = latents_facts(tmp_path, size=SIZE)
    assert facts | {"weights": ""} == {
        "vae": "AutoencoderKLHunyuanVideo", "weights": "", "sample": "mean", "scaled": True,
        "shift": 0.0, "scale": 0.476986, "layout": "CTHW", "size": "64x64", "dtype": "bf16",
    }  # fmt: skip
    assert facts == latents_facts(folders("hunyuan"), size=SIZE)
    unscaled = latents_facts(tmp_path, size=SIZE, scaled=False)
    assert (unscaled["shift"], unscaled["scale"]) == (0.0, 1.0)
    other = write_vae(tmp_path / "other", "hunyuan", seed=1)
    assert latents_facts(other, size=SIZE)["weights"] != facts["weights"]
    moved = write_vae(tmp_path / "moved", "wan2.1", latents_mean=[0.0, 0.0, 0.0, 1.0])
    assert (
        latents_facts(moved, size=SIZE)["shift"]
        != latents_facts(folders("wan2.1"), size=SIZE)["shift"]
    )
    config = json.loads((moved / "config.json").read_text())
    del config["latents_mean"]
    (moved / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="has no latents_mean, which `scaled` latents need"):
        latents_facts(moved, size=SIZE)


def test_a_trainer_needs_no_diffusers_for_facts(folders: Callable[[str], Path]) -> None:
    code = (
        "import sys; from curator.models.video_vae import latents_facts; "
        f"facts = latents_facts({str(folders('ltx'))!r}, size=(64, 64)); "
        "print(facts['vae'], {'ray', 'pydantic', 'torch', 'diffusers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "AutoencoderKLLTXVideo set()\n"


def test_a_repository_of_the_hub_is_found_in_the_local_cache(
    tmp_path: Path, folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that no request is sent: the cache alone has the answer."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--maker--video"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    shutil.copytree(folders("ltx"), repository / "snapshots" / ("0" * 40) / "vae")
    assert VideoVae.find("maker/video").name == "AutoencoderKLLTXVideo"
    with pytest.raises(ModelError, match=r"'maker/other': .* not in the local cache of the hub"):
        VideoVae.find("maker/other")
