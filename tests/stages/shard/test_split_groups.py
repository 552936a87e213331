"""Sources that belong together are never in both splits."""

import itertools
import random

import pyarrow as pa
import pytest
from pydantic import ValidationError

from curator.stages.shard.config import ShardConfig
from curator.stages.shard.split_groups import drawn_split, shared_footage, split_sources

EPISODES = {
    f"source{episode}{camera}": (f"meta.episode {episode}",)
    for episode in range(9)
    for camera in ("front", "rear")
}


def config(share: float = 0.5, seed: int = 0) -> ShardConfig:
    return ShardConfig(val_share=share, seed=seed)


def test_cameras_of_an_episode_are_never_parted() -> None:
    """Pins 0 of 200 seeds; by sources alone, about half of the seeds part the cameras."""
    front, rear = "source0front", "source0rear"
    parted = n_val = 0
    for seed in range(200):
        by_episode = split_sources(EPISODES, config(seed=seed)).sides
        assert by_episode[front] == by_episode[rear]
        n_val += by_episode[front] == "val"
        alone = split_sources({name: (name,) for name in EPISODES}, config(seed=seed)).sides
        parted += alone[front] != alone[rear]
    assert 70 < parted < 130
    assert 70 < n_val < 130


def test_no_group_is_on_both_sides_whatever_spans_and_cameras_share_it() -> None:
    """Pins 0 of 1,000 seeds, also for files with episodes of several groups; all share a seed."""
    for seed in range(1000):
        draw = random.Random(seed)
        groups = [f"meta.group {number}" for number in range(12)]
        units = {
            f"{number:032x}": tuple(draw.sample(groups, draw.choice((1, 1, 1, 2, 3))))
            for number in range(20)
        }
        sides = split_sources(units, config(0.3, seed)).sides
        by_group: dict[str, set[str]] = {}
        for source, names in units.items():
            for name in names:
                by_group.setdefault(name, set()).add(sides[source])
        assert all(len(found) == 1 for found in by_group.values())


def test_shared_footage_joins_sources_across_units_and_chains() -> None:
    """Pins joins by footage, also by a source without kept clips, in any order of pairs."""
    links = [("source0front", "source1rear"), ("source1front", "gone"), ("gone", "source2rear")]
    joined = [name for name in EPISODES if name[6] in "012"]
    random.Random(0).shuffle(links)
    for seed in range(100):
        sides = split_sources(EPISODES, config(seed=seed), links=links).sides
        assert len({sides[name] for name in joined}) == 1
        assert sides == split_sources(EPISODES, config(seed=seed), links=links[::-1]).sides


def test_a_source_alone_is_in_the_split_of_its_hash_and_new_sources_move_none() -> None:
    """Pins that outputs of older versions keep their splits."""
    units = {f"{number:032x}": (f"{number:032x}",) for number in range(400)}
    few = dict(itertools.islice(units.items(), 50))
    sides = split_sources(units, config(0.1)).sides
    assert sides == {source: drawn_split(source, config(0.1)) for source in units}
    assert split_sources(few, config(0.1)).sides == {source: sides[source] for source in few}
    assert 0.05 < list(sides.values()).count("val") / 400 < 0.15


def test_committed_sides_stay_and_train_wins() -> None:
    """Pins that no committed clip moves from train to val, whatever joins."""
    units = {name: (name,) for name in "abcdef"}
    for seed in range(50):
        first = split_sources({name: (name,) for name in "abcd"}, config(seed=seed)).sides
        later = split_sources(
            units, config(seed=seed), links=[("a", "e"), ("e", "b"), ("c", "f")], committed=first
        )
        for name in "abcd":
            assert first[name] == "val" or later.sides[name] == "train"
        assert later.sides["f"] == later.sides["c"] == first["c"]
        assert later.sides["a"] == later.sides["e"] == later.sides["b"]
        if {first["a"], first["b"]} == {"train", "val"}:
            assert later.sides["a"] == "train"
            assert any("move from val to train" in line for line in later.warnings)
        elif first["a"] == first["b"]:
            assert not later.warnings


def test_a_source_between_earlier_generations_of_both_splits_is_left_out() -> None:
    """Pins that tars of earlier generations stay, and that no new clip stands beside both."""
    units = {name: (name,) for name in ("old train", "old val", "new", "free")}
    fixed = {"old train": "train", "old val": "val"}
    links = [("new", "old train"), ("new", "old val")]
    groups = split_sources(units, config(), links=links, fixed=fixed)
    assert groups.across == {"new"}
    assert {name: groups.sides[name] for name in fixed} == fixed
    assert any("left out as across_splits" in line for line in groups.warnings)
    joined = split_sources(units, config(), links=links[1:], fixed=fixed)
    assert not joined.across
    assert joined.sides["new"] == "val"


def test_a_group_that_is_too_large_for_the_share_is_said() -> None:
    names = [f"s{number}" for number in range(10)]
    units = {name: ("meta.film one",) if at < 8 else (name,) for at, name in enumerate(names)}
    (warning,) = split_sources(units, config(0.3)).warnings
    assert warning.startswith("8 of 10 sources belong together")
    assert "shard.val_share is 30%" in warning


def test_footage_joins_clips_of_this_run_and_of_earlier_generations() -> None:
    pairs = pa.table({
        "clip_id": ["a1", "a1", "b1", "a2", "b1"],
        "other": ["a2", "b1", "old", "nowhere", "elsewhere"],
        "place": pa.array([-1, -1, 1, -1, 0], pa.int32()),
    })  # fmt: skip
    clips = pa.table({"clip_id": ["a1", "a2", "b1"], "source_id": ["A", "A", "B"]})
    earlier = pa.table({"clip_id": ["old"], "source_id": ["O"]})
    assert shared_footage(pairs, clips, earlier) == {("A", "B"), ("B", "O")}
    assert shared_footage(pairs, clips) == {("A", "B")}
    assert shared_footage(None, clips) == set()


@pytest.mark.parametrize("name", ["episode", "meta.", "sources"])
def test_another_column_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match=r"expected group, source, or a column of metadata"):
        ShardConfig(split_by=name)
