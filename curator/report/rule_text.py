"""Rules in words: the bounds as applied, and their reasons."""

import logging
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from curator.errors import RecipeError
from curator.measures.score_list import BUILT_IN, Measures
from curator.number_text import count, percent, score
from curator.records.clips import Reason
from curator.storage.metadata_columns import is_metadata

logger = logging.getLogger(__name__)

Facts = Mapping[str, Any]


def measures_of(summary: Mapping[str, Any]) -> Measures:
    """Returns the measures of a run's recipe.

    A page of `curate remove`, which needs no class of a user's, shows the package's own alone
    where a measure cannot be loaded.
    """
    recipe = summary.get("recipe") or {}
    has_learned = (recipe.get("suitability") or {}).get("model") is not None
    return _measures_of(tuple(recipe.get("measures") or ()), has_learned)


@cache
def _measures_of(names: tuple[str, ...], has_learned: bool) -> Measures:
    try:
        return Measures.of(names, has_learned=has_learned)
    except RecipeError as error:
        logger.warning("the report lacks the scores of the recipe's measures: %s", error)
        return BUILT_IN


def applied_rules(summary: Mapping[str, Any]) -> list[Facts]:
    """Returns the rules of a run in order: `rule`, `score`, its `spec`, `severity`, `why`, bounds.

    Summaries of older versions have absolute bounds only.
    """
    recipe = (summary.get("recipe") or {}).get("filters") or {}
    applied = {fact["rule"]: fact for fact in summary.get("rules") or () if fact.get("score")}
    rules: list[Facts] = []
    measures = measures_of(summary)
    for name, rule in recipe.items():
        fact = {"rule": name, "severity": "reject", **rule, **applied.get(name, {})}
        about = fact.get("score") or name
        if about in measures.specs or is_metadata(about):
            rules.append(fact | {"score": about, "spec": measures.spec_of(about)})
    return rules


def reasons_of(rule: Facts) -> Iterator[tuple[str, str, float]]:
    """Returns the reasons that a rule can give, with the side and the bound of each."""
    spec = rule["spec"]
    for side, reason in (("min", spec.low), ("max", spec.high)):
        if rule.get(side) is not None:
            yield reason, side, float(rule[side])


def bound_words(rule: Facts, side: str) -> str:
    """Describes one bound: `motion below 0.005 short sides/s`, with its share for a quantile."""
    unit = rule["spec"].unit
    comparison = "below" if side == "min" else "above"
    words = f"{rule['score']} {comparison} {score(rule[side])}"
    words += "" if not unit or unit.startswith("0 ") else f" {unit}"
    return words + quantile_words(rule, side)


def value_words(rule: Facts) -> str:
    """Describes the values of a rule: `meta.license one of cc0, cc-by`; empty without any."""
    parts = [
        f"{key.replace('_', ' ')} {', '.join(map(str, rule[key]))}"
        for key in ("one_of", "none_of")
        if rule.get(key) is not None
    ]
    return f"{rule['score']} {', '.join(parts)}" if parts else ""


def quantile_words(rule: Facts, side: str) -> str:
    """Describes the origin of a bound by quantile; empty for an absolute one."""
    end = "lowest" if side == "min" else "highest"
    share = rule.get(f"drop_{end}")
    if share is None:
        return ""
    of = f" of {count(rule['n_measured'])}" if rule.get("n_measured") is not None else ""
    return f" (the {end} {percent(share)}{of})"


def reason_words(reason: str, summary: Mapping[str, Any]) -> str:
    """Describes the bound behind a reason; empty for a self-explanatory reason."""
    recipe = summary.get("recipe") or {}
    if reason == Reason.TOO_SHORT:
        shortest = (recipe.get("propose") or {}).get("min_s")
        return f"shorter than {score(shortest)} s" if shortest is not None else ""
    if reason == Reason.DUPLICATE:
        share = (recipe.get("dedup") or {}).get("min_share")
        return f"a clip that stays shows {percent(share)} of it or more" if share else ""
    if reason == Reason.NOT_SELECTED:
        by = ", ".join((recipe.get("select") or {}).get("by") or ()) or "all clips together"
        return f"beyond the share or cap of its group, by {by}"
    if reason == Reason.CONTENT_TYPE_UNWANTED:
        semantic = recipe.get("semantic") or {}
        unwanted = ", ".join(semantic.get("reject") or ())
        return f"{unwanted}, from a probability of {score(semantic.get('reject_from'))}"
    fixed: dict[str, str] = {
        Reason.MARKED_DROP: "somebody marked it so by hand",
        Reason.NOT_MEASURED: "a rule asks for a score that the clip has not",
        Reason.NO_BUCKET: "smaller or shorter than every bucket",
        Reason.NO_ASPECT_CLASS: "near no aspect class",
        Reason.ANSWER_UNWANTED: "an answer of the captioner that caption.reject names",
        Reason.NOT_ANNOTATED: "a window has no annotation, and caption.failed is reject",
        Reason.JUDGED_TOO_LOW: "the judge scores a window's best answer too low",
        Reason.CUT_FAILED: "could not be written",
        Reason.SOURCE_CHANGED: "in a source that changed after its analysis",
        Reason.DIVIDED: "clips that stay show a part; what only it shows are clips of their own",
        Reason.SEMANTIC_DUPLICATE: "a better clip of its cluster shows the same kind of thing",
        Reason.DUPLICATE_ELSEWHERE: "another output, which dedup.against names, has its footage",
        Reason.REMOVED_BEFORE: "a copy of footage that `curate remove` took out",
        Reason.REMOVED: "footage that `curate remove` took out",
    }
    for rule in applied_rules(summary):
        for given, side, _ in reasons_of(rule):
            if reason == given and rule["severity"] == "reject":
                why = f"; {rule['why']}" if rule.get("why") else ""
                return f"{bound_words(rule, side)}{why}"
        if reason == f"{rule['score']}_unwanted":
            return value_words(rule)
    return fixed.get(reason, "")
