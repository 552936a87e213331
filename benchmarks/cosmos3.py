#!/usr/bin/env python3
"""Compares what cosmos-framework's loaders take with what `export --format cosmos3` predicts.

    cosmos3.py make WORK [--clips 200] [--seed 57]      clips in shards, described by a server
    cosmos3.py run WORK [--clips 16] [--seed 58]        films through a whole `curate run`
    cosmos3.py read WORK CHECKOUT                       the loaders over the exports; the numbers

Films have one take each, with the number of each frame as a picture, around the limits of the
loader: 61 and 93 frames, 61.0 s, aspects, short sides. A server (`caption_server.py`) describes
their windows, and answers badly about a quarter of them, in five ways. `make` sends the requests by
the same dialogs and client as a run, and packs films and annotations into shards without analysis;
`run` does all of it, with a depth video for half of the clips. Both then write all exports. `read`
imports the loaders of a checkout of cosmos-framework at 5eee9ed5, with `ffmpeg` below 9 and
`ffprobe` on the path, and visits each window once. The tokenizer, the sequence packing and the log
are stubs: no decision depends on them.
"""

import argparse
import importlib
import itertools
import json
import os
import random
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import MagicMock

import yaml
from captions import PORT, Server
from counted_clips import RATES, SIZES, CountedClip, make, read_counter
from measure import CURATE, ROOT, arguments, tell
from trainer_adapters import LeastDraws, module, pictures, stub

sys.path.insert(0, str(ROOT / "tests"))
Row = dict[str, Any]
Foreign: TypeAlias = Any
DEPTH = '''"""Depth of half of the clips: their brightness."""

import numpy as np

from curator.family import Family, Scope, Video
from curator.stage import Annotator, FrameRequest, StageConfig


class Depth(Annotator[StageConfig]):
    name, version = "own_depth", 1
    frames = (FrameRequest(),)
    families = (Family("depth", Scope.CLIP, Video("ffv1"), member="depth.mkv"),)

    def key(self, facts, mp4_sha256):
        return super().key(facts, mp4_sha256) if int(facts.clip_id[:2], 16) % 2 else None

    def process(self, unit):
        return [clip.frames[..., 1].astype(np.uint16) * 257 for clip in unit]
'''
RECIPE: Row = {
    "base": "cosmos3",
    "stages": [{"use": "depth_values:Depth"}],
    # What analysis measures decides nothing here.
    "analyze": {"text": False, "samples_per_s": 0.5},
    "propose": {"min_s": 0.5, "max_s": 70, "boundary_threshold": 0.999, "guard_frames": 0},
    "dedup": {"enabled": False},
    "shard": {"resolutions": [128], "lengths": [17], "val_share": 0.1, "aspects_tolerance": 0.99},
    "caption": {
        "captioner": "openai", "model": "timed", "url": f"http://127.0.0.1:{PORT}/v1",
        # Several windows of a clip, of which some are too short.
        "window_s": None, "window_frames": 150, "window_remainder": 20, "frames_per_s": 1,
        "frame_px": 128, "timeout_s": 3, "tries": 2, "read_text": False,
    },
}  # fmt: skip
STUBS = (
    "cosmos_framework.data.generator.sequence_packing", "cosmos_framework.model",
    "cosmos_framework.utils.log", "cosmos_framework.utils.lazy_config",
    "cosmos_framework.utils.flags",
)  # fmt: skip
FULL = {"num_video_frames": -1, "frame_selection_mode": "first", "resolution": "256"}
EXPORTS: dict[str, tuple[tuple[str, ...], Row]] = {
    "generator": ((), FULL),
    "generator-93": (
        ("--gzip", "--frames", "93", "--min-side", "200"),
        {"num_video_frames": 93, "min_short_edge": 200, "resolution": "256"},
    ),
    "edge": (("--control", "edge"), {"control_type": "edge", "resolution": "256"}),
    "blur": (("--control", "blur"), {"control_type": "blur", "resolution": "256"}),
    "depth": (("--control", "depth"), {"control_type": "depth", "resolution": "256"}),
    "reasoner": (("--reasoner", "--relative"), {}),
}
"""Options of each export, and arguments of the loader that reads it."""


