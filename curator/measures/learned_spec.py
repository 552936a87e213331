"""The declaration of the score `suitability`, which needs none of what computes it."""

from curator.measures.measure_contract import ScoreSpec

SUITABILITY = "suitability"
LEARNED_SCORES = {
    SUITABILITY: ScoreSpec(
        unit="0 to 1",
        range="0 to 1, which is sure to be kept; null where a score that the model uses is null",
        meaning="probability that somebody marks the clip `keep`, learned by `curate learn`",
    )
}
