"""An index of the vectors of pictures, for the clips of one output and of other places.

A run makes the index of few clips in memory. It stores the index of many clips under the output
root, and adds new clips later:

    vectors/footage.json       parts of footage in the index, and the numbers of their vectors
    vectors/cells-*.npz        projection and centroids
    vectors/segment-*.bin      codes, by cell

A run makes the index again if it is lost, or if the footage outgrows its cells.

Shape letters: N vectors, E dimensions of codes, O owners.
"""
# ruff: noqa: N806 - shape letters

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, repeat
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curator.errors import DamagedError, StorageError
from curator.stage import Footage, Work
from curator.storage import Store
from curator.tables.checksums import read_rows
from curator.tables.footage_store import FootageStore, block_vectors, footage_object
from curator.tables.json_objects import find_json, sealed_json, to_json
from curator.vectors.vector_codes import Codes, Projection
from curator.vectors.vector_index import VectorIndex, VectorPart, add_parts, merge

logger = logging.getLogger(__name__)

FOLDER = "vectors"
LIST = f"{FOLDER}/footage.json"
STORED_FROM_CLIPS = 25_000
"""Minimum number of clips for a stored index; fewer clips take seconds and 30 MB."""
_SAMPLE = 100_000
"""Number of vectors that train the cells of an index."""
_OUTGROWN = 8
"""A run makes the index again if its vectors are more than this multiple of `n_trained`."""
_MOST_SEGMENTS = 4
"""Maximum number of segments; a run merges more segments into one."""
_BATCH_CLIPS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedPart:
    """A part of footage in an index, which numbers its clips and vectors in order."""

    uri: str
    """Address of its store; empty for the store of the output."""
    name: str
    """Name without folders."""
    n_bytes: int
    """Size; it differs if the part was written again."""
    first_owner: int
    """Number of its first clip."""
    n_clips: int
    first_number: int
    """Number of its first vector."""
    n: int
    """Number of its vectors."""


@dataclass(slots=True)
class PlacedPart:
    """A part of a place, by the place's number, with the ids of its clips, string[N]."""

    facts: IndexedPart
    place: int
    ids: pa.Array
    store: Store | None = None
    """Store that has the part; None for a part in memory."""
    seconds: NDArray[np.float32] | None = None
    """Times of its vectors from each clip's first frame, float32 [N]; None until needed."""

    @property
    def owners(self) -> slice:
        """The numbers of its clips."""
        return slice(self.facts.first_owner, self.facts.first_owner + self.facts.n_clips)


