#!/usr/bin/env python3
"""Measures how well the perceptual descriptor tells copies of clips from other clips.

    dedup_descriptor.py MEDIA FILMS [--similarity 0.6] [--search 20000]

MEDIA holds labelled videos, `shots.json` and `near_dup.json`; FILMS holds edited films and their
`truth.json`. Clips are true shots, sampled twice a second at 320 px on the longer side.

Scoring convention: all pairs of clips are scored, not only those that a search would meet.
Duplicates are pairs of a labelled group and shots of films that share at least half of the footage
of both together. "Other footage" comes from different recordings; "same camera, other time" from
one recording without overlap. Left out are excerpts and still frames of a shot against it (given in
rows of their own), groups that share only some shots, and pairs that overlap by less than half.
Copies made here change every clip of MEDIA/single, cut into windows of 5 and 10 s.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from measure import arguments, tell
from numpy.typing import NDArray

from curator.models.perceptual import CLIP_DIM, DIM, PERCEPTUAL_MODEL, aggregate, describe
from curator.stages.dedup.config import DedupConfig
from curator.stages.dedup.retention import find_duplicates

Picture = NDArray[np.uint8]
Vectors = NDArray[np.float32]

FOLDERS = ("single", "multishot", "neardup", "derived", "quality", "formats", "broken")
SKIPPED = {"av1_black_6min_180p.mp4"}
PARTIAL_GROUPS = {"bbb_opening", "bbb_bird"}
"""Groups that share a part of their footage only."""
SAME_FILM = {
    "big_buck_bunny_0_30.webm", "bbb_logo_60fps.ts", "bbb_642x642_vp9.webm",
    "bigbuckbunny_720p_5.1.mp4", "h263.3gp", "hevc_5.1.ts", "mpeg2_1080p.ts",
    "rotate_fragmented_bbb.mp4", "vvc_undecodable.mp4",
}  # fmt: skip
"""Files with unlabelled parts of one film."""
SAME_PICTURES = ({"h264_10bit.mp4", "h265_10bit.mp4"}, {"still_image_5s.mp4", "still_zoom_5s.mp4"})
MADE_OF_OTHERS = {"derived_transitions.mp4", "still_image_5s.mp4", "still_zoom_5s.mp4"}
NOT_CLAIMED = {"dog_hflip.mp4", "audio_8s_video_2s.mp4", "dog_on_bed_rot270flag.mp4"}
"""Mirrored and rotated copies, which the descriptor does not claim to know."""
WINDOWS_S = (5, 10)


@dataclass(frozen=True, slots=True)
class Clip:
    """Descriptors of one clip and what it shows."""

    name: str
    file: str
    footage: str
    vector: Vectors


def resized(picture: Picture, width: int, height: int) -> Picture:
    size = (max(1, width), max(1, height))
    return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), np.uint8)


def frames(path: Path) -> Iterator[tuple[int, float, Callable[[], Picture]]]:
    """Index, time and (when called) the small picture of every frame that decodes."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        try:
            for index, frame in enumerate(container.decode(stream)):
                at_s = float(frame.time) if frame.time is not None else index / 25
                yield index, at_s, partial(small, frame)
        except av.FFmpegError as error:
            print(f"{path.name}: {error}", flush=True)


def small(frame: av.VideoFrame) -> Picture:
    picture = np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
    scale = 320 / max(picture.shape[:2])
    if scale < 1:
        height, width = picture.shape[:2]
        picture = resized(picture, round(width * scale), round(height * scale))
    return np.ascontiguousarray(np.rot90(picture, round(frame.rotation / 90)))


def sampled(path: Path, every_s: float) -> list[tuple[int, Picture]]:
    taken, due = [], None
    for index, at_s, picture in frames(path):
        if due is None or at_s >= due - 1e-6:
            taken.append((index, picture()))
            due = (at_s if due is None else due) + every_s
            while due <= at_s + 1e-6:
                due += every_s
    return taken


def described(pictures: list[Picture]) -> Vectors:
    return np.stack([describe(p) for p in pictures]) if pictures else np.zeros((0, DIM), np.float32)


