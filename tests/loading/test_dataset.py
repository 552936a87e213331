"""Batches out of shards: which samples, which frames, in which order, and from where on."""

import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from film_makers import write_video
from torch.utils.data import DataLoader

from curator.errors import CuratorError, ShardError, UsageError
from curator.family import FRAMES, Array, Bytes, Family, Scope, Text
from curator.loading import ClipDataset, ClipLoader, as_unit
from curator.loading.shard_reader import SampleReader
from tests.made_shards import (
    FPS,
    MadeClip,
    all_frames,
    clip_bytes,
    made_clips,
    number_in,
    numbered_frames,
    shrunk,
    write_shards,
)

A, B = "48p_3-2_17f", "48p_1-1_17f"
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two buckets: 12 clips in two tars, and 6 larger ones with B-frames in one; 3 to validate."""
    folder = tmp_path_factory.mktemp("shards")
    big = {"n_frames": 40, "height": 100, "width": 104, "bframes": 2}
    tars = [
        (A, "train", made_clips(folder, 7)),
        (A, "train", made_clips(folder, 5, first=100)),
        (B, "train", made_clips(folder, 6, first=200, **big)),
        (A, "val", made_clips(folder, 3, first=300)),
    ]
    return str(write_shards(folder / "out", tars))


def keys_of(dataset: ClipDataset, workers: int = 0) -> list[list[str]]:
    """Keys of the batches of an epoch."""
    return [batch["key"] for batch in ClipLoader(dataset, num_workers=workers)]


def flat(batches: list[list[str]]) -> list[str]:
    return [key for batch in batches for key in batch]


def signature(batch: dict[str, Any]) -> tuple[Any, ...]:
    """All that makes a batch what it is."""
    total = int(batch["video"].to(torch.int64).sum())
    return (tuple(batch["key"]), tuple(batch["start_frame"].tolist()), total)


TRAIN = {f"{i:08x}" for i in (*range(7), *range(100, 105), *range(200, 206))}


@pytest.mark.parametrize(
    ("bframes", "gop", "frames", "stride"),
    [(0, 8, 1, 1), (3, 8, 5, 1), (3, 250, 4, 7), (0, 250, 5, 1)],
)
def test_windows_hold_exactly_the_frames_of_their_numbers(
    tmp_path: Path, bframes: int, gop: int, frames: int, stride: int
) -> None:
    """Pins that seeking and striding give the pixels that decoding from the start gives."""
    mp4 = clip_bytes(tmp_path, n_frames=60, gop=gop, bframes=bframes)
    clips = [MadeClip(key=f"{i:04x}", mp4=mp4, n_frames=60) for i in range(6)]
    out = write_shards(tmp_path / "out", [(A, "train", clips)])
    expected = all_frames(mp4)[:, 2:66, 4:100]
    starts = set()
    for sample in ClipDataset(str(out), frames=frames, stride=stride, multiple=16):
        start = sample["start_frame"]
        starts.add(start)
        numbers = [start + i * stride for i in range(frames)]
        video = sample["video"].numpy()
        assert video.shape == (3, frames, 64, 96)
        assert [number_in(video[:, t], 104) for t in range(frames)] == numbers
        assert np.array_equal(video.transpose(1, 2, 3, 0), expected[numbers])
        assert sample["fps"] == pytest.approx(float(FPS) / stride)
    assert len(starts) > 1


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_windows_before_a_key_frame_that_is_decoded_early_are_found(
    tmp_path: Path, codec: str
) -> None:
    """Pins frames that are shown after their decoding time, and open GOPs, as x265 makes them."""
    path = tmp_path / "clip.mp4"
    shown = numbered_frames(60, 68, 104)
    write_video(path, shown, fps=FPS, codec=codec, gop=8, bframes=3)
    clips = [MadeClip(key=f"{i:04x}", mp4=path.read_bytes(), n_frames=60) for i in range(40)]
    out = write_shards(tmp_path / "out", [(A, "train", clips)])
    for sample in ClipDataset(str(out), frames=3):
        start = sample["start_frame"]
        video = sample["video"].numpy()
        assert [number_in(video[:, t], 104) for t in range(3)] == list(range(start, start + 3))


def test_the_last_window_of_a_clip_is_reached_and_none_beyond(tmp_path: Path) -> None:
    """Pins both ends of where a random window may begin."""
    clips = made_clips(tmp_path, 60)
    out = write_shards(tmp_path / "out", [(A, "train", clips)])
    drawn = {sample["start_frame"] for sample in ClipDataset(str(out), frames=22)}
    assert drawn == {0, 1, 2}
    first = ClipDataset(str(out), frames=22, window="first")
    assert {sample["start_frame"] for sample in first} == {0}


@pytest.mark.parametrize(("ranks", "workers", "shuffle"), [(1, 0, 64), (3, 0, 4), (2, 2, 4)])
def test_each_sample_comes_once_over_ranks_and_workers(
    out: str, ranks: int, workers: int, shuffle: int
) -> None:
    """Pins that three tars serve four workers, with each sample once in each epoch."""
    for epoch in (0, 1):
        given = []
        for rank in range(ranks):
            dataset = ClipDataset(
                out, batch_size=2, frames=2, shuffle=shuffle, rank=rank, world_size=ranks
            )
            dataset.set_epoch(epoch)
            batches = keys_of(dataset, workers)
            assert len(batches) == dataset.steps > 0
            given += flat(batches)
        assert sorted(given) == sorted(TRAIN)


def test_a_batch_is_of_one_bucket_at_each_step_of_all_ranks(out: str) -> None:
    """Pins the size of the bucket's smallest clip, multiples of 16, splits, and the order."""
    dataset = ClipDataset(out, batch_size=4, frames=3)
    assert dataset.sizes == {B: (104, 100), A: (104, 68)}
    for batch in dataset:
        (bucket,) = set(batch["bucket"])
        assert batch["video"].shape[1:] == (3, 3, *dataset.sizes[bucket][::-1])
        assert [key >= f"{200:08x}" for key in batch["key"]] == [bucket == B] * len(batch["key"])
        assert [facts["clip_id"] for facts in batch["json"]] == batch["key"]
    tokens = ClipDataset(out, batch_size=4, frames=3, multiple=16)
    assert tokens.sizes == {B: (96, 96), A: (96, 64)}
    held_out = keys_of(ClipDataset(out, split="val", batch_size=2, frames=2))
    assert sorted(flat(held_out)) == [f"{i:08x}" for i in range(300, 303)]
    # For evaluation.
    ordered = ClipDataset(out, batch_size=4, frames=1, shuffle=0, buckets=[A])
    in_order = [f"{i:08x}" for i in (*range(7), *range(100, 105))]
    assert flat(keys_of(ordered)) == flat(keys_of(ordered)) == in_order
    # What distributed training needs: no rank waits for another's missing batch.
    kinds = []
    for rank in range(3):
        dataset = ClipDataset(
            out, batch_size=2, frames=2, drop_last=True, rank=rank, world_size=3, window="first"
        )
        batches = list(ClipLoader(dataset, num_workers=2))
        assert all(len(batch["key"]) == 2 for batch in batches)
        kinds.append([batch["bucket"][0] for batch in batches])
    assert kinds[0] == kinds[1] == kinds[2]
    assert Counter(kinds[0]) == {A: 2, B: 1}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    """78 clips of four sizes in 23 buckets: three have a batch of 8, and 20 have 2 or 3 clips."""
    folder = tmp_path_factory.mktemp("many")
    counts = [9, 11, 9, *[3] * 9, *[2] * 11]
    sizes = [(68, 104), (104, 68), (100, 104), (64, 128)]
    tars = []
    for number, count in enumerate(counts):
        height, width = sizes[number % 4]
        clips = made_clips(folder, count, first=100 * number, height=height, width=width)
        tars.append((f"{number}p_1-1_17f", "train", clips))
    return str(write_shards(folder / "out", tars))


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 2)])
def test_with_a_size_clips_of_all_buckets_fill_batches(many: str, ranks: int, workers: int) -> None:
    """Pins that of 78 clips in 23 buckets, no batch lacks a clip and no clip is never read."""
    own = {"batch_size": 8, "frames": 2, "drop_last": True, "size": (96, 64)}
    n_read = 78 // (8 * ranks) * 8 * ranks
    seen: set[str] = set()
    for epoch in range(8):
        of_epoch: list[str] = []
        for rank in range(ranks):
            of_rank = own | {"rank": rank, "world_size": ranks, "video": False}
            dataset = ClipDataset(many, **of_rank)  # type: ignore[arg-type]
            dataset.set_epoch(epoch)
            batches = [batch["key"] for batch in dataset]
            assert [len(batch) for batch in batches] == [8] * (78 // (8 * ranks))
            of_epoch += flat(batches)
        assert len(set(of_epoch)) == len(of_epoch) == n_read
        seen.update(of_epoch)
    assert len(seen) == 78
    dataset = ClipDataset(many, **own, rank=0, world_size=ranks)  # type: ignore[arg-type]
    batches = list(ClipLoader(dataset, num_workers=workers))
    assert {tuple(batch["video"].shape) for batch in batches} == {(8, 3, 2, 64, 96)}
    assert any(len(set(batch["bucket"])) > 1 for batch in batches)
    for batch in batches:
        assert batch["bucket"] == [f"{int(key, 16) // 100}p_1-1_17f" for key in batch["key"]]
    # An epoch has all clips if the last batch may be smaller.
    own |= {"drop_last": False, "video": False}
    assert len(set(flat(keys_of(ClipDataset(many, **own))))) == 78  # type: ignore[arg-type]


def test_batches_of_all_buckets_resume_and_do_not_mistake_other_batches(many: str) -> None:
    """Pins the position within an epoch, and that states name batches of one kind only."""
    options = {"batch_size": 8, "frames": 2, "drop_last": True, "size": 64}
    dataset = ClipDataset(many, **options)  # type: ignore[arg-type]
    loader = ClipLoader(dataset)
    batches = iter(loader)
    before = [next(batches) for _ in range(3)]
    state = loader.state_dict()
    after = [signature(batch) for batch in batches]
    again = ClipDataset(many, **options)  # type: ignore[arg-type]
    resumed = ClipLoader(again)
    resumed.load_state_dict(state)
    assert [signature(batch) for batch in resumed] == after
    assert len(before) + len(after) == 9
    by_bucket = ClipDataset(many, **options | {"size": None})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="batches='all buckets' and this dataset has 'one bucket"):
        by_bucket.load_state_dict(state)
    with pytest.raises(UsageError, match="batches='one bucket each'"):
        dataset.load_state_dict(by_bucket.state_dict())


