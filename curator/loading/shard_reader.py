"""Finds the shards of a finished run, and reads a sample by its index in a tar.

`shards/manifest.json` and `dataset.parquet` describe the shards. Without a manifest, the reader
refuses the tars, or, with `allow_incomplete`, reads all their headers and JSON once. The offsets in
a tar's `.tar.idx` let a reader fetch one sample without any other sample's bytes.
"""

import hashlib
import io
import logging
import tarfile
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
import orjson
from webdataset.tariterators import group_by_keys, tar_file_iterator

from curator.errors import ShardError, UsageError
from curator.family import Family, FamilyError
from curator.number_text import amount
from curator.storage import Store, open_store

FOLDER = "shards/"
MANIFEST, NEXT_MANIFEST = "manifest.json", "manifest.next.json"
TABLE = "dataset.parquet"
SPLITS = ("train", "val")

AHEAD_BYTES, AHEAD_SAMPLES = 64 << 20, 32
"""Bounds of prefetching from object stores; at least one batch is fetched ahead."""

_FETCHES = 8
"""Concurrent requests of a process."""

Group = TypeVar("Group")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalShard:
    """One tar.

    Attributes:
        name: Path relative to the folder of the shards.
        offsets: First byte of each sample and the end of the last; None to read `.tar.idx`.
    """

    name: str
    n_samples: int
    offsets: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class LoadedBucket:
    """The shards of a bucket and split, with the least height, width and frame count of clips.

    `most_frames` is the largest frame count.
    """

    shards: tuple[LocalShard, ...]
    height: int
    width: int
    n_frames: int
    most_frames: int


def read_buckets(
    out: str, split: str, *, allow_incomplete: bool = False, snapshot: int | None = None
) -> tuple[Store, dict[str, LoadedBucket], dict[str, Family]]:
    """Finds the buckets of a split, sorted by name; arguments are those of `ClipDataset`.

    Returns:
        The store of the shards, the buckets by name, and the families with members by name.

    Raises:
        UsageError: The split is unknown or empty, or the manifest or the snapshot is missing.
        ShardError: The manifest, the table or a tar is damaged.
        StorageError: Reading failed.
    """
    if split not in SPLITS:
        raise UsageError(f"split {split!r}; expected one of {', '.join(SPLITS)}")
    families: dict[str, Family] = {}
    for root in (f"{out.rstrip('/')}/{FOLDER.rstrip('/')}", out):
        store = open_store(root)
        if snapshot is not None:
            from curator.tables.snapshot_store import INDEXES, read_snapshot

            of_out = open_store(out)
            names = read_snapshot(of_out, snapshot)[INDEXES]
            buckets, families = _from_manifest(of_out, names["manifest"], names["dataset"], split)
            break
        if store.exists(MANIFEST):
            buckets, families = _from_manifest(store, _newest_manifest(store), TABLE, split)
            break
        if tars := [item.key for item in store.list() if item.key.endswith(".tar")]:
            if not allow_incomplete:
                raise UsageError(
                    f"{store.uri} has {amount(len(tars), 'tar')} and no {MANIFEST}, which a run "
                    "writes at its end, so some shards may be missing. Run `curate run` again, or "
                    f"copy {MANIFEST} and {TABLE} too; allow_incomplete=True reads these tars"
                )
            buckets = _from_tars(store, tars, split)
            break
    else:
        raise UsageError(
            f"no {MANIFEST} and no tars under {out!r} or its folder {FOLDER!r}; expected the "
            "output of `curate run`"
        )
    if not buckets:
        raise UsageError(
            f"{store.uri} has no samples of the split {split!r}; choose the other split, or run "
            "`curate run` with another `shard.val_share`. If the run kept no clip, `curate explain "
            "OUT` says why"
        )
    return store, dict(sorted(buckets.items())), families


def _newest_manifest(store: Store) -> str:
    """Returns the manifest that names the table's digest: during a commit, maybe the next."""
    from curator.tables.checksums import opened_json

    if store.exists(NEXT_MANIFEST) and store.exists(TABLE):
        files = opened_json(store.read(NEXT_MANIFEST), NEXT_MANIFEST).get("files", {})
        if files.get(TABLE, {}).get("sha256") == hashlib.sha256(store.read(TABLE)).hexdigest():
            return NEXT_MANIFEST
    return MANIFEST