def media_clips(media: Path) -> list[Clip]:
    shots = json.loads((media / "shots.json").read_text())
    groups = json.loads((media / "near_dup.json").read_text())
    group_of = {f: g for g, v in groups.items() if g not in PARTIAL_GROUPS for f in v["files"]}
    clips = []
    paths = [p for folder in FOLDERS for p in sorted((media / folder).iterdir())]
    for path in paths:
        file = str(path.relative_to(media))
        if path.name in SKIPPED or (file.startswith("broken/") and file not in group_of):
            continue
        samples = sampled(path, 0.5)
        spans = shots.get(file, [])
        spans = [s[:2] for s in spans] if len(spans) > 1 else [(0, 1 << 60)]
        for number, (start, end) in enumerate(spans):
            vector = aggregate(described([p for i, p in samples if start <= i < end]))
            name, footage = path.name, group_of.get(file, file)
            if len(spans) > 1:
                name, footage = f"{name}:{number}", f"{footage}:{number}"
            if vector is None:
                print(f"{name}: no sample, or none with structure", flush=True)
            else:
                clips.append(Clip(name, path.name, footage, vector))
    return clips


def media_relation(a: Clip, b: Clip) -> str | None:
    """Kind of a pair of clips of MEDIA, None where it counts neither way."""
    files = {a.file, b.file}
    if a.footage == b.footage:
        return "mirrored or rotated copy" if len(files & NOT_CLAIMED) == 1 else "labelled group"
    if files <= SAME_FILM or any(files <= same for same in SAME_PICTURES):
        return None
    if len(files) == 1:
        return "same file, other shot"
    return None if files & MADE_OF_OTHERS else "other footage"


def film_clips(films: Path) -> list[tuple[dict[str, Any], Clip]]:
    clips = []
    for film, shots in json.loads((films / "truth.json").read_text()).items():
        taken: list[list[Picture]] = [[] for _ in shots]
        for index, _, picture in frames(films / film):
            for number, shot in enumerate(shots):
                if shot["start"] <= index < shot["end"] and (index - shot["start"]) % 15 == 0:
                    taken[number].append(picture())
        for number, shot in enumerate(shots):
            vector = aggregate(described(taken[number]))
            if vector is not None:
                clips.append((shot, Clip(f"{film}:{number}", film, shot["clip"], vector)))
    return clips


def film_relation(a: tuple[dict[str, Any], Clip], b: tuple[dict[str, Any], Clip]) -> str | None:
    """Kind of a pair of shots of FILMS, None where it counts neither way."""
    (x, clip_x), (y, clip_y) = a, b
    if clip_x.footage != clip_y.footage:
        return "other footage"
    if x["static"] or y["static"]:
        return "still frame of the same camera"
    if x["repeats"] == clip_y.name or y["repeats"] == clip_x.name:
        return "repeat in films"
    spans = [(s["offset_s"], s["offset_s"] + (s["end"] - s["start"]) / 30) for s in (x, y)]
    shared = min(spans[0][1], spans[1][1]) - max(spans[0][0], spans[1][0])
    if shared <= 0:
        return "same camera, other time"
    lengths = [end - start for start, end in spans]
    if shared >= 0.5 * (sum(lengths) - shared):
        return "overlap in films"
    return "excerpt in films" if shared >= 0.5 * min(lengths) else None


