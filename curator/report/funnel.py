"""The funnel of a run: candidates, the clips that each reason removes in order, the rest."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from curator.number_text import count, length, share, size
from curator.records.clips import COMPARED, Reason
from curator.report.rule_text import applied_rules, reasons_of

AFTER_SELECTION = (
    Reason.ANSWER_UNWANTED, Reason.NOT_ANNOTATED, Reason.JUDGED_TOO_LOW, Reason.CUT_FAILED,
    Reason.SOURCE_CHANGED, Reason.REMOVED,
)  # fmt: skip
"""Reasons of clips that rules, comparison and selection keep, in the order of precedence."""


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
    """Returns a step for each reason that the recipe can give, in their order of precedence.

    Zeros are included. The last step's `n_left` is the number of clips kept.
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
    last = (
        Reason.NOT_MEASURED, Reason.CONTENT_TYPE_UNWANTED, Reason.NO_BUCKET,
        Reason.NO_ASPECT_CLASS, *COMPARED, Reason.NOT_SELECTED, *AFTER_SELECTION,
    )  # fmt: skip
    marked = [str(Reason.MARKED_DROP)] if Reason.MARKED_DROP in given else []
    order = [*marked, str(Reason.TOO_SHORT)]
    for rule in applied_rules(summary):
        if rule["severity"] == "reject":
            order += [str(reason) for reason, _, _ in reasons_of(rule)]
    names = {*order, *map(str, last)}
    order += sorted(reason for reason in given if reason not in names)
    recipe = summary.get("recipe") or {}
    select = recipe.get("select") or {}
    limits = (select.get("max_per_group"), select.get("keep_fraction"))
    possible = {
        Reason.CONTENT_TYPE_UNWANTED: bool((recipe.get("semantic") or {}).get("reject")),
        Reason.DUPLICATE_ELSEWHERE: bool((recipe.get("dedup") or {}).get("against")),
        Reason.DUPLICATE: (recipe.get("dedup") or {}).get("enabled", True),
        Reason.SEMANTIC_DUPLICATE: (recipe.get("cluster") or {}).get("similarity") is not None,
        Reason.NOT_SELECTED: limits != (None, None) or bool(select.get("keep_fractions")),
        Reason.ANSWER_UNWANTED: bool((recipe.get("caption") or {}).get("reject")),
    }
    order += [str(reason) for reason in last if reason in given or possible.get(reason)]
    return list(dict.fromkeys(order))


def format_funnel(summary: Mapping[str, Any]) -> str:
    """Formats the outcomes of sources and clips as a table of fixed width."""
    counts = summary.get("counts") or {}
    n_clips, n_kept = counts.get("clips") or 0, counts.get("kept") or 0
    shards = summary.get("shards") or []
    skipped = counts.get("skipped_names")
    also = f"and {skipped:,} not video by name" if skipped else ""
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
    rows += _unanswered(summary.get("work") or {})
    rows += [(f"  {name}", n, why) for name, n, why in gpu_trouble(summary)]
    n_bytes = sum(shard.get("bytes") or 0 for shard in shards)
    rows.append(("shards", len(shards), size(n_bytes) if shards else ""))
    width = max(24, *(len(name) for name, _, _ in rows))
    lines = [f"{name:<{width}}{number:>11,}  {said}".rstrip() for name, number, said in rows]
    return "\n".join(filter(None, [*lines, course_words(summary)]))


def course_words(summary: Mapping[str, Any]) -> str:
    """Describes what a plan expected of the run, and what came; empty without a plan."""
    plan = summary.get("plan")
    if not plan:
        return ""
    clips, cpu_s = plan["clips"], plan["cpu_s"]
    planned_s = sum(plan["stage_s"].values())
    took_s = sum((summary.get("stage_seconds") or {}).values())
    return (
        f"planned {clips['value']:,.0f} clips ({clips['low']:,.0f} to {clips['high']:,.0f}), came "
        f"{(summary.get('counts') or {}).get('kept') or 0:,}; planned CPU {length(cpu_s['value'])} "
        f"({length(cpu_s['low'])} to {length(cpu_s['high'])}), took "
        f"{length((summary.get('cpu_seconds') or {}).get('total'))}; planned time "
        f"{length(planned_s)}, took {length(took_s)}"
    )


def gpu_trouble(summary: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """Lists what a run did not do on its GPUs: a name, a number, and the reason."""
    on_cpu = (summary.get("cpu_instead_of_gpu") or {}).items()
    rows = [("by a CPU, not a GPU", n, why) for why, n in on_cpu]
    boxes = summary.get("boxes") or {}
    rows += [(name, boxes[key], why) for key, (name, why) in _BOXES.items() if boxes.get(key)]
    refused = (summary.get("cluster") or {}).get("nodes_refused") or {}
    if refused:
        name, why = next(iter(refused.items()))
        rows.append(("nodes refused", len(refused), f"such as {name}: {why}"))
    return rows


_BOXES = {
    "lost_gpu": ("GPU failed", "processes that ended for it; what they did was tried again"),
    "left_behind": ("left behind", "processes that a driver held after they were killed"),
}
"""Name and meaning of what is counted of processes with a GPU."""


def _unanswered(work: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """Counts unanswered windows by reason: their clips are kept, and nothing else shows it."""
    begin = "caption_failed_"
    failed = {key.removeprefix(begin): n for key, n in work.items() if key.startswith(begin) and n}
    if not failed:
        return []
    why = ", ".join(f"{n:,} {reason}" for reason, n in failed.items())
    of = f"of {work.get('caption_windows') or 0:,} windows; {why}; see annotations.failure_detail"
    return [("  without an answer", sum(failed.values()), of)]
