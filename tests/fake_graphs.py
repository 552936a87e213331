"""Stands for CUDA graphs where there is no GPU.

What torch computes within a capture is computed again by each replay, from the same tensors and
into the same ones. As on a GPU, a capture fails where the host reads a value.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class CUDAGraph:
    """What was computed, in order: a function, its arguments, its result."""

    def __init__(self) -> None:
        self.steps: list[tuple[Callable[..., Any], Any, Any, Any]] = []
        self.n_replays = 0

    def replay(self) -> None:
        """Computes it again."""
        self.n_replays += 1
        for function, args, options, made in self.steps:
            again = function(*args, **options)
            if isinstance(made, torch.Tensor) and again.data_ptr() != made.data_ptr():
                made.copy_(again)


class _Capture(TorchDispatchMode):
    def __init__(self, graph: CUDAGraph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: Any = (),  # noqa: ANN401
        kwargs: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        made = func(*args, **(kwargs or {}))
        self._graph.steps.append((func, args, kwargs or {}, made))
        return made


class Graphs:
    """Takes the place of `torch.cuda` in so far as graphs need it.

    Attributes:
        made: All graphs, with the options of their captures.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[CUDAGraph] = []
        self.options: list[dict[str, Any]] = []
        stream = type("Stream", (), {"__init__": lambda *_: None, "wait_stream": lambda *_: None})
        for name, value in {
            "CUDAGraph": CUDAGraph,
            "graph": self._graph,
            "graph_pool_handle": object,
            "Stream": stream,
            "stream": lambda _: nullcontext(),
            "current_stream": lambda _: stream(),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def _graph(self, graph: CUDAGraph, **options: Any) -> _Capture:  # noqa: ANN401
        self.made.append(graph)
        self.options.append(options)
        return _Capture(graph)
