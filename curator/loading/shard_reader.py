"""Finds the shards of a finished run, and reads a sample by its index in a tar.

`shards/manifest.json` and `dataset.parquet` describe the shards. Without a manifest, the reader
refuses the tars, or, with `allow_incomplete`, reads all their headers and JSON once. The offsets in
a tar's `.tar.idx` let a reader fetch one sample without any other sample's bytes.
"""

import hashlib
import io
import logging
import tarfile
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from webdataset.tariterators import group_by_keys, tar_file_iterator

from curator.dataset.sample import padded
from curator.dataset.tar_reader import BLOCK, is_tar_of_samples
from curator.errors import ShardError, UsageError
from curator.family import FamilyError, FamilyVersion, Place
from curator.number_text import amount
from curator.records.clips import CLIP_FORMATS
from curator.storage import Store, open_store

FOLDER = "shards/"
MANIFEST, NEXT_MANIFEST = "manifest.json", "manifest.next.json"
TABLE = "dataset.parquet"
SPLITS = ("train", "val")
FACTS = ("clip_id", "num_frames", "height", "width", "fps")
"""Columns of the table that the loader reads for each sample."""

SIZES = ("members", "member_bytes")
"""Columns with the suffixes and sizes of each sample's members, in the order of the tar."""

SIDE_MEMBERS = "side_members"
"""Column with the places of each sample's members in side tars."""

GAP_BYTES, LOCAL_GAP_BYTES = 64 << 10, 4 << 10
"""Members that lie further apart are read with requests of their own."""

AHEAD_BYTES, AHEAD_SAMPLES = 64 << 20, 32
"""Bounds of prefetching from object stores; at least one batch is fetched ahead."""

_FETCHES = 8
"""Concurrent requests of a process."""

Group = TypeVar("Group")

logger = logging.getLogger(__name__)


class Reads(NamedTuple):
    """What a dataset reads of samples: MP4s, and the members of some families, by name."""

    mp4: bool = True
    families: frozenset[str] = frozenset()


class Span(NamedTuple):
    """Some bytes of a tar."""

    tar: str
    begin: int
    end: int
    is_shared: bool = False
    """Whether other samples have the same value, so that it may be read once for all."""


class SideTar(NamedTuple):
    """A tar with one member of each sample of another tar."""

    name: str
    is_shared: bool
    """Whether samples share values."""


@dataclass(frozen=True, slots=True)
class LocalShard:
    """One tar.

    Attributes:
        store: Store of the shards.
        name: Path relative to the folder of the shards.
        offsets: First byte of each sample and the end of the last; None to read `.tar.idx`.
        sizes: `SIZES` of each sample, if some members are not read, and `SIDE_MEMBERS`, if some are
            in other tars.
        sides: Tars with one member of each sample, by the member.
    """

    store: Store
    name: str
    bucket: str
    n_samples: int
    offsets: tuple[int, ...] | None = None
    sizes: pa.Table | None = field(default=None, compare=False)
    sides: Mapping[str, SideTar] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedOutput:
    """The shards of a split, sorted by bucket and name, and facts about their samples.

    Attributes:
        store: Store of the shards.
        clips: A row for each sample, in the order of `shards` and of the samples in a tar, with
            `height`, `width`, `num_frames`, `fps` and `clip_id`.
        families: Families with members and their fingerprints, by name.
    """

    store: Store
    shards: tuple[LocalShard, ...]
    clips: pa.Table
    families: Mapping[str, FamilyVersion]

    def have(self, member: str) -> NDArray[np.bool_]:
        """Returns which samples have a member, bool [samples]; all without `SIZES`."""
        if SIZES[0] not in self.clips.column_names:
            return np.ones(self.clips.num_rows, np.bool_)
        padded_names = pc.binary_join_element_wise("", self.clips[SIZES[0]], "", " ")
        found = pc.match_substring(padded_names, f" {member} ")
        have = np.array(pc.fill_null(found, True).to_numpy(), np.bool_)
        if SIDE_MEMBERS in self.clips.column_names:
            listed = self.clips[SIDE_MEMBERS].combine_chunks()
            is_own = pc.equal(pc.list_flatten(listed).field("member"), member)
            have[pc.list_parent_indices(listed).filter(is_own).to_numpy()] = True
        return have

    @property
    def shard_of(self) -> NDArray[np.int64]:
        """Index of the shard of each sample."""
        return np.repeat(np.arange(len(self.shards)), [s.n_samples for s in self.shards])


