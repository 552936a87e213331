"""Puts `tests/` on the path, because benchmarks use its synthetic footage."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))
