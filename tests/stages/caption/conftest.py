"""A fake model server, which tests start, kill and restart; and torch with one thread."""

from collections.abc import Iterator

import pytest
from served import fake_server, running_server

__all__ = ["fake_server", "one_thread", "running_server"]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """On busy cores, such small models are faster with one thread."""
    import torch

    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)
