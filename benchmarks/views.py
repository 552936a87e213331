"""Reads shards and views of them with the readers of other projects; measures making views.

`readers` runs `curate` over made films, and reads the whole output and a view of it by each reader:
the SHA-256 of the decoded frames of each clip must be those of the MP4s that the tables name. Then
one clip is removed, and all readers read again. `speed` makes views over many small made samples.

    views.py readers [--webshart PYTHON] [--diffusion-pipe FOLDER] [--keep FOLDER]
    views.py speed FOLDER [--clips 100000]

PYTHON has the package webshart, which needs Python 3.12. FOLDER is a checkout of diffusion-pipe:
its own `DirectoryDataset` lists members, captions and sizes. What it imports besides is replaced,
such as deepspeed and ComfyUI, whose video class is replaced by PyAV.
"""

import argparse
import contextlib
import hashlib
import importlib
import io
import json
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import time
import types
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import av
import million
import pyarrow.parquet as pq
import tests_path  # noqa: F401
from measure import CURATE, arguments, last_json, sets, spread, tell, work_folder

Frames = dict[str, str]
"""SHA-256 of the decoded frames of each clip, by key."""
Reader = Callable[[Path, str | None], Iterable[tuple[str, bytes]]]
"""Yields key and MP4 of each clip of an output root, or of a view of it."""
SETTINGS = sets(
    "shard.resolutions=[120]", "filters.short_side_px.min=100", "propose.min_s=1",
    "dedup.enabled=false", "filters.motion.min=0.0001", "filters.sharpness.min=0.0001",
    "shard.max_bytes=400000", "shard.min_bytes=0", "shard.val_share=0.3",
)  # fmt: skip
SPLITS = ("train", "val")
CONDITION = "abs(hash(clip_id)) % 2 = 0"
WEBSHART = """
import sys, pathlib, webshart
source, metadata, target = sys.argv[1:]
found = webshart.discover_dataset(source=source, metadata=metadata or None)
for entry in webshart.TarDataLoader(found, load_file_data=True):
    pathlib.Path(target, pathlib.Path(entry.path).name).write_bytes(bytes(entry.data))
"""


def imported(name: str) -> Any:  # noqa: ANN401 - a module of another project
    """Imports a reader's package, which has no types."""
    return importlib.import_module(name)


def frames_of(mp4: bytes) -> str:
    """Returns the SHA-256 of the decoded frames of an MP4."""
    digest = hashlib.sha256()
    with av.open(io.BytesIO(mp4), "r") as container:
        for frame in container.decode(video=0):
            digest.update(frame.to_ndarray(format="rgb24").tobytes())
    return digest.hexdigest()


def rows_of(out: Path, view: str | None) -> list[dict[str, Any]]:
    """Returns the rows of the table of samples."""
    folder = out / "shards" if view is None else out / "views" / view
    rows: list[dict[str, Any]] = pq.read_table(folder / "dataset.parquet").to_pylist()
    return rows


def by_tables(out: Path, view: str | None) -> Iterator[tuple[str, bytes]]:
    """Reads the byte ranges that the table of samples names."""
    for row in rows_of(out, view):
        yield row["clip_id"], _range(out, row)


def _range(out: Path, row: dict[str, Any]) -> bytes:
    with (out / "shards" / row["shard"]).open("rb") as stream:
        stream.seek(row["offset"])
        data: bytes = stream.read(row["bytes"])
    return data


def by_webdataset(out: Path, view: str | None) -> Iterator[tuple[str, bytes]]:
    """Reads whole tars, and selects the keys of a view."""
    webdataset = imported("webdataset")

    keys = {row["clip_id"] for row in rows_of(out, view)}
    tars = sorted({str(out / "shards" / row["shard"]) for row in rows_of(out, view)})
    dataset = webdataset.WebDataset(tars, shardshuffle=False)
    for sample in dataset.select(lambda sample: sample["__key__"] in keys):
        yield sample["__key__"], sample["mp4"]


def by_wids(out: Path, view: str | None) -> Iterator[tuple[str, bytes]]:
    """Reads samples by number; a view has its numbers in the index."""
    wids = imported("wids")

    folder = out / "shards" if view is None else out / "views" / view
    for split in SPLITS:
        index = folder / f"wids-{split}.json"
        if not index.exists() or not json.loads(index.read_text())["shardlist"]:
            continue
        cache = out.parent / "wids" / (view or "all")
        with contextlib.redirect_stderr(io.StringIO()):
            dataset = wids.ShardListDataset(str(index), cache_dir=str(cache), transformations=dict)
        for number in dataset.spec.get("samples", range(len(dataset))):
            sample = dataset[number]
            yield sample["__key__"], sample[".mp4"].read()


