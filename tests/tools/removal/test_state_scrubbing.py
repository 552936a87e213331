"""A removal goes by the declaration of each folder: no folder is named twice, none is forgotten."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from curator.storage import Store, open_store
from curator.tables import out_layout
from curator.tables.corpus_tables import write_vectors
from curator.tables.out_layout import (
    KINDS,
    LAYOUT,
    FolderLifetime,
    OnRemoval,
    StoredKind,
    folders_of,
)
from curator.tables.parts import Parts
from curator.tables.removal_records import Removals, removal_hash
from curator.tools.removal import state_scrubbing
from curator.tools.removal.state_scrubbing import StateScrubbing

GONE, STAYS = "0123456789abcdef" * 2, "fedcba9876543210" * 2
REMOVALS = Removals(sources={removal_hash(GONE): "today"}, clip_ids=frozenset({removal_hash(GONE)}))
FINGERPRINT = "00112233445566aa"


def stored(store: Store, folder: str, *ids: str) -> str:
    """Writes a part with a row per id, as clip, as other clip and as source."""
    columns = {name: list(ids) for name in ("clip_id", "other", "source_id")}
    return Parts(store, folder, FINGERPRINT).write(pa.table(columns), ids)


def left_of(store: Store, name: str) -> list[str] | None:
    """Returns the ids that a part still has; None if it was deleted."""
    parts = Parts(store, "", "")
    return parts.read(name, ["source_id"])["source_id"].to_pylist() if store.exists(name) else None


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def test_texts_read_in_clips_that_stay_survive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that a run after a removal need not decode other clips to read their text again."""
    columns = ("request_keys", "annotation_key", "text_key")
    rows = pa.table([[["asked"], None], ["made", "other"], ["read", None]], columns)

    def tables(_: object, __: object, table: str, names: tuple[str, ...]) -> list[pa.Table]:
        assert table == "annotations"
        return [rows.select(names)]

    monkeypatch.setattr(state_scrubbing, "tables_of", tables)
    kept = state_scrubbing._surviving_requests(None, None)  # type: ignore[arg-type]
    assert kept == {"asked", "made", "other", "read"}


def test_every_folder_is_declared_once() -> None:
    assert len(LAYOUT) == len(KINDS)
    assert {kind.folder for kind in KINDS if not (kind.named or kind.fixed)} == set()
    # `folders_of` takes both.
    assert not {*FolderLifetime} & {*OnRemoval}
    # What later runs store again is what a removal changes in place.
    lives = FolderLifetime.FINGERPRINTED, FolderLifetime.CACHE, FolderLifetime.RUN
    changed = folders_of(OnRemoval.ROWS, OnRemoval.OBJECT, OnRemoval.FOLDER)
    named = {"candidates", "cuts", "duplicate_pairs", "values"}
    assert {*changed} == {*folders_of(*lives), *named}


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("scan", [STAYS]), ("hashes", [STAYS]), ("tracks/frames", [STAYS]),
        ("segments", None), ("duplicate_pairs", None), ("cuts", None), ("frames", None),
        ("values/mine", None), ("families/mine", None),
    ],
)  # fmt: skip
def test_removed_rows_go_and_others_stay_where_the_folder_says_so(
    store: Store, folder: str, expected: list[str] | None
) -> None:
    name = stored(store, folder, GONE, STAYS)
    whole = stored(store, folder, STAYS)
    StateScrubbing(store, REMOVALS).scrub({})
    assert left_of(store, name) == expected
    # No snapshot has the clip, so values of it may be of removed footage.
    is_of_clips = folder.split("/")[0] in ("cuts", "frames", "values", "families")
    assert left_of(store, whole) == (None if is_of_clips else [STAYS])


def test_vectors_that_a_killed_run_left_go(store: Store) -> None:
    """Pins that a removal does not end at an object without ids: its vectors may be of a clip."""
    name = write_vectors(store, np.ones((2, 4), np.float32))
    assert StateScrubbing(store, REMOVALS).named_by_snapshots() == [name]
    StateScrubbing(store, REMOVALS).scrub({})
    assert not store.exists(name)


@pytest.mark.parametrize("on_removal", [OnRemoval.ROWS, OnRemoval.OBJECT, OnRemoval.FOLDER])
def test_a_new_kind_is_one_declaration(
    store: Store, monkeypatch: pytest.MonkeyPatch, on_removal: OnRemoval
) -> None:
    kind = StoredKind("mine", FolderLifetime.CACHE, on_removal, footage=("clip_id",))
    monkeypatch.setattr(state_scrubbing, "KINDS", (*KINDS, kind))
    monkeypatch.setattr(state_scrubbing, "is_own", lambda key: True)
    name = stored(store, "mine", GONE, STAYS)
    StateScrubbing(store, REMOVALS).scrub({})
    assert left_of(store, name) == ([STAYS] if on_removal is OnRemoval.ROWS else None)
    assert out_layout.is_own(name) is False, "the name is not declared"
