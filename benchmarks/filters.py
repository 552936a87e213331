#!/usr/bin/env python3
"""What each measurement costs in the one decode, in CPU-seconds for a minute of video.

    filters.py FILM...                 costs, beside decoding and the shot network
    filters.py --all MEDIA FILM...     the same, then the accuracy of each family of scores

Films are analyzed on one thread, in turn: as they are, without text, and with nothing but decoding
and the shot network. Timers stand around the functions that make each family of signals; what a
timer costs is in its number. `--all` calls `quality.py`, `borders.py`, `camera.py` and `overlay.py`
as their own results name them.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
from measure import machine

from curator.measures import sample_signals as quality
from curator.media.container import open_container, video_stream
from curator.media.decode import FrameReader
from curator.models.shot_head import HeadStream
from curator.models.shot_pictures import needs_smoothing
from curator.models.text_detector import TextDetector
from curator.models.transnet import ShotNetwork
from curator.stages.analyze import frame_views as views
from curator.stages.analyze import measurer as measure
from curator.stages.analyze import overlay_samples as looks
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.decode_source import analyze_source
from curator.stages.analyze.measurer import Instruments

SPENT: Counter[str] = Counter()
"""CPU-seconds by family; a timer inside another one is in both."""


def timed(name: str, function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        begun_s = time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            SPENT[name] += time.thread_time() - begun_s

    return wrapper


def put_timers() -> None:
    """Times the functions where the stage finds them."""
    families = {
        "sharpness, exposure, stripes (640 px)": (measure, "picture_signals"),
        "full size: noise, blocks, banding, combs, resolution, borders": (
            views,
            "native_signals",
        ),
        "  of these, borders": (quality, "find_borders"),
        "full size: the plane": (views, "luma_plane"),
        "optical flow and camera": (measure, "fitted_flow"),
        "motion": (measure, "motion_signals"),
        "quantiser, from the decoder": (views, "quantizer_signals"),
        "descriptor for duplicates": (measure, "describe"),
        "the learned head, for shots": (HeadStream, "answer"),
        "  and its small pictures": (HeadStream, "push"),
        "logos, divided screens, text": (looks.Looks, "sample"),
        "  of these, text detection": (TextDetector, "boxes"),
    }
    for name, (place, function) in families.items():
        setattr(place, function, timed(name, getattr(place, function)))


def decode_s(film: Path) -> float:
    """CPU-seconds of decoding alone, as the analysis decodes."""
    begun_s = time.process_time()
    with (
        film.open("rb") as file,
        open_container(file, str(film), n_bytes=film.stat().st_size) as container,
    ):
        stream = video_stream(container, str(film))
        frames = FrameReader(
            container, stream, str(film), threads=1, max_pixels=10**8,
            smooths_all=needs_smoothing(stream),
        )  # fmt: skip
        for _ in frames:
            pass
    return time.process_time() - begun_s


def analyze_s(
    film: Path, network: ShotNetwork, detector: TextDetector | None
) -> tuple[float, float, dict[str, float]]:
    """CPU-seconds and seconds of video of a film, and what the stage's own account says."""
    spent: dict[str, float] = {}
    begun_s = time.process_time()
    with film.open("rb") as file:
        track = analyze_source(
            file, str(film), source_id="film", n_bytes=film.stat().st_size,
            instruments=Instruments(network=network, detector=detector),
            config=AnalyzeConfig(text=detector is not None), decoder_threads=1,
            spent=spent,
        )  # fmt: skip
    return time.process_time() - begun_s, track.duration_s, spent


def costs(films: list[Path]) -> dict[str, Any]:
    cv2.setNumThreads(1)
    network, detector = ShotNetwork(), TextDetector()
    analyze_s(films[0], network, detector)
    put_timers()
    decode = with_text = without_text = video_s = 0.0
    account: Counter[str] = Counter()
    families: Counter[str] = Counter()
    for film in films:
        decode += decode_s(film)
        SPENT.clear()
        cpu_s, seconds, spent = analyze_s(film, network, detector)
        families.update(SPENT)
        account.update(spent)
        with_text += cpu_s
        video_s += seconds
        without_text += analyze_s(film, network, None)[0]
    minutes = video_s / 60
    base = decode + account["scale"] + account["shot_network"]
    print(f"{len(films)} films, {minutes:.1f} min; CPU-seconds for a minute of video")
    rows = {
        "decoding alone": decode,
        "scaling for the shot network": account["scale"],
        "shot network": account["shot_network"],
        **families,
        "analysis without text": without_text,
        "analysis with text": with_text,
    }
    for name, cpu_s in rows.items():
        print(f"  {name:62} {cpu_s / minutes:7.2f}")
    ratios = {
        "without_text": without_text / base,
        "with_text": with_text / base,
    }
    for name, ratio in ratios.items():
        print(f"analysis {name.replace('_', ' ')} / (decode + shot network) {ratio:.3f}")
    return {
        "films": len(films),
        "minutes": round(minutes, 2),
        "cpu_s_per_minute": {k.strip(): round(v / minutes, 3) for k, v in rows.items()},
        "ratio": {name: round(value, 4) for name, value in ratios.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("films", type=Path, nargs="+")
    parser.add_argument("--all", type=Path, metavar="MEDIA", help="labelled media, for accuracy")
    args = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        # As in workers; read when numpy is imported.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    print(json.dumps({"machine": machine(), **costs(args.films)}))
    if args.all is None:
        return
    folder = Path(__file__).parent
    for script, options in (
        ("quality.py", [str(args.all)]),
        ("borders.py", []),
        ("camera.py", []),
        ("overlay.py", ["--media", str(args.all)]),
    ):
        print(f"\n{script}", flush=True)
        subprocess.run([sys.executable, str(folder / script), *options], check=True)


if __name__ == "__main__":
    main()
