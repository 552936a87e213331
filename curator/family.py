"""Families: declarations of the results that stages store.

A family is one kind of result. It declares a name, a scope, a type of values, and the place where
readers find the values. Code that stores, packs, verifies, removes, exports or loads values reads
the declaration, and contains no names of families.

    Family("latents", Scope.CLIP, Array("f16", ("c", "t", "h", "w")), member="latents.safetensors",
           facts={"vae": "Wan2.1", "sample": "mean"})
    Family("poses", Scope.CLIP, Array("f32", (FRAMES, 6)), member="poses.npy")
    Family("people", Scope.CLIP, Columns({"n_people": "i32", "pose_score": "f32"}))
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from math import isfinite
from typing import Any

import numpy as np

from curator.errors import raised_as
from curator.frame_axes import FRAMES, REQUESTED, AxisError, TimeAxis, Windows, per_second
from curator.records.clips import CLIP_FORMATS
from curator.value_contents import (
    NAME,
    TENSOR,
    Array,
    Bytes,
    ColumnKind,
    Columns,
    EncodedVideo,
    FamilyError,
    Kind,
    Row,
    Scalar,
    Text,
    Value,
    Video,
)
from curator.value_header import ValueHeader

__all__ = (
    "FRAMES", "REQUESTED", "TENSOR", "Array", "Bytes", "ColumnKind", "Columns", "EncodedVideo",
    "Family", "FamilyError", "FamilyVersion", "Kind", "Lifetime", "Place", "Row", "Scalar", "Scope",
    "Text", "Value", "Video", "Windows", "per_second",
)  # fmt: skip

_MEMBER = re.compile(r"[a-z0-9_]+(?:\.[a-z0-9_]+)+")
_OF_BATCHES = frozenset(
    {
        "video", "caption", "fps", "start_frame", "key", "json", "bucket", "embedding",
        "caption_embedding", "not_on_gpu", "position",
    }
)  # fmt: skip
"""Names that the loader's batches already use."""
_OWN_MEMBERS = frozenset({"json", "txt", "npy", "id", *CLIP_FORMATS})
"""Members that samples already have, and `id`; a family cannot use these names."""


class Scope(StrEnum):
    """The object that the id of a row identifies."""

    SOURCE = "source"
    CLIP = "clip"
    CORPUS = "corpus"


class Place(StrEnum):
    """Where readers find the values of a family."""

    SAMPLE = "sample"
    """In the samples: a member, or a field of the JSON."""
    SIDE = "side"
    """In *side tars* with only these members, one for each tar that needs it, with the same keys
    in the same order. A new family, or other values, writes no tar with MP4s again."""
    SHARED = "shared"
    """As `SIDE`, and a value that several samples of a tar have in common is stored once, with the
    first of them. The table of samples says where the value of each sample is."""
    TABLE = "table"
    """Columns in the table `clips` alone, so that a new column changes no tar."""


class Lifetime(StrEnum):
    """The time for which values of a family stay in the folder `families/` of OUT."""

    RUN = "run"
    """Until the commit. Afterwards, readers take the values from the tars."""
    CACHE = "cache"
    """Until a user removes `families/`. Another recipe may use the values again."""


def _stacked(values: Sequence[Any]) -> Any:  # noqa: ANN401 - an array or a tensor
    shapes = sorted({tuple(getattr(value, "shape", ())) for value in values})
    if len(shapes) != 1:
        raise FamilyError(f"windows with values of shapes {shapes}; expected one shape")
    if hasattr(values[0], "detach"):
        import torch

        return torch.stack(list(values))
    return np.stack(list(values))


def _some(numbers: Sequence[int]) -> str:
    return f"{list(numbers[:4])}{'…' * (len(numbers) > 4)}"


_CONTENTS = {kind.__name__.lower(): kind for kind in (Array, Text, Bytes, Video, Columns)}


