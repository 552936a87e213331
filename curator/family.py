"""Families: declarations of the results that stages store.

A family is one kind of result. It declares a name, a scope, a type of values, and the place where
readers find the values. Code that stores, packs, verifies, removes, exports or loads values reads
the declaration, and contains no names of families.

    Family("latents", Scope.CLIP, Array("f16", ("c", "t", "h", "w")), member="latents.safetensors")
    Family("poses", Scope.CLIP, Array("f32", (FRAMES, 6)), member="poses.npy")
    Family("people", Scope.CLIP, Columns({"n_people": "i32", "pose_score": "f32"}))
"""

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from curator.errors import CuratorError, raised_as

Scalar = str | int | float | bool | None
Row = Mapping[str, Scalar]
"""A value of each column; None for an unknown value."""
Value = NDArray[np.generic] | str | bytes | Row
"""A value before it is encoded. Torch tensors are accepted as arrays."""
Kind = Literal["f16", "bf16", "f32", "f64", "u8", "i8", "i16", "i32", "i64", "bool"]

ColumnKind = Literal["i32", "i64", "f32", "f64", "bool", "text"]

_MEMBER = re.compile(r"[a-z0-9_]+(?:\.[a-z0-9_]+)+")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_OF_BATCHES = frozenset(
    {
        "video", "caption", "fps", "start_frame", "key", "json", "bucket", "embedding",
        "caption_embedding", "not_on_gpu", "position",
    }
)  # fmt: skip
"""Names that the loader's batches already use."""
_OWN_MEMBERS = frozenset({"mp4", "json", "txt", "npy", "id"})
"""Members that samples already have, and `id`; a family cannot use these names."""


class FamilyError(CuratorError):
    """A declaration is wrong, or a value does not fit its declaration."""


class Scope(StrEnum):
    """The object that the id of a row identifies."""

    SOURCE = "source"
    CLIP = "clip"
    CORPUS = "corpus"


class Lifetime(StrEnum):
    """The time for which values of a family stay in the folder `families/` of OUT."""

    RUN = "run"
    """Until the commit. Afterwards, readers take the values from the tars."""
    CACHE = "cache"
    """Until a user removes `families/`. Another recipe may use the values again."""


_NUMPY = {
    "f16": "<f2", "f32": "<f4", "f64": "<f8", "u8": "u1", "i8": "i1", "i16": "<i2", "i32": "<i4",
    "i64": "<i8", "bool": "?",
}  # fmt: skip
"""Stored NumPy types; NumPy has no bfloat16."""
_FEATURES = {name: np.dtype(stored).name for name, stored in _NUMPY.items()} | {"text": "string"}
FRAMES = "frames"
"""Name of the axis with one entry per frame of the clip, in order."""
TENSOR = "value"
"""Name of the only tensor in a safetensors member."""
_STILL_AXES = frozenset({"h", "w", "tokens"})
"""Names of axes that are no frames: height, width, and the tokens of a text."""
_FEATURE_AXES = frozenset({"c", "d", "dimension"})
"""Names of the axis of a vector's numbers, such as channels."""
_PICTURES = ("png", "jpg", "webp")
"""Endings of members that hold one picture."""


