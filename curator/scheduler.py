"""Runs stages over the items whose values are missing.

A value is missing if neither parts nor tars have its key under the family's fingerprint. The
scheduler packs missing items into units, sends the units to the executor, and counts the results;
workers store annotators' values. Annotators that need frames, on workers of one kind, share a
decode. The scheduler uses only the declarations of stages, and contains no names of stages.
"""

import itertools
import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from itertools import compress
from math import ceil
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.annotator_worker import AnnotatorWorker, ClipResult, ClipWork
from curator.errors import CuratorError, UsageError
from curator.executor.engine import Check, Engine, Placement
from curator.executor.fleet import Fleet
from curator.executor.progress import Progress
from curator.executor.unit_worker import UnitResult, stage_step
from curator.executor.worker import Batch, Chain, Step, UnitThread
from curator.number_text import amount
from curator.packing import pack
from curator.records.sources import FULL_HD
from curator.sample_frames import SampleFramesStage
from curator.stage import AnyAnnotator, AnyStage, ClipFacts, Resources
from curator.tables.clip_locations import Location
from curator.tables.family_store import FamilyRows, FamilyStore
from curator.tables.sample_members import MemberColumn, Members, StoredMember
from curator.tables.track_signals import PartsByColumn, SignalParts

logger = logging.getLogger(__name__)

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

FEW_ITEMS = 256
"""Most new items that this process handles alone. It finishes before a cluster would start."""
LARGE_AFTER, LARGER = 16_384, 4
"""After `LARGE_AFTER` items, units are `LARGER` times as large, to limit the number of objects."""
UNIT_CLIPS = 16
UNIT_ROWS = 1024
"""Clips in a unit of stages that need no frames."""
UNIT_FRAMES = 1800
"""1080p frames in a unit: a minute of work. A killed run loses at most its units in progress."""
_KEYS_AT_ONCE = 16_384

FEW_ROUNDS, MANY_ROUNDS = 4, 32
"""Fewest and most items of a service's unit, per concurrent request of its worker. Small units
leave request slots idle while their last answers arrive."""
IN_FLIGHT = 32
"""Concurrent requests per worker of a service. A worker sends 60 to 70 requests per second, enough
for 32 concurrent requests if answers take half a second."""
MANY_ITEMS = 512
"""Items that a thread of this process sends to a service in the time that Ray takes to start."""
SILENCE_S = 60.0
"""Seconds without an answer after which the run checks the service itself, to report the cause."""
GIVE_UP_S = 900.0
"""Seconds without an answer after which the run ends, if the run's own check also fails."""
_POLL_S = 1.0


class Clips(Protocol):
    """Written clips in order. Each one is created on access, because there may be very many."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> tuple[ClipFacts, str, Location]:
        """Returns facts with the columns of all stages, the SHA-256 of the MP4, and its place."""

    def ids(self) -> pa.Array:
        """Returns the ids of all clips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotated:
    """The values that annotators computed, and their failures.

    Attributes:
        members: Members of each clip.
        columns: Values of families of columns, each with the index of each clip's value, int32
            [clips], -1 for no value.
        rejected: By clip id, the name of the required stage that failed, and the error.
        lacking: Number of clips without values of an optional stage, by stage.
        n_made: Values computed now, by family.
        cpu_s: CPU-seconds of workers, by kind of work.
    """

    members: Members
    columns: list[tuple[MemberColumn, NDArray[np.int32]]] = field(default_factory=list)
    rejected: dict[str, tuple[str, str]] = field(default_factory=dict)
    lacking: Counter[str] = field(default_factory=Counter)
    n_made: Counter[str] = field(default_factory=Counter)
    cpu_s: Counter[str] = field(default_factory=Counter)


class UnitRunner:
    """Sends units to workers, shows progress, and sums the workers' CPU-seconds and counts."""

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
        placement: Placement = "ray",
        without_gpu: Chain | None = None,
        check: Check | None = None,
        is_shown: bool = True,
    ) -> Iterator[Any]:
        """Yields the results of units in any order; arguments and errors are as in `Engine.run`."""
        engine = self._engine
        results = engine.run(
            steps,
            units,
            placement=placement,
            without_gpu=without_gpu,
            check=check,
            is_shown=is_shown,
        )
        with self._progress.polling(engine.progress):
            for unit in results:
                self.cpu_s.update(unit.cpu_s)
                engine.cpu_s.update(unit.cpu_s)
                engine.counts.traffic["source_bytes"] += unit.counts["source_bytes"]
                self.counts.update(unit.counts)
                yield unit.results


