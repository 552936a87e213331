"""Workers store and join the payload of candidates; the driver stores the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from made_out import candidates_table

from curator.records.sources import SourceRef
from curator.storage import open_store
from curator.storage.local_store import LocalStore
from curator.tables import candidate_store
from curator.tables.candidate_store import (
    PAYLOAD,
    Candidates,
    Payload,
    PayloadJoin,
    PayloadJoiner,
    ProposedUnit,
    write_payload,
)
from curator.tables.clip_vectors import vectors_table
from curator.tables.parts import rows_to_table
from curator.tables.schemas import FOOTAGE_SCHEMA, PICTURES_SCHEMA, SHOTS_SCHEMA
from curator.tables.source_table import MEASURED_SCHEMA

STAMP = "1" * 16
TRACK = f"tracks/frames/{'0' * 16}-{'2' * 16}.parquet"


def unit_of(store: LocalStore, number: int, jpegs: pa.Array, *, n: int = 2) -> ProposedUnit:
    """A source with `n` clips, which share the pictures."""
    source_id, uri = f"{number:032x}", f"/films/{number}.mp4"
    ids = [f"{number * n + clip:024x}" for clip in range(n)]
    source = {"source_id": source_id, "uri": uri, "outcome": "done", "n_clips": n, "notes": []}
    each = len(jpegs) // n
    pictures = rows_to_table([{"clip_id": name} for name in ids], PICTURES_SCHEMA)
    lists = pa.ListArray.from_arrays(pa.array(np.arange(n + 1) * each, pa.int32()), jpegs)
    vectors = [{"clip_id": name, "second": [0.0], "vector": [1.0]} for name in ids]
    payload = write_payload(
        store,
        STAMP,
        rows_to_table(vectors, FOOTAGE_SCHEMA),
        pictures.set_column(3, PICTURES_SCHEMA.field("jpeg"), lists),
    )
    return ProposedUnit(
        track_parts={source_id: TRACK},
        sources=rows_to_table([source], MEASURED_SCHEMA),
        shots=SHOTS_SCHEMA.empty_table(),
        clips=candidates_table(n, clip_id=ids, source_id=[source_id] * n, source_uri=[uri] * n),
        vectors=vectors_table([(name, np.full(4, number, np.float32)) for name in ids]),
        payload=payload,
    )


def join(store: LocalStore, into: Mapping[str, Sequence[str]]) -> list[Payload]:
    """Joins payload as a worker does."""
    joiner = PayloadJoiner(store)
    return [joiner(PayloadJoin(into=name, names=tuple(names))) for name, names in into.items()]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = open_store(str(tmp_path / "out"))
    assert isinstance(store, LocalStore)
    store.write(TRACK, b"tracks")
    return store


def sources(n: int) -> list[SourceRef]:
    return [
        SourceRef(uri=f"/films/{number}.mp4", n_bytes=1, version="v", source_id=f"{number:032x}")
        for number in range(n)
    ]


def stored(candidates: Candidates, n: int) -> list[tuple[str, str, bytes]]:
    """Clips with their sources and pictures, as a later run loads them."""
    units = list(candidates.load(sources(n)))
    rows = [row for unit in units for row in unit.clips.to_pylist()]
    pictures = candidates.pictures([row["clip_id"] for row in rows])
    return sorted((row["clip_id"], row["source_id"], pictures[row["clip_id"]]) for row in rows)


def names(store: LocalStore, kind: str = "pictures") -> list[str]:
    return [info.key for info in store.list(f"candidates/{kind}/")]


@pytest.mark.long
@pytest.mark.parametrize("pack_units", [2, 256])
def test_candidates_do_not_depend_on_the_bound(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, pack_units: int
) -> None:
    """Parts that are full are not merged, and merged parts are not merged again."""
    monkeypatch.setattr(candidate_store, "PACK_UNITS", pack_units)
    monkeypatch.setattr(candidate_store, "MAX_PARTS", 1)
    n, expected = 12, list[tuple[str, str, bytes]]()
    for number in range(n):
        jpegs = [bytes([number, clip]) * 50 for clip in range(2)]
        expected += [
            (f"{number * 2 + clip:024x}", f"{number:032x}", jpeg) for clip, jpeg in enumerate(jpegs)
        ]

    def filled(bound: int) -> Candidates:
        monkeypatch.setattr(candidate_store, "FLUSH_CLIPS", bound)
        candidates = Candidates(store, STAMP, has_clip=False)
        for number in range(n):
            jpegs = [bytes([number, clip]) * 50 for clip in range(2)]
            candidates.add(unit_of(store, number, pa.array(jpegs)))
        candidates.flush()
        return candidates

    filled(4)
    assert len(names(store, "clips")) == 6
    assert stored(Candidates(store, STAMP, has_clip=False), n) == expected
    again = Candidates(store, STAMP, has_clip=False)
    assert stored(again, n) == expected
    assert len(again.names() & set(names(store, "clips"))) == 6
    monkeypatch.setattr(candidate_store, "FLUSH_CLIPS", 10)
    merging = Candidates(store, STAMP, has_clip=False)
    assert stored(merging, n) == expected
    merged = merging.names()
    assert len(merged & set(names(store, "clips"))) == 3
    kinds = ("clips", *PAYLOAD)
    store.delete([name for kind in kinds for name in names(store, kind) if name not in merged])
    final = Candidates(store, STAMP, has_clip=False)
    assert stored(final, n) == expected
    assert final.names() == merged


@pytest.mark.parametrize("flushes", ["never", "before"])
def test_joined_payload_has_all_pictures_and_later_runs_find_it(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, flushes: str
) -> None:
    """Pins that payload is joined by bytes, that sources name it, and what was joined may go."""
    monkeypatch.setattr(candidate_store, "MAX_PARTS", 2)
    monkeypatch.setattr(candidate_store, "FLUSH_CLIPS", 6 if flushes == "before" else 1000)
    rng = np.random.default_rng(0)
    candidates, n, expected = Candidates(store, STAMP, has_clip=False), 10, {}
    for number in range(n):
        jpegs = [rng.bytes(20_000) for _ in range(2)]
        expected |= {f"{number * 2 + clip:024x}": jpeg for clip, jpeg in enumerate(jpegs)}
        candidates.add(unit_of(store, number, pa.array(jpegs)))
    monkeypatch.setattr(candidate_store, "JOIN_BYTES", 200_000)
    candidates.join_payload(partial(join, store))
    candidates.flush()
    named = candidates.names()
    kept = named & set(names(store))
    # A unit has 40 KB and its footer: four of them are below the bound.
    assert len(kept) == 3
    assert len(names(store)) == n + 3
    for kind in PAYLOAD:
        store.delete([name for name in names(store, kind) if name not in named])
    assert candidates.pictures(expected) == expected
    later = Candidates(store, STAMP, has_clip=False)
    assert {name: jpeg for name, _, jpeg in stored(later, n)} == expected
    assert later.names() == named
    assert sorted(candidates.footage().parts) == sorted(later.footage().parts)
    # Nothing is small any more, or too few are.
    later.join_payload(lambda into: pytest.fail(str(into)))
    # A source without its payload is proposed again.
    store.delete([min(kept)])
    assert len(stored_ids(Candidates(store, STAMP, has_clip=False), n)) < 2 * n


def test_objects_of_an_earlier_run_do_not_change(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that a run joins only its own payload: snapshots have the hashes of earlier objects."""
    monkeypatch.setattr(candidate_store, "MAX_PARTS", 2)
    first = Candidates(store, STAMP, has_clip=False)
    for number in range(6):
        first.add(unit_of(store, number, pa.array([b"a", b"b"])))
    first.flush()
    before = {info.key: store.read(info.key) for info in store.list("candidates/")}
    second = Candidates(store, STAMP, has_clip=False)
    assert len(stored(second, 6)) == 12
    second.join_payload(lambda into: pytest.fail(str(into)))
    for number in range(6, 10):
        second.add(unit_of(store, number, pa.array([b"a", b"b"])))
    second.join_payload(partial(join, store))
    second.flush()
    assert {name: store.read(name) for name in before} == before
    assert len(second.names() & set(names(store))) == 6 + 1
    assert len(stored(Candidates(store, STAMP, has_clip=False), 10)) == 20


