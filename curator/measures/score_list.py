"""All scores of a clip: built-in scores, and scores of custom measures.

Scores are computed from stored tracks. They are columns of `clips`, for kept and rejected clips.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import isfinite, isnan
from types import MappingProxyType
from typing import Any, get_args

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
    distortion,
    drawn_boxes,
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
    title_card,
)
from curator.measures.clip_view import AGGREGATES, ClipView, How, aggregate
from curator.measures.measure_contract import Full, Measure, ScoreSpec, Signal
from curator.measures.sample_signals import SIGNALS
from curator.models.embedding_heads import Heads
from curator.records.clips import FACT_COLUMNS, Span
from curator.records.columns import field_names
from curator.records.sources import Medium
from curator.records.tracks import Track
from curator.storage.metadata_columns import is_metadata

_OWN = {
    "stream": (stream,),
    "audio": (audio,),
    "exposure": (exposure,),
    "quality": (distortion, picture_quality, noise, strips, quantizer, borders),
    "motion": (motion, camera),
    "overlays": (overlay_text, title_card, drawn_marks, drawn_boxes, split_screen, inset),
    "consistency": (consistency, boundaries),
    "CLIP": (clip_semantics,),
}
"""The built-in measures, by heading."""

_FIRST_COLUMNS = (
    "short_side_px", "aspect", "fps", "duration_s", "hdr", "bits_per_pixel", "bit_rate_kbps",
    "interlaced", "corrupt_fraction", "audio_coverage", "audio_rms_db", "silence", "luma",
    "contrast", "clipped_fraction", "sharpness", "noise", "motion", "camera_motion",
    "camera_jitter", "camera_share", "object_motion", "pan_rate", "tilt_rate", "zoom_rate",
    "roll_rate", "blocking", "flattening", "quantizer", "banding", "combing", "true_resolution",
    "stripes", "frozen_fraction", "black_fraction", "content_area", "text_area",
    "overlay_text_area", "logo_area", "split_screen", "picture_in_picture", "aesthetic",
    "content_probability", "nsfw", "consistency", "layout_consistency",
    "shot_doubt", "distortion", "repeated_fraction",
)  # fmt: skip
"""The first columns of scores in `clips`; their order never changes."""


SUITABILITY = "suitability"
LEARNED_SCORES = {
    SUITABILITY: ScoreSpec(
        unit="0 to 1",
        range="0 to 1 certain; null where a score that the model uses is null",
        meaning="probability that a person marks the clip `keep`, learned by `curate learn`",
    )
}
"""The score of a model of `curate learn`. This declaration imports no code of the model."""

_PAGE_HEAD = """# Scores

Each score is a column of `clips`, for kept and rejected clips. A rule of the recipe can bound each
score. An *overlay sample* is a sample in which overlays are detected, by default 1 per second.
Scores that are for *videos only* are null for still images, and no rule on them rejects an image.
`curate scores --markdown` prints this page.
"""
_TABLE_HEAD = """| score | unit | range and direction | meaning | aggregate | reasons |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """All scores of a recipe: built-in scores, and scores of the custom measures that it names.

    Scores belong to a recipe, not to the process. Another process loads them again by the names.
    """

    names: tuple[str, ...]  # custom measures, as named in the recipe
    has_learned: bool  # whether the last score is that of a model of `curate learn`
    # Scores that rules can use, by name; custom scores are last. Public: columns of `clips`.
    specs: Mapping[str, ScoreSpec] = field(compare=False)
    # Names of scores by heading.
    headings: Mapping[str, tuple[str, ...]] = field(compare=False)
    # Classes of the custom measures, with their origins.
    extensions: tuple[Extension, ...] = field(compare=False)
    # Custom measures in the recipe's order, for their declarations; workers make their own objects.
    users: tuple[Measure, ...] = field(compare=False)

    @staticmethod
    def of(names: Iterable[str], *, has_learned: bool = False) -> "Measures":
        """Loads custom measures by name, and adds their scores after the built-in scores.

        Raises:
            RecipeError: A name leads to no measure, or a declaration is invalid. For example, a
                score has the name of another score or column.
        """
        return _measures_of(tuple(dict.fromkeys(names)), has_learned)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles the names: functions of scores may not be picklable."""
        return _measures_of, (self.names, self.has_learned)

    def spec_of(self, score: str) -> ScoreSpec:
        """Returns the declaration of a score, of metadata, or of a column of an annotator."""
        if score in self.specs:
            return self.specs[score]
        meaning = "metadata of the source" if is_metadata(score) else "column of an annotator"
        return _named({score: ScoreSpec(unit="", range="any", meaning=meaning)})[score]

    def fingerprint(self) -> str:
        """Returns the fingerprint of the versions and scores of custom measures."""
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
        medium: Medium = Medium.VIDEO,
    ) -> dict[str, float | None]:
        """Returns the value of each score for one clip; None if the span has no measured value.

        None also if the score is not for the clip's medium.

        `aggregates` replaces the aggregates or bounds in `specs`, by score. `heads` computes scores
        from the track's CLIP embeddings.
        """
        clip, given = ClipView(track, span, heads), aggregates or {}
        return {
            name: _score(clip, name, spec, given.get(name, spec.how))
            if medium in spec.media
            else None
            for name, spec in self.specs.items()
        }

    def markdown(self, aggregates: Mapping[str, How] = MappingProxyType({})) -> str:
        """Returns all scores as the page `docs/scores.md`, with a recipe's aggregates if given."""
        page = _PAGE_HEAD
        for family, names in self.headings.items():
            page += f"\n## {family}\n\n{_TABLE_HEAD}"
            for name in names:
                spec = self.specs[name]
                how = _how(aggregates.get(name, spec.how))
                meaning = spec.meaning
                if Medium.IMAGE not in spec.media:
                    meaning += "; videos only"
                cells = spec.unit, spec.range, meaning, how, _reasons(spec)
                page += f"| `{name}` | {' | '.join(cells)} |\n"
        return page

    def text(
        self, name: str | None, aggregates: Mapping[str, How] = MappingProxyType({})
    ) -> Iterator[str]:
        """Yields lines about one score, or about all; raises `UsageError` for an unknown name."""
        for fact in self.facts(name, aggregates):
            yield f"{fact['name']}  [{fact['unit']}]"
            yield f"    {fact['meaning']}"
            yield f"    {fact['range']}"
            if how := fact["aggregate"]:
                yield f"    {how} over samples; `scores.{fact['name']}` of the recipe changes it"
            yield f"    reasons: {', '.join(fact['reasons'])}"

    def facts(
        self, name: str | None, aggregates: Mapping[str, How] = MappingProxyType({})
    ) -> Iterator[dict[str, Any]]:
        """Yields the definition of one score, or of all, for `--json`; raises as `text`."""
        if name is not None and name not in self.specs:
            raise UsageError(unknown_key(name, self.specs, "score"))
        for own, spec in self.specs.items():
            if name in (None, own):
                yield {
                    "name": own,
                    "unit": spec.unit,
                    "range": spec.range,
                    "meaning": spec.meaning,
                    "aggregate": _how(aggregates.get(own, spec.how)) or None,
                    "reasons": list(dict.fromkeys((spec.low, spec.high))),
                }


