"""All scores of a clip: the project's own, and those of users' measures.

They are arithmetic over what was stored, and are in `clips` for kept and rejected clips alike.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import isfinite, isnan
from types import MappingProxyType

import numpy as np
from pydantic import ConfigDict, RootModel, field_validator

from curator.errors import RecipeError, unknown_key
from curator.extensions import Extension, Kind, load_extension
from curator.fingerprints import fingerprint
from curator.measures import (
    audio,
    borders,
    camera,
    clip_semantics,
    compression,
    consistency,
    drawn_marks,
    exposure,
    inset,
    interlacing,
    motion,
    noise,
    overlay_text,
    quantizer,
    resolution,
    sharpness,
    shot_doubt,
    split_screen,
    stillness,
    stream,
    stripes,
)
from curator.measures.clip_view import AGGREGATES, ClipView, How, aggregate
from curator.measures.measure_contract import Measure, ScoreSpec, register, registered_measures
from curator.measures.sample_signals import SIGNALS
from curator.models.embedding_heads import Heads
from curator.records.clips import Span
from curator.records.columns import field_names
from curator.records.tracks import Track
from curator.storage.metadata_columns import is_metadata

_BUILT_IN = (
    stream, audio, exposure, sharpness, noise, compression, quantizer, interlacing, resolution,
    stripes, stillness, borders, motion, camera, overlay_text, drawn_marks, split_screen, inset,
    consistency, shot_doubt, clip_semantics,
)  # fmt: skip
"""The project's own measures, in the order of their headings."""

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

_Families = dict[str, tuple[str, ...]]


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


def _own() -> tuple[dict[str, ScoreSpec], _Families]:
    """The project's own scores, and their families."""
    found: dict[str, ScoreSpec] = {}
    families: _Families = {}
    for measure in _BUILT_IN:
        found |= _named(measure.SCORES)
        families[measure.FAMILY] = (*families.get(measure.FAMILY, ()), *measure.SCORES)
    return {name: found.pop(name) for name in _FIRST_COLUMNS} | found, families


_OWN_SCORES, _OWN_FAMILIES = _own()
_scores, _families = dict(_OWN_SCORES), dict(_OWN_FAMILIES)
_used: tuple[Extension, ...] = ()

SCORES: Mapping[str, ScoreSpec] = MappingProxyType(_scores)
"""All scores that rules can use, those of `use_measures` last. Public: columns of `clips`."""
FAMILIES: Mapping[str, tuple[str, ...]] = MappingProxyType(_families)
"""Headings under which people look scores up -> the names of theirs."""


def spec_of(score: str) -> ScoreSpec:
    """What a score is, or a column of metadata, whose reasons derive from its name.

    Raises:
        KeyError: There is no such score.
    """
    if not is_metadata(score):
        return SCORES[score]
    own = ScoreSpec(unit="", range="any", meaning="metadata of the source")
    return _named({score: own})[score]


def use_measures(names: Sequence[str], *, taken: Collection[str] = ()) -> None:
    """Sets the users' measures of this process; a repeated call with the same names does nothing.

    Names of scores must be unique, and not in `taken`.

    Raises:
        RecipeError: A name leads to no measure, or a measure declares something that cannot be.
    """
    global _used
    if tuple(names) == tuple(extension.name for extension in _used):
        return
    loaded = tuple(load_extension(Kind.MEASURE, name) for name in dict.fromkeys(names))
    measures = [_made(extension) for extension in loaded]
    scores, families = dict(_OWN_SCORES), dict(_OWN_FAMILIES)
    signals = {*SIGNALS, *field_names(Track), "native_noise", "full_frame_noise"}
    for extension, measure in zip(loaded, measures, strict=True):
        _check(extension.name, measure, {*scores, *taken}, signals)
        scores |= _named(measure.scores)
        signals |= set(measure.signals)
        families[measure.name] = (*families.get(measure.name, ()), *measure.scores)
    for held, new in ((_scores, scores), (_families, families)):
        held.clear()
        held.update(new)  # type: ignore[arg-type]
    register(measures)
    _used = loaded


def measures_used() -> tuple[Extension, ...]:
    """What `use_measures` loaded: names, classes, and where they come from."""
    return _used


def measures_fingerprint() -> str:
    """Fingerprint of the versions and scores of users' measures."""
    return fingerprint(
        *(
            (measure.fingerprint(), {name: spec.how for name, spec in measure.scores.items()})
            for measure in registered_measures()
        )
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
    try:
        return extension.target()
    except TypeError as error:
        raise RecipeError(f"{extension.name!r} cannot be made: {error}") from error


def _check(origin: str, measure: Measure, taken: Collection[str], signals: Collection[str]) -> None:
    """Refuses names that are no identifiers or are used already, and scores made of nothing."""
    for kind, names, used in (
        ("signal", measure.signals, signals), ("score", measure.scores, taken)
    ):  # fmt: skip
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
    known = {*signals, *measure.signals}
    for name, spec in measure.scores.items():
        if callable(spec.of):
            continue
        signal = spec.of or name
        if signal not in known:
            raise RecipeError(f"{origin!r}: score {name}: {unknown_key(signal, known, 'signal')}")
        if spec.how is None:
            raise RecipeError(
                f"{origin!r}: score {name} is made of signal {signal!r}, and says neither "
                "aggregate nor below"
            )


class ScoreConfig(RootModel[dict[str, How]]):
    """Score -> how the samples of a clip become one number, where not as `SCORES` says.

    An aggregate, or for a share below a bound that bound.
    """

    model_config = ConfigDict(frozen=True)

    @field_validator("root", mode="before")
    @classmethod
    def _known(cls, scores: object) -> object:
        """Refuses with one error what fits no member of the union."""
        if not isinstance(scores, Mapping):
            return scores
        sampled = [name for name, spec in SCORES.items() if spec.how is not None]
        for name, how in scores.items():
            if name not in sampled:
                raise ValueError(unknown_key(name, sampled, "score of samples"))
            is_share = SCORES[name].below is not None
            is_number = isinstance(how, int | float) and isfinite(how)
            is_aggregate = isinstance(how, str) and how in AGGREGATES
            if not (is_number if is_share else is_aggregate):
                wanted = "a number" if is_share else f"one of {', '.join(AGGREGATES)}"
                raise ValueError(f"score {name!r} is made by {how!r}; expected {wanted}")
        return scores


def score_clip(
    track: Track,
    span: Span,
    aggregates: Mapping[str, How] | None = None,
    heads: Heads | None = None,
) -> dict[str, float | None]:
    """A value of one clip for each of `SCORES`; None where nothing was measured within the span.

    `aggregates` says how scores of samples are made, if not as in `SCORES`; `heads` reads the
    track's CLIP embeddings.
    """
    clip, given = ClipView(track, span, heads), aggregates or {}
    return {
        name: _score(clip, name, spec, given.get(name, spec.how)) for name, spec in SCORES.items()
    }


def _score(clip: ClipView, name: str, spec: ScoreSpec, how: How | None) -> float | None:
    value = spec.of(clip) if callable(spec.of) else clip.signal(spec.of or name)
    if isinstance(value, np.ndarray):
        assert how is not None
        value = aggregate(value, how)
    return None if value is None or isnan(value) else value
