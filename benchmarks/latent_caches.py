"""Opens caches of latents with the readers of five trainers, and compares their tensors.

    python benchmarks/latent_caches.py SOURCES WORK --checkouts DIR --python PATH [FORMAT ...]

WORK gets a run of SOURCES, such as the footage of `curate demo`, with annotators whose values are
drawn from the clip and the window, and an export in each format. Each trainer's own classes then
read the export in the given Python, without models: DIR has checkouts named as in `READERS`. A
batch has to have the drawn numbers, bit for bit. Results: benchmarks/results/consumers.md.
"""

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
import trainer_adapters as own
import yaml
from measure import CURATE

from curator.family import Array, Family, Scope, Windows
from curator.stage import Annotator, SampledClip, StageConfig

HERE = Path(__file__).parent
SHAPE, SIZE, TOKENS = (16, 5, 8, 12), "96x64", 7
WAN = {
    "vae": "AutoencoderKLWan", "sample": "mean", "scaled": True, "layout": "CTHW", "size": SIZE,
}  # fmt: skip
FACTS: dict[str, dict[str, Any]] = {
    "latents": WAN,
    "unscaled": WAN | {"scaled": False},
    "ltx": WAN | {"vae": "AutoencoderKLLTX2Video"},
}
TEXT_FACTS: dict[str, dict[str, Any]] = {
    "text_vectors": {
        "encoder": "UMT5EncoderModel", "column": "caption", "template": "{text}", "skip": 0,
        "layer": -1,
    },
    "text_features": {"features": "ltx-2 19b"},
}  # fmt: skip
RECIPE = {
    "stages": [{"use": f"latent_caches:{name}"} for name in ("SeededLatents", "SeededTexts")],
    "filters": {}, "dedup": {"enabled": False}, "shard": {"val_share": 0},
}  # fmt: skip


