"""The families that a dataset reads: what a training expects of them, and the values of a batch.

A value is checked before it is used: its family's facts before the first batch, and its header and
length when its sample is read. Values then have the entries of the frames, or the window, that the
batch has.
"""

import logging
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch

from curator.errors import ShardError, UsageError, raised_as, unknown_key
from curator.family import EncodedVideo, Family, FamilyError, FamilyVersion, Scalar, Video
from curator.frame_axes import DrawnFrames
from curator.loading.caption_choice import DROPPED, TEXT
from curator.loading.window_decoder import ClipWindow, decode_window
from curator.value_header import HeaderError, ValueHeader

logger = logging.getLogger(__name__)

Expected = Mapping[str, Scalar]
Members = Sequence[str] | Mapping[str, Expected | None]
"""Names of families, perhaps each with the facts that a training expects of it."""
_PLACES = ("first", "random")
_CAPTIONS = {"caption", "short_caption"}
"""Columns that `caption_dropout` and `captions` replace in a batch."""


class ShownFrames(NamedTuple):
    """How a batch shows the frames that it has of a clip.

    Attributes:
        drawn: The frames.
        size: Height and width in pixels.
        scaled: Whether frames are scaled to cover the size, or only cropped.
        clip_size: Height and width of the clip.
        decoder_threads: Threads of the decoder.
    """

    drawn: DrawnFrames
    size: tuple[int, int]
    scaled: bool
    clip_size: tuple[int, int]
    decoder_threads: int


class StoredValue(NamedTuple):
    """A value of a sample: an array or tensor, a text, bytes, or a video; and its header."""

    value: Any
    header: ValueHeader | None

    @property
    def frames(self) -> tuple[int, ...]:
        """Frames that the header names: starts of windows, or requested frames."""
        return (self.header.frames if self.header is not None else None) or ()

    def for_caption(self, kind: str) -> "StoredValue | None":
        """Returns the value for a sample whose caption is of a kind; None for a dropped text.

        Raises:
            UsageError: The value is of the clip's text, and the caption was drawn by its length.
        """
        header = self.header
        if header is None or header.mp4_sha256 or not _CAPTIONS & header.columns.keys():
            return self
        if kind not in (TEXT, DROPPED):
            raise UsageError(
                "captions with members that were computed from the clips' texts, which do not "
                "follow the draw; leave one of them out"
            )
        return None if kind == DROPPED else self


