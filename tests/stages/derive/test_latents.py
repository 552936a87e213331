"""The annotator `latents`: from the recipe to the training, and what it computes again."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from captioned import work_here
from film_makers import write_video
from numbered_films import numbered
from place import Place
from tiny_vae import write_vae

from curator.errors import ModelError, RecipeError, UsageError
from curator.loading import ClipDataset, ClipLoader
from curator.models.video_vae import VideoVae, latents_facts
from curator.pipeline import graph_of
from curator.recipe import load_recipe
from curator.stages.derive.latents import Latents, LatentsConfig
from curator.tools.commands.arguments import EXIT_OK

pytestmark = pytest.mark.skipif(find_spec("diffusers") is None, reason="no diffusers")

SIZE = (160, 64)
N_FRAMES = 9


RECIPE = {
    "propose": {"min_s": 0.2, "max_s": 2.0, "boundary_threshold": 0.99},
    "dedup": {"enabled": False},
    "filters": {},
    "shard": {"resolutions": [64], "lengths": [5], "val_share": 0, "aspects_tolerance": 0.99},
}  # fmt: skip


@dataclass(frozen=True)
class Encoded(Place):
    """Two films: one of five windows, of which two are encoded, and one shorter than a window."""

    settings = ()
    recipe: str = ""

    def mp4s(self) -> dict[str, bytes]:
        return {clip["clip_id"]: self.sample(clip, "mp4") for clip in self.clips()}

    def batch(self, **options: object) -> dict[str, Any]:
        """The batch of the clip that has latents."""
        settings: Any = {"members": ["latents"], "window": "latents", "size": SIZE} | options
        dataset = ClipDataset(str(self.out), batch_size=1, values="unit", **settings)
        assert dataset.excluded["too_short"] == 1
        (batch,) = ClipLoader(dataset, num_workers=0)
        return batch

    def values(self) -> torch.Tensor:
        """All windows of the clip that has latents."""
        dataset = ClipDataset(str(self.out), members=["latents"], video=False, batch_size=1)
        (value,) = [b["latents"][0] for b in dataset if b["latents"][0] is not None]
        return value


def stage(vae: Path, **settings: object) -> str:
    all_settings = {"vae": vae, "size": list(SIZE), "frames": N_FRAMES, "most": 2} | settings
    config = ", ".join(f"{name}: {value}" for name, value in all_settings.items())
    return f"stages=[{{use: latents, config: {{{config}}}}}]"


@pytest.fixture(scope="module")
def vae(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vae(tmp_path_factory.mktemp("vae"), "wan2.1")


@pytest.fixture(scope="module", autouse=True)
def here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        yield


@pytest.fixture(scope="module")
def finished(vae: Path, tmp_path_factory: pytest.TempPathFactory) -> Encoded:
    """A run with float32 latents; not to be changed."""
    folder = tmp_path_factory.mktemp("latents")
    (folder / "in").mkdir()
    for name, n_frames in (("long", 50), ("short", 7)):
        write_video(
            folder / "in" / f"{name}.mp4", numbered(n_frames), fps=Fraction(25), gop=10,
            options={"x264-params": "scenecut=0"},
        )  # fmt: skip
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    place = Encoded(folder / "in", folder / "out", recipe=str(folder / "recipe.yaml"))
    summary = place.run(stage(vae, dtype="f32"))
    assert summary["counts"]["kept"] == 2
    assert summary["work"]["latents_made"] == 1
    assert summary.get("extensions", []) == []
    return place


def test_a_training_gets_the_latents_of_exactly_its_frames(finished: Encoded, vae: Path) -> None:
    """Pins that encoding the batch's frames in the training would give the stored bits."""
    import diffusers

    model = diffusers.AutoencoderKLWan.from_pretrained(vae).eval()
    mean = torch.tensor(model.config.latents_mean).view(1, -1, 1, 1, 1)
    std = 1.0 / torch.tensor(model.config.latents_std).view(1, -1, 1, 1, 1)
    starts = set()
    for seed in range(8):
        batch = finished.batch(seed=seed)
        with torch.no_grad():
            encoded = (model.encode(batch["video"]).latent_dist.mode() - mean) * std
        assert batch["latents"].shape == (1, 4, 3, 8, 20)
        assert torch.equal(batch["latents"], encoded)
        starts.add(int(batch["start_frame"][0]))
    assert starts == {0, 36}
    assert finished.code(stage(vae, dtype="f32", batch=2)) == EXIT_OK
    assert finished.summary()["work"].get("latents_made", 0) == 0, "batch changes no value"


def test_other_facts_than_those_of_the_training_are_refused(
    finished: Encoded, vae: Path, tmp_path: Path
) -> None:
    facts = latents_facts(vae, size=SIZE, dtype="f32")
    finished.batch(members={"latents": facts})
    stored = Latents(LatentsConfig(vae=str(vae), size=SIZE, frames=N_FRAMES, dtype="f32"))
    assert stored.families[0].facts == facts
    other = write_vae(tmp_path / "vae", "wan2.1", seed=1)
    for wrong, words in (
        (latents_facts(other, size=SIZE, dtype="f32"), "computed with weights = "),
        (facts | {"sample": "draw"}, "computed with sample = 'mean', and this training expects"),
        (latents_facts(vae, size=SIZE, dtype="f32", scaled=False), "scaled = True"),
        (latents_facts(vae, size=SIZE), "dtype = 'f32', and this training expects 'bf16'"),
        (latents_facts(vae, size=(160, 72), dtype="f32"), "size = '160x64'"),
    ):
        with pytest.raises(UsageError, match=words):
            finished.batch(members={"latents": wrong})


