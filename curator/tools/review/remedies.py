"""Finds settings with which a run keeps a rejected clip, and tries them on the stored clips.

Each reason against a clip has settings that end it. They are collected until the stages of the run
keep the clip, or give a reason that no setting ends.
"""

import json
import logging
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import floor, log10
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import DamagedError, RecipeError, in_one_line
from curator.measures.filtering import corpus_of, reason_of, score_values
from curator.measures.rule_config import Rule
from curator.measures.rules import Bounds, resolve, unwanted_reason
from curator.number_text import plain
from curator.pipeline import filter_needs, graph_of
from curator.recipe import Recipe, column_rules, with_changes
from curator.records.clips import OF_FORM, Reason
from curator.tables.checksums import read_parquet
from curator.tables.clip_rows import ClipRow
from curator.tables.duplicate_pairs import PAIRS, NearDuplicatePairs
from curator.tables.mark_table import Mark
from curator.tables.snapshot_store import INDEXES, listed_snapshots
from curator.tools.review.changed_decisions import (
    decide_again,
    decided_by_columns,
    is_annotated,
    is_refused_hdr,
)
from curator.tools.review.finished_run import Finished

logger = logging.getLogger(__name__)

Settings = dict[str, str]
"""Values of a recipe's keys, as `--set` takes them. The key `MARK` is a mark by hand."""
MARK = "mark"
MAX_TRIED = 100_000
"""Most clips of a run for which settings are tried with duplicates and selection. It takes about 5
CPU-seconds for a clip that was not yet compared with the others."""
_MAX_ROUNDS = 8
_OF_SEARCH = ("dedup.min_share", "dedup.remainders")
_NEXT = 1e-6
"""Step from a value to one that is above it."""


class AppliedRule(NamedTuple):
    """A rule applied to the clip."""

    rule: Rule
    bounds: Bounds
    value: float | None
    values: tuple[object, ...]
    """The clip's metadata, for a rule with `one_of` or `none_of`."""
    reason: str | None
    """The rule's reason against the clip; None if the clip passes."""
    corpus: NDArray[np.float64]
    """Scores behind the rule's quantiles; empty for a rule without quantiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Settings that were tried.

    Attributes:
        settings: Changes of the recipe, or a mark.
        blocked: Why the clip is rejected with these settings, too; empty if it is kept.
    """

    settings: Settings
    blocked: str = ""


def applied_rules(
    finished: Finished, recipe: Recipe, candidates: pa.Table, number: int
) -> Iterator[AppliedRule]:
    """Applies the rules of a recipe to a candidate by its number; flags judge no absent score.

    Leaves out rules on columns of annotators if the clip was not annotated.
    """
    whole = candidates.slice(0, finished.without_remainders().clips.num_rows)
    corpus = corpus_of(whole, filter_needs(recipe))
    frozen = finished.frozen() if recipe is finished.recipe else None
    rules = recipe.filters.root
    candidate, written = candidates.slice(number, 1), finished.clips.slice(number, 1)
    of_columns = column_rules(recipe).root
    has_columns = is_annotated(written, finished.recipe)[0]
    for bounds, rule in zip(
        resolve(rules, corpus, frozen, measures=finished.measures), rules.values(), strict=True
    ):
        if bounds.rule in of_columns and not has_columns:
            continue
        row = written if bounds.rule in of_columns else candidate
        (measured,) = score_values(row, bounds.score)
        reason = reason_of(row, bounds)
        if bounds.severity == "flag" and reason == Reason.NOT_MEASURED:
            reason = None
        stored = row[bounds.score][0].as_py() if bounds.names_values else None
        yield AppliedRule(
            rule,
            bounds,
            None if np.isnan(measured) else float(measured),
            tuple(stored) if isinstance(stored, list) else () if stored is None else (stored,),
            reason,
            corpus(bounds.score) if bounds.n_measured is not None else np.zeros(0),
        )


