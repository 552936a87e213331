"""Selects the samples that a `ClipDataset` reads, from one or several outputs.

Samples are left out by view, by condition, because they are too short for a window, or because an
earlier output has the same clip. `Selection.excluded` counts them by reason.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import DamagedError, UsageError, unknown_key
from curator.loading.shard_reader import LoadedOutput, LocalShard, Reads, read_output
from curator.number_text import amount
from curator.storage import open_store

if TYPE_CHECKING:
    from curator.tables.view_store import View

logger = logging.getLogger(__name__)

Mask = NDArray[np.bool_]


class Excluded(StrEnum):
    """Why a sample of the split is not read."""

    BUCKET = "bucket"
    VIEW = "view"
    CONDITION = "condition"
    TOO_SHORT = "too_short"
    NO_VALUE = "no_value"
    IN_OTHER_OUTPUT = "in_other_output"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputChoice:
    """One output, and which of its clips to read."""

    out: str
    split: str
    snapshot: int | None
    where: str | None
    view: str | None
    allow_incomplete: bool


class ChosenShard(NamedTuple):
    """A tar with samples to read: `numbers` are their numbers in the tar, or None for all."""

    shard: LocalShard
    output: int
    numbers: NDArray[np.int64] | None

    @property
    def n_samples(self) -> int:
        """Number of samples to read."""
        return self.shard.n_samples if self.numbers is None else len(self.numbers)

    def place(self, number: int) -> tuple[LocalShard, int]:
        """Returns the tar, and the number in it, of a sample to read."""
        return self.shard, number if self.numbers is None else int(self.numbers[number])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenBucket:
    """Extents of the samples of a bucket: least height, width, and frame counts; frame rates."""

    height: int
    width: int
    n_frames: int
    most_frames: int
    rates: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The samples to read.

    Attributes:
        shards: Tars with samples to read, by output, bucket and name.
        buckets: Their buckets, sorted by name.
        known: Names of all buckets of the split.
        excluded: Number of samples of the split that are not read, by reason.
    """

    shards: tuple[ChosenShard, ...]
    buckets: Mapping[str, ChosenBucket]
    known: tuple[str, ...]
    excluded: Mapping[str, int]

    @property
    def fingerprint(self) -> str:
        """Hash of the samples and their order."""
        digest = hashlib.sha256()
        for shard, output, numbers in self.shards:
            digest.update(f"{output} {shard.name} {shard.n_samples}\n".encode())
            digest.update(b"" if numbers is None else numbers.tobytes())
        return digest.hexdigest()[:16]


def per_output(name: str, value: Any, n_outputs: int) -> list[Any]:  # noqa: ANN401
    """Returns one value per output: `value` is one for all, or a list with one for each.

    Raises:
        UsageError: The list has another length.
    """
    if not isinstance(value, list | tuple):
        return [value] * n_outputs
    if len(value) != n_outputs:
        raise UsageError(
            f"{name} has {amount(len(value), 'value')} for {amount(n_outputs, 'output')}; expected "
            "one for all outputs, or one for each"
        )
    return list(value)


def spans_by_rate(rates: NDArray[np.float64], span: Callable[[Fraction], int]) -> NDArray[np.int64]:
    """Returns the number of clip frames that a window covers, for each clip's frame rate."""
    values, places = np.unique(rates, return_inverse=True)
    spans: NDArray[np.int64] = np.array([span(rate_in_table(v)) for v in values], np.int64)[places]
    return spans


def rate_in_table(fps: float | Fraction) -> Fraction:
    """Returns the exact rate that a table's or sample's `fps` rounds."""
    return Fraction(fps).limit_denominator(1_000_000)


class OpenedOutputs(NamedTuple):
    """Outputs, and which of their clips to read."""

    choices: Sequence[OutputChoice]
    loaded: Sequence[LoadedOutput]


def open_outputs(choices: Sequence[OutputChoice], reads: Reads) -> OpenedOutputs:
    """Reads the manifests and tables of outputs.

    Raises:
        UsageError: An argument does not fit the outputs.
        ShardError: The manifest, the table or a tar is damaged.
        StorageError: Reading failed.
    """
    choices = [_of_view(choice) for choice in choices]
    loaded = [
        read_output(
            c.out, c.split, allow_incomplete=c.allow_incomplete, snapshot=c.snapshot, reads=reads
        )
        for c in choices
    ]
    return OpenedOutputs(choices, loaded)


