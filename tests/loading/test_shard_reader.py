"""Samples by number, from tars at hand and from far away."""

from dataclasses import replace
from typing import ClassVar

import pytest

from curator.loading import shard_reader as shards
from curator.loading.shard_reader import LocalShard, SampleReader, read_output
from curator.storage.local_store import LocalStore
from tests.made_shards import made_clips, write_shards

A = "48p_3-2_17f"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    """12 clips in two tars."""
    folder = tmp_path_factory.mktemp("shards")
    tars = [(A, "train", made_clips(folder, 7)), (A, "train", made_clips(folder, 5, first=100))]
    return str(write_shards(folder / "out", tars))


class FarStore(LocalStore):
    """A folder that is read as S3 is."""

    asked: ClassVar[list[tuple[str, int]]] = []

    @property
    def is_local(self) -> bool:
        return False

    def read_range(self, key: str, start: int, end: int) -> bytes:
        self.asked.append((key, start))
        return super().read_range(key, start, end)


def far_shards(out: str) -> list[LocalShard]:
    store = FarStore(f"{out}/shards")
    return [replace(shard, store=store) for shard in read_output(out, "train").shards]


@pytest.mark.parametrize(("size", "most"), [(1, 4), (3, 6), (5, 10)])
def test_clips_far_away_are_fetched_before_they_are_asked_for(
    out: str, monkeypatch: pytest.MonkeyPatch, size: int, most: int
) -> None:
    """Pins one request for a clip, that the next group is under way, and where fetching stops."""
    monkeypatch.setattr(shards, "AHEAD_SAMPLES", 4)
    places = [(shard, n) for shard in far_shards(out) for n in range(shard.n_samples)]
    groups = [places[i : i + size] for i in range(0, len(places), size)]
    FarStore.asked.clear()
    reader = SampleReader(["mp4"])
    under_way, keys = [], []
    for group in reader.ahead(groups, list):
        under_way.append(len(reader._under_way))
        keys += [reader.read(*place)["__key__"] for place in group]
    reader.close()
    assert max(under_way) == under_way[0] == most
    assert sorted(keys) == sorted(f"{i:08x}" for i in (*range(7), *range(100, 105)))
    assert len(set(FarStore.asked)) == len(FarStore.asked) == len(places)


def test_no_more_bytes_than_wanted_are_held(out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins the bound on bytes, and that a failed fetch is an error where the clip is read."""
    monkeypatch.setattr(shards, "AHEAD_BYTES", 1)
    shard = far_shards(out)[0]
    reader = SampleReader(["mp4"])
    groups = reader.ahead([[(shard, n)] for n in range(shard.n_samples)], list)
    next(groups)
    assert len(reader._under_way) == 2
    monkeypatch.setattr(FarStore, "read_range", lambda *_: 1 / 0)
    next(groups)
    with pytest.raises(ZeroDivisionError):
        reader.read(shard, 2)
    reader.close()


def test_the_reader_gives_samples_as_webdataset_does(out: str) -> None:
    """Pins that what is found by index is what webdataset finds by reading on."""
    import webdataset

    shard = read_output(out, "train").shards[1]
    reader = SampleReader(["json", "mp4", "txt"])
    path = f"{shard.store.uri}/{shard.name}"
    plain = list(webdataset.WebDataset(path, shardshuffle=False))
    assert len(plain) == shard.n_samples == 5
    for number in (4, 0, 2):
        held = reader.read(shard, number)
        for name in ("__key__", "json", "mp4", "txt"):
            assert held[name] == plain[number][name]
    reader.close()
