"""Indexes next to tars: always the same bytes, and added to outputs that lack them."""

import hashlib
import json
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_output import SmallOutput

from curator.dataset.reader_indexes import energon_database
from curator.dataset.shard_index import DATASET_SCHEMA
from curator.dataset.tar_reader import BESIDE, tar_of
from curator.storage import open_store
from curator.storage.local_store import LocalStore
from curator.tables.json_objects import read_json, sealed_json, to_json
from curator.tables.out_layout import SUMMARY
from curator.tools.verify import verify

NEW = ("*/*-*.json", "*/captions.json", "**/index.*")
"""What outputs of an older state lack."""


def files(out: Path) -> dict[str, bytes]:
    shards = out / "shards"
    return {str(p.relative_to(shards)): p.read_bytes() for p in shards.rglob("*") if p.is_file()}


def test_two_outputs_with_the_same_clips_have_the_same_indexes(tmp_path: Path) -> None:
    """Neither time nor place is in an index; the manifest names them all."""
    found = []
    for name in ("a", "b"):
        output = SmallOutput(tmp_path / name, {1, 2})
        output.run({1})
        output.run({1, 2})
        found.append(files(output.out))
    assert found[0] == found[1]
    manifest = json.loads(found[0]["manifest.json"])
    for shard in manifest["shards"]:
        for field, name in BESIDE.items():
            assert shard[field] == hashlib.sha256(found[0][name(shard["name"])]).hexdigest()
            assert tar_of(name(shard["name"])) == shard["name"]
    bucket = manifest["shards"][0]["bucket"]
    assert {f"{bucket}/captions.json", ".nv-meta/index.sqlite"} < manifest["files"].keys()
    for name in ("wids-train.json", ".info.json", "captions.json"):
        assert tar_of(name) == name


def test_the_version_of_sqlite_is_not_in_the_database(tmp_path: Path) -> None:
    output = SmallOutput(tmp_path / "out", {1})
    output.run({1})
    rows = pq.read_table(output.out / "shards" / "dataset.parquet")
    assert rows.schema.names == DATASET_SCHEMA.names
    data = energon_database(rows, rows["shard"].unique().to_pylist())["index.sqlite"]
    twice = pa.concat_tables([rows, rows])
    assert energon_database(twice, rows["shard"].unique().to_pylist()) == {}
    number = int.from_bytes(data[96:100])
    assert number == 3_040_000
    path = tmp_path / "changed.sqlite"
    path.write_bytes(data)
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        names = database.execute("SELECT created_at_utc FROM media_filters").fetchall()
    assert names == [(None,)]


def test_an_output_without_them_gets_them_without_a_tar_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tars of an older state stay, and their known hashes are kept: they may hold terabytes."""
    output = SmallOutput(tmp_path / "out", {1, 2})
    output.run({1, 2})
    wanted, store = files(output.out), open_store(str(output.out))
    for pattern in NEW:
        for path in (output.out / "shards").glob(pattern):
            path.unlink()
    for name, list_of in (("shards/manifest.json", "shards"), (SUMMARY, "shards")):
        value = read_json(store, name)
        for entry in value[list_of]:
            entry.pop("members_sha256", None)
            versions = entry.get("versions", {})
            entry |= {"versions": {k: v for k, v in versions.items() if not k.endswith(".json")}}
        value = {k: v for k, v in value.items() if k not in ("checksum", "object")}
        store.write(name, sealed_json(value, to_json, name))
    opened: list[str] = []
    real = LocalStore.open

    def noted(self: LocalStore, key: str) -> object:
        opened.append(key)
        return real(self, key)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "open", noted)
        output.run({1, 2})
    assert not [key for key in opened if key.endswith(".tar")]
    assert files(output.out) == wanted
    assert verify(str(output.out), frames="none").is_well
