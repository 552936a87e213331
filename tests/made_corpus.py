"""A corpus as workers would have left it: probes and candidates are stored, nothing was decoded.

`execute` runs `curate run` over it in this process. Listing and cutting are pretended: sources are
made up, and a written clip is a few bytes.
"""

import hashlib
import io
import json
import multiprocessing
import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from made_out import SAME, candidates_table, store_pairs, thumbnail, unlike_vectors

from curator.dataset.tar_writer import TarWriter
from curator.executor.engine import FACTS, Engine
from curator.executor.progress import Progress
from curator.models.scene_network import SCENE_DIM, SCENE_MODEL
from curator.recipe import Recipe, load_recipe, with_changes
from curator.records.sources import SourceRef
from curator.runs import commit_run as commit
from curator.runs import curation, measuring
from curator.stage import Footage, ReferenceClips
from curator.stages.analyze.analysis_driver import Analyzing
from curator.stages.analyze.families import families_of, tracks_fingerprint
from curator.stages.cut import cut_driver
from curator.stages.dedup import stage as dedup_stage
from curator.stages.propose.stage import ProposeStage
from curator.stages.scan.config import ScanConfig
from curator.stages.scan.listing_records import ListedSource
from curator.stages.scan.stage import ScanStage
from curator.storage import open_store
from curator.tables.candidate_store import Candidates, Payload, ProposedUnit, write_payload
from curator.tables.clip_locations import LOCATION_SCHEMA, Locations
from curator.tables.clip_vectors import as_matrix, vectors_table
from curator.tables.duplicate_pairs import Pair
from curator.tables.fenced_store import Digest
from curator.tables.parts import Parts, rows_to_table
from curator.tables.schemas import (
    FOOTAGE_SCHEMA,
    LUMA_HZ,
    PICTURES_SCHEMA,
    SCAN_SCHEMA,
    SHOTS_SCHEMA,
    embeddings_schema,
)
from curator.tables.source_table import MEASURED_SCHEMA

PER_SOURCE = 50
MP4 = b"a written clip"
CAMERAS = ("a", "b", "broken", None)
LABELS = (["day"], ["night", "private"], ["day", "rain"], None)
SETTINGS = (
    "filters.motion.min=0.02",
    "filters.sharpness.drop_lowest=0.15",
    "filters.luma={drop_lowest: 0.05, drop_highest: 0.05}",
    "filters.noise={drop_highest: 0.1, severity: flag}",
    "filters.grainy={score: noise, max: 2, severity: flag}",
    "filters.camera_motion={max: 0.3, unmeasured: keep}",
    "shard.max_bytes=10000000",
)
META_SETTINGS = (
    "filters.meta.rating={min: 1, unmeasured: keep}", "filters.meta.camera.none_of=[broken]",
    "filters.meta.labels.none_of=[private]", "select.by=[bucket,meta.camera]",
    "select.max_per_group=250", "shard.embedding=scene",
)  # fmt: skip


LIKE: dict[str, list[str]] = {}
"""Clips of the same footage, by id, in the corpus that was made last."""


def uri_of(source: int) -> str:
    """Address of a source by its number."""
    return f"/films/{source // 1000:05}/{source:08}.mp4"


class Ids:
    """How ids are made.

    Attributes:
        in_order: Whether they are in the order of the numbers, so that stored parts hold sources of
            one generation, as runs leave them.
    """

    in_order = False


def id_of(source: int) -> str:
    """Its id, which is no order of the numbers but where `Ids` says so."""
    hashed = hashlib.sha256(str(source).encode()).hexdigest()[:32]
    return f"{source:08x}{hashed[8:]}" if Ids.in_order else hashed