def by_datasets(out: Path, view: str | None) -> Iterator[tuple[str, bytes]]:
    """Reads the shards by their card, and a view by its table and byte ranges."""
    datasets = imported("datasets")

    cache = str(out.parent / "datasets")
    if view is not None:
        table = str(out / "views" / view / "dataset.parquet")
        loaded = datasets.load_dataset("parquet", data_files=table, split="train", cache_dir=cache)
        for row in loaded:
            yield row["clip_id"], _range(out, row)
        return
    there = {row["split"] for row in rows_of(out, view)}
    for split in sorted(there):
        name = "validation" if split == "val" else split
        found = datasets.load_dataset(
            str(out / "shards"), split=name, streaming=True, cache_dir=cache
        )
        for sample in found.cast_column("mp4", datasets.Video(decode=False)):
            yield sample["__key__"], sample["mp4"]["bytes"]


def _energon_folder(out: Path, view: str | None) -> Path:
    return out / "shards" if view is None else out / "views" / view / "energon"


def by_energon(out: Path, view: str | None) -> Iterator[tuple[str, bytes]]:
    """Reads each split as a data set."""
    energon = imported("energon_reader")

    config = energon.WorkerConfig(rank=0, world_size=1, num_workers=0)
    for split in SPLITS:
        with contextlib.suppress(energon.EmptyDatasetError):
            dataset = energon.get_val_dataset(
                str(_energon_folder(out, view)), split_part=split, worker_config=config,
                batch_size=None, task_encoder=energon.Raw(),
            )  # fmt: skip
            for sample in energon.get_loader(dataset):
                yield sample["__key__"], sample["mp4"]


def by_energon_store(out: Path, view: str | None) -> Iterator[tuple[str, bytes]]:
    """Reads members by name, as cookers with auxiliary data do: by `index.sqlite`."""
    stores = imported("megatron.energon.cache.file_store")
    paths = imported("megatron.energon.epathlib")

    folder = _energon_folder(out, view)
    if not (folder / ".nv-meta" / "index.sqlite").exists():
        return
    store = stores.WebdatasetFileStore(paths.EPath(str(folder)))
    for key, *_ in list(store.list_all_samples()):
        facts = store.get_media_metadata(f"{key}.mp4")
        assert facts.video_num_frames, facts
        yield key, store[f"{key}.mp4"][0]


def by_webshart(python: Path) -> Reader:
    """Returns a reader by a Python with webshart."""

    def read(out: Path, view: str | None) -> Iterator[tuple[str, bytes]]:
        for split in SPLITS if view is not None else ("",):
            metadata = "" if view is None else str(out / "views" / view / "webshart" / split)
            if metadata and not any(Path(metadata).rglob("*.json")):
                continue
            with work_folder(None) as target:
                words = [str(out / "shards"), metadata, str(target)]
                subprocess.run([str(python), "-c", WEBSHART, *words], check=True)
                for path in sorted(target.iterdir()):
                    yield path.stem, path.read_bytes()

    return read


def by_diffusion_pipe(checkout: Path) -> Reader:
    """Returns a reader by diffusion-pipe's own listing of a folder of tars."""

    def read(out: Path, view: str | None) -> Iterator[tuple[str, bytes]]:
        dataset = _diffusion_pipe(checkout)
        root = out / "shards" if view is None else out / "views" / view / "diffusion-pipe"
        for captions in sorted(root.rglob("captions.json")):
            named = json.loads(captions.read_text())
            if not named:
                continue
            with work_folder(None) as folder:
                # diffusion-pipe writes its cache next to the tars.
                for path in captions.parent.iterdir():
                    (folder / path.name).symlink_to(path.resolve())
                config = {"path": str(folder), "resolutions": [64], "frame_buckets": [1, 2]}
                found = dataset.DirectoryDataset(config, config, "made", framerate=16)
                for row in found._get_ungrouped_metadata():
                    tar, name = row["image_spec"]
                    assert row["caption"] == named[name], row
                    with tarfile.TarFile(tar) as opened:
                        member = opened.extractfile(name)
                        assert member is not None
                        yield Path(name).stem, member.read()

    return read


