"""Runs one trainer's own loading code over made clips; a subprocess of `trainers.py`.

It runs in the trainer's Python. Nothing of a trainer is imported before its adapter is called, and
none of its code is here: an adapter writes the index that the trainer reads, makes the trainer's
dataset, and tells which frames come out. Models are never loaded. Packages that the loading code
imports but does not need are replaced by `stub`.
"""

import argparse
import ast
import contextlib
import importlib
import importlib.abc
import importlib.util
import io
import json
import logging
import os
import random
import shutil
import sys
import tarfile
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import MagicMock

import numpy as np
from counted_clips import CountedClip, crop_of, read_counter, read_plan
from numpy.typing import NDArray

Row = dict[str, Any]
Foreign: TypeAlias = Any
"""A value of a trainer's own types, which are not there when this file is checked."""
Frames = Iterable[NDArray[np.uint8]]


@dataclass(kw_only=True)
class Job:
    """What an adapter gets: clips, their folder, a folder of its own, a checkout and settings."""

    clips: list[CountedClip]
    corpus: Path
    work: Path
    checkout: Path
    settings: dict[str, Any]
    messages: list[str] = field(default_factory=list)

    def link(self, folder: Path) -> None:
        """Places all clips in a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for clip in self.clips:
            (folder / clip.file).unlink(missing_ok=True)
            os.link(self.corpus / clip.file, folder / clip.file)

    def with_texts(self, folder: Path) -> None:
        """Places all clips in a folder, with their captions beside them."""
        self.link(folder)
        for clip in self.clips:
            (folder / f"{clip.clip}.txt").write_text(clip.caption, encoding="utf-8")

    def lines(self, path: Path, rows: Iterable[Row]) -> Path:
        """Writes JSON lines."""
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def document(self, path: Path, value: Foreign) -> Path:
        """Writes JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
        return path

    def reason(self, clip: CountedClip) -> str:
        """Returns what the trainer said about a clip, without the corpus' folders."""
        said = [line for line in self.messages if clip.clip in line]
        return shortened(said[-1], self) if said else "not returned, without a message"


def shortened(message: str, job: Job) -> str:
    """Returns the end of a message, without paths of this machine."""
    for folder in (job.work, job.corpus, job.checkout):
        message = message.replace(f"{folder}/", "")
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return (lines[-1] if lines else "")[-300:]


def observed(
    clip: CountedClip, frames: Frames, *, caption: str | None, sound: bool | None, **more: Foreign
) -> Row:
    """Reads the counters of the frames that a loader returns for a clip.

    A sample without a frame is a clip that is not kept: the training ends with it.
    """
    numbers: list[int | None] = []
    size = crop = None
    for frame in frames:
        number, box = read_counter(frame)
        numbers.append(number)
        if crop is None and number is not None:
            size = (frame.shape[1], frame.shape[0])
            crop = crop_of(clip, size, box)
    if not numbers:
        return skipped(clip, "a sample without a frame, with which the training ends")
    return {
        "clip": clip.clip,
        "kept": True,
        "frames": numbers,
        "size": size,
        "crop": crop,
        "caption": caption,
        "sound": sound,
        "error": None,
        **more,
    }


def skipped(clip: CountedClip, error: str) -> Row:
    """Returns the row of a clip that a loader leaves out."""
    return {
        "clip": clip.clip, "kept": False, "frames": [], "size": None, "crop": None,
        "caption": None, "sound": None, "error": error,
    }  # fmt: skip


def failed(clip: CountedClip, error: BaseException, job: Job) -> Row:
    """Returns the row of a clip at which a loader raises."""
    return skipped(clip, f"raises {type(error).__name__}: {shortened(str(error), job)}")


def pictures(video: Foreign, axes: str, *, signed: bool = False) -> Iterator[NDArray[np.uint8]]:
    """Yields a tensor's frames as RGB.

    Args:
        video: Four axes.
        axes: Their order, such as "CTHW".
        signed: Values are from -1 to 1 instead of 0 to 1.
    """
    array = video.detach().cpu().numpy() if hasattr(video, "detach") else np.asarray(video)
    array = array.transpose([axes.index(axis) for axis in "THWC"])
    for frame in array:
        if frame.dtype == np.uint8:
            yield frame
        else:
            scaled = (frame + 1) / 2 if signed else frame
            yield (scaled.clip(0, 1) * 255).round().astype(np.uint8)


class _Stub(types.ModuleType):
    """A module of which every name exists, and so does every submodule."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__file__ = "stub"

    def __getattr__(self, name: str) -> Foreign:
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: set[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> Foreign:
        parts = name.split(".")
        if any(".".join(parts[: n + 1]) in self.names for n in range(len(parts))):
            return importlib.util.spec_from_loader(name, self, is_package=True)
        return None

    def create_module(self, spec: Foreign) -> types.ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def stub(*names: str) -> None:
    """Replaces packages that a loader imports and does not need."""
    sys.meta_path.insert(0, _StubFinder(set(names)))


def module(name: str, *folders: Path) -> Foreign:
    """Imports a module, from folders of a checkout before all others."""
    for folder in reversed(folders):
        sys.path.insert(0, str(folder))
    return importlib.import_module(name)


def bare_packages(root: Path, *names: str) -> None:
    """Makes packages whose modules can be imported without their `__init__`, which wants more."""
    for name in names:
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[name] = package


def nested(path: Path, names: set[str], scope: dict[str, Any]) -> dict[str, Any]:
    """Compiles functions that stand within another function of a script, and runs their `def`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    chosen = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names
    ]
    exec(compile(ast.Module(body=list(chosen), type_ignores=[]), str(path), "exec"), scope)
    return scope


