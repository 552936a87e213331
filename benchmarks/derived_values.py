"""Measures derived values: faults that readers refuse, bytes of a new family, and ranks over S3.

    derived_values.py make DIR --clips 1000     films, an output, and annotators in DIR/own
    derived_values.py faults DIR --faults 200 --right 1000
    derived_values.py traffic DIR               a new family, a new column, the loader
    derived_values.py texts DIR                 vectors of texts, each stored once or with each clip
    derived_values.py ranks DIR --ranks 64      over an S3 server of this process

Films show the number of each frame. `faults` reads right values, then values into each of which one
fault was put, drawn from a seed: of all kinds in turn. A fault counts as refused if reading its
sample, or opening the dataset, raises. `traffic` counts what the store of
OUT reads and writes, in all and by kind of object. `ranks` reads an epoch as so many ranks would,
one after the other, and compares the union of their samples with the corpus; then it reads the same
tars with webdataset and Megatron-Energon from a folder, all members, one process each, no decoding.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import tests_path  # noqa: F401
import yaml
from film_makers import write_video
from measure import arguments, tell

FPS, WINDOW = Fraction(24), 17
OWN = '''"""Annotators of the benchmark."""

import numpy as np
import torch

from curator.family import REQUESTED, Array, Columns, Family, Scope, Windows
from curator.stage import Annotator, FrameRequest, StageConfig


class Config(StageConfig):
    vae: str = "a"
    place: str = "sample"
    texts: int = 10


class BenchLatents(Annotator[Config]):
    """Values of the shape of latents: 16 channels, an eighth of each side."""

    name, version, config_type, batch = "bench_latents", 1, Config, 4
    frames = (FrameRequest(size=(64, 40)),)
    windows = Windows(frames=9, every=4)

    def __init__(self, config):
        super().__init__(config)
        facts = {"vae": config.vae, "sample": "mean", "scale": 0.5}
        self.families = (
            Family("latents", Scope.CLIP, Array("bf16", (16, 3, 5, 8)), facts=facts,
                   member="latents.safetensors", place=config.place),
        )

    def process(self, unit):
        # Means of blocks, so that other frames have other values.
        values = []
        for window in unit:
            blocks = torch.from_numpy(window.frames[[0, 4, 8], :, :, 0].copy()).float()
            means = torch.nn.functional.avg_pool2d(blocks, 8) / 255
            values.append(means.expand(16, 3, 5, 8).bfloat16().contiguous())
        return values


class BenchPoses(Annotator[StageConfig]):
    name, version = "bench_poses", 1
    frames = (FrameRequest(at=lambda clip: range(1, clip.n_frames, 3), size=(64, 40)),)
    columns = ("caption",)
    families = (
        Family("poses", Scope.CLIP, Array("f32", (REQUESTED, 6)), member="poses.safetensors"),
    )

    def process(self, unit):
        means = [clip.frames.reshape(len(clip.frames), -1).mean(1)[:, None] for clip in unit]
        return [np.repeat(mean, 6, 1).astype(np.float32) for mean in means]


class BenchTexts(Annotator[Config]):
    """Vectors of 256 tokens of one of some prompts: 2.1 MB."""

    name, version, frames, config_type, batch = "bench_texts", 1, (), Config, 16

    def __init__(self, config):
        super().__init__(config)
        self.families = (
            Family("texts", Scope.CLIP, Array("bf16", ("tokens", 4096)),
                   member="texts.safetensors", place=config.place),
        )

    def key(self, facts, mp4_sha256):
        return str(int(facts.clip_id[:8], 16) % self.config.texts)

    def process(self, unit):
        numbers = [float(self.key(clip.facts, "")) for clip in unit]
        return [torch.full((256, 4096), number, dtype=torch.bfloat16) for number in numbers]


class BenchColumn(Annotator[StageConfig]):
    name, version, frames = "bench_column", 1, ()
    families = (Family("counts", Scope.CLIP, Columns({"n_faces": "i32", "n_hands": "i32"})),)

    def process(self, unit):
        return [dict.fromkeys(self.families[0].columns, 2) for clip in unit]


class BenchTableColumn(BenchColumn):
    name = "bench_table_column"
    families = (
        Family("others", Scope.CLIP, Columns({"n_cars": "i32", "n_dogs": "i32"}), place="table"),
    )
'''
RECIPE = {
    "propose": {"windows": [f"{WINDOW}@{FPS}"]},
    "dedup": {"enabled": False},
    "filters": {},
    "shard": {"resolutions": [180], "lengths": [WINDOW], "val_share": 0, "aspects_tolerance": 0.99},
}  # fmt: skip


def main() -> None:
    """Runs a measurement; the last line is JSON."""
    parser = arguments(__doc__)
    parser.add_argument("what", choices=("make", "faults", "traffic", "texts", "ranks"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clips", type=int, default=1000)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--right", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--place", choices=("sample", "side"), default="sample")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.what == "make":
        shutil.rmtree(options.folder, ignore_errors=True)
    (options.folder / "own").mkdir(parents=True, exist_ok=True)
    (options.folder / "own" / "bench_values.py").write_text(OWN)
    own = str((options.folder / "own").resolve())
    sys.path.insert(0, own)
    os.environ["PYTHONPATH"] = os.pathsep.join([own, os.environ.get("PYTHONPATH", "")])
    tell({"what": options.what} | globals()[options.what](options))


def curate(options: argparse.Namespace, out: Path, *stages: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the pipeline in this process with some annotators; returns the summary."""
    from curator.cli import main as command

    recipe = options.folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE | {"stages": list(stages)}))
    code = command(["run", str(options.folder / "in"), str(out), "--recipe", str(recipe)])
    assert code == 0, code
    return dict(json.loads((out / "summary.json").read_text()))


