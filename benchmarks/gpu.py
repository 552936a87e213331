#!/usr/bin/env python3
"""All GPU measurements in one go, and a table of them.

    gpu.py [--out FOLDER] [--only NAME]... [--media FOLDER] [--workers 1,4,8,12] [--vlm FOLDER]

Footage is made first: 1080p at 30 frames/s in H.264 and HEVC with B-frames, and copies of it that
differ in a title. Then, each in processes of its own, so that one that fails leaves the others:

    limit    frames/s of PyNvVideoCodec's own threaded decoder, which does nothing with the frames
    analyze  frames/s of all measurements, by number of processes, and its share of the limit
    cpu      the same files without the GPU, on all cores
    same     shots, decisions and tags of the GPU's tracks beside those of the CPU, over the films
             and the files of --media
    shots    frames/s of the shot network by chunk and arithmetic; difference from the CPU's float32
    clip     pictures/s of CLIP beside a bare forward pass
    flow     pairs/s of the GPU's flow engine, and its difference from DIS
    many     memory of the GPU over 1,000 sources
    captions tokens/s of captions in the worker beside the model's bare `generate`, with the model
             of --vlm, or one of random weights and Qwen2.5-VL-3B's language model

The GPU's engines, cores and memory are read by nvidia-smi while each runs. The last line is JSON.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from measure import machine

WIDTH, HEIGHT, FPS = 1920, 1080, 30
CODECS = {"h264": "libx264", "hevc": "libx265"}
Result = dict[str, Any]


class Watch:
    """Reads the GPU's engines, cores and memory a few times a second."""

    def __init__(self) -> None:
        self.rows: list[list[float]] = []
        self._stop = threading.Event()

    def __enter__(self) -> "Watch":
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _read(self) -> None:
        fields = "utilization.decoder,utilization.gpu,memory.used"
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        while not self._stop.wait(0.25):
            with contextlib.suppress(OSError, ValueError, IndexError):
                answer = subprocess.run(command, capture_output=True, text=True, check=True)
                first = answer.stdout.splitlines()[0]
                self.rows.append([float(value) for value in first.split(",")])

    def means(self) -> Result:
        """Means of utilisation in percent, and the largest memory in MiB."""
        if not self.rows:
            return {}
        decoder, cores, memory = zip(*self.rows, strict=True)
        return {
            "nvdec_percent": round(statistics.mean(decoder), 1),
            "sm_percent": round(statistics.mean(cores), 1),
            "memory_mib": max(memory),
        }


def made_films(folder: Path, count: int, seconds: int) -> dict[str, list[Path]]:
    """Films by codec; all but the first of each are copies under another title."""
    found = {}
    for name, encoder in CODECS.items():
        first = folder / f"{name}_00.mp4"
        if not first.exists():
            _encode(first, encoder, seconds)
        found[name] = [first]
        for number in range(1, count):
            path = folder / f"{name}_{number:02d}.mp4"
            if not path.exists():
                _retitled(first, path, f"copy {number}")
            found[name].append(path)
    return found


