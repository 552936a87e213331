"""Films after public bug reports, which are beside the project and may be absent."""

import os
from pathlib import Path

import pytest


def reported(name: str) -> Path:
    """A film of the reports; skips the test where it is absent."""
    beside = Path(__file__).parents[2] / "shared" / "reports"
    folder = Path(os.environ.get("CURATE_TEST_REPORTS", beside))
    if not (folder / name).is_file():
        pytest.skip(f"no film {name} in {folder}; set CURATE_TEST_REPORTS")
    return folder / name