def tars_of(out: Path) -> list[Path]:
    """Returns the tars of the newest snapshot; older ones lie beside them."""
    manifest = json.loads((out / "shards" / "manifest.json").read_text())
    return [out / "shards" / entry["name"] for entry in manifest["shards"]]


LATENTS: dict[str, Any] = {"use": "bench_values:BenchLatents"}
BESIDE = {**LATENTS, "config": {"place": "side"}}
TEXTS = "bench_values:BenchTexts"
POSES = {"use": "bench_values:BenchPoses"}
COLUMN = {"use": "bench_values:BenchColumn"}
TABLE_COLUMN = {"use": "bench_values:BenchTableColumn"}


def make(options: argparse.Namespace) -> dict[str, Any]:
    """Makes films of one shot each, and an output without annotators."""
    (options.folder / "in").mkdir()
    n_films = 8
    n_frames = -(-options.clips // n_films) * WINDOW

    def frames(film: int) -> Iterator[np.ndarray]:
        random = np.random.default_rng(film)
        texture = random.integers(40, 200, (180 + 8 * 60, 320 + 8 * 60, 3), np.uint8)
        texture = np.repeat(np.repeat(texture[::6, ::6], 6, 0), 6, 1)
        for number in range(n_frames):
            x, y = (round(200 * (1 + np.sin(number / at))) for at in (97, 131))
            yield np.ascontiguousarray(texture[y : y + 180, x : x + 320])

    for film in range(n_films):
        write_video(options.folder / "in" / f"{film}.mp4", frames(film), fps=FPS)
    summary = curate(options, options.folder / "out")
    tars = sum(path.stat().st_size for path in tars_of(options.folder / "out"))
    return {"clips": summary["counts"]["kept"], "tar_bytes": tars}


COUNTS: Counter[str] = Counter()
"""Bytes that the store has read and written, and by kind of object."""


class Counted:
    """A stream that counts its bytes."""

    def __init__(self, stream: Any, kind: str, what: str) -> None:  # noqa: ANN401
        self._stream, self._kind, self._what = stream, kind, what

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._stream, name)

    def __enter__(self) -> "Counted":
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def _count(self, n: int) -> None:
        COUNTS[self._what] += n
        COUNTS[f"{self._what} {self._kind}"] += n

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size)
        self._count(len(data))
        return data

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        n: int = self._stream.readinto(buffer)
        self._count(n)
        return n

    def write(self, data: Any) -> int:  # noqa: ANN401
        self._count(len(memoryview(data)))
        return int(self._stream.write(data))


