"""What the driver takes for very many candidate clips: memory, CPU-seconds and wall time per phase.

An output root is made as runs would have left it, through the writers that they use: listed links,
probes in parts of `scan`, stored candidates with vectors and thumbnails, and one finished run whose
clips are one real MP4 each time, so that tars, indexes and tables are whole. With `--captions` a
stand-in for a model has answered about each clip that is kept, and its replies are stored. Nothing
is decoded. Then each case runs in a process of its own, on a copy by hard links:

- `rerun`: a run with other bounds, which tars are written anew for;
- `recaption`: which windows of a finished run would be asked about after a change of `caption`, and
  what is told from stored replies;
- `worker`: what a worker that annotates one unit holds before the model;
- `verify`, `export`, `explain`: the commands.

The peak is that of the process's own memory (RSS), sampled each 20 ms, by stage.
"""

import argparse
import json
import os
import resource
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tests_path  # noqa: F401

os.environ.setdefault("OMP_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import numpy as np
import pyarrow as pa
from many_sources import driver_peak, links
from measure import machine

MIB = 1 << 20
PER_SOURCE = 50
CHUNK_CLIPS = 50_000
"""Clips of a part of `candidates`, as runs write them."""
CLIPS_PER_TAR = 500
"""As of clips of 2 MB in tars of 1 GB."""
BASE = ["dedup.enabled=false"]
CAPTIONS = [
    "caption.captioner=openai", "caption.model=stand-in", "caption.url=http://127.0.0.1:9",
    "caption.read_text=false", "caption.sidecar=false",
]  # fmt: skip
BOUNDS = [
    "filters.motion.min=0.02",
    "filters.sharpness.drop_lowest=0.15",
    "filters.noise={drop_highest: 0.1, severity: flag}",
]
OTHER_BOUNDS = ["filters.motion.min=0.022"]
"""Rejects more: what was not written before would have to be decoded."""
PLANS = {
    "same": [],
    "other rule": ["caption.allow_meta=true"],
    "other seed": ["caption.seed=1"],
}
COMMANDS = {
    "verify": ["verify", "OUT", "--frames", "none"],
    "export": ["export", "OUT", "EXPORT", "--format", "parquet"],
    "explain": ["explain", "OUT", "CLIP"],
}


@dataclass
class Phases:
    """Peak memory, CPU-seconds and wall time by phase: stands for the display of progress."""

    found: dict[str, list[float]] = field(default_factory=dict)
    _now: str = "start"

    def __post_init__(self) -> None:
        self._peak, self._begun = 0, (time.monotonic(), time.process_time())
        self._done = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def stage(self, name: str) -> None:
        """Ends a phase, and begins another."""
        with self._lock:
            now = (time.monotonic(), time.process_time())
            wall_s, cpu_s = (b - a for a, b in zip(self._begun, now, strict=True))
            peak, old_wall_s, old_cpu_s = self.found.get(self._now, (0, 0, 0))
            peak = max(peak, self._peak, _resident())
            self.found[self._now] = [peak, old_wall_s + wall_s, old_cpu_s + cpu_s]
            self._now, self._begun, self._peak = name, now, 0

    def result(self) -> dict[str, dict[str, float]]:
        """What was found, rounded, without the vectors' share taken off."""
        self.stage("end")
        self._done.set()
        return {
            name: {"peak_mib": round(peak / MIB), "cpu_s": round(cpu_s, 2), "wall_s": round(s, 2)}
            for name, (peak, s, cpu_s) in self.found.items()
        }

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            with self._lock:
                self._peak = max(self._peak, _resident())


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def made_chunk(first: int, n: int, uris: Sequence[str]) -> pa.Table:
    """Candidates by number, with the scores of `refilter.py`."""
    from refilter import made_clips

    table = made_clips(n)
    numbers = np.arange(first, first + n)
    sources = numbers // PER_SOURCE
    own = {
        "clip_id": [f"{(k * 2654435761) % 2**32:08x}{k:016x}" for k in numbers.tolist()],
        "source_id": [f"{k:032x}" for k in sources.tolist()],
        "source_uri": [uris[k] for k in sources.tolist()],
    }
    for name, values in own.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), pa.array(values, pa.string()))
    return table


