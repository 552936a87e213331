"""Makes clips of known footage and their edits, for `duplicates.py`.

Recordings are cut into clips of 3 to 6 s. Edits are made from decoded frames: 480 px for pictures,
160 px for the luma of every frame, and 320 px for real codecs. This avoids one analysis per edit
of 200 clips. The grid of sampled pictures starts at a different phase in each clip.
"""

import csv
import hashlib
import io
import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from curator.matching.clip_footage import ClipFootage
from curator.models.scene_network import SceneNetwork, scene_picture
from curator.tools.footage.scenes import photograph

Picture = NDArray[np.uint8]
PICTURE_PX, LUMA_PX, CODEC_PX = 480, 160, 320
CLIP_S, MIN_CLIP_S, INSERT_S, HOST_S = 6.0, 2.8, 3.0, 30.0
HOST_PHOTOGRAPHS = ("rocket.jpg", "ihc.png", "motorcycle_left.png", "hubble_deep_field.jpg")
PHOTOGRAPHS = (
    "astronaut.png", "chelsea.png", "coffee.png", "brick.png", "gravel.png", "grass.png",
    "coins.png", "page.png", "retina.jpg", "camera.png", "moon.png",
)  # fmt: skip
HALF_RATES = {"24 frames/s": 24.0, "30 frames/s": 30.0, "15 frames/s": 15.0}
FILM_OF = {
    "big_buck_bunny_0_30.webm", "bbb_logo_60fps.ts", "bigbuckbunny_720p_5.1.mp4", "h263.3gp",
}  # fmt: skip
ONE_SCENE = ("gargoyle", "bgs_giphy", "visualizer", "h26", "mmaction2/demo/demo")
"""Substrings of recordings that share a scene or footage; pairs of them are not scored."""
ONE_SHOT = {"bbb_logo_60fps.ts@288", "big_buck_bunny_0_30.webm@6", "big_buck_bunny_0_30.webm@150"}
"""Clips of a shot that two files share."""


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames of a clip at two sizes, with the frame rate."""

    fps: float
    large: list[Picture]
    small: list[Picture]

    def taken(self, at: NDArray[np.int64], fps: float) -> "Frames":
        return Frames(fps, [self.large[n] for n in at], [self.small[n] for n in at])

    def drawn(self, edit: Callable[[Picture], Picture]) -> "Frames":
        return Frames(self.fps, [edit(p) for p in self.large], [edit(p) for p in self.small])


@dataclass(frozen=True, slots=True)
class Item:
    """A clip and its origin in the clip `base`: `time = speed * base_time + offset_s`."""

    base: str
    recording: str
    edit: str
    start_s: float
    offset_s: float
    speed: float
    footage: ClipFootage


def scaled(picture: Picture, side_px: int) -> Picture:
    scale = side_px / max(picture.shape[:2])
    if scale >= 1:
        return picture
    size = (max(1, round(picture.shape[1] * scale)), max(1, round(picture.shape[0] * scale)))
    return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), np.uint8)


def frames_of(path: Path, limit_s: float = 60) -> Frames:
    large: list[Picture] = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        fps = float(stream.average_rate or 25)
        for frame in container.decode(stream):
            if len(large) >= limit_s * fps:
                break
            scale = min(1, PICTURE_PX / max(frame.width, frame.height))
            small = frame.reformat(
                round(frame.width * scale), round(frame.height * scale), "rgb24",
                interpolation="AREA",
            )  # fmt: skip
            large.append(np.ascontiguousarray(np.rot90(small.to_ndarray(), frame.rotation // 90)))
    return Frames(fps, large, [scaled(p, LUMA_PX) for p in large])


def camera_over(file: str, seed: int, length_s: float, fps: float = 25) -> Frames:
    """Returns frames of a camera that pans and zooms slowly over a photograph."""
    rng = np.random.default_rng(seed)
    picture = photograph(file)
    height, width = picture.shape[:2]
    n = int(length_s * fps)
    knots = max(3, int(length_s / 2))
    path = rng.uniform(0, 1, (knots, 3))
    steps = np.stack([np.interp(np.linspace(0, knots - 1, n), range(knots), p) for p in path.T], 1)
    large = []
    for x, y, zoom in steps:
        span = (0.45 + 0.3 * zoom) * min(width / 16, height / 9)
        w, h = 16 * span, 9 * span
        left, top = x * (width - w), y * (height - h)
        box = np.array([[w / 480, 0, left], [0, h / 270, top]], np.float32)
        view = cv2.warpAffine(picture, box, (480, 270), flags=cv2.INTER_AREA | cv2.WARP_INVERSE_MAP)
        large.append(np.asarray(view, np.uint8))
    return Frames(fps, large, [scaled(p, LUMA_PX) for p in large])


def spans(media: Path, footage: Path) -> Iterator[tuple[str, Path | str, list[tuple[int, int]]]]:
    """Yields each recording, its file or photograph, and the frame spans of its single shots."""
    shots = json.loads((media / "shots.json").read_text())
    files = [
        *sorted((media / "single").iterdir()),
        *sorted((media / "multishot").iterdir()),
        *(media / "neardup" / n for n in ("bigbuckbunny_720p_5.1.mp4", "carphone_pristine.mp4")),
        *(media / "neardup" / n for n in ("cockatoo_yuv420.mp4", "dog_on_bed.mp4")),
        *(media / "formats" / n for n in ("black_25s.mp4", "hevc_timer.mp4", "hdr10_pq_hevc.mp4")),
        *(media / "formats" / n for n in ("hlg_fragment.mp4", "smpte_timecode.mp4")),
        *(media / "formats" / n for n in ("av1_testcard.mkv", "mpeg4_mp3.avi", "h263.3gp")),
        media / "quality" / "tv_static.mp4",
    ]
    for path in files:
        name = str(path.relative_to(media))
        if path.name in {"awesome'movie.mov", "derived_transitions.mp4", "counter.mp4"}:
            continue
        recording = "big buck bunny" if path.name in FILM_OF else name
        if path.name == "bbb_642x642_vp9.webm":
            continue
        known = shots.get(name, [])
        yield recording, path, [(s[0], s[1]) for s in known] or [(0, 1 << 30)]
    with (footage / "index.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["kind"] != "edited":
                recording = f"{row['repo']}/{row['path']}"
                if "playwright" in recording:
                    recording = "big buck bunny"
                yield recording, footage / row["file"], [(0, 1 << 30)]
    for file_name in PHOTOGRAPHS:
        yield file_name, file_name, [(0, 1 << 30)]


def base_clips(media: Path, footage: Path) -> Iterator[tuple[str, str, float, Frames]]:
    """Yields name, recording, start and frames of each base clip."""
    for recording, path, shots in spans(media, footage):
        if isinstance(path, str):
            source = camera_over(path, _seed(path), 2 * CLIP_S)
        else:
            source = frames_of(path)
        name = path if isinstance(path, str) else path.name
        for first, last in shots:
            begin, end = first, min(last, len(source.large))
            n = round(CLIP_S * source.fps)
            while end - begin >= MIN_CLIP_S * source.fps:
                stop = min(end, begin + n)
                if end - stop < MIN_CLIP_S * source.fps and end - begin < 1.7 * n:
                    stop = end
                at = np.arange(begin, stop)
                yield f"{name}@{begin}", recording, begin / source.fps, source.taken(at, source.fps)
                begin = stop


Edited = tuple[str, Frames, float, float]


def _seed(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


def half_of(recording: str) -> str:
    return "blind" if _seed(recording) % 2 else "tune"


def crop(x: float, y: float, w: float, h: float) -> Callable[[Picture], Picture]:
    def edit(p: Picture) -> Picture:
        height, width = p.shape[:2]
        left, top = round(x * width), round(y * height)
        return p[top : top + max(8, round(h * height)), left : left + max(8, round(w * width))]

    return edit


def marked(p: Picture) -> Picture:
    """Draws a logo and two lines of subtitles."""
    p = p.copy()
    height, width = p.shape[:2]
    cv2.rectangle(p, (int(0.8 * width), int(0.05 * height)),
                  (int(0.95 * width), int(0.2 * height)), (230, 30, 40), -1)  # fmt: skip
    scale = width / 480
    for line, words in enumerate(("and so they went on", "until it was dark")):
        at = (int(0.2 * width), int((0.85 + 0.09 * line) * height))
        cv2.putText(p, words, at, 0, 0.8 * scale, (255, 255, 255), max(1, round(2 * scale)))
    return p


def boxed(p: Picture) -> Picture:
    bar = round(0.17 * p.shape[0])
    return np.asarray(cv2.copyMakeBorder(p, bar, bar, 0, 0, cv2.BORDER_CONSTANT), np.uint8)


def grey(p: Picture) -> Picture:
    return np.repeat(cv2.cvtColor(p, cv2.COLOR_RGB2GRAY)[:, :, None], 3, 2)


def dark(p: Picture) -> Picture:
    return np.asarray(255 * (p / 255.0) ** 1.5 * 0.45, np.uint8)


def quarter(p: Picture) -> Picture:
    side = 80 if max(p.shape[:2]) > LUMA_PX else 40
    return scaled(p, side)


def jpeg_15(frames: Frames) -> Frames:
    def edit(p: Picture) -> Picture:
        _, data = cv2.imencode(".jpg", p[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 15])
        return np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR), np.uint8)[:, :, ::-1]

    large = [edit(scaled(p, CODEC_PX)) for p in frames.large]
    return Frames(frames.fps, large, [scaled(p, LUMA_PX) for p in large])


def encoded(frames: Frames, crf: int) -> Frames:
    """Encodes frames with x264 at 320 px, and decodes them."""
    store = io.BytesIO()
    with av.open(store, "w", format="mp4") as out:
        stream = out.add_stream("libx264", rate=round(frames.fps))
        first = scaled(frames.large[0], CODEC_PX)
        stream.width, stream.height = first.shape[1] // 2 * 2, first.shape[0] // 2 * 2
        stream.pix_fmt, stream.options = "yuv420p", {"crf": str(crf), "preset": "veryfast"}
        for p in frames.large:
            small = np.ascontiguousarray(scaled(p, CODEC_PX)[: stream.height, : stream.width])
            out.mux(stream.encode(av.VideoFrame.from_ndarray(small, "rgb24")))
        out.mux(stream.encode())
    store.seek(0)
    with av.open(store, "r") as back:
        large = [np.asarray(f.to_ndarray(format="rgb24"), np.uint8) for f in back.decode(video=0)]
    return Frames(frames.fps, large, [scaled(p, LUMA_PX) for p in large])


@cache
def host(number: int) -> Frames:
    return camera_over(HOST_PHOTOGRAPHS[number], number, HOST_S)


def picture_in_picture(frames: Frames, seed: int) -> Frames:
    """Puts the clip into a corner of a host clip, at up to 45% of the host's width."""
    other = host(seed % len(HOST_PHOTOGRAPHS))
    at = np.minimum(np.arange(len(frames.large)) * other.fps / frames.fps, len(other.large) - 1)
    right, below = seed // 4 % 2, seed // 8 % 2

    def joined(back: Picture, front: Picture) -> Picture:
        back = back.copy()
        height, width = back.shape[:2]
        scale = min(0.45 * width / front.shape[1], 0.6 * height / front.shape[0])
        size = (round(front.shape[1] * scale), round(front.shape[0] * scale))
        small = cv2.resize(front, size, interpolation=cv2.INTER_AREA)
        x = (width - size[0] - width // 24) if right else width // 24
        y = (height - size[1] - height // 16) if below else height // 16
        back[y : y + size[1], x : x + size[0]] = small
        return back

    large = [joined(other.large[int(n)], p) for n, p in zip(at, frames.large, strict=True)]
    return Frames(frames.fps, large, [scaled(p, LUMA_PX) for p in large])


def inside(frames: Frames, seed: int) -> tuple[Frames, float, float]:
    """Puts 3 s of a clip into 30 s of a host; returns the offset and the start in the clip, too."""
    other = host(seed % len(HOST_PHOTOGRAPHS))
    rng = np.random.default_rng(seed)
    n = round(INSERT_S * frames.fps)
    first = int(rng.integers(0, max(1, len(frames.large) - n + 1)))
    at = np.clip(np.arange(round(INSERT_S * other.fps)) * frames.fps / other.fps + first, 0,
                 len(frames.large) - 1).astype(int)  # fmt: skip
    begin = int(rng.integers(int(3 * other.fps), int(23 * other.fps)))
    end = begin + len(at)

    def fitted(p: Picture, like: Picture) -> Picture:
        canvas = np.zeros_like(like)
        scale = min(like.shape[1] / p.shape[1], like.shape[0] / p.shape[0])
        size = (min(like.shape[1], round(p.shape[1] * scale)),
                min(like.shape[0], round(p.shape[0] * scale)))  # fmt: skip
        x, y = (like.shape[1] - size[0]) // 2, (like.shape[0] - size[1]) // 2
        canvas[y : y + size[1], x : x + size[0]] = cv2.resize(p, size)
        return canvas

    large = list(other.large)
    large[begin:end] = [fitted(frames.large[k], other.large[0]) for k in at]
    small = list(other.small)
    small[begin:end] = [scaled(p, LUMA_PX) for p in large[begin:end]]
    offset_s = begin / other.fps - first / frames.fps
    return Frames(other.fps, large, small), offset_s, first / frames.fps


DRAWN: dict[str, Callable[[Picture], Picture]] = {
    "quarter size": quarter,
    "dark": dark,
    "grey": grey,
    "logo and subtitles": marked,
    "letterbox": boxed,
    "crop to 70%": crop(0.15, 0.15, 0.7, 0.7),
    "corner crop to 60%": crop(0.4, 0.38, 0.6, 0.6),
    "vertical crop": crop(0.342, 0, 0.316, 1),
    "mirrored": lambda p: np.ascontiguousarray(p[:, ::-1]),
    "mirrored, crop to 70%": lambda p: np.ascontiguousarray(crop(0.1, 0.2, 0.7, 0.7)(p)[:, ::-1]),
}


def edits(name: str, frames: Frames) -> Iterator[Edited]:
    """Yields name, frames, offset and speed of each edit, as defined by `Item`."""
    n, fps, seed = len(frames.large), frames.fps, _seed(name)
    yield "none", frames, 0.0, 1.0
    yield "re-encoded at crf 35", encoded(frames, 35), 0.0, 1.0
    yield "JPEG of quality 15", jpeg_15(frames), 0.0, 1.0
    for edit, function in DRAWN.items():
        yield edit, frames.drawn(function), 0.0, 1.0
    yield "picture in picture", picture_in_picture(frames, seed), 0.0, 1.0
    for edit, rate in HALF_RATES.items():
        at = np.arange(int(n / fps * rate)) / rate * fps
        yield edit, frames.taken(np.minimum(at.astype(int), n - 1), rate), 0.0, 1.0
    at = (np.arange(int(n / 1.25)) * 1.25).astype(int)
    yield "1.25x speed", frames.taken(np.minimum(at, n - 1), fps), 0.0, 0.8
    cut = int(n * (0.45 + seed % 100 / 1000))
    yield "first half", frames.taken(np.arange(cut), fps), 0.0, 1.0
    yield "second half", frames.taken(np.arange(cut, n), fps), -cut / fps, 1.0
    moving, offset_s, _ = inside(frames, seed)
    yield "3 s inside 30 s", moving, offset_s, 1.0


def squeezed(p: Picture) -> Picture:
    """Stretches a picture to 4:3; a picture that is about 4:3 already, to 16:9."""
    height, width = p.shape[:2]
    is_done = abs(width / height / (4 / 3) - 1) < 0.05
    size = (max(8, round(height * (16 / 9 if is_done else 4 / 3))), height)
    return np.asarray(cv2.resize(p, size, interpolation=cv2.INTER_AREA), np.uint8)


def split_screen(frames: Frames, seed: int, *, is_cropped: bool) -> Frames:
    """Puts the clip on one side of a host, whole or as the middle half of its width."""
    other = host(seed % len(HOST_PHOTOGRAPHS))
    at = np.minimum(np.arange(len(frames.large)) * other.fps / frames.fps, len(other.large) - 1)
    middle = crop(0.25, 0, 0.5, 1) if is_cropped else crop(0, 0, 1, 1)

    def joined(back: Picture, front: Picture) -> Picture:
        front = middle(front)
        size = (front.shape[1], front.shape[0])
        behind = np.asarray(cv2.resize(back, size, interpolation=cv2.INTER_AREA), np.uint8)
        return np.concatenate([front, behind] if seed // 4 % 2 else [behind, front], axis=1)

    large = [joined(other.large[int(n)], p) for n, p in zip(at, frames.large, strict=True)]
    return Frames(frames.fps, large, [scaled(p, LUMA_PX) for p in large])


def quarter_turned(seed: int) -> Callable[[Picture], Picture]:
    return lambda p: np.ascontiguousarray(np.rot90(p, 1 if seed // 16 % 2 else -1))


def edits_of_removed(name: str, frames: Frames) -> Iterator[Edited]:
    """Yields edits like `edits`: those with which removed footage is likely to come back."""
    n, fps, seed = len(frames.large), frames.fps, _seed(name)
    yield "none", frames, 0.0, 1.0
    yield "re-encoded at crf 35", encoded(frames, 35), 0.0, 1.0
    yield "quarter size", frames.drawn(quarter), 0.0, 1.0
    yield (
        "trimmed to 70%",
        frames.taken(np.arange(round(0.15 * n), round(0.85 * n)), fps),
        (-round(0.15 * n) / fps),
        1.0,
    )
    yield "mirrored", frames.drawn(DRAWN["mirrored"]), 0.0, 1.0
    yield "letterbox", frames.drawn(boxed), 0.0, 1.0
    for edit, rate in (("1.5x speed", 1.5), ("1/1.5x speed", 1 / 1.5)):
        at = (np.arange(int(n / rate)) * rate).astype(int)
        yield edit, frames.taken(np.minimum(at, n - 1), fps), 0.0, 1 / rate
    yield "reversed", frames.taken(np.arange(n)[::-1], fps), (n - 1) / fps, -1.0
    yield "negative", frames.drawn(lambda p: 255 - p), 0.0, 1.0
    yield "upside down", frames.drawn(lambda p: np.ascontiguousarray(p[::-1])), 0.0, 1.0
    yield "turned 180 degrees", frames.drawn(lambda p: np.ascontiguousarray(p[::-1, ::-1])), 0.0, 1
    yield "turned 90 degrees", frames.drawn(quarter_turned(seed)), 0.0, 1.0
    yield "stretched to 4:3", frames.drawn(squeezed), 0.0, 1.0
    yield "crop to 60%", frames.drawn(crop(0.2, 0.2, 0.6, 0.6)), 0.0, 1.0
    yield "corner crop to 60%", frames.drawn(DRAWN["corner crop to 60%"]), 0.0, 1.0
    yield "half of a split screen", split_screen(frames, seed, is_cropped=False), 0.0, 1.0
    yield "half of a split screen, cropped", split_screen(frames, seed, is_cropped=True), 0.0, 1.0


class Sampler:
    """Makes records of clips from frames, with 2 pictures a second.

    As in analysis, three in four clips have a vector for every fourth picture. The others have one
    for every second picture.
    """

    def __init__(self) -> None:
        self._network = SceneNetwork()
        self._seen: dict[bytes, NDArray[np.float32]] = {}

    def footage(self, clip_id: str, frames: Frames) -> ClipFootage:
        lumas = [cv2.cvtColor(cv2.resize(p, (48, 27), interpolation=cv2.INTER_AREA),
                              cv2.COLOR_RGB2GRAY) for p in frames.small]  # fmt: skip
        phase_s = 0.0 if len(lumas) / frames.fps > 20 else _seed(clip_id) % 500 / 1000
        times = np.arange(phase_s, (len(lumas) - 1) / frames.fps, 0.5)
        if not times.size:
            times = np.zeros(1)
        at = np.round(times * frames.fps).astype(int)
        pictures, vectors = [], []
        every = 2 if _seed(clip_id.partition(" ")[0]) % 4 == 0 else 4
        for number, index in enumerate(at):
            picture = scaled(frames.large[index], 320)
            _, jpeg = cv2.imencode(".jpg", picture[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 80])
            pictures.append(jpeg.tobytes())
            if number % every == 0:
                vectors.append(self._vector(jpeg.tobytes(), picture))
        seconds = (at / frames.fps).astype(np.float32)
        values = np.stack(lumas).astype(np.float32).reshape(len(lumas), -1) / 255
        return ClipFootage(
            clip_id=clip_id, fps=frames.fps, picture_s=seconds, pictures=tuple(pictures),
            vector_s=seconds[::every], vectors_VD=np.stack(vectors),
            luma_F=values.mean(1), luma_spread_F=values.std(1),
        )  # fmt: skip

    def _vector(self, jpeg: bytes, picture: Picture) -> NDArray[np.float32]:
        key = hashlib.sha256(jpeg).digest()
        if key not in self._seen:
            self._seen[key] = self._network.embed([scene_picture(picture)])[0]
        return self._seen[key]


def items(
    media: Path,
    footage: Path,
    store: Path,
    make: Callable[[str, Frames], Iterator[Edited]] = edits,
    most: int | None = None,
) -> Iterator[list[Item]]:
    """Yields each base clip and its edits as a list, clip first; `store` caches the lists.

    `most` is the number of clips per recording, of which only the first is edited; None for all.
    """
    store.mkdir(parents=True, exist_ok=True)
    if not (store / "complete").exists():
        sampler, n_made = Sampler(), Counter[str]()
        for name, recording, start_s, frames in base_clips(media, footage):
            n_made[recording] += 1
            if most is not None and n_made[recording] > most:
                continue
            path = store / f"{_seed(name):08x}.pickle"
            if path.exists():
                continue
            made = [
                Item(name, recording, edit, start_s, offset_s, speed,
                     sampler.footage(f"{name} {edit}", changed))
                for edit, changed, offset_s, speed in islice(
                    make(name, frames), None if most is None or n_made[recording] == 1 else 1
                )
            ]  # fmt: skip
            path.with_suffix(".part").write_bytes(pickle.dumps(made))
            path.with_suffix(".part").rename(path)
        (store / "complete").touch()
    for path in sorted(store.glob("*.pickle")):
        yield pickle.loads(path.read_bytes())
