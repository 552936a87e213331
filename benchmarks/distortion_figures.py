"""Clips of made damage as `distortion_set.py` stores them, and the figures of a score on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tests_path  # noqa: F401
from distortion_set import HELD_OUT
from numpy.typing import NDArray

from curator.models.distortion_network import READ, DistortionHead

Floats = NDArray[np.float64]
LESS = {"gamma": 0.4, "range": 0.4}
"""Share of the target of kinds that VMAF counts as destroyed."""
VISIBLE = 80.0
"""VMAF below which damage is visible to most people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The versions of one clip.

    Attributes:
        name: Name of the clip.
        kind: Kind of damage, `clean` or a look, str [V].
        strength: 0 to 5, int [V].
        features: float32 [V, N, D], of N crops.
        vmaf: 0 to 100, float32 [V].
        ssim: float32 [V].
        brisque: float64 [V]; NaN if it was not measured.
    """

    name: str
    kind: NDArray[np.str_]
    strength: NDArray[np.int64]
    features: NDArray[np.float32]
    vmaf: NDArray[np.float32]
    ssim: NDArray[np.float32]
    brisque: NDArray[np.float64]

    @property
    def is_look(self) -> NDArray[np.bool_]:
        """Whether a version is a look, which is no damage."""
        return np.char.startswith(self.kind, "look")

    @property
    def target(self) -> NDArray[np.float32]:
        """What the head should say, 0 clean to 1 destroyed."""
        lost = 0.5 * (1 - np.clip(self.vmaf, 0, 100) / 100) + 0.5 * np.sqrt(
            1 - np.clip(self.ssim, 0, 1)
        )
        less = np.array([LESS.get(str(kind), 1.0) for kind in self.kind])
        return np.where(self.strength == 0, 0, lost * less).astype(np.float32)


def read(folder: Path) -> list[Versions]:
    """Returns the clips of a part."""
    found = []
    for path in sorted(folder.glob("*.npz")):
        stored = np.load(path)
        n = len(stored["kind"])
        brisque = stored["brisque"][:, 0] if "brisque" in stored else np.full(n, np.nan)
        found.append(
            Versions(
                name=path.stem,
                kind=stored["kind"],
                strength=stored["strength"],
                features=stored["features"][:, 0].astype(np.float32),
                vmaf=stored["vmaf"],
                ssim=stored["ssim"][:, 0],
                brisque=brisque,
            )
        )
    return found


def score_of(head: DistortionHead, clip: Versions) -> Floats:
    """Returns the score of each version of a clip, from the crops that the product reads."""
    crops = clip.features
    if crops.shape[1] == 6:
        crops = crops[:, list(READ)]
    return np.array([head.score(features) for features in crops])


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Returns the rank correlation; 0 if one side is constant."""
    first, second = (_ranks(np.asarray(values, np.float64)) for values in (a, b))
    if not first.std() or not second.std():
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: Floats) -> Floats:
    return np.asarray(
        (values[:, None] > values).sum(1) + 0.5 * (values[:, None] == values).sum(1), np.float64
    )


def auc(worse: Floats, better: Floats) -> float:
    """Returns the share of pairs in which the worse has the higher value."""
    worse, better = worse[np.isfinite(worse)], better[np.isfinite(better)]
    if not len(worse) or not len(better):
        return float("nan")
    return float((worse[:, None] > better).mean() + 0.5 * (worse[:, None] == better).mean())


def show_kinds(
    clips: Sequence[Versions], scores: Sequence[Floats], without: Sequence[str] = ()
) -> dict[str, dict[str, float]]:
    """Prints and returns the figures of each kind."""
    clean = np.concatenate([s[c.kind == "clean"] for c, s in zip(clips, scores, strict=True)])
    brisque_clean = np.concatenate([c.brisque[c.kind == "clean"] for c in clips])
    kinds = dict.fromkeys(
        str(k) for c in clips for k, s in zip(c.kind, c.strength, strict=True) if s > 0
    )
    table: dict[str, dict[str, float]] = {}
    print("| kind | clips | within | pooled | AUC | AUC, visible | VMAF | BRISQUE within | AUC |")
    print("|---|---|---|---|---|---|---|---|---|")
    for kind in kinds:
        if kind in without:
            continue
        within, of_brisque = [], []
        values: list[tuple[float, float, float, float]] = []
        for clip, score in zip(clips, scores, strict=True):
            # The second clean version is encoded, as the damaged ones are.
            at = [1, *np.flatnonzero(clip.kind == kind)]
            if len(at) == 1:
                continue
            within.append(spearman(clip.strength[at].tolist(), score[at].tolist()))
            of_brisque.append(spearman(clip.strength[at].tolist(), clip.brisque[at].tolist()))
            rows = (clip.strength[at], score[at], clip.vmaf[at], clip.brisque[at])
            values += list(zip(*(row.tolist() for row in rows), strict=True))
        strength, score, vmaf, brisque = np.array(values).T
        damaged, visible = strength > 0, (strength > 0) & (vmaf < VISIBLE)
        row = {
            "clips": len(within),
            "within": float(np.mean(within)),
            "pooled": spearman(strength.tolist(), score.tolist()),
            "auc": auc(score[damaged], clean),
            "auc_visible": auc(score[visible], clean),
            "vmaf": -spearman(vmaf.tolist(), score.tolist()),
            "brisque_within": float(np.nanmean(of_brisque)),
            "brisque_auc": auc(brisque[damaged], brisque_clean),
        }
        table[kind] = {name: round(value, 3) for name, value in row.items()}
        held = " (held out)" if kind in HELD_OUT else ""
        print(f"| {kind}{held} | " + " | ".join(f"{value:.3g}" for value in row.values()) + " |")
    everything = np.concatenate([s[c.strength > 0] for c, s in zip(clips, scores, strict=True)])
    quantiles = [0.5, 0.85, 0.95]
    print(f"\nclean: {np.quantile(clean, quantiles).round(3).tolist()} at {quantiles}")
    print(f"above 0.5: damaged {(everything > 0.5).mean():.2f}, clean {(clean > 0.5).mean():.3f}")
    print(f"AUC of all: {auc(everything, clean):.3f}")
    return table
