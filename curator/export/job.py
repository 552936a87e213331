"""An export: what is chosen, its destination, and its threads."""

import logging
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from curator.errors import CuratorError, UsageError
from curator.export.clip_reader import ShardClip, chosen_shards, read_clips
from curator.export.exporter import Exporter, ExporterOptions
from curator.export.formats import FORMATS, checked_options, load_format
from curator.export.placement import Destination, Exported
from curator.fingerprints import fingerprint
from curator.stages.caption.measured_caption import MEASURED_MODEL
from curator.stages.shard.tar_reader import SPLITS, Shard, ShardSet, open_shards
from curator.storage import Store, open_store

MAX_WORKERS = 16
logger = logging.getLogger(__name__)


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
            wants_mp4: Whether MP4s are read; a function decides for each clip, given the clip
                without its MP4 and the MP4's SHA-256.
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
            return not self.place.stands(f"{folder}/{clip.key}.mp4", clip.mp4_bytes, sha256)

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
    are not written again, so that an interrupted export continues.

    Args:
        out: Folder or `s3://bucket/prefix` of a run, or a folder with the contents of `shards/`.
        destination: Folder or `s3://bucket/prefix`.
        format: One of `FORMATS`, `package.module:Class`, or an entry point of `curate.exporters`.
        splits: `train`, `val`.
        buckets: None for all.
        workers: Shards under way at once; None for one per core, at most 16.
        snapshot: Number of the snapshot to export; None for the newest.
        options: Options of the format.
        progress: Called after each clip.

    Returns:
        Counts of what was written.

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
