#!/usr/bin/env python3
"""Makes damaged clips for the distortion score, and stores what the score's network sees of them.

    distortion_set.py OUT [--footage DIR] [--media DIR] [--part train|tune|blind] [--shard I/N]

A clip is nine frames of one recording: a part of 480x272 px of its frames in full size, and, of
large recordings, of its frames at half size, which are clean whatever the file is. Clips of the
footage, which is 192 px wide, are whole frames. Only luma is used, as by the score.

Each clip gets each kind of damage in five strengths. Kinds that are no codec are encoded again with
x264 at CRF 16 to 23, as such damage comes to a curator. `HELD_OUT` names the kinds that training
does not see. Clips of the part `train` also get looks, which are no damage: dark, soft, grainy,
faded, and as old film.

Teachers are VMAF and SSIM against the clean frames. VMAF needs an `ffmpeg` with libvmaf, such as
that of the wheel `imageio-ffmpeg` (GPL, so no dependency of the product). BRISQUE, if the wheel
`brisque` is installed, is stored for the blind part only.

OUT/PART/CLIP.npz: kinds, strengths (0 clean, 1 to 5), features, signals, teachers.
"""

import argparse
import json
import os
import subprocess
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import av
import cv2
import numpy as np
import tests_path  # noqa: F401
from footage_split import Part, recordings
from numpy.typing import NDArray

from curator.measures.sample_signals import native_signals
from curator.models.distortion_network import crop_corners, crop_features, crops_of
from curator.models.scene_network import SceneNetwork
from curator.tools.footage.scenes import photograph

Frames = list[NDArray[np.uint8]]

SIZE = (480, 272)
N_FRAMES, N_LATER = 9, 6
"""Frames of a clip, and frames after it that fields and ghosts are taken from."""
SAMPLES = (7,)
SHARES, TRAIN_SHARES = (0.2, 0.7), (0.2, 0.7, 0.05, 0.5, 0.9)
"""Where clips begin, as shares of a recording of more than 4 s."""
MOST_PER_REPOSITORY = 4
"""Clips of the footage that are taken of one repository."""
NATIVE = ("noise", "blocking", "flattening", "banding", "combing", "resolution")

MEDIA: dict[Part, tuple[str, ...]] = {
    "train": ("single/juggle.mp4", "single/dog_play.mp4", "single/blocks_hands.mp4",
              "single/car-detection.mp4", "single/awesome movie.mov",
              "single/rooftops_60fps_pans.mp4", "single/rotate_fragmented_bbb.mp4",
              "multishot/big_buck_bunny_0_30.webm", "multishot/testvideo.mp4",
              "multishot/chrome.mp4", "multishot/dancer_jumpcuts.webm",
              "multishot/laion_slides.mp4", "neardup/dog_on_bed.mp4"),
    "tune": ("single/tractor_pan_vp9.webm", "single/bottle-detection.mp4",
             "single/sideways_iphone.mov", "single/whip_pan_vfr_rot180.mp4",
             "multishot/fades.mp4"),
    "blind": ("single/climbing_portrait.mp4", "single/meeting_two_people.webm",
              "single/solidWhiteRight.mp4", "single/chaplin.mp4", "neardup/cockatoo_yuv420.mp4",
              "multishot/bikes.mp4", "multishot/nasa_13013.mp4", "multishot/counter.mp4"),
}  # fmt: skip
"""Recordings of the labelled media by part. All files of one recording are in one part."""
PHOTOS: dict[Part, tuple[str, ...]] = {
    "train": ("coffee.png", "astronaut.png", "chelsea.png", "gravel.png", "grass.png", "retina.jpg",
              "camera.png", "coins.png", "moon.png", "ihc.png"),
    "tune": ("rocket.jpg", "brick.png"),
    "blind": ("motorcycle_left.png", "hubble_deep_field.jpg"),
}  # fmt: skip

