"""Scores of clips, and the reasons that rules find against them."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from filtered_clips import needs
from one_by_one import Verdict, verdicts_on
from pydantic import ValidationError
from samples import made_signals, made_track

from curator.errors import unknown_key
from curator.measures.audio import SCORES as AUDIO_SCORES
from curator.measures.clip_semantics import NEEDS
from curator.measures.clip_view import ClipView
from curator.measures.rule_config import FilterConfig
from curator.measures.rules import Bounds, quantile_bound, resolve
from curator.measures.score_list import BUILT_IN, SCORES
from curator.records.clips import Reason, Span
from curator.stages.filter.stage import FilterStage
from curator.stages.shard.config import ShardConfig


def span(start: int, end: int) -> Span:
    return Span(start_frame=start, end_frame=end, shot=0)


def test_every_score_is_produced_and_is_what_the_track_says() -> None:
    """Pins all scores of a clip by hand-made measurements, in `SCORES`' order."""
    flags = np.zeros(300, np.uint8)
    flags[0:300:10] = 1
    flags[60:66] |= 2
    scores = BUILT_IN.score_clip(made_track(300, frame_flags=flags), span(60, 120))
    assert list(scores) == list(SCORES)
    nothing = (*AUDIO_SCORES, *NEEDS, "text_area", "overlay_text_area", "split_screen",
               "picture_in_picture", "distortion", "title_card")  # fmt: skip
    zero = (
        "hdr", "interlaced", "noise", "camera_jitter", "blocking", "flattening", "quantizer",
        "banding", "combing", "stripes", "frozen_fraction", "black_fraction", "logo_area",
        "shot_doubt", "repeated_fraction", "drawn_boxes",
    )  # fmt: skip
    measured = {
        "short_side_px": 720.0, "aspect": 16 / 9, "fps": 30.0, "duration_s": 2.0,
        "bits_per_pixel": 8 * 4000 / (1280 * 720), "bit_rate_kbps": 8 * 4000 * 30 / 1000,
        "corrupt_fraction": 0.1, "luma": 0.5, "contrast": 0.2, "clipped_fraction": 0.03,
        "sharpness": 0.4, "motion": 0.1, "camera_motion": 0.09, "camera_share": 0.9,
        "object_motion": 0.03, "pan_rate": 0.08, "tilt_rate": -0.04, "zoom_rate": 0.01,
        "roll_rate": 0.5, "true_resolution": 0.9, "content_area": 1.0, "layout_consistency": 1.0,
    }  # fmt: skip
    assert scores == pytest.approx({**dict.fromkeys(nothing), **dict.fromkeys(zero, 0), **measured})


def test_samples_count_with_both_frames_inside_and_without_any_there_is_no_score() -> None:
    """Pins that motion across a cut is no motion of the clip: frames 60, 75 with pairs 63, 78."""
    track = made_track(300)
    assert track.sample_frame[ClipView(track, span(60, 79)).samples].tolist() == [60, 75]
    assert track.sample_frame[ClipView(track, span(60, 78)).samples].tolist() == [60]
    assert track.sample_frame[ClipView(track, span(61, 79)).samples].tolist() == [75]
    # A short clip has no motion score, rather than a false one.
    scores = BUILT_IN.score_clip(made_track(300), span(1, 10))
    assert {name for name, value in scores.items() if value is not None} == {
        "short_side_px", "aspect", "fps", "duration_s", "hdr", "bits_per_pixel", "bit_rate_kbps",
        "interlaced", "corrupt_fraction", "luma", "contrast", "black_fraction", "shot_doubt",
    }  # fmt: skip
    # Pins that NaN (a picture too small for flow) is left out, and alone gives no score.
    motion = made_track(300).signals["motion"].copy()
    motion[0] = np.nan
    track = made_track(300, signals=made_signals(len(motion), motion=motion))
    assert BUILT_IN.score_clip(track, span(0, 60))["motion"] == pytest.approx(0.1)
    motion[:] = np.nan
    track = made_track(300, signals=made_signals(len(motion), motion=motion))
    assert BUILT_IN.score_clip(track, span(0, 60))["motion"] is None
    # Pins that a container without packet sizes is not taken for a badly compressed one.
    track = made_track(300, frame_bytes=np.zeros(300, np.int32))
    assert BUILT_IN.score_clip(track, span(0, 60))["bits_per_pixel"] is None


