"""The classes of which a sandboxed stage's results are made, from the type that `process` returns.

A parent makes no other object out of bytes that come from a sandbox (`plain_values`). The list is
derived, so that a field of another type in a result is known without being named anywhere else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from fractions import Fraction
from functools import cache
from types import EllipsisType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from curator.records.sources import Failure
from curator.stage import Stage

_PLAIN = (NoneType, bool, int, float, str, bytes, Fraction)
_GROUPS = (list, tuple, set, frozenset, dict, Mapping, Sequence, Union, UnionType)


@cache
def result_classes(stage: type[Stage[Any, Any, Any]]) -> tuple[type, ...]:
    """Returns the data classes and enumerations of a stage's results, and those of a `Failure`.

    Raises:
        TypeError: The type names something that cannot cross, or does not say what crosses, such as
            `object`, `Any`, or a list of unnamed values; or two classes have one name.
    """
    returned = get_type_hints(stage.process).get("return", Any)
    kinds: dict[Any, None] = {}
    for kind in (returned, Failure):
        _collect(kind, kinds, where=f"{stage.__qualname__}.process")
    classes = {get_origin(kind) or kind: None for kind in kinds}
    names = [kind.__name__ for kind in classes]
    for name in names:
        if names.count(name) > 1:
            raise TypeError(f"{stage.__qualname__}.process returns two classes named {name}")
    return tuple(classes)


def _collect(kind: Any, classes: dict[Any, None], *, where: str) -> None:  # noqa: ANN401 - a type
    kind = _unaliased(kind)
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if kind in _PLAIN or origin is np.ndarray or kind in classes:
        return
    if origin in _GROUPS and parts:
        for part in parts:
            if not isinstance(part, EllipsisType):
                _collect(part, classes, where=where)
    elif origin is Literal:
        for value in parts:
            _collect(type(value), classes, where=where)
    elif isinstance(origin, type) and issubclass(origin, Enum):
        classes[kind] = None
    elif isinstance(origin, type) and is_dataclass(origin):
        classes[kind] = None
        given = dict(zip(getattr(origin, "__parameters__", ()), parts, strict=False))
        hints = get_type_hints(origin)
        for field in fields(origin):
            of_field = f"{origin.__qualname__}.{field.name}"
            _collect(_filled(hints[field.name], given), classes, where=of_field)
    else:
        raise TypeError(f"{where}: {kind!r} does not say what may come out of a sandbox")


def _unaliased(kind: Any) -> Any:  # noqa: ANN401 - types
    """Returns the type that a named alias stands for; NumPy's `NDArray` is one since NumPy 2.5."""
    alias = getattr(get_origin(kind) or kind, "__value__", None)
    if alias is None:
        return kind
    parts = get_args(kind)
    return _unaliased(alias[parts] if parts else alias)


def _filled(kind: Any, given: Mapping[Any, Any]) -> Any:  # noqa: ANN401 - types
    """Returns the type of a field of a generic class, with the types that the class was given."""
    wanted = getattr(kind, "__parameters__", ())
    if kind in given:
        return given[kind]
    return kind[tuple(given.get(name, name) for name in wanted)] if wanted else kind
