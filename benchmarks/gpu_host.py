#!/usr/bin/env python3
"""What a source costs the host of a GPU: CPU time, kernels, copies and waits. Needs no GPU.

    gpu_host.py FILE... [--seconds 20] [--against FOLDER] [--launch-us 7] [--copy-us 10] ...

The whole of the GPU path runs, text included, with everything measured, over a CUDA device in
software (tests/software_cuda.py) and an engine that gives pictures decoded before. Host time is the
CPU time of all threads without calls of torch, which are timed from where the program makes them;
what this clock does not see of a call is measured, and taken off for each. What the device is asked
for is counted, and costs what the options say. `--against` measures the package of another checkout
too, in a process of its own.

The tables are of one second of video, by part. The last line is JSON.
"""

import heapq
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from importlib import import_module
from inspect import isgeneratorfunction
from itertools import islice
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import av
import tests_path  # noqa: F401
import torch
from fake_nvdec import Decoded, fake_module, planes_of
from measure import arguments, tell
from software_cuda import Counts, SoftwareCuda, installed

import curator

COSTS_US = {
    "launch": (7.0, "Python, binding, dispatcher, kernel's choice, cudaLaunchKernel: 5 to 12 us"
               " (jiahuanglin.xyz, From PyTorch op to kernel launch)"),
    "view": (2.0, "an assumption: the same without a kernel; 0.4 to 0.6 us on this CPU's tensors"),
    "copy": (10.0, "a copy that blocks, however short (University of Virginia,"
             " Memory Transfer Overhead)"),
    "megabyte": (167.0, "an assumption: 6 GB/s for pageable memory"),
    "wait": (5.0, "an assumption: a wait for an event, with the thread's wake-up"),
    "call": (2.0, "an assumption: an event recorded, or waited for by a stream; pinned memory taken"
             " from torch's store"),
    "graph": (10.0, "an assumption: a graph's launch by Python"),
    "node": (0.2, "an assumption: each kernel of a graph; drivers before 12.6 need time for each"),
    "decode": (50.0, "an assumption: parser and two calls of the driver for a frame"),
}  # fmt: skip
"""Microseconds of the host for each, and where they are from; none was measured here."""
ENGINES_FRAMES_PER_S = 170 * 30
"""Seven engines of an H100: 170 streams of H.264, 1080p at 30 frames/s; said to be NVIDIA's figure,
and not checked against its paper."""
CORES = 16
KEPT = 60
"""Pictures that stand for all of a film's: at 1080p 190 MB."""
_LATE = 4
_TRIES, _WARM_UP_S = 2, 12
_READER, _MEASURER = "curator.media.nvdec:NvdecReader", "curator.stages.analyze.measurer"
_SAMPLER = "curator.stages.analyze.device_samples:DeviceSampler"
PARTS = {
    "read, demux, hash": (
        "curator.media.decode:FrameReader._packets", "curator.storage:HashingReader.finish",
    ),
    "audio": ("curator.media.audio_level:LevelMeter.take",
              "curator.media.audio_level:LevelMeter.levels"),
    "open, first picture": (
        "curator.stages.analyze.decode_source:SourceDecode.__init__", f"{_READER}._learned",
        "curator.media.nvdec:first_picture", "curator.media.nvdec:EngineStream._compare",
        f"{_READER}._compare_first",
    ),
    "engine, batches": (
        f"{_READER}._decoded", f"{_READER}._filtered", f"{_READER}._batches",
        f"{_READER}._batch_of",
    ),
    "samples": (
        f"{_READER}._tiny_pictures", f"{_SAMPLER}.__call__", f"{_SAMPLER}._begun",
        f"{_SAMPLER}._views", "curator.media.device_frames:DeviceScaler.rgb_HWC",
    ),
    "measures": (
        f"{_SAMPLER}._measure_inside", f"{_MEASURER}:describe", f"{_MEASURER}:picture_signals",
        "curator.stages.analyze.frame_views:DeviceViews.native_signals",
    ),
    "looks: maps and text": (
        f"{_SAMPLER}._map_looks", "curator.models.device_text:DeviceTextDetector.maps",
        "curator.stages.analyze.overlay_samples:OverlaySamples.sample",
        "curator.stages.analyze.overlay_samples:OverlaySamples.pair",
    ),
    "shot network and head": (
        "curator.models.transnet:ShotStream.push", "curator.models.transnet:ShotStream.push_batch",
        "curator.models.transnet:ShotStream.finish", "curator.models.transnet:ShotStream._run",
    ),
    "flow, camera": (f"{_MEASURER}:Measurer._measure_pair",),
    "thumbnails": (f"{_MEASURER}:_thumbnail",),
    "samples put together": (f"{_MEASURER}:Measurer.add", f"{_MEASURER}:Measurer.columns"),
}  # fmt: skip
"""Which functions are a part; what they call is theirs, unless it is of another part. Names that a
checkout does not have are left out."""
_FAKE, _REST = "the fake engine", "frames and threads"


