"""Makes the files of `curate demo`: a small bucket with typical content and faults.

The bucket has an edited film without faults, a film with a static and a letterboxed shot, a copy of
one shot at another size, a film with a variable frame rate, an incomplete upload, and a text file
with a film's name.

Every run with the same libraries writes the same bytes: each encoder has one thread, and muxers
work in bit-exact mode. Without this mode, Matroska draws random identifiers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate, chain, cycle, islice, takewhile
from pathlib import Path

import av
import cv2
import numpy as np
from av.codec.context import Flags

from curator.media.encode import with_steady_bytes
from curator.tools.footage.scenes import (
    Edit,
    Picture,
    ShotSpec,
    Sprite,
    View,
    photograph,
    render_shot,
)

HEIGHT_PX = 540
"""Height of the demo's films; they are 16:9."""
_FPS = 30
_CLOCK_HZ = 60
_FORMATS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska"}
_BT709 = 1
_LIMITED_RANGE = 1
_COPIED_SHOT = 1
_PHONE_STEPS = (2, 2, 2, 2, 3, 2, 2, 4, 2, 2, 2, 3)  # between frames of a phone, in 1/60 s
_KEPT_OF_BROKEN = 0.6

File = tuple[Path, str]
"""A file of the demo and the description of its content."""


def make_demo(folder: Path, *, height_px: int = HEIGHT_PX) -> list[File]:
    """Writes the demo's files; replaces files with the same names.

    A minute of video takes about 15 seconds. `height_px` must be a multiple of 108; smaller films
    take less time.

    Raises:
        UsageError: scikit-image, which has the photographs, is missing.
    """
    if height_px % 108 != 0 or height_px <= 0:
        raise ValueError(f"height_px must be a multiple of 108, not {height_px}")
    photograph("coffee.png")
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(_tour_and_copy, folder, height_px)
        rest = [pool.submit(make, folder, height_px) for make in (_studio, _phone, _broken)]
        films = [*first.result(), *(future.result() for future in rest)]
    note = folder / "notes.mp4"
    note.write_text("The film will be here on Monday.\n" * 40, encoding="utf-8")
    return [*films, (note, "a text file with a film's name")]


def tour(height_px: int = HEIGHT_PX) -> Edit:
    """Returns the film without faults: six moving shots, four cuts and a dissolve."""
    shots = (
        _shot("motorcycle_left.png", 5, (0, 0.7, 0.7), (1, 0.5, 0.7), seed=1),
        _shot("coffee.png", 4, (0.55, 0.4, 1), (0.55, 0.4, 0.55), seed=2),
        _shot("rocket.jpg", 5, (0.45, 1, 0.7), (0.55, 0, 0.7), seed=3),
        _shot("astronaut.png", 5, (0, 0.7, 0.95), (0.4, 0.08, 0.65), seed=4),
        _shot("camera.png", 5, (0.15, 0.16, 0.62), (1, 0.6, 0.9), seed=5),
        _shot("coins.png", 6, (0, 0.1, 0.7), (1, 0.9, 0.7), seed=6),
    )
    return _edit(shots, (0, 0, 18, 0, 0), height_px)


def studio(height_px: int = HEIGHT_PX) -> Edit:
    """Returns a film of coins rolling over gravel, a static pavement, a letterboxed shot, stars."""
    gravel = _shot("gravel.png", 5, (0, 0.2, 0.75), (1, 0.5, 0.75), seed=7)
    wide = _shot("ihc.png", 6, (1, 0.1, 0.7), (0, 0.8, 0.7), seed=9)
    shots = (
        replace(gravel, sprites=_coins(height_px)),
        _shot("brick.png", 4, (0.5, 0.5, 0.9), (0.5, 0.5, 0.9), seed=8),
        replace(wide, picture_aspect=Fraction(239, 100)),
        _shot("hubble_deep_field.jpg", 5, (0.6, 0.5, 0.4), (0.6, 0.5, 0.9), seed=10),
    )
    return _edit(shots, (0, 0, 0), height_px)


Place = tuple[float, float, float]
"""`x`, `y` and `span` of a `View`."""


def _shot(
    file: str, seconds: int, start: Place, end: Place, *, seed: int, fps: int = _FPS
) -> ShotSpec:
    first, last = (View(x=x, y=y, span=span) for x, y, span in (start, end))
    return ShotSpec(
        picture=photograph(file), n_frames=seconds * fps, start=first, end=last, seed=seed
    )


def _edit(shots: Sequence[ShotSpec], dissolves: Sequence[int], height_px: int) -> Edit:
    return Edit(shots=shots, dissolves=dissolves, width_px=_width(height_px), height_px=height_px)


def _width(height_px: int) -> int:
    return height_px * 16 // 9


