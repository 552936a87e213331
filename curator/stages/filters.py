"""Scores of a clip from its track, and the rules that reject clips by them.

Scores are kept for rejected clips too. A rule is a score with a lower and an upper bound; the
recipe's order of rules decides which reason is named first.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator, model_validator

from curator.media.decode import upright_size
from curator.records import Reason, Span, Track
from curator.stages.propose import duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSpec:
    """What a score is, and the reasons of a clip outside its bounds."""

    unit: str
    meaning: str
    low: Reason
    high: Reason


SCORES: dict[str, ScoreSpec] = {
    "short_side_px": ScoreSpec(
        unit="px",
        meaning="shorter side, upright with square pixels",
        low=Reason.RESOLUTION_TOO_LOW,
        high=Reason.RESOLUTION_TOO_HIGH,
    ),
    "aspect": ScoreSpec(
        unit="width/height",
        meaning="shape of the picture, upright with square pixels",
        low=Reason.ASPECT_TOO_NARROW,
        high=Reason.ASPECT_TOO_WIDE,
    ),
    "fps": ScoreSpec(
        unit="1/s",
        meaning="nominal frame rate",
        low=Reason.FPS_TOO_LOW,
        high=Reason.FPS_TOO_HIGH,
    ),
    "hdr": ScoreSpec(
        unit="0 or 1",
        meaning="1 for PQ and HLG transfer, which 8-bit BT.709 clips cannot hold",
        low=Reason.HIGH_DYNAMIC_RANGE,
        high=Reason.HIGH_DYNAMIC_RANGE,
    ),
    "bits_per_pixel": ScoreSpec(
        unit="bit",
        meaning="compressed bits of the clip's frames per pixel",
        low=Reason.BITS_PER_PIXEL_TOO_LOW,
        high=Reason.BITS_PER_PIXEL_TOO_HIGH,
    ),
    "corrupt_fraction": ScoreSpec(
        unit="0 to 1",
        meaning="share of frames in which the decoder concealed damage",
        low=Reason.TOO_CORRUPT,
        high=Reason.TOO_CORRUPT,
    ),
    "luma": ScoreSpec(
        unit="0 to 1",
        meaning="mean luma over all frames",
        low=Reason.TOO_DARK,
        high=Reason.TOO_BRIGHT,
    ),
    "contrast": ScoreSpec(
        unit="0 to 0.5",
        meaning="mean over frames of the standard deviation of luma",
        low=Reason.CONTRAST_TOO_LOW,
        high=Reason.CONTRAST_TOO_HIGH,
    ),
    "clipped_fraction": ScoreSpec(
        unit="0 to 1",
        meaning="share of pixels that are black or white, mean over samples",
        low=Reason.TOO_CLIPPED,
        high=Reason.TOO_CLIPPED,
    ),
    "sharpness": ScoreSpec(
        unit="Laplacian / contrast",
        meaning="strength of the sharpest edges, median over samples",
        low=Reason.SHARPNESS_TOO_LOW,
        high=Reason.SHARPNESS_TOO_HIGH,
    ),
    "motion": ScoreSpec(
        unit="short sides/s",
        meaning="mean optical flow over the picture, mean over samples",
        low=Reason.MOTION_TOO_LOW,
        high=Reason.MOTION_TOO_HIGH,
    ),
}
"""All scores that rules can use. Public: each is a column of `clips`."""


class Rule(BaseModel):
    """Bounds of one score; a clip at a bound is kept."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min: float | None = Field(None, description="lowest score that is kept; null for no bound")
    max: float | None = Field(None, description="highest score that is kept; null for no bound")
    why: str = Field("", description="what the rule is for, and where its bounds come from")

    @model_validator(mode="after")
    def _ordered(self) -> "Rule":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}; no clip could be kept")
        return self


class FilterConfig(RootModel[dict[str, Rule]]):
    """Score -> rule, in the order in which reasons count."""

    model_config = ConfigDict(frozen=True)

    @field_validator("root")
    @classmethod
    def _known(cls, rules: dict[str, Rule]) -> dict[str, Rule]:
        for name in rules:
            if name not in SCORES:
                raise ValueError(unknown_key(name, SCORES, "score"))
        return rules


def unknown_key(name: str, known: Iterable[str], kind: str) -> str:
    """Words for a key that does not exist, with the nearest that does."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    remedy = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return f"unknown {kind} {name!r}; {remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One reason against a clip."""

    reason: Reason
    score: float | None
    threshold: float


def score_clip(track: Track, span: Span) -> dict[str, float | None]:
    """All scores of one clip.

    Args:
        track: What was measured.
        span: The clip.

    Returns:
        A value for each of `SCORES`; None where nothing was measured within the span.
    """
    frames = slice(span.start_frame, span.end_frame)
    samples = samples_of(track, span)
    width, height = upright_size(track.width, track.height, 0, track.pixel_aspect)
    seconds = duration_s(track, span.start_frame, span.end_frame)
    n_bytes = int(track.frame_bytes[frames].sum())
    bits = 8 * n_bytes / (width * height * span.n_frames) if n_bytes else None
    clipped = track.dark_fraction[samples] + track.bright_fraction[samples]
    return {
        "short_side_px": float(min(width, height)),
        "aspect": width / height,
        "fps": span.n_frames / seconds if track.is_vfr else float(track.fps),
        "hdr": float(track.is_hdr),
        "bits_per_pixel": bits,
        "corrupt_fraction": float(np.mean(track.frame_flags[frames] >> 1 & 1)),
        "luma": float(track.luma_mean[frames].mean()),
        "contrast": float(track.luma_spread[frames].mean()),
        "clipped_fraction": _aggregate(clipped, np.mean),
        "sharpness": _aggregate(track.sharpness[samples], np.median),
        "motion": _aggregate(track.motion[samples], np.mean),
    }


def samples_of(track: Track, span: Span) -> NDArray[np.bool_]:
    """Which samples lie within a span with both of their frames, bool [S]."""
    mask: NDArray[np.bool_] = (track.sample_frame >= span.start_frame) & (
        track.sample_pair_frame < span.end_frame
    )
    return mask


def _aggregate(
    values: NDArray[np.float32], how: Callable[[NDArray[np.float32]], np.floating]
) -> float | None:
    values = values[np.isfinite(values)]
    return float(how(values)) if len(values) else None


def judge(scores: Mapping[str, float | None], rules: Mapping[str, Rule]) -> list[Verdict]:
    """Reasons against a clip, in the order of the rules.

    Args:
        scores: From `score_clip`.
        rules: Bounds.

    Returns:
        Empty when the clip passes all rules.
    """
    verdicts = []
    for name, rule in rules.items():
        score, spec = scores[name], SCORES[name]
        if rule.min is None and rule.max is None:
            continue
        if score is None:
            bound = rule.min if rule.min is not None else rule.max
            assert bound is not None
            verdicts.append(Verdict(reason=Reason.NOT_MEASURED, score=None, threshold=bound))
        elif rule.min is not None and score < rule.min:
            verdicts.append(Verdict(reason=spec.low, score=score, threshold=rule.min))
        elif rule.max is not None and score > rule.max:
            verdicts.append(Verdict(reason=spec.high, score=score, threshold=rule.max))
    return verdicts