@pytest.mark.long
def test_another_vae_computes_latents_again_and_nothing_else(
    finished: Encoded, vae: Path, tmp_path: Path
) -> None:
    again = finished.copy(tmp_path)
    before, values = again.mp4s(), again.values()
    moved = shutil.copytree(vae, tmp_path / "moved")
    assert again.run(stage(moved, dtype="f32"))["work"].get("latents_made", 0) == 0
    other = write_vae(tmp_path / "vae", "wan2.1", seed=1)
    work = again.run(stage(other, dtype="f32"))["work"]
    assert (work["latents_made"], work["clips_cut"], work["sources_analyzed"]) == (1, 0, 0)
    assert again.mp4s() == before
    assert not torch.equal(again.values(), values)


def test_a_draw_depends_only_on_the_clip_and_its_window(
    finished: Encoded, vae: Path, tmp_path: Path
) -> None:
    first, second = finished.copy(tmp_path / "1"), finished.copy(tmp_path / "2")
    for place in (first, second):
        settings = {"sample": "draw", "scaled": False}
        assert place.run(stage(vae, **settings))["work"]["latents_made"] == 1
    assert first.values().dtype == torch.bfloat16
    assert torch.equal(first.values(), second.values())
    means = finished.copy(tmp_path / "3")
    means.run(stage(vae, scaled=False))
    noise = first.values().float() - means.values().float()
    assert noise.std() > 0.1
    assert not torch.equal(noise[0], noise[1]), "each window has its own noise"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"frames": 16}, "'latents': windows of 16 frames; AutoencoderKLWan .* take 13 or 17"),
        ({"size": (160, 60)}, "a height of 60 pixels; .* take 56 or 64"),
        ({"vae": "/none"}, "'latents': vae '/none': no such folder"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_the_recipe(
    settings: dict[str, Any], words: str, vae: Path
) -> None:
    own = {"vae": str(vae), "size": SIZE, "frames": N_FRAMES} | settings
    with pytest.raises(RecipeError, match=words):
        Latents(LatentsConfig(**own))


T5 = '{"architectures": ["T5EncoderModel"]}'
WAN = '{"_class_name": "AutoencoderKLWan"'


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", None, "neither .* nor its folder vae has config.json; expected the folder"),
        ("config.json", "\x00", "config.json cannot be read as JSON .*again, as `save_pretrained`"),
        ("config.json", "null", "config.json holds NoneType, no JSON object; copy or download"),
        ("config.json", "{}", "names no class of diffusers; expected `_class_name`, one of Auto"),
        ("config.json", T5, r"\['T5EncoderModel'\] of transformers; expected .*name the folder"),
        ("config.json", '{"_class_name": "AutoencoderKL"}', "'AutoencoderKL'; expected one of A"),
        ("config.json", f"{WAN}}}", "lacks 'z_dim', which AutoencoderKLWan has; copy or download"),
        ("config.json", f'{WAN}, "z_dim": null}}', "a value that AutoencoderKLWan cannot have"),
        ("config.json", f'{WAN}, "z_dim": 0}}', "a value that AutoencoderKLWan cannot have"),
        (
            "config.json",
            f'{WAN}, "z_dim": 4, "latents_mean": 5, "latents_std": 5}}',
            "a value that AutoencoderKLWan cannot have",
        ),
        ("diffusion_pytorch_model.safetensors", None, "does not exist; expected weights in safet"),
        ("diffusion_pytorch_model.safetensors", "<html>", "is no whole file in safetensors"),
    ],
)
def test_a_folder_of_something_else_is_refused_before_any_work(
    name: str, content: str | None, words: str, vae: Path, tmp_path: Path
) -> None:
    """Pins the value, what was expected and the remedy."""
    copy = Path(shutil.copytree(vae, tmp_path / "copy"))
    if content is None:
        (copy / name).unlink()
    else:
        (copy / name).write_text(content)
    with pytest.raises(RecipeError, match=f"'latents': .*{copy}.*{words}"):
        graph_of(load_recipe("quickstart", [stage(copy)]))


def test_a_worker_with_other_weights_than_the_driver_ends_the_run(tmp_path: Path) -> None:
    """Pins that values never carry the facts of another machine's folder."""
    folder = write_vae(tmp_path / "vae", "wan2.1")
    planned = Latents(LatentsConfig(vae=str(folder), size=SIZE, frames=N_FRAMES))
    write_vae(folder, "wan2.1", seed=1)
    with pytest.raises(ModelError, match=r"have the SHA-256 .*which the run was planned with"):
        planned.setup()


def test_tiles_take_part_in_the_fingerprint_and_in_the_values(vae: Path) -> None:
    config = LatentsConfig(vae=str(vae), size=(320, 64), frames=5)
    tiled = config.model_copy(update={"tiling": True})
    assert Latents(config).versions() != Latents(tiled).versions()
    frames = torch.randint(0, 256, (1, 5, 64, 320, 3), dtype=torch.uint8)
    whole, tiles = (
        VideoVae.find(str(vae)).load(dtype="f32", on="cpu", tiling=tiling).encode(
            frames, None, scaled=False
        )
        for tiling in (False, True)
    )  # fmt: skip
    assert whole.shape == tiles.shape
    assert not torch.equal(whole, tiles)
