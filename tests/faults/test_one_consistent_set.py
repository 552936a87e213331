"""Readers at any moment of a commit find one consistent set, and `verify` says what is under way.

The objects that a run writes and removes are recorded, and replayed one by one: each state is that
of a driver killed there. Fails where indexes change before anything says that a commit is under
way, so that `verify` ends with 3. The same with processes that are killed, and a rerun after each:
`benchmarks/kill_points.py`.
"""

import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from captioned import work_here
from index_readers import check_readers
from place import QVGA, Place, write_films

from curator.cli import main
from curator.commands.arguments import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from curator.storage.local_store import LocalStore
from curator.tables.out_layout import LEASE

SETTINGS = (
    "shard.resolutions=[64, 120]", "filters.short_side_px.min=60", "propose.min_s=0.5",
    "propose.max_s=1", "dedup.enabled=false", "filters.sharpness.min=0", "shard.val_share=0.4",
)  # fmt: skip
CHANGED = ("shard.resolutions=[64]", "shard.max_bytes=65536", "select.max_per_group=3",
           "select.by=[]")  # fmt: skip


@dataclass
class Journal:
    """What a run did to its output root: each object written, and None for each removed."""

    begun: Path
    out: Path
    steps: list[tuple[str, bytes | None]] = field(default_factory=list)


class Consistent(Place):
    """Films and their output."""

    settings = SETTINGS


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
            if done is not None and key != LEASE:
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
            if (journal.out / key).exists() and key != LEASE:
                journal.steps.append((key, None))
            delete(self, [key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "create", noted)
        for name in conditional:
            patch.setattr(LocalStore, name, guarded(name))
        patch.setattr(LocalStore, "delete", deleted)
        work_here(patch)
        yield


@pytest.fixture(scope="module")
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


@pytest.mark.parametrize("name", ["first run", "growth", "changed recipe", "recaption"])
def test_readers_and_verify_at_each_mutation(
    journals: dict[str, Journal], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = journals[name]
    out = shutil.copytree(journal.begun, tmp_path / "out")
    (committed,) = [n for n, (key, _) in enumerate(journal.steps) if key.startswith("snapshots/0")]
    for number, (key, data) in enumerate(journal.steps):
        replay(out, key, data)
        where = f"{name}, step {number}: {'removes' if data is None else 'writes'} {key}"
        try:
            check_readers(out)
        except (AssertionError, OSError, KeyError) as error:
            raise AssertionError(f"{where}: {error!r}") from error
        code = main(["verify", str(out), "--frames", "none"])
        said = capsys.readouterr().out
        is_visible = any((out / "snapshots").glob("0*.json"))
        assert code == (EXIT_OK if is_visible else EXIT_USAGE), f"{where}: {said}"
        is_under_way = committed <= number < len(journal.steps) - 1
        assert ("warning interrupted" in said) == is_under_way, f"{where}: {said}"
        # Tars that wait for their commit are the only other objects with a finding.
        others = re.findall(r"^(?:warning|wrong) (?!interrupted)(.*)", said, re.MULTILINE)
        assert not others or (number < committed and {w[:8] for w in others} == {"unnamed:"}), where
        assert "delete" not in said, f"{where}: {said}"
    assert "warning" not in said
    written = [key for key, data in journal.steps if data is not None]
    assert written.index("shards/manifest.next.json") < written.index("shards/dataset.parquet")
    assert written.index("shards/manifest.json") < written.index("summary.json")
    assert written[-1] == "summary.json"
    assert not (out / "shards/manifest.next.json").exists()


@pytest.mark.parametrize("harmed", ["shards/dataset.parquet", "shards/wids-train.json", ".tar"])
def test_verify_still_finds_damage_while_a_commit_is_under_way(
    journals: dict[str, Journal], harmed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = journals["changed recipe"]
    out = shutil.copytree(journal.begun, tmp_path / "out")
    for key, data in journal.steps:
        replay(out, key, data)
        if key == "shards/wids-train.json":
            break
    new = [key for key, data in journal.steps if data is not None and key.endswith(harmed)]
    path = out / new[0]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert main(["verify", str(out), "--frames", "none"]) == EXIT_FAILED
    entry = rf"^wrong [a-z_, ]*hash[a-z_, ]*: {re.escape(str(path))}"
    assert re.search(entry, capsys.readouterr().out)