def store_scan(sources: Path, out: Path) -> list[str]:
    """Writes probes of all sources; returns their addresses in order."""
    from curator.stages.scan.config import ScanConfig
    from curator.stages.scan.source_listing import ListedSource, list_sources
    from curator.stages.scan.stage import ScanStage
    from curator.storage import open_store
    from curator.tables.parts import Parts, rows_to_table
    from curator.tables.schemas import SCAN_SCHEMA

    parts = Parts(open_store(str(out)), "scan", ScanStage(ScanConfig()).fingerprint({}))
    rows: list[dict[str, Any]] = []
    for number, source in enumerate(list_sources([str(sources)])):
        assert isinstance(source, ListedSource)
        rows.append(
            {
                "uri": source.uri, "bytes": source.bytes, "version": source.version,
                "source_id": f"{number:032x}", "container": "mov,mp4,m4a,3gp,3g2,mj2",
                "codec": "h264", "pixel_format": "yuv420p", "width": 1280, "height": 720,
                "rotation_deg": 0, "pixel_aspect": "1", "time_base": "1/30", "fps": "30",
                "is_vfr": False, "header_duration_s": 250.0, "header_n_frames": 7500,
                "has_audio": False, "is_hdr": False,
            }
        )  # fmt: skip
    for start in range(0, len(rows), 256):
        some = rows[start : start + 256]
        keys = [f"{row['version']}\t{row['uri']}" for row in some]
        parts.write(rows_to_table(some, SCAN_SCHEMA), keys)
    return [row["uri"] for row in rows]


def store_candidates(out: Path, n: int, uris: Sequence[str], settings: Sequence[str]) -> None:
    """Writes candidates as runs do, a part at a time."""
    from made_out import thumbnail, unlike_vectors

    from curator.models.perceptual import PERCEPTUAL_MODEL
    from curator.recipe import semantics_of
    from curator.stages.analyze.families import families_of, tracks_fingerprint
    from curator.stages.propose.candidate_store import Candidates
    from curator.stages.propose.stage import ProposedUnit, ProposeStage
    from curator.storage import open_store
    from curator.tables.parts import rows_to_table
    from curator.tables.schemas import PICTURES_SCHEMA, SHOTS_SCHEMA, embeddings_schema
    from curator.tables.source_table import MEASURED_SCHEMA

    store, recipe = open_store(str(out)), recipe_of(settings)
    semantics = semantics_of(recipe)
    stamp = tracks_fingerprint(families_of(recipe.analyze, semantics.stamp))
    track = f"tracks/frames/{stamp}-made.parquet"
    store.write(track, b"tracks")
    stage = ProposeStage(
        recipe.propose, aggregates=recipe.scores.root, heads_stamp=semantics.heads_stamp
    )
    has_clip = recipe.analyze.clip is not None
    candidates = Candidates(store, stage.fingerprint({"tracks": stamp}), has_clip=has_clip)
    jpegs = [thumbnail(number) for number in range(200)]
    for first in range(0, n, CHUNK_CLIPS):
        count = min(CHUNK_CLIPS, n - first)
        clips = made_chunk(first, count, uris)
        ids = clips["clip_id"].to_pylist()
        vectors = unlike_vectors(count, seed=first)
        dim = vectors.shape[1]
        of_source = clips.group_by(["source_id", "source_uri"]).aggregate([]).to_pylist()
        sources = [
            {"source_id": row["source_id"], "uri": row["source_uri"], "outcome": "done",
             "duration_s": 250.0, "n_frames": 7500, "n_clips": PER_SOURCE, "notes": []}
            for row in of_source
        ]  # fmt: skip
        shots = pa.table(
            {
                "source_id": clips["source_id"], "shot": clips["shot"],
                "start_frame": clips["start_frame"], "end_frame": clips["end_frame"],
                "start_s": clips["start_s"], "end_s": clips["end_s"],
                "transition_in": ["cut"] * count, "transition_out": ["cut"] * count,
            },
            schema=SHOTS_SCHEMA,
        )  # fmt: skip
        flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), dim)
        pictures = [{"clip_id": name, "jpeg": jpegs[k % len(jpegs)]} for k, name in enumerate(ids)]
        candidates.add(
            ProposedUnit(
                track_parts={row["source_id"]: track for row in of_source},
                sources=rows_to_table(sources, MEASURED_SCHEMA),
                shots=shots,
                clips=clips,
                vectors=pa.table(
                    [clips["clip_id"], pa.array([PERCEPTUAL_MODEL] * count), flat],
                    schema=embeddings_schema(dim),
                ),
                pictures=rows_to_table(pictures, PICTURES_SCHEMA),
            )
        )
    candidates.flush()