def _how(how: How | None) -> str:
    return how or "" if how is None or isinstance(how, str) else f"share below {how:g}"


def _reasons(spec: ScoreSpec) -> str:
    return ", ".join(dict.fromkeys(f"`{reason}`" for reason in (spec.low, spec.high)))


def _named(scores: Mapping[str, ScoreSpec]) -> dict[str, ScoreSpec]:
    """Returns scores with the names of their reasons filled in."""
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
    signals = {*SIGNALS, *field_names(Track), "native_noise", "full_frame_noise", "distortion"}
    nothing: dict[str, Signal] = {}
    declared: list[tuple[str, str, Mapping[str, Signal], Mapping[str, ScoreSpec]]] = [
        (own.__name__, name, nothing, own.SCORES) for name, group in _OWN.items() for own in group
    ]
    declared += [(o, m.name, m.signals, m.scores) for o, m in zip(names, users, strict=True)]
    for origin, heading, own_signals, scores in declared:
        _check(origin, own_signals, scores, {*specs, *FACT_COLUMNS, *LEARNED_SCORES}, signals)
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
            f"{extension.name!r} is not a measure; expected a subclass of "
            "curator.measures.measure_contract.Measure"
        )
    missing = [name for name in Measure.__annotations__ if not hasattr(extension.target, name)]
    if missing:
        raise RecipeError(f"{extension.name!r} declares no {missing[0]}")
    with raised_as(RecipeError, TypeError, of=f"{extension.name!r} cannot be constructed: "):
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


_OF_TRACKS = ("change_", "error_")
"""Beginnings of names of other columns of tracks."""


def _check(
    origin: str,
    own: Mapping[str, Signal],
    scores: Mapping[str, ScoreSpec],
    taken: Collection[str],
    signals: Collection[str],
) -> None:
    """Refuses names that are invalid or in use, and scores without signal or aggregate."""
    for kind, names, used in (("signal", own, signals), ("score", scores, taken)):
        for name in names:
            if not name.isidentifier():
                raise RecipeError(
                    f"{origin!r} has a {kind} {name!r}; expected letters, digits and _"
                )
            if name in used or (kind == "signal" and name.startswith(_OF_TRACKS)):
                raise RecipeError(
                    f"{origin!r} declares a {kind} {name!r}, but the name is already in use; "
                    f"rename the {kind}"
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
                f"{origin!r}: score {name} of signal {signal!r} sets neither aggregate nor below; "
                "set one of them"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeContext:
    """What the sections of the recipe that is validated may name.

    `has_annotators` says whether rules may name columns, which the graph checks.
    """

    measures: Measures
    has_annotators: bool


def measures_in(info: ValidationInfo) -> Measures:
    """Returns the measures of the recipe that is validated, or the built-in measures."""
    return info.context.measures if isinstance(info.context, RecipeContext) else BUILT_IN


class ScoreConfig(RootModel[dict[str, How]]):
    """Replaces the aggregate, or the bound of a share, of `ScoreSpec`, by score."""

    model_config = ConfigDict(frozen=True, defer_build=True)

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
                raise ValueError(f"score {name!r} has the aggregate {how!r}; expected {wanted}")
        return scores


def _score(clip: ClipView, name: str, spec: ScoreSpec, how: How | None) -> float | None:
    value = spec.of(clip) if callable(spec.of) else clip.signal(spec.of or name)
    if isinstance(value, np.ndarray):
        assert how is not None
        value = aggregate(value, how)
    return None if value is None or isnan(value) else value


BUILT_IN = Measures.of(())  # the built-in measures alone
SCORES = BUILT_IN.specs
