"""The types of values that families declare: arrays, texts, bytes and rows of columns.

A content encodes a value as the bytes of a member, decodes these bytes, and says whether a part of
a value belongs to a frame. Contents with a `time_axis` follow the time of the clip.
"""

import io
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from curator.errors import CuratorError, raised_as
from curator.frame_axes import AxisError, TimeAxis
from curator.value_header import HeaderError, ValueHeader, sorted_safetensors

Scalar = str | int | float | bool | None
Row = Mapping[str, Scalar]
"""A value of each column; None for an unknown value."""
Value = NDArray[np.generic] | str | bytes | Row
"""A value before it is encoded. Torch tensors are accepted as arrays."""
Kind = Literal["f16", "bf16", "f32", "f64", "u8", "i8", "i16", "i32", "i64", "bool"]

ColumnKind = Literal["i32", "i64", "f32", "f64", "bool", "text"]

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
"""Names of families and of columns."""


class FamilyError(CuratorError):
    """A declaration is wrong, or a value does not fit its declaration."""


_NUMPY = {
    "f16": "<f2", "f32": "<f4", "f64": "<f8", "u8": "u1", "i8": "i1", "i16": "<i2", "i32": "<i4",
    "i64": "<i8", "bool": "?",
}  # fmt: skip
"""Stored NumPy types; NumPy has no bfloat16."""
_FEATURES = {name: np.dtype(stored).name for name, stored in _NUMPY.items()} | {"text": "string"}
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
        axes: For each axis, a number for a fixed length, or a name for a free length. `FRAMES`,
            `per_second(rate)` and `REQUESTED` are axes that follow the clip's time: the worker
            checks their length, and the loader gives the entries of the window's frames. The names
            `h`, `w` (height and width), `tokens` (of a text), `c` and `d` (numbers of a vector)
            tell readers that the axis does not count frames; see `may_have_frames`.
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
        with raised_as(FamilyError, AxisError):
            TimeAxis.of(self.axes)

    @property
    def time_axis(self) -> TimeAxis | None:
        """The axis that follows the clip's time, or None."""
        return TimeAxis.of(self.axes)

    def encode(
        self,
        value: Any,  # noqa: ANN401 - an array or a tensor
        ending: str,
        header: ValueHeader | None = None,
    ) -> bytes:
        """Returns an array as a NumPy file, or as safetensors with one tensor `value`.

        Safetensors get the header, if there is one, as their metadata.
        """
        name = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
        expected = "bfloat16" if self.dtype == "bf16" else _FEATURES[self.dtype]
        if name != expected:
            raise FamilyError(f"a value of {name}; expected {expected} {self._shape()}")
        self._fits(tuple(value.shape))
        is_torch = hasattr(value, "detach")
        if self.dtype == "bf16":
            from safetensors import torch

            tensor = value.detach().cpu().contiguous()
            metadata = _metadata(header, lambda: tensor.view(-1).view(_torch_u8()).numpy())
            return sorted_safetensors(torch.save({TENSOR: tensor}, metadata))
        own = value.detach().cpu().numpy() if is_torch else value
        array = np.ascontiguousarray(own).astype(_NUMPY[self.dtype], copy=False)
        if ending == "npy":
            output = io.BytesIO()
            np.lib.format.write_array(output, array, version=(1, 0), allow_pickle=False)
            return output.getvalue()
        from safetensors.numpy import save

        return sorted_safetensors(save({TENSOR: array}, _metadata(header, lambda: array)))

    def decode(self, data: bytes, ending: str) -> Any:  # noqa: ANN401 - an array or a tensor
        """Returns the array; bfloat16, which NumPy lacks, as a tensor of torch."""
        if self.dtype == "bf16":
            tensor = self._bf16(data)
            self._fits(tuple(tensor.shape))
            return tensor
        if ending == "npy":
            try:
                array: NDArray[np.generic] = np.load(io.BytesIO(data), allow_pickle=False)
            except (ValueError, OSError, EOFError) as error:
                raise FamilyError(f"no NumPy file ({error})") from error
        else:
            array = self._from_safetensors(data)
        if array.dtype != np.dtype(_NUMPY[self.dtype]):
            raise FamilyError(f"a value of {array.dtype}; expected {self.dtype}")
        self._fits(array.shape)
        return array

    def has_header(self, ending: str) -> bool:
        """Returns whether values have a header."""
        return ending == "safetensors"

    def header(self, data: bytes, ending: str) -> ValueHeader:
        """Returns the header of a value; raises `FamilyError` without a valid one."""
        with raised_as(FamilyError, HeaderError):
            return ValueHeader.of_safetensors(data)

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
        from safetensors.numpy import load

        try:
            return load(data)[TENSOR]
        except (ValueError, KeyError, SafetensorError) as error:
            raise FamilyError(f"no safetensors with {TENSOR!r} ({error})") from error

    def _bf16(self, data: bytes) -> Any:  # noqa: ANN401 - a tensor, and torch is imported here
        import torch
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            tensor = load(data)[TENSOR]
        except (ValueError, KeyError, SafetensorError) as error:
            raise FamilyError(f"no safetensors with {TENSOR!r} ({error})") from error
        if tensor.dtype != torch.bfloat16:
            raise FamilyError(f"a value of {tensor.dtype}; expected {self.dtype}")
        return tensor


