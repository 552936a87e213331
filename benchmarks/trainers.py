"""Compares what trainers' own loaders do with 1,000 made clips with what `curate fit` says.

    trainers.py make CLIPS                                the clips, each frame with its number
    trainers.py observe CLIPS OBSERVED --checkouts DIR    what loaders do: OBSERVED/NAME.jsonl
    trainers.py table OBSERVED CLIPS                      the numbers of results/trainers.md
    trainers.py rules OBSERVED CLIPS                      what was seen, by rate, size, caption
    trainers.py fit CLIPS FITS                            what `curate fit` says: FITS/NAME.jsonl
    trainers.py compare OBSERVED FITS                     both, clip by clip: files or folders

A line of such a file is `{"clip", "kept", "frames", "size", "caption", "sound"}`: the name of the
clip, whether the trainer keeps it, the numbers of the frames that it reads in order, width and
height that it gives to its model, the caption that it reads, and whether it reads sound (null: the
trainer reads none). Observations also have `crop` (left, top, right, bottom in the clip's pixels)
and `error`. Where a loader begins at a random frame, the observation is that of the least start,
and `random_start` has the range. `compare` compares the keys that both files have.
"""

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

from counted_clips import SIZES, CountedClip, make, plan, read_plan

from curator.trainers.clip_fit import OutputSpec, caption_of, fit_form
from curator.trainers.trainer_files import Trainer, load_trainer

HERE = Path(__file__).parent
Setting: TypeAlias = Any
"""A value of a trainer's configuration, in JSON."""


@dataclass(frozen=True, kw_only=True)
class Loader:
    """A loader with the settings that a trainer's user would write."""

    project: str
    called: str
    """Classes and functions of the trainer that run."""
    adapter: str
    checkout: str = ""
    """Folder below `--checkouts`; empty if the trainer is an installed package."""
    package: str = ""
    settings: dict[str, Any]


_PIPE_BUCKETS = {
    "resolutions": [128], "enable_ar_bucket": True, "min_ar": 0.5, "max_ar": 2.0,
    "num_ar_buckets": 7, "frame_buckets": [1, 33, 81],
}  # fmt: skip


def _diffsynth(**settings: Setting) -> Loader:
    common = {"factor": 4, "remainder": 1, "max_pixels": 1024 * 1024, "side": 16}
    return Loader(
        project="DiffSynth-Studio", called="UnifiedDataset.default_video_operator",
        adapter="diffsynth", package="diffsynth", settings=common | settings,
    )  # fmt: skip


def _pipe(**settings: Setting) -> Loader:
    common = {"dataset": _PIPE_BUCKETS, "round_to_multiple": 16, "round": 16, "round_frames": 4}
    return Loader(
        project="diffusion-pipe", called="DirectoryDataset, ARBucketDataset, PreprocessMediaFile",
        adapter="diffusion_pipe", checkout="diffusion-pipe", settings=common | settings,
    )  # fmt: skip


def _musubi(architecture: str, *, source_fps: bool = False, **dataset: Setting) -> Loader:
    general = {"resolution": [256, 256], "caption_extension": ".txt", "batch_size": 1,
               "enable_bucket": True, "bucket_no_upscale": False}  # fmt: skip
    return Loader(
        project="musubi-tuner", called="VideoDataset.retrieve_latent_cache_batches",
        adapter="musubi", checkout="musubi-tuner",
        settings={"architecture": architecture, "source_fps": source_fps, "general": general,
                  "dataset": dataset},
    )  # fmt: skip


def _ltx2(buckets: Setting) -> Loader:
    return Loader(
        project="LTX-2 trainer", called="MediaDataset, CaptionsDataset", adapter="ltx2",
        checkout="LTX-2",
        settings={"buckets": buckets, "audio": True,
                  "stubs": ["ltx_core.model", "ltx_trainer.model_loader", "pillow_heif"]},
    )  # fmt: skip


def _videox(**settings: Setting) -> Loader:
    return Loader(
        project="VideoX-Fun", called="ImageVideoDataset.get_batch, collate_fn of wan2.1/train.py",
        adapter="videox_fun", checkout="VideoX-Fun", settings=settings,
    )  # fmt: skip