def test_sizes_and_rates_are_those_of_the_clip_that_is_shown() -> None:
    # Pins that 720x576 with 16:15 pixels is 768x576.
    scores = BUILT_IN.score_clip(
        made_track(300, width=720, height=576, pixel_aspect=Fraction(16, 15)), span(0, 60)
    )
    assert (scores["short_side_px"], scores["aspect"]) == (576.0, pytest.approx(4 / 3))
    # Pins frames by seconds of the span, not of the film, where steps vary.
    pts = np.concatenate([np.arange(60) * 512, 60 * 512 + np.arange(60) * 1024]).astype(np.int64)
    track = made_track(120, frame_pts=pts, end_pts=60 * 512 + 60 * 1024)
    assert track.is_vfr
    assert BUILT_IN.score_clip(track, span(0, 60))["fps"] == pytest.approx(30)
    assert BUILT_IN.score_clip(track, span(60, 120))["fps"] == pytest.approx(15)


def rules(**bounds: dict[str, Any]) -> list[Bounds]:
    return resolve(FilterConfig.model_validate(bounds).root)


def scores_with(**values: float | None) -> dict[str, float | None]:
    return dict.fromkeys(SCORES, 1.0) | values


@pytest.mark.parametrize("name", SCORES)
def test_bounds_are_inclusive_and_each_side_has_its_reason(name: str) -> None:
    """Pins, for every score, that a clip at a bound is kept, and the reasons beyond the bounds."""
    bounds = rules(**{name: {"min": 2.0, "max": 3.0}})
    spec = SCORES[name]
    assert verdicts_on(scores_with(**{name: 2.0}), bounds) == []
    assert verdicts_on(scores_with(**{name: 3.0}), bounds) == []
    below, above = (verdicts_on(scores_with(**{name: value}), bounds) for value in (1.999, 3.001))
    assert below == [Verdict(reason=spec.low, score=1.999, threshold=2.0)]
    assert above == [Verdict(reason=spec.high, score=3.001, threshold=3.0)]


def test_zero_is_a_bound_and_reasons_come_in_the_order_of_the_rules() -> None:
    # Pins that a bound of 0 is not taken for none: `hdr: {max: 0}` rejects HDR.
    assert (
        verdicts_on(scores_with(hdr=1.0), rules(hdr={"max": 0}))[0].reason
        == Reason.HIGH_DYNAMIC_RANGE
    )
    assert verdicts_on(scores_with(hdr=0.0), rules(hdr={"max": 0})) == []
    # Pins that `motion: {}` and nulls are no rule, even for a score that is absent.
    assert verdicts_on(scores_with(motion=None), rules(motion={})) == []
    assert verdicts_on(scores_with(), rules(motion={"min": None, "max": None})) == []
    # Pins that a clip is never kept on a score it has not, with the bound that asked for it.
    verdicts = verdicts_on(scores_with(motion=None), rules(motion={"min": 0.1, "max": 4}))
    assert verdicts == [Verdict(reason=Reason.NOT_MEASURED, score=None, threshold=0.1)]
    verdicts = verdicts_on(scores_with(motion=None), rules(motion={"max": 4}))
    assert verdicts == [Verdict(reason=Reason.NOT_MEASURED, score=None, threshold=4)]
    # The recipe's order decides which reason is named first, and all are named.
    scores = scores_with(motion=0.0, luma=0.0, fps=5.0)
    low = {"min": 9.0}
    found = [v.reason for v in verdicts_on(scores, rules(luma=low, fps=low, motion=low))]
    assert found == ["too_dark", "fps_too_low", "motion_too_low"]
    found = [v.reason for v in verdicts_on(scores, rules(motion=low, luma=low, fps=low))]
    assert found == ["motion_too_low", "too_dark", "fps_too_low"]


