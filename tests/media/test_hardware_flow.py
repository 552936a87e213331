"""Optical flow on a GPU's engine, where there is one; and what is said where there is none."""

import numpy as np
import pytest
import torch

from curator.errors import CuratorError
from curator.footage.pictures import texture
from curator.media.hardware_flow import HardwareFlow
from curator.signals.motion import DenseFlow


def test_without_a_gpu_it_is_said_what_to_do() -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    with pytest.raises(CuratorError, match=r"set analyze\.flow to dis"):
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
