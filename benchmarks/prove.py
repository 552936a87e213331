"""Measures how often the verdicts of `curate prove` are right.

Clips of 2 s are cut of footage whose recordings are known. Three kinds of rules are tried:

- random rules, of clips and of whole recordings: the right verdict is `no effect`;
- rules that reject exactly a half that was damaged by noise, blocks or frozen frames: `helps`;
- the same half with five severities of damage: the effects should be in the order of severities.

Only `--part tune` was used for choices; `--part final` has other repositories, and is scored once.
Random and planted rules use the command's splits and 20 null controls, as `--quick`. Severities,
where no verdict is needed, have one split of the sources into three parts, and 4 null controls.

    python benchmarks/prove.py FOOTAGE --part tune
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import av
import numpy as np
from footage_split import Recording, part_of, recordings
from numpy.typing import NDArray

from curator.tools.proof import rule_trial
from curator.tools.proof.patch_tokenizer import dct_rows, moments_of
from curator.tools.proof.rule_trial import Trial, TrialClips, run_trial
from curator.tools.proof.source_windows import WINDOW_FRAMES

Kind = Literal["noise", "blocks", "frozen"]
Luma = NDArray[np.uint8]

TUNE_ALSO = ("data-juicer", "kaolin", "sleap", "learning-area")
"""Repositories of the part `train` of the footage whose recordings are for tuning here."""
CLIP_S = 2.0
KINDS: tuple[Kind, ...] = ("noise", "blocks", "frozen")
HARMFUL: dict[Kind, tuple[float, float]] = {
    "noise": (12.0, 40.0),
    "blocks": (10.0, 40.0),
    "frozen": (0.85, 1.0),
}
"""Weakest and strongest damage of planted halves: standard deviation in levels; step by which the
coefficients of blocks of 8x8 pixels are rounded, in levels, times 1 + the frequency, as a codec
does at a low rate; and share of the clip during which the picture stands still."""
SEVERITIES: dict[Kind, tuple[float, ...]] = {
    "noise": (4.0, 8.0, 16.0, 32.0, 64.0),
    "blocks": (4.0, 8.0, 16.0, 32.0, 64.0),
    "frozen": (0.2, 0.4, 0.6, 0.8, 1.0),
}
SHIFT_PX = 3
"""Where patches begin in blocks, as in `source_windows`."""
N_CONTROLS, N_CONTROLS_SEVERITIES = 20, 4


def main() -> None:
    """Runs the trials, and prints a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("footage", type=Path)
    parser.add_argument("--part", choices=("tune", "final"), required=True)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=("random", "sources", "planted", "severities"))
    options = parser.parse_args()
    clips, sources = read_clips(recordings_of(options.footage, options.part))
    clean = np.stack([moments_of(window_of(clip, number)) for number, clip in enumerate(clips)])
    print(f"{len(clips)} clips of {len(set(sources.tolist()))} recordings", flush=True)
    facts: dict[str, object] = {"part": options.part, "clips": len(clips)}
    seeds = range(options.seed, options.seed + options.trials)
    for name, whole in (("random", False), ("sources", True)):
        if name in options.only:
            trials = [
                trial(clean, half(sources, seed, whole=whole), sources, seed) for seed in seeds
            ]
            facts[name] = told(f"random rules of {'recordings' if whole else 'clips'}", trials)
    if "planted" in options.only:
        trials = list(_planted(clean, clips, sources, seeds))
        facts["planted"] = told("damaged halves", trials)
    if "severities" in options.only:
        facts["severities"] = severities(clean, clips, sources, seeds)
    print(json.dumps(facts))


def _planted(
    clean: NDArray[np.float32],
    clips: Sequence[Luma],
    sources: NDArray[np.int64],
    seeds: Sequence[int],
) -> Iterator[tuple[Trial, float]]:
    """Yields trials of rules that reject exactly the damaged half; prints each."""
    for n, seed in enumerate(seeds):
        kind, is_kept = KINDS[n % 3], half(sources, seed, whole=False)
        strength = float(np.random.default_rng([seed, 3]).uniform(*HARMFUL[kind]))
        moments = planted(clean, clips, is_kept, kind, strength, seed)
        one = trial(moments, is_kept, sources, seed)
        print(f"  {kind} {strength:.2f}: {words(one)}", flush=True)
        yield one


