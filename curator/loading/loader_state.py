"""The position of a loader in its epochs, and the states that save it.

A state names what was read: the epoch, the number of batches since the last change of ranks,
workers or batch sizes, and the stretches before that change.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from curator.errors import UsageError
from curator.loading.batch_plan import Geometry, Stretch

VERSION = 2
_ALL = 2**62
"""A number of batches that no rank has."""


class Position(NamedTuple):
    """A position within an epoch.

    Attributes:
        step: Number of the rank's batches since the last stretch, including this worker's next one
            exclusively.
        workers: Number of workers that the step counts; None before the first batch.
        worker: The worker that has this position; None for the rank.
        history: Stretches of the epoch before.
        of_ranks: Steps of all ranks, if the states of all were loaded.
    """

    epoch: int
    step: int = 0
    workers: int | None = None
    worker: int | None = None
    history: tuple[Stretch, ...] = ()
    of_ranks: tuple[int, ...] | None = None

    def begun(self, geometry: Geometry) -> "Position":
        """Returns the position from which a loader with this geometry begins.

        With another number of workers than before, it begins a stretch.
        """
        if not self.step or self.workers == geometry.workers:
            return self
        assert self.workers is not None
        batches = self.of_ranks or _of_all(self.step, geometry)
        stretch = Stretch(geometry._replace(workers=self.workers), batches)
        return Position(self.epoch, history=(*self.history, stretch))

    def first(self, number: int, workers: int) -> tuple[int, int]:
        """Returns the lane that a worker reads from this position on, and its first step.

        A DataLoader takes its first batch from worker 0, so worker 0 gets the lane of that batch.
        """
        if self.worker is not None:
            return self.worker, self.step
        return (self.step + number) % workers, self.step + number


def _of_all(step: int, geometry: Geometry) -> tuple[int, ...]:
    if geometry.world_size > 1 and not geometry.drop_last:
        raise UsageError(
            f"the state of one rank of {geometry.world_size} was saved with drop_last=False, so it "
            "does not say how many batches the other ranks have read. To change ranks, workers or "
            "batch sizes within an epoch, give load_state_dict a list with the states of all ranks"
        )
    return (step,) * geometry.world_size


def saved(
    position: Position, geometry: Geometry, rank: int, made_with: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns a state of plain values, as `load_state_dict` takes it."""
    return {
        "version": VERSION,
        "epoch": position.epoch,
        "step": position.step,
        "workers": position.workers,
        "worker": position.worker,
        "rank": rank,
        "geometry": _as_dict(geometry),
        "history": [
            {"geometry": _as_dict(g), "batches": list(batches)} for g, batches in position.history
        ],
        "made_with": dict(made_with),
    }


def loaded(
    state: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    geometry: Geometry,
    rank: int,
    made_with: Mapping[str, Any],
) -> Position:
    """Returns the position of a saved state, or of the states of all ranks.

    Args:
        state: One state, the states of all ranks, or states of torchdata's StatefulDataLoader.
        geometry: Ranks, batch sizes and `drop_last` of the loader that continues.
        rank: Its rank.
        made_with: Settings that decide which samples an epoch has.

    Raises:
        UsageError: The state is of other samples, or does not say what all ranks have read.
    """
    states = [state] if isinstance(state, Mapping) else list(state)
    by_rank: dict[int, _Saved] = {}
    for each in states:
        found = _saved_of(each, made_with)
        if found.rank in by_rank and found != by_rank[found.rank]:
            raise UsageError(f"two states are of rank {found.rank}; expected one of each rank")
        by_rank[found.rank] = found
    by_rank = _in_one_stretch(by_rank)
    first = next(iter(by_rank.values()), None)
    if first is None:
        raise UsageError("the list of states is empty; give one state, or those of all ranks")
    ranks = first.geometry.world_size
    if len(states) > 1 and sorted(by_rank) != list(range(ranks)):
        raise UsageError(
            f"the states are of ranks {', '.join(map(str, sorted(by_rank)))} of {ranks}; expected "
            "one state, or those of all ranks"
        )
    if first.geometry._replace(workers=0) == geometry._replace(workers=0):
        own = by_rank.get(rank, first)
        if len(by_rank) == 1 and rank != own.rank and own.position.step:
            _of_all(own.position.step, geometry)
        at_once = len({each.position.epoch for each in by_rank.values()}) == 1
        if len(by_rank) < ranks or not at_once or ranks == 1:
            return own.position
        return own.position._replace(of_ranks=tuple(by_rank[r].position.step for r in range(ranks)))
    return _moved(by_rank)


class _Saved(NamedTuple):
    rank: int
    geometry: Geometry
    position: Position


def _in_one_stretch(by_rank: Mapping[int, _Saved]) -> dict[int, _Saved]:
    """Returns states of which each is in the last stretch of all.

    A rank without a batch since the last change still has the position before it.
    """
    epoch = min((each.position.epoch for each in by_rank.values()), default=0)
    of_epoch = [each.position for each in by_rank.values() if each.position.epoch == epoch]
    history = max((position.history for position in of_epoch), key=len, default=())

    def begun(rank: int, each: _Saved) -> _Saved:
        own = each.position
        if (own.epoch, own.history) != (epoch, history[:-1]) or rank >= len(history[-1].batches):
            return each
        was = history[-1]
        if (own.workers, own.step) != (was.geometry.workers, was.batches[rank]):
            return each
        return each._replace(position=Position(epoch, history=history))

    return {rank: begun(rank, each) if history else each for rank, each in by_rank.items()}


