"""Computes a network stored as ONNX with torch, on any of torch's devices.

torch is installed anyway; onnxruntime would be another package, and a third one for GPUs. Hashes
pin the files of the text detector and the text reader, and only the operators and attributes in
these files are supported. Graph, weights and metadata are read as messages of protocol buffers;
the rest of a file is ignored.
"""

import math
import struct
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

_Attributes = Mapping[str, Any]
_TYPES = {1: np.float32, 7: np.int64}
"""ONNX's number of an element type -> the type."""

_LEAST = 1e-30
"""Least weight. Products with smaller ones do not reach the last bit of sums."""


@dataclass(slots=True)
class _Node:
    """An operator: its kind, its attributes, and the names of its inputs and its output."""

    kind: str
    attributes: dict[str, Any]
    names: list[str]
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Predicts from an inner result for which pictures the network's output is above zero.

    A picture passes if the weighted sum of its channels is above zero anywhere.

    Attributes:
        name: Name of the inner result, [N, C, H, W].
        weight: Weights of the channels, float32 [C].
        bias: Added to the sum, float32 without axes.
    """

    name: str
    weight: Tensor
    bias: Tensor

    def passes(self, inner: Tensor) -> Tensor:
        """Returns which pictures pass, bool [N, 1, 1, 1]."""
        sums = inner.float().permute(0, 2, 3, 1) @ self.weight + self.bias
        return sums.amax((1, 2)).view(-1, 1, 1, 1) > 0


class OnnxNetwork:
    """A network with one input and one output.

    Args:
        file: Bytes of the ONNX file.
        device: torch's name of the device.
        dtype: Arithmetic of the network; its output is always float32.
        gate: Sets the output to zero for pictures that do not pass. The output must have one
            channel and the input's size. None lets all pictures pass.
    """

    def __init__(
        self,
        file: bytes,
        *,
        device: str,
        dtype: torch.dtype = torch.float32,
        gate: Gate | None = None,
    ) -> None:
        model = _fields(memoryview(file))
        graph = _fields(memoryview(model[7][0]))
        entries = map(_fields, model[14])
        self.metadata = {_text(entry[1]): _text(entry[2]) for entry in entries}
        self.dtype, self._gate = dtype, gate
        is_wide = device != "cpu" and dtype == torch.float32
        self._layout = torch.contiguous_format if is_wide else torch.channels_last
        self._weights: dict[str, Tensor] = {}
        for tensor in map(_fields, graph[5]):
            # A copy, because torch has no read-only tensors.
            values = torch.from_numpy(_array(tensor).copy()).to(device)
            if values.is_floating_point():
                # Half of some layers is below 1e-38. CPUs take up to 100 times as long with these.
                values[values.abs() < _LEAST] = 0
            self._weights[_text(tensor[8])] = self._laid_out(values)
        (self._input,) = (_text(_fields(message)[1]) for message in graph[11])
        (self._output,) = (_text(_fields(message)[1]) for message in graph[12])
        nodes = _simplified([_node(_fields(node)) for node in graph[1]], self._weights)
        self._steps = [self._step(node) for node in nodes]
        last_use = {name: i for i, (_, names, _) in enumerate(self._steps) for name in names}
        self._unused_after: dict[int, list[str]] = defaultdict(list)
        for name, i in last_use.items():
            if name not in self._weights:
                self._unused_after[i].append(name)

    def __call__(self, batch: Tensor, *, stops_early: bool = False) -> Tensor:
        """Returns the output for a batch, on the batch's device.

        With `stops_early`, the host waits for the gate, and skips the rest if no picture passes.
        """
        passes = None
        if batch.device.type == "cpu":
            # More threads would compete with other workers for cores.
            torch.set_num_threads(1)
        with torch.inference_mode():
            values = {**self._weights, self._input: self._laid_out(batch)}
            for i, (function, names, result) in enumerate(self._steps):
                values[result] = function(*(values[name] for name in names))
                if self._gate is not None and result == self._gate.name:
                    passes = self._gate.passes(values[result])
                    if stops_early and not passes.any():
                        return torch.zeros_like(batch[:, :1])
                for name in self._unused_after[i]:
                    del values[name]
            output = values[self._output].float()
            return output if passes is None else output * passes

    def _laid_out(self, values: Tensor) -> Tensor:
        if values.is_floating_point():
            values = values.to(self.dtype)
        return values.contiguous(memory_format=self._layout) if values.dim() == 4 else values

    def _step(self, node: _Node) -> tuple[Callable[..., Tensor], list[str], str]:
        attributes, names = node.attributes, node.names
        if node.kind == "Resize":
            # The last input is a constant with the factors of all four axes.
            attributes["factors"] = self._weights[names.pop()][2:].tolist()
            del names[1:]
        return partial(_OPERATORS[node.kind], attributes), names, node.result


def _node(node: Mapping[int, list[Any]]) -> _Node:
    attributes = dict(_attribute(_fields(message)) for message in node[5])
    names = [_text([name]) for name in node[1]]
    return _Node(_text(node[4]), attributes, names, _text(node[2]))


def _simplified(nodes: list[_Node], weights: dict[str, Tensor]) -> list[_Node]:
    """Drops identities, and merges biases, ReLUs and GELUs (five operators) into convolutions."""
    same: dict[str, str] = {}
    left: list[_Node] = []
    for node in nodes:
        node.names = [same.get(name, name) for name in node.names]
        kinds = [member.kind for member in (*left[-4:], node)]
        if node.kind == "Identity":
            same[node.result] = node.names[0]
        elif kinds[-2:] in (["Conv", "Add"], ["ConvTranspose", "Add"]) and node.names[1] in weights:
            weights[node.names[1]] = weights[node.names[1]].flatten()
            left[-1].names.append(node.names[1])
            left[-1].result = node.result
        elif kinds[-2:] == ["Conv", "Relu"]:
            left[-1].attributes["activation"], left[-1].result = "relu", node.result
        elif kinds == ["Div", "Erf", "Add", "Mul", "Mul"]:
            # In these networks, a GELU always follows a 1x1 convolution.
            del left[-4:]
            left[-1].attributes["activation"], left[-1].result = "gelu", node.result
        else:
            left.append(node)
    return left


def _fields(message: memoryview) -> defaultdict[int, list[Any]]:
    """Returns a message's values by field number: integers, or the bytes of other types."""
    values: defaultdict[int, list[Any]] = defaultdict(list)
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
            values[number].append(varint())
        else:
            size = {1: 8, 5: 4}[wire_type] if wire_type != 2 else varint()
            values[number].append(message[at : at + size])
            at += size
    return values


