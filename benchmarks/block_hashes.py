#!/usr/bin/env python3
"""Measures what hashes of blocks cost: taking them, and cutting through them.

    block_hashes.py FILM... [--runs 7]

With and without run one after the other, and the one that runs first changes with each pair; the
first pair warms up and is not counted. CPU-seconds are those of this process, with one thread.
Cutting writes two clips of 25 frames of each film, encoded.
"""

import argparse
import io
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from measure import machine

from curator.cut_requests import cut_request
from curator.executor.unit_worker import UnitWorker
from curator.records.clips import Span
from curator.records.sources import SourceRef
from curator.records.tracks import Track
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.stage import AnalyzeStage
from curator.stages.cut.clip_cutter import ClipCutter
from curator.stages.cut.config import CutConfig
from curator.storage import HashingReader, content_id, open_blocks, open_source
from curator.storage.source_reader import stat_source
from curator.tables.track_items import SourceItem

CLIPS, CLIP_FRAMES = 2, 25


class _NoHashes:
    """In the place of the hashes of blocks."""

    def update(self, data: memoryview) -> None:
        """Takes nothing."""

    def digest(self) -> bytes:
        """Gives nothing."""
        return b""


def hashed(path: Path, *, blocks: bool) -> None:
    """Reads a film as the analysis does."""
    reader = HashingReader(path.open("rb"))
    if not blocks:
        vars(reader)["_blocks"] = _NoHashes()
    while reader.read(1 << 18):
        pass
    reader.finish()
    reader.close()


def cut(path: Path, track: Track, *, blocks: bool) -> None:
    """Encodes clips of a film."""
    n_bytes, version = stat_source(str(path))

    def opened() -> BinaryIO:
        return open_source(str(path), expected_version=version)

    reader = (
        open_blocks(opened, str(path), n_bytes=n_bytes, hashes=track.block_hashes)
        if blocks
        else opened()
    )
    with (
        reader,
        ClipCutter(
            reader,
            str(path),
            n_bytes=n_bytes,
            config=CutConfig(mode="encode"),
            max_pixels=1 << 26,
            decoder_threads=1,
        ) as cutter,
    ):
        for number in range(CLIPS):
            begin = number * (track.n_frames - CLIP_FRAMES) // CLIPS
            span = Span(start_frame=begin, end_frame=begin + CLIP_FRAMES, shot=0)
            cutter.cut(cut_request(track, f"{number}", span))


def compared(work: Callable[..., None], runs: int) -> dict[str, float]:
    """Median CPU-seconds without and with, and the median of the pairs' ratios."""
    spent: dict[bool, list[float]] = {False: [], True: []}
    for number in range(runs + 1):
        for blocks in (False, True) if number % 2 else (True, False):
            begun_s = time.process_time()
            work(blocks=blocks)
            if number:
                spent[blocks].append(time.process_time() - begun_s)
    ratios = [b / a for a, b in zip(spent[False], spent[True], strict=True)]
    return {
        "without_s": round(statistics.median(spent[False]), 4),
        "with_s": round(statistics.median(spent[True]), 4),
        "ratio": round(statistics.median(ratios), 4),
        "least": round(min(ratios), 4),
        "most": round(max(ratios), 4),
    }


def analyzed(path: Path) -> Track:
    """Decodes a film for its frame times."""
    n_bytes, version = stat_source(str(path))
    source_id = content_id(io.BytesIO(path.read_bytes()), n_bytes)
    source = SourceRef(uri=str(path), n_bytes=n_bytes, version=version, source_id=source_id)
    families = frozenset({"frames"})
    worker = UnitWorker(stage=AnalyzeStage(AnalyzeConfig(device="cpu"), families=families))
    (track,) = worker([SourceItem(source=source, families=families)]).results
    assert isinstance(track, Track), track
    return track


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("films", type=Path, nargs="+")
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    films: list[Path] = options.films
    tracks = {film: analyzed(film) for film in films}

    def hash_all(*, blocks: bool) -> None:
        for film in films:
            hashed(film, blocks=blocks)

    def cut_all(*, blocks: bool) -> None:
        for film in films:
            cut(film, tracks[film], blocks=blocks)

    found = {"hash": compared(hash_all, options.runs), "cut": compared(cut_all, options.runs)}
    facts = {
        "bytes": sum(film.stat().st_size for film in films),
        "frames": sum(track.n_frames for track in tracks.values()),
    }
    print("what   without s   with s   ratio (least to most)")
    for name, one in found.items():
        print(f"{name:5}  {one['without_s']:9.4f}  {one['with_s']:7.4f}   {one['ratio']:.4f}"
              f" ({one['least']:.4f} to {one['most']:.4f})")  # fmt: skip
    print(json.dumps({"machine": machine(), **facts, **found}))


if __name__ == "__main__":
    main()
