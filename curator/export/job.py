"""Runs an export: reads clips as streams, writes objects, counts them, and runs the threads."""

import hashlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from curator.dataset.shard_index import rows_by_tar, sample_row
from curator.dataset.side_places import SIDE_COLUMNS, side_places
from curator.dataset.tar_reader import (
    FOLDER,
    MAX_TEXT_BYTES,
    SPLITS,
    Member,
    Shard,
    ShardSet,
    TarReader,
    open_shards,
)
from curator.errors import CuratorError, ShardError, StorageError, UsageError, raised_as
from curator.export.destination import Destination, EarlierVideos
from curator.export.exporter import (
    FORMATS,
    Exporter,
    ExporterOptions,
    ReusedVideos,
    checked_options,
    load_format,
)
from curator.fingerprints import fingerprint
from curator.records.clips import CLIP_FORMATS, MEASURED_MODEL, ClipFormat, format_of
from curator.records.sources import Medium
from curator.storage import Store, open_store
from curator.tables.checksums import read_rows
from curator.tables.kept_clips import selected_clips
from curator.tables.out_layout import OWN_FOLDERS

MAX_WORKERS = 16
logger = logging.getLogger(__name__)


class MemberPlace(NamedTuple):
    """Where a member is: in the tar of its sample, or in a side tar."""

    tar: str
    """Name of the tar under the root of the shards."""
    offset: int
    """First byte of the member in the tar."""
    n_bytes: int


