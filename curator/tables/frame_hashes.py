"""Hashes of decoded frames, which identify removed footage in other files.

A hash covers the luma of `WINDOW` consecutive frames, as the analysis measured it (`luma_mean` and
`luma_spread` of each frame). It depends on decoded pictures only, and not on the container, its
bytes or its timestamps. A record has one hash per `STRIDE` frames of a removed span. All windows of
another source are compared with these hashes, so the footage may begin anywhere in its file.

Values are rounded to `STEP`, because different processors differ in the last bits. A window
counts only if its frames differ, because many kinds of footage have black or frozen pictures.
"""
# ruff: noqa: N803 - shape letters: F frames, N clips

from collections.abc import Collection, Iterator, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.storage import Store
from curator.tables.checksums import read_rows
from curator.tables.track_items import FRAMES

WINDOW = 8
"""Frames per hash."""
STRIDE = 16
"""Frames from one hash of a removed span to the next."""
STEP = 2.0**-16
"""Rounding step of luma, which is 0 to 1; another processor changes it by some 1e-7."""
_LEAST_CHANGES = 4
"""Minimum number of changes from frame to frame in a window that counts."""
_COLUMNS = ("source_id", "luma_mean", "luma_spread")
Floats = NDArray[np.float32]
Regions = NDArray[np.int64]
"""[N, 2]: half-open ranges of frames, ascending, that do not touch."""
NO_HASHES: NDArray[np.uint64] = np.zeros(0, np.uint64)
NO_REGIONS: Regions = np.zeros((0, 2), np.int64)


def span_hashes(
    mean_F: Floats, spread_F: Floats, spans: Collection[tuple[int, int]]
) -> NDArray[np.uint64]:
    """Returns the hashes of some half-open spans of a source's frames, each once."""
    hashes, counts = _windows(mean_F, spread_F)
    starts = [
        np.append(np.arange(start, end - WINDOW, STRIDE), end - WINDOW)
        for start, end in spans
        if end - start >= WINDOW
    ]
    at = np.unique(np.concatenate(starts)) if starts else np.zeros(0, np.int64)
    at = at[(at >= 0) & (at < len(hashes))]
    return np.unique(hashes[at[counts[at]]])


def matching_regions(mean_F: Floats, spread_F: Floats, wanted: NDArray[np.uint64]) -> Regions:
    """Returns the regions of a source in which windows have one of the `wanted` hashes, ascending.

    Matching windows at most `2 * STRIDE` frames apart belong to one region.
    """
    hashes, counts = _windows(mean_F, spread_F)
    at = np.minimum(np.searchsorted(wanted, hashes), max(len(wanted) - 1, 0))
    starts = np.flatnonzero(counts & (wanted[at] == hashes)) if len(wanted) else at[:0]
    if not len(starts):
        return NO_REGIONS
    is_first = np.append(True, np.diff(starts) > 2 * STRIDE)
    is_last = np.append(is_first[1:], True)
    return np.stack([starts[is_first], starts[is_last] + WINDOW], axis=1)


def moving_frames(mean_F: Floats, spread_F: Floats) -> NDArray[np.bool_]:
    """Returns which frames differ from the frames around them, bool [F]: no title card does."""
    if not len(mean_F):
        return np.zeros(0, bool)
    frames = _levels(mean_F, spread_F)
    changes: NDArray[np.bool_] = frames[1:] != frames[:-1]
    moves: NDArray[np.bool_] = np.append(True, changes) & np.append(changes, True)
    return moves


def stored_luma(
    store: Store, parts: Collection[str] | None = None
) -> Iterator[tuple[str, Floats, Floats]]:
    """Yields source id, mean and spread [F] of the luma of stored tracks; None for all parts."""
    for name in (i.key for i in store.list(f"tracks/{FRAMES}/")) if parts is None else parts:
        table: pa.Table = read_rows(store, name, lambda file: file.read([*_COLUMNS]))
        for number, source_id in enumerate(table["source_id"].to_pylist()):
            mean, spread = (table[column][number].values for column in _COLUMNS[1:])
            if mean is not None and spread is not None and len(mean) == len(spread):
                yield source_id, np.asarray(mean, np.float32), np.asarray(spread, np.float32)


def frame_regions(
    store: Store, wanted: NDArray[np.uint64], parts: Collection[str] | None = None
) -> dict[str, Regions]:
    """Returns matching regions of stored tracks by source id; `parts` is None for all tracks."""
    stored = stored_luma(store, parts) if len(wanted) else ()
    by_source = {name: matching_regions(mean, spread, wanted) for name, mean, spread in stored}
    return {source_id: regions for source_id, regions in by_source.items() if len(regions)}


def shares_frames(
    regions: Regions, start_N: NDArray[np.int64], end_N: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Returns which half-open spans share more than a frame with a region, bool [N]."""
    first = np.searchsorted(regions[:, 1], start_N + 1, "right")
    padded = np.append(regions[:, 0], np.iinfo(np.int64).max)
    return padded[first] < end_N - 1


def overlapping_regions(clips: pa.Table, regions: Mapping[str, Regions]) -> NDArray[np.bool_]:
    """Returns which clips share more than a frame with a region of their source, bool [N]."""
    is_overlapping = np.zeros(clips.num_rows, bool)
    if not regions or not clips.num_rows:
        return is_overlapping
    coded = clips["source_id"].combine_chunks().dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False)
    start, end = (
        np.asarray(clips[name].to_numpy(), np.int64) for name in ("start_frame", "end_frame")
    )
    for code, source_id in enumerate(coded.dictionary.to_pylist()):
        if source_id in regions:
            rows = np.flatnonzero(codes == code)
            is_overlapping[rows] = shares_frames(regions[source_id], start[rows], end[rows])
    return is_overlapping


def _levels(mean_F: Floats, spread_F: Floats) -> NDArray[np.uint64]:
    """Returns the rounded luma of each frame as one number, uint64 [F]."""
    mean, spread = (
        np.rint(values.astype(np.float64) / STEP).astype(np.uint64) for values in (mean_F, spread_F)
    )
    return mean << np.uint64(32) | spread


def _windows(mean_F: Floats, spread_F: Floats) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Returns the hash of each window, and whether it counts; uint64 and bool [F - WINDOW + 1]."""
    n_windows = len(mean_F) - WINDOW + 1
    if n_windows < 1:
        return np.zeros(0, np.uint64), np.zeros(0, bool)
    frames = _levels(mean_F, spread_F)
    changes = np.append(0, np.cumsum(frames[1:] != frames[:-1]))
    counts = changes[WINDOW - 1 :] - changes[:n_windows] >= _LEAST_CHANGES
    hashes = np.zeros(n_windows, np.uint64)
    for offset in range(WINDOW):
        # SplitMix64's finaliser: each bit of the result depends on all bits.
        hashes = (hashes ^ frames[offset : offset + n_windows]) + np.uint64(0x9E3779B97F4A7C15)
        hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes ^= hashes >> np.uint64(31)
    return hashes, counts
