"""Tries the recipes of `pipelines/` from raw video to the first batch of each trainer's own loader.

    python benchmarks/recipes.py SOURCES WORK --checkouts DIR --python PATH [RECIPE ...]

For each recipe: `curate run`, `curate fit` for the trainers that the recipe names, `curate export
--format folder`, then each trainer's dataset class reads the exported folder in its own Python,
without a model. Its first clips are compared with what `fit` promises: number of frames, size,
caption, sound; and the number of clips that it lists with those that `fit` keeps. A run in WORK
that is complete is not repeated. Results: benchmarks/results/recipes.md.
"""

import argparse
import importlib
import itertools
import json
import logging
import os
import subprocess
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import trainer_adapters as own
from measure import CURATE, tell
from trainer_adapters import Foreign, Row

HERE = Path(__file__).parent
RECIPES = ("wan", "ltx2", "hunyuan", "cosmos3", "tokenizer")
CLIPS = 2
"""Clips of each loader that are decoded."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A trainer's loader, and how its user would set it for a recipe."""

    called: str
    adapter: str
    checkout: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


def _musubi(architecture: str, frames: int, width: int, height: int) -> Reader:
    return Reader(
        called="VideoDataset.retrieve_latent_cache_batches", adapter="musubi",
        checkout="musubi-tuner", settings={"architecture": architecture, "frames": frames,
                                           "resolution": [width, height]},
    )  # fmt: skip


def _pipe(frames: int, fps: int) -> Reader:
    return Reader(
        called="DirectoryDataset, PreprocessMediaFile", adapter="diffusion_pipe",
        checkout="diffusion-pipe", settings={"frames": frames, "fps": fps},
    )  # fmt: skip


READERS: dict[str, dict[str, Reader]] = {
    "wan": {
        "wan-diffsynth": Reader(
            called="UnifiedDataset in a DataLoader", adapter="diffsynth",
            settings={"frames": 81, "width": 832, "height": 480},
        ),
        "musubi": _musubi("wan", 81, 832, 480),
        "diffusion-pipe": _pipe(81, 16),
        "fastvideo": Reader(
            called="build_dataset, VideoTransformStage", adapter="fastvideo",
            settings={"frames": 81, "fps": 16, "width": 832, "height": 480},
        ),
    },
    "ltx2": {
        "ltx2": Reader(
            called="MediaDataset in a DataLoader", adapter="ltx2", checkout="LTX-2",
            settings={"frames": 121, "width": 960, "height": 544},
        ),
    },
    "hunyuan": {
        "musubi-hunyuan": _musubi("hv", 121, 848, 480),
        "diffusion-pipe-hunyuan": _pipe(121, 24),
    },
    "cosmos3": {
        "cosmos3": Reader(called="SFTDataset", adapter="cosmos", checkout="cosmos-framework"),
    },
    "tokenizer": {
        "clip-dataset": Reader(
            called="ClipDataset", adapter="clip_dataset", settings={"frames": 49}
        ),
    },
}  # fmt: skip


def _row(path: str | Path, frames: Foreign, caption: str | None, *, sound: bool | None) -> Row:
    """Returns what a loader gives of a clip, and whether its frames are pictures that move."""
    pixels = [frame.astype("int16") for frame in frames]
    height, width = pixels[0].shape[:2]
    steps = [float(abs(a - b).mean()) for a, b in itertools.pairwise(pixels)]
    return {
        "key": Path(path).stem, "frames": len(pixels), "size": [width, height],
        "caption": caption, "sound": sound, "deviation": round(float(pixels[0].std()), 1),
        "moving_steps": sum(step > 0 for step in steps),
    }  # fmt: skip


def diffsynth(split: Path, _checkout: Path, s: Row) -> Iterator[Row]:
    """DiffSynth-Studio: the dataset and the DataLoader of its training script."""
    data: Any = own.module("diffsynth.core.data.unified_dataset")
    torch: Any = importlib.import_module("torch.utils.data")
    dataset = data.UnifiedDataset(
        base_path=str(split), metadata_path=str(split / "metadata.jsonl"),
        data_file_keys=("video",),
        main_data_operator=data.UnifiedDataset.default_video_operator(
            base_path=str(split), max_pixels=None, height=s["height"], width=s["width"],
            height_division_factor=16, width_division_factor=16, num_frames=s["frames"],
            time_division_factor=4, time_division_remainder=1,
        ),
    )  # fmt: skip
    yield {"listed": len(dataset)}
    for item in torch.DataLoader(dataset, collate_fn=_only):
        frames = (np.asarray(frame) for frame in item["video"])
        yield _row(item["key"], frames, item["prompt"], sound=None)


