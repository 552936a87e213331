"""Each kind of object under OUT, damaged in each way where the next run reads it.

Fails where a run says that it makes a damaged object again, and then ends with an error.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest
from captioned import Captioned, work_here
from damages import DAMAGES, damage, objects, shards
from films import write_film
from served import FakeServer, without_keys

from curator.media import source_segments
from curator.stages.analyze.stage import PlanStage
from curator.tables import key_index
from curator.tables.out_layout import OWN_FOLDERS

pytestmark = pytest.mark.long
EXAMPLES = Path(__file__).parents[2] / "examples"
FILMS = {"1.mp4": 400, "2.mkv": 60}
"""Number of frames; the first film is analyzed in segments."""
SETTINGS = (
    "stages=[{use: light_columns:LightColumns}, {use: edges, config: {place: side}}]",
    "shard.signals=[luma_mean, motion, sharpness]",
    "analyze.segment_s=10", "dedup.enabled=true", "shard.embedding=scene",
)  # fmt: skip
NEW_CLIPS = "propose.max_s=3"
LEFT_OUT = {
    # What other commands write; their own tests damage it (test_lasting_commands.py, tests/export).
    "learned", "views", "removed", "marks", "copies", "proofs",
    # Needs CLIP, large files or many clips; test_identity.py and test_footage_index.py damage it.
    "clip_embeddings", "hashes", "vectors",
}  # fmt: skip
READ_WITHOUT = {
    "tracks": (("candidates",), ("values",)),
    "segments": (("candidates", "tracks"),),
    "replies": (("annotations",),),
    "frames": (("replies", "annotations"),),
}
"""Folders without which a run reads what a folder has, where it does not read it anyway."""


@dataclass(frozen=True)
class Broken(Captioned):
    """A finished output, and a later run with other clips that ended before its commit."""

    @property
    def settings(self) -> tuple[str, ...]:  # type: ignore[override]
        own = [s for s in super().settings if not s.startswith("dedup.enabled")]
        return (*own, *SETTINGS)


@pytest.fixture(scope="module")
def broken(
    running_server: FakeServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broken]:
    """Not to be changed."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "in").mkdir()
    for name, n_frames in FILMS.items():
        write_film(folder / "in" / name, int(name[0]), n_frames)
    running_server.start(captions=True)
    place = Broken(folder / "in", folder / "out", running_server)
    with pytest.MonkeyPatch.context() as patch:
        without_keys(patch)
        patch.syspath_prepend(str(EXAMPLES))
        patch.setenv("PYTHONPATH", str(EXAMPLES))
        patch.setattr(source_segments, "LEAST_FRAMES", 60)
        patch.setattr(PlanStage, "sandboxed", False)
        patch.setattr(key_index, "FEW_FOOTERS", 0)
        work_here(patch)
        place.run()
        # Segments stay until the commit after the decode.
        shutil.rmtree(place.out / "tracks")
        place.break_off(patch, NEW_CLIPS)
        yield place


_CANDIDATES = ("clips", "footage", "pictures", "shots", "sources", "vectors")
_TRACKS = ("audio", "distortion", "frames", "motion", "overlays", "pictures", "scenes", "shots")
_TABLES = (
    "annotations", "clips", "embeddings", "members", "shots", "sidecars", "sources",
)  # fmt: skip
_SHARDS = (
    "shards",
    "shards/.nv-meta",
    "shards/80p_4-3_17f",
    "shards/80p_4-3_17f/.nv-meta",
    "shards/side/edges/80p_4-3_17f",
    "shards/side/edges/.nv-meta",
)
FOLDERS = (
    *_TABLES, *(f"snapshots/{name}" for name in _TABLES), "snapshots", *_SHARDS,
    *(f"candidates/{kind}" for kind in _CANDIDATES), *(f"tracks/{name}" for name in _TRACKS),
    *(f"values/{name}" for name in ("edges", "luma_mean", "motion", "sharpness")),
    "cuts", "duplicate_pairs", "families/light", "frames", "index", "replies", "report", "scan",
    "segments",
)  # fmt: skip


def kinds_of(out: Path) -> dict[str, list[str]]:
    """Names of objects by folder; of tracks, by family."""
    return {
        folder: list(names)
        for folder, names in groupby(objects(out), lambda name: name.rpartition("/")[0])
        if folder
    }


def test_no_kind_is_left_out(broken: Broken) -> None:
    assert kinds_of(broken.out).keys() == {*FOLDERS}
    assert {folder.split("/")[0] for folder in FOLDERS} == OWN_FOLDERS - LEFT_OUT


@pytest.fixture(scope="module")
def expected(broken: Broken, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The shards of the later run without damage."""
    place = broken.copy(tmp_path_factory.mktemp("whole"))
    place.run(NEW_CLIPS)
    return shards(place.out)


def cases() -> Iterator[object]:
    for folder in FOLDERS:
        for how in DAMAGES:
            for without in READ_WITHOUT.get(folder.split("/")[0], ((),)):
                yield folder, how, without


@pytest.mark.parametrize(("folder", "how", "without"), cases())
def test_a_damaged_object_is_made_again(
    folder: str,
    how: str,
    without: tuple[str, ...],
    broken: Broken,
    expected: dict[str, str],
    tmp_path: Path,
) -> None:
    place = broken.copy(tmp_path)
    for other in without:
        shutil.rmtree(place.out / other)
    names = kinds_of(place.out)[folder]
    if "/side/edges/80p" in folder:
        # No run makes a tar again that only an older snapshot needs.
        named = (place.out / "shards" / "manifest.json").read_text()
        names = [n for n in names if n.removeprefix("shards/").removesuffix(".idx") not in named]
    damage(place.out / names[0], how)
    place.run(NEW_CLIPS)
    assert shards(place.out) == expected