def _text(values: list[memoryview]) -> str:
    return str(values[0], "utf-8")


def _array(tensor: Mapping[int, list[Any]]) -> np.ndarray[Any, Any]:
    data = b"".join(tensor[9] or tensor[4])
    return np.frombuffer(data, _TYPES[tensor[2][0]]).reshape(tensor[1])


def _attribute(attribute: Mapping[int, list[Any]]) -> tuple[str, Any]:
    """Returns an attribute's name and value: a float, an integer, a string or integers."""
    read: dict[int, Callable[[], Any]] = {
        1: lambda: struct.unpack("<f", attribute[2][0])[0],
        2: lambda: attribute[3][0],
        3: lambda: _text(attribute[4]),
        # Negative integers are stored as 64-bit two's complement.
        7: lambda: [value - (value >> 63 << 64) for value in attribute[8]],
    }
    return _text(attribute[1]), read[attribute[20][0]]()


def _padding(attributes: _Attributes) -> tuple[int, int, int, int]:
    """Returns torch's padding of the last two axes: left, right, top, bottom."""
    if attributes.get("auto_pad") == "SAME_UPPER":
        # Operators with this attribute have a stride of 1.
        height, width = (size - 1 for size in attributes["kernel_shape"])
        return width // 2, width - width // 2, height // 2, height - height // 2
    top, left, bottom, right = attributes["pads"]
    return left, right, top, bottom