def _fastvideo(**config: Setting) -> Loader:
    return Loader(
        project="FastVideo",
        called="build_dataset, PreprocessingDataValidator, VideoTransformStage",
        adapter="fastvideo", package="fastvideo",
        settings={"config": {"video_length_tolerance_range": 5} | config},
    )  # fmt: skip


def _automodel(processor: str, **config: Setting) -> Loader:
    return Loader(
        project="NeMo Automodel",
        called="get_caption_loader, MultiTierBucketCalculator, _process_video",
        adapter="automodel", checkout="Automodel",
        settings={"processor": processor, "max_pixels": 256 * 256, "config": config,
                  "stubs": ["diffusers", "tools.diffusion.data"]},
    )  # fmt: skip


def _ai_toolkit(**dataset: Setting) -> Loader:
    common = {"resolution": 256, "caption_ext": "txt", "buckets": True, "cache_latents": False}
    return Loader(
        project="ai-toolkit", called="AiToolkitDataset._get_single_item",
        adapter="ai_toolkit", checkout="ai-toolkit",
        settings={"dataset": common | dataset, "side": 16, "temporal": 4,
                  "stubs": _AI_TOOLKIT_STUBS},
    )  # fmt: skip


_AI_TOOLKIT_STUBS = [
    "albumentations", "diffusers", "toolkit.control_generator", "toolkit.models",
    "toolkit.train_tools",
    "toolkit.accelerator", "lycoris", "toolkit.metadata", "toolkit.util.quantize",
]  # fmt: skip


def _cosmos(**dataset: Setting) -> Loader:
    return Loader(
        project="cosmos-framework", called="get_sft_dataset, SFTDataset.process_one_sample",
        adapter="cosmos", checkout="cosmos-framework",
        settings={"dataset": {"resolution": "256"} | dataset, "stubs": _COSMOS_STUBS},
    )  # fmt: skip


_COSMOS_STUBS = [
    "cosmos_framework.data.generator.sequence_packing", "cosmos_framework.model",
    "cosmos_framework.utils.log", "cosmos_framework.utils.lazy_config",
    "cosmos_framework.utils.flags",
]  # fmt: skip


def _simpletuner(side: int, multiple: int) -> Loader:
    return Loader(
        project="SimpleTuner",
        called="_process_for_bucket, TrainingSample, prepare_video_latents, PromptHandler",
        adapter="simpletuner", checkout="SimpleTuner",
        settings={
            "side": multiple,
            "stubs": ["simpletuner.helpers.models", "simpletuner.simpletuner_sdk", "diffusers"],
            "dataset": {"dataset_type": "video", "resolution": side * side / 1e6,
                        "resolution_type": "area", "crop": False,
                        "video": {"num_frames": 81, "min_frames": 81}},
        },
    )  # fmt: skip