class StoredValues:
    """The families to read, in the order in which they were named.

    Args:
        members: The argument of `ClipDataset`.
        outputs: The families of each output, by name; those that all have alike are read.
        window: The argument of `ClipDataset`: the name of a family draws its windows.

    Attributes:
        drawn: The family whose windows are drawn; None if windows are drawn otherwise.

    Raises:
        UsageError: A family is unknown, or its facts are not those that are expected.
    """

    def __init__(
        self,
        members: Members,
        outputs: Sequence[Mapping[str, FamilyVersion]],
        window: str,
    ) -> None:
        if isinstance(members, str):
            raise UsageError(f"members {members!r}; expected a list of names: [{members!r}]")
        first, *others = outputs
        shared = [name for name in first if all(name in other for other in others)]
        for name in members:
            if name not in shared:
                raise UsageError(unknown_key(name, shared, "family with a member in the samples"))
            for other in others:
                _check_alike(first[name], other[name])
        self.families = [first[name].family for name in members]
        self._outputs = outputs
        if isinstance(members, Mapping):
            for family in self.families:
                _check_facts(family, members[family.name] or {})
        self.drawn: Family | None = None
        if window not in _PLACES:
            self.drawn = self._with_windows(window)

    def _with_windows(self, name: str) -> Family:
        found = [family for family in self.families if family.windows is not None]
        for family in found:
            if family.name == name:
                return family
        names = [family.name for family in found]
        raise UsageError(
            f"window {name!r}; expected 'first', 'random', or a family in `members` with values of "
            f"windows: {', '.join(names) or 'none of those in `members` has any'}"
        )

    @property
    def suffixes(self) -> list[str]:
        """The members of samples that hold the values."""
        return [family.member for family in self.families]

    def of_whole_clips(self) -> list[Family]:
        """Returns families whose values may have parts per frame that no declaration places."""
        return [
            family
            for family in self.families
            if family.may_have_frames and family.time_axis is None and not self._is_drawn(family)
        ]

    def _is_drawn(self, family: Family) -> bool:
        """Whether a batch has the family's value of the drawn window."""
        return self.drawn is not None and family.windows == self.drawn.windows

    def read(
        self,
        sample: Mapping[str, Any],
        facts: Mapping[str, Any],
        *,
        output: int,
        fps: Fraction,
        name: str,
    ) -> dict[str, StoredValue | None]:
        """Returns the values of a sample by family, None where it has none.

        Args:
            sample: Members by suffix.
            facts: The sample's JSON.
            output: Number of the sample's output.
            fps: Frames per second of the clip.
            name: Name of the clip in messages.

        Raises:
            ShardError: A value is damaged, or was computed from other frames, texts or settings.
        """
        values: dict[str, StoredValue | None] = {}
        for family in self.families:
            data = sample.get(family.member)
            values[family.name] = None
            if data is None:
                continue
            version = self._outputs[output][family.name]
            with raised_as(ShardError, FamilyError, HeaderError, of=f"{name}: {family.name}: "):
                # A video is decoded later, and only the frames that the batch has.
                value, header = version.read(data, facts, fps)
            is_array = isinstance(value, np.ndarray)
            values[family.name] = StoredValue(
                torch.from_numpy(value) if is_array else value, header
            )
        return values

    def starts(self, values: Mapping[str, StoredValue | None], name: str) -> tuple[int, ...] | None:
        """Returns the first frames of the windows of a sample, or None if any frame may be one.

        Raises:
            ShardError: The sample has no value of the family whose windows are drawn.
        """
        if self.drawn is None:
            return None
        value = values[self.drawn.name]
        if value is None:
            raise ShardError(f"{name} has no {self.drawn.member!r}, whose windows are drawn")
        return value.frames

    def batch(
        self,
        values: Sequence[Mapping[str, StoredValue | None]],
        frames: Sequence[ShownFrames] | None,
    ) -> dict[str, Any]:
        """Returns the values of a batch by family.

        Args:
            values: From `read`, for each sample.
            frames: The frames that the batch has of each sample; None for values of whole clips.

        Videos have the frames as the batch shows them: uint8 [B, 3, T, H, W], or int32
        [B, 1, T, H, W] for 16 bits.

        Returns:
            For each family a tensor [B, …] if all values are arrays of one shape; else a list, with
            None for a sample without a value. `<name>_frames` has the frames of the entries of a
            family with the axis `REQUESTED`, counted from the clip's start.
        """
        batch: dict[str, Any] = {}
        for family in self.families:
            parts, numbers = [], []
            for b, of_sample in enumerate(values):
                part, own = self._part(
                    family, of_sample[family.name], frames[b] if frames else None
                )
                parts.append(part)
                numbers.append(own)
            batch[family.name] = _stacked(parts)
            if family.time_axis is not None and family.time_axis.is_requested:
                batch[f"{family.name}_frames"] = _stacked(numbers)
        return batch

    def names(self) -> list[str]:
        """Returns the names of the entries of a batch."""
        axes = [(family.name, family.time_axis) for family in self.families]
        requested = [f"{name}_frames" for name, axis in axes if axis and axis.is_requested]
        return [name for name, _ in axes] + requested

    def _part(
        self, family: Family, stored: StoredValue | None, shown: ShownFrames | None
    ) -> tuple[Any, torch.Tensor | None]:
        """Returns the entries of a value that belong to a batch's frames, and their numbers."""
        if stored is None:
            return None, None
        if isinstance(family.content, Video):
            return _video(family.content, stored.value, shown), None
        value, numbers = stored.value, torch.tensor(stored.frames, dtype=torch.int64)
        axis = family.time_axis
        if shown is None:
            return value, numbers
        drawn = shown.drawn
        if self._is_drawn(family):
            return value[stored.frames.index(int(drawn.numbers[0]))], None
        if axis is None:
            return value, None
        entries = torch.from_numpy(axis.entries(drawn, stored.frames))
        own = value.index_select(axis.place, entries)
        return own, numbers[entries] if axis.is_requested else None