def drawn(name: str, shape: Sequence[int], *, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Returns numbers that follow from a name."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def latents_of(family: str, window: str) -> torch.Tensor:
    """Returns the latents of a window, whose name is that of an export's entry."""
    return drawn(f"{family} {window}", SHAPE)


def text_of(family: str, clip: str) -> torch.Tensor:
    """Returns the text of a clip."""
    return drawn(f"{family} {clip}", (TOKENS, 64))


class SeededLatents(Annotator[StageConfig]):
    """Draws latents from the clip and the window."""

    name, version = "seeded_latents", 1
    windows = Windows(frames=17, most=3)
    families = tuple(
        Family(name, Scope.CLIP, Array("bf16", SHAPE), member=f"{name}.safetensors", facts=facts)
        for name, facts in FACTS.items()
    )

    def process(self, unit: Sequence[SampledClip]) -> list[Any]:
        """Returns a tensor of each family for each window."""
        names = [f"{window.facts.clip_id}-{window.start:05d}" for window in unit]
        return [{family: latents_of(family, name) for family in FACTS} for name in names]


class SeededTexts(Annotator[StageConfig]):
    """Draws texts from the clip."""

    name, version, frames, columns = "seeded_texts", 1, (), ("caption",)
    families = tuple(
        Family(
            name, Scope.CLIP, Array("bf16", ("tokens", "d")), member=f"{name}.safetensors",
            facts=facts,
        )
        for name, facts in TEXT_FACTS.items()
    )  # fmt: skip

    def process(self, unit: Sequence[SampledClip]) -> list[Any]:
        """Returns a tensor of each family for each clip."""
        return [
            {family: text_of(family, clip.facts.clip_id) for family in TEXT_FACTS} for clip in unit
        ]


Read = tuple[str, torch.Tensor, torch.Tensor]
"""Name of a window, its latents, and its text without padding."""


def ltx2(checkout: Path, split: Path) -> Iterator[Read]:
    """LTX-2 trainer: `PrecomputedDataset` and torch's loader; names by `CaptionsDataset`."""
    package = checkout / "packages" / "ltx-trainer"
    own.stub("accelerate", "pandas", "rich", "typer", "transformers", "ltx_trainer.model_loader")
    own.bare_packages(package / "src", "ltx_trainer")
    sys.modules["ltx_trainer"].logger = MagicMock()  # type: ignore[attr-defined]
    captions: Any = own.module("process_captions", package / "scripts")
    lines = captions.CaptionsDataset(split / "captions.jsonl", "caption")
    dataset = importlib.import_module("ltx_trainer.datasets").PrecomputedDataset(
        str(split), ["latents", "conditions"]
    )
    paths = [str(path) for path in dataset.sample_files["latents"]]
    assert sorted(paths) == sorted(lines.output_paths)
    for batch in torch.utils.data.DataLoader(dataset, batch_size=2):
        for b, idx in enumerate(batch["idx"].tolist()):
            latents, texts = batch["latents"], batch["conditions"]
            _, n_frames, height, width = latents["latents"][b].shape
            told = [int(latents[name][b]) for name in ("num_frames", "height", "width")]
            assert told == [n_frames, height, width]
            mask = texts["prompt_attention_mask"][b]
            assert torch.equal(texts["audio_prompt_embeds"], texts["video_prompt_embeds"])
            yield (
                Path(paths[idx]).stem,
                latents["latents"][b],
                texts["video_prompt_embeds"][b][mask],
            )


def fastvideo(checkout: Path, split: Path) -> Iterator[Read]:
    """FastVideo: `LatentsParquetMapStyleDataset` with the schema for text to video."""
    own.stub("fastvideo.platforms", "fastvideo.distributed", "fastvideo.logger")
    own.bare_packages(checkout, "fastvideo", "fastvideo.dataset", "fastvideo.dataset.dataloader")
    distributed: Any = importlib.import_module("fastvideo.distributed")
    distributed.get_world_rank = lambda: 0
    distributed.get_world_size = distributed.get_sp_world_size = lambda: 1
    schema = importlib.import_module("fastvideo.dataset.dataloader.schema").pyarrow_schema_t2v
    dataset = importlib.import_module(
        "fastvideo.dataset.parquet_dataset_map_style"
    ).LatentsParquetMapStyleDataset(str(split), 1, schema, drop_last=False, text_padding_length=512)
    for indices in dataset.sampler:
        batch = dataset.__getitems__(indices)
        for b, info in enumerate(batch["info_list"]):
            mask = batch["text_attention_mask"][b].bool()
            yield Path(info["id"]).stem, batch["vae_latent"][b], batch["text_embedding"][b][mask]


def musubi(checkout: Path, split: Path) -> Iterator[Read]:
    """musubi-tuner: the exported dataset file, its blueprint, `VideoDataset` in training."""
    config: Any = own.module("musubi_tuner.dataset.config_utils", checkout / "src")
    generator = config.BlueprintGenerator(config.ConfigSanitizer())
    user = config.load_user_config(str(split / "musubi.toml"))
    plan = generator.generate(user, argparse.Namespace(debug_dataset=False), architecture="wan")
    group = config.generate_dataset_group_by_blueprint(plan.dataset_group, training=True)
    (dataset,) = group.datasets
    manager = dataset.batch_manager
    for bucket, number in manager.bucket_batch_indices:
        (item,) = manager.buckets[bucket][number : number + 1]
        batch = manager[manager.bucket_batch_indices.index((bucket, number))]
        assert bucket == (96, 64, 17)
        clip, place = item.item_key, Path(item.latent_cache_path).name.split("_")[1]
        yield f"{clip}-{place.split('-')[0]}", batch["latents"][0], batch["t5"][0]


def automodel(checkout: Path, split: Path) -> Iterator[Read]:
    """NeMo Automodel: `TextToVideoDataset` and `collate_fn_video`."""
    root = "nemo_automodel"
    parts = ("components", "datasets", "diffusion")
    own.bare_packages(
        checkout, root, *(".".join((root, *parts[: n + 1])) for n in range(len(parts)))
    )
    name = f"{root}.components.datasets.diffusion"
    dataset = importlib.import_module(f"{name}.text_to_video_dataset").TextToVideoDataset(
        str(split), "wan"
    )
    collate = importlib.import_module(f"{name}.collate_fns").collate_fn_video
    for number, entry in enumerate(dataset.metadata):
        batch = collate([dataset[number], dataset[0]])
        text = batch["text_embeddings"][0]
        assert text.shape[0] == 226
        assert not text[TOKENS:].any()
        yield Path(entry["cache_file"]).stem, batch["video_latents"][0], text[:TOKENS]


def dfm(checkout: Path, split: Path) -> Iterator[Read]:
    """NeMo DFM: `WanTaskEncoder` with packing, in Energon 6.0.1, which its `uv.lock` names."""
    own.stub("megatron.core", "transformer_engine_torch")
    state: Any = importlib.import_module("megatron.core").parallel_state
    state.get_context_parallel_world_size.return_value = 1
    encoder: Any = own.module("dfm.src.megatron.data.wan.wan_taskencoder", checkout)
    utils: Any = importlib.import_module("dfm.src.megatron.model.wan.utils")
    energon: Any = importlib.import_module("megatron.energon")
    dataset = energon.get_val_dataset(
        str(split.parent), split_part="train", batch_size=1, packing_buffer_size=8,
        worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=0),
        task_encoder=encoder.WanTaskEncoder(seq_length=400, packing_buffer_size=8),
    )  # fmt: skip
    for batch in energon.get_loader(dataset):
        videos = batch["video_latents"][:, 0].split(batch["seq_len_q"].tolist())
        texts = batch["context_embeddings"][:, 0].split(batch["seq_len_kv"].tolist())
        grids = batch["grid_sizes"].tolist()
        for video, text, grid, facts in zip(
            videos, texts, grids, batch["video_metadata"], strict=True
        ):
            (latents,) = utils.unpatchify([video], [grid], SHAPE[0], (1, 2, 2))
            assert text.shape[0] == 512
            assert not text[TOKENS:].any()
            clip = facts["video_path"].rpartition("#")[2].removesuffix(".mp4")
            yield f"{clip}-{facts['start_frame']:05d}", latents, text[:TOKENS]


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A trainer's classes that read a cache.

    Attributes:
        checkout: Folder of the trainer's repository.
        read: Calls the classes; takes the checkout and the folder of a split.
        latents: Family that the format needs.
        text: Family of the texts.
        dtype: Type of the numbers that come out.
    """

    checkout: str
    read: Callable[[Path, Path], Iterator[Read]]
    latents: str = "latents"
    text: str = "text_vectors"
    dtype: torch.dtype = field(default=torch.bfloat16)


READERS = {
    "ltx2-cache": Reader(checkout="LTX-2", read=ltx2, latents="ltx", text="text_features"),
    "fastvideo-cache": Reader(
        checkout="FastVideo", read=fastvideo, latents="unscaled", dtype=torch.float32
    ),
    "musubi-cache": Reader(checkout="musubi-tuner", read=musubi),
    "automodel-cache": Reader(checkout="Automodel", read=automodel),
    "dfm-cache": Reader(checkout="DFM", read=dfm),
}


def compared(name: str, checkout: Path, split: Path) -> dict[str, Any]:
    """Reads an export, and returns how many windows have other numbers than those drawn."""
    reader, names, different = READERS[name], [], 0
    for window, latents, text in reader.read(checkout, split):
        names.append(window)
        expected = latents_of(reader.latents, window), text_of(reader.text, window.split("-")[0])
        different += not all(
            torch.equal(found, value.to(reader.dtype))
            for found, value in zip((latents, text), expected, strict=True)
        )
    return {"format": name, "windows": len(names), "distinct": len(set(names)),
            "different": different}  # fmt: skip


def prepared(sources: Path, work: Path) -> Path:
    """Makes a run with drawn values, if WORK has none; returns its output."""
    out = work / "out"
    if not (out / "summary.json").exists():
        work.mkdir(parents=True, exist_ok=True)
        (work / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
        words = ("run", str(sources), str(out), "--recipe", str(work / "recipe.yaml"))
        subprocess.run([*CURATE, *words], check=True, env=_environment(), stdout=sys.stderr)
    return out


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{HERE}:{HERE.parent}", "CUDA_VISIBLE_DEVICES": ""}


def main() -> None:
    """Exports and reads each format, and prints a line for each."""
    if sys.argv[1:2] == ["--read"]:
        name, checkout, split = sys.argv[2:]
        print(json.dumps(compared(name, Path(checkout), Path(split))))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("formats", nargs="*", default=list(READERS))
    parser.add_argument("--checkouts", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_intermixed_args()
    out = prepared(given.sources.resolve(), given.work.resolve())
    for name in given.formats:
        reader, to = READERS[name], given.work.resolve() / name
        exported = subprocess.run(
            [*CURATE, "export", str(out), str(to), "--format", name, "--json",
             "--latents", reader.latents, "--text", reader.text],
            check=True, env=_environment(), stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with (given.work / f"{name}.log").open("w") as errors:
            done = subprocess.run(
                [given.python, __file__, "--read", name,
                 str(given.checkouts / reader.checkout), str(to / "train")],
                stdout=subprocess.PIPE, stderr=errors, text=True, check=False, env=_environment(),
            )  # fmt: skip
        row = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"format": name}
        row |= {"exported": json.loads(exported.stdout)["n_records"], "exit": done.returncode}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