def test_clips_that_are_never_read_are_counted_in_a_warning(
    many: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins the numbers without `size`, and that shares of buckets keep batches of one bucket."""
    with caplog.at_level(logging.WARNING):
        dataset = ClipDataset(many, batch_size=8, frames=2, drop_last=True)
    assert dataset.steps == 3
    assert "an epoch reads 24 of 78 clips; 49 are never read" in caplog.text
    assert "(10p_1-1_17f: 3, 11p_1-1_17f: 3, " in caplog.text
    assert "and 12 more); size=(width, height) scales" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        ClipDataset(many, batch_size=8, frames=2, drop_last=True, size=(128, 64))
    assert "size 128x64 enlarges clips of 18 of 23 buckets, the smallest ones of 0p" in caplog.text
    shares = {"0p_1-1_17f": 1.0, "1p_1-1_17f": 1.0}
    weighted = ClipDataset(many, batch_size=8, frames=2, size=64, drop_last=True, buckets=shares)
    assert all(len(set(batch["bucket"])) == 1 for batch in weighted)


def test_what_does_not_fill_a_batch_differs_by_epoch(tmp_path: Path) -> None:
    """Pins that drop_last leaves no clip out for good."""
    out = write_shards(tmp_path / "out", [(A, "train", made_clips(tmp_path, 7))])
    dataset = ClipDataset(str(out), batch_size=4, frames=2, drop_last=True)
    seen: set[str] = set()
    for _ in range(12):
        batches = keys_of(dataset)
        assert [len(batch) for batch in batches] == [4]
        seen |= set(flat(batches))
    assert len(seen) == 7


def test_weights_are_shares_of_batches_of_workers_without_clips_too(tmp_path: Path) -> None:
    """Pins the blend, and that a bucket asked for more goes through all its clips evenly."""
    tars = [
        (A, "train", made_clips(tmp_path, 40)),
        (B, "train", made_clips(tmp_path, 8, first=100)),
    ]
    out = str(write_shards(tmp_path / "out", tars))
    for workers in (0, 2):
        dataset = ClipDataset(out, batch_size=2, frames=1, buckets={A: 1, B: 3}, repeat=True)
        assert dataset.steps == 24
        kinds: Counter[str] = Counter()
        clips: Counter[str] = Counter()
        for _ in range(4):
            for batch in ClipLoader(dataset, num_workers=workers):
                (bucket,) = set(batch["bucket"])
                kinds[bucket] += 1
                clips.update(batch["key"])
        assert kinds == {A: 24, B: 72}
        of_b = [clips[f"{i:08x}"] for i in range(100, 108)]
        assert of_b == [18] * 8
        of_a = [clips[f"{i:08x}"] for i in range(40)]
        assert sum(of_a) == 48
        assert set(of_a) == {1, 2}
    # A weight holds with fewer batches than workers, and no worker is idle.
    tars = [
        (A, "train", made_clips(tmp_path, 12)),
        (B, "train", made_clips(tmp_path, 2, first=100)),
    ]
    out = str(write_shards(tmp_path / "out", tars))
    dataset = ClipDataset(
        out, batch_size=2, frames=1, buckets={A: 1, B: 1}, drop_last=True, repeat=True
    )
    made = Counter(
        (batch["position"]["step"] % 3, batch["bucket"][0])
        for _ in range(3)
        for batch in ClipLoader(dataset, num_workers=3)
    )
    assert dataset.steps == 7
    assert sum(n for (_, bucket), n in made.items() if bucket == B) == 3 * 4
    assert {worker for worker, bucket in made if bucket == B} == {0, 1, 2}


def test_the_same_seed_and_epoch_give_the_same_batches(out: str) -> None:
    """Pins determinism, and that seeds and epochs differ."""

    def epoch(seed: int, number: int) -> list[tuple[Any, ...]]:
        dataset = ClipDataset(out, batch_size=2, frames=3, seed=seed)
        dataset.set_epoch(number)
        return [signature(batch) for batch in dataset]

    assert epoch(0, 0) == epoch(0, 0)
    assert epoch(0, 0) != epoch(1, 0)
    assert epoch(0, 0) != epoch(0, 1)
    windows = [dict(zip(*s[:2], strict=True)) for n in (0, 1) for s in epoch(0, n)]
    assert len({tuple(sorted(w.items())) for w in windows}) > len(windows) // 2


@pytest.mark.parametrize(("workers", "weighted"), [(0, True), (2, False), (2, True)])
def test_a_loaded_state_goes_on_with_the_very_next_batch(
    out: str, workers: int, weighted: bool
) -> None:
    """Pins exact resume again and again, in the middle of an epoch and through the next one."""

    def fresh() -> ClipLoader:
        buckets = {A: 1.0, B: 2.0} if weighted else None
        dataset = ClipDataset(out, batch_size=2, frames=3, shuffle=4, buckets=buckets)
        return ClipLoader(dataset, num_workers=workers)

    loader = fresh()
    whole = [signature(batch) for _ in range(2) for batch in loader]
    seen, state = [], None
    while len(seen) < len(whole):
        loader = fresh()
        if state is not None:
            loader.load_state_dict(state)
        seen += [signature(batch) for batch in islice(loader, 4)]
        state = loader.state_dict()
    assert seen == whole


def test_a_loop_that_was_left_begins_at_the_same_place(out: str) -> None:
    """Pins that `break` and a new `for` repeat the epoch, with and without workers."""
    for workers in (0, 2):
        loader = ClipLoader(ClipDataset(out, batch_size=2, frames=2), num_workers=workers)
        first = signature(next(iter(loader)))
        assert signature(next(iter(loader))) == first


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_data_loader_does_the_same(out: str, workers: int) -> None:
    """Pins that DataLoader itself is enough, with `advance` for the state."""
    dataset = ClipDataset(out, batch_size=2, frames=2)
    whole = [signature(batch) for batch in ClipLoader(dataset, num_workers=workers)]
    dataset.set_epoch(0)
    seen = []
    for batch in DataLoader(dataset, batch_size=None, num_workers=workers):
        seen.append(signature(batch))
        dataset.advance(batch)
        if len(seen) == 3:
            break
    later = ClipDataset(out, batch_size=2, frames=2)
    later.load_state_dict(dataset.state_dict())
    seen += [signature(b) for b in DataLoader(later, batch_size=None, num_workers=workers)]
    assert seen == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_torchdatas_stateful_loader_resumes(out: str, workers: int) -> None:
    """Pins the protocol of StatefulDataLoader, whose workers are asked for their states."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def fresh() -> Any:  # noqa: ANN401
        dataset = ClipDataset(out, batch_size=2, frames=2)
        return stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=workers)

    whole = [signature(batch) for batch in fresh()]
    assert sorted(flat([list(s[0]) for s in whole])) == sorted(TRAIN)
    loader, seen = fresh(), []
    for batch in loader:
        seen.append(signature(batch))
        if len(seen) == 3:
            break
    later = fresh()
    later.load_state_dict(loader.state_dict())
    assert seen + [signature(batch) for batch in later] == whole


