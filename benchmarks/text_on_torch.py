#!/usr/bin/env python3
"""Compares the text detector on torch (CPU) with onnxruntime: agreement, CPU time, time to load.

    text_on_torch.py FILE... [--every-s 1] [--most 20]

A GPU computes the network by torch. Its convolutions round their inputs to 10 bits (TF32), which
the third row does too, on the CPU. It also counts torch's operators that a batch starts, as it is
and besides a CUDA graph's, and times the reading of lines off the maps.
"""

import argparse
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from measure import machine
from numpy.typing import NDArray
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from curator.models.device_text import DeviceTextDetector
from curator.models.text_detector import TextDetector, lines_of

_TF32_BITS = 13
"""Bits of a float32 that TF32 lacks."""


def pictures_of(path: Path, every_s: float, most: int) -> list[NDArray[np.uint8]]:
    """A file's pictures, one in so many seconds."""
    found: list[NDArray[np.uint8]] = []
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            if frame.time is not None and frame.time >= len(found) * every_s:
                found.append(frame.to_ndarray(format="rgb24"))
            if len(found) == most:
                break
    return found


def rounded(values: torch.Tensor) -> torch.Tensor:
    """Values to the nearest of TF32."""
    bits = values.view(torch.int32) + (1 << _TF32_BITS - 1)
    return (bits >> _TF32_BITS << _TF32_BITS).view(torch.float32)


@contextlib.contextmanager
def tf32() -> Iterator[None]:
    """Lets networks that are loaded here, and computed here, convolve as with TF32."""
    real = functional.conv2d

    def conv2d(x: torch.Tensor, weight: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:  # noqa: ANN401
        return real(rounded(x.contiguous()), rounded(weight), *rest, **options)

    functional.conv2d = conv2d
    try:
        yield
    finally:
        functional.conv2d = real


class Started(TorchDispatchMode):
    """Counts operators that compute something: on a GPU each is a kernel, or a few."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        self.n += not func.is_view and func.overloadpacket.__name__ not in ("empty", "detach")
        return func(*args, **(kwargs or {}))


def n_started(detector: DeviceTextDetector, picture: NDArray[np.uint8]) -> dict[str, int]:
    """Operators of a batch of two: all, and those besides the graph's."""
    batch = torch.from_numpy(np.stack([picture] * 2))
    found = {}
    for name in ("without a graph", "besides a graph"):
        with Started() as started:
            maps = detector.maps(batch)
        found[name] = started.n

        def graph(shape: Any, maps: torch.Tensor = maps) -> Any:  # noqa: ANN401
            given = torch.zeros(shape)
            return lambda levels: given.copy_(levels) is not None and maps

        detector._graph = graph
    detector._graph = None
    return found


def main() -> None:
    """Prints a row for each way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--every-s", type=float, default=1.0)
    parser.add_argument("--most", type=int, default=20, help="pictures of a file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pictures = [one for path in options.files
                for one in pictures_of(path, options.every_s, options.most)]  # fmt: skip
    loads_s = {}
    detectors = []
    for name, device in (("onnxruntime", None), ("torch", "cpu")):
        # The second time counts: the first imports the package.
        TextDetector(torch_device=device).probability(pictures[0])
        begun_s = time.process_time()
        detectors.append(TextDetector(torch_device=device))
        loads_s[name] = time.process_time() - begun_s
    onnx, by_torch = detectors
    with tf32():
        rough = TextDetector(torch_device="cpu")

    def by_tf32(picture: NDArray[np.uint8]) -> NDArray[np.float32]:
        with tf32():
            return rough.probability(picture)

    ways = {
        "onnxruntime": onnx.probability,
        "torch": by_torch.probability,
        "torch, as TF32": by_tf32,
    }
    rows: dict[str, dict[str, float]] = {}
    expected = [onnx.probability(picture) for picture in pictures]
    boxes = [lines_of(one) for one in expected]
    for name, probability in ways.items():
        begun_s = time.process_time()
        found = [probability(picture) for picture in pictures]
        cpu_ms = 1e3 * (time.process_time() - begun_s) / len(pictures)
        maps = [np.rint(one * 255).astype(np.uint8) for one in found]
        begun_s = time.process_time()
        for one in maps:
            lines_of(one)
        bytes_ms = 1e3 * (time.process_time() - begun_s) / len(pictures)
        begun_s = time.process_time()
        lines = [lines_of(one) for one in found]
        lines_ms = 1e3 * (time.process_time() - begun_s) / len(pictures)
        same = [len(a) == len(b) for a, b in zip(lines, boxes, strict=True)]
        moved = [
            float(np.abs(a[:, :4] - b[:, :4]).max())
            for a, b, is_same in zip(lines, boxes, same, strict=True)
            if is_same and len(a)
        ]
        rows[name] = {
            "load_s": round(loads_s.get(name, 0), 3),
            "cpu_ms": round(cpu_ms, 1),
            "lines_ms": round(lines_ms, 3),
            "lines_of_bytes_ms": round(bytes_ms, 3),
            "probability_off": max(
                float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True)
            ),
            "pictures_with_other_count": len(same) - sum(same),
            "boxes_off": max(moved, default=0.0),
        }
    n_lines = sum(map(len, boxes))
    assert by_torch.on_device is not None
    operators = n_started(by_torch.on_device, pictures[0])
    print("operators of a batch:", operators)
    print(f"{len(pictures)} pictures of {len(options.files)} files, {n_lines} lines of text")
    for name, row in rows.items():
        print(f"{name:15s}", row)
    print(
        json.dumps(
            {
                "machine": machine(),
                "pictures": len(pictures),
                "lines": n_lines,
                "operators": operators,
            }
            | rows
        )
    )


if __name__ == "__main__":
    main()