@dataclass(frozen=True, slots=True)
class Array:
    """Arrays of one dtype.

    Attributes:
        dtype: Type of the values. Values of another type are refused, not converted.
        axes: For each axis, a number for a fixed length, or a name for a free length. `FRAMES` is
            the axis with one entry per frame of the clip: the worker checks its length, and the
            loader gives the entries of the window's frames. The names `h`, `w` (height and width),
            `tokens` (of a text), `c` and `d` (numbers of a vector) tell readers that the axis does
            not count frames; see `may_have_frames`.
    """

    dtype: Kind
    axes: tuple[str | int, ...]

    endings: ClassVar[tuple[str, ...]] = ("npy", "safetensors")
    """Endings of the members that can hold an array."""

    def __post_init__(self) -> None:
        # JSON gives a list.
        object.__setattr__(self, "axes", tuple(self.axes))
        if self.dtype not in (*_NUMPY, "bf16"):
            dtypes = ", ".join((*_NUMPY, "bf16"))
            raise FamilyError(f"dtype {self.dtype!r}; expected one of {dtypes}")
        if self.axes.count(FRAMES) > 1:
            raise FamilyError(f"axes {list(self.axes)}; expected at most one axis {FRAMES!r}")

    def encode(self, value: Any, ending: str) -> bytes:  # noqa: ANN401 - an array or a tensor
        """Returns an array as a NumPy file, or as safetensors with one tensor `value`."""
        name = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
        expected = "bfloat16" if self.dtype == "bf16" else _FEATURES[self.dtype]
        if name != expected:
            raise FamilyError(f"a value of {name}; expected {expected} {self._shape()}")
        self._fits(tuple(value.shape))
        if self.dtype == "bf16":
            from safetensors import torch

            return bytes(torch.save({TENSOR: value.detach().cpu().contiguous()}))
        if hasattr(value, "detach"):
            value = value.detach().cpu().numpy()
        array = np.ascontiguousarray(value).astype(_NUMPY[self.dtype], copy=False)
        if ending == "npy":
            output = io.BytesIO()
            np.lib.format.write_array(output, array, version=(1, 0), allow_pickle=False)
            return output.getvalue()
        from safetensors.numpy import save

        return bytes(save({TENSOR: array}))

    def decode(self, data: bytes, ending: str) -> NDArray[np.generic]:
        """Returns the array; bfloat16 as float32."""
        if ending == "npy":
            try:
                array: NDArray[np.generic] = np.load(io.BytesIO(data), allow_pickle=False)
            except (ValueError, OSError, EOFError) as error:
                raise FamilyError(f"no NumPy file ({error})") from error
        else:
            array = self._from_safetensors(data)
        if array.dtype != (np.float32 if self.dtype == "bf16" else np.dtype(_NUMPY[self.dtype])):
            raise FamilyError(f"a value of {array.dtype}; expected {self.dtype}")
        self._fits(array.shape)
        return array

    def may_have_frames(self, ending: str) -> bool:
        """Returns whether an axis may count frames.

        An array has none if, besides height, width and tokens, at most one axis remains, and the
        declaration gives its length or names it a vector's. Two axes of fixed length may be frames
        of clips of one length.
        """
        rest = [axis for axis in self.axes if axis not in _STILL_AXES]
        return len(rest) > 1 or any(isinstance(a, str) and a not in _FEATURE_AXES for a in rest)

    def feature(self, ending: str) -> dict[str, Any]:
        """Returns the type for Hugging Face `datasets`: nested sequences; bytes for safetensors."""
        if ending != "npy":
            return {"dtype": "binary"}
        feature: dict[str, Any] = {"sequence": _FEATURES[self.dtype]}
        for _ in self.axes[1:]:
            feature = {"sequence": feature}
        return feature

    def _fits(self, shape: tuple[int, ...]) -> None:
        is_same = len(shape) == len(self.axes) and all(
            isinstance(axis, str) or axis == length
            for axis, length in zip(self.axes, shape, strict=True)
        )
        if not is_same:
            raise FamilyError(f"a value of shape {list(shape)}; expected {self._shape()}")

    def _shape(self) -> str:
        return f"[{', '.join(map(str, self.axes))}]"

    def _from_safetensors(self, data: bytes) -> NDArray[np.generic]:
        from safetensors import SafetensorError

        try:
            if self.dtype != "bf16":
                from safetensors.numpy import load

                return load(data)[TENSOR]
            import torch
            from safetensors.torch import load as load_tensors

            tensor = load_tensors(data)[TENSOR]
        except (ValueError, KeyError, SafetensorError) as error:
            raise FamilyError(f"no safetensors with {TENSOR!r} ({error})") from error
        if tensor.dtype != torch.bfloat16:
            raise FamilyError(f"a value of {tensor.dtype}; expected {self.dtype}")
        array: NDArray[np.generic] = tensor.float().numpy()
        return array


