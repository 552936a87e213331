"""A fake model server, and a run whose clips it described."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "captions"))

from captioned import described, place
from served import fake_server, running_server

__all__ = ["described", "fake_server", "place", "running_server"]
