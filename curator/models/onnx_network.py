"""Computes a network that is stored as ONNX with torch, on any of torch's devices.

onnxruntime computes on GPUs by another wheel, which overwrites files of the one for CPUs; torch is
installed in any case. Only the operators of the text detector are known. Of the file only the graph
and the weights are read, which are messages of protocol buffers.
"""

import math
import struct
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from curator.errors import ModelError

_Attributes = Mapping[str, Any]
_Step = tuple[Callable[..., Tensor], list[str], str]
_TYPES = {1: np.float32, 7: np.int64}
"""ONNX's numbers of the types of elements."""


class OnnxNetwork:
    """A network with one input and one output.

    Args:
        file: The ONNX file's bytes.
        device: Where torch computes it.

    Raises:
        ModelError: It has an operator, or an attribute, that is not known here.
    """

    def __init__(self, file: bytes, *, device: str) -> None:
        graph = _fields(memoryview(_fields(memoryview(file))[7][0]))
        self._weights: dict[str, Tensor] = {}
        for tensor in map(_fields, graph[5]):
            # Copied, because torch has no tensors that may not be written to.
            values = torch.from_numpy(_array(tensor).copy())
            self._weights[_text(tensor[8])] = values.to(device)
        (self._input,) = (_text(_fields(one)[1]) for one in graph[11])
        (self._output,) = (_text(_fields(one)[1]) for one in graph[12])
        self._steps = [self._step(_fields(node)) for node in graph[1]]
        last_use = {name: i for i, (_, names, _) in enumerate(self._steps) for name in names}
        self._unused_after: dict[int, list[str]] = defaultdict(list)
        for name, i in last_use.items():
            if name not in self._weights:
                self._unused_after[i].append(name)

    def __call__(self, batch: Tensor) -> Tensor:
        """Returns the output for a batch, on whose device it is."""
        values = {**self._weights, self._input: batch}
        with torch.inference_mode():
            for i, (function, names, result) in enumerate(self._steps):
                values[result] = function(*(values[name] for name in names))
                for name in self._unused_after[i]:
                    del values[name]
        return values[self._output]

    def _step(self, node: Mapping[int, list[Any]]) -> _Step:
        kind = _text(node[4])
        attributes = dict(_attribute(_fields(one)) for one in node[5])
        names = [_text([name]) for name in node[1]]
        if kind == "Resize":
            # The last input is a constant: factors of all four axes.
            attributes["factors"] = self._weights[names.pop()][2:].tolist()
            del names[1:]
        try:
            function = _WITH_ATTRIBUTES[kind](attributes) if attributes else _PLAIN[kind]
        except (KeyError, ValueError) as error:
            raise ModelError(f"the ONNX operator {kind} {attributes} is not known") from error
        return function, names, _text(node[2])


def _fields(message: memoryview) -> defaultdict[int, list[Any]]:
    """Returns a message's values by field number: integers, and bytes of all other types."""
    found: defaultdict[int, list[Any]] = defaultdict(list)
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                return value

    while at < len(message):
        number, wire_type = divmod(varint(), 8)
        if wire_type == 0:
            found[number].append(varint())
        else:
            size = {1: 8, 5: 4}[wire_type] if wire_type != 2 else varint()
            found[number].append(message[at : at + size])
            at += size
    return found


def _text(values: list[memoryview]) -> str:
    return str(values[0], "utf-8")


def _array(tensor: Mapping[int, list[Any]]) -> np.ndarray[Any, Any]:
    data = b"".join(tensor[9] or tensor[4])
    return np.frombuffer(data, _TYPES[tensor[2][0]]).reshape(tensor[1])


def _attribute(attribute: Mapping[int, list[Any]]) -> tuple[str, Any]:
    """Returns an attribute's name and value: a float, an integer, a text or integers."""
    read: dict[int, Callable[[], Any]] = {
        1: lambda: struct.unpack("<f", attribute[2][0])[0],
        2: lambda: attribute[3][0],
        3: lambda: _text(attribute[4]),
        7: lambda: attribute[8],
    }
    return _text(attribute[1]), read[attribute[20][0]]()


def _pads(attributes: dict[str, Any]) -> tuple[int, int, int, int]:
    """Returns torch's padding of the last two axes: left, right, top, bottom."""
    if attributes.pop("auto_pad", None) == "SAME_UPPER":
        if attributes["strides"] != [1, 1]:
            raise ValueError
        height, width = (size - 1 for size in attributes["kernel_shape"])
        return width // 2, width - width // 2, height // 2, height - height // 2
    top, left, bottom, right = attributes.pop("pads")
    return left, right, top, bottom


def _convolution(attributes: dict[str, Any]) -> Callable[..., Tensor]:
    pads = left, right, top, bottom = _pads(attributes)
    options = {"stride": attributes["strides"], "dilation": attributes["dilations"],
               "groups": attributes["group"]}  # fmt: skip
    if (left, top) == (right, bottom):
        return partial(functional.conv2d, padding=(top, left), **options)
    return lambda x, *weights: functional.conv2d(functional.pad(x, pads), *weights, **options)


def _transposed_convolution(attributes: dict[str, Any]) -> Callable[..., Tensor]:
    if any(_pads(attributes)) or attributes["dilations"] != [1, 1]:
        raise ValueError
    stride, groups = attributes["strides"], attributes["group"]
    return partial(functional.conv_transpose2d, stride=stride, groups=groups)


def _largest(attributes: dict[str, Any]) -> Callable[..., Tensor]:
    pads, size, stride = _pads(attributes), attributes["kernel_shape"], attributes["strides"]
    if attributes["ceil_mode"]:
        raise ValueError
    lowest = float("-inf")
    return lambda x: functional.max_pool2d(functional.pad(x, pads, value=lowest), size, stride)


def _resized(attributes: dict[str, Any]) -> Callable[..., Tensor]:
    factors = attributes.pop("factors")
    if set(attributes.values()) != {"nearest", "asymmetric", "floor"}:
        raise ValueError
    return partial(functional.interpolate, scale_factor=factors, mode="nearest")


def _hard_sigmoid(attributes: dict[str, Any]) -> Callable[..., Tensor]:
    # Torch's has a slope of a sixth.
    factor = 6 * attributes["alpha"]
    if attributes["beta"] != 0.5:
        raise ValueError
    if math.isclose(factor, 1, rel_tol=1e-6):
        return functional.hardsigmoid
    return lambda x: functional.hardsigmoid(factor * x)


def _joined(attributes: dict[str, Any]) -> Callable[..., Tensor]:
    return lambda *parts: torch.cat(parts, attributes["axis"])


def _mean(attributes: dict[str, Any]) -> Callable[..., Tensor]:
    if attributes["keepdims"] != 1:
        raise ValueError
    return partial(torch.mean, dim=attributes["axes"], keepdim=True)


_PLAIN: dict[str, Callable[..., Tensor]] = {
    "Add": torch.add,
    "Div": torch.div,
    "Erf": torch.erf,
    "GlobalAveragePool": partial(torch.mean, dim=(2, 3), keepdim=True),
    "Identity": torch.Tensor.detach,
    "Mul": torch.mul,
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
}
_WITH_ATTRIBUTES: dict[str, Callable[[dict[str, Any]], Callable[..., Tensor]]] = {
    "Concat": _joined,
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "HardSigmoid": _hard_sigmoid,
    "MaxPool": _largest,
    "ReduceMean": _mean,
    "Resize": _resized,
}