@dataclass(slots=True, kw_only=True)
class ShardClip:
    """A sample of a shard."""

    key: str
    shard: Shard
    fields: dict[str, Any] = field(default_factory=dict)
    """Its JSON."""
    text: str = ""
    mp4: bytes | None = None
    """The clip's file, whatever its format; None if the exporter did not request it."""
    mp4_offset: int = -1
    mp4_bytes: int = 0
    members: dict[str, MemberPlace] = field(default_factory=dict)
    """The place of each other member, by suffix."""

    @property
    def format(self) -> ClipFormat:
        """Format of the clip's file, which is its suffix."""
        return format_of(self.fields.get("format"))

    @property
    def file_name(self) -> str:
        """Name of the clip's file: its key and its format."""
        return f"{self.key}.{self.format}"

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
    n_linked: int = 0
    """Written as hard links, or copied by the server, without a transfer."""
    n_bytes: int = 0
    """Written, without those of `n_linked`."""
    n_without_text: int = 0
    """Clips whose caption is empty."""
    n_measured: int = 0
    """Clips with a caption composed from measurements, not written by a model."""
    n_records: int = 0
    n_short: int = 0
    """Clips that were left out because they have too few frames."""
    n_lacking: int = 0
    """Clips that were left out because they lack a value that the format holds."""
    n_other_media: int = 0
    """Clips that were left out because the format holds no clips of their medium."""
    n_unselected: int = 0
    """Clips of the chosen splits and buckets that do not meet the condition of the export."""
    n_others: int = 0
    """Objects of other exports at the destination that a loader would read, too."""
    manifest_problem: str | None = None
    """Why the export read all existing tars instead of a manifest's; None with a manifest."""
    left_members: tuple[str, ...] = ()
    """Members of samples, such as tensors, that the format cannot store."""
    records: str | None = None
    """What `n_records` counts, in words; None where it counts nothing."""
    notes: list[str] = field(default_factory=list)
    """What a format says about the export, a line each."""
    origin: Mapping[str, str | None] | None = None
    """Class, distribution and versions of a format from outside this package."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, **counts: int) -> None:
        """Counts; `clips=2` adds 2 to `n_clips`."""
        with self._lock:
            for name, n in counts.items():
                setattr(self, f"n_{name}", getattr(self, f"n_{name}") + n)


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
    selected: Mapping[str, frozenset[str]] | None = None
    """Keys of the clips to export, by name of their tar; None for all."""

    def __post_init__(self) -> None:
        options, folders = self.exporter.options, self.exporter.folders(self.splits)
        reuse = options.reuse if isinstance(options, ReusedVideos) else None
        self.earlier = EarlierVideos(reuse) if reuse is not None else None
        self.place = Destination(self.store, self.exported, folders, self.earlier)

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
        needs: Collection[str] = (),
        by_metadata: bool = False,
    ) -> Iterator[ShardClip]:
        """Yields the clips of a shard, and counts each when the next is requested.

        Args:
            shard: The tar.
            wants_mp4: Whether to read MP4s. A function decides for each clip; it gets the clip
                without its MP4, and the SHA-256 of the MP4.
            min_frames: Shorter clips are counted and left out.
            needs: Suffixes of members; clips that lack one are counted and left out.
            by_metadata: Whether to read only the requested MP4s from the tar, and all else from the
                object with its metadata, if it exists. Such clips have no `members`.
        """
        keys = None if self.selected is None else self.selected[shard.name]

        def is_held(clip: ShardClip) -> bool:
            return clip.fields.get("medium", Medium.VIDEO) in self.exporter.media

        def is_long(clip: ShardClip) -> bool:
            return min_frames is None or clip.fields["n_frames"] >= min_frames

        def wants(clip: ShardClip, sha256: str) -> bool:
            if (keys is not None and clip.key not in keys) or not (is_long(clip) and is_held(clip)):
                return False
            return wants_mp4(clip, sha256) if callable(wants_mp4) else wants_mp4

        side_members = self._side_members.get(shard.name, {})
        described = self._described(shard) if by_metadata else None
        if described is None:
            read = read_clips(self.shards, shard, wants_mp4=wants)
        else:
            read = with_mp4s(self.shards, described, wants_mp4=wants)
        for clip in read:
            if keys is not None and clip.key not in keys:
                continue
            if not is_held(clip):
                self.exported.add(other_media=1)
                continue
            if not is_long(clip):
                self.exported.add(short=1)
                continue
            if described is None:
                clip.members |= side_members.get(clip.key, {})
            if not clip.members.keys() >= set(needs):
                self.exported.add(lacking=1)
                continue
            yield clip
            self.exported.add(
                clips=1,
                without_text=not clip.text.strip(),
                measured=clip.fields.get("caption_model") == MEASURED_MODEL,
            )
            self.progress(self.exported)

    def videos(
        self,
        shard: Shard,
        folder: str,
        *,
        min_frames: int | None = None,
        record: str | None = None,
        by_metadata: bool = True,
    ) -> Iterator[ShardClip]:
        """Yields the clips of a shard as `clips` does, and writes MP4s as `<folder>/<key>.mp4`.

        A still image has its own suffix. MP4s that exist already are neither read nor written.
        `record` is the folder of a record, by which the next export knows what exists without
        reading it; `by_metadata` as for `clips`.
        """
        store, tar, sha256s = self.shards.store, self.shards.key(shard.name), dict[str, str]()

        def is_new(clip: ShardClip, sha256: str) -> bool:
            key = f"{folder}/{clip.file_name}"
            sha256s[key] = sha256
            is_there = self.place.exists_as(key, clip.mp4_bytes, sha256)
            return not (is_there or self.place.take(key, clip, store, tar, sha256))

        name = f"{record}/{shard.name.removesuffix('.tar').replace('/', '_')}.json"
        if record is not None:
            self.place.read_record(name)
        for clip in self.clips(shard, is_new, min_frames=min_frames, by_metadata=by_metadata):
            if clip.mp4 is not None:
                self.place.put(f"{folder}/{clip.file_name}", clip.mp4)
            yield clip
        if record is not None:
            self.place.put_record(name, sha256s)

    @cached_property
    def _side_members(self) -> dict[str, dict[str, dict[str, MemberPlace]]]:
        """Members in side tars, by the samples' tar, key and suffix."""
        shards = self.shards
        found: dict[str, dict[str, dict[str, MemberPlace]]] = {}
        if not any(shard.sides for shard in shards.shards):
            return found
        rows = read_rows(shards.store, shards.dataset, lambda f: f.read([*SIDE_COLUMNS]))
        for row in side_places(rows, shards.manifest or {}).to_pylist():
            place = MemberPlace(row["name"].removeprefix(FOLDER), row["offset"], row["bytes"])
            of_tar = found.setdefault(row["shard"], {})
            of_tar.setdefault(row["clip_id"], {})[row["member"]] = place
        return found

    def base(self, *, relative: bool) -> str:
        """Returns the prefix of paths in tables: empty, or the address of the destination."""
        return "" if relative else f"{self.store.uri}/"

    def fingerprint(self, shard: Shard, *settings: object) -> str:
        """Hashes the inputs of a shard's object: names and size of its tars, and `settings`.

        The names have a hash of the samples. `settings` are the options that change the object's
        bytes, and the format's version. A selection of all clips is none.
        """
        some = self._selected_part(shard)
        own: list[object] = [] if some is None else [sorted(some)]
        own += [sorted(side["name"] for side in shard.sides.values())] if shard.sides else []
        return fingerprint(shard.name, self.shards.sizes[shard.name], *settings, *own)

    def n_clips(self, shard: Shard) -> int:
        """Returns the number of clips of a shard that the export selects."""
        some = self._selected_part(shard)
        return int(shard.facts.get("samples") or 0) if some is None else len(some)

    def _selected_part(self, shard: Shard) -> frozenset[str] | None:
        some = None if self.selected is None else self.selected[shard.name]
        return None if some is None or len(some) == shard.facts.get("samples") else some

    def _described(self, shard: Shard) -> list[ShardClip] | None:
        """Returns the clips of a shard by its metadata, which the manifest's hash proves.

        Returns None if the indexes lack it; then the tar tells.
        """
        shards, places = self.shards, self._places.get(shard.name)
        if places is None or shards.sizes.get(shard.meta_name) is None:
            return None
        data = shards.store.read(shards.key(shard.meta_name))
        lines = data.split(b"\n")[:-1]
        is_own = hashlib.sha256(data).hexdigest() == shard.facts.get("meta_sha256")
        if not is_own or len(lines) != places.num_rows:
            return None
        columns = (places[name].to_pylist() for name in ("offset", "bytes"))
        rows = zip(map(orjson.loads, lines), *columns, strict=True)
        clips = [
            ShardClip(
                key=str(fields["key"]),
                shard=shard,
                fields=fields,
                text=str(fields["caption"]),
                mp4_offset=offset,
                mp4_bytes=n_bytes,
            )
            for fields, offset, n_bytes in rows
        ]
        return clips if all(clip.key.isalnum() for clip in clips) else None

    @cached_property
    def _places(self) -> Mapping[str, pa.Table]:
        """Offset and bytes of MP4s, by name of their tar; empty without a table of samples."""
        shards = self.shards
        if shards.manifest is None or not shards.store.exists(shards.dataset):
            return {}
        columns = ["shard", "offset", "bytes"]
        with suppress(ShardError, StorageError, OSError, pa.ArrowException):
            return rows_by_tar(
                read_rows(shards.store, shards.dataset, lambda file: file.read(columns))
            )
        return {}

    def read(self, shard: Shard) -> Iterator[ShardClip]:
        """Yields all clips of a shard without MP4s, and counts nothing."""
        return read_clips(self.shards, shard, wants_mp4=lambda clip, sha256: False)

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
    where: str | None = None,
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
        where: SQL condition over columns of the table `clips`; None for all clips.
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
    root = f"{shards.store.uri}/"
    top = store.uri.removeprefix(root).partition("/")[0]
    is_within = store.uri.startswith(root) and (top in OWN_FOLDERS or not shards.prefix)
    if is_within and not exporter.indexes_tars:
        raise UsageError(
            f"{store.uri} is in a folder of OUT, whose readers would take the export for samples; "
            "choose another destination"
        )
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
    if exporter.indexes_tars and (where is not None or len(chosen) < len(shards.shards)):
        # Indexes of some shards would hide the others.
        raise UsageError(
            f"the format {format} indexes all clips of all shards; leave out --split, --bucket and "
            "--where. Each bucket has a .nv-meta of its own, and each split a wids index"
        )
    selected, n_unselected = None, 0
    if where is not None:
        selected, n_unselected = selected_keys(shards, chosen, where)
        chosen = [shard for shard in chosen if shard.name in selected]
    exported = Exported(
        n_unselected=n_unselected,
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
        selected=selected,
    ).run()
    return exported


