#!/usr/bin/env python3
"""Measures whether each quality score responds to its own degradation, and to no other.

    quality.py [MEDIA]

Sweeps: photographs and single frames of MEDIA/single at 1280x720 are degraded in five strengths by
blur, noise, blocks (JPEG, MPEG-2, H.264 without and with its loop filter, the latter encoded
again with a fine quantiser), darkening, brightening and enlarging. For each picture, the table has
the rank correlation (Spearman) of strength and score, with the original as strength 0. It shows
the change of other scores between the original and the middle strength.

Flips: a score flips if it changes by more than the spread between undamaged pictures (the distance
of their quartiles, and at least `LEAST`) under a degradation that is neither its own nor `RELATED`.
A flip for the better is the worse kind.

MEDIA/quality: whole files go through the analysis without the shot network. Scores of each degraded
file are compared with those of its original; the spread is that of the files of MEDIA/single.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import av
import cv2
import numpy as np
import tests_path  # noqa: F401
from av.video.stream import VideoStream
from film_shots import photograph
from measure import arguments, tell
from numpy.typing import NDArray
from samples import analyzed

from curator.measures.sample_signals import native_signals, picture_signals
from curator.measures.score_list import BUILT_IN
from curator.media.coded_quantizer import quantizer_signals
from curator.media.decode import DECODER_OPTIONS
from curator.records.clips import Span

Luma = NDArray[np.uint8]

WIDTH, HEIGHT = 1280, 720
PHOTOS = ("coffee", "cat", "motorcycle", "astronaut", "gravel")
CLIPS = ("juggle.mp4", "dog_play.mp4", "blocks_hands.mp4", "meeting_two_people.webm")
SHOWN = ("sharpness", "noise", "blocking", "flattening", "banding", "combing", "resolution",
         "stripes")  # fmt: skip
BETTER = {"sharpness": 1, "noise": -1, "blocking": -1, "flattening": -1, "quantizer": -1,
          "banding": -1, "combing": -1, "resolution": 1, "true_resolution": 1,
          "stripes": -1}  # fmt: skip
"""The direction in which a score is better; other scores have none."""
LEAST = {"sharpness": 0.05, "noise": 1, "blocking": 0.3, "flattening": 0.05, "quantizer": 3,
         "banding": 10, "combing": 0.01, "resolution": 0.1, "true_resolution": 0.1, "stripes": 1,
         "luma": 0.1, "contrast": 0.05, "clipped_fraction": 0.05, "frozen_fraction": 0.2,
         "black_fraction": 0.2, "motion": 0.02, "bits_per_pixel": 0.05,
         "content_area": 0.05}  # fmt: skip
"""Smallest change that is a flip, from the documented ranges. For scores that hardly differ between
undamaged pictures, such as blocking, the spread alone would be close to 0."""
_COARSE = ("flattening", "quantizer", "bits_per_pixel")
RELATED = {
    "blur": ("resolution", "true_resolution", "banding", "bits_per_pixel", "quantizer"),
    "noise": ("bits_per_pixel", "quantizer"),
    "blocks": ("blocking", *_COARSE),
    "dark": ("luma", "contrast", "clipped_fraction", "black_fraction", "banding", *_COARSE),
    "bright": ("luma", "contrast", "clipped_fraction", "bits_per_pixel", "quantizer"),
    "enlarged": ("sharpness", "resolution", "true_resolution", "bits_per_pixel", "quantizer"),
    "enlarged blocks": ("blocking", "resolution", "true_resolution", "sharpness", *_COARSE),
    "still": ("motion", "bits_per_pixel", "quantizer"),
    "static": ("motion", "contrast", "resolution", "true_resolution", *_COARSE),
}
"""Scores that a degradation changes rightly, by its first word: a blurred sky gets contours, a dark
sky has fewer levels, and a codec spends more or less on each."""
N_CODED = 6
"""Number of encoded frames; the last is measured."""


def pictures(media: Path | None) -> dict[str, list[Luma]]:
    """Returns limited-range luma: frames of a slow pan over each photograph, and of clips."""
    found = {f"photo {name}": _pan(name) for name in PHOTOS}
    for name in CLIPS if media else ():
        assert media is not None
        with av.open(str(media / "single" / name)) as container:
            frames = [f for _, f in zip(range(N_CODED), container.decode(video=0), strict=False)]
        found[name] = [_plane(frame) for frame in frames]
    return found


def _pan(name: str) -> list[Luma]:
    gray = cv2.cvtColor(photograph(name), cv2.COLOR_RGB2GRAY)
    scale = max((WIDTH + 32) / gray.shape[1], (HEIGHT + 32) / gray.shape[0])
    large = cv2.resize(gray, None, fx=scale, fy=scale, interpolation=cv2.INTER_LANCZOS4)
    luma = np.rint(16 + large.astype(np.float32) * 219 / 255).astype(np.uint8)
    return [luma[i : i + HEIGHT, 3 * i : 3 * i + WIDTH].copy() for i in range(N_CODED)]


def _plane(frame: av.VideoFrame) -> Luma:
    plane = frame.planes[0]
    rows = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)
    return rows[: frame.height, : frame.width].copy()


def scores_of(picture: Luma | av.VideoFrame) -> dict[str, float]:
    """Returns the signals of one limited-range frame."""
    coded = quantizer_signals(picture) if isinstance(picture, av.VideoFrame) else {}
    luma = _plane(picture) if isinstance(picture, av.VideoFrame) else picture
    full = np.clip((np.arange(256) - 16) * 255 / 219, 0, 255).astype(np.uint8)
    scale = min(1.0, 640 / max(luma.shape))
    size = (round(luma.shape[1] * scale), round(luma.shape[0] * scale))
    gray = cv2.resize(cv2.LUT(luma, full), size, interpolation=cv2.INTER_AREA)
    values = native_signals(luma, black=16, white=235) | picture_signals(np.asarray(gray, np.uint8))
    return values | {"luma": float(gray.mean()) / 255, "quantizer": float("nan")} | coded


def _all_coded(frames: Sequence[Luma], codec: str, options: dict[str, str]) -> list[av.VideoFrame]:
    buffer = io.BytesIO()
    height, width = frames[0].shape
    with av.open(buffer, "w", format="matroska") as container:
        stream = cast(VideoStream, container.add_stream(codec, rate=25))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.thread_count = 1
        stream.options = {**options}
        for index, luma in enumerate(frames):
            chroma = np.full((height // 2, width), 128, np.uint8)
            frame = av.VideoFrame.from_ndarray(np.vstack([luma, chroma]), format="yuv420p")
            frame.pts = index
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    buffer.seek(0)
    with av.open(buffer, "r") as container:
        container.streams.video[0].codec_context.options = dict(DECODER_OPTIONS)
        return list(container.decode(video=0))


def _h264(frames: Sequence[Luma], qp: float, **more: str) -> list[av.VideoFrame]:
    return _all_coded(frames, "libx264", {"qp": str(int(qp)), "preset": "veryfast", **more})


def _again(frames: Sequence[Luma], qp: float) -> av.VideoFrame:
    """Encodes frames at a quantiser, and again at a fine one, which adds no damage."""
    return _h264([_plane(frame) for frame in _h264(frames, qp)], 14)[-1]


def _noisy(luma: Luma, sigma: float) -> Luma:
    noise = np.random.default_rng(1).normal(0, sigma, luma.shape)
    return np.clip(np.rint(luma + noise), 0, 255).astype(np.uint8)


def _lit(luma: Luma, gain: float) -> Luma:
    lit: Luma = np.clip(np.rint(16 + (luma.astype(np.float32) - 16) * gain), 16, 235).astype(
        np.uint8
    )
    return lit


def _jpeg(luma: Luma, quality: int) -> Luma:
    _, data = cv2.imencode(".jpg", luma, [cv2.IMWRITE_JPEG_QUALITY, quality])
    return np.asarray(cv2.imdecode(data, cv2.IMREAD_GRAYSCALE), np.uint8)


def _smaller(luma: Luma, factor: float) -> Luma:
    size = (round(luma.shape[1] / factor), round(luma.shape[0] / factor))
    small = cv2.resize(luma, size, interpolation=cv2.INTER_AREA)
    large = cv2.resize(small, luma.shape[::-1], interpolation=cv2.INTER_CUBIC)
    return np.asarray(large, np.uint8)


Degrade = Callable[[Sequence[Luma], float], Luma | av.VideoFrame]
Sweep = tuple[tuple[str, ...], int, Sequence[float], Degrade]

_H264_QP = (24, 30, 36, 42, 48)
_OF_H264 = ("flattening", "blocking", "quantizer")
SWEEPS: dict[str, Sweep] = {
    "blur": (("sharpness",), -1, (1, 2, 4, 8, 16),
             lambda f, s: np.asarray(cv2.GaussianBlur(f[-1], (0, 0), s), np.uint8)),
    "noise": (("noise",), 1, (1, 2, 4, 8, 16), lambda f, s: _noisy(f[-1], s)),
    "blocks, JPEG": (("blocking", "flattening"), 1, (75, 50, 30, 15, 7),
                     lambda f, s: _jpeg(f[-1], int(s))),
    "blocks, MPEG-2": (("blocking", "flattening", "quantizer"), 1, (2, 4, 8, 16, 31),
                       lambda f, s: _all_coded(f, "mpeg2video", {
                           "qmin": str(int(s)), "qmax": str(int(s)), "g": "1"})[-2]),
    "blocks, H.264 unfiltered": (_OF_H264, 1, _H264_QP, lambda f, s: _h264(
        f, s, **{"x264-params": "no-deblock=1"})[-1]),
    "blocks, H.264": (_OF_H264, 1, _H264_QP, lambda f, s: _h264(f, s)[-1]),
    "blocks, H.264 again": (_OF_H264, 1, _H264_QP, _again),
    "dark": (("luma",), -1, (0.7, 0.5, 0.3, 0.15, 0.06), lambda f, s: _lit(f[-1], s)),
    "bright": (("bright_fraction",), 1, (1.3, 1.7, 2.2, 3, 5), lambda f, s: _lit(f[-1], s)),
    "enlarged": (("resolution",), -1, (1.5, 2, 3, 4, 6), lambda f, s: _smaller(f[-1], s)),
}  # fmt: skip
"""Scores, their direction, strengths and function by degradation. The decoder does not report the
quantiser of MPEG-2's last frame; the quantiser of an original is unknown."""


