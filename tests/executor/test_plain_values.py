"""Values that cross from a sandbox: the same after the way, and no code or other class in them."""

import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

import curator.stages
from curator.executor.plain_values import from_bytes, result_classes, to_bytes
from curator.records.cuts import SampledFrames, TextLine
from curator.records.sources import Failure
from curator.sample_frames import SampleFramesStage
from curator.stage import Stage
from curator.stages.cut.stage import CutStage


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


def test_what_could_run_code_and_damaged_bytes_are_refused() -> None:
    """Pins that neither objects, nor unknown classes, nor pickles come through."""
    with pytest.raises(TypeError, match="not a plain value"):
        to_bytes(object())
    with pytest.raises(TypeError, match="is not numeric"):
        to_bytes(np.array([object()], object))
    with pytest.raises(ValueError, match="not a plain value: KeyError"):
        from_bytes(to_bytes(VALUE), (Outer, Colour))
    evil = to_bytes(np.zeros(2)).replace(b"<f8", b"|O8")
    with pytest.raises(ValueError, match="is not numeric"):
        from_bytes(evil)
    # No cut and no changed byte raises anything else, or asks for much memory.
    good = to_bytes(VALUE)
    for end in range(0, len(good), 7):
        with pytest.raises(ValueError):  # noqa: PT011 - JSON's and ours
            from_bytes(good[:end] if end < 40 else pickle.dumps(good[:end]), (Outer, Inner, Colour))
    with pytest.raises(ValueError, match="not a plain value"):
        from_bytes(to_bytes(1)[:8] + b"\xff" * 8)


class Shade(StrEnum):
    """One that a literal alone names."""

    DARK = "dark"


PartT = TypeVar("PartT")


@dataclass(frozen=True)
class Made:
    """A record in a container."""

    colours: Mapping[str, tuple[Colour, ...]]
    shade: Literal[Shade.DARK, "light"] | None
    rate: Fraction | float
    data: NDArray[np.int64]


@dataclass(frozen=True)
class Held(Generic[PartT]):
    """A generic record."""

    parts: Sequence[PartT]
    more: "Held[PartT] | None" = None


def stage_of(returned: Any) -> type[Stage[Any, Any, Any]]:  # noqa: ANN401 - a type

    def process(self: object, unit: object) -> object:
        return unit

    process.__annotations__ = {"return": returned}
    return type("Made", (Stage,), {"process": process})


def sandboxed() -> Iterator[type[Stage[Any, Any, Any]]]:
    for module in pkgutil.walk_packages(curator.stages.__path__, "curator.stages."):
        for kind in vars(importlib.import_module(module.name)).values():
            is_stage = inspect.isclass(kind) and issubclass(kind, Stage)
            is_own = is_stage and kind.__module__ == module.name
            if is_own and kind.sandboxed and not inspect.isabstract(kind):
                yield kind


def test_classes_are_found_in_containers_unions_generics_and_aliases() -> None:
    """Pins each form in which a type names another one, and a class that names itself."""
    found = result_classes(stage_of(dict[int, list[Held[Made]] | None]))
    assert {Held, Made, Colour, Shade, Failure} <= set(found)
    value = {1: [Held([Made({"a": (Colour.RED,)}, Shade.DARK, Fraction(1, 3), np.zeros(1))])]}
    assert from_bytes(to_bytes(value), found)[1][0].parts[0].shade is Shade.DARK
    # NumPy's `NDArray`, a named alias since NumPy 2.5, still says what crosses.
    named = TypeAliasType("named", list[Held[PartT]], type_params=(PartT,))
    assert Made in result_classes(stage_of(named[Made]))


@pytest.mark.parametrize(
    "kind",
    [object, Any, list, dict[str, Any], tuple[object, ...], Held, Held[object], PartT, bytearray],
)
def test_a_type_that_does_not_say_what_crosses_is_refused(kind: Any) -> None:  # noqa: ANN401
    with pytest.raises(TypeError, match="is not a specific type that may leave a sandbox"):
        result_classes(stage_of(kind))


def test_two_classes_of_one_name_are_refused() -> None:
    """Pins that bytes which name a class cannot mean another one."""

    @dataclass
    class Failure:
        """Not the package's."""

    with pytest.raises(TypeError, match="two classes named Failure"):
        result_classes(stage_of(Failure))


def test_each_sandboxed_stage_says_what_its_results_are_made_of() -> None:
    """Pins the types of all of them: `result_classes` raises for `object` and `Any`."""
    stages = list(sandboxed())
    assert {CutStage} < set(stages)
    for stage in [*stages, SampleFramesStage]:
        assert Failure in result_classes(stage)


def test_lines_of_text_come_out_of_a_sandbox() -> None:
    line = TextLine(text="EXIT", confidence=0.9, box=((0, 0), (1, 0), (1, 1), (0, 1)))
    sampled = SampledFrames(n_frames=1, jpegs={0: b"jpeg"}, text={0: (line,)})
    assert from_bytes(to_bytes(sampled), result_classes(SampleFramesStage)) == sampled