def test_persistent_workers_both_kinds_of_values_and_a_size_that_crops_the_centre(out: str) -> None:
    """Pins epochs of a plain DataLoader whose workers stay."""
    dataset = ClipDataset(out, batch_size=2, frames=2)
    epochs = [[signature(b) for b in ClipLoader(dataset, num_workers=2)] for _ in range(2)]
    dataset.set_epoch(0)
    plain = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    assert [[signature(b) for b in plain] for _ in range(2)] == epochs
    assert epochs[0] != epochs[1]
    # [0, 255] as decoded, and that 0 is -1 and 255 is 1.
    levels = ClipDataset(out, batch_size=2, frames=2)
    units = ClipDataset(out, batch_size=2, frames=2, values="unit")
    for level, unit in zip(levels, units, strict=True):
        assert (level["video"].dtype, unit["video"].dtype) == (torch.uint8, torch.float32)
        assert level["video"].max() > 220
        assert torch.allclose(unit["video"], level["video"].float() / 127.5 - 1)
        assert torch.equal(unit["video"], as_unit(level["video"]))
    ends = as_unit(torch.tensor([0, 255], dtype=torch.uint8))
    assert ends.tolist() == [-1.0, 1.0]
    # Scaling: 104x68 to 48.9 columns and 32 rows, of which the middle 32 columns remain.
    first = {"buckets": [A], "batch_size": 1, "frames": 1, "window": "first", "shuffle": 0}
    videos = [next(iter(ClipDataset(out, size=size, **first)))["video"] for size in (32, "32x32")]  # type: ignore[arg-type]
    assert torch.equal(*videos)
    video = videos[0][0, :, 0].permute(1, 2, 0).numpy().astype(int)
    with_own = ClipDataset(out, buckets=[A], frames=1, window="first", shuffle=0)
    mp4 = SampleReader(["mp4"]).read(with_own._shards[0].shard, 0)["mp4"]
    whole = shrunk(all_frames(mp4)[0], 32, 49)[:, 8:40]
    assert np.abs(video - whole).mean() < 4
    assert np.abs(video - whole[:, ::-1]).mean() > 20


