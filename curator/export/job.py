"""An export in progress: its input, its destination and its threads."""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from curator.errors import CuratorError
from curator.export.clip_reader import Clip, read_clips
from curator.export.exporter import Exporter, ExporterOptions
from curator.export.placement import Exported, Place
from curator.fingerprints import fingerprint
from curator.stages.shard.tar_reader import Shard, ShardSet
from curator.storage import Store

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
        self.place = Place(self.store, self.exported, self.exporter.folders(self.splits))

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
        wants_mp4: Callable[[Clip, str], bool] | bool = False,
        *,
        min_frames: int | None = None,
    ) -> Iterator[Clip]:
        """Yields the clips of a shard, and counts each when the next is requested.

        Args:
            shard: The tar.
            wants_mp4: Whether MP4s are read; a function decides for each clip, given the clip
                without its MP4 and the MP4's SHA-256.
            min_frames: Shorter clips are counted and left out.

        Raises:
            ShardError: The tar is damaged, or a clip's bytes are not those of its JSON.
            StorageError: It cannot be read.
        """

        def is_long(clip: Clip) -> bool:
            return min_frames is None or clip.fields["n_frames"] >= min_frames

        def wants(clip: Clip, sha256: str) -> bool:
            return is_long(clip) and (wants_mp4(clip, sha256) if callable(wants_mp4) else wants_mp4)

        for clip in read_clips(self.shards, shard, wants_mp4=wants):
            if not is_long(clip):
                self.exported.add(short=1)
                continue
            yield clip
            self.exported.add(clips=1, without_text=not clip.text.strip())
            self.progress(self.exported)

    def videos(self, shard: Shard, folder: str, *, min_frames: int | None = None) -> Iterator[Clip]:
        """Yields the clips of a shard as `clips` does, and writes MP4s as `<folder>/<key>.mp4`.

        MP4s that exist already are neither read nor written.
        """

        def is_new(clip: Clip, sha256: str) -> bool:
            return not self.place.stands(f"{folder}/{clip.key}.mp4", clip.mp4_bytes, sha256)

        for clip in self.clips(shard, is_new, min_frames=min_frames):
            if clip.mp4 is not None:
                self.place.put(f"{folder}/{clip.key}.mp4", clip.mp4)
            yield clip

    def base(self, *, relative: bool) -> str:
        """Returns the prefix of paths in tables: empty, or the address of the destination."""
        return "" if relative else f"{self.store.uri}/"

    def stamp(self, shard: Shard, *settings: object) -> str:
        """Hashes the inputs of a shard's object: the tar's name and size, and `settings`.

        The name has a hash of the samples. `settings` are the options that change the object's
        bytes, and the format's version.
        """
        return fingerprint(shard.name, self.shards.sizes[shard.name], *settings)

    def _one(self, shard: Shard) -> object:
        try:
            return self.exporter.shard(self, shard)
        except CuratorError:
            raise
        except Exception as error:
            logger.exception("the exporter failed on %s", shard.name)
            name = type(self.exporter).__name__
            raise CuratorError(
                f"{name} failed on {self.shards.uri(shard.name)}: {type(error).__name__}: {error}"
            ) from error

    def _in_order(self, shards: Sequence[Shard]) -> Generator[object]:
        """Yields the exporter's result of each shard, in order.

        At most two results per thread wait for the consumer. The first error ends the export, after
        the shards in progress.
        """
        with ThreadPoolExecutor(self.n_workers) as pool:
            waiting: deque[Future[object]] = deque()
            try:
                for shard in shards:
                    waiting.append(pool.submit(self._one, shard))
                    if len(waiting) >= 2 * self.n_workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()