def _from_manifest(
    store: Store, name: str, table: str, split: str
) -> tuple[dict[str, LoadedBucket], dict[str, Family]]:
    from curator.tables.checksums import opened_json

    shards: defaultdict[str, list[LocalShard]] = defaultdict(list)
    try:
        manifest = opened_json(store.read(name), name)
        version = manifest["version"]
        for row in manifest["shards"]:
            shard = LocalShard(name=str(row["name"]), n_samples=int(row["samples"]))
            if row["split"] == split:
                shards[str(row["bucket"])].append(shard)
        declared = [Family.from_json(value) for value in manifest.get("members", {}).values()]
    except (ValueError, KeyError, TypeError, AttributeError, FamilyError) as error:
        raise ShardError(
            f"{store.uri}/{name} is not a manifest of shards ({error!r}); `curate run` writes "
            "it again"
        ) from error
    if version != 1:
        raise ShardError(
            f"{store.uri}/{name} has version {version!r}, expected 1; install a newer curate"
        )
    extents = _extents_of_table(store, table, split) if shards else {}
    if missing := shards.keys() - extents.keys():
        raise ShardError(
            f"{store.uri}/{table} has no rows of {min(missing)!r} in {split!r}, which {name} "
            "lists; `curate verify` lists all damage"
        )
    return _buckets(shards, extents), {family.name: family for family in declared}


def _extents_of_table(store: Store, name: str, split: str) -> dict[str, Sequence[int]]:
    """Returns the least height, width and frame count, and the largest frame count, by bucket."""
    import pyarrow.compute as pc

    from curator.tables.checksums import read_rows

    if not store.exists(name):
        raise ShardError(
            f"{store.uri} has {MANIFEST} and no {TABLE} with the sizes of the clips; copy the "
            "table too, or remove the manifest and give allow_incomplete=True"
        )
    sizes = ["height", "width", "num_frames"]
    table = read_rows(store, name, lambda file: file.read(["bucket", "split", *sizes]))
    table = table.filter(pc.equal(table["split"], split))
    extents = [*((size, "min") for size in sizes), ("num_frames", "max")]
    rows = table.group_by("bucket").aggregate(extents).to_pylist()
    return {row["bucket"]: [row["_".join(extent)] for extent in extents] for row in rows}


def _buckets(
    shards: Mapping[str, Sequence[LocalShard]], extents: Mapping[str, Sequence[int]]
) -> dict[str, LoadedBucket]:
    by_name = attrgetter("name")
    return {
        bucket: LoadedBucket(tuple(sorted(rows, key=by_name)), *extents[bucket])
        for bucket, rows in shards.items()
    }


def _from_tars(store: Store, names: Sequence[str], split: str) -> dict[str, LoadedBucket]:
    """Reads the headers and JSON of a split's tars; a name without `val-` means `train`."""
    (other,) = (name for name in SPLITS if name != split)
    is_val = split == "val"
    wanted = [n for n in names if n.rpartition("/")[2].startswith("val-") == is_val]
    logger.warning(
        "%s has no %s: reading the headers of %d tars (skipping %d of %r)",
        store.uri, MANIFEST, len(wanted), len(names) - len(wanted), other,
    )  # fmt: skip
    shards: defaultdict[str, list[LocalShard]] = defaultdict(list)
    sizes: defaultdict[str, list[Sequence[int]]] = defaultdict(list)
    for name in wanted:
        bucket = name.rpartition("/")[0] or "."
        offsets, of_tar = _scanned(store, name)
        shards[bucket].append(LocalShard(name, len(offsets) - 1, offsets))
        sizes[bucket].append(of_tar)
    return _buckets(shards, {bucket: _extents(of_all) for bucket, of_all in sizes.items()})


def _extents(sizes: Iterable[Sequence[int]]) -> list[int]:
    """Returns the least height, width and frame count, and the largest frame count."""
    heights, widths, n_frames, *_ = columns = list(zip(*sizes, strict=True))
    return [min(heights), min(widths), min(n_frames), max(columns[-1])]


def _scanned(store: Store, name: str) -> tuple[tuple[int, ...], Sequence[int]]:
    """Returns the offsets of a tar, and the extents of its clips, as `_extents`."""
    offsets: list[int] = []
    facts: list[tuple[int, int, int]] = []
    key, end = None, 0
    try:
        with store.open(name) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
            for member in tar:
                if member.name.partition(".")[0] != key:
                    key = member.name.partition(".")[0]
                    offsets.append(member.offset)
                end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                if member.name == f"{key}.json":
                    held = orjson.loads(tar.extractfile(member).read())  # type: ignore[union-attr]
                    facts.append((held["height"], held["width"], held["n_frames"]))
    except (tarfile.TarError, ValueError, KeyError) as error:
        raise ShardError(
            f"{store.uri}/{name} is not a tar of `curate run` ({error!r}); copy it again, or "
            "remove it"
        ) from error
    if not facts or len(facts) != len(offsets):
        raise ShardError(
            f"{store.uri}/{name} has {len(offsets)} samples, {len(facts)} of them with JSON; "
            "expected at least one sample, and JSON in each"
        )
    return (*offsets, end), _extents(facts)


