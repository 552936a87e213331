"""Trainers' own loaders read every sample of a run, from a folder and from S3, unprepared."""

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pyarrow.parquet as pq
import pytest
import webdataset
import yaml
from place import SMALL, sets, write_films
from small_output import SmallOutput

from curator.cli import main
from curator.storage import open_store
from curator.tools.commands.arguments import EXIT_OK

SETTINGS = sets((
    *SMALL, "dedup.enabled=false", "shard.val_share=0.4", "shard.max_bytes=100000",
    "shard.lengths=[17, 66]",
))  # fmt: skip
READER = Path(__file__).parent.parent / "energon_reader.py"

Samples = dict[str, dict[str, dict[str, str]]]
"""SHA-256 of each member, by split and key."""


@dataclass(frozen=True)
class Finished:
    """A run, and what its tables say should be read."""

    sources: Path
    out: Path
    samples: Samples


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def said_by(out: Path) -> Samples:
    """What the tables of a run say: no tar is opened as a tar."""
    found: Samples = {"train": {}, "val": {}}
    clips = {clip["clip_id"]: clip for clip in pq.read_table(out / "clips").to_pylist()}
    rows = pq.read_table(out / "shards" / "dataset.parquet").to_pylist()
    lines = {
        json.loads(line)["key"]: line
        for path in (out / "shards").rglob("*.meta.jsonl")
        for line in path.read_bytes().splitlines()
    }
    for row in rows:
        assert row["sha256"] == clips[row["clip_id"]]["mp4_sha256"]
        found[row["split"]][row["clip_id"]] = {
            "json": digest(lines[row["clip_id"]]),
            "mp4": row["sha256"],
            "txt": digest(clips[row["clip_id"]]["caption"].encode()),
        }
    kept = {name for name, clip in clips.items() if clip["decision"] == "kept"}
    assert {*found["train"], *found["val"]} == kept
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("readers")
    write_films(folder / "in", [60 + 15 * (number % 3) for number in range(6)])
    out = folder / "out"
    assert main(["run", str(folder / "in"), str(out), *SETTINGS]) == EXIT_OK
    samples = said_by(out)
    assert len(samples["train"]) >= 3
    assert len(samples["val"]) >= 2
    assert len(list((out / "shards").glob("*/*.tar"))) >= 4
    return Finished(folder / "in", out, samples)


def tars(out: Path, split: str) -> list[str]:
    """Tars of a split, by the index of wids."""
    listed = json.loads((out / "shards" / f"wids-{split}.json").read_text())["shardlist"]
    return [str(out / "shards" / shard["url"]) for shard in listed]


def members(samples: Iterable[dict[str, Any]]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for sample in samples:
        assert sample["__key__"] not in found
        found[sample["__key__"]] = {
            name.removeprefix("."): digest(data if isinstance(data, bytes) else data.read())
            for name, data in sample.items()
            if not name.startswith("__")
        }
    return found


@pytest.mark.parametrize("split", ["train", "val"])
def test_webdataset_in_a_data_loader_with_workers(finished: Finished, split: str) -> None:
    torch = pytest.importorskip("torch")
    dataset = webdataset.WebDataset(tars(finished.out, split), shardshuffle=False)
    for workers in (0, 2):
        loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers)
        assert members(loader) == finished.samples[split]


@pytest.mark.parametrize("split", ["train", "val"])
def test_wids_from_a_folder(finished: Finished, tmp_path: Path, split: str) -> None:
    wids = pytest.importorskip("wids")
    index = finished.out / "shards" / f"wids-{split}.json"
    for shard, tar in zip(
        json.loads(index.read_text())["shardlist"], tars(finished.out, split), strict=True
    ):
        with open(tar, "rb") as stream:
            assert wids.wids.compute_file_md5sum(stream) == shard["md5sum"]
            assert stream.tell() == shard["filesize"]
    dataset = wids.ShardListDataset(str(index), cache_dir=str(tmp_path), transformations=dict)
    samples = [dataset[number] for number in reversed(range(len(dataset)))]
    assert members(samples) == finished.samples[split]


