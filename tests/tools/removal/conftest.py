"""An output with three snapshots, to remove from."""

from removable import fake_server, finished, place, running_server

__all__ = ["fake_server", "finished", "place", "running_server"]