def jpeg(picture: Picture, quality: int) -> Picture:
    coded = cv2.imencode(".jpg", picture[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    decoded = np.asarray(cv2.imdecode(coded, cv2.IMREAD_COLOR), np.uint8)
    return np.ascontiguousarray(decoded[:, :, ::-1])


def downscaled(picture: Picture, factor: int, quality: int) -> Picture:
    height, width = picture.shape[:2]
    tiny = jpeg(resized(picture, width // factor, height // factor), quality)
    large = cv2.resize(tiny, (width, height), interpolation=cv2.INTER_LINEAR)
    return np.asarray(large, np.uint8)


def cropped(picture: Picture, share: float, x: float = 0.5, y: float = 0.5) -> Picture:
    height, width = (round(side * share) for side in picture.shape[:2])
    top, left = round((picture.shape[0] - height) * y), round((picture.shape[1] - width) * x)
    part = picture[top : top + height, left : left + width]
    return np.asarray(cv2.resize(part, picture.shape[1::-1]), np.uint8)


def graded(picture: Picture, gain: float, offset: float, gamma: float) -> Picture:
    return np.clip(255 * (picture / 255) ** gamma * gain + offset, 0, 255).astype(np.uint8)


def noisy(picture: Picture, sigma: float) -> Picture:
    rng = np.random.default_rng(int(picture[::7, ::5].sum()))
    return np.clip(picture + rng.normal(0, sigma, picture.shape), 0, 255).astype(np.uint8)


def boxed(picture: Picture, rows: float, columns: float) -> Picture:
    top, left = round(picture.shape[0] * rows), round(picture.shape[1] * columns)
    bordered = cv2.copyMakeBorder(picture, top, top, left, left, cv2.BORDER_CONSTANT)
    return np.asarray(bordered, np.uint8)


def written(picture: Picture, text: str, x: float, y: float) -> None:
    height, width = picture.shape[:2]
    at, size = (int(width * x), int(height * y)), width / 560
    for colour, weight in ((0, 3), (255, 1)):
        cv2.putText(picture, text, at, cv2.FONT_HERSHEY_SIMPLEX, size, (colour,) * 3, weight)


def overlaid(picture: Picture, *, logo: bool, banner: bool) -> Picture:
    marked, (height, width) = picture.copy(), picture.shape[:2]
    if banner:
        marked[int(height * 0.85) :] = (30, 30, 140)
    if logo:
        corners = (int(width * 0.82), int(height * 0.05)), (int(width * 0.97), int(height * 0.2))
        cv2.rectangle(marked, *corners, (255, 220, 0), -1)
        written(marked, "TV1", 0.83, 0.17)
    if banner or not logo:
        written(marked, "what are you doing here?", 0.1, 0.95)
    return marked


CHANGES: dict[str, Callable[[Picture], Picture]] = {
    "jpeg quality 15": lambda p: jpeg(p, 15),
    "rescaled to 1/3, quality 30": lambda p: downscaled(p, 3, 30),
    "rescaled to 1/4, quality 10": lambda p: downscaled(p, 4, 10),
    "blur, sigma 3 px": lambda p: np.asarray(cv2.GaussianBlur(p, (0, 0), 3), np.uint8),
    "noise, sigma 20": lambda p: noisy(p, 20),
    "gray, more contrast": lambda p: graded(
        np.repeat(cv2.cvtColor(p, cv2.COLOR_RGB2GRAY)[:, :, None], 3, axis=2), 1.15, -12, 1
    ),
    "darker": lambda p: graded(p, 0.55, -15, 1.3),
    "brighter, clipped": lambda p: graded(p, 1.4, 40, 0.9),
    "subtitle": lambda p: overlaid(p, logo=False, banner=False),
    "logo": lambda p: overlaid(p, logo=True, banner=False),
    "logo and banner": lambda p: overlaid(p, logo=True, banner=True),
    "letterboxed": lambda p: jpeg(boxed(p, 1 / 6, 0), 60),
    "pillarboxed": lambda p: jpeg(boxed(p, 0, 1 / 6), 60),
    "squeezed to 3/4": lambda p: resized(p, p.shape[1] * 3 // 4, p.shape[0]),
    "cut to 4:3": lambda p: p[:, p.shape[1] // 8 : -(p.shape[1] // 8)],
    "crop to 90%": lambda p: cropped(p, 0.9),
    "crop to 80%": lambda p: cropped(p, 0.8),
    "crop to 85%, corner": lambda p: cropped(p, 0.85, 0, 0),
    "crop to 70% (not claimed)": lambda p: cropped(p, 0.7),
    "mirrored (not claimed)": lambda p: p[:, ::-1],
}


def made_pairs(media: Path) -> dict[str, list[float]]:
    """Cosines of windows of single shots with changed, moved and other windows."""
    cosines: dict[str, list[float]] = defaultdict(list)
    for path in sorted((media / "single").iterdir()):
        pictures = [p for _, p in sampled(path, 0.25)]
        plain = described(pictures)
        changed = {
            k: described([change(p) for p in pictures[::2]]) for k, change in CHANGES.items()
        }
        for n in (4 * seconds for seconds in WINDOWS_S):
            starts = range(0, len(pictures) - n + 1, n)
            windows = [aggregate(plain[s : s + n : 2]) for s in starts]
            for start, vector in zip(starts, windows, strict=True):
                end = start + n
                moved = {k: v[start // 2 : end // 2] for k, v in changed.items()} | {
                    "sampled 0.25 s later": plain[start + 1 : end : 2],
                    "1.25 times the speed": plain[start + np.arange(0, n, 2.5).astype(int)],
                    "excerpt of the middle half": plain[start + n // 4 : end - n // 4 : 2],
                    "window moved by a fifth": plain[start + n // 5 : end + n // 5 : 2],
                }
                for kind, rows in moved.items():
                    add(cosines[kind], vector, aggregate(rows))
            for one, other in combinations(windows, 2):
                add(cosines["same camera, other window"], one, other)
    return cosines


def add(cosines: list[float], a: Vectors | None, b: Vectors | None) -> None:
    if a is not None and b is not None:
        cosines.append(float(a @ b))


def pairs_of(
    clips: list[Any], relation: Callable[[Any, Any], str | None], vector: Callable[[Any], Vectors]
) -> dict[str, list[float]]:
    cosines: dict[str, list[float]] = defaultdict(list)
    for a, b in combinations(clips, 2):
        kind = relation(a, b)
        if kind is not None:
            add(cosines[kind], vector(a), vector(b))
    return cosines


def table(title: str, cosines: dict[str, list[float]], similarity: float) -> dict[str, Any]:
    heads = ("pairs", "min", "5%", "50%", "95%", "max", "match")
    print(f"\n{title:<32}", *(f"{head:>6}" for head in heads))
    rows = {}
    for kind, values in cosines.items():
        points = np.quantile(values, [0, 0.05, 0.5, 0.95, 1])
        matched = float(np.mean(np.array(values) >= similarity))
        print(f"{kind:<32} {len(values):>6}", *(f"{p:>6.2f}" for p in points), f"{matched:>6.1%}")
        names = ("min", "p05", "median", "p95", "max")
        rows[kind] = {"pairs": len(values), "matched": round(matched, 4)}
        rows[kind] |= {k: round(float(p), 4) for k, p in zip(names, points, strict=True)}
    return rows


def rates(
    rows: dict[str, dict[str, Any]], copies: list[str], others: list[str]
) -> dict[str, float]:
    """Precision and recall over the named kinds of pairs."""
    hits = sum(rows[k]["matched"] * rows[k]["pairs"] for k in copies if k in rows)
    total = sum(rows[k]["pairs"] for k in copies if k in rows)
    false = sum(rows[k]["matched"] * rows[k]["pairs"] for k in others if k in rows)
    return {
        "recall": round(hits / max(1, total), 4),
        "precision": round(hits / max(1, hits + false), 4),
    }


def search_cost(n: int, similarity: float) -> dict[str, Any]:
    """Time of both searches over evenly spread vectors, a quarter of them copies."""
    rng = np.random.default_rng(0)
    scale = np.exp(-np.arange(CLIP_DIM) / 100)
    vectors = rng.normal(size=(n, CLIP_DIM)) * scale
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    copies, cosine = n // 4, rng.uniform(similarity, 1, n // 4)[:, None]
    originals = vectors[rng.integers(copies, n, copies)]
    away = vectors[:copies] - (vectors[:copies] * originals).sum(1, keepdims=True) * originals
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    vectors[:copies] = cosine * originals + np.sqrt(1 - cosine**2) * away
    order = np.concatenate([np.arange(copies, n), np.arange(copies)])
    result: dict[str, Any] = {"vectors": n, "dimensions": CLIP_DIM}
    found = {}
    for name, exact_below in (("exact", n), ("clusters", 0)):
        start = time.perf_counter()
        found[name] = find_duplicates(
            vectors.astype(np.float32), order, similarity=similarity, exact_below=exact_below
        ).is_duplicate
        result[f"{name}_s"] = round(time.perf_counter() - start, 2)
    recall = (found["clusters"] & found["exact"]).sum() / max(1, found["exact"].sum())
    result["clusters_recall"] = round(float(recall), 4)
    return result


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("media", type=Path)
    parser.add_argument("films", type=Path)
    parser.add_argument("--similarity", type=float, default=DedupConfig().similarity)
    parser.add_argument("--search", type=int, default=20_000, help="vectors in the search's timing")
    args = parser.parse_args()
    cv2.setNumThreads(1)
    clips, shots = media_clips(args.media), film_clips(args.films)
    media = pairs_of(clips, media_relation, lambda c: c.vector)
    films = pairs_of(shots, film_relation, lambda c: c[1].vector)
    similarity = args.similarity
    rows = {
        "media": table("labelled videos", media, similarity),
        "films": table("edited films", films, similarity),
        "made": table("copies made of single shots", made_pairs(args.media), similarity),
    }
    unrelated, camera = ["other footage"], ["same camera, other time", "same file, other shot"]
    summary = {
        "media": rates(rows["media"], ["labelled group"], unrelated),
        "films": rates(rows["films"], ["repeat in films", "overlap in films"], unrelated),
        "films, other times of a camera counted": rates(
            rows["films"], ["repeat in films", "overlap in films"], unrelated + camera
        ),
    }
    search = search_cost(args.search, similarity)
    print()
    for name, rate in summary.items():
        print(f"{name}: recall {rate['recall']:.1%}, precision {rate['precision']:.1%}")
    print(f"search: {search}")
    results = {"model": PERCEPTUAL_MODEL, "similarity": similarity, "dimensions": [DIM, CLIP_DIM]}
    results |= {"summary": summary, "pairs": rows, "search": search}
    results["versions"] = {name: version(name) for name in ("av", "numpy")}
    tell(results)


if __name__ == "__main__":
    main()