class _Recorder(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.INFO)
        self.messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(TypeError, ValueError):
            self.messages.append(record.getMessage())


class _Tee(io.TextIOBase):
    def __init__(self, messages: list[str]) -> None:
        self.messages = messages

    def write(self, text: str) -> int:
        if text.strip():
            self.messages.append(text.strip())
        return len(text)


def diffsynth(job: Job) -> Iterator[Row]:
    """DiffSynth-Studio: `UnifiedDataset` with the operators of its training scripts."""
    if importlib.util.find_spec("modelscope") is None:
        stub("modelscope")
    data: Any = module("diffsynth.core.data.unified_dataset")
    s = job.settings
    job.link(job.work)
    index = job.lines(
        job.work / "metadata.jsonl",
        ({"video": c.file, "prompt": c.caption, "input_audio": c.file} for c in job.clips),
    )
    divide = {"time_division_factor": s["factor"], "time_division_remainder": s["remainder"]}
    rate = {"frame_rate": s.get("frame_rate", 24), "fix_frame_rate": s.get("fix_frame_rate", False)}
    special = {}
    with_sound = s.get("audio", False)
    if with_sound:
        absolute = data.ToAbsolutePath(str(job.work))
        audio = data.LoadAudioWithTorchaudio(
            num_frames=s["num_frames"], **divide, **(rate | {"fix_frame_rate": True})
        )
        special["input_audio"] = absolute >> audio
    dataset = data.UnifiedDataset(
        base_path=str(job.work),
        metadata_path=str(index),
        data_file_keys=("video", "input_audio") if with_sound else ("video",),
        main_data_operator=data.UnifiedDataset.default_video_operator(
            base_path=str(job.work), max_pixels=s["max_pixels"], height=s.get("height"),
            width=s.get("width"), height_division_factor=s["side"], width_division_factor=s["side"],
            num_frames=s["num_frames"], **divide, **rate,
        ),
        special_operator_map=special,
    )  # fmt: skip
    for n, clip in enumerate(job.clips):
        try:
            item = dataset[n]
        except Exception as error:  # noqa: BLE001
            yield failed(clip, error, job)
            continue
        frames = (np.asarray(frame) for frame in item["video"])
        sound = item["input_audio"] is not None if with_sound else None
        yield observed(clip, frames, caption=item["prompt"], sound=sound)


def diffusion_pipe(job: Job) -> Iterator[Row]:
    """diffusion-pipe: `DirectoryDataset`, its buckets, and `PreprocessMediaFile`.

    ComfyUI, which is a submodule, decodes there. `ComfyVideo` stands for its `VideoFromFile`.
    """
    stub("deepspeed", "peft", "diffusers", "accelerate", "comfy", "comfy_api", "torchaudio")
    data: Any = module("utils.dataset", job.checkout)
    base: Any = module("models.base")
    ranks: Any = sys.modules["deepspeed.comm.comm"]
    data.dist.get_rank = ranks.get_rank = lambda: 0
    for part in (data, base):
        part.InputImpl = types.SimpleNamespace(VideoFromFile=ComfyVideo)
    data.NUM_PROC = None
    said = job.messages
    data.logger = types.SimpleNamespace(warning=said.append, info=said.append)
    s = job.settings
    folder = job.work / "clips"
    job.with_texts(folder)
    read = data.DirectoryDataset(
        {"path": str(folder)}, s["dataset"], "model", framerate=s["framerate"],
        round_to_multiple=s["round_to_multiple"],
    )  # fmt: skip
    reasons: dict[str, str] = {}
    plain = read._metadata_map_fn

    def recording() -> Callable[[Any], Any]:
        decide = plain()

        def one(example: Foreign) -> Foreign:
            before = len(said)
            result = decide(example)
            if not result["image_spec"]:
                name = Path(example["image_spec"][0][1]).stem
                reasons[name] = " ".join(said[before:])
            return result

        return one

    read._metadata_map_fn = recording
    read.cache_metadata(regenerate_cache=True)
    prepare = base.PreprocessMediaFile(
        s.get("config", {}), support_video=True, support_audio=s.get("audio", False),
        framerate=s["framerate"],
        audio_sample_rate=44100 if s.get("audio", False) else None, round_height=s["round"],
        round_width=s["round"], round_frames=s["round_frames"],
    )  # fmt: skip
    clips = {clip.clip: clip for clip in job.clips}
    rows: list[Row] = []

    def each(metadata: Foreign, *_: Foreign, **__: Foreign) -> list[Any]:
        for example in metadata:
            clip = clips.pop(Path(example["image_spec"][1]).stem)
            try:
                ((video, audio, _mask),) = prepare(
                    example["image_spec"], None, example["size_bucket"]
                )
            except Exception as error:  # noqa: BLE001
                rows.append(failed(clip, error, job))
                continue
            frames = pictures(video, "CTHW")
            sound = audio is not None if s.get("audio", False) else None
            row = observed(clip, frames, caption=example["caption"][0], sound=sound)
            rows.append(row | {"bucket": list(example["size_bucket"])})
        return [None] * len(metadata)

    data._map_and_cache = each
    for bucket in read.ar_bucket_datasets:
        bucket.cache_latents(None)
        yield from rows
        rows.clear()
    for clip in clips.values():
        yield skipped(clip, shortened(reasons.get(clip.clip, job.reason(clip)), job))


