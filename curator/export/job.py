"""An export under way: what is read, where it goes, and the threads that do it."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from curator.export.clip_reader import Clip
from curator.export.export_options import Exported, ExportOptions
from curator.export.placement import Place
from curator.fingerprints import fingerprint
from curator.stages.shard.tar_reader import Shard, ShardSet
from curator.storage import Store

T = TypeVar("T")
MAX_WORKERS = 16


class Job:
    """What all formats share.

    Args:
        shards: What is read.
        chosen: The shards that are asked for, in order.
        store: Destination.
        options: What is asked for.
        progress: Called after each clip.
    """

    def __init__(
        self,
        shards: ShardSet,
        chosen: Sequence[Shard],
        store: Store,
        options: ExportOptions,
        progress: Callable[[Exported], None],
    ) -> None:
        self.shards = shards
        self.chosen = chosen
        self.store = store
        self.options = options
        self.exported = Exported()
        self._progress = progress
        self._place: Place | None = None
        self.n_workers = options.workers or min(MAX_WORKERS, os.cpu_count() or 1)

    def look(self, folders: Iterable[str]) -> Place:
        """Lists what is in these folders of the destination."""
        self._place = Place(self.store, self.exported, folders)
        return self._place

    @property
    def place(self) -> Place:
        """The destination, once `look` was called."""
        assert self._place is not None
        return self._place

    def each(self, work: Callable[[Shard], object]) -> None:
        """Does the work for each shard, in threads."""
        for _ in self.in_order(work, self.chosen):
            pass

    def in_order(self, work: Callable[[Shard], T], shards: Sequence[Shard]) -> Iterator[T]:
        """Yields results of the work in the order of the shards.

        No more than two results per thread wait, whatever is done with them. The first error ends
        it; what was under way is finished.
        """
        with ThreadPoolExecutor(self.n_workers) as pool:
            waiting: deque[Future[T]] = deque()
            try:
                for shard in shards:
                    waiting.append(pool.submit(work, shard))
                    if len(waiting) >= 2 * self.n_workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def count(self, clip: Clip) -> None:
        """Notes that a clip is done."""
        self.exported.add(clips=1, without_text=not clip.text.strip())
        self._progress(self.exported)

    def stamp(self, shard: Shard, *settings: object) -> str:
        """What makes an object of this shard: its name, which has a hash of its samples, and size.

        Args:
            shard: The tar.
            settings: Options that change the object's bytes, and versions of the code.
        """
        return fingerprint(shard.name, self.shards.sizes[shard.name], *settings)
