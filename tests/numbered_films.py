"""Films whose frames show their number, and the frames that FFmpeg's own filter shows at a rate."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import av
import av.filter
import numpy as np
from film_makers import write_video
from made_cuts import Film
from samples import framed

from curator.records.clips import Shot, Window
from curator.records.tracks import Track
from curator.stages.propose.clip_spans import propose_clips
from curator.stages.propose.config import ProposeConfig

SIDE, BITS = 16, 10


def numbered(n_frames: int) -> Iterator[Film]:
    """Yields frames with their number in black and white squares, the lowest bit first."""
    for number in range(n_frames):
        squares = np.array([235 if number >> bit & 1 else 20 for bit in range(BITS)], np.uint8)
        row = np.repeat(squares, SIDE)
        yield np.broadcast_to(row[None, :, None], (4 * SIDE, BITS * SIDE, 3)).copy()


def number_of(picture: Film) -> int:
    """Reads the number in a picture."""
    squares = picture[2 * SIDE, SIDE // 2 :: SIDE].mean(axis=1)
    return sum(int(square > 128) << bit for bit, square in enumerate(squares.tolist()))


def numbered_film(path: Path, rate: str, n_frames: int, gop: int = 250) -> Track:
    """Writes a film of a rate, or of a variable rate (`vfr`); returns its track."""
    if rate == "vfr":
        steps = np.random.default_rng(2).integers(20, 60, n_frames)
        write_video(
            path, numbered(n_frames), pts=np.cumsum(steps).tolist(), time_base=Fraction(1, 1000)
        )
    else:
        options = {"x264-params": "scenecut=0"}
        write_video(
            path, numbered(n_frames), fps=Fraction(rate), gop=gop, bframes=0, options=options
        )
    return framed(path)


def windows_of(track: Track, window: object) -> Sequence[Window]:
    """Divides a film into windows."""
    whole = Shot(
        start_frame=0, end_frame=track.n_frames, transition_in="none", transition_out="none"
    )
    config = ProposeConfig.model_validate({"windows": window})
    return propose_clips(track, [whole], config)  # type: ignore[return-value]


def shown_by_ffmpeg(path: Path, start_pts: int, fps: Fraction, n: int) -> list[int]:
    """The numbers of the frames on screen a quarter of an interval into each output frame."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        graph = av.filter.Graph()
        steps = [
            graph.add_buffer(template=stream),
            # A multiple of all units, because `setpts` rounds.
            graph.add("settb", "1/115200000"),
            graph.add("setpts", f"PTS-{start_pts}*{stream.time_base}/TB-1/4/({fps})/TB"),
            graph.add("fps", f"fps={fps}:round=up:start_time=0"),
            graph.add("buffersink"),
        ]
        graph.link_nodes(*steps).configure()
        for frame in container.decode(stream):
            if frame.pts is not None and frame.pts >= start_pts:
                graph.push(frame)
        graph.push(None)
        shown = []
        while len(shown) < n:
            shown.append(number_of(graph.pull().to_ndarray(format="rgb24")))  # type: ignore[union-attr]
    return shown
