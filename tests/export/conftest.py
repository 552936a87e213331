"""Clips of all exports, and an output root with them."""

from pathlib import Path

import pytest
from made_samples import MadeClip, made_clips, make_shards


@pytest.fixture
def clips() -> list[MadeClip]:
    return made_clips()


@pytest.fixture
def out(tmp_path: Path, clips: list[MadeClip]) -> Path:
    make_shards(str(tmp_path / "out"), clips)
    return tmp_path / "out"