def count_bytes(patch: Any) -> None:  # noqa: ANN401 - pytest's MonkeyPatch
    """Counts what folders read and write from now on."""
    from contextlib import contextmanager

    from curator.storage.local_store import LocalStore

    def kind_of(key: str) -> str:
        return "tar" if key.endswith(".tar") else key.partition("/")[0]

    opened, ranged, created = LocalStore.open, LocalStore.read_range, LocalStore.create

    def read_range(self: LocalStore, key: str, start: int, end: int) -> bytes:
        data = ranged(self, key, start, end)
        Counted(None, kind_of(key), "read")._count(len(data))
        return data

    @contextmanager
    def create(self: LocalStore, key: str) -> Iterator[Any]:
        with created(self, key) as stream:
            yield Counted(stream, kind_of(key), "written")

    patch.setattr(LocalStore, "open", lambda s, key: Counted(opened(s, key), kind_of(key), "read"))
    patch.setattr(LocalStore, "read_range", read_range)
    patch.setattr(LocalStore, "create", create)


def cost(work: Callable[[], object]) -> dict[str, float]:
    """Returns what a piece of work reads, writes and computes."""
    before, begin = COUNTS.copy(), os.times()
    work()
    end = os.times()
    cpu_s = sum(end[:4]) - sum(begin[:4])
    return {"cpu_s": round(cpu_s, 2), **(COUNTS - before)}


def traffic(options: argparse.Namespace) -> dict[str, Any]:
    """Counts what a new family, a new column and an epoch of the loader read and write."""
    import pytest
    from captioned import work_here

    from curator.loading import ClipDataset, ClipLoader

    out = options.folder / "traffic"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(options.folder / "out", out)
    tars = sum(path.stat().st_size for path in tars_of(out))
    found: dict[str, Any] = {"tar_bytes": tars}
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        count_bytes(patch)
        found["first_after_copying"] = cost(lambda: curate(options, out))
        found["family"] = cost(lambda: curate(options, out, LATENTS))
        found["same"] = cost(lambda: curate(options, out, LATENTS))
        found["column_of_table"] = cost(lambda: curate(options, out, LATENTS, TABLE_COLUMN))
        found["column"] = cost(lambda: curate(options, out, LATENTS, COLUMN))
        with_values = sum(path.stat().st_size for path in tars_of(out))
        found["value_bytes"] = with_values - tars
        beside = options.folder / "traffic-beside"
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(options.folder / "out", beside)
        found["family_beside"] = cost(lambda: curate(options, beside, BESIDE))
        other = {**LATENTS, "config": {"place": "side", "vae": "b"}}
        found["other_values_beside"] = cost(lambda: curate(options, beside, other))

        def epoch(of: Path = out, **settings: object) -> Callable[[], object]:
            dataset = ClipDataset(str(of), batch_size=8, **settings)  # type: ignore[arg-type]
            return lambda: [batch["key"] for batch in ClipLoader(dataset, num_workers=0)]

        found["epoch_of_latents"] = cost(epoch(members=["latents"], video=False))
        found["epoch_of_latents_beside"] = cost(epoch(beside, members=["latents"], video=False))
        found["epoch_of_both"] = cost(epoch(members=["latents"], window="latents"))
        found["epoch_of_video"] = cost(epoch(frames=9))
    return found


def texts(options: argparse.Namespace) -> dict[str, Any]:
    """Compares vectors of ten texts that are with each clip with those that are stored once."""
    import pytest
    from captioned import work_here

    from curator.loading import ClipDataset, ClipLoader

    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        count_bytes(patch)
        for place in ("sample", "side", "shared"):
            out = options.folder / f"texts-{place}"
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(options.folder / "out", out)
            stage = {"use": TEXTS, "config": {"place": place}}
            found[f"{place}: run"] = cost(partial(curate, options, out, stage))
            entries = json.loads((out / "shards" / "manifest.json").read_text())["shards"]
            sides = [side for entry in entries for side in entry.get("sides", {}).values()]
            found[f"{place}: tar_bytes"] = sum(entry["bytes"] for entry in [*entries, *sides])
            dataset = ClipDataset(
                str(out), members=["texts"], whole_clip_values=True, video=False, batch_size=8
            )

            def epoch(dataset: ClipDataset = dataset) -> None:
                for batch in ClipLoader(dataset, num_workers=0):
                    keys = [int(key[:8], 16) % 10 for key in batch["key"]]
                    assert batch["texts"][:, 0, 0].tolist() == keys

            begin = time.perf_counter()
            found[f"{place}: epoch"] = cost(epoch)
            found[f"{place}: epoch"]["wall_s"] = round(time.perf_counter() - begin, 2)
    return found


