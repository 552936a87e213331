#!/usr/bin/env python3
"""Fits the fusion of shot boundaries on films made by code, and shows what each term is worth.

    fit_shots.py --work DIR [--films 48] [--score DIR]

Films come from `made_shots.py`; their measurements stay in DIR, so that a second call only fits. Of
four films three are fitted on and one is scored; with `--score`, all are fitted on and the films of
that DIR are scored, which an earlier call has measured. Prints the weights for `NETWORK_TERMS` and
`STEP_TERMS` of `curator/stages/shots.py` (the latter fitted on steps where the network has no
peak), and F1 on the scored films: of the network alone, of both
models, of one of them, and without each term, fitted anew each time.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from made_shots import made_film
from measure import machine
from numpy.typing import NDArray

from curator.measures.change import CHANGES, ChangeStream
from curator.models.transnet import ShotNetwork
from curator.stages.propose.shot_boundaries import (
    NETWORK_TERMS,
    STEP_TERMS,
    Candidates,
    boundary_probability,
    find_candidates,
    likeliest,
)

TOLERANCE_FRAMES = 2
RIDGE = 1e-4
"""Weight decay a candidate, of terms with unit variance."""

Arrays = dict[str, NDArray[np.float32]]


def measure_film(seed: int, folder: Path, network: ShotNetwork) -> None:
    path = folder / f"film_{seed:03d}.npz"
    if path.exists():
        return
    film = made_film(seed)
    shots, changes = network.stream(in_background=False), ChangeStream()
    for frame in film.frames:
        shots.push(frame)
        changes.push(frame)
    single, many = shots.finish()
    gaps = np.array([gap[:2] for gap in film.gaps], np.int64)
    np.savez(path, single=single, many=many, gaps=gaps, **changes.finish())
    print(f"film {seed}: {len(film.frames)} frames, {len(gaps)} transitions", flush=True)


def measured(folder: Path) -> list[Arrays]:
    return [dict(np.load(path)) for path in sorted(folder.glob("film_*.npz"))]


def candidates(film: Arrays) -> Candidates:
    return find_candidates(film["single"], film["many"], {name: film[name] for name in CHANGES})


def is_right(frames: NDArray[np.int64], gaps: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each candidate lies in a transition, or within 2 frames of one."""
    place = frames[:, None] + 1
    inside = (place >= gaps[:, 0] - TOLERANCE_FRAMES) & (place <= gaps[:, 1] + TOLERANCE_FRAMES)
    return np.asarray(inside.any(axis=1))


