"""Serializes values so that reading them runs no code: JSON, followed by arrays and bytes.

A sandbox answers in this form, because unpickling would let an attacker who controls the sandbox
run code in its parent. The reader makes only records and enumerations of given classes. For a
stage, `result_classes` derives these classes from the return type of the stage's `process`.
"""

import json
import struct
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

_KINDS = "biufc"
"""Numeric kinds of NumPy arrays."""
_SCALARS = (NoneType, bool, int, float, str, bytes, Fraction)
_CONTAINERS = (list, tuple, set, frozenset, dict, Mapping, Sequence, Union, UnionType)


def to_bytes(value: object) -> bytes:
    """Returns a value as bytes, for `from_bytes`.

    Args:
        value: Numbers, text, bytes, arrays of numbers, fractions, enumerations and records (data
            classes), in lists, tuples, sets and mappings.

    Raises:
        TypeError: The value holds anything else.
    """
    buffers: list[bytes | memoryview] = []
    head = json.dumps(_plain(value, buffers)).encode()
    sizes = [len(buffer) for buffer in buffers]
    return b"".join(
        (struct.pack(f"<QQ{len(sizes)}Q", len(head), len(sizes), *sizes), head, *buffers)
    )


def from_bytes(data: bytes, records: Sequence[type] = ()) -> Any:  # noqa: ANN401
    """Returns the value in bytes of `to_bytes`.

    Args:
        data: Untrusted bytes.
        records: Data classes and enumerations that the value may hold.

    Raises:
        ValueError: The bytes hold no such value, or name another class.
    """
    try:
        n_head, n_buffers = struct.unpack_from("<QQ", data)
        sizes = struct.unpack_from(f"<{n_buffers}Q", data, 16)
        start = 16 + 8 * n_buffers
        head = json.loads(data[start : start + n_head])
        buffers, at = [], start + n_head
        for size in sizes:
            buffers.append(memoryview(data)[at : at + size])
            at += size
        return _value(head, buffers, {record.__name__: record for record in records})
    except (
        struct.error,
        KeyError,
        TypeError,
        IndexError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise ValueError(f"not a plain value: {type(error).__name__}: {error}") from error


def _plain(value: Any, buffers: list[bytes | memoryview]) -> Any:  # noqa: ANN401
    """Returns a value for JSON: types that JSON lacks become lists of a kind and parts."""
    if isinstance(value, Enum):
        return ["enum", type(value).__name__, value.value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        buffers.append(value)
        return ["bytes", len(buffers) - 1]
    if isinstance(value, np.generic):
        return _plain(value.item(), buffers)
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in _KINDS:
            raise TypeError(f"an array of {value.dtype} is not numeric")
        buffers.append(value.tobytes())
        return ["array", value.dtype.str, value.shape, len(buffers) - 1]
    if isinstance(value, Fraction):
        return ["fraction", value.numerator, value.denominator]
    if isinstance(value, list | tuple | set | frozenset):
        return [type(value).__name__, [_plain(item, buffers) for item in value]]
    if isinstance(value, Mapping):
        pairs = [[_plain(k, buffers), _plain(v, buffers)] for k, v in value.items()]
        return ["dict", pairs]
    if is_dataclass(value):
        parts = {f.name: _plain(getattr(value, f.name), buffers) for f in fields(value)}
        return ["record", type(value).__name__, parts]
    raise TypeError(f"{type(value).__name__} is not a plain value")


_GROUPS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def _value(
    plain: Any,  # noqa: ANN401
    buffers: Sequence[memoryview],
    records: Mapping[str, type],
) -> Any:  # noqa: ANN401
    if not isinstance(plain, list):
        return plain
    kind, *parts = plain
    match kind:
        case "enum":
            return records[parts[0]](parts[1])
        case "bytes":
            return bytes(buffers[parts[0]])
        case "array":
            dtype = np.dtype(parts[0])
            if dtype.kind not in _KINDS:
                raise TypeError(f"an array of {dtype} is not numeric")
            # A copy, because the array must be writable.
            return np.frombuffer(buffers[parts[2]], dtype).reshape(parts[1]).copy()
        case "fraction":
            if not all(type(part) is int for part in parts):
                # Parsing text such as 1e999999999 would take hours.
                raise TypeError(f"a fraction of {parts!r:.40}")
            return Fraction(*parts)
        case "dict":
            return {_value(k, buffers, records): _value(v, buffers, records) for k, v in parts[0]}
        case "record":
            own = {name: _value(part, buffers, records) for name, part in parts[1].items()}
            return records[parts[0]](**own)
        case _:
            return _GROUPS[kind](_value(item, buffers, records) for item in parts[0])


@cache
def result_classes(stage: type[Stage[Any, Any, Any]]) -> tuple[type, ...]:
    """Returns the data classes and enumerations in a stage's results and in `Failure`.

    Raises:
        TypeError: The return type of `process` contains a type that is not plain or not specific,
            such as `object`, `Any` or a bare `list`; or two classes have the same name.
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
    if kind in _SCALARS or origin is np.ndarray or kind in classes:
        return
    if origin in _CONTAINERS and parts:
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
        raise TypeError(f"{where}: {kind!r} is not a specific type that may leave a sandbox")


def _unaliased(kind: Any) -> Any:  # noqa: ANN401 - types
    """Resolves a named alias of a type; `NDArray` is such an alias since NumPy 2.5."""
    alias = getattr(get_origin(kind) or kind, "__value__", None)
    if alias is None:
        return kind
    parts = get_args(kind)
    return _unaliased(alias[parts] if parts else alias)


def _filled(kind: Any, given: Mapping[Any, Any]) -> Any:  # noqa: ANN401 - types
    """Returns a field's type with the type arguments of its generic class filled in."""
    wanted = getattr(kind, "__parameters__", ())
    if kind in given:
        return given[kind]
    return kind[tuple(given.get(name, name) for name in wanted)] if wanted else kind
