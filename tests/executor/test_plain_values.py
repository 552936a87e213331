"""Values that cross from a sandbox: the same after the way, and no code among them."""

import pickle
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from curator.executor.plain_values import from_bytes, to_bytes


class Colour(StrEnum):
    """An enumeration."""

    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A record in a record."""

    colour: Colour | None = None


@dataclass(frozen=True, kw_only=True)
class Outer:
    """A record of all kinds."""

    inner: tuple[Inner, ...]
    at: dict[str, Any] = field(default_factory=dict)


VALUE = Outer(
    inner=(Inner(colour=Colour.RED), Inner()),
    at={
        "none": None, "text": "ü\n", "bytes": b"\x00\xff", "fraction": Fraction(30000, 1001),
        "big": 1 << 80, "float": 0.1, "list": [1, [2]], "set": frozenset({"a"}), "true": True,
    },
)  # fmt: skip


def test_a_value_is_the_same_after_the_way() -> None:
    """Pins every kind, nested, and that keys need not be text."""
    assert from_bytes(to_bytes(VALUE), (Outer, Inner, Colour)) == VALUE
    assert from_bytes(to_bytes({1: ("x",), (2, 3): []})) == {1: ("x",), (2, 3): []}
    assert np.isnan(from_bytes(to_bytes(float("nan"))))


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "float32", "bool"])
def test_arrays_keep_type_shape_and_bits(dtype: str) -> None:
    """Pins arrays of each kind that tracks hold, empty ones too, and that they can be written."""
    for shape in ((3, 0), (2, 3), ()):
        array = np.ones(shape, dtype)
        back = from_bytes(to_bytes(array))
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert back.tobytes() == array.tobytes()
        back[...] = 0


def test_what_could_run_code_is_refused() -> None:
    """Pins that neither objects, nor unknown classes, nor pickles come through."""
    with pytest.raises(TypeError, match="no plain value"):
        to_bytes(object())
    with pytest.raises(TypeError, match="holds more than numbers"):
        to_bytes(np.array([object()], object))
    with pytest.raises(ValueError, match="no plain value: KeyError"):
        from_bytes(to_bytes(VALUE), (Outer, Colour))
    evil = to_bytes(np.zeros(2)).replace(b"<f8", b"|O8")
    with pytest.raises(ValueError, match="holds more than numbers"):
        from_bytes(evil)


def test_damaged_bytes_are_a_value_error() -> None:
    """Pins that no cut and no changed byte raises anything else, or asks for much memory."""
    good = to_bytes(VALUE)
    for end in range(0, len(good), 7):
        with pytest.raises(ValueError):  # noqa: PT011 - JSON's and ours
            from_bytes(good[:end] if end < 40 else pickle.dumps(good[:end]), (Outer, Inner, Colour))
    with pytest.raises(ValueError, match="no plain value"):
        from_bytes(to_bytes(1)[:8] + b"\xff" * 8)