def read_output(
    out: str,
    split: str,
    *,
    allow_incomplete: bool = False,
    snapshot: int | None = None,
    reads: Reads | None = None,
) -> LoadedOutput:
    """Finds the shards of a split; arguments are those of `ClipDataset`.

    `reads` says what will be read of the samples; None stands for all members.

    Raises:
        UsageError: The split is unknown or empty, or the manifest or the snapshot is missing.
        ShardError: The manifest, the table or a tar is damaged.
        StorageError: Reading failed.
    """
    if split not in SPLITS:
        raise UsageError(f"split {split!r}; expected one of {', '.join(SPLITS)}")
    for root in (f"{out.rstrip('/')}/{FOLDER.rstrip('/')}", out):
        store = open_store(root)
        if snapshot is not None:
            from curator.tables.snapshot_store import INDEXES, read_snapshot

            of_out = open_store(out)
            names = read_snapshot(of_out, snapshot)[INDEXES]
            files = names["manifest"], names["dataset"]
            loaded = _from_manifest(store, of_out, *files, split, reads)
            break
        if store.exists(MANIFEST):
            loaded = _from_manifest(store, store, _newest_manifest(store), TABLE, split, reads)
            break
        if tars := [item.key for item in store.list() if is_tar_of_samples(item.key)]:
            if not allow_incomplete:
                raise UsageError(
                    f"{store.uri} has {amount(len(tars), 'tar')} and no {MANIFEST}, which a run "
                    "writes at its end, so some shards may be missing. Run `curate run` again, or "
                    f"copy {MANIFEST} and {TABLE} too; allow_incomplete=True reads these tars"
                )
            loaded = _from_tars(store, tars, split)
            break
    else:
        raise UsageError(
            f"no {MANIFEST} and no tars under {out!r} or its folder {FOLDER!r}; expected the "
            "output of `curate run`"
        )
    if not loaded.shards:
        raise UsageError(
            f"{store.uri} has no samples of the split {split!r}; choose the other split, or run "
            "`curate run` with another `shard.val_share`. If the run kept no clip, `curate explain "
            "OUT` says why"
        )
    return loaded


def _newest_manifest(store: Store) -> str:
    """Returns the manifest that names the table's digest: during a commit, maybe the next."""
    from curator.tables.json_objects import opened_json

    if store.exists(NEXT_MANIFEST) and store.exists(TABLE):
        files = opened_json(store.read(NEXT_MANIFEST), NEXT_MANIFEST).get("files", {})
        if files.get(TABLE, {}).get("sha256") == hashlib.sha256(store.read(TABLE)).hexdigest():
            return NEXT_MANIFEST
    return MANIFEST


def _from_manifest(
    store: Store, indexes: Store, name: str, table: str, split: str, reads: Reads | None
) -> LoadedOutput:
    """Reads the manifest `name` and the table `table` of the store `indexes`."""
    from curator.tables.json_objects import opened_json

    shards: list[LocalShard] = []
    try:
        manifest = opened_json(indexes.read(name), name)
        version = manifest["version"]
        declared = [
            FamilyVersion.from_json(value) for value in manifest.get("members", {}).values()
        ]
        shared = {v.family.member for v in declared if v.family.place is Place.SHARED}
        for row in manifest["shards"]:
            bucket, n_samples = str(row["bucket"]), int(row["samples"])
            sides = {
                suffix: SideTar(str(side["name"]), suffix in shared)
                for suffix, side in row.get("sides", {}).items()
            }
            shard = LocalShard(store, str(row["name"]), bucket, n_samples, sides=sides)
            if row["split"] == split:
                shards.append(shard)
    except (ValueError, KeyError, TypeError, AttributeError, FamilyError) as error:
        raise ShardError(
            f"{indexes.uri}/{name} is not a manifest of shards ({error!r}); `curate run` writes "
            "it again"
        ) from error
    if version != 1:
        raise ShardError(
            f"{indexes.uri}/{name} has version {version!r}, expected 1; install a newer curate"
        )
    shards.sort(key=attrgetter("bucket", "name"))
    families = {version.family.name: version for version in declared if version.family.member}
    is_partial = reads is not None and (not reads.mp4 or bool(families))
    wanted = (*SIZES, SIDE_MEMBERS) if any(shard.sides for shard in shards) else SIZES
    clips = _clips_of(shards, indexes, table, (*FACTS, *(wanted if is_partial else ())))
    if is_partial and SIZES[0] in clips.column_names:
        ends = np.cumsum([shard.n_samples for shard in shards])
        sizes = clips.select([name for name in wanted if name in clips.column_names])
        shards = [
            replace(shard, sizes=sizes.slice(end - shard.n_samples, shard.n_samples))
            for shard, end in zip(shards, ends.tolist(), strict=True)
        ]
    return LoadedOutput(store=store, shards=tuple(shards), clips=clips, families=families)


