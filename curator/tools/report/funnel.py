"""Rules as text, and the funnel of a run: the clips that each reason removes in order."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from curator.errors import RecipeError
from curator.measures.rules import unwanted_reason
from curator.measures.score_list import BUILT_IN, Measures
from curator.number_text import amount, count, length, percent, score, share, size
from curator.records.clips import Reason
from curator.storage.metadata_columns import is_metadata

logger = logging.getLogger(__name__)

Facts = Mapping[str, Any]


def measures_of(summary: Mapping[str, Any]) -> Measures:
    """Returns the measures of a run's recipe.

    If a custom measure cannot be loaded, logs a warning and returns only the built-in measures,
    because `curate remove` renders pages without custom classes.
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
    """Returns the rules of a run, in order: `rule`, `score`, `spec`, `severity`, `why`, bounds."""
    recipe = (summary.get("recipe") or {}).get("filters") or {}
    applied = {fact["rule"]: fact for fact in summary.get("rules") or () if fact.get("score")}
    rules: list[Facts] = []
    measures = measures_of(summary)
    for name, rule in recipe.items():
        fact = {"rule": name, "severity": "reject", **rule, **applied.get(name, {})}
        about = fact.get("score") or name
        if about in measures.specs or is_metadata(about) or fact.get("is_column"):
            rules.append(fact | {"score": about, "spec": measures.spec_of(about)})
    return rules


def reasons_of(rule: Facts) -> Iterator[tuple[str, str, float]]:
    """Yields the reasons that a rule can give, with the side and the bound of each reason."""
    spec = rule["spec"]
    for side, reason in (("min", spec.low), ("max", spec.high)):
        if rule.get(side) is not None:
            yield reason, side, float(rule[side])


def bound_words(rule: Facts, side: str) -> str:
    """Describes a bound: `motion below 0.005 short sides/s`; a quantile bound with its share."""
    unit = rule["spec"].unit
    comparison = "below" if side == "min" else "above"
    words = f"{rule['score']} {comparison} {score(rule[side])}"
    words += "" if not unit or unit.startswith("0 ") else f" {unit}"
    return words + quantile_words(rule, side)


def value_words(rule: Facts) -> str:
    """Describes the values of a rule: `meta.license one of cc0, cc-by`; empty without values."""
    parts = [
        f"{key.replace('_', ' ')} {', '.join(map(str, rule[key]))}"
        for key in ("one_of", "none_of")
        if rule.get(key) is not None
    ]
    return f"{rule['score']} {', '.join(parts)}" if parts else ""


def quantile_words(rule: Facts, side: str) -> str:
    """Describes the origin of a bound by quantile; empty for an absolute bound."""
    end = "lowest" if side == "min" else "highest"
    share = rule.get(f"drop_{end}")
    if share is None:
        return ""
    of = f" of {count(rule['n_measured'])}" if rule.get("n_measured") is not None else ""
    return f" (the {end} {percent(share)}{of})"