class Trial:
    """Decides about one clip with other settings.

    Args:
        finished: The run.
        candidates: Its candidates, or those without remainders.
        number: The clip's number.
        max_clips: Most clips for which duplicates, clusters and selection are decided again.
    """

    def __init__(
        self, finished: Finished, candidates: pa.Table, number: int, max_clips: int = MAX_TRIED
    ) -> None:
        self.is_exact = finished.clips.num_rows <= max_clips
        self.finished = (
            finished
            if candidates.num_rows == finished.clips.num_rows
            else finished.without_remainders()
        )
        self.candidates, self.number = candidates, number
        self.clip_id: str = candidates["clip_id"][number].as_py()
        # A copy, because only here do all other clips count as compared with each other.
        self.finished = replace(self.finished)
        self._compare_only(candidates["clip_id"].combine_chunks())

    def _compare_only(self, ids: pa.Array) -> None:
        """Limits the search for duplicates to pairs of this clip: others would take minutes."""
        tables, settings = self.finished.tables, self.finished.recipe.dedup.search_fingerprint
        stored = NearDuplicatePairs.of(tables.read(PAIRS), settings)
        known = pc.is_in(self.clip_id, value_set=stored.compared).as_py()
        others = ids if known else ids.filter(pc.not_equal(ids, self.clip_id))
        tables.write(PAIRS, replace(stored, compared=others).table())

    def recipe(self, settings: Settings) -> Recipe:
        """Returns the recipe with settings; raises `RecipeError` if they exclude each other."""
        changes = [f"{key}={value}" for key, value in settings.items() if key != MARK]
        return with_changes(self.finished.recipe, changes) if changes else self.finished.recipe

    def outcome(self, recipe: Recipe, settings: Settings) -> ClipRow | None:
        """Returns the clip as the recipe decides about it; None if it does not make the clip."""
        finished = self.finished
        if MARK in settings:
            # A copy has no cached marks.
            finished = replace(finished)
            names = ("clip_id", "source_id", "start_frame", "end_frame")
            (span,) = self.candidates.slice(self.number, 1).select(names).to_pylist()
            mark = Mark(**span, verdict="keep", marked_at=finished.summary["created_at"])
            finished.__dict__["tables"] = self.finished.tables
            finished.__dict__["marks"] = {**finished.marks, self.clip_id: mark}
        decisions = decide_again(finished, recipe, self.candidates, rules_only=not self.is_exact)
        row = decisions.row(self.clip_id)
        if row is not None and row.decision == "kept":
            candidate = self.candidates.slice(self.number, 1)
            if is_refused_hdr(candidate, recipe)[0]:
                row.decision, row.reason = "rejected", str(Reason.HIGH_DYNAMIC_RANGE)
                row.reasons = [str(Reason.HIGH_DYNAMIC_RANGE)]
                return row
            written = finished.clips.slice(self.number, 1)
            (decided,) = decided_by_columns(finished, recipe, written).to_pylist()
            if decided["decision"] == "rejected":
                for name in ("decision", "reason", "reasons", "reason_score", "reason_threshold"):
                    setattr(row, name, decided[name])
        return row


def find_remedies(trial: Trial, clip: ClipRow) -> list[Remedy]:
    """Returns settings with which the clip is kept; or what is known if none keep it.

    Alternatives differ in the settings against the first reason that has several.
    """
    ways = _against(trial, clip, trial.finished.recipe)
    if isinstance(ways, str):
        return [Remedy(settings={}, blocked=ways)]
    tried = [_completed(trial, settings) for settings in ways]
    return [remedy for remedy in tried if not remedy.blocked] or tried[:1]


def _completed(trial: Trial, settings: Settings) -> Remedy:
    """Adds settings against each further reason until the clip is kept."""
    reason = None
    for _ in range(_MAX_ROUNDS):
        try:
            recipe = trial.recipe(settings)
        except RecipeError as error:
            return Remedy(settings=settings, blocked=f"a recipe cannot have these: {error}")
        clip = trial.outcome(recipe, settings)
        if clip is None:
            blocked = "it would be no clip of its own: the clip that it is a part of stays whole"
            return Remedy(settings=settings, blocked=blocked)
        if clip.decision == "kept":
            return Remedy(settings=settings)
        reason = clip.reason
        ways = _against(trial, clip, recipe)
        if isinstance(ways, str):
            return Remedy(settings=settings, blocked=ways)
        if ways[0].items() <= settings.items():
            break
        settings = settings | ways[0]
        if "dedup.enabled" in settings:
            # Without a search for duplicates, its other settings have no effect.
            settings = {k: v for k, v in settings.items() if k not in _OF_SEARCH}
    return Remedy(settings=settings, blocked=f"it would be rejected as {reason} again")