def _only(items: list[Any]) -> Any:  # noqa: ANN401
    return items[0]


def musubi(split: Path, checkout: Path, s: Row) -> Iterator[Row]:
    """musubi-tuner: a dataset by its blueprint."""
    own.stub("musubi_tuner.utils.safetensors_utils", "musubi_tuner.utils.model_utils")
    config: Any = own.module("musubi_tuner.dataset.config_utils", checkout / "src")
    entry = {
        "video_directory": str(split / "videos"),
        "cache_directory": str(split.parent / "cache"),
        "frame_extraction": "head",
        "target_frames": [s["frames"]],
    }
    general = {"resolution": s["resolution"], "caption_extension": ".txt", "batch_size": 1,
               "enable_bucket": True, "bucket_no_upscale": False}  # fmt: skip
    plan = config.BlueprintGenerator(config.ConfigSanitizer()).generate(
        {"general": general, "datasets": [entry]}, argparse.Namespace(debug_dataset=False),
        architecture=s["architecture"],
    )  # fmt: skip
    group = config.generate_dataset_group_by_blueprint(plan.dataset_group)
    for dataset in group.datasets:
        yield {"listed": len(dataset.datasource)}
        for _key, batch in dataset.retrieve_latent_cache_batches(1):
            for item in batch:
                name = Path(item.item_key).stem.rsplit("_", 1)[0]
                frames = own.pictures(item.content, "THWC")
                yield _row(f"{name}.mp4", frames, item.caption, sound=None)


def diffusion_pipe(split: Path, checkout: Path, s: Row) -> Iterator[Row]:
    """diffusion-pipe: its folder dataset and buckets, and what its VAE would be given."""
    own.stub("deepspeed", "peft", "diffusers", "accelerate", "comfy", "comfy_api", "torchaudio")
    data: Any = own.module("utils.dataset", checkout)
    base: Any = importlib.import_module("models.base")
    ranks: Any = sys.modules["deepspeed.comm.comm"]
    data.dist.get_rank = ranks.get_rank = lambda: 0
    for part in (data, base):
        part.InputImpl = types.SimpleNamespace(VideoFromFile=own.ComfyVideo)
    data.NUM_PROC = None
    buckets = {"resolutions": [512], "enable_ar_bucket": True, "min_ar": 0.5, "max_ar": 2.0,
               "num_ar_buckets": 7, "frame_buckets": [1, s["frames"]]}  # fmt: skip
    read = data.DirectoryDataset(
        {"path": str(split / "videos")}, buckets, "model", framerate=s["fps"],
        round_to_multiple=16,
    )  # fmt: skip
    read.cache_metadata(regenerate_cache=True)
    prepare = base.PreprocessMediaFile(
        {}, support_video=True, support_audio=False, framerate=s["fps"], audio_sample_rate=None,
        round_height=16, round_width=16, round_frames=4,
    )  # fmt: skip
    examples: list[Any] = []

    def collect(metadata: Foreign, *_: Foreign, **__: Foreign) -> list[Any]:
        examples.extend(metadata)
        return [None] * len(metadata)

    data._map_and_cache = collect
    for bucket in read.ar_bucket_datasets:
        bucket.cache_latents(None)
    yield {"listed": len(examples)}
    for example in examples:
        ((video, _audio, _mask),) = prepare(example["image_spec"], None, example["size_bucket"])
        frames = own.pictures(video, "CTHW")
        yield _row(example["image_spec"][1], frames, example["caption"][0], sound=None)


def fastvideo(split: Path, _checkout: Path, s: Row) -> Iterator[Row]:
    """FastVideo: its dataset with its validator, then its transform of frames."""
    own.fastvideo_stubs()
    parts: Any = own.module("fastvideo.workflow.preprocess.components")
    stages: Any = importlib.import_module("fastvideo.pipelines.preprocess.preprocess_stages")
    configs: Any = importlib.import_module("fastvideo.configs.configs")
    parts.get_world_size, parts.get_world_rank = (lambda: 1), (lambda: 0)
    config = configs.PreprocessConfig(
        dataset_path=str(split), dataset_type=configs.DatasetType.MERGED,
        max_height=s["height"], max_width=s["width"], num_frames=s["frames"], train_fps=s["fps"],
    )  # fmt: skip
    names = ("max_height", "max_width", "num_frames", "train_fps", "speed_factor",
             "video_length_tolerance_range", "drop_short_ratio")  # fmt: skip
    validator = parts.PreprocessingDataValidator(**{name: getattr(config, name) for name in names})
    dataset = parts.build_dataset(config, split="train", validator=validator)
    yield {"listed": len(dataset)}
    build = parts.VideoForwardBatchBuilder(seed=config.seed)
    stage = stages.VideoTransformStage(
        config.train_fps, config.num_frames, config.max_height, config.max_width,
        config.do_temporal_sample,
    )  # fmt: skip
    text = stages.TextTransformStage(config.training_cfg_rate, config.seed)
    arguments = argparse.Namespace(preprocess_config=config, workload_type=stages.WorkloadType.T2V)
    for number in range(len(dataset)):
        item = dataset[number]
        batch = text.forward(stage.forward(build([item]), arguments), arguments)
        frames = own.pictures(batch.latents[0], "CTHW")
        yield _row(item["name"], frames, batch.prompt[0], sound=None)