class Parts:
    """Host time and counts by part, of all threads."""

    def __init__(self, device: SoftwareCuda) -> None:
        self._device = device
        self._of_thread = threading.local()
        self.host_s: defaultdict[str, float] = defaultdict(float)
        self.counts: defaultdict[str, Counts] = defaultdict(Counts)
        self.n_entered = 0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Within it the calling thread works for this part."""
        thread = self._of_thread
        self._charge()
        stack = thread.__dict__.setdefault("stack", [])
        stack.append(name)
        before = self._device.counting(self.counts[name])
        self.n_entered += 1
        thread.since_s = self._device.host_time()
        try:
            yield
        finally:
            self._charge()
            stack.pop()
            self._device.counting(before)
            thread.since_s = self._device.host_time()

    def _charge(self) -> None:
        thread = self._of_thread
        if getattr(thread, "stack", None):
            self.host_s[thread.stack[-1]] += self._device.host_time() - thread.since_s

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as a part."""
        if isgeneratorfunction(function):

            @wraps(function)
            def generated(*args: Any, **options: Any) -> Iterator[Any]:  # noqa: ANN401
                values = function(*args, **options)
                while True:
                    with self.part(name):
                        try:
                            value = next(values)
                        except StopIteration:
                            return
                    yield value

            return generated

        @wraps(function)
        def called(*args: Any, **options: Any) -> Any:  # noqa: ANN401
            with self.part(name):
                return function(*args, **options)

        return called

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Puts the functions of `PARTS` under watch."""
        kept = []
        for name, paths in PARTS.items():
            for path in paths:
                module, _, attributes = path.partition(":")
                *owners, last = attributes.split(".")
                with suppress(ImportError, AttributeError):
                    owner = import_module(module)
                    for one in owners:
                        owner = getattr(owner, one)
                    function = vars(owner).get(last) or getattr(owner, last)
                    kept.append((owner, last, function))
                    setattr(owner, last, self.of(name, function))
        try:
            yield
        finally:
            for owner, last, function in reversed(kept):
                setattr(owner, last, function)


class Engine:
    """Gives the packets' times back in order, and pictures without decoding them."""

    def __init__(self, pictures: list[torch.Tensor]) -> None:
        self._pictures, self._times, self._n = pictures, list[int](), 0

    def Decode(self, packet: Any) -> list[Decoded]:  # noqa: ANN401, N802
        """Frames, some packets late; all that are left at the end."""
        if packet.bsl:
            heapq.heappush(self._times, packet.pts)
        n_due = max(0, len(self._times) - _LATE) if packet.bsl else len(self._times)
        self._n, first = self._n + n_due, self._n
        return [
            Decoded(heapq.heappop(self._times), self._pictures[n % len(self._pictures)])
            for n in range(first, self._n)
        ]


def beginning_of(path: Path, seconds: float) -> bytes:
    """The first seconds of a film, as a file."""
    held = io.BytesIO()
    with av.open(str(path)) as read, av.open(held, "w", format="mp4") as write:
        streams = {stream.index: write.add_stream_from_template(stream)
                   for stream in read.streams if stream.type in ("video", "audio")}  # fmt: skip
        for packet in read.demux(*(read.streams[index] for index in streams)):
            if packet.dts is not None and packet.dts * packet.time_base < seconds:
                packet.stream = streams[packet.stream.index]
                write.mux(packet)
    return held.getvalue()


