#!/usr/bin/env python3
"""Runs one part of benchmarks/gpu.py: `gpu_parts.py NAME OPTIONS`, with gpu.py's options as JSON.

gpu_notes.py writes each finding to disk at once.
"""

import contextlib
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tests_path  # noqa: F401
from gpu_films import FPS, made_films, short_film
from gpu_notes import Found, Notes
from gpu_watch import Watch
from measure import CURATE
from processes import Begin, ProcessDiedError, Task, in_processes, run_limited, streamed

Rate = list[tuple[float, int]]
"""Points in time, and the number of frames done by each; 0 at the first."""


class Part:
    """The name, options and findings of one part.

    Args:
        name: Name of the part.
        options: Options of gpu.py.
    """

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.notes = Notes(Path(options["out"]))
        self.note = partial(self.notes.add, name)
        self.options = options
        self.workers: list[int] = options["workers"]
        self.is_first: bool = options["first"]

    def films(self, codecs: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
        """Yields each codec with its films' paths; makes missing films, one codec at a time."""
        given = self.options
        for codec in codecs:
            films = made_films(Path(given["films"]), given["n_films"], given["seconds"], (codec,))
            yield codec, [str(path) for path in films[codec]]

    def measure(
        self, what: str, task: Task, jobs: Sequence[Any], found: Callable[[list[Any]], Found]
    ) -> None:
        """Runs jobs in parallel, and notes their results with the GPU's load, or their failure."""
        try:
            with Watch() as watch:
                results = in_processes(task, jobs, limit_s=60 if self.is_first else 150)
            rates = [result["rate"] for result in results]
            self.note(what, found(results) | watch.found(*_span(rates)))
        except ProcessDiedError as error:
            self.note(what, {"failed": str(error)[:300]})


def probe(part: Part) -> None:
    """Notes packages, driver libraries, engines and decoders that are present and start."""
    from curator.executor.host_resources import available_gpus
    from curator.media.encode import nvenc_problem
    from curator.tools.doctor.probe_process import QUESTIONS

    for question in QUESTIONS:
        command = [sys.executable, "-m", "curator.tools.doctor.probe_process", question]
        try:
            answer = subprocess.run(
                command, capture_output=True, text=True, timeout=60, check=False
            )
            facts = json.loads(answer.stdout.splitlines()[-1])
        except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
            facts = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        for one in facts.pop("formats", ()):
            caps = {k: v for k, v in one["caps"].items() if isinstance(v, int | float | bool)}
            part.note(f"NVDEC {one['codec']} 4:{one['chroma'][1:]} {one['bits']} bits", caps)
        part.note(question, facts)
    devices = sorted(path.name for path in Path("/dev").glob("nvidia*"))
    part.note("gpus", {"counted": available_gpus(), "devices": devices})
    loads = {}
    for name in ("libnvidia-opticalflow.so.1", "libcudart.so.13", "libcudnn.so.9"):
        try:
            ctypes.CDLL(name)
            loads[name] = "loads"
        except OSError as error:
            loads[name] = str(error)[:120]
    part.note("libraries without a package", loads)
    part.note("FFmpeg's h264_nvenc", {"problem": nvenc_problem()})
    begun = {"decoder": _begun_decoders} | ({} if part.is_first else {"flow": _begun_flow})
    for name, task in begun.items():
        try:
            (found,) = in_processes(task, [()], limit_s=60)
        except ProcessDiedError as error:
            found = {"failed": str(error)[:300]}
        part.note(f"a {name} begins", found)


def _begun_decoders(_begin: Begin) -> Iterator[Found]:
    from curator.media.nvdec import Nvdec

    nvdec, took_ms = Nvdec(), []
    for _ in range(6):
        begun = time.perf_counter()
        decoder = nvdec.decoder("h264")
        took_ms.append(round(1000 * (time.perf_counter() - begun), 1))
        del decoder
    yield {"ms": took_ms}


def _begun_flow(_begin: Begin) -> Iterator[Found]:
    from curator.media.hardware_flow import HardwareFlow

    begun = time.perf_counter()
    HardwareFlow()
    yield {"s": round(time.perf_counter() - begun, 2)}


def limit(part: Part) -> None:
    """Measures frames/s of the package's own decoder, by codec and number of processes."""
    for codec, paths in part.films(part.options["codecs"]):
        for count in part.workers[:1] if part.is_first else part.workers:
            jobs = [(paths[:2] * 3,)] * count
            part.measure(f"{codec}, {count} processes", _decode_all, jobs, lambda results: {
                "frames_per_s": _rate([result["rate"] for result in results]),
                "cpu_ms_per_frame": _cpu_ms(results, "cpu_s"),
            })  # fmt: skip


def _decode_all(begin: Begin, paths: list[str]) -> Iterator[Found]:
    import PyNvVideoCodec as Codec

    ahead, batch = 64, 32
    decoder = Codec.ThreadedDecoder(paths[0], ahead, use_device_memory=True)
    # The engine starts during the first batch. The frames decoded ahead meanwhile do not count.
    frames, n_frames = decoder.get_batch_frames(batch), -ahead - batch
    rate = [(begin(), 0)]
    cpu_s = time.process_time()
    for number, path in enumerate(paths):
        if number:
            decoder.reconfigure_decoder(path)
            frames = decoder.get_batch_frames(batch)
        while frames:
            n_frames += len(frames)
            frames = decoder.get_batch_frames(batch)
        rate.append((time.time(), n_frames))
    yield {"rate": rate, "cpu_s": time.process_time() - cpu_s}


def _cpu_ms(results: Sequence[Found], name: str) -> float:
    """Returns CPU time per frame, in milliseconds."""
    n_frames = sum(result["rate"][-1][1] for result in results)
    cpu_ms: float = sum(result[name] for result in results) / n_frames * 1000
    return round(cpu_ms, 2)


def _span(rates: Sequence[Rate]) -> tuple[float, float]:
    """Returns begin and end of the time in which all processes work and engines lack no work."""
    return min(rate[0][0] for rate in rates), min(rate[-1][0] for rate in rates)


def _rate(rates: Sequence[Rate]) -> float:
    """Returns frames/s while all processes work; frame counts are interpolated between points."""
    begun, ended = _span(rates)
    n_frames = 0.0
    for rate in rates:
        times, frames = zip(*rate, strict=True)
        n_frames += float(np.interp(ended, times, frames))
    return round(n_frames / (ended - begun), 1)


def analyze(part: Part, *, device: str = "gpu") -> None:
    """Measures frames/s of the analysis, by codec and number of processes."""
    known = part.notes.found().get("limit", {})
    short = str(short_film(Path(part.options["films"])))
    counts = part.workers if device == "gpu" else [os.cpu_count() or 1]

    def found(codec: str, results: list[Found]) -> Found:
        limits = [v.get("frames_per_s", 0) for k, v in known.items() if k.startswith(f"{codec},")]
        rate = _rate([result["rate"] for result in results])
        n_frames = sum(result["rate"][-1][1] for result in results)
        return {
            "frames_per_s": rate,
            "hours_of_video_per_hour": round(rate / FPS, 1),
            **({"share_of_limit": round(rate / max(limits), 3)} if any(limits) else {}),
            "cpu_ms_per_frame": _cpu_ms(results, "cpu_s"),
            "of_it_not_decoding": _cpu_ms(results, "main_cpu_s"),
            "of_them": {
                name: round(sum(one["spent"].get(name, 0) for one in results) / n_frames * 1000, 2)
                for name in results[0]["spent"]
            },
            "notes": sorted({note for result in results for note in result["notes"]}),
            "torch_mib": max(result["torch_mib"] for result in results),
        }

    for codec, paths in part.films(part.options["codecs"]):
        for count in counts:
            jobs = [([short, *paths[:2]], device, "dis", None)] * count
            what = f"{codec}, {count} processes"
            part.measure(what, _analyze_all, jobs, partial(found, codec))


def _analyze_all(
    begin: Begin, paths: list[str], device: str, flow: str, seconds: float | None
) -> Iterator[Found]:
    """Analyzes films until `seconds` have passed; the first film only warms up."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    from curator.stages.analyze.config import AnalyzeConfig
    from curator.stages.analyze.decode_source import analyze_source

    config = AnalyzeConfig(device=device, flow=flow)
    analysis_models = _analysis_models(config)
    notes: set[str] = set()

    def analyzed(path: str, spent: dict[str, float]) -> Any:  # noqa: ANN401
        with open(path, "rb") as reader:
            return analyze_source(
                reader, path, source_id="0" * 32, n_bytes=os.path.getsize(path), config=config,
                analysis_models=analysis_models, decoder_threads=1, spent=spent,
            )  # fmt: skip

    analyzed(paths[0], {})
    spent: dict[str, float] = {}
    rate = [(begin(), 0)]
    cpu_s, main_cpu_s = time.process_time(), time.thread_time()
    for path in paths[1:]:
        if seconds is not None and time.time() - rate[0][0] > seconds:
            break
        track = analyzed(path, spent)
        rate.append((time.time(), rate[-1][1] + track.n_frames))
        notes |= {str(note) for note in track.notes}
    yield {
        "rate": rate, "n_sources": len(rate) - 1, "notes": sorted(notes),
        "spent": spent, "cpu_s": time.process_time() - cpu_s,
        "main_cpu_s": time.thread_time() - main_cpu_s,
        "n_halved": analysis_models.n_halved(),
        "torch_mib": torch.cuda.max_memory_reserved() >> 20 if device == "gpu" else 0,
    }  # fmt: skip


def _analysis_models(config: Any) -> Any:  # noqa: ANN401 - a child process imports these
    from curator.stages.analyze.families import families_of
    from curator.stages.analyze.stage import load_analysis_models

    return load_analysis_models(config, {family.name for family in families_of(config)}, None, None)


def cpu(part: Part) -> None:
    """Analyzes the same films without the GPU, on all cores."""
    analyze(part, device="cpu")


def same(part: Part) -> None:
    """Compares tracks of GPU and CPU: shots, decisions of quickstart, tags."""
    films = made_films(Path(part.options["films"]), 1, 9, tuple(part.options["codecs"]))
    paths = [str(found[0]) for found in films.values()]
    if part.options["media"]:
        files = Path(part.options["media"]).rglob("*")
        paths += sorted(str(path) for path in files if path.is_file() and path.suffix != ".json")
    cores = os.cpu_count() or 1
    shares = [(paths[i::cores], "cpu", "dis") for i in range(min(cores, len(paths)))]
    host = dict(value for _, value in streamed(_tracks, shares, limit_s=150))
    flows = {"gpu": "dis"} | ({} if part.is_first else {"gpu, hardware flow": "hardware"})
    for name, flow in flows.items():
        totals: dict[str, Any] = {}
        try:
            for _, (path, track) in streamed(_tracks, [(paths, "gpu", flow)], limit_s=90):
                found = _compared(path, host[path], track)
                part.note(f"{name}: {Path(path).name}", found)
                _add(totals, found)
        except ProcessDiedError as error:
            totals["failed"] = str(error)[:300]
        part.note(name, totals)


def locked(part: Part) -> None:
    """Notes whether a sandboxed process can open the GPU; if not, whether an unlocked one can."""
    film = short_film(Path(part.options["films"]))
    command = [*CURATE, "run", str(film)]
    for unlocked in ("0", "1"):
        with tempfile.TemporaryDirectory() as out:
            done = subprocess.run(
                [*command, out, "--set", "analyze.device=gpu"],
                env=os.environ | {"CURATE_UNLOCKED_GPU": unlocked},
                capture_output=True,
                text=True,
                check=False,
            )
            path = Path(out) / "summary.json"
            summary = json.loads(path.read_text()) if path.exists() else {}
        counts = summary.get("counts", {})
        found = {"exit": done.returncode, "done": counts.get("done"), "device": "gpu",
                 "notes": counts.get("by_note"), "sandboxes": summary.get("sandboxes")}  # fmt: skip
        is_well = found["done"] == 1 and not found["notes"] and not found["boxes"]
        part.note(
            "an unlocked process" if unlocked == "1" else "a locked process",
            found if is_well else found | {"said": done.stderr.strip()[-600:]},
        )
        if is_well:
            return


def corpus(part: Part) -> None:
    """Runs over two films per worker: frames/s of the analysis, and the GPU's load."""
    (film,) = made_films(Path(part.options["films"]), 1, part.options["seconds"], ("h264",))["h264"]
    n_frames = part.options["seconds"] * FPS
    for count in part.workers:
        with tempfile.TemporaryDirectory() as folder:
            films, out = Path(folder) / "films", Path(folder) / "out"
            films.mkdir()
            for number in range(2 * count):
                # An MP4 box that players skip makes each file a different source.
                free = (12).to_bytes(4) + b"free" + number.to_bytes(4)
                (films / f"{number:03d}.mp4").write_bytes(film.read_bytes() + free)
            # --workers makes the run use Ray on a single machine. The size filter rejects all
            # clips, so none is cut and the host's cores serve only the analysis.
            command = [*CURATE, "run", str(films), str(out), "--set", "analyze.device=gpu",
                       "--set", f"analyze.workers_per_gpu={count}",
                       "--set", "filters.short_side_px.min=100000",
                       "--workers", str(2 * count)]  # fmt: skip
            words = Path(part.options["out"]) / f"corpus_{count}.txt"
            with Watch() as watch, words.open("w") as log:
                problem = run_limited(command, 165, log)
            path = out / "summary.json"
            summary = json.loads(path.read_text()) if path.exists() else {}
        if problem is not None:
            part.note(f"{count} workers", {"failed": problem, "said": words.read_text()[-600:]})
            continue
        # Engines are idle while workers start.
        busy = [row for row in watch.rows if row[0] > 0]
        part.note(f"{count} workers", {
            "done": summary["counts"]["done"], "notes": summary["counts"]["by_note"],
            "stage_seconds": summary["stage_seconds"], "cpu_seconds": summary["cpu_seconds"],
            "frames_per_s": round(2 * count * n_frames / (busy[-1][3] - busy[0][3])),
            "cluster": summary["cluster"], "sandboxes": summary.get("sandboxes"),
            "died": summary["cluster"]["workers_died"],
        } | watch.found(busy[0][3], busy[-1][3]))  # fmt: skip


def _add(totals: dict[str, Any], found: Found) -> None:
    totals["sources"] = totals.get("sources", 0) + 1
    for key, value in found.items():
        if isinstance(value, int):
            totals[key] = totals.get(key, 0) + value


def _tracks(_begin: Begin, paths: list[str], device: str, flow: str) -> Iterator[tuple[str, Any]]:
    os.environ["OMP_NUM_THREADS"] = "1"
    from curator.errors import SourceError
    from curator.stages.analyze.config import AnalyzeConfig
    from curator.stages.analyze.decode_source import analyze_source

    config = AnalyzeConfig(device=device, flow=flow)
    analysis_models = _analysis_models(config)
    for path in paths:
        with open(path, "rb") as reader:
            try:
                track: Any = analyze_source(
                    reader, path, source_id="0" * 32, n_bytes=os.path.getsize(path),
                    config=config, analysis_models=analysis_models, decoder_threads=1,
                )  # fmt: skip
            except SourceError as error:
                track = str(error.code)
        yield path, track


def _compared(path: str, host: Any, device: Any) -> Found:  # noqa: ANN401
    """Returns the differences between two tracks of one source."""
    from curator.measures.rules import resolve
    from curator.recipe import load_recipe
    from curator.stages.propose.candidate_row import candidate_of
    from curator.stages.propose.clip_spans import propose_clips
    from curator.stages.propose.shot_boundaries import find_shots

    if isinstance(host, str) or isinstance(device, str):
        return {
            "failed": f"{host!s:.40} and {device!s:.40}",
            "outcomes_differ": int(host != device),
        }
    recipe = load_recipe("quickstart")
    bounds = resolve(recipe.filters.root)
    both = host, device
    shots = [find_shots(track, recipe.propose) for track in both]
    starts = [[(shot.start_frame, shot.end_frame) for shot in some] for some in shots]
    n_clips = n_same = n_tags = 0
    for span in propose_clips(host, shots[0], recipe.propose):
        rows = [
            candidate_of(track, span, path, aggregates=recipe.scores.root, crop_borders=True)
            for track in both
        ]
        verdicts = [
            [
                (value := row.scores[rule.score]) is not None
                and (rule.min is None or value >= rule.min)
                and (rule.max is None or value <= rule.max)
                for rule in bounds
            ]
            for row in rows
        ]
        n_clips += 1
        n_same += verdicts[0] == verdicts[1]
        n_tags += sorted(rows[0].tags or ()) == sorted(rows[1].tags or ())
    found: Found = {
        "clips": n_clips, "same_decisions": n_same, "same_tags": n_tags,
        "shots_differ": int(starts[0] != starts[1]),
        "times_differ": int(not np.array_equal(host.frame_pts, device.frame_pts)),
        "notes": [str(note) for note in device.notes],
    }  # fmt: skip
    if len(host.shot_probability) == len(device.shot_probability):
        off = np.abs(host.shot_probability - device.shot_probability)
        found["shot_probability_off"] = [round(float(off.mean()), 5), round(float(off.max()), 4)]
    if len(host.sample_frame) == len(device.sample_frame):
        found["signals_off"] = {
            name: round(float(np.nanmedian(np.abs(values - device.signals[name]))), 4)
            for name, values in host.signals.items()
            if np.isfinite(values - device.signals[name]).any()
        }
    return found


def shots(part: Part) -> None:
    """Measures frames/s of the shot network on the GPU; compares it with float32 on the CPU."""
    from curator.models.transnet import ShotNetwork, ShotStream

    frames = _small_frames(3000)

    def run(network: ShotNetwork, chunk: int, shown: np.ndarray) -> tuple[Any, float]:
        stream = ShotStream(network, chunk=chunk)
        begun = time.perf_counter()
        for frame in shown:
            stream.push(frame)
        return stream.finish(), time.perf_counter() - begun

    expected, _ = run(ShotNetwork(precision="float32"), 64, frames[:1000])
    for precision in ("auto", "float32"):
        network = ShotNetwork(precision=precision, device="cuda")
        for chunk in (512, 64, 128, 256, 1024):
            run(network, chunk, frames[:1000])
            rates = [len(frames) / run(network, chunk, frames)[1] for _ in range(3)]
            answers, _ = run(network, chunk, frames[:1000])
            off = max(float(np.abs(a - b).max()) for a, b in zip(answers, expected, strict=True))
            # On a GPU, torch rounds float32 to TF32 in convolutions.
            name = "float16" if network.precision == "float16" else "float32 as TF32"
            found = {"frames_per_s": round(statistics.median(rates)), "off_most": round(off, 4)}
            part.note(f"{name}, chunk {chunk}", found)


def _small_frames(count: int) -> np.ndarray:
    from film_shots import moving_texture

    some = [
        np.stack(list(moving_texture(100, width_px=48, height_px=27, seed=seed)))
        for seed in range(count // 100)
    ]
    return np.concatenate(some)


def text(part: Part) -> None:
    """Compares text detection in float16 and float32: pictures/s, and lines that only one finds."""
    import av
    import torch

    from curator.models.text_detector import TextDetector, lines_of

    detectors = {
        "float32": TextDetector(device="cuda"),
        "float16": TextDetector(device="cuda", precision="auto"),
        "float32 on the CPU": TextDetector(),
    }
    few = torch.randint(0, 256, (2, 360, 640, 3), dtype=torch.uint8, device="cuda")
    for name, detector in list(detectors.items())[:2]:
        detector.maps(few)
        begun = time.perf_counter()
        for _ in range(200):
            detector.maps(few)
        torch.cuda.synchronize()
        rate = 400 / (time.perf_counter() - begun)
        part.note(f"{name}, batches of 2", {"pictures_per_s": round(rate)})
    lines: dict[str, list[np.ndarray]] = {name: [] for name in detectors}
    for path in sorted(Path(part.options["media"]).rglob("*.mp4")):
        with contextlib.suppress(av.FFmpegError, IndexError), av.open(str(path)) as container:
            for number, frame in enumerate(container.decode(video=0)):
                if number % 40 == 20:
                    rgb: Any = frame.to_ndarray(format="rgb24")
                    for name, detector in detectors.items():
                        boxes = lines_of(detector.host_map(rgb))
                        lines[name].append(boxes)
                if number > 200:
                    break
    for name in list(detectors)[1:]:
        pairs = list(zip(lines["float32"], lines[name], strict=True))
        alone = [_unmatched(a, b) + _unmatched(b, a) for a, b in pairs]
        part.note(f"{name}, compared with float32", {
            "pictures": len(pairs), "lines": sum(map(len, lines["float32"])),
            "lines_of_one": sum(alone), "pictures_that_differ": int(np.count_nonzero(alone)),
        })  # fmt: skip


def _unmatched(boxes: np.ndarray, others: np.ndarray) -> int:
    """Counts the boxes that overlap none of the others with an IoU above 0.5."""
    n = 0
    for box in boxes[:, :4]:
        low, high = np.maximum(others[:, :2], box[:2]), np.minimum(others[:, 2:4], box[2:])
        common = (high - low).clip(0).prod(1)
        union = (others[:, 2:4] - others[:, :2]).prod(1) + (box[2:] - box[:2]).prod() - common
        n += not (common > union / 2).any()
    return n


def clip(part: Part) -> None:
    """Measures pictures/s of CLIP, prepared and embedded, and of a bare forward pass on the GPU."""
    import open_clip
    import torch
    from film_shots import moving_texture
    from safetensors.torch import save_file

    from curator.models.catalogue import ModelEntry
    from curator.models.clip_model import ClipEncoder

    pictures = list(moving_texture(256, width_px=640, height_px=360))
    for name in ("ViT-B-32-quickgelu", "ViT-L-14-quickgelu"):
        config = open_clip.get_model_config(name)
        torch.manual_seed(0)
        model = open_clip.CLIP(**config).eval()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "weights.safetensors"
            save_file({k: v.contiguous() for k, v in model.state_dict().items()}, str(path))
            entry = ModelEntry(name="bench", kind="clip", about="", file=path.name, licence="",
                               architecture=name, dim=config["embed_dim"])  # fmt: skip
            gpu = ClipEncoder(entry, path, device="cuda")
            host = ClipEncoder(entry, path, device="cpu")
        begun = time.perf_counter()
        prepared = [gpu.prepare(picture) for picture in pictures]
        prepare_s = time.perf_counter() - begun
        gpu.embed(prepared[:64])
        begun = time.perf_counter()
        vectors = gpu.embed(prepared)
        embed_s = time.perf_counter() - begun
        part.note(name, {
            "prepared_per_s": round(len(pictures) / prepare_s),
            "embedded_per_s": round(len(pictures) / embed_s),
        })  # fmt: skip
        for batch in (8, 64):
            part.note(f"{name}, bare, batches of {batch}", {
                "pictures_per_s": _bare_rate(model.visual, batch)
            })  # fmt: skip
        off = np.abs(vectors[:8] - host.embed(prepared[:8])).max()
        part.note(f"{name}, beside float32 on the CPU", {"off_most": round(float(off), 5)})


def _bare_rate(tower: Any, size: int) -> int:  # noqa: ANN401
    import torch

    bare = tower.half().cuda()
    batch = torch.zeros(size, 3, 224, 224, dtype=torch.float16, device="cuda")
    with torch.inference_mode():
        for _ in range(3):
            bare(batch)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(10):
            bare(batch)
        torch.cuda.synchronize()
    return round(10 * size / (time.perf_counter() - begun))


def flow(part: Part) -> None:
    """Measures pairs/s of the flow engine, and its motion scores relative to those of DIS."""
    from film_shots import moving_texture

    from curator.measures.motion import DenseFlow, motion_signals
    from curator.media.hardware_flow import HardwareFlow

    pictures = [frame.mean(axis=2).astype(np.uint8) for frame in moving_texture(300)]
    pairs = list(zip(pictures, pictures[3:], strict=False))
    values: dict[str, list[float]] = {}
    for name, engine in (("dis", DenseFlow()), ("hardware", HardwareFlow())):
        engine.between(*pairs[0])
        begun = time.perf_counter()
        flows = [engine.between(a, b) for a, b in pairs]
        seconds = time.perf_counter() - begun
        values[name] = [
            motion_signals(a, b, f, 0.1)["motion"] for (a, b), f in zip(pairs, flows, strict=True)
        ]
        part.note(name, {"pairs_per_s": round(len(flows) / seconds)})
    ratio = np.array(values["hardware"]) / np.maximum(np.array(values["dis"]), 1e-6)
    quantiles = [round(float(np.quantile(ratio, q)), 3) for q in (0.05, 0.5, 0.95)]
    part.note("motion of hardware by that of dis", {"quantiles_5_50_95": quantiles})


def mps(part: Part) -> None:
    """Runs `limit` and `analyze` with the first number of processes under NVIDIA's MPS."""
    control = "nvidia-cuda-mps-control"
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        try:
            subprocess.run([control, "-d"], check=True, timeout=20)
        except (OSError, subprocess.SubprocessError) as error:
            part.note("mps", {"failed": str(error)[:300]})
            return
        try:
            part.workers = part.workers[:1]
            for task in (limit, analyze):
                part.note = partial(part.notes.add, f"{task.__name__} under MPS")
                task(part)
        finally:
            subprocess.run([control], input="quit\n", text=True, timeout=20, check=False)


def many(part: Part) -> None:
    """Records the GPU's memory over many short sources in one process."""
    short = str(short_film(Path(part.options["films"])))
    with Watch() as watch:
        job = ([short] * 1001, "gpu", "dis", 75.0)
        (result,) = in_processes(_analyze_all, [job], limit_s=110)
    begun, ended = _span([result["rate"]])
    memory = [row[2] for row in watch.rows if begun <= row[3] <= ended]
    tenth = max(1, len(memory) // 10)
    part.note("short sources", {
        "sources": result["n_sources"],
        "sources_per_s": round(result["n_sources"] / (ended - begun), 2),
        "memory_mib_by_tenths": [
            round(max(memory[i : i + tenth])) for i in range(0, len(memory), tenth)
        ],
        "halved": result["n_halved"],
        "notes": result["notes"],
    })  # fmt: skip


def index(part: Part) -> None:
    """Measures pairs of the index over up to 10^6 synthetic vectors: time, and recall vs exact."""
    program = Path(__file__).parent / "vector_index.py"
    command = [sys.executable, str(program), "pairs", part.options["vectors"], "--made-dim", "256",
               "--probes", "16"]  # fmt: skip
    for n_clips in (25_000, 250_000):
        words = Path(part.options["out"]) / f"index_{n_clips}.txt"
        with Watch() as watch, words.open("w") as log:
            problem = run_limited([*command, "--clips", str(n_clips)], 190, log)
        said = words.read_text()
        if problem is not None:
            part.note(f"{n_clips} clips", {"failed": problem, "said": said[-600:]})
        else:
            (found,) = json.loads(said.splitlines()[-1])
            part.note(f"{n_clips} clips", found | watch.found())


def captions(part: Part) -> None:
    """Measures captions by a server of the GPU, with benchmarks/captions_local.py."""
    import captions_local

    model = part.options["vlm"]
    chosen = ["--size", "small"] if model is None else ["--model", model]
    with Watch() as watch:
        captions_local.measure(captions_local.parsed([*chosen, "--rounds", "2"]), note=part.note)
    part.note("the GPU", watch.found())


def loader(part: Part) -> None:
    """Measures samples/s and the waits of a trainer on the same GPU, with GPU and CPU decoding."""
    import torch
    from made_shards import MadeClip, write_shards

    from curator.loading import ClipDataset, ClipLoader

    mp4 = short_film(Path(part.options["films"])).read_bytes()
    weights = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    # One step takes 14 ms at 700 TFLOP/s.
    x = torch.randn(24 * 4096, 4096, device="cuda", dtype=torch.bfloat16)

    def step(video: torch.Tensor) -> None:
        for _ in range(3):
            x @ weights
        float(video.cuda().float().mean())

    with tempfile.TemporaryDirectory() as folder:
        clips = [
            MadeClip(key=f"{i:04x}", mp4=mp4, n_frames=60, height=720, width=1280)
            for i in range(1600)
        ]
        out = str(write_shards(Path(folder) / "out", [("720p_16-9", "train", clips)]))
        for decode, n_workers in (("gpu", 0), ("gpu", 8), ("cpu", 14)):
            given: Any = {"frames": 17, "batch_size": 8, "size": (256, 256), "decode": decode}
            dataset = ClipDataset(out, **given)
            context = "spawn" if n_workers and decode == "gpu" else None
            batches = iter(
                ClipLoader(dataset, num_workers=n_workers, multiprocessing_context=context)
            )
            for _ in range(2 * n_workers + 4):
                step(next(batches)["video"])
            begun = asked = time.perf_counter()
            waited_s, n_samples = 0.0, 0
            for batch in batches:
                waited_s += time.perf_counter() - asked
                n_samples += len(batch["key"])
                step(batch["video"])
                asked = time.perf_counter()
                if asked - begun > 6:
                    break
            took_s = time.perf_counter() - begun
            part.note(f"decode {decode}, {n_workers} workers", {
                "samples_per_s": round(n_samples / took_s, 1),
                "stall_percent": round(100 * waited_s / took_s, 1),
                "not_on_gpu": {str(k): v for k, v in dataset.not_on_gpu.items()},
            })  # fmt: skip


PARTS = {
    part.__name__: part
    for part in (
        probe, locked, limit, analyze, same, shots, text, flow, clip, mps, many, corpus, index,
        captions, loader, cpu,
    )
}  # fmt: skip


def main(name: str, options: str) -> None:
    """Runs one part."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    PARTS[name](Part(name, json.loads(options)))


if __name__ == "__main__":
    main(*sys.argv[1:])