@dataclass(frozen=True, slots=True)
class Family:
    """The declaration of one kind of result.

    Attributes:
        name: Lower case letters, digits and underscores; unique in a graph.
        scope: Whether a value describes a source, a clip or the corpus.
        content: Type of the values.
        version: Raised when the same input gives other values.
        member: Member of a sample that holds a value, such as `latents.safetensors`. Readers of
            WebDataset choose the decoder by the part after the last dot. Empty for `Columns`.
        lifetime: The time for which stored parts stay. By default `RUN` with a member, because tars
            then hold the values, and `CACHE` for `Columns`.
        facts: What the values are, besides their shape, by name: such as weights, mean or sample,
            shift and scale. `ClipDataset` compares them with those that a training expects.
        windows: The windows of a clip for which there are values; None for values of whole clips. A
            stored array then has the windows as its first axis, which `content` does not name.
            `Annotator.windows` sets it.
        place: Where readers find the values: by default in the samples.
    """

    name: str
    scope: Scope
    content: Array | Text | Bytes | Video | Columns
    version: int = 1
    member: str = ""
    lifetime: Lifetime | None = None
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    windows: Windows | None = None
    place: Place = Place.SAMPLE

    def __post_init__(self) -> None:
        if NAME.fullmatch(self.name) is None:
            raise FamilyError(f"family {self.name!r}; expected a name like `latents`, of lower "
                              "case letters, digits and underscores")  # fmt: skip
        if self.name in _OF_BATCHES:
            raise self._error("batches of the loader have that name already; choose another one")
        places = (Place.SAMPLE, Place.TABLE) if self.columns else tuple(Place)[:3]
        if self.place not in places:
            kind = "columns" if self.columns else "a member"
            expected = ", ".join(map(repr, map(str, places)))
            raise self._error(f"place {str(self.place)!r} of {kind}; expected one of {expected}")
        object.__setattr__(self, "place", Place(self.place))
        if self.lifetime is None:
            default = Lifetime.CACHE if self.columns else Lifetime.RUN
            object.__setattr__(self, "lifetime", default)
        if self.columns:
            if self.member:
                raise self._error(
                    f"member {self.member!r}; columns go into the table `clips`, and into no member"
                )
            if self.windows is not None or self.facts:
                raise self._error("columns with windows or facts; expected an array in safetensors")
            return
        if self.member in _OWN_MEMBERS or _MEMBER.fullmatch(self.member) is None:
            example = f"{self.name}.{self.content.endings[0]}"
            raise self._error(
                f"member {self.member!r}; expected a name and an ending, such as {example}"
            )
        if self.ending not in self.content.endings:
            expected = ", ".join(self.content.endings)
            raise self._error(f"the ending of {self.member!r}; expected one of {expected}")
        if self.ending == "npy" and getattr(self.content, "dtype", None) == "bf16":
            raise self._error(f"NumPy files hold no bf16; expected {self.name}.safetensors")
        self._check_header()

    def _check_header(self) -> None:
        """Refuses what needs a header in a member that has none, and axes that windows exclude."""
        for name, value in self.facts.items():
            # JSON has neither NaN nor infinity, and NaN equals nothing that a training expects.
            is_finite = not isinstance(value, float) or isfinite(value)
            if not (isinstance(value, Scalar) and is_finite):
                raise self._error(
                    f"fact {name!r} is {value!r:.80}; expected a finite number or a text"
                )
        axis = self.time_axis
        if self.windows is not None and axis is not None:
            raise self._error("windows with a video or an axis of time; expected one of them")
        needs = [
            name
            for name, is_given in (
                ("windows", self.windows is not None),
                ("facts", self.facts),
                ("the axis `REQUESTED`", axis is not None and axis.is_requested),
            )
            if is_given
        ]
        if needs and not self.has_header:
            raise self._error(
                f"{needs[0]} with the member {self.member!r}, which has no room for a header; "
                f"expected an array in {self.name}.safetensors"
            )

    def _error(self, why: str) -> FamilyError:
        return FamilyError(f"family {self.name!r}: {why}")

    @property
    def columns(self) -> Mapping[str, ColumnKind]:
        """Type of each column by name; empty for a family with a member."""
        return self.content.columns if isinstance(self.content, Columns) else {}

    @property
    def is_side(self) -> bool:
        """Whether the values are in side tars."""
        return self.place in (Place.SIDE, Place.SHARED)

    @property
    def ending(self) -> str:
        """The part of the member's name after the last dot."""
        return self.member.rpartition(".")[2]

    @property
    def may_have_frames(self) -> bool:
        """Whether a value may have a part per frame, by its declaration; see `Array`."""
        return self.windows is not None or self.content.may_have_frames(self.ending)

    @property
    def time_axis(self) -> TimeAxis | None:
        """The axis of values that follows the clip's time; None for other contents."""
        return self.content.time_axis if isinstance(self.content, Array | Video) else None

    @property
    def has_header(self) -> bool:
        """Whether values have a `ValueHeader`."""
        return isinstance(self.content, Array | Video) and self.content.has_header(self.ending)

    def check_length(
        self, shape: Sequence[int], header: ValueHeader | None, n_frames: int, fps: Fraction
    ) -> None:
        """Raises `FamilyError` if an array does not fit the length of its clip.

        Args:
            shape: Shape of the stored array.
            header: Header of the value, if it `has_header`.
            n_frames: Frames of the clip.
            fps: Frames per second of the clip.
        """
        frames = None if header is None else header.frames
        if self.windows is not None:
            starts = self.windows.starts(n_frames)
            if frames != starts or shape[0] != len(starts):
                raise self._error(
                    f"{shape[0]} windows from the frames {_some(frames or ())}; expected "
                    f"{len(starts)} from {_some(starts)} of a clip of {n_frames} frames"
                )
        elif (axis := self.time_axis) is not None:
            numbers = frames or ()
            are_frames = set(numbers) <= set(range(n_frames)) and bool(numbers)
            if axis.is_requested and not (are_frames and list(numbers) == sorted(set(numbers))):
                raise self._error(
                    f"entries of the frames {_some(numbers)}; expected ascending numbers from 0 to "
                    f"{n_frames - 1}"
                )
            with raised_as(FamilyError, AxisError, of=f"family {self.name!r}: "):
                axis.check(shape, n_frames, fps, len(numbers))

    def encode(
        self,
        value: Any,  # noqa: ANN401 - checked by the content
        header: ValueHeader | None = None,
    ) -> bytes | Row:
        """Returns a value as bytes or as a row; raises `FamilyError` if it does not fit.

        A family with windows gets a sequence with the value of each window.
        """
        with raised_as(FamilyError, FamilyError, of=f"family {self.name}: "):
            stored = value if self.windows is None else _stacked(value)
            return self._stored.encode(stored, self.ending, header)

    def decode(self, data: bytes) -> Any:  # noqa: ANN401 - by the content
        """Returns the value of a member; raises `FamilyError` if the bytes are not a value."""
        with raised_as(FamilyError, FamilyError, of=f"family {self.name}: "):
            return self._stored.decode(data, self.ending)

    def header(self, data: bytes) -> ValueHeader | None:
        """Returns the header of a value that `has_header`; raises `FamilyError` without one."""
        if not (isinstance(self.content, Array | Video) and self.content.has_header(self.ending)):
            return None
        with raised_as(FamilyError, FamilyError, of=f"family {self.name}: "):
            return self.content.header(data, self.ending)

    def is_whole(self, data: bytes) -> bool:
        """Returns whether bytes are a value, with the right hash if it has one."""
        with suppress(FamilyError):
            if isinstance(self.content, Video):
                self.content.opened(data)
            elif self.header(data) is None:
                self.decode(data)
            return True
        return False

    @property
    def _stored(self) -> "Array | Text | Bytes | Video | Columns":
        if self.windows is None or not isinstance(self.content, Array):
            return self.content
        return replace(self.content, axes=("windows", *self.content.axes))

    def to_json(self) -> dict[str, Any]:
        """Returns the declaration for JSON; `from_json` reads it without the stage's code."""
        kind = type(self.content).__name__.lower()
        own = {name: getattr(self.content, name) for name in self.content.__slots__}
        return {
            "name": self.name, "scope": str(self.scope), "version": self.version,
            "member": self.member, "lifetime": str(self.lifetime), "content": {"kind": kind} | own,
            "facts": dict(self.facts),
            "windows": None if self.windows is None else self.windows.to_json(),
            "place": str(self.place),
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Family":
        """Reads a declaration; raises `FamilyError` if `value` is not a declaration.

        Declarations of earlier versions have `in_samples` in place of `place`.
        """
        try:
            if "place" not in value:
                value = {**value, "place": "sample" if value["in_samples"] else "table"}
            kind = _CONTENTS[value["content"]["kind"]]
            own = {name: value["content"][name] for name in kind.__slots__}
            return cls(
                name=value["name"],
                scope=Scope(value["scope"]),
                content=kind(**own),
                version=int(value["version"]),
                member=value["member"],
                lifetime=Lifetime(value["lifetime"]),
                facts=value["facts"],
                windows=None if value["windows"] is None else Windows(**value["windows"]),
                place=Place(value["place"]),
            )
        except (KeyError, TypeError, ValueError, AxisError) as error:
            raise FamilyError(f"no declaration of a family: {error!r}") from error


@dataclass(frozen=True, slots=True)
class FamilyVersion:
    """A family, with the fingerprint of the stage that computed the values.

    Values of one version are stored, found and removed together.
    """

    family: Family
    fingerprint: str

    def read(
        self, data: bytes, sample: Mapping[str, Any], fps: Fraction
    ) -> tuple[Any, ValueHeader | None]:
        """Returns the value of a sample's member and its header; a video as `EncodedVideo`.

        Args:
            data: Bytes of the member.
            sample: The sample's JSON.
            fps: Frames per second of the clip.

        Raises:
            FamilyError: The bytes are not a value, or do not fit the length of the clip.
            HeaderError: The value was computed from other frames, texts or settings.
        """
        family = self.family
        value: Any = None
        if isinstance(family.content, Video):
            with raised_as(FamilyError, FamilyError, of=f"family {family.name}: "):
                value = family.content.opened(data)
            header = value.header
        else:
            header = family.header(data)
        if header is not None:
            header.check([self.fingerprint], sample)
        value = family.decode(data) if value is None else value
        shape = tuple(getattr(value, "shape", ()))
        family.check_length(shape, header, int(sample["n_frames"]), fps)
        return value, header

    def to_json(self) -> dict[str, Any]:
        """Returns the declaration and the fingerprint for JSON."""
        return self.family.to_json() | {"fingerprint": self.fingerprint}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "FamilyVersion":
        """Reads what `to_json` returned; raises `FamilyError` as `Family.from_json` does."""
        return cls(Family.from_json(value), str(value.get("fingerprint", "")))