def _against(trial: Trial, clip: ClipRow, recipe: Recipe) -> list[Settings] | str:
    """Returns alternative settings against all reasons; or why no setting ends one of them."""
    applied = list(applied_rules(trial.finished, recipe, trial.candidates, trial.number))
    all_ways = []
    for reason in clip.reasons or [str(clip.reason)]:
        ways = list(_ways(trial, clip, reason, recipe, applied))
        if not ways:
            why = _WHY_NONE.get(reason, "a stage of the recipe's `stages` gives this reason")
            return f"no setting of the recipe ends {reason}: {why}"
        all_ways.append(ways)
    first: Settings = {}
    for ways in all_ways:
        first |= ways[0]
    several = next((ways for ways in all_ways if len(ways) > 1), all_ways[0])
    return [first, *({**_without(first, several[0]), **way} for way in several[1:])]


def _without(settings: Settings, others: Settings) -> Settings:
    return {key: value for key, value in settings.items() if key not in others}


def _ways(
    trial: Trial, clip: ClipRow, reason: str, recipe: Recipe, applied: Sequence[AppliedRule]
) -> Iterator[Settings]:
    """Yields alternative settings against one reason; the first asks for the least."""
    rules = [rule for rule in applied if rule.bounds.severity == "reject" and rule.reason == reason]
    if rules:
        settings: Settings = {}
        for rule in rules:
            settings |= _of_rule(rule)
        yield settings
        return
    candidate = trial.candidates.slice(trial.number, 1)
    match reason:
        case Reason.TOO_SHORT:
            yield _shorter(clip, recipe, float(candidate["seconds"][0].as_py()))
        case Reason.SHORTER_THAN_WINDOW:
            yield {"propose.windows": _keeping_ends(clip, recipe)}
        case Reason.TOO_LONG:
            yield {"propose.max_s": rounded(clip.end_s - clip.start_s, down=False)}
        case Reason.HIGH_DYNAMIC_RANGE:
            yield {"cut.hdr": "tonemap"}
        case Reason.CONTENT_TYPE_UNWANTED:
            likely = rounded((clip.scores["content_probability"] or 0.0) + _NEXT, down=False)
            if float(likely) <= 1:
                yield {"semantic.reject_from": likely}
            others = [name for name in recipe.semantic.reject if name != clip.content_type]
            yield {"semantic.reject": f"[{','.join(others)}]"}
        case _ if reason in OF_FORM:
            key, column = OF_FORM[Reason(reason)]
            enlarged = key == "cut.enlarge"
            yield {key: "always" if enlarged else rounded(clip.value(column), down=False)}
        case Reason.NO_BUCKET:
            yield from _bucket(clip, recipe)
        case Reason.NO_ASPECT_CLASS:
            least = rounded((clip.reason_score or 0.0) + _NEXT, down=False)
            if float(least) < 1:
                yield {"shard.aspects_tolerance": least}
            yield {"shard.aspects_strict": "false"}
        case Reason.DUPLICATE:
            share = (clip.reason_score or 0.0) + _NEXT
            if share < 1:
                yield {"dedup.min_share": rounded(share, down=False)}
            yield {"dedup.enabled": "false"}
        case Reason.DIVIDED:
            yield {"dedup.remainders": "false"}
        case Reason.DUPLICATE_ELSEWHERE:
            own = [out for out in recipe.dedup.against if out in (clip.reason_detail or "")]
            rest = [out for out in recipe.dedup.against if out not in own[:1]]
            if own:
                yield {"dedup.against": json.dumps(rest)}
        case Reason.NOT_SELECTED:
            yield _selected(clip, recipe)
        case Reason.ACROSS_SPLITS:
            yield {"run.mode": "exact"}
        case Reason.MARKED_DROP:
            yield {MARK: "keep"}
        case Reason.ANSWER_UNWANTED:
            yield {"caption.reject": "{}"}
        case Reason.NOT_ANNOTATED | Reason.JUDGED_TOO_LOW:
            yield {"caption.failed": "keep"}
        case _:
            for stage in graph_of(recipe).deciding():
                try:
                    ways = list(stage.remedies(reason, clip))
                except Exception as error:  # noqa: BLE001 - a user's code; the rest is still useful
                    logger.warning("stage %s gives no remedies: %s", stage.name, in_one_line(error))
                    continue
                for bounds in ways:
                    yield {key: _above(value) for key, value in bounds.items()}


def _above(value: str | float) -> str:
    return value if isinstance(value, str) else rounded(value + _NEXT, down=False)


