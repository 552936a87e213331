"""Makes the footage of benchmarks/gpu.py: 1080p at 30 frames/s with B-frames, in H.264 and HEVC."""

import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import tests_path  # noqa: F401
from processes import in_processes

WIDTH, HEIGHT, FPS = 1920, 1080, 30
CODECS = {"h264": "libx264", "hevc": "libx265"}
_SHOT_FRAMES = 90
_MADE_S = 9
"""Length of the drawn and encoded footage, in seconds; longer films repeat it."""


def made_films(
    folder: Path, count: int, seconds: int, codecs: tuple[str, ...] = tuple(CODECS)
) -> dict[str, list[Path]]:
    """Returns films by codec. They share the packets of one encode and differ in their titles.

    Args:
        folder: Folder of the films; missing films are made there.
        count: Films per codec.
        seconds: Length of each film, rounded to steps of 9 s.
        codecs: Keys of `CODECS`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lacking = [name for name in codecs if not (folder / f"{name}.mp4").exists()]
    if lacking:
        # Runs one process per encoder, because each encoder has one thread.
        in_processes(_encoded, [(str(folder / f"{name}.mp4"), CODECS[name]) for name in lacking])
    found: dict[str, list[Path]] = {}
    for name in codecs:
        times = max(1, round(seconds / _MADE_S))
        paths = [folder / f"{name}_{times}x_{number:02d}.mp4" for number in range(count)]
        for number, path in enumerate(paths):
            if not path.exists():
                _copied(folder / f"{name}.mp4", path, f"copy {number}", times)
        found[name] = paths
    return found


def short_film(folder: Path) -> Path:
    """Returns a film of two seconds in 720p."""
    from film_makers import write_video
    from film_shots import moving_texture

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "short.mp4"
    if not path.exists():
        write_video(path, moving_texture(60, width_px=1280, height_px=720), bframes=2)
    return path


def _encoded(_begin: object, path: str, encoder: str) -> Iterator[None]:
    from film_makers import write_video
    from film_shots import moving_texture

    def shots() -> Iterator[np.ndarray]:
        rng = np.random.default_rng(0)
        noise = rng.integers(0, 9, (8, HEIGHT, WIDTH, 3), np.uint8)
        for seed in range(_MADE_S * FPS // _SHOT_FRAMES):
            shot = moving_texture(_SHOT_FRAMES, width_px=WIDTH, height_px=HEIGHT, seed=seed)
            for number, frame in enumerate(shot):
                yield np.minimum(frame, 247) + noise[number % 8]

    part = Path(path).with_suffix(".part.mp4")
    options = {"preset": "veryfast", "crf": "22"}
    write_video(part, shots(), codec=encoder, options=options, gop=60, bframes=3)
    part.rename(path)
    yield None


def _copied(source: Path, path: Path, title: str, times: int) -> None:
    """Writes the packets of a film several times in a row."""
    import av

    part = path.with_suffix(".part.mp4")
    with av.open(str(part), "w") as write:
        write.metadata["title"] = title
        stream: Any = None
        for number in range(times):
            with av.open(str(source)) as read:
                video = read.streams.video[0]
                assert video.time_base is not None
                if stream is None:
                    stream = write.add_stream_from_template(video)
                later = number * round(Fraction(_MADE_S) / video.time_base)
                for packet in read.demux(video):
                    if packet.dts is None or packet.pts is None:
                        continue
                    packet.pts, packet.dts = packet.pts + later, packet.dts + later
                    packet.stream = stream
                    write.mux(packet)
    part.rename(path)


if __name__ == "__main__":
    made_films(Path(sys.argv[1]), 1, _MADE_S, tuple(sys.argv[2:]))