def _clips_of(
    shards: Sequence[LocalShard], store: Store, name: str, columns: Sequence[str]
) -> pa.Table:
    """Returns columns of the table of clips in the order of the shards.

    `SIZES` and `SIDE_MEMBERS` may be missing.
    """
    from curator.tables.checksums import read_rows

    if not store.exists(name):
        raise ShardError(
            f"{store.uri} has {MANIFEST} and no {TABLE} with the sizes of the clips; copy the "
            "table too, or remove the manifest and give allow_incomplete=True"
        )

    # The rows of a tar are in its order.
    def read(file: pq.ParquetFile) -> pa.Table:
        there = file.schema_arrow.names
        return file.read(["shard", *(c for c in columns if c in FACTS or c in there)])

    rows = read_rows(store, name, read)
    wanted = pa.array([shard.name for shard in shards], pa.string())
    places = rows["shard"].combine_chunks().dictionary_encode()
    index = {tar: i for i, tar in enumerate(wanted.to_pylist())}
    of_tar = np.array([index.get(tar, -1) for tar in places.dictionary.to_pylist()], np.int64)
    shard_of = of_tar[places.indices.to_numpy()] if len(of_tar) else of_tar
    counts = np.bincount(shard_of[shard_of >= 0], minlength=len(shards))
    for shard, n_rows in zip(shards, counts.tolist(), strict=True):
        if shard.n_samples != n_rows:
            raise ShardError(
                f"{store.uri}/{name} has {amount(n_rows, 'row')} of {shard.name!r}, which has "
                f"{amount(shard.n_samples, 'sample')} in {MANIFEST}; `curate verify` lists all "
                "damage"
            )
    order = np.argsort(shard_of, kind="stable")[int((shard_of < 0).sum()) :]
    rows = rows.drop_columns(["shard"])
    is_sorted = len(order) == len(rows) and bool((np.diff(order) == 1).all())
    return rows if is_sorted else rows.take(pa.array(order))


def _from_tars(store: Store, names: Sequence[str], split: str) -> LoadedOutput:
    """Reads the headers and JSON of a split's tars; a name without `val-` means `train`."""
    (other,) = (name for name in SPLITS if name != split)
    is_val = split == "val"
    wanted = [n for n in names if n.rpartition("/")[2].startswith("val-") == is_val]
    logger.warning(
        "%s has no %s: reading the headers of %d tars (skipping %d of %r)",
        store.uri, MANIFEST, len(wanted), len(names) - len(wanted), other,
    )  # fmt: skip
    shards: list[LocalShard] = []
    facts: list[dict[str, Any]] = []
    for bucket, name in sorted((name.rpartition("/")[0] or ".", name) for name in wanted):
        offsets, of_tar = _scanned(store, name)
        shards.append(LocalShard(store, name, bucket, len(of_tar), offsets))
        facts += of_tar
    clips = pa.table({column: [fact[column] for fact in facts] for column in FACTS})
    return LoadedOutput(store=store, shards=tuple(shards), clips=clips, families={})