class ComfyVideo:
    """Frames, count and average rate of a file, by PyAV as in ComfyUI's reader."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.av: Any = importlib.import_module("av")

    def get_dimensions(self) -> tuple[int, int]:
        with self.av.open(self.file) as container:
            stream = container.streams.video[0]
            return stream.width, stream.height

    def get_frame_count(self) -> int:
        with self.av.open(self.file) as container:
            return int(container.streams.video[0].frames)

    def get_frame_rate(self) -> Fraction:
        with self.av.open(self.file) as container:
            return Fraction(container.streams.video[0].average_rate)

    def get_components(self) -> types.SimpleNamespace:
        torch: Any = importlib.import_module("torch")
        with self.av.open(self.file) as container:
            stream = container.streams.video[0]
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
            rate = Fraction(stream.average_rate)
        audio = None
        with self.av.open(self.file) as container:
            if container.streams.audio:
                waves = [
                    frame.to_ndarray() for frame in container.decode(container.streams.audio[0])
                ]
                waveform = torch.from_numpy(np.concatenate(waves, axis=1)).unsqueeze(0)
                audio = {
                    "waveform": waveform,
                    "sample_rate": container.streams.audio[0].sample_rate,
                }
        images = torch.from_numpy(np.stack(frames)).float() / 255
        return types.SimpleNamespace(images=images, frame_rate=rate, audio=audio)


def musubi(job: Job) -> Iterator[Row]:
    """musubi-tuner: a dataset by its blueprint, and the items that would be given to the VAE.

    Some settings make several items of a clip: their frames are joined, the shortest and earliest
    item first.
    """
    stub("musubi_tuner.utils.safetensors_utils", "musubi_tuner.utils.model_utils")
    config: Any = module("musubi_tuner.dataset.config_utils", job.checkout / "src")
    s = job.settings
    groups: dict[float | None, list[CountedClip]] = {}
    for clip in job.clips:
        rate = Fraction(clip.rate) if clip.rate else Fraction(30)
        key = round(float(rate), 3) if s["source_fps"] else None
        groups.setdefault(key, []).append(clip)
    datasets = []
    for number, (source_fps, clips) in enumerate(groups.items()):
        folder = job.work / f"group-{number}"
        part = Job(clips=clips, corpus=job.corpus, work=folder, checkout=job.checkout, settings={})
        part.with_texts(folder)
        entry = s["dataset"] | {
            "video_directory": str(folder),
            "cache_directory": str(folder / "cache"),
        }
        datasets.append(entry | ({"source_fps": source_fps} if source_fps else {}))
    generator = config.BlueprintGenerator(config.ConfigSanitizer())
    plan = generator.generate(
        {"general": s["general"], "datasets": datasets},
        argparse.Namespace(debug_dataset=False),
        architecture=s["architecture"],
    )
    group = config.generate_dataset_group_by_blueprint(plan.dataset_group)
    clips_by_stem = {clip.clip: clip for clip in job.clips}
    items: dict[str, list[Row]] = {}
    for dataset in group.datasets:
        for key, batch in dataset.retrieve_latent_cache_batches(1):
            for item in batch:
                # The key of an item is the file, its first frame and its number of frames.
                clip = clips_by_stem[Path(item.item_key).stem.rsplit("_", 1)[0]]
                row = observed(
                    clip, pictures(item.content, "THWC"), caption=item.caption, sound=None
                )
                items.setdefault(clip.clip, []).append(row | {"bucket": list(key)})
    for stem, rows in items.items():
        rows.sort(key=lambda row: (len(row["frames"]), row["frames"]))
        del clips_by_stem[stem]
        yield rows[0] | {"frames": [number for row in rows for number in row["frames"]]}
    for clip in clips_by_stem.values():
        yield skipped(clip, job.reason(clip))


def ltx2(job: Job) -> Iterator[Row]:
    """LTX-2 trainer: `MediaDataset` and `CaptionsDataset` of its preparation scripts."""
    scripts = job.checkout / "packages" / "ltx-trainer" / "scripts"
    stub(*job.settings["stubs"])
    videos: Any = module(
        "process_videos", scripts, scripts.parent / "src", job.checkout / "packages/ltx-core/src"
    )
    s = job.settings
    job.link(job.work)
    index = job.lines(
        job.work / "dataset.jsonl", ({"video": c.file, "caption": c.caption} for c in job.clips)
    )
    dataset = videos.MediaDataset(
        dataset_file=index, main_media_column="video", video_column="video",
        resolution_buckets=[tuple(bucket) for bucket in s["buckets"]],
        with_audio=s["audio"],
    )  # fmt: skip
    clips = {clip.file: clip for clip in job.clips}
    captions: dict[str, str] = {}
    with contextlib.suppress(ImportError):
        text: Any = importlib.import_module("process_captions")
        read = text.CaptionsDataset(index, caption_column="caption", media_column="video")
        captions = {
            Path(item["output_path"]).stem: item["prompt"]
            for item in (read[n] for n in range(len(read)))
        }
    for number, path in enumerate(dataset.video_paths):
        clip = clips.pop(path.name)
        try:
            item = dataset[number]
        except Exception as error:  # noqa: BLE001
            yield failed(clip, error, job)
            continue
        frames = pictures(item["video"], "CTHW", signed=True)
        yield observed(clip, frames, caption=captions.get(clip.clip), sound="audio" in item)
    for clip in clips.values():
        yield skipped(clip, job.reason(clip))


class LeastDraws:
    """Stands for `random` in a loader: each draw is the least value, and its range is kept."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def randint(self, low: int, high: int) -> int:
        self.ranges.append((low, high))
        return low

    def randrange(self, stop: int) -> int:
        return 0

    def random(self) -> float:
        return 1.0

    def choice(self, values: Foreign) -> Foreign:
        return values[0]

    def __getattr__(self, name: str) -> Foreign:
        return getattr(random, name)


