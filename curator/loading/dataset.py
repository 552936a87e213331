"""Reads batches of decoded clips for PyTorch from the shards that `curate run` writes.

    from curator.loading import ClipDataset, ClipLoader

    dataset = ClipDataset("s3://curated/films", frames=17, batch_size=4, drop_last=True)
    for batch in ClipLoader(dataset, num_workers=8):
        batch["video"]          # uint8 [4, 3, 17, H, W]

Shape letters: B samples, C channels (red, green, blue), T frames, H, W height and width.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from curator.buckets import MAX_ENLARGED, cover_factor
from curator.errors import ShardError, UsageError, unknown_key
from curator.family import Family
from curator.frame_axes import DrawnFrames
from curator.frame_size import parsed_size
from curator.loading import device_windows as device
from curator.loading.batch_plan import (
    BatchClass,
    Corpus,
    Geometry,
    Plan,
    PlannedBatch,
    Schedule,
    listed,
    normalized,
)
from curator.loading.batch_values import (
    as_unit,
    caption_embeddings,
    embeddings,
    facts_of,
    rate_of,
    repeated,
)
from curator.loading.caption_choice import DROPPED, Caption, CaptionChoice
from curator.loading.clip_selection import (
    ChosenBucket,
    Excluded,
    OutputChoice,
    open_outputs,
    per_output,
    rate_in_table,
    select_clips,
)
from curator.loading.loader_state import Position, loaded, saved
from curator.loading.shard_reader import LocalShard, Reads, SampleReader
from curator.loading.stored_values import Members, ShownFrames, StoredValue, StoredValues
from curator.loading.window_audio import (
    audio_batch,
    check_lengths,
    decode_audio,
    requested_audio,
)
from curator.loading.window_decoder import ClipWindow, FrameWindow, decode_window, drawn
from curator.records.audio_requests import AudioRequest, AudioSpan
from curator.records.sources import Medium

Batch = dict[str, Any]

logger = logging.getLogger(__name__)

TEXT_VECTOR = "text.npy"
"""Member of a sample that holds the embedding of its caption."""
ALL_BUCKETS = "*"
"""Name of the class whose batches have clips of all buckets; for options, all other buckets."""
MIXED_TARS = 8
"""Tars from which a worker reads in turn, so that its batches have clips of several buckets."""
SHUFFLED_SAMPLES = 64
"""Default window of the shuffle. It is small because `curate run` mixes the corpus in each tar."""
MAX_FPS = 1000
"""Highest `fps`, which cameras do not exceed."""
DEFAULT_FRAMES = 17
SAME_RATE = 1.01
"""Ratio of frame rates up to which clips have one speed, such as 30 and 29.97."""


class ClipDataset(IterableDataset[Batch]):
    """Yields batches of frame windows and captions, in an order fixed by seed and epoch.

    Args:
        out: Output root of `curate run`, or its folder `shards`: a path or s3://bucket/prefix. A
            list reads several outputs as one dataset; of clips with the same id in several outputs,
            the first one is read.
        shares: Share of each output in the samples of an epoch; None reads all samples of all.
        where: Reads clips that meet this condition: SQL after WHERE over the columns of the table
            `clips`, such as `motion < 1 and duration_s > 2`. A list has one condition, or None, for
            each output. It needs the extra `sql`.
        view: Reads the clips of this view, a name of `curate views`; a list has one for each.
        split: `train` or `val`.
        buckets: Names of the buckets to read, or each bucket's share of the batches by name; None
            reads all buckets. Without shares, all ranks and workers together read each sample once
            an epoch.
        repeat: With shares of outputs or buckets, False reads no sample twice in an epoch: an epoch
            ends when the scarcest output or bucket does, and the next epochs read the other
            samples. True makes an epoch as long as one without shares, and repeats samples.
        batch_size: Samples per batch; None yields single samples. With `size`, and without shares
            of buckets, clips of all buckets fill a batch together. Otherwise a batch is from one
            bucket. A mapping has a number by bucket, by parts of buckets' names such as `121f` or
            `720p_16-9`, of which the longest name decides, and by `*` for all other buckets.
        max_pixels: Instead of `batch_size`: batches of each bucket are as large as this number of
            pixels allows (frames x height x width x samples).
        frames: T, the number of frames in a window; or a mapping, as for `batch_size`. None takes
            17, or the number of the stored windows.
        stride: A window takes every `stride`-th frame of the clip.
        fps: Frames/s of windows, whatever the rate of the clip: a window has the frames that are
            shown at t, t + 1/fps, …, as clips that `cut.fps` writes. Clips that are too short for a
            window are left out and counted. None takes frames by number, so that speeds mix.
        window: `random` draws the start from seed, round and clip; `first` takes the clip's start.
            The name of a family in `members` draws one of the windows for which it has values, such
            as `latents`: a batch has exactly its frames, and its value. Clips without windows are
            left out and counted.
        size: Width and height in px, both even: `(1280, 720)`, `"1280x720"`, `"720p"`, or `256`
            for a square. Frames are scaled to cover the size, then cropped around the centre. None
            does not scale: it crops all clips of a bucket to its least width and least height.
        multiple: Without `size`, batches have sides that are multiples of this number of px: 16
            for a tokenizer that divides by 16.
        values: `uint8` for [0, 255], or `unit` for float32 [-1, 1]. Workers pass four times as many
            bytes with `unit`; `as_unit` converts on the trainer's device instead.
        embedding: Reads the clip's embedding (`npy`) into `embedding`.
        captions: Share of each length of captions, such as `{"short": 0.1, "long": 0.9}`: the
            caption is that of the annotation's window that holds most of the drawn frames. The draw
            depends on seed, epoch and clip. None gives the sample's `txt`.
        caption_dropout: Share of samples whose caption is the empty text. They have None for values
            that were computed from the caption alone.
        caption_embedding: Reads the caption's embedding (`text.npy`) into `caption_embedding`.
        members: Names of families to read, such as latents that annotators stored in the samples,
            or a mapping from names to the facts that this training expects of each family, such as
            `{"latents": {"sample": "mean"}}`: others are refused. A batch has each family's values
            under its name. Arrays with an axis that follows time have the entries of the window's
            frames; with the axis `REQUESTED`, `<name>_frames` has their frames, counted from the
            clip's start. Other values belong to the whole clip, so families whose values may have a
            part per frame (`Family.may_have_frames`) are refused with windows that are not the
            whole clip. A value that was computed from another MP4, caption or family is refused
            when its sample is read.
        whole_clip_values: Reads such families despite windows: a batch then has frames
            `start_frame` to … beside values of all frames, and the caller cuts the values.
        audio: Samples per second of the clips' sound, in mono, or an `AudioRequest`, such as
            `AudioRequest(48_000, channels=2)`: batches have `audio` and `has_audio`, for exactly
            the time of the window's frames. Windows of one batch must last equally long: give `fps`
            for clips of several frame rates. None reads no sound.
        video: Decodes frames. False decodes none, and batches have no `video` and `fps`. Values and
            audio are then of the whole clip, or of a window that `window` draws by the name of a
            family, and `start_frame` is its first frame.
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
            keeps the snapshot that it opened, even if a run commits a newer one. A list has one for
            each output.

    Attributes:
        excluded: Number of samples of the split that are not read, by `clip_selection.Excluded`.
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
        out: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        shares: Sequence[float] | None = None,
        where: str | Sequence[str | None] | None = None,
        view: str | Sequence[str | None] | None = None,
        split: str = "train",
        buckets: Sequence[str] | Mapping[str, float] | None = None,
        repeat: bool = False,
        batch_size: int | Mapping[str, int] | None = None,
        max_pixels: int | None = None,
        frames: int | Mapping[str, int] | None = None,
        stride: int = 1,
        fps: float | str | Fraction | None = None,
        window: str = "random",
        size: tuple[int, int] | int | str | None = None,
        multiple: int = 2,
        values: Literal["uint8", "unit"] = "uint8",
        embedding: bool = False,
        captions: Mapping[str, float] | None = None,
        caption_dropout: float = 0.0,
        caption_embedding: bool = False,
        members: Members = (),
        whole_clip_values: bool = False,
        audio: int | AudioRequest | None = None,
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
        snapshot: int | Sequence[int | None] | None = None,
    ) -> None:
        super().__init__()
        if shuffle < 0:
            raise UsageError(f"shuffle {shuffle!r}; expected a number of samples from 0")
        if values not in ("uint8", "unit"):
            raise UsageError(f"values {values!r}; expected 'uint8' or 'unit'")
        if decode not in ("cpu", "gpu"):
            raise UsageError(f"decode {decode!r}; expected 'cpu' or 'gpu'")
        if gpu is not None and decode == "cpu":
            raise UsageError(f"gpu {gpu!r} with decode='cpu'; give decode='gpu', or leave gpu out")
        if multiple < 1:
            raise UsageError(f"multiple {multiple!r}; expected a number of px from 1")
        if max_pixels is not None and not (isinstance(max_pixels, int) and max_pixels > 0):
            raise UsageError(f"max_pixels {max_pixels!r}; expected a whole number from 1")
        if max_pixels is not None and batch_size is not None:
            raise UsageError("max_pixels with batch_size; give one of them")
        if captions is not None and caption_embedding:
            raise UsageError(
                "captions with caption_embedding: stored embeddings are of the samples' `txt`; "
                "leave one of them out"
            )
        self.yields_samples = batch_size is None and max_pixels is None
        """Whether the dataset yields single samples, and no batches."""
        try:
            self._size = None if size is None else parsed_size(size)
        except ValueError as error:
            raise UsageError(str(error)) from error
        self._captions = CaptionChoice.of(captions, caption_dropout, seed=seed)
        self._unit = values == "unit"
        self._embedding = embedding
        self._caption_embedding = caption_embedding
        self.gpu = device.gpu_number(gpu) if decode == "gpu" else None
        self._engines = None if self.gpu is None else partial(device.engines_of, self.gpu)
        self._on_device: device.DeviceDecoder | None = None
        self.not_on_gpu: Counter[str] = Counter()
        self.video = video
        self._audio = requested_audio(audio)
        self._seed = seed
        outs = [out] if isinstance(out, str | os.PathLike) else out
        self._outs = [os.fspath(each) for each in outs]
        if not self._outs:
            raise UsageError("the list of outputs is empty; name one or more")
        of_each = [
            per_output(name, value, len(self._outs))
            for name, value in (("snapshot", snapshot), ("where", where), ("view", view))
        ]
        outputs = open_outputs(
            [
                OutputChoice(
                    out=place, split=split, snapshot=number, where=condition, view=chosen,
                    allow_incomplete=allow_incomplete,
                )
                for place, number, condition, chosen in zip(self._outs, *of_each, strict=True)
            ],
            Reads(mp4=self._reads_mp4, families=frozenset(members)),
        )  # fmt: skip
        families = [each.families for each in outputs.loaded]
        self._values = StoredValues(members, families, window)
        rate, stored = _rate(fps), self._values.drawn
        frames, stride = _of_stored(stored, frames, stride, rate)
        make = partial(
            FrameWindow,
            stride=stride,
            fps=rate,
            place="random" if stored is not None else window,
            decoder_threads=decoder_threads,
        )
        self._windows = {name: make(frames=n) for name, n in _by_name("frames", frames).items()}
        has_least = stored is not None or (video and rate is not None)
        selection = select_clips(
            outputs,
            _names(buckets),
            (lambda name: self._window_of(name).span) if has_least else None,
            None if stored is None else stored.member,
        )
        self.excluded = selection.excluded
        self._shards = selection.shards
        if n_short := self.excluded.get(Excluded.TOO_SHORT):
            by, remedy = (
                (f"fps={fps}", "lower frames or fps to read them")
                if stored is None
                else (f"window={window!r}", "they have no stored window")
            )
            logger.warning(
                "%s: %d clips are too short for their windows and are left out (reason %s in "
                "`excluded`); %s", by, n_short, Excluded.TOO_SHORT, remedy,
            )  # fmt: skip
        self._of_frames = self._values.of_whole_clips()
        self._draws = video or stored is not None
        """Whether batches have windows; without, values are of whole clips."""
        if whole_clip_values or not self._draws:
            self._of_frames = []
        found = selection.buckets
        _check_names("frames", frames, selection.known)
        _check_names("batch_size", batch_size, selection.known)
        for name, bucket in found.items():
            self._check_whole(name, bucket.most_frames, f"clips of bucket {name!r} have up to")
        self.sizes = {name: self._size_of(name, found[name], multiple) for name in found}
        """Width and height of each bucket's frames."""
        self._warn_of_enlarging(found)
        self.batch_sizes = {
            name: self._batch_size_of(name, batch_size, max_pixels) for name in found
        }
        """Samples per batch of each bucket."""
        weights = _weights(buckets, found)
        if weights is not None and shares is not None:
            raise UsageError("shares of outputs with shares of buckets; give one of them")
        if repeat and weights is None and shares is None:
            raise UsageError(
                "repeat=True without shares; an epoch has each sample once, so leave "
                "it out, or give shares or buckets={...}"
            )
        of_class = self._classes(found, mixed=self._size is not None and weights is None)
        self._warn_of_rates(of_class, found)
        self._check_audio(of_class, found)
        rank, world_size = _ranks(rank, world_size)
        self._rank = rank
        class_of = {name: i for i, names in enumerate(of_class.values()) for name in names}
        corpus = Corpus(
            sizes=np.array([shard.n_samples for shard in self._shards], np.int64),
            classes=np.array([class_of[s.shard.bucket] for s in self._shards], np.int64),
            outputs=np.array([s.output if shares else 0 for s in self._shards], np.int64),
            batch_classes=tuple(
                BatchClass(
                    name=name,
                    share=None if weights is None else weights[name],
                    streams=MIXED_TARS if len(names) > 1 or len(self._outs) > 1 else 1,
                )
                for name, names in of_class.items()
            ),
            shares=_output_shares(shares, self._outs),
            repeat=repeat,
            seed=seed,
            shuffle=shuffle,
        )
        sizes = tuple(self.batch_sizes[names[0]] for names in of_class.values())
        self._plan = Plan(corpus, Geometry(world_size, 1, sizes, drop_last))
        self._ends = np.cumsum(corpus.sizes)
        self._schedule: tuple[Any, Schedule] | None = None
        kinds = {len(names) for names in of_class.values()}
        self._made_with = {
            "split": split,
            "buckets": weights or sorted(found),
            "shares": corpus.shares and list(corpus.shares),
            "repeat": repeat,
            "seed": seed,
            "shuffle": shuffle,
            "clips": selection.fingerprint,
            "batches": "one bucket each"
            if kinds == {1}
            else "all buckets"
            if len(of_class) == 1
            else list(of_class.values()),
        }
        """Settings that decide which samples an epoch has; `load_state_dict` compares them."""
        self.set_epoch(0)
        if drop_last and not self.steps:
            n_clips = sum(len(p) for ps in self._plan.epoch(0, self._plan.geometry) for p in ps)
            raise UsageError(
                f"an epoch has {n_clips} clips and no bucket of them fills a batch for each of "
                f"{world_size} ranks; lower batch_size, set drop_last=False, give size=(width, "
                "height), or repeat=True"
            )
        self._warn_of_unread(world_size)
        if not self.steps:
            logger.warning("rank %d of %d has no samples", rank, world_size)

    @property
    def steps(self) -> int:
        """Number of batches of the whole current epoch on this rank, over all its workers.

        With shares of outputs, `drop_last` and batches of one bucket, epochs may differ by some.
        """
        return self._scheduled(Position(self._start.epoch), 1).n_batches(self._rank)

    def _window_of(self, bucket: str) -> FrameWindow:
        return self._windows[_most_specific("frames", self._windows, bucket)]

    def _batch_size_of(
        self, name: str, sizes: int | Mapping[str, int] | None, max_pixels: int | None
    ) -> int:
        if max_pixels is None:
            given = {ALL_BUCKETS: 1} if sizes is None else _by_name("batch_size", sizes)
            return given[_most_specific("batch_size", given, name)]
        width, height = self.sizes[name]
        frames = self._window_of(name).frames
        if (size := max_pixels // (frames * height * width)) < 1:
            raise UsageError(
                f"max_pixels {max_pixels}; a window of bucket {name!r} has {frames} x "
                f"{height} x {width} = {frames * height * width} pixels; give at least these, "
                "lower frames, or leave the bucket out (buckets=[...])"
            )
        return size

    def _classes(self, buckets: Mapping[str, object], *, mixed: bool) -> dict[str, list[str]]:
        """Returns the buckets whose clips share batches, by the name of the class.

        Frames of one size fill batches together; a bucket with a share has its own batches.
        """
        if not mixed:
            return {name: [name] for name in buckets}
        classes: dict[tuple[int, int], list[str]] = {}
        for name in buckets:
            key = (self._window_of(name).frames if self.video else 0, self.batch_sizes[name])
            classes.setdefault(key, []).append(name)
        if len(classes) == 1 and len(buckets) > 1:
            return {ALL_BUCKETS: list(buckets)}
        return {f"{names[0]}{'…' * (len(names) > 1)}": names for names in classes.values()}

    def _warn_of_unread(self, world_size: int) -> None:
        """Warns of clips that an epoch, or all epochs, leave out."""
        corpus, unread = self._plan.corpus, self._plan.unread
        n_read = self._scheduled(self._start, 1).n_samples
        if unread:
            logger.warning(
                "drop_last: an epoch reads %d of %d clips; %d are never read, because their "
                "buckets have less than a batch for each of %d ranks (%s); size=(width, height) "
                "scales all clips to one size, so that they fill batches together",
                n_read, corpus.n_samples, sum(unread.values()), world_size, listed(unread),
            )  # fmt: skip
        if self._plan.has_shares and not corpus.repeat and n_read < corpus.n_samples:
            logger.warning(
                "shares: an epoch reads %d of %d clips, because it ends with the scarcest output "
                "or bucket; later epochs read the other clips. repeat=True reads an epoch of %d "
                "and repeats clips", n_read, corpus.n_samples, corpus.n_samples,
            )  # fmt: skip

    def _warn_of_rates(
        self, classes: Mapping[str, Sequence[str]], buckets: Mapping[str, ChosenBucket]
    ) -> None:
        """Warns of batches with clips of several speeds."""
        if not self.video:
            return
        mixed = {}
        for name, names in classes.items():
            window = self._window_of(names[0])
            low = min(buckets[bucket].rates[0] for bucket in names)
            high = max(buckets[bucket].rates[1] for bucket in names)
            if window.fps is None and window.frames > 1 and high > low * SAME_RATE:
                mixed[name] = f"{low:.4g} to {high:.4g} frames/s"
        if mixed:
            logger.warning(
                "batches mix clips of several frame rates, so the same number of frames lasts "
                "unequally long (%s); fps=... takes frames by time", listed(mixed),
            )  # fmt: skip

    @property
    def _reads_mp4(self) -> bool:
        return self.video or self._audio is not None

    def _check_audio(
        self, classes: Mapping[str, Sequence[str]], buckets: Mapping[str, ChosenBucket]
    ) -> None:
        """Refuses batches of several samples whose windows last unequally long."""
        for name, names in classes.items():
            if self._audio is None or not self._draws or self.batch_sizes[names[0]] == 1:
                continue
            check_lengths(
                self._audio,
                self._window_of(names[0]),
                (
                    min(rate_in_table(buckets[bucket].rates[0]) for bucket in names),
                    max(rate_in_table(buckets[bucket].rates[1]) for bucket in names),
                ),
                name="all buckets" if name == ALL_BUCKETS else f"bucket {name!r}",
                is_stored=self._values.drawn is not None,
            )

    def _size_of(self, name: str, bucket: ChosenBucket, multiple: int) -> tuple[int, int]:
        own = self._window_of(name)
        if self.video and own.fps is None and bucket.n_frames < (span := own.span(Fraction(1))):
            raise UsageError(
                f"{own.frames} frames at stride {own.stride} need a clip of {span} frames, and "
                f"the shortest clip of bucket {name!r} has {bucket.n_frames}; lower frames or "
                "stride, leave the bucket out (buckets=[...]), or give fps, which leaves out clips "
                "that are too short"
            )
        width, height = (side // multiple * multiple for side in (bucket.width, bucket.height))
        if self._size is None and not (width and height):
            raise UsageError(
                f"bucket {name!r} has clips down to {bucket.width}x{bucket.height}, too small to "
                f"crop to multiples of {multiple}; give size=(width, height) to scale, or leave it "
                "out"
            )
        return self._size or (width, height)

    def _warn_of_enlarging(self, buckets: Mapping[str, ChosenBucket]) -> None:
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

    def _check_whole(self, bucket: str, n_frames: int, owner: str) -> None:
        """Refuses a window of a clip together with values of the whole clip.

        `owner` begins a clause that `n_frames` frames end. Values along frames have no declared
        relation to frames of the clip, so the loader cannot cut them like the window.
        """
        own = self._window_of(bucket)
        is_plain = own.stride == 1 and own.fps is None
        if not self._of_frames or (is_plain and own.frames == n_frames):
            return
        family = self._of_frames[0]
        if family.windows is not None:
            raise UsageError(
                f"members={[family.name]!r} are values of windows of {family.windows.frames} "
                f"frames, and batches would pair them with other frames: give window="
                f"{family.name!r}, leave the member out or decode no video (video=False)"
            )
        pace = f"stride {own.stride}" if own.fps is None else f"{own.fps} frames/s"
        axes = getattr(family.content, "axes", None)
        form = f"axes ({', '.join(map(str, axes))})" if axes else f"bytes in {family.member!r}"
        raise UsageError(
            f"members={[family.name]!r} are values of the whole clip, and windows are not the "
            f"whole clip: {owner} {n_frames} frames, and a window has {own.frames} at {pace}. The "
            f"family declares {form}, and not which of its values belong to which frames, so "
            f"batches would pair frames with values of other frames. Draw whole clips (frames="
            f"{n_frames}, stride=1, no fps, one length of clips), leave the member out or decode "
            "no video (video=False), or give whole_clip_values=True and cut the values yourself; "
            "docs/extending.md says how a family declares values without frames"
        )

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch. `ClipLoader` moves to the next epoch by itself."""
        self._start = self._now = Position(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of this process, to save with the model.

        In the trainer's process, the position follows the last batch that `ClipLoader` returned or
        that was passed to `advance`; batches that workers prefetched do not count. In a worker, for
        torchdata's StatefulDataLoader, the position follows the last batch that the worker made.
        """
        geometry = self._plan.geometry._replace(workers=self._now.workers or 1)
        return saved(self._now, geometry, self._rank, self._made_with)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continues with the batch after a saved state.

        With the same ranks, workers and batch sizes, the same batches follow. With others, the
        samples of the epoch that were not read follow, each once, in another order. All ranks must
        load the same state: that of any rank if `drop_last` was set, and otherwise a list with the
        states of all ranks. A state of torchdata's StatefulDataLoader is accepted too, for a loader
        with another number of workers.

        Raises:
            UsageError: The state was saved with other shards or arguments.
        """
        self._start = self._now = loaded(state, self._plan.geometry, self._rank, self._made_with)

    def advance(self, batch: Batch) -> None:
        """Records for `state_dict` that a batch was used. `ClipLoader` calls this method itself."""
        at = batch["position"]
        begun = self._begun(at["workers"])
        history = begun.history if begun.epoch == at["epoch"] else ()
        self._now = Position(at["epoch"], at["step"] + 1, at["workers"], None, history)
        self.not_on_gpu.update(batch.get("not_on_gpu", {}))

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the GPU's engines, which belong to one process, and what is computed anew."""
        return self.__dict__ | {"_on_device": None, "_schedule": None}

    def _begun(self, workers: int) -> Position:
        """Returns the position from which a loader with this number of workers begins."""
        return self._start.begun(self._plan.geometry._replace(workers=workers))

    def _scheduled(self, begun: Position, workers: int) -> Schedule:
        key = (begun.epoch, begun.history, workers)
        if self._schedule is None or self._schedule[0] != key:
            self._schedule = key, self._plan.schedule(begun.epoch, begun.history, workers)
        return self._schedule[1]

    def __iter__(self) -> Iterator[Batch]:
        """Yields the remaining batches of the epoch; a worker yields only its own batches.

        A batch is a dictionary:

        - `video`: RGB, uint8 [B, 3, T, H, W] in [0, 255], or float32 in [-1, 1]; see `values`
        - `caption`: `Repeated` of strings
        - `caption_kind`: for each sample `short`, `medium`, `long`, `text` for the sample's `txt`,
          or `dropped` for the empty text of `caption_dropout`
        - `fps`: float32 [B], frames/s of the window: `fps`, or the clip's rate over the stride
        - `start_frame`: int64 [B], index of the window's first frame in the clip
        - `audio`: if requested, float32 [B, C, N] in [-1, 1], from the window's first frame to the
          end of its last one, `ceil(seconds * rate)` samples. They are 0 for a clip without sound,
          and after the clip's end. Audio of whole clips is a list of [C, N] if lengths differ
        - `has_audio`: bool [B], which clips have sound
        - `key`: clip ids; `json`: parsed JSON of each sample; `bucket`: name of each one's bucket
        - `output`: for several outputs, the address of each sample's output
        - each name in `members`: a tensor [B, …], or a list if shapes differ or values lack;
          `<name>_frames` has the frames of entries with the axis `REQUESTED`
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
        start = self._begun(workers)
        worker, first_step = start.first(own, workers)
        planned = self._scheduled(start, workers).batches(self._rank, worker, first_step)
        with closing(self._reader()) as reader:
            for each in reader.ahead(planned, self._places):
                batch = self._batch(reader, each, start.epoch)
                at = {"epoch": start.epoch, "step": each.step, "workers": workers}
                own_part = None if info is None else worker
                self._now = Position(
                    start.epoch, each.step + workers, workers, own_part, start.history
                )
                yield batch | {"position": at}
        self.set_epoch(start.epoch + 1)

    def _places(self, planned: PlannedBatch) -> list[tuple[LocalShard, int]]:
        return [self._shards[tar].place(number) for tar, number in self._numbers(planned)]

    def _numbers(self, planned: PlannedBatch) -> list[tuple[int, int]]:
        """Returns the tar of each sample, and its number among the tar's samples to read."""
        samples = planned.samples % self._ends[-1]
        tars = np.searchsorted(self._ends, samples, side="right")
        begins = self._ends[tars] - self._plan.corpus.sizes[tars]
        return list(zip(tars.tolist(), (samples - begins).tolist(), strict=True))

    def batch_at(self, epoch: int, step: int) -> Batch:
        """Returns the batch of a step, as if this rank had one worker."""
        with closing(self._reader()) as reader:
            schedule = self._scheduled(Position(epoch), 1)
            plans = islice(schedule.batches(self._rank, 0, step), 1)
            (planned,) = reader.ahead(plans, self._places)
            at = {"epoch": epoch, "step": step, "workers": 1}
            return self._batch(reader, planned, epoch) | {"position": at}

    def _reader(self) -> SampleReader:
        members = ["json", "txt", *(["mp4"] if self._reads_mp4 else [])]
        members += ["npy"] if self._embedding else []
        optional = self._values.suffixes
        if self._caption_embedding:
            optional.append(TEXT_VECTOR)
        return SampleReader(members, optional)

    def _batch(self, reader: SampleReader, planned: PlannedBatch, epoch: int) -> Batch:
        samples = []
        copies = (planned.samples // self._ends[-1]).tolist()
        for (tar, number), copy in zip(self._numbers(planned), copies, strict=True):
            chosen = self._shards[tar]
            shard, place = chosen.place(number)
            read = reader.read(shard, place)
            # A sample that is repeated within an epoch has another window.
            round_ = f"{epoch}+{copy}" if copy else str(epoch)
            samples.append(
                _Sample(shard, self._outs[chosen.output], read, facts_of(read), round_, {})
            )
            samples[-1].values.update(
                self._values.read(
                    read,
                    samples[-1].fact,
                    output=chosen.output,
                    fps=rate_of(samples[-1].fact),
                    name=samples[-1].name,
                )
            )
        clips = [self._clip(sample) for sample in samples] if self._draws else None
        batch: Batch = {}
        if clips is not None:
            batch["start_frame"] = torch.tensor([clip.start for clip in clips])
            batch |= self._frames(samples, clips) if self.video else {}
        if self._audio is not None:
            batch |= self._sound(self._audio, samples, clips)
        captions = [
            self._caption(sample, None if clips is None else clips[b])
            for b, sample in enumerate(samples)
        ]
        for sample, caption in zip(samples, captions, strict=True):
            for name, value in sample.values.items():
                sample.values[name] = None if value is None else value.for_caption(caption.kind)
        batch |= {
            "caption": repeated([caption.text for caption in captions]),
            "caption_kind": [caption.kind for caption in captions],
            "key": [sample.key for sample in samples],
            "json": [sample.fact for sample in samples],
            "bucket": [sample.shard.bucket for sample in samples],
        }
        if len(self._outs) > 1:
            batch["output"] = [sample.out for sample in samples]
        if self._embedding:
            batch["embedding"] = embeddings([sample.read["npy"] for sample in samples])
        if self._caption_embedding:
            vectors = [
                None if caption.kind == DROPPED else self._text_vector(sample)
                for sample, caption in zip(samples, captions, strict=True)
            ]
            batch["caption_embedding"] = caption_embeddings(vectors)
        frames = None
        if clips is not None:
            frames = [
                ShownFrames(
                    DrawnFrames(clip.wanted, int(sample.fact["n_frames"]), clip.rate, sample.name),
                    size=self.sizes[sample.shard.bucket][::-1],
                    scaled=clip.scaled,
                    clip_size=(int(sample.fact["height"]), int(sample.fact["width"])),
                    decoder_threads=clip.decoder_threads,
                )
                for clip, sample in zip(clips, samples, strict=True)
            ]
        batch |= self._values.batch([sample.values for sample in samples], frames)
        return next(singles_of(batch, self._values.names())) if self.yields_samples else batch

    def _caption(self, sample: "_Sample", clip: ClipWindow | None) -> Caption:
        frames = None if clip is None else (clip.start, int(clip.wanted[-1]))
        text, name = sample.read["txt"].decode(), f"{sample.round_} {sample.key}"
        return self._captions.caption(sample.fact, text, frames, name)

    def _frames(self, samples: Sequence["_Sample"], clips: Sequence[ClipWindow]) -> Batch:
        """Decodes the windows of a batch."""
        bucket = samples[0].shard.bucket
        window = self._window_of(bucket)
        on_device = self._device_decoder()
        refused = Counter[str]()
        results: list[torch.Tensor] = []
        with on_device.queued(results) if on_device is not None else nullcontext():
            video_BCTHW = torch.empty(  # noqa: N806
                (len(samples), 3, window.frames, *self.sizes[bucket][::-1]),
                dtype=torch.uint8,
                device="cpu" if on_device is None else on_device.device,
            )
            for clip, video in zip(clips, video_BCTHW, strict=True):
                if on_device is None:
                    decode_window(clip, video)
                elif refusal := on_device.decode_or_copy(clip, video):
                    refused[refusal] += 1
            results.append(as_unit(video_BCTHW) if self._unit else video_BCTHW)
        batch: Batch = {
            "video": results[0],
            "fps": torch.tensor([window.rate(sample.fact["fps"]) for sample in samples]),
        }
        if on_device is not None:
            batch["not_on_gpu"] = dict(refused)
        return batch

    def _sound(
        self,
        request: AudioRequest,
        samples: Sequence["_Sample"],
        clips: Sequence[ClipWindow] | None,
    ) -> Batch:
        """Decodes the audio of the windows of a batch, or of whole clips."""
        spans = []
        for b, sample in enumerate(samples):
            start, seconds = Fraction(0), int(sample.fact["n_frames"]) / rate_of(sample.fact)
            if clips is not None:
                start = clips[b].start / clips[b].rate
                # The rate of the table, by which lengths were checked.
                rate = rate_in_table(sample.fact["fps"])
                seconds = self._window_of(sample.shard.bucket).seconds(rate)
            spans.append(AudioSpan(request=request, start=start, seconds=seconds))
        waves = [
            # A still image has no sound.
            None
            if sample.fact.get("medium") == Medium.IMAGE
            else decode_audio(sample.read["mp4"], span, sample.name)
            for sample, span in zip(samples, spans, strict=True)
        ]
        return audio_batch(waves, spans)

    def _text_vector(self, sample: "_Sample") -> bytes | None:
        """Returns the stored embedding of a sample's caption; None for an empty caption."""
        stored: bytes | None = sample.read.get(TEXT_VECTOR)
        if stored is None and sample.read["txt"].strip():
            raise ShardError(
                f"{sample.name} has a caption and no {TEXT_VECTOR!r}; `curate recaption` with "
                "caption.embedding adds it"
            )
        return stored

    def _device_decoder(self) -> "device.DeviceDecoder | None":
        if self._engines is None:
            return None
        if self._on_device is None or self._on_device.pid != os.getpid():
            self._on_device = device.DeviceDecoder(self._engines())
        return self._on_device

    def _clip(self, sample: "_Sample") -> ClipWindow:
        name, fact, bucket = sample.name, sample.fact, sample.shard.bucket
        window, n_frames = self._window_of(bucket), int(fact["n_frames"])
        offsets = window.offsets(rate_in_table(fact["fps"]))
        n_starts = n_frames - int(offsets[-1])
        if n_starts < 1:
            raise ShardError(
                f"{name} has {n_frames} frames in its JSON, fewer than its bucket's shortest clip "
                "in the table; `curate verify` lists all damage"
            )
        start = window.start(n_starts, sample.key, seed=self._seed, round_=sample.round_)
        stored = self._values.starts(sample.values, name)
        if stored is not None:
            drawn_place = drawn(f"window {self._seed} {sample.round_} {sample.key}")
            start = stored[drawn_place % len(stored)]
        end = start + int(offsets[-1]) + 1
        self._check_whole(bucket, n_frames, f"the window of {name} is frames {start} to {end} of")
        return ClipWindow(
            mp4=sample.read.get("mp4", b""),
            wanted=start + offsets,
            rate=rate_of(fact),
            decoder_threads=window.decoder_threads,
            scaled=self._size is not None,
            name=name,
        )


class _Sample(NamedTuple):
    """A sample that was read: its members and JSON, and the round that decides its draws."""

    shard: LocalShard
    out: str
    read: Mapping[str, Any]
    fact: Mapping[str, Any]
    round_: str
    values: dict[str, StoredValue | None]

    @property
    def key(self) -> str:
        key: str = self.read["__key__"]
        return key

    @property
    def name(self) -> str:
        """Name in messages."""
        return f"clip {self.key} of {self.shard.store.uri}/{self.shard.name}"


def _of_stored(
    family: Family | None, frames: int | Mapping[str, int] | None, stride: int, fps: Fraction | None
) -> tuple[int | Mapping[str, int], int]:
    """Returns the frames and the stride of windows: those of stored windows, if they are drawn.

    Raises:
        UsageError: Another number or stride, or a rate, was given.
    """
    windows = None if family is None else family.windows
    if family is None or windows is None:
        return DEFAULT_FRAMES if frames is None else frames, stride
    has_others = frames not in (None, windows.frames) or stride not in (1, windows.stride)
    if has_others or fps is not None:
        raise UsageError(
            f"window {family.name!r} has {windows.frames} frames at stride {windows.stride}, for "
            "which its values were computed; leave out frames, stride and fps"
        )
    return windows.frames, windows.stride


def _by_name(option: str, value: int | Mapping[str, int]) -> dict[str, int]:
    """Returns the values of an option by names of buckets, or of their parts.

    Raises:
        UsageError: A value is not a whole number from 1.
    """
    values = dict(value) if isinstance(value, Mapping) else {ALL_BUCKETS: value}
    for name, each in values.items():
        if not isinstance(each, int) or each < 1:
            of = f" of {name!r}" if isinstance(value, Mapping) else ""
            none = ", or None" if option == "batch_size" and not of else ""
            raise UsageError(f"{option} {each!r}{of}; expected a whole number from 1{none}")
    return values


def _fits(name: str, bucket: str) -> bool:
    """Returns whether a name has only parts of a bucket's name; `*` is all buckets."""
    return name in (ALL_BUCKETS, bucket) or set(name.split("_")) <= set(bucket.split("_"))


def _most_specific(option: str, names: Mapping[str, object], bucket: str) -> str:
    """Returns the name with the most parts of a bucket's name.

    Raises:
        UsageError: No name fits, or two fit equally well.
    """
    n_parts = {
        name: 0 if name == ALL_BUCKETS else 99 if name == bucket else name.count("_") + 1
        for name in names
        if _fits(name, bucket)
    }
    best = [name for name, n in n_parts.items() if n == max(n_parts.values())]
    if len(best) != 1:
        fault = "has none" if not best else f"has two, {best[0]!r} and {best[1]!r},"
        raise UsageError(
            f"{option} {fault} for bucket {bucket!r}; name the bucket, or a part of its name, or "
            f"give {ALL_BUCKETS!r} for all others"
        )
    return best[0]


def _check_names(option: str, value: object, buckets: Sequence[str]) -> None:
    """Refuses names of an option that fit no bucket."""
    for name in value if isinstance(value, Mapping) else ():
        if not any(_fits(name, bucket) for bucket in buckets):
            parts = [part for bucket in buckets for part in bucket.split("_")]
            raise UsageError(unknown_key(name, [*buckets, *dict.fromkeys(parts)], option))


def _rate(fps: float | str | Fraction | None) -> Fraction | None:
    if fps is None:
        return None
    try:
        # As rates in the table, so that 24000 / 1001 is exact as a float, too.
        rate = rate_in_table(Fraction(str(fps)))
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if not 0 < rate <= MAX_FPS:
        raise UsageError(
            f"fps {fps!r}; expected frames per second above 0, up to {MAX_FPS}, such as 16 or "
            "'30000/1001'"
        )
    return rate


def _output_shares(shares: Sequence[float] | None, outs: Sequence[str]) -> tuple[float, ...] | None:
    if shares is None:
        return None
    if not isinstance(shares, Sequence) or len(shares) != len(outs):
        n = f"has {len(shares)} values" if isinstance(shares, Sequence) else f"is {shares!r}"
        raise UsageError(f"shares {n} for {len(outs)} outputs; expected a list with one for each")
    weights = normalized({str(i): share for i, share in enumerate(shares)}, "output")
    return tuple(weights.values())


def _names(buckets: Sequence[str] | Mapping[str, float] | None) -> list[str] | None:
    if buckets is None:
        return None
    names = [buckets] if isinstance(buckets, str) else list(buckets)
    if not names:
        raise UsageError("buckets is empty; name one or more, or leave it out to read all")
    return names


def _weights(
    buckets: Sequence[str] | Mapping[str, float] | None, found: Mapping[str, object]
) -> dict[str, float] | None:
    """Returns the share of each bucket, sorted by name; None without shares."""
    if not isinstance(buckets, Mapping):
        return None
    weights = normalized(buckets)
    for name in weights:
        if name not in found:
            raise UsageError(
                f"bucket {name!r} has a weight, and none of its clips are left to read; leave it "
                "out, or loosen where, view or frames"
            )
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
        names = ("video", "audio", "caption_kind", "key", "json", "bucket", "output", *members)
        single = {name: batch[name][b] for name in names if name in batch}
        scalars = ("fps", "start_frame", "has_audio")
        single |= {name: batch[name][b].item() for name in scalars if name in batch}
        for name in ("caption", "embedding", "caption_embedding"):
            if name in batch:
                single[name] = batch[name].unique[batch[name].inverse[b]]
        yield single | {name: batch[name] for name in ("not_on_gpu",) if name in batch}