def _encode(path: Path, encoder: str, seconds: int) -> None:
    from curator.footage.write import moving_texture, write_video

    def shots() -> Iterator[np.ndarray]:
        rng = np.random.default_rng(0)
        for seed in range(max(1, seconds // 3)):
            for frame in moving_texture(90, width_px=WIDTH, height_px=HEIGHT, seed=seed):
                noise = rng.integers(-4, 5, (HEIGHT, WIDTH, 1), np.int16)
                yield np.clip(frame + noise, 0, 255).astype(np.uint8)

    options = {"preset": "veryfast", "crf": "22"}
    write_video(path, shots(), codec=encoder, options=options, gop=60, bframes=3)


def _retitled(source: Path, path: Path, title: str) -> None:
    import av

    with av.open(str(source)) as read, av.open(str(path), "w") as write:
        write.metadata["title"] = title
        stream = write.add_stream_from_template(read.streams.video[0])
        for packet in read.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                write.mux(packet)


def in_processes(task: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Runs a job in a fresh process each, all at once; an error is raised here."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(len(jobs), maxtasksperchild=1) as pool:
        return pool.starmap(task, jobs, chunksize=1)


def _decode_all(paths: list[str], start_at: float) -> tuple[int, float, float]:
    import PyNvVideoCodec as Codec

    decoders = [Codec.ThreadedDecoder(path, 64, use_device_memory=True) for path in paths[:1]]
    n_frames, begun = 0, time.time()
    time.sleep(max(0.0, start_at - begun))
    begun = time.time()
    for number, path in enumerate(paths):
        if number:
            decoders[0].reconfigure_decoder(path)
        while frames := decoders[0].get_batch_frames(32):
            n_frames += len(frames)
    return n_frames, begun, time.time()


def _rate(results: Sequence[tuple[int, float, float]]) -> float:
    begun, ended = min(r[1] for r in results), max(r[2] for r in results)
    return round(sum(r[0] for r in results) / (ended - begun), 1)


def measure_limit(films: dict[str, list[Path]], workers: Sequence[int]) -> Result:
    """Frames/s of the package's own decoder, by codec and number of processes."""
    found: Result = {}
    for codec, paths in films.items():
        rates = {}
        for count in workers:
            jobs = [([str(p) for p in paths[:2]], time.time() + 20) for _ in range(count)]
            with Watch() as watch:
                rates[count] = _rate(in_processes(_decode_all, jobs))
        found[codec] = {"by_processes": rates, "best": max(rates.values()), **watch.means()}
    return found


def _analyze_all(paths: list[str], device: str, ready: float, flow: str) -> tuple[Any, ...]:
    os.environ["OMP_NUM_THREADS"] = "1"
    from curator.graph.instruments import instruments_of
    from curator.stages.analyze import analyze_source
    from curator.stages.analyze_config import AnalyzeConfig

    config = AnalyzeConfig(device=device, flow=flow, text=False)
    instruments = instruments_of(config, None, None)
    time.sleep(max(0.0, ready - time.time()))
    begun, n_frames, notes, spent = time.time(), 0, [], {}
    for path in paths:
        with open(path, "rb") as reader:
            track = analyze_source(
                reader, path, source_id="0" * 32, n_bytes=os.path.getsize(path), config=config,
                instruments=instruments, decoder_threads=1, spent=spent,
            )  # fmt: skip
        n_frames += track.n_frames
        notes += [str(note) for note in track.notes]
    return n_frames, begun, time.time(), notes, spent, time.process_time()


def measure_analyze(
    films: dict[str, list[Path]], workers: Sequence[int], limit: Result, *, device: str = "gpu"
) -> Result:
    """Frames/s of the analysis, by codec and number of processes."""
    found: Result = {}
    for codec, paths in films.items():
        rates, details = {}, {}
        for count in workers:
            ready = time.time() + 45
            jobs = [([str(p) for p in paths[:2]], device, ready, "dis") for _ in range(count)]
            with Watch() as watch:
                results = in_processes(_analyze_all, jobs)
            rates[count] = _rate([r[:3] for r in results])
            notes = sorted({note for r in results for note in r[3]})
            cpu_s = sum(r[5] for r in results)
            details[count] = watch.means() | {"notes": notes, "cpu_s": round(cpu_s, 1)}
        best = max(rates, key=lambda count: rates[count])
        found[codec] = {"by_processes": rates, "best": rates[best], **details[best]}
        found[codec]["hours_of_video_per_hour"] = round(rates[best] / FPS, 1)
        if codec in limit:
            found[codec]["share_of_limit"] = round(rates[best] / limit[codec]["best"], 3)
    return found


def _tracks(paths: list[str], device: str, flow: str) -> list[Any]:
    os.environ["OMP_NUM_THREADS"] = "1"
    from curator.errors import SourceError
    from curator.graph.instruments import instruments_of
    from curator.stages.analyze import analyze_source
    from curator.stages.analyze_config import AnalyzeConfig

    config = AnalyzeConfig(device=device, flow=flow, text=False)
    instruments = instruments_of(config, None, None)
    tracks: list[Any] = []
    for path in paths:
        with open(path, "rb") as reader:
            try:
                track = analyze_source(
                    reader, path, source_id="0" * 32, n_bytes=os.path.getsize(path),
                    config=config, instruments=instruments, decoder_threads=1,
                )  # fmt: skip
            except SourceError as error:
                tracks.append(str(error.code))
                continue
        tracks.append(track)
    return tracks


def measure_same(films: dict[str, list[Path]], media: Path | None) -> Result:
    """How far the GPU's tracks are from the CPU's: shots, decisions of quickstart, tags."""
    paths = [str(found[0]) for found in films.values()]
    if media is not None:
        paths += sorted(str(path) for path in media.rglob("*") if path.suffix != ".json")
    found: Result = {}
    (host,) = in_processes(_tracks, [(paths, "cpu", "dis")])
    for name, flow in (("gpu", "dis"), ("gpu, hardware flow", "hardware")):
        try:
            (device,) = in_processes(_tracks, [(paths, "gpu", flow)])
        except Exception as error:  # noqa: BLE001 - the other flow is measured all the same
            found[name] = {"failed": str(error)[:300]}
            continue
        found[name] = _compared(paths, host, device)
    return found


def _compared(paths: Sequence[str], host: Sequence[Any], device: Sequence[Any]) -> Result:
    from curator.recipe import load_recipe
    from curator.stages.clips import candidate_row
    from curator.stages.filters import resolve
    from curator.stages.propose import propose_clips
    from curator.stages.shots import find_shots
    from curator.tables import score_column

    recipe = load_recipe("quickstart")
    bounds = resolve(recipe.filters.root)
    n_clips = n_same = n_tags = 0
    differ: list[str] = []
    notes: dict[str, int] = {}
    for path, a, b in zip(paths, host, device, strict=True):
        if isinstance(a, str) or isinstance(b, str):
            differ += [] if a == b else [f"{Path(path).name}: {a!s:.40} and {b!s:.40}"]
            continue
        for note in b.notes:
            notes[str(note)] = notes.get(str(note), 0) + 1
        shots = [
            [(shot.start_frame, shot.end_frame) for shot in find_shots(track, recipe.propose)]
            for track in (a, b)
        ]
        if shots[0] != shots[1] or not np.array_equal(a.frame_pts, b.frame_pts):
            differ.append(f"{Path(path).name}: {len(shots[0])} and {len(shots[1])} shots")
        spans = propose_clips(a, find_shots(a, recipe.propose), recipe.propose)
        for span in spans:
            rows = [
                candidate_row(track, span, path, aggregates=recipe.scores.root, crop_borders=True)
                for track in (a, b)
            ]
            verdicts = [
                [
                    (value := row[score_column(rule.score)]) is not None
                    and (rule.min is None or value >= rule.min)
                    and (rule.max is None or value <= rule.max)
                    for rule in bounds
                ]
                for row in rows
            ]
            n_clips += 1
            n_same += verdicts[0] == verdicts[1]
            n_tags += sorted(rows[0]["tags"] or ()) == sorted(rows[1]["tags"] or ())
    return {
        "sources": len(paths), "shots_differ": differ, "clips": n_clips,
        "same_decisions": round(n_same / max(1, n_clips), 4),
        "same_tags": round(n_tags / max(1, n_clips), 4), "notes": notes,
    }  # fmt: skip


def measure_shots() -> Result:
    """Frames/s of the shot network on the GPU, and its difference from float32 on the CPU."""
    from curator.models.transnet import ShotNetwork, ShotStream

    frames = _small_frames(3000)

    def run(network: ShotNetwork, chunk: int, shown: np.ndarray) -> tuple[Any, float]:
        stream = ShotStream(network, chunk=chunk)
        begun = time.perf_counter()
        for frame in shown:
            stream.push(frame)
        return stream.finish(), time.perf_counter() - begun

    expected, _ = run(ShotNetwork(precision="float32"), 64, frames[:1000])
    found: Result = {}
    for precision in ("float32", "auto"):
        network = ShotNetwork(precision=precision, device="cuda")  # type: ignore[arg-type]
        for chunk in (64, 128, 256, 512, 1024):
            run(network, chunk, frames[:1000])
            (_, _), seconds = run(network, chunk, frames)
            answers, _ = run(network, chunk, frames[:1000])
            off = max(float(np.abs(a - b).max()) for a, b in zip(answers, expected, strict=True))
            found[f"{network.precision}, chunk {chunk}"] = {
                "frames_per_s": round(len(frames) / seconds), "largest_difference": round(off, 4),
            }  # fmt: skip
    return found


def _small_frames(count: int) -> np.ndarray:
    from curator.footage.write import moving_texture

    shots = [
        np.stack(list(moving_texture(100, width_px=48, height_px=27, seed=seed)))
        for seed in range(count // 100)
    ]
    return np.concatenate(shots)


def measure_clip() -> Result:
    """Pictures/s of CLIP, prepared and embedded, beside a bare forward pass on the GPU."""
    import open_clip
    import torch
    from open_clip import CLIP
    from safetensors.torch import save_file

    from curator.footage.write import moving_texture
    from curator.models.catalogue import ModelEntry
    from curator.models.clip import ClipEncoder

    pictures = list(moving_texture(256, width_px=640, height_px=360))
    found: Result = {}
    for name in ("ViT-B-32-quickgelu", "ViT-L-14-quickgelu"):
        config = open_clip.get_model_config(name)
        torch.manual_seed(0)
        model = CLIP(**config).eval()
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
        some = host.embed(prepared[:16])
        bare = model.visual.half().cuda()
        batch = torch.zeros(64, 3, 224, 224, dtype=torch.float16, device="cuda")
        with torch.inference_mode():
            bare(batch)
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(4):
                bare(batch)
            torch.cuda.synchronize()
        bare_s = time.perf_counter() - begun
        found[name] = {
            "prepared_per_s": round(len(pictures) / prepare_s),
            "embedded_per_s": round(len(pictures) / embed_s),
            "bare_per_s": round(256 / bare_s),
            "largest_difference": round(float(np.abs(vectors[:16] - some).max()), 5),
        }
    return found


def measure_flow() -> Result:
    """Pairs/s of the flow engine, and how far its motion scores are from those of DIS."""
    from curator.footage.write import moving_texture
    from curator.media.hardware_flow import HardwareFlow
    from curator.signals.motion import DenseFlow, motion_signals

    pictures = [frame.mean(axis=2).astype(np.uint8) for frame in moving_texture(300)]
    engine, dis = HardwareFlow(), DenseFlow()
    found: Result = {}
    values: dict[str, list[float]] = {}
    for name, flow in (("hardware", engine), ("dis", dis)):
        begun = time.perf_counter()
        flows = [flow.between(a, b) for a, b in zip(pictures, pictures[3:], strict=False)]
        found[f"{name}_pairs_per_s"] = round(len(flows) / (time.perf_counter() - begun))
        values[name] = [
            motion_signals(a, b, f, 0.1)["motion"]
            for a, b, f in zip(pictures, pictures[3:], flows, strict=False)
        ]
    ratio = np.array(values["hardware"]) / np.maximum(np.array(values["dis"]), 1e-6)
    found["motion_ratio"] = [round(float(np.quantile(ratio, q)), 3) for q in (0.05, 0.5, 0.95)]
    return found


def measure_many(folder: Path, count: int = 1000) -> Result:
    """The GPU's memory early and late over many short sources in one process."""
    from curator.footage.write import moving_texture, write_video

    short = folder / "short.mp4"
    if not short.exists():
        write_video(short, moving_texture(60, width_px=1280, height_px=720), bframes=2)
    with Watch() as watch:
        (result,) = in_processes(_analyze_all, [([str(short)] * count, "gpu", 0.0, "dis")])
    memory = [row[2] for row in watch.rows]
    tenth = max(1, len(memory) // 10)
    return {
        "sources": count,
        "sources_per_s": round(count / (result[2] - result[1]), 2),
        "memory_mib_first_tenth": max(memory[tenth : 2 * tenth], default=None),
        "memory_mib_last_tenth": max(memory[-tenth:], default=None),
    }


def measure_captions(model: str | None) -> Result:
    """Tokens/s in the worker and of the bare loop, by benchmarks/captions_local.py."""
    import captions_local

    chosen = ["--size", "3b"] if model is None else ["--model", model]
    common = ["--windows", "24", "--max-tokens", "128", "--device", "cuda"]
    with Watch() as watch:
        found: Result = captions_local.measure(captions_local.parsed([*chosen, *common]))
    return found | watch.means()


@contextmanager
def folder_of(path: str | None) -> Iterator[Path]:
    """The folder for footage and results."""
    if path is None:
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)
    else:
        Path(path).mkdir(parents=True, exist_ok=True)
        yield Path(path)


def main() -> None:
    """Runs what was asked for; a part that fails says so, and the others go on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ("limit", "analyze", "cpu", "same", "shots", "clip", "flow", "many", "captions")
    parser.add_argument("--out", help="folder for footage, to be used again")
    parser.add_argument("--only", action="append", choices=names)
    parser.add_argument("--media", type=Path, help="folder of more videos for `same`")
    parser.add_argument("--vlm", help="folder of a vision-language model for `captions`")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--films", type=int, default=8)
    parser.add_argument("--workers", default="1,4,8,12")
    options = parser.parse_args()
    workers = [int(count) for count in options.workers.split(",")]
    wanted = options.only or names
    results: Result = {"machine": machine(), "gpu": _gpu_name()}
    with folder_of(options.out) as folder:
        is_film_needed = set(wanted) - {"shots", "clip", "flow", "many", "captions"}
        films = made_films(folder, options.films, options.seconds) if is_film_needed else {}
        parts: dict[str, Callable[[], Result]] = {
            "limit": lambda: measure_limit(films, workers),
            "analyze": lambda: measure_analyze(films, workers, results.get("limit", {})),
            "cpu": lambda: measure_analyze(films, [os.cpu_count() or 1], {}, device="cpu"),
            "same": lambda: measure_same(films, options.media),
            "shots": measure_shots,
            "clip": measure_clip,
            "flow": measure_flow,
            "many": lambda: measure_many(folder),
            "captions": lambda: measure_captions(options.vlm),
        }
        for name in (name for name in names if name in wanted):
            begun = time.monotonic()
            try:
                results[name] = parts[name]()
            except Exception as error:  # noqa: BLE001 - the other parts are measured all the same
                results[name] = {"failed": f"{type(error).__name__}: {str(error)[:400]}"}
            results[name]["took_s"] = round(time.monotonic() - begun, 1)
            print(f"## {name}\n{json.dumps(results[name], indent=1)}", flush=True)
    print(json.dumps(results))


def _gpu_name() -> str:
    command = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total",
        "--format=csv,noheader",
    ]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"no GPU: nvidia-smi says {error}")


if __name__ == "__main__":
    main()
