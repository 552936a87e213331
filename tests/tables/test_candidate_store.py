"""New candidates are written by bytes, because pictures of 50,000 clips may exceed 2 GiB."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from made_out import candidates_table

from curator.storage import open_store
from curator.storage.local_store import LocalStore
from curator.tables import candidate_store
from curator.tables.candidate_store import Candidates, ProposedUnit
from curator.tables.clip_vectors import vectors_table
from curator.tables.parts import rows_to_table
from curator.tables.schemas import FOOTAGE_SCHEMA, PICTURES_SCHEMA, SHOTS_SCHEMA
from curator.tables.source_table import MEASURED_SCHEMA

STAMP = "1" * 16
TRACK = f"tracks/frames/{'0' * 16}-{'2' * 16}.parquet"


def unit_of(number: int, jpegs: pa.Array, *, n: int = 2) -> ProposedUnit:
    """A source with `n` clips, which share the pictures."""
    source_id, uri = f"{number:032x}", f"/films/{number}.mp4"
    ids = [f"{number * n + clip:024x}" for clip in range(n)]
    source = {"source_id": source_id, "uri": uri, "outcome": "done", "n_clips": n, "notes": []}
    each = len(jpegs) // n
    pictures = rows_to_table([{"clip_id": name} for name in ids], PICTURES_SCHEMA)
    lists = pa.ListArray.from_arrays(pa.array(np.arange(n + 1) * each, pa.int32()), jpegs)
    return ProposedUnit(
        track_parts={source_id: TRACK},
        sources=rows_to_table([source], MEASURED_SCHEMA),
        shots=SHOTS_SCHEMA.empty_table(),
        clips=candidates_table(n, clip_id=ids, source_id=[source_id] * n, source_uri=[uri] * n),
        vectors=vectors_table([(name, np.full(4, number, np.float32)) for name in ids]),
        footage=rows_to_table(
            [{"clip_id": name, "second": [0.0], "vector": [1.0]} for name in ids], FOOTAGE_SCHEMA
        ),
        pictures=pictures.set_column(3, PICTURES_SCHEMA.field("jpeg"), lists),
    )


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = open_store(str(tmp_path / "out"))
    assert isinstance(store, LocalStore)
    store.write(TRACK, b"tracks")
    return store


def test_a_first_run_with_more_than_2_gib_of_pictures_ends(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The units share 32 MiB of pictures, and 2.4 GB of them pass: no object has more than 256 MiB.

    Encoding is left out: it gets the rows that would be stored.
    """
    sizes, ids = list[int](), list[str]()

    def encoded(table: pa.Table, name: str, **_: object) -> bytes:
        if name.startswith("candidates/pictures/"):
            sizes.append(table.nbytes)
            ids.extend(table["clip_id"].to_pylist())
            assert pc.all(
                pc.equal(pc.binary_length(pc.list_flatten(table["jpeg"])), 1 << 23)
            ).as_py()
        return b""

    monkeypatch.setattr(candidate_store, "to_parquet", encoded)
    candidates = Candidates(store, STAMP, has_clip=False)
    shared = pa.array([bytes(1 << 23)] * 4)
    for number in range(72):
        candidates.add(unit_of(number, shared))
    candidates.flush()
    assert sum(sizes) > 1 << 31
    assert max(sizes) < (256 + 64 + 1) << 20
    assert sorted(ids) == [f"{number:024x}" for number in range(144)]


def stored(candidates: Candidates, n: int) -> list[tuple[str, str, bytes]]:
    """Clips with their sources and pictures, as a later run loads them."""
    uris = {f"{number:032x}": f"/films/{number}.mp4" for number in range(n)}
    units = list(candidates.load(uris))
    rows = [row for unit in units for row in unit.clips.to_pylist()]
    pictures = candidates.pictures([row["clip_id"] for row in rows])
    return sorted((row["clip_id"], row["source_id"], pictures[row["clip_id"]]) for row in rows)


def names(store: LocalStore, kind: str = "pictures") -> list[str]:
    return [info.key for info in store.list(f"candidates/{kind}/")]


@pytest.mark.parametrize("pack_units", [2, 256])
def test_candidates_do_not_depend_on_the_bound(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, pack_units: int
) -> None:
    """Parts that are full by bytes are not merged, and merged parts are not merged again."""
    monkeypatch.setattr(candidate_store, "PACK_UNITS", pack_units)
    monkeypatch.setattr(candidate_store, "MAX_PARTS", 1)
    n, expected = 12, list[tuple[str, str, bytes]]()
    for number in range(n):
        jpegs = [bytes([number, clip]) * 50_000 for clip in range(2)]
        expected += [
            (f"{number * 2 + clip:024x}", f"{number:032x}", jpeg) for clip, jpeg in enumerate(jpegs)
        ]

    def filled(bound: int) -> Candidates:
        monkeypatch.setattr(candidate_store, "FLUSH_BYTES", bound)
        candidates = Candidates(store, STAMP, has_clip=False)
        for number in range(n):
            jpegs = [bytes([number, clip]) * 50_000 for clip in range(2)]
            candidates.add(unit_of(number, pa.array(jpegs)))
        candidates.flush()
        return candidates

    filled(400_000)  # a unit has 200 KB of pictures
    assert len(names(store)) == 6
    assert stored(Candidates(store, STAMP, has_clip=False), n) == expected
    again = Candidates(store, STAMP, has_clip=False)
    assert stored(again, n) == expected
    # Few parts are full, because rows have other columns too.
    assert len(again.names() & set(names(store))) == 6
    monkeypatch.setattr(candidate_store, "FLUSH_BYTES", 1_000_000)
    merging = Candidates(store, STAMP, has_clip=False)
    assert stored(merging, n) == expected
    merged = merging.names()
    assert len(merged & set(names(store))) == 3
    store.delete([name for name in names(store) if name not in merged])
    final = Candidates(store, STAMP, has_clip=False)
    assert stored(final, n) == expected
    assert final.names() == merged


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
        units = [unit_of(int(source_id, 16), jpegs) for source_id in asked[-1]]
        return [replace(unit, sources=MEASURED_SCHEMA.empty_table()) for unit in units]

    candidates = Candidates(store, STAMP, has_clip=False)
    uris = {f"{number:032x}": f"/moved/{number}.mp4" for number in range(4)}
    for n_calls in (3, 3):
        unit = candidates.remainders(parts, uris, propose)
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
        candidates.add(unit_of(number, pa.array([b"a", b"b"])))
        candidates.flush()
    assert listed == ["tracks/frames/"]
    monkeypatch.undo()
    assert len(stored(Candidates(store, STAMP, has_clip=False), 5)) == 10