def selected_keys(
    shards: ShardSet, chosen: Sequence[Shard], where: str
) -> tuple[dict[str, frozenset[str]], int]:
    """Returns keys of the clips that meet a condition, by name of their tar, and how many do not.

    Raises:
        UsageError: No clip of the chosen shards meets the condition, or it is wrong.
    """
    if shards.manifest is None:
        raise UsageError(f"--where needs {shards.uri('manifest.json')}, but {shards.problem}")
    rows = selected_clips(shards.store, where, snapshot=shards.snapshot).select(["shard", "key"])
    keys: dict[str, set[str]] = {}
    for tar, key in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        keys.setdefault(tar, set()).add(key)
    names = {shard.name: frozenset(keys.get(shards.key(shard.name), ())) for shard in chosen}
    n_clips = sum(int(shard.facts["samples"]) for shard in chosen)
    selected = {name: own for name, own in names.items() if own}
    if not selected:
        raise UsageError(
            f"--where {where!r}: none of {n_clips} clips of the chosen splits and buckets meets it"
        )
    return selected, n_clips - sum(map(len, selected.values()))


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


def with_mp4s(
    shards: ShardSet,
    clips: Iterable[ShardClip],
    *,
    wants_mp4: Callable[[ShardClip, str], bool],
) -> Iterator[ShardClip]:
    """Yields clips, and reads the requested MP4s; raises as `read_clips` does."""
    for clip in clips:
        sha256 = str(clip.fields["mp4_sha256"])
        if wants_mp4(clip, sha256):
            start, end = clip.mp4_offset, clip.mp4_offset + clip.mp4_bytes
            clip.mp4 = shards.store.read_range(shards.key(clip.shard.name), start, end)
            digest = hashlib.sha256(clip.mp4).hexdigest()
            if digest != sha256:
                raise ShardError(
                    f"{shards.uri(clip.shard.name)}: {clip.file_name} has sha256 {digest}; "
                    f"expected {sha256}; `curate verify {shards.store.uri}` says what is wrong"
                )
        yield clip


def _take(
    reader: TarReader, member: Member, clip: ShardClip, wants_mp4: Callable[[ShardClip, str], bool]
) -> None:
    if member.suffix in CLIP_FORMATS:
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
        place = MemberPlace(clip.shard.name, member.data_offset, member.bytes)
        clip.members[member.suffix] = place