HELD_OUT = ("vp9", "mosaic", "ghosting", "motion_blur")
"""Kinds that training does not see; fixed before the first fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Clean frames of luma, of full range, and the frames after them."""

    name: str
    frames: Frames
    later: Frames

    @property
    def seed(self) -> int:
        """A number that depends on the name only."""
        return zlib.crc32(self.name.encode())

    @property
    def all(self) -> Frames:
        """All frames in order."""
        return [*self.frames, *self.later]

    @property
    def moves(self) -> bool:
        """Whether frames four apart differ visibly."""
        return float(cv2.absdiff(self.all[0], self.all[4]).mean()) > 1.5


Damage = Callable[[Clip, float], Frames]
PerFrame = Callable[[NDArray[np.uint8], int, float, Clip], NDArray[Any]]
"""A damage of one frame: the frame, its number, the strength and the clip."""


def clips(part: Part, media: Path, footage: Path) -> Iterator[Clip]:
    """Yields the clips of a part, in a fixed order."""
    shares = TRAIN_SHARES if part == "train" else SHARES
    for name in MEDIA[part]:
        yield from _of_file(media / name, f"media {Path(name).stem}", shares)
    for file in PHOTOS[part]:
        yield _clip(f"photo {Path(file).stem}", _pan(file))
    n_of: Counter[str] = Counter()
    for recording in recordings(footage, part):
        n_of[recording.repository] += 1
        if n_of[recording.repository] > MOST_PER_REPOSITORY:
            continue
        seconds = recording.n_frames / recording.fps
        later = (0.6,) if part == "train" else ()
        found = decoded(recording.path, [share * seconds for share in (0.3, *later)])
        for number, frames in enumerate(found):
            if len(frames) == N_FRAMES + N_LATER:
                yield _clip(f"footage {recording.path.stem[:40]}{' later' * number}", frames)