LOADERS: dict[str, Loader] = {
    "diffsynth-wan": _diffsynth(num_frames=81),
    "diffsynth-wan-sized": _diffsynth(num_frames=49, height=240, width=416),
    "diffsynth-ltx2": _diffsynth(
        num_frames=121, factor=8, height=256, width=384, side=32, fix_frame_rate=True, audio=True
    ),
    "diffsynth-h3": _diffsynth(
        num_frames=124, factor=17, remainder=5, height=240, width=416, fix_frame_rate=True,
        audio=True,
    ),
    "diffusion-pipe-wan": _pipe(framerate=16),
    "diffusion-pipe-hunyuan": _pipe(framerate=24),
    "diffusion-pipe-ltx2": _pipe(framerate=24, round=32, round_frames=8),
    "musubi-wan": _musubi("wan", target_frames=[81], frame_extraction="head"),
    "musubi-wan-source-fps": _musubi(
        "wan", source_fps=True, target_frames=[81], frame_extraction="head"
    ),
    "musubi-hunyuan-source-fps": _musubi(
        "hv", source_fps=True, frame_extraction="full", max_frames=129
    ),
    "ltx2": _ltx2([[121, 256, 448], [49, 256, 256], [49, 448, 256]]),
    "videox-fun-wan": _videox(size=256, stride=2, frames=81),
    "fastvideo-wan": _fastvideo(max_height=256, max_width=448, num_frames=77, train_fps=16),
    "automodel-wan": _automodel("wan", mode="video", target_frames=81),
    "automodel-hunyuan": _automodel("hunyuan", mode="video", target_frames=121),
    "automodel-default": _automodel("wan", mode="video", num_frames=10),
    "ai-toolkit": _ai_toolkit(num_frames=41, fps=16),
    "ai-toolkit-consecutive": _ai_toolkit(num_frames=41, fps=16, shrink_video_to_frames=False),
    "ai-toolkit-auto": _ai_toolkit(
        auto_frame_count=True, num_frames=1, fps=16, do_audio=True
    ),
    "cosmos-93": _cosmos(num_video_frames=93),
    "cosmos-native": _cosmos(num_video_frames=-1),
    "simpletuner-wan": _simpletuner(256, 64),
    "simpletuner-wan-480": _simpletuner(480, 32),
    # Other settings of the same loaders.
    "diffsynth-wan-area": _diffsynth(num_frames=33, max_pixels=128 * 128),
    "diffsynth-ltx2-25": _diffsynth(
        num_frames=97, factor=8, side=32, max_pixels=160 * 160, frame_rate=25, fix_frame_rate=True
    ),
    "diffusion-pipe-middle": _pipe(framerate=16, config={"video_clip_mode": "single_middle"}),
    "musubi-wan-chunk": _musubi("wan", target_frames=[25, 45], frame_extraction="chunk"),
    "musubi-wan-slide": _musubi(
        "wan", source_fps=True, target_frames=[34], frame_extraction="slide", frame_stride=10
    ),
    "musubi-wan-uniform": _musubi(
        "wan", target_frames=[17], frame_extraction="uniform", frame_sample=3
    ),
    "musubi-hunyuan-uniform": _musubi(
        "hv", source_fps=True, target_frames=[17], frame_extraction="uniform"
    ),
    "ltx2-one": _ltx2([[89, 128, 192]]),
    "videox-fun-wan-3": _videox(size=128, stride=3, frames=49),
    "fastvideo-24": _fastvideo(max_height=128, max_width=96, num_frames=49, train_fps=24),
    "automodel-ltx2": _automodel("ltx2", mode="video", target_frames=81),
    "ai-toolkit-consecutive-24": _ai_toolkit(
        num_frames=33, fps=24, resolution=128, shrink_video_to_frames=False
    ),
    "cosmos-first-30": _cosmos(
        num_video_frames=93, temporal_interval_mode="max_30fps", frame_selection_mode="first",
        conditioning_fps=-1,
    ),
    "cosmos-random": _cosmos(
        num_video_frames=61, temporal_interval_mode="force_one", frame_selection_mode="random",
        min_short_edge=200,
    ),
    "energon": Loader(
        project="Megatron-Energon",
        called="prepare_dataset, get_val_dataset, get_loader, AVDecoder",
        adapter="energon", package="megatron-energon", settings={},
    ),
    "webshart": Loader(
        project="webshart", called="discover_dataset, TarDataLoader", adapter="webshart",
        package="webshart", settings={},
    ),
}  # fmt: skip

RATE_OF_CLIP = "rate of the clip"
"""Stands for the rate of each clip, with which musubi-tuner's user writes a dataset per rate."""
_MUSUBI_SIZE = {"width": 256, "height": 256}
_PIPE_FIT = {"frames": [1, 33, 81], "resolutions": [128]}
_COSMOS_FIT = {"interval": "entire_chunk", "place": "center", "told_fps": 24}