def stored_ids(candidates: Candidates, n: int) -> list[str]:
    return [
        name for unit in candidates.load(sources(n)) for name in unit.clips["clip_id"].to_pylist()
    ]


def test_remainders_are_stored_in_parts_of_whole_sources(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidate_store, "REMAINDERS_S", 3.5)
    jpegs = pa.array([b"ab", b"cd"])
    numbers = [2, 0, 1, 0, 3]
    ids = [f"{number:032x}" for number in numbers]
    parts = pa.table(
        {"source_id": ids, "part_start_s": [0.0] * 5, "part_end_s": [1.0, 2.0, 1.0, 1.0, 4.0]}
    )
    asked = list[Sequence[str]]()

    def propose(some: pa.Table) -> list[ProposedUnit]:
        asked.append(sorted(set(some["source_id"].to_pylist())))
        units = [unit_of(store, int(source_id, 16), jpegs) for source_id in asked[-1]]
        return [replace(unit, sources=MEASURED_SCHEMA.empty_table()) for unit in units]

    candidates = Candidates(store, STAMP, has_clip=False)
    uris = {f"{number:032x}": f"/moved/{number}.mp4" for number in range(4)}
    for n_calls in (3, 3):
        unit = candidates.remainders(parts, uris, propose, partial(join, store))
        assert len(asked) == n_calls
        assert sorted(unit.clips["clip_id"].to_pylist()) == [f"{clip:024x}" for clip in range(8)]
        assert set(unit.clips["source_uri"].to_pylist()) == set(uris.values())
    assert [list(map(ids.index, some)) for some in asked] == [[1], [2, 0], [4]]
    assert candidates.pictures([f"{clip:024x}" for clip in range(8)]).keys() == {
        f"{clip:024x}" for clip in range(8)
    }


def test_a_write_lists_no_more_tracks_than_it_needs(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing per write would be quadratic: a run over 10^5 sources has a thousand writes."""
    for number in range(300):
        store.write(f"tracks/frames/{'0' * 16}-{number:016x}.parquet", b"tracks")
    listed = list[str]()
    list_all = LocalStore.list

    def list_and_count(self: LocalStore, prefix: str = "") -> object:
        listed.append(prefix)
        return list_all(self, prefix)

    monkeypatch.setattr(LocalStore, "list", list_and_count)
    candidates = Candidates(store, STAMP, has_clip=False)
    for number in range(5):
        candidates.add(unit_of(store, number, pa.array([b"a", b"b"])))
        candidates.flush()
    assert listed == ["tracks/frames/"]
    monkeypatch.undo()
    assert len(stored(Candidates(store, STAMP, has_clip=False), 5)) == 10