# Each takes a sample's members and JSON, and another sample's; it changes one thing.
Sample = dict[str, Any]


def tampered_header(data: bytes, field: str, change: Callable[[str], str]) -> bytes:
    """Returns a safetensors file with another value of a header's field; its hash stays right."""
    length = int.from_bytes(data[:8], "little")
    header = orjson.loads(data[8 : 8 + length])
    header["__metadata__"][field] = change(header["__metadata__"][field])
    text = orjson.dumps(header)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def shifted_rows(data: bytes) -> bytes:
    """Returns a file whose tensor is moved by one row; the header stays."""
    length = 8 + int.from_bytes(data[:8], "little")
    return data[:length] + data[length + 24 :] + data[length : length + 24]


def changed_numbers(text: str, chosen: random.Random) -> str:
    """Moves one of the frames of a header by one."""
    numbers = json.loads(text)
    at = chosen.randrange(len(numbers))
    return json.dumps([n + (i == at) for i, n in enumerate(numbers)])


L, P = "latents.safetensors", "poses.safetensors"
FAULTS: dict[str, Callable[[Sample, dict[str, Any], Sample, random.Random], None]] = {
    "window off by one": lambda s, f, o, r: s.update(
        {L: tampered_header(s[L], "frames", lambda text: changed_numbers(text, r))}
    ),
    "rows shifted": lambda s, f, o, r: s.update({P: shifted_rows(s[P])}),
    "requested frame beyond the clip": lambda s, f, o, r: s.update(
        {P: tampered_header(s[P], "frames", lambda t: json.dumps([*json.loads(t)[:-1], WINDOW]))}
    ),
    "stale caption": lambda s, f, o, r: f.update(caption=f"{f['caption']} {r.random()}"),
    "cut file": lambda s, f, o, r: s.update({L: s[L][: r.randrange(len(s[L]))]}),
    "flipped bit": lambda s, f, o, r: s.update({L: flipped(s[L], r)}),
    "value of another clip": lambda s, f, o, r: s.update({L: o[L]}),
    "another MP4": lambda s, f, o, r: f.update(mp4_sha256=f"{r.getrandbits(256):064x}"),
    "value of another family version": lambda s, f, o, r: s.update(
        {L: tampered_header(s[L], "family", lambda text: f"{r.getrandbits(64):016x}")}
    ),
}  # fmt: skip
FACTS = {
    "another VAE": {"vae": "b"},
    "a draw for the mean": {"sample": "draw"},
    "wrong scale": {"scale": 1.0},
    "a fact that is not declared": {"shift": 0.0},
}


def flipped(data: bytes, chosen: random.Random) -> bytes:
    """Returns bytes with one bit of the tensor changed."""
    at = chosen.randrange(8 + int.from_bytes(data[:8], "little"), len(data))
    return data[:at] + bytes([data[at] ^ 1 << chosen.randrange(8)]) + data[at + 1 :]


def faults(options: argparse.Namespace) -> dict[str, Any]:
    """Reads right values, and values with faults."""
    from curator.errors import CuratorError
    from curator.loading import ClipDataset

    out = options.folder / f"faults-{options.place}"
    if not out.exists():
        shutil.copytree(options.folder / "out", out)
        curate(options, out, {**LATENTS, "config": {"place": options.place}}, POSES)
    right: dict[str, dict[str, Any] | None] = {
        "latents": {"vae": "a", "sample": "mean", "scale": 0.5},
        "poses": None,
    }
    dataset = ClipDataset(str(out), members=right, window="latents", batch_size=1)
    n_right, wrongly_refused = 0, 0
    while n_right < options.right:
        try:
            n_right += sum(1 for _ in dataset)
        except CuratorError as error:
            wrongly_refused += 1
            print(error)
            break
    by_key: dict[str, Sample] = {}
    manifest = json.loads((out / "shards" / "manifest.json").read_text())
    for entry in manifest["shards"]:
        beside = [side["name"] for side in entry.get("sides", {}).values()]
        for name in [entry["name"], *beside]:
            with tarfile.open(out / "shards" / name) as members:
                for member in members:
                    key, _, suffix = member.name.partition(".")
                    data = members.extractfile(member).read()  # type: ignore[union-attr]
                    by_key.setdefault(key, {})[suffix] = data
    samples = list(by_key.values())
    chosen = random.Random(options.seed)
    kinds = [*FAULTS, *FACTS]
    refused, missed = Counter[str](), Counter[str]()
    for number in range(options.faults):
        kind = kinds[number % len(kinds)]
        sample, other = (dict(each) for each in chosen.sample(samples, 2))
        facts = orjson.loads(sample["json"])
        try:
            if kind in FACTS:
                ClipDataset(
                    str(out), batch_size=1, window="latents",
                    members={"latents": right["latents"] | FACTS[kind]},  # type: ignore[operator]
                )  # fmt: skip
            else:
                FAULTS[kind](sample, facts, other, chosen)
                dataset._values.read(sample, facts, output=0, fps=FPS, name="a clip")
            missed[kind] += 1
        except CuratorError:
            refused[kind] += 1
    return {
        "right": n_right, "wrongly_refused": wrongly_refused, "faults": options.faults,
        "refused": sum(refused.values()), "by_kind": dict(refused), "missed": dict(missed),
    }  # fmt: skip