FITS: dict[str, tuple[str, dict[str, Any]]] = {
    "diffsynth-wan": ("wan-diffsynth", {"frames": 81}),
    "diffsynth-wan-sized": ("wan-diffsynth", {"frames": 49, "width": 416, "height": 240}),
    "diffsynth-ltx2": ("ltx2-diffsynth", {"frames": 121, "width": 384, "height": 256}),
    "diffsynth-h3": ("h3-diffsynth", {"width": 416, "height": 240}),
    "diffusion-pipe-wan": ("diffusion-pipe", _PIPE_FIT),
    "diffusion-pipe-hunyuan": ("diffusion-pipe-hunyuan", _PIPE_FIT),
    "diffusion-pipe-ltx2": ("diffusion-pipe-ltx2", _PIPE_FIT),
    "musubi-wan": ("musubi", {"frames": 81} | _MUSUBI_SIZE),
    "musubi-wan-source-fps": (
        "musubi", {"frames": 81, "source_fps": RATE_OF_CLIP} | _MUSUBI_SIZE,
    ),
    "musubi-hunyuan-source-fps": (
        "musubi-hunyuan",
        {"extraction": "full", "frames": 129, "source_fps": RATE_OF_CLIP} | _MUSUBI_SIZE,
    ),
    "ltx2": ("ltx2", {"buckets": ["448x256x121", "256x256x49", "256x448x49"]}),
    "videox-fun-wan": ("videox-fun", {"side": 256}),
    "fastvideo-wan": ("fastvideo", {"width": 448, "height": 256}),
    "automodel-wan": ("automodel", {"frames": 81, "max_pixels": 256 * 256}),
    "automodel-hunyuan": ("automodel-hunyuan", {"frames": 121, "max_pixels": 256 * 256}),
    "automodel-default": ("automodel", {"frames": 10, "max_pixels": 256 * 256}),
    "ai-toolkit": ("ai-toolkit", {"frames": 41, "fps": 16, "side": 256}),
    "ai-toolkit-auto": ("ai-toolkit-auto", {"fps": 16, "side": 256}),
    "ai-toolkit-consecutive": ("ai-toolkit-consecutive", {"frames": 41, "fps": 16, "side": 256}),
    "cosmos-93": ("cosmos3", {"frames": 93} | _COSMOS_FIT),
    "cosmos-native": ("cosmos3", _COSMOS_FIT),
    "simpletuner-wan": ("simpletuner", {"frames": 81, "side": 256, "multiple": 64}),
    "simpletuner-wan-480": ("simpletuner", {"frames": 81}),
    "diffsynth-wan-area": ("wan-diffsynth", {"frames": 33, "max_pixels": 128 * 128}),
    "diffsynth-ltx2-25": (
        "ltx2-diffsynth", {"frames": 97, "fps": 25, "max_pixels": 160 * 160},
    ),
    "diffusion-pipe-middle": ("diffusion-pipe", _PIPE_FIT | {"place": "middle"}),
    "musubi-wan-chunk": ("musubi", {"frames": [25, 45], "extraction": "chunk"} | _MUSUBI_SIZE),
    "musubi-wan-slide": (
        "musubi",
        {"frames": 34, "extraction": "slide", "slide": 10, "source_fps": RATE_OF_CLIP}
        | _MUSUBI_SIZE,
    ),
    "musubi-wan-uniform": (
        "musubi", {"frames": 17, "extraction": "uniform", "samples": 3} | _MUSUBI_SIZE,
    ),
    "musubi-hunyuan-uniform": (
        "musubi-hunyuan",
        {"frames": 17, "extraction": "uniform", "source_fps": RATE_OF_CLIP} | _MUSUBI_SIZE,
    ),
    "ltx2-one": ("ltx2", {"frames": 89, "width": 192, "height": 128}),
    "videox-fun-wan-3": ("videox-fun", {"frames": 49, "stride": 3, "side": 128}),
    "fastvideo-24": ("fastvideo", {"frames": 49, "fps": 24, "width": 96, "height": 128}),
    "automodel-ltx2": ("automodel-ltx2", {"frames": 81, "max_pixels": 256 * 256}),
    "ai-toolkit-consecutive-24": (
        "ai-toolkit-consecutive", {"frames": 33, "fps": 24, "side": 128},
    ),
    "cosmos-first-30": ("cosmos3", {"frames": 93}),
    "cosmos-random": (
        "cosmos3",
        {"frames": 61, "interval": "force_one", "place": "random", "min_side_px": 200,
         "told_fps": 24},
    ),
    "energon": ("energon", {}),
    "webshart": ("energon", {}),
}  # fmt: skip
"""Trainers of `curate fit`, with the parameters that stand for the settings of `LOADERS`."""


