"""Measures windows: frames against FFmpeg's own, bytes by workers, and the share of footage kept.

    python benchmarks/windows.py [SOURCE ...]

Films whose frames show their number are cut into windows, decoded, and compared frame by frame with
what FFmpeg's filter `fps` shows at those times. Then a folder of films, by default the demo's, is
curated with and without windows.
"""

import json
import sys
import time
from collections import Counter, defaultdict
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset as ds
from measure import CURATE, SHARED, arguments, hashes, measured, sets, tell, work_folder

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from film_makers import write_video
from film_shots import moving_texture
from made_cuts import cutter_of, pictures
from numbered_films import number_of, numbered_film, shown_by_ffmpeg, windows_of
from samples import made_track

from curator.cut_requests import cut_request, frame_plan, windowed
from curator.measures.clip_view import duration_s
from curator.records.clips import Shot, Transition, Window
from curator.records.tracks import Track
from curator.stages.cut.config import CutConfig
from curator.stages.propose.clip_spans import propose_clips
from curator.stages.propose.config import ProposeConfig, WindowConfig
from curator.storage import open_store
from curator.tools.footage.demo_films import make_demo

RATES = ("25/2", "24", "25", "30000/1001", "30", "50", "60", "vfr")
WINDOWS = ("81@16", "121@24", "17@30", "33")
SECONDS = 12
SIZES = "[81@16, 121@24]"
FRAMES, FPS = 81, 16
"""A trainer that reads the first frames of a clip."""
GUARDED: dict[str, Transition] = {"cut": "cut"}
"""Kinds of transitions between labelled shots; all others are gradual."""


def compared(folder: Path, rate: str, suffix: str) -> Counter[str]:
    """Cuts a film into windows of all sizes, and compares each frame with FFmpeg's."""
    path = folder / f"{rate.replace('/', '-')}{suffix}"
    fps = 25 if rate == "vfr" else Fraction(rate)
    track = numbered_film(path, rate, round(SECONDS * fps), gop=33)
    cutter = cutter_of(path, CutConfig(preset="ultrafast"))
    counts: Counter[str] = Counter()
    for window, remainder in product(WINDOWS, ("drop", "overlap")):
        frames, _, at = window.partition("@")
        size = {"frames": int(frames), "fps": at or None, "remainder": remainder}
        for w in windows_of(track, [size]):
            if w.n_written < w.size[0]:
                continue
            request = windowed(cut_request(track, "clip", w), fps=w.fps, n_frames=w.n_written)
            clip = cutter.cut(request)
            own = [number_of(picture) for picture in pictures(clip.mp4)]
            start_pts = int(track.frame_pts[w.start_frame])
            shown = shown_by_ffmpeg(path, start_pts, w.fps, w.size[0])
            counts["windows"] += 1
            counts[clip.cut_mode] += 1
            counts["other count"] += len(own) != w.size[0]
            counts["other rate"] += clip.fps != (Fraction(at) if at else w.fps)
            counts["frames"] += len(own)
            counts["other frame"] += sum(a != b for a, b in zip(own, shown, strict=False))
            counts["other plan"] += own != [w.start_frame + n for n in frame_plan(request)]
    return counts


def clips_of(out: str) -> Any:  # noqa: ANN401 - a table of Arrow
    names = ["decision", "reason", "start_s", "end_s", "n_frames", "written_fps", "window_frames"]
    return ds.dataset(f"{out}/clips").to_table(columns=names)


def footage(out: str) -> dict[str, float]:
    """Returns seconds of kept clips, and those that a trainer of the first frames sees."""
    table = clips_of(out)
    kept = table.filter(pc.equal(table["decision"], "kept"))
    sizes: defaultdict[object, float] = defaultdict(float)
    seen = 0.0
    for row in kept.to_pylist():
        seconds = row["n_frames"] / row["written_fps"]
        sizes[row["window_frames"]] += seconds
        if row["window_frames"] in (None, FRAMES) and seconds >= FRAMES / FPS - 1e-6:
            seen += FRAMES / FPS
    return {"seen_s": seen} | {f"kept_s of {size}": n for size, n in sizes.items()}


def curated(sources: list[str], out: Path, workers: int, *changes: str) -> tuple[str, float]:
    """Runs `curate` with one recipe; returns the output root and the CPU-seconds."""
    begun_s = time.monotonic()
    command = [*CURATE, "run", *sources, str(out), "--workers", str(workers), *sets(*changes)]
    cost = measured(command)
    if cost.code:
        raise SystemExit(cost.output)
    print(f"{out.name}: {cost.cpu_s:.1f} CPU-s, {time.monotonic() - begun_s:.0f} s", flush=True)
    return str(out), cost.cpu_s


def frames_part(folder: Path) -> dict[str, Any]:
    """Compares the frames of windows of all made films."""
    by_film: dict[str, Any] = {}
    columns = ("windows", "copy", "other count", "other rate", "frames", "other frame",
               "other plan")  # fmt: skip
    print("rate", "container", *columns, sep=" | ")
    for rate, suffix in product(RATES, (".mp4", ".mkv")):
        counts = by_film[f"{rate} {suffix}"] = compared(folder, rate, suffix)
        print(rate, suffix, *(counts[name] for name in columns), sep=" | ", flush=True)
    return by_film


