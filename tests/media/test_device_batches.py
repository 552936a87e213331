"""What crosses from a device to the host is whole, and batches are divided as frames are."""

import numpy as np
import torch

from curator.media.decode import FrameTime
from curator.media.device_frames import DeviceBatch, Form, HostCopy


def test_tensors_of_unlike_types_and_shapes_come_in_one_copy() -> None:
    generator = torch.Generator().manual_seed(0)
    bytes_ = torch.randint(0, 256, (3, 5, 7), generator=generator, dtype=torch.uint8)
    tensors = {
        "strided": bytes_[:, ::2, 1::3],
        "turned": bytes_.transpose(0, 2),
        "float32": torch.rand(2, 3, generator=generator),
        "float16": torch.rand(5, generator=generator).half(),
        "none": torch.empty(0, 4),
        "one": torch.tensor([7], dtype=torch.int32),
    }
    found = HostCopy(tensors).arrays()
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.numpy().dtype
        assert np.array_equal(found[name], tensor.numpy()), name


def test_a_copy_of_nothing_is_empty() -> None:
    assert HostCopy({}).arrays() == {}


def test_frames_of_sixteen_bits_are_taken_whole() -> None:
    """Pins that no bit is lost: they are copied as bytes."""
    planes = torch.arange(4 * 6 * 8, dtype=torch.int32).mul(321).to(torch.uint16).view(4, 6, 8)
    places = [FrameTime(pts=n, end_pts=n + 1, n_bytes=1) for n in range(4)]
    form = Form(width=8, height=4, bits=10)
    batch = DeviceBatch(planes=planes, places=places, form=form, rotation_deg=0)
    taken = batch.taken([3, 1])
    assert taken.dtype == torch.uint16
    assert np.array_equal(taken.numpy(), planes.numpy()[[3, 1]])
    part = batch.part(slice(1, 3))
    assert [place.pts for place in part.places] == [1, 2]
    assert np.array_equal(part.planes.numpy(), planes.numpy()[1:3])