def test_repeated_captions_and_embeddings_come_once(tmp_path: Path) -> None:
    """Pins `unique` and `inverse`."""
    mp4 = clip_bytes(tmp_path)
    captions = ["one", "two", "one", "one"]
    vectors = [np.float32([1, 2]), np.float32([3, 4]), np.float32([1, 2]), np.float32([5, 6])]
    clips = [
        MadeClip(key=f"{i:04x}", mp4=mp4, caption=captions[i], npy=vectors[i]) for i in range(4)
    ]
    out = write_shards(tmp_path / "out", [(A, "train", clips)])
    dataset = ClipDataset(str(out), batch_size=4, frames=1, embedding=True)
    for loader in (dataset, ClipLoader(dataset, num_workers=1)):
        batch = next(iter(loader))
        places = [int(key, 16) for key in batch["key"]]
        caption, vector = batch["caption"], batch["embedding"]
        assert sorted(caption.unique) == ["one", "two"]
        assert [caption.unique[i] for i in caption.inverse] == [captions[i] for i in places]
        assert vector.unique.shape == (3, 2)
        assert vector.unique[vector.inverse].tolist() == [vectors[i].tolist() for i in places]
    single = next(iter(ClipDataset(str(out), frames=1, embedding=True)))
    assert single["embedding"].tolist() == vectors[int(single["key"], 16)].tolist()
    assert single["caption"] == captions[int(single["key"], 16)]


