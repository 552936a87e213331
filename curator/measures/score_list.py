"""All scores of a clip: the project's own, and those of users' measures.

They are arithmetic over what was stored, and are in `clips` for kept and rejected clips alike.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import isfinite, isnan
from types import MappingProxyType
from typing import get_args

import numpy as np
from pydantic import ConfigDict, RootModel, ValidationInfo, field_validator

from curator.errors import RecipeError, UsageError, raised_as, unknown_key
from curator.extensions import Extension, Kind, load_extension
from curator.fingerprints import fingerprint
from curator.measures import (
    audio,
    borders,
    boundaries,
    camera,
    clip_semantics,
    consistency,
    drawn_marks,
    exposure,
    inset,
    motion,
    noise,
    overlay_text,
    picture_quality,
    quantizer,
    split_screen,
    stream,
    strips,
)
from curator.measures.clip_view import AGGREGATES, ClipView, How, aggregate
from curator.measures.measure_contract import Full, Measure, ScoreSpec, Signal
from curator.measures.sample_signals import SIGNALS
from curator.models.embedding_heads import Heads
from curator.records.clips import FACT_COLUMNS, Span
from curator.records.columns import field_names
from curator.records.tracks import Track
from curator.storage.metadata_columns import is_metadata

_OWN = {
    "stream": (stream,),
    "audio": (audio,),
    "exposure": (exposure,),
    "quality": (picture_quality, noise, strips, quantizer, borders),
    "motion": (motion, camera),
    "overlays": (overlay_text, drawn_marks, split_screen, inset),
    "consistency": (consistency, boundaries),
    "CLIP": (clip_semantics,),
}
"""The project's own measures by their headings."""

_FIRST_COLUMNS = (
    "short_side_px", "aspect", "fps", "duration_s", "hdr", "bits_per_pixel", "bit_rate_kbps",
    "interlaced", "corrupt_fraction", "audio_coverage", "audio_rms_db", "silence", "luma",
    "contrast", "clipped_fraction", "sharpness", "noise", "motion", "camera_motion",
    "camera_jitter", "camera_share", "object_motion", "pan_rate", "tilt_rate", "zoom_rate",
    "roll_rate", "blocking", "flattening", "quantizer", "banding", "combing", "true_resolution",
    "stripes", "frozen_fraction", "black_fraction", "content_area", "text_area",
    "overlay_text_area", "logo_area", "split_screen", "picture_in_picture", "aesthetic",
    "content_probability", "nsfw", "consistency", "layout_consistency",
)  # fmt: skip
"""Columns of `clips` that have this order for ever; a score that is not named follows them."""

_COLUMNS = FACT_COLUMNS - {"fps"}  # no score has these names; `fps` is in `measured_fps`


SUITABILITY = "suitability"
LEARNED_SCORES = {
    SUITABILITY: ScoreSpec(
        unit="0 to 1",
        range="0 to 1, which is sure to be kept; null where a score that the model uses is null",
        meaning="probability that somebody marks the clip `keep`, learned by `curate learn`",
    )
}
"""Needs a model of `curate learn`; this declaration needs none of what computes it."""

