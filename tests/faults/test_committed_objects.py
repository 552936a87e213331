"""What a snapshot names: `verify` finds all damage to it, and a run writes it again from a copy.

Fails where an object that was committed can be lost, flipped or exchanged, and all is said to be
well. `benchmarks/damage.py --verify` damages every object, each alone.
"""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from captioned import Captioned, work_here
from damages import DAMAGES, damage, objects, shards

from curator.cli import main
from curator.errors import DamagedError
from curator.runs import lease, one_pass
from curator.storage import open_store
from curator.storage.local_store import LocalStore
from curator.tables.checksums import is_damaged, read_footer, read_parquet
from curator.tables.json_objects import sealed_json, to_json
from curator.tables.lease_holder import this_process
from curator.tables.out_layout import LEASE
from curator.tables.snapshot_store import HEAD, OBJECTS, read_snapshot
from curator.tools.commands.arguments import EXIT_BROKEN_OFF, EXIT_OK
from curator.tools.verify import Verified, verify

CACHES = ("tracks/", "scan/", "replies/", "report/", "hashes/", "index/", "families/")
"""Folders of what no snapshot names."""


def checked(out: Path) -> Verified:
    return verify(str(out), frames="none")


def committed(out: Path) -> list[str]:
    return [name for name in objects(out) if not name.startswith(CACHES)]


def kind_of(name: str) -> str:
    return name.rpartition("/")[0] or name


def test_verify_finds_damage_to_any_kind_of_committed_object(place: Captioned) -> None:
    """One object of each kind, damaged in a way that is drawn; none was well before by chance."""
    assert checked(place.out).findings == []
    draw = random.Random(32)
    unseen = []
    for kind, names in groupby(committed(place.out), kind_of):
        path = place.out / draw.choice(list(names))
        how = draw.choice(sorted(DAMAGES))
        data = path.read_bytes()
        damage(path, how)
        if checked(place.out).is_well:
            unseen.append((kind, how))
        path.write_bytes(data)
    assert unseen == []
    assert checked(place.out).is_well


