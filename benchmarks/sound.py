"""Measures the sync of sound and pictures: from files of many containers to windows of the loader.

    python benchmarks/sound.py [MEDIA ...] [--modes aac] [--longest SECONDS] [--only-labelled]

Made films have a beep at each flash. They are curated with `cut.audio` copy and aac, and windows of
`ClipDataset` are compared with what the file itself plays. Then the files with sound of folders
(MEDIA, by default the labelled videos) are curated, and the sound of each clip is compared, second
by second, with the own sound of its source at the time of the frames of the clip.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.dataset as ds
import yaml
from measure import CURATE, SHARED, arguments, measured, tell, work_folder
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from synced_films import CASES, RECIPE, own_offset_s, window_offsets_s

from curator.loading import ClipDataset

MODES = ("copy", "aac")
RATE_HZ = 16_000
MOST_MS = 5.0
MOST_LAG_S = 0.1
"""Lags that are tried."""
LEAST_RMS, LEAST_PEAK = 1e-3, 0.6
"""Seconds that are more quiet, or whose best correlation is lower, show no lag."""
LEAST_CONTRAST = 1.05
"""Least ratio of the correlation without a lag of 5 ms and with it: a hum shows no lag."""


def curated(sources: Sequence[Path], out: Path, mode: str) -> Path:
    """Runs `curate` with all footage kept; returns the output root."""
    recipe = out.with_suffix(".yaml")
    recipe.write_text(yaml.safe_dump(RECIPE | {"cut": {"audio": mode}}))
    cost = measured([
        *CURATE, "run", "--recipe", str(recipe), *map(str, sources), str(out), "--max-failed", "1",
    ])  # fmt: skip
    if cost.code:
        raise SystemExit(cost.output)
    return out


def clips_of(out: Path) -> list[dict[str, Any]]:
    names = ["clip_id", "source_uri", "decision", "audio", "start_frame", "n_frames", "rate_factor"]
    rows = ds.dataset(out / "clips").to_table(columns=names).to_pylist()
    return [row for row in rows if row["decision"] == "kept"]


def made_part(folder: Path, epochs: int) -> list[dict[str, Any]]:
    """Compares beeps with flashes in windows of made films."""
    sources = folder / "made"
    sources.mkdir()
    for name, make in CASES.items():
        make(sources / name)
    own_ms = {name: 1000 * own_offset_s(sources / name) for name in CASES}
    rows = {name: {"file": name, "own_ms": own_ms[name]} for name in CASES}
    for mode in MODES:
        out = curated([sources], folder / f"made_{mode}", mode)
        copied = defaultdict(list)
        for clip in clips_of(out):
            copied[Path(clip["source_uri"]).name].append(clip["audio"] == "copy")
        found = window_offsets_s(out, epochs=epochs)
        for name, row in rows.items():
            off = [abs(1000 * each - own_ms[name]) for each in found.get(name, [np.inf])]
            row |= {f"{mode}_n": len(off), f"{mode}_ms": max(off, default=np.inf)}
            row[f"{mode}_copied"] = f"{sum(copied[name])}/{len(copied[name])}"
    columns = ("own_ms", "copy_copied", "copy_n", "copy_ms", "aac_n", "aac_ms")
    table(list(rows.values()), columns)
    return list(rows.values())


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    print("| file |", " | ".join(columns), "|")
    print("|---|", "---|" * len(columns))
    for row in rows:
        cells = [row[name] for name in columns]
        texts = [f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells]
        print(f"| {row['file']} |", " | ".join(texts), "|", flush=True)


def with_sound(media: Sequence[Path], longest_s: float) -> Iterator[Path]:
    """Yields the files, of folders too, that have pictures and sound, and are short enough."""
    files = (f for path in media for f in (sorted(path.rglob("*")) if path.is_dir() else [path]))
    for path in files:
        with suppress(av.FFmpegError, OSError), av.open(str(path)) as container:
            is_short = 0 < (container.duration or 0) <= longest_s * 1e6
            if is_short and container.streams.audio and container.streams.video:
                yield path


def source_audio(path: Path) -> tuple[NDArray[np.float32], float, list[float]]:
    """Returns a file's audio as mono, the time of its first sample, and the times of its frames."""
    with av.open(str(path), mode="r", metadata_errors="replace") as container:
        video = container.streams.video[0]
        times = sorted(float(f.pts * f.time_base) for f in _decoded(container, video))
    with av.open(str(path), mode="r", metadata_errors="replace") as container:
        stream = container.streams.best("audio", related=container.streams.video[0])
        resampler = av.AudioResampler(format="fltp", layout="stereo", rate=RATE_HZ)
        pieces: list[tuple[int, NDArray[np.float32]]] = []
        for frame in _decoded(container, stream):
            for each in resampler.resample(frame):
                assert each.pts is not None
                assert each.time_base is not None
                at = round(each.pts * each.time_base * RATE_HZ)
                pieces.append((at, each.to_ndarray().mean(axis=0)))
    begin = min(at for at, _ in pieces)
    wave = np.zeros(max(at + len(piece) for at, piece in pieces) - begin, np.float32)
    for at, piece in pieces:
        wave[at - begin : at - begin + len(piece)] = piece
    return wave, begin / RATE_HZ, times