def planned(count: int, seed: int) -> list[CountedClip]:
    """Returns films around the limits of the loader, and between them."""
    rng = random.Random(seed)
    lengths = [(rate, frames) for rate in RATES for frames in (60, 61, 62, 92, 93)]
    lengths += [(rate, n) for rate in ("12.5", "16") for n in _long(RATES[rate])]
    while len(lengths) < 2 * count:
        lengths.append((rng.choice(list(RATES)), rng.randint(20, 330)))
    films: list[CountedClip] = []
    forms: set[tuple[str, int, int, int]] = set()
    for rate, frames in lengths:
        width, height = rng.choice(SIZES)
        # Films of one form would be the same bytes, and so one source.
        if (rate, frames, width, height) in forms or len(films) == count:
            continue
        forms.add((rate, frames, width, height))
        name = f"film-{len(films):04d}"
        films.append(
            CountedClip(
                clip=name, file=f"{name}.mp4", kind="clip", rate=str(RATES[rate]), frames=frames,
                duration_s=float(frames / RATES[rate]), width=width, height=height, sound="none",
                caption="",
            )
        )  # fmt: skip
    return films


def _long(rate: Fraction) -> Iterator[int]:
    yield from (int(61 * rate) - 1, int(61 * rate), int(61 * rate) + 1)


