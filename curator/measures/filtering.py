"""Decides about all clips of a table at once, column by column.

Checks, in order: marks, length, rules, content types, buckets. The first check that a clip fails
gives its reason. 100,000 clips take 0.07 s.

Shape letters: N clips, C checks, R rules.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from operator import add, attrgetter
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.buckets import BucketClasses, aspect_loss, bucket_of
from curator.measures.clip_semantics import SemanticConfig
from curator.measures.measure_contract import OF_TIME, PICTURED
from curator.measures.rule_config import Rule
from curator.measures.rules import Bounds, Values, resolve, unwanted_reason
from curator.records.clips import OF_FORM, WINDOWED, Reason
from curator.records.sources import Medium
from curator.storage.metadata_columns import is_metadata

Mask = NDArray[np.bool_]

DECIDED = ("reason", "reason_score", "reason_threshold", "reasons", "bucket", "tags")
"""Columns that `filter_table` adds, in addition to `decision`."""

MARK_RULE = "run.marks"
LENGTH_RULE = "propose.min_s"
WINDOW_RULE = "propose.windows"
STILL_RULE = "propose.max_s"
CONTENT_RULE = "semantic.reject"
BUCKET_RULE = "shard.bucket"
"""Names of the checks that are no rules of the recipe. Rules have a dot only in names `meta.*`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterNeeds:
    """Settings of other recipe sections that decisions depend on."""

    min_s: float  # shortest clip that is no window
    # Frames, rates and sizes (None for any) of windows of which a shorter end of a take is kept.
    kept_ends: frozenset[tuple[int, float | None, str | None]] = frozenset()
    # A clip of more than twice this length is a still picture, and is rejected. None for no limit,
    # and for candidates without a stored length.
    max_s: float | None
    min_frames: int | None  # smallest number of frames; None for any number
    classes: BucketClasses  # a clip that fits no bucket is rejected
    semantic: SemanticConfig  # content types to reject
    # Bounds of what `cut.size` and `cut.fps` may do to a clip. None for no bound.
    most_enlarged: float | None = None  # factor
    most_cropped: float | None = None  # share of the picture
    most_repeated: float | None = None  # share of frames


@dataclass(frozen=True, slots=True)
class RuleCount:
    """Numbers of clips that one rule rejects or flags."""

    rule: str  # name of the rule, or of another check, such as `LENGTH_RULE`
    bounds: Bounds | None  # bounds as numbers; None for other checks
    n_first: int  # clips with the first reason from this rule
    n_alone: int  # clips with reasons from this rule alone
    n_any: int  # clips that the rule rejects or flags

    def facts(self, rules: Mapping[str, Rule]) -> dict[str, Any]:
        """Returns the rule as applied, with bounds as numbers, for the summary."""
        facts: dict[str, Any] = {"rule": self.rule}
        if self.bounds is not None:
            own, given = self.bounds, rules[self.rule]
            facts |= {key: getattr(own, key) for key in ("score", "severity", "min", "max")}
            facts |= {key: getattr(given, key) for key in ("drop_lowest", "drop_highest")}
            facts |= {"n_measured": own.n_measured, **given.values}
        return facts | {"first": self.n_first, "alone": self.n_alone, "any": self.n_any}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredClips:
    """A table of clips with decisions, and the counts of each rule."""

    clips: pa.Table
    """The given table with the column `decision` and the columns `DECIDED`; `tags` includes the
    tags of rules that flag."""
    rules: list[RuleCount]  # in order, without rules that have no bounds


@dataclass(frozen=True, slots=True)
class ReasonCheck:
    """One reason of a rule: mask, scores and thresholds of the clips that fail the check."""

    rule: str
    reason: str
    hit: Mask
    score: Values
    threshold: Values | float
    bounds: Bounds | None = None


class ColumnSource(Protocol):
    """Columns of clips: a table, or a corpus that is larger than memory."""

    @property
    def num_rows(self) -> int:
        """Number of clips."""

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""

    def __getitem__(self, name: str, /) -> pa.ChunkedArray: ...


def score_values(clips: ColumnSource, score: str) -> Values:
    """Returns values of a score, of metadata or of a column, float64 [N]; NaN if not a number.

    Raises:
        KeyError: The table has no such column.
    """
    return _values_of(clips[score])