def _decoded(container: Any, stream: Any) -> Any:  # noqa: ANN401 - of PyAV
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets)
            yield from (frame for frame in packet.decode() if frame.pts is not None)
        except StopIteration:
            return
        except av.error.FFmpegError:
            continue


def lag_ms(own: NDArray[np.float32], source: NDArray[np.float32], most: int) -> float | None:
    """Returns how much later `own` is than the middle of `source`; None if it cannot be said."""
    if np.sqrt(np.mean(own**2)) < LEAST_RMS or len(source) < len(own) + 2 * most:
        return None
    n = len(source) + len(own)
    correlation = np.fft.irfft(np.fft.rfft(source, n) * np.conj(np.fft.rfft(own, n)), n)
    energy = np.cumsum(np.concatenate([[0], source.astype(np.float64) ** 2]))
    window = energy[len(own) :] - energy[: -len(own)]
    scores = correlation[: 2 * most + 1] / np.sqrt(
        np.maximum(window[: 2 * most + 1], 1e-9) * np.sum(own.astype(np.float64) ** 2)
    )
    best = int(np.argmax(scores))
    near = round(MOST_MS / 1000 * RATE_HZ)
    others = np.delete(scores, np.arange(max(0, best - near), min(len(scores), best + near + 1)))
    if scores[best] < LEAST_PEAK or scores[best] < LEAST_CONTRAST * others.max():
        return None
    return 1000 * (most - best) / RATE_HZ


def labelled_part(
    media: Sequence[Path], folder: Path, modes: Sequence[str] = MODES
) -> list[dict[str, Any]]:
    """Compares the sound of clips of real files with the source's own."""
    rows: dict[str, dict[str, Any]] = {}
    most = round(MOST_LAG_S * RATE_HZ)
    for mode in modes:
        out = curated(media, folder / f"media_{mode}", mode)
        clips = {clip["clip_id"]: clip for clip in clips_of(out)}
        by_source = defaultdict(list)
        for sample in ClipDataset(out, video=False, audio=RATE_HZ):
            if sample["has_audio"]:
                by_source[clips[sample["key"]]["source_uri"]].append(sample)
        for uri, samples in sorted(by_source.items()):
            wave, begin_s, times = source_audio(Path(uri))
            row = rows.setdefault(uri, {"file": Path(uri).name})
            lags: list[float] = []
            for sample in samples:
                clip = clips[sample["key"]]
                if clip["start_frame"] >= len(times):
                    # PyAV gives no times for some frames of such a file.
                    continue
                own = sample["audio"][0].numpy()
                first_s = times[clip["start_frame"]] - begin_s
                for at in range(0, len(own), RATE_HZ):
                    piece = own[at : at + RATE_HZ]
                    begin = round(first_s * RATE_HZ) + at - most
                    if len(piece) < RATE_HZ // 2 or begin < 0:
                        continue
                    found = lag_ms(piece, wave[begin : begin + len(piece) + 2 * most], most)
                    lags += [] if found is None else [found]
            n_copied = sum(clips[s["key"]]["audio"] == "copy" for s in samples)
            row |= {
                f"{mode}_n": len(lags),
                f"{mode}_ms": max(map(abs, lags), default=float("nan")),
                f"{mode}_median": float(np.median(lags)) if lags else float("nan"),
                f"{mode}_copied": f"{n_copied}/{len(samples)}",
            }
    empty = {f"{mode}_{name}": "" for mode in MODES for name in ("n", "ms", "median", "copied")}
    complete = [empty | row for row in rows.values()]
    columns = ("copy_copied", "copy_n", "copy_median", "copy_ms", "aac_n", "aac_median", "aac_ms")
    table(complete, columns)
    return complete


def main() -> None:
    """Prints tables, then JSON."""
    parser = arguments(__doc__)
    parser.add_argument("media", nargs="*", type=Path, default=[SHARED / "media"])
    parser.add_argument("--epochs", type=int, default=8, help="windows per clip of made films")
    parser.add_argument("--keep", type=Path, help="folder for films and outputs")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--longest", type=float, help="seconds of the longest file of MEDIA")
    parser.add_argument("--only-labelled", action="store_true", help="leave out the made films")
    options = parser.parse_args()
    media = [path for path in options.media if path.exists()]
    if options.longest is not None:
        media = list(with_sound(media, options.longest))
        print(f"{len(media)} files with sound of at most {options.longest:g} s")
    with work_folder(options.keep) as folder:
        made = [] if options.only_labelled else made_part(folder, options.epochs)
        labelled = labelled_part(media, folder, options.modes)
    above = [r["file"] for r in made + labelled for m in MODES if (r.get(f"{m}_ms") or 0) > MOST_MS]
    print(f"above {MOST_MS:g} ms: {sorted(set(above)) or 'none'}")
    tell({"made": made, "labelled": labelled})


if __name__ == "__main__":
    main()
