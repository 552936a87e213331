"""No object that a snapshot names is deleted, and no clip leaves without a message.

Fails where a commit forgets a tar that is out of reach for a while, where a clip counts only if its
tar is listed, and where a stale listing decides what exists.
"""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from faults.out_histories import existing_snapshots, explore, named_by, objects
from small_output import SmallOutput, source_id

from curator.cli import main
from curator.errors import UsageError
from curator.storage import ObjectInfo, open_store
from curator.storage.local_store import LocalStore
from curator.tables.snapshot_store import read_snapshot
from curator.tools.commands.arguments import EXIT_OK
from curator.tools.removal.removing import begin_removal, plan_removal
from curator.tools.verify import verify


@pytest.fixture
def output(tmp_path: Path) -> SmallOutput:
    """Two snapshots: of the first only, a tar with clips that the second recipe rejects."""
    output = SmallOutput(tmp_path / "out", {1, 2, 3})
    output.run([1, 2])
    output.run([1, 2], recipe=1)
    return output


def summary(output: SmallOutput) -> dict[str, object]:
    newest = max(existing_snapshots(output.out))
    return read_snapshot(open_store(str(output.out)), newest)


def missing(output: SmallOutput) -> list[str]:
    named = named_by(existing_snapshots(output.out))
    return [name for name in sorted(named) if not (output.out / name).exists()]


def only_first(output: SmallOutput) -> list[Path]:
    first, second = existing_snapshots(output.out).values()
    return [output.out / name for name in named_by({1: first}) - named_by({2: second})]


@contextmanager
def stale(*prefixes: str, lacks: str = "") -> Iterator[None]:
    """Listings of some prefixes lack objects whose names contain a text."""
    real = LocalStore.list

    def listed(store: LocalStore, prefix: str = "") -> Iterator[ObjectInfo]:
        for info in real(store, prefix):
            if not prefix.startswith(prefixes) or lacks not in info.key:
                yield info

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "list", listed)
        yield


def test_a_tar_that_is_away_during_a_commit_keeps_its_name(output: SmallOutput) -> None:
    old = only_first(output)
    assert any(path.suffix == ".tar" for path in old)
    away = {path: path.read_bytes() for path in old}
    for path in away:
        path.unlink()
    output.run([1, 2, 3], recipe=1)
    for path, data in away.items():
        path.write_bytes(data)
    findings = verify(str(output.out), frames="none").findings
    assert not [finding for finding in findings if "delete" in finding.remedy]
    output.run([1, 2, 3])
    assert not missing(output)


def test_clips_count_although_their_tar_is_missing(output: SmallOutput) -> None:
    """The sources are gone too, so that nothing but a restored tar brings the clips back."""
    before = {
        p.relative_to(output.out): p.read_bytes() for p in output.out.rglob("*") if p.is_file()
    }
    shards = output.out / "shards"
    away = output.out.parent / "away"
    shutil.move(shards, away)
    output.sources = {3}
    for named in ([3], [1, 2, 3]):
        with pytest.raises(UsageError, match="would leave the shards") as error:
            output.run(named, recipe=1)
        assert "restore the missing tars (1 tar, such as shards/" in str(error.value)
    if shards.exists():
        shutil.rmtree(shards)
    shutil.move(away, shards)
    after = {name: (output.out / name).read_bytes() for name in before}
    assert after == before
    output.run([3], recipe=1)
    assert summary(output)["counts"]["clips"] == 9
    assert not missing(output)


def test_a_stale_listing_of_tars_loses_no_clip(output: SmallOutput) -> None:
    output.sources = set()
    kept = summary(output)["counts"]["kept"]
    output.sources = {3}
    with stale("shards/"):
        output.run([3], recipe=1)
    assert summary(output)["counts"]["kept"] >= kept
    assert not missing(output)


def test_a_stale_listing_of_snapshots_breaks_no_chain(output: SmallOutput) -> None:
    for lacks in ("00000001", "00000002", "0000000"):
        with stale("snapshots/", lacks=lacks):
            output.run([1, 2, 3], recipe=int(lacks == "00000002"))
        numbers = sorted(existing_snapshots(output.out))
        assert numbers == list(range(1, len(numbers) + 1))
        newest = summary(output)
        assert newest["previous"]["snapshot"] == len(numbers) - 1
    assert not missing(output)
    assert verify(str(output.out), frames="none").is_well