def _values_of(column: pa.ChunkedArray) -> Values:
    if pa.types.is_float32(column.type):
        # With the fewest digits that identify the value, as people see it.
        return _floats(column.cast(pa.string()))
    if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
        return _floats(column)
    return np.full(len(column), np.nan)


def reason_of(clips: pa.Table, bound: Bounds) -> str | None:
    """Returns the reason why the only clip of a table fails a rule; None if the clip passes."""
    return next((str(check.reason) for check in rule_checks(clips, bound) if check.hit[0]), None)


def corpus_of(clips: ColumnSource, needs: FilterNeeds) -> Callable[[str], Values]:
    """Returns a function for `resolve`: a score's finite values, of clips that are long enough."""
    long_enough = ~np.logical_or(*_too_short(clips, needs))

    def corpus(score: str) -> Values:
        values = score_values(clips, score)
        return values[long_enough & np.isfinite(values)]

    return corpus


def filter_table(
    clips: pa.Table,
    bounds: Sequence[Bounds],
    needs: FilterNeeds,
    *,
    keep: Mask | None = None,
    drop: Mask | None = None,
) -> FilteredClips:
    """Decides about rows with the columns of `candidates_schema`.

    `keep` and `drop` are masks of the clips that users marked, bool [N].
    """
    bucket_codes, buckets = _buckets(clips, needs.classes)
    has_none = bucket_codes < 0
    first, last = checks_around(clips, needs, has_none)
    checks, flagged = _checks_of_rules(clips, bounds)
    checks = with_marks(first + checks + last, keep, drop)
    columns = _decisions(checks, clips.num_rows) | {
        "bucket": pa.array(buckets, pa.string()).take(pa.array(bucket_codes, mask=has_none)),
        "tags": _tags(clips, flagged),
    }
    return FilteredClips(
        clips=_with_columns(clips, columns), rules=_counts(checks, flagged, bounds)
    )


def filter_columns(
    clips: pa.Table, rules: Mapping[str, Rule], columns: Collection[str], keep: Mask
) -> FilteredClips:
    """Decides about written clips by the rules on some columns of annotators, and nothing else.

    `keep` is the mask of the clips that users marked, which no such rule rejects, bool [N].
    """
    bounds = [bound for bound in resolve(rules) if bound.score in columns]
    checks, flagged = _checks_of_rules(clips, bounds)
    nothing = np.full(clips.num_rows, np.nan)
    # Rules that only flag clips have no check.
    none = ReasonCheck("", "", np.zeros(clips.num_rows, np.bool_), nothing, np.nan)
    checks = with_marks([none, *checks], keep, None)
    columns = _decisions(checks, clips.num_rows) | {"tags": _tags(clips, flagged)}
    return FilteredClips(
        clips=_with_columns(clips, columns), rules=_counts(checks, flagged, bounds)
    )


def _checks_of_rules(
    clips: pa.Table, bounds: Sequence[Bounds]
) -> tuple[list[ReasonCheck], list[ReasonCheck]]:
    """Returns the checks of rules that reject clips, and of rules that flag clips."""
    checks: list[ReasonCheck] = []
    flagged: list[ReasonCheck] = []
    for bound in bounds:
        against = rule_checks(clips, bound)
        if bound.severity == "reject":
            checks += against
            continue
        measured = (check for check in against if check.reason != Reason.NOT_MEASURED)
        flagged += [replace(check, reason=bound.tag(check.reason)) for check in measured]
    return checks, flagged


def _with_columns(clips: pa.Table, columns: Mapping[str, pa.Array]) -> pa.Table:
    for name, column in columns.items():
        at = clips.schema.get_field_index(name)
        own = clips.schema.field(at) if at >= 0 else name
        clips = clips.set_column(at, own, column) if at >= 0 else clips.append_column(own, column)
    return clips