def fit(terms: NDArray[np.float64], right: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Logistic regression by Newton's method, with a ridge on terms of unit variance."""
    mean, spread = terms.mean(axis=0), terms.std(axis=0)
    mean[0], spread[0] = 0, 1
    spread[spread == 0] = 1
    scaled = (terms - mean) / spread
    weights = np.zeros(terms.shape[1])
    decay = RIDGE * len(right) * np.array([0, *[1] * (terms.shape[1] - 1)])
    for _ in range(60):
        probability = 1 / (1 + np.exp(-scaled @ weights))
        slope = scaled.T @ (probability - right) + decay * weights
        bend = (scaled.T * (probability * (1 - probability))) @ scaled + np.diag(decay + 1e-9)
        step = np.linalg.solve(bend, slope)
        weights -= step
        if np.abs(step).max() < 1e-8:
            break
    unscaled = weights / spread
    unscaled[0] = weights[0] - float((weights[1:] * mean[1:] / spread[1:]).sum())
    return unscaled


def counts(found: list[int], gaps: NDArray[np.int64]) -> tuple[int, int, int]:
    """Found, missed and false, counting several in one transition once."""
    places = np.array(found, np.int64)
    right = is_right(places, gaps) if len(places) else np.zeros(0, np.bool_)
    hit = sum(
        bool(((places + 1 >= a - TOLERANCE_FRAMES) & (places + 1 <= b + TOLERANCE_FRAMES)).any())
        for a, b in gaps
    )
    return hit, len(gaps) - hit, int((~right).sum())


def f1(parts: list[tuple[int, int, int]]) -> tuple[float, str]:
    found, missed, false = (sum(column) for column in zip(*parts, strict=True))
    value = 2 * found / max(1, 2 * found + missed + false)
    return value, f"F1 {value:.3f}  ({found} found, {missed} missed, {false} false)"


def network_alone(film: Arrays) -> list[int]:
    above = np.concatenate([[0], film["single"] > 0.4, [0]]).astype(np.int8)
    edges = np.flatnonzero(np.diff(above)).reshape(-1, 2)
    return [int(first + last - 1) // 2 for first, last in edges]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="keeps what was measured")
    parser.add_argument("--films", type=int, default=48)
    parser.add_argument("--first", type=int, default=0, help="seed of the first film")
    parser.add_argument("--score", type=Path, help="folder of films to score instead")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    network = ShotNetwork()
    for seed in range(args.first, args.first + args.films):
        measure_film(seed, args.work, network)
    films = measured(args.work)
    if args.score is None:
        fitted = [film for number, film in enumerate(films) if number % 4 != 3]
        scored = films[3::4]
    else:
        fitted, scored = films, measured(args.score)
        if not scored:
            raise SystemExit(f"{args.score} holds no measured film; measure some with --work")
    found = [candidates(film) for film in fitted]
    right = [is_right(each.frames, film["gaps"]) for each, film in zip(found, fitted, strict=True)]

    def model(kind: str, left_out: int | None = None) -> NDArray[np.float64]:
        # The model of steps is needed where the network has no peak.
        chosen = [
            each.is_peak if kind == "peak" else each.is_step & ~each.is_peak for each in found
        ]
        columns = "network_terms" if kind == "peak" else "step_terms"
        terms = np.concatenate(
            [getattr(each, columns)[mask] for each, mask in zip(found, chosen, strict=True)]
        )
        if left_out is not None:
            terms[:, left_out] = 0
        return fit(terms, np.concatenate([r[mask] for r, mask in zip(right, chosen, strict=True)]))

    def score(
        network: NDArray[np.float64], step: NDArray[np.float64], limit: float = 0.5
    ) -> tuple[float, str]:
        parts = []
        for film in scored:
            each = candidates(film)
            taken = likeliest(each.frames, boundary_probability(each, network, step), limit)
            parts.append(counts([int(each.frames[i]) for i in taken], film["gaps"]))
        return f1(parts)

    network, step = model("peak"), model("step")
    print(f"{len(fitted)} films fitted, {len(scored)} scored")
    for title, names, weights in (
        ("NETWORK_TERMS", NETWORK_TERMS, network),
        ("STEP_TERMS", STEP_TERMS, step),
    ):
        print(title, {n: round(float(w), 3) for n, w in zip(names, weights, strict=True)})
    print("network alone at 0.4   ", f1([counts(network_alone(f), f["gaps"]) for f in scored])[1])
    for limit in (0.3, 0.4, 0.5, 0.6, 0.7):
        print(f"fused at {limit}           ", score(network, step, limit)[1])
    none = np.array([-99.0, *[0.0] * (len(STEP_TERMS) - 1)])
    shares = {}
    shares["steps"], text = score(network, none)
    print("without steps          ", text)
    for kind, names in (("peak", NETWORK_TERMS), ("step", STEP_TERMS)):
        for index, name in enumerate(names):
            if index == 0:
                continue
            weights = model(kind, index)
            both = (weights, step) if kind == "peak" else (network, weights)
            shares[f"{kind}.{name}"], text = score(*both)
            print(f"without {kind}.{name:12}", text)
    line = {"machine": machine(), "films": len(films), "f1": round(score(network, step)[0], 4)}
    print(json.dumps(line | {"f1_without": shares}))


if __name__ == "__main__":
    main()
