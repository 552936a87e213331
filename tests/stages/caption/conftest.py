"""A fake model server, which tests start, kill and start again."""

from served import fake_server, running_server

__all__ = ["fake_server", "running_server"]