def videox_fun(job: Job) -> Iterator[Row]:
    """VideoX-Fun: `ImageVideoDataset.get_batch` and the `collate_fn` of its training script.

    `__getitem__` draws another clip for one that cannot be read, so `get_batch` is called.
    """
    bare_packages(job.checkout, "videox_fun", "videox_fun.data")
    data: Any = module("videox_fun.data.dataset_image_video")
    buckets: Any = importlib.import_module("videox_fun.data.bucket_sampler")
    torch: Any = importlib.import_module("torch")
    s = job.settings
    job.link(job.work)
    index = job.document(
        job.work / "metadata.json",
        [{"file_path": c.file, "text": c.caption, "type": "video", "width": c.width,
          "height": c.height} for c in job.clips],
    )  # fmt: skip
    draws = data.random = LeastDraws()
    dataset = data.ImageVideoDataset(
        str(index), str(job.work), video_sample_size=s["size"], video_sample_stride=s["stride"],
        video_sample_n_frames=s["frames"], image_sample_size=s["size"], enable_bucket=True,
    )  # fmt: skip
    arguments = argparse.Namespace(
        video_sample_size=s["size"], image_sample_size=s["size"], token_sample_size=s["size"],
        video_sample_n_frames=s["frames"], train_mode="normal", random_hw_adapt=False,
        random_ratio_crop=False, fix_sample_size=None, training_with_video_token_length=False,
        enable_text_encoder_in_dataloader=False,
    )  # fmt: skip
    scope = vars(buckets) | {
        "args": arguments, "np": np, "torch": torch, "transforms": data.transforms, "rng": None,
        "sample_n_frames_bucket_interval": 4,
    }  # fmt: skip
    script = job.checkout / "scripts" / "wan2.1" / "train.py"
    collate = nested(script, {"collate_fn", "get_length_to_frame_num"}, scope)["collate_fn"]
    for number, clip in enumerate(job.clips):
        draws.ranges.clear()
        try:
            pixels, text, kind, _path = dataset.get_batch(number)
            batch = collate([{"pixel_values": pixels, "text": text, "data_type": kind}])
        except Exception as error:  # noqa: BLE001
            yield failed(clip, error, job)
            continue
        frames = pictures(batch["pixel_values"][0], "TCHW", signed=True)
        row = observed(clip, frames, caption=batch["text"][0], sound=None)
        yield row | {"random_start": draws.ranges[-1] if draws.ranges else None}