def _of_rule(rule: AppliedRule) -> Settings:
    """Returns settings with which a rule that rejects the clip passes it."""
    key, config = f"filters.{rule.bounds.rule}", rule.rule
    if rule.reason == Reason.NOT_MEASURED:
        return {f"{key}.unmeasured": "keep"}
    if rule.reason == unwanted_reason(rule.bounds.score):
        return _named_values(key, rule)
    assert rule.value is not None, "a bound rejects only a clip with the score"
    is_low = rule.bounds.min is not None and rule.value < rule.bounds.min
    side, end = ("min", "lowest") if is_low else ("max", "highest")
    settings: Settings = {}
    absolute = getattr(config, side)
    if absolute is not None and (rule.value < absolute if is_low else rule.value > absolute):
        settings[f"{key}.{side}"] = rounded(rule.value, down=is_low)
    share = getattr(config, f"drop_{end}")
    if share is not None and len(rule.corpus):
        beyond = int(np.sum(rule.corpus <= rule.value if is_low else rule.corpus >= rule.value))
        fitting = floor(max(0, beyond - 1) / len(rule.corpus) * 10_000) / 10_000
        if fitting < share:
            settings[f"{key}.drop_{end}"] = f"{fitting:g}"
    return settings or {f"{key}.severity": "flag"}


def _named_values(key: str, rule: AppliedRule) -> Settings:
    settings: Settings = {}
    texts = {str(pa.scalar(value).cast(pa.string())) for value in rule.values}

    def is_own(value: object) -> bool:
        return str(pa.scalar(value).cast(pa.string())) in texts

    if (wanted := rule.rule.one_of) is not None and not any(map(is_own, wanted)):
        settings[f"{key}.one_of"] = json.dumps([*wanted, *rule.values[:1]], ensure_ascii=False)
    if (unwanted := rule.rule.none_of) is not None and any(map(is_own, unwanted)):
        rest = [value for value in unwanted if not is_own(value)]
        settings[f"{key}.none_of"] = json.dumps(rest, ensure_ascii=False) if rest else "null"
    return settings


def _shorter(clip: ClipRow, recipe: Recipe, seconds: float) -> Settings:
    settings: Settings = {}
    if seconds < recipe.propose.min_s - _NEXT:
        # To the microsecond: with a lower value, a run would drop more guard frames of the clip.
        settings["propose.min_s"] = f"{floor(seconds * 1e6) / 1e6:.6f}".rstrip("0").rstrip(".")
    if (length := recipe.cut.length_frames) is not None and clip.n_frames < length:
        settings["cut.length_frames"] = str(clip.n_frames) if clip.n_frames > 1 else "null"
    return settings


def _keeping_ends(clip: ClipRow, recipe: Recipe) -> str:
    """Returns the windows, with ends of takes kept as shorter clips for the size of a clip."""
    frames, fps, size = clip.window_frames, clip.window_fps, clip.output_size
    windows = [
        window.model_dump(mode="json", exclude_defaults=True)
        | (
            {"remainder": "keep"}
            if window.form in ((frames, fps, size), (frames, fps, None))
            else {}
        )
        for window in recipe.propose.windows
    ]
    return json.dumps(windows)


def _bucket(clip: ClipRow, recipe: Recipe) -> Iterator[Settings]:
    """Yields settings that give a clip with a picture a bucket."""
    shard, settings, side = recipe.shard, dict[str, str](), min(clip.width, clip.height)
    if clip.n_frames < 1 or side < 1:
        return
    if side < min(shard.resolutions):
        settings["shard.resolutions"] = json.dumps([side, *shard.resolutions])
    if clip.n_frames < min(shard.lengths):
        settings["shard.lengths"] = json.dumps([clip.n_frames, *shard.lengths])
    if settings:
        yield settings


def _selected(clip: ClipRow, recipe: Recipe) -> Settings:
    """Returns settings of the selection with room for the clip's place in its group."""
    select, rank = recipe.select, int(clip.reason_score or 1)
    settings: Settings = {}
    if select.max_per_group is not None and select.max_per_group < rank:
        settings["select.max_per_group"] = str(rank)
    told = re.search(r"^(?:group (.*): )?(\d+) of (\d+) taken", clip.reason_detail or "", re.DOTALL)
    place = re.search(r"this is no\. (\d+)", clip.reason_detail or "")
    if told is None or place is None:
        return settings or {"select.keep_fraction": "1"}
    group, n_clips, at = told[1] or "", int(told[3]), int(place[1])
    share = rounded(min(1.0, (at - 1 + _NEXT) / n_clips), down=False)
    if group in select.keep_fractions:
        shares = {**select.keep_fractions, group: float(share)}
        settings["select.keep_fractions"] = json.dumps(shares, ensure_ascii=False)
    elif select.keep_fraction is not None and float(share) > select.keep_fraction:
        settings["select.keep_fraction"] = share
    return settings