READERS = {
    "webdataset": """
        import json, sys, webdataset
        index = json.load(open(sys.argv[1] + "/wids-train.json"))
        tars = [sys.argv[1] + "/" + each["url"] for each in index["shardlist"]]
        samples = webdataset.WebDataset(tars, shardshuffle=False)
        print(sum(1 for _ in samples))
    """,
    "energon": """
        import sys
        sys.path.insert(0, sys.argv[2])
        from energon_reader import read
        print(len(read(sys.argv[1], "train", 0)))
    """,
}


def ranks(options: argparse.Namespace) -> dict[str, Any]:
    """Reads an epoch as many ranks, from S3; then the same tars with other readers, locally."""
    import boto3
    from fault_proxy import FaultProxy
    from moto.server import ThreadedMotoServer

    from curator.loading import ClipDataset

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }  # fmt: skip
    client = boto3.client("s3")
    client.create_bucket(Bucket="bench")
    out = options.folder / f"faults-{options.place}"
    for path in sorted(out.rglob("*")):
        if path.is_file():
            client.upload_file(str(path), "bench", str(path.relative_to(out)))
    expected = {
        orjson.loads(line)["key"]
        for path in tars_of(out)
        for line in path.with_suffix(".meta.jsonl").read_bytes().splitlines()
    }
    found: dict[str, Any] = {"clips": len(expected)}
    with FaultProxy(server=f"http://{host}:{port}", share=0.0) as proxy:
        os.environ["AWS_ENDPOINT_URL"] = proxy.url
        for name, settings in {
            "latents": {"members": ["latents"], "video": False},
            "latents and frames": {"members": ["latents", "poses"], "window": "latents"},
        }.items():
            seen: Counter[str] = Counter()
            begin, cpu, before = time.perf_counter(), time.process_time(), proxy.counts["requests"]
            for rank in range(options.ranks):
                dataset = ClipDataset(
                    "s3://bench", batch_size=4, rank=rank, world_size=options.ranks,
                    **settings,  # type: ignore[arg-type]
                )  # fmt: skip
                seen.update(key for batch in dataset for key in batch["key"])
            wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
            found[name] = {
                "is_exact": set(seen) == expected and max(seen.values()) == 1,
                "requests_a_clip": (proxy.counts["requests"] - before) / len(expected),
                "cpu_ms_a_clip": 1000 * cpu / len(expected),
                "samples_s": len(expected) / wall,
            }
    server.stop()
    for name, settings in {
        "ours, latents": {"members": ["latents", "poses"], "video": False}
    }.items():
        begin = time.perf_counter()
        dataset = ClipDataset(str(out), batch_size=4, **settings)  # type: ignore[arg-type]
        n = sum(len(batch["key"]) for batch in dataset)
        found[name] = {"samples": n, "samples_s": n / (time.perf_counter() - begin)}
    for name, program in READERS.items():
        begin = time.perf_counter()
        command = [sys.executable, "-c", textwrap.dedent(program), str(out / "shards")]
        command.append(str(Path(__file__).parents[1] / "tests"))
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        wall = time.perf_counter() - begin
        n = int(done.stdout.split()[-1])
        found[name] = {"samples": n, "samples_s_with_imports": n / wall}
    return found


if __name__ == "__main__":
    main()