def checks_around(
    clips: pa.Table, needs: FilterNeeds, has_none: Mask | None = None
) -> tuple[list[ReasonCheck], list[ReasonCheck]]:
    """Returns the checks that come before the rules, and the checks that come after them.

    `has_none` is the mask of clips that fit no bucket, bool [N]; None to compute the mask.
    """
    if has_none is None:
        has_none = _buckets(clips, needs.classes)[0] < 0
    seconds = _floats(clips["seconds"])
    (hit, is_end), threshold = _too_short(clips, needs), np.full(clips.num_rows, needs.min_s)
    if needs.min_frames is not None:
        lacks = (_floats(clips["n_frames"]) < needs.min_frames) & ~_is_other(clips, OF_TIME)
        threshold = np.where(
            lacks & ~hit, needs.min_frames / _floats(clips["written_fps"]), threshold
        )
        hit |= lacks
    first = [ReasonCheck(LENGTH_RULE, Reason.TOO_SHORT, hit, seconds, threshold)]
    if is_end.any():
        n_frames, least = (_floats(clips[name]) for name in ("n_frames", "window_frames"))
        why = Reason.SHORTER_THAN_WINDOW
        first.append(ReasonCheck(WINDOW_RULE, why, is_end, n_frames, least))
    if needs.max_s is not None:
        # Only a still picture is so long: nothing can split it.
        hit = (seconds > 2 * needs.max_s) & ~_is_window(clips)
        if hit.any():
            first.append(ReasonCheck(STILL_RULE, Reason.TOO_LONG, hit, seconds, needs.max_s))
    last = [_content_check(clips, needs.semantic)] if needs.semantic.reject else []
    last += _form_checks(clips, needs)
    return first, last + _bucket_checks(clips, has_none, needs.classes)


def with_marks(
    checks: list[ReasonCheck], keep: Mask | None, drop: Mask | None
) -> list[ReasonCheck]:
    """Rejects clips marked `drop`; checks of scores and content types pass clips marked `keep`."""
    for at, check in enumerate(checks):
        of = check.bounds.score if check.bounds is not None else None
        is_by_score = check.rule == CONTENT_RULE or (of is not None and not is_metadata(of))
        if keep is not None and is_by_score:
            checks[at] = replace(check, hit=check.hit & ~keep)
    if drop is None or not drop.any():
        return checks
    nothing = np.full(len(drop), np.nan)
    return [ReasonCheck(MARK_RULE, Reason.MARKED_DROP, drop, nothing, np.nan), *checks]


def _floats(column: pa.ChunkedArray) -> Values:
    # Not all whole numbers of 64 bits are floats.
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), np.float64)


def _is_other(clips: ColumnSource, media: Set[Medium]) -> Mask:
    """Returns the mask of clips of other media than these, bool [N]."""
    if media >= PICTURED:
        # No stage makes clips of other media; tables with columns of annotators alone have none.
        return np.zeros(clips.num_rows, np.bool_)
    others = pa.array([str(medium) for medium in Medium if medium not in media], pa.string())
    return np.asarray(pc.is_in(clips["medium"], value_set=others), np.bool_)


def _is_window(clips: ColumnSource) -> Mask:
    """Returns the mask of clips with all frames of their window, bool [N]."""
    if "window_frames" not in clips.column_names:
        return np.zeros(clips.num_rows, np.bool_)
    is_whole: Mask = _floats(clips["n_frames"]) >= _floats(clips["window_frames"])
    return is_whole


def _too_short(clips: ColumnSource, needs: FilterNeeds) -> tuple[Mask, Mask]:
    """Returns the masks of clips below `min_s`, and of ends of takes that are not kept."""
    short: Mask = _floats(clips["seconds"]) < needs.min_s - 1e-6
    short &= ~_is_other(clips, OF_TIME)
    if "window_frames" not in clips.column_names:
        return short, np.zeros(clips.num_rows, np.bool_)
    frames, fps = (_floats(clips[name]) for name in WINDOWED)
    is_end: Mask = _floats(clips["n_frames"]) < frames
    for size, rate, output in needs.kept_ends:
        is_kept = (frames == size) & (np.isnan(fps) if rate is None else fps == rate)
        if output is not None:
            is_kept &= pc.fill_null(pc.equal(clips["output_size"], output), False).to_numpy()
        is_end &= ~is_kept
    return short & ~is_end & ~_is_window(clips), is_end


