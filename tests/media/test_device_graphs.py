"""Functions of a device as graphs give what they give without, on the CUDA device in software."""

from collections.abc import Iterator

import pytest
import torch
from software_cuda import SoftwareCuda, installed
from torch import Tensor

from curator.media.device_graphs import _USES, DeviceGraphs, constants


@pytest.fixture
def device() -> Iterator[SoftwareCuda]:
    with installed() as soft:
        yield soft


@constants(1)
def factor(value: float) -> Tensor:
    return torch.tensor([value]).to("cuda")


def both(x: Tensor, y: Tensor, *, add: float) -> tuple[Tensor, Tensor]:
    return x * factor(3.0) + add, (x - y).sum(1)


def double(x: Tensor) -> Tensor:
    return x * factor(2.0)


def on_device(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, 5, generator=torch.Generator().manual_seed(seed)).to("cuda")


def used(graphs: DeviceGraphs, n: int) -> list[Tensor]:
    for _ in range(_USES):
        graphs(both, on_device(n), on_device(n), add=1.0)
    return graphs(both, on_device(n), on_device(n), add=1.0)


def test_what_comes_often_is_replayed_and_results_outlive_other_graphs(
    device: SoftwareCuda,
) -> None:
    """Pins results of smaller batches, and that options and functions have graphs of their own."""
    graphs = DeviceGraphs()
    used(graphs, 4)
    assert device.n_replays == 1
    for n in (4, 3, 1):
        x, y = on_device(n, seed=n), on_device(n, seed=n + 9)
        scaled, sums = graphs(both, x, y, add=1.0)
        assert torch.equal(scaled.cpu(), (x * 3 + 1).cpu())
        assert torch.equal(sums.cpu(), (x - y).sum(1).cpu())
    assert device.n_replays == 4
    (other, _) = graphs(both, x, y, add=2.0)
    assert torch.equal(other.cpu(), (x * 3 + 2).cpu())
    (doubled,) = graphs(double, x)
    assert torch.equal(doubled.cpu(), (x * 2).cpu())
    assert device.n_replays == 4
    # Results outlive other graphs and constants that are no longer kept.
    graphs = DeviceGraphs()
    x = on_device(4)
    scaled, _ = used(graphs, 4)
    for _ in range(_USES + 2):  # its constant takes the place of the other's
        (doubled,) = graphs(double, x)
    again, _ = graphs(both, x, x, add=1.0)
    assert torch.equal(scaled.cpu(), (x * 3 + 1).cpu())
    assert torch.equal(again.cpu(), scaled.cpu())
    assert torch.equal(doubled.cpu(), (x * 2).cpu())


def test_what_is_rare_or_large_has_no_graph(
    device: SoftwareCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("curator.media.device_graphs._MOST_BYTES", 8 * 5 * 4)
    graphs = DeviceGraphs()
    used(graphs, 5)
    assert device.n_replays == 0
    used(graphs, 4)
    assert device.n_replays == 1


def test_only_the_last_used_are_kept(device: SoftwareCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curator.media.device_graphs._MOST_GRAPHS", 1)
    graphs = DeviceGraphs()
    for n in (4, 8):
        used(graphs, n)
    assert device.n_replays == 2
    graphs(both, on_device(8), on_device(8), add=1.0)
    assert device.n_replays == 3
    graphs(both, on_device(4), on_device(4), add=1.0)
    assert device.n_replays == 4


def test_without_memory_for_a_graph_there_is_none(device: SoftwareCuda) -> None:
    graphs = DeviceGraphs()
    device.fail_allocation(least_bytes=8 * 5 * 4)
    for _ in range(_USES):
        graphs(both, on_device(6), on_device(6), add=1.0)
    scaled, _ = graphs(both, on_device(6), on_device(6), add=1.0)
    assert torch.equal(scaled.cpu(), (on_device(6) * 3 + 1).cpu())
    assert (device.n_replays, graphs.n_halved) == (0, 1)
