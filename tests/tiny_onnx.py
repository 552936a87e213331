"""Writes small networks in ONNX, as messages of protocol buffers, without the package `onnx`."""

from collections.abc import Sequence
from pathlib import Path

FLOAT, INTS, INT = 1, 7, 2


def _number(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _number(number << 3) + _number(value)
    data = value.encode() if isinstance(value, str) else value
    return _number(number << 3 | 2) + _number(len(data)) + data


def node(kind: str, inputs: Sequence[str], output: str, axes: Sequence[int] = ()) -> bytes:
    """An operator; `axes` makes it a reduction that drops these axes."""
    message = b"".join(_field(1, name) for name in inputs) + _field(2, output) + _field(4, kind)
    if axes:
        numbers = b"".join(_field(8, axis) for axis in axes)
        message += _field(5, _field(1, "axes") + numbers + _field(20, INTS))
        message += _field(5, _field(1, "keepdims") + _field(3, 0) + _field(20, INT))
    return _field(1, message)


def _tensor(name: str, shape: Sequence[int | str]) -> bytes:
    sizes = b"".join(_field(1, _field(1 if isinstance(n, int) else 2, n)) for n in shape)
    return _field(1, name) + _field(2, _field(1, _field(1, FLOAT) + _field(2, sizes)))


def save_onnx(
    path: Path, nodes: Sequence[bytes], *, shape: Sequence[int | str], outputs: Sequence[int | str]
) -> Path:
    """Saves a network from `x` of a shape to `y`; a text in a shape is a free axis."""
    graph = b"".join(nodes) + _field(2, "g")
    graph += _field(11, _tensor("x", shape)) + _field(12, _tensor("y", outputs))
    path.write_bytes(_field(1, 8) + _field(8, _field(2, 13)) + _field(7, graph))
    return path