def _of_file(path: Path, name: str, shares: Sequence[float]) -> Iterator[Clip]:
    with av.open(str(path)) as container:
        length_s = (container.duration or 0) / 1e6
    shares = shares if length_s > 4 else (0.1,)
    for number, frames in enumerate(decoded(path, [share * length_s for share in shares])):
        if len(frames) < N_FRAMES + N_LATER:
            continue
        rng = np.random.default_rng(zlib.crc32(f"{name}{number}".encode()))
        yield _clip(f"{name} {number} native", _part(frames, rng))
        if max(frames[0].shape) >= 900:
            half = [cv2.resize(f, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
                    for f in frames]  # fmt: skip
            yield _clip(
                f"{name} {number} half", _part([np.asarray(f, np.uint8) for f in half], rng)
            )


def _clip(name: str, frames: Frames) -> Clip:
    return Clip(name=name, frames=frames[:N_FRAMES], later=frames[N_FRAMES:])


def _part(frames: Frames, rng: np.random.Generator) -> Frames:
    height, width = frames[0].shape
    w, h = (min(a, b) // 2 * 2 for a, b in zip(SIZE, (width, height), strict=True))
    left, top = (int(rng.integers(0, (a - b) // 16 + 1)) * 16 for a, b in ((width, w), (height, h)))
    return [np.ascontiguousarray(frame[top : top + h, left : left + w]) for frame in frames]


def decoded(path: Path, at_s: list[float]) -> list[Frames]:
    """Returns frames of luma from some times on, of even size and full range."""
    found: list[Frames] = [[] for _ in at_s]
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            time_s = frame.time or 0.0
            for frames, begin_s in zip(found, at_s, strict=True):
                if time_s >= begin_s and len(frames) < N_FRAMES + N_LATER:
                    luma = frame.to_ndarray(format="gray")
                    height, width = (side // 2 * 2 for side in luma.shape)
                    frames.append(np.ascontiguousarray(luma[:height, :width]))
            if all(len(frames) == N_FRAMES + N_LATER for frames in found):
                break
    return found


def _pan(file: str) -> Frames:
    gray = np.asarray(cv2.cvtColor(photograph(file), cv2.COLOR_RGB2GRAY), np.uint8)
    width, height = SIZE
    scale = max((width + 60) / gray.shape[1], (height + 20) / gray.shape[0])
    how = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    large = cv2.resize(gray, None, fx=scale, fy=scale, interpolation=how)
    frames = []
    for index in range(N_FRAMES + N_LATER):
        shift = np.array([[1, 0, -2.3 * index], [0, 1, -0.6 * index]], np.float32)
        frames.append(
            np.asarray(cv2.warpAffine(large, shift, SIZE, flags=cv2.INTER_CUBIC), np.uint8)
        )
    return frames


def coded(frames: Frames, codec: str, options: dict[str, str]) -> Frames:
    """Returns luma after an encode and a decode."""
    height, width = frames[0].shape
    encoder = cast(av.VideoCodecContext, av.CodecContext.create(codec, "w"))
    encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuv420p"
    encoder.framerate, encoder.thread_count, encoder.options = 25, 1, options  # type: ignore[assignment]
    if codec == "libvpx-vp9":
        encoder.bit_rate = 0
    name = {"libx264": "h264", "libx265": "hevc", "libvpx-vp9": "vp9", "libsvtav1": "libdav1d"}
    decoder = cast(av.VideoCodecContext, av.CodecContext.create(name.get(codec, codec), "r"))
    decoder.thread_count = 1
    chroma = np.full((height // 2, width), 128, np.uint8)
    out: Frames = []

    def take(packets: list[Any]) -> None:
        for packet in packets:
            out.extend(_plane(frame) for frame in decoder.decode(packet))

    for index, luma in enumerate(frames):
        frame = av.VideoFrame.from_ndarray(np.vstack([luma, chroma]), format="yuv420p")
        frame.pts = index
        take(encoder.encode(frame))
    take(encoder.encode(None))
    out.extend(_plane(frame) for frame in decoder.decode(None))
    if len(out) != len(frames):
        raise ValueError(f"{codec} gave {len(out)} frames for {len(frames)}")
    return out


def _plane(frame: av.VideoFrame) -> NDArray[np.uint8]:
    plane = frame.planes[0]
    rows = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)
    return rows[: frame.height, : frame.width].copy()


def _x264(frames: Frames, crf: float) -> Frames:
    return coded(frames, "libx264", {"crf": str(crf), "preset": "veryfast"})


def _each(function: PerFrame) -> Damage:
    def of_frames(clip: Clip, strength: float) -> Frames:
        return [_uint8(function(f, i, strength, clip)) for i, f in enumerate(clip.frames)]

    return of_frames


def _uint8(values: NDArray[Any]) -> NDArray[np.uint8]:
    return np.asarray(np.clip(np.rint(values), 0, 255), np.uint8)


def _blur(frame: NDArray[np.uint8], sigma: float) -> NDArray[Any]:
    return np.asarray(cv2.GaussianBlur(frame, (0, 0), sigma))


def _motion_blur(frame: NDArray[np.uint8], length: float, clip: Clip) -> NDArray[Any]:
    n = int(length) // 2 * 2 + 1
    kernel = np.zeros((n, n), np.float32)
    angle = np.deg2rad(clip.seed % 180)
    reach = (n - 1) / 2 * np.array([np.cos(angle), np.sin(angle)])
    middle = n // 2
    start, end = np.rint(middle - reach).astype(int), np.rint(middle + reach).astype(int)
    cv2.line(kernel, tuple(start.tolist()), tuple(end.tolist()), 1.0)
    return np.asarray(cv2.filter2D(frame, cv2.CV_32F, kernel / kernel.sum()))


def _noise(frame: NDArray[np.uint8], index: int, sigma: float, clip: Clip) -> NDArray[Any]:
    return frame + np.random.default_rng((clip.seed, index)).normal(0, sigma, frame.shape)


def _enlarged(frame: NDArray[np.uint8], factor: float, clip: Clip) -> NDArray[Any]:
    height, width = frame.shape
    small = (max(8, round(width / factor)), max(8, round(height / factor)))
    how = (cv2.INTER_CUBIC, cv2.INTER_LINEAR)[clip.seed % 2]
    return np.asarray(cv2.resize(cv2.resize(frame, small, interpolation=cv2.INTER_AREA),
                                 (width, height), interpolation=how))  # fmt: skip


def _banded(frame: NDArray[np.uint8], levels: float) -> NDArray[Any]:
    step = 255 / (levels - 1)
    return np.rint(frame / step) * step


def _interlaced(clip: Clip, strength: float) -> Frames:
    woven = [frame.copy() for frame in clip.frames]
    for index, frame in enumerate(woven):
        frame[1::2] = clip.all[index + int(strength)][1::2]
    return woven


def _gamma(frame: NDArray[np.uint8], gamma: float, clip: Clip) -> NDArray[Any]:
    return 255 * (frame / 255) ** (gamma if clip.seed % 2 else 1 / gamma)


def _range(frame: NDArray[np.uint8], gain: float, clip: Clip) -> NDArray[Any]:
    return 128 + (frame - 128.0) * (gain if clip.seed % 2 else 1 / gain)


def _mosaic(frame: NDArray[np.uint8], cell: float) -> NDArray[Any]:
    height, width = frame.shape
    small = (max(1, round(width / cell)), max(1, round(height / cell)))
    return np.asarray(cv2.resize(cv2.resize(frame, small, interpolation=cv2.INTER_AREA),
                                 (width, height), interpolation=cv2.INTER_NEAREST))  # fmt: skip


def _ghosting(clip: Clip, share: float) -> Frames:
    """Returns frames mixed with the frame four later, or, without motion, with a shifted copy."""
    other = clip.all[4:] if clip.moves else [np.roll(f, 8, axis=1) for f in clip.frames]
    return [_uint8((1 - share) * f + share * o)
            for f, o in zip(clip.frames, other, strict=False)]  # fmt: skip


_HEVC = {"preset": "ultrafast", "x265-params": "log-level=none:pools=1:frame-threads=1"}
_VP9 = {"deadline": "good", "cpu-used": "5", "lag-in-frames": "0", "qmax": "63"}
CODECS: dict[str, tuple[tuple[float, ...], Damage]] = {
    "h264": ((29, 34, 39, 45, 51), lambda c, s: _x264(c.frames, s)),
    "hevc": ((29, 34, 39, 45, 51),
             lambda c, s: coded(c.frames, "libx265", {**_HEVC, "crf": str(s)})),
    "vp9": ((40, 48, 54, 59, 63), lambda c, s: coded(
        c.frames, "libvpx-vp9", {**_VP9, "crf": str(int(s)), "qmin": str(int(s))})),
    "av1": ((45, 52, 57, 60, 63), lambda c, s: coded(
        c.frames, "libsvtav1", {"preset": "10", "crf": str(int(s)), "svtav1-params": "lp=1"})),
    "mpeg2": ((7, 12, 18, 24, 31), lambda c, s: coded(
        c.frames, "mpeg2video", {"qmin": str(int(s)), "qmax": str(int(s)), "g": "12"})),
}  # fmt: skip
OTHERS: dict[str, tuple[tuple[float, ...], Damage]] = {
    "blur": ((0.8, 1.3, 2.0, 3.2, 5.0), _each(lambda f, i, s, c: _blur(f, s))),
    "noise": ((3, 6, 11, 19, 32), _each(_noise)),
    "upscaling": ((1.5, 2, 3, 4, 6), _each(lambda f, i, s, c: _enlarged(f, s, c))),
    "banding": ((32, 20, 13, 9, 6), _each(lambda f, i, s, c: _banded(f, s))),
    "interlacing": ((1, 2, 3, 4, 6), _interlaced),
    "gamma": ((1.3, 1.6, 2.0, 2.6, 3.4), _each(lambda f, i, s, c: _gamma(f, s, c))),
    "range": ((0.86, 0.74, 0.62, 0.5, 0.36), _each(lambda f, i, s, c: _range(f, s, c))),
    "mosaic": ((3, 5, 8, 12, 18), _each(lambda f, i, s, c: _mosaic(f, s))),
    "ghosting": ((0.12, 0.2, 0.3, 0.4, 0.5), _ghosting),
    "motion_blur": ((3, 5, 9, 15, 25), _each(lambda f, i, s, c: _motion_blur(f, s, c))),
}  # fmt: skip
NEEDS_MOTION = ("interlacing",)


def _grain(frame: NDArray[np.uint8], index: int, level: float, clip: Clip) -> NDArray[Any]:
    """Returns a frame with the grain of film: soft, and weaker in black and white."""
    rng = np.random.default_rng((clip.seed, index, 7))
    grain = cv2.GaussianBlur(rng.normal(0, 1, frame.shape).astype(np.float32), (0, 0), 0.7)
    weight = 0.4 + 2.4 * (frame / 255) * (1 - frame / 255)
    return np.asarray(frame + grain / grain.std() * level * weight)


def _old_film(frame: NDArray[np.uint8], index: int, level: float, clip: Clip) -> NDArray[Any]:
    rng = np.random.default_rng((clip.seed, index, 8))
    height, width = frame.shape
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    soft = _grain(_uint8(_blur(frame, 0.9)), index, level, clip)
    shown = 25 + (soft * 0.8) * (1 - 0.25 * (x * x + y * y)) * (1 + rng.normal(0, 0.03))
    for _ in range(int(rng.integers(0, 3))):
        shown[:, int(rng.integers(0, width))] += 30
    return np.asarray(shown)


LOOKS: dict[str, Damage] = {
    "look dark": lambda c, s: _x264(_each(lambda f, i, s, c: f * 0.3)(c, s), 18),
    "look faded": lambda c, s: _x264(_each(lambda f, i, s, c: 60 + f * 0.55)(c, s), 18),
    "look soft": lambda c, s: _x264(_each(lambda f, i, s, c: _blur(f, 0.7))(c, s), 17),
    "look grainy": lambda c, s: _x264(_each(lambda f, i, s, c: _grain(f, i, 4.5, c))(c, s), 16),
    "look old": lambda c, s: _x264(_each(lambda f, i, s, c: _old_film(f, i, 4.5, c))(c, s), 16),
}
"""Looks that are no damage."""


def versions(clip: Clip, *, with_looks: bool) -> Iterator[tuple[str, int, Frames]]:
    """Yields kind, strength from 0 to 5, and frames; the clean frames first, as kind `clean`."""
    crf = 16 + clip.seed % 8
    yield "clean", 0, clip.frames
    yield "clean", 0, _x264(clip.frames, crf)
    for name, (strengths, damage) in CODECS.items():
        for number, strength in enumerate(strengths):
            yield name, number + 1, damage(clip, strength)
    for name, (strengths, damage) in OTHERS.items():
        if name in NEEDS_MOTION and not clip.moves:
            continue
        for number, strength in enumerate(strengths):
            yield name, number + 1, _x264(damage(clip, strength), crf)
    for name, look in LOOKS.items() if with_looks else ():
        yield name, 0, look(clip, 0)


def vmaf(ffmpeg: str, pairs: list[tuple[Frames, Frames]]) -> list[list[float]]:
    """Returns VMAF of each frame of each (damaged, clean) pair of clips of one size."""
    height, width = pairs[0][0][0].shape
    chroma = np.full(width * height // 2, 128, np.uint8).tobytes()
    with tempfile.TemporaryDirectory() as folder:
        for name, which in (("a", 0), ("b", 1)):
            with (Path(folder) / name).open("wb") as file:
                for pair in pairs:
                    for frame in pair[which]:
                        file.write(frame.tobytes() + chroma)
        raw = ["-f", "rawvideo", "-pix_fmt", "yuv420p", "-s", f"{width}x{height}", "-r", "25", "-i"]
        log = f"{folder}/log"
        command = [ffmpeg, "-v", "error", "-threads", "1", *raw, f"{folder}/a", *raw, f"{folder}/b"]
        command += ["-lavfi", f"libvmaf=log_fmt=json:log_path={log}:n_threads=1", "-f", "null", "-"]
        subprocess.run(command, check=True)
        scores = [f["metrics"]["vmaf"] for f in json.loads(Path(log).read_text())["frames"]]
    n = len(pairs[0][0])
    return [scores[at : at + n] for at in range(0, len(scores), n)]


def ssim(a_HW: NDArray[np.uint8], b_HW: NDArray[np.uint8]) -> float:  # noqa: N803
    """Returns the structural similarity of two pictures (Wang et al., 2004)."""
    a, b = a_HW.astype(np.float32), b_HW.astype(np.float32)

    def smooth(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(cv2.GaussianBlur(x, (11, 11), 1.5), np.float32)

    ma, mb = smooth(a), smooth(b)
    va, vb, cov = smooth(a * a) - ma * ma, smooth(b * b) - mb * mb, smooth(a * b) - ma * mb
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    return float((((2 * ma * mb + c1) * (2 * cov + c2))
                  / ((ma * ma + mb * mb + c1) * (va + vb + c2))).mean())  # fmt: skip


def described(clip: Clip, network: SceneNetwork, ffmpeg: str, part: Part) -> dict[str, Any]:
    """Returns the arrays that are stored of a clip."""
    brisque = _brisque() if part == "blind" else None
    made = list(versions(clip, with_looks=part != "blind"))
    rows: dict[str, list[Any]] = {
        name: [] for name in ("features", "signals", "ssim", "brisque", "crops")
    }
    for _, _, frames in made:
        at = [frames[i] for i in SAMPLES]
        crops = [crops_of(f, crop_corners((0, f.shape[0], 0, f.shape[1]))) for f in at]
        rows["features"].append([crop_features(network, some).astype(np.float16) for some in crops])
        signals = [native_signals(luma) for luma in at]
        rows["signals"].append([[values[name] for name in NATIVE] for values in signals])
        rows["ssim"].append([ssim(frames[i], clip.frames[i]) for i in SAMPLES])
        if brisque is not None:
            rows["brisque"].append([brisque(at[0])])
    scores: list[float] = []
    for begin in range(0, len(made), 15):
        # The first frames are left out: most encoders spend more on them.
        pairs = [(frames[4:], clip.frames[4:]) for _, _, frames in made[begin : begin + 15]]
        scores += [float(np.mean(values)) for values in vmaf(ffmpeg, pairs)]
    return {
        "kind": np.array([kind for kind, _, _ in made]),
        "strength": np.array([strength for _, strength, _ in made]),
        "vmaf": np.array(scores, np.float32),
        **{name: np.array(values) for name, values in rows.items() if values},
    }


def _brisque() -> Callable[[NDArray[np.uint8]], float] | None:
    try:
        from brisque import BRISQUE  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return None
    model = BRISQUE(url=False)
    scale = model.scale_features
    # Version 0.2.0 expects numbers, but gets arrays of one number.
    model.scale_features = lambda features: scale([float(np.squeeze(x)) for x in features])

    def score(luma: NDArray[np.uint8]) -> float:
        try:
            return float(model.score(np.repeat(luma[:, :, None], 3, axis=2)))
        except Exception:  # noqa: BLE001 - flat pictures divide by zero
            return float("nan")

    return score


def main() -> None:
    """Makes the clips of the parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--footage", type=Path, required=True)
    parser.add_argument("--media", type=Path, required=True)
    parser.add_argument("--part", action="append", choices=("train", "tune", "blind"))
    parser.add_argument("--shard", default="0/1", help="I/N: every N-th clip from the I-th")
    args = parser.parse_args()
    os.environ["SVT_LOG"] = "1"  # errors only
    import imageio_ffmpeg  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import torch

    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    shard, n_shards = map(int, args.shard.split("/"))
    network, ffmpeg = SceneNetwork(), imageio_ffmpeg.get_ffmpeg_exe()
    for part in args.part or ("train", "tune", "blind"):
        folder = args.out / part
        folder.mkdir(parents=True, exist_ok=True)
        for number, clip in enumerate(clips(part, args.media, args.footage)):
            path = folder / f"{clip.name.replace(' ', '_')}.npz"
            if number % n_shards != shard or path.exists():
                continue
            np.savez(path, **described(clip, network, ffmpeg, part))
            print(part, clip.name, clip.frames[0].shape, flush=True)


if __name__ == "__main__":
    main()