def _moved(by_rank: Mapping[int, _Saved]) -> Position:
    """Returns the position of a loader with another geometry than the saved one."""
    positions = {rank: each.position for rank, each in by_rank.items()}
    epoch = min(position.epoch for position in positions.values())
    # A rank without batches does not know the number of workers.
    of_epoch = (each for each in by_rank.values() if each.position.epoch == epoch)
    own = max(of_epoch, key=lambda each: each.position.step)
    position = own.position
    if position.worker is not None:
        raise UsageError(
            "the state of one worker was saved with other ranks or batch sizes; give the whole "
            "state of the StatefulDataLoader to dataset.load_state_dict, before a loader begins"
        )
    steps = {
        r: each.step if each.epoch == epoch else _ALL
        for r, each in positions.items()
        if each.epoch == epoch or (each.epoch, each.step) == (epoch + 1, 0)
    }
    are_one = all(
        p.history == position.history and p.workers in (position.workers, None)
        for p in positions.values()
        if p.epoch == epoch
    )
    if len(steps) < len(positions) or not are_one:
        raise UsageError(
            "the states of the ranks are of different epochs, or of different numbers of workers; "
            "save them at one step"
        )
    if not any(steps.values()):
        return Position(epoch, history=position.history)
    geometry = own.geometry._replace(workers=position.workers or 1)
    batches = (
        tuple(steps[r] for r in range(geometry.world_size))
        if len(steps) == geometry.world_size
        else _of_all(position.step, geometry)
    )
    return Position(epoch, history=(*position.history, Stretch(geometry, batches)))


def _saved_of(state: Mapping[str, Any], made_with: Mapping[str, Any]) -> _Saved:
    """Reads a state of one rank: its own, or one of a StatefulDataLoader with those of workers."""
    parts = list(_parts(state, None))
    if not parts:
        raise UsageError(
            "this is not a state of ClipDataset or ClipLoader; expected what state_dict() returned"
        )
    for _, part in parts:
        _check(part, made_with)
    if "made_with" in state:
        return _saved_part(state)
    first = _saved_part(parts[0][1])
    n_workers = max(1, sum(slot is not None for slot, _ in parts))
    own = first.geometry._replace(workers=n_workers)
    begun = [(slot or 0, _saved_part(part).position.begun(own)) for slot, part in parts]
    epoch = min(position.epoch for _, position in begun)
    # A worker that has made no batch has the position with which the loader began.
    steps = [
        (position.step + (slot if position.worker is None else 0), position.history)
        for slot, position in begun
        if position.epoch == epoch
    ]
    step, history = min(steps, key=lambda item: item[0])
    step += int(state.get("_steps_since_snapshot", 0))
    return _Saved(first.rank, own, Position(epoch, step, n_workers, None, history))


def _parts(value: object, slot: int | None) -> Iterator[tuple[int | None, Mapping[str, Any]]]:
    """Yields states of datasets within a state, with the number of each one's worker."""
    if not isinstance(value, Mapping):
        return
    if "made_with" in value:
        yield slot, value
        return
    for name, inner in value.items():
        worker = re.fullmatch(r"worker_(\d+)", str(name))
        yield from _parts(inner, int(worker[1]) if worker else slot)


def _saved_part(state: Mapping[str, Any]) -> _Saved:
    if state.get("version") != VERSION:
        # Only the epoch is known, and `_check` has seen that none of it was read.
        return _Saved(0, Geometry(0, 0, (), False), Position(int(state["epoch"])))
    position = Position(
        epoch=state["epoch"],
        step=state["step"],
        workers=state["workers"],
        worker=state["worker"],
        history=_history(state),
    )
    return _Saved(int(state["rank"]), _geometry(state["geometry"]), position)


def _check(state: Mapping[str, Any], made_with: Mapping[str, Any]) -> None:
    """Refuses a state of other samples."""
    remedy = f"or begin an epoch with set_epoch({int(state.get('epoch', 0)) + 1})"
    if state.get("version") != VERSION:
        if state.get("version") == 1 and not state.get("step"):
            return
        raise UsageError(
            f"the state has version {state.get('version')!r} and was saved within an epoch by "
            f"another curate, which orders samples otherwise. Use that version, {remedy}"
        )
    for name, value in made_with.items():
        was = state["made_with"].get(name)
        if was != value and name == "clips":
            raise UsageError(
                "the state was saved with other clips: another snapshot, where, view, buckets, "
                "frames, fps or list of outputs, or a removal since then. Use the saved ones (a "
                f"snapshot of before a rerun: snapshot=...), {remedy}"
            )
        if was != value:
            raise UsageError(
                f"the state was saved with {name}={was!r} and this dataset has {value!r}, so the "
                f"position names other samples here. Use the saved value, {remedy}"
            )


def _history(state: Mapping[str, Any]) -> tuple[Stretch, ...]:
    return tuple(
        Stretch(_geometry(each["geometry"]), tuple(each["batches"])) for each in state["history"]
    )


def _geometry(values: Mapping[str, Any]) -> Geometry:
    return Geometry(
        values["world_size"], values["workers"], tuple(values["batch_sizes"]), values["drop_last"]
    )


def _as_dict(geometry: Geometry) -> dict[str, Any]:
    return geometry._asdict() | {"batch_sizes": list(geometry.batch_sizes)}
