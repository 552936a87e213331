"""The shards of the last finished run that are unchanged since.

`summary.json` has the version that the store gave to each object of a shard. If an object has
another version now, its bytes are hashed and compared with the hash in the manifest.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from curator.dataset.shard_index import DATASET, DescribedTar, known_tars
from curator.dataset.shard_plan import place_of
from curator.dataset.tar_reader import Split, objects_of
from curator.errors import DamagedError
from curator.stages.shard.config import SPLIT_SETTINGS, ShardConfig
from curator.storage import Store
from curator.tables.checksums import filter_in_threads, read_parquet
from curator.tables.fenced_store import Digest
from curator.tables.json_objects import find_json
from curator.tables.out_layout import MANIFEST, SHARDS, find_unlisted

logger = logging.getLogger(__name__)

DATASET_KEY = f"{SHARDS}/{DATASET}"


@dataclass
class ReusableShards:
    """The objects under `shards/` that a run may keep.

    Attributes:
        store: Output root.
        previous: Summary of the last finished run; empty without one.
    """

    store: Store
    previous: Mapping[str, Any]

    @cached_property
    def tars(self) -> dict[str, DescribedTar]:
        """The tars with their sizes and hashes, by name; empty if the manifest cannot be read."""
        try:
            tars = known_tars(find_json(self.store, MANIFEST) or {})
            return {f"{SHARDS}/{name}": tar for name, tar in tars.items()}
        except DamagedError as error:
            where = f"{error.root}/{MANIFEST}"
            logger.warning("%s is damaged (%s); this run writes it again", where, error.why)
            return {}

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of each object; objects that changed since they were written are left out."""
        versions: dict[str, str] = {}
        for shard in self.previous.get("shards", ()):
            versions |= shard.get("versions", {})
        there = {info.key: info for info in self.store.list(f"{SHARDS}/")}
        there |= find_unlisted(self.store, versions, there)
        changed = [
            key for key, info in there.items() if versions.get(key, info.version) != info.version
        ]
        hashes = dict(self._hashes())
        damaged = filter_in_threads(
            lambda key: Digest.of_object(self.store, key).sha256 != hashes.get(key), changed
        )
        if damaged:
            logger.warning(
                "damaged objects of shards: %d, such as %s/%s; this run writes them again",
                len(damaged),
                self.store.uri,
                damaged[0],
            )
        for key in damaged:
            del there[key]
        return {key: info.bytes for key, info in there.items()}

    def keys(self) -> dict[str, list[str]]:
        """Returns the sample keys of each tar of the last run, even of a tar that is lost."""
        rows: Iterable[tuple[str | None, str]]
        if not self.previous:
            return {}
        try:
            table = read_parquet(self.store, DATASET_KEY, ["clip_id", "shard"])
            tars = (f"{SHARDS}/{name}" for name in table["shard"].to_pylist())
            rows = zip(tars, table["clip_id"].to_pylist(), strict=True)
        except (DamagedError, KeyError):
            rows = self._rows()
        keys: dict[str, list[str]] = {}
        for tar, key in rows:
            if tar is not None:
                keys.setdefault(tar, []).append(key)
        return keys

    def sides(self, config: ShardConfig) -> dict[str, Split]:
        """Returns the split of each source with clips; empty if other settings split them."""
        stored = self.previous.get("recipe", {}).get("shard") or {}
        if any(
            stored.get(name, ShardConfig.model_fields[name].default) != getattr(config, name)
            for name in SPLIT_SETTINGS
        ):
            return {}
        sides: dict[str, Split] = {}
        for name in self.previous.get("tables", {}).get("clips", ()):
            try:
                table = read_parquet(self.store, name, ["source_id", "shard"])
            except DamagedError:
                continue
            rows = table.drop_null().group_by(["source_id", "shard"]).aggregate([]).to_pylist()
            for row in rows:
                if place := place_of(row["shard"]):
                    sides[row["source_id"]] = place[1]
        return sides

    def _rows(self) -> Iterator[tuple[str | None, str]]:
        for name in self.previous.get("tables", {}).get("clips", ()):
            try:
                table = read_parquet(self.store, name, ["clip_id", "shard"])
            except DamagedError:
                continue
            yield from zip(*(table[n].to_pylist() for n in ("shard", "clip_id")), strict=True)

    def _hashes(self) -> Iterator[tuple[str, str]]:
        for tar in self.tars.values():
            for name, sha256 in objects_of(tar.entry()).items():
                yield f"{SHARDS}/{name}", str(sha256)
