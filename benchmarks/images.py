"""Curates 1,000 pictures and 20 short videos in one run, and finds planted duplicates again.

    images.py make MEDIA FOOTAGE WORK    sources: half of the pictures and videos within tars
    images.py run WORK [--set KEY=VALUE ...]    `curate run` with quickstart and both media
    images.py check WORK                 readers of the shards, and duplicates: found and false

MEDIA and FOOTAGE are folders of videos. Planted are frames of the 20 videos, and copies of
pictures in another size and format. WORK/plan.json names the origin of each source: two sources of
one origin may look alike, and a pair of sources of two origins that the run calls duplicates is a
false one.
"""

import argparse
import hashlib
import io
import json
import resource
import subprocess
import sys
import tarfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

HERE = Path(__file__).parent
N_PICTURES, N_VIDEOS, N_COPIES, PER_TAR = 1000, 20, 100, 100
SHARES = (0.2, 0.5, 0.8)
"""Of the duration of a video: its planted frames."""
MAX_VIDEO_S = 16
SIZES = ((1280, 720), (1920, 1080), (854, 480), (720, 1280), (1024, 1024), (640, 480))
FORMATS = {
    "jpg": {"quality": 92}, "webp": {"quality": 90}, "png": {"compress_level": 3},
    "avif": {"quality": 85, "speed": 9},
}  # fmt: skip
SUFFIXES = ("jpg", "jpg", "webp", "jpg", "png", "jpg", "avif", "webp")
SETTINGS = (
    "scan.media=[video,image]", "scan.sidecar_meta=true", "filters.short_side_px.min=100",
    "shard.resolutions=[108,240,480,720]",
)  # fmt: skip
"""FOOTAGE may be small; 240 is the default bound."""
Picture = NDArray[np.uint8]


def frames(path: Path, shares: tuple[float, ...]) -> Iterator[Picture]:
    """Yields the frames at these shares of a video."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        begin_s = float((stream.start_time or 0) * stream.time_base) if stream.time_base else 0
        seconds = [begin_s + share * duration_s(path) for share in shares]
        for frame in container.decode(stream):
            while seconds and frame.time is not None and frame.time >= seconds[0]:
                seconds.pop(0)
                yield np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)


def duration_s(path: Path) -> float:
    with av.open(str(path)) as container:
        return (container.duration or 0) / av.time_base


def drawn(seed: int) -> Picture:
    """Draws a picture of texture, shapes and lines that no other seed has."""
    random = np.random.default_rng(seed)
    width, height = SIZES[seed % len(SIZES)]
    picture = np.zeros((height, width, 3), np.float32)
    for octave in range(2, 9):
        cells = random.random((2**octave, 2**octave, 3), np.float32)
        picture += cv2.resize(cells, (width, height), interpolation=cv2.INTER_CUBIC) / octave
    picture = 255 * (picture - picture.min()) / np.ptp(picture)
    for _ in range(int(random.integers(8, 30))):
        colour = tuple(float(c) for c in random.integers(0, 256, 3))
        points = random.integers(0, (width, height), (int(random.integers(3, 7)), 2))
        if random.random() < 0.6:
            cv2.fillPoly(picture, [points.astype(np.int32)], colour, cv2.LINE_AA)
        else:
            cv2.polylines(picture, [points.astype(np.int32)], True, colour, 5, cv2.LINE_AA)
    return np.asarray(picture.clip(0, 255), np.uint8)


def scaled(picture: Picture, factor: float) -> Picture:
    size = (round(picture.shape[1] * factor), round(picture.shape[0] * factor))
    return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), np.uint8)


def make(media: Path, footage: Path, work: Path) -> None:
    """Writes WORK/in and WORK/plan.json."""
    found = [*sorted(media.glob("single/*")), *sorted(media.glob("multishot/*"))]
    clips = sorted(footage.glob("*.mp4"))
    short = [path for path in found if 2.5 < duration_s(path) < MAX_VIDEO_S]
    n_clips = N_VIDEOS - len(short[:N_VIDEOS])
    videos = [*short[:N_VIDEOS], *clips[:: max(1, len(clips) // max(n_clips, 1))][:n_clips]]
    others = [path for path in (*found, *clips) if path not in videos]
    plan: list[dict[str, Any]] = []
    writer = _Writer(work / "in")
    for number, path in enumerate(videos):
        name = f"video{number:02}{path.suffix}"
        uri = writer.add(name, path.read_bytes(), in_tar=number % 2 == 0)
        plan.append({"uri": uri, "origin": path.name})
        for at, picture in enumerate(frames(path, SHARES)):
            if at % 2:
                picture = scaled(picture, 0.7)
            planted = {"of": uri, "kind": "frame", "at_s": SHARES[at] * duration_s(path)}
            plan.append(writer.picture(picture, path.name) | planted)
    bases: list[tuple[Picture, str, str]] = []
    for path in others:
        shares = (0.1, 0.3, 0.5, 0.7, 0.9) if path.parent != footage else (0.1, 0.5, 0.9)
        for at, picture in enumerate(frames(path, shares)):
            plan.append(writer.picture(picture, path.name))
            if not at and len(bases) < N_COPIES // 2:
                bases.append((picture, path.name, plan[-1]["uri"]))
    seed = 0
    while writer.n_pictures < N_PICTURES - N_COPIES:
        picture, seed = drawn(seed), seed + 1
        plan.append(writer.picture(picture, f"drawn {seed}"))
        if len(bases) < N_COPIES:
            bases.append((picture, f"drawn {seed}", plan[-1]["uri"]))
    for number, (picture, origin, uri) in enumerate(bases):
        copy = scaled(picture, 0.5 + 0.04 * (number % 11))
        plan.append(writer.picture(copy, origin) | {"of": uri, "kind": "copy"})
    writer.close()
    (work / "plan.json").write_text(json.dumps(plan, indent=1))
    print(f"{writer.n_pictures} pictures, {len(videos)} videos, {writer.n_tars} tars")


class _Writer:
    """Writes sources into a folder, every second picture into tars."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self.n_pictures = self.n_tars = self._n_members = 0
        self._tar: tarfile.TarFile | None = None

    def picture(self, picture: Picture, origin: str) -> dict[str, Any]:
        number, self.n_pictures = self.n_pictures, self.n_pictures + 1
        suffix = SUFFIXES[number * 7 % len(SUFFIXES)]
        stream = io.BytesIO()
        Image.fromarray(picture).save(stream, suffix.replace("jpg", "jpeg"), **FORMATS[suffix])
        uri = self.add(f"{number:04}.{suffix}", stream.getvalue(), in_tar=number % 2 == 0)
        return {"uri": uri, "origin": origin}

    def add(self, name: str, data: bytes, *, in_tar: bool) -> str:
        if not in_tar:
            (self._folder / name).write_bytes(data)
            return name
        if self._tar is None or self._n_members == PER_TAR:
            self.close()
            self._tar = tarfile.open(  # noqa: SIM115 - `close` closes it
                self._folder / f"{self.n_tars:03}.tar", "w"
            )
            self.n_tars, self._n_members = self.n_tars + 1, 0
        facts = json.dumps({"number": name.partition(".")[0]}).encode()
        for member, content in ((name, data), (f"{name.rpartition('.')[0]}.json", facts)):
            info = tarfile.TarInfo(member)
            info.size = len(content)
            self._tar.addfile(info, io.BytesIO(content))
        self._n_members += 1
        return f"{self.n_tars - 1:03}.tar::{name}"

    def close(self) -> None:
        if self._tar is not None:
            self._tar.close()


