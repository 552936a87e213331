"""Networks of ONNX files on torch; `test_text_detector.py` compares the real one."""

import pytest

from curator.errors import ModelError
from curator.models.onnx_network import OnnxNetwork


def field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


def network(operator: bytes, *attributes: bytes) -> bytes:
    """The file of a network of one operator, from x to y."""
    node = field(1, b"x") + field(2, b"y") + field(4, operator)
    node += b"".join(field(5, attribute) for attribute in attributes)
    return field(7, field(1, node) + field(11, field(1, b"x")) + field(12, field(1, b"y")))


def test_an_unknown_operator_is_named() -> None:
    with pytest.raises(ModelError, match=r"operator Softmax \{\} is not known"):
        OnnxNetwork(network(b"Softmax"), device="cpu")


def test_an_unknown_attribute_of_an_operator_is_named() -> None:
    number = field(1, b"axis") + b"\x18\x01\xa0\x01\x02"
    with pytest.raises(ModelError, match=r"operator Relu \{'axis': 1\} is not known"):
        OnnxNetwork(network(b"Relu", number), device="cpu")