def by_energon(*read: tuple[str, int], **environment: str) -> list[Samples]:
    """Samples of folders, each with a number of workers; by one process, whose start is slow."""
    done = subprocess.run(
        [sys.executable, str(READER), *(str(part) for pair in read for part in pair)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for samples in (samples for splits in found for samples in splits.values()):
        assert len(dict(samples)) == len(samples), "a sample came twice"
    return [{split: dict(samples) for split, samples in splits.items()} for splits in found]


@pytest.mark.long
def test_energon_from_one_bucket(finished: Finished) -> None:
    pytest.importorskip("megatron.energon")
    rows = pq.read_table(finished.out / "shards" / "dataset.parquet").to_pylist()
    bucket = min(row["bucket"] for row in rows)
    inside = {row["clip_id"] for row in rows if row["bucket"] == bucket}
    assert 0 < len(inside) < len(rows)
    (found,) = by_energon((str(finished.out / "shards" / bucket), 0))
    for split, samples in finished.samples.items():
        assert found[split] == {key: value for key, value in samples.items() if key in inside}


BLEND = """
import sys
from collections import Counter
from energon_reader import Raw
from megatron.energon import WorkerConfig, get_loader, get_train_dataset

found = Counter(), Counter()
for sample in get_loader(get_train_dataset(
    sys.argv[1], worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0), batch_size=None,
    shuffle_buffer_size=10, max_samples_per_sequence=10, task_encoder=Raw(),
    virtual_epoch_length=int(sys.argv[2]) or 0, repeat=bool(int(sys.argv[2])),
)):
    found[0][sample["__subflavors__"]["output"]] += 1
    found[1][sample["__key__"]] += 1
print([dict(counter) for counter in found])
"""


@pytest.mark.long
def test_energon_blends_outputs_by_the_metadataset_of_the_documentation(tmp_path: Path) -> None:
    """Pins the text of docs/train.md: weights of samples, and passes with `blend_epochized`."""
    pytest.importorskip("megatron.energon")
    for name, numbers in (("films", {1, 2, 3}), ("stock", {4, 5})):
        SmallOutput(tmp_path / name, numbers).run(numbers)
    page = (Path(__file__).parents[2] / "docs/train.md").read_text()
    text = page.split("# mix.yaml", 1)[1].split("\n", 1)[1].split("```")[0].split("  val:")[0]
    (tmp_path / "mix.yaml").write_text(text)
    passes = text.replace("blend:", "blend_epochized:")
    passes = passes.replace("weight: 0.7", "repetitions: 1").replace(
        "weight: 0.3", "repetitions: 2"
    )
    (tmp_path / "passes.yaml").write_text(passes)
    found = []
    for name, length in (("mix", 1000), ("passes", 0)):
        done = subprocess.run(
            [sys.executable, "-c", BLEND, str(tmp_path / f"{name}.yaml"), str(length)],
            env=os.environ | {"PYTHONPATH": str(READER.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found.append(ast.literal_eval(done.stdout.splitlines()[-1]))
    (shares, keys), (passed, times) = found
    assert sum(shares.values()) == 1000
    assert abs(shares["films"] - 700) < 60
    assert len(keys) == 15
    assert passed == {"films": 9, "stock": 12}
    assert sorted(times.values()) == [1] * 9 + [2] * 6


@pytest.fixture(params=["moto", pytest.param("real", marks=pytest.mark.needs_s3)])
def bucket(request: pytest.FixtureRequest) -> str:
    name = "s3_bucket" if request.param == "moto" else "real_s3_bucket"
    bucket: str = request.getfixturevalue(name)
    return bucket


@pytest.mark.long
def test_all_of_them_from_s3(
    finished: Finished, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run itself writes to S3 too; its shards are those of the folder.

    Energon reads the folder too, with workers, and changes nothing in it.
    """
    pytest.importorskip("megatron.energon")
    wids = pytest.importorskip("wids")
    store = open_store(f"s3://{bucket}/some/out")
    for path in finished.out.rglob("*"):
        name = str(path.relative_to(finished.out))
        if path.is_file() and not name.startswith("shards/") and name != "summary.json":
            store.write(name, path.read_bytes())
    assert main(["run", str(finished.sources), store.uri, *SETTINGS]) == EXIT_OK
    for path in (finished.out / "shards").rglob("*"):
        if path.is_file():
            assert store.read(str(path.relative_to(finished.out))) == path.read_bytes(), path

    endpoint = os.environ["AWS_ENDPOINT_URL"]
    options = {"base_path": bucket, "region_name": "us-east-1", "endpoint_url": endpoint}
    provider = {"type": "s3", "options": options}
    config = tmp_path / "msc.json"
    config.write_text(json.dumps({"profiles": {"clips": {"storage_provider": provider}}}))
    read = ("msc://clips/some/out/shards", 0), (str(finished.out / "shards"), 2)
    before = {path: path.stat().st_mtime_ns for path in finished.out.rglob("*")}
    assert by_energon(*read, MSC_CONFIG=str(config)) == [finished.samples] * 2
    assert {path: path.stat().st_mtime_ns for path in finished.out.rglob("*")} == before

    # wids and webdataset have no client for S3; both read by HTTP what is public.
    allow = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject"}
    policy = {
        "Version": "2012-10-17",
        "Statement": [allow | {"Resource": f"arn:aws:s3:::{bucket}/*"}],
    }
    boto3.client("s3").put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    root = f"{endpoint}/{bucket}/some/out/shards"
    manifest = json.loads(store.read("shards/manifest.json"))
    for split, samples in finished.samples.items():
        dataset = wids.ShardListDataset(
            f"{root}/wids-{split}.json", cache_dir=str(tmp_path / split), transformations=dict
        )
        assert members(dataset[number] for number in range(len(dataset))) == samples
        urls = [f"{root}/{s['name']}" for s in manifest["shards"] if s["split"] == split]
        assert members(webdataset.WebDataset(urls, shardshuffle=False)) == samples


def test_the_card_declares_all_that_the_json_holds(finished: Finished) -> None:
    """Pins names and kinds: what is not declared is dropped by `datasets`, without a word."""
    card = (finished.out / "shards" / "README.md").read_text().split("---\n")[1]
    declared = {f["name"]: f for f in yaml.safe_load(card)["dataset_info"]["features"]}
    fields = {f["name"]: f for f in declared["json"]["struct"]}
    kinds = {"string": str, "int64": int, "float64": float, "bool": bool}
    n_lines = 0
    for path in (finished.out / "shards").rglob("*.meta.jsonl"):
        for line in path.read_text().splitlines():
            n_lines += 1
            sample = json.loads(line)
            assert set(sample) == set(fields)
            for name, value in sample.items():
                if isinstance(value, dict):
                    parts = {part["name"]: part["dtype"] for part in fields[name]["struct"]}
                    assert set(value) == set(parts)
                    given = [(part, kinds[parts[key]]) for key, part in value.items()]
                elif isinstance(value, list):
                    given = [(part, kinds[fields[name]["sequence"]]) for part in value]
                elif value is None:
                    continue
                else:
                    given = [(value, kinds[fields[name]["dtype"]])]
                assert all(part is None or type(part) is kind for part, kind in given), name
    assert n_lines == len({*finished.samples["train"], *finished.samples["val"]})


@pytest.mark.parametrize("streaming", [True, False])
def test_datasets_from_a_folder_and_from_one_bucket(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    """Hugging Face's library, and so finetrainers, is given the folder and nothing else."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    rows = pq.read_table(finished.out / "shards" / "dataset.parquet").to_pylist()
    bucket = min(row["bucket"] for row in rows if row["split"] == "train")
    inside = {row["clip_id"] for row in rows if row["bucket"] == bucket}

    def read(folder: Path, split: str) -> dict[str, str]:
        name = "validation" if split == "val" else split
        found = datasets.load_dataset(
            str(folder), split=name, streaming=streaming, cache_dir=str(tmp_path / "cache")
        ).cast_column("mp4", datasets.Video(decode=False))
        samples = list(found)
        for sample in samples:
            assert sample["json"]["key"] == sample["__key__"]
            assert sample["json"]["caption"] == sample["txt"]
        return {sample["__key__"]: digest(sample["mp4"]["bytes"]) for sample in samples}

    for split, samples in finished.samples.items():
        wanted = {key: members["mp4"] for key, members in samples.items()}
        assert read(finished.out / "shards", split) == wanted
    wanted = {k: m["mp4"] for k, m in finished.samples["train"].items() if k in inside}
    assert read(finished.out / "shards" / bucket, "train") == wanted


def test_an_embedding_comes_with_each_sample(finished: Finished, tmp_path: Path) -> None:
    """The member `npy` is the clip's row in `embeddings`; nothing is cut or decoded for it."""
    out = tmp_path / "out"
    shutil.copytree(finished.out, out)
    command = ["run", str(finished.sources), str(out), *SETTINGS]
    assert main([*command, "--set", "shard.embedding=scene"]) == EXIT_OK
    assert json.loads((out / "summary.json").read_text())["work"]["clips_cut"] == 0
    table = pq.read_table(out / "embeddings")
    vectors = dict(zip(table["clip_id"].to_pylist(), table["vector"].to_pylist(), strict=True))
    n_read = 0
    for split in ("train", "val"):
        for sample in webdataset.WebDataset(tars(out, split), shardshuffle=False).decode():
            assert sample["npy"].dtype == np.float32
            assert sample["npy"].tolist() == vectors[sample["__key__"]]
            n_read += 1
    assert n_read == len({*finished.samples["train"], *finished.samples["val"]})
