#!/usr/bin/env python3
"""Measures how well copies of footage are told from other footage, and where they lie.

    duplicates.py MEDIA FOOTAGE --cache DIR [--half blind] [--share 1.0] [--unrelated 20000]

MEDIA holds labelled videos and `shots.json`; FOOTAGE holds clips of one shot and `index.csv`. The
edits of `duplicate_edits.py` are made once and kept in DIR (0.5 GB).

Scoring convention: each edit is compared with the clip that it was made of (recall), with clips of
the same recording at other times, and with clips of other recordings whose best picture vectors have
a cosine of 0.45 or more, which is what a search would propose. Precision counts all verified pairs,
with wrong ones weighted by the share of pairs that was compared. Clips without a picture vector are
left out; so are pairs of one recording whose pictures do not differ, and recordings of one scene.
The offset counts where something moves. Thresholds were set on the half `tune`.
"""

import json
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
from duplicate_edits import ONE_SCENE, Item, half_of, items
from measure import arguments, tell

from curator.matching.clip_footage import ClipFootage
from curator.matching.geometry import agreement
from curator.matching.verify_pair import Match, verify_pair

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
        cv2.imdecode(np.frombuffer(p, np.uint8), cv2.IMREAD_REDUCED_GRAYSCALE_4).astype(float)
        for p in footage.pictures
        if isinstance(p, bytes)
    ]


def moves(footage: ClipFootage) -> bool:
    pictures = tiny(footage)
    return bool(np.max([np.abs(p - pictures[0]).mean() for p in pictures]) > SAME_LEVELS)


def shows_one_picture(a: ClipFootage, b: ClipFootage) -> bool:
    """Whether some pictures of two clips do not differ: nobody could tell them apart."""
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
    """Inliers of single pictures of other recordings, mirrored or not."""
    rng = np.random.default_rng(seed)
    found = []
    pool = []
    for group in groups:
        # Two inserts may have one host.
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
    """Cosines of the best picture vectors, by edit: least 1%, 5%, median."""
    found = defaultdict(list)
    for group in groups:
        own = group[0].footage.vectors_VD
        for edit in group[1:]:
            found[edit.edit].append(float((own @ edit.footage.vectors_VD.T).max()))
    return {k: np.percentile(v, [1, 5, 50]).round(2).tolist() for k, v in found.items()}


def neighbours_needed(groups: list[list[Item]]) -> dict[str, dict[str, float]]:
    """Share of edits whose clip is among the k nearest picture vectors, by kind of vector."""
    rng = np.random.default_rng(0)
    base = np.concatenate([g[0].footage.vectors_VD for g in groups]).astype(np.float32)
    owner = np.concatenate([np.full(len(g[0].footage.vectors_VD), n) for n, g in enumerate(groups)])
    narrow = np.linalg.qr(rng.normal(size=(base.shape[1], 256)))[0].astype(np.float32)
    kinds = {
        "1280 float": lambda v: v,
        "1280 int8": lambda v: np.round(v / (np.abs(v).max(1, keepdims=True) + 1e-9) * 127),
        "random 256": lambda v: v @ narrow,
    }
    result: dict[str, dict[str, float]] = {}
    for kind, change in kinds.items():

        def unit(v, change=change):
            c = change(v.astype(np.float32))
            return c / (np.linalg.norm(c, axis=1, keepdims=True) + 1e-9)

        of_base = unit(base)
        for every in (1, 2):
            ranks = defaultdict(list)
            for n, group in enumerate(groups):
                for edit in group[1:]:
                    cosines = unit(edit.footage.vectors_VD[::every]) @ of_base.T
                    # Place of the best own vector among all, the best over the edit's pictures.
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