def spearman(values: Sequence[float]) -> float:
    """Returns the rank correlation of values with their order; ties share their mean rank."""
    array = np.asarray(values, np.float64)
    ranks = (array[:, None] > array[None, :]).sum(1) + 0.5 * (
        (array[:, None] == array[None, :]).sum(1) - 1
    )
    order = np.arange(len(array))
    return float(np.corrcoef(order, ranks)[0, 1]) if ranks.std() > 0 else 0.0


Rows = dict[str, list[dict[str, float]]]


def sweep(found: dict[str, list[Luma]]) -> dict[str, Rows]:
    """Returns scores by degradation and picture: of the original, then of each strength."""
    original = {name: scores_of(frames[-1]) for name, frames in found.items()}
    return {
        name: {
            picture: [original[picture], *(scores_of(degrade(frames, s)) for s in strengths)]
            for picture, frames in found.items()
        }
        for name, (_, _, strengths, degrade) in SWEEPS.items()
    }


def show_sweeps(swept: dict[str, Rows]) -> dict[str, dict[str, float]]:
    """Prints the sweeps; returns rank correlations by degradation, score and picture."""
    correlations: dict[str, dict[str, float]] = {}
    for name, pictures_of in swept.items():
        scores, sign, strengths, _ = SWEEPS[name]
        for score in scores:
            print(f"\n### {name}: `{score}`\n")
            print("| picture | original | " + " | ".join(str(s) for s in strengths)
                  + " | rank correlation | others at the middle strength |")  # fmt: skip
            print("|---|---|" + "---|" * len(strengths) + "---|---|")
            of_pictures = correlations[f"{name}: `{score}`"] = {}
            for picture, rows in pictures_of.items():
                own = [row[score] for row in rows]
                correlation = sign * spearman([v for v in own if np.isfinite(v)])
                of_pictures[picture] = round(correlation, 3)
                others = ", ".join(
                    f"{key} {rows[0][key]:.2g}>{rows[3][key]:.2g}"
                    for key in SHOWN
                    if score == scores[0] and key not in scores
                    and _moved(rows[0][key], rows[3][key])
                )  # fmt: skip
                print(f"| {picture} | " + " | ".join(f"{v:.3g}" for v in own)
                      + f" | {correlation:.2f} | {others} |")  # fmt: skip
    return correlations


