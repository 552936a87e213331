"""States that move within an epoch to other ranks, workers and batch sizes, by each loader."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from curator.errors import UsageError
from curator.loading import ClipDataset, ClipLoader
from tests.made_shards import made_clips, write_shards

A, B = "48p_3-2_17f", "48p_1-1_17f"
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:'set_vital'")
KEYS = sorted(f"{i:08x}" for i in (*range(31), *range(100, 120)))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    """51 clips of two buckets in four tars."""
    folder = tmp_path_factory.mktemp("shards")
    tars = [
        (A, "train", made_clips(folder, 20)),
        (A, "train", made_clips(folder, 11, first=20)),
        (B, "train", made_clips(folder, 9, first=100)),
        (B, "train", made_clips(folder, 11, first=109)),
    ]
    return str(write_shards(folder / "out", tars))


def dataset_of(out: str, **options: Any) -> ClipDataset:  # noqa: ANN401
    return ClipDataset(out, **({"batch_size": 2, "video": False} | options))


def some(loader: ClipLoader, n: int | None) -> list[str]:
    return [key for batch in islice(loader, n) for key in batch["key"]]


@pytest.mark.parametrize("size", [None, 64])
def test_ranks_workers_and_batch_sizes_change_within_an_epoch(out: str, size: int | None) -> None:
    """Pins that each clip of the epoch comes once, through four geometries, and the next epoch."""
    seen: list[str] = []
    states: Any = None
    stretches = [
        (2, 2, 2, True, 3),
        (1, 0, 3, False, 4),
        (3, 0, 1, False, 2),
        (1, 0, 2, False, None),
    ]
    for ranks, workers, batch, drop_last, n in stretches:
        saved = []
        for rank in range(ranks):
            options = {"batch_size": batch, "drop_last": drop_last, "size": size}
            dataset = dataset_of(out, rank=rank, world_size=ranks, **options)
            loader = ClipLoader(dataset, num_workers=workers)
            if states is not None:
                loader.load_state_dict(states)
            seen += some(loader, n)
            saved.append(json.loads(json.dumps(loader.state_dict())))
        states = saved[0] if drop_last else saved
        assert len(json.dumps(saved[0])) < 2000
    assert sorted(seen) == KEYS
    assert saved[0]["epoch"] == 1
    assert sorted(some(loader, None)) == KEYS


@pytest.mark.parametrize("workers", [(2, 0), (2, 3)])
def test_workers_of_a_stateful_loader_change(out: str, workers: tuple[int, int]) -> None:
    """Pins that the loader's whole state goes to the dataset, after one and after some batches."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    for n in (1, 5):
        state, seen = None, []
        for number in workers:
            dataset = dataset_of(out)
            if state is not None:
                dataset.load_state_dict(state)
            loader = stateful(dataset, batch_size=None, num_workers=number)
            stop = None if state is not None else n
            seen += [key for batch in islice(loader, stop) for key in batch["key"]]
            state = loader.state_dict()
        assert sorted(seen) == KEYS
    # One state of a worker does not say what the others have read.
    if number := workers[0]:
        dataset = dataset_of(out, batch_size=3)
        part = next(iter(stateful(dataset_of(out), batch_size=None, num_workers=number)))
        assert part["position"]["workers"] == number
        worker = {**dataset_of(out).state_dict(), "step": 4, "worker": 0, "workers": number}
        with pytest.raises(UsageError, match="give the whole state of the StatefulDataLoader"):
            dataset.load_state_dict(worker)


