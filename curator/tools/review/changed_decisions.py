"""Decides about the clips of a finished run again, by another recipe, without decoding.

The stages of `curate run` filter, deduplicate and select the stored candidates, in the form in
which the changed recipe would write them. Rules on columns of annotators apply to the clips that
the run annotated. The outcome of other later stages is not predicted, except HDR: clips that the
run rejected after selection keep their outcome.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.dataset.output_form import as_written
from curator.executor.corpus_work import CorpusWork
from curator.measures.filtering import filter_columns, score_values
from curator.measures.rules import reasons_of
from curator.pipeline import graph_of
from curator.recipe import Recipe, column_rules
from curator.records.clips import REMAINDER, SIZED, Reason
from curator.runs.corpus import CorpusState
from curator.tables.clip_rows import ClipRow, ClipRows
from curator.tables.disk_table import taken
from curator.tables.parts import with_column
from curator.tools.review.finished_run import Finished, has_tag, is_of_stage

NOT_PROPOSED = "no_clip_of_its_own"
"""Outcome of a remainder whose clip is not divided there under the changed recipe."""
_PREDICTED = frozenset({Reason.HIGH_DYNAMIC_RANGE, Reason.NO_BUCKET})
"""Reasons of stages after the selection that candidates tell, except for `_AS_WRITTEN`."""
_AS_WRITTEN = " as written"
"""End of `reason_detail` of a clip that fits no bucket because the cut made it shorter."""
_SLACK_FRAMES = 2.0
"""Frames by which a stored remainder may differ from the part of which a run makes it."""


@dataclass(frozen=True, kw_only=True)
class ChangedDecisions:
    """Decisions about the clips of a run under another recipe.

    Attributes:
        clips: All clips after the last stage that ran; remainders last, without those that the
            recipe does not make.
        rules: Columns `decision`, `reason` and `reasons` of the rules alone, in the order of the
            run's clips.
        then: First reason against each of the run's clips; None for a kept clip.
        n_new_parts: Parts of newly divided clips, of which a run makes clips that nothing here
            knows.
    """

    clips: pa.Table
    rules: pa.Table
    then: list[str | None]
    n_new_parts: int

    def row(self, clip_id: str) -> ClipRow | None:
        """Returns the clip with its decision; None if the recipe does not make this clip."""
        at = pc.indices_nonzero(pc.equal(self.clips["clip_id"], clip_id)).to_pylist()
        return next(iter(ClipRows(taken(self.clips, at), self.clips.schema)), None)


def after_selection(finished: Finished) -> NDArray[np.bool_]:
    """Returns the clips that stages after the selection rejected, bool [N].

    HDR clips that the cut rejected do not count, because their outcome can be predicted.
    """
    graph = graph_of(finished.recipe)
    own = {stage.name for stage in (*graph.deciding(), graph.column_filter()) if stage is not None}
    late = {row["name"] for row in graph.reasons() if row["stage"] not in own} - _PREDICTED
    is_late = pc.is_in(finished.clips["reason"], value_set=pa.array(sorted(late), pa.string()))
    details = pc.fill_null(pc.ends_with(finished.clips["reason_detail"], _AS_WRITTEN), False)
    is_cut = pc.fill_null(pc.equal(finished.clips["reason"], str(Reason.NO_BUCKET)), False)
    return np.asarray(pc.or_(is_late, pc.and_(is_cut, details)).to_numpy(), np.bool_)


def is_refused_hdr(clips: pa.Table, recipe: Recipe) -> NDArray[np.bool_]:
    """Returns the clips that the cut rejects because they are PQ or HLG, bool [N]."""
    if recipe.cut.hdr != "reject":
        return np.zeros(clips.num_rows, np.bool_)
    is_hdr: NDArray[np.bool_] = np.nan_to_num(score_values(clips, "hdr")) > 0
    return is_hdr


def is_annotated(clips: pa.Table, recipe: Recipe) -> NDArray[np.bool_]:
    """Returns which clips of a run with this recipe have values of its annotators, bool [N]."""
    names = [str(Reason.NOT_MEASURED), *reasons_of(column_rules(recipe).root)]
    is_ruled = pc.is_in(clips["reason"], value_set=pa.array(names, pa.string()))
    is_ruled = pc.and_(is_ruled, pc.is_valid(clips["cut_fingerprint"]))
    return np.asarray(pc.or_(pc.equal(clips["decision"], "kept"), is_ruled).to_numpy(), np.bool_)


def decided_by_columns(finished: Finished, recipe: Recipe, clips: pa.Table) -> pa.Table:
    """Applies the rules of a recipe on columns of annotators to some of a run's clips.

    Returns `decision` and the columns of reasons. A clip without values is kept, because only a run
    can compute them.
    """
    rules = column_rules(recipe)
    columns = rules.columns.intersection(clips.column_names)
    marked = [clip_id for clip_id, mark in finished.marks.items() if mark.verdict == "keep"]
    is_marked = pc.is_in(clips["clip_id"], value_set=pa.array(marked, pa.string())).to_numpy()
    own = clips.select(["clip_id", *columns])
    filtered = filter_columns(own, rules.root, columns, is_marked).clips
    is_known = is_annotated(clips, finished.recipe)
    # A rule of an earlier round may have kept a clip from the annotator of the column.
    lacks, lacked = (
        pc.fill_null(pc.equal(table["reason"], str(Reason.NOT_MEASURED)), False).to_numpy()
        for table in (filtered, clips)
    )
    is_known &= ~lacks | lacked | pc.equal(clips["decision"], "kept").to_numpy()
    is_rejected = pc.and_(pc.is_valid(filtered["reason"]), pa.array(is_known))
    for name in ("reason", "reason_score", "reason_threshold"):
        filtered = with_column(filtered, name, pc.if_else(is_rejected, filtered[name], None))
    return with_column(filtered, "decision", pc.if_else(is_rejected, "rejected", "kept"))


def decide_again(
    finished: Finished, recipe: Recipe, candidates: pa.Table, *, rules_only: bool = False
) -> ChangedDecisions:
    """Decides about all clips of a run by another recipe.

    Args:
        finished: The run, with or without remainders.
        recipe: The changed recipe.
        candidates: Those of `finished`, in the form of the recipe that was used.
        rules_only: Whether to leave duplicates, clusters, selection and custom stages as they are.
    """
    candidates = as_written(candidates, recipe.cut, recipe.shard)
    is_part = has_tag(finished.clips, REMAINDER)
    n_whole = int(np.sum(~is_part))
    parts = _StoredRemainders(candidates.slice(n_whole), candidates.slice(0, n_whole))
    clips = CorpusState(
        candidates.slice(0, n_whole),
        finished.memory_budget_bytes,
        vectors=finished.vectors,
        tables=finished.tables,
        footage=finished.footage,
        reference_clips=finished.reference_clips,
        marks=finished.marks,
        propose=parts.find,
    )
    filters, *others = graph_of(recipe).deciding()
    clips.decide(filters, CorpusWork(filters.name))
    names = ("clip_id", "decision", "reason", "reasons")
    rules = [pa.concat_tables(clips.clips.blocks(names))]
    if n_whole < candidates.num_rows:
        own = CorpusState(
            candidates.slice(n_whole),
            finished.memory_budget_bytes,
            vectors=finished.vectors,
            carried=clips.carried_state.get,
            marks=finished.marks,
        )
        own.decide(filters, CorpusWork(filters.name))
        rules += own.clips.blocks(names)
    by_rules = pa.concat_tables(rules)
    if rules_only:
        decided = by_rules
    else:
        for stage in others:
            clips.decide(stage, CorpusWork(stage.name))
        decided = pa.concat_tables(clips.clips.blocks())
    return ChangedDecisions(
        clips=decided,
        rules=by_rules,
        then=_outcomes(finished, recipe, candidates, decided, rules_only=rules_only),
        n_new_parts=parts.n_unknown,
    )


def _outcomes(
    finished: Finished,
    recipe: Recipe,
    candidates: pa.Table,
    decided: pa.Table,
    *,
    rules_only: bool,
) -> list[str | None]:
    """Returns the first reason against each of the run's clips; None for a kept clip."""
    before, ids = first_reasons(finished.clips), finished.clips["clip_id"]
    stays = after_selection(finished)
    if rules_only:
        others = reasons_after_rules(finished)
        stays |= np.array([r in others or is_of_stage(r, finished) for r in before], bool)
    # Clips come first, in the same order; a remainder may have the id of its clip.
    n_whole = int(np.sum(~has_tag(finished.clips, REMAINDER)))
    made = decided["clip_id"].slice(n_whole).combine_chunks()
    places = pc.add(pc.index_in(ids.slice(n_whole), value_set=made), n_whole).to_pylist()
    at = [*range(n_whole), *(-1 if place is None else place for place in places)]
    reasons = [*first_reasons(decided), NOT_PROPOSED]
    refused = is_refused_hdr(candidates, recipe)
    by_columns = decided_by_columns(finished, recipe, finished.clips)["reason"].to_pylist()
    then: list[str | None] = []
    for n, row in enumerate(at):
        late = before[n] if stays[n] else str(Reason.HIGH_DYNAMIC_RANGE) if refused[n] else None
        then.append(reasons[row] or late or by_columns[n])
    return then


