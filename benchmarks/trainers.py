"""Compares what trainers' own loaders do with 1,000 made clips with what `curate fit` says.

    trainers.py make CLIPS                                the clips, each frame with its number
    trainers.py observe CLIPS OBSERVED --checkouts DIR    what loaders do: OBSERVED/NAME.jsonl
    trainers.py table OBSERVED CLIPS                      the numbers of results/trainers.md
    trainers.py rules OBSERVED CLIPS                      what was seen, by rate, size, caption
    trainers.py compare OBSERVED/NAME.jsonl FIT.jsonl     both, clip by clip

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
from pathlib import Path
from typing import Any, TypeAlias

from counted_clips import SIZES, CountedClip, make, plan, read_plan

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
    common = {"dataset": _PIPE_BUCKETS, "round_to_multiple": 32, "round": 16, "round_frames": 4}
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


_LTX_STUBS = ["ltx_core.model", "ltx_trainer.model_loader", "pillow_heif"]


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
    "musubi-wan": _musubi("wan", target_frames=[81], frame_extraction="head"),
    "musubi-wan-source-fps": _musubi(
        "wan", source_fps=True, target_frames=[81], frame_extraction="head"
    ),
    "musubi-hunyuan-source-fps": _musubi(
        "hv", source_fps=True, frame_extraction="full", max_frames=129
    ),
    "ltx2": Loader(
        project="LTX-2 trainer", called="MediaDataset, CaptionsDataset", adapter="ltx2",
        checkout="LTX-2",
        settings={"buckets": [[121, 256, 448], [49, 256, 256], [49, 448, 256]], "audio": True,
                  "stubs": _LTX_STUBS},
    ),
    "videox-fun-wan": Loader(
        project="VideoX-Fun", called="ImageVideoDataset.get_batch, collate_fn of wan2.1/train.py",
        adapter="videox_fun", checkout="VideoX-Fun",
        settings={"size": 256, "stride": 2, "frames": 81},
    ),
    "fastvideo-wan": Loader(
        project="FastVideo",
        called="build_dataset, PreprocessingDataValidator, VideoTransformStage",
        adapter="fastvideo", package="fastvideo",
        settings={"config": {"max_height": 256, "max_width": 448, "num_frames": 77,
                             "train_fps": 16, "video_length_tolerance_range": 5}},
    ),
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
    "simpletuner-wan": Loader(
        project="SimpleTuner",
        called="_process_for_bucket, TrainingSample, prepare_video_latents, PromptHandler",
        adapter="simpletuner", checkout="SimpleTuner",
        settings={
            "side": 64,
            "stubs": ["simpletuner.helpers.models", "simpletuner.simpletuner_sdk", "diffusers"],
            "dataset": {"dataset_type": "video", "resolution": 256 * 256 / 1e6,
                        "resolution_type": "area", "crop": False,
                        "video": {"num_frames": 81, "min_frames": 81}},
        },
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


def compare(observed: Path, fit: Path, *, shown: int = 10) -> dict[str, Any]:
    """Compares a loader with `curate fit`.

    Returns:
        Numbers of clips, share with the same decision, share of frames that are equal, share of
        clips with the same size, caption and sound; the first disagreements.
    """
    ours, theirs = read_rows(fit), read_rows(observed)
    clips = [clip for clip in theirs if clip in ours]
    both = [clip for clip in clips if theirs[clip]["kept"] and ours[clip]["kept"]]
    equal = total = 0
    wrong: list[dict[str, Any]] = []
    shares: dict[str, float] = {}
    for clip in clips:
        if theirs[clip]["kept"] != ours[clip]["kept"]:
            wrong.append(_difference(clip, "kept", theirs, ours))
    same = len(clips) - len(wrong)
    for clip in both:
        read, told = theirs[clip]["frames"], ours[clip]["frames"]
        total += max(len(read), len(told))
        equal += sum(a == b for a, b in zip(read, told, strict=False))
        if read != told:
            wrong.append(_difference(clip, "frames", theirs, ours))
    for key in ("size", "caption", "sound"):
        known = [c for c in both if theirs[c].get(key) is not None and ours[c].get(key) is not None]
        differ = [
            _difference(c, key, theirs, ours) for c in known if theirs[c][key] != ours[c][key]
        ]
        shares[key] = _share(len(known) - len(differ), len(known))
        wrong += differ
    return {
        "clips": len(clips), "only_observed": len(theirs) - len(clips),
        "only_fit": len(ours) - len(clips), "decisions": _share(same, len(clips)),
        "frames": _share(equal, total), **shares, "disagreements": len(wrong),
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
