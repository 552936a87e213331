"""What asking a server about clips takes of the driver, and of the workers.

    captions_nodes.py --work FOLDER [--clips N] [--in-flight N] [--service-s S] [--repeats N]

Pictures of made clips (8 JPEGs of 448 x 252, about 60 KB each) are stored as the cut stores them,
with one window a clip. Ray runs with two idle workers, the clips are handed over 16 at a time, and
a local server answers after `--service-s`. It prints CPU-ms per clip of the driver and of its
workers, without the server's, answers per second, and how many objects the replies became; each
repeat begins without replies. JSON is the last line. `frames_as` and prompts are the defaults.
"""

import argparse
import io
import json
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from measure import machine
from PIL import Image

from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.measures.score_list import SCORES
from curator.records.cuts import SampledFrames, StoredFrames
from curator.stages.caption.caption_driver import Captioning
from curator.stages.caption.config import CaptionConfig
from curator.storage import LocalStore
from curator.tables.clip_rows import ClipRows
from curator.tables.schemas import clips_schema

PORT = 18474
N_FRAMES = 120
SIZE = (448, 252)
PER_UNIT = 16
UNLIKE = 40
"""Pictures that are made; clips have eight of them each."""


def pictures() -> list[bytes]:
    """JPEGs of about 60 KB: smooth shapes with fine noise."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(UNLIKE):
        coarse = Image.fromarray(rng.integers(0, 256, (9, 16, 3), np.uint8)).resize(SIZE)
        noise = rng.integers(-24, 25, (SIZE[1], SIZE[0], 3))
        pixels = np.clip(np.asarray(coarse, np.int16) + noise, 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=85)
        made.append(file.getvalue())
    return made


def clips(n: int) -> ClipRows:
    rows = [
        {"clip_id": f"{number:032x}", "source_uri": f"/films/{number // 50}.mp4",
         "decision": "kept", "fps": 30.0, "n_frames": N_FRAMES, "start_frame": 0,
         "end_frame": N_FRAMES, "start_s": 0.0, "end_s": 4.0, "width": 1920, "height": 1080}
        for number in range(n)
    ]  # fmt: skip
    return ClipRows(pa.Table.from_pylist(rows, clips_schema(SCORES)), clips_schema(SCORES))


def stored(store: LocalStore, config: CaptionConfig, rows: ClipRows) -> list[StoredFrames]:
    """Stores the pictures of all clips as the cut does."""
    engine, progress = Engine(address=None, workers=1), Progress(live=False)
    order = Captioning(store, config, engine, progress, rows, checks=False).order
    jpegs = pictures()
    shown = [(2 * i + 1) * N_FRAMES // 16 for i in range(8)]
    kept, found = list(rows.kept()), []
    for start in range(0, len(kept), PER_UNIT):
        samples = []
        for number, row in enumerate(kept[start : start + PER_UNIT], start):
            its = {frame: jpegs[(number + at) % UNLIKE] for at, frame in enumerate(shown)}
            sampled = SampledFrames(n_frames=N_FRAMES, jpegs=its)
            samples.append((order.of(row), sampled, None))
        found += order.keep(samples)
    return found


def once(out: Path, config: CaptionConfig, rows: ClipRows, frames: list[StoredFrames]) -> Any:  # noqa: ANN401
    shutil.rmtree(out / "replies", ignore_errors=True)
    store = LocalStore(out)
    with Engine(address=None, workers=2) as engine:
        engine._start()
        captioning = Captioning(store, config, engine, Progress(live=False), rows, checks=False)
        begun_s, spent_s = time.monotonic(), time.process_time()
        for start in range(0, len(frames), PER_UNIT):
            captioning.take(frames[start : start + PER_UNIT])
        captioning._finish()
        wall_s, driver_s = time.monotonic() - begun_s, time.process_time() - spent_s
        n_objects = len(list((out / "replies").iterdir()))
        captioning.close()
        workers_s = sum(captioning.cpu_s.values())
    n = len(frames)
    failed = {name: n for name, n in captioning.counts.items() if "failed" in name}
    assert not failed, failed
    return {
        "driver_ms": driver_s / n * 1000, "workers_ms": workers_s / n * 1000,
        "per_s": n / wall_s, "wall_s": wall_s, "objects": n_objects,
        "objects_at_end": len(list((out / "replies").iterdir())),
        "workers_cpu_s": dict(Counter(captioning.cpu_s)),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--clips", type=int, default=2000)
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--service-s", type=float, default=0.2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    config = CaptionConfig.model_validate(
        {"captioner": "openai", "model": "timed", "url": f"http://127.0.0.1:{PORT}/v1",
         "read_text": False, "sidecar": False, "in_flight": options.in_flight}
    )  # fmt: skip
    rows = clips(options.clips)
    out = options.work / "out"
    frames = stored(LocalStore(out), config, rows)
    script = Path(__file__).with_name("caption_server.py")
    server = subprocess.Popen(
        [sys.executable, str(script), str(PORT), str(options.in_flight), str(options.service_s)],
        stdout=subprocess.PIPE,
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        found = []
        print("| driver, CPU-ms/clip | workers, CPU-ms/clip | answers/s | objects, then packed |")
        print("|---|---|---|---|")
        for _ in range(options.repeats):
            found.append(once(out, config, rows, frames))
            one = found[-1]
            print(
                f"| {one['driver_ms']:.2f} | {one['workers_ms']:.2f} | {one['per_s']:.1f} "
                f"| {one['objects']}, {one['objects_at_end']} |",
                flush=True,
            )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{PORT}/stats") as answer:
            stats = json.load(answer)
        server_cpu = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
        server_ms = (int(server_cpu[11]) + int(server_cpu[12])) * 10 / stats["answered"]
    finally:
        server.kill()
        server.wait()
    medians = {
        name: statistics.median(one[name] for one in found)
        for name in ("driver_ms", "workers_ms", "per_s")
    }
    print(json.dumps({
        "machine": machine(), "clips": options.clips, "in_flight": options.in_flight,
        "service_s": options.service_s, "medians": medians, "runs": found,
        "megabytes_per_request": stats["bytes"] / stats["received"] / 1e6,
        "server_ms": server_ms,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