def test_unknown_scores_and_bounds_that_keep_nothing_are_refused() -> None:
    # Pins the message for a misspelt score, and for one that is like no other.
    with pytest.raises(ValidationError, match=r"unknown score 'motoin'; did you mean 'motion'\?"):
        rules(motoin={"min": 1})
    with pytest.raises(ValidationError, match="unknown score 'zzz'; known: short_side_px, aspect"):
        rules(zzz={"min": 1})
    assert unknown_key("a", ["b"], "key") == "unknown key 'a'; known: b"
    # Pins that crossed bounds and unknown bounds are errors, not empty results.
    with pytest.raises(ValidationError, match=r"min 3\.0 is above max 2\.0; no clip could be kept"):
        rules(luma={"min": 3, "max": 2})
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        rules(luma={"minimum": 3})
    # Pins that no column of scores is without explanation.
    assert all(spec.unit and spec.meaning for spec in SCORES.values())


@pytest.mark.parametrize(
    ("share", "low", "high"), [(0.0, 0.0, 99.0), (0.15, 15.0, 84.0), (0.29, 29.0, 70.0)]
)
def test_quantiles_drop_exactly_the_share(share: float, low: float, high: float) -> None:
    """Pins k = floor(share * n) from either end, in any order, and for a share that no float is."""
    values = np.random.default_rng(1).permutation(100).astype(np.float64)
    assert quantile_bound(values, lowest=share) == low == np.sum(values < low)
    assert quantile_bound(values, highest=share) == high == 99 - np.sum(values > high)


def test_ties_at_a_quantile_stay_together_until_numbers_are_frozen() -> None:
    """Pins that equal scores share their fate, and that never more than the share is dropped."""
    values = np.array([0.0] * 3 + [1.0] * 6 + [2.0])
    assert quantile_bound(values, lowest=0.2) == 0.0
    assert quantile_bound(values, lowest=0.3) == 1.0
    assert quantile_bound(values, lowest=0.8) == 1.0
    assert quantile_bound(values, highest=0.5) == 1.0
    assert quantile_bound(values, highest=0.95) == 0.0
    assert quantile_bound(np.zeros(0), lowest=0.5) is None
    # A first generation without a score does not leave its rule without a bound.
    config = FilterConfig.model_validate({"luma": {"drop_lowest": 0.5}, "motion": {"min": 1}})
    stage = FilterStage(config, needs(ShardConfig()))
    none = resolve(config.root, lambda _: np.array([]))
    assert stage.by_quantile(none) == {}
    first = resolve(config.root, lambda _: np.array([0.1, 0.2]), stage.by_quantile(none))
    assert stage.by_quantile(first) == {"luma": (0.2, None)}
    later = resolve(config.root, lambda _: np.array([0.7, 0.8]), stage.by_quantile(first))
    assert [(bound.min, bound.max) for bound in later] == [(0.2, None), (1, None)]
    assert stage.by_quantile(later) == {"luma": (0.2, None)}


def test_of_two_bounds_on_a_side_the_stricter_counts() -> None:
    """Pins absolute and quantile bounds together, and rules of one score under two names."""
    config = FilterConfig.model_validate(
        {
            "noise": {"max": 7.0, "drop_highest": 0.1},
            "sharpness": {"min": 0.5, "drop_lowest": 0.2, "drop_highest": 0.2},
            "noisy": {"score": "noise", "max": 3.0, "severity": "flag"},
        }
    )
    found = resolve(config.root, lambda name: np.arange(10.0))
    assert [(b.rule, b.score, b.min, b.max, b.n_measured) for b in found] == [
        ("noise", "noise", None, 7.0, 10),
        ("sharpness", "sharpness", 2.0, 7.0, 10),
        ("noisy", "noise", None, 3.0, None),
    ]
    assert [(b.min, b.max) for b in resolve(config.root)] == [(None, 7.0), (0.5, None), (None, 3.0)]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"noise": {"drop_lowest": 1.0}}, "less than 1"),
        ({"noise": {"drop_lowest": 0.5, "drop_highest": 0.5}}, "leave nothing"),
        ({"noise": {"severity": "warn"}}, "'reject' or 'flag'"),
        (
            {"noise": {"score": "luma", "max": 1}},
            "'noise' has the name of a score and bounds",
        ),
        ({"grainy": {"score": "nose", "max": 1}}, "unknown score 'nose'; did you mean 'noise'"),
        ({"a.b": {"score": "noise", "max": 1}}, "letters, digits and _"),
    ],
)
def test_rules_that_cannot_be_meant_are_refused(rule: dict[str, Any], message: str) -> None:
    """Pins the words for shares, severities and names that no rule can have."""
    with pytest.raises(ValidationError, match=message):
        rules(**rule)
