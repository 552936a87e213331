"""Runs into one output root, one after the other, with each object that they wrote and removed."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from captioned import work_here
from place import QVGA, Place, write_films

from curator.cli import main
from curator.storage.local_store import LocalStore
from curator.tables.out_layout import LEASE, PROGRESS
from curator.tools.commands.arguments import EXIT_OK

SETTINGS = (
    "shard.resolutions=[64, 120]", "filters.short_side_px.min=60", "propose.min_s=0.5",
    "propose.max_s=1", "dedup.enabled=false", "filters.sharpness.min=0", "shard.val_share=0.4",
)  # fmt: skip
CHANGED = ("shard.resolutions=[64]", "shard.max_bytes=65536", "select.max_per_group=3",
           "select.by=[]")  # fmt: skip


_NOT_RESULTS = (LEASE, PROGRESS)
"""Objects that a run writes if it takes long."""


@dataclass
class Journal:
    """What a run did to its output root: each object written, and None for each removed."""

    begun: Path
    out: Path
    steps: list[tuple[str, bytes | None]] = field(default_factory=list)


class Consistent(Place):
    """Films and their output."""

    settings = SETTINGS


def finished(journal: Journal, out: Path) -> Path:
    """Makes an output root as the run left it."""
    shutil.copytree(journal.begun, out)
    for key, data in journal.steps:
        replay(out, key, data)
    return out


def replay(out: Path, key: str, data: bytes | None) -> None:
    path = out / key
    if data is None:
        path.unlink()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@contextmanager
def recorded(journal: Journal) -> Iterator[None]:
    """Records in this process, which does all the work."""
    create, delete = LocalStore.create, LocalStore.delete
    conditional = {name: getattr(LocalStore, name) for name in ("write_new", "replace")}

    def guarded(name: str) -> Any:  # noqa: ANN401
        def noted_too(self: LocalStore, key: str, data: bytes, *version: str) -> Any:  # noqa: ANN401
            done = conditional[name](self, key, data, *version)
            if done is not None and key not in _NOT_RESULTS:
                journal.steps.append((key, data))
            return done

        return noted_too

    @contextmanager
    def noted(self: LocalStore, key: str) -> Iterator[Any]:
        with create(self, key) as stream:
            yield stream
        journal.steps.append((key, (journal.out / key).read_bytes()))

    def deleted(self: LocalStore, keys: Iterable[str]) -> None:
        for key in keys:
            if (journal.out / key).exists() and key not in _NOT_RESULTS:
                journal.steps.append((key, None))
            delete(self, [key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "create", noted)
        for name in conditional:
            patch.setattr(LocalStore, name, guarded(name))
        patch.setattr(LocalStore, "delete", deleted)
        work_here(patch)
        yield


@pytest.fixture(scope="session")
def journals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Journal]:
    """A first run, more sources, another recipe, other captions: one after the other."""
    folder = tmp_path_factory.mktemp("journals")
    place, out = Consistent(folder / "in", folder / "out"), folder / "out"
    out.mkdir()
    write_films(place.sources, (50, 50, 50), **QVGA)
    third = (place.sources / "2.mp4").rename(folder / "2.mp4")
    made = {}
    for name, command in {
        "first run": place.arguments(),
        "growth": place.arguments(),
        "changed recipe": place.arguments(*CHANGED),
        "recaption": ["recaption", str(out), "--set", "caption.enabled=false"],
    }.items():
        if name == "growth":
            third.rename(place.sources / "2.mp4")
        begun = shutil.copytree(out, folder / name)
        journal = made[name] = Journal(begun=begun, out=out)
        with recorded(journal):
            assert main(command) == EXIT_OK
    return made
