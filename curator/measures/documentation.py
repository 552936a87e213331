"""What each score is, as text: for `curate scores`, and for `docs/scores.md`."""

from collections.abc import Iterator

from curator.errors import UsageError, unknown_key
from curator.measures.measure_contract import ScoreSpec
from curator.measures.score_list import Measures

HEAD = """# Scores

Each score is a column of `clips`, for kept and rejected clips alike, and can be bounded by a rule
of the recipe. This page is what `curate scores --markdown` prints.
"""
TABLE_HEAD = """| score | unit | range and direction | what it says of a clip | samples | reasons |
|---|---|---|---|---|---|
"""


def markdown(measures: Measures) -> str:
    """Tables of all scores, one for each family."""
    page = HEAD
    for family, names in measures.headings.items():
        page += f"\n## {family}\n\n{TABLE_HEAD}"
        for name in names:
            spec = measures.specs[name]
            cells = spec.unit, spec.range, spec.meaning, _how(spec), _reasons(spec)
            page += f"| `{name}` | {' | '.join(cells)} |\n"
    return page


def text(name: str | None, measures: Measures) -> Iterator[str]:
    """Lines about one score, or about all.

    Raises:
        UsageError: There is no such score.
    """
    if name is not None and name not in measures.specs:
        raise UsageError(unknown_key(name, measures.specs, "score"))
    for own, spec in measures.specs.items():
        if name in (None, own):
            yield f"{own}  [{spec.unit}]"
            yield f"    {spec.meaning}"
            yield f"    {spec.range}"
            if spec.how is not None:
                yield f"    {_how(spec)} over samples; `scores.{own}` of the recipe changes it"
            yield f"    reasons: {_reasons(spec).replace('`', '')}"


def _how(spec: ScoreSpec) -> str:
    return spec.aggregate or "" if spec.below is None else f"share below {spec.below:g}"


def _reasons(spec: ScoreSpec) -> str:
    return ", ".join(dict.fromkeys(f"`{reason}`" for reason in (spec.low, spec.high)))
