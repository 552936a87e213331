"""Batches of decoded clips for PyTorch, from the shards that `curate run` writes.

    from curator.loading import ClipDataset, ClipLoader

    dataset = ClipDataset("s3://curated/films", frames=17, batch_size=4, drop_last=True)
    for batch in ClipLoader(dataset, num_workers=8):
        batch["video"]          # uint8 [4, 3, 17, H, W]

Shape letters: B samples, C channels (red, green, blue), T frames, H, W height and width.
"""

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple

import orjson
import torch
from torch.utils.data import IterableDataset, get_worker_info

from curator.errors import ShardError, UsageError, unknown_key
from curator.loading import device_windows as device
from curator.loading.batch_plan import BucketPlan, Plan, Setting, normalized
from curator.loading.batch_values import (
    as_unit,
    caption_embeddings,
    embeddings,
    facts_of,
    member_values,
    rate_of,
    repeated,
)
from curator.loading.shard_reader import LoadedBucket, LocalShard, SampleReader, read_buckets
from curator.loading.window_decoder import (
    MULTIPLE,
    ClipWindow,
    FrameWindow,
    checked_size,
    decode_window,
)

Batch = dict[str, Any]

logger = logging.getLogger(__name__)

TEXT_VECTOR = "text.npy"
"""Member with the embedding of a caption."""
SHUFFLED_SAMPLES = 64
"""Default window of the shuffle; neighbours in a tar come from the whole corpus already."""