def _convolution(
    attributes: dict[str, Any], x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Returns a convolution, with the activation that `_simplified` merged into it."""
    left, right, top, bottom = _padding(attributes)
    if (left, top) != (right, bottom):
        x, top, left = functional.pad(x, (left, right, top, bottom)), 0, 0
    strides, groups = attributes["strides"], attributes["group"]
    activation = attributes.get("activation", "none")
    if not _fuses(x) or (x.dtype == torch.float32 and activation != "gelu"):
        # In float32, one pass for both takes no less time, and may change last bits.
        y = functional.conv2d(x, weight, bias, strides, (top, left), groups=groups)
        return _ACTIVATIONS[activation](y)
    # One pass for both, because a separate GELU takes as long as the convolution.
    if activation == "gelu":
        product: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise
        pixels, kernel = x.permute(0, 2, 3, 1), weight.flatten(1)
        return product(pixels, kernel, bias, "gelu", [], "none").permute(0, 3, 1, 2)
    geometry = (top, left), strides, (1, 1), groups
    if "packed" not in attributes:
        # In the layout that is fastest for this size, and serves all sizes.
        pack = torch.ops.mkldnn._reorder_convolution_weight
        attributes["packed"] = pack(weight, *geometry, x.shape)
    convolve: Callable[..., Tensor] = torch.ops.mkldnn._convolution_pointwise
    return convolve(x, attributes["packed"], bias, *geometry, activation, [], "")


def _fuses(x: Tensor) -> bool:
    """Returns whether oneDNN computes a convolution and an activation of these numbers at once."""
    if x.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return x.dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _largest_of_four(attributes: _Attributes, x: Tensor) -> Tensor:
    # torch's max pooling takes 5 to 30 times as long on CPUs. A ReLU precedes it, and numbers that
    # are not negative have the order of their bits, which are compared faster than bfloat16.
    bits = x.view(torch.int16 if x.element_size() == 2 else torch.int32)
    bits = functional.pad(bits, _padding(attributes))
    bits = torch.maximum(bits[:, :, 1:], bits[:, :, :-1])
    return torch.maximum(bits[..., 1:], bits[..., :-1]).view(x.dtype)


def _hard_sigmoid(attributes: _Attributes, x: Tensor) -> Tensor:
    # torch's function has a slope of 1/6.
    factor = 6 * attributes["alpha"]
    return functional.hardsigmoid(x if math.isclose(factor, 1, rel_tol=1e-6) else factor * x)


def _part(
    _: _Attributes, x: Tensor, begin: Tensor, end: Tensor, axis: Tensor, *_steps: Tensor
) -> Tensor:
    return x[(slice(None),) * int(axis) + (slice(int(begin), int(end)),)]


def _reshaped(_: _Attributes, x: Tensor, shape: Tensor) -> Tensor:
    # A size of 0 keeps the axis.
    return x.reshape([size or x.shape[axis] for axis, size in enumerate(shape.tolist())])


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu_,
    "gelu": functional.gelu,
}
_OPERATORS: dict[str, Callable[..., Tensor]] = {
    "Add": lambda _, x, y: x + y,
    "AveragePool": lambda at, x: functional.avg_pool2d(x, at["kernel_shape"], at["strides"]),
    "BatchNormalization": lambda at, x, gain, shift, mean, variance: functional.batch_norm(
        x, mean, variance, gain, shift, eps=at["epsilon"]
    ),
    "Concat": lambda at, *parts: torch.cat(parts, at["axis"]),
    "Conv": _convolution,
    "ConvTranspose": lambda at, x, weight, bias=None: functional.conv_transpose2d(
        x, weight, bias, at["strides"], groups=at["group"]
    ),
    "Div": lambda _, x, y: x / y,
    "GlobalAveragePool": lambda _, x: x.mean((2, 3), keepdim=True),
    "HardSigmoid": _hard_sigmoid,
    "MatMul": lambda _, x, y: x @ y,
    "MaxPool": _largest_of_four,
    "Mul": lambda _, x, y: x * y,
    "Pow": lambda _, x, y: x.pow(y),
    "ReduceMean": lambda at, x: x.mean(at["axes"], keepdim=True),
    "Relu": lambda _, x: x.relu(),
    "Reshape": _reshaped,
    "Resize": lambda at, x: functional.interpolate(x, scale_factor=at["factors"], mode="nearest"),
    "Shape": lambda _, x: torch.tensor(x.shape),
    "Sigmoid": lambda _, x: x.sigmoid(),
    "Slice": _part,
    "Softmax": lambda at, x: x.softmax(at["axis"]),
    "Sqrt": lambda _, x: x.sqrt(),
    "Squeeze": lambda at, x: torch.squeeze(x, at["axes"]),
    "Sub": lambda _, x, y: x - y,
    "Transpose": lambda at, x: x.permute(at["perm"]),
    "Unsqueeze": lambda at, x: x.unsqueeze(at["axes"][0]),
}