def recipe_of(settings: Sequence[str]) -> Any:  # noqa: ANN401
    """The recipe `quickstart` with settings."""
    from curator.recipe import load_recipe, with_changes

    return with_changes(load_recipe("quickstart"), [*BASE, *settings])


def mp4_of(folder: Path) -> bytes:
    """A real clip of 150 frames of 1280x720 at 30 frames/s, small."""
    from fractions import Fraction

    from film_makers import write_video

    path = folder / "clip.mp4"
    picture = np.full((720, 1280, 3), 90, np.uint8)
    write_video(
        path, [picture] * 150, fps=Fraction(30), bframes=0, mux_options={"movflags": "faststart"}
    )
    return path.read_bytes()


def make(folder: Path, n: int, *, captions: bool) -> None:
    """Makes the output root of a finished run."""
    import hashlib

    from curator.stages.cut import cut_driver as cutting
    from curator.stages.shard import tar_writer as sharding
    from curator.tables.clip_locations import Location

    out = folder / "out"
    uris = store_scan(links(folder, -(-n // PER_SOURCE)), out)
    mp4 = mp4_of(folder)
    per_tar = CLIPS_PER_TAR * (len(mp4) + 6000)
    settings = [*BOUNDS, f"shard.max_bytes={per_tar}", *(CAPTIONS if captions else [])]
    (folder / "settings.json").write_text(json.dumps(settings))
    store_candidates(out, n, uris, settings)
    sha256 = hashlib.sha256(mp4).hexdigest()

    def cut(self: Any, clips: Any, *_: object) -> dict[str, Location]:  # noqa: ANN401
        locations = {}
        for clip in clips:
            if clip["decision"] == "kept":
                clip |= {
                    "cut_mode": "encode", "crf": 18, "audio": "dropped", "mp4_bytes": len(mp4),
                    "mp4_sha256": sha256, "cut_fingerprint": self.stamp, "copy_frames": None,
                }  # fmt: skip
                locations[clip["clip_id"]] = Location(name="cuts/none", row=0, n_bytes=len(mp4))
        return locations

    with (
        patch.object(cutting.Cutting, "cut", cut),
        patch.object(sharding.TarWriter, "_read", lambda self, sample: mp4),
    ):
        execute(folder, out, [], answering=captions)


class Answering:
    """Stands for the stream of windows: answers at once, and stores what it said as runs do."""

    def __class_getitem__(cls, _: object) -> type["Answering"]:
        """For `UnitStream[...]`."""
        return cls

    def __init__(self, engine: object, stage: Any, *, load: Any, **_: object) -> None:  # noqa: ANN401
        from curator.stages.caption.annotation_memo import answers_stamp
        from curator.stages.caption.dialogs.window_dialog import make_dialogs

        self.cpu_s: dict[str, float] = {}
        self._config, self._store = stage.config, load._store
        self._dialogs, self._stamp = make_dialogs(stage.config), answers_stamp(stage.config)
        self._done: list[Any] = []
        self._begin()

    def submit(self, window: Any) -> None:  # noqa: ANN401
        """As `UnitStream.submit`."""
        from curator.stages.caption.annotation_memo import remember
        from curator.stages.caption.caption_records import Reply

        dialog, replies = self._dialogs(window.task), self._replies
        asked = next(dialog)
        try:
            while True:
                told = []
                for request in asked:
                    reply = Reply(
                        text=_answer(request.key), tokens_in=2100, tokens_out=180, seconds=1.0
                    )
                    replies.keep(request.key, reply)
                    told.append(reply)
                asked = dialog.send(told)
        except StopIteration as end:
            self._annotations.append(end.value)
            remember(end.value, self._stamp, replies)
        if len(self._annotations) >= 512:
            self.close()

    def poll(self) -> list[Any]:
        """As `UnitStream.poll`."""
        done, self._done = self._done, []
        return done

    def finish(self) -> Iterator[list[Any]]:
        """As `UnitStream.finish`."""
        self.close()
        yield self.poll()

    def close(self) -> None:
        """Ends a unit."""
        from curator.stages.caption.stage import UnitAnnotations

        self._replies.pack()
        parts = self._replies.parts
        self._done.append(UnitAnnotations(annotations=self._annotations, parts=parts))
        self._begin()

    def _begin(self) -> None:
        from curator.stages.caption.reply_store import Replies, replies_stamp

        self._annotations: list[Any] = []
        self._replies = Replies(self._store, replies_stamp(self._config), secrets.token_hex(4))


_WHO = ("a woman", "a man", "two children", "a cyclist", "a fisherman", "a nurse", "an old dog")
_DOES = ("walks along", "looks over", "crosses", "waits beside", "photographs", "runs past")
_WHAT = ("a river", "the harbour wall", "an empty street", "a field of wheat", "the station")
_HOW = ("in warm light", "under grey clouds", "at dusk", "while it rains", "in deep snow")


def _answer(key: str) -> str:
    number = int(key, 16)

    def sentence(i: int) -> str:
        k = number // 7 + i * 2654435761
        parts = (one[(k >> 5 * j) % len(one)] for j, one in enumerate((_WHO, _DOES, _WHAT, _HOW)))
        said = " ".join(parts)
        return f"{said[0].upper()}{said[1:]}, near a sign that says {k % 9973 + i}."

    texts = {"short": 1, "medium": 3, "long": 8}
    return json.dumps({k: " ".join(sentence(i) for i in range(n)) for k, n in texts.items()})


def execute(
    folder: Path,
    out: Path,
    changes: Sequence[str],
    *,
    answering: bool = False,
    phases: Phases | None = None,
) -> dict[str, Any]:
    """One run of `curate run`, in this process."""
    from curator.executor.engine import Engine
    from curator.executor.progress import Progress
    from curator.runs.curation import Run
    from curator.storage import open_store

    settings = json.loads((folder / "settings.json").read_text())
    recipe = recipe_of([*settings, *changes])
    progress = Progress(live=False)
    if phases is not None:
        progress.stage = phases.stage  # type: ignore[method-assign]
    replaced: list[Any] = []
    if answering or recipe.caption.asks:
        from curator.stages.caption.caption_driver import Captioning

        replaced.append(patch("curator.stages.caption.stage.check_captioner", lambda *a, **k: None))
        if answering:
            replaced.append(patch("curator.stages.caption.caption_driver.UnitStream", Answering))
            replaced.append(patch.object(Captioning, "_take_written", _no_pictures))
    with Engine(address=None, workers=1) as engine:
        for one in replaced:
            one.start()
        try:
            run = Run(open_store(str(out)), recipe, engine, progress)
            return run.execute([str(folder / "links")], limit=None)
        finally:
            for one in replaced:
                one.stop()


def _no_pictures(self: Any, missing: Sequence[Any], locations: object) -> None:  # noqa: ANN401
    from curator.records.cuts import StoredFrames
    from curator.stages.caption.frame_store import content_of

    for row in missing:
        where = StoredFrames(
            clip_id=row.clip_id, content=content_of(row.clip_id, row, ""), n_frames=row.n_frames
        )
        self.take([where])


def copied(folder: Path) -> Path:
    """The output root by hard links; its objects are replaced, never changed."""
    work = Path(tempfile.mkdtemp(dir=folder, prefix="work-"))
    subprocess.run(["cp", "-al", str(folder / "out"), str(work / "out")], check=True)
    return work


def rerun(folder: Path, keep: str | None) -> dict[str, Any]:
    """A run with other bounds."""
    work = copied(folder)
    phases = Phases()
    summary = execute(folder, work / "out", OTHER_BOUNDS, phases=phases)
    found = {"phases": phases.result(), "kept": summary["counts"]["kept"]}
    page = work / "out" / "report" / "index.html"
    found["report_kib"] = round(page.stat().st_size / 1024)
    if keep:
        shutil.rmtree(keep, ignore_errors=True)
        (work / "out").rename(keep)
    shutil.rmtree(work)
    return found


def recaption(folder: Path) -> dict[str, Any]:
    """What would be asked after changes of `caption`; each from the start."""
    from curator.executor.engine import Engine
    from curator.executor.progress import Progress
    from curator.runs.recaptioning import Recaption
    from curator.runs.snapshot_scope import Snapshot
    from curator.stages.caption.caption_driver import Captioning
    from curator.storage import open_store
    from curator.tables.output_format import read_summary

    store = open_store(str(folder / "out"))
    phases, asked = Phases(), {}
    for name, changes in PLANS.items():
        with Engine(address=None, workers=1) as engine:
            phases.stage(f"{name}: rows")
            again = Recaption(store, changes, engine, Progress(live=False))
            previous = read_summary(store)
            snapshot = Snapshot.of(store, previous, again.recipe, again._memory_bytes)
            phases.stage(f"{name}: plan")
            config = again.recipe.caption
            captioning = Captioning(
                store, config, engine, Progress(live=False), snapshot.corpus.rows, checks=False,
                snapshot=previous["tables"],
            )  # fmt: skip
            with closing(captioning):
                asked[name] = len(captioning._unannotated())
            del snapshot, captioning, again
    return {"phases": phases.result(), "asked": asked}


def worker(folder: Path) -> dict[str, Any]:
    """What a worker holds that has begun, and asks nobody yet."""
    from curator.stages.caption import stage as caption_stage

    config = recipe_of(json.loads((folder / "settings.json").read_text())).caption
    phases = Phases()
    with patch.object(caption_stage, "load_models", lambda config: {}):
        phases.stage("begin")
        stage = caption_stage.CaptionStage(config)
        stage.setup()
        result = phases.result()
    del stage
    return {"phases": result}


def command(folder: Path, name: str) -> dict[str, Any]:
    """One of the commands, as users call it."""
    from curator.storage import open_store
    from curator.tables.checksums import read_parquet

    out, target = folder / "out", folder / "exported"
    store = open_store(str(out))
    summary = json.loads(store.read("summary.json"))
    first = read_parquet(store, summary["tables"]["clips"][0], ["clip_id"])["clip_id"][3].as_py()
    places = {"OUT": str(out), "EXPORT": str(target), "CLIP": first}
    words = [places.get(word, word) for word in COMMANDS[name]]
    wall_s, cpu_s, peak = driver_peak([sys.executable, "-m", "curator.cli", *words])
    shutil.rmtree(target, ignore_errors=True)
    phase = {"peak_mib": round(peak / MIB), "cpu_s": round(cpu_s, 2), "wall_s": round(wall_s, 2)}
    return {"phases": {name: phase}}


def main() -> None:
    """Runs the measurement; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the output root is made, or lies already")
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--captions", action="store_true", help="a model has answered")
    parser.add_argument("--only", nargs="*", help="cases; by default all")
    parser.add_argument("--keep", help="folder that the rerun's output becomes, to compare")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder: Path = options.folder
    if options.case:
        print(json.dumps(_case(options.case, folder, options)))
        return
    if not (folder / "out" / "summary.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _child(options, "make")
    cases = ["rerun", *(["recaption", "worker"] if options.captions else []), *COMMANDS]
    found: dict[str, Any] = {"clips": options.clips, "captions": options.captions}
    for case in options.only or cases:
        found[case] = _child(options, case)
        for name, phase in found[case]["phases"].items():
            print(
                f"{case:<10}{name:<20}{phase['peak_mib']:>8,} MiB{phase['cpu_s']:>9.2f} CPU-s"
                f"{phase['wall_s']:>9.2f} s",
                flush=True,
            )
    print(json.dumps(found | machine()))


def _case(case: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    if case == "make":
        make(folder, options.clips, captions=options.captions)
        return {"phases": {}}
    own: dict[str, Callable[[], dict[str, Any]]] = {
        "rerun": lambda: rerun(folder, options.keep),
        "recaption": lambda: recaption(folder),
        "worker": lambda: worker(folder),
    }
    return own[case]() if case in own else command(folder, case)


def _child(options: argparse.Namespace, case: str) -> dict[str, Any]:
    words = [sys.executable, __file__, str(options.folder), "--clips", str(options.clips)]
    words += ["--captions"] if options.captions else []
    words += ["--keep", options.keep] if options.keep else []
    done = subprocess.run([*words, "--case", case], stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