def measured(path: Path, seconds: float, device: SoftwareCuda) -> dict[str, Any]:
    """What a second of a film's video costs, by part."""
    from curator.stages.analyze.analysis_models import load_analysis_models
    from curator.stages.analyze.config import AnalyzeConfig
    from curator.stages.analyze.decode_source import analyze_source
    from curator.stages.analyze.families import families_of

    with av.open(str(path)) as container:
        pictures = [planes_of(one) for one in islice(container.decode(video=0), KEPT)]
    parts = Parts(device)
    engine = type("Watched", (Engine,), {"Decode": parts.of(_FAKE, Engine.Decode)})
    sys.modules["PyNvVideoCodec"] = fake_module(CreateDecoder=lambda **_: engine(pictures))
    config = AnalyzeConfig(device="gpu")
    families = {family.name for family in families_of(config)} - {"clip"}
    analysis_models = load_analysis_models(config, families, None, None)

    def run(seconds: float) -> tuple[Any, float]:
        data = beginning_of(path, seconds)
        begun_s = time.process_time()
        track = analyze_source(
            io.BytesIO(data), path.name, source_id="0" * 32, n_bytes=len(data), config=config,
            analysis_models=analysis_models, decoder_threads=1, families=families, spent={},
        )  # fmt: skip
        return track, time.process_time() - begun_s

    hidden = hidden_costs_s(parts, device)
    # A worker's first film of a form: graphs are made, and constants.
    run(_WARM_UP_S)
    tries = []
    for _ in range(_TRIES):
        device.counts = rest = Counts()
        parts.host_s, parts.counts, parts.n_entered = defaultdict(float), defaultdict(Counts), 0
        with parts.watched():
            track, cpu_s = run(seconds)
        if any("not_on_gpu" in note for note in track.notes):
            raise SystemExit(f"{path.name}: {track.notes}; give films that the engine decodes")
        tries.append(of_a_try(parts, rest, track, cpu_s, hidden))
    # Other work on the machine only adds.
    found = min(tries, key=lambda one: sum(part["host_ms"] for part in one.values()))
    launches = sum((one.launches for one in (*parts.counts.values(), rest)), Counts().launches)
    video_s = float(track.duration_s)
    return {
        "frames_per_s": track.n_frames / video_s,
        "video_s": video_s,
        "parts": found | around(path, seconds, track, config),
        "tries_host_ms": [round(sum(part["host_ms"] for part in one.values()), 1) for one in tries],
        "hidden_us": {name: round(1e6 * s, 2) for name, s in hidden.items()},
        "launches": {name: round(n / video_s, 2) for name, n in launches.most_common()},
    }


def of_a_try(
    parts: Parts,
    rest: Counts,
    track: Any,  # noqa: ANN401
    cpu_s: float,
    hidden: dict[str, float],
) -> dict[str, dict[str, float]]:
    """What a second of video costs, by part."""
    counts = {**parts.counts, _REST: rest}
    software_s = sum(count.software_s for count in counts.values())
    host_s = {**parts.host_s, _REST: cpu_s - software_s - sum(parts.host_s.values())}
    host_s[_REST] -= hidden["part"] * parts.n_entered
    for name, one in counts.items():
        host_s[name] -= hidden["call"] * one.calls_of_torch + hidden["freed"] * one.freed
    for fake in (host_s, counts):
        fake.pop(_FAKE)
    video_s = float(track.duration_s)
    frames_per_s = track.n_frames / video_s
    found = {name: asked_of(one, video_s) for name, one in counts.items()}
    found["engine, batches"]["decode"] = frames_per_s
    for name, asked in found.items():
        asked["host_ms"] = 1e3 * host_s[name] / video_s
        asked["torch"] = counts[name].calls_of_torch / video_s
    return found


def asked_of(counts: Counts, video_s: float) -> dict[str, float]:
    """What the device was asked for in a second of video, by the names of `COSTS_US`."""
    blocking = [n for (_, blocks), n in counts.copies.items() if blocks]
    asked = {
        "launch": counts.launches.total() + counts.copies.total() - sum(blocking),
        "view": counts.views,
        "copy": sum(blocking),
        "megabyte": sum(n for (_, blocks), n in counts.copied_bytes.items() if blocks) / 1e6,
        "wait": counts.waits.total(),
        "call": counts.calls,
        "graph": counts.graphs,
        "node": counts.nodes,
        "decode": 0,
    }
    return {name: n / video_s for name, n in asked.items()}


def hidden_costs_s(parts: Parts, device: SoftwareCuda) -> dict[str, float]:
    """CPU time that the clocks do not see: of a call of torch, of a tensor freed, of a part."""
    n = 3000

    def spent_s(step: Callable[[], Any]) -> float:
        device.counts = counts = Counts()
        begun_s = time.thread_time()
        for _ in range(n):
            step()
        return (time.thread_time() - begun_s - counts.software_s) / n

    with torch.inference_mode():
        values = torch.zeros(8, device="cuda")
        nothing = spent_s(lambda: None)
        call = spent_s(lambda: values.add_(1)) - nothing
        freed = spent_s(lambda: values + 1) - nothing - call
    enters = parts.of("tried", lambda: None)
    part = spent_s(enters) - nothing - parts.host_s["tried"] / n
    return {"call": call, "freed": freed, "part": part}