def _moved(before: float, after: float) -> bool:
    return abs(after - before) > 0.5 * max(abs(before), abs(after), 0.3)


def spread_of(
    rows: Sequence[Mapping[str, float | None]], scores: Sequence[str]
) -> dict[str, float]:
    """Returns the spread of scores over undamaged pictures: interquartile, at least `LEAST`."""
    spread = {}
    for score in scores:
        values = [row[score] for row in rows if row[score] is not None]
        low, high = np.nanquantile(np.array(values, np.float64), [0.25, 0.75])
        spread[score] = max(float(high - low), LEAST[score])
    return spread


def flip(score: str, before: float | None, after: float | None, spread: float) -> str:
    """Returns how a degradation changes another score: "better", "worse", or "" for no flip.

    A score that becomes unknown does not flip, because no filter uses it.
    """
    if before is None or after is None or not abs(after - before) > spread:
        return ""
    return "better" if (after - before) * BETTER.get(score, 0) > 0 else "worse"


def show_flips(swept: dict[str, Rows]) -> dict[str, dict[str, dict[str, int]]]:
    """Counts the pictures that flip each score, at the middle and the last strength."""
    originals = [rows[0] for rows in next(iter(swept.values())).values()]
    spread = spread_of(originals, SHOWN)
    print("\n### Flips: pictures in which another score moves, better/worse, middle then last\n")
    print("| degradation | " + " | ".join(f"{s} ({spread[s]:.2g})" for s in SHOWN) + " |")
    print("|---|" + "---|" * len(SHOWN))
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for name, pictures_of in swept.items():
        counts[name], cells = {}, []
        for score in SHOWN:
            if score in (*SWEEPS[name][0], *RELATED[name.partition(",")[0]]):
                cells.append("its own")
                continue
            found = {"middle": 3, "last": 5}
            many = {
                f"{way} {place}": sum(
                    flip(score, rows[0][score], rows[index][score], spread[score]) == way
                    for rows in pictures_of.values()
                )
                for place, index in found.items()
                for way in ("better", "worse")
            }
            counts[name][score] = many
            cells.append("/".join(map(str, list(many.values())[:2])) + ", "
                         + "/".join(map(str, list(many.values())[2:])))  # fmt: skip
        print(f"| {name} | " + " | ".join(c.replace("0/0, 0/0", "-") for c in cells) + " |")
    return counts


