"""A run that adds sources reads what is new: keys of what is stored come from the index."""

from fractions import Fraction
from pathlib import Path
from typing import BinaryIO

import pytest
from film_makers import text_file, write_video
from film_shots import moving_texture
from place import QVGA, Place

from curator.storage import ObjectInfo
from curator.storage.local_store import LocalStore
from curator.tables import key_index

FILMS = ("a", "b", "c")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each film, and one with what is no film."""
    folder = tmp_path_factory.mktemp("growth")
    for number, name in enumerate(FILMS):
        (folder / name).mkdir()
        frames = moving_texture(60 + 10 * number, seed=number, **QVGA)
        write_video(folder / name / f"{name}.mp4", frames, fps=Fraction(25))
    text_file(folder / "a/text.mp4")
    return folder


def grow(sources: Path, out: Path, *names: str) -> None:
    for name in names:
        Place(sources / name, out).run()


def results(out: Path) -> dict[str, str]:
    """Digests of tars, and of the parts of tables."""
    place = Place(out, out)
    parts = {name for parts in place.summary()["tables"].values() for name in parts}
    return place.tars() | {n: d for n, d in place.files("").items() if n in parts}


@pytest.mark.long
def test_a_run_that_adds_a_source_reads_no_footer_of_earlier_parts(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that +1% costs what is new, and that the index changes no result."""
    grow(sources, tmp_path / "without", *FILMS, "a")
    out = tmp_path / "out"
    assert not (tmp_path / "without/index").exists(), "a few footers are sooner read"
    monkeypatch.setattr(key_index, "FEW_FOOTERS", 0)
    grow(sources, out, *FILMS[:2])
    log: list[str] = []
    opened = LocalStore.open

    def noted(store: LocalStore, key: str) -> BinaryIO:
        if key.startswith(("scan/", "tracks/", "index/")):
            log.append(key)
        return opened(store, key)

    before = {f: {p.name for p in (out / f).iterdir()} for f in ("scan", "tracks/frames")}
    indexes = sorted(f"index/{path.name}" for path in (out / "index").iterdir())
    read_versioned = LocalStore.read_versioned

    def noted_whole(store: LocalStore, key: str) -> tuple[ObjectInfo, bytes] | None:
        found = read_versioned(store, key)
        log.extend([key] if found is not None and key.startswith("index/") else [])
        return found

    monkeypatch.setattr(LocalStore, "open", noted)
    monkeypatch.setattr(LocalStore, "read_versioned", noted_whole)
    grow(sources, out, "c")
    assert [name for name in sorted(log) if name.startswith("index/")] == indexes
    # Of each folder, the part of the run before, which no run has read since.
    read = [name for name in log if name.rpartition("/")[2] in before["scan"]]
    assert len(read) == 1
    frames = [name for name in log if name.startswith("tracks/frames/")]
    assert len({n.rpartition("/")[2] for n in frames} & before["tracks/frames"]) == 1
    log.clear()
    grow(sources, out, "a")
    assert results(out) == results(tmp_path / "without")
    for path in (out / "index").iterdir():
        path.write_bytes(b"no index")
    grow(sources, out, "a")
    assert results(out) == results(tmp_path / "without")