class ClipDataset(IterableDataset[Batch]):
    """Windows of frames with their captions, batch by batch, in an order fixed by seed and epoch.

    Args:
        out: Output root of `curate run`, or its folder `shards`: a path or s3://bucket/prefix.
        split: `train` or `val`.
        buckets: Names of buckets to read, or shares of the batches by name; None reads all. Without
            shares an epoch has each sample exactly once over all ranks and workers. With shares it
            has as many batches: a bucket with a larger share begins another round, one with a
            smaller share continues its round in the next epoch.
        batch_size: Samples per batch, all of one bucket; None gives single samples.
        frames: T, frames of a window.
        stride: Every `stride`-th frame of the clip.
        window: `random` places the window by seed, round and clip; `first` at the clip's start.
        size: (height, width), multiples of 16: the picture is scaled to cover it and cropped around
            its centre. None crops all clips of a bucket, unscaled, to the largest multiples of 16
            within its smallest clip.
        values: `uint8` for [0, 255], or `unit` for float32 [-1, 1], which is four times as much to
            copy between processes; `as_unit` does the same on the trainer's device.
        embedding: Reads `npy`, the clip's embedding, into `embedding`, float32 [B, D].
        caption_embedding: Reads `text.npy`, the caption's embedding, into `caption_embedding`.
        members: Names of families whose values are read, each into the batch under its name: what
            annotators left in the samples, such as latents.
        video: Decodes frames; False leaves `video` out and decodes nothing.
        seed: Seed of order and windows.
        shuffle: Window of the shuffle, in samples; tars are shuffled too. 0 keeps the order of tars
            and samples.
        drop_last: Leaves out samples that do not fill a batch on every rank; they differ by epoch.
            Then all ranks have the same number of batches, and the same bucket at each step (with
            equal numbers of workers). Distributed training needs it: ranks with more batches would
            wait for the others.
        rank: Rank of this process; None takes torch.distributed's, and is 0 without it.
        world_size: Number of ranks; None as for `rank`.
        decoder_threads: Threads of each worker's decoder.
        decode: `cpu`, or `gpu` for the GPU's video engine: the same frames, with `video` in the
            GPU's memory. The CPU decodes what the engine cannot; `not_on_gpu` counts it by reason.
            Decoding happens where the dataset is iterated: in the trainer's process
            (num_workers=0), or in workers, which must be spawned (multiprocessing_context="spawn"),
            because CUDA does not run in a forked process. Each worker takes half a gigabyte of the
            GPU's memory, and keeps another engine busy.
        gpu: Number of the GPU that decodes; None for torch's current one.
        allow_incomplete: Reads tars without `manifest.json`, which may cover only part of a run.
        snapshot: Number of a snapshot, from `curate snapshots`; None for the newest. A dataset
            stays on the snapshot that it opened, whatever is committed meanwhile.

    Attributes:
        gpu: Number of the GPU that decodes; None for the CPU.
        not_on_gpu: With `decode="gpu"`, clips of the batches passed to `advance` that the CPU
            decoded, by `media.nvdec.Refusal`.

    Raises:
        UsageError: An argument does not fit the shards, or there is no manifest or no such GPU.
        ShardError: The shards are not whole.
        StorageError: The shards cannot be read.
    """

    def __init__(
        self,
        out: str,
        *,
        split: str = "train",
        buckets: Sequence[str] | Mapping[str, float] | None = None,
        batch_size: int | None = None,
        frames: int = 17,
        stride: int = 1,
        window: Literal["first", "random"] = "random",
        size: tuple[int, int] | None = None,
        values: Literal["uint8", "unit"] = "uint8",
        embedding: bool = False,
        caption_embedding: bool = False,
        members: Sequence[str] = (),
        video: bool = True,
        seed: int = 0,
        shuffle: int = SHUFFLED_SAMPLES,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        decoder_threads: int = 1,
        decode: Literal["cpu", "gpu"] = "cpu",
        gpu: int | None = None,
        allow_incomplete: bool = False,
        snapshot: int | None = None,
    ) -> None:
        super().__init__()
        if batch_size is not None and batch_size < 1:
            raise UsageError(f"batch_size {batch_size!r}; expected a whole number from 1, or None")
        if shuffle < 0:
            raise UsageError(f"shuffle {shuffle!r}; expected a number of samples from 0")
        if values not in ("uint8", "unit"):
            raise UsageError(f"values {values!r}; expected 'uint8' or 'unit'")
        if decode not in ("cpu", "gpu"):
            raise UsageError(f"decode {decode!r}; expected 'cpu' or 'gpu'")
        if gpu is not None and decode == "cpu":
            raise UsageError(f"gpu {gpu!r} and decode='cpu'; a GPU is for decode='gpu'")
        self.batch_size = batch_size
        self._window = FrameWindow(
            frames=frames, stride=stride, place=window, decoder_threads=decoder_threads
        )
        self._size = None if size is None else checked_size(size)
        self._unit = values == "unit"
        self._embedding = embedding
        self._caption_embedding = caption_embedding
        self.gpu = device.gpu_number(gpu) if decode == "gpu" else None
        self._engines = None if self.gpu is None else partial(device.engines_of, self.gpu)
        self._on_device: device.DeviceDecoder | None = None
        self.not_on_gpu: Counter[str] = Counter()
        self._store, loaded, families = read_buckets(
            out, split, allow_incomplete=allow_incomplete, snapshot=snapshot
        )
        for name in members:
            if name not in families:
                raise UsageError(unknown_key(name, families, "family with a member in the samples"))
        self._families = [families[name] for name in members]
        self._video = video
        weights = _chosen(buckets, loaded)
        self._buckets = [loaded[name] for name in weights]
        self.sizes = {name: self._size_of(name, loaded[name]) for name in weights}
        """(height, width) of each bucket's batches."""
        rank, world_size = _ranks(rank, world_size)
        setting = Setting(
            seed=seed,
            batch_size=batch_size or 1,
            shuffle=shuffle,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
        )
        counts = {name: tuple(s.n_samples for s in loaded[name].shards) for name in weights}
        self._plan = Plan(
            [BucketPlan(name=n, sizes=counts[n], weight=weight) for n, weight in weights.items()],
            setting,
        )
        if self._plan.unread:
            logger.warning(
                "no full batch of %d for each of %d ranks in %s: not read, because of drop_last",
                setting.batch_size, world_size, ", ".join(self._plan.unread),
            )  # fmt: skip
        if not self.steps:
            logger.warning("rank %d of %d has no samples at all", rank, world_size)
        names = [(shard.name, shard.n_samples) for b in self._buckets for shard in b.shards]
        self._made_with = {
            "split": split,
            "buckets": weights,
            **{name: value for name, value in asdict(setting).items() if name != "rank"},
            "shards": hashlib.sha256(orjson.dumps(names)).hexdigest()[:16],
        }
        """Everything that a position depends on."""
        self.set_epoch(0)

    @property
    def steps(self) -> int:
        """Batches of an epoch on this rank, by all its workers together."""
        return self._plan.steps

    def _size_of(self, name: str, bucket: LoadedBucket) -> tuple[int, int]:
        if self._video and bucket.n_frames < self._window.span:
            own = self._window
            raise UsageError(
                f"{own.frames} frames at stride {own.stride} take {own.span}, and the shortest "
                f"clip of bucket {name!r} has {bucket.n_frames}; lower frames or stride, or "
                "leave the bucket out (buckets=[...])"
            )
        size = self._size or (
            bucket.height // MULTIPLE * MULTIPLE,
            bucket.width // MULTIPLE * MULTIPLE,
        )
        if not all(size):
            raise UsageError(
                f"bucket {name!r} has a clip of {bucket.width}x{bucket.height}, too small to crop "
                "to multiples of 16; give size=(height, width) to scale, or leave the bucket out"
            )
        return size

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch; `ClipLoader` counts epochs itself."""
        self._start = self._now = _Position(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of this process, to be saved with the model.

        In the trainer's process it is after the last batch that `ClipLoader` returned, or that was
        passed to `advance`; batches that workers made ahead do not count. In a worker, for
        torchdata's StatefulDataLoader, it is after the last batch that the worker made.
        """
        return {"version": 1, **self._now._asdict(), "made_with": dict(self._made_with)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with the batch after a saved state.

        With drop_last the state of one rank fits all of them.

        Raises:
            UsageError: It was saved with other shards or arguments.
        """
        saved = state.get("made_with", {})
        for name, value in self._made_with.items():
            if saved.get(name) != value:
                raise UsageError(
                    f"the state was saved with {name}={saved.get(name)!r} and this dataset has "
                    f"{value!r}: its position names other samples here. Use what it was saved "
                    f"with, or begin an epoch with set_epoch({int(state.get('epoch', 0)) + 1})"
                )
        self._start = self._now = _Position(*(state[name] for name in _Position._fields))

    def advance(self, batch: Batch) -> None:
        """Records that a batch was used, for `state_dict`; `ClipLoader` calls it itself."""
        at = batch["position"]
        self._now = _Position(at["epoch"], at["step"] + 1, at["workers"])
        self.not_on_gpu.update(batch.get("not_on_gpu", {}))

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the GPU's engines, which belong to one process."""
        return self.__dict__ | {"_on_device": None}

    def __iter__(self) -> Iterator[Batch]:
        """Yields the rest of the epoch: this worker's batches in a worker, else all.

        Each is a dictionary. With a batch size:

        - `video`: uint8 [B, 3, T, H, W] of [0, 255], or float32 of [-1, 1]; RGB
        - `caption`: `Repeated` of strings
        - `fps`: float32 [B], frames/s of the window, the clip's rate divided by the stride
        - `start_frame`: int64 [B], number of the window's first frame in the clip
        - `key`: clip ids; `json`: each sample's JSON; `bucket`: its name
        - each name in `members`: a tensor [B, …], or a list where shapes differ or values lack
        - `embedding`: `Repeated` of float32 [U, D], if requested
        - `caption_embedding`: `Repeated` of a list, if requested: float32 [D] or, of tokens,
          float16 [tokens, D]; None for a sample without a caption
        - `not_on_gpu`: with `decode="gpu"`, the number of clips that the CPU decoded, by reason
        - `position`: for `advance`

        Without one, `video` is [3, T, H, W], and the others are single values.
        """
        info = get_worker_info()
        own, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        start = self._start
        worker, first_step = start.first(own, workers)
        with closing(self._reader()) as reader:
            planned = self._planned(start.epoch, worker, workers, first_step)
            for each in reader.ahead(planned, self._places):
                batch = self._batch(reader, each)
                at = {"epoch": start.epoch, "step": each.step, "workers": workers}
                own_part = None if info is None else worker
                self._now = _Position(start.epoch, each.step + workers, workers, own_part)
                yield batch | {"position": at}
        self.set_epoch(start.epoch + 1)

    def _planned(
        self, epoch: int, worker: int, workers: int, first_step: int
    ) -> Iterator["_Planned"]:
        """A worker's batches of an epoch, from a step on."""
        lanes = self._plan.lanes(worker, workers)
        sequence = self._plan.sequence(epoch, worker, lanes)
        turn = first_step // workers
        given = Counter(sequence[:turn].tolist())
        for step, i in enumerate(sequence[turn:].tolist()):
            round_, samples = self._plan.batch(i, lanes[i], epoch * lanes[i].quota + given[i])
            given[i] += 1
            yield _Planned(first_step + step * workers, i, round_, samples)

    def _places(self, planned: "_Planned") -> Iterator[tuple[LocalShard, int]]:
        shards = self._buckets[planned.i].shards
        return ((shards[tar], number) for tar, number in planned.samples)

    def batch_at(self, epoch: int, step: int) -> Batch:
        """Makes the batch that a single worker makes at this step of this rank."""
        with closing(self._reader()) as reader:
            plans = islice(self._planned(epoch, 0, 1, step), 1)
            (planned,) = reader.ahead(plans, self._places)
            at = {"epoch": epoch, "step": step, "workers": 1}
            return self._batch(reader, planned) | {"position": at}

    def _reader(self) -> SampleReader:
        members = ["json", "txt", *(["mp4"] if self._video else [])]
        members += ["npy"] if self._embedding else []
        optional = [family.member for family in self._families]
        if self._caption_embedding:
            optional.append(TEXT_VECTOR)
        return SampleReader(self._store, members, optional)

    def _batch(self, reader: SampleReader, planned: "_Planned") -> Batch:
        name = self._plan.buckets[planned.i].name
        read = [reader.read(*place) for place in self._places(planned)]
        facts = [facts_of(sample) for sample in read]
        batch = self._frames(name, read, facts, planned) if self._video else {}
        batch |= {
            "caption": repeated([sample["txt"].decode() for sample in read]),
            "key": [sample["__key__"] for sample in read],
            "json": facts,
            "bucket": name,
        }
        if self._embedding:
            batch["embedding"] = embeddings([sample["npy"] for sample in read])
        if self._caption_embedding:
            batch["caption_embedding"] = caption_embeddings([self._text_vector(s) for s in read])
        for family in self._families:
            stored = [sample.get(family.member) for sample in read]
            batch[family.name] = member_values(family, stored)
        names = [family.name for family in self._families]
        return batch if self.batch_size is not None else next(singles_of(batch, names))

    def _frames(
        self,
        name: str,
        read: Sequence[Mapping[str, Any]],
        facts: Sequence[Mapping[str, Any]],
        planned: "_Planned",
    ) -> Batch:
        """Decodes the windows of a batch."""
        T = self._window.frames  # noqa: N806 - shape letter
        on_device = self._device_decoder()
        starts, refused = [], Counter[str]()
        results: list[torch.Tensor] = []
        with on_device.queued(results) if on_device is not None else nullcontext():
            video_BCTHW = torch.empty(  # noqa: N806
                (len(planned.samples), 3, T, *self.sizes[name]),
                dtype=torch.uint8,
                device="cpu" if on_device is None else on_device.device,
            )
            for sample, fact, video in zip(read, facts, video_BCTHW, strict=True):
                clip = self._clip(sample, fact, planned.round_)
                starts.append(clip.start)
                if on_device is None:
                    decode_window(clip, video)
                elif refusal := on_device.decode_or_copy(clip, video):
                    refused[refusal] += 1
            results.append(as_unit(video_BCTHW) if self._unit else video_BCTHW)
        batch: Batch = {
            "video": results[0],
            "fps": torch.tensor([fact["fps"] / self._window.stride for fact in facts]),
            "start_frame": torch.tensor(starts),
        }
        if on_device is not None:
            batch["not_on_gpu"] = dict(refused)
        return batch

    def _text_vector(self, sample: Mapping[str, Any]) -> bytes | None:
        """Returns the stored embedding of a sample's caption; None for an empty caption."""
        stored: bytes | None = sample.get(TEXT_VECTOR)
        if stored is None and sample["txt"].strip():
            raise ShardError(
                f"clip {sample['__key__']} of {self._store.uri}/{sample['__url__']} has a caption "
                f"and no {TEXT_VECTOR!r}; `curate recaption` with caption.embedding adds it"
            )
        return stored

    def _device_decoder(self) -> "device.DeviceDecoder | None":
        if self._engines is None:
            return None
        if self._on_device is None or self._on_device.pid != os.getpid():
            self._on_device = device.DeviceDecoder(self._engines())
        return self._on_device

    def _clip(self, sample: Mapping[str, Any], fact: Mapping[str, Any], round_: int) -> ClipWindow:
        key, n_frames = sample["__key__"], int(fact["n_frames"])
        name = f"clip {key} of {self._store.uri}/{sample['__url__']}"
        if n_frames < self._window.span:
            raise ShardError(
                f"{name} has {n_frames} frames by its JSON, fewer than its bucket's shortest clip "
                "by the table; `curate verify` says what else is wrong"
            )
        return ClipWindow(
            mp4=sample["mp4"],
            start=self._window.start(n_frames, key, seed=self._plan.setting.seed, round_=round_),
            rate=rate_of(fact),
            window=self._window,
            scaled=self._size is not None,
            name=name,
        )


class _Planned(NamedTuple):
    """A batch to make, at a step of the rank and in a round of its bucket."""

    step: int
    i: int
    """Number of the bucket."""
    round_: int
    samples: list[tuple[int, int]]
    """Number of the tar and number of the sample in it."""


class _Position(NamedTuple):
    """A place in the batches of a rank.

    Attributes:
        step: The next batch of the rank, or of `worker` alone.
        workers: Number of workers that made the batches so far; None before the first.
        worker: The worker at this position; None for all.
    """

    epoch: int
    step: int = 0
    workers: int | None = None
    worker: int | None = None

    def first(self, number: int, workers: int) -> tuple[int, int]:
        """Returns a worker's lane from here on, and its first step.

        A new DataLoader takes from its worker 0 first, so worker 0 gets the lane whose turn it is.
        """
        if self.step and workers != self.workers:
            raise UsageError(
                f"the state was saved in step {self.step} of epoch {self.epoch} with num_workers="
                f"{self.workers} (0 counts as 1), and this is {workers}: samples are divided by "
                f"that number. Use the same, or begin an epoch with set_epoch({self.epoch + 1})"
            )
        if self.worker is not None:
            return self.worker, self.step
        return (self.step + number) % workers, self.step + number


def _chosen(
    buckets: Sequence[str] | Mapping[str, float] | None, loaded: Mapping[str, LoadedBucket]
) -> dict[str, float | None]:
    """Returns the buckets to read with their weights, sorted by name."""
    names = list(loaded if buckets is None else [buckets] if isinstance(buckets, str) else buckets)
    if not names:
        raise UsageError("buckets is empty; name one or more, or leave it out to read all")
    for name in names:
        if name not in loaded:
            raise UsageError(unknown_key(name, loaded, "bucket"))
    weights = normalized(buckets) if isinstance(buckets, Mapping) else dict.fromkeys(names)
    return {name: weights[name] for name in sorted(weights)}


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        raise UsageError(f"rank {rank!r} and world_size {world_size!r}: give both or neither")
    if rank is None or world_size is None:
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            return 0, 1
        return distributed.get_rank(), distributed.get_world_size()
    if not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} of world_size {world_size}; expected 0 to {world_size - 1}")
    return rank, world_size


def singles_of(batch: Batch, members: Sequence[str] = ()) -> Iterator[Batch]:
    """Yields the samples of a batch, without the sample dimension; `members` are families."""
    for b in range(len(batch["key"])):
        names = ("video", "key", "json", *members)
        single = {name: batch[name][b] for name in names if name in batch}
        single |= {name: batch[name][b].item() for name in ("fps", "start_frame") if name in batch}
        for name in ("caption", "embedding", "caption_embedding"):
            if name in batch:
                single[name] = batch[name].unique[batch[name].inverse[b]]
        yield single | {name: batch[name] for name in ("bucket", "not_on_gpu") if name in batch}