def _diffusion_pipe(checkout: Path) -> Any:  # noqa: ANN401 - a module of another project
    """Imports `utils/dataset.py` with replacements for what only training needs."""
    if "utils.dataset" in sys.modules:
        return sys.modules["utils.dataset"]

    class VideoFromFile:
        def __init__(self, file: Any) -> None:  # noqa: ANN401
            with av.open(file) as container:
                stream = container.streams.video[0]
                self.size = stream.width, stream.height
                self.n_frames, self.rate = stream.frames, stream.average_rate

        def get_dimensions(self) -> tuple[int, int]:
            return self.size

        def get_frame_count(self) -> Any:  # noqa: ANN401
            return self.n_frames

        def get_frame_rate(self) -> Any:  # noqa: ANN401
            return self.rate

    def module(name: str, **names: Any) -> None:  # noqa: ANN401
        made = types.ModuleType(name)
        for key, value in names.items():
            setattr(made, key, value)
        sys.modules[name] = made

    for name in ("deepspeed", "deepspeed.utils", "comfy", "comfy_api", "imageio"):
        module(name)
    module("deepspeed.utils.logging", logger=logging.getLogger("diffusion-pipe"))
    module("deepspeed.comm")
    sys.modules["deepspeed"].comm = sys.modules["deepspeed.comm"]  # type: ignore[attr-defined]
    module("comfy.model_management")
    sys.modules["comfy"].model_management = sys.modules["comfy.model_management"]  # type: ignore[attr-defined]
    module("comfy_api.latest", InputImpl=types.SimpleNamespace(VideoFromFile=VideoFromFile))
    module("utils")
    sys.modules["utils"].__path__ = [str(checkout / "utils")]
    module("utils.cache", Cache=object)
    module(
        "utils.common", is_main_process=lambda: True, VIDEO_EXTENSIONS={".mp4"},
        round_to_nearest_multiple=lambda x, multiple: int(round(x / multiple) * multiple),
    )  # fmt: skip
    logging.getLogger("diffusion-pipe").setLevel(logging.ERROR)
    dataset = imported("utils.dataset")
    # One process: replacements are not pickled.
    dataset.NUM_PROC = None
    return dataset


def curate(*words: str) -> str:
    """Runs the command; returns what it printed."""
    return subprocess.run([*CURATE, *words], check=True, capture_output=True, text=True).stdout


def equals_preparation(out: Path, folder: Path) -> bool:
    """Compares the places in `index.sqlite` with those that Energon's own preparation finds."""
    prepare = imported("megatron.energon.flavors.webdataset.prepare")

    copy = folder / "prepared"
    shutil.copytree(out / "shards", copy)
    index = Path(".nv-meta", "index.sqlite")
    (copy / index).unlink()
    counts = json.loads((copy / ".nv-meta" / ".info.json").read_text())["shard_counts"]
    prepare.WebdatasetPreparator.prepare_dataset(
        copy, list(counts), split_parts_ratio=[("train", 1.0)], workers=1
    )
    rows = []
    for path in (out / "shards" / index, copy / index):
        with contextlib.closing(sqlite3.connect(path)) as database:
            tables = ("samples", "sample_parts")
            rows.append([sorted(database.execute(f"SELECT * FROM {name}")) for name in tables])
    return rows[0] == rows[1]


def index_bytes(out: Path) -> dict[str, int]:
    """Returns the bytes of the tars, and of the indexes for webshart, diffusion-pipe and joins."""
    shards, sizes = (
        out / "shards",
        {"tars": 0, "webshart": 0, "captions.json": 0, "index.sqlite": 0},
    )
    for path in shards.rglob("*"):
        if path.suffix == ".tar":
            sizes["tars"] += path.stat().st_size
            sizes["webshart"] += path.with_suffix(".json").stat().st_size
        elif path.name in sizes:
            sizes[path.name] += path.stat().st_size
    return sizes


def readers(options: argparse.Namespace) -> None:
    """Compares all readers on a run, on a view, and after a removal."""
    from film_makers import write_video
    from film_shots import moving_texture

    all_readers: dict[str, Reader] = {
        "byte ranges of dataset.parquet": by_tables,
        "webdataset": by_webdataset,
        "wids": by_wids,
        "Hugging Face datasets": by_datasets,
        "Megatron-Energon, data set": by_energon,
        "Megatron-Energon, members by index.sqlite": by_energon_store,
    }
    if options.webshart:
        all_readers["webshart"] = by_webshart(options.webshart)
    if options.diffusion_pipe:
        all_readers["diffusion-pipe"] = by_diffusion_pipe(options.diffusion_pipe)
    with work_folder(options.keep) as folder:
        (folder / "in").mkdir()
        for number in range(12):
            frames = moving_texture(60 + 15 * (number % 3), seed=number)
            write_video(folder / "in" / f"{number}.mp4", frames, fps=Fraction(25))
        out = folder / "out"
        curate("run", str(folder / "in"), str(out), *SETTINGS)
        curate("views", str(out), "half", "--where", CONDITION)
        sizes = index_bytes(out)
        half = {row["clip_id"] for row in rows_of(out, "half")}
        gone = sorted(half)[0]
        is_same = equals_preparation(out, folder)
        print(f"index.sqlite has the places of `energon prepare`: {is_same}")
        found: dict[str, Any] = {"bytes": sizes, "prepared": is_same, "readers": {}}
        for step in ("before", "after"):
            if step == "after":
                (folder / "gone.txt").write_text(gone)
                curate("remove", str(out), "--clips", str(folder / "gone.txt"))
                curate("verify", str(out), "--removed")
                curate("verify", str(out))
            for view in (None, "half"):
                _compare(out, view, all_readers, gone, step, found["readers"])
        share = sum(sizes[name] for name in sizes if name != "tars") / sizes["tars"]
        print(f"indexes: {share:.2%} of {sizes['tars'] / 1e6:.1f} MB of tars")
        tell(found)