def reasons_after_rules(finished: Finished) -> frozenset[str]:
    """Returns the reasons that stages after the rules declare, without those of `_PREDICTED`."""
    graph = graph_of(finished.recipe)
    rules = {stage.name for stage in (graph.deciding()[0], graph.column_filter()) if stage}
    names = frozenset(row["name"] for row in graph.reasons() if row["stage"] not in rules)
    return names - _PREDICTED


def first_reasons(clips: pa.Table) -> list[str | None]:
    """Returns the first reason against each clip; None for a kept clip."""
    kept = pc.equal(clips["decision"], "kept")
    reasons: list[str | None] = pc.if_else(kept, None, clips["reason"]).to_pylist()
    return reasons


class _StoredRemainders:
    """Finds the stored candidates that a run made of parts of clips.

    A run makes a candidate of the frames on screen in a part. Stored candidates of parts that
    another recipe divides off, too, are the same.
    """

    def __init__(self, stored: pa.Table, whole: pa.Table) -> None:
        self._stored, self._whole = stored, whole
        self.n_unknown = 0

    def find(self, parts: pa.Table) -> pa.Table:
        """Returns the stored candidates of parts of clips, and counts the other parts."""
        names = ["source_id", "start_s", "end_s", "n_frames", "fps", "written_fps"]
        names += (name for name in SIZED if name in self._stored.column_names)
        own = self._stored.select(names).to_pylist()
        by_source: dict[str, list[int]] = {}
        for number, row in enumerate(own):
            by_source.setdefault(row["source_id"], []).append(number)
        at = pc.index_in(parts["clip_id"], value_set=self._whole["clip_id"].combine_chunks())
        starts = self._whole["start_s"].take(at).to_pylist()
        found = set[int]()
        for part, start_s in zip(parts.to_pylist(), starts, strict=True):
            ends = (start_s + part["part_start_s"], start_s + part["part_end_s"])
            same = [
                number
                for number in by_source.get(part["source_id"], ())
                for row in (own[number],)
                for slack_s in (_SLACK_FRAMES / max(1.0, row["fps"] or row["written_fps"]),)
                if abs(row["start_s"] - ends[0]) <= slack_s
                and abs(row["end_s"] - ends[1]) <= slack_s
                and all(row.get(name) == part[name] for name in SIZED)
            ]
            found.update(same)
            self.n_unknown += not same
        return self._stored.take(pa.array(sorted(found), pa.int64()))
