"""Holds the clips of a run: candidates at first, rows with decisions later.

Rejected clips, and columns that no later stage changes, move to the local disk when they exceed
their share of the memory.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import CuratorError, in_one_line
from curator.executor.corpus_work import CorpusWork
from curator.measures.score_list import SCORES
from curator.records.clips import OVERRIDDEN, REMAINDER, SIZED, SPANNED
from curator.stage import (
    DECISION_COLUMNS,
    REASON_NAME,
    AnyCorpusStage,
    CarriedState,
    ClipFilter,
    Decisions,
    Footage,
    ReferenceClips,
    Remainders,
    Work,
)
from curator.tables.candidate_store import ProposedUnit
from curator.tables.clip_rows import ClipRows, DiskClipTable, fields_of
from curator.tables.clip_vectors import StoredVectors
from curator.tables.corpus_tables import CorpusTables
from curator.tables.disk_table import SortedRows, in_blocks
from curator.tables.long_columns import take_rows, take_values
from curator.tables.mark_table import VERDICTS, Mark, Verdict
from curator.tables.out_layout import OWN_FOLDERS
from curator.tables.parts import with_column
from curator.tables.schemas import SHOTS_SCHEMA, candidates_schema, embeddings_schema

logger = logging.getLogger(__name__)

CLIP_ORDER = ("source_id", "start_pts", "end_pts", "clip_id")
"""Windows of two sizes may have one span."""
SHOT_ORDER = ("source_id", "shot")
_N_HELD = 8
"""Number of tables that share the memory: candidates, kept clips, rejected clips, shots, vectors of
two models, and tables that join them."""
_MAX_ROOM_BYTES = 1 << 30
"""An Arrow array of strings holds at most 2 GiB."""

_PUBLIC = "lower case letters, digits and _, at most 64"
_MAX_LEFT_BYTES = 8 << 20
RULES = "rules"
"""Family of the rules: each rule as applied, with its counts. `summary.json` has the same rows."""
_PART_OF = ("clip_id", "source_id", "shot", "start_frame", "end_frame", *SPANNED, *SIZED)
"""Columns that the row of a part copies from its clip, before `part_start_s` and `part_end_s`."""
_RESERVED = frozenset({"fingerprint", "generation"})
"""Names that the run itself writes; a stage may not use them."""


def memory_budget_of(memory_bytes: int) -> int:
    """Returns how much of the memory each of `_N_HELD` tables may take, in bytes."""
    return min(_MAX_ROOM_BYTES, memory_bytes // _N_HELD)


def _no_footage() -> Footage:
    raise CuratorError("clips of some sources alone are not compared")


def _nothing(family: str) -> None:
    """Returns the values of a family if no earlier generation counts: None."""


class CorpusState:
    """The clips, and what stages said about them so far; `decide` runs the next stage.

    Args:
        clips: Candidates in the order of source and time, or rows with the decisions of the rules.
        memory_budget_bytes: Memory for each table.
        vectors: Returns the vectors of a table, by its name.
        carried: Returns the values of a family that an earlier generation left.
        tables: Tables that stages of earlier runs left; None for none.
        ready: Names of stages that are set up; None for none.
        footage: Returns the footage of the clips.
        reference_clips: Returns clips outside of these, which no decision changes.
        marks: Marks by clip id.
        propose: Returns candidates made of parts of clips, from rows of `parts`, in the form of
            the output; None if parts do not become clips.

    Attributes:
        carried_state: JSON values that stages leave, by family. Tables are in `tables` instead.
        warnings: Warnings of stages, a line each.
        parts: Parts of clips that the last stage turns into clips; None for none.
    """

    def __init__(
        self,
        clips: SortedRows | pa.Table | ClipRows,
        memory_budget_bytes: int,
        *,
        vectors: Callable[[str], StoredVectors],
        carried: Callable[[str], Any] = _nothing,
        tables: CorpusTables | None = None,
        ready: set[str] | None = None,
        footage: Callable[[], Footage] = _no_footage,
        reference_clips: Callable[[], Sequence[ReferenceClips]] = tuple,
        marks: Mapping[str, Mark] = MappingProxyType({}),
        propose: Callable[[pa.Table], pa.Table] | None = None,
    ) -> None:
        self._propose = propose
        self._rules: list[AnyCorpusStage] = []
        """Stages that have decided, and will decide about parts of clips."""
        self._marked = {
            verdict: pa.array([n for n, m in marks.items() if m.verdict == verdict], pa.string())
            for verdict in VERDICTS
        }
        self.footage, self.reference_clips = footage, reference_clips
        self._memory_budget_bytes = memory_budget_bytes
        self.vectors, self.carried, self._tables = vectors, carried, tables
        self.read = _nothing if tables is None else tables.read
        self._ready = set() if ready is None else ready
        self._candidates = None if isinstance(clips, ClipRows) else clips
        self._rows = clips if isinstance(clips, ClipRows) else None
        self._store: DiskClipTable | None = None
        self.carried_state: dict[str, Any] = {}
        self._left_tables: dict[str, pa.Table] = {}
        self.warnings: list[str] = []
        self.parts: pa.Table | None = None
        self._over = partial(
            CorpusState,
            memory_budget_bytes=memory_budget_bytes,
            vectors=vectors,
            ready=self._ready,
            carried=carried,
            footage=footage,
            reference_clips=reference_clips,
            marks=marks,
        )

    @property
    def clips(self) -> DiskClipTable:
        """All clips; available after the first decision."""
        assert self._store is not None, "no stage has decided"
        return self._store

    @property
    def rows(self) -> ClipRows:
        """Rows of the clips that the rules keep."""
        return self.clips.rows if self._rows is None else self._rows

    def marked(self, verdict: Verdict, ids: pa.ChunkedArray) -> NDArray[np.bool_]:
        """Returns which of some clips have a mark with this verdict, bool [N]."""
        if not len(self._marked[verdict]):
            return np.zeros(len(ids), np.bool_)
        is_marked = pc.is_in(ids, value_set=self._marked[verdict])
        return np.asarray(is_marked.to_numpy(zero_copy_only=False), np.bool_)

    def decide(self, stage: AnyCorpusStage, work: Work) -> None:
        """Runs a stage, and its rules over the candidates made of parts of clips.

        Raises `CuratorError` if a custom stage raises, or leaves a value that a run cannot store.
        """
        candidates, self._candidates, self.parts = self._candidates, None, None
        corpus = (
            _KeptView(self, self.rows) if candidates is None else _CandidateView(self, candidates)
        )
        try:
            if stage.name not in self._ready:
                stage.setup()
                self._ready.add(stage.name)
            for outcome in stage.decide(corpus, work):
                if isinstance(outcome, Decisions):
                    corpus.take(outcome)
                elif isinstance(outcome, CarriedState):
                    self._leave(stage.name, outcome)
                elif isinstance(outcome, Remainders):
                    assert isinstance(corpus, _KeptView), "the first stage divides no clips"
                    self.parts = corpus.parts(outcome)
                elif isinstance(outcome, str):
                    self.warnings.append(outcome)
                else:
                    raise TypeError(
                        f"decide yields {outcome!r}; expected Decisions, CarriedState, or a text "
                        "to warn with"
                    )
        except CuratorError:
            raise
        except Exception as error:
            if type(stage).__module__.startswith("curator."):
                raise
            raise CuratorError(
                f"stage {stage.name} of the recipe's `stages` fails: {in_one_line(error)}; the run "
                "changed nothing"
            ) from error
        if self.parts is not None and self.parts.num_rows and self._propose is not None:
            self._add_parts(self.parts, self._propose(self.parts))
        if not self._rules or isinstance(stage, ClipFilter):
            self._rules.append(stage)

    def _add_parts(self, parts: pa.Table, candidates: pa.Table) -> None:
        """Adds clips that are parts of others; the rules filter them by the bounds of all clips."""
        if not candidates.num_rows:
            return
        order = pc.sort_indices(candidates, [(name, "ascending") for name in CLIP_ORDER])
        some = self._over(take_rows(candidates, order), carried=self.carried_state.get)
        for stage in self._rules:
            some.decide(stage, CorpusWork(stage.name))
        decided = pa.concat_tables(some.clips.blocks())
        details = pa.array([f"{REMAINDER} of {name}" for name in _parents(decided, parts)])
        self.clips.append(with_column(decided, "reason_detail", details.cast(pa.string())))
        counts = {rule["rule"]: rule for rule in some.carried_state[RULES]}
        for rule in self.carried_state[RULES]:
            more = counts.get(rule["rule"], {})
            rule |= {name: rule[name] + more.get(name, 0) for name in ("first", "alone", "any")}

    def table(self, family: str) -> pa.Table | None:
        """Returns the newest table of a family that a stage left; None if there is none."""
        table = self._left_tables.get(family)
        return self.read(family) if table is None else table

    def _leave(self, stage: str, left: CarriedState) -> None:
        if isinstance(left.rows, pa.Table):
            if left.family not in OWN_FOLDERS:
                raise CuratorError(
                    f"stage {stage}: {left.family!r} is a table, and an output root has no folder "
                    "of this name; leave values that JSON can hold"
                )
            if self._tables is not None:
                self._tables.write(left.family, left.rows)
            else:
                self._left_tables[left.family] = left.rows
            return
        if left.family in _RESERVED or left.family in self.carried_state:
            raise CuratorError(
                f"stage {stage} leaves {left.family!r}, a name that the run or a stage uses "
                "already; expected another name"
            )
        if REASON_NAME.fullmatch(left.family) is None:
            raise CuratorError(f"stage {stage} leaves {left.family!r}; expected {_PUBLIC}")
        try:
            n_bytes = len(json.dumps(left.rows, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise CuratorError(
                f"stage {stage}: JSON cannot hold the value of {left.family!r}: {error}; expected "
                "dicts with texts as keys, lists, texts, finite numbers, or None"
            ) from error
        if n_bytes > _MAX_LEFT_BYTES:
            raise CuratorError(
                f"stage {stage}: {left.family!r} takes {n_bytes} bytes as JSON; expected at most "
                f"{_MAX_LEFT_BYTES}, because each snapshot holds these bytes"
            )
        self.carried_state[left.family] = left.rows

    def add_decided(self, decided: pa.Table) -> None:
        """Adds clips with decisions; clips come in order."""
        if self._store is None:
            self._store = DiskClipTable(decided.schema, self._memory_budget_bytes)
        self._store.add(decided)


class _CorpusView:
    """A `curator.stage.Corpus`: what a stage reads of a `CorpusState`."""

    def __init__(self, of: CorpusState) -> None:
        self._of = of
        self.vectors, self.carried, self.read = of.vectors, of.carried, of.read
        self.footage, self.reference_clips, self.marked = of.footage, of.reference_clips, of.marked


class _CandidateView(_CorpusView):
    """The candidates, for the first stage, which decides about a block before it reads the next."""

    def __init__(self, of: CorpusState, candidates: SortedRows | pa.Table) -> None:
        super().__init__(of)
        self._all = candidates
        self._block = candidates.schema.empty_table()

    @property
    def num_rows(self) -> int:
        return int(self._all.num_rows)

    @property
    def column_names(self) -> list[str]:
        return list(self._all.column_names)

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return self._all[name]

    def blocks(self, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        blocks = in_blocks(self._all) if isinstance(self._all, pa.Table) else self._all.blocks()
        # Without clips, there is one empty block.
        for block in blocks if self.num_rows else [self._block]:
            self._block = block
            yield block if names is None else block.select(names)

    def take(self, decisions: Decisions) -> None:
        assert len(decisions.rows) == self._block.num_rows, (
            "the first stage decides about whole blocks"
        )
        clips = self._block.drop_columns(["seconds"])
        for name, column in _decided(decisions).items():
            clips = with_column(clips, name, column)
        self._of.add_decided(clips)


class _KeptView(_CorpusView):
    """The rows that are kept when a stage begins, for all stages but the first."""

    def __init__(self, of: CorpusState, rows: ClipRows) -> None:
        super().__init__(of)
        self._rows = rows
        self._numbers = rows.kept_numbers()
        self._is_decided = np.zeros(len(self._numbers), np.bool_)
        self._is_kept = pc.equal(rows.column("decision"), "kept")

    @property
    def num_rows(self) -> int:
        return len(self._numbers)

    @property
    def column_names(self) -> list[str]:
        return list(self._rows.schema.names)

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        column = self._rows.column(name)
        return column if len(self._numbers) == len(column) else column.filter(self._is_kept)

    def blocks(self, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        start = 0
        # Without clips, there is one empty block.
        schema = self._rows.schema if names is None else fields_of(self._rows.schema, names)
        none = self._rows.slice(0, 0, schema)
        for block in self._rows.blocks(names) if len(self._rows) else [none]:
            yield block.filter(self._is_kept.slice(start, block.num_rows))
            start += block.num_rows

    def take(self, decisions: Decisions) -> None:
        _check(decisions, self._is_decided)
        if len(decisions.rows):
            self._is_decided[decisions.rows] = True
            columns = _decided(self._with_marks(decisions))
            if "reasons" not in columns:
                columns["reasons"] = _lists(columns["reason"])
            self._rows.scatter(self._numbers[decisions.rows], pa.table(columns))

    def _with_marks(self, decisions: Decisions) -> Decisions:
        """Takes back rejections of clips marked `keep`, for the reasons in `OVERRIDDEN`."""
        reason = decisions.columns["reason"].cast(pa.string())
        is_taken_back = pc.is_in(reason, value_set=pa.array(sorted(OVERRIDDEN)))
        if not pc.any(is_taken_back).as_py():
            return decisions
        ids = self["clip_id"].take(pa.array(decisions.rows))
        is_taken_back = pc.and_(is_taken_back, pa.array(self.marked("keep", ids)))
        columns = {
            name: column if name in ("cluster", "tags") else pc.if_else(is_taken_back, None, column)
            for name, column in zip(
                decisions.columns.column_names, decisions.columns.columns, strict=True
            )
        }
        return Decisions(decisions.rows, pa.table(columns))

    def parts(self, remainders: Remainders) -> pa.Table:
        # A clip marked `keep` stays whole.
        stays = pc.equal(self["decision"], "kept").to_numpy(zero_copy_only=False)
        is_gone = ~(stays & self.marked("keep", self["clip_id"]))[remainders.rows]
        remainders = Remainders(
            remainders.rows[is_gone], remainders.start_s[is_gone], remainders.end_s[is_gone]
        )
        numbers = pa.array(self._numbers[remainders.rows])
        columns = {name: take_values(self._rows.column(name), numbers) for name in _PART_OF}
        # Rounding gives equal parts equal names.
        columns["part_start_s"] = pa.array(np.round(remainders.start_s, 3))
        columns["part_end_s"] = pa.array(np.round(remainders.end_s, 3))
        return pa.table(columns)


def _check(decisions: Decisions, is_decided: NDArray[np.bool_]) -> None:
    """Raises `ValueError` unless decisions are as `Decisions` says; `is_decided` is bool [N]."""
    rows, n_clips = np.asarray(decisions.rows), len(is_decided)
    if not rows.size and not decisions.columns.num_rows:
        return
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise ValueError(f"rows are {rows.dtype} {list(rows.shape)}; expected int64 [N]")
    strange = set(decisions.columns.column_names) - DECISION_COLUMNS
    if strange or "reason" not in decisions.columns.column_names:
        raise ValueError(
            f"columns {decisions.columns.column_names}; expected reason, and perhaps "
            f"{', '.join(sorted(DECISION_COLUMNS - {'reason'}))}"
        )
    if decisions.columns.num_rows != len(rows):
        raise ValueError(f"{decisions.columns.num_rows} rows of columns for {len(rows)} clips")
    if not 0 <= rows.min() <= rows.max() < n_clips:
        raise ValueError(
            f"clips numbered from {rows.min()} to {rows.max()}; expected 0 to {n_clips - 1}"
        )
    if len(np.unique(rows)) < len(rows) or is_decided[rows].any():
        raise ValueError("a stage decides twice about a clip; expected one decision")
    reason = decisions.columns["reason"]
    is_text = pa.types.is_string(reason.type) or pa.types.is_large_string(reason.type)
    if not (is_text or pa.types.is_null(reason.type)):
        raise ValueError(f"reason is {reason.type}; expected string")
    for name in pc.unique(reason.cast(pa.string())).drop_null().to_pylist():
        if REASON_NAME.fullmatch(name) is None or name == "kept":
            raise ValueError(f"the reason {name[:80]!r}; expected {_PUBLIC}, and not 'kept'")


def _decided(decisions: Decisions) -> dict[str, pa.ChunkedArray]:
    """Returns the columns of decisions, and the column `decision`."""
    columns = dict(zip(decisions.columns.column_names, decisions.columns.columns, strict=True))
    is_rejected = pc.is_valid(columns["reason"])
    return columns | {"decision": pc.if_else(is_rejected, "rejected", "kept")}


def _lists(reasons: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a list for each clip: with its reason, or empty if the reason is null."""
    ends = np.cumsum(pc.is_valid(reasons).to_numpy())
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    values = reasons.drop_null().combine_chunks()
    return pa.chunked_array([pa.ListArray.from_arrays(offsets, values)])


