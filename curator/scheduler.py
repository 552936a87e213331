"""Runs stages over what is missing of their families.

Missing are the keys of the input less those that are stored under the family's fingerprint, in
parts or in tars. They are packed into units, sent to the executor, stored, and counted. Stages that
look at frames of the same clips, on workers of one kind, share a decode.

It knows no stage by name: a stage declares what it reads, makes and wants to see.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.annotator_worker import AnnotatorWorker, ClipResult, ClipWork
from curator.errors import CuratorError, UsageError
from curator.executor.engine import Check, Engine
from curator.executor.packing import pack
from curator.executor.progress import Progress
from curator.executor.unit_worker import stage_step
from curator.executor.worker import Chain, Step
from curator.records.sources import FULL_HD
from curator.stage import AnyAnnotator, AnyStage, ClipFacts, Resources
from curator.tables.clip_locations import Location
from curator.tables.family_store import FamilyRows, FamilyStore
from curator.tables.sample_members import MemberColumn, Members, StoredMember

logger = logging.getLogger(__name__)

ItemT = TypeVar("ItemT")

FEW_ITEMS = 256
"""New items up to which this process works alone: done before a cluster has started."""
LARGE_AFTER, LARGER = 16_384, 4
"""Items after which units have more, and how many times: a million must not be as many objects."""
UNIT_CLIPS = 16
UNIT_ROWS = 1024
"""Clips of a unit of stages that look at no frames."""
UNIT_FRAMES = 1800
"""Frames of 1080p of a unit: a minute of work, which a killed run loses at most."""
_KEYS_AT_ONCE = 16_384


class Clips(Protocol):
    """Written clips, in their order; made as they are asked for, because there may be very many."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> tuple[ClipFacts, str, Location]:
        """Returns facts with the columns that any stage reads, SHA-256 of the MP4, its place."""

    def ids(self) -> pa.Array:
        """Returns the ids of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotated:
    """What annotators made.

    Attributes:
        members: Members of each clip.
        columns: Values of families of columns, each with the number of each clip's value, -1 for
            none.
        rejected: Name of the stage that failed and its error, by clip: of required stages.
        lacking: Clips that lack values of stages that are not required, by stage.
        n_made: Values made now, by family.
        cpu_s: CPU-seconds of workers, by what they did.
    """

    members: Members
    columns: Sequence[tuple[MemberColumn, NDArray[np.int32]]]
    rejected: Mapping[str, tuple[str, str]]
    lacking: Mapping[str, int] = field(default_factory=dict)
    n_made: Counter[str] = field(default_factory=Counter)
    cpu_s: Counter[str] = field(default_factory=Counter)


class UnitRunner:
    """Sends units to workers, shows what is done, and adds up what workers report.

    Attributes:
        cpu_s: CPU-seconds of workers, by what they went into.
        counts: What stages counted.
    """

    def __init__(self, engine: Engine, progress: Progress) -> None:
        self._engine = engine
        self._progress = progress
        self.cpu_s = Counter[str]()
        self.counts = Counter[str]()

    def run(
        self,
        steps: Sequence[Step],
        units: Iterable[object],
        *,
        here: bool = False,
        small: bool = False,
        without_gpu: Chain | None = None,
        check: Check | None = None,
        is_shown: bool = True,
    ) -> Iterator[Any]:
        """Yields the results of units, in any order; arguments and errors as of `Engine.run`.

        `here` runs them in this process, one by one and in order.
        """
        engine = self._engine
        if here:
            results = engine.run_here(steps, units)
        else:
            results = engine.run(
                steps, units, small=small, without_gpu=without_gpu, check=check, is_shown=is_shown
            )
        with self._progress.polling(engine.progress):
            for unit in results:
                self.cpu_s.update(unit.cpu_s)
                self.counts.update(unit.counts)
                yield unit.results


class RowScheduler(Generic[ItemT]):
    """Runs a stage over a stream of items, of which earlier runs have rows.

    The stream is taken as there is room: memory holds a window of it and the units in progress.

    Args:
        rows: Those of the stage.
        take: Gets all rows, stored and new, in tables of some items.
    """

    def __init__(self, rows: FamilyRows[ItemT], take: Callable[[pa.Table], None]) -> None:
        self._rows, self._take = rows, take
        self._units: Iterator[list[ItemT]] = iter(())
        self._head: list[list[ItemT]] = []
        self.n_made = 0
        """Items that had no rows."""

    def begin(self, items: Iterable[ItemT]) -> list[ItemT] | None:
        """Takes items until it is known whether few are missing; returns them if so."""
        self._units = self._packed(self._rows.missing(items, self._take))
        while self.n_made <= FEW_ITEMS and (unit := next(self._units, None)) is not None:
            self._head.append(unit)
        return list(itertools.chain.from_iterable(self._head)) if self.n_made <= FEW_ITEMS else None

    def finish(self, runner: UnitRunner) -> None:
        """Makes what is missing: few items in this process, sooner than a cluster has started."""
        step = stage_step(self._rows.stage, keep=self._rows.put)
        is_few = self.n_made <= FEW_ITEMS
        for table in runner.run([step], itertools.chain(self._head, self._units), here=is_few):
            self._take(table)

    def _packed(self, missing: Iterator[ItemT]) -> Iterator[list[ItemT]]:
        most = self._rows.stage.unit_items
        while unit := list(
            itertools.islice(missing, most if self.n_made < LARGE_AFTER else LARGER * most)
        ):
            self.n_made += len(unit)
            yield unit


class Scheduler:
    """Runs annotators over written clips.

    Args:
        store: Where values are.
        engine: Where work runs.
        progress: Where it is shown.
        decode: Decodes clips in the sandbox; made with the threads of a worker.
    """

    def __init__(
        self,
        store: FamilyStore,
        engine: Engine,
        progress: Progress,
        *,
        decode: Callable[[int], AnyStage],
    ) -> None:
        self._store = store
        self._engine = engine
        self._progress = progress
        self._decode = decode

    def annotate(self, stages: Sequence[AnyAnnotator], clips: Clips) -> Annotated:
        """Returns what stages make of clips: stored values, and those that are made now.

        Args:
            stages: Annotators of a graph, in its order.
            clips: Those to annotate.

        Raises:
            UsageError: A stage needs a GPU and no node has one, or its `preflight` refuses.
            CuratorError: A required stage failed on all clips that it got.
        """
        members = Members(clips.ids())
        columns: list[tuple[MemberColumn, NDArray[np.int32]]] = []
        rejected: dict[str, tuple[str, str]] = {}
        lacking, made = Counter[str](), Counter[str]()
        runner = UnitRunner(self._engine, self._progress)
        for kind, chain in self._chains(stages):
            work = self._missing(chain, clips)
            for values in work.values:
                for column in values.columns:
                    if column.version.family.columns:
                        columns.append((column, values.of))
                    else:
                        members.add(column, values.of)
            if not len(work.numbers):
                continue
            for stage, values in zip(chain, work.values, strict=True):
                if values.is_missing.any():
                    stage.preflight()
            errors: list[dict[int, str]] = [{} for _ in chain]
            for results in self._run(runner, chain, kind, clips, work):
                for result in results:
                    for number, error in result.errors.items():
                        errors[number][int(work.values[number].of[result.number])] = error
                    for number, some in result.members.items():
                        work.values[number].take(result.number, some)
                        made.update(member.version.family.name for member in some)
            for stage, values, wrong in zip(chain, work.values, errors, strict=True):
                failed = values.clips_of(wrong)
                if not failed:
                    continue
                number, error = next(iter(failed.items()))
                first = f"such as {clips[number][0].clip_id}: {error}"
                if not stage.required:
                    lacking[stage.name] = len(failed)
                    logger.warning("%s: clips without its values: %d, %s", stage.name, len(failed),
                                   first)  # fmt: skip
                    continue
                if len(failed) == values.n_wanting:
                    raise CuratorError(
                        f"{stage.name} failed on all {len(failed)} clips that it got, {first}; "
                        "nothing was committed"
                    )
                for number, error in failed.items():
                    rejected[clips[number][0].clip_id] = (stage.name, error)
        return Annotated(
            members=members, columns=columns, rejected=rejected, lacking=lacking, n_made=made,
            cpu_s=runner.cpu_s,
        )  # fmt: skip

    def _chains(self, stages: Sequence[AnyAnnotator]) -> list[tuple[Resources, list[AnyAnnotator]]]:
        """Groups stages by the kind of their workers: those of one group share a decode."""
        chains: dict[tuple[bool, float], tuple[Resources, list[AnyAnnotator]]] = {}
        for stage in stages:
            kind = self._kind(stage)
            key = (bool(stage.frames), kind.gpus)
            if key in chains:
                resources, chain = chains[key]
                chains[key] = (_together(resources, kind), [*chain, stage])
            else:
                chains[key] = (kind, [stage])
        return list(chains.values())

    def _kind(self, stage: AnyAnnotator) -> Resources:
        for kind in stage.kinds:
            if not kind.gpus or self._engine.may_have_gpus():
                return kind
        raise UsageError(
            f"{stage.name} needs {stage.kinds[0].gpus:g} GPU, and there is none here; `curate "
            "doctor` says why"
        )

    def _missing(self, chain: Sequence[AnyAnnotator], clips: Clips) -> "_Missing":
        """Returns the stored values of a chain, and what is missing of them."""
        keys: list[list[str | None]] = [[] for _ in chain]
        chunks: list[list[pa.Array]] = [[] for _ in chain]
        frames, seconds = np.zeros(len(clips), np.float32), np.zeros(len(clips), np.float32)
        for number in range(len(clips)):
            facts, sha256, _ = clips[number]
            frames[number] = _frames_of(facts)
            seconds[number] = facts.n_frames / facts.fps
            for stage, own in zip(chain, keys, strict=True):
                own.append(stage.key(_own(facts, stage), sha256))
            if len(keys[0]) == _KEYS_AT_ONCE or number == len(clips) - 1:
                for own, done in zip(keys, chunks, strict=True):
                    done.append(pa.array(own, pa.string()))
                    own.clear()
        values = [
            _Values.find(self._store, stage, pa.chunked_array(done, pa.string()))
            for stage, done in zip(chain, chunks, strict=True)
        ]
        # Clips with the same key share a value: the first makes it.
        numbers = np.unique(np.concatenate([own.makers for own in values]))
        return _Missing(values=values, numbers=numbers, frames=frames, seconds=seconds)

    def _run(
        self,
        runner: UnitRunner,
        chain: Sequence[AnyAnnotator],
        kind: Resources,
        clips: Clips,
        work: "_Missing",
    ) -> Iterator[list[ClipResult]]:
        is_maker = [np.isin(work.numbers, own.makers) for own in work.values]

        def to_do() -> Iterator[ClipWork]:
            for at, number in enumerate(work.numbers.tolist()):
                facts, _, where = clips[number]
                keys = {
                    own: work.values[own].key(number)
                    for own, is_one in enumerate(is_maker)
                    if is_one[at]
                }
                yield ClipWork(number=number, facts=facts, where=where, keys=keys)

        frames, n_clips = float(work.frames[work.numbers].sum()), len(work.numbers)
        if any(stage.frames for stage in chain):
            units = pack(
                to_do(),
                max_items=UNIT_CLIPS,
                weight=lambda one: _frames_of(one.facts),
                max_weight=float(UNIT_FRAMES),
            )
            n_units = max(n_clips / UNIT_CLIPS, frames / UNIT_FRAMES)
        else:
            units = pack(to_do(), max_items=UNIT_ROWS)
            n_units = n_clips / UNIT_ROWS
        self._progress.work(n_clips, float(work.seconds[work.numbers].sum()))
        small = not kind.gpus and self._engine.is_small(n_clips, frames)
        n_workers = 1 if small else self._engine.n_workers(ceil(n_units), kind)
        step = Step(
            make=AnnotatorWorker,
            settings={
                "stages": chain,
                "decode": self._decode(self._engine.threads(n_workers)),
                "store": self._store,
                "has_gpu": kind.gpus > 0,
            },
            resources=kind,
            keeps_state=True,
            name=chain[0].name,
        )
        check = partial(_refusal, chain) if kind.gpus else None
        yield from runner.run([step], units, small=small, check=check)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Values:
    """The values of one stage: those that are stored, and those that are made now.

    Attributes:
        keys: Distinct keys.
        of: Number of each clip's key, int32 [clips], -1 for none.
        columns: Values by family.
        is_missing: Which keys lacked a value of any family, bool [keys].
        makers: The first clip of each of these keys, int64.
    """

    keys: pa.Array
    of: NDArray[np.int32]
    columns: Sequence[MemberColumn]
    is_missing: NDArray[np.bool_]
    makers: NDArray[np.int64]

    @classmethod
    def find(cls, store: FamilyStore, stage: AnyAnnotator, keys: pa.ChunkedArray) -> "_Values":
        distinct = keys.drop_null().unique()
        of = pc.fill_null(pc.index_in(keys, value_set=distinct), -1).to_numpy()
        columns = [
            store.find(one, pa.chunked_array([distinct])) for one in stage.versions().values()
        ]
        is_missing = ~np.logical_and.reduce([column.is_there for column in columns])
        numbers, first = np.unique(of, return_index=True)
        is_key = numbers >= 0
        makers = np.sort(first[is_key][is_missing[numbers[is_key]]])
        return cls(keys=distinct, of=of, columns=columns, is_missing=is_missing, makers=makers)

    def key(self, clip: int) -> str:
        """Returns the key of a clip by its number."""
        return str(self.keys[int(self.of[clip])].as_py())

    def take(self, clip: int, members: Sequence[StoredMember]) -> None:
        """Takes the values that were made of a clip."""
        at = int(self.of[clip])
        by_name = {column.version.family.name: column for column in self.columns}
        for member in members:
            by_name[member.version.family.name].set(at, member.where)

    @property
    def n_wanting(self) -> int:
        """Clips whose values were missing."""
        return int(self.is_missing[self.of[self.of >= 0]].sum())

    def clips_of(self, errors: Mapping[int, str]) -> dict[int, str]:
        """Returns clips by number with their errors, which are by number of the key."""
        if not errors:
            return {}
        numbers = np.flatnonzero(np.isin(self.of, list(errors))).tolist()
        return {number: errors[int(self.of[number])] for number in numbers}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Missing:
    """What is missing of a chain.

    Attributes:
        values: Of each stage.
        numbers: Of clips to work on, int64, ascending.
        frames: Frames of each clip, weighted by size: 1 for 1080p; float32 [clips].
        seconds: Likewise.
    """

    values: Sequence[_Values]
    numbers: NDArray[np.int64]
    frames: NDArray[np.float32]
    seconds: NDArray[np.float32]


def _refusal(chain: Sequence[AnyAnnotator]) -> str | None:
    return next(filter(None, (stage.node_refusal() for stage in chain)), None)


def _own(facts: ClipFacts, stage: AnyAnnotator) -> ClipFacts:
    """Returns a clip with the columns that a stage reads alone."""
    columns = {name: facts.columns[name] for name in stage.columns}
    return ClipFacts(
        clip_id=facts.clip_id, source_id=facts.source_id, n_frames=facts.n_frames, fps=facts.fps,
        width=facts.width, height=facts.height, columns=columns,
    )  # fmt: skip


def _frames_of(clip: ClipFacts) -> float:
    """Returns the frames of a clip, weighted by size: 1 for 1080p."""
    return clip.n_frames * clip.width * clip.height / FULL_HD


def _together(one: Resources, other: Resources) -> Resources:
    """Returns what a worker takes that holds the models of both."""
    return Resources(
        cpus=max(one.cpus, other.cpus),
        gpus=min(one.gpus + other.gpus, 1.0) if one.gpus < 1 else one.gpus,
        memory_bytes=one.memory_bytes + other.memory_bytes,
    )
