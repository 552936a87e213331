#!/usr/bin/env python3
"""Measures recall and precision of copy detection, and the errors of the offsets.

    duplicates.py MEDIA FOOTAGE --cache DIR [--half blind] [--share 1.0] [--unrelated 20000]

MEDIA holds labelled videos and `shots.json`; FOOTAGE holds single-shot clips and `index.csv`. The
edits of `duplicate_edits.py` are made once and cached in DIR (0.5 GB).

Scoring convention: each edit is compared with its original clip (recall), with clips of the same
recording at other times, and with clips of other recordings whose best picture vectors have a
cosine of 0.45 or more, because a search would propose these. Precision counts all verified pairs;
wrong pairs are weighted by the inverse of the share of pairs that was compared. Clips without
picture vectors, pairs of one recording with the same picture, and recordings of one scene are
excluded. Offsets count only for clips with motion. Thresholds were set on the half `tune`.

With `--removed`, the clip is footage that was removed, as `curate remove` keeps it. Each edit of
`edits_of_removed` is a clip of a run, compared at the similarity and by the edits of a run. Clips
of other recordings, as they are and in one edit, count as false if they are rejected. `before` is
the comparison that `dedup` makes of clips that are not removed.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
from duplicate_edits import ONE_SCENE, ONE_SHOT, Item, edits_of_removed, half_of, items
from measure import arguments, tell

from curator.matching.clip_footage import ClipFootage, Keypoints, keypoints_of
from curator.matching.geometry import agreement
from curator.matching.verify_pair import ALL_EDITS, COMMON_EDITS, Edits, Match, verify_pair
from curator.stages.dedup.stage import REMOVED_COSINE
from curator.storage.local_store import LocalStore
from curator.tables.footage_store import read_removed_footage, write_removed_footage

MIN_COSINE = 0.45
SAME_LEVELS = 2.0
HOSTED = {"picture in picture", "3 s inside 30 s"}


@dataclass(frozen=True, slots=True)
class Row:
    """One compared pair."""

    kind: str
    clip: Item
    edit: Item
    match: Match | None
    cpu_s: float


def tiny(footage: ClipFootage) -> list[np.ndarray]:
    return [
        np.asarray(cv2.imdecode(np.frombuffer(p, np.uint8), cv2.IMREAD_REDUCED_GRAYSCALE_4), float)
        for p in footage.pictures
        if isinstance(p, bytes)
    ]


def moves(footage: ClipFootage) -> bool:
    pictures = tiny(footage)
    return bool(np.max([np.abs(p - pictures[0]).mean() for p in pictures]) > SAME_LEVELS)


def shows_one_picture(a: ClipFootage, b: ClipFootage) -> bool:
    """Returns whether two clips share an indistinguishable picture, so that no label applies."""
    of_a, of_b = tiny(a), tiny(b)
    if of_a[0].shape != of_b[0].shape:
        return False
    return bool(min(np.abs(p - q).mean() for p in of_a for q in of_b) < SAME_LEVELS / 2)


def compared(kind: str, clip: Item, edit: Item, *, warm: bool = False) -> Row:
    match = verify_pair(clip.footage, edit.footage)
    begun = time.process_time()
    if warm:
        verify_pair(clip.footage, edit.footage)
    return Row(kind, light(clip), light(edit), match, time.process_time() - begun if warm else 0)


def thinned(item: Item, every: int) -> Item:
    footage = item.footage
    thin = replace(
        footage, pictures=footage.pictures[::every], picture_s=footage.picture_s[::every]
    )
    return replace(item, footage=thin)


@cache
def as_removed(item: Item) -> Item:
    """Returns a clip with the data that `curate remove` keeps."""
    with TemporaryDirectory() as folder:
        store = LocalStore(folder)
        name = write_removed_footage(store, [item.footage])
        assert name is not None
        removed = read_removed_footage(store, [name])
        assert removed is not None
        (footage,) = removed.clips([f"0/{name}"]).values()
    # Luma of synthetic clips has another rate than luma of a run.
    return replace(item, footage=replace(footage, fps=item.footage.fps))


def light(item: Item) -> Item:
    footage = replace(item.footage, pictures=(), picture_s=item.footage.picture_s[:0])
    return replace(item, footage=footage)


def all_rows(groups: list[list[Item]], share: float, seed: int = 0) -> list[Row]:
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    for group in groups:
        rows += [
            compared("copy", group[0], edit, warm=rng.random() < 0.1)
            for edit in group[1:]
            if rng.random() < share
        ]
    for number, group in enumerate(groups):
        clip = group[0]
        for other, edits in enumerate(groups):
            if other == number:
                continue
            is_own = edits[0].recording == clip.recording
            if not is_own and any(
                w in clip.recording and w in edits[0].recording for w in ONE_SCENE
            ):
                continue
            if {clip.base, edits[0].base} <= ONE_SHOT and "logo" in clip.base + edits[0].base:
                continue
            if is_own and shows_one_picture(clip.footage, edits[0].footage):
                continue
            for edit in edits[1:]:
                if rng.random() > share * (OWN_SHARE if is_own else OTHER_SHARE):
                    continue
                cosine = (clip.footage.vectors_VD @ edit.footage.vectors_VD.T).max()
                if is_own or cosine >= MIN_COSINE:
                    warm = rng.random() < 0.1
                    kind = "other time" if is_own else "other footage"
                    rows.append(compared(kind, clip, edit, warm=warm))
    return rows


OWN_SHARE, OTHER_SHARE = 0.3, 0.25


def inliers_of_unrelated(groups: list[list[Item]], n: int, seed: int = 1) -> np.ndarray:
    """Counts inliers of single pictures of different recordings, mirrored or not."""
    rng = np.random.default_rng(seed)
    found: list[int] = []
    pool: list[tuple[str, Keypoints]] = []
    for group in groups:
        # Two hosted edits may share a host.
        plain = [i for i in group[1:] if i.edit not in HOSTED]
        for item in (group[0], *rng.choice(np.array(plain, object), 2, replace=False)):
            at = int(rng.integers(len(item.footage.pictures)))
            pool.append((item.recording, item.footage.keypoints(at)))
    while len(found) < n:
        a, b = (pool[k] for k in rng.integers(len(pool), size=2))
        if a[0] == b[0] or any(w in a[0] and w in b[0] for w in ONE_SCENE):
            continue
        result = agreement([(a[1], b[1])], mirrored=bool(rng.random() < 0.5))
        found.append(0 if result is None else result.n_inliers)
    return np.array(found)


def vectors_table(groups: list[list[Item]]) -> dict[str, list[float]]:
    """Returns cosines of the best picture vectors by edit: percentiles 1, 5 and 50."""
    found = defaultdict(list)
    for group in groups:
        own = group[0].footage.vectors_VD
        for edit in group[1:]:
            found[edit.edit].append(float((own @ edit.footage.vectors_VD.T).max()))
    return {k: np.percentile(v, [1, 5, 50]).round(2).tolist() for k, v in found.items()}


def unit(vectors: np.ndarray) -> np.ndarray:
    units: np.ndarray = vectors / (np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-9)
    return units


def neighbours_needed(groups: list[list[Item]]) -> dict[str, dict[str, float]]:
    """Returns the share of edits whose clip is among the k nearest vectors, by kind of vector."""
    rng = np.random.default_rng(0)
    base = np.concatenate([g[0].footage.vectors_VD for g in groups]).astype(np.float32)
    owner = np.concatenate([np.full(len(g[0].footage.vectors_VD), n) for n, g in enumerate(groups)])
    narrow = np.linalg.qr(rng.normal(size=(base.shape[1], 256)))[0].astype(np.float32)
    kinds: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "1280 float": lambda v: v,
        "1280 int8": lambda v: np.round(v / (np.abs(v).max(1, keepdims=True) + 1e-9) * 127),
        "random 256": lambda v: v @ narrow,
    }
    result: dict[str, dict[str, float]] = {}
    for kind, change in kinds.items():
        of_base = unit(change(base))
        for every in (1, 2):
            ranks = defaultdict(list)
            for n, group in enumerate(groups):
                for edit in group[1:]:
                    cosines = unit(change(edit.footage.vectors_VD[::every])) @ of_base.T
                    # Rank of the clip's best vector among all; best over the edit's pictures.
                    own = cosines[:, owner == n].max(1)
                    ranks[edit.edit].append(int((cosines > own[:, None]).sum(1).min()))
            every_rank = np.concatenate([v for k, v in ranks.items() if k != "picture in picture"])
            inserted = np.array(ranks["picture in picture"])
            name = kind if every == 1 else f"{kind}, every second vector"
            result[name] = {
                f"{part} in {k}": round(float((r < k).mean()), 4)
                for part, r in (("all but inserts", every_rank), ("picture in picture", inserted))
                for k in (1, 3, 10, 30)
            }
    return result


def is_right_speed(row: Row) -> bool:
    return row.match is not None and abs(row.match.speed - row.edit.speed) < 1e-3


def percentiles(values: list[float], which: list[float], digits: int = 3) -> list[float]:
    return np.percentile(values, which).round(digits).tolist() if values else []


def counted(rows: list[Row]) -> dict[str, object]:
    """Returns recall, precision and offset errors of some pairs."""
    copies = [r for r in rows if r.kind == "copy"]
    hits = [r for r in copies if r.match is not None]
    wrong = {
        kind: sum(r.match is not None for r in rows if r.kind == kind)
        for kind in ("other time", "other footage")
    }
    n_wrong = wrong["other time"] / OWN_SHARE + wrong["other footage"] / OTHER_SHARE
    errors_s = [
        abs(r.match.offset_s - r.edit.offset_s)
        for r in hits
        if r.match is not None and is_right_speed(r) and r.clip.base in MOVING
    ]
    return {
        "copies": len(copies),
        "recall": round(len(hits) / len(copies), 4),
        "precision": round(len(hits) / (len(hits) + n_wrong), 4) if hits else 1.0,
        "precision, other footage": round(
            len(hits) / (len(hits) + wrong["other footage"] / OTHER_SHARE), 4
        )
        if hits
        else 1.0,
        "wrong": wrong,
        "right speed": round(
            float(np.mean([is_right_speed(r) for r in hits if r.clip.base in MOVING] or [True])), 3
        ),
        "offset error s, median and 95%": percentiles(errors_s, [50, 95]),
        "within 0.1 s": round(float(np.mean(np.array(errors_s) <= 0.1)), 3) if errors_s else None,
    }


def report(rows: list[Row]) -> dict[str, object]:
    table: dict[str, object] = {}
    for edit in sorted({r.edit.edit for r in rows}):
        own = [r for r in rows if r.edit.edit == edit]
        if not any(r.kind == "copy" for r in own):
            continue
        table[edit] = counted(own)
        missed = sorted({r.clip.base for r in own if r.kind == "copy" and r.match is None})
        print(edit, json.dumps(table[edit]), "missed", missed[:12], flush=True)
    for row in rows:
        if row.kind != "copy" and row.match is not None:
            print("wrong", row.kind, row.clip.base, row.edit.base, row.edit.edit, row.match)
    kinds = ("copy", "other time", "other footage")
    table["all but inserts"] = counted([r for r in rows if r.edit.edit != "picture in picture"])
    table["all"] = counted(rows) | {
        "compared": {k: sum(r.kind == k for r in rows) for k in kinds},
        "CPU ms, median and 95%": {
            k: percentiles([1e3 * r.cpu_s for r in rows if r.kind == k and r.cpu_s], [50, 95], 1)
            for k in kinds
        },
    }
    for name in ("all but inserts", "all"):
        print(name, json.dumps(table[name]), flush=True)
    return table


MOVING: set[str] = set()


def recognised(of: Item, removed: Item, least: float, edits: Edits) -> bool:
    """Whether a run rejects a clip as removed footage."""
    cosine = float((of.footage.vectors_VD @ removed.footage.vectors_VD.T).max(initial=-1))
    return cosine >= least and verify_pair(of.footage, removed.footage, edits) is not None


def removed_report(groups: list[list[Item]]) -> dict[str, dict[str, list[int]]]:
    """Returns for each edit, before and now, how many clips are rejected, of how many."""
    # In this order, because the second finds nothing that the first does not find.
    ways = {"now": (REMOVED_COSINE, ALL_EDITS), "before": (0.5, COMMON_EDITS)}
    table: dict[str, dict[str, list[int]]] = defaultdict(lambda: {w: [0, 0] for w in ways})
    removed = [as_removed(group[0]) for group in groups]
    # Each clip is compared with other recordings as it is, and with one edit.
    edits_tried = [item.edit for group in groups if len(group) > 1 for item in group[1:]]

    def count(kind: str, clip: Item, others: list[Item]) -> None:
        for way, (least, edits) in ways.items():
            others = [other for other in others if recognised(clip, other, least, edits)]
            is_rejected = bool(others)
            table[kind][way][0] += is_rejected
            table[kind][way][1] += 1
            if is_rejected and kind.startswith("("):
                print("false", way, kind, clip.base, clip.edit, flush=True)

    for number, group in enumerate(groups):
        clip, n_pictures = group[0], 2
        other_times, others = (
            [o for k, o in enumerate(removed) if k != number and is_other(clip, o) == kind]
            for kind in ("other time", "other footage")
        )
        for edit in (thinned(item, n_pictures) for item in group):
            if len(group) > 1:
                count(edit.edit, edit, [removed[number]])
            if edit.edit in ("none", edits_tried[number % len(edits_tried)]):
                count("(clips of other recordings)", edit, others)
            if other_times and edit.edit == "none":
                count("(other times of a recording)", edit, other_times)
            keypoints_of.cache_clear()
        print(number + 1, clip.base, flush=True)
    print("| edit | now | before |")
    for kind, row in table.items():
        print(f"| {kind} | " + " | ".join(f"{n} of {of}" for n, of in row.values()) + " |")
    return table


def is_other(clip: Item, other: Item) -> str:
    """Returns the kind of a pair of clips: `other time`, `other footage`, or empty to skip it."""
    if clip.recording == other.recording:
        one = {clip.base, other.base} <= ONE_SHOT and "logo" in clip.base + other.base
        return "" if one else "other time"
    is_one_scene = any(w in clip.recording and w in other.recording for w in ONE_SCENE)
    return "" if is_one_scene else "other footage"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("media", type=Path)
    parser.add_argument("footage", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--half", choices=("tune", "blind"), default="blind")
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--pictures-every", type=int, default=1, help="use each n-th picture")
    parser.add_argument("--unrelated", type=int, default=20000)
    parser.add_argument("--only", nargs="*", help="with --removed: only these edits")
    parser.add_argument("--removed", action="store_true", help="edits of removed footage")
    args = parser.parse_args()
    every = (
        items(args.media, args.footage, args.cache, edits_of_removed, most=2)
        if args.removed
        else items(args.media, args.footage, args.cache)
    )
    groups = [g for g in every if half_of(g[0].recording) == args.half]
    if args.removed:
        rng = np.random.default_rng(0)
        groups = [g for g in groups if rng.random() < args.share]
        groups = [g for g in groups if g[0].footage.vectors_VD.any()]
        if args.only:
            groups = [[i for i in g if i.edit in ("none", *args.only)] for g in groups]
        print(f"{len(groups)} clips of {len({g[0].recording for g in groups})} recordings")
        tell({"removed": removed_report(groups)})
        return
    groups = [[thinned(i, args.pictures_every) for i in g] for g in groups]
    flat = [g[0].base for g in groups if not g[0].footage.vectors_VD.any()]
    groups = [g for g in groups if g[0].footage.vectors_VD.any()]
    MOVING.update(g[0].base for g in groups if moves(g[0].footage))
    n_recordings = len({g[0].recording for g in groups})
    print(f"{len(groups)} clips of {n_recordings} recordings; {len(MOVING)} move; flat: {flat}")
    vectors = vectors_table(groups)
    print(json.dumps(vectors), flush=True)
    needed = neighbours_needed(groups)
    print(json.dumps(needed, indent=0), flush=True)
    if args.unrelated:
        inliers = inliers_of_unrelated(groups, args.unrelated)
        at_least = {t: int((inliers >= t).sum()) for t in (3, 4, 5, 6, 8)}
        print(f"inliers of {len(inliers)} unrelated pictures: {at_least}, most {inliers.max()}")
    table = report(all_rows(groups, args.share))
    tell({"duplicates": table, "vectors": vectors, "neighbours": needed})


if __name__ == "__main__":
    main()