_PAGE_HEAD = """# Scores

Each score is a column of `clips`, for kept and rejected clips alike, and can be bounded by a rule
of the recipe. `curate scores --markdown` prints this page.
"""
_TABLE_HEAD = """| score | unit | range and direction | what it says of a clip | samples | reasons |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """All scores of a recipe: the project's own, and those of the users' measures that it names.

    They belong to a recipe, not to the process. A copy in another process is made of the names.
    """

    names: tuple[str, ...]  # users' measures, as the recipe names them
    has_learned: bool  # whether the recipe names a model of `curate learn`, whose score is the last
    # Scores that rules can use, by name, users' last. Public: columns of `clips`.
    specs: Mapping[str, ScoreSpec] = field(compare=False)
    # Headings under which people look scores up -> the names of theirs.
    headings: Mapping[str, tuple[str, ...]] = field(compare=False)
    # What was loaded for the names: classes, and where they come from.
    extensions: tuple[Extension, ...] = field(compare=False)
    # Users' measures, in the recipe's order. They declare; a worker makes its own.
    users: tuple[Measure, ...] = field(compare=False)

    @staticmethod
    def of(names: Iterable[str], *, has_learned: bool = False) -> "Measures":
        """Loads users' measures by their names, and puts them behind the project's own.

        Raises:
            RecipeError: A name leads to no measure, or a measure declares something that cannot
                be: the name of another score or signal, or of a column.
        """
        return _measures_of(tuple(dict.fromkeys(names)), has_learned)

    def __reduce__(self) -> tuple[object, ...]:
        """A score may be made by any function, so that the names go to another process."""
        return _measures_of, (self.names, self.has_learned)

    def spec_of(self, score: str) -> ScoreSpec:
        """What a score is, or a column of metadata, whose reasons derive from its name.

        Raises:
            KeyError: There is no such score.
        """
        if not is_metadata(score):
            return self.specs[score]
        own = ScoreSpec(unit="", range="any", meaning="metadata of the source")
        return _named({score: own})[score]

    def fingerprint(self) -> str:
        """Fingerprint of the versions and scores of users' measures."""
        return fingerprint(
            *(
                (measure.fingerprint(), {name: spec.how for name, spec in measure.scores.items()})
                for measure in self.users
            )
        )

    def score_clip(
        self,
        track: Track,
        span: Span,
        aggregates: Mapping[str, How] | None = None,
        heads: Heads | None = None,
    ) -> dict[str, float | None]:
        """A value of one clip for each score; None where nothing was measured within the span.

        `aggregates` says how scores of samples are made, if not as in `specs`; `heads` reads the
        track's CLIP embeddings.
        """
        clip, given = ClipView(track, span, heads), aggregates or {}
        return {
            name: _score(clip, name, spec, given.get(name, spec.how))
            for name, spec in self.specs.items()
        }

    def markdown(self, aggregates: Mapping[str, How] = MappingProxyType({})) -> str:
        """All scores as the page `docs/scores.md`, or with a recipe's aggregates."""
        page = _PAGE_HEAD
        for family, names in self.headings.items():
            page += f"\n## {family}\n\n{_TABLE_HEAD}"
            for name in names:
                spec = self.specs[name]
                how = _how(aggregates.get(name, spec.how))
                cells = spec.unit, spec.range, spec.meaning, how, _reasons(spec)
                page += f"| `{name}` | {' | '.join(cells)} |\n"
        return page

    def text(
        self, name: str | None, aggregates: Mapping[str, How] = MappingProxyType({})
    ) -> Iterator[str]:
        """Lines about one score, or about all; a UsageError where there is no such score."""
        if name is not None and name not in self.specs:
            raise UsageError(unknown_key(name, self.specs, "score"))
        for own, spec in self.specs.items():
            if name in (None, own):
                yield f"{own}  [{spec.unit}]"
                yield f"    {spec.meaning}"
                yield f"    {spec.range}"
                if how := _how(aggregates.get(own, spec.how)):
                    yield f"    {how} over samples; `scores.{own}` of the recipe changes it"
                yield f"    reasons: {_reasons(spec).replace('`', '')}"


def _how(how: How | None) -> str:
    return how or "" if how is None or isinstance(how, str) else f"share below {how:g}"


def _reasons(spec: ScoreSpec) -> str:
    return ", ".join(dict.fromkeys(f"`{reason}`" for reason in (spec.low, spec.high)))


def _named(scores: Mapping[str, ScoreSpec]) -> dict[str, ScoreSpec]:
    """Scores with the reasons that derive from their names."""
    return {
        name: replace(
            spec,
            low=spec.outside or spec.low.format(name=name),
            high=spec.outside or spec.high.format(name=name),
        )
        for name, spec in scores.items()
    }


@cache
def _measures_of(names: tuple[str, ...], has_learned: bool) -> Measures:
    extensions = tuple(load_extension(Kind.MEASURE, name) for name in names)
    users = tuple(_made(extension) for extension in extensions)
    specs: dict[str, ScoreSpec] = {}
    headings: dict[str, tuple[str, ...]] = {}
    signals = {*SIGNALS, *field_names(Track), "native_noise", "full_frame_noise"}
    nothing: dict[str, Signal] = {}
    declared: list[tuple[str, str, Mapping[str, Signal], Mapping[str, ScoreSpec]]] = [
        (own.__name__, name, nothing, own.SCORES) for name, group in _OWN.items() for own in group
    ]
    declared += [(o, m.name, m.signals, m.scores) for o, m in zip(names, users, strict=True)]
    for origin, heading, own_signals, scores in declared:
        _check(origin, own_signals, scores, {*specs, *_COLUMNS, *LEARNED_SCORES}, signals)
        specs |= _named(scores)
        signals |= set(own_signals)
        headings[heading] = (*headings.get(heading, ()), *scores)
    if has_learned:
        specs |= _named(LEARNED_SCORES)
        headings["learned"] = tuple(LEARNED_SCORES)
    return Measures(
        names=names,
        has_learned=has_learned,
        specs=MappingProxyType({name: specs.pop(name) for name in _FIRST_COLUMNS} | specs),
        headings=MappingProxyType(headings),
        extensions=extensions,
        users=users,
    )