def curate(work: Path, *words: str) -> str:
    path = os.pathsep.join(map(str, (work, ROOT)))
    done = subprocess.run(
        (*CURATE, *words), env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout


def make_films(work: Path, count: int, seed: int) -> list[CountedClip]:
    (work / "films").mkdir(parents=True, exist_ok=True)
    films = planned(count, seed)
    for film in films:
        if not (work / "films" / film.file).exists():
            make(film, work / "films", seed)
    return films


def run_films(work: Path, count: int, seed: int) -> None:
    make_films(work, count, seed)
    (work / "depth_values.py").write_text(DEPTH)
    base = yaml.safe_load((ROOT / "pipelines" / "quickstart.yaml").read_text())
    no_filters = {"filters": dict.fromkeys([*base["filters"], "short_side_px"])}
    (work / "recipe.yaml").write_text(yaml.safe_dump(RECIPE | no_filters))
    server = Server()
    try:
        server.reset(32, 0.01, bad=True)
        places = (str(work / "films"), str(work / "out"))
        how = ("--recipe", str(work / "recipe.yaml"), "--max-failed", "1")
        print(curate(work, "run", *how, *places))
    finally:
        server.stop()
    export_all(work, list(EXPORTS))


def describe_films(work: Path, count: int, seed: int) -> None:
    """Packs films with the annotations of their windows into shards."""
    from made_samples import MadeClip, make_shards

    from curator.recipe import load_recipe
    from curator.stages.caption.captioners.captioner_contract import captioners_of
    from curator.stages.caption.captioners.dialog_runner import DialogRunner
    from curator.stages.caption.dialogs.window_dialog import make_dialogs

    films = make_films(work, count, seed)
    told = [f"caption.{name}={json.dumps(value)}" for name, value in RECIPE["caption"].items()]
    config = load_recipe("cosmos3", told).caption
    windows = [window for film in films for window in windows_in(work, film, config)]
    server = Server()
    try:
        server.reset(32, 0.01, bad=True)
        runner = DialogRunner(make_dialogs(config), captioners_of(config), budget_s=60.0)
        replies: dict[str, Any] = {}
        done = runner.annotate(windows, replies, replies.__setitem__)
        runner.close()
    finally:
        server.stop()
    clips = []
    for number, film in enumerate(films):
        mine = [each for each in done if each.task.clip_id == film.clip]
        rows = [span_of(each) for each in mine]
        texts = [row.get("long", "") for row in rows]
        caption = " ".join(texts) if all(texts) else ""
        fps = Fraction(film.rate or 1)
        changes = {
            "width": film.width, "height": film.height, "fps": float(fps), "fps_fraction": str(fps),
            "duration": round(float(film.frames / fps), 6), "caption": caption,
            "caption_model": config.name,
            "annotation": {"model": config.name, "prompt": "cosmos3", "judge": None,
                           "windows": rows},
        }  # fmt: skip
        clips.append(
            MadeClip(
                key=f"{number:024x}", mp4=(work / "films" / film.file).read_bytes(),
                n_frames=film.frames, source=f"{number:032x}", caption=caption, changes=changes,
                split="val" if number % 10 == 0 else "train",
            )
        )  # fmt: skip
    make_shards(str(work / "out"), clips, per_shard=20)
    export_all(work, ["generator", "generator-93", "edge", "blur"])


def windows_in(work: Path, film: CountedClip, config: Foreign) -> Iterator[tuple[Foreign, Foreign]]:
    """Yields the windows of a film as a run would, with functions that return their frames."""
    from curator.media.clip_frames import Wanted, sample_clip
    from curator.stages.caption.caption_records import Frames, Task
    from curator.stages.caption.windows import windows_of

    fps, mp4 = float(Fraction(film.rate or 1)), (work / "films" / film.file).read_bytes()
    windows = windows_of(film.frames, fps, config)
    numbers = tuple(sorted({frame for window in windows for frame in window.shown}))
    wanted = [Wanted(numbers=numbers, size=config.frame_px, form="jpeg")]
    jpegs = dict(sample_clip(mp4, wanted, n_frames=film.frames, threads=1).jpegs)
    for window in windows:
        frames = Frames(
            jpegs=tuple(jpegs[frame] for frame in window.shown),
            times_s=tuple(frame / fps for frame in window.shown),
        )
        task = Task(clip_id=film.clip, content=film.clip, window=window, fps=fps)
        yield task, lambda frames=frames: frames


def span_of(annotation: Foreign) -> Row:
    """Returns a window as a sample holds it."""
    from curator.stages.caption.annotations import _window

    row: Row = json.loads(json.dumps(_window(annotation), sort_keys=True))
    return row


def export_all(work: Path, names: Sequence[str]) -> None:
    for name in names:
        words = EXPORTS[name][0]
        reuse = () if name == "generator" else ("--reuse", str(work / "generator"))
        to = (str(work / "out"), str(work / name), "--format", "cosmos3")
        print(curate(work, "export", *to, *words, *reuse))


def lines(path: Path) -> list[Row]:
    import gzip

    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    return [json.loads(line) for line in data.splitlines()]


def index_of(folder: Path) -> Path:
    plain = folder / "video_dataset_file.jsonl"
    return plain if plain.exists() else plain.with_suffix(".jsonl.gz")


class Loaders:
    """The loaders of a checkout of cosmos-framework."""

    def __init__(self, checkout: Path) -> None:
        stub(*STUBS)
        local = "cosmos_framework.data.generator.local_datasets"
        self.sft: Foreign = module(f"{local}.sft_dataset", checkout)
        self.transfer: Foreign = importlib.import_module(f"{local}.transfer_sft_dataset")
        self.captions: Foreign = importlib.import_module(
            "cosmos_framework.inference.structured_caption"
        )
        self.probe: Foreign = importlib.import_module("cosmos_framework.scripts.video_metadata")
        self.reasoner: Foreign = importlib.import_module(
            "cosmos_framework.data.reasoner.local_sft_dataset"
        )
        loaders: tuple[Foreign, ...] = (self.sft, self.transfer)
        for data in loaders:
            data.log = types.SimpleNamespace(info=_nothing, warning=_nothing)
            data.INTERNAL, data.boto3, data.random = False, MagicMock(), LeastDraws()
        self.sft.lazy_instantiate = lambda *_: types.SimpleNamespace(tokenizer=None)
        self.sft.add_special_tokens = lambda tokenizer: (tokenizer, None)
        self.sft.tokenize_caption = lambda caption, *_, **__: [0] * len(caption.split())

    def visits(
        self, index: Path | str, settings: Row, s3: Foreign = None
    ) -> Iterator[tuple[Row, Row | None]]:
        """Visits each window that the loader lists; yields its metadata and the sample."""
        common = {"jsonl_paths": str(index), "cfg_dropout_rate": 0.0, "tokenizer_config": None}
        if "control_type" in settings:
            dataset = self.transfer.get_transfer_sft_dataset(**common, **settings)
        else:
            dataset = self.sft.get_sft_dataset(**common, **settings, max_caption_tokens=2048)
        dataset.s3_client = s3 or MagicMock()
        for metadata in self.sft._flatten_metadata_by_window(dataset.metadata):
            yield metadata, dataset.process_one_sample(metadata)


def _nothing(*_: object, **__: object) -> None:
    pass


def compare(loaders: Loaders, folder: Path, settings: Row) -> Row:
    """Returns how the loader's decisions about the windows of a split agree with the export's."""
    records = lines(index_of(folder))
    all_windows = {
        (line["uuid"], window["start_frame"]): window
        for line in records
        for window in line["t2w_windows"]
    }
    drops = {(d["uuid"], d["start_frame"]): d["reason"] for d in lines(folder / "dropped.jsonl")}
    predicted = all_windows.keys() - drops.keys()
    uncaptioned = {key for key, reason in drops.items() if reason == "no_caption"}
    numbers: Counter[str] = Counter()
    taken = set()
    for metadata, sample in loaders.visits(index_of(folder), settings):
        (window,) = metadata["t2w_windows"]
        if sample is None:
            continue
        key = (metadata["uuid"].rpartition("_w")[0], window["start_frame"])
        taken.add(key)
        numbers["captions"] += 1
        if "caption_json" in window:
            told = json.dumps(window["caption_json"], ensure_ascii=False)
            numbers["captions_as_written"] += sample["ai_caption"] == told
        else:
            numbers["captions_as_written"] += sample["ai_caption"].startswith(window["caption"])
        if settings is FULL:
            shown = [read_counter(frame)[0] for frame in pictures(sample["video"], "CTHW")]
            n_frames = window["end_frame"] - window["start_frame"] + 1
            first = shown[0]
            expected = (
                None if first is None else [*range(first, first + (n_frames - 1) // 4 * 4 + 1)]
            )
            numbers["frames_right"] += shown == expected
        if "control_type" in settings:
            control, target = sample["video"]
            numbers["equal_frames"] += control.shape == target.shape
    windows = all_windows.keys() | uncaptioned
    right = sum((key in taken) == (key in predicted) for key in windows)
    summary = json.loads((folder / "summary.json").read_bytes())
    return {
        "windows": len(windows), "taken": len(taken), "right": right,
        "summary_right": summary["windows"] == len(windows)
        and summary["windows_read"] == len(taken)
        and sum(summary["dropped"].values()) == len(windows) - len(taken),
        "dropped": summary["dropped"], **numbers,
    }  # fmt: skip


def structured(loaders: Loaders, work: Path, samples: dict[str, Row]) -> Row:
    """Returns how many structured captions the trainer's reader takes, and would write alike."""
    captions, numbers = loaders.captions, Counter[str]()
    for split in ("train", "val"):
        for line in lines(index_of(work / "generator" / split)):
            spans = {
                span["start_frame"]: span for span in samples[line["uuid"]]["annotation"]["windows"]
            }
            for window in line["t2w_windows"]:
                written = window.get("caption_json")
                if written is None:
                    continue
                numbers["captions"] += 1
                parsed = captions.StructuredCaption.model_validate(written)
                dumped = parsed.model_dump(exclude_none=True, mode="json")
                numbers["valid"] += json.dumps(dumped) == json.dumps(written)
                if window["end_frame"] + 1 - window["start_frame"] == line["nb_frames"]:
                    span = spans[window["start_frame"]]
                    probed = loaders.probe.probe_video_metadata(line["vision_path"])
                    media = captions.media_fields_from_metadata(probed)
                    own = captions.assemble_caption_json(span["extra"], span["long"], media)
                    numbers["whole_clips"] += 1
                    numbers["as_its_captioner"] += json.dumps(own) == json.dumps(written)
    return dict(numbers)


def talks(loaders: Loaders, work: Path) -> Row:
    """Returns how many conversations the reasoner's loader reads, with the clip's bytes."""
    numbers: Counter[str] = Counter()
    for split in ("train", "val"):
        folder = work / "reasoner" / split
        entries = {entry["id"]: entry for entry in json.loads((folder / "meta.json").read_bytes())}
        numbers["entries"] += len(entries)
        dataset = loaders.reasoner.LocalSFTDataset(
            manifest_path=str(folder / "meta.json"), shuffle=False, is_infinite_loader=False
        )
        for sample in dataset:
            entry = entries[sample["__key__"]]
            told = json.loads((folder / entry["conversation"]).read_bytes())["conversations"]
            data = (folder / entry["media"]).read_bytes()
            numbers["read"] += sample["texts"] == told and sample["media"] == {"video_0": data}
    return dict(numbers)


def on_s3(loaders: Loaders, work: Path) -> Row:
    """Exports to a bucket of a simulated server, and has the loader read lines and MP4s there."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }  # fmt: skip
    s3: Foreign = boto3.client("s3")
    s3.create_bucket(Bucket="clips")
    to = (str(work / "out"), "s3://clips/to", "--format", "cosmos3", "--gzip", "--split", "val")
    print(curate(work, "export", *to), file=sys.stderr)
    loaders.sft.boto3 = boto3
    summary = json.loads(s3.get_object(Bucket="clips", Key="to/val/summary.json")["Body"].read())
    index = "s3://clips/to/val/video_dataset_file.jsonl.gz"
    visited = list(loaders.visits(index, FULL, s3))
    server.stop()
    return {
        "predicted": summary["windows_read"],
        "taken": sum(sample is not None for _, sample in visited),
        "addresses": sum(m["vision_path"].startswith("s3://clips/to/val/") for m, _ in visited),
    }


def sample_facts(work: Path) -> dict[str, Row]:
    from curator.dataset.tar_reader import open_shards
    from curator.export.job import read_clips

    shards = open_shards(str(work / "out"))
    return {
        clip.key: clip.fields
        for shard in shards.shards
        for clip in read_clips(shards, shard, wants_mp4=lambda clip, sha256: False)
    }


def read_all(work: Path, checkout: Path) -> Row:
    loaders, samples = Loaders(checkout), sample_facts(work)
    summary = json.loads((work / "out" / "summary.json").read_bytes())
    failures = Counter(
        span["failure"] for fields in samples.values()
        for span in fields["annotation"]["windows"] if "failure" in span
    )  # fmt: skip
    results: Row = {
        "films": len(list((work / "films").glob("*.mp4"))), "clips": len(samples),
        "windows": sum(len(each["annotation"]["windows"]) for each in samples.values()),
        "windows_without_annotation": dict(failures),
        "set_aside": {
            name: n for name, n in summary.get("work", {}).items() if name.startswith("caption_set")
        },
        "structured": structured(loaders, work, samples),
    }  # fmt: skip
    for name, split in itertools.product(EXPORTS, ("train", "val")):
        settings = EXPORTS[name][1]
        if not (work / name).exists():
            continue
        if name == "reasoner":
            results["reasoner"] = talks(loaders, work)
        else:
            results[f"{name}/{split}"] = compare(loaders, work / name / split, settings)
            print(name, split, results[f"{name}/{split}"], file=sys.stderr)
    results["s3"] = on_s3(loaders, work)
    return results


def main() -> None:
    parser = arguments(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True)
    for name, count, seed in (("make", 200, 57), ("run", 16, 58)):
        made = commands.add_parser(name)
        made.add_argument("work", type=Path)
        made.add_argument("--clips", type=int, default=count)
        made.add_argument("--seed", type=int, default=seed)
    read = commands.add_parser("read")
    read.add_argument("work", type=Path)
    read.add_argument("checkout", type=Path)
    options = parser.parse_args()
    if options.command != "read":
        do = describe_films if options.command == "make" else run_films
        do(options.work.absolute(), options.clips, options.seed)
    else:
        results = read_all(options.work.absolute(), options.checkout)
        print(json.dumps(results, indent=1))
        tell(results)


if __name__ == "__main__":
    main()