def ltx2(split: Path, checkout: Path, s: Row) -> Iterator[Row]:
    """LTX-2 trainer: the datasets of its preparation, from `metadata.jsonl`, in a DataLoader."""
    scripts = checkout / "packages" / "ltx-trainer" / "scripts"
    own.stub("ltx_core.model", "ltx_trainer.model_loader", "pillow_heif")
    videos: Any = own.module(
        "process_videos", scripts, scripts.parent / "src", checkout / "packages/ltx-core/src"
    )
    torch: Any = importlib.import_module("torch.utils.data")
    index = split / "metadata.jsonl"
    dataset = videos.MediaDataset(
        dataset_file=index, main_media_column="video", video_column="video",
        resolution_buckets=[(s["frames"], s["height"], s["width"])], with_audio=True,
    )  # fmt: skip
    yield {"listed": len(dataset)}
    text: Any = importlib.import_module("process_captions")
    read = text.CaptionsDataset(index, caption_column="caption", media_column="video")
    captions = {
        Path(i["output_path"]).stem: i["prompt"] for i in map(read.__getitem__, range(len(read)))
    }
    for path, batch in zip(dataset.video_paths, torch.DataLoader(dataset), strict=True):
        frames = own.pictures(batch["video"][0], "CTHW", signed=True)
        yield _row(path, frames, captions.get(path.stem), sound="audio" in batch)


def cosmos(split: Path, checkout: Path, _settings: Row) -> Iterator[Row]:
    """cosmos-framework: its dataset, from `video_dataset_file.jsonl`; the tokenizer is a stub."""
    own.stub(
        "cosmos_framework.data.generator.sequence_packing", "cosmos_framework.model",
        "cosmos_framework.utils.log", "cosmos_framework.utils.lazy_config",
        "cosmos_framework.utils.flags",
    )  # fmt: skip
    data: Any = own.module("cosmos_framework.data.generator.local_datasets.sft_dataset", checkout)
    data.lazy_instantiate = lambda *_: types.SimpleNamespace(tokenizer=None)
    data.add_special_tokens = lambda tokenizer: (tokenizer, None)
    data.tokenize_caption = lambda caption, *_, **__: [0] * len(caption.split())
    data.INTERNAL, data.boto3 = False, MagicMock()
    data.random = own.LeastDraws()
    dataset = data.get_sft_dataset(
        jsonl_paths=str(split / "video_dataset_file.jsonl"), cfg_dropout_rate=0.0,
        tokenizer_config=None, resolution="256", num_video_frames=-1,
        temporal_interval_mode="max_30fps", conditioning_fps=-1,
    )  # fmt: skip
    dataset.s3_client = MagicMock()
    yield {"listed": len(dataset.metadata)}
    for metadata in dataset.metadata:
        sample = dataset.process_one_sample(metadata)
        if sample is not None:
            frames = own.pictures(sample["video"], "CTHW")
            yield _row(metadata["uuid"] + ".mp4", frames, sample["ai_caption"], sound=None)


def clip_dataset(split: Path, _checkout: Path, s: Row) -> Iterator[Row]:
    """The loader of this package, over the shards of the run."""
    loading: Any = importlib.import_module("curator.loading")
    out = split.parents[1] / "out"
    dataset = loading.ClipDataset(str(out), frames=s["frames"], batch_size=2, split=split.name)
    for batch in dataset:
        captions = batch["caption"]
        for b, key in enumerate(batch["key"]):
            caption = captions.unique[captions.inverse[b]]
            frames = own.pictures(batch["video"][b], "CTHW")
            yield _row(f"{key}.mp4", frames, caption, sound=None)


ADAPTERS: dict[str, Callable[[Path, Path, Row], Iterator[Row]]] = {
    each.__name__: each
    for each in (diffsynth, musubi, diffusion_pipe, fastvideo, ltx2, cosmos, clip_dataset)
}