def run(work: Path, settings: list[str]) -> None:
    """Runs `curate run`, and prints time and CPU-seconds by stage."""
    command = [str(Path(sys.executable).with_name("curate")), "run", "--recipe", "quickstart"]
    for setting in (*SETTINGS, *settings):
        command += ["--set", setting]
    begun = time.monotonic()
    subprocess.run([*command, str(work / "in"), str(work / "out")], check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    summary = json.loads((work / "out/summary.json").read_text())
    n_sources = summary["work"]["sources_scanned"]
    print(f"{time.monotonic() - begun:.0f} s, {used.ru_utime + used.ru_stime:.0f} CPU-s, "
          f"{n_sources} sources")  # fmt: skip
    print(json.dumps(summary["cpu_seconds"], indent=1))


def table(out: Path, name: str) -> list[dict[str, Any]]:
    summary = json.loads((out / "summary.json").read_text())
    parts = summary["tables"][name]
    return [row for part in parts for row in pq.read_table(out / part).to_pylist()]


def check(work: Path) -> None:
    """Compares what the run found with what was planted, and what readers find in the shards."""
    plan = json.loads((work / "plan.json").read_text())
    clips = table(work / "out", "clips")
    duplicates(plan, clips, work.absolute() / "in")
    n_kept = sum(clip["decision"] == "kept" for clip in clips)
    print(f"sources {len(plan)}, clips {len(clips)}, kept {n_kept}")
    readers(work / "out")


def duplicates(plan: list[dict[str, Any]], clips: list[dict[str, Any]], folder: Path) -> None:
    """Prints planted pairs by kind and outcome, and pairs of different origins."""
    by_id = {clip["clip_id"]: clip for clip in clips}
    name_of = {clip["clip_id"]: clip["source_uri"].removeprefix(f"{folder}/") for clip in clips}
    origin = {item["uri"]: item["origin"] for item in plan}
    group = {clip_id: clip_id for clip_id in by_id}

    def root(clip_id: str) -> str:
        while group[clip_id] != clip_id:
            clip_id = group[clip_id]
        return clip_id

    pairs: list[tuple[str, str]] = []
    for clip in clips:
        other = clip["duplicate_of"]
        if clip["reason"] == "duplicate" and other in by_id:
            pairs.append((clip["clip_id"], other))
            group[root(clip["clip_id"])] = root(other)
    of_source: defaultdict[str, list[str]] = defaultdict(list)
    for clip_id, name in name_of.items():
        of_source[name].append(clip_id)
    outcomes: Counter[tuple[str, str]] = Counter()
    missed: list[str] = []
    for item in (item for item in plan if "of" in item):
        own = of_source[item["uri"]]
        others = [
            clip_id for clip_id in of_source[item["of"]]
            if "at_s" not in item
            or by_id[clip_id]["start_s"] <= item["at_s"] < by_id[clip_id]["end_s"]
        ]  # fmt: skip
        outcome = "missed"
        if {root(clip_id) for clip_id in own} & {
            root(clip_id) for clip_id in of_source[item["of"]]
        }:
            outcome = "found"
        elif any(by_id[clip_id]["reason"] == "duplicate" for clip_id in own):
            outcome = "found, of another source"
        elif not any(by_id[clip_id]["reason"] in (None, "duplicate") for clip_id in own):
            outcome = "rejected by another rule"
        elif not any(by_id[clip_id]["reason"] in (None, "duplicate") for clip_id in others):
            outcome = "original rejected by another rule"
        else:
            missed.append(f"{item['uri']} of {item['of']} ({item['origin']})")
        outcomes[item["kind"], outcome] += 1
    for (kind, outcome), n in sorted(outcomes.items()):
        print(f"planted {kind:6} {outcome:34} {n}")
    print(*missed, sep="\n")
    same = sum(origin[name_of[a]] == origin[name_of[b]] for a, b in pairs)
    print(f"pairs named {len(pairs)}: of one origin {same}, of two {len(pairs) - same}")
    for a, b in pairs:
        if origin[name_of[a]] != origin[name_of[b]]:
            print(f"  {name_of[a]} ({origin[name_of[a]]}) = {name_of[b]} ({origin[name_of[b]]})")


def readers(out: Path) -> None:
    """Reads the training split by three readers, and compares keys and bytes with the tables."""
    import webdataset

    from curator.loading.dataset import ClipDataset

    kept = {row["clip_id"]: row for row in table(out, "clips") if row["decision"] == "kept"}
    train = {key for key, row in kept.items() if "/train-" in row["shard"]}
    media = Counter(kept[key]["medium"] for key in train)
    seen = set[str]()
    for batch in ClipDataset(str(out), frames=1, batch_size=1, window="first"):
        assert batch["video"].shape[:3] == (1, 3, 1)
        seen |= set(batch["key"])
    print(f"train {dict(media)}; ClipDataset(frames=1): {len(seen & train)} of {len(train)}")
    tars = sorted(str(path) for path in (out / "shards").glob("*/train-*.tar"))
    n_same = n_decoded = 0
    for sample in webdataset.WebDataset(tars, shardshuffle=False, empty_check=False):
        row = kept[sample["__key__"]]
        data = sample[row["format"]]
        n_same += hashlib.sha256(data).hexdigest() == row["mp4_sha256"]
        if row["medium"] == "image":
            n_decoded += Image.open(io.BytesIO(data)).size == (row["width"], row["height"])
    print(f"webdataset: {n_same} of {len(train)} with their bytes, {n_decoded} pictures decoded")
    reader = HERE.parent / "tests" / "energon_reader.py"
    shown = subprocess.run(
        [sys.executable, str(reader), str(out / "shards"), "0"], capture_output=True, text=True
    )
    if shown.returncode:
        print(f"energon: {shown.stderr.strip().splitlines()[-1]}")
        return
    (splits,) = json.loads(shown.stdout.splitlines()[-1])
    samples = dict(splits["train"])
    n_same = sum(
        samples.get(key, {}).get(kept[key]["format"]) == kept[key]["mp4_sha256"] for key in train
    )
    print(f"energon: {n_same} of {len(train)} with their bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    for name in ("media", "footage", "work"):
        making.add_argument(name, type=Path)
    running = commands.add_parser("run")
    running.add_argument("work", type=Path)
    running.add_argument("--set", action="append", default=[])
    commands.add_parser("check").add_argument("work", type=Path)
    given = parser.parse_args()
    if given.command == "make":
        make(given.media, given.footage, given.work)
    elif given.command == "run":
        run(given.work, given.set)
    else:
        check(given.work)
