"""The summary of a generation added to that of the generations before it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from curator.tables.snapshot_store import CANDIDATES

_OF_CLIPS = ("clips", "kept", "rejected")
_BY_CLIPS = ("by_reason", "by_cut_mode", "by_any_reason", "by_only_reason", "by_tag", "by_tag_kept")
"""Counts of `counts` that are of clips; the others are of all sources."""
_OF_RULE = ("first", "alone", "any", "n_measured")


def added(before: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the summary of both.

    Args:
        before: Of the earlier generations.
        summary: Of the new one; what it says of sources, shards and tables is of all of them.
    """
    old, new = before["counts"], summary["counts"]
    counts = {name: old[name] + new[name] for name in _OF_CLIPS}
    counts |= {name: by_count(Counter(old[name]) + Counter(new[name])) for name in _BY_CLIPS}
    return {
        **summary,
        "counts": {**new, **counts},
        "rules": _rules(before["rules"], summary["rules"]),
        "kept_s": round(before["kept_s"] + summary["kept_s"], 3),
        CANDIDATES: sorted({*before[CANDIDATES], *summary[CANDIDATES]}),
    }


def by_count(counts: Mapping[str, int]) -> dict[str, int]:
    """Returns counts with the largest first, of equals by name."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _rules(
    before: Sequence[Mapping[str, Any]], rules: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Adds what rules did; those that judged no clip of the new generation stay."""
    merged = {rule["rule"]: dict(rule) for rule in before}
    for rule in rules:
        old = merged.get(rule["rule"], {})
        sums = {
            name: (old.get(name) or 0) + (rule[name] or 0)
            for name in _OF_RULE
            if rule.get(name) is not None or old.get(name) is not None
        }
        merged[rule["rule"]] = {**rule, **sums}
    return list(merged.values())
