#!/usr/bin/env python3
"""Fits the fusion of shot boundaries on films made by code, and shows what each term is worth.

    fit_shots.py --work DIR [--films 48]

Films come from `made_shots.py`; their measurements stay in DIR, so that a second call only fits. Of
four films three are fitted on and one is scored. Prints the weights for `TERMS` of
`curator/stages/shots.py`, and F1 on the scored films: of the network alone, of all terms, and of
all terms but one, fitted anew each time.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from made_shots import made_film
from measure import machine
from numpy.typing import NDArray

from curator.models.transnet import ShotNetwork
from curator.signals.change import CHANGES, ChangeStream
from curator.stages.shots import NEAR_FRAMES, TERMS, find_candidates

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


def candidates(film: Arrays) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    found = find_candidates(film["single"], film["many"], {name: film[name] for name in CHANGES})
    return found.frames, found.terms


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


def picked(frames: NDArray[np.int64], probability: NDArray[np.float64], limit: float) -> list[int]:
    taken: list[int] = []
    for index in np.argsort(-probability, kind="stable"):
        if probability[index] <= limit:
            break
        if all(abs(int(frames[index]) - other) > NEAR_FRAMES for other in taken):
            taken.append(int(frames[index]))
    return taken


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
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    network = ShotNetwork()
    for seed in range(args.first, args.first + args.films):
        measure_film(seed, args.work, network)
    films = [dict(np.load(path)) for path in sorted(args.work.glob("film_*.npz"))]
    fitted = [film for number, film in enumerate(films) if number % 4 != 3]
    scored = films[3::4]
    names = list(TERMS)

    def weights_without(left_out: str | None) -> NDArray[np.float64]:
        columns, rights = [], []
        for film in fitted:
            frames, terms = candidates(film)
            if left_out is not None:
                terms = terms.copy()
                terms[:, names.index(left_out)] = 0
            columns.append(terms)
            rights.append(is_right(frames, film["gaps"]))
        return fit(np.concatenate(columns), np.concatenate(rights))

    def score(weights: NDArray[np.float64], limit: float) -> tuple[float, str]:
        parts = []
        for film in scored:
            frames, terms = candidates(film)
            probability = 1 / (1 + np.exp(-terms @ weights))
            parts.append(counts(picked(frames, probability, limit), film["gaps"]))
        return f1(parts)

    weights = weights_without(None)
    print(f"{len(fitted)} films fitted, {len(scored)} scored")
    for name, weight in zip(names, weights, strict=True):
        print(f'    "{name}": {weight:.3f},')
    print("network alone at 0.4   ", f1([counts(network_alone(f), f["gaps"]) for f in scored])[1])
    for limit in (0.3, 0.4, 0.5, 0.6, 0.7):
        print(f"fused at {limit}           ", score(weights, limit)[1])
    shares = {}
    for name in names[1:]:
        shares[name], text = score(weights_without(name), 0.5)
        print(f"without {name:15}", text)
    line = {"machine": machine(), "films": len(films), "weights": weights.round(3).tolist()}
    print(json.dumps(line | {"f1": round(score(weights, 0.5)[0], 4), "f1_without": shares}))


if __name__ == "__main__":
    main()
