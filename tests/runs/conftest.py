"""A fake model server, a run whose clips it described, and files that count as old."""

from collections.abc import Iterator

import pytest
from captioned import described, place
from served import fake_server, running_server

from curator.storage import source_reader

__all__ = ["described", "fake_server", "place", "running_server"]


@pytest.fixture(autouse=True, scope="session")
def _not_racy() -> Iterator[None]:
    """Lets files that a test has just written count as old, so that they are probed once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_reader, "RACY_NS", 0)
        yield