def read(adapter: str, split: Path, checkout: Path, settings: Row) -> None:
    """Prints what a loader gives: the number of clips, then a row per clip. Runs in its Python."""
    logging.disable(logging.WARNING)
    console = sys.stdout
    sys.stdout = sys.stderr
    try:
        rows = ADAPTERS[adapter](split, checkout, settings)
        for row in itertools.islice(rows, CLIPS + 1):
            print(json.dumps(row), file=console, flush=True)
    except Exception:  # noqa: BLE001
        traceback.print_exc()
        print(json.dumps({"error": traceback.format_exc().splitlines()[-1]}), file=console)


def promised(out: Path, recipe: str, name: str) -> dict[str, Row]:
    """Returns what `curate fit` says of each clip for training that a trainer keeps, by key."""
    import pyarrow.compute as pc

    from curator.recipe import load_recipe
    from curator.storage import open_store
    from curator.tables.kept_clips import selected_clips
    from curator.trainers.clip_fit import caption_of, fit_form, forms_of
    from curator.trainers.trainer_files import load_trainer

    named = [each.model_dump() for each in load_recipe(recipe).train_for]
    (entry,) = (each for each in named if each["trainer"] == name)
    trainer = load_trainer(entry.pop("trainer"), entry)
    clips = selected_clips(open_store(str(out)), None)
    clips = clips.filter(pc.match_substring_regex(clips["shard"], "(^|/)train-[^/]*$"))
    rows = {}
    for key, (form, _seconds, caption) in zip(
        clips["key"].to_pylist(), forms_of(clips), strict=True
    ):
        fit = fit_form(trainer, form)
        if fit.reason is None:
            samples = fit.reading.samples
            used = caption_of(trainer, fit, form, caption)
            rows[key] = {
                "frames": samples[0].count,
                "size": None if fit.picture is None else [fit.picture.width, fit.picture.height],
                "caption": used.text,
                "sound": None if fit.sound == "ignored" else fit.sound == "used",
            }
    return rows


def tried(recipe: str, sources: Path, work: Path, python: str, checkouts: Path) -> Iterator[Row]:
    """Runs a recipe, exports its clips, and compares each loader with `curate fit`."""
    out, folder = work / recipe / "out", work / recipe / "folder"
    with (work / f"{recipe}.log").open("w") as log:
        for words in (
            ("run", str(sources), str(out), "--recipe", recipe),
            ("export", str(out), str(folder), "--format", "folder"),
        ):
            subprocess.run([*CURATE, *words], check=True, stdout=log, stderr=log)
    for name in READERS[recipe]:
        row = compared(recipe, name, out, folder, python, checkouts)
        yield {"recipe": recipe, "trainer": name} | row


def compared(recipe: str, name: str, out: Path, folder: Path, python: str, checkouts: Path) -> Row:
    """Returns how many clips a loader lists and `fit` keeps, and where the first ones differ."""
    reader, expected = READERS[recipe][name], promised(out, recipe, name)
    interpreter = sys.executable if reader.adapter == "clip_dataset" else python
    quiet = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with (folder.parent / f"{name}.log").open("w") as errors:
        done = subprocess.run(
            [interpreter, str(HERE / "recipes.py"), "--read", reader.adapter,
             str(folder / "train"), str(checkouts / reader.checkout),
             json.dumps(reader.settings)],
            stdout=subprocess.PIPE, stderr=errors, text=True, check=False, env=os.environ | quiet,
        )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    listed = next((row["listed"] for row in rows if "listed" in row), None)
    given = [row for row in rows if "key" in row]
    differences = [
        {"key": row["key"], "what": what, "loader": row[what], "fit": promise[what]}
        for row in given
        for promise in [expected.get(row["key"], dict.fromkeys(row))]
        for what in ("frames", "size", "caption", "sound")
        if promise[what] is not None and row[what] != promise[what]
    ] + [{"key": row["key"], "what": "kept"} for row in given if row["key"] not in expected]
    raised = [row["error"] for row in rows if "error" in row]
    return {
        "called": reader.called, "kept": len(expected), "listed": listed, "read": len(given),
        "first": given[:1], "differences": differences,
        "error": raised[0] if raised else None if rows else f"exit {done.returncode}",
    }  # fmt: skip


def main() -> None:
    """Tries recipes, and prints a line for each trainer."""
    if sys.argv[1:2] == ["--read"]:
        adapter, split, checkout, settings = sys.argv[2:]
        read(adapter, Path(split), Path(checkout), json.loads(settings))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    parser.add_argument("--checkouts", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable, help="Python of the trainers")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for recipe in given.recipes:
        for row in tried(recipe, given.sources, given.work, given.python, given.checkouts):
            print(json.dumps(row, ensure_ascii=False), flush=True)
            rows.append(row)
    tell({"rows": rows})


if __name__ == "__main__":
    main()