def write_clips(folder: Path, count: int, seed: int) -> None:
    """Makes the clips, with `clips.jsonl` that lists them."""
    folder.mkdir(parents=True, exist_ok=True)
    clips = plan(count, seed)
    with ProcessPoolExecutor(2) as pool:
        made = list(pool.map(make, clips, [folder] * count, [seed] * count, chunksize=8))
    lines = (json.dumps(asdict(clip), ensure_ascii=False) + "\n" for clip in made)
    (folder / "clips.jsonl").write_text("".join(lines), encoding="utf-8")
    print(f"{count} clips, {sum(clip.frames for clip in made)} frames")


def observe(
    name: str, clips: Path, folder: Path, *, checkouts: Path, python: str, which: Sequence[str]
) -> dict[str, Any]:
    """Runs one loader in its own Python; returns what its last line says.

    Rows of clips that were read before stay, so that parts of the corpus add up.
    """
    loader = LOADERS[name]
    work, part_file = folder / f"work-{os.getpid()}-{name}", folder / f"{name}.{os.getpid()}.part"
    command = [
        python, str(HERE / "trainer_adapters.py"), loader.adapter, str(clips), str(work),
        str(checkouts / loader.checkout), str(part_file),
        "--settings", json.dumps(loader.settings), *which,
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    quiet = {
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    with log.open("w") as errors:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, check=False,
            env=os.environ | quiet,
        )  # fmt: skip
    if done.returncode == 0:
        whole = folder / f"{name}.jsonl"
        rows = (read_rows(whole) if whole.exists() else {}) | read_rows(part_file)
        lines = [json.dumps(rows[clip], ensure_ascii=False) + "\n" for clip in sorted(rows)]
        whole.write_text("".join(lines), encoding="utf-8")
        part_file.unlink()
    lines = done.stdout.splitlines() or [
        json.dumps({"error": f"exit {done.returncode}, see {log}"})
    ]
    result: dict[str, Any] = {"loader": name} | json.loads(lines[-1])
    return result


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the rows of a file, by clip."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return {row["clip"]: row for row in (json.loads(line) for line in lines if line)}


def fit(name: str, clips: Sequence[CountedClip]) -> Iterator[dict[str, Any]]:
    """Yields what `curate fit` says about each clip of a constant rate; `cut` writes no others."""
    trainer_name, values = FITS[name]
    trainers: dict[str, Trainer] = {}
    for clip in clips:
        if clip.rate is None:
            continue
        rate = round(float(Fraction(clip.rate)), 3)
        if clip.rate not in trainers:
            given = {key: rate if value == RATE_OF_CLIP else value for key, value in values.items()}
            trainers[clip.rate] = load_trainer(trainer_name, given)
        yield _fit_row(trainers[clip.rate], clip)


def write_fits(clips: Path, folder: Path) -> None:
    """Writes what `curate fit` says, a file per loader."""
    folder.mkdir(parents=True, exist_ok=True)
    made = read_plan(clips)
    for name in FITS:
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in fit(name, made))
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def _fit_row(trainer: Trainer, clip: CountedClip) -> dict[str, Any]:
    form = OutputSpec(
        n_frames=clip.frames, fps=Fraction(clip.rate or 0), width=clip.width, height=clip.height,
        has_sound=clip.sound != "none",
    )  # fmt: skip
    found = fit_form(trainer, form)
    text = caption_of(trainer, found, form, clip.caption).text
    is_named = trainer.rules.caption.empty == "file_name" and not clip.caption.strip()
    row = {"clip": clip.clip, "kept": found.reason is None and text is not None}
    frames = []
    if row["kept"]:
        # Of a sample that is drawn, the least start; observations draw the least values.
        for each in found.reading.samples:
            starts = each.starts[:1] if each.is_drawn else each.starts
            for start in starts:
                frames += found.reading.sample(each, start).tolist()
    picture = found.picture
    return row | {
        "frames": frames,
        "size": None if picture is None else [picture.width, picture.height],
        "caption": clip.clip if is_named else text,
        "sound": {"used": True, "missing": False, "ignored": None}[found.sound],
        "error": found.reason,
    }


