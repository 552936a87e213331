"""Optical flow on a GPU's engine, where there is one; and what is said where there is none."""

from typing import Any

import numpy as np
import pytest
import torch
from film_shots import texture
from numpy.typing import NDArray

from curator.errors import CuratorError
from curator.measures.motion import DenseFlow
from curator.media.hardware_flow import GRID_PX, HardwareFlow


class Engine:
    """Stands for DALI's pipeline: vectors of the second frame, leading to the first."""

    def __init__(self, flow: HardwareFlow, *, order: tuple[int, int] = (1, 0)) -> None:
        self.shown: list[NDArray[np.uint8]] = []
        self._flow, self._order = flow, order

    def run(self) -> tuple[Any]:
        pair = self._flow._pair_FHWC
        assert pair is not None
        self.shown.append(pair)
        frames = [np.ascontiguousarray(pair[i, :, :, 0]) for i in self._order]
        self._vectors = DenseFlow().between(*frames)
        return (self,)

    def as_cpu(self) -> "Engine":
        return self

    def at(self, sample: int) -> NDArray[np.float32]:
        assert sample == 0
        assert self._vectors is not None
        # The middle of each cell, and a last cell that reaches over the edge.
        padded = np.pad(self._vectors, ((0, GRID_PX - 1), (0, GRID_PX - 1), (0, 0)), mode="edge")
        height, width = (-(-side // GRID_PX) * GRID_PX for side in self._vectors.shape[:2])
        cells = padded[:height, :width]
        return cells[GRID_PX // 2 :: GRID_PX, GRID_PX // 2 :: GRID_PX][None]


def test_without_a_gpu_it_is_said_what_to_do() -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    with pytest.raises(CuratorError, match=r"set analyze\.flow to dis"):
        HardwareFlow()


@pytest.mark.parametrize("size", [(180, 320), (181, 318), (60, 320)])
def test_the_engine_is_given_colours_and_the_later_picture_first(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    """Pins DALI's direction, and that gray goes in as three channels: it mishandles one."""
    engines: list[Engine] = []

    def built(flow: HardwareFlow) -> Engine:
        engines.append(Engine(flow))
        return engines[-1]

    monkeypatch.setattr(HardwareFlow, "_built", built)
    height, width = size
    whole = texture(3, width_px=400, height_px=260).mean(axis=2).astype(np.uint8)
    before = whole[40 : 40 + height, 40 : 40 + width]
    after = whole[36 : 36 + height, 37 : 37 + width]
    found = HardwareFlow().between(before, after)
    assert found is not None
    assert (found.shape, found.dtype) == ((*size, 2), np.float32)
    assert np.median(found[20:-20, 20:-20], axis=(0, 1)) == pytest.approx((3, 4), abs=0.2)
    shown = engines[0].shown[-1]
    assert shown.shape == (2, max(128, height), width, 3)
    assert (shown[0, :height] == after[..., None]).all()
    assert (shown[1, :height] == before[..., None]).all()
    assert (shown[:, height:] == shown[:, height - 1 : height]).all()


def test_an_engine_that_sees_another_motion_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HardwareFlow, "_built", lambda flow: Engine(flow, order=(0, 1)))
    with pytest.raises(CuratorError, match=r"motion of \(8, 4\) pixels as \(-8\.0"):
        HardwareFlow()


@pytest.mark.needs_gpu
@pytest.mark.parametrize("shift", [(0, 0), (3, 0), (-5, 2), (0, 8)])
def test_the_engine_sees_the_motion_that_dis_sees(shift: tuple[int, int]) -> None:
    whole = texture(3, width_px=400, height_px=260).mean(axis=2).astype(np.uint8)
    x, y = shift
    before = whole[40:220, 40:360]
    after = whole[40 - y : 220 - y, 40 - x : 360 - x]
    flow = HardwareFlow().between(before, after)
    dis = DenseFlow().between(before, after)
    assert flow is not None
    assert dis is not None
    assert flow.shape == dis.shape
    inner = flow[20:-20, 20:-20]
    assert np.median(inner, axis=(0, 1)) == pytest.approx(shift, abs=0.5)
    assert np.median(np.abs(inner - dis[20:-20, 20:-20])) < 0.5
