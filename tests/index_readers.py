"""Reads shards as each kind of reader does, and checks that what an index promises is there."""

import hashlib
import json
import tarfile
from functools import lru_cache
from pathlib import Path

import pyarrow.parquet as pq
import yaml

from curator.loading.shard_reader import read_output


def check_readers(out: Path) -> set[str]:
    """Checks the manifest, wids, `dataset.parquet`, each `.nv-meta` and the loader.

    Returns:
        Tars that some index names.
    """
    shards = out / "shards"
    named: set[str] = set()
    manifest = shards / "manifest.json"
    if manifest.exists():
        for entry in json.loads(manifest.read_text())["shards"]:
            tar = shards / entry["name"]
            assert tar.stat().st_size == entry["bytes"], f"manifest: {tar}"
            assert len(keys_of(tar)) == entry["samples"], f"manifest: {tar}"
            assert Path(f"{tar}.idx").stat().st_size == 8 * (entry["samples"] + 1)
            assert tar.with_suffix(".meta.jsonl").exists()
            named.add(entry["name"])
        listed = json.loads(manifest.read_text())["shards"]
        for split in {entry["split"] for entry in listed}:
            for shard in read_output(str(out), split).shards:
                assert len(keys_of(shards / shard.name)) == shard.n_samples, "loader"
    for index in shards.glob("wids-*.json"):
        for entry in json.loads(index.read_text())["shardlist"]:
            tar = shards / entry["url"]
            assert tar.stat().st_size == entry["filesize"], f"{index.name}: {tar}"
            assert len(keys_of(tar)) == entry["nsamples"], f"{index.name}: {tar}"
            named.add(entry["url"])
    table = shards / "dataset.parquet"
    if table.exists():
        for row in pq.read_table(table).to_pylist():
            tar = shards / row["shard"]
            assert row["clip_id"] in keys_of(tar), f"dataset.parquet: {tar}"
            with tar.open("rb") as stream:
                stream.seek(row["offset"])
                found = hashlib.sha256(stream.read(row["bytes"])).hexdigest()
            assert found == row["sha256"], f"dataset.parquet: {tar}"
            named.add(row["shard"])
    for splits in shards.rglob(".nv-meta/split.yaml"):
        counts = splits.with_name(".info.json")
        if not counts.exists():
            # Megatron-Energon takes such a folder for one that was not prepared.
            continue
        n_samples = json.loads(counts.read_text())["shard_counts"]
        for tars in yaml.safe_load(splits.read_text())["split_parts"].values():
            for name in tars:
                tar = splits.parent.parent / name
                assert len(keys_of(tar)) == n_samples[name], f"{splits}: {name}"
                named.add(str(tar.relative_to(shards)))
    return named


def keys_of(tar: Path) -> frozenset[str]:
    """Keys of the samples of a tar."""
    return _keys_of(tar, tar.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _keys_of(tar: Path, version: int) -> frozenset[str]:
    with tarfile.open(tar) as opened:
        return frozenset(name.partition(".")[0] for name in opened.getnames())