def select_clips(
    opened: OpenedOutputs,
    buckets: Sequence[str] | None,
    span_of: Callable[[str], Callable[[Fraction], int]] | None,
    member: str | None = None,
) -> Selection:
    """Finds the samples to read.

    Args:
        opened: The outputs.
        buckets: Names of the buckets to read; None for all.
        span_of: Returns for a bucket's name how many frames of a clip with a given frame rate a
            window covers; clips with fewer frames are left out. None checks no length.
        member: Samples without this member are left out.

    Raises:
        UsageError: An argument does not fit the outputs, or nothing is left to read.
    """
    choices, outputs = opened
    known = sorted({shard.bucket for loaded in outputs for shard in loaded.shards})
    for name in buckets or ():
        if name not in known:
            raise UsageError(unknown_key(name, known, "bucket"))
    excluded: Counter[str] = Counter()
    masks = [
        _chosen(
            choice, loaded, set(known if buckets is None else buckets), span_of, member, excluded
        )
        for choice, loaded in zip(choices, outputs, strict=True)
    ]
    if len(outputs) > 1:
        _exclude_duplicates(outputs, masks, excluded)
    if not any(mask.any() for mask in masks):
        total = amount(sum(map(len, masks)), "clip")
        raise UsageError(
            f"nothing is left to read of {total}: {_counted(excluded)} left out; loosen where, "
            "view or buckets, or lower frames"
        )
    shards = [
        chosen
        for output, (loaded, mask) in enumerate(zip(outputs, masks, strict=True))
        for chosen in _chosen_shards(output, loaded, mask)
    ]
    return Selection(
        shards=tuple(shards),
        buckets=_chosen_buckets(outputs, masks, known),
        known=tuple(known),
        excluded={str(reason): n for reason, n in excluded.items()},
    )