def fastvideo(job: Job) -> Iterator[Row]:
    """FastVideo: the validator and `build_dataset`, then `VideoTransformStage`."""
    fastvideo_stubs()
    parts: Any = module("fastvideo.workflow.preprocess.components")
    stages: Any = importlib.import_module("fastvideo.pipelines.preprocess.preprocess_stages")
    configs: Any = importlib.import_module("fastvideo.configs.configs")
    parts.get_world_size, parts.get_world_rank = (lambda: 1), (lambda: 0)
    s = job.settings
    job.link(job.work / "videos")
    job.document(
        job.work / "videos2caption.json",
        [{"path": c.file, "cap": [c.caption], "fps": _rate(c), "num_frames": c.frames,
          "duration": c.duration_s, "resolution": {"width": c.width, "height": c.height}}
         for c in job.clips],
    )  # fmt: skip
    config = configs.PreprocessConfig(
        dataset_path=str(job.work), dataset_type=configs.DatasetType.MERGED, **s["config"]
    )
    validator = parts.PreprocessingDataValidator(
        max_height=config.max_height, max_width=config.max_width, num_frames=config.num_frames,
        train_fps=config.train_fps, speed_factor=config.speed_factor,
        video_length_tolerance_range=config.video_length_tolerance_range,
        drop_short_ratio=config.drop_short_ratio,
    )  # fmt: skip
    dataset = parts.build_dataset(config, split="train", validator=validator)
    build = parts.VideoForwardBatchBuilder(seed=config.seed)
    stage = stages.VideoTransformStage(
        config.train_fps, config.num_frames, config.max_height, config.max_width,
        config.do_temporal_sample,
    )  # fmt: skip
    text = stages.TextTransformStage(config.training_cfg_rate, config.seed)
    arguments = argparse.Namespace(preprocess_config=config, workload_type=stages.WorkloadType.T2V)
    clips = {clip.file: clip for clip in job.clips}
    for number in range(len(dataset)):
        item = dataset[number]
        clip = clips.pop(item["name"])
        try:
            batch = text.forward(stage.forward(build([item]), arguments), arguments)
        except Exception as error:  # noqa: BLE001
            yield failed(clip, error, job)
            continue
        yield observed(
            clip, pictures(batch.latents[0], "CTHW"), caption=batch.prompt[0], sound=None
        )
    for clip in clips.values():
        # The validator only counts, so each of its rules is asked again.
        row = {"caption": [clip.caption], "fps": _rate(clip), "num_frames": clip.frames,
               "resolution": {"width": clip.width, "height": clip.height}}  # fmt: skip
        names = [name for name, rule in validator.validators.items() if not rule(row)]
        yield skipped(clip, ", ".join(names) or "filtered")


def _rate(clip: CountedClip) -> float:
    return float(Fraction(clip.rate)) if clip.rate else round(clip.frames / clip.duration_s, 3)


def fastvideo_stubs() -> None:
    """Lets parts of FastVideo be imported without its engine, which wants CUDA."""
    found = importlib.util.find_spec("fastvideo")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("fastvideo is not installed in this Python")
    bare_packages(
        Path(found.origin).parents[1], "fastvideo", "fastvideo.workflow",
        "fastvideo.workflow.preprocess", "fastvideo.pipelines", "fastvideo.pipelines.preprocess",
        "fastvideo.configs", "fastvideo.dataset", "fastvideo.dataset.dataloader",
    )  # fmt: skip
    stub("fastvideo.distributed", "fastvideo.logger", "fastvideo.pipelines.pipeline_batch_info",
         "fastvideo.fastvideo_args", "fastvideo.utils", "fastvideo.pipelines.stages",
         "fastvideo.dataset.dataloader.parquet_io",
         "torchvision.transforms._transforms_video")  # fmt: skip
    sys.modules["fastvideo.pipelines.pipeline_batch_info"] = info = types.ModuleType("info")
    info.PreprocessBatch = info.ForwardBatch = types.SimpleNamespace  # type: ignore[attr-defined]
    sys.modules["fastvideo.pipelines.stages.base"] = base = types.ModuleType("base")
    base.PipelineStage = object  # type: ignore[attr-defined]


def automodel(job: Job) -> Iterator[Row]:
    """NeMo Automodel: caption loader, buckets and the worker of its preprocessing script."""
    stub(*job.settings["stubs"])
    bare_packages(
        job.checkout, "nemo_automodel", "nemo_automodel.components",
        "nemo_automodel.components.datasets", "nemo_automodel.components.datasets.diffusion",
    )  # fmt: skip
    work: Any = module("tools.diffusion.preprocessing_multiprocess", job.checkout)
    s = job.settings
    folder = job.work / "videos"
    job.link(folder)
    job.document(
        folder / "meta.json", [{"file_name": c.file, "caption": c.caption} for c in job.clips]
    )
    files = work._get_media_files(folder, work.VIDEO_EXTENSIONS)
    captions = work.get_caption_loader("meta_json").load_captions(files, "caption")
    processor = work.ProcessorRegistry.get(s["processor"])
    seen: dict[str, Any] = {}

    def encode(video: Foreign, *_: Foreign, **__: Foreign) -> Foreign:
        seen["video"] = video
        return None

    def write(caption: str, *_: Foreign, **__: Foreign) -> dict[str, Any]:
        seen["caption"] = caption
        return {}

    processor.encode_video, processor.encode_text = encode, write
    processor.get_cache_data = lambda *_, **__: {}
    for name in ("encode_first_frame", "encode_audio"):
        if hasattr(processor, name):
            setattr(processor, name, lambda *_, **__: {})
    work._worker_processor, work._worker_device, work._worker_models = processor, "cpu", {}
    quantization = getattr(processor, "quantization", 8)
    work._worker_calculator = work.MultiTierBucketCalculator(
        quantization=quantization, max_pixels=s["max_pixels"]
    )
    work._save_cache_file = lambda *_, **__: "none"
    clips = {clip.file: clip for clip in job.clips}
    for file in files:
        clip = clips.pop(Path(file).name)
        caption = captions.get(Path(file).name, "")
        done = work._process_video((str(file), str(job.work), caption, s["config"]))
        if not done:
            yield skipped(clip, job.reason(clip))
            continue
        frames = pictures(seen["video"][0], "CTHW", signed=True)
        yield observed(clip, frames, caption=seen["caption"], sound=None)
    for clip in clips.values():
        yield skipped(clip, job.reason(clip))


