"""Records name what was removed by hash, and find it by content and span."""

from pathlib import Path

import pyarrow as pa
import pytest

from curator.storage import open_store
from curator.tables.removal_records import (
    Removals,
    RemovedSpan,
    add_record,
    caption_hash,
    empty_record,
    finished_removals,
    mark_finished,
    read_removals,
    removal_hash,
)

RECORD = empty_record("clips") | {
    "created_at": "2026-01-02T03:04:05+00:00", "sources": [removal_hash("s1")],
    "uris": [removal_hash("/a.mp4")], "clip_ids": [removal_hash("c1")], "mp4": ["0" * 64],
    "clips": [
        {"source": removal_hash("s2"), "start_s": 2.0, "end_s": 4.0, "start_frame": 50,
         "end_frame": 100}
    ],
}  # fmt: skip


def test_records_are_numbered_and_read_together(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    assert not read_removals(store)
    for number in (1, 2):
        name = add_record(store, RECORD | {"sources": [removal_hash(f"s{number}")]})
        assert name == f"removed/{number:08d}.json"
        mark_finished(store, [name])
    removals = finished_removals(store)
    assert removals.n_records == 2
    assert str(RECORD["created_at"]) in str(removals.refusal("/a.mp4", "s2"))
    assert removals.refusal("/a.mp4", "s3") is removals.refusal("/a.mp4", None) is None
    assert len(removals.spans_of("s2")) == 2


@pytest.mark.parametrize(
    ("start_s", "end_s", "is_shared"),
    [(0, 2, False), (4, 6, False), (3.96, 6, False), (0, 2.04, False), (3.9, 6, True), (0, 9, True),
     (2.5, 3, True)],
)  # fmt: skip
def test_more_than_a_frame_is_shared_footage(start_s: float, end_s: float, is_shared: bool) -> None:
    span = RemovedSpan(start_s=2.0, end_s=4.0, start_frame=50, end_frame=100)
    removals = Removals(spans={removal_hash("s"): (span,)}, n_records=1)
    rows = [("s", start_s, end_s), ("other", start_s, end_s)]
    names = ("source_id", "start_s", "end_s", "fps")
    clips = pa.table([*(pa.array(list(c)) for c in zip(*rows, strict=True)), [25.0] * 2], names)
    assert removals.overlapping(clips).tolist() == [is_shared, False]


def test_rows_go_by_id_or_address_and_captions_by_words() -> None:
    removals = Removals(
        sources={removal_hash("s1"): ""},
        uris=frozenset({removal_hash("/a.mp4")}),
        clip_ids=frozenset({removal_hash("c1")}),
        n_records=1,
    )
    sources = pa.table(
        {"uri": ["/a.mp4", "/a.mp4", "/b.mp4", "/b.mp4"], "source_id": ["s2", None, "s1", None]}
    )
    assert removals.rows(sources).tolist() == [False, True, True, False]
    # Rows that account for a refused source hold nothing of the source.
    refused = sources.append_column("error_code", pa.array([None, "removed", "removed", None]))
    assert removals.rows(refused).tolist() == [False, False, True, False]
    sidecars = pa.table({"source_uri": ["/a.mp4", "/b.mp4"], "json": ["", ""]})
    assert removals.rows(sidecars).tolist() == [True, False]
    assert removals.rows(pa.table({"clip_id": ["c1", "c2"]})).tolist() == [True, False]
    # Captions are the same in any case and with any spaces.
    assert caption_hash("A dog  runs\nover the sand") == caption_hash("a DOG runs over the sand ")
    assert caption_hash("A dog") is None
