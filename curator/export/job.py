"""Runs an export: reads clips as streams, writes objects, counts them, and runs the threads."""

import hashlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, BinaryIO

import orjson

from curator.errors import CuratorError, ShardError, StorageError, UsageError, raised_as
from curator.export.exporter import FORMATS, Exporter, ExporterOptions, checked_options, load_format
from curator.fingerprints import fingerprint
from curator.stages.caption.measured_caption import MEASURED_MODEL
from curator.stages.shard.shard_index import sample_row
from curator.stages.shard.tar_reader import (
    MAX_TEXT_BYTES,
    SPLITS,
    Member,
    Shard,
    ShardSet,
    TarReader,
    open_shards,
)
from curator.storage import Store, open_store
from curator.tables.fenced_store import Digest
from curator.tables.out_layout import is_unfinished

MAX_WORKERS = 16
logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class ShardClip:
    """A sample of a shard."""

    key: str
    shard: Shard
    fields: dict[str, Any] = field(default_factory=dict)
    """Its JSON."""
    text: str = ""
    mp4: bytes | None = None
    """None if the exporter did not request the MP4."""
    mp4_offset: int = -1
    mp4_bytes: int = 0
    members: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Offset in the tar and bytes of each other member, by suffix."""

    def row(self) -> dict[str, Any]:
        """Columns as in `dataset.parquet`."""
        fields = self.fields
        return sample_row(self.shard.name, self.key, fields, self.text) | {
            "split": self.shard.split,
            "bucket": self.shard.bucket,
            "offset": self.mp4_offset,
            "bytes": self.mp4_bytes,
            "fps": float(fields["fps"]),
            "duration": float(fields["duration"]),
        }


@dataclass(slots=True)
class Exported:
    """Counts of an export; thread-safe."""

    n_clips: int = 0
    n_objects: int = 0
    """Written."""
    n_reused: int = 0
    """Objects that already existed with the same bytes."""
    n_bytes: int = 0
    """Written."""
    n_without_text: int = 0
    """Clips whose caption is empty."""
    n_measured: int = 0
    """Clips with a caption composed from measurements, not written by a model."""
    n_records: int = 0
    n_short: int = 0
    """Clips that were left out because they have too few frames."""
    n_left_out: int = 0
    """Preference pairs left out because the written clip lacks some of their frames."""
    n_others: int = 0
    """Objects of other exports at the destination that a loader would read, too."""
    manifest_problem: str | None = None
    """Why the export read all existing tars instead of a manifest's; None with a manifest."""
    left_members: tuple[str, ...] = ()
    """Members of samples, such as tensors, that the format cannot store."""
    records: str | None = None
    """What `n_records` counts, in words; None where it counts nothing."""
    origin: Mapping[str, str | None] | None = None
    """Class, distribution and versions of a format from outside this package."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, **counts: int) -> None:
        """Counts; `clips=2` adds 2 to `n_clips`."""
        with self._lock:
            for name, n in counts.items():
                setattr(self, f"n_{name}", getattr(self, f"n_{name}") + n)


class Destination:
    """The destination of an export.

    Every existing object is complete, because objects appear only when fully written. Size and
    SHA-256 show whether an existing object has the right bytes.

    Args:
        folders: Prefixes of the keys. Existing objects there are listed once, which takes about 200
            bytes of memory for each.
    """

    def __init__(self, store: Store, exported: Exported, folders: Iterable[str]) -> None:
        self._store, self._exported = store, exported
        listed = (info for folder in folders for info in store.list(folder))
        self._there = {info.key: info.bytes for info in listed}
        # Temporary objects of killed exports.
        store.clean_temporary({"", *(key.rpartition("/")[0] for key in self._there)}, is_unfinished)
        self._mine: set[str] = set()

    def exists_as(self, key: str, n_bytes: int, sha256: str) -> bool:
        """Returns whether the object exists with these bytes, and counts it if so."""
        if self._there.get(key) != n_bytes:
            return False
        # An unreadable object is written again.
        with suppress(StorageError, OSError):
            if Digest.of_object(self._store, key).sha256 == sha256:
                self.reuse(key)
                return True
        return False

    def size(self, key: str) -> int | None:
        """Returns the size of an object that existed at the beginning, or None."""
        return self._there.get(key)

    def reuse(self, *keys: str, clips: int = 0) -> None:
        """Counts existing objects, and the clips in them, as part of this export."""
        self._mine.update(keys)
        self._exported.add(reused=len(keys), clips=clips)

    def put(self, key: str, data: bytes) -> None:
        """Writes an object, unless it exists with these bytes."""
        if key in self._there and self.exists_as(key, len(data), hashlib.sha256(data).hexdigest()):
            return
        self._mine.add(key)
        self._store.write(key, data)
        self._exported.add(objects=1, bytes=len(data))

    @contextmanager
    def create(self, key: str) -> Iterator[BinaryIO]:
        """Opens a stream to an object, which appears when the block ends without error."""
        self._mine.add(key)
        with self._store.create(key) as output:
            yield output
        self._exported.add(objects=1)

    def others(self, suffixes: tuple[str, ...]) -> list[str]:
        """Returns objects that existed at the beginning and do not belong to this export."""
        return sorted(k for k in self._there if k not in self._mine and k.endswith(suffixes))


@dataclass(kw_only=True)
class Job:
    """The working context of an exporter."""

    shards: ShardSet
    chosen: Sequence[Shard]
    splits: Sequence[str]
    store: Store
    exporter: Exporter[ExporterOptions, object]
    exported: Exported
    n_workers: int
    """Shards in progress at once."""
    progress: Callable[[Exported], None]

    def __post_init__(self) -> None:
        self.place = Destination(self.store, self.exported, self.exporter.folders(self.splits))

    def run(self) -> None:
        """Does the export."""
        exporter = self.exporter
        exporter.begin(self)
        if self.store.is_local:
            with raised_as(UsageError, StorageError):
                self.store.check_writable()
        for split in self.splits:
            own = [shard for shard in self.chosen if shard.split == split]
            if own:
                with closing(self._in_order(own)) as results:
                    exporter.split(self, split, results)
                    for _ in results:
                        pass
        exporter.finish(self)
        if exporter.suffixes:
            self.exported.add(others=len(self.place.others(exporter.suffixes)))

    def clips(
        self,
        shard: Shard,
        wants_mp4: Callable[[ShardClip, str], bool] | bool = False,
        *,
        min_frames: int | None = None,
    ) -> Iterator[ShardClip]:
        """Yields the clips of a shard, and counts each when the next is requested.

        Args:
            shard: The tar.
            wants_mp4: Whether to read MP4s. A function decides for each clip; it gets the clip
                without its MP4, and the SHA-256 of the MP4.
            min_frames: Shorter clips are counted and left out.
        """

        def is_long(clip: ShardClip) -> bool:
            return min_frames is None or clip.fields["n_frames"] >= min_frames

        def wants(clip: ShardClip, sha256: str) -> bool:
            return is_long(clip) and (wants_mp4(clip, sha256) if callable(wants_mp4) else wants_mp4)

        for clip in read_clips(self.shards, shard, wants_mp4=wants):
            if not is_long(clip):
                self.exported.add(short=1)
                continue
            yield clip
            self.exported.add(
                clips=1,
                without_text=not clip.text.strip(),
                measured=clip.fields.get("caption_model") == MEASURED_MODEL,
            )
            self.progress(self.exported)

    def videos(
        self, shard: Shard, folder: str, *, min_frames: int | None = None
    ) -> Iterator[ShardClip]:
        """Yields the clips of a shard as `clips` does, and writes MP4s as `<folder>/<key>.mp4`.

        MP4s that exist already are neither read nor written.
        """

        def is_new(clip: ShardClip, sha256: str) -> bool:
            return not self.place.exists_as(f"{folder}/{clip.key}.mp4", clip.mp4_bytes, sha256)

        for clip in self.clips(shard, is_new, min_frames=min_frames):
            if clip.mp4 is not None:
                self.place.put(f"{folder}/{clip.key}.mp4", clip.mp4)
            yield clip

    def base(self, *, relative: bool) -> str:
        """Returns the prefix of paths in tables: empty, or the address of the destination."""
        return "" if relative else f"{self.store.uri}/"

    def fingerprint(self, shard: Shard, *settings: object) -> str:
        """Hashes the inputs of a shard's object: the tar's name and size, and `settings`.

        The name has a hash of the samples. `settings` are the options that change the object's
        bytes, and the format's version.
        """
        return fingerprint(shard.name, self.shards.sizes[shard.name], *settings)

    def _exported(self, shard: Shard) -> object:
        try:
            return self.exporter.shard(self, shard)
        except CuratorError:
            raise
        except Exception as error:
            logger.exception("the exporter failed on %s", shard.name)
            failed = f"{type(self.exporter).__name__} failed on {self.shards.uri(shard.name)}"
            raise CuratorError(f"{failed}: {type(error).__name__}: {error}") from error

    def _in_order(self, shards: Sequence[Shard]) -> Generator[object]:
        """Yields the exporter's result of each shard, in order.

        At most two results per thread wait for the consumer. The first error ends the export, after
        the shards in progress.
        """
        with ThreadPoolExecutor(self.n_workers) as pool:
            waiting: deque[Future[object]] = deque()
            try:
                for shard in shards:
                    waiting.append(pool.submit(self._exported, shard))
                    if len(waiting) >= 2 * self.n_workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()


def export(
    out: str,
    destination: str,
    format: str,
    *,
    splits: Sequence[str] = SPLITS,
    buckets: Sequence[str] | None = None,
    workers: int | None = None,
    snapshot: int | None = None,
    options: Mapping[str, object] | None = None,
    progress: Callable[[Exported], None] = lambda exported: None,
) -> Exported:
    """Writes the clips of an output root in another format.

    The same clips and options give the same bytes. Objects that already exist with the same bytes
    are not written again, so an interrupted export resumes.

    Args:
        out: Folder or `s3://bucket/prefix` of a run, or a folder with the contents of `shards/`.
        destination: Folder or `s3://bucket/prefix`.
        format: One of `FORMATS`, `package.module:Class`, or an entry point of `curate.exporters`.
        splits: `train`, `val`.
        buckets: None for all.
        workers: Shards in progress at once; None for one per core, at most 16.
        snapshot: Number of the snapshot to export; None for the newest.
        options: Options of the format.
        progress: Called after each clip.

    Returns:
        Counts of clips and objects.

    Raises:
        UsageError: Nothing was selected, the format or one of its options does not exist, or the
            format needs a package that is missing.
        ShardError: A shard is damaged.
        StorageError: Reading or writing failed.
    """
    exporter_type, extension = load_format(format)
    exporter = exporter_type(checked_options(format, options or {}))
    shards = open_shards(out, snapshot)
    store = open_store(destination)
    if store.uri == shards.store.uri:
        if not exporter.indexes_tars:
            raise UsageError(f"{store.uri} is OUT itself; choose another destination")
        if snapshot is not None:
            raise UsageError(
                f"snapshot {snapshot}: the indexes at fixed paths in {store.uri} follow the "
                "newest snapshot; choose another destination"
            )
        store = open_store(f"{store.uri}/{shards.prefix}".rstrip("/"))
    chosen = chosen_shards(shards, splits, buckets)
    if exporter.indexes_tars and len(chosen) < len(shards.shards):
        # Indexes of some shards would hide the others.
        raise UsageError(
            f"the format {format} indexes all shards; leave out --split and --bucket. "
            "Each bucket has a .nv-meta of its own, and each split a wids index"
        )
    exported = Exported(
        manifest_problem=shards.problem,
        left_members=()
        if exporter.indexes_tars or exporter.has_members
        else tuple(shards.declared),
        records=exporter.records,
        origin=None if format in FORMATS else extension.origin,
    )
    Job(
        shards=shards,
        chosen=chosen,
        splits=splits,
        store=store,
        exporter=exporter,
        exported=exported,
        n_workers=workers or min(MAX_WORKERS, os.cpu_count() or 1),
        progress=progress,
    ).run()
    return exported


def chosen_shards(
    shards: ShardSet, splits: Sequence[str], buckets: Sequence[str] | None
) -> list[Shard]:
    """Returns the shards of some splits and buckets, None for all; refuses an empty result."""
    names = sorted({shard.bucket for shard in shards.shards})
    for name in buckets or ():
        if name not in names:
            raise UsageError(
                f"no bucket {name!r} in {shards.uri('')}; there are: {', '.join(names) or 'none'}"
            )
    chosen = [
        shard
        for shard in shards.shards
        if shard.split in splits and (buckets is None or shard.bucket in buckets)
    ]
    if not shards.shards:
        raise UsageError(
            f"{shards.uri('')} has no shards, because the run kept no clip: there is nothing to "
            "export; `curate explain OUT` says why, and `curate tune OUT` tries other bounds"
        )
    if not chosen:
        raise UsageError(
            f"{shards.uri('')} has no shards of {', '.join(splits) or 'none'}"
            + (f" in {', '.join(buckets)}" if buckets else "")
            + "; see its manifest.json for what there is"
        )
    for shard in chosen:
        if shard.name not in shards.sizes:
            raise UsageError(f"{shards.uri(shard.name)} is missing; `curate verify` says what else")
    return chosen


def read_clips(
    shards: ShardSet, shard: Shard, *, wants_mp4: Callable[[ShardClip, str], bool]
) -> Iterator[ShardClip]:
    """Yields the clips of a shard, in its order.

    Raises:
        ShardError: The tar is damaged, or a clip's bytes do not match its JSON.
        StorageError: It cannot be read.
    """
    try:
        with shards.store.open(shards.key(shard.name)) as stream:
            reader = TarReader(stream.read, shards.sizes[shard.name], seek=stream.seek)
            for key, members in groupby(reader, key=lambda member: member.key):
                clip = ShardClip(key=key, shard=shard)
                for member in members:
                    _take(reader, member, clip, wants_mp4)
                if clip.mp4_offset < 0:
                    raise ShardError(f"the sample {key!r} has no MP4")
                yield clip
    except (ShardError, orjson.JSONDecodeError, UnicodeDecodeError, KeyError) as error:
        remedy = f"`curate verify {shards.store.uri}` says what is wrong"
        raise ShardError(f"{shards.uri(shard.name)}: {error}; {remedy}") from error


def _take(
    reader: TarReader, member: Member, clip: ShardClip, wants_mp4: Callable[[ShardClip, str], bool]
) -> None:
    if member.suffix == "mp4":
        clip.mp4_offset, clip.mp4_bytes = member.data_offset, member.bytes
        if not clip.fields:
            raise ShardError(f"the JSON of {clip.key!r} does not come before its MP4")
        sha256 = str(clip.fields["mp4_sha256"])
        if wants_mp4(clip, sha256):
            clip.mp4 = reader.read(member)
            digest = hashlib.sha256(clip.mp4).hexdigest()
            if digest != sha256:
                raise ShardError(f"{member.name!r} has sha256 {digest}; expected {sha256}")
    elif member.suffix in ("json", "txt"):
        if member.bytes > MAX_TEXT_BYTES:
            raise ShardError(f"{member.name!r} has {member.bytes} bytes; expected a text")
        data = reader.read(member)
        if member.suffix == "txt":
            clip.text = data.decode()
            return
        fields = orjson.loads(data)
        if not isinstance(fields, dict) or not clip.key.isalnum():
            raise ShardError(f"{member.name!r} is no sample of `curate run`")
        clip.fields = fields
    else:
        clip.members[member.suffix] = member.data_offset, member.bytes
