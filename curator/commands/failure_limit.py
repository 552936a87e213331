"""`--max-failed`: how many sources, clips and windows may fail, and what a command says of more."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from curator.commands.arguments import EXIT_FAILED, EXIT_OK, fraction
from curator.errors import ErrorCode

if TYPE_CHECKING:
    from curator.storage import Store

# Our choice, not measured: more than the uploads of a bucket that broke off, less than what is lost
# by a stage, a disk or a server that fails. One in any case: the demo has one file that is no film.
MAX_FAILED = 0.1
"""Share that may fail without `--max-failed`; one may in any case, unless it is all there is."""
CUT_REASONS = ("cut_failed", "source_changed", "not_annotated")
"""Reasons of clips that were decided to be kept, and then could not be cut or annotated."""


FAILED = "_failed"
"""How reasons of clips end on which an annotator failed."""


def add_max_failed(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds `--max-failed`; `what` names the things that may fail."""
    parser.add_argument(
        "--max-failed",
        type=fraction,
        metavar="FRACTION",
        help=f"exit with 3 if a larger share of the {what} fails, 0 to 1 (default: "
        f"{MAX_FAILED:g}, and one in any case unless it is all; where every window fails, nothing "
        "is committed)",
    )


def is_too_many(n_failed: int, n: int, max_failed: float | None) -> bool:
    """Whether more of `n` failed than may; `max_failed` is None for the default."""
    if max_failed is not None:
        return n_failed > max_failed * n
    return n_failed == n > 0 or n_failed > max(1, MAX_FAILED * n)


def failures_exit_code(
    store: "Store",
    summary: Mapping[str, Any],
    max_failed: float | None,
    *,
    clip_reasons: Sequence[str] = CUT_REASONS,
    sources: bool = True,
) -> int:
    """Returns `EXIT_FAILED`, and says what failed and why, if more failed than may.

    Args:
        store: Output root.
        summary: Of the finished run.
        max_failed: Share that may fail; None for the default.
        clip_reasons: Reasons of clips that count as failed.
        sources: Whether sources count.
    """
    limit = f"{MAX_FAILED:g}, the default of --max-failed," if max_failed is None else ""
    limit = limit or f"--max-failed {max_failed:g}"
    failures = [_clips(store, summary, clip_reasons), _windows(summary)]
    if sources:
        failures.insert(0, _sources(store, summary))
    code = EXIT_OK
    for n_failed, n, message, remedy in failures:
        if is_too_many(n_failed, n, max_failed):
            print(f"curate: {n_failed} of {n} {message}, more than {limit} allows; {remedy}",
                  file=sys.stderr)  # fmt: skip
            code = EXIT_FAILED
    return code


_Found = tuple[int, int, str, str]
"""How many failed, of how many, what that means, and where to read on."""


def _sources(store: "Store", summary: Mapping[str, Any]) -> _Found:
    counts = summary["counts"]
    by_code = dict(counts.get("by_error") or {})
    # Taken out on purpose.
    n_removed = by_code.pop(str(ErrorCode.REMOVED), 0)
    message = f"sources failed ({_counted(by_code)})"
    first = _first(store, summary, "sources", ("error_code", "error_message"), by_code)
    n_failed, n_sources = counts["failed"] - n_removed, counts["sources"] - n_removed
    return n_failed, n_sources, message, f"{first}see the table `sources`"


def _clips(store: "Store", summary: Mapping[str, Any], reasons: Sequence[str]) -> _Found:
    counts = summary["counts"]
    by_reason = {
        name: n
        for name, n in counts["by_reason"].items()
        if name in reasons or name.endswith(FAILED)
    }
    n_failed = sum(by_reason.values())
    message = f"clips that the recipe keeps could not be cut or annotated ({_counted(by_reason)})"
    first = _first(store, summary, "clips", ("reason", "reason_detail"), by_reason)
    remedy = f"{first}see reason_detail in the table `clips`"
    return n_failed, n_failed + counts["kept"], message, remedy


def _windows(summary: Mapping[str, Any]) -> _Found:
    work = summary["work"]
    n_failed = sum(n for name, n in work.items() if name.startswith("caption_failed_"))
    return (
        n_failed,
        work.get("caption_windows", 0),
        "windows have no annotation",
        "see `failure` in the table `annotations`; the same command asks again for those that "
        "another try may answer",
    )


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in counts.items())


def _first(
    store: "Store",
    summary: Mapping[str, Any],
    table: str,
    columns: tuple[str, str],
    counts: Mapping[str, int],
) -> str:
    """Returns the message of the first row with the commonest reason, which may name a file."""
    import pyarrow.compute as pc

    from curator.number_text import plain
    from curator.tables.checksums import read_parquet

    if not counts:
        return ""
    commonest = max(counts, key=lambda name: counts[name])
    for part in summary["tables"].get(table, ()):
        rows = read_parquet(store, part, list(columns))
        details = rows.filter(pc.equal(rows[columns[0]], commonest))[columns[1]].drop_null()
        if len(details):
            return f"the first: {plain(details[0].as_py())}; "
    return ""