def report(rows: list[Row], share: float) -> dict[str, object]:
    edits = sorted({r.edit.edit for r in rows})
    table: dict[str, object] = {}
    total = np.zeros(4)
    offsets: list[float] = []
    for edit in edits:
        own = [r for r in rows if r.edit.edit == edit]
        copies = [r for r in own if r.kind == "copy"]
        if not copies:
            continue
        hit = [r for r in copies if r.match is not None]
        wrong_time = sum(r.match is not None for r in own if r.kind == "other time")
        wrong = sum(r.match is not None for r in own if r.kind == "other footage")
        weighted = wrong_time / OWN_SHARE + wrong / OTHER_SHARE
        errors = [abs(r.match.offset_s - r.edit.offset_s) for r in hit
                  if r.match and abs(r.match.speed - r.edit.speed) < 1e-3 and r.clip.base in MOVING]  # fmt: skip
        offsets += errors
        total += (len(hit), len(copies), wrong_time / OWN_SHARE, wrong / OTHER_SHARE)
        table[edit] = {
            "copies": len(copies), "recall": round(len(hit) / len(copies), 3),
            "precision": round(len(hit) / max(1, len(hit) + weighted), 4),
            "wrong, other time": wrong_time, "wrong, other footage": wrong,
            "right speed": round(np.mean([abs(r.match.speed - r.edit.speed) < 1e-3 for r in hit if r.match]), 3) if hit else 0,
            "offset median": round(float(np.median(errors)), 3) if errors else None,
            "offset 95%": round(float(np.percentile(errors, 95)), 3) if errors else None,
            "within 0.1 s": round(float(np.mean(np.array(errors) <= 0.1)), 3) if errors else None,
            "missed": sorted({r.clip.base for r in copies if r.match is None})[:12],
        }  # fmt: skip
        print(edit, json.dumps(table[edit]), flush=True)
    print("wrong:", sorted({(r.clip.base, r.edit.base, r.edit.edit, round(r.match.overlap_s, 1), r.match.n_inliers)
                            for r in rows if r.kind != "copy" and r.match})[:60])  # fmt: skip
    table["all"] = {
        "copies": int(total[1]), "recall": total[0] / total[1],
        "precision": total[0] / (total[0] + total[2] + total[3]),
        "precision, other footage only": total[0] / (total[0] + total[3]),
        "compared": {k: sum(r.kind == k for r in rows) for k in ("copy", "other time", "other footage")},
        "wrong": {k: sum(r.kind == k and r.match is not None for r in rows) for k in ("other time", "other footage")},
        "offset": [round(float(x), 3) for x in np.percentile(offsets, [50, 95])],
        "within 0.1 s": float(np.mean(np.array(offsets) <= 0.1)),
        "cpu ms": {k: np.percentile([1e3 * r.cpu_s for r in rows if r.kind == k and r.cpu_s] or [0], [50, 95]).round(1).tolist() for k in ("copy", "other time", "other footage")},
    }  # fmt: skip
    print(json.dumps(table["all"]), flush=True)
    return table


MOVING: set[str] = set()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("media", type=Path)
    parser.add_argument("footage", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--half", choices=("tune", "blind"), default="blind")
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--unrelated", type=int, default=20000)
    args = parser.parse_args()
    groups = [
        g
        for g in items(args.media, args.footage, args.cache)
        if half_of(g[0].recording) == args.half
    ]
    flat = [g[0].base for g in groups if not g[0].footage.vectors_VD.any()]
    groups = [g for g in groups if g[0].footage.vectors_VD.any()]
    MOVING.update(g[0].base for g in groups if moves(g[0].footage))
    print(len(groups), "clips of", len({g[0].recording for g in groups}), "recordings;", len(MOVING), "move; flat:", flat, flush=True)  # fmt: skip
    vectors = vectors_table(groups)
    print(json.dumps(vectors), flush=True)
    needed = neighbours_needed(groups)
    print(json.dumps(needed, indent=0), flush=True)
    if args.unrelated:
        inliers = inliers_of_unrelated(groups, args.unrelated)
        print("inliers of unrelated pictures:", {t: int((inliers >= t).sum()) for t in (4, 6, 8, 10, 12)}, "of", len(inliers), "most", inliers.max(), flush=True)  # fmt: skip
    table = report(all_rows(groups, args.share), args.share)
    tell({"duplicates": table, "vectors": vectors, "neighbours": needed})


if __name__ == "__main__":
    main()