def rule_checks(clips: ColumnSource, bound: Bounds) -> Iterator[ReasonCheck]:
    """Yields a rule's checks, one per reason, for rules of either severity.

    In a table from before a score existed, no clip is measured.
    """
    if bound.is_idle:
        return
    if bound.score in clips.column_names:
        column = clips[bound.score]
    else:
        column = pa.chunked_array([pa.nulls(clips.num_rows, pa.float64())])
    values = _values_of(column)

    def check(reason: str, hit: Mask, threshold: float | None) -> ReasonCheck:
        least = np.nan if threshold is None else threshold
        return ReasonCheck(bound.rule, reason, hit, values, least, bound)

    if bound.unmeasured == "reject":
        absent = np.asarray(pc.is_null(column)) if bound.names_values else np.isnan(values)
        absent = absent & ~_is_other(clips, bound.spec.media)
        yield check(Reason.NOT_MEASURED, absent, bound.max if bound.min is None else bound.min)
    if bound.names_values:
        yield check(unwanted_reason(bound.score), _is_unwanted(column, bound), None)
    # A clip at a bound of 0.7 is kept, also if its value has single precision.
    is_single = pa.types.is_float32(column.type)
    exact = np.float32 if is_single else np.float64
    compared = values.astype(exact)
    if bound.min is not None:
        is_below = np.asarray(compared < exact(bound.min), np.bool_)
        yield check(bound.spec.low, is_below, bound.min)
    if bound.max is not None:
        is_above = np.asarray(compared > exact(bound.max), np.bool_)
        if bound.min is not None:
            # Bounds by quantile can cross: a value outside both counts only as too low.
            is_above &= ~(compared < exact(bound.min))
        yield check(bound.spec.high, is_above, bound.max)


def _is_unwanted(column: pa.ChunkedArray, bound: Bounds) -> Mask:
    """Returns the mask of clips with metadata that break a rule; a list matches by any item."""
    values = column.combine_chunks()
    rows = np.arange(len(values))
    if pa.types.is_list(values.type):
        rows = np.asarray(pc.list_parent_indices(values), np.int64)
        values = values.flatten()
    texts = values.cast(pa.string())
    is_known = np.zeros(len(column), np.bool_)
    is_known[rows[np.asarray(pc.is_valid(texts))]] = True
    unwanted: Mask = np.zeros(len(column), np.bool_)
    for named, is_wanted in ((bound.one_of, True), (bound.none_of, False)):
        if named is not None:
            words = [str(pa.scalar(value).cast(pa.string())) for value in named]
            is_named = pc.is_in(texts, value_set=pa.array(words, pa.string()))
            has_named = np.zeros(len(column), np.bool_)
            has_named[rows[np.asarray(is_named)]] = True
            unwanted |= has_named != is_wanted
    return unwanted & is_known


def _content_check(clips: pa.Table, semantic: SemanticConfig) -> ReasonCheck:
    """Rejects clips of an unwanted type if its probability is at least `reject_from`."""
    probability = score_values(clips, "content_probability")
    unwanted = pc.is_in(clips["content_type"], value_set=pa.array(semantic.reject, pa.string()))
    least = semantic.reject_from
    hit = np.asarray(unwanted.to_numpy(), np.bool_) & (probability >= least)
    return ReasonCheck(CONTENT_RULE, Reason.CONTENT_TYPE_UNWANTED, hit, probability, least)


def _form_checks(clips: pa.Table, needs: FilterNeeds) -> Iterator[ReasonCheck]:
    """Yields checks of how the form that the recipe sets changes clips; see `FITTED`."""
    bounds = (needs.most_enlarged, needs.most_cropped, needs.most_repeated)
    for (reason, (key, column)), most in zip(OF_FORM.items(), bounds, strict=True):
        if most is not None and column in clips.column_names:
            values = _floats(clips[column])
            bound: Values | float = most
            if reason == Reason.SLOWER_THAN_FPS:
                bound = _most_repeated(clips, most)
            if (hit := values > bound).any():
                yield ReasonCheck(key, reason, hit, values, bound)


def _most_repeated(clips: pa.Table, most: float) -> Values:
    """Returns the bound on `repeated_share`: one frame where the rate itself asks for fewer.

    Of a short clip, the rounding of its length to frames is one frame.
    """
    is_rounding = 1 - 1 / _floats(clips["rate_factor"]) <= most
    return np.where(is_rounding, np.maximum(most, 1 / _floats(clips["n_frames"])), most)


