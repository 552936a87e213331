#!/usr/bin/env python3
"""Measures how busy captioning keeps a server, what preparation costs, and what kills repeat.

    captions.py MEDIA ... --work DIR [--base KEY=VALUE ...] [--set KEY=VALUE ...]
        [--loads SLOTSxSECONDS ...] [--repeats N] [--kills N] [--storing]

MEDIA are videos or folders of them. They are analyzed and cut once, with the keys of `--base`
(DIR/base, which is used again if it stands). Then, with the keys of `--set`, against
`caption_server.py`, which answers in SECONDS in each of SLOTS:

- *recaption* annotates the written clips, and *run* cuts all clips anew (`cut.mode: auto`) and
  annotates them meanwhile. Capacity is SLOTS / SECONDS; the share of it is what was asked, over the
  time of the phase: from the start of `caption` (*run*: of `cut`) to its end, processes started,
  decode and preparation included. *Steady* is the share from the first request to the last answer.
- *preparation* takes each clip through the steps that lead to a request, one after the other in
  this process on one thread, in CPU-seconds.
- *kills* end a recaption with all its processes by SIGKILL at random times, again and again until
  one is left to finish; requests that were answered more than once are counted.
- `--storing` asks 32 slots of 0.5 s with replies that take 40 ms to be stored, as on object
  storage, by several numbers of threads, without any preparation.

Prints tables, then JSON as its last line.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from measure import machine
from numpy.typing import NDArray

from curator.records.cuts import TextLine

WINDOW_S = 1.0
"""Windows are short, so that little video makes many: each costs less decoding and the same JPEGs
as one of five seconds."""
PORT = 18473
STORE_S = 0.04
"""A PUT to object storage takes 20 to 50 ms."""


class Server:
    """The server's process."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("caption_server.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(PORT), "1", "1"], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def reset(self, slots: int, service_s: float) -> None:
        data = json.dumps({"slots": slots, "service_s": service_s}).encode()
        self.opener.open(f"http://127.0.0.1:{PORT}/reset", data).close()

    def stats(self) -> dict[str, Any]:
        with self.opener.open(f"http://127.0.0.1:{PORT}/stats") as answer:
            stats: dict[str, Any] = json.load(answer)
        return stats

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def changes(more: Sequence[str]) -> list[str]:
    settings = [
        "caption.captioner=openai", "caption.model=timed",
        f"caption.url=http://127.0.0.1:{PORT}/v1", f"caption.window_s={WINDOW_S}", *more,
    ]  # fmt: skip
    return keys(settings)


def keys(settings: Sequence[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def curate(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "curator.cli", *arguments]


def quiet(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr[-2000:]}")


def once(
    server: Server, options: argparse.Namespace, kind: str, slots: int, service_s: float
) -> dict[str, float]:
    """One recaption or run, from an output without replies."""
    out = options.work / "out"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(options.work / "base", out)
    server.reset(slots, service_s)
    sets = changes([f"caption.in_flight={4 * slots}", *options.set])
    if kind == "recaption":
        quiet(curate("recaption", str(out), *sets))
    else:
        shutil.rmtree(out / "shards")
        quiet(curate("run", *map(str, options.media), str(out), *keys(options.base), *sets))
    summary = json.loads((out / "summary.json").read_text())
    stats, seconds = server.stats(), summary["stage_seconds"]
    wall_s = seconds["caption"] + (seconds["cut"] if kind == "run" else 0.0)
    busy_s = stats["answered"] * service_s / slots
    steady_s = max(stats["times"]) - stats["first"]
    return {
        "windows": stats["answered"], "clips": summary["counts"]["kept"], "wall_s": wall_s,
        "share": busy_s / wall_s, "steady": busy_s / steady_s, "around_s": wall_s - steady_s,
        "megabytes": stats["bytes"] / stats["received"] / 1e6,
    }  # fmt: skip


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def kills(server: Server, options: argparse.Namespace, rng: random.Random) -> dict[str, int]:
    """Kills a recaption until it has been killed often enough, and lets one finish."""
    out = options.work / "out"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(options.work / "base", out)
    server.reset(8, 1.0)
    command = curate("recaption", str(out), *changes(["caption.in_flight=8", *options.set]))
    n_kills = n_late = 0
    for _ in range(options.kills):
        before = server.stats()["answered"]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        # From when answers come: a kill before them proves nothing.
        while process.poll() is None and server.stats()["answered"] == before:
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 1.5))
        n_late += process.poll() is not None
        kill_session(process)
        n_kills += 1
    quiet(command)
    stats = server.stats()
    return {
        "kills": n_kills, "after_the_end": n_late, "windows": stats["distinct"],
        "answered_again": stats["answered_again"],
        "received_again": stats["received"] - stats["distinct"],
    }  # fmt: skip


