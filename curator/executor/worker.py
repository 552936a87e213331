"""Chains of steps, and the worker that runs one: what the engine sends to other processes."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from curator.errors import CuratorError
from curator.tables.parts import leave_pandas_out

WORKER_BYTES = 2 << 30
"""Memory that a worker may need: torch and the network 1.0 GB, with 1080p 1.4, with 8K 1.7."""

SERVED_BYTES = 3 << 30
"""The same of a worker that serves one chain after another: one that analyzed 1080p and then copied
clips of it took 2.5 GB, because what analysis took is not all given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one worker of a step takes."""

    cpus: float
    memory_bytes: int = WORKER_BYTES
    gpus: float = 0.0


ONE_CORE = Resources(cpus=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a chain.

    Args:
        make: Class whose instances take a unit and give a result; made once per worker.
        settings: Keyword arguments of `make`.
        resources: What a worker takes.
        keeps_state: Whether workers hold a model and are worth keeping; else any process serves.
    """

    make: type
    settings: dict[str, Any] = field(default_factory=dict)
    resources: Resources
    keeps_state: bool = False


Chain = Sequence[Step]


def pack_chain(steps: Chain) -> bytes:
    """A chain as bytes, which `ChainWorker` makes."""
    return pickle.dumps([(step.make, step.settings) for step in steps])


class ChainWorker:
    """A chain in a process: units and results are pickled bytes."""

    def __init__(self, packed: bytes) -> None:
        self._steps: list[Any] = []
        self._error: CuratorError | None = None
        leave_pandas_out()
        try:
            self._steps = [make(**settings) for make, settings in pickle.loads(packed)]
        except CuratorError as error:
            # Ray tells of an actor that could not be made, and not why.
            self._error = error

    def run(self, unit: bytes) -> bytes:
        """Runs one unit; an error of this package is the result."""
        if self._error is not None:
            return pickle.dumps(self._error)
        result = pickle.loads(unit)
        try:
            for step in self._steps:
                result = step(result)
        except CuratorError as error:
            # Ray would raise an error of its own with this one's text in a page of traceback.
            result = error
        return pickle.dumps(result)


_kept: dict[bytes, ChainWorker] = {}


def call_chain(packed: bytes, unit: bytes) -> bytes:
    """Runs a chain in this process, which keeps it until it is given another one."""
    if packed not in _kept:
        _kept.clear()
        _kept[packed] = ChainWorker(packed)
    return _kept[packed].run(unit)


class Worker:
    """A Ray process that keeps a chain: that of its last unit, so that it may serve the next."""

    def ready(self) -> None:
        """Answers when the process is up."""

    def run(self, packed: bytes, unit: bytes) -> bytes:
        """Runs one unit through a chain."""
        return call_chain(packed, unit)
