"""The annotator `caption_claims`: whether stored measurements support a caption.

    stages: [caption_claims]
    filters:
      caption_contradictions: {max: 0, unmeasured: keep}

`curator/measures/claims/` reads the claims and judges them; no video is decoded.
"""

from collections.abc import Sequence

import orjson

from curator.family import Columns, Family, Place, Row, Scope
from curator.measures.camera import RATES, movement_tags
from curator.measures.claims.claim_check import SCORES, SIGNALS, check_caption, support_of
from curator.measures.claims.claim_records import Measured
from curator.records.clips import CLAIMS_COLUMN
from curator.stage import CAPTION_FIELDS, Annotator, ClipFacts, SampledClip, StageConfig

_CHECKED = ("caption", CAPTION_FIELDS)


class CaptionClaimsConfig(StageConfig):
    """The annotator has no settings."""


class CaptionClaims(Annotator[CaptionClaimsConfig]):
    """Checks the claims of captions in English, and of structured fields of the same answer.

    `caption_support` is the share of confirmed claims among all that are confirmed or
    contradicted, null if there are none. `caption_contradictions` counts the contradicted claims.
    `caption_claims` has all claims as JSON: a list of objects with `kind`, `text`, `value`,
    `verdict` and `measured`. Clips without a caption have no values.
    """

    name = "caption_claims"
    version = 4
    config_type = CaptionClaimsConfig
    columns = (*_CHECKED, *SCORES)
    signals = tuple(sorted({*SIGNALS, *RATES, "sample_s"}))
    thumbnails = True
    batch = 64
    families = (
        Family(
            "caption_claims",
            Scope.CLIP,
            Columns(
                {"caption_support": "f32", "caption_contradictions": "i32", CLAIMS_COLUMN: "text"}
            ),
            place=Place.TABLE,
        ),
    )

    def key(self, facts: ClipFacts, mp4_sha256: str) -> str | None:
        """Returns the key of a clip with a caption."""
        has_caption = bool((facts.columns["caption"] or "").strip())
        return super().key(facts, mp4_sha256) if has_caption else None

    def process(self, unit: Sequence[SampledClip]) -> list[Row]:
        """Returns the columns of each clip."""
        return [_row(clip) for clip in unit]


def _row(clip: SampledClip) -> Row:
    facts = clip.facts
    measured = Measured(
        scores={name: facts.columns[name] for name in SCORES},
        seconds=float(facts.n_frames / facts.fps),
        width=facts.width,
        height=facts.height,
        signals=clip.signals,
        thumbnails=clip.thumbnails,
    )
    measured = measured.tagged(movement_tags({name: measured.samples(name) for name in RATES}))
    claims = check_caption([facts.columns[name] for name in _CHECKED], measured)
    support, contradictions = support_of(claims)
    return {
        "caption_support": support,
        "caption_contradictions": contradictions,
        CLAIMS_COLUMN: orjson.dumps([claim.to_json() for claim in claims]).decode(),
    }
