"""The page of `curate tune`: the effect of other bounds, with clips on either side."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import UsageError
from curator.number_text import compared, score
from curator.report.histogram import histogram
from curator.report.page_templates import render
from curator.review.bound_tuning import Tuned, marks_of
from curator.stages.filter.judging import score_values
from curator.stages.filter.rules import Bounds
from curator.storage import Store
from curator.tables.clip_rows import ClipRows
from curator.tables.disk_table import taken

EXAMPLES = 8
"""Clips on each side of a bound, and half of those that are shown of all that change sides."""


def put_page(store: Store, page: str, path: str | None, name: str) -> Path:
    """Writes a page to a path, or into the report of a local output; returns where it is."""
    if path is None and store.is_local:
        store.write(f"report/{name}", page.encode())
        return Path(store.uri) / "report" / name
    return write_page(path or name, page)


def write_page(path: str, page: str) -> Path:
    """Writes a page; returns its path in full. Raises `UsageError` where it cannot be written."""
    where = Path(path).absolute()
    try:
        where.write_bytes(page.encode())
    except OSError as error:
        raise UsageError(f"{str(where)!r} cannot be written: {error.strerror}") from error
    return where


def render_tune(tuned: Tuned, about: Sequence[str] = ()) -> str:
    """Renders one HTML document that refers to nothing outside itself; `about` is said first."""
    finished, now, then = tuned.finished, Counter(tuned.now), Counter(tuned.then)
    names = [name for name in dict.fromkeys([*now, *then]) if name is not None]
    names.sort(key=lambda name: -max(now[name], then[name]))
    changes = [_change(tuned, before, after) for before, after in tuned.bounds]
    lost, gained = (_by_id(finished.clips, tuned.moved(was_kept=was)) for was in (True, False))
    moves = [
        ("Kept now, and then rejected", lost[: 2 * EXAMPLES], len(lost)),
        ("Rejected now, and then kept", gained[: 2 * EXAMPLES], len(gained)),
    ]
    rows = [*moves, *(row for change in changes for row in change["rows"])]
    shown = sorted({number for _, numbers, _ in rows for number in numbers})
    clips = list(ClipRows(taken(finished.clips, shown), finished.clips.schema))
    return render(
        "tune.html.j2",
        tuned=tuned,
        about=about,
        n_clips=len(tuned.now),
        n_lost=len(lost),
        n_gained=len(gained),
        reasons=[(name or "kept", now[name], then[name]) for name in [None, *names]],
        changes=changes,
        moves=moves,
        clips=dict(zip(shown, clips, strict=True)),
        thumbnails=finished.pictures(clip.clip_id for clip in clips),
        compared=_compared,
    )


def _change(tuned: Tuned, before: Bounds | None, after: Bounds) -> dict[str, Any]:
    """A rule whose bounds change, its histogram, and rows of title, numbers of clips and bound."""
    old, new = marks_of(before), marks_of(after)
    same = {side: value for side, value in new.items() if old.get(side) == value}
    marks = {f"now {side}": value for side, value in old.items() if side not in same}
    marks |= {f"then {side}": value for side, value in new.items() if side not in same} | same
    values = score_values(tuned.candidates, after.score)
    kept_then = np.array([reason is None for reason in tuned.then], dtype=np.bool_)
    shown = np.where(_up_to(tuned.decided, after), values, np.nan)
    has_new_severity = before is not None and before.severity != after.severity
    rows = []
    for side, words in (("min", ("below", "from")), ("max", ("above", "up to"))):
        bound = new.get(side, old.get(side))
        if bound is None or (new.get(side) == old.get(side) and not has_new_severity):
            continue
        went = "" if side in new else "the bound that goes, "
        for word, numbers in zip(words, _nearest(shown, bound, side), strict=True):
            rows.append((f"{went}{word} {score(bound)}", numbers, bound))
    chart = histogram(after.score, after.spec, marks, values, kept_then)
    return {"rule": after, "histogram": chart, "rows": rows}


def _up_to(decided: pa.Table, bounds: Bounds) -> NDArray[np.bool_]:
    """Returns the clips that the rule alone decides."""
    own = pa.array([bounds.spec.low, bounds.spec.high, f"{bounds.score}_unwanted"])
    reasons = decided["reasons"].combine_chunks()
    others = pc.invert(pc.is_in(reasons.flatten(), value_set=own))
    rows = pc.list_parent_indices(reasons).filter(others).to_numpy(zero_copy_only=False)
    up_to = np.ones(len(reasons), dtype=np.bool_)
    up_to[rows] = False
    return up_to


def _nearest(values: NDArray[np.float64], bound: float, side: str) -> tuple[list[int], list[int]]:
    """Returns the clips nearest to a bound: outside, and inside; from far outside to far inside."""
    order = np.argsort(values, kind="stable")
    order = order[np.isfinite(values[order])]
    if side == "max":
        order = order[::-1]
    is_outside = values[order] > bound if side == "max" else values[order] < bound
    n = int(np.sum(is_outside))
    return order[max(0, n - EXAMPLES) : n].tolist(), order[n : n + EXAMPLES].tolist()


def _by_id(clips: pa.Table, numbers: NDArray[np.int64]) -> list[int]:
    """Sorts numbers of clips by id, which is a hash: the first are a fair sample."""
    ids = clips["clip_id"].take(pa.array(numbers)).to_pylist()
    return [number for _, number in sorted(zip(ids, numbers.tolist(), strict=True))]


def _compared(value: float | None, bound: float) -> str:
    if value is None:
        return "not measured"
    return f"{score(value)} = bound" if value == bound else compared(value, bound)