def _torch_u8() -> Any:  # noqa: ANN401 - a type of torch, which only some callers have
    import torch

    return torch.uint8


def _metadata(
    header: ValueHeader | None, tensor: Callable[[], NDArray[np.generic]]
) -> dict[str, str] | None:
    return None if header is None else header.in_safetensors(tensor().tobytes())


@dataclass(frozen=True, slots=True)
class Text:
    """Texts in UTF-8."""

    endings: ClassVar[tuple[str, ...]] = ("txt",)

    def encode(self, value: Any, ending: str, header: ValueHeader | None = None) -> bytes:  # noqa: ANN401 - a text
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

    def encode(self, value: Any, ending: str, header: ValueHeader | None = None) -> bytes:  # noqa: ANN401 - bytes
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


class EncodedVideo(NamedTuple):
    """A video that is not yet decoded: its bytes, its frames, height and width, and its header."""

    data: bytes
    shape: tuple[int, int, int]
    header: ValueHeader


@dataclass(frozen=True, slots=True)
class Video:
    """Videos with a frame for each frame of the clip, such as edges, depth or masks.

        Family("edges", Scope.CLIP, Video("h264"), member="edges.mp4")

    Attributes:
        codec: `h264` for uint8 RGB [T, H, W, 3] of even sizes, in `mp4`, encoded as clips are; or
            `ffv1` for uint16 [T, H, W], in `mkv`, without loss.
        crf: Quality of `h264`, on x264's scale.
    """

    codec: Literal["h264", "ffv1"]
    crf: int = 16

    endings: ClassVar[tuple[str, ...]] = ("mp4", "mkv")
    time_axis: ClassVar[TimeAxis] = TimeAxis(0)

    def __post_init__(self) -> None:
        if self.codec not in ("h264", "ffv1"):
            raise FamilyError(f"codec {self.codec!r}; expected 'h264' or 'ffv1'")

    def encode(self, value: Any, ending: str, header: ValueHeader | None = None) -> bytes:  # noqa: ANN401 - an array
        """Returns the video; its comment has the header, which also names the rate.

        Raises:
            FamilyError: The frames have another form, or there is no header.
        """
        from curator.media.value_video import encode_video

        self._check_ending(ending)
        is_rgb = self.codec == "h264"
        array = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
        kind, n_axes = ("uint8", 4) if is_rgb else ("uint16", 3)
        is_right = array.dtype == kind and array.ndim == n_axes and len(array)
        if not is_right or (
            is_rgb and (array.shape[3] != 3 or any(n % 2 for n in array.shape[1:3]))
        ):
            form = "uint8 [T, H, W, 3] of even H and W" if is_rgb else "uint16 [T, H, W]"
            raise FamilyError(f"a value of {array.dtype} {list(array.shape)}; expected {form}")
        if header is None or header.fps is None:
            raise FamilyError("a video without the rate of its clip")
        return encode_video(
            array, fps=header.fps, crf=self.crf if is_rgb else None, metadata=header.to_metadata()
        )

    def decode(self, data: bytes, ending: str) -> NDArray[np.generic]:
        """Returns all frames, uint8 [T, H, W, 3] or uint16 [T, H, W]."""
        from curator.media.value_video import VideoError, decode_video

        with raised_as(FamilyError, VideoError):
            return decode_video(data)

    def opened(self, data: bytes) -> "EncodedVideo":
        """Reads header and shape without decoding; raises `FamilyError` without a valid header."""
        from curator.media.value_video import VideoError, video_facts

        with raised_as(FamilyError, VideoError, HeaderError):
            facts = video_facts(data)
            header = ValueHeader.from_metadata(facts.metadata, facts.digest)
        return EncodedVideo(data, (facts.n_frames, facts.height, facts.width), header)

    def has_header(self, ending: str) -> bool:
        """Returns True."""
        return True

    def header(self, data: bytes, ending: str) -> ValueHeader:
        """Returns the header of a value; raises `FamilyError` without a valid one."""
        return self.opened(data).header

    def may_have_frames(self, ending: str) -> bool:
        """Returns True: a video has a frame for each frame of the clip."""
        return True

    def feature(self, ending: str) -> dict[str, Any]:
        """Returns the type for Hugging Face `datasets`."""
        return {"dtype": "binary"}

    def _check_ending(self, ending: str) -> None:
        expected = "mp4" if self.codec == "h264" else "mkv"
        if ending != expected:
            raise FamilyError(f"{self.codec} in a member of {ending!r}; expected {expected!r}")


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
            if NAME.fullmatch(name) is None:
                raise FamilyError(f"column {name!r}; expected lower case letters, digits and "
                                  "underscores")  # fmt: skip
            if kind not in _PYTHON:
                kinds = ", ".join(_PYTHON)
                raise FamilyError(f"column {name!r} is of {kind!r}; expected one of {kinds}")

    def encode(self, value: Any, ending: str, header: ValueHeader | None = None) -> Row:  # noqa: ANN401 - a mapping
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