def _counted(excluded: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {n}" for reason, n in sorted(excluded.items())) or "none"


def _chosen(
    choice: OutputChoice,
    loaded: LoadedOutput,
    buckets: set[str],
    span_of: Callable[[str], Callable[[Fraction], int]] | None,
    member: str | None,
    excluded: Counter[str],
) -> Mask:
    """Returns which samples of an output to read, and counts the others."""
    clips, shard_of = loaded.clips, loaded.shard_of
    in_bucket = np.array([shard.bucket in buckets for shard in loaded.shards], bool)
    mask: Mask = in_bucket[shard_of]
    excluded[Excluded.BUCKET] += len(mask) - int(mask.sum())

    def keep(kept: Mask, reason: Excluded) -> None:
        excluded[reason] += int((mask & ~kept).sum())
        np.logical_and(mask, kept, out=mask)

    if choice.view is not None:
        keep(_are_in(clips["clip_id"], _view_ids(choice)), Excluded.VIEW)
    if choice.where is not None:
        keep(_are_in(clips["clip_id"], _ids_where(choice)), Excluded.CONDITION)
    if span_of is not None:
        spans = np.zeros(len(mask), np.int64)
        rates = clips["fps"].to_numpy()
        for name in buckets:
            own = np.array([shard.bucket == name for shard in loaded.shards], bool)[shard_of]
            spans[own] = spans_by_rate(rates[own], span_of(name))
        keep(clips["num_frames"].to_numpy() >= spans, Excluded.TOO_SHORT)
    if member is not None:
        keep(loaded.have(member), Excluded.NO_VALUE)
    for reason in [name for name, n in excluded.items() if not n]:
        del excluded[reason]
    return mask


def _are_in(ids: pa.ChunkedArray, chosen: pa.Array) -> Mask:
    found: Mask = pc.is_in(ids, value_set=chosen).to_numpy()
    return found


def _ids_where(choice: OutputChoice) -> pa.Array:
    # DuckDB and the tables of a run are needed for conditions only.
    from curator.tables.kept_clips import selected_clips

    clips = selected_clips(open_store(choice.out), choice.where, snapshot=choice.snapshot)
    return clips["key"].combine_chunks()


def _of_view(choice: OutputChoice) -> OutputChoice:
    """Returns a choice with the snapshot of its view, which a run does not change."""
    if choice.view is None:
        return choice
    number = _view_of(choice).snapshot
    if choice.snapshot not in (None, number):
        raise UsageError(
            f"snapshot {choice.snapshot} with view {choice.view!r}, whose samples are of snapshot "
            f"{number}; leave snapshot out"
        )
    return replace(choice, snapshot=number)


def _view_of(choice: OutputChoice) -> "View":
    from curator.tables.out_layout import VIEWS
    from curator.tables.view_store import read_view, view_names

    store, name = open_store(choice.out), str(choice.view)
    if name in (names := view_names(store)):
        with _remade(choice):
            return read_view(store, name)
    where = f"{store.uri}/{VIEWS}/"
    raise UsageError(
        f"{unknown_key(name, names, 'view')}: `curate views` writes views to {where}"
        if names
        else f"view {name!r}, but {where} has no view; `curate views` writes views there. Name OUT "
        "of a run, and not its folder shards"
    )


@contextmanager
def _remade(choice: OutputChoice) -> Iterator[None]:
    """Words damage of a view, which no run repairs."""
    try:
        yield
    except DamagedError as error:
        raise UsageError(
            f"view {choice.view!r}: {error.root}/{error.name} is damaged or is being replaced "
            f"({error.why}); make the view again: `curate views {choice.out} {choice.view} "
            "--replace` with its options"
        ) from error


def _view_ids(choice: OutputChoice) -> pa.Array:
    """Returns the ids of a view's clips; raises `UsageError` for other rows than it was made of.

    A `curate views --replace` or `curate remove` that goes on, or was killed, leaves such rows.
    """
    from curator.tables.checksums import read_parquet
    from curator.tables.fenced_store import Digest
    from curator.tables.view_store import ROWS, VIEW, view_key

    with _remade(choice):
        store, view = open_store(choice.out), _view_of(choice)
        key = view_key(view.name, ROWS)
        if Digest.of_object(store, key).as_dict() != view.files[ROWS]:
            raise DamagedError(store.uri, key, f"not the rows that {VIEW} names")
        return read_parquet(store, key, ["clip_id"])["clip_id"].combine_chunks()


def _exclude_duplicates(
    outputs: Sequence[LoadedOutput], masks: Sequence[Mask], excluded: Counter[str]
) -> None:
    """Leaves out clips that an earlier output has too."""
    ids = pa.chunked_array(
        [chunk for loaded in outputs for chunk in loaded.clips["clip_id"].chunks], pa.string()
    )
    codes = ids.combine_chunks().dictionary_encode().indices.to_numpy()
    places = np.flatnonzero(np.concatenate(masks))
    _, first = np.unique(codes[places], return_index=True)
    is_first = np.zeros(len(codes), bool)
    is_first[places[first]] = True
    ends = np.cumsum([len(mask) for mask in masks])
    if n := len(places) - len(first):
        excluded[Excluded.IN_OTHER_OUTPUT] = n
    for mask, end in zip(masks, ends, strict=True):
        mask &= is_first[end - len(mask) : end]


def _chosen_shards(output: int, loaded: LoadedOutput, mask: Mask) -> list[ChosenShard]:
    chosen, begin = [], 0
    for shard in loaded.shards:
        numbers = np.flatnonzero(mask[begin : begin + shard.n_samples])
        begin += shard.n_samples
        if len(numbers):
            is_whole = len(numbers) == shard.n_samples
            chosen.append(ChosenShard(shard, output, None if is_whole else numbers))
    return chosen


def _chosen_buckets(
    outputs: Sequence[LoadedOutput], masks: Sequence[Mask], known: Sequence[str]
) -> dict[str, ChosenBucket]:
    columns = [
        np.concatenate([
            loaded.clips[name].to_numpy()[mask] for loaded, mask in zip(outputs, masks, strict=True)
        ])
        for name in ("height", "width", "num_frames", "fps")
    ]  # fmt: skip
    codes = np.concatenate([
        np.array([known.index(shard.bucket) for shard in loaded.shards])[loaded.shard_of[mask]]
        for loaded, mask in zip(outputs, masks, strict=True)
    ])  # fmt: skip
    found = {}
    for code in np.unique(codes).tolist():
        heights, widths, n_frames, rates = (column[codes == code] for column in columns)
        found[known[code]] = ChosenBucket(
            height=int(heights.min()),
            width=int(widths.min()),
            n_frames=int(n_frames.min()),
            most_frames=int(n_frames.max()),
            rates=(float(rates.min()), float(rates.max())),
        )
    return found
