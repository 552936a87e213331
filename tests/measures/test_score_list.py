"""Which scores there are: the project's own, and those of users' measures."""

import itertools
import pickle
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest
from pydantic import ValidationError
from samples import made_signals, made_track

from curator.errors import RecipeError
from curator.executor.corpus_work import CorpusWork
from curator.measures import score_list
from curator.measures.clip_view import ClipView
from curator.measures.measure_contract import Measure, SamplePictures, ScoreSpec, Signal
from curator.measures.score_list import BUILT_IN, SCORES, Measures
from curator.pipeline import graph_of
from curator.recipe import Recipe, measures_of
from curator.records.clips import Span
from curator.records.sources import SourceRef
from curator.runs.corpus import CorpusState
from curator.stages.propose.stage import KeepProposed, ProposedRows
from curator.storage import open_store
from curator.tables.clip_vectors import StoredVectors, vectors_table
from curator.tables.removal_records import Removals
from curator.tables.schemas import clips_schema
from curator.tables.track_items import TrackItem

OWN = tuple(SCORES)
SOURCE = SourceRef(uri="a.mp4", n_bytes=1, version="1", source_id="a")
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


class _ErrorSignal(_Half):
    signals: ClassVar[Mapping[str, Signal]] = {"error_code": SIGNAL}


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


def path(measure: type) -> str:
    return f"{__name__}:{measure.__name__}"


def test_scores_of_a_measure_follow_the_projects_own_in_each_recipes_set() -> None:
    # Pins order, headings, derived and named reasons, and values of all three ways to make one.
    measures = Measures.of([path(_Half)])
    specs = measures.specs
    assert tuple(specs) == (*OWN, "half_mean", "half_low", "n_frames_of")
    assert measures.headings["halves"] == ("half_mean", "half_low", "n_frames_of")
    assert (specs["half_mean"].low, specs["half_low"].high) == ("half_mean_too_low", "half_empty")
    track = made_track(signals=made_signals(20, half=0.5))
    span = Span(start_frame=0, end_frame=120, shot=0)
    found = measures.score_clip(track, span)
    assert (found["half_mean"], found["half_low"], found["n_frames_of"]) == (0.5, 1.0, 120.0)
    assert measures.score_clip(track, span, {"half_low": 0.5})["half_low"] == 0.0
    # Pins that sets stand next to each other, and that one is not changed by another.
    one, both = Measures.of([path(_Half)]), Measures.of([path(_Half), path(_More)])
    assert Measures.of([path(_Half), path(_Half)]) == one
    assert [measure.name for measure in both.users] == ["halves", "motion"]
    assert (both.headings["motion"][-1], "half_max" in one.specs) == ("half_max", False)
    assert len({BUILT_IN.fingerprint(), one.fingerprint(), both.fingerprint()}) == 3
    assert [extension.origin["version"] for extension in one.extensions] == ["3"]
    assert (BUILT_IN.users, BUILT_IN.extensions, tuple(BUILT_IN.specs)) == ((), (), OWN)
    # Pins that functions of scores, which cannot be pickled, are no obstacle.
    measures = Measures.of([path(_Half)])
    score_list._measures_of.cache_clear()
    copy = pickle.loads(pickle.dumps(measures))
    assert (copy == measures, copy.specs == measures.specs) == (True, True)
    assert copy.users[0] is not measures.users[0]


RECIPES: dict[str, tuple[dict[str, object], str, str]] = {
    "none": ({}, "motion_too_low", "half_mean"),
    "half": ({"measures": [f"{__name__}:_Half"]}, "half_mean_too_low", "half_max"),
    "more": (
        {"measures": [f"{__name__}:_Half", f"{__name__}:_More"]},
        "half_max_too_low",
        "half_other",
    ),
}
"""Settings, the reason of a score of theirs, and a score that they have not."""