def footage_part(folder: Path, sources: list[str]) -> dict[str, Any]:
    """Curates films without and with windows; the second run decodes no source for analysis."""
    if not sources:
        (folder / "demo").mkdir()
        make_demo(folder / "demo")
        sources = [str(folder / "demo")]
    plain, plain_s = curated(sources, folder / "plain", 1)
    before = footage(plain)
    print("quickstart", before, flush=True)
    again, again_s = curated(sources, Path(plain), 1, f"propose.windows={SIZES}")
    after = footage(again)
    print("windows", after, flush=True)
    return {"quickstart": before, "windows": after, "cpu_s": [plain_s, again_s]}


def takes_part() -> dict[str, Any]:
    """Divides the labelled shots of the shared media into clips and into windows.

    Only times are read. A trainer of N frames at a rate sees the first ones of a clip that is long
    enough, and nothing of others.
    """
    totals: defaultdict[str, float] = defaultdict(float)
    for name, shots in json.loads((SHARED / "media" / "shots.json").read_text()).items():
        if name.startswith("neardup"):
            continue
        track = times_of(SHARED / "media" / name)
        rows = [
            Shot(start_frame=start, end_frame=min(end, track.n_frames), transition_in=before,
                 transition_out="none" if after is None else GUARDED.get(after, "gradual"))
            for (start, end, after), before in zip(
                shots, ["none", *(GUARDED.get(s[2], "gradual") for s in shots)], strict=False)
        ]  # fmt: skip
        plain = [duration_s(track, s.start_frame, s.end_frame) for s in
                 propose_clips(track, rows, ProposeConfig())]  # fmt: skip
        totals["shots"] += sum(s.end_frame - s.start_frame for s in rows) / float(track.fps)
        totals["clips"] += sum(seconds for seconds in plain if seconds >= 2)
        for size in ("81@16", "121@24"):
            frames, _, fps = size.partition("@")
            length_s = int(frames) / int(fps)
            totals[f"{size} of clips"] += length_s * sum(n >= length_s for n in plain)
            for remainder in ("drop", "overlap"):
                window = WindowConfig.model_validate(
                    {"frames": int(frames), "fps": fps, "remainder": remainder}
                )
                spans = propose_clips(track, rows, ProposeConfig(windows=(window,)))
                covered = {
                    frame
                    for w in spans
                    if isinstance(w, Window) and w.n_written == w.size[0]
                    for frame in range(w.start_frame, w.end_frame)
                }
                seconds = len(covered) / float(track.fps)
                totals[f"{size} in windows, {remainder}"] += seconds
    for what, seconds in totals.items():
        print(f"{what:<28}{seconds:>8.1f}{seconds / totals['shots']:>8.1%}")
    return dict(totals)


def times_of(path: Path) -> Track:
    """Returns a track of a file with its times and key frames alone."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.time_base is not None
        shown = sorted(
            (packet.pts, packet.is_keyframe)
            for packet in container.demux(stream)
            if packet.size and packet.pts is not None
        )
        time_base = stream.time_base
    pts, first = np.unique(np.array([pts for pts, _ in shown], np.int64), return_index=True)
    flags = np.array([shown[at][1] for at in first], np.uint8)
    end_pts = int(pts[-1] + np.median(np.diff(pts)))
    return made_track(
        len(pts), time_base=time_base, frame_pts=pts, end_pts=end_pts, frame_flags=flags
    )


def bytes_part(folder: Path) -> dict[str, Any]:
    """Compares the shards and tables of made films by the number of workers."""
    (folder / "films").mkdir()
    for seed, rate in enumerate(("25", "30000/1001", "50", "vfr")):
        frames = moving_texture(400, seed=seed, width_px=384, height_px=240)
        fps = Fraction(25 if rate == "vfr" else rate)
        pts = None
        if rate == "vfr":
            pts = np.cumsum(np.random.default_rng(seed).integers(20, 60, 400)).tolist()
        write_video(
            folder / "films" / f"{seed}.mkv", frames, fps=fps, gop=33, pts=pts,
            time_base=Fraction(1, 1000),
        )  # fmt: skip
    changes = [f"propose.windows={SIZES}", "filters={}", "cut.most_repeated=1"]
    changes.append("dedup.enabled=false")
    sources = [str(folder / "films")]
    outs = [curated(sources, folder / f"workers-{n}", n, *changes)[0] for n in (1, 2)]
    one, two = (hashes(open_store(out), "shards", "clips") for out in outs)
    n_kept = sum(decision == "kept" for decision in clips_of(outs[0])["decision"].to_pylist())
    print(f"{n_kept} windows, {len(one)} objects: same bytes with 1 and 2 workers: {one == two}")
    return {"kept": n_kept, "objects": len(one), "same_bytes": one == two}


def main() -> None:
    """Prints the tables of all parts, or of one."""
    parser = arguments(__doc__)
    parser.add_argument("sources", nargs="*", help="films to curate (default: those of the demo)")
    parser.add_argument("--part", choices=("frames", "footage", "takes", "bytes"))
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with work_folder(None) as folder:
        if options.part in (None, "frames"):
            results["frames"] = frames_part(folder)
        if options.part in (None, "footage"):
            results["footage"] = footage_part(folder, options.sources)
        if options.part in (None, "takes"):
            results["takes"] = takes_part()
        if options.part in (None, "bytes"):
            results["bytes"] = bytes_part(folder)
        tell(results)


if __name__ == "__main__":
    main()
