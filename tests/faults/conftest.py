"""A fake model server, and a run whose clips it described."""

from captioned import described, place
from recorded_runs import journals
from served import fake_server, running_server

__all__ = ["described", "fake_server", "journals", "place", "running_server"]