def around(path: Path, seconds: float, track: Any, config: Any) -> dict[str, Any]:  # noqa: ANN401
    """What a source costs around its measurements: the sandbox's pipe, and the stored track."""
    from curator.executor.plain_values import from_bytes, to_bytes
    from curator.executor.sandboxed_process import SandboxedProcess
    from curator.records.sources import SourceRef
    from curator.stages.analyze.families import families_of
    from curator.stages.analyze.stage import AnalyzeStage
    from curator.storage import open_source, open_store
    from curator.tables.track_items import HashItem, SourceItem
    from curator.tables.track_parts import TrackParts

    families = [one for one in families_of(config) if one.name != "clip"]
    with tempfile.TemporaryDirectory() as folder:
        film = Path(folder) / "film.mp4"
        film.write_bytes(beginning_of(path, seconds))
        with open_source(str(film)) as reader:
            version = reader.raw.version  # type: ignore[attr-defined]
        source = SourceRef(uri=str(film), n_bytes=film.stat().st_size, version=version,
                           source_id=track.source_id)  # fmt: skip
        stage, box = AnalyzeStage(config.model_copy(update={"device": "cpu"})), SandboxedProcess()
        records = _records_of(AnalyzeStage)
        item = HashItem(source=source)
        store = TrackParts(open_store(folder), families)
        kept = SourceItem(source=source, families=frozenset(family.name for family in families))
        sent_s, stored_s = [], []
        try:
            for _ in range(6):
                begun_s = time.process_time()
                box.process(stage, item)
                from_bytes(to_bytes(track), records)
                sent_s.append(time.process_time() - begun_s + box.take_cpu_s()[1])
                begun_s = time.process_time()
                stage.process(item)
                sent_s[-1] -= time.process_time() - begun_s
                begun_s = time.process_time()
                store.keep([kept], [track])
                stored_s.append(time.process_time() - begun_s)
        finally:
            box.stop()
    nothing = asked_of(Counts(), 1)
    video_s = float(track.duration_s)
    found = {"sandbox's pipe": sent_s, "storing": stored_s}
    return {
        name: nothing | {"host_ms": 1e3 * sorted(spent_s[1:])[2] / video_s}
        for name, spent_s in found.items()
    }


def _records_of(stage: Any) -> tuple[type, ...]:  # noqa: ANN401
    """Classes of a stage's results; checkouts before 17f03fe name them in the stage."""
    try:
        from curator.executor.result_classes import result_classes
    except ImportError:
        return tuple(stage.answers)
    return result_classes(stage)


def total_ms(asked: dict[str, float], costs: dict[str, float]) -> float:
    """Host time of a second of video, with what the device was asked for."""
    return (
        asked["host_ms"] + sum(n * costs[name] for name, n in asked.items() if name in costs) / 1e3
    )


def table_of(film: str, trees: dict[str, Any], costs: dict[str, float]) -> Iterator[str]:
    """Lines of the table of a film; adds the totals to what was found."""
    columns = ("host_ms", *COSTS_US)
    head = "host | launches | views | copies | MB | waits | calls | graphs | nodes | decodes | ms"
    yield f"\n| {film} | tree | {head} |"
    yield "|---|---|" + "---:|" * (len(columns) + 1)
    names = dict.fromkeys(name for found in trees.values() for name in found[film]["parts"])
    for name in names:
        for tree, found in trees.items():
            if asked := found[film]["parts"].get(name):
                yield _row(
                    name, tree, [asked[column] for column in columns], total_ms(asked, costs)
                )
    for tree, found in trees.items():
        parts = found[film]["parts"].values()
        sums = [sum(asked[column] for asked in parts) for column in columns]
        found[film]["total_ms"] = total = sum(total_ms(asked, costs) for asked in parts)
        yield _row("all", tree, sums, total)
    for tree, found in trees.items():
        fed = CORES * 1e3 / found[film]["total_ms"] * found[film]["frames_per_s"]
        yield f"\n{tree}: {CORES} cores feed {fed:.0f} frames/s."


def _row(part: str, tree: str, values: list[float], total: float) -> str:
    return f"| {part} | {tree} | {' | '.join(f'{value:.1f}' for value in values)} | {total:.2f} |"


def main() -> None:
    """Prints a row per film and checkout."""
    parser = arguments(__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each film (default 20)")
    parser.add_argument("--against", type=Path, help="folder of another checkout")
    for name, (cost, source) in COSTS_US.items():
        help_ = f"default {cost}; {source}"
        parser.add_argument(f"--{name}-us", type=float, default=cost, metavar="US", help=help_)
    options = parser.parse_args()
    torch.set_num_threads(1)
    trees: dict[str, dict[str, Any]] = {Path(curator.__file__).parents[1].name: {}}
    with installed() as device:
        for path in options.files:
            trees[next(iter(trees))][path.name] = measured(path, options.seconds, device)
    if options.against:
        command = [sys.executable, __file__, *map(str, options.files)]
        command += ["--seconds", str(options.seconds)]
        environment = os.environ | {"PYTHONPATH": str(options.against)}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        trees |= json.loads(done.stdout.splitlines()[-1])["trees"]
    costs = {name: getattr(options, f"{name}_us") for name in COSTS_US}
    for path in options.files:
        for line in table_of(path.name, trees, costs):
            print(line)
    print(f"\nSeven engines of an H100 give {ENGINES_FRAMES_PER_S} frames/s of H.264.")
    tell({"costs_us": costs, "trees": trees})


if __name__ == "__main__":
    main()