def _video(content: Video, video: EncodedVideo, shown: ShownFrames | None) -> torch.Tensor:
    """Decodes the frames of a batch, or all frames without one, [C, T, H, W]."""
    is_gray = content.codec == "ffv1"
    if shown is None:
        frames = torch.from_numpy(
            content.decode(video.data, "").astype(np.int32 if is_gray else np.uint8)
        )
        return frames[None] if is_gray else frames.permute(3, 0, 1, 2)
    name, size = shown.drawn.name, video.shape[1:]
    if not shown.scaled and size != shown.clip_size:
        raise ShardError(
            f"{name}: a video of {size[1]}x{size[0]} for a clip of "
            f"{shown.clip_size[1]}x{shown.clip_size[0]}, of which only the centre is cut; give "
            "`size` to scale both"
        )
    n_frames = len(shown.drawn.numbers)
    frames = torch.empty(
        (1 if is_gray else 3, n_frames, *shown.size), dtype=torch.int32 if is_gray else torch.uint8
    )
    window = ClipWindow(
        mp4=video.data,
        wanted=shown.drawn.numbers,
        rate=shown.drawn.fps,
        decoder_threads=shown.decoder_threads,
        scaled=shown.scaled,
        name=name,
        pixels="gray16le" if is_gray else "rgb24",
    )
    decode_window(window, frames)
    return frames


_OF_STORAGE = ("lifetime", "place")
"""Fields of a declaration that say where values are stored, not what they are."""


def _check_alike(first: FamilyVersion, other: FamilyVersion) -> None:
    """Refuses a family that two outputs declare in different ways; warns of other settings."""
    declared = [
        each.family.to_json() | {f"facts.{name}": of for name, of in each.family.facts.items()}
        for each in (first, other)
    ]
    for name in sorted(set(declared[0]).union(declared[1]) - {"facts", *_OF_STORAGE}):
        values = [each.get(name) for each in declared]
        if values[0] != values[1]:
            raise UsageError(
                f"members: {first.family.name!r} has {name} = {values[0]!r} in one output, and "
                f"{values[1]!r} in another; read outputs whose values were computed alike"
            )
    if first.fingerprint != other.fingerprint:
        logger.warning(
            "members: %r was computed with other code or settings in another output, and no fact "
            "of the family says which; batches mix both", first.family.name,
        )  # fmt: skip


def _check_facts(family: Family, expected: Expected) -> None:
    """Refuses a family whose facts are not those that are expected."""
    for name, wanted in expected.items():
        if name not in family.facts:
            known = ", ".join(family.facts) or "none"
            raise UsageError(
                f"members: {family.name!r} does not declare {name!r}, expected {wanted!r}; it "
                f"declares {known}. Add the fact to the family's `facts`, so that its values are "
                "computed again with it, or expect nothing of it"
            )
        if family.facts[name] != wanted:
            raise UsageError(
                f"members: {family.name!r} was computed with {name} = {family.facts[name]!r}, and "
                f"this training expects {wanted!r}. Train with what the values were computed with, "
                f"or run `curate run` with other settings of the stage that makes them"
            )


def _stacked(values: Sequence[Any]) -> Any:  # noqa: ANN401 - a tensor or a list
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if len(tensors) == len(values) and len({tensor.shape for tensor in tensors}) == 1:
        return torch.stack(tensors)
    return list(values)
