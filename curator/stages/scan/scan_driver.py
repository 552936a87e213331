"""The driver's side of the scan: the listing streams into probes, and the probes into a table.

Probes of earlier runs come from the parts of `scan`, the other sources go out in units while the
listing goes on. The driver holds a window of the listing and the units in progress.

A source whose probe ends its process, by a crash or because it hangs, ends as failed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from time import monotonic

import pyarrow as pa
import pyarrow.compute as pc

from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.executor.unit_worker import stage_step
from curator.records.sources import SourceRef
from curator.stages.scan.probe_parts import SCAN_SCHEMA, ProbeParts, scan_key
from curator.stages.scan.source_listing import Listed, ListedSource, SkippedName, UnlistedSource
from curator.stages.scan.stage import ScanStage
from curator.storage import Store
from curator.tables.key_index import KnownKeys, part_versions
from curator.tables.parts import Parts
from curator.tables.removal_records import Removals
from curator.tables.source_table import SourceTable

FEW_SOURCES = 256
"""New sources up to which one process probes them: done before a cluster has started."""
UNIT_SOURCES = 64
LARGE_UNIT_SOURCES = 256
LARGE_AFTER = 16_384
"""Sources after which units are large: a million must not become as many objects."""
FIRST_WINDOW, WINDOW = 512, 16_384
"""Listed sources that are looked up together: few at first, so that work begins soon, and more and
more, so that a part that holds neighbours is read once."""
READ_THREADS = 16


class Scanning:
    """Lists and probes.

    Args:
        sources: Gets a row for each source, whatever its outcome.
        removals: What may not come back.
    """

    def __init__(
        self,
        stage: ScanStage,
        store: Store,
        engine: Engine,
        progress: Progress,
        sources: SourceTable,
        removals: Removals | None = None,
    ) -> None:
        self._stage = stage
        stamp = stage.fingerprint({})
        self._parts = Parts(store, "scan", stamp)
        self._keep = ProbeParts(store, stamp, removals)
        self._engine = engine
        self._progress = progress
        self._sources = sources
        self._remaining: Iterator[list[SourceRef]] = iter(())
        self._head: list[list[SourceRef]] = []
        self._is_few = True
        self.n_skipped_names = 0
        self.n_scanned = 0
        """Sources that had to be probed."""
        self.cpu_s: Counter[str] = Counter()
        """CPU-seconds of the workers, by what they went into."""
        self.list_s = 0.0
        """Seconds that the driver waited for the listing."""

    def begin(self, listed: Iterable[Listed]) -> list[SourceRef] | None:
        """Lists until it is known whether few sources are new; returns them if so."""
        self._remaining = self._units(self._timed(listed))
        n_new = 0
        while n_new <= FEW_SOURCES and (unit := next(self._remaining, None)) is not None:
            self._head.append(unit)
            n_new += len(unit)
        self._is_few = n_new <= FEW_SOURCES
        return list(chain.from_iterable(self._head)) if self._is_few else None

    def finish(self, then: Callable[[], None] = lambda: None) -> None:
        """Lists the rest, and gives every source its row.

        Calls `then` when few sources were probed, before the results are stored.
        """
        self._probe(chain(self._head, self._remaining), then, few=self._is_few)
        self._progress.sources(len(self._sources))

    def _timed(self, listed: Iterable[Listed]) -> Iterator[Listed]:
        items = iter(listed)
        while True:
            begun = monotonic()
            # In batches: checking the clock for each would take as long as a quick listing.
            some = list(islice(items, 64))
            self.list_s += monotonic() - begun
            if not some:
                return
            yield from some

    def _units(self, listed: Iterator[Listed]) -> Iterator[list[SourceRef]]:
        """Yields sources without a probe; adds the others to the table."""
        store, folder = self._parts.store, self._parts.stage
        there = part_versions(store, folder)
        known = KnownKeys.of(store, folder, there, self._parts.of(there), may_write=True)
        unit: list[SourceRef] = []
        size = FIRST_WINDOW
        while window := list(islice(listed, size)):
            size = min(2 * size, WINDOW)
            for source in self._new(window, known):
                unit.append(source)
                if len(unit) >= (
                    UNIT_SOURCES if self.n_scanned < LARGE_AFTER else LARGE_UNIT_SOURCES
                ):
                    self.n_scanned += len(unit)
                    yield unit
                    unit = []
            self._progress.sources(len(self._sources))
        if unit:
            self.n_scanned += len(unit)
            yield unit

    def _new(self, window: Sequence[Listed], known: KnownKeys) -> Iterator[SourceRef]:
        """Returns sources of a window of the listing without a probe, in their order."""
        self.n_skipped_names += sum(isinstance(item, SkippedName) for item in window)
        unlisted = [item for item in window if isinstance(item, UnlistedSource)]
        if unlisted:
            self._sources.add_failed(
                {
                    "uri": item.uri, "error_stage": "list", "error_code": str(item.code),
                    "error_message": item.message,
                }
                for item in unlisted
            )  # fmt: skip
        sources = [item for item in window if isinstance(item, ListedSource)]
        keys = [scan_key(source.uri, source.version) for source in sources]
        found = known.find(keys)
        stored: dict[str, list[str]] = {}
        for key, part in zip(keys, found, strict=True):
            if part is not None:
                stored.setdefault(part, []).append(key)
        missing = self._take_stored(stored)
        for source, key, part in zip(sources, keys, found, strict=True):
            if part is None or key in missing:
                yield SourceRef(uri=source.uri, n_bytes=source.bytes, version=source.version)

    def _take_stored(self, stored: dict[str, list[str]]) -> set[str]:
        """Reads probes from parts; returns the keys that their parts lack."""
        missing: set[str] = set()
        with ThreadPoolExecutor(max_workers=READ_THREADS) as pool:
            tables = pool.map(self._parts.read, stored)
            for keys, table in zip(stored.values(), tables, strict=True):
                table = table.select(SCAN_SCHEMA.names)
                own = pc.binary_join_element_wise(table["version"], table["uri"], "\t")
                wanted = pa.array(keys, pa.string())
                # A part also has rows that it does not complete, as of a file that was locked.
                self._sources.add_probes(table.filter(pc.is_in(own, value_set=wanted)))
                missing.update(wanted.filter(pc.invert(pc.is_in(wanted, own))).to_pylist())
        return missing

    def _probe(
        self, units: Iterable[list[SourceRef]], then: Callable[[], None], *, few: bool
    ) -> None:
        # A process for a few sources should not load Parquet; this one has it already.
        step = stage_step(self._stage, keep=None if few else self._keep)
        if not few:
            for probes in self._engine.run([step], units):
                self.cpu_s.update(probes.cpu_s)
                self._sources.add_probes(probes.results)
            return
        listed = list(units)
        probed = list(self._engine.run_here([step], listed))
        then()
        for unit, probes in zip(listed, probed, strict=True):
            self.cpu_s.update(probes.cpu_s)
            self._sources.add_probes(self._keep(unit, probes.results))