def test_caption_embeddings_come_once_as_they_are_stored(tmp_path: Path) -> None:
    """Pins vectors of tokens, which differ in length, and that no value stands for no caption."""
    mp4 = clip_bytes(tmp_path)
    captions = ["long", "short", "long", " "]
    stored = {"long": np.float16([[1, 2], [3, 4]]), "short": np.float16([[5, 6]])}
    clips = [
        MadeClip(key=f"{i:04x}", mp4=mp4, caption=text, text_npy=stored.get(text))
        for i, text in enumerate(captions)
    ]
    out = str(write_shards(tmp_path / "out", [(A, "train", clips)]))
    dataset = ClipDataset(out, batch_size=4, frames=1, caption_embedding=True)
    batch = next(iter(ClipLoader(dataset, num_workers=1)))
    found = batch["caption_embedding"]
    assert len(found.unique) == 3
    for key, place in zip(batch["key"], found.inverse, strict=True):
        wanted, vectors = stored.get(captions[int(key, 16)]), found.unique[place]
        if wanted is None:
            assert vectors is None
        else:
            assert (vectors.dtype, vectors.tolist()) == (torch.float16, wanted.tolist())
    bare = MadeClip(key="00ff", mp4=mp4, caption="a caption")
    out = str(write_shards(tmp_path / "bare", [(A, "train", [bare])]))
    with pytest.raises(ShardError, match=r"clip 00ff of .* has a caption and no 'text.npy'"):
        next(iter(ClipDataset(out, frames=1, caption_embedding=True)))


