"""Scores of a clip: one number each, from the part of a track that is the clip.

They are arithmetic over what was stored, and stand in `clips` for kept and rejected clips alike.
"""

from collections.abc import Callable, Mapping
from math import isfinite, isnan

from pydantic import ConfigDict, RootModel, field_validator

from curator.errors import unknown_key
from curator.measures import audio_score as audio
from curator.measures import borders_score as borders
from curator.measures import camera_score as camera
from curator.measures import drawn_score as drawn
from curator.measures import inset_score as inset
from curator.measures import overlay_score as overlay
from curator.measures import picture_score as picture
from curator.measures import quality_score as quality
from curator.measures import semantic_score as semantic
from curator.measures import stream_score as stream
from curator.measures.camera_score import camera_tags
from curator.measures.spec import (
    AGGREGATES,
    Aggregate,
    ClipView,
    How,
    ScoreSpec,
    samples_of,
)
from curator.models.embedding_heads import Heads
from curator.records import Span, Track

SCORES: dict[str, ScoreSpec] = {
    **stream.SCORES,
    **audio.SCORES,
    **picture.SCORES,
    **camera.SCORES,
    **quality.SCORES,
    **borders.SCORES,
    **overlay.SCORES,
    **drawn.SCORES,
    **inset.SCORES,
    **semantic.SCORES,
}
"""All scores that rules can use. Public: each is a column of `clips`."""

TAGGERS: tuple[Callable[[ClipView], list[str]], ...] = (camera_tags,)
"""Functions that name what a clip shows, such as how the camera moves. Public: `clips.tags`."""


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
    """All scores of one clip.

    Args:
        track: What was measured.
        span: The clip.
        aggregates: For scores of samples, how they are made if not as `SCORES` says.
        heads: What reads the track's CLIP embeddings; without, scores of those are absent.

    Returns:
        A value for each of `SCORES`; None where nothing was measured within the span.
    """
    clip = ClipView(track, span, heads)
    scores: dict[str, float | None] = {}
    for name, spec in SCORES.items():
        if isinstance(spec.of, str):
            how = (aggregates or {}).get(name, spec.how)
            assert how is not None
            scores[name] = clip.aggregate(spec.of, how)
        else:
            scores[name] = spec.of(clip)
        if (value := scores[name]) is not None and isnan(value):
            scores[name] = None
    return scores


def tag_clip(track: Track, span: Span) -> list[str]:
    """Tags of one clip from what was measured: those of each of `TAGGERS`, in order, once."""
    clip = ClipView(track, span)
    return list(dict.fromkeys(tag for tagger in TAGGERS for tag in tagger(clip)))


__all__ = [
    "AGGREGATES", "SCORES", "TAGGERS", "Aggregate", "ClipView", "How", "ScoreConfig", "ScoreSpec",
    "samples_of", "score_clip", "tag_clip",
]  # fmt: skip
