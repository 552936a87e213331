"""What stands beside the tars: indexes, tables and the manifest."""

import hashlib
import io
import json
import struct
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from curator.buckets import Bucket
from curator.dataset.dataset_card import dataset_card
from curator.dataset.sample import Sample
from curator.dataset.shard_index import (
    DATASET_SCHEMA,
    DescribedTar,
    index_bytes,
    known_tars,
    meta_lines,
    set_files,
)
from curator.dataset.shard_plan import ShardPlan, plan_shards, write_shard
from curator.dataset.tar_reader import Split, index_name, meta_name
from curator.records.clips import WINDOWED
from curator.stages.shard.config import ShardConfig
from curator.tables.clip_locations import Location
from curator.tables.out_layout import MANIFEST

BUCKETS = (
    Bucket(resolution=720, aspect="16,9", min_frames=121),
    Bucket(resolution=480, aspect="9,16", min_frames=17),
)
STAMP = "0123456789abcdef"


Shards = dict[str, tuple[ShardPlan, DescribedTar, bytes]]


def tar_index(plan: ShardPlan) -> bytes:
    return index_bytes(plan.layout.offsets)


def mp4_of(sample: Sample) -> bytes:
    return sample.key.encode() * (sample.mp4_bytes // len(sample.key))


def sample(number: int, split: Split) -> Sample:
    key = f"{number:024x}"
    return Sample(
        key=key,
        metadata={
            "n_frames": 60 + number, "fps": 30.0, "duration": (60 + number) / 30, "width": 1280,
            "height": 720, "source_id": f"s{number % 7}", "source_uri": f"/in/{number}.mp4",
            "mp4_sha256": f"{number:064x}", "medium": "video",
        },
        caption=f"Clip {number}, größer.",
        mp4_bytes=24 * (40 + number),
        mp4_sha256=f"{number:064x}",
        location=Location(name="cuts/part.parquet", row=number),
        split=split,
    )  # fmt: skip


@pytest.fixture(scope="module")
def shards() -> Shards:
    """Tars of two buckets and splits, by name."""
    samples = [(BUCKETS[i % 2], sample(i, "val" if i % 5 == 0 else "train")) for i in range(90)]
    tars = {}
    for plan in plan_shards(samples, ShardConfig(max_bytes=1 << 16)):
        output = io.BytesIO()
        write_shard(plan, output.write, mp4_of)
        data = output.getvalue()
        tar = DescribedTar.of(
            plan,
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            md5=hashlib.md5(data, usedforsecurity=False).hexdigest(),
            idx_sha256=hashlib.sha256(tar_index(plan)).hexdigest(),
            meta_sha256=hashlib.sha256(meta_lines(plan)).hexdigest(),
        )
        tars[plan.name] = plan, tar, data
    assert len(tars) > 4
    return tars


def files_of(shards: Shards) -> dict[str, bytes]:
    listed = [(plan, tar) for plan, tar, _ in shards.values()]
    return set_files(listed, seed=7, fingerprint=STAMP, made_by="curate 0")


def test_the_index_is_that_of_energon(shards: Shards, tmp_path: Path) -> None:
    """Pins `.tar.idx`, `.info.json` and the splits against what its own preparation writes."""
    pytest.importorskip("megatron.energon")
    from megatron.energon.epathlib import EPath
    from megatron.energon.flavors import BaseWebdatasetFactory

    for name, (_, _, data) in shards.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    names = [name.removeprefix("shards/") for name in shards]
    BaseWebdatasetFactory.prepare_dataset(
        EPath(tmp_path / "shards"),
        names,
        split_parts_patterns=[("train", ".*/train-.*"), ("val", ".*/val-.*")],
        workers=1,
        progress_fn=lambda items, length: items,
    )
    for name, (plan, _, _) in shards.items():
        assert (tmp_path / index_name(name)).read_bytes() == tar_index(plan)
    files = files_of(shards)
    own = json.loads(files["shards/.nv-meta/.info.json"])
    theirs = json.loads((tmp_path / "shards/.nv-meta/.info.json").read_bytes())
    assert own["shard_counts"] == theirs["shard_counts"]
    assert list(own) == list(theirs)


def test_index_metadata_and_tables_lead_to_each_sample(shards: Shards) -> None:
    """Pins little-endian offsets: a part cut out by two of them is one sample."""
    for plan, _, data in shards.values():
        raw = tar_index(plan)
        offsets = struct.unpack(f"<{len(raw) // 8}Q", raw)
        for found, start, end in zip(plan.samples, offsets[:-1], offsets[1:], strict=True):
            with tarfile.open(fileobj=io.BytesIO(data[start:end])) as tar:
                assert {name.partition(".")[0] for name in tar.getnames()} == {found.key}
        assert not any(data[offsets[-1] :])
    # The order and the name, `<tar without suffix>.meta.jsonl`.
    for name, (plan, _, _) in shards.items():
        lines = meta_lines(plan).splitlines()
        assert [json.loads(line) for line in lines] == [s.metadata for s in plan.samples]
        assert meta_name(name) == name[:-4] + ".meta.jsonl"
    # The columns that loaders take, and that offsets lead to the bytes.
    table = pq.read_table(io.BytesIO(files_of(shards)["shards/dataset.parquet"]))
    assert table.schema.equals(DATASET_SCHEMA)
    rows = table.to_pylist()
    assert {row["clip_id"] for row in rows} == {f"{i:024x}" for i in range(90)}
    for row in rows:
        data = shards[f"shards/{row['shard']}"][2]
        mp4 = data[row["offset"] : row["offset"] + row["bytes"]]
        assert mp4 == row["clip_id"].encode() * (len(mp4) // 24)
        assert row["path"] == f"{row['shard']}#{row['clip_id']}.mp4"
        assert row["shard"].startswith(f"{row['bucket']}/{row['split']}-")
        assert (row["height"], row["width"], row["aspect_ratio"]) == (720, 1280, 720 / 1280)
        assert row["resolution"] == 720 * 1280
        assert row["duration"] == row["num_frames"] / row["fps"]


def test_the_manifest_is_last_and_names_everything_of_a_bucket_too(shards: Shards) -> None:
    """Pins its keys, its sums and the hashes, and that facts can be read back."""
    files = files_of(shards)
    assert list(files)[-1] == MANIFEST
    manifest = json.loads(files[MANIFEST])
    assert (manifest["version"], manifest["seed"]) == (1, 7)
    assert (manifest["made_by"], manifest["recipe_fingerprint"]) == ("curate 0", STAMP)
    assert {f"shards/{name}" for name in manifest["files"]} == set(files) - {MANIFEST}
    for name, facts in manifest["files"].items():
        data = files[f"shards/{name}"]
        assert facts == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    known = known_tars(manifest)
    assert [tar.entry() for tar in known.values()] == manifest["shards"]
    assert known.keys() == {tar.name for _, tar, _ in shards.values()}
    assert known_tars(manifest | {"version": 0}) == known_tars({}) == {}
    counts = manifest["counts"]
    assert (counts["samples"], counts["frames"]) == (90, sum(60 + i for i in range(90)))
    assert counts["bytes"] == sum(len(data) for *_, data in shards.values())
    assert counts["seconds"] == pytest.approx(counts["frames"] / 30, abs=0.01)
    assert set(counts["by_split"]) == {"train", "val"}
    assert set(counts["by_bucket"]) == {bucket.name for bucket in BUCKETS}
    assert counts["by_split"]["val"]["samples"] == 18
    # A bucket's folder can be moved and read by itself.
    files = files_of(shards)
    for bucket in BUCKETS:
        info = json.loads(files[f"shards/{bucket.name}/.nv-meta/.info.json"])
        inside = {name for name in shards if f"/{bucket.name}/" in name}
        assert {f"shards/{bucket.name}/{name}" for name in info["shard_counts"]} == inside


def test_no_shards_are_whole_and_cards_name_the_tars_of_each_split(shards: Shards) -> None:
    """Pins that a run that keeps nothing says so, in all files."""
    files = set_files([], seed=0, fingerprint=STAMP, made_by="curate 0")
    manifest = json.loads(files[MANIFEST])
    assert manifest["shards"] == []
    assert manifest["counts"]["samples"] == 0
    assert json.loads(files["shards/wids-train.json"])["shardlist"] == []
    assert files["shards/.nv-meta/split.yaml"] == (
        b"split_parts:\n  train: []\n  val: []\nexclude: []\n"
    )
    assert pq.read_table(io.BytesIO(files["shards/dataset.parquet"])).num_rows == 0
    assert b"configs" not in files["shards/README.md"]
    # The header of each folder's README.md names its tars and no others, by split.
    files = files_of(shards)
    for folder in ("", *(f"{bucket.name}/" for bucket in BUCKETS)):
        _, header, _ = files[f"shards/{folder}README.md"].decode().split("---\n")
        (config,) = yaml.safe_load(header)["configs"]
        named = {part["split"]: part["path"] for part in config["data_files"]}
        for split, name in (("train", "train"), ("val", "validation")):
            inside = [
                tar.removeprefix(f"shards/{folder}")
                for tar in sorted(shards)
                if tar.startswith(f"shards/{folder}") and tar.rpartition("/")[2].startswith(split)
            ]
            assert named.get(name, []) == inside


@pytest.mark.parametrize("more", [(), ("npy",), ("id",)])
def test_a_card_types_the_members_that_samples_have(more: tuple[str, ...]) -> None:
    """Pins that a member or split which is not there is not declared: loaders refuse it."""
    names = {"npy": "with_embedding", "id": "with_id"}
    tars = {"train": ["a/train-000000-0.tar"], "val": []}
    card = dataset_card(tars, **{names[name]: True for name in more})  # type: ignore[arg-type]
    start, header, _ = card.decode().split("---\n")
    assert start == ""
    read = yaml.safe_load(header)
    features = {feature["name"]: feature for feature in read["dataset_info"]["features"]}
    assert sorted(features) == sorted(["mp4", "txt", "json", "__key__", "__url__", *more])
    assert features["mp4"]["dtype"] == "video"
    (config,) = read["configs"]
    assert config["data_files"] == [{"split": "train", "path": tars["train"]}]
    # Samples of windows have fields that no other samples have.
    fields = {field["name"] for field in features["json"]["struct"]}
    assert not fields.intersection(WINDOWED)
    windows = dataset_card(tars, with_windows=True).decode().split("---\n")[1]  # type: ignore[arg-type]
    typed = yaml.safe_load(windows)["dataset_info"]["features"][2]["struct"]
    types = {field["name"]: field.get("dtype") for field in typed}
    assert [types[name] for name in WINDOWED] == ["int64", "float64"]
