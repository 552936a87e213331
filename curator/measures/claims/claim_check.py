"""Checks the claims of a caption against stored measurements, without a model or a decode.

    check_caption("The camera pans left. There is no sound.", measured)

A new kind of claims is one file with a `ClaimKind`, and its entry in `KINDS`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from curator.measures.claims import (
    brightness_claims,
    camera_claims,
    colour_claims,
    count_claims,
    daytime_claims,
    duration_claims,
    order_claims,
    orientation_claims,
    shot_claims,
    sound_claims,
    speed_claims,
    text_claims,
)
from curator.measures.claims.claim_records import ClaimKind, Judgement, Measured, Verdict
from curator.measures.claims.sentences import sentences_of

KINDS: tuple[ClaimKind, ...] = (
    camera_claims.KIND, shot_claims.KIND, order_claims.KIND, colour_claims.KIND, count_claims.KIND,
    brightness_claims.KIND, daytime_claims.KIND, speed_claims.KIND, text_claims.KIND,
    sound_claims.KIND, duration_claims.KIND, orientation_claims.KIND,
)  # fmt: skip
SCORES = tuple(sorted({name for kind in KINDS for name in kind.scores}))
"""Columns of `clips` that verdicts depend on."""
SIGNALS = tuple(sorted({name for kind in KINDS for name in kind.signals}))
"""Signals that verdicts depend on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim of a caption with its verdict.

    Attributes:
        kind: Name of the kind.
        text: Words of the caption that make the claim.
        value: The claim in the words of the kind, such as `pan_left`; `not ...` if it is denied.
        verdict: What measurements say.
        measured: The measurement in words.
    """

    kind: str
    text: str
    value: str
    verdict: Verdict
    measured: str

    def to_json(self) -> dict[str, str]:
        """Returns the claim as it is stored in `caption_claims`."""
        return {name: str(value) for name, value in asdict(self).items()}


def check_caption(caption: object, measured: Measured) -> list[Claim]:
    """Returns the claims of a caption in its order, with their verdicts.

    Args:
        caption: A text, JSON as text, or a value of JSON such as a structured caption.
        measured: Measurements of the clip; what is absent leads to `unknown`.
    """
    claims = []
    # Captions repeat themselves, and judging a colour reads all thumbnails.
    judgements: dict[tuple[str, str], Judgement] = {}
    for sentence in sentences_of(caption):
        found = [(each, kind) for kind in KINDS for each in kind.find(sentence)]
        for each, kind in sorted(found, key=lambda pair: pair[0].start):
            if (judgement := judgements.get((kind.name, each.value))) is None:
                judgement = kind.judge(each.value, measured)
                judgements[kind.name, each.value] = judgement
            verdict = judgement.verdict.negated() if each.is_negated else judgement.verdict
            claims.append(
                Claim(
                    kind=kind.name,
                    text=sentence.text[each.start : each.end].strip(),
                    value=f"not {each.value}" if each.is_negated else each.value,
                    verdict=verdict,
                    measured=judgement.measured,
                )
            )
    return claims


def support_of(claims: Sequence[Claim]) -> tuple[float | None, int]:
    """Returns the share of confirmed claims among checked ones, and the number of contradictions.

    The share is None if no claim could be checked.
    """
    confirmed = sum(claim.verdict is Verdict.CONFIRMED for claim in claims)
    contradicted = sum(claim.verdict is Verdict.CONTRADICTED for claim in claims)
    checked = confirmed + contradicted
    return (confirmed / checked if checked else None), contradicted
