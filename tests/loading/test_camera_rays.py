"""Plücker rays from the poses of frames."""

import numpy as np
import pytest
import torch

from curator.loading import plucker_rays

FOCAL = 1.2


def poses(*vectors: tuple[float, float, float]) -> torch.Tensor:
    """Poses with rotations in degrees, right, down, forward."""
    return torch.tensor([[*np.radians(vector), FOCAL] for vector in vectors], dtype=torch.float64)


def test_the_first_frame_looks_along_its_own_axes() -> None:
    """Pins that rays are those of the drawn window, wherever it begins in its clip."""
    turned = poses((0, 30, 0), (0, 50, 0))
    rays = plucker_rays(turned, (5, 3))
    assert rays.shape == (2, 3, 5, 6)
    assert not rays[..., :3].any()
    torch.testing.assert_close(rays[..., 3:].norm(dim=-1), torch.ones(2, 3, 5, dtype=torch.float64))
    torch.testing.assert_close(rays[0, 1, 2, 3:], torch.tensor([0.0, 0, 1]).double())
    # The right pixel of the middle row is two pixels from the centre, of a short side of three.
    right = torch.tensor([2 / (FOCAL * 3), 0, 1]).double()
    torch.testing.assert_close(rays[0, 1, 4, 3:], right / right.norm())
    # The second frame is 20 degrees to the right.
    ahead = torch.tensor([np.sin(np.radians(20)), 0, np.cos(np.radians(20))])
    torch.testing.assert_close(rays[1, 1, 2, 3:], ahead)
    torch.testing.assert_close(plucker_rays(poses((0, 0, 0), (0, 20, 0)), (5, 3)), rays)


def test_up_is_negative_and_rolls_turn_the_picture() -> None:
    rays = plucker_rays(poses((0, 0, 0), (10, 0, 0), (0, 0, 90)), (5, 5))
    assert rays[1, 2, 2, 4] == pytest.approx(-np.sin(np.radians(10)))
    # A camera that turned clockwise by 90 degrees has its right where down was.
    torch.testing.assert_close(rays[2, 2, 4, 3:], rays[0, 4, 2, 3:])


@pytest.mark.parametrize(("size", "n_cropped"), [((20, 30), (20, 30)), ((30, 20), (40, 20))])
def test_frames_that_cover_a_size_keep_the_angles_of_their_pixels(
    size: tuple[int, int], n_cropped: tuple[int, int]
) -> None:
    """A clip of 80x40 drawn at 30x20 is scaled to 40x20, and loses 5 columns on each side."""
    clip = (80, 40) if size[0] > size[1] else (40, 60)
    whole = plucker_rays(poses((0, 0, 0)), n_cropped)
    drawn = plucker_rays(poses((0, 0, 0)), size, clip)
    cut = (n_cropped[0] - size[0]) // 2
    torch.testing.assert_close(drawn, whole[:, :, cut : n_cropped[0] - cut])


def test_batches_frames_without_a_pose_and_float32() -> None:
    own = poses((0, 0, 0), (0, 5, 0)).float()
    batch = torch.stack([own, own])
    batch[1, 1] = float("nan")
    rays = plucker_rays(batch, (4, 3))
    assert rays.shape == (2, 2, 3, 4, 6)
    assert rays.dtype == torch.float32
    assert rays[1, 1, ..., 3:].isnan().all()
    assert rays[0].isfinite().all()
    assert rays[1, 0].isfinite().all()
