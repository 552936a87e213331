"""Sweeps of which `make test` runs a sample, and `make test-long` the rest."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def sampled(values: Iterable[Any], sample: Collection[Any]) -> list[Any]:
    """Parameters of a test: those that are not of the sample have the mark `long`."""
    sweep = list(values)
    assert 0 < len(sample) < len(sweep)
    assert all(value in sweep for value in sample)
    return [value if value in sample else _long(value) for value in sweep]


def _long(value: Any) -> object:  # noqa: ANN401
    parts = value if isinstance(value, tuple) else (value,)
    return pytest.param(*parts, marks=pytest.mark.long)