class FootageIndex:
    """Vectors of the clips of several places; the clips are the owners of the vectors.

    The first place may have a stored index under its output root, which is read, and written if the
    place allows it. `work` codes vectors; `n_clips` is the approximate number of clips. `index` is
    None without vectors. Some of the `n_owners` numbers may have lost their clip.
    """

    def __init__(self, footages: Sequence[Footage], work: Work, *, n_clips: int) -> None:
        self.index: VectorIndex | None = None
        self.n_owners = 0
        self.parts: list[PlacedPart] = []
        own = footages[0]
        if isinstance(own, FootageStore) and n_clips >= STORED_FROM_CLIPS:
            self._add_stored(own, footages, work)
        for place, footage in enumerate(footages):
            indexed = {part.facts.name for part in self.parts if part.place == place}
            self._add_blocks(place, footage, indexed, n_clips)

    def mask(self, place: int, wanted: pa.Array | None) -> NDArray[np.bool_]:
        """Returns which owners are clips of a place with `wanted` ids, bool [O]; None for all.

        If two parts have a clip, because its source was measured again, only the last one counts.
        """
        mask = np.zeros(self.n_owners, np.bool_)
        for part in self.parts:
            if part.place == place:
                is_wanted = True if wanted is None else pc.is_in(part.ids, value_set=wanted)
                mask[part.owners] |= np.asarray(is_wanted)
        if wanted is not None and np.count_nonzero(mask) > len(wanted):
            owners = np.flatnonzero(mask)
            last = dict(zip(self.clip_ids(owners), owners.tolist(), strict=True))
            mask[:] = False
            mask[list(last.values())] = True
        return mask

    def first_number(self, asking: NDArray[np.bool_]) -> int:
        """Returns a number below which no vector belongs to the owners `asking`, bool [O]."""
        numbers = [part.facts.first_number for part in self.parts if asking[part.owners].any()]
        return min(numbers, default=self.index.n_vectors if self.index is not None else 0)

    def clip_ids(self, owners: NDArray[np.int64]) -> list[str]:
        """Returns the ids of clips by number."""
        firsts = [part.facts.first_owner for part in self.parts]
        parts = [self.parts[at] for at in _last_at(firsts, owners).tolist()]
        return [
            part.ids[owner - part.facts.first_owner].as_py()
            for part, owner in zip(parts, owners.tolist(), strict=True)
        ]

    def seconds(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Returns the times of vectors in seconds from their clip's first frame, float32 [N]."""
        parts = _last_at([part.facts.first_number for part in self.parts], numbers)
        seconds = np.zeros(len(numbers), np.float32)
        for at in np.unique(parts).tolist():
            part, is_own = self.parts[at], parts == at
            if part.seconds is None:
                assert part.store is not None, "parts in memory have seconds"
                part.seconds = _seconds(_columns(part.store, part.facts.name, "second"))
            seconds[is_own] = part.seconds[numbers[is_own] - part.facts.first_number]
        return seconds

    def _add_blocks(
        self, place: int, footage: Footage, indexed: Collection[str], n_clips: int
    ) -> None:
        """Adds parts that the stored index lacks, in memory."""
        if isinstance(footage, FootageStore):
            left = tuple(name for name in footage.parts if name not in indexed)
            footage = replace(footage, parts=left)
        names = chain(getattr(footage, "parts", ()), repeat(""))
        for block, name in zip(footage.blocks(), names, strict=False):
            vectors_ND, rows = block_vectors(block)
            if len(vectors_ND) and self.index is None:
                n_expected = len(vectors_ND) * max(1.0, n_clips / block.num_rows)
                step = max(1, len(vectors_ND) // _SAMPLE)
                self.index = VectorIndex.trained(vectors_ND[::step], round(n_expected))
            facts = IndexedPart(
                uri="",
                name=name,
                n_bytes=0,
                first_owner=self.n_owners,
                n_clips=block.num_rows,
                first_number=self.index.n_vectors if self.index is not None else 0,
                n=len(vectors_ND),
            )
            if self.index is not None and len(vectors_ND):
                self.index.add(vectors_ND, rows + self.n_owners)
            ids = block["clip_id"].combine_chunks()
            self._take(PlacedPart(facts, place, ids, seconds=_seconds(block)))

    def _take(self, part: PlacedPart) -> None:
        self.parts.append(part)
        self.n_owners = max(self.n_owners, part.facts.first_owner + part.facts.n_clips)

    def _add_stored(self, own: FootageStore, footages: Sequence[Footage], work: Work) -> None:
        """Reads the stored index, and adds new parts if the index may be written."""
        places = [(k, of) for k, of in enumerate(footages) if isinstance(of, FootageStore)]
        sizes: dict[tuple[str, str], int] = {}
        for _, of in places:
            there = of.sizes()
            sizes |= {(_address(of, own), name): there[name] for name in of.parts if name in there}
        listed = _StoredIndex.read(own.store, sizes)
        if own.writes_index:
            wanted = {(_address(of, own), name): of.store for _, of in places for name in of.parts}
            listed = _grown(own.store, listed, wanted, sizes, work)
        if listed is None:
            return
        # Numbers of lost parts are never used again.
        self.index, self.n_owners = listed.index, listed.n_owners
        for place, of in places:
            for name in of.parts:
                facts = listed.parts.get((_address(of, own), name))
                if facts is not None:
                    ids = _columns(of.store, name, "clip_id")["clip_id"].combine_chunks()
                    self._take(PlacedPart(facts, place, ids, of.store))


@dataclass(slots=True)
class _StoredIndex:
    """An index under an output root, and its parts by address of their store and name."""

    index: VectorIndex
    """All vectors, including those of lost parts."""
    parts: dict[tuple[str, str], IndexedPart]
    n_owners: int
    """Number of owners so far, including those of lost parts."""
    n_trained: int
    """Number of vectors at the training of the cells."""

    @classmethod
    def read(cls, store: Store, sizes: Mapping[tuple[str, str], int]) -> "_StoredIndex | None":
        """Reads the index with its unchanged parts.

        Returns None for an output without an index, if a part of the index is damaged, or if most
        of its vectors belong to changed or lost parts.
        """
        try:
            listed = find_json(store, LIST)
            if listed is None:
                return None
            there = {info.key: info.bytes for info in store.list(f"{FOLDER}/")}
            index = VectorIndex.of_stored(store, listed["index"])
            for segment in index.segments:
                if there.get(segment.facts.key) != segment.facts.n_bytes or not segment.is_whole():
                    raise DamagedError(store.uri, segment.facts.key, "it is missing or was changed")
        except (StorageError, ValueError, KeyError, TypeError, BadZipFile) as error:
            logger.warning("this run does not use the stored index of vectors: %s", error)
            return None
        every = {(facts["uri"], facts["name"]): IndexedPart(**facts) for facts in listed["parts"]}
        parts = {at: part for at, part in every.items() if sizes.get(at) == part.n_bytes}
        if 2 * sum(part.n for part in parts.values()) < index.n_vectors:
            return None
        return cls(index, parts, n_owners=listed["n_owners"], n_trained=listed["n_trained"])

    @classmethod
    def trained(cls, parts: Sequence[tuple[Store, str]], n_vectors: int) -> "_StoredIndex":
        """Returns an index without vectors; a sample of `parts` trains its cells."""
        share = _SAMPLE / n_vectors

        def sample(file: pq.ParquetFile) -> NDArray[np.float16]:
            """Returns a share of the vectors, from row groups at even distances."""
            last, n_groups = file.num_row_groups - 1, share * file.num_row_groups
            groups = np.unique(np.linspace(0, last, max(1, round(2 * n_groups))).astype(int))
            step = max(1, round(len(groups) / n_groups))
            vectors = (block_vectors(file.read_row_group(group))[0] for group in groups.tolist())
            return np.concatenate([some[::step] for some in vectors]).astype(np.float16)

        samples = [read_rows(store, footage_object(name), sample) for store, name in parts]
        index = VectorIndex.trained(np.concatenate(samples), n_vectors)
        return cls(index, {}, n_owners=0, n_trained=n_vectors)

    def write(self, store: Store) -> None:
        """Writes the index, and removes objects that it does not name."""
        index = self.index.stored(store, FOLDER)
        value = {
            "index": index,
            "parts": [asdict(part) for part in self.parts.values()],
            "n_owners": self.n_owners,
            "n_trained": self.n_trained,
        }
        store.write(LIST, sealed_json(value, to_json, LIST))
        named = {LIST, index["trained"], *(segment.facts.key for segment in self.index.segments)}
        store.delete([i.key for i in store.list(f"{FOLDER}/") if i.key not in named])


def _address(footage: FootageStore, own: FootageStore) -> str:
    """Returns the address of a store; empty for the output's own, which users may move or copy."""
    return "" if footage.store.uri == own.store.uri else footage.store.uri


def _grown(
    store: Store,
    stored: _StoredIndex | None,
    wanted: Mapping[tuple[str, str], Store],
    sizes: Mapping[tuple[str, str], int],
    work: Work,
) -> _StoredIndex | None:
    """Adds missing parts to a stored index; returns the index, None if there are no vectors."""
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for at, place in wanted.items():
        if stored is None or at not in stored.parts:
            lengths = pc.list_value_length(_columns(place, at[1], "second")["second"])
            counts[at] = len(lengths), pc.sum(lengths).as_py() or 0
    n_new = sum(n for _, n in counts.values())
    if not n_new:
        return stored
    is_new = stored is None
    if stored is None:
        # Removed first: a damaged object would stay, because names follow from content.
        store.delete([info.key for info in store.list(f"{FOLDER}/")])
        sampled = [(wanted[at], at[1]) for at, (_, n) in counts.items() if n]
        stored = _StoredIndex.trained(sampled, n_new)
    elif stored.index.n_vectors + n_new > _OUTGROWN * stored.n_trained:
        return _grown(store, None, wanted, sizes, work)
    else:
        _merge(stored.index, work, store)
    number, new = stored.index.n_vectors, []
    for at, (n_clips, n) in counts.items():
        facts = IndexedPart(
            uri=at[0],
            name=at[1],
            n_bytes=sizes[at],
            first_owner=stored.n_owners,
            n_clips=n_clips,
            first_number=number,
            n=n,
        )
        stored.parts[at] = facts
        stored.n_owners, number = stored.n_owners + n_clips, number + n
        codes = partial(_codes_of, wanted[at], facts)
        new.append(VectorPart(facts.name, n, facts.first_number, codes))
    add_parts(stored.index, work, new, store, FOLDER)
    if is_new:
        _merge(stored.index, work, store)
    stored.write(store)
    return stored


def _merge(index: VectorIndex, work: Work, store: Store) -> None:
    n_cells = len(index.centroids_CE)
    if sum(segment.facts.n_cells == n_cells for segment in index.segments) > _MOST_SEGMENTS:
        merge(index, work, store, FOLDER)


def _last_at(firsts: Sequence[int], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns for each value the position of the largest of `firsts` that is at most the value."""
    order = np.argsort(firsts, kind="stable")
    places: NDArray[np.int64] = np.searchsorted(np.array(firsts)[order], values, "right") - 1
    return order[places]


def _columns(store: Store, part: str, *names: str) -> pa.Table:
    return read_rows(store, footage_object(part), lambda file: file.read(list(names)))


def _seconds(table: pa.Table) -> NDArray[np.float32]:
    seconds: NDArray[np.float32] = pc.list_flatten(table["second"]).to_numpy().astype(np.float32)
    return seconds


def _codes_of(
    store: Store, part: IndexedPart, projection: Projection
) -> list[tuple[Codes, NDArray[np.int64]]]:
    """Reads the vectors of a part; returns codes and owners of some clips at a time."""

    def read(file: pq.ParquetFile) -> list[tuple[Codes, NDArray[np.int64]]]:
        blocks, begin = [], part.first_owner
        for batch in file.iter_batches(_BATCH_CLIPS):
            vectors_ND, rows = block_vectors(pa.Table.from_batches([batch]))
            if len(rows):
                blocks.append((projection.codes(vectors_ND), rows + begin))
            begin += batch.num_rows
        return blocks

    return read_rows(store, footage_object(part.name), read)