def ai_toolkit(job: Job) -> Iterator[Row]:
    """ai-toolkit: `AiToolkitDataset`, whose items have gone through buckets and captions."""
    stub(*job.settings["stubs"])
    data: Any = module("toolkit.data_loader", job.checkout)
    mixins: Any = importlib.import_module("toolkit.dataloader_mixins")
    config: Any = importlib.import_module("toolkit.config_modules")
    s = job.settings
    folder = job.work / "videos"
    job.with_texts(folder)
    (raw,) = config.preprocess_dataset_raw_config([s["dataset"] | {"folder_path": str(folder)}])
    model = MagicMock()
    model.get_bucket_divisibility = lambda: s["side"]
    model.get_frame_count_snapper = lambda: None
    model.is_audio_model = False
    model.vae = argparse.Namespace(config=argparse.Namespace(scale_factor_temporal=s["temporal"]))
    model.unet = argparse.Namespace(config=argparse.Namespace())
    draws = mixins.random = LeastDraws()
    dataset = data.AiToolkitDataset(config.DatasetConfig(**raw), batch_size=1, sd=model)
    dataset._get_replacement_index = _no_replacement
    clips = {clip.file: clip for clip in job.clips}
    for number, item in enumerate(dataset.file_list):
        clip = clips.pop(Path(item.path).name)
        draws.ranges.clear()
        try:
            read = dataset._get_single_item(number)
        except Exception as error:  # noqa: BLE001
            said = job.reason(clip)
            yield skipped(clip, said) if clip.clip in said else failed(clip, error, job)
            continue
        sound = read.audio_data is not None if s["dataset"].get("do_audio") else None
        frames = pictures(read.tensor, "TCHW", signed=True)
        row = observed(clip, frames, caption=read.caption, sound=sound)
        yield row | {"random_start": draws.ranges[-1] if draws.ranges else None}
    for clip in clips.values():
        yield skipped(clip, job.reason(clip))


def _no_replacement(_index: int) -> int:
    raise ValueError("cannot be read; the trainer takes another clip of the bucket")


def cosmos(job: Job) -> Iterator[Row]:
    """cosmos-framework: `get_sft_dataset` and its `process_one_sample`; the tokenizer is a stub."""
    stub(*job.settings["stubs"])
    data: Any = module("cosmos_framework.data.generator.local_datasets.sft_dataset", job.checkout)
    data.lazy_instantiate = lambda *_: types.SimpleNamespace(tokenizer=None)
    data.add_special_tokens = lambda tokenizer: (tokenizer, None)
    data.tokenize_caption = lambda caption, *_, **__: [0] * len(caption.split())
    said = job.messages
    data.log = types.SimpleNamespace(
        info=lambda text, **_: said.append(text), warning=lambda text, **_: said.append(text)
    )
    data.INTERNAL, data.boto3 = False, MagicMock()
    data.random = LeastDraws()
    s = job.settings
    job.link(job.work)
    index = job.lines(
        job.work / "train.jsonl",
        ({"uuid": c.clip, "duration": c.duration_s, "width": c.width, "height": c.height,
          "vision_path": c.file, "nb_frames": c.frames, "framerate": _rate(c),
          "t2w_windows": [{"start_frame": 0, "end_frame": c.frames - 1, "temporal_interval": 1,
                           "caption": c.caption}]} for c in job.clips),
    )  # fmt: skip
    dataset = data.get_sft_dataset(
        jsonl_paths=str(index), cfg_dropout_rate=0.0, tokenizer_config=None, **s["dataset"]
    )
    dataset.s3_client = MagicMock()
    clips = {clip.clip: clip for clip in job.clips}
    for metadata in dataset.metadata:
        clip = clips.pop(metadata["uuid"])
        before = len(said)
        try:
            sample = dataset.process_one_sample(metadata)
        except Exception as error:  # noqa: BLE001
            yield failed(clip, error, job)
            continue
        if sample is None:
            yield skipped(clip, shortened(" ".join(said[before:]), job))
            continue
        frames = pictures(sample["video"], "CTHW")
        yield observed(clip, frames, caption=sample["ai_caption"], sound=None)
    for clip in clips.values():
        yield skipped(clip, job.reason(clip))


