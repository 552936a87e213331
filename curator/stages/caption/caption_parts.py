"""Runs a model over captions in workers, and stores what it computes in parts of one kind."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from curator.executor.attempts import CpuClock
from curator.executor.engine import Engine
from curator.executor.unit_worker import UnitResult
from curator.executor.worker import Step
from curator.stage import Resources
from curator.tables.parts import Parts

Compute = Callable[[Sequence[Any]], pa.Table]
"""Returns a row for each item; the first column is its key. Several processes call it."""


class _PartStep:
    def __init__(self, *, compute: Compute, parts: Parts, task: str) -> None:
        self._compute = compute
        self._parts = parts
        self._task = task
        self._clock = CpuClock()

    def __call__(self, unit: Sequence[Any]) -> UnitResult[str]:
        """Stores the rows of a unit as one part; returns its name."""
        spent = self._clock.begin()
        table = self._compute(unit)
        # One vector must be readable without the others.
        one_row_groups = pa.binary() in table.schema.types
        keys = table.column(0).to_pylist()
        part = self._parts.write(table, keys, one_row_groups=one_row_groups)
        return UnitResult(results=part, cpu_s=self._clock.end(spent, rest=self._task))


def torch_refusal() -> str | None:
    """Returns why a model cannot use the GPU that this process holds, or None."""
    import torch

    if torch.cuda.is_available():
        return None
    return f"torch {torch.__version__} sees no GPU; `curate doctor` says why"


def make_parts(
    items: Sequence[Any],
    compute: Compute,
    parts: Parts,
    engine: Engine,
    *,
    task: str,
    most: int,
    resources: Resources,
) -> Iterator[UnitResult[str]]:
    """Yields the parts of `items`, `most` in each; `task` names the CPU-seconds of workers."""
    units = [items[start : start + most] for start in range(0, len(items), most)]
    if units:
        settings = {"compute": compute, "parts": parts, "task": task}
        step = Step(make=_PartStep, settings=settings, resources=resources, keeps_state=True)
        small = not resources.gpus and engine.is_small(len(units), 0.0)
        check = torch_refusal if resources.gpus else None
        yield from engine.run([step], units, small=small, check=check)