def listed(n_sources: int, *, meta: bool = False) -> Iterator[ListedSource]:
    """The sources as a manifest would name them."""
    for number in range(n_sources):
        about = {
            "meta.camera": CAMERAS[number % 4],
            "meta.rating": None if number % 5 == 0 else float(number % 7) / 2,
            "meta.labels": LABELS[number // 3 % 4],
            "meta.take": number,
        }
        known = {name: value for name, value in about.items() if value is not None and meta}
        yield ListedSource(uri=uri_of(number), bytes=8, version="1", metadata=known)


def candidates_of(first: int, n: int) -> pa.Table:
    """Candidates by number, with scores spread about as in footage: gaps, ties, NaN among them."""
    rng = np.random.default_rng(first)
    numbers = np.arange(first, first + n)
    sources = (numbers // PER_SOURCE).tolist()

    def gaps(values: np.ndarray, share: float) -> list[float | None]:
        missing = rng.random(n) < share
        return [None if gap else value for gap, value in zip(missing, values.tolist(), strict=True)]

    noise = rng.gamma(2.0, 0.8, n)
    noise[rng.random(n) < 0.002] = np.nan
    sizes = [(1280, 720), (1920, 1080), (720, 1280), (640, 200), (320, 180)]
    chosen = [sizes[k] for k in rng.choice(5, n, p=[0.5, 0.3, 0.1, 0.05, 0.05]).tolist()]
    n_frames = rng.choice([150, 60, 20], n, p=[0.8, 0.15, 0.05])
    ids = [f"{(k * 2654435761) % 2**32:08x}{k:016x}" for k in numbers.tolist()]
    return candidates_table(
        n,
        clip_id=ids,
        source_id=[id_of(k) for k in sources],
        source_uri=[uri_of(k) for k in sources],
        n_frames=n_frames,
        seconds=np.where(rng.random(n) < 0.05, 1.0, n_frames / 30),
        width=[width for width, _ in chosen],
        height=[height for _, height in chosen],
        tags=[["found"] if k % 97 == 0 else [] for k in numbers.tolist()],
        motion=gaps(rng.lognormal(-2.5, 1.2, n), 0.01),
        noise=pa.array(noise),
        sharpness=gaps(np.round(rng.beta(2.0, 3.0, n), 2), 0.01),
        luma=rng.beta(4.0, 4.0, n),
        contrast=rng.beta(3.0, 6.0, n) / 2,
        clipped_fraction=rng.beta(1.0, 20.0, n),
        bits_per_pixel=gaps(np.round(rng.lognormal(-3.0, 0.7, n), 2), 0.05),
        aspect=[width / height for width, height in chosen],
        short_side_px=[float(min(size)) for size in chosen],
        fps=[30.0] * n,
        hdr=(rng.random(n) < 0.01).astype(float),
        corrupt_fraction=[0.0] * n,
        camera_motion=gaps(rng.lognormal(-3.0, 1.2, n), 0.2),
        camera_jitter=rng.lognormal(-4.0, 1.0, n),
        black_fraction=[0.0] * n,
        frozen_fraction=[0.0] * n,
        content_area=[1.0] * n,
        blocking=rng.gamma(1.0, 0.2, n),
        combing=[0.0] * n,
        title_card=[0.0] * n,  # not 1, as scores that are not named here
    )


def vectors_of(first: int, n: int, *, copies: float) -> np.ndarray:
    """Unit vectors, a share of which are nearly those of the clip before."""
    vectors = unlike_vectors(n, seed=first)
    rng = np.random.default_rng(first + 1)
    for row in np.flatnonzero(rng.random(n) < copies)[1:].tolist():
        vectors[row] = vectors[row - 1] + 0.02 * vectors[row]
    unit: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def make(
    out: Path | str, n: int, recipe: Recipe, *, per_part: int = 50_000, copies: float = 0.2
) -> None:
    """Writes probes and candidates of `n` clips under an output root."""
    store = open_store(str(out))
    scan = Parts(store, "scan", ScanStage(ScanConfig()).fingerprint({}))
    n_sources = -(-n // PER_SOURCE)
    probe = {
        "medium": "video", "container": "mov,mp4,m4a,3gp,3g2,mj2", "codec": "h264",
        "pixel_format": "yuv420p", "width": 1280, "height": 720, "rotation_deg": 0,
        "pixel_aspect": "1", "time_base": "1/30", "fps": "30", "is_vfr": False,
        "header_duration_s": 250.0, "header_n_frames": 7500,
        "has_audio": False, "is_hdr": False, "bytes": 8, "version": "1",
    }  # fmt: skip
    for start in range(0, n_sources, 4096):
        rows = [
            {"uri": uri_of(k), "source_id": id_of(k), **probe}
            for k in range(start, min(start + 4096, n_sources))
        ]
        scan.write(rows_to_table(rows, SCAN_SCHEMA), [f"1\t{row['uri']}" for row in rows])
    fingerprint = tracks_fingerprint(families_of(recipe.analyze, None))
    track = f"tracks/frames/{fingerprint}-made.parquet"
    store.write(track, b"tracks")
    stage = ProposeStage(recipe.propose, aggregates=recipe.scores.root)
    candidates = Candidates(store, stage.fingerprint({"tracks": fingerprint}), has_clip=False)
    jpegs = [thumbnail(number) for number in range(50)]
    all_ids: list[str] = []
    pairs: list[tuple[int, int]] = []
    LIKE.clear()
    for first in range(0, n, per_part):
        count = min(per_part, n - first)
        clips = candidates_of(first, count)
        ids, vectors = clips["clip_id"].to_pylist(), vectors_of(first, count, copies=copies)
        sources = [
            {"source_id": id_of(k), "uri": uri_of(k), "outcome": "done", "duration_s": 250.0,
             "n_frames": 7500, "n_clips": PER_SOURCE, "notes": []}
            for k in range(first // PER_SOURCE, -(-(first + count) // PER_SOURCE))
        ]  # fmt: skip
        names = [name for name in SHOTS_SCHEMA.names if not name.startswith("transition")]
        shots = clips.select(names).append_column("transition_in", pa.array(["cut"] * count))
        shots = shots.append_column("transition_out", pa.array(["cut"] * count))
        flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        pictures = [{"clip_id": name, "jpeg": [jpegs[k % 50]]} for k, name in enumerate(ids)]
        cosines = np.einsum("nd,nd->n", vectors[1:], vectors[:-1])
        at = np.flatnonzero(cosines > 0.9) + len(all_ids)
        pairs += [(int(k) + 1, int(k)) for k in at]
        all_ids += ids
        payload = write_payload(
            store,
            candidates.fingerprint,
            FOOTAGE_SCHEMA.empty_table(),
            rows_to_table(pictures[:1000], PICTURES_SCHEMA),
        )
        candidates.add(
            ProposedUnit(
                track_parts={str(row["source_id"]): track for row in sources},
                sources=rows_to_table(sources, MEASURED_SCHEMA),
                shots=shots.cast(SHOTS_SCHEMA),
                clips=clips,
                vectors=pa.table(
                    [clips["clip_id"], pa.array([SCENE_MODEL] * count), flat],
                    schema=embeddings_schema(vectors.shape[1]),
                ),
                payload=payload,
            )
        )
        candidates.flush()
    store_pairs(store, recipe, candidates.fingerprint, all_ids, pairs)
    for a, b in pairs:
        LIKE.setdefault(all_ids[a], []).append(all_ids[b])
        LIKE.setdefault(all_ids[b], []).append(all_ids[a])


def _find_pairs(
    own: Footage,
    ids: pa.Array,
    new: pa.Array,
    places: Sequence[ReferenceClips],
    work: object,
    **_: object,
) -> Iterator[Pair]:
    """Finds the pairs that were made: without pictures there is nothing to verify."""
    del own, work
    there_by = {"": set(ids.to_pylist())}
    there_by |= {place.key: set(place.clip_ids.to_pylist()) for place in places}
    for clip_id in new.to_pylist():
        for other in LIKE.get(clip_id, ()):
            for key, there in there_by.items():
                if other in there and (key or other < clip_id):
                    yield Pair(clip_id=clip_id, other=other, place=key, match=SAME)


def recipe_of(settings: Sequence[str]) -> Recipe:
    """The recipe `quickstart` with settings."""
    return with_changes(load_recipe("quickstart"), settings)


def _cut(self: Any, clips: Any) -> Locations:  # noqa: ANN401
    """Says that every kept clip was encoded, but for a few that could not be."""
    numbers = np.asarray(clips.kept_numbers(), np.int64)
    n = len(numbers)
    facts = {
        "cut_mode": ["encode"] * n, "crf": [18] * n, "audio": ["dropped"] * n,
        "mp4_bytes": [len(MP4)] * n, "mp4_sha256": [hashlib.sha256(MP4).hexdigest()] * n,
        "cut_fingerprint": [self.fingerprint] * n,
    }  # fmt: skip
    clips.scatter(numbers, pa.table(facts))
    ids = clips.column("clip_id").take(pa.array(numbers))
    for number in numbers[::1000].tolist():
        cut_driver.reject(clips[number], "cut_failed", detail="as pretended")
    place = [["cuts/none"] * n, [0] * n, pa.nulls(n, pa.int64()), [len(MP4)] * n]
    return Locations(pa.table([ids, *place], schema=LOCATION_SCHEMA))


def _units(
    load: Any,  # noqa: ANN401 - the method
    out: Path | str,
    uris: Mapping[str, str],
    unit_clips: int,
    picture_bytes: int | None,
) -> Iterator[ProposedUnit]:
    """Yields what is stored as workers would propose it, a few clips at a time.

    With `picture_bytes`, clips have what they have in a first run: a picture of this size and 25
    values of luma a second, a vector for every two seconds, and a scene vector of real length.
    """
    store = open_store(str(out))
    (fingerprint, *_) = {
        i.key.split("/")[2].split("-")[0] for i in store.list("candidates/sources/")
    }
    rng = np.random.default_rng(0)
    noise = rng.bytes(64 << 20)
    for part in load(Candidates(store, fingerprint, has_clip=False), uris):
        sources = part.sources.select(MEASURED_SCHEMA.names)
        columns = (part.sources[name].to_pylist() for name in ("source_id", "track_part"))
        track = dict(zip(*columns, strict=True))
        for start in range(0, part.clips.num_rows, unit_clips):
            # A unit of a worker has buffers of its own.
            rows = pa.array(range(start, min(start + unit_clips, part.clips.num_rows)))
            clips, vectors = part.clips.take(rows), part.vectors.take(rows)
            first, begins = start // PER_SOURCE, start % PER_SOURCE == 0
            own = sources.slice(first, -(-unit_clips // PER_SOURCE) if begins else 0)
            pictures, footage = PICTURES_SCHEMA.empty_table(), FOOTAGE_SCHEMA.empty_table()
            if picture_bytes is not None:
                pictures, footage = _shown(clips, noise, picture_bytes, rng)
                short_ND = as_matrix(vectors["vector"].combine_chunks())  # noqa: N806
                turned_ND = (short_ND @ _TURN).astype(np.float32)  # noqa: N806
                vectors = vectors_table(
                    [*zip(clips["clip_id"].to_pylist(), turned_ND, strict=True)]
                )
            payload = write_payload(store, fingerprint, footage, pictures)
            for name in payload.objects if payload is not None else ():
                os.truncate(Path(out, name), 0)
            yield ProposedUnit(
                track_parts={name: track[name] for name in own["source_id"].to_pylist()},
                sources=own,
                shots=part.shots.take(rows),
                clips=clips,
                vectors=vectors,
                payload=payload,
            )


_TURN = np.random.default_rng(1).standard_normal((64, SCENE_DIM)) / SCENE_DIM**0.5
"""Gives vectors of a made corpus the length of real ones."""


def _shown(
    clips: pa.Table, noise: bytes, n_bytes: int, rng: np.random.Generator
) -> tuple[pa.Table, pa.Table]:
    """Pictures and footage of clips, of bytes that cannot be compressed, as JPEGs."""
    seconds = np.maximum(1, clips["seconds"].to_numpy().astype(np.int64))
    total = int(seconds.sum())
    n_vectors = -(-seconds // 2)

    def lists(values: pa.Array, sizes: np.ndarray) -> pa.ListArray:
        return pa.ListArray.from_arrays(pa.array(np.cumsum([0, *sizes]), pa.int32()), values)

    def random(sizes: np.ndarray) -> pa.ListArray:
        return lists(pa.array(rng.random(sizes.sum(), np.float32).astype(np.float16)), sizes)

    def times(sizes: np.ndarray, step_s: int) -> pa.ListArray:
        values = np.concatenate([np.arange(n, dtype=np.float32) * step_s for n in sizes])
        return lists(pa.array(values), sizes)

    start = int(rng.integers(len(noise) - total * n_bytes))
    ends = pa.array(np.arange(total + 1) * n_bytes, pa.int32())
    data = pa.py_buffer(noise[start : start + total * n_bytes])
    jpegs = pa.BinaryArray.from_buffers(pa.binary(), total, [None, ends.buffers()[1], data])
    luma = [random(seconds * LUMA_HZ) for _ in range(2)]
    ids, length_s = clips["clip_id"], clips["seconds"].cast(pa.float32())
    pictures = [ids, length_s, times(seconds, 1), lists(jpegs, seconds), *luma]
    footage = [ids, times(n_vectors, 2), random(n_vectors * SCENE_DIM)]
    return pa.table(pictures, schema=PICTURES_SCHEMA), pa.table(footage, schema=FOOTAGE_SCHEMA)


def _joined(_: object, into: Mapping[str, Sequence[str]]) -> list[Payload]:
    """Names what workers would have joined, without joining it."""
    kinds, digest = ("footage", "pictures"), Digest(n_bytes=1 << 26, sha256="0" * 64)
    return [
        Payload(name=name, objects={f"candidates/{kind}/{name}": digest for kind in kinds})
        for name in into
    ]


def _send(pipe: Connection, *arguments: Any) -> None:  # noqa: ANN401 - of `_units`
    for unit in _units(Candidates.load, *arguments):
        pipe.send_bytes(pickle.dumps(unit))
    pipe.send_bytes(b"")


def _from_child(*arguments: Any) -> Iterator[ProposedUnit]:  # noqa: ANN401 - of `_units`
    """Yields the units that a child makes, so that this process only receives them."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(there, *arguments))
    child.start()
    there.close()
    while data := here.recv_bytes():
        yield pickle.loads(data)
    child.join()


def _analyze(
    load: Any,  # noqa: ANN401 - the method
    out: Path | str,
    unit_clips: int,
    picture_bytes: int | None,
    missing: Sequence[SourceRef],
    step: Any,  # noqa: ANN401
    on_result: Callable[[ProposedUnit], None],
    **_: object,
) -> None:
    """Hands on what is stored as if workers had just proposed it, a few clips at a time."""
    uris = {str(source.source_id): source.uri for source in missing}
    if picture_bytes is None:
        units = _units(load, out, uris, unit_clips, None)
    else:
        units = _from_child(out, uris, unit_clips, picture_bytes)
    for unit in units:
        on_result(unit)


def execute(
    out: Path | str,
    recipe: Recipe,
    n_sources: int,
    *,
    meta: bool = False,
    stage: Callable[[str], None] | None = None,
    unit_clips: int | None = None,
    picture_bytes: int | None = None,
    **options: Any,  # noqa: ANN401
) -> dict[str, Any]:
    """Runs over what is stored.

    Args:
        out: Output root.
        recipe: Settings.
        n_sources: Number of sources.
        meta: Whether sources have metadata.
        stage: Hears of each stage as it begins.
        unit_clips: Clips of a unit, as if workers had just proposed them; None for what is stored.
        picture_bytes: Bytes of a picture of such clips, one per second; None for no pictures.
        options: Of `Run`.
    """
    progress = Progress(io.StringIO(), live=False)
    if stage is not None:
        progress.stage = stage  # type: ignore[method-assign]
    replaced = []
    if unit_clips is not None:
        load = Candidates.load
        replaced = [
            patch.object(Candidates, "load", lambda *_, **__: iter(())),
            patch.object(Analyzing, "run", partial(_analyze, load, out, unit_clips, picture_bytes)),
            # Workers join payload, and objects of made payload are emptied.
            patch.object(measuring, "_join_payload", _joined),
        ]
    with (
        ExitStack() as stack,
        Engine(address=None, workers=1) as engine,
        patch.object(curation, "list_sources", lambda *_, **__: listed(n_sources, meta=meta)),
        patch.object(cut_driver.Cutting, "cut", lambda *_, **__: iter(())),
        patch.object(cut_driver.Cutting, "finish", _cut),
        patch.object(TarWriter, "read", lambda self, sample: MP4),
        patch.object(dedup_stage, "find_pairs", _find_pairs),
    ):
        for one in replaced:
            stack.enter_context(one)
        run = curation.Run(open_store(str(out)), recipe, engine, progress, **options)
        return run.execute(["made"], limit=None, replace=True)


def digests(
    out: Path,
    recipe: Recipe,
    n_sources: int,
    *,
    meta: bool = False,
    **options: Any,  # noqa: ANN401
) -> dict[str, str]:
    """Runs, and returns a digest of each thing that readers see, times and versions left out."""
    seen: dict[str, Any] = {}
    render, sealed = commit.render_report, commit.sealed_json
    gone = {"stage_seconds": {}, "cpu_seconds": {}, "versions": {}, "listed_ns": 0}
    gone |= {"curate_version": "", "extensions": [], "created_at": "", "head": {}}

    def same(summary: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in summary.items() if name not in FACTS} | gone

    def page(*, summary: Mapping[str, Any], **others: Any) -> str:  # noqa: ANN401
        shown: str = render(summary=same(summary), **others)
        seen["report"] = shown.encode()
        return shown

    def sealed_summary(
        value: Mapping[str, Any], encode: Callable[[object], bytes], name: str
    ) -> bytes:
        if "counts" in value:
            shards = [shard | {"versions": {}} for shard in value["shards"]]
            shown = {**same(value), "shards": shards}
            seen["summary"] = json.dumps(shown, default=str).encode()
        return sealed(value, encode, name)

    with (
        patch.object(commit, "render_report", page),
        patch.object(commit, "sealed_json", sealed_summary),
    ):
        summary = execute(out, recipe, n_sources, meta=meta, **options)
    store = open_store(str(out))
    for parts in summary["tables"].values():
        seen |= {name: store.read(name) for name in parts}
    seen |= {i.key: store.read(i.key) for i in store.list("shards/") if i.key.endswith(".tar")}
    return {name: hashlib.sha256(data).hexdigest() for name, data in seen.items()}


def copied(out: Path, to: Path) -> Path:
    """Copies an output root, and returns the copy."""
    return Path(shutil.copytree(out, to))