def _scanned(store: Store, name: str) -> tuple[tuple[int, ...], list[dict[str, Any]]]:
    """Returns the offsets of a tar, and facts about each of its clips."""
    offsets: list[int] = []
    facts: list[dict[str, Any]] = []
    key, end = None, 0
    try:
        with store.open(name) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
            for member in tar:
                if member.name.partition(".")[0] != key:
                    key = member.name.partition(".")[0]
                    offsets.append(member.offset)
                end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                if member.name == f"{key}.json":
                    fields = orjson.loads(tar.extractfile(member).read())  # type: ignore[union-attr]
                    values = (
                        key,
                        fields["n_frames"],
                        fields["height"],
                        fields["width"],
                        fields["fps"],
                    )
                    facts.append(dict(zip(FACTS, values, strict=True)))
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
    return (*offsets, end), facts


class SampleReader:
    """Reads samples by index. Each process needs its own reader, which cannot be pickled.

    Args:
        suffixes: Members that each sample must have; `mp4` stands for the clip's file, whatever
            its format.
        optional: Members to read if a sample has them.
    """

    def __init__(self, suffixes: Sequence[str], optional: Sequence[str] = ()) -> None:
        self._suffixes = frozenset(suffixes)
        formats = CLIP_FORMATS if "mp4" in suffixes else ()
        self._kept = self._suffixes.union(optional, formats)
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: dict[tuple[str, str, int], list[Future[bytes]]] = {}
        self._n_bytes = 0
        self._shared: OrderedDict[tuple[str, Span], Future[bytes]] = OrderedDict()
        """The last values that samples share, at most `AHEAD_BYTES`."""

    def ahead(
        self, groups: Iterable[Group], places: Callable[[Group], Iterable[tuple[LocalShard, int]]]
    ) -> Iterator[Group]:
        """Yields groups of samples in order, and fetches the next groups meanwhile.

        `places` returns the tar, and the index in it, of each sample of a group. Local folders are
        not prefetched, because the operating system reads ahead.
        """
        waiting: deque[Group] = deque()
        for group in groups:
            for shard, number in places(group):
                self._begin(shard, number)
            waiting.append(group)
            while waiting and self._fetches_enough(len(waiting)):
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()

    def _fetches_enough(self, n_groups: int) -> bool:
        is_full = self._n_bytes >= AHEAD_BYTES or len(self._under_way) >= AHEAD_SAMPLES
        return not self._under_way or (is_full and n_groups > 1)

    def _begin(self, shard: LocalShard, number: int) -> None:
        place = (shard.store.uri, shard.name, number)
        if shard.store.is_local or place in self._under_way:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_FETCHES, thread_name_prefix="clips-ahead")
        spans = self._spans(shard, number) + [span for _, span in self._side_members(shard, number)]
        self._under_way[place] = [self._fetch(shard.store, span) for span in spans]
        self._n_bytes += sum(map(_n_bytes, spans))

    def _fetch(self, store: Store, span: Span) -> Future[bytes]:
        """Begins to read a span, or returns the reading of a shared value that began before.

        Without threads, the span has been read when this returns.
        """
        place = store.uri, span
        known = self._shared.get(place)
        if known is not None and not (known.done() and known.exception()):
            self._shared.move_to_end(place)
            return known
        where = span.tar, span.begin, span.end
        if self._pool is not None:
            fetch = self._pool.submit(store.read_range, *where)
        else:
            fetch = Future()
            fetch.set_result(store.read_range(*where))
        if span.is_shared:
            self._shared[place] = fetch
            while sum(_n_bytes(span) for _, span in self._shared) > AHEAD_BYTES:
                self._shared.popitem(last=False)
        return fetch

    def read(self, shard: LocalShard, number: int) -> Mapping[str, Any]:
        """Returns a sample in the form of webdataset: `__key__`, `__url__`, and bytes by suffix.

        The clip's file has the name `mp4`, whatever its format.

        Raises:
            ShardError: The tar or its index is damaged, or the sample lacks a member.
            StorageError: Reading failed.
        """
        spans, side_members = self._spans(shard, number), self._side_members(shard, number)
        wanted = spans + [span for _, span in side_members]
        begun = self._under_way.pop((shard.store.uri, shard.name, number), None)
        if begun is not None:
            self._n_bytes -= sum(map(_n_bytes, wanted))
        else:
            begun = [self._fetch(shard.store, span) for span in wanted]
        read = [fetch.result() for fetch in begun]
        data, first = b"".join(read[: len(spans)]), spans[0].begin
        where = f"sample {number} of {shard.store.uri}/{shard.name}"
        try:
            samples = list(group_by_keys(self._named(data, shard.name)))
        except (tarfile.TarError, ValueError) as error:
            raise ShardError(
                f"{where} is not at byte {first} ({error}), where the index has it; "
                "`curate verify` lists all damage"
            ) from error
        for one in samples:
            for name in one.keys() & CLIP_FORMATS:
                one["mp4"] = one.pop(name)
        if len(samples) != 1 or (missing := self._suffixes - samples[0].keys()):
            fault = f"lacks {min(missing)!r}" if len(samples) == 1 else f"is {len(samples)} samples"
            raise ShardError(f"{where} {fault}; `curate verify` lists all damage")
        sample: dict[str, Any] = samples[0]
        for (suffix, span), member in zip(side_members, read[len(spans) :], strict=True):
            sample[suffix] = _member(shard, sample["__key__"], suffix, span, member)
        return sample

    def _named(self, data: bytes, name: str) -> Iterator[dict[str, Any]]:
        wanted = lambda member: member.partition(".")[2] in self._kept  # noqa: E731
        for member in tar_file_iterator(io.BytesIO(data), select_files=wanted):
            yield member | {"__url__": name}

    def _side_members(self, shard: LocalShard, number: int) -> list[tuple[str, Span]]:
        """Returns the wanted members of a sample in side tars, with their headers."""
        if shard.sizes is None or SIDE_MEMBERS not in shard.sizes.column_names:
            return []
        places = shard.sizes[SIDE_MEMBERS][number].as_py() or ()
        return [
            (name, Span(side.name, begin - BLOCK, begin + place["bytes"], side.is_shared))
            for place in places
            if (name := place["member"]) in self._kept and (side := shard.sides.get(name))
            for begin in (place["offset"],)
        ]

    def _spans(self, shard: LocalShard, number: int) -> list[Span]:
        """Returns the bytes to read of a sample: its wanted members, and small gaps between."""
        offsets: Sequence[int] | None = shard.offsets
        if offsets is None:
            offsets = _index(shard.store, shard.name, shard.n_samples)
        begin, end = int(offsets[number]), int(offsets[number + 1])
        names = None if shard.sizes is None else shard.sizes[SIZES[0]][number].as_py()
        if shard.sizes is None or names is None:
            return [Span(shard.name, begin, end)]
        sizes = shard.sizes[SIZES[1]][number].as_py()
        gap = LOCAL_GAP_BYTES if shard.store.is_local else GAP_BYTES
        spans: list[tuple[int, int]] = []
        place = begin
        for name, size in zip(names.split(), sizes, strict=True):
            after = place + BLOCK + padded(size)
            if name in self._kept:
                if spans and place - spans[-1][1] <= gap:
                    spans[-1] = spans[-1][0], after
                else:
                    spans.append((place, after))
            place = after
        if place != end or not spans:
            # The index or the table is damaged; reading the whole sample says how.
            return [Span(shard.name, begin, end)]
        return [Span(shard.name, *span) for span in spans]

    def close(self) -> None:
        """Cancels prefetching."""
        self._under_way.clear()
        self._shared.clear()
        self._n_bytes = 0
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _n_bytes(span: Span) -> int:
    return span.end - span.begin


def _member(shard: LocalShard, key: str, suffix: str, span: Span, data: bytes) -> bytes:
    """Returns a member that was read from a side tar, with its header."""
    where = f"{shard.store.uri}/{span.tar}"
    try:
        info = tarfile.TarInfo.frombuf(data[:BLOCK], "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError) as error:
        raise ShardError(
            f"{where} has no member at byte {span.begin} ({error}), where {shard.name} has "
            f"{suffix!r} of {key}; `curate verify` lists all damage"
        ) from error
    owner, _, of = info.name.partition(".")
    if of != suffix or len(data) != BLOCK + info.size or not (span.is_shared or owner == key):
        raise ShardError(
            f"{where} has {info.name!r} of {info.size} bytes at byte {span.begin}; expected "
            f"{key}.{suffix} of {len(data) - BLOCK} bytes; `curate verify` lists all damage"
        )
    return data[BLOCK:]


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