def kill_session(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == process.pid:
                os.kill(int(folder.name), signal.SIGKILL)
        except OSError:
            continue
    process.wait()


def preparation(options: argparse.Namespace) -> dict[str, float]:
    """CPU-seconds per clip of each step that leads from a written clip to a stored answer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from curator.measures.score_list import SCORES
    from curator.media.clip_frames import READ_PX, Wanted, sample_clip
    from curator.models.text_reader import TextReader
    from curator.stages.caption.caption_records import Reply, Task
    from curator.stages.caption.captioners.chat_server import body_of
    from curator.stages.caption.config import CaptionConfig
    from curator.stages.caption.dialogs.window_dialog import Asker
    from curator.stages.caption.frame_store import FrameParts, content_of
    from curator.stages.caption.reply_store import Replies
    from curator.stages.caption.windows import WindowFrames, windows_of
    from curator.storage import open_store
    from curator.tables.clip_locations import Location, located_bytes
    from curator.tables.clip_rows import ClipRows
    from curator.tables.schemas import clips_schema

    out = options.work / "out"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(options.work / "base", out)
    store = open_store(str(out))
    config = CaptionConfig.model_validate(
        {"captioner": "openai", "model": "timed", "url": "http://x", "window_s": WINDOW_S}
    )
    names = json.loads((out / "summary.json").read_text())["tables"]["clips"]
    table = pa.concat_tables([pq.read_table(out / name) for name in names])
    rows = ClipRows(table, clips_schema(SCORES)).kept()
    parts = FrameParts(store, config)
    replies, asker = Replies(store, "benchmark"), Asker(config)
    reader = TextReader()
    spent: dict[str, float] = {}

    def timed(name: str, begun: float) -> float:
        now = time.process_time()
        spent[name] = spent.get(name, 0.0) + now - begun
        return now

    answer = {name: "A thing moves from left to right over a field." for name in config.lengths}
    n_windows = n_frames = n_bytes = 0
    for row in rows:
        where = Location(name=str(row.shard), offset=row.mp4_offset, n_bytes=row.mp4_bytes)
        at = time.process_time()
        mp4 = located_bytes(store, where)
        at = timed("read the clip", at)
        content = content_of(row.clip_id, row, "")
        choice = WindowFrames(config=config, clip_id=row.clip_id, content=content)
        wanted = choice.wanted(row.n_frames, row.fps, 0.0)
        last = [Wanted(numbers=wanted[0].numbers[-1:], size=1, form="jpeg")]
        sample_clip(mp4, last, n_frames=row.n_frames, threads=1)
        at = decoded = timed("decode", at)
        sampled = sample_clip(mp4, wanted, n_frames=row.n_frames, threads=1)
        spent["scale, JPEG"] = spent.get("scale, JPEG", 0.0) + time.process_time() - decoded
        at = time.process_time()
        (where_looked,) = parts.put([(choice, sampled, None)])
        at = timed("store the pictures", at)
        for window in windows_of(row.n_frames, row.fps, config):
            task = Task(
                clip_id=row.clip_id, content=where_looked.content, window=window, fps=row.fps
            )
            at = time.process_time()
            frames = parts.frames(where_looked, task)
            at = timed("load the pictures", at)
            dialog = asker.dialog(task)
            (request,) = next(dialog)
            at = timed("prompt and key", at)
            n_bytes += len(body_of(request, frames, config, guided=True))
            at = timed("base64, JSON", at)
            replies.keep(request.key, Reply(text=json.dumps(answer)))
            at = timed("store the answer", at)
            try:
                dialog.send([Reply(text=json.dumps(answer))])
            except StopIteration:
                timed("read and check the answer", at)
            n_windows += 1
            n_frames += len(window.shown)
    for row in rows[:8]:
        mp4 = located_bytes(
            store, Location(name=str(row.shard), offset=row.mp4_offset, n_bytes=row.mp4_bytes)
        )
        shown = [Wanted(numbers=(0,), size=READ_PX, form="text")]
        pictures: list[NDArray[np.uint8]] = []

        def keep(rgb_HWC: NDArray[np.uint8]) -> tuple[TextLine, ...]:  # noqa: N803
            pictures.append(rgb_HWC)  # noqa: B023 - called before the next clip
            return ()

        sample_clip(mp4, shown, n_frames=row.n_frames, threads=1, read_text=keep)
        begun = time.process_time()
        reader.read(pictures[0])
        # Four pictures of a clip are read, where text was found or nobody looked.
        spent["OCR, where there is text"] = spent.get("OCR, where there is text", 0.0) + 4 * (
            time.process_time() - begun
        ) * len(rows) / min(8, len(rows))
    # The second decode brought the pictures: what it took beyond the first is theirs.
    spent["scale, JPEG"] -= spent["decode"]
    return {name: seconds / len(rows) for name, seconds in spent.items()} | {
        "clips": len(rows), "windows_per_clip": n_windows / len(rows),
        "pictures_per_clip": n_frames / len(rows),
        "seconds_per_clip": sum(row.n_frames / row.fps for row in rows) / len(rows),
        "megabytes_per_window": n_bytes / n_windows / 1e6,
    }  # fmt: skip


def storing(server: Server, options: argparse.Namespace) -> list[float]:
    """The share of a fast server's capacity with storage that takes its time."""
    from curator.stages.caption.caption_records import Frames, Task, Window
    from curator.stages.caption.captioners.chat_server import ServerCaptioner
    from curator.stages.caption.captioners.dialog_runner import ServiceDialogs
    from curator.stages.caption.config import CaptionConfig
    from curator.stages.caption.dialogs.window_dialog import make_dialogs

    slots, service_s, n_windows = 32, 0.5, 640
    config = CaptionConfig.model_validate(
        {"captioner": "openai", "model": "timed", "url": f"http://127.0.0.1:{PORT}/v1",
         "in_flight": 2 * slots}
    )  # fmt: skip
    window = Window(index=0, start_frame=0, end_frame=1, shown=(0,))
    frames = Frames(jpegs=(b"jpeg",), times_s=(0.0,))
    shares = []
    for _ in range(options.repeats):
        server.reset(slots, service_s)
        runner = ServiceDialogs(
            make_dialogs(config), {"captioner": ServerCaptioner(config)}, budget_s=900
        )
        names = [f"clip-{number}" for number in range(n_windows)]
        windows = [
            (Task(clip_id=name, content=name, window=window, fps=25.0), lambda: frames)
            for name in names
        ]
        with closing(runner):
            begun = time.monotonic()
            runner.annotate(windows, {}, lambda key, reply: time.sleep(STORE_S))
        shares.append(n_windows * service_s / slots / (time.monotonic() - begun))
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("media", nargs="+", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--base", action="append", default=[])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--loads", nargs="*", default=["8x2"])
    parser.add_argument("--kinds", nargs="*", default=["recaption", "run"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--storing", action="store_true")
    parser.add_argument("--no-preparation", action="store_true")
    options = parser.parse_args()
    if not (options.work / "base/summary.json").exists():
        base = curate("run", *map(str, options.media), str(options.work / "base"))
        quiet([*base, *keys(options.base)])
    found: dict[str, Any] = {"machine": machine(), "loads": []}
    server = Server()
    try:
        print(
            "| | server | windows | phase, s | share of capacity | steady | before and after, s |"
        )
        print("|---|---|---|---|---|---|---|")
        for load in options.loads:
            slots, service_s = int(load.split("x")[0]), float(load.split("x")[1])
            for kind in options.kinds:
                runs = [
                    once(server, options, kind, slots, service_s) for _ in range(options.repeats)
                ]
                found["loads"].append({"kind": kind, "load": load, "runs": runs})
                told = {name: [run[name] for run in runs] for name in ("wall_s", "share", "steady")}
                print(
                    f"| {kind} | {slots} x {service_s:g} s | {runs[0]['windows']} "
                    f"| {statistics.median(told['wall_s']):.1f} | {spread(told['share'])} "
                    f"| {spread(told['steady'])} "
                    f"| {statistics.median(run['around_s'] for run in runs):.1f} |",
                    flush=True,
                )
        if options.kills:
            found["kills"] = kills(server, options, random.Random(0))
            print("\n" + ", ".join(f"{name} {n}" for name, n in found["kills"].items()))
        if options.storing:
            found["storing"] = storing(server, options)
            print(f"\nshare of capacity with slow storage: {spread(found['storing'])}")
    finally:
        server.stop()
    if not options.no_preparation:
        found["preparation"] = preparation(options)
        print("\n| per clip | |\n|---|---|")
        for name, value in found["preparation"].items():
            print(f"| {name} | {value:.4g} |")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