def test_tars_without_a_manifest_are_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins that tars that may be part of them are read, from OUT or its folder, where asked for."""
    tars = [
        (A, "train", made_clips(tmp_path, 5)),
        (A, "train", made_clips(tmp_path, 2, first=50)),
        (A, "val", made_clips(tmp_path, 2, first=90)),
    ]
    out = write_shards(tmp_path / "out", tars, manifest=False)
    for root in (out, out / "shards"):
        with pytest.raises(
            UsageError,
            match=r"/shards has 3 tars and no manifest.json, .* allow_incomplete=True reads these",
        ):
            ClipDataset(str(root), batch_size=3, frames=2)
    with caplog.at_level(logging.WARNING):
        dataset = ClipDataset(str(out), batch_size=3, frames=2, allow_incomplete=True)
    assert (
        "has no manifest.json: reading the headers of 2 tars (skipping 1 of 'val')" in caplog.text
    )
    assert dataset.sizes == {A: (104, 68)}
    expected = [f"{i:08x}" for i in (*range(5), 50, 51)]
    assert sorted(flat(keys_of(dataset))) == expected
    other = ClipDataset(f"{out}/shards", batch_size=3, allow_incomplete=True)
    assert sorted(flat(keys_of(other))) == expected


def test_shards_are_read_from_s3(tmp_path: Path, s3_bucket: str, out: str) -> None:
    """Pins that a bucket prefix gives the same batches as a folder."""
    from curator.storage import open_store

    store = open_store(f"s3://{s3_bucket}/films")
    for path in Path(out).rglob("*"):
        if path.is_file():
            store.write(str(path.relative_to(out)), path.read_bytes())
    here = ClipDataset(out, batch_size=2, frames=2)
    there = ClipDataset(f"s3://{s3_bucket}/films/", batch_size=2, frames=2)
    assert there.sizes == here.sizes
    assert [signature(b) for b in there] == [signature(b) for b in here]
    assert len(keys_of(there, 1)) == here.steps


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"split": "test"}, "split 'test'; expected one of train, val"),
    ({"buckets": ["48p_3-2_17"]}, "unknown bucket '48p_3-2_17'; did you mean '48p_3-2_17f'"),
    ({"buckets": {A: 0}}, "weight 0 of bucket '48p_3-2_17f'; expected a number above 0"),
    ({"buckets": []}, "buckets is empty; name one or more"),
    ({"frames": 17, "stride": 2}, "17 frames at stride 2 need a clip of 33 frames"),
    ({"frames": 0}, "frames 0; expected a whole number from 1"),
    ({"size": (101, 64)}, r"size \(101, 64\) \(width, height\); expected even .* as 100x64"),
    ({"size": "huge"}, "size 'huge'; expected 1280x720, 720p, 256"),
    ({"multiple": 0}, "multiple 0; expected a number of px from 1"),
    ({"multiple": 200}, "too small to crop to multiples of 200; give size="),
    ({"window": "middle"}, "window 'middle'; expected 'first', 'random', or a family"),
    ({"values": "float"}, "values 'float'; expected 'uint8' or 'unit'"),
    ({"batch_size": 0}, "batch_size 0; expected a whole number from 1"),
    ({"batch_size": 40, "drop_last": True}, "no bucket has a full batch of 40 .*lower batch_size"),
    (
        {"batch_size": 7, "drop_last": True, "buckets": {A: 1, B: 1}},
        "bucket '48p_1-1_17f' has a weight but only 6 samples, fewer than batch_size 7",
    ),
    ({"rank": 2, "world_size": 2}, "rank 2 of world_size 2; expected 0 to 1"),
    ({"rank": 1}, "rank 1 and world_size None; give both or neither"),
    ({"shuffle": -1}, "shuffle -1; expected a number of samples from 0"),
]


@pytest.mark.parametrize(("options", "words"), REFUSALS, ids=lambda o: str(o)[:40])
def test_arguments_that_do_not_fit_are_refused(
    out: str, options: dict[str, Any], words: str
) -> None:
    """Pins that each message names the value and the remedy, before anything is read."""
    with pytest.raises(UsageError, match=words):
        ClipDataset(out, **({"batch_size": 2, "frames": 2} | options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": 1}, "saved with seed=0 and this dataset has 1.*set_epoch\\(1\\)"),
        ({"buckets": [A]}, "saved with buckets="),
        ({"buckets": {A: 1, B: 1}}, "saved with buckets="),
    ],
)
def test_a_state_of_other_samples_is_refused(out: str, options: dict[str, Any], words: str) -> None:
    """Pins that a position is never read as one among other batches, nor by loader options."""
    dataset = ClipDataset(out, batch_size=2, frames=2)
    with pytest.raises(UsageError, match=words):
        ClipDataset(out, **({"batch_size": 2, "frames": 2} | options)).load_state_dict(
            dataset.state_dict()
        )
    for name in ("batch_size", "shuffle", "persistent_workers"):
        with pytest.raises(UsageError, match=f"ClipLoader takes no '{name}'"):
            ClipLoader(dataset, **{name: True})


def moved(data: bytes) -> bytes:
    offsets = np.frombuffer(data, "<u8").copy()
    offsets[1:-1] += 512
    return offsets.tobytes()


@pytest.mark.parametrize(
    ("pattern", "spoiled", "words"),
    [
        ("*.idx", lambda d: d[:-8], "tar.idx has 32 bytes, expected 8 for each of 4 samples and 8"),
        ("*.idx", moved, "sample . of .*tar .*curate verify"),
        ("*.tar", lambda d: d[:5000], "sample . of .*curate verify"),
        (
            "*.parquet", lambda d: None,
            "has manifest.json and no dataset.parquet with the sizes",
        ),
        (
            "*.json", lambda d: b'{"version": 1, "shards": [{"name": 3}]}',
            "is not a manifest of shards",
        ),
        (
            "*.json", lambda d: b'{"version": 2, "shards": []}',
            "has version 2, expected 1; install a newer curate",
        ),
        (
            "*.json", lambda d: b'{"version": 1, "shards": []}',
            "has no samples of the split 'train'; choose the other split",
        ),
        (
            "*", lambda d: None,
            "no manifest.json and no tars under .* expected the output of `curate run`",
        ),
    ],
)  # fmt: skip
def test_shards_that_are_not_whole_are_named(
    tmp_path: Path, pattern: str, spoiled: Callable[[bytes], bytes | None], words: str
) -> None:
    """Pins that damage is an error with the object and the remedy, never a missing sample."""
    out = write_shards(tmp_path / "out", [(A, "train", made_clips(tmp_path, 4))])
    for path in [path for path in (out / "shards").rglob(pattern) if path.is_file()]:
        data = spoiled(path.read_bytes())
        path.unlink() if data is None else path.write_bytes(data)
    with pytest.raises(CuratorError, match=words):
        list(ClipDataset(str(out), frames=2))


def test_clips_that_hold_fewer_frames_than_they_say_are_named(tmp_path: Path) -> None:
    """Pins that no window is filled up with something else."""
    mp4 = clip_bytes(tmp_path, n_frames=10)
    clips = [MadeClip(key="abc1", mp4=mp4, n_frames=24)]
    out = write_shards(tmp_path / "out", [(A, "train", clips)])
    with pytest.raises(ShardError, match=r"clip abc1 of .* has 10 of the 12 frames from 0"):
        list(ClipDataset(str(out), frames=12, window="first"))
    with pytest.raises(ShardError, match=r"clip abc1 of "):
        list(ClipDataset(str(out), frames=24))
    clips = [MadeClip(key="abc1", mp4=mp4[:700], n_frames=24)]
    out = write_shards(tmp_path / "cut", [(A, "train", clips)])
    # An error crosses processes as it is.
    for workers in (0, 1):
        with pytest.raises(ShardError, match=r"clip abc1 of .* does not decode"):
            list(ClipLoader(ClipDataset(str(out), frames=12), num_workers=workers))


def test_clips_of_another_rate_than_they_say_are_named(tmp_path: Path) -> None:
    """Pins that a window over a gap is an error, and no frame is taken for another."""
    path = tmp_path / "gap.mp4"
    ticks = [*range(0, 120, 10), *range(200, 320, 10)]
    write_video(
        path, numbered_frames(24, 68, 104), pts=ticks, time_base=Fraction(1, 250), gop=4, bframes=0
    )
    clips = [MadeClip(key="abc1", mp4=path.read_bytes(), fps=Fraction(25))]
    out = write_shards(tmp_path / "out", [(A, "train", clips)])
    list(ClipDataset(str(out), frames=12, window="first"))
    with pytest.raises(ShardError, match=r"a frame at .* is number 20 .* expected 12"):
        list(ClipDataset(str(out), frames=13, window="first"))


_LATENTS = Array("f16", (16, "t", "h", "w"))


def _with_family(out: str, tmp_path: Path, family: Family, **changed: int) -> str:
    """A copy of the shards whose manifest declares a family; `changed` are columns of the table."""
    shutil.copytree(out, tmp_path / "out")
    manifest = tmp_path / "out/shards/manifest.json"
    facts = json.loads(manifest.read_text())
    facts["members"] = {family.member: family.to_json() | {"fingerprint": "f"}}
    manifest.write_text(json.dumps(facts))
    table = manifest.with_name("dataset.parquet")
    rows = [row | changed for row in pq.read_table(table).to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows), table)
    return str(tmp_path / "out")


def _family(content: Array | Text | Bytes, ending: str) -> Family:
    return Family("values", Scope.CLIP, content, member=f"values.{ending}")


@pytest.mark.parametrize(
    ("content", "ending"),
    [
        (_LATENTS, "safetensors"),
        (Array("f32", ("t",)), "npy"),
        (Array("f32", ("n", "d")), "npy"),
        (Array("f32", ("d", "c")), "npy"),
        (Array("f16", (8, 512)), "npy"),
        (Array("f16", (8, "c", "h", "w")), "npy"),
        (Bytes("audio/flac"), "flac"),
        (Bytes("application/json"), "bin"),
    ],
)
def test_a_window_is_never_paired_with_values_along_all_frames(
    out: str, tmp_path: Path, content: Array | Bytes, ending: str
) -> None:
    """Pins the refusal before the first batch, and its remedies."""
    place = _with_family(out, tmp_path, _family(content, ending))
    options = {"buckets": [A], "members": ["values"], "batch_size": 2}
    for window in ({"frames": 17}, {"frames": 12, "stride": 2}, {"frames": 23, "window": "first"}):
        words = r"'values'.*up to 24 frames.*frames=24.*video=False.*whole_clip_values=True"
        with pytest.raises(UsageError, match=words):
            ClipDataset(place, **options, **window)
    for choice in ({"whole_clip_values": True}, {"frames": 24}, {"video": False}):
        assert "values" in next(iter(ClipDataset(place, **options, **choice)))
    with pytest.raises(UsageError, match=r"bucket '48p_1-1_17f' have up to 40"):
        ClipDataset(place, members=["values"], frames=24)


@pytest.mark.parametrize(
    ("content", "ending"),
    [
        (Array("f32", (512,)), "npy"),
        (Array("f32", ("d",)), "npy"),
        (Array("f16", ("tokens", "d")), "npy"),
        (Array("f16", (16, "h", "w")), "npy"),
        (Text(), "txt"),
        (Bytes("image/png"), "png"),
    ],
)
def test_values_of_a_clip_without_frames_need_no_option(
    out: str, tmp_path: Path, content: Array | Text | Bytes, ending: str
) -> None:
    place = _with_family(out, tmp_path, _family(content, ending))
    assert "values" in next(iter(ClipDataset(place, members=["values"], batch_size=2)))


@pytest.mark.parametrize("axes", [(FRAMES,), (2, FRAMES), (FRAMES, "h", "w")])
@pytest.mark.parametrize(
    "window", [{"frames": 7}, {"frames": 5, "stride": 3}, {"frames": 6, "fps": 10}, {"frames": 24}]
)
def test_entries_of_frames_are_those_of_the_drawn_frames(
    tmp_path: Path, axes: tuple[str | int, ...], window: dict[str, int]
) -> None:
    """Pins each entry by the number that its frame shows, at any start, stride and rate."""
    family = _family(Array("i64", axes), "npy")
    n_frames, axis = 24, axes.index(FRAMES)
    shape = [n_frames if size == FRAMES else size if isinstance(size, int) else 3 for size in axes]
    numbers = np.arange(n_frames).reshape([-1 if size == FRAMES else 1 for size in axes])
    value = family.encode(np.ascontiguousarray(np.broadcast_to(numbers, shape)))
    assert isinstance(value, bytes)
    clips = [replace(clip, members={family.member: value}) for clip in made_clips(tmp_path, 6)]
    out = write_shards(tmp_path / "made", [(A, "train", clips)])
    place = _with_family(str(out), tmp_path, family)
    starts = set()
    for batch in ClipDataset(place, members=["values"], batch_size=2, seed=3, **window):
        found = np.moveaxis(batch["values"].numpy(), axis + 1, 1)
        for video, values, start in zip(batch["video"], found, batch["start_frame"], strict=True):
            shown = [number_in(video[:, t].numpy(), 104) for t in range(video.shape[1])]
            assert (values == np.reshape(shown, (-1, *[1] * (len(axes) - 1)))).all()
            starts.add(int(start))
    assert len(starts) > 1 or window == {"frames": 24}
    (whole, *_) = ClipDataset(place, members=["values"], batch_size=2, video=False)
    assert whole["values"].shape[axis + 1] == n_frames


def test_entries_that_are_not_one_per_frame_are_named(tmp_path: Path) -> None:
    """Pins the error about a damaged value, in place of entries of other frames."""
    family = _family(Array("f32", (FRAMES,)), "npy")
    value = family.encode(np.zeros(23, np.float32))
    assert isinstance(value, bytes)
    clips = [replace(clip, members={family.member: value}) for clip in made_clips(tmp_path, 2)]
    out = write_shards(tmp_path / "made", [(A, "train", clips)])
    dataset = ClipDataset(_with_family(str(out), tmp_path, family), members=["values"], frames=5)
    with pytest.raises(ShardError, match=r"clip \w+ of .*: family 'values': a value of 23 frames"):
        list(dataset)


def test_a_sample_longer_than_the_table_says_is_refused_beside_values(
    out: str, tmp_path: Path
) -> None:
    """Pins the check of each sample, which names clip and window."""
    family = _family(_LATENTS, "safetensors")
    place = _with_family(out, tmp_path, family, num_frames=20)
    dataset = ClipDataset(place, buckets=[A], members=["values"], frames=20, window="first")
    words = r"window of clip \w+ of .* is frames 0 to 20 of 24 frames"
    with pytest.raises(UsageError, match=words):
        next(iter(dataset))