@pytest.mark.parametrize("how", ["deleted", "flipped in the middle"])
def test_a_run_writes_snapshots_and_tables_again_from_each_other(
    place: Captioned, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of the copies under `snapshots/`, the other half at fixed paths, then the others."""
    before = {n: (place.out / n).read_bytes() for n in objects(place.out) if "/part-" in n}
    own = sorted(name for name in before if name.startswith("snapshots/"))
    indexes = [n for n in objects(place.out) if n.startswith(("snapshots/ma", "snapshots/da"))]
    for turn in (0, 1):
        fixed = [name.removeprefix("snapshots/") for name in own[1 - turn :: 2]]
        broken = [*own[turn::2], *fixed, indexes[turn]]
        for name in broken:
            damage(place.out / name, how)
        found = checked(place.out).findings
        assert {f.path.removeprefix(f"{place.out}/") for f in found} >= set(broken)
        # The other copy is named as the remedy.
        own_codes = [f for f in found if f.code in ("missing", "hash") and "/part-" in f.path]
        assert all("writes it again from" in finding.remedy for finding in own_codes)
        caplog.clear()
        place.run()
        assert any("from equal copies" in r.getMessage() for r in caplog.records)
        assert checked(place.out).findings == []
    assert {name: (place.out / name).read_bytes() for name in before} == before


def test_a_run_says_what_is_lost_and_makes_it_again(
    place: Captioned, caplog: pytest.LogCaptureFixture
) -> None:
    (part,) = place.out.glob("shots/*.parquet")
    picture = min(place.out.glob("candidates/pictures/*.parquet"))
    before = part.read_bytes()
    for path in (part, place.out / "snapshots" / "shots" / part.name, picture):
        damage(path, "halved")
    place.run()
    assert [r.getMessage() for r in caplog.records if "lost objects" in r.getMessage()]
    assert part.read_bytes() == before
    assert checked(place.out).findings == []


def test_the_newest_snapshot_is_written_again_from_the_summary(place: Captioned) -> None:
    place.run()
    for how in ("deleted", "flipped in the middle"):
        damage(place.out / "snapshots" / "00000001.json", how)
        (finding,) = checked(place.out).findings
        assert "summary.json" in finding.remedy
        place.run()
        assert checked(place.out).findings == []
        assert len(list(place.out.glob("snapshots/*.json"))) == 2


def grown(place: Captioned) -> Path:
    for n_clips in (3, 2):
        place.run(f"select.max_per_group={n_clips}", "select.by=[]")
    assert place.summary()["snapshot"] == 3
    return place.out / "snapshots"


def test_verify_walks_the_chain(place: Captioned) -> None:
    """A snapshot that is gone, or a valid one in the place of another, is found."""
    folder = grown(place)
    assert checked(place.out).findings == []
    second = folder / "00000002.json"
    data = second.read_bytes()
    changed = read_snapshot(open_store(str(place.out)), 2) | {"video_s": 1.0}
    second.write_bytes(sealed_json(changed, to_json, "snapshots/00000002.json"))
    assert {str(finding.code) for finding in checked(place.out).findings} == {"hash"}
    second.unlink()
    (finding,) = checked(place.out).findings
    assert (finding.code, finding.path) == ("missing", str(second))
    second.write_bytes(data)
    # Bytes that only an old snapshot names.
    names = set(json.loads(data)[OBJECTS]) - set(place.summary()[OBJECTS])
    damage(place.out / min(names), "flipped in the middle")
    (finding,) = checked(place.out).findings
    assert finding.path == f"{place.out}/{min(names)}"
    assert "no undamaged copy is left" in finding.remedy


def test_clean_says_where_the_chain_begins(place: Captioned) -> None:
    folder = grown(place)
    assert main(["clean", str(place.out)]) == EXIT_OK
    assert place.summary()[HEAD]["first"] == 3
    assert checked(place.out).findings == []
    place.run("select.max_per_group=3", "select.by=[]")
    (folder / "00000003.json").unlink()
    (finding,) = checked(place.out).findings
    assert finding.code == "missing"


def swap(out: Path, first: str, second: str) -> None:
    data = (out / first).read_bytes()
    (out / second).replace(out / first)
    (out / second).write_bytes(data)


def pair(out: Path, folder: str) -> tuple[str, str]:
    first, second, *_ = [name for name in objects(out) if name.rpartition("/")[0] == folder]
    return first, second


@pytest.fixture(scope="module")
def two_recipes(described: Captioned, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output of two recipes: two objects of each kind; not to be changed."""
    out = tmp_path_factory.mktemp("two") / "out"
    shutil.copytree(described.out, out)
    both = Captioned(described.sources, out, described.server)
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        both.run("propose.max_s=2.5")
        both.run()
    return out


@pytest.fixture
def two(place: Captioned, two_recipes: Path) -> Captioned:
    shutil.rmtree(place.out)
    shutil.copytree(two_recipes, place.out)
    return place


KINDS = (
    "tracks/frames", "candidates/clips", "candidates/sources", "candidates/vectors",
    "snapshots/clips",
)  # fmt: skip


def test_each_object_says_which_it_is(two: Captioned) -> None:
    """Pins point 10 for readers of whole objects, of footers and of rows, by one place."""
    store = open_store(str(two.out))
    snapshots = [name for name in objects(two.out) if name.endswith(".json")]
    pairs = [pair(two.out, kind) for kind in KINDS]
    for prefix in ("snapshots/0", "snapshots/manifest-"):
        first, second, *_ = [name for name in snapshots if name.startswith(prefix)]
        pairs.append((first, second))
    pairs.append(("shards/dataset.parquet", pairs[0][0]))
    for first, second in pairs:
        assert not is_damaged(store, first)
        assert not is_damaged(store, second)
        swap(two.out, first, second)
        assert is_damaged(store, first), first
        assert is_damaged(store, second), second
        if first.endswith(".parquet"):
            for read in (read_footer, read_parquet):
                with pytest.raises(DamagedError, match="another object"):
                    read(store, first)  # type: ignore[operator]
        swap(two.out, first, second)


@pytest.mark.parametrize("kinds", [KINDS[:1], KINDS[1:2], KINDS[2:]])
def test_a_run_repairs_what_was_swapped(two: Captioned, kinds: tuple[str, ...]) -> None:
    """Pins that swapped tracks end no run, and that swapped candidates lose no address."""
    before, rows = shards(two.out), two.table("clips")
    for kind in kinds:
        swap(two.out, *pair(two.out, kind))
    two.run()
    assert shards(two.out) == before
    assert two.table("clips") == rows
    assert all(row["source_uri"] for row in rows)
    newest = {f"{two.out}/{name}" for name in two.summary()[OBJECTS]}
    assert not newest & {finding.path for finding in checked(two.out).findings}


class Stopped:
    """Stops a writer at one of its writes, until another run has taken over and committed.

    Args:
        out: Output root.
        after: What OUT holds when the other run has committed.
        at: Number of the write or removal of a commit, from 0; None only counts them.
    """

    def __init__(self, out: Path, after: Path, at: int | None) -> None:
        self.out, self.after, self.at = out, after, at
        self.steps: list[tuple[str, str]] = []
        self.commits = False

    def step(self, how: str, key: str) -> None:
        if not self.commits or key == LEASE:
            return
        if len(self.steps) == self.at:
            shutil.rmtree(self.out)
            shutil.copytree(self.after, self.out)
        self.steps.append((how, key))

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        def before(name: str) -> None:
            call: Callable[..., Any] = getattr(LocalStore, name)

            def stopped(store: LocalStore, key: Any, *more: Any) -> Any:  # noqa: ANN401
                if name != "delete":
                    self.step(name, key)
                    return call(store, key, *more)
                for one in key:
                    self.step(name, one)
                    call(store, [one])
                return None

            patch.setattr(LocalStore, name, stopped)

        for name in ("create", "write_new", "replace", "delete"):
            before(name)
        commit = one_pass.commit_run

        def commit_run(run: Any) -> Any:  # noqa: ANN401
            self.commits = True
            return commit(run)

        patch.setattr(one_pass, "commit_run", commit_run)
        patch.setattr(lease, "_CONFIRMED_S", 0.0)
        work_here(patch)


@dataclass(frozen=True)
class Race:
    """Two runs of other recipes from one state: what a commit of the second one writes.

    Attributes:
        begun: OUT before both.
        after: OUT after the first, which holds the lease still.
        second: Arguments of the second.
        out: Where it writes.
        steps: Its writes and removals, if nothing disturbs it.
    """

    begun: Path
    after: Path
    second: list[str]
    out: Path
    steps: list[tuple[str, str]]


@pytest.fixture(scope="module")
def race(described: Captioned, tmp_path_factory: pytest.TempPathFactory) -> Race:
    folder = tmp_path_factory.mktemp("race")
    begun, after, out = folder / "begun", folder / "after", folder / "out"
    shutil.copytree(described.out, begun)
    shutil.copytree(begun, out)
    here = Captioned(described.sources, out, described.server)
    counting = Stopped(out, after, None)
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        here.run("select.max_per_group=3", "select.by=[]")
    (out / LEASE).write_bytes(this_process("run", 120).to_bytes())
    out.rename(after)
    shutil.copytree(begun, out)
    second = here.arguments("select.max_per_group=2", "select.by=[]")
    with pytest.MonkeyPatch.context() as patch:
        counting.patch(patch)
        assert main(second) == EXIT_OK
    return Race(begun=begun, after=after, second=second, out=out, steps=counting.steps)


SHARES = (
    0.0, 0.5, 0.97,
    *(pytest.param(share, marks=pytest.mark.long) for share in (0.2, 0.35, 0.6, 0.7, 0.8, 0.9)),
)  # fmt: skip


@pytest.mark.parametrize("share", SHARES)
def test_a_writer_that_lost_its_lease_changes_nothing_of_its_successor(
    race: Race, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins point 11: it is stopped within a write, where no check of its own helps any more."""
    at = int(share * len(race.steps))
    how, key = race.steps[at]
    shutil.rmtree(race.out)
    shutil.copytree(race.begun, race.out)
    Stopped(race.out, race.after, at).patch(monkeypatch)
    assert main(race.second) == EXIT_BROKEN_OFF
    expected = {name: (race.after / name).read_bytes() for name in objects(race.after)}
    found = {name: (race.out / name).read_bytes() for name in objects(race.out)}
    changed = [name for name in expected if found.get(name) != expected[name]]
    # Nothing is written over; a removal in flight takes what it was called for.
    assert changed == [key] * (how == "delete" and key in expected), (how, key)
    assert len(found.keys() - expected.keys()) <= 1, (how, key)
