"""Puts `tests/` on the path: benchmarks use its makers of footage."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))