class SampleReader:
    """Reads samples by index. Each process needs its own reader, which cannot be pickled.

    Args:
        store: Store of the shards.
        suffixes: Members that each sample must have, such as `mp4`.
        optional: Members to read if a sample has them.
    """

    def __init__(self, store: Store, suffixes: Sequence[str], optional: Sequence[str] = ()) -> None:
        self._store = store
        self._suffixes = frozenset(suffixes)
        self._kept = self._suffixes.union(optional)
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: dict[tuple[str, int], Future[bytes]] = {}
        self._n_bytes = 0

    def ahead(
        self, groups: Iterable[Group], places: Callable[[Group], Iterable[tuple[LocalShard, int]]]
    ) -> Iterator[Group]:
        """Yields groups of samples in order, and fetches the next groups meanwhile.

        `places` returns the tar, and the index in it, of each sample of a group. Local folders are
        not prefetched, because the operating system reads ahead.
        """
        if self._store.is_local:
            yield from groups
            return
        waiting: deque[Group] = deque()
        for group in groups:
            for shard, number in places(group):
                self._begin(shard, number)
            waiting.append(group)
            while len(waiting) > 1 and (
                self._n_bytes >= AHEAD_BYTES or len(self._under_way) >= AHEAD_SAMPLES
            ):
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()

    def _begin(self, shard: LocalShard, number: int) -> None:
        if (shard.name, number) in self._under_way:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_FETCHES, thread_name_prefix="clips-ahead")
        first, end = self._span(shard, number)
        fetch = self._pool.submit(self._store.read_range, shard.name, first, end)
        self._under_way[shard.name, number] = fetch
        self._n_bytes += end - first

    def read(self, shard: LocalShard, number: int) -> Mapping[str, Any]:
        """Returns a sample in the form of webdataset: `__key__`, `__url__`, and bytes by suffix.

        Raises:
            ShardError: The tar or its index is damaged, or the sample lacks a member.
            StorageError: Reading failed.
        """
        first, end = self._span(shard, number)
        begun = self._under_way.pop((shard.name, number), None)
        if begun is not None:
            self._n_bytes -= end - first
            data = begun.result()
        else:
            data = self._store.read_range(shard.name, first, end)
        where = f"sample {number} of {self._store.uri}/{shard.name}"
        try:
            samples = list(group_by_keys(self._named(data, shard.name)))
        except (tarfile.TarError, ValueError) as error:
            raise ShardError(
                f"{where} is not at byte {first} ({error}), where the index has it; "
                "`curate verify` lists all damage"
            ) from error
        if len(samples) != 1 or (missing := self._suffixes - samples[0].keys()):
            fault = f"lacks {min(missing)!r}" if len(samples) == 1 else f"is {len(samples)} samples"
            raise ShardError(f"{where} {fault}; `curate verify` lists all damage")
        sample: Mapping[str, Any] = samples[0]
        return sample

    def _named(self, data: bytes, name: str) -> Iterator[dict[str, Any]]:
        wanted = lambda member: member.partition(".")[2] in self._kept  # noqa: E731
        for member in tar_file_iterator(io.BytesIO(data), select_files=wanted):
            yield member | {"__url__": name}

    def _span(self, shard: LocalShard, number: int) -> tuple[int, int]:
        offsets: Sequence[int] | None = shard.offsets
        if offsets is None:
            offsets = _index(self._store, shard.name, shard.n_samples)
        return int(offsets[number]), int(offsets[number + 1])

    def close(self) -> None:
        """Cancels prefetching."""
        self._under_way.clear()
        self._n_bytes = 0
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


@lru_cache(maxsize=256)
def _index(store: Store, name: str, n_samples: int) -> Sequence[int]:
    """Returns the offsets of a tar; a tar's name has a hash of its samples, so caching is safe."""
    data = store.read(f"{name}.idx")
    if len(data) != 8 * (n_samples + 1):
        raise ShardError(
            f"{store.uri}/{name}.idx has {len(data)} bytes, expected 8 for each of {n_samples} "
            "samples and 8 more; `curate verify` lists all damage"
        )
    offsets: Sequence[int] = np.frombuffer(data, "<u8")  # type: ignore[assignment]
    return offsets