OWN = {
    "juggle_blur.mp4": ("blur", "sharpness", -1),
    "juggle_dark.mp4": ("dark", "luma", -1),
    "juggle_noise.mp4": ("noise", "noise", 1),
    "juggle_overexposed.mp4": ("bright", "luma", 1),
    "juggle_upscaled_blocky.mp4": ("enlarged blocks", "blocking", 1),
    "still_image_5s.mp4": ("still", "frozen_fraction", 1),
    "still_zoom_5s.mp4": ("still", "motion", 1),
    "tv_static.mp4": ("static", "noise", 1),
}
"""File -> kind of degradation, score of that kind, and the score's direction."""
CLIP_SCORES = ("sharpness", "noise", "blocking", "flattening", "quantizer", "banding", "combing",
               "true_resolution", "stripes",
               "luma", "contrast", "clipped_fraction", "frozen_fraction", "black_fraction",
               "motion", "bits_per_pixel", "content_area")  # fmt: skip


Table = dict[str, dict[str, float | None]]


def of_files(media: Path) -> Table:
    """Prints the scores of whole files and their flips; returns the scores."""
    original = "juggle.mp4"
    singles = {path.name: _of_file(path) for path in sorted((media / "single").iterdir())}
    spread = spread_of(list(singles.values()), CLIP_SCORES)
    table = {name: _of_file(media / "quality" / name) for name in OWN}
    print("\n| file | " + " | ".join(CLIP_SCORES) + " |\n|---|" + "---|" * len(CLIP_SCORES))
    for name, scores in ({original: singles[original]} | table).items():
        cells = ("-" if (v := scores[key]) is None else f"{v:.3g}" for key in CLIP_SCORES)
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print("| spread of single | " + " | ".join(f"{spread[k]:.3g}" for k in CLIP_SCORES) + " |")
    print("\n| file | own score ranks it | others that flip |\n|---|---|---|")
    for name, scores in table.items():
        kind, own, sign = OWN[name]
        before, after = singles[original][own], scores[own]
        ranks = before is not None and after is not None and sign * (after - before) > 0
        flips = []
        for key in CLIP_SCORES:
            a, b = singles[original][key], scores[key]
            way = "" if key in (own, *RELATED[kind]) else flip(key, a, b, spread[key])
            if way:
                flips.append(f"{key} {a:.3g}>{b:.3g} {way if key in BETTER else ''}".strip())
        print(f"| {name} | {own}: {'yes' if ranks else 'no'} | {', '.join(flips) or 'none'} |")
    return {original: singles[original]} | table


def _of_file(path: Path) -> dict[str, float | None]:
    track = analyzed(path)
    scores = BUILT_IN.score_clip(track, Span(start_frame=0, end_frame=track.n_frames, shot=0))
    return {name: scores[name] for name in CLIP_SCORES}


def main() -> None:
    """Measures, and prints tables and a line of JSON."""
    parser = arguments(__doc__)
    parser.add_argument("media", nargs="?", type=Path, help="folder with `single` and `quality`")
    args = parser.parse_args()
    cv2.setNumThreads(1)
    swept = sweep(pictures(args.media))
    correlations = show_sweeps(swept)
    flips = show_flips(swept)
    files = of_files(args.media) if args.media else {}
    print("\n| degradation: score | lowest rank correlation | mean |\n|---|---|---|")
    for name, values in correlations.items():
        ranks = list(values.values())
        print(f"| {name} | {min(ranks):.2f} | {np.mean(ranks):.2f} |")
    tell({"rank": correlations, "flips": flips, "files": files})


if __name__ == "__main__":
    main()
