"""The funnel of a run as plain text, for a terminal."""

from collections.abc import Mapping
from typing import Any

from curator.number_text import count, length, share, size
from curator.report.funnel import funnel_steps


def format_funnel(summary: Mapping[str, Any]) -> str:
    """Formats the outcomes of sources and clips as a table of fixed width.

    Returns:
        Lines without a trailing newline.
    """
    counts = summary.get("counts") or {}
    n_clips, n_kept = counts.get("clips") or 0, counts.get("kept") or 0
    shards = summary.get("shards") or []
    rows = [("sources", counts.get("sources") or 0, _also("not video by name", counts))]
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
    n_bytes = sum(shard.get("bytes") or 0 for shard in shards)
    rows.append(("shards", len(shards), size(n_bytes) if shards else ""))
    width = max(24, *(len(name) for name, _, _ in rows))
    return "\n".join(
        f"{name:<{width}}{number:>11,}  {said}".rstrip() for name, number, said in rows
    )


def _unanswered(work: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """Counts unanswered windows by reason: their clips are kept, and nothing else shows it."""
    begin = "caption_failed_"
    failed = {key.removeprefix(begin): n for key, n in work.items() if key.startswith(begin) and n}
    if not failed:
        return []
    said = ", ".join(f"{n:,} {reason}" for reason, n in failed.items())
    of = f"of {work.get('caption_windows') or 0:,} windows; {said}; see annotations.failure_detail"
    return [("  without an answer", sum(failed.values()), of)]


def _also(what: str, counts: Mapping[str, Any]) -> str:
    skipped = counts.get("skipped_names")
    return f"and {skipped:,} {what}" if skipped else ""