def _parents(clips: pa.Table, parts: pa.Table) -> Iterator[str]:
    """Yields for each of `clips` the id of the clip that contained it."""
    by_source: dict[str, list[tuple[int, int, str]]] = {}
    names = ("clip_id", "source_id", "start_frame", "end_frame")
    for name, source_id, start, end in zip(*(parts[n].to_pylist() for n in names), strict=True):
        by_source.setdefault(source_id, []).append((start, end, name))
    columns = (clips[name].to_pylist() for name in ("source_id", "start_frame", "end_frame"))
    for source_id, start, end in zip(*columns, strict=True):
        yield next(c for a, b, c in by_source[source_id] if a <= start and end <= b)


class RunCorpus(CorpusState):
    """The corpus of a run: clips as in `CorpusState`, with the shots and vectors of all sources.

    Args:
        as_output: Adds to candidates their size, rate and length in the output, and the metadata of
            their sources.
        memory_bytes: Memory for all tables; the rest is on the local disk.
        scores: Names of the scores that candidates have.
        tables: Tables that stages of earlier runs left; None for none.
        propose: Makes candidates from parts of clips; None if parts do not become clips.
        compared: `carried`, `footage`, `reference_clips` and `marks` of `CorpusState`.
    """

    def __init__(
        self,
        as_output: Callable[[pa.Table], pa.Table],
        memory_bytes: int,
        *,
        scores: Collection[str] = SCORES,
        tables: CorpusTables | None = None,
        propose: Callable[[pa.Table], ProposedUnit] | None = None,
        **compared: Any,  # noqa: ANN401 - checked by `CorpusState`
    ) -> None:
        self._as_output, budget = as_output, memory_budget_of(memory_bytes)
        self.shots = SortedRows(SHOTS_SCHEMA, SHOT_ORDER, budget)
        self.stored_vectors = {
            name: StoredVectors(embeddings_schema(1).empty_table(), budget)
            for name in ("embeddings", "clip_embeddings")
        }
        """Scene vectors of all clips, and CLIP vectors if the recipe names a CLIP model."""
        schema = as_output(candidates_schema(scores).empty_table()).schema
        super().__init__(
            SortedRows(schema, CLIP_ORDER, budget),
            budget,
            vectors=self.stored_vectors.__getitem__,
            tables=tables,
            propose=None if propose is None else partial(self._of_parts, propose),
            **compared,
        )

    def add(self, proposed: ProposedUnit) -> pa.Table:
        """Adds the candidates of some sources; returns them with their form in the output."""
        clips = self._as_output(proposed.clips)
        assert isinstance(self._candidates, SortedRows), "a stage has decided"
        self._candidates.add(clips)
        self.shots.add(proposed.shots)
        self._add_vectors(proposed)
        return clips

    def _add_vectors(self, proposed: ProposedUnit) -> None:
        self.stored_vectors["embeddings"].add(proposed.vectors)
        self.stored_vectors["clip_embeddings"].add(proposed.clip_vectors)

    def decide(self, stage: AnyCorpusStage, work: Work) -> None:
        """Lets a stage decide about all clips; the first stage gets the candidates."""
        n_known = len(self.warnings)
        super().decide(stage, work)
        for line in self.warnings[n_known:]:
            logger.warning(line)

    def _of_parts(self, propose: Callable[[pa.Table], ProposedUnit], parts: pa.Table) -> pa.Table:
        proposed = propose(parts)
        self._add_vectors(proposed)
        return self._as_output(proposed.clips)

    def passing(self, stages: Iterable[AnyCorpusStage], clips: pa.Table) -> ClipRows:
        """Returns those candidates of some sources that pass stages without needing other clips."""
        some = self._over(clips)
        for stage in stages:
            some.decide(stage, CorpusWork(stage.name))
        return some.rows