def reason_words(reason: str, summary: Mapping[str, Any]) -> str:
    """Describes a reason as its stage declares it, or the bound of its rule; may be empty."""
    for declared in summary.get("reasons") or ():
        if declared["name"] == reason and declared["words"]:
            return str(declared["words"])
    for rule in applied_rules(summary):
        for given, side, _ in reasons_of(rule):
            if reason == given and rule["severity"] == "reject":
                why = f"; {rule['why']}" if rule.get("why") else ""
                return f"{bound_words(rule, side)}{why}"
        if reason == unwanted_reason(rule["score"]):
            return value_words(rule)
    return next((known.words for known in Reason if known == reason), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunnelStep:
    """The clips that one reason removes.

    Attributes:
        n_first: Clips with this reason as the first; the step removes these clips.
        n_alone: Clips with no other reason; None if the run did not count them.
        n_any: Clips with this reason, first or not.
        n_left: Clips that are left after the step.
    """

    reason: str
    n_first: int
    n_alone: int | None
    n_any: int
    n_left: int


def funnel_steps(summary: Mapping[str, Any]) -> list[FunnelStep]:
    """Returns a step for each reason that the recipe can give or the run gave, by precedence.

    Steps that remove no clip are included. The last step's `n_left` is the number of kept clips.
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
    """Returns the reasons that stages list or the run gave, in their order of precedence.

    Reasons that no stage declares come last.
    """
    counts = summary.get("counts") or {}
    given = {**(counts.get("by_reason") or {}), **(counts.get("by_any_reason") or {})}
    declared = summary.get("reasons") or ()
    order = [row["name"] for row in declared if row["is_listed"] or row["name"] in given]
    return list(dict.fromkeys([*order, *sorted(given)]))


def format_funnel(summary: Mapping[str, Any]) -> str:
    """Formats the outcomes of sources and clips as a table of fixed width."""
    counts = summary.get("counts") or {}
    n_clips, n_kept = counts.get("clips") or 0, counts.get("kept") or 0
    shards = summary.get("shards") or []
    skipped = counts.get("skipped_names")
    also = f"and {skipped:,} not video by name or content" if skipped else ""
    rows = [("sources", counts.get("sources") or 0, also)]
    if counts.get("failed"):
        errors = (counts.get("by_error") or {}).items()
        rows.append(("  failed", counts["failed"], ", ".join(f"{n} {code}" for code, n in errors)))
    rows.append(("  done", counts.get("done") or 0, f"{length(summary.get('video_s'))} of video"))
    rows.append(("candidate clips", n_clips, ""))
    rows += [
        (f"  {step.reason}", -step.n_first, f"{count(step.n_left)} left")
        for step in funnel_steps(summary)
        if step.n_first
    ]
    kept = f"{share(n_kept, n_clips)} of clips, {length(summary.get('kept_s'))}"
    rows.append(("kept", n_kept, kept if n_clips else ""))
    rows += _changed_forms(counts)
    rows += _unanswered(summary.get("work") or {})
    rows += [(f"  {name}", n, why) for name, n, why in gpu_trouble(summary)]
    n_bytes = sum(shard.get("bytes") or 0 for shard in shards)
    rows.append(("shards", len(shards), size(n_bytes) if shards else ""))
    sides = [side for shard in shards for side in (shard.get("side_bytes") or {}).items()]
    for member in sorted({member for member, _ in sides}):
        own = [n for name, n in sides if name == member]
        rows.append((f"  {member}", len(own), f"{size(sum(own))} in tars of their own"))
    width = max(24, *(len(name) for name, _, _ in rows))
    lines = [f"{name:<{width}}{number:>11,}  {words}".rstrip() for name, number, words in rows]
    return "\n".join(filter(None, [*lines, course_words(summary)]))


def course_words(summary: Mapping[str, Any]) -> str:
    """Compares the run's plan with its results; empty without a plan."""
    plan = summary.get("plan")
    if not plan:
        return ""
    clips, cpu_s = plan["clips"], plan["cpu_s"]
    reused_s = sum(plan.get("sample", {}).get("reused_stage_s", {}).values())
    planned_s = sum(plan["stage_s"].values()) - reused_s
    took_s = sum((summary.get("stage_seconds") or {}).values())
    return (
        f"planned {amount(round(clips['value']), 'clip')} ({clips['low']:,.0f} to "
        f"{clips['high']:,.0f}), kept {(summary.get('counts') or {}).get('kept') or 0:,}; planned "
        f"CPU {length(cpu_s['value'])} ({length(cpu_s['low'])} to {length(cpu_s['high'])}), took "
        f"{length(_taken_s(plan, summary))}; planned time "
        f"{length(planned_s)}, took {length(took_s)}"
    )


def _taken_s(plan: Mapping[str, Any], summary: Mapping[str, Any]) -> float:
    """Returns the CPU-seconds of a run, and those of the plan whose results it used."""
    spent = (summary.get("cpu_seconds") or {}).get("total") or 0.0
    return float(spent + plan.get("sample", {}).get("reused_cpu_s", 0.0))


def gpu_trouble(summary: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """Lists GPU problems of a run: a name, a number, and the cause."""
    on_cpu = (summary.get("cpu_instead_of_gpu") or {}).items()
    rows = [("by a CPU, not a GPU", n, why) for why, n in on_cpu]
    lost = summary.get("sandboxes") or {}
    rows += [(name, lost[key], why) for key, (name, why) in _SANDBOXES.items() if lost.get(key)]
    refused = (summary.get("cluster") or {}).get("nodes_refused") or {}
    if refused:
        name, why = next(iter(refused.items()))
        rows.append(("nodes refused", len(refused), f"such as {name}: {why}"))
    return rows


_SANDBOXES = {
    "lost_gpu": ("GPU failed", "processes that ended because of it; their work was repeated"),
    "left_behind": ("left behind", "processes that a driver held after they were killed"),
}
"""Name and meaning of each count of processes with a GPU."""


_FORMS = {
    "enlarged": "pictures scaled up to cut.size",
    "shrunk": "pictures scaled down to cut.size",
    "cropped": "to the shape of cut.size",
    "retimed": "from another frame rate",
    "repeated": "with frames repeated for their rate",
}
"""Meaning of each count of kept clips in `by_form`."""


def _changed_forms(counts: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    """Counts the kept clips that the recipe's size and rate change, and how clips were written."""
    by_form = counts.get("by_form") or {}
    yield from (
        (f"  {name}", by_form[name], why) for name, why in _FORMS.items() if name in by_form
    )
    if by_form:
        modes = counts.get("by_cut_mode") or {}
        others = f"{count(modes.get('copy') or 0)} copied"
        if n_heads := modes.get("encode_head") or 0:
            others += f", {count(n_heads)} with an encoded head"
        yield "  encoded", modes.get("encode") or 0, others


def _unanswered(work: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """Counts unanswered windows by reason. Their clips are kept, so no other row shows them."""
    begin = "caption_failed_"
    failed = {key.removeprefix(begin): n for key, n in work.items() if key.startswith(begin) and n}
    if not failed:
        return []
    why = ", ".join(f"{n:,} {reason}" for reason, n in failed.items())
    n_windows = amount(work.get("caption_windows") or 0, "window")
    of = f"of {n_windows}; {why}; see annotations.failure_detail"
    return [("  without an answer", sum(failed.values()), of)]
