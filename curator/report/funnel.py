"""The funnel of a run: candidates, the clips that each reason removes in order, the rest."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from curator.records.clips import Reason
from curator.report.rule_text import applied_rules, reasons_of


@dataclass(frozen=True, slots=True, kw_only=True)
class FunnelStep:
    """The clips that one reason removes.

    Attributes:
        n_first: Clips whose first reason it is, and which it so removes from the funnel.
        n_alone: Clips with no other reason; None where the run did not count them.
        n_any: Clips with this reason, first or not.
        n_left: Clips that are left after it.
    """

    reason: str
    n_first: int
    n_alone: int | None
    n_any: int
    n_left: int


def funnel_steps(summary: Mapping[str, Any]) -> list[FunnelStep]:
    """Returns the steps of the funnel in the order of precedence of reasons.

    Args:
        summary: Contents of `summary.json`; reads `recipe` and `counts`.

    Returns:
        A step for each reason that the recipe can give, zeros included. The last one's `n_left` is
        the number of clips kept.
    """
    counts = summary.get("counts") or {}
    first, at_all = counts.get("by_reason") or {}, counts.get("by_any_reason") or {}
    alone = counts.get("by_only_reason")
    n_left = counts.get("clips") or 0
    steps = []
    for reason in reason_order(summary):
        n_first = first.get(reason) or 0
        n_left -= n_first
        n_any = max(n_first, at_all.get(reason) or 0)
        n_alone = None if alone is None else alone.get(reason) or 0
        steps.append(
            FunnelStep(reason=reason, n_first=n_first, n_alone=n_alone, n_any=n_any, n_left=n_left)
        )
    return steps


def reason_order(summary: Mapping[str, Any]) -> list[str]:
    """Returns reasons that the recipe can give or the run gave, in their order of precedence."""
    counts = summary.get("counts") or {}
    given = {**(counts.get("by_reason") or {}), **(counts.get("by_any_reason") or {})}
    last = [
        Reason.NOT_MEASURED, Reason.CONTENT_TYPE_UNWANTED, Reason.NO_BUCKET,
        Reason.NO_ASPECT_CLASS, Reason.DUPLICATE, Reason.NOT_SELECTED, Reason.ANSWER_UNWANTED,
        Reason.NOT_ANNOTATED, Reason.JUDGED_TOO_LOW, Reason.CUT_FAILED,
    ]  # fmt: skip
    order = [str(reason) for reason in (Reason.TOO_SHORT, *_rule_reasons(summary))]
    known = {*order, *map(str, last)}
    order += sorted(reason for reason in given if reason not in known)
    recipe = summary.get("recipe") or {}
    possible = {
        Reason.CONTENT_TYPE_UNWANTED: bool((recipe.get("semantic") or {}).get("reject")),
        Reason.DUPLICATE: (recipe.get("dedup") or {}).get("enabled", True),
        Reason.NOT_SELECTED: _selects(recipe.get("select") or {}),
        Reason.ANSWER_UNWANTED: bool((recipe.get("caption") or {}).get("reject")),
    }
    order += [str(reason) for reason in last if reason in given or possible.get(reason)]
    return list(dict.fromkeys(order))


def _selects(select: Mapping[str, Any]) -> bool:
    keys = ("max_per_group", "keep_fraction")
    return any(select.get(key) is not None for key in keys) or bool(select.get("keep_fractions"))


def _rule_reasons(summary: Mapping[str, Any]) -> Iterator[str]:
    for rule in applied_rules(summary):
        if rule["severity"] == "reject":
            yield from (reason for reason, _, _ in reasons_of(rule))
