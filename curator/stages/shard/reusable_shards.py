"""The shards that the last run left, as far as they are still what it wrote.

`summary.json` has the version that the store gave each object of a shard after it was written. An
object that has another one now is read and compared with the hash in the manifest.
"""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

from curator.errors import DamagedError
from curator.stages.shard.shard_index import DATASET, ShardFacts, known_facts
from curator.stages.shard.tar_reader import index_name, meta_name
from curator.storage import ObjectInfo, Store
from curator.tables.checksums import find_json, read_parquet
from curator.tables.out_layout import MANIFEST, SHARDS

logger = logging.getLogger(__name__)

DATASET_KEY = f"{SHARDS}/{DATASET}"
_READ_BYTES = 4 << 20
_READERS = 8


class ReusableShards:
    """The objects under `shards/` that a run may keep.

    Args:
        store: Output root.
        previous: Summary of the last finished run; empty without one.
    """

    def __init__(self, store: Store, previous: Mapping[str, Any]) -> None:
        self._store = store
        self._previous = previous

    @cached_property
    def facts(self) -> dict[str, ShardFacts]:
        """Sizes and hashes of the tars, by name; none where the manifest is lost."""
        try:
            return known_facts(find_json(self._store, MANIFEST) or {})
        except DamagedError as error:
            where = f"{error.root}/{MANIFEST}"
            logger.warning("%s is damaged (%s): it is made again", where, error.why)
            return {}

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of each object, without those that are not what was written."""
        listed = {info.key: info for info in self._store.list(f"{SHARDS}/")}
        versions: dict[str, str] = {}
        for shard in self._previous.get("shards", ()):
            versions |= shard.get("versions", {})
        changed = [
            info
            for info in listed.values()
            if info.key in versions and versions[info.key] != info.version
        ]
        hashes = dict(self._hashes())
        with ThreadPoolExecutor(_READERS) as pool:
            is_same = pool.map(lambda info: self._is_same(info, hashes.get(info.key)), changed)
            damaged = [i.key for i, same in zip(changed, is_same, strict=True) if not same]
        if damaged:
            logger.warning(
                "damaged objects of shards: %d, such as %s/%s; they are made again",
                len(damaged),
                self._store.uri,
                damaged[0],
            )
        return {key: info.bytes for key, info in listed.items() if key not in set(damaged)}

    def keys(self) -> dict[str, list[str]]:
        """Returns the sample keys of each tar that is there or was lost since."""
        rows: Iterable[tuple[str | None, str]]
        if not self._previous:
            return {}
        try:
            table = read_parquet(self._store, DATASET_KEY, ["clip_id", "shard"])
            tars = (f"{SHARDS}/{name}" for name in table["shard"].to_pylist())
            rows = zip(tars, table["clip_id"].to_pylist(), strict=True)
        except (DamagedError, KeyError):
            rows = self._rows()
        keys: dict[str, list[str]] = {}
        for tar, key in rows:
            if tar is not None:
                keys.setdefault(tar, []).append(key)
        return keys

    def _rows(self) -> Iterator[tuple[str | None, str]]:
        for name in self._previous.get("tables", {}).get("clips", ()):
            try:
                table = read_parquet(self._store, name, ["clip_id", "shard"])
            except DamagedError:
                continue
            yield from zip(*(table[n].to_pylist() for n in ("shard", "clip_id")), strict=True)

    def _hashes(self) -> Iterator[tuple[str, str]]:
        for name, facts in self.facts.items():
            yield name, facts.sha256
            yield index_name(name), facts.idx_sha256
            yield meta_name(name), facts.meta_sha256

    def _is_same(self, info: ObjectInfo, sha256: str | None) -> bool:
        digest = hashlib.sha256()
        with self._store.open(info.key) as stream:
            while data := stream.read(_READ_BYTES):
                digest.update(data)
        return digest.hexdigest() == sha256