def test_a_moved_stateful_loader_moves_again_before_all_workers_made_a_batch(out: str) -> None:
    """Pins positions of workers that have made no batch since the move."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    state, seen = None, []
    for number, stop in ((0, 3), (3, 1), (2, 1), (1, None)):
        dataset = dataset_of(out)
        if state is not None:
            dataset.load_state_dict(state)
        loader = stateful(dataset, batch_size=None, num_workers=number)
        seen += [key for batch in islice(loader, stop) for key in batch["key"]]
        state = loader.state_dict()
    assert sorted(seen) == KEYS


def test_a_plain_data_loader_changes_its_workers(out: str) -> None:
    """Pins `advance` after a move, and that the moved state resumes exactly."""
    first = dataset_of(out)
    seen = []
    for batch in islice(DataLoader(first, batch_size=None, num_workers=2), 5):
        first.advance(batch)
        seen += batch["key"]
    second = dataset_of(out)
    second.load_state_dict(first.state_dict())
    rest = []
    for batch in DataLoader(second, batch_size=None):
        second.advance(batch)
        rest.append(batch["key"])
        if len(rest) == 4:
            state = second.state_dict()
    third = dataset_of(out)
    third.load_state_dict(state)
    assert [batch["key"] for batch in third] == rest[4:]
    assert sorted(seen + [key for keys in rest for key in keys]) == KEYS


def test_states_that_do_not_say_what_was_read_are_refused(out: str) -> None:
    """Pins the remedies for one of several states, missing ranks, and states of other versions."""
    states = []
    for rank in range(3):
        loader = ClipLoader(dataset_of(out, rank=rank, world_size=3))
        some(loader, 2)
        states.append(loader.state_dict())
    other = dataset_of(out, rank=0, world_size=2)
    with pytest.raises(UsageError, match=r"one rank of 3 was saved with drop_last=False.*a list"):
        other.load_state_dict(states[0])
    with pytest.raises(UsageError, match="states are of ranks 0, 2 of 3; expected one state"):
        other.load_state_dict([states[0], states[2]])
    with pytest.raises(UsageError, match="two states are of rank 0"):
        other.load_state_dict([states[0], states[1], states[0] | {"step": 1}])
    with pytest.raises(UsageError, match="list of states is empty"):
        other.load_state_dict([])
    with pytest.raises(UsageError, match="not a state of ClipDataset"):
        other.load_state_dict({"model": 1})
    later = [states[0], states[1], states[2] | {"epoch": 2}]
    with pytest.raises(UsageError, match="states of the ranks are of different epochs"):
        other.load_state_dict(later)
    old = {"version": 1, "epoch": 4, "step": 3, "workers": 1, "worker": None, "made_with": {}}
    with pytest.raises(UsageError, match=r"version 1 and was saved within an epoch.*epoch\(5\)"):
        other.load_state_dict(old)
    other.load_state_dict(old | {"step": 0})
    assert other.state_dict()["epoch"] == 4


def test_a_rank_that_has_ended_the_epoch_moves_with_the_others(tmp_path: Path) -> None:
    """Pins ranks with unequal numbers of batches, of which one is in the next epoch."""
    out = str(write_shards(tmp_path / "out", [(A, "train", made_clips(tmp_path, 9))]))
    seen, states = [], []
    for rank, n in ((0, 2), (1, None)):
        loader = ClipLoader(dataset_of(out, rank=rank, world_size=2))
        seen += some(loader, n)
        states.append(loader.state_dict())
    assert [state["epoch"] for state in states] == [0, 1]
    dataset = dataset_of(out, rank=0, world_size=1)
    dataset.load_state_dict(states)
    seen += [key for batch in dataset for key in batch["key"]]
    assert sorted(seen) == [f"{i:08x}" for i in range(9)]


def test_a_rank_without_a_batch_moves_with_the_others(out: str) -> None:
    """Pins the end of an epoch, where a stretch has a batch for one of two ranks only."""
    first = dataset_of(out, batch_size=1, size=64, world_size=1, rank=0)
    seen = [key for batch in islice(first, 50) for key in (first.advance(batch) or batch["key"])]
    states: Any = [first.state_dict()]
    for is_first in (True, False):
        ranks = [dataset_of(out, size=64, world_size=2, rank=rank) for rank in range(2)]
        for dataset in ranks:
            dataset.load_state_dict(states)
        if is_first:
            assert [len(list(dataset)) for dataset in ranks] == [0, 1]
            for dataset in ranks:
                dataset.load_state_dict(states)
        seen += [key for dataset in ranks for batch in dataset for key in batch["key"]]
        # Both ranks are asked at the step at which one has a batch, and neither is at its end.
        moved = []
        for dataset in ranks:
            dataset.load_state_dict(states)
            for batch in islice(DataLoader(dataset, batch_size=None, num_workers=1), 1):
                dataset.advance(batch)
            moved.append(dataset.state_dict())
        states = json.loads(json.dumps(moved))
    assert sorted(seen) == KEYS
    last = dataset_of(out, batch_size=3, size=64, rank=0, world_size=1)
    last.load_state_dict(states)
    assert not list(last)


def test_a_state_of_other_clips_says_what_may_differ(out: str) -> None:
    """Pins the remedy: a hash of the clips is no value that somebody can use again."""
    state = dataset_of(out).state_dict()
    state["made_with"]["clips"] = "0"
    with pytest.raises(UsageError, match=r"saved with other clips: another snapshot, where, view"):
        dataset_of(out).load_state_dict(state)
