"""The footage of OUT that some recipe could give to a trainer, and what its clips give now.

A usable take is an uninterrupted part of a shot whose candidate clips are kept, or rejected only
because of their length, size or rate. Shape letters: N takes, C clips.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import UsageError
from curator.records.clips import WINDOWED, WITH_SOUND, Reason
from curator.storage import Store
from curator.tables.candidate_store import stored_candidates
from curator.tables.checksums import read_parquet
from curator.tables.output_format import existing

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LENGTH_OR_FORM = frozenset({
    Reason.TOO_SHORT, Reason.SHORTER_THAN_WINDOW, Reason.SMALLER_THAN_SIZE,
    Reason.CROPPED_TOO_MUCH, Reason.SLOWER_THAN_FPS, Reason.NO_BUCKET, Reason.NO_ASPECT_CLASS,
})  # fmt: skip
"""Reasons that another recipe of the same footage may lift."""
_JOIN_S = 0.002
"""Gap between two clips of one take: containers round times to milliseconds."""
_SPAN = ("source_id", "shot", "start_frame", "end_frame", "start_s", "end_s")
_FORM = ("fps_fraction", "width", "height", "rate_factor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Takes:
    """Usable takes, as arrays [N].

    Attributes:
        n_frames: Frames at the rate `fps` of the source, the nominal one if it varies.
        kind: Row of `kinds`.
        kinds: Distinct widths and heights in pixels, and whether there is sound: int64 [K, 3].
        weight: Number of takes that a row stands for.
    """

    n_frames: Ints
    fps: Floats
    kind: Ints
    kinds: Ints
    weight: Floats

    @property
    def seconds(self) -> Floats:
        """Length of each take."""
        return self.n_frames / self.fps

    @property
    def total_s(self) -> float:
        """Seconds of all takes."""
        return float(np.dot(self.seconds, self.weight))

    def at(self, rows: Any) -> "Takes":  # noqa: ANN401 - a mask, or numbers
        """Returns some takes."""
        own = {name: getattr(self, name)[rows] for name in ("n_frames", "fps", "kind", "weight")}
        return replace(self, **own)

    def distinct(self) -> "Takes":
        """Returns one row for each form, with the number of takes as its weight."""
        key = np.stack([self.kind, np.rint(self.fps * 1e6).astype(np.int64), self.n_frames])
        order = np.lexsort(key[::-1])
        key = key[:, order]
        first = np.flatnonzero(np.r_[True, np.any(key[:, 1:] != key[:, :-1], axis=0)])
        return replace(self.at(order[first]), weight=np.add.reduceat(self.weight[order], first))

    def sample(self, most: int) -> "Takes":
        """Returns at most `most` distinct takes, evenly over the forms, with the same seconds."""
        takes = self.distinct()
        n = len(takes.weight)
        if n <= most:
            return takes
        first = np.unique(np.linspace(0, n, most, endpoint=False).astype(np.int64))
        middle = (first + np.r_[first[1:], n]) // 2
        part_s = np.add.reduceat(takes.seconds * takes.weight, first)
        sampled = takes.at(middle)
        return replace(sampled, weight=part_s / sampled.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clips:
    """Clips, as arrays [C].

    Attributes:
        place: Row of the take, or number of the source.
        start_s: Begin in the take, or in the source; `end_s` is the end.
        n_frames: Frames as written, at the rate `fps`.
        kind: Row of `kinds`, as of `Takes`.
        window: Number of the window of which the clip is made; 0 for others.
    """

    place: Ints
    start_s: Floats
    end_s: Floats
    n_frames: Ints
    fps: Floats
    kind: Ints
    kinds: Ints
    window: Ints

    def at(self, rows: Any) -> "Clips":  # noqa: ANN401 - a mask, or numbers
        """Returns some clips."""
        names = ("place", "start_s", "end_s", "n_frames", "fps", "kind", "window")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})


def usable_takes(store: Store, summary: Mapping[str, Any]) -> Takes:
    """Returns the usable takes of a snapshot.

    Raises:
        UsageError: The snapshot has none.
    """
    table = _spans(store, summary)
    if not table.num_rows:
        raise UsageError(f"{store.uri}: no clip is kept, or rejected only for its length or form")
    source = table["source_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    shot, begin, end = (_ints(table[n]) for n in ("shot", "start_frame", "end_frame"))
    order = np.lexsort((end, begin, shot, source))
    source, shot, begin, end = (
        column[order].astype(np.int64) for column in (source, shot, begin, end)
    )
    start_s, end_s = (table[n].to_numpy()[order] for n in ("start_s", "end_s"))
    width, height = (_ints(table[n])[order] for n in ("width", "height"))
    fps = _source_rates(table)[order]
    # Candidates of two sizes of windows overlap: a take goes to the furthest end so far.
    group = source << 32 | shot
    reach = _running_max(end, group)
    reach_s = _running_max(end_s, group)
    same = (group[1:] == group[:-1]) & (begin[1:] <= reach[:-1])
    same &= start_s[1:] <= reach_s[:-1] + _JOIN_S
    same &= (width[1:] == width[:-1]) & (height[1:] == height[:-1])
    first = np.flatnonzero(np.r_[True, ~same])
    last = np.r_[first[1:], len(order)] - 1
    seconds = np.maximum(reach_s[last] - start_s[first], 1e-3)
    has_sound = _sources_with_sound(store, summary)
    ids = table["source_id"].combine_chunks().dictionary_encode().dictionary.to_pylist()
    sound = np.array([one in has_sound for one in ids], np.int64)[source[first]]
    kinds, kind = np.unique(
        np.stack([width[first], height[first], sound], axis=1), axis=0, return_inverse=True
    )
    return Takes(
        n_frames=np.maximum(1, np.rint(seconds * fps[first])).astype(np.int64),
        fps=fps[first],
        kind=kind.reshape(-1),
        kinds=kinds,
        weight=np.ones(len(first)),
    )


def written_clips(clips: pa.Table) -> Clips:
    """Returns the kept clips of an output, with their places in their sources."""
    source = clips["source_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    texts = clips["audio"].to_pylist()
    sound = np.array([text in WITH_SOUND for text in texts], np.int64)
    sizes = [_ints(clips[name]) for name in ("width", "height")]
    kinds, kind = np.unique(np.stack([*sizes, sound], axis=1), axis=0, return_inverse=True)
    return Clips(
        place=source.astype(np.int64),
        start_s=clips["start_s"].to_numpy(),
        end_s=clips["end_s"].to_numpy(),
        n_frames=_ints(clips["n_frames"]),
        fps=_rates(clips["fps_fraction"].to_pylist()),
        kind=kind.reshape(-1),
        kinds=kinds,
        window=_window_numbers(clips),
    )


def _window_numbers(clips: pa.Table) -> Ints:
    """Returns 0 for clips without a window, and the number of the size for others."""
    if WINDOWED[0] not in clips.column_names:
        return np.zeros(clips.num_rows, np.int64)
    sizes = [pc.fill_null(clips[name].cast(pa.float64()), 0.0).to_numpy() for name in WINDOWED]
    _, number = np.unique(np.stack(sizes), axis=1, return_inverse=True)
    return np.where(sizes[0] > 0, number.reshape(-1) + 1, 0).astype(np.int64)


def _spans(store: Store, summary: Mapping[str, Any]) -> pa.Table:
    """Returns usable candidates with the span, size and rate of the source."""
    columns = ["clip_id", "decision", "reason", "reasons", *_SPAN, *_FORM]
    parts = []
    for name in existing(store, summary, "clips"):
        part = read_parquet(store, name)
        known = [column for column in columns if column in part.column_names]
        parts.append(part.select(known))
    table = pa.concat_tables(parts, promote_options="permissive")
    usable = [
        decision == "kept" or {*(reasons or [reason])} <= LENGTH_OR_FORM
        for decision, reason, reasons in zip(
            *(table[n].to_pylist() for n in ("decision", "reason", "reasons")), strict=True
        )
    ]
    table = table.filter(pa.array(usable, pa.bool_())).drop_columns(
        ["decision", "reason", "reasons"]
    )
    # A clip as written may be shorter than its candidate, and of another size and rate.
    places = {name: row for row, name in enumerate(table["clip_id"].to_pylist())}
    rows = np.full(table.num_rows, -1, np.int64)
    stored = [
        read_parquet(store, name, ("clip_id", *_SPAN[2:], "width", "height"))
        for name in stored_candidates(summary, "clips")
    ]
    if not stored:
        return table
    candidates = pa.concat_tables(stored, promote_options="permissive")
    for row, name in enumerate(candidates["clip_id"].to_pylist()):
        if (place := places.get(name)) is not None:
            rows[place] = row
    is_stored = rows >= 0
    for name in (*_SPAN[2:], "width", "height"):
        own = table[name].to_numpy().copy()
        own[is_stored] = candidates[name].to_numpy()[rows[is_stored]]
        table = table.set_column(table.column_names.index(name), name, pa.array(own))
    return table


def _source_rates(table: pa.Table) -> Floats:
    rates = _rates(table["fps_fraction"].to_pylist())
    if "rate_factor" not in table.column_names:
        return rates
    factor = table["rate_factor"].cast(pa.float64()).to_numpy()
    return rates / np.where(np.isnan(factor), 1.0, factor)


def _sources_with_sound(store: Store, summary: Mapping[str, Any]) -> set[str]:
    ids: set[str] = set()
    for name in existing(store, summary, "sources"):
        part = read_parquet(store, name, ("source_id", "has_audio"))
        pairs = zip(part["source_id"].to_pylist(), part["has_audio"].to_pylist(), strict=True)
        ids |= {source for source, has_audio in pairs if has_audio}
    return ids


def _rates(texts: list[str]) -> Floats:
    known = {text: float(Fraction(text)) for text in set(texts)}
    return np.array([known[text] for text in texts], np.float64)


def _ints(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.to_numpy(), np.int64)


def _running_max(values: NDArray[Any], group: Ints) -> NDArray[Any]:
    """Returns the largest value so far within each group of neighbours."""
    number = np.cumsum(np.r_[0, group[1:] != group[:-1]])
    step = float(values.max() - values.min() + 1)
    reached = np.maximum.accumulate(values + number * step)
    return (reached - number * step).astype(values.dtype)