def _compare(
    out: Path, view: str | None, readers: dict[str, Reader], gone: str, step: str,
    results: dict[str, Any],
) -> None:  # fmt: skip
    """Reads by each reader, and prints whether it read the same frames as the table names."""
    expected = {key: frames_of(mp4) for key, mp4 in by_tables(out, view)}
    for name, read in readers.items():
        wanted = expected
        if name == "diffusion-pipe" and view is None:
            # The folder of a bucket names only clips for training.
            train = {row["clip_id"] for row in rows_of(out, view) if row["split"] == "train"}
            wanted = {key: value for key, value in expected.items() if key in train}
        listed = [(key, frames_of(mp4)) for key, mp4 in read(out, view)]
        is_same = dict(listed) == wanted and len(listed) == len(wanted)
        is_gone = gone not in dict(listed)
        right = is_same and is_gone == (step == "after")
        results[f"{name}, {view or 'whole'}, {step}"] = {"clips": len(listed), "right": right}
        state = "the same frames" if right else "WRONG"
        print(f"{step:<8}{view or 'whole':<8}{name:<44}{len(listed):>4} clips: {state}", flush=True)


def speed(options: argparse.Namespace) -> None:
    """Times `make_view` in this process, and the commit's indexes."""
    from curator.dataset.reader_indexes import caption_lines, captions_file, energon_database
    from curator.export.output_views import Choice, SnapshotSamples, make_view
    from curator.storage import open_store
    from curator.tables.view_store import delete_view

    folder: Path = options.folder
    if not (folder / "out" / "summary.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        script = Path(million.__file__)
        last_json(
            sys.executable,
            str(script),
            str(folder),
            "--clips",
            str(options.clips),
            "--case",
            "make",
        )
    store = open_store(str(folder / "out"))
    number = max(int(path.stem) for path in (folder / "out" / "snapshots").glob("0*.json"))
    samples = SnapshotSamples.read(store, number)
    n_clips = samples.rows.num_rows
    results: dict[str, Any] = {"clips": n_clips, "tars": len(samples.tars)}
    for name, choice in {
        "all": Choice(), "half": Choice(where=CONDITION), "train": Choice(split="train"),
        "hundredth": Choice(where="abs(hash(clip_id)) % 100 = 0"),
    }.items():  # fmt: skip
        times, cpu = [], []
        for _ in range(5):
            start, start_cpu = time.monotonic(), time.process_time()
            view = make_view(store, name, choice)
            times.append(time.monotonic() - start)
            cpu.append(time.process_time() - start_cpu)
            files = [f for f in (folder / "out" / "views" / name).rglob("*") if not f.is_symlink()]
            n_bytes = sum(path.stat().st_size for path in files if path.is_file())
            delete_view(store, name)
        results[name] = {
            "clips": view.counts["clips"], "wall_s": times, "cpu_s": cpu, "bytes": n_bytes,
        }  # fmt: skip
        print(
            f"{name:<10}{view.counts['clips']:>8} clips  {spread(times)} s  {n_bytes / 1e6:.1f} MB"
        )
    start = time.monotonic()
    made = energon_database(samples.rows, list(samples.tars))
    results["index.sqlite"] = {
        "wall_s": time.monotonic() - start,
        "bytes": len(made["index.sqlite"]),
    }
    start = time.monotonic()
    captions = captions_file(caption_lines(samples.rows))
    results["captions.json"] = {"wall_s": time.monotonic() - start, "bytes": len(captions)}
    results["sizes"] = index_bytes(folder / "out")
    print(json.dumps({k: results[k] for k in ("index.sqlite", "captions.json", "sizes")}))
    print("SQLite", sqlite3.sqlite_version)
    tell(results)


def main() -> None:
    """Runs the measurement; the last line is JSON."""
    parser = arguments(__doc__)
    kinds = parser.add_subparsers(required=True)
    reading = kinds.add_parser("readers")
    reading.set_defaults(action=readers)
    reading.add_argument("--webshart", type=Path, help="Python with webshart")
    reading.add_argument("--diffusion-pipe", type=Path, help="checkout of diffusion-pipe")
    reading.add_argument("--keep", type=Path, help="a new folder, which stays")
    timing = kinds.add_parser("speed")
    timing.set_defaults(action=speed)
    timing.add_argument("folder", type=Path, help="folder of the output root; reused if present")
    timing.add_argument("--clips", type=int, default=100_000)
    options = parser.parse_args()
    options.action(options)


if __name__ == "__main__":
    main()