def recordings_of(footage: Path, part: str) -> list[Recording]:
    """Returns the recordings of a part of this benchmark."""
    found: list[Recording] = []
    for own in ("train", "tune", "blind"):
        for recording in recordings(footage, own):
            is_tune = own == "tune" or (
                own == "train" and recording.repository.split("/")[1].lower() in TUNE_ALSO
            )
            assert part_of(recording.repository) == own
            if is_tune == (part == "tune"):
                found.append(recording)
    return found


def read_clips(own: Sequence[Recording]) -> tuple[list[Luma], NDArray[np.int64]]:
    """Returns the frames of each clip, uint8 [T, H, W], and the number of its recording."""
    rows: list[tuple[str, Luma]] = []
    for recording in own:
        with av.open(str(recording.path)) as container:
            frames = [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]
        n = max(WINDOW_FRAMES, round(recording.fps * CLIP_S))
        for start in range(0, len(frames) - n + 1, n):
            rows.append((recording.recording, np.stack(frames[start : start + n])))
    rows.sort(key=lambda row: row[0])
    numbers = np.unique(np.array([name for name, _ in rows]), return_inverse=True)[1]
    return [clip for _, clip in rows], numbers


def window_of(clip: Luma, number: int) -> Luma:
    """Returns the window of a clip: at a random time, the same for each damage of the clip."""
    start = window_start(clip, number)
    return inner(clip[start : start + WINDOW_FRAMES])


def window_start(clip: Luma, number: int) -> int:
    """Returns the first frame of the window of a clip."""
    return int(np.random.default_rng([number, 5]).integers(0, len(clip) - WINDOW_FRAMES + 1))


def inner(window: Luma) -> Luma:
    """Returns the part of the pictures that patches cover."""
    return window[:, SHIFT_PX:, SHIFT_PX:]


def half(sources: NDArray[np.int64], seed: int, *, whole: bool) -> NDArray[np.bool_]:
    """Returns a random rule that keeps half of the clips, or half of the recordings."""
    rng = np.random.default_rng([seed, 4])
    if not whole:
        return rng.permutation(len(sources)) < len(sources) / 2
    of_source = rng.permutation(int(sources.max()) + 1) < (sources.max() + 1) / 2
    return np.asarray(of_source[sources], np.bool_)


def damaged(clip: Luma, kind: Kind, strength: float, rng: np.random.Generator) -> Luma:
    """Returns a clip with damage."""
    if kind == "noise":
        noisy = clip + rng.normal(0, strength, clip.shape)
        return np.clip(np.round(noisy), 0, 255).astype(np.uint8)
    result = clip.copy()
    if kind == "frozen":
        n_frames = round(strength * len(clip))
        begin = int(rng.integers(0, len(clip) - n_frames + 1))
        result[begin : begin + n_frames] = clip[begin]
        return result
    t, h, w = len(clip), clip.shape[1] // 8, clip.shape[2] // 8
    part = result[:, : 8 * h, : 8 * w]
    blocks = part.reshape(t, h, 8, w, 8).transpose(0, 1, 3, 2, 4).astype(np.float32)
    dct = dct_rows(8).astype(np.float32)
    coefficients = dct @ blocks @ dct.T
    steps = strength * (1 + np.add.outer(np.arange(8), np.arange(8))).astype(np.float32)
    rounded = dct.T @ (np.round(coefficients / steps) * steps) @ dct
    whole = rounded.transpose(0, 1, 3, 2, 4).reshape(part.shape)
    part[:] = np.clip(np.round(whole), 0, 255)
    return result


