"""Which classes may come out of a sandbox: all that a result's type names, and no others."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

import curator.stages
from curator.executor.plain_values import from_bytes, to_bytes
from curator.executor.result_classes import result_classes
from curator.records.cuts import SampledFrames, TextLine
from curator.records.sources import Failure
from curator.sample_frames import SampleFramesStage
from curator.stage import Stage
from curator.stages.cut.stage import CutStage, LookStage


class Colour(StrEnum):
    """An enumeration."""

    RED = "red"


class Shade(StrEnum):
    """One that a literal alone names."""

    DARK = "dark"


PartT = TypeVar("PartT")


@dataclass(frozen=True)
class Inner:
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
    """A stage whose `process` is annotated so."""

    def process(self: object, unit: object) -> object:
        return unit

    process.__annotations__ = {"return": returned}
    return type("Made", (Stage,), {"process": process})


def sandboxed() -> Iterator[type[Stage[Any, Any, Any]]]:
    """All stages of the package that run in a sandbox."""
    for module in pkgutil.walk_packages(curator.stages.__path__, "curator.stages."):
        for kind in vars(importlib.import_module(module.name)).values():
            is_stage = inspect.isclass(kind) and issubclass(kind, Stage)
            is_own = is_stage and kind.__module__ == module.name
            if is_own and kind.sandboxed and not inspect.isabstract(kind):
                yield kind


def test_classes_are_found_in_containers_unions_and_generics() -> None:
    """Pins each form in which a type names another one, and a class that names itself."""
    found = result_classes(stage_of(dict[int, list[Held[Inner]] | None]))
    assert {Held, Inner, Colour, Shade, Failure} <= set(found)
    value = {1: [Held([Inner({"a": (Colour.RED,)}, Shade.DARK, Fraction(1, 3), np.zeros(1))])]}
    assert from_bytes(to_bytes(value), found)[1][0].parts[0].shade is Shade.DARK


def test_a_named_alias_stands_for_its_type() -> None:
    """Pins that NumPy's `NDArray`, a named alias since NumPy 2.5, still says what crosses."""
    named = TypeAliasType("named", list[Held[PartT]], type_params=(PartT,))
    assert Inner in result_classes(stage_of(named[Inner]))


@pytest.mark.parametrize(
    "kind",
    [object, Any, list, dict[str, Any], tuple[object, ...], Held, Held[object], PartT, bytearray],
)
def test_a_type_that_does_not_say_what_crosses_is_refused(kind: Any) -> None:  # noqa: ANN401
    with pytest.raises(TypeError, match="does not say what may come out of a sandbox"):
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
    assert {CutStage, LookStage} < set(stages)
    for stage in [*stages, SampleFramesStage]:
        assert Failure in result_classes(stage)


@pytest.mark.parametrize("stage", [CutStage, LookStage, SampleFramesStage])
def test_lines_of_text_come_out_of_a_sandbox(stage: type[Stage[Any, Any, Any]]) -> None:
    """Pins the class that was missing in each stage that takes frames of clips."""
    line = TextLine(text="EXIT", confidence=0.9, box=((0, 0), (1, 0), (1, 1), (0, 1)))
    sampled = SampledFrames(n_frames=1, jpegs={0: b"jpeg"}, text={0: (line,)})
    assert from_bytes(to_bytes(sampled), result_classes(stage)) == sampled
