"""An output with three snapshots, whose clips a fake server described."""

import shutil
from pathlib import Path

import pytest
from captioned import Captioned
from films import write_film
from served import FakeServer, fake_server, running_server, without_keys

__all__ = ["LIKE", "SHARED", "fake_server", "finished", "place", "running_server"]

FILMS = {"one": (1, 2), "two": (3, 5, 6)}
"""Numbers of the films in each folder."""
SMALL_TARS = ("shard.max_bytes=150000", "shard.min_bytes=0", "shard.val_share=0.4")
LIKE = ("dedup.enabled=true",)
SHARED = ("shard.embedding=scene", *SMALL_TARS)


@pytest.fixture(scope="session")
def finished(running_server: FakeServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two films, then more films, without the search for duplicates; not to be changed."""
    folder = tmp_path_factory.mktemp("removable")
    for name, numbers in FILMS.items():
        (folder / name).mkdir()
        for number in numbers:
            write_film(folder / name / f"{number}.mp4", number, 90 + 10 * number)
    running_server.start(captions=True)
    with pytest.MonkeyPatch.context() as monkeypatch:
        without_keys(monkeypatch)
        for name, more in (("one", ()), ("two", ()), ("two", LIKE)):
            Captioned(folder / name, folder / "out", running_server).run(*SHARED, *more)
    return folder


@pytest.fixture
def place(finished: Path, fake_server: FakeServer, tmp_path: Path) -> Captioned:
    """A copy of the output, over the sources of its second folder."""
    shutil.copytree(finished / "out", tmp_path / "out")
    fake_server.start(captions=True)
    return Captioned(finished / "two", tmp_path / "out", fake_server)