def _coins(height_px: int) -> tuple[Sprite, ...]:
    sheet = photograph("coins.png")
    large = _resized(sheet[15:75, 306:366], (height_px * 5 // 18,) * 2, cv2.INTER_CUBIC)
    small = _resized(sheet[155:217, 313:375], (height_px // 5,) * 2, cv2.INTER_CUBIC)
    return (
        Sprite(patch=large, start=(-0.1, 0.7), end=(1.1, 0.35)),
        Sprite(patch=small, start=(0.9, -0.1), end=(0.2, 1.1)),
    )


def _resized(picture: Picture, size_px: tuple[int, int], how: int) -> Picture:
    return cv2.resize(picture, size_px, interpolation=how).astype(np.uint8, copy=False)


def _tour_and_copy(folder: Path, height_px: int) -> list[File]:
    film, path, copy = tour(height_px), folder / "tour.mp4", folder / "café copy.mp4"
    _write(path, film.frames(), gop=2 * _FPS)
    small = _rescaled(path, film.spans()[_COPIED_SHOT], height_px * 2 // 3)
    _write(copy, small, options={"crf": "28"})
    return [
        (path, "six moving shots over photographs: four cuts and one dissolve"),
        (copy, "the coffee cup's shot of tour.mp4, encoded again at two thirds of the size"),
    ]


def _rescaled(path: Path, span: tuple[int, int], height_px: int) -> Iterator[Picture]:
    with av.open(str(path)) as container:
        for frame in islice(container.decode(video=0), *span):
            picture = frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
            yield _resized(picture, (_width(height_px), height_px), cv2.INTER_AREA)


def _studio(folder: Path, height_px: int) -> File:
    path = folder / "studio.mkv"
    _write(path, studio(height_px).frames(), gop=2 * _FPS)
    what = "coins rolling over gravel, a static pavement, a 2.39:1 shot with black bars, stars"
    return path, what


def phone_pts(n_ticks: int) -> list[int]:
    """Returns the times of a phone's frames in 1/60 s: 30 frames a second, some of them late."""
    return list(takewhile(lambda at: at < n_ticks, accumulate(cycle(_PHONE_STEPS), initial=0)))


def _phone(folder: Path, height_px: int) -> File:
    path, pts = folder / "phone.mov", phone_pts(5 * _CLOCK_HZ)
    places = (0.4, 0.5, 0.55), (0.4, 0.5, 0.98)
    shot = _shot("chelsea.png", 5, *places, seed=11, fps=_CLOCK_HZ)
    frames = render_shot(shot, width_px=_width(height_px), height_px=height_px, only=pts)
    _write(path, frames, pts=pts)
    return path, "one shot of five seconds at a variable frame rate, as phones write"


def _broken(folder: Path, height_px: int) -> File:
    path = folder / "broken upload.mp4"
    shot = _shot("grass.png", 5, (0.9, 0.7, 0.7), (0.1, 0.1, 0.7), seed=12)
    frames = render_shot(shot, width_px=_width(height_px), height_px=height_px)
    _write(path, frames, gop=_FPS, mux_options={"movflags": "faststart"})
    data = path.read_bytes()
    path.write_bytes(data[: round(len(data) * _KEPT_OF_BROKEN)])
    n = 0
    with av.open(str(path)) as container:
        for packet in container.demux(video=0):
            with suppress(av.FFmpegError):
                n += len(packet.decode())
    return path, f"an upload that broke off: the header says {5 * _FPS} frames and {n} are there"


def _write(
    path: Path,
    frames: Iterable[Picture],
    *,
    gop: int | None = None,
    options: Mapping[str, str] | None = None,
    mux_options: Mapping[str, str] | None = None,
    pts: Sequence[int] | None = None,
) -> None:
    """Encodes frames as H.264, at 30 frames/s or at the times `pts` in 1/60 s."""
    tick = Fraction(1, _FPS if pts is None else _CLOCK_HZ)
    rest = iter(frames)
    first = next(rest)
    # `fflags` is an option of avformat, not of the muxer; av.open passes `options` to both.
    muxer = {"fflags": "+bitexact", **(mux_options or {})}
    with av.open(str(path), "w", format=_FORMATS[path.suffix], options=muxer) as container:
        video = container.add_stream("libx264", rate=_FPS)
        video.height, video.width = first.shape[:2]
        video.pix_fmt = "yuv420p"
        context = video.codec_context
        context.options = {"preset": "superfast", **(options or {})}
        if steady := with_steady_bytes(""):
            context.options["x264-params"] = steady
        context.thread_count = 1
        context.flags |= Flags.bitexact
        context.color_primaries = context.color_trc = context.colorspace = _BT709
        context.color_range = _LIMITED_RANGE
        context.time_base = tick
        if gop is not None:
            context.gop_size = gop
        for number, picture in enumerate(chain([first], rest)):
            rgb = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame = rgb.reformat(format="yuv420p", dst_colorspace="ITU709", threads=1)
            frame.pts, frame.duration, frame.time_base = number, 1, tick
            if pts is not None:
                # The last frame lasts as long as the one before it.
                at = min(number, len(pts) - 2)
                frame.pts, frame.duration = pts[number], pts[at + 1] - pts[at]
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
