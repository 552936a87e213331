"""Plücker rays of drawn frames, from the poses that the annotator `camera_track` stores."""

from torch import Tensor, arange, cat, cos, eye, linalg, ones_like, sin, stack, where, zeros_like


def plucker_rays(
    poses: Tensor, size: tuple[int, int], clip_size: tuple[int, int] | None = None
) -> Tensor:
    """Returns the ray of each pixel, in the axes of the first of the given frames.

    The poses have rotations only, as a camera's way is unknown without the depth of what it sees.
    So all rays begin in one point, and their moments are 0. A 4x5 picture:

        >>> import torch
        >>> poses = torch.tensor([[0.0, 0.0, 0.0, 1.2], [0.0, 0.1, 0.0, 1.2]])
        >>> plucker_rays(poses, (5, 4)).shape
        torch.Size([2, 4, 5, 6])

    Args:
        poses: Poses, float [..., T, 4], such as `batch["camera_poses"]`: rotation as an axis times
            radians, and the focal length in short sides.
        size: Width and height of the drawn frames in px.
        clip_size: Width and height of the clip, if frames were scaled to cover `size` and cropped
            around the centre, as `ClipDataset` does; None if `size` has the clip's own proportions.

    Returns:
        Float [..., T, H, W, 6]: moment, then direction of unit length; axes are right, down,
        forward. NaN for frames without a pose.
    """
    width, height = size
    clip_width, clip_height = clip_size or size
    scale = max(width / clip_width, height / clip_height)
    focal_px = poses[..., 3] * (min(clip_width, clip_height) * scale)
    to_clip = _matrices(poses[..., :3])
    to_first = to_clip[..., :1, :, :].transpose(-1, -2) @ to_clip
    x = arange(width, dtype=poses.dtype, device=poses.device) - (width - 1) / 2
    y = arange(height, dtype=poses.dtype, device=poses.device) - (height - 1) / 2
    x = (x / focal_px[..., None])[..., None, :].expand(*focal_px.shape, height, width)
    y = (y / focal_px[..., None])[..., :, None].expand(*focal_px.shape, height, width)
    seen = stack([x, y, ones_like(x)], dim=-1)
    rays = seen @ to_first[..., None, :, :].transpose(-1, -2)
    rays = rays / linalg.vector_norm(rays, dim=-1, keepdim=True)
    return cat([zeros_like(rays), rays], dim=-1)


def _matrices(vectors: Tensor) -> Tensor:
    """Returns rotation matrices [..., 3, 3] of axes times radians [..., 3]."""
    angle = linalg.vector_norm(vectors, dim=-1)[..., None, None]
    x, y, z = (vectors / where(angle[..., 0] > 0, angle[..., 0], 1)).unbind(-1)
    zero = zeros_like(x)
    rows = (stack([zero, -z, y], -1), stack([z, zero, -x], -1), stack([-y, x, zero], -1))
    cross = stack(rows, -2)
    identity = eye(3, dtype=vectors.dtype, device=vectors.device)
    return identity + sin(angle) * cross + (1 - cos(angle)) * (cross @ cross)
