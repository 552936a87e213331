"""Measures search over many synthetic clips: memory, query time, and recall of planted clips.

Synthetic vectors imitate `scene_network` on similar scenes: two clips of the same of 1,000 kinds
(Zipf's law) have a cosine of 0.6, other clips 0.27, and pictures of one clip 0.87. Clips of MEDIA
are planted among them: 6 s from the middle of each recording. The queries are a frame of a planted
clip, scaled to 60% and encoded as JPEG of quality 30, and a video of 3 s at 360 px and CRF 33.
Synthetic clips have no pictures, so only planted clips are verified.

    search.py MEDIA [--clips 100000] [--recordings 40] [--queries 300]
"""

# ruff: noqa: N803, N806 - shape letters

import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import av
import cv2
import numpy as np
import pyarrow as pa
import tests_path  # noqa: F401
from measure import MIB, arguments, peak_bytes, tell
from numpy.typing import NDArray

from curator.errors import UsageError
from curator.executor.corpus_work import CorpusWork
from curator.matching.clip_footage import ClipFootage
from curator.matching.verify_pair import verify_pair
from curator.measures.score_list import BUILT_IN
from curator.models.scene_network import SCENE_DIM
from curator.recipe import Recipe
from curator.runs.query_media import video_spans
from curator.stages.analyze.config import AnalyzeConfig
from curator.storage import Store, open_store
from curator.tables.footage_index import FootageIndex
from curator.tables.footage_store import FootageStore, footage_object
from curator.tables.parts import rows_to_table, to_parquet
from curator.tables.schemas import FOOTAGE_SCHEMA, clips_schema
from curator.tools.retrieval.clip_search import ClipSearch, FoundClip
from curator.tools.review.finished_run import Finished

KINDS, PICTURES, BLOCK, PART_CLIPS = 1000, 3, 5_000, 50_000
CLIP_S, BEGIN_S, PART_S = 6.0, 1.3, 3.0
TOP = 10


@dataclass(frozen=True, slots=True)
class MadeVectors:
    """Vectors of synthetic clips; blocks can be made in any order."""

    n: int
    common: NDArray[np.float32]
    kinds: NDArray[np.float32]

    @classmethod
    def of(cls, n: int) -> "MadeVectors":
        kinds = unit(np.random.default_rng(0).standard_normal((KINDS + 1, SCENE_DIM)))
        return cls(n, kinds[-1], kinds[:-1])

    def block(self, start: int) -> NDArray[np.float32]:
        """Returns the pictures of the clips from `start` on, float32 [N, PICTURES, D]."""
        rng = np.random.default_rng([1, start])
        n = min(BLOCK, self.n - start)
        kind = np.minimum(rng.zipf(1.3, n) - 1, KINDS - 1)
        clip_ND = unit(rng.standard_normal((n, SCENE_DIM), np.float32))
        picture_NPD = unit(rng.standard_normal((n, PICTURES, SCENE_DIM), np.float32))
        of_clip = 0.5 * self.common + 0.55 * self.kinds[kind] + 0.5 * clip_ND
        made_NPD = unit(of_clip[:, None] + 0.35 * picture_NPD)
        return made_NPD


def write_footage(
    store: Store, made: MadeVectors, planted: Sequence[ClipFootage]
) -> tuple[str, ...]:
    """Writes parts of `candidates/footage`: synthetic clips, and one part of planted clips.

    Returns the names of the parts.
    """
    names = []
    for start in range(0, made.n, PART_CLIPS):
        blocks = [
            footage_table(made.block(at), at)
            for at in range(start, min(start + PART_CLIPS, made.n), BLOCK)
        ]
        names.append(f"{start:016x}-{start:016x}.parquet")
        key = footage_object(names[-1])
        store.write(key, to_parquet(pa.concat_tables(blocks), key, rows_per_group=64))
    rows = [
        {
            "clip_id": one.clip_id,
            "second": one.vector_s,
            "vector": one.vectors_VD.astype(np.float16).ravel(),
        }
        for one in planted
    ]
    names.append(f"{made.n:016x}-{made.n:016x}.parquet")
    key = footage_object(names[-1])
    store.write(key, to_parquet(rows_to_table(rows, FOOTAGE_SCHEMA), key, rows_per_group=64))
    return tuple(names)


