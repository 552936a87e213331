"""An index under an output root finds what one in memory finds, and grows with its parts."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from curator.executor.corpus_work import CorpusWork
from curator.storage import Store, open_store
from curator.tables import footage_index
from curator.tables.footage_index import LIST, FootageIndex
from curator.tables.footage_store import FootageStore, footage_object
from curator.tables.parts import rows_to_table, to_parquet
from curator.tables.schemas import FOOTAGE_SCHEMA
from curator.vectors.neighbour_pairs import NeighbourSearch

DIM, PER_PART = 64, 40
WORK = CorpusWork("test")


@pytest.fixture(autouse=True)
def _of_few_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footage_index, "STORED_FROM_CLIPS", 1)


def write_part(store: Store, number: int) -> str:
    """Writes a part of clips with 0 to 3 vectors; the first ones are like those of all parts."""
    rng, common = np.random.default_rng(number), np.random.default_rng(99)
    rows = []
    for at in range(PER_PART):
        n = at % 4
        vectors = (common if at < 12 else rng).standard_normal((n, DIM))
        vectors += 0.3 * rng.standard_normal((n, DIM)) * (at < 12)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        seconds = np.arange(n, dtype=np.float32) * 2
        rows.append({"clip_id": f"{number}-{at}", "second": seconds,
                     "vector": vectors.astype(np.float16).ravel()})  # fmt: skip
    name = f"{number:016x}-{number:016x}.parquet"
    table = rows_to_table(rows, FOOTAGE_SCHEMA)
    data = to_parquet(table, footage_object(name), rows_per_group=8)
    store.write(footage_object(name), data)
    return name


def footage(store: Store, numbers: Sequence[int], *, writes: bool = True) -> FootageStore:
    return FootageStore(store, tuple(write_part(store, n) for n in numbers), writes)


def pairs(index: FootageIndex, asking: np.ndarray | None = None) -> set[tuple[str, str]]:
    assert index.index is not None
    allowed = index.mask(0, None)
    asking = allowed if asking is None else asking
    since = index.first_number(asking)
    search = NeighbourSearch(
        index=index.index, least=0.7, k=9, since=since, asking=asking, allowed=allowed
    )
    owners = search.owners(WORK)
    names = (index.clip_ids(owners[:, side]) for side in (0, 1))
    return {(min(pair), max(pair)) for pair in zip(*names, strict=True)}


def test_a_stored_index_finds_what_one_in_memory_finds(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    in_memory = FootageIndex([footage(store, range(4), writes=False)], WORK, n_clips=160)
    assert not store.exists(LIST)
    stored = FootageIndex([footage(store, range(4))], WORK, n_clips=160)
    expected = pairs(in_memory)
    assert ("0-1", "3-1") in expected
    assert pairs(stored) == expected
    opened = FootageIndex([footage(store, range(4), writes=False)], WORK, n_clips=160)
    assert opened.index is not None
    assert all(one.facts.key for one in opened.index.segments)
    assert pairs(opened) == expected
    numbers = np.arange(opened.index.n_vectors)
    assert np.array_equal(opened.seconds(numbers), in_memory.seconds(numbers))


def test_it_grows_by_new_parts_which_alone_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footage_index, "_MOST_SEGMENTS", 2)
    store = open_store(str(tmp_path))
    FootageIndex([footage(store, range(2))], WORK, n_clips=80)
    before = {info.key for info in store.list("vectors/segment")}
    grown = FootageIndex([footage(store, range(3))], WORK, n_clips=120)
    assert before < {info.key for info in store.list("vectors/segment")}
    found = pairs(grown, grown.mask(0, pa.array([f"2-{at}" for at in range(PER_PART)])))
    assert found == {pair for pair in pairs(grown) if any(one[0] == "2" for one in pair)}
    merged = FootageIndex([footage(store, range(4))], WORK, n_clips=160)
    assert before.isdisjoint({info.key for info in store.list("vectors/segment")})
    assert pairs(merged) == pairs(FootageIndex(
        [footage(open_store(str(tmp_path / "anew")), range(4))], WORK, n_clips=160))  # fmt: skip


def test_a_moved_output_keeps_its_index_without_parts_that_are_gone(tmp_path: Path) -> None:
    FootageIndex([footage(open_store(str(tmp_path / "a")), range(2))], WORK, n_clips=80)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    moved = footage(open_store(str(tmp_path / "b")), range(2), writes=False)
    index = FootageIndex([moved], WORK, n_clips=80).index
    assert index is not None
    assert all(one.facts.key for one in index.segments)
    # Parts that are gone are not found.
    store = open_store(str(tmp_path))
    FootageIndex([footage(store, range(4))], WORK, n_clips=160)
    data = store.read(LIST)
    fewer = FootageIndex([footage(store, (1, 2, 3))], WORK, n_clips=120)
    found = pairs(fewer)
    assert {name[0] for pair in found for name in pair} == {"1", "2", "3"}
    # Less than half of the vectors count: it is made anew.
    FootageIndex([footage(store, (5,))], WORK, n_clips=40)
    assert store.read(LIST) != data


def test_another_place_is_coded_into_it_and_told_apart(tmp_path: Path) -> None:
    store, other = open_store(str(tmp_path / "out")), open_store(str(tmp_path / "other"))
    footages = [footage(store, (0,)), footage(other, (0, 1), writes=False)]
    index = FootageIndex(footages, WORK, n_clips=120)
    assert not other.exists(LIST)
    assert index.mask(0, None).sum() == PER_PART
    assert index.mask(1, pa.array(["1-3"])).sum() == 1
    assert not (index.mask(0, None) & index.mask(1, None)).any()
    # Generations share parts: ids say whose a clip is.
    two = FootageIndex([footage(store, (0, 1)), footage(store, (1,))], WORK, n_clips=120)
    assert (two.mask(0, None) & two.mask(1, None)).sum() == PER_PART
    assert two.n_owners == 2 * PER_PART


@pytest.mark.parametrize("cut", [0, 9])
@pytest.mark.parametrize("what", ["segment", "cells", "footage.json"])
def test_a_lost_or_damaged_object_makes_it_anew(
    tmp_path: Path, what: str, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(str(tmp_path))
    expected = pairs(FootageIndex([footage(store, range(2))], WORK, n_clips=80))
    (name, *_) = (info.key for info in store.list(f"vectors/{what}"))
    data = bytearray(store.read(name))
    data[len(data) // 2] ^= 1
    store.write(name, bytes(data[: len(data) - cut]))
    opened = FootageIndex([footage(store, range(2), writes=False)], WORK, n_clips=80)
    assert pairs(opened) == expected
    assert "does not use the stored index" in caplog.text
    assert pairs(FootageIndex([footage(store, range(2))], WORK, n_clips=80)) == expected
    caplog.clear()
    FootageIndex([footage(store, range(2))], WORK, n_clips=80)
    assert not caplog.text
