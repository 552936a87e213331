"""Finds the clips that a rule alone decides about: those that it keeps, and those that it rejects.

Clips that another rule rejects, too, say nothing about this rule, and are left out.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import UsageError, unknown_key
from curator.fingerprints import fingerprint
from curator.measures.rules import reasons_of
from curator.records.sources import Medium
from curator.tables.disk_table import taken
from curator.tables.sql_condition import matching_clips
from curator.tools.report.funnel import reason_order
from curator.tools.review.finished_run import Finished

_PREFIXES = ("filters.", "rules.")
_CONDITION = re.compile(r"[<>=!() ]")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRule:
    """A rule to prove.

    Attributes:
        name: The rule as the user named it, without a prefix.
        reasons: Reasons that it gives; empty for a condition.
        rules: Names of the rules of `filters` that give these reasons.
    """

    name: str
    reasons: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledClips:
    """Clips of both kinds, in the order of sources and times.

    Attributes:
        clips: Rows of the table `clips`.
        is_kept: Whether the rule keeps each clip, bool [N].
        n_kept: Kept clips of the output, of which `clips` may have only some.
        n_rejected: Clips of the output that the rule alone rejects.
    """

    clips: pa.Table
    is_kept: NDArray[np.bool_]
    n_kept: int
    n_rejected: int


def find_rule(finished: Finished, text: str) -> NamedRule:
    """Returns the rule with a name; `text` is a rule of `filters`, a reason, or a condition in SQL.

    Raises:
        UsageError: No rule or reason has this name, or the rule rejects nothing by its severity.
    """
    name = text.strip()
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    rules = finished.recipe.filters.root
    by_rule = {
        key: tuple(reasons_of({key: rule}, finished.measures)) for key, rule in rules.items()
    }
    if name in rules:
        if rules[name].severity == "flag":
            raise UsageError(
                f"the rule {name!r} flags clips and rejects none; give the clips to keep as a "
                f"condition, such as --rule '{rules[name].score or name} < 2'"
            )
        if not by_rule[name]:
            raise UsageError(f"the rule {name!r} has no bound, so it rejects nothing; set one")
        return NamedRule(name=name, reasons=by_rule[name], rules=(name,))
    reasons = reason_order(finished.summary)
    if name in reasons:
        own = tuple(key for key, given in by_rule.items() if name in given)
        return NamedRule(name=name, reasons=(name,), rules=own)
    if _CONDITION.search(name):
        return NamedRule(name=name)
    if name in finished.measures.specs:
        raise UsageError(
            f"no rule of this output bounds {name}; prove a bound, such as --rule '{name} >= 0.2'"
        )
    raise UsageError(
        f"{unknown_key(name, [*rules, *reasons], 'rule')}; expected a rule of `filters`, a reason, "
        "or a condition over columns of `clips`, such as 'sharpness >= 0.2'"
    )


def ruled_clips(finished: Finished, rule: NamedRule, most: int, seed: int) -> RuledClips:
    """Returns at most `most` kept and `most` rejected clips, of as many sources as there are.

    Raises:
        UsageError: The rule rejects or keeps no clip, or the condition is wrong.
    """
    clips = finished.without_remainders().clips
    is_video = pc.equal(clips["medium"], str(Medium.VIDEO))
    clips = clips.filter(pc.fill_null(is_video, True))
    is_kept = pc.equal(clips["decision"], "kept").to_numpy()
    if rule.reasons:
        is_rejected = _has_only(clips["reasons"], rule.reasons) & ~is_kept
    else:
        ids = matching_clips(
            clips, rule.name, example="sharpness >= 0.2", instead="--rule REASON", option="--rule"
        )
        fulfils = pc.is_in(clips["clip_id"], value_set=pa.array(ids, pa.string())).to_numpy()
        is_rejected, is_kept = is_kept & ~fulfils, is_kept & fulfils
    for has, verb in ((is_rejected, "rejects"), (is_kept, "keeps")):
        if not has.any():
            raise UsageError(
                f"{rule.name!r} {verb} no video clip of {finished.store.uri} that all other rules "
                "keep, so there is nothing to compare; `curate explain` and the report show what "
                "each rule rejects"
            )
    rows = [_spread(clips, np.flatnonzero(has), most, seed) for has in (is_kept, is_rejected)]
    chosen = np.sort(np.concatenate(rows))
    return RuledClips(
        clips=taken(clips, chosen.tolist()),
        is_kept=is_kept[chosen],
        n_kept=int(is_kept.sum()),
        n_rejected=int(is_rejected.sum()),
    )


def _has_only(reasons: pa.ChunkedArray, own: Sequence[str]) -> NDArray[np.bool_]:
    """Returns which clips have some of these reasons and no other one, bool [N]."""
    rows = reasons.to_pylist()
    return np.array([bool(row) and set(row) <= set(own) for row in rows], np.bool_)


def _spread(clips: pa.Table, rows: NDArray[np.int64], most: int, seed: int) -> NDArray[np.int64]:
    """Returns rows at random: one of each source, then a second one of each, up to `most`."""
    if len(rows) <= most:
        return rows
    own = taken(clips.select(["clip_id", "source_id"]), rows.tolist()).to_pydict()
    places = zip(own["clip_id"], own["source_id"], rows.tolist(), strict=True)
    drawn = sorted((fingerprint(seed, clip), source, row) for clip, source, row in places)
    seen: dict[str, int] = {}
    ranked = []
    for lot, source, row in drawn:
        seen[source] = seen.get(source, -1) + 1
        ranked.append((seen[source], lot, row))
    return np.array([row for _, _, row in sorted(ranked)[:most]], np.int64)
