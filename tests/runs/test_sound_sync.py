"""Sound and picture of windows, from files of many containers to batches."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from captioned import work_here
from place import Place
from synced_films import CASES, RECIPE, own_offset_s, window_offsets_s

NAMES = (
    "aac_44k.mp4", "late.mp4", "trimmed.mp4", "fragments.mp4", "no_edits.mp4", "pcm.mov",
    "late.mkv", "opus.webm", "late.ts", "mp3.avi",
)  # fmt: skip
"""`benchmarks/sound.py` measures all of them."""
MOST_S = 0.005


@dataclass(frozen=True)
class Synced(Place):
    """A run that keeps all footage."""

    settings = ()
    recipe: str = ""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("synced")
    for name in NAMES:
        CASES[name](folder / name)
    return folder


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    work_here(monkeypatch)
    return


@pytest.mark.parametrize("mode", ["copy", pytest.param("aac", marks=pytest.mark.long)])
def test_beeps_are_heard_with_their_flashes(mode: str, sources: Path, tmp_path: Path) -> None:
    """Pins 5 ms, with edit lists, delays, priming of codecs, and audio that begins later."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE | {"cut": {"audio": mode}}))
    place = Synced(sources, tmp_path / "out", recipe=str(recipe))
    place.run()
    copied = {Path(clip["source_uri"]).name for clip in place.clips() if clip["audio"] == "copy"}
    assert ("aac_44k.mp4" in copied) == (mode == "copy")
    offsets = window_offsets_s(place.out, epochs=3)
    assert set(offsets) == set(NAMES)
    for name, found in offsets.items():
        own_s = own_offset_s(sources / name)
        assert len(found) >= 3, name
        assert found == pytest.approx([own_s] * len(found), abs=MOST_S), name