def simpletuner(job: Job) -> Iterator[Row]:
    """SimpleTuner: its scan for buckets, `TrainingSample`, and what its VAE cache is given."""
    helpers = job.checkout / "simpletuner" / "helpers"
    bare_packages(
        job.checkout, "simpletuner", "simpletuner.helpers", "simpletuner.helpers.data_backend",
        "simpletuner.helpers.caching",
    )  # fmt: skip
    stub(*job.settings["stubs"])
    scan: Any = module("simpletuner.helpers.metadata.backends.discovery", job.checkout)
    load: Any = importlib.import_module("simpletuner.helpers.image_manipulation.load")
    kinds: Any = importlib.import_module("simpletuner.helpers.data_backend.dataset_types")
    prompts: Any = importlib.import_module("simpletuner.helpers.prompts")
    torch: Any = importlib.import_module("torch")
    s = job.settings
    family = nested(helpers / "models" / "wan" / "model.py", {"adjust_video_frames"}, {})
    model = type("Wan", (), {"adjust_video_frames": family["adjust_video_frames"]})
    registry: Any = importlib.import_module("simpletuner.helpers.models")
    registry.ModelRegistry = argparse.Namespace(model_families=lambda: {"wan": model})
    state = scan.StateTracker
    values = {"get_model_family": "wan", "get_data_backend_config": s["dataset"], "get_model": None,
              "get_webhook_handler": None, "get_metadata_by_filepath": None,
              "get_args": argparse.Namespace(aspect_bucket_alignment=s["side"],
                                             aspect_bucket_rounding=2)}  # fmt: skip
    state.args = argparse.Namespace(output_dir=str(job.work), **vars(values["get_args"]))
    for name, value in values.items():
        setattr(state, name, staticmethod(lambda *_, value=value, **__: value))
    folder = job.work / "videos"
    job.with_texts(folder)
    backend = object.__new__(scan.DiscoveryMetadataBackend)
    video = s["dataset"]["video"]
    backend.__dict__.update(
        id="videos", dataset_config=s["dataset"], dataset_type=kinds.DatasetType.VIDEO,
        minimum_num_frames=float(video["min_frames"]), maximum_num_frames=video.get("max_frames"),
        bucket_strategy="aspect_ratio", video_config=video, video_frame_interval=None,
        delete_unwanted_images=False, minimum_image_size=None, minimum_aspect_ratio=None,
        maximum_aspect_ratio=None, resolution=s["dataset"]["resolution"], resolution_type="area",
        data_backend=argparse.Namespace(
            type="local", read=lambda path: Path(path).read_bytes(), exists=os.path.exists
        ),
    )  # fmt: skip
    backend._discover_bbox_metadata = lambda *_: None
    scope = {"StateTracker": state, "logger": logging.getLogger("vae")}
    cut = nested(helpers / "caching" / "vae.py", {"prepare_video_latents"}, scope)[
        "prepare_video_latents"
    ]
    cache = argparse.Namespace(num_video_frames=video["num_frames"], vae=None)
    for clip in job.clips:
        path = str(folder / clip.file)
        metadata: dict[str, Any] = {}
        statistics: dict[str, Any] = {}
        before = len(job.messages)
        backend._process_for_bucket(path, {}, metadata_updates=metadata, statistics=statistics)
        if path not in metadata:
            reasons = ", ".join(statistics.get("skipped", {})) or " ".join(job.messages[before:])
            yield skipped(clip, shortened(reasons, job))
            continue
        try:
            sample = scan.TrainingSample(
                image=load.load_video(path), data_backend_id="videos",
                image_metadata=metadata[path], image_path=path,
            ).prepare()  # fmt: skip
            pixels = cut(cache, torch.from_numpy(np.asarray(sample.image))[None])[0]
        except Exception as error:  # noqa: BLE001
            yield failed(clip, error, job)
            continue
        text = prompts.PromptHandler.prepare_instance_prompt_from_textfile(
            path, True, False, backend.data_backend
        )
        captions = text if isinstance(text, list) else [text]
        row = observed(
            clip, pictures(pixels, "CTHW"), caption=captions[0] if captions else "", sound=None
        )
        yield row | {"captions": captions}


def energon(job: Job) -> Iterator[Row]:
    """Megatron-Energon: its preparation, dataset, loader and `AVDecoder`, over tars."""
    api: Any = module("megatron.energon")
    prepare: Any = importlib.import_module("megatron.energon.flavors")
    tars = job.work / "tars"
    names = _tars(job, tars)
    prepare.BaseWebdatasetFactory.prepare_dataset(
        tars, names, split_parts_ratio=[("val", 1.0)], shuffle_seed=None, workers=1
    )
    (tars / ".nv-meta" / "dataset.yaml").write_text(
        "__module__: megatron.energon\n__class__: CrudeWebdataset\n", encoding="utf-8"
    )

    def cook(sample: Foreign) -> Foreign:
        return sample

    encoder = type(
        "Encoder", (api.DefaultTaskEncoder,),
        {"decoder": api.SampleDecoder(), "cookers": (api.Cooker(api.stateless(cook)),)},
    )()  # fmt: skip
    dataset = api.get_val_dataset(
        tars, split_part="val", batch_size=None, task_encoder=encoder,
        worker_config=api.WorkerConfig(rank=0, world_size=1, num_workers=0),
    )  # fmt: skip
    clips = {clip.clip: clip for clip in job.clips}
    for sample in api.get_loader(dataset):
        clip = clips.pop(Path(sample["__key__"]).name)
        try:
            video = sample["mp4"].get_video().video_clips[0]
            sound = sample["mp4"].has_audio_stream()
        except Exception as error:  # noqa: BLE001
            yield failed(clip, error, job)
            continue
        yield observed(clip, pictures(video, "TCHW"), caption=sample["txt"], sound=sound)
    for clip in clips.values():
        yield skipped(clip, job.reason(clip))


