"""The films of `curate demo`: a small bucket with what real ones hold.

One edited film with nothing wrong, one with a static and a letterboxed shot, a copy of a shot in
another size, a variable frame rate, an upload that broke off, and a note that is no film. What
should become of each is stored beside it, so that the first run of a new user can be read against
an answer.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np

from curator.footage.film_writer import FPS, text_file, truncate, write_video
from curator.footage.pictures import Picture, photograph
from curator.footage.scenes import (
    Edit,
    Sprite,
    TrueShot,
    View,
    cut,
    dissolve,
    pan,
    pan_zoom,
    render_shot,
    static,
    zoom,
)

HEIGHT_PX = 540
"""Height of the demo's films; they are 16:9."""
_S = int(FPS)
_COPIED_SHOT = 1
_CLOCK_HZ = 60
_PHONE_STEPS = (2, 2, 2, 2, 3, 2, 2, 4, 2, 2, 2, 3)
_KEPT_OF_BROKEN = 0.6
_FAST = {"preset": "superfast"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoFile:
    """One file of the demo.

    Args:
        path: Where it was written.
        what: What it is.
        expected: What should become of it.
        n_frames: Frames that decode; None where the file is no video.
        shots: Its clean spans, in frames.
    """

    path: Path
    what: str
    expected: str
    n_frames: int | None
    shots: tuple[TrueShot, ...]


def make_demo(folder: Path, *, height_px: int = HEIGHT_PX) -> list[DemoFile]:
    """Writes the demo's films, a minute of video in about 15 seconds.

    Args:
        folder: Made when it is missing; files of the same names are replaced.
        height_px: Height of the films, a multiple of 108; a smaller one is made sooner.

    Returns:
        The files, with what is expected of each.

    Raises:
        UsageError: scikit-image, whose photographs are filmed, is missing.
    """
    if height_px % 108 != 0 or height_px <= 0:
        raise ValueError(f"height_px must be a multiple of 108, not {height_px}")
    photograph("coffee")
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(_tour_and_copy, folder, height_px)
        makers = (_studio, _phone, _broken, _note)
        rest = [pool.submit(make, folder, height_px) for make in makers]
        return [*first.result(), *(future.result() for future in rest)]


def tour(height_px: int = HEIGHT_PX) -> Edit:
    """The film without faults: six moving shots, four cuts and a dissolve."""
    shots = (
        pan(photograph("motorcycle"), 5 * _S, span=0.7, start=(0, 0.7), end=(1, 0.5), seed=1),
        zoom(photograph("coffee"), 4 * _S, span=(1, 0.55), centre=(0.55, 0.4), seed=2),
        pan(photograph("rocket"), 5 * _S, span=0.7, start=(0.45, 1), end=(0.55, 0), seed=3),
        pan_zoom(
            photograph("astronaut"),
            5 * _S,
            start=View(x=0.0, y=0.7, span=0.95),
            end=View(x=0.4, y=0.08, span=0.65),
            seed=4,
        ),
        pan_zoom(
            photograph("camera"),
            5 * _S,
            start=View(x=0.15, y=0.16, span=0.62),
            end=View(x=1.0, y=0.6, span=0.9),
            seed=5,
        ),
        pan(photograph("coins"), 6 * _S, span=0.7, start=(0, 0.1), end=(1, 0.9), seed=6),
    )
    return Edit(
        shots=shots,
        transitions=(cut(), cut(), dissolve(18), cut(), cut()),
        width_px=_width(height_px),
        height_px=height_px,
    )


def studio(height_px: int = HEIGHT_PX) -> Edit:
    """Coins rolling over gravel, a static pavement, a letterboxed shot, and stars."""
    gravel = pan(photograph("gravel"), 5 * _S, span=0.75, start=(0, 0.2), end=(1, 0.5), seed=7)
    wide = pan(photograph("ihc"), 6 * _S, span=0.7, start=(1, 0.1), end=(0, 0.8), seed=9)
    shots = (
        replace(gravel, sprites=_coins(height_px)),
        static(photograph("brick"), 4 * _S, view=View(span=0.9), seed=8),
        replace(wide, picture_aspect=Fraction(239, 100)),
        zoom(photograph("hubble"), 5 * _S, span=(0.4, 0.9), centre=(0.6, 0.5), seed=10),
    )
    return Edit(
        shots=shots,
        transitions=(cut(), cut(), cut()),
        width_px=_width(height_px),
        height_px=height_px,
    )


def _width(height_px: int) -> int:
    return height_px * 16 // 9


def _coins(height_px: int) -> tuple[Sprite, ...]:
    sheet = photograph("coins")
    large, small = sheet[15:75, 306:366], sheet[155:217, 313:375]
    return (
        Sprite(patch=_enlarged(large, height_px * 5 // 18), start=(-0.1, 0.7), end=(1.1, 0.35)),
        Sprite(patch=_enlarged(small, height_px // 5), start=(0.9, -0.1), end=(0.2, 1.1)),
    )


def _enlarged(patch: Picture, size_px: int) -> Picture:
    large = cv2.resize(patch, (size_px, size_px), interpolation=cv2.INTER_CUBIC)
    return large.astype(np.uint8, copy=False)


def _tour_and_copy(folder: Path, height_px: int) -> list[DemoFile]:
    film = tour(height_px)
    path = folder / "tour.mp4"
    write_video(path, film.frames(), gop=2 * _S, options=_FAST)
    shots = film.truth()
    copied = shots[_COPIED_SHOT]
    copy = folder / "café copy.mp4"
    n_copied = write_video(
        copy, _rescaled(path, copied, height_px * 2 // 3), options={**_FAST, "crf": "28"}
    )
    return [
        DemoFile(
            path=path,
            what="six moving shots over photographs: four cuts and one dissolve",
            expected="done; six clips, none across a cut or inside the dissolve",
            n_frames=film.n_frames,
            shots=shots,
        ),
        DemoFile(
            path=copy,
            what="the coffee cup's shot of tour.mp4, encoded again at two thirds of the size",
            expected="done; its clip or the one of tour.mp4 is rejected as a duplicate",
            n_frames=n_copied,
            shots=(_whole(n_copied),),
        ),
    ]


def _rescaled(path: Path, span: TrueShot, height_px: int) -> Iterator[Picture]:
    size = (_width(height_px), height_px)
    with av.open(str(path)) as container:
        for index, frame in enumerate(container.decode(video=0)):
            if index >= span.end_frame:
                return
            if index >= span.start_frame:
                picture = frame.to_ndarray(format="rgb24")
                small = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
                yield small.astype(np.uint8, copy=False)


def _studio(folder: Path, height_px: int) -> DemoFile:
    film = studio(height_px)
    path = folder / "studio.mkv"
    write_video(path, film.frames(), gop=2 * _S, options=_FAST)
    return DemoFile(
        path=path,
        what="coins rolling over gravel, a static pavement, a 2.39:1 shot with black bars, stars",
        expected=(
            "done; four shots; the pavement is rejected for too little motion and the bars are "
            "found on the third shot alone"
        ),
        n_frames=film.n_frames,
        shots=film.truth(),
    )


def phone_pts(n_ticks: int) -> list[int]:
    """Times of a phone's frames in 1/60 s: 30 frames a second with late ones among them."""
    times = []
    at = 0
    while at < n_ticks:
        times.append(at)
        at += _PHONE_STEPS[(len(times) - 1) % len(_PHONE_STEPS)]
    return times


def _phone(folder: Path, height_px: int) -> DemoFile:
    path = folder / "phone.mov"
    pts = phone_pts(5 * _CLOCK_HZ)
    shot = zoom(photograph("cat"), 5 * _CLOCK_HZ, span=(0.55, 0.98), centre=(0.4, 0.5), seed=11)
    frames = render_shot(shot, width_px=_width(height_px), height_px=height_px, only=pts)
    n = write_video(path, frames, pts=pts, time_base=Fraction(1, _CLOCK_HZ), options=_FAST)
    return DemoFile(
        path=path,
        what="one shot of five seconds at a variable frame rate, as phones write",
        expected="done, with is_vfr set; one clip whose times come from the frames' own",
        n_frames=n,
        shots=(_whole(n),),
    )


def _broken(folder: Path, height_px: int) -> DemoFile:
    path = folder / "broken upload.mp4"
    shot = pan(photograph("grass"), 5 * _S, span=0.7, start=(0.9, 0.7), end=(0.1, 0.1), seed=12)
    frames = render_shot(shot, width_px=_width(height_px), height_px=height_px)
    write_video(path, frames, gop=_S, options=_FAST, mux_options={"movflags": "faststart"})
    truncate(path, _KEPT_OF_BROKEN)
    n = _decodable_frames(path)
    return DemoFile(
        path=path,
        what=f"an upload that broke off: the header says {5 * _S} frames and {n} are there",
        expected="done with what decodes, or failed with a decode error; never dropped in silence",
        n_frames=n,
        shots=(_whole(n),),
    )


def _decodable_frames(path: Path) -> int:
    count = 0
    with av.open(str(path)) as container:
        for packet in container.demux(video=0):
            try:
                count += len(packet.decode())
            except av.FFmpegError:
                continue
    return count


def _note(folder: Path, _height_px: int) -> DemoFile:
    path = folder / "notes.mp4"
    text_file(path)
    return DemoFile(
        path=path,
        what="a text file with a film's name",
        expected="failed: not_a_video",
        n_frames=None,
        shots=(),
    )


def _whole(n_frames: int) -> TrueShot:
    return TrueShot(start_frame=0, end_frame=n_frames, transition_in="none", transition_out="none")