@dataclass(frozen=True, slots=True)
class Text:
    """Texts in UTF-8."""

    endings: ClassVar[tuple[str, ...]] = ("txt",)

    def encode(self, value: Any, ending: str) -> bytes:  # noqa: ANN401 - a text
        """Returns a text as UTF-8."""
        if not isinstance(value, str):
            raise FamilyError(f"a value of {type(value).__name__}; expected a text")
        return value.encode()

    def decode(self, data: bytes, ending: str) -> str:
        """Returns the text."""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise FamilyError(f"no UTF-8 ({error})") from error

    def may_have_frames(self, ending: str) -> bool:
        """Returns False: a text describes the clip."""
        return False

    def feature(self, ending: str) -> dict[str, Any]:
        """Returns the type for Hugging Face `datasets`."""
        return {"dtype": "string"}


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes of any kind. `media_type`, such as `image/png`, is only for people."""

    media_type: str

    endings: ClassVar[tuple[str, ...]] = ("png", "jpg", "bin", "webp", "flac")

    def encode(self, value: Any, ending: str) -> bytes:  # noqa: ANN401 - bytes
        """Returns the bytes."""
        if not isinstance(value, bytes):
            raise FamilyError(f"a value of {type(value).__name__}; expected bytes")
        return value

    def decode(self, data: bytes, ending: str) -> bytes:
        """Returns the bytes."""
        return data

    def may_have_frames(self, ending: str) -> bool:
        """Returns whether the bytes may have values of frames or of times: all but a picture."""
        return ending not in _PICTURES

    def feature(self, ending: str) -> dict[str, Any]:
        """Returns the type that Hugging Face `datasets` infers from the ending."""
        return {"dtype": "image" if ending in _PICTURES else "binary"}


_PYTHON: Mapping[str, tuple[type, ...]] = {
    "i32": (int,), "i64": (int,), "f32": (int, float), "f64": (int, float), "bool": (bool,),
    "text": (str,),
}  # fmt: skip
"""Python types that each kind of column accepts; a number column refuses `bool`."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows of typed columns. With the scope `clip`, they become columns of the table `clips`.

    Attributes:
        columns: Type of each column by name. Numbers are finite; every type includes None.
    """

    columns: Mapping[str, ColumnKind]

    endings: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if not self.columns:
            raise FamilyError("no columns; expected one at least")
        for name, kind in self.columns.items():
            if _NAME.fullmatch(name) is None:
                raise FamilyError(f"column {name!r}; expected lower case letters, digits and "
                                  "underscores")  # fmt: skip
            if kind not in _PYTHON:
                kinds = ", ".join(_PYTHON)
                raise FamilyError(f"column {name!r} is of {kind!r}; expected one of {kinds}")

    def encode(self, value: Any, ending: str) -> Row:  # noqa: ANN401 - a mapping
        """Returns a row of plain values, in the order of the columns."""
        if not isinstance(value, Mapping) or set(value) != set(self.columns):
            form = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise FamilyError(f"a value of {form}; expected a mapping of {sorted(self.columns)}")
        return {name: _scalar(name, kind, value[name]) for name, kind in self.columns.items()}

    def decode(self, data: bytes, ending: str) -> Row:
        """Raises `FamilyError`: rows are stored in tables, not in members."""
        raise FamilyError("rows of columns are in no member of a sample")

    def may_have_frames(self, ending: str) -> bool:
        """Returns False: a row describes the clip."""
        return False

    def feature(self, ending: str) -> dict[str, Any]:
        """Returns the type for Hugging Face `datasets`: a struct."""
        return {
            "struct": [{"name": n, "dtype": _FEATURES[kind]} for n, kind in self.columns.items()]
        }


def _scalar(name: str, kind: ColumnKind, value: Any) -> Scalar:  # noqa: ANN401 - checked here
    """Returns a value of a column, checked; converts scalars of NumPy and torch to Python's."""
    if getattr(value, "shape", None) == ():
        value = value.item()
    if value is None:
        return None
    is_of_kind = isinstance(value, _PYTHON[kind]) and (
        kind == "bool" or not isinstance(value, bool)
    )
    if not is_of_kind:
        description = f"{value!r:.80} of {type(value).__name__}"
        raise FamilyError(f"column {name}: {description}; expected {kind} or None")
    scalar: Scalar = value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise FamilyError(f"column {name}: no UTF-8 ({error})") from error
    elif kind in ("f32", "f64"):
        with np.errstate(over="ignore"):
            scalar = float(np.array(value, np.float64).astype(_NUMPY[kind]))
        if not math.isfinite(scalar):
            description = f"{value:.4g} as {kind}"
            raise FamilyError(f"column {name}: {description}; expected a finite number or None")
    elif kind != "bool" and not -(1 << (bits := int(kind[1:]) - 1)) <= value < 1 << bits:
        raise FamilyError(f"column {name}: {value} does not fit {kind}")
    return scalar