def compare_all(observed: Path, fits: Path) -> Iterator[dict[str, Any]]:
    """Yields the comparison of each loader that has been observed."""
    for name in FITS:
        if (observed / f"{name}.jsonl").exists():
            found = compare(observed / f"{name}.jsonl", fits / f"{name}.jsonl", shown=3)
            yield {"loader": name} | found


def agreement_table(found: Sequence[dict[str, Any]]) -> str:
    """Returns comparisons as Markdown, with their sum as the last line."""
    shares = ("decisions", "clips_with_same_frames", "size", "caption", "sound")
    lines = [
        "| loader | trainer of `fit` | clips read | compared | frames compared | decisions "
        "| clips with the same frames | sizes | captions | sound |",
        "|---" * (5 + len(shares)) + "|",
    ]
    for one in found:
        loader = one["loader"]
        cells = ("" if one[share] is None else _percent(one[share]) for share in shares)
        read = one["clips"] + one["only_observed"]
        lines.append(
            f"| `{loader}` | `{FITS[loader][0]}` | {read} | {one['clips']} "
            f"| {one['frames_compared']} | {' | '.join(cells)} |"
        )
    read = sum(one["clips"] + one["only_observed"] for one in found)
    compared, frames, wrong = (
        sum(one[key] for one in found) for key in ("clips", "frames_compared", "clips_that_differ")
    )
    return "\n".join(
        [*lines, "", f"{read:,} readings of clips; {compared:,} compared, with {frames:,} frames: "
         f"{wrong:,} differ in something"]
    )  # fmt: skip


def _percent(part: float) -> str:
    """Returns a share; 100% only if nothing is missing."""
    return "100%" if part == 1 else f"{min(part, 0.999):.1%}"