def _made(extension: Extension) -> Measure:
    if not issubclass(extension.target, Measure):
        raise RecipeError(
            f"{extension.name!r} is no measure; expected a subclass of "
            "curator.measures.measure_contract.Measure"
        )
    missing = [name for name in Measure.__annotations__ if not hasattr(extension.target, name)]
    if missing:
        raise RecipeError(f"{extension.name!r} declares no {missing[0]}")
    with raised_as(RecipeError, TypeError, of=f"{extension.name!r} cannot be made: "):
        measure: Measure = extension.target()
    if measure.full not in (None, *get_args(Full)) or (measure.pairs and measure.full is None):
        raise RecipeError(
            f"{extension.name!r} declares full = {measure.full!r} and pairs = {measure.pairs}; "
            "expected full to be 'rgb' or 'luma', or None without pairs"
        )
    if measure.batch < 1:
        raise RecipeError(
            f"{extension.name!r} declares batch = {measure.batch}; expected 1 or more"
        )
    return measure


def _check(
    origin: str,
    own: Mapping[str, Signal],
    scores: Mapping[str, ScoreSpec],
    taken: Collection[str],
    signals: Collection[str],
) -> None:
    """Refuses names that are no identifiers or are used already, and scores made of nothing."""
    for kind, names, used in (("signal", own, signals), ("score", scores, taken)):
        for name in names:
            if not name.isidentifier():
                raise RecipeError(
                    f"{origin!r} has a {kind} {name!r}; expected letters, digits and _"
                )
            if name in used or (kind == "signal" and name.startswith("change_")):
                raise RecipeError(
                    f"{origin!r} has a {kind} {name!r}, and there is one of that name already; "
                    "give it another"
                )
    given = {*signals, *own}
    for name, spec in scores.items():
        if callable(spec.of):
            continue
        signal = spec.of or name
        if signal not in given:
            raise RecipeError(f"{origin!r}: score {name}: {unknown_key(signal, given, 'signal')}")
        if spec.how is None:
            raise RecipeError(
                f"{origin!r}: score {name} is made of signal {signal!r}, and says neither "
                "aggregate nor below"
            )


def measures_in(info: ValidationInfo) -> Measures:
    """The measures by which a section of a recipe is checked: those of the recipe that holds it."""
    return info.context if isinstance(info.context, Measures) else BUILT_IN


class ScoreConfig(RootModel[dict[str, How]]):
    """Score -> how the samples of a clip become one number, where not as its `ScoreSpec` says.

    An aggregate, or for a share below a bound that bound.
    """

    model_config = ConfigDict(frozen=True)

    @field_validator("root", mode="before")
    @classmethod
    def _check_names(cls, scores: object, info: ValidationInfo) -> object:
        if not isinstance(scores, Mapping):
            return scores
        specs = measures_in(info).specs
        sampled = [name for name, spec in specs.items() if spec.how is not None]
        for name, how in scores.items():
            if name not in sampled:
                raise ValueError(unknown_key(name, sampled, "score of samples"))
            is_share = specs[name].below is not None
            is_number = isinstance(how, int | float) and isfinite(how)
            is_aggregate = isinstance(how, str) and how in AGGREGATES
            if not (is_number if is_share else is_aggregate):
                wanted = "a number" if is_share else f"one of {', '.join(AGGREGATES)}"
                raise ValueError(f"score {name!r} is made by {how!r}; expected {wanted}")
        return scores


def _score(clip: ClipView, name: str, spec: ScoreSpec, how: How | None) -> float | None:
    value = spec.of(clip) if callable(spec.of) else clip.signal(spec.of or name)
    if isinstance(value, np.ndarray):
        assert how is not None
        value = aggregate(value, how)
    return None if value is None or isnan(value) else value


BUILT_IN = Measures.of(())  # the project's own measures alone
SCORES = BUILT_IN.specs  # their scores