_CONTENTS = {kind.__name__.lower(): kind for kind in (Array, Text, Bytes, Columns)}


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
    """

    name: str
    scope: Scope
    content: Array | Text | Bytes | Columns
    version: int = 1
    member: str = ""
    lifetime: Lifetime | None = None

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise FamilyError(f"family {self.name!r}; expected a name like `latents`, of lower "
                              "case letters, digits and underscores")  # fmt: skip
        if self.name in _OF_BATCHES:
            raise self._error("batches of the loader have that name already; choose another one")
        if self.lifetime is None:
            default = Lifetime.CACHE if self.columns else Lifetime.RUN
            object.__setattr__(self, "lifetime", default)
        if self.columns:
            if self.member:
                raise self._error(
                    f"member {self.member!r}; columns go into the table `clips`, and into no member"
                )
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

    def _error(self, why: str) -> FamilyError:
        return FamilyError(f"family {self.name!r}: {why}")

    @property
    def columns(self) -> Mapping[str, ColumnKind]:
        """Type of each column by name; empty for a family with a member."""
        return self.content.columns if isinstance(self.content, Columns) else {}

    @property
    def ending(self) -> str:
        """The part of the member's name after the last dot."""
        return self.member.rpartition(".")[2]

    @property
    def may_have_frames(self) -> bool:
        """Whether a value may have a part per frame, by its declaration; see `Array`."""
        return self.content.may_have_frames(self.ending)

    @property
    def frames_axis(self) -> int | None:
        """The axis of values that has one entry per frame of the clip; None without `FRAMES`."""
        axes = self.content.axes if isinstance(self.content, Array) else ()
        return axes.index(FRAMES) if FRAMES in axes else None

    def check_frames(self, shape: Sequence[int], n_frames: int) -> None:
        """Raises `FamilyError` if an array does not have one entry per frame of its clip."""
        axis = self.frames_axis
        if axis is not None and shape[axis] != n_frames:
            raise self._error(
                f"a value of {shape[axis]} frames; expected {n_frames}, one entry for each "
                "frame of the clip"
            )

    def encode(self, value: Any) -> bytes | Row:  # noqa: ANN401 - checked by the content
        """Returns a value as bytes or as a row; raises `FamilyError` if it does not fit."""
        with raised_as(FamilyError, FamilyError, of=f"family {self.name}: "):
            return self.content.encode(value, self.ending)

    def decode(self, data: bytes) -> Any:  # noqa: ANN401 - by the content
        """Returns the value of a member; raises `FamilyError` if the bytes are not a value."""
        with raised_as(FamilyError, FamilyError, of=f"family {self.name}: "):
            return self.content.decode(data, self.ending)

    def to_json(self) -> dict[str, Any]:
        """Returns the declaration for JSON; `from_json` reads it without the stage's code."""
        kind = type(self.content).__name__.lower()
        own = {name: getattr(self.content, name) for name in self.content.__slots__}
        return {
            "name": self.name, "scope": str(self.scope), "version": self.version,
            "member": self.member, "lifetime": str(self.lifetime), "content": {"kind": kind} | own,
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Family":
        """Reads a declaration; raises `FamilyError` if `value` is not a declaration."""
        try:
            kind = _CONTENTS[value["content"]["kind"]]
            own = {name: value["content"][name] for name in kind.__slots__}
            return cls(
                name=value["name"],
                scope=Scope(value["scope"]),
                content=kind(**own),
                version=int(value["version"]),
                member=value["member"],
                lifetime=Lifetime(value["lifetime"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FamilyError(f"no declaration of a family: {error!r}") from error


@dataclass(frozen=True, slots=True)
class FamilyVersion:
    """A family, with the fingerprint of the stage that computed the values.

    Values of one version are stored, found and removed together.
    """

    family: Family
    fingerprint: str

    def to_json(self) -> dict[str, Any]:
        """Returns the declaration and the fingerprint for JSON."""
        return self.family.to_json() | {"fingerprint": self.fingerprint}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "FamilyVersion":
        """Reads what `to_json` returned; raises `FamilyError` as `Family.from_json` does."""
        return cls(Family.from_json(value), str(value.get("fingerprint", "")))
