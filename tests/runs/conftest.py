"""A fake model server, and a run whose clips it described."""

from captioned import described, place
from served import fake_server, running_server

__all__ = ["described", "fake_server", "place", "running_server"]