def footage_table(vectors_NPD: NDArray[np.float32], start: int) -> pa.Table:
    """Returns rows of `FOOTAGE_SCHEMA` for the clips from number `start` on."""
    n = len(vectors_NPD)
    ends = np.arange(n + 1) * PICTURES
    flat = pa.array(vectors_NPD.astype(np.float16).ravel())
    columns = [
        pa.array([clip_name(start + at) for at in range(n)]),
        pa.ListArray.from_arrays(
            ends.astype(np.int32), pa.array(np.tile(np.arange(PICTURES, dtype=np.float32) * 2, n))
        ),
        pa.ListArray.from_arrays((ends * SCENE_DIM).astype(np.int32), flat),
    ]
    return pa.table(columns, schema=FOOTAGE_SCHEMA)


@dataclass(frozen=True, slots=True)
class PlantedFootage(FootageStore):
    """Footage in which only planted clips have pictures."""

    planted: tuple[ClipFootage, ...] = ()

    def clips(self, clip_ids: Collection[str]) -> dict[str, ClipFootage]:
        return {one.clip_id: one for one in self.planted if one.clip_id in clip_ids}


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeRun(Finished):
    """A run of synthetic and planted clips, all of them kept."""

    made: MadeVectors
    stored: PlantedFootage

    def footage(self) -> FootageStore:
        return self.stored


