"""Which scores there are: the project's own, and those of users' measures."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import pytest
from samples import made_signals, made_track

from curator.errors import RecipeError
from curator.measures.clip_view import ClipView
from curator.measures.measure_contract import (
    Measure,
    SamplePictures,
    ScoreSpec,
    Signal,
    registered_measures,
)
from curator.measures.score_list import (
    FAMILIES,
    SCORES,
    measures_fingerprint,
    measures_used,
    score_clip,
    use_measures,
)
from curator.records.clips import Span

OWN = tuple(SCORES)
SIGNAL = Signal(unit="0 to 1", range="0 to 1", meaning="one half")


def score(of: str = "half", **values: object) -> ScoreSpec:
    made = {"unit": "1", "range": "any", "meaning": "half", "of": of, "aggregate": "mean"} | values
    return ScoreSpec(**made)  # type: ignore[arg-type]


class _Half(Measure):
    name = "halves"
    version = 3
    signals: ClassVar[Mapping[str, Signal]] = {"half": SIGNAL}
    scores: ClassVar[Mapping[str, ScoreSpec]] = {
        "half_mean": score(),
        "half_low": score(aggregate=None, below=0.6, high="half_empty"),
        "n_frames_of": score(of=lambda clip: float(clip.span.n_frames), aggregate=None),
    }

    def measure(self, sample: SamplePictures) -> Mapping[str, float]:
        return {"half": 0.5}


class _More(_Half):
    name = "motion"
    signals: ClassVar[Mapping[str, Signal]] = {}
    scores: ClassVar[Mapping[str, ScoreSpec]] = {"half_max": score(aggregate="max")}


class _Motion(_Half):
    scores: ClassVar[Mapping[str, ScoreSpec]] = {"motion": score()}


class _MotionSignal(_Half):
    signals: ClassVar[Mapping[str, Signal]] = {"motion": SIGNAL}


class _Hyphen(_Half):
    scores: ClassVar[Mapping[str, ScoreSpec]] = {"half-mean": score()}


class _Column(_Half):
    scores: ClassVar[Mapping[str, ScoreSpec]] = {"width": score()}


class _OfNothing(_Half):
    scores: ClassVar[Mapping[str, ScoreSpec]] = {"half_mean": score(of="halff")}


class _NoHow(_Half):
    scores: ClassVar[Mapping[str, ScoreSpec]] = {"half_mean": score(aggregate=None)}


class _Abstract(Measure):
    name = "abstract"
    version = 1
    signals: ClassVar[Mapping[str, Signal]] = {}
    scores: ClassVar[Mapping[str, ScoreSpec]] = {}


class _Nameless(Measure):
    def measure(self, sample: SamplePictures) -> Mapping[str, float]:
        return {}


class _NoMeasure:
    pass


@pytest.fixture(autouse=True)
def _own_again() -> Iterator[None]:
    yield
    use_measures(())


def path(measure: type) -> str:
    return f"{__name__}:{measure.__name__}"


def test_scores_of_a_measure_follow_the_projects_own() -> None:
    """Pins order, headings, derived and named reasons, and values of all three ways to make one."""
    use_measures([path(_Half)])
    assert tuple(SCORES) == (*OWN, "half_mean", "half_low", "n_frames_of")
    assert FAMILIES["halves"] == ("half_mean", "half_low", "n_frames_of")
    assert (SCORES["half_mean"].low, SCORES["half_low"].high) == ("half_mean_too_low", "half_empty")
    track = made_track(signals=made_signals(20, half=0.5))
    found = score_clip(track, Span(start_frame=0, end_frame=120, shot=0))
    assert (found["half_mean"], found["half_low"], found["n_frames_of"]) == (0.5, 1.0, 120.0)
    given = score_clip(track, Span(start_frame=0, end_frame=120, shot=0), {"half_low": 0.5})
    assert given["half_low"] == 0.0


def test_a_process_holds_one_set() -> None:
    """Pins that a repeated call keeps the instances, and another one replaces them."""
    use_measures([path(_Half)])
    (first,) = registered_measures()
    before = measures_fingerprint()
    use_measures([path(_Half)])
    assert registered_measures() == (first,)
    use_measures([path(_Half), path(_More)])
    assert [measure.name for measure in registered_measures()] == ["halves", "motion"]
    assert FAMILIES["motion"][-1] == "half_max"
    assert measures_fingerprint() != before
    assert measures_used()[0].origin["version"] == "3"
    use_measures(())
    assert (tuple(SCORES), registered_measures(), measures_used()) == (OWN, (), ())
    assert "half_max" not in FAMILIES["motion"]


@pytest.mark.parametrize(
    ("measures", "words"),
    [
        (
            [_NoMeasure],
            "is no measure; expected a subclass of curator.measures.measure_contract.Measure",
        ),
        ([_Abstract], "cannot be made"),
        ([_Nameless], "declares no name"),
        ([_Motion], "has a score 'motion', and there is one of that name already"),
        ([_MotionSignal], "has a signal 'motion', and there is one of that name already"),
        ([_Half, _Motion], "has a signal 'half', and there is one of that name already"),
        ([_Hyphen], "has a score 'half-mean'; expected letters, digits and _"),
        ([_Column], "has a score 'width', and there is one of that name already"),
        ([_OfNothing], "score half_mean: unknown signal 'halff'; did you mean 'half'?"),
        ([_NoHow], "made of signal 'half', and says neither aggregate nor below"),
    ],
)
def test_what_cannot_be_is_refused(measures: list[type], words: str) -> None:
    """Pins the message, and that nothing of it is used."""
    with pytest.raises(RecipeError, match=words.replace("?", r"\?")):
        use_measures([path(measure) for measure in measures], taken=["width"])
    assert tuple(SCORES) == OWN


def test_reasons_derive_from_names() -> None:
    """Pins that each score has two reasons, and that none is left as a pattern."""
    assert SCORES["sharpness"].low == "sharpness_too_low"
    assert (SCORES["frozen_fraction"].high, SCORES["luma"].low) == ("frozen", "too_dark")
    assert all(r.isidentifier() for spec in SCORES.values() for r in (spec.low, spec.high))


def test_a_view_knows_which_frames_it_holds() -> None:
    view = ClipView(made_track(), Span(start_frame=10, end_frame=20, shot=0))
    frames = made_track().look_frame
    assert view.holds(frames).sum() == 0
    assert view.holds(frames[:1] + 10).all()