def facts(kind: str) -> tuple[object, ...]:
    """What a recipe makes of its scores: columns, reasons, fingerprints, an error."""
    settings, reason, unknown = RECIPES[kind]
    score = reason.removesuffix("_too_low")
    recipe = Recipe.model_validate(settings | {"filters": {score: {"min": 0.9}}})
    graph = graph_of(recipe)
    columns = tuple(clips_schema(measures_of(recipe).specs).names)
    track = made_track(
        signals=made_signals(20, half=0.5, motion=0.5), descriptor=np.zeros((20, 8), np.float32)
    )
    made = graph["propose"].process(TrackItem(source=SOURCE, track=track, frames_part="x")).clips
    with tempfile.TemporaryDirectory() as folder:
        keep = KeepProposed(
            store=open_store(folder), fingerprint="x", removals=Removals(),
            measures=measures_of(recipe),
        )  # fmt: skip
        clips = keep([], [ProposedRows(clips=made)]).clips
    decided = CorpusState(clips, 1 << 24, vectors=lambda _: StoredVectors.of(vectors_table([])))
    decided.decide(graph["filter"], CorpusWork("filter"))
    (table,) = decided.clips.blocks(("reasons",))
    (reasons,) = {tuple(found) for found in table["reasons"].to_pylist()}
    assert reason in reasons
    for section in ({"filters": {unknown: {"min": 0}}}, {"select": {"by": [unknown]}}):
        with pytest.raises(ValidationError, match=f"unknown .* '{unknown}'"):
            Recipe.model_validate(settings | section)
    prints = graph.fingerprints()
    return columns, tuple(clips.column_names), prints["analyze"], prints["propose"]


@pytest.mark.parametrize("order", [*itertools.permutations(RECIPES)], ids=" ".join)
def test_recipes_with_unlike_measures_are_right_in_one_process(order: tuple[str, ...]) -> None:
    """Pins columns, reasons, fingerprints and errors: for any order, alone, and in threads."""
    recipes = {kind: Recipe.model_validate(RECIPES[kind][0]) for kind in order}
    graphs = {kind: graph_of(recipe) for kind, recipe in recipes.items()}
    found = {kind: facts(kind) for kind in order}
    for kind, graph in graphs.items():
        # Made before the others were read.
        assert graph.fingerprints()["propose"] == found[kind][3]
        assert measures_of(recipes[kind]).names == tuple(RECIPES[kind][0].get("measures", ()))
    assert len({one[2:] for one in found.values()}) == len(RECIPES)
    assert found["none"][0] == tuple(clips_schema(OWN).names)
    with ThreadPoolExecutor(3) as pool:
        kinds = [*order] * 4
        assert [*pool.map(facts, kinds)] == [found[kind] for kind in kinds]


@pytest.mark.parametrize(
    ("measures", "words"),
    [
        (
            [_NoMeasure],
            "is not a measure; expected a subclass of curator.measures.measure_contract.Measure",
        ),
        ([_Abstract], "cannot be constructed"),
        ([_Nameless], "declares no name"),
        ([_Motion], "declares a score 'motion', but the name is already in use"),
        ([_MotionSignal], "declares a signal 'motion', but the name is already in use"),
        ([_ErrorSignal], "declares a signal 'error_code', but the name is already in use"),
        ([_Half, _Motion], "declares a signal 'half', but the name is already in use"),
        ([_Hyphen], "has a score 'half-mean'; expected letters, digits and _"),
        ([_Column], "declares a score 'width', but the name is already in use"),
        ([_OfNothing], "score half_mean: unknown signal 'halff'; did you mean 'half'?"),
        ([_NoHow], "of signal 'half' sets neither aggregate nor below"),
    ],
)
def test_what_cannot_be_is_refused(measures: list[type], words: str) -> None:
    """Pins the message, and that nothing of it is used."""
    with pytest.raises(RecipeError, match=words.replace("?", r"\?")):
        Measures.of([path(measure) for measure in measures])
    assert tuple(BUILT_IN.specs) == OWN


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
