"""Reads batches of decoded clips for PyTorch from the shards that `curate run` writes.

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

from curator.buckets import MAX_ENLARGED, cover_factor
from curator.errors import ShardError, UsageError, unknown_key
from curator.frame_size import parsed_size
from curator.loading import device_windows as device
from curator.loading.batch_plan import BucketPlan, Plan, Setting, listed, normalized
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
from curator.loading.window_decoder import ClipWindow, FrameWindow, decode_window

Batch = dict[str, Any]

logger = logging.getLogger(__name__)

TEXT_VECTOR = "text.npy"
"""Member of a sample that holds the embedding of its caption."""
ALL_BUCKETS = "*"
"""Name of the plan whose batches have clips of all buckets."""
MIXED_TARS = 8
"""Tars from which a worker reads in turn, so that its batches have clips of several buckets."""
SHUFFLED_SAMPLES = 64
"""Default window of the shuffle. It is small because `curate run` mixes the corpus in each tar."""


class ClipDataset(IterableDataset[Batch]):
    """Yields batches of frame windows and captions, in an order fixed by seed and epoch.

    Args:
        out: Output root of `curate run`, or its folder `shards`: a path or s3://bucket/prefix.
        split: `train` or `val`.
        buckets: Names of the buckets to read, or each bucket's share of the batches by name; None
            reads all buckets. Without shares, all ranks and workers together read each sample once
            an epoch. Shares do not change the number of batches: a bucket with a larger share
            repeats samples, and a bucket with a smaller share continues in the next epoch.
        batch_size: Samples per batch; None yields single samples. With `size`, and without shares,
            clips of all buckets fill a batch together. Otherwise a batch is from one bucket.
        frames: T, the number of frames in a window.
        stride: A window takes every `stride`-th frame of the clip.
        window: `random` draws the start from seed, round and clip; `first` takes the clip's start.
        size: Width and height in px, both even: `(1280, 720)`, `"1280x720"`, `"720p"`, or `256`
            for a square. Frames are scaled to cover the size, then cropped around the centre. None
            does not scale: it crops all clips of a bucket to its least width and least height.
        multiple: Without `size`, batches have sides that are multiples of this number of px: 16
            for a tokenizer that divides by 16.
        values: `uint8` for [0, 255], or `unit` for float32 [-1, 1]. Workers pass four times as many
            bytes with `unit`; `as_unit` converts on the trainer's device instead.
        embedding: Reads the clip's embedding (`npy`) into `embedding`.
        caption_embedding: Reads the caption's embedding (`text.npy`) into `caption_embedding`.
        members: Names of families to read, such as latents that annotators stored in the samples.
            A batch has each family's values under its name. Values belong to the whole clip, so
            families whose values may have a part per frame (`Family.may_have_frames`) are refused
            with windows that are not the whole clip.
        whole_clip_values: Reads such families despite windows: a batch then has frames
            `start_frame` to … beside values of all frames, and the caller cuts the values.
        video: Decodes frames. False decodes nothing, and batches have no `video`, `fps` or
            `start_frame`.
        seed: Seed of the order and of random windows.
        shuffle: Window of the shuffle, in samples; tars are shuffled too. 0 keeps the order of tars
            and samples.
        drop_last: Leaves out samples that do not fill a batch on every rank; with shuffling, each
            round leaves out others. All ranks then have the same number of batches and, with equal
            numbers of workers, the same bucket at each step. Distributed training needs
            `drop_last`: otherwise ranks with more batches wait for ranks that have finished.
        rank: Rank of this process; None takes the rank of torch.distributed, or 0 without it.
        world_size: Number of ranks; None takes it from torch.distributed, or 1 without it.
        decoder_threads: Threads of each worker's decoder.
        decode: `cpu`, or `gpu` for the GPU's video engine, which leaves `video` in the GPU's
            memory. The CPU decodes clips that the engine cannot; `not_on_gpu` counts them by
            reason. The trainer's process decodes with num_workers=0; otherwise workers decode.
            Workers need multiprocessing_context="spawn", because CUDA does not run in a forked
            process. Each worker takes half a gigabyte of GPU memory, and keeps another engine busy.
        gpu: Number of the GPU that decodes; None for torch's current GPU.
        allow_incomplete: Reads tars without `manifest.json`, which may be only part of a run.
        snapshot: Number of a snapshot, from `curate snapshots`; None for the newest. A dataset
            keeps the snapshot that it opened, even if a run commits a newer one.

    Attributes:
        gpu: Number of the GPU that decodes; None for the CPU.
        not_on_gpu: Number of clips that the CPU decoded despite `decode="gpu"`, by
            `media.nvdec.Refusal`. It covers the batches that were passed to `advance`.
        video: Whether batches have frames.

    Raises:
        UsageError: An argument does not fit the shards, or the manifest or the GPU is missing.
        ShardError: The manifest, the table or a tar is damaged.
        StorageError: Reading failed.
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
        size: tuple[int, int] | int | str | None = None,
        multiple: int = 2,
        values: Literal["uint8", "unit"] = "uint8",
        embedding: bool = False,
        caption_embedding: bool = False,
        members: Sequence[str] = (),
        whole_clip_values: bool = False,
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
            raise UsageError(f"gpu {gpu!r} with decode='cpu'; give decode='gpu', or leave gpu out")
        self.batch_size = batch_size
        self._window = FrameWindow(
            frames=frames, stride=stride, place=window, decoder_threads=decoder_threads
        )
        if multiple < 1:
            raise UsageError(f"multiple {multiple!r}; expected a number of px from 1")
        try:
            self._size = None if size is None else parsed_size(size)
        except ValueError as error:
            raise UsageError(str(error)) from error
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
        self.video = video
        weights = _chosen(buckets, loaded)
        self._of_frames = [f for f in self._families if f.may_have_frames]
        if whole_clip_values or not video:
            self._of_frames = []
        for name in weights:
            self._check_whole(loaded[name].most_frames, f"clips of bucket {name!r} have up to")
        self.sizes = {name: self._size_of(name, loaded[name], multiple) for name in weights}
        """Width and height of each bucket's frames."""
        self._warn_of_enlarging({name: loaded[name] for name in weights})
        rank, world_size = _ranks(rank, world_size)
        setting = Setting(
            seed=seed,
            batch_size=batch_size or 1,
            shuffle=shuffle,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
        )
        # Frames of one size fill batches together; a bucket with a share has its own batches.
        is_mixed = self._size is not None and len(weights) > 1 and None in weights.values()
        plans = {ALL_BUCKETS: list(weights)} if is_mixed else {name: [name] for name in weights}
        self._shards = [[s for n in names for s in loaded[n].shards] for names in plans.values()]
        """Tars of each plan, in the order of its samples."""
        self._bucket_of = {s.name: name for name in weights for s in loaded[name].shards}
        """Bucket of each tar, by the tar's name."""
        self._plan = Plan(
            [
                BucketPlan(
                    name=name,
                    sizes=tuple(s.n_samples for s in shards),
                    weight=weights.get(name),
                    streams=MIXED_TARS if is_mixed else 1,
                )
                for name, shards in zip(plans, self._shards, strict=True)
            ],
            setting,
        )
        if unread := self._plan.unread:
            total = sum(bucket.n_samples for bucket in self._plan.buckets)
            logger.warning(
                "drop_last: an epoch reads %d of %d clips; %d are never read, because their "
                "buckets have less than a batch of %d for each of %d ranks (%s); size=(width, "
                "height) scales all clips to one size, so that they fill batches together",
                self.steps * setting.batch_size * world_size, total, sum(unread.values()),
                setting.batch_size, world_size, listed(unread),
            )  # fmt: skip
        if not self.steps:
            logger.warning("rank %d of %d has no samples", rank, world_size)
        names = [(shard.name, shard.n_samples) for shards in self._shards for shard in shards]
        self._made_with = {
            "split": split,
            "buckets": weights,
            **{name: value for name, value in asdict(setting).items() if name != "rank"},
            "shards": hashlib.sha256(orjson.dumps(names)).hexdigest()[:16],
            "batches": "all buckets" if is_mixed else "one bucket each",
        }
        """Settings that give a position its meaning; `load_state_dict` compares them."""
        self.set_epoch(0)

    @property
    def steps(self) -> int:
        """Number of batches of an epoch on this rank, over all its workers."""
        return self._plan.steps

    def _size_of(self, name: str, bucket: LoadedBucket, multiple: int) -> tuple[int, int]:
        if self.video and bucket.n_frames < self._window.span:
            own = self._window
            raise UsageError(
                f"{own.frames} frames at stride {own.stride} need a clip of {own.span} frames, and "
                f"the shortest clip of bucket {name!r} has {bucket.n_frames}; lower frames or "
                "stride, or leave the bucket out (buckets=[...])"
            )
        width, height = (side // multiple * multiple for side in (bucket.width, bucket.height))
        if self._size is None and not (width and height):
            raise UsageError(
                f"bucket {name!r} has clips down to {bucket.width}x{bucket.height}, too small to "
                f"crop to multiples of {multiple}; give size=(width, height) to scale, or leave it "
                "out"
            )
        return self._size or (width, height)

    def _warn_of_enlarging(self, buckets: Mapping[str, LoadedBucket]) -> None:
        """Warns of buckets with clips that are smaller than `size`."""
        size = self._size
        if size is None or not self.video:
            return
        small = {
            name: f"{bucket.width}x{bucket.height}"
            for name, bucket in buckets.items()
            if cover_factor((bucket.width, bucket.height), size) > MAX_ENLARGED
        }
        if small:
            logger.warning(
                "size %dx%d enlarges clips of %d of %d buckets, the smallest ones of %s; give a "
                "smaller size, or leave these buckets out (buckets=[...])",
                *size, len(small), len(buckets), listed(small),
            )  # fmt: skip

    def _check_whole(self, n_frames: int, owner: str) -> None:
        """Refuses a window of a clip together with values of the whole clip.

        `owner` begins a clause that `n_frames` frames end. Values along frames have no declared
        relation to frames of the clip, so the loader cannot cut them like the window.
        """
        own = self._window
        if not self._of_frames or (own.stride == 1 and own.frames == n_frames):
            return
        family = self._of_frames[0]
        axes = getattr(family.content, "axes", None)
        form = f"axes ({', '.join(map(str, axes))})" if axes else f"bytes in {family.member!r}"
        raise UsageError(
            f"members={[family.name]!r} are values of the whole clip, and windows are not the "
            f"whole clip: {owner} {n_frames} frames, and a window has {own.frames} at stride "
            f"{own.stride}. The family declares {form}, and not which of its values belong to "
            f"which frames, so batches would pair frames with values of other frames. Draw whole "
            f"clips (frames={n_frames}, stride=1, one length of clips), leave the member out or "
            "decode no video (video=False), or give whole_clip_values=True and cut the values "
            "yourself; docs/extending.md says how a family declares values without frames"
        )

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch. `ClipLoader` moves to the next epoch by itself."""
        self._start = self._now = _Position(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of this process, to save with the model.

        In the trainer's process, the position follows the last batch that `ClipLoader` returned or
        that was passed to `advance`; batches that workers prefetched do not count. In a worker, for
        torchdata's StatefulDataLoader, the position follows the last batch that the worker made.
        """
        return {"version": 1, **self._now._asdict(), "made_with": dict(self._made_with)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with the batch after a saved state.

        The state of any rank fits all ranks if `drop_last` is set.

        Raises:
            UsageError: The state was saved with other shards or arguments.
        """
        saved = state.get("made_with", {})
        for name, value in self._made_with.items():
            was = saved.get(name)
            if was != value:
                raise UsageError(
                    f"the state was saved with {name}={was!r} and this dataset has "
                    f"{value!r}, so the position names other samples here. Use the saved value, or "
                    f"begin an epoch with set_epoch({int(state.get('epoch', 0)) + 1})"
                )
        self._start = self._now = _Position(*(state[name] for name in _Position._fields))

    def advance(self, batch: Batch) -> None:
        """Records for `state_dict` that a batch was used. `ClipLoader` calls this method itself."""
        at = batch["position"]
        self._now = _Position(at["epoch"], at["step"] + 1, at["workers"])
        self.not_on_gpu.update(batch.get("not_on_gpu", {}))

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the GPU's engines, which belong to one process."""
        return self.__dict__ | {"_on_device": None}

    def __iter__(self) -> Iterator[Batch]:
        """Yields the remaining batches of the epoch; a worker yields only its own batches.

        A batch is a dictionary:

        - `video`: RGB, uint8 [B, 3, T, H, W] in [0, 255], or float32 in [-1, 1]; see `values`
        - `caption`: `Repeated` of strings
        - `fps`: float32 [B], frames/s of the window: the clip's rate divided by the stride
        - `start_frame`: int64 [B], index of the window's first frame in the clip
        - `key`: clip ids; `json`: parsed JSON of each sample; `bucket`: name of each one's bucket
        - each name in `members`: a tensor [B, …], or a list if shapes differ or values lack
        - `embedding`: if requested, `Repeated` of float32 [U, D]
        - `caption_embedding`: if requested, `Repeated` of a list: float32 [D], or float16
          [tokens, D] for embeddings of tokens; None for a sample without a caption
        - `not_on_gpu`: with `decode="gpu"`, the number of clips that the CPU decoded, by reason
        - `position`: for `advance`

        With `batch_size=None` each dictionary is one sample: `video` is [3, T, H, W], and all other
        entries are single values.
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
        """Yields the plans of a worker's batches of an epoch, beginning at `first_step`."""
        lanes = self._plan.lanes(worker, workers)
        sequence = self._plan.sequence(epoch, worker, lanes)
        turn = first_step // workers
        given = Counter(sequence[:turn].tolist())
        for step, i in enumerate(sequence[turn:].tolist()):
            round_, samples = self._plan.batch(i, lanes[i], epoch * lanes[i].quota + given[i])
            given[i] += 1
            yield _Planned(first_step + step * workers, i, round_, samples)

    def _places(self, planned: "_Planned") -> Iterator[tuple[LocalShard, int]]:
        shards = self._shards[planned.i]
        return ((shards[tar], number) for tar, number in planned.samples)

    def batch_at(self, epoch: int, step: int) -> Batch:
        """Returns the batch of a step, as if this rank had one worker."""
        with closing(self._reader()) as reader:
            plans = islice(self._planned(epoch, 0, 1, step), 1)
            (planned,) = reader.ahead(plans, self._places)
            at = {"epoch": epoch, "step": step, "workers": 1}
            return self._batch(reader, planned) | {"position": at}

    def _reader(self) -> SampleReader:
        members = ["json", "txt", *(["mp4"] if self.video else [])]
        members += ["npy"] if self._embedding else []
        optional = [family.member for family in self._families]
        if self._caption_embedding:
            optional.append(TEXT_VECTOR)
        return SampleReader(self._store, members, optional)

    def _batch(self, reader: SampleReader, planned: "_Planned") -> Batch:
        read = [reader.read(*place) for place in self._places(planned)]
        facts = [facts_of(sample) for sample in read]
        buckets = [self._bucket_of[sample["__url__"]] for sample in read]
        batch = self._frames(buckets[0], read, facts, planned) if self.video else {}
        batch |= {
            "caption": repeated([sample["txt"].decode() for sample in read]),
            "key": [sample["__key__"] for sample in read],
            "json": facts,
            "bucket": buckets,
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
        """Decodes the windows of a batch, whose frames have the size of bucket `name`."""
        T = self._window.frames  # noqa: N806 - shape letter
        on_device = self._device_decoder()
        starts, refused = [], Counter[str]()
        results: list[torch.Tensor] = []
        with on_device.queued(results) if on_device is not None else nullcontext():
            video_BCTHW = torch.empty(  # noqa: N806
                (len(planned.samples), 3, T, *self.sizes[name][::-1]),
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
                f"{name} has {n_frames} frames in its JSON, fewer than its bucket's shortest clip "
                "in the table; `curate verify` lists all damage"
            )
        start = self._window.start(n_frames, key, seed=self._plan.setting.seed, round_=round_)
        end = start + self._window.span
        self._check_whole(n_frames, f"the window of {name} is frames {start} to {end} of")
        return ClipWindow(
            mp4=sample["mp4"],
            start=start,
            rate=rate_of(fact),
            window=self._window,
            scaled=self._size is not None,
            name=name,
        )


class _Planned(NamedTuple):
    """The plan of one batch: its step on the rank, and the round of its `BucketPlan`."""

    step: int
    i: int
    """Index of the `BucketPlan`."""
    round_: int
    samples: list[tuple[int, int]]
    """Index of the tar in the plan, and index of the sample in the tar."""


class _Position(NamedTuple):
    """A position in the batches of a rank.

    Attributes:
        step: Step of the next batch of the rank or, if `worker` is set, of that worker.
        workers: Number of workers that made the earlier batches; None before the first batch.
        worker: The worker that has this position; None for the rank.
    """

    epoch: int
    step: int = 0
    workers: int | None = None
    worker: int | None = None

    def first(self, number: int, workers: int) -> tuple[int, int]:
        """Returns the lane that a worker reads from this position on, and its first step.

        A DataLoader takes its first batch from worker 0, so worker 0 gets the lane of that batch.
        """
        if self.step and workers != self.workers:
            raise UsageError(
                f"the state was saved in step {self.step} of epoch {self.epoch} with num_workers="
                f"{self.workers} (0 counts as 1), and this is {workers}: each worker has its own "
                f"samples. Use the same, or begin an epoch with set_epoch({self.epoch + 1})"
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
        raise UsageError(f"rank {rank!r} and world_size {world_size!r}; give both or neither")
    if rank is None or world_size is None:
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            return 0, 1
        return distributed.get_rank(), distributed.get_world_size()
    if not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} of world_size {world_size}; expected 0 to {world_size - 1}")
    return rank, world_size


def singles_of(batch: Batch, members: Sequence[str] = ()) -> Iterator[Batch]:
    """Yields the samples of a batch, without dimension B; `members` are names of families."""
    for b in range(len(batch["key"])):
        names = ("video", "key", "json", "bucket", *members)
        single = {name: batch[name][b] for name in names if name in batch}
        single |= {name: batch[name][b].item() for name in ("fps", "start_frame") if name in batch}
        for name in ("caption", "embedding", "caption_embedding"):
            if name in batch:
                single[name] = batch[name].unique[batch[name].inverse[b]]
        yield single | {name: batch[name] for name in ("not_on_gpu",) if name in batch}