def webshart(job: Job) -> Iterator[Row]:
    """webshart: its index over tars, and its loader; the bytes are decoded by PyAV here."""
    reader: Any = module("webshart")
    av: Any = importlib.import_module("av")
    tars = job.work / "tars"
    for name in _tars(job, tars):
        _webshart_index(tars / name, {clip.clip: clip for clip in job.clips})
    found = reader.discover_dataset(str(tars))
    loader = reader.TarDataLoader(found)
    clips = {clip.file: clip for clip in job.clips}
    for entry in loader:
        clip = clips.pop(Path(entry.path).name, None)
        if clip is None:
            continue
        try:
            with av.open(io.BytesIO(bytes(entry.data))) as container:
                frames = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
                sound = bool(container.streams.audio)
        except Exception as error:  # noqa: BLE001
            yield failed(clip, error, job)
            continue
        captions = getattr(entry, "captions", None)
        caption: str | None = captions[0] if isinstance(captions, list) else captions
        yield observed(clip, frames, caption=caption, sound=sound)
    for clip in clips.values():
        yield skipped(clip, job.reason(clip))


def _tars(job: Job, folder: Path, size: int = 100) -> list[str]:
    """Packs MP4, caption and facts of all clips into tars; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for start in range(0, len(job.clips), size):
        name = f"clips-{start // size:04d}.tar"
        with tarfile.open(folder / name, "w") as tar:
            for clip in job.clips[start : start + size]:
                _add(tar, clip.file, (job.corpus / clip.file).read_bytes())
                _add(tar, f"{clip.clip}.txt", clip.caption.encode())
        names.append(name)
    return names


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def _webshart_index(path: Path, clips: dict[str, CountedClip]) -> None:
    files = {}
    with tarfile.open(path) as tar:
        for member in tar:
            entry: Row = {"offset": member.offset_data, "length": member.size}
            if member.name.endswith(".mp4"):
                clip = clips[Path(member.name).stem]
                entry |= {"width": clip.width, "height": clip.height,
                          "aspect": round(clip.width / clip.height, 3),
                          "captions": clip.caption}  # fmt: skip
            files[member.name] = entry
    value = {"path": path.name, "filesize": path.stat().st_size, "files": files}
    path.with_suffix(".json").write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


ADAPTERS: dict[str, Callable[[Job], Iterator[Row]]] = {
    "diffsynth": diffsynth,
    "diffusion_pipe": diffusion_pipe,
    "musubi": musubi,
    "ltx2": ltx2,
    "videox_fun": videox_fun,
    "fastvideo": fastvideo,
    "automodel": automodel,
    "ai_toolkit": ai_toolkit,
    "cosmos": cosmos,
    "simpletuner": simpletuner,
    "energon": energon,
    "webshart": webshart,
}


def main() -> None:
    """Writes one row per clip; the last line of the output is what it cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("adapter", choices=sorted(ADAPTERS))
    parser.add_argument("corpus", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--settings", type=json.loads, default={})
    parser.add_argument("--every", type=int, default=1, help="of how many clips one is read")
    parser.add_argument("--part", type=int, default=0, help="which of them")
    parser.add_argument("--shortest", type=int, default=0, help="frames of the shortest clip")
    parser.add_argument("--longest", type=int, default=1 << 30, help="frames of the longest clip")
    given = parser.parse_args()
    random.seed(0)
    clips = [c for c in read_plan(given.corpus) if given.shortest <= c.frames <= given.longest]
    job = Job(
        clips=clips[given.part :: given.every], corpus=given.corpus,
        work=given.work, checkout=given.checkout, settings=given.settings,
    )  # fmt: skip
    shutil.rmtree(given.work, ignore_errors=True)
    given.work.mkdir(parents=True)
    logging.getLogger().addHandler(_Recorder(job.messages))
    began, kept, rows = time.monotonic(), 0, 0
    console = sys.stdout
    with given.output.open("w", encoding="utf-8") as output:
        try:
            with contextlib.redirect_stdout(_Tee(job.messages)):
                for row in ADAPTERS[given.adapter](job):
                    output.write(json.dumps(row, ensure_ascii=False) + "\n")
                    output.flush()
                    kept, rows = kept + row["kept"], rows + 1
        except Exception:  # noqa: BLE001
            traceback.print_exc()
            print(
                json.dumps({"error": shortened(traceback.format_exc(), job), "rows": rows}),
                file=console,
            )
            sys.exit(1)
    seconds = round(time.monotonic() - began, 1)
    shutil.rmtree(given.work, ignore_errors=True)
    print(json.dumps({"rows": rows, "kept": kept, "seconds": seconds}), file=console)


if __name__ == "__main__":
    main()