@pytest.mark.parametrize("lacks", ["00000001", "00000002"])
def test_clean_asks_for_snapshots_that_a_listing_lacks(output: SmallOutput, lacks: str) -> None:
    output.run([1, 2, 3])
    with stale("snapshots/", lacks=lacks):
        output.clean(2)
    assert sorted(existing_snapshots(output.out)) == [2, 3]
    assert not missing(output)
    with stale("snapshots/", lacks="00000003"):
        output.clean(1)
    assert sorted(existing_snapshots(output.out)) == [3]
    assert not missing(output)
    assert verify(str(output.out), frames="none").is_well


def test_clean_refuses_if_a_snapshot_that_should_stay_is_lost(output: SmallOutput) -> None:
    output.run([1, 2, 3])
    (output.out / "snapshots" / "00000002.json").unlink()
    before = objects(output.out)
    with pytest.raises(UsageError, match=r"00000002\.json is lost.*restore it from a copy"):
        output.clean(2)
    assert objects(output.out) == before
    output.clean(1)
    assert sorted(existing_snapshots(output.out)) == [3]


@pytest.mark.long
def test_a_removal_names_a_way_on_if_a_snapshot_is_lost(output: SmallOutput) -> None:
    (output.out / "snapshots" / "00000001.json").unlink()
    with pytest.raises(UsageError, match=r"00000001\.json is lost.*`curate clean OUT` removes"):
        output.remove(1)
    store = open_store(str(output.out))
    output.run([1, 2, 3])
    output.clean(2)
    begin_removal(store, plan_removal(store, "sources", [source_id(1)]))
    (output.out / "snapshots" / "00000002.json").unlink()
    with pytest.raises(UsageError, match=r"00000002\.json is lost.*--give-up-lost"):
        output.finish_removal()
    assert main(["remove", str(output.out), "--give-up-lost"]) == EXIT_OK
    assert main(["verify", str(output.out), "--removed"]) == EXIT_OK


def test_nothing_is_removed_while_a_snapshot_is_lost(
    output: SmallOutput, caplog: pytest.LogCaptureFixture
) -> None:
    """A tar that no readable snapshot names may be one of the lost snapshot."""
    first = output.out / "snapshots" / "00000001.json"
    data = first.read_bytes()
    (tar,) = (path for path in only_first(output) if path.suffix == ".tar")
    copy = tar.with_name(tar.name.replace("train-000000", "train-000007"))
    shutil.copy(tar, copy)
    first.unlink()
    with caplog.at_level(logging.WARNING):
        output.run([1, 2, 3], recipe=1)
    assert copy.exists()
    assert "00000001.json may name them" in caplog.text
    first.write_bytes(data)
    output.run([1, 2, 3], recipe=2)
    assert not copy.exists()
    assert not missing(output)


def test_nothing_goes_on_while_the_newest_commit_is_lost(output: SmallOutput) -> None:
    """Both its snapshot and `summary.json` are lost; the manifest still names its tars."""
    output.run([1, 2, 3])
    lost = {name: output.out / name for name in ("snapshots/00000003.json", "summary.json")}
    away = {path: path.read_bytes() for path in lost.values()}
    for path in away:
        path.unlink()
    before = objects(output.out)
    for command in (
        lambda: output.run([2]),
        lambda: output.clean(1),
        lambda: output.remove(1),
    ):
        with pytest.raises(UsageError, match=r"restore snapshots and summary\.json"):
            command()
    assert objects(output.out) == before
    for path, data in away.items():
        path.write_bytes(data)
    output.run([2])
    assert not missing(output)
    assert summary(output)["counts"]["clips"] == 9


@pytest.mark.long
def test_a_damaged_snapshot_is_not_removed(output: SmallOutput) -> None:
    first = output.out / "snapshots" / "00000001.json"
    data = first.read_bytes()
    first.write_bytes(data[:-9])
    output.run([1, 2, 3], recipe=1)
    first.write_bytes(data)
    output.run([1, 2, 3], recipe=2)
    assert not missing(output)


@pytest.mark.long
@pytest.mark.parametrize(
    ("n_moves", "expected"),
    [((3, 2, 2), 12), ((3, 2, 2, 2), 24)],
)
def test_random_histories(tmp_path: Path, n_moves: tuple[int, ...], expected: int) -> None:
    """A sample of `benchmarks/histories.py`."""
    n_histories, violations = explore(tmp_path, 1, n_moves)
    assert not violations, "\n".join(violations[:5])
    assert n_histories == expected