def compare(observed: Path, fit: Path, *, shown: int = 10) -> dict[str, Any]:
    """Compares a loader with `curate fit`.

    Returns:
        Numbers of clips and frames, share with the same decision, share of frames that are equal,
        share of clips with the same frames, size, caption and sound, or None if one of both says
        nothing; the first disagreements.
    """
    ours, theirs = read_rows(fit), read_rows(observed)
    clips = [clip for clip in theirs if clip in ours]
    both = [clip for clip in clips if theirs[clip]["kept"] and ours[clip]["kept"]]
    equal = total = same_frames = 0
    wrong: list[dict[str, Any]] = []
    shares: dict[str, float | None] = {}
    for clip in clips:
        if theirs[clip]["kept"] != ours[clip]["kept"]:
            wrong.append(_difference(clip, "kept", theirs, ours))
    same = len(clips) - len(wrong)
    for clip in both:
        read, told = theirs[clip]["frames"], ours[clip]["frames"]
        total += max(len(read), len(told))
        equal += sum(a == b for a, b in zip(read, told, strict=False))
        same_frames += read == told
        if read != told:
            wrong.append(_difference(clip, "frames", theirs, ours))
    for key in ("size", "caption", "sound"):
        known = [c for c in both if theirs[c].get(key) is not None and ours[c].get(key) is not None]
        differ = [
            _difference(c, key, theirs, ours) for c in known if theirs[c][key] != ours[c][key]
        ]
        shares[key] = _share(len(known) - len(differ), len(known)) if known else None
        wrong += differ
    return {
        "clips": len(clips), "only_observed": len(theirs) - len(clips),
        "only_fit": len(ours) - len(clips), "decisions": _share(same, len(clips)),
        "frames_compared": total, "frames": _share(equal, total),
        "clips_with_same_frames": _share(same_frames, len(both)), **shares,
        "disagreements": len(wrong), "clips_that_differ": len({each["clip"] for each in wrong}),
        "first": wrong[:shown],
    }  # fmt: skip


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _difference(
    clip: str, key: str, theirs: dict[str, dict[str, Any]], ours: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    row = {"clip": clip, "key": key, "loader": theirs[clip].get(key), "fit": ours[clip].get(key)}
    return row | {"error": theirs[clip].get("error")}


def table(folder: Path, clips: Path) -> str:
    """Returns the table of observations as Markdown."""
    made = {clip.clip: clip for clip in read_plan(clips)}
    lines = [
        "| loader | clips | kept | skipped | frames read | of the footage | unreadable | sizes "
        "| sound |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in LOADERS:
        path = folder / f"{name}.jsonl"
        if path.exists():
            lines.append(_table_row(name, list(read_rows(path).values()), made))
    return "\n".join(lines)


def size_table(folder: Path, clips: Path) -> str:
    """Returns the sizes that loaders give to their models, by the size of the clip, as Markdown."""
    made = {clip.clip: clip for clip in read_plan(clips)}
    sources = [*SIZES, *((2 * width, 2 * height) for width, height in SIZES)]
    lines = ["| loader | " + " | ".join(f"{w}x{h}" for w, h in sources) + " |",
             "|---" * (1 + len(sources)) + "|"]  # fmt: skip
    for name in LOADERS:
        path = folder / f"{name}.jsonl"
        if not path.exists():
            continue
        sizes: dict[tuple[int, int], set[str]] = {}
        for row in read_rows(path).values():
            if row["size"]:
                source = (made[row["clip"]].width, made[row["clip"]].height)
                sizes.setdefault(source, set()).add("x".join(map(str, row["size"])))
        cells = (", ".join(sorted(sizes.get(source, {"?"}))) for source in sources)
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _table_row(name: str, rows: Sequence[dict[str, Any]], made: dict[str, CountedClip]) -> str:
    kept = [row for row in rows if row["kept"]]
    frames = sum(len(row["frames"]) for row in kept)
    unreadable = sum(row["frames"].count(None) for row in kept)
    footage = sum(made[row["clip"]].frames for row in rows)
    distinct = sum(len({n for n in row["frames"] if n is not None}) for row in kept)
    sizes = Counter(tuple(row["size"] or ()) for row in kept)
    sound = Counter(str(row["sound"]) for row in kept)
    return (
        f"| `{name}` | {len(rows)} | {len(kept)} | {len(rows) - len(kept)} | {frames} | "
        f"{distinct / footage:.1%} | {unreadable} | {len(sizes)} | "
        f"{', '.join(f'{k}: {v}' for k, v in sorted(sound.items()))} |"
    )


def rules(folder: Path, clips: Path) -> str:
    """Returns what each loader was seen to do, by rate, size, caption and sound of the clips."""
    made = {clip.clip: clip for clip in read_plan(clips)}
    parts = []
    for name in LOADERS:
        path = folder / f"{name}.jsonl"
        if path.exists():
            rows = list(read_rows(path).values())
            parts.append("\n".join([f"{name}: {len(rows)} clips", *_seen(rows, made)]))
    return "\n\n".join(parts)


def _seen(rows: Sequence[dict[str, Any]], made: dict[str, CountedClip]) -> Iterator[str]:
    kept = [row for row in rows if row["kept"]]
    by_rate: dict[str | None, list[dict[str, Any]]] = {}
    for row in rows:
        by_rate.setdefault(made[row["clip"]].rate, []).append(row)
    for rate, part in sorted(by_rate.items(), key=lambda item: str(item[0])):
        yield f"  {rate or 'variable'}: {_by_length(part, made)}"
    errors = Counter(re.sub(r"\d+(\.\d+)?", "#", row["error"]) for row in rows if not row["kept"])
    yield from (f"  skipped {count}: {error}" for error, count in errors.most_common(6))
    sizes = {
        (made[row["clip"]].width, made[row["clip"]].height, *row["size"], *row["crop"])
        for row in kept
        if row["size"]
    }
    yield from (f"  {w}x{h} -> {a}x{b}, of {crop}" for w, h, a, b, *crop in sorted(sizes))
    for caption in sorted({made[row["clip"]].caption[:12] for row in kept}):
        of = [row for row in kept if made[row["clip"]].caption[:12] == caption]
        other = [row for row in of if row["caption"] != made[row["clip"]].caption]
        if other:
            read = repr(other[0]["caption"])
            yield f"  caption {caption!r}: {len(other)} of {len(of)} differ, {read:.90}"
    sounds = Counter((made[row["clip"]].sound, row["sound"]) for row in kept)
    told = (f"{a} -> {b}: {n}" for (a, b), n in sorted(sounds.items(), key=str))
    yield f"  sound: {', '.join(told)}"


def _by_length(rows: Sequence[dict[str, Any]], made: dict[str, CountedClip]) -> str:
    """Says from which length on clips are kept, and how many frames at which steps are read."""
    kept = [row for row in rows if row["kept"]]
    short = max((made[row["clip"]].frames for row in rows if not row["kept"]), default=None)
    if not kept:
        return f"none kept, longest {short}"
    least = min(made[row["clip"]].frames for row in kept)
    read = Counter(len(row["frames"]) for row in kept)
    firsts = Counter(row["frames"][0] for row in kept if row["frames"])
    steps: Counter[int] = Counter()
    for row in kept:
        known = [n for n in row["frames"] if n is not None]
        steps.update(b - a for a, b in itertools.pairwise(known))
    return (
        f"kept from {least} frames, longest skipped {short}; reads {dict(read.most_common(4))}; "
        f"first {dict(firsts.most_common(3))}; steps {dict(steps.most_common(4))}"
    )


def main() -> None:
    """Runs one of the commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("clips", type=Path)
    making.add_argument("--count", type=int, default=1000)
    making.add_argument("--seed", type=int, default=1)
    observing = commands.add_parser("observe")
    observing.add_argument("clips", type=Path)
    observing.add_argument("observed", type=Path)
    observing.add_argument("names", nargs="*", choices=[*LOADERS, []])
    observing.add_argument("--checkouts", type=Path, required=True)
    observing.add_argument("--python", action="append", default=[], metavar="NAME=PATH",
                           help="the Python of a loader, or PATH for all of them")  # fmt: skip
    observing.add_argument("--every", type=int, default=1, help="of how many clips one is read")
    observing.add_argument("--part", type=int, default=0, help="which of them: 0 to EVERY - 1")
    observing.add_argument("--shortest", type=int, default=0, help="frames of the shortest clip")
    observing.add_argument("--longest", type=int, default=1 << 30, help="of the longest clip")
    fitting = commands.add_parser("fit")
    fitting.add_argument("clips", type=Path)
    fitting.add_argument("fits", type=Path)
    comparing = commands.add_parser("compare")
    comparing.add_argument("observed", type=Path)
    comparing.add_argument("fit", type=Path)
    showing = commands.add_parser("table")
    showing.add_argument("observed", type=Path)
    showing.add_argument("clips", type=Path)
    ruling = commands.add_parser("rules")
    ruling.add_argument("observed", type=Path)
    ruling.add_argument("clips", type=Path)
    given = parser.parse_args()
    if given.command == "make":
        write_clips(given.clips, given.count, given.seed)
    elif given.command == "fit":
        write_fits(given.clips, given.fits)
    elif given.command == "compare" and given.observed.is_dir():
        found = list(compare_all(given.observed, given.fit))
        print(agreement_table(found))
        print(*(json.dumps(one, ensure_ascii=False) for one in found), sep="\n")
    elif given.command == "compare":
        print(json.dumps(compare(given.observed, given.fit), ensure_ascii=False, indent=1))
    elif given.command == "rules":
        print(rules(given.observed, given.clips))
    elif given.command == "table":
        print(
            table(given.observed, given.clips), size_table(given.observed, given.clips), sep="\n\n"
        )
    else:
        which = [
            f"--{key}={getattr(given, key)}" for key in ("every", "part", "shortest", "longest")
        ]
        pythons: dict[str, str] = dict(word.rpartition("=")[::2] for word in given.python)
        for name in given.names or LOADERS:
            began = time.monotonic()
            python = pythons.get(name, pythons.get("", sys.executable))
            result = observe(name, given.clips.resolve(), given.observed.resolve(),
                             checkouts=given.checkouts.resolve(), python=python,
                             which=which)  # fmt: skip
            print(json.dumps(result | {"wall_s": round(time.monotonic() - began, 1)}), flush=True)


if __name__ == "__main__":
    main()