class UnitStream(Generic[ItemT, ResultT]):
    """Accepts items as they come, and runs a stage over them while other work continues.

    A stage with a GPU runs in a pool of workers as soon as Ray runs and a unit is full. A stage
    that sends requests to a service (`in_flight`) runs in a few workers, or in a thread of this
    process; it needs no core. The workers are used if many items wait, and, before the end, only if
    Ray runs. Any other stage needs the cores, so it runs in `finish`.

    Args:
        engine: Runs the units.
        stage: The stage.
        key: Consecutive items with the same key stay in one unit.
        settings: Settings of `UnitWorker`. A unit is one `Batch`.

    Attributes:
        cpu_s: CPU-seconds of workers, by kind of work.
    """

    def __init__(
        self, engine: Engine, stage: AnyStage, *, key: Callable[[ItemT], str], **settings: object
    ) -> None:
        self._engine, self._stage, self._key, self._settings = engine, stage, key, settings
        self._waiting: list[ItemT] = []
        self._workers: Fleet | UnitThread | None = None
        self._n_workers = 1
        self._noted: set[str] = set()
        self._heard_s, self._patience_s = time.monotonic(), SILENCE_S
        self.cpu_s = Counter[str]()

    def submit(self, item: ItemT) -> None:
        """Adds an item; does not wait."""
        self._waiting.append(item)

    def poll(self) -> list[ResultT]:
        """Sends full units, and returns new results; does not wait.

        Re-raises the first error of the stage unchanged.
        """
        results = [] if self._workers is None else list(map(self._taken, self._workers.poll()))
        self._send()
        return results

    def finish(self) -> Iterator[list[ResultT]]:
        """Yields the remaining results as they come, and raises the same errors as `poll`.

        Raises `CuratorError` if a service does not answer for `GIVE_UP_S`.
        """
        while True:
            self._send(is_end=True)
            if self._workers is None or not self._workers.n_open:
                break
            results = self._workers.poll(_POLL_S)
            self._mind_silence(is_silent=not results)
            yield list(map(self._taken, results))
        units = []
        while self._waiting:
            units.append([self._batch(self._stage.unit_items)])
        # Loading a model takes longer than starting Ray.
        placement: Placement = "child" if self._engine.is_small(1, 0.0) else "ray"
        for result in self._engine.run([self._step()], units, placement=placement) if units else ():
            yield [self._taken(result)]
        # Frees GPUs and connections.
        self.close()

    def close(self) -> None:
        """Ends the workers and their work."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def _taken(self, result: UnitResult[ResultT]) -> ResultT:
        self._engine.heartbeat.beat()
        self.cpu_s.update(result.cpu_s)
        self._engine.cpu_s.update(result.cpu_s)
        # A thread logs its own notes.
        notes = () if isinstance(self._workers, UnitThread) else result.notes
        for note in dict.fromkeys(notes):
            if note not in self._noted:
                self._noted.add(note)
                logger.warning("%s", note)
        return result.results

    def _send(self, *, is_end: bool = False) -> None:
        """Sends full units to workers, and at the end all items of a GPU or service stage."""
        stage = self._stage
        if not self._waiting:
            return
        if stage.in_flight is not None:
            self._send_to_service(stage.in_flight, is_end=is_end)
        elif self._has_gpu and (self._engine.is_started or is_end):
            while self._waiting and (is_end or len(self._waiting) >= stage.unit_items):
                self._opened(is_pool=True).submit([self._batch(stage.unit_items)])

    def _send_to_service(self, in_flight: int, *, is_end: bool) -> None:
        workers = self._workers
        if not isinstance(workers, Fleet):
            workers = self._for_service(in_flight, is_end=is_end)
        if workers is None:
            return
        share, n_workers = in_flight // self._n_workers, self._n_workers
        least, ahead = 1, 1
        if isinstance(workers, Fleet):
            least, ahead = 1 if is_end else min(self._stage.unit_items, share), 2 * n_workers
        # Units get smaller as fewer items wait, so that all workers end at about the same time.
        shares = 2 * n_workers if n_workers > 1 else 1
        most = max(self._stage.unit_items, MANY_ROUNDS * share)
        while len(self._waiting) >= least and workers.n_open < ahead:
            n_each = max(FEW_ROUNDS * share, -(-len(self._waiting) // shares))
            workers.submit([self._batch(min(n_each, most))])

    def _for_service(self, in_flight: int, *, is_end: bool) -> Fleet | UnitThread | None:
        """Returns a thread for few items, or workers for many; None to wait for more items."""
        engine, n_waiting = self._engine, len(self._waiting)
        most = max(1, in_flight // IN_FLIGHT)
        if engine.is_started:
            is_many = n_waiting >= min(self._stage.unit_items, in_flight // most)
            is_early = not is_many and not is_end
        else:
            # Only at the end, because Ray must not start while another chain runs without it.
            is_many, is_early = is_end and n_waiting >= MANY_ITEMS, False
        # A busy thread uses all of `in_flight`.
        if is_early or (self._workers is not None and self._workers.n_open):
            return None
        if is_many:
            self.close()
            self._n_workers = engine.n_workers(most)
        return self._opened(is_pool=is_many)

    def _opened(self, *, is_pool: bool) -> Fleet | UnitThread:
        """Returns the workers; the first call starts them."""
        if self._workers is None:
            step, stage, is_shared = self._step(), self._stage, self._stage.in_flight is not None
            if is_pool:
                self._workers = self._engine.pool(
                    [step],
                    most=self._n_workers if is_shared else None,
                    check=stage.node_refusal if self._engine.joins or not is_shared else None,
                )
            else:
                self._workers = UnitThread([step])
        return self._workers

    def _step(self) -> Step:
        stage = self._stage.share(self._n_workers)
        kind = _kind_of(stage, self._engine)
        return stage_step(stage, resources=kind, keeps_state=True, **self._settings)

    @cached_property
    def _has_gpu(self) -> bool:
        return _kind_of(self._stage, self._engine).gpus > 0

    def _batch(self, n: int) -> Batch[ItemT]:
        """Removes about `n` waiting items, and returns them as a batch."""
        waiting = self._waiting
        while n < len(waiting) and self._key(waiting[n]) == self._key(waiting[n - 1]):
            n += 1
        self._waiting = waiting[n:]
        return Batch(items=tuple(waiting[:n]), name=secrets.token_hex(4))

    def _mind_silence(self, *, is_silent: bool) -> None:
        """Reports why a service is silent, because the workers that wait for it cannot."""
        stage, now_s = self._stage, time.monotonic()
        if not is_silent or stage.in_flight is None or not isinstance(self._workers, Fleet):
            self._heard_s, self._patience_s = now_s, SILENCE_S
        elif now_s > self._heard_s + self._patience_s:
            self._patience_s *= 2
            silent_s = now_s - self._heard_s
            try:
                stage.preflight()
            except UsageError as error:
                if silent_s > GIVE_UP_S:
                    raise CuratorError(
                        f"{stage.name}: no answer for {GIVE_UP_S:.0f} s: {error}"
                    ) from error
                logger.warning("%s: no answer for %.0f s: %s", stage.name, silent_s, error)


class RowScheduler(Generic[ItemT]):
    """Runs a stage over the items of a stream that have no stored rows.

    The stream is read lazily: memory holds a window of it and the units in progress. `on_result`
    receives all rows, stored and new, in tables of several items.
    """

    def __init__(self, rows: FamilyRows[ItemT], on_result: Callable[[pa.Table], None]) -> None:
        self._rows, self._on_result = rows, on_result
        self._units: Iterator[list[ItemT]] = iter(())
        self._head: list[list[ItemT]] = []
        self.n_made = 0
        """Items without stored rows."""

    def begin(self, items: Iterable[ItemT]) -> list[ItemT] | None:
        """Reads items until many lack rows. Returns the items that lack rows if they are few."""
        self._units = self._packed(self._rows.missing(items, self._on_result))
        while self.n_made <= FEW_ITEMS and (unit := next(self._units, None)) is not None:
            self._head.append(unit)
        return list(itertools.chain.from_iterable(self._head)) if self.n_made <= FEW_ITEMS else None

    def finish(self, runner: UnitRunner) -> None:
        """Computes missing rows. This process handles few items faster than a cluster starts."""
        step = stage_step(self._rows.stage, keep=self._rows.put)
        placement: Placement = "driver" if self.n_made <= FEW_ITEMS else "ray"
        units = itertools.chain(self._head, self._units)
        for table in runner.run([step], units, placement=placement):
            self._on_result(table)

    def _packed(self, missing: Iterator[ItemT]) -> Iterator[list[ItemT]]:
        most = self._rows.stage.unit_items
        while unit := list(
            itertools.islice(missing, most if self.n_made < LARGE_AFTER else LARGER * most)
        ):
            self.n_made += len(unit)
            yield unit


class Scheduler:
    """Runs annotators over written clips.

    `signals` finds the tracks that annotators read. `decode` creates a decoder with a number of
    threads. `failed_before` returns the clips that the last run rejected for a reason.
    """

    def __init__(
        self,
        store: FamilyStore,
        engine: Engine,
        progress: Progress,
        *,
        signals: SignalParts,
        decode: Callable[[int], AnyStage] = SampleFramesStage,
        failed_before: Callable[[str], Collection[str]] = lambda reason: (),
    ) -> None:
        self._store, self._engine, self._progress = store, engine, progress
        self._signals, self._decode, self._failed_before = signals, decode, failed_before

    def annotate(self, stages: Sequence[AnyAnnotator], clips: Clips) -> Annotated:
        """Returns the stages' values of clips, both stored and newly computed.

        Raises:
            UsageError: A stage needs a GPU and no node has one, or its `preflight` refuses.
            CuratorError: A required stage failed on all clips that it received.
        """
        made = Annotated(members=Members(clips.ids()))
        runner = UnitRunner(self._engine, self._progress)
        for all_stages in self._chains(stages):
            found = find_values(self._store, self._signals, all_stages, clips)
            for values in found:
                for column in values.columns:
                    if column.version.family.columns:
                        made.columns.append((column, values.key_of_clip))
                    else:
                        made.members.add(column, values.key_of_clip)
            for stage, values in zip(all_stages, found, strict=True):
                if stage.windows is not None and (n := int((values.key_of_clip < 0).sum())):
                    made.lacking[stage.name] += n
                    logger.warning(
                        "%s: %d of %d clips are shorter than its windows of %d frames, and have "
                        "no values", stage.name, n, len(clips), stage.windows.span,
                    )  # fmt: skip
            # Workers load no model of a stage whose values are all stored.
            is_needed = [bool(len(values.first_clips)) for values in found]
            chain, all_values = (
                list(compress(all_stages, is_needed)),
                list(compress(found, is_needed)),
            )
            if not chain:
                continue
            for stage in chain:
                stage.preflight()
            kind = self.resources_of(chain)
            # Clips with the same key share a value, which is computed from the first clip.
            numbers = np.unique(np.concatenate([values.first_clips for values in all_values]))
            errors: list[dict[int, str]] = [{} for _ in chain]
            for results in self._run(runner, chain, kind, clips, all_values, numbers):
                for result in results:
                    for number, error in result.errors.items():
                        errors[number][int(all_values[number].key_of_clip[result.number])] = error
                    for number, some in result.members.items():
                        all_values[number].add(result.number, some)
                        made.n_made.update(member.version.family.name for member in some)
            for stage, values, wrong in zip(chain, all_values, errors, strict=True):
                if wrong:
                    _add_failures(made, stage, values, clips, wrong, self._failed_before)
        made.cpu_s.update(runner.cpu_s)
        return made

    def _chains(self, stages: Sequence[AnyAnnotator]) -> list[list[AnyAnnotator]]:
        """Groups stages by the kind and place of their workers. A group shares a decode."""
        chains: defaultdict[tuple[bool, float, str | None], list[AnyAnnotator]] = defaultdict(list)
        for stage in stages:
            gpus, place = _kind_of(stage, self._engine).gpus, self._engine.place.get(stage.name)
            chains[stage.decodes, gpus, place].append(stage)
        return list(chains.values())

    def resources_of(self, chain: Sequence[AnyAnnotator]) -> Resources:
        """Returns the resources of a worker that holds the models of some stages."""
        return reduce(_together, [_kind_of(stage, self._engine) for stage in chain])

    def _run(
        self,
        runner: UnitRunner,
        chain: Sequence[AnyAnnotator],
        kind: Resources,
        clips: Clips,
        values: Sequence["StageValues"],
        numbers: NDArray[np.int64],
    ) -> Iterator[list[ClipResult]]:
        """Computes the missing values of the clips with these numbers."""
        is_first = [np.isin(numbers, own.first_clips) for own in values]
        signals = {name for stage in chain for name in stage.track_columns}
        parts: Mapping[str, PartsByColumn] = {}
        if signals:
            source_ids = {clips[number][0].source_id for number in numbers.tolist()}
            parts = self._signals.find(source_ids, signals)

        def to_do() -> Iterator[ClipWork]:
            for at, number in enumerate(numbers.tolist()):
                facts, sha256, where = clips[number]
                keys = {
                    own: values[own].key(number)
                    for own, is_one in enumerate(is_first)
                    if is_one[at]
                }
                own_parts = parts.get(facts.source_id, {})
                yield ClipWork(
                    number=number,
                    facts=facts,
                    mp4_sha256=sha256,
                    where=where,
                    keys=keys,
                    parts=own_parts,
                )

        frames, seconds, n_clips = 0.0, 0.0, len(numbers)
        for number in numbers.tolist():
            facts = clips[number][0]
            frames += _frames_of(facts)
            seconds += float(facts.n_frames / facts.fps)
        if any(stage.decodes for stage in chain):
            units = pack(
                to_do(),
                max_items=UNIT_CLIPS,
                weight=lambda item: _frames_of(item.facts),
                max_weight=float(UNIT_FRAMES),
            )
            n_units = max(n_clips / UNIT_CLIPS, frames / UNIT_FRAMES)
        else:
            units = pack(to_do(), max_items=UNIT_ROWS)
            n_units = n_clips / UNIT_ROWS
        self._progress.work(n_clips, seconds, names=[stage.name for stage in chain])
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
            names=tuple(stage.name for stage in chain),
        )
        check = partial(_refusal, chain) if kind.gpus else None
        yield from runner.run([step], units, placement="child" if small else "ray", check=check)


def find_values(
    store: FamilyStore, signals: SignalParts, stages: Sequence[AnyAnnotator], clips: Clips
) -> list["StageValues"]:
    """Finds the stored and the missing values of each stage."""
    keys: list[list[str | None]] = [[] for _ in stages]
    chunks: list[list[pa.Array]] = [[] for _ in stages]
    measured = [signals.fingerprints(stage.track_columns) for stage in stages]
    for number in range(len(clips)):
        facts, sha256, _ = clips[number]
        for stage, fingerprints, own in zip(stages, measured, keys, strict=True):
            columns = {name: facts.columns[name] for name in stage.reads_columns()}
            columns |= fingerprints
            own.append(stage.key(replace(facts, columns=columns), sha256))
        if len(keys[0]) == _KEYS_AT_ONCE or number == len(clips) - 1:
            for own, done in zip(keys, chunks, strict=True):
                done.append(pa.array(own, pa.string()))
                own.clear()
    return [
        StageValues.find(store, stage, pa.chunked_array(done, pa.string()))
        for stage, done in zip(stages, chunks, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageValues:
    """The values of one stage, both stored and newly computed.

    Attributes:
        keys: Distinct keys.
        key_of_clip: Index of each clip's key, int32 [clips], -1 for no key.
        columns: Values of each family.
        is_key_missing: Whether a key lacks a value of any family, bool [keys].
        first_clips: Number of the first clip of each missing key, int64.
    """

    keys: pa.Array
    key_of_clip: NDArray[np.int32]
    columns: Sequence[MemberColumn]
    is_key_missing: NDArray[np.bool_]
    first_clips: NDArray[np.int64]

    @classmethod
    def find(cls, store: FamilyStore, stage: AnyAnnotator, keys: pa.ChunkedArray) -> "StageValues":
        """Returns the values of a stage for the key of each clip."""
        distinct = keys.drop_null().unique()
        of = pc.fill_null(pc.index_in(keys, value_set=distinct), -1).to_numpy()
        columns = [
            store.find(version, pa.chunked_array([distinct]))
            for version in stage.versions().values()
        ]
        is_key_missing = ~np.logical_and.reduce([column.is_there for column in columns])
        numbers, first = np.unique(of, return_index=True)
        is_key = numbers >= 0
        first_clips = np.sort(first[is_key][is_key_missing[numbers[is_key]]])
        return cls(
            keys=distinct,
            key_of_clip=of,
            columns=columns,
            is_key_missing=is_key_missing,
            first_clips=first_clips,
        )

    def is_missing(self) -> NDArray[np.bool_]:
        """Returns which clips have a key without a stored value, bool [clips]."""
        # The key of clips without a key is the last, -1.
        return np.append(self.is_key_missing, False)[self.key_of_clip]

    def key(self, clip: int) -> str:
        """Returns the key of a clip by its number."""
        return str(self.keys[int(self.key_of_clip[clip])].as_py())

    def add(self, clip: int, members: Sequence[StoredMember]) -> None:
        """Adds the newly computed values of a clip."""
        at = int(self.key_of_clip[clip])
        by_name = {column.version.family.name: column for column in self.columns}
        for member in members:
            by_name[member.version.family.name].places[at] = member.where


def _add_failures(
    made: Annotated,
    stage: AnyAnnotator,
    values: StageValues,
    clips: Clips,
    errors: Mapping[int, str],
    failed_before: Callable[[str], Collection[str]],
) -> None:
    """Rejects the clips on which a required stage failed. For an optional stage, counts them.

    `errors` has the error of each failed key, by the key's index.
    """
    failed = np.flatnonzero(np.isin(values.key_of_clip, list(errors))).tolist()
    first = f"such as {clips[failed[0]][0].clip_id}: {errors[int(values.key_of_clip[failed[0]])]}"
    if not stage.required:
        made.lacking[stage.name] += len(failed)
        logger.warning("%s: clips without its values: %d, %s", stage.name, len(failed), first)
        return
    n_wanting = int(values.is_key_missing[values.key_of_clip[values.key_of_clip >= 0]].sum())
    # If other clips have values, a single failure may be the fault of the clip.
    is_alone = len(failed) == 1 and not values.is_key_missing.all()
    ids = {clips[number][0].clip_id for number in failed}
    if (
        len(failed) == n_wanting
        and not is_alone
        # A rerun receives the clips that failed before, and no others.
        and not ids <= set(failed_before(stage.failed_reason))
    ):
        raise CuratorError(
            f"{stage.name} failed on {amount(len(failed), 'clip')}, all that it received, {first}; "
            "nothing was committed"
        )
    for number in failed:
        error = errors[int(values.key_of_clip[number])]
        made.rejected[clips[number][0].clip_id] = (stage.name, error)


def _kind_of(stage: AnyStage, engine: Engine) -> Resources:
    """Returns the preferred kind of worker that the engine may have."""
    for kind in stage.kinds:
        if not kind.gpus or engine.may_have_gpus():
            return kind
    raise UsageError(
        f"{stage.name} needs {stage.kinds[0].gpus:g} GPU, and this run has no node with a GPU; "
        "`curate doctor` says why"
    )


def _refusal(chain: Sequence[AnyAnnotator]) -> str | None:
    return next(filter(None, (stage.node_refusal() for stage in chain)), None)


def _frames_of(clip: ClipFacts) -> float:
    """Returns the frames of a clip, weighted by size: 1 for 1080p."""
    return clip.n_frames * clip.width * clip.height / FULL_HD


def _together(one: Resources, other: Resources) -> Resources:
    """Returns the resources of a worker that holds the models of two stages."""
    return Resources(
        cpus=max(one.cpus, other.cpus),
        gpus=min(one.gpus + other.gpus, 1.0) if one.gpus < 1 else one.gpus,
        memory_bytes=one.memory_bytes + other.memory_bytes,
    )