def planted(
    clean: NDArray[np.float32],
    clips: Sequence[Luma],
    is_kept: NDArray[np.bool_],
    kind: Kind,
    strength: float,
    seed: int,
) -> NDArray[np.float32]:
    """Returns the moments of the clips, the rejected ones damaged; the same lots for a seed."""
    moments = clean.copy()
    for number in np.flatnonzero(~is_kept).tolist():
        rng, clip = np.random.default_rng([seed, number]), clips[number]
        if kind != "frozen":
            # These damage each picture alone, so the others need no damage.
            start = window_start(clip, number)
            clip = clip[start : start + WINDOW_FRAMES]
            moments[number] = moments_of(inner(damaged(clip, kind, strength, rng)))
        else:
            moments[number] = moments_of(window_of(damaged(clip, kind, strength, rng), number))
    return moments


def trial(
    moments: NDArray[np.float32],
    is_kept: NDArray[np.bool_],
    sources: NDArray[np.int64],
    seed: int,
    n_controls: int = N_CONTROLS,
) -> tuple[Trial, float]:
    """Runs a trial; returns it and its CPU-seconds."""
    begun_s = time.process_time()
    clips = TrialClips(moments_NDD=moments, is_kept=is_kept, sources=sources)
    return run_trial(clips, seed=seed, n_controls=n_controls), time.process_time() - begun_s


def words(timed: tuple[Trial, float]) -> str:
    """Describes a trial."""
    own = timed[0].on_kept
    return (
        f"{own.verdict()} {own.db:+.2f} ({own.low_db:+.2f} to {own.high_db:+.2f}) dB, over random "
        f"{timed[0].over_random.db:+.2f}, on rejected {timed[0].on_rejected.db:+.2f}"
    )


def told(name: str, trials: Sequence[tuple[Trial, float]]) -> dict[str, object]:
    """Prints and returns the verdicts of trials."""
    verdicts = Counter(str(one.on_kept.verdict()) for one, _ in trials)
    cpu_s = sum(seconds for _, seconds in trials)
    gains = [one.on_kept.db for one, _ in trials]
    halves = float(np.median([one.on_kept.half_db for one, _ in trials]))
    print(
        f"{name}: {dict(verdicts)}; effects {min(gains):+.2f} to {max(gains):+.2f} dB, median half "
        f"width {halves:.2f}; {cpu_s / len(trials):.1f} CPU-s each",
        flush=True,
    )
    return {"verdicts": verdicts, "effects_db": gains, "half_db": halves, "cpu_s": cpu_s}


def severities(
    clean: NDArray[np.float32],
    clips: Sequence[Luma],
    sources: NDArray[np.int64],
    seeds: Sequence[int],
) -> dict[str, object]:
    """Prints and returns in how many series the effects are in the order of severities."""
    by_kind: dict[str, list[bool]] = {kind: [] for kind in KINDS}
    series = []
    rule_trial.REPEATS = 1
    for seed in seeds:
        kind, is_kept = KINDS[seed % 3], half(sources, seed, whole=False)
        gains = list(_gains(clean, clips, is_kept, sources, kind, seed))
        by_kind[kind].append(all(a < b for a, b in pairwise(gains)))
        series.append({"kind": kind, "effects_db": gains})
        print(f"  {kind}: {' '.join(f'{gain:+.2f}' for gain in gains)}", flush=True)
    ordered = {kind: f"{sum(own)} of {len(own)}" for kind, own in by_kind.items()}
    print(f"five severities in order: {ordered}", flush=True)
    return {"ordered": ordered, "series": series}


def _gains(
    clean: NDArray[np.float32],
    clips: Sequence[Luma],
    is_kept: NDArray[np.bool_],
    sources: NDArray[np.int64],
    kind: Kind,
    seed: int,
) -> Iterator[float]:
    for strength in SEVERITIES[kind]:
        moments = planted(clean, clips, is_kept, kind, strength, seed)
        one, _ = trial(moments, is_kept, sources, seed, N_CONTROLS_SEVERITIES)
        yield one.on_kept.db


if __name__ == "__main__":
    main()