def _buckets(clips: pa.Table, shard: BucketClasses) -> tuple[NDArray[np.int64], list[str]]:
    """Returns the number of each clip's bucket, int64 [N], -1 for none, and the buckets' names."""
    sizes = [np.asarray(clips[name].to_numpy(), np.int64) for name in ("width", "height")]
    n_frames = np.asarray(clips["n_frames"].to_numpy(), np.int64)
    length_class = np.searchsorted(np.sort(shard.lengths), n_frames, "right")
    length_class[_is_other(clips, OF_TIME)] = -1
    types, type_codes = _content_codes(clips) if shard.by_content_type else ([], 0 * n_frames)
    kinds, first, inverse = np.unique(
        np.stack([*sizes, length_class, type_codes], axis=1),
        axis=0,
        return_index=True,
        return_inverse=True,
    )
    names: list[str] = []
    codes = np.full(len(kinds), -1, np.int64)
    for number, (width, height, length, type_code) in enumerate(kinds):
        if min(width, height) <= 0:
            continue
        bucket = bucket_of(
            int(width),
            int(height),
            int(n_frames[first[number]]),
            shard,
            content_type=types[type_code] if types else None,
            is_still=length == -1,
        )
        if bucket is not None:
            codes[number] = len(names)
            names.append(bucket.name)
    return codes[inverse.reshape(-1)], names


def _content_codes(clips: pa.Table) -> tuple[list[str | None], NDArray[np.int64]]:
    """Returns the content types, None first, and the number of each clip's type, int64 [N]."""
    coded = clips["content_type"].combine_chunks().dictionary_encode()
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64) + 1
    return [None, *coded.dictionary.to_pylist()], codes


def _bucket_checks(clips: pa.Table, hit: Mask, shard: BucketClasses) -> list[ReasonCheck]:
    sizes = np.stack([np.asarray(clips[n].to_numpy(), np.int64) for n in ("width", "height")])
    side, n_frames = np.minimum(*sizes), _floats(clips["n_frames"])
    smallest, fewest = float(min(shard.resolutions)), float(min(shard.lengths))
    is_small = side < smallest
    shapes: list[ReasonCheck] = []
    if shard.aspects_strict:
        kinds, inverse = np.unique(sizes, axis=1, return_inverse=True)
        loss = np.array(
            [aspect_loss(int(w), int(h), shard) if min(w, h) > 0 else 0.0 for w, h in kinds.T]
        )
        lost = loss[inverse.reshape(-1)] if clips.num_rows else np.zeros(0)
        most = shard.aspects_tolerance
        shapes = [ReasonCheck(BUCKET_RULE, Reason.NO_ASPECT_CLASS, lost > most, lost, most)]
        hit = hit & (is_small | ((n_frames < fewest) & ~_is_other(clips, OF_TIME)))
    score, threshold = np.where(is_small, side, n_frames), np.where(is_small, smallest, fewest)
    return [ReasonCheck(BUCKET_RULE, Reason.NO_BUCKET, hit, score, threshold), *shapes]


def _decisions(checks: Sequence[ReasonCheck], n: int) -> dict[str, pa.Array]:
    hit_NC = np.stack([check.hit for check in checks], axis=1)
    rejected = hit_NC.any(axis=1)
    first = hit_NC.argmax(axis=1)
    score, threshold = np.full(n, np.nan), np.full(n, np.nan)
    for number, check in enumerate(checks):
        here = rejected & (first == number)
        score[here] = check.score[here]
        threshold[here] = np.broadcast_to(check.threshold, n)[here]
    names = list(dict.fromkeys(str(check.reason) for check in checks))
    code_C = np.array([names.index(check.reason) for check in checks])
    dictionary = pa.array(names, pa.string())
    rows, columns = np.nonzero(hit_NC)
    return {
        "decision": pa.array(["kept", "rejected"]).take(pa.array(rejected.astype(np.int8))),
        "reason": dictionary.take(pa.array(code_C[first], mask=~rejected)),
        "reason_score": pa.array(score, mask=~rejected | np.isnan(score)),
        "reason_threshold": pa.array(threshold, mask=~rejected | np.isnan(threshold)),
        "reasons": _lists(rows, code_C[columns], dictionary, n),
    }


