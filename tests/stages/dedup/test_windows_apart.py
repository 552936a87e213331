"""Windows that show the same on purpose are no duplicates; windows of a copy are, per size."""

from dataclasses import replace
from unittest.mock import MagicMock

import numpy as np
import pyarrow as pa
import pytest
from filtered_clips import run_stage
from made_clips import clip_rows
from made_out import SAME

from curator.executor.corpus_work import CorpusWork
from curator.matching.verify_pair import Match
from curator.stages.dedup import stage as dedup_stage
from curator.stages.dedup.config import DedupConfig
from curator.stages.dedup.retention import ShortestClip
from curator.stages.dedup.stage import DedupStage
from curator.tables.clip_rows import ClipRows
from curator.tables.clip_vectors import vectors_table
from curator.tables.duplicate_pairs import NearDuplicatePairs, Pair
from curator.tables.window_spans import WindowSpans

WINDOWS = {
    "a0": ("film", 0, 81, 16.0), "a1": ("film", 127, 81, 16.0), "a2": ("film", 64, 81, 16.0),
    "A0": ("film", 0, 121, 24.0), "A1": ("film", 126, 121, 24.0),
    "b0": ("late", 63, 81, 16.0), "c0": ("copy", 0, 81, 16.0), "C0": ("copy", 0, 121, 24.0),
}  # fmt: skip
"""By name: source, first frame of 25/s, frames and rate of the window."""
NAMES = list(WINDOWS)
WINDOWS |= {
    "e0": ("e", 0, 81, 16.0), "e1": ("e", 127, 81, 16.0), "e2": ("e", 254, 81, 16.0),
    "f0": ("f", 63, 81, 16.0), "f1": ("f", 190, 81, 16.0), "f2": ("f", 317, 81, 16.0),
}  # fmt: skip


def rows(*names: str) -> ClipRows:
    def row(number: int, name: str) -> dict[str, object]:
        source, start, frames, fps = WINDOWS[name]
        end = start + round(frames * 25 / fps)
        return {
            "clip_id": name, "source_id": source, "decision": "kept", "reasons": [],
            "start_frame": start, "end_frame": end, "start_s": start / 25, "end_s": end / 25,
            "width": 1000 - number, "height": 100, "n_frames": frames, "written_fps": fps,
            "window_frames": frames, "window_fps": fps, "bits_per_pixel": 0.1,
        }  # fmt: skip

    return clip_rows(row(number, name) for number, name in enumerate(names))


def match(offset_s: float, length_s: float) -> Match:
    """The other clip shows this one from `offset_s` of the other on; both have one length."""
    overlap_s = length_s - abs(offset_s)
    share = overlap_s / length_s
    return replace(SAME, offset_s=offset_s, overlap_s=overlap_s, share_a=share, share_b=share)


def reasons(clips: ClipRows, *pairs: tuple[str, str, float]) -> dict[str, tuple[str, float]]:
    """The reason and its score of each clip that goes, from pairs: clip, other clip, offset."""
    ids = pa.array(clips.values("clip_id"))
    none = NearDuplicatePairs.of(None, DedupConfig().search_fingerprint)
    stored = none.with_new(
        ids, [], [Pair(clip_id=a, other=b, match=match(offset, 5.08)) for a, b, offset in pairs]
    ).table()
    stage = DedupStage(DedupConfig(), ShortestClip(seconds=2.0, n_frames=17))
    vectors = vectors_table([(name, np.eye(1, 8, dtype=np.float32)[0]) for name in ids.to_pylist()])
    run_stage(stage, clips, vectors, tables=MagicMock(read=lambda _: stored))
    return {c.clip_id: (c.reason, round(c.reason_score, 2)) for c in clips if c.reason}  # type: ignore[misc, arg-type]


def test_windows_of_one_take_and_of_two_sizes_stay_and_those_of_a_copy_go() -> None:
    """Pins that the same pairs between two sources drop every window of the copy, by size."""
    own = [("a0", "A0", 0.0), ("a0", "a2", -2.56), ("a2", "a1", -2.52), ("a1", "A1", 0.0)]
    assert reasons(rows("a0", "a1", "a2", "A0", "A1"), *own) == {}
    copies = [("c0", "a0", 0.0), ("c0", "A0", 0.0), ("C0", "A0", 0.0), ("C0", "a0", 0.0)]
    gone = reasons(rows("a0", "A0", "c0", "C0"), *copies)
    assert gone == {"c0": ("duplicate", 1.0), "C0": ("duplicate", 1.0)}


def test_a_window_that_two_others_show_together_goes_and_leaves_no_part() -> None:
    """Pins that no remainder, which would be shorter than a window, becomes a clip."""
    clips = rows("a0", "a1", "b0")
    pairs = [("b0", "a0", 2.52), ("b0", "a1", -2.56)]
    assert reasons(clips, *pairs) == {"b0": ("duplicate", 1.0)}
    assert [c.duplicate_of for c in clips if c.reason] == ["a0"]
    # With half of it alone, all of it stays, and so does the other window.
    assert reasons(rows("a0", "b0"), pairs[0]) == {}


def test_only_windows_of_one_size_are_searched_for_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that overlapping windows, which are alike, do not hide a copy among the neighbours."""
    asked: list[tuple[set[str], int]] = []

    def find_pairs(
        _: object, own: pa.Array, *__: object, neighbours: int, **___: object
    ) -> list[Pair]:
        asked.append((set(own.to_pylist()), neighbours))
        return []

    monkeypatch.setattr(dedup_stage, "find_pairs", find_pairs)
    table = pa.concat_tables(rows(*NAMES).blocks())
    corpus = MagicMock(read=lambda _: None, column_names=table.column_names, num_rows=len(NAMES))
    ids = table["clip_id"].combine_chunks()
    stage = DedupStage(DedupConfig(neighbours=10))
    stage._pairs(corpus, ids, WindowSpans.of(table), [], CorpusWork("dedup"))
    assert asked == [({"a0", "a1", "a2", "b0", "c0"}, 10), ({"A0", "A1", "C0"}, 10)]


def test_windows_of_the_better_take_stay_together() -> None:
    """Pins that windows of two takes of about the same quality do not stay in turns."""
    clips = rows("f0", "e0", "e1", "f1", "f2", "e2")
    pairs = [
        (a, b, (WINDOWS[a][1] - WINDOWS[b][1]) / 25)
        for a, b in [("e0", "f0"), ("e1", "f0"), ("e1", "f1"), ("e2", "f1"), ("e2", "f2")]
    ]
    assert reasons(clips, *pairs).keys() == {"e1", "e2"}


def test_windows_of_a_shot_without_a_gap_are_one_take_of_a_minute() -> None:
    """Pins what is compared as one: by shot, source and size, up to a frame that no window has."""
    starts = [*range(0, 2000, 50), 2100, 2150, 2180, 2230, 0, 0]
    spans = WindowSpans(
        size=np.array([1] * 44 + [2, 0]), is_window=np.arange(46) < 45,
        source=np.zeros(46, np.int64),
        shot=np.array([0] * 43 + [1, 0, 0]), start_frame=np.array(starts),
        end_frame=np.array(starts) + 50, start_s=np.array(starts) / 25,
    )  # fmt: skip
    takes = spans.takes().tolist()
    runs = [takes[:30], takes[30:40], takes[40:43], *([take] for take in takes[43:])]
    assert [len(set(run)) for run in runs] == [1] * 6
    assert len({run[0] for run in runs}) == 6