def rounded(value: float, *, down: bool) -> str:
    """Rounds a value, down or up, to the fewest digits that still let the value pass the bound."""
    if value == 0:
        return "0"
    for digits in (3, 5, 8, 17):
        step = 10.0 ** (floor(log10(abs(value))) + 1 - digits)
        whole = np.floor(value / step) if down else np.ceil(value / step)
        text = f"{whole * step:.{digits}g}"
        if (float(text) <= value) if down else (float(text) >= value):
            return text
    return repr(value)


_WHY_NONE: Mapping[str, str] = {
    Reason.NO_BUCKET: "a bucket needs a picture, and this clip has none",
    Reason.REMOVED_BEFORE: "it is a copy of removed footage; only another OUT can have it",
    Reason.REMOVED: "`curate remove` took it out",
    Reason.SOURCE_CHANGED: "its source has other bytes now; the next run analyzes them",
    Reason.CUT_FAILED: "it could not be written, for the cause above; repair its source",
    Reason.DUPLICATE_ELSEWHERE: "the output with its footage is not in dedup.against",
}


def words(uri: str, clip: ClipRow, trial: Trial, remedies: Sequence[Remedy]) -> Iterator[str]:
    """Yields the remedies of a rejected clip as lines, and what was not tried."""
    kept = [remedy for remedy in remedies if not remedy.blocked]
    for number, remedy in enumerate(kept):
        which = " with all of this" if len(remedy.settings) > 1 else " by"
        yield f"It would be kept{which}:" if not number else f"or{which}:"
        yield from _options(uri, clip, remedy)
    if not kept:
        for remedy in remedies:
            if remedy.settings:
                yield "Nothing is known to keep it. With this:"
                yield from _options(uri, clip, remedy)
                yield remedy.blocked
            else:
                yield f"Nothing is known to keep it: {remedy.blocked}."
        return
    yield from _not_tried(trial, clip, kept)


def _options(uri: str, clip: ClipRow, remedy: Remedy) -> Iterator[str]:
    for key, value in remedy.settings.items():
        if key == MARK:
            yield f"  curate mark {shlex.quote(uri)} {clip.clip_id} --keep"
        else:
            yield f"  --set {shlex.quote(plain(f'{key}={value}'))}"


def _not_tried(trial: Trial, clip: ClipRow, kept: Sequence[Remedy]) -> Iterator[str]:
    recipe = trial.finished.recipe
    if not trial.is_exact:
        yield (
            "Only the rules were tried: duplicates and selection may still reject it. `curate "
            "tune` tries both."
        )
    keys = {key for remedy in kept for key in remedy.settings}
    if any(key.startswith("propose.") for key in keys):
        yield (
            "With another length, a run proposes all clips anew: others may begin or end some "
            "frames elsewhere, or be duplicates of this one."
        )
    if recipe.run.mode == "growing":
        yield "All generations were decided about together; a run decides one after the other."
    is_captioned = is_annotated(trial.finished.clips.slice(trial.number, 1), recipe)[0]
    if not (is_captioned or keys & {"caption.failed", "caption.reject"}) and recipe.caption.decides:
        yield "It has no caption yet, and captions can reject it."
    if not all(_was_written(trial, clip, trial.recipe(remedy.settings)) for remedy in kept):
        yield "Not tried: the cut. A run rejects a clip that cannot be written."


def _was_written(trial: Trial, clip: ClipRow, recipe: Recipe) -> bool:
    """Returns whether a run wrote the clip with the settings of a recipe.

    Earlier snapshots are read if settings are tried exactly.
    """
    cut = graph_of(recipe)["cut"].fingerprint({})
    if clip.value("cut_fingerprint") == cut:
        return True
    store = trial.finished.store
    for _, summary in listed_snapshots(store) if trial.is_exact else ():
        if not isinstance(summary, DamagedError) and summary["fingerprints"].get("cuts") == cut:
            # A lost or damaged index only leaves the warning in place.
            with suppress(DamagedError):
                samples = read_parquet(store, summary[INDEXES]["dataset"], ["clip_id"])
                if clip.clip_id in samples["clip_id"].to_pylist():
                    return True
    return False