def unit(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    """Returns vectors of unit length."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    made: NDArray[np.float32] = (vectors / lengths).astype(np.float32)
    return made


def clip_name(number: int) -> str:
    return f"{(number * 2654435761) % 2**32:08x}{number:016x}"


def made_run(n: int, planted: list[ClipFootage], folder: str) -> MadeRun:
    """Returns a run of `n` synthetic clips and the planted clips."""
    schema = clips_schema(BUILT_IN.specs)
    ids = [*map(clip_name, range(n)), *(one.clip_id for one in planted)]
    given = {
        "clip_id": pa.array(ids),
        "source_uri": pa.array(["made"] * len(ids)),
        "decision": pa.array(["kept"] * len(ids)),
        "start_s": pa.array(np.zeros(len(ids))),
        "end_s": pa.array(np.full(len(ids), CLIP_S)),
        "motion": pa.array(np.random.default_rng(2).random(len(ids))),
    }
    columns = [given.get(f.name, pa.nulls(len(ids), f.type)).cast(f.type) for f in schema]
    store = open_store(folder)
    made = MadeVectors.of(n)
    parts = write_footage(store, made, planted)
    return MadeRun(
        store=store,
        summary={},
        recipe=Recipe(),
        clips=pa.table(columns, schema=schema),
        measures=BUILT_IN,
        memory_budget_bytes=1 << 30,
        made=made,
        stored=PlantedFootage(store, parts, planted=tuple(planted)),
    )


def ffmpeg(*arguments: str) -> None:
    subprocess.run(["ffmpeg", "-v", "error", "-y", *arguments], check=True)


def recordings(media: Path, most: int, folder: Path) -> Iterator[tuple[ClipFootage, Path, Path]]:
    """Cuts a clip from each recording; yields the clip, an edited frame and an edited part."""
    n = 0
    for path in sorted(media.rglob("*")):
        if n == most or path.suffix not in (".mp4", ".webm", ".mkv", ".mov"):
            continue
        whole, frame, part = (folder / f"{n}{end}" for end in (".mp4", ".jpg", "-part.mp4"))
        try:
            with av.open(str(path)) as container:
                length_s = (container.duration or 0) / av.time_base
            start_s = max(0.0, (length_s - CLIP_S) / 2)
            cut = ("-ss", f"{start_s:.3f}", "-i", str(path), "-t", str(CLIP_S), "-an")
            ffmpeg(*cut, "-crf", "18", str(whole))
            (clip,) = video_spans(whole, AnalyzeConfig()).values()
        except (av.FFmpegError, UsageError, subprocess.CalledProcessError, ValueError):
            continue
        if clip.duration_s < CLIP_S - 0.5 or len(clip.vectors_VD) < 2:
            continue
        ffmpeg("-ss", "1.7", "-i", str(whole), "-frames:v", "1", str(frame))
        picture = cv2.imread(str(frame))
        assert picture is not None
        smaller = cv2.resize(picture, None, fx=0.6, fy=0.6, interpolation=cv2.INTER_AREA)
        cv2.imwrite(str(frame), smaller, [cv2.IMWRITE_JPEG_QUALITY, 30])
        ffmpeg(
            "-ss", str(BEGIN_S), "-i", str(whole), "-t", str(PART_S),
            "-vf", "scale=-2:360", "-crf", "33", str(part),
        )  # fmt: skip
        yield replace(clip, clip_id=f"planted{n:04}"), frame, part
        n += 1


def write_index(run: MadeRun) -> None:
    """Writes the index of a run in this process, as the stage `dedup` does."""
    footage = replace(run.stored, writes_index=True)
    FootageIndex([footage], CorpusWork("search"), n_clips=run.clips.num_rows)


def spent_by(call: Callable[[], object]) -> str:
    """Calls a function once; returns wall time, CPU time and peak memory as text."""
    begun, begun_cpu = time.perf_counter(), time.process_time()
    call()
    wall_s, cpu_s = time.perf_counter() - begun, time.process_time() - begun_cpu
    return f"{wall_s:.1f} s, {cpu_s:.1f} CPU-s, peak so far {peak_bytes() // MIB} MiB"


def times_of(calls: Iterable[Callable[[], object]]) -> dict[str, float]:
    """Calls functions in sequence; returns percentiles of wall time and CPU time."""
    spent = []
    for call in calls:
        begun, begun_cpu = time.perf_counter(), time.process_time()
        call()
        spent.append((time.perf_counter() - begun, time.process_time() - begun_cpu))
    wall, cpu = 1000 * np.array(spent).T
    return {
        "p50, ms": round(float(np.percentile(wall, 50)), 1),
        "p95, ms": round(float(np.percentile(wall, 95)), 1),
        "p95, CPU-ms": round(float(np.percentile(cpu, 95)), 1),
    }


def _found(clips: ClipSearch, by: str, file: Path, found: list[list[FoundClip]]) -> None:
    found.append(clips.find(by, str(file), 20))


def planted_found(
    clips: ClipSearch, by: str, files: list[Path]
) -> tuple[dict[str, Any], list[list[FoundClip]]]:
    """Searches for planted clips; returns times with the share in the top 10, and results."""
    found: list[list[FoundClip]] = []
    times = times_of(partial(_found, clips, by, file, found) for file in files)
    top = [
        f"planted{n:04}" in [clip.clip_id for clip in some[:TOP]] for n, some in enumerate(found)
    ]
    return {"top 10": round(float(np.mean(top)), 3), **times}, found


def vectors_found(run: MadeRun, clips: ClipSearch, n: int) -> dict[str, Any]:
    """Searches with edited pictures of synthetic clips, at a cosine of 0.9 to the stored ones."""
    rng = np.random.default_rng(3)
    chosen = rng.integers(0, min(BLOCK, run.made.n), n)
    own_ND = run.made.block(0)[chosen, 1]
    queries_ND = unit(0.9 * own_ND + np.sqrt(0.19) * unit(rng.standard_normal(own_ND.shape)))

    def asked(where: str | None) -> Iterator[Callable[[], object]]:
        return (partial(clips.by_vector, query_D, 20, where) for query_D in queries_ND)

    times_of(itertools.islice(asked(None), 5))
    top = [[one.clip_id for one in clips.by_vector(query_D, TOP)] for query_D in queries_ND]
    hits = [clip_name(number) in ids for number, ids in zip(chosen.tolist(), top, strict=True)]
    return {
        "vector": times_of(asked(None)),
        "vector, 1% of clips allowed": times_of(asked("motion > 0.99")),
        "vector: made clip in the top 10": round(float(np.mean(hits)), 3),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("media", type=Path)
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--recordings", type=int, default=40)
    parser.add_argument("--queries", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        planted = list(recordings(options.media, options.recordings, Path(folder)))
        run = made_run(options.clips, [clip for clip, _, _ in planted], folder)
        results: dict[str, Any] = {"clips": run.clips.num_rows, "planted": len(planted)}
        results["index written"] = spent_by(partial(write_index, run))
        clips = ClipSearch(run)
        results["first query"] = spent_by(partial(clips.by_vector, run.made.common))
        results |= vectors_found(run, clips, options.queries)
        results["picture"], _ = planted_found(clips, "picture", [frame for _, frame, _ in planted])
        results["video"], found = planted_found(clips, "video", [part for _, _, part in planted])
    shared = [
        some[0].shared
        for at, some in enumerate(found)
        if some[0].clip_id == f"planted{at:04}" and some[0].shared is not None
    ]
    right = [one for one in shared if one is not None and abs(one.offset_s - BEGIN_S) <= 0.1]
    results["video: first and verified"] = round(len(shared) / len(planted), 3)
    results["video: offset within 0.1 s"] = round(len(right) / max(1, len(shared)), 3)
    pairs = [(a[0], b[0]) for a in planted[:12] for b in planted[:12] if a is not b]
    begun_cpu = time.process_time()
    for one, other in pairs:
        verify_pair(one, other)
    cpu_ms = 1000 * (time.process_time() - begun_cpu) / max(1, len(pairs))
    results |= {"unlike pair, CPU-ms": round(cpu_ms, 1), "peak, MiB": peak_bytes() // MIB}
    for name, value in results.items():
        print(f"{name:36}{value}")
    tell(results)


if __name__ == "__main__":
    main()