def _tags(clips: pa.Table, flagged: Sequence[ReasonCheck]) -> pa.Array:
    n = clips.num_rows
    own = clips["tags"].combine_chunks() if "tags" in clips.column_names else None
    if own is None:
        own = pa.array([[]] * n, pa.list_(pa.string()))
    coded = own.flatten().dictionary_encode()
    names = coded.dictionary.to_pylist()
    rows = [np.asarray(pc.list_parent_indices(own).to_numpy(zero_copy_only=False), np.int64)]
    codes = [np.asarray(coded.indices.to_numpy(zero_copy_only=False), np.int64)]
    for check in flagged:
        if check.reason not in names:
            names.append(check.reason)
        rows.append(np.flatnonzero(check.hit))
        codes.append(np.full(len(rows[-1]), names.index(check.reason), np.int64))
    row, code = np.concatenate(rows), np.concatenate(codes)
    by_row = np.argsort(row, kind="stable")
    return _lists(row[by_row], code[by_row], pa.array(names, pa.string()), n)


def _lists(
    rows: NDArray[np.int64], codes: NDArray[np.int64], names: pa.Array, n: int
) -> pa.ListArray:
    """Returns n lists of names: pair i adds name `codes[i]` to list `rows[i]`, each name once."""
    if len(rows):
        _, once = np.unique(rows * len(names) + codes, return_index=True)
        once.sort()
        rows, codes = rows[once], codes[once]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), names.take(pa.array(codes)))


def _counts(
    checks: Sequence[ReasonCheck], flagged: Sequence[ReasonCheck], bounds: Sequence[Bounds]
) -> list[RuleCount]:
    """Returns the counts of rules that have checks, in the order of precedence."""
    hit_NC = np.stack([check.hit for check in checks], axis=1)
    first = np.where(hit_NC.any(axis=1), hit_NC.argmax(axis=1), -1)
    of_rule = _by_rule(checks)
    hit_NR = np.stack([hit_NC[:, numbers].any(axis=1) for numbers in of_rule.values()], axis=1)
    alone = hit_NR.sum(axis=1) == 1
    counts: dict[str, RuleCount] = {}
    for at, (rule, numbers) in enumerate(of_rule.items()):
        own = hit_NR[:, at]
        n_clips = np.isin(first, numbers).sum(), (own & alone).sum(), own.sum()
        counts[rule] = RuleCount(rule, checks[numbers[0]].bounds, *map(int, n_clips))
    for rule, numbers in _by_rule(flagged).items():
        n_any = int(np.any([flagged[number].hit for number in numbers], axis=0).sum())
        counts[rule] = RuleCount(rule, flagged[numbers[0]].bounds, 0, 0, n_any)
    return _in_order(counts, bounds)


def total_counts(parts: Iterable[Sequence[RuleCount]], bounds: Sequence[Bounds]) -> list[RuleCount]:
    """Returns the sums of the counts of a table's parts; all parts had the same bounds."""
    numbers = attrgetter("n_first", "n_alone", "n_any")
    counts: dict[str, RuleCount] = {}
    for count in itertools.chain.from_iterable(parts):
        earlier = numbers(counts[count.rule]) if count.rule in counts else (0, 0, 0)
        total = map(add, numbers(count), earlier)
        counts[count.rule] = RuleCount(count.rule, count.bounds, *total)
    return _in_order(counts, bounds)


def _in_order(counts: Mapping[str, RuleCount], bounds: Sequence[Bounds]) -> list[RuleCount]:
    rules = (bound.rule for bound in bounds)
    form = (key for key, _ in OF_FORM.values())
    order = (
        MARK_RULE,
        LENGTH_RULE,
        WINDOW_RULE,
        STILL_RULE,
        *rules,
        CONTENT_RULE,
        *form,
        BUCKET_RULE,
    )
    return [counts[name] for name in order if name in counts]


def _by_rule(checks: Sequence[ReasonCheck]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for number, check in enumerate(checks):
        numbers.setdefault(check.rule, []).append(number)
    return numbers
