"""`verify` reads one state of an output root, and its remedies lose no data.

Fails where a finding is an effect of a change during the check, where an older file in the place of
a newer one is not found, and where a remedy would remove what a snapshot or a run needs.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from captioned import work_here
from recorded_runs import Journal, finished, replay

from curator import read_clips
from curator.cli import main
from curator.errors import StorageError
from curator.loading.shard_reader import read_output
from curator.storage.local_store import LocalStore
from curator.tables.lease_holder import this_process
from curator.tables.out_layout import LEASE, PROGRESS
from curator.tools.commands.arguments import EXIT_OK
from curator.tools.verify import Verified, audit, verify
from curator.tools.verify.findings import Finding

ORPHAN = "shards/64p_4-3_17f/train-000007-0123abcd.tar"
"""A name of a tar that no snapshot names."""


def checked(out: Path, **options: Any) -> Verified:  # noqa: ANN401
    return verify(str(out), frames="none", **options)


def only(out: Path) -> Finding:
    (finding,) = checked(out).findings
    return finding


@pytest.fixture(scope="module")
def states(journals: dict[str, Journal], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output after each of some commands, by name; not to be changed."""
    folder = tmp_path_factory.mktemp("states")
    shutil.copytree(journals["growth"].begun, folder / "first")
    shutil.copytree(journals["recaption"].begun, folder / "older")
    finished(journals["recaption"], folder / "newest")
    for name, more in {
        "cleaned": ("clean",),
        "removed": ("remove", "--where", "width > 0"),
    }.items():
        shutil.copytree(folder / "newest", folder / name)
        assert main([more[0], str(folder / name), *more[1:]]) == EXIT_OK
        assert checked(folder / name).findings == []
    return folder


@pytest.fixture
def out(states: Path, tmp_path: Path) -> Path:
    return shutil.copytree(states / "newest", tmp_path / "out")


def become(out: Path, state: Path, *, but: str = "") -> None:
    """Writes and removes what differs from a state, except one object."""
    wanted = {str(p.relative_to(state)): p for p in state.rglob("*") if p.is_file()}
    for path in [p for p in out.rglob("*") if p.is_file()]:
        if (name := str(path.relative_to(out))) not in wanted and name != but:
            path.unlink()
    for name, path in wanted.items():
        is_same = (out / name).exists() and (out / name).read_bytes() == path.read_bytes()
        if not is_same and name != but:
            replay(out, name, path.read_bytes())


# One state -------------------------------------------------------------------------------------


class Reads:
    """Counts what is read of stores, and calls a function at one of the reads."""

    def __init__(self) -> None:
        self.n, self.at = 0, 0
        self.call: Callable[[], None] = lambda: None

    def __call__(self) -> None:
        self.n += 1
        if self.n == self.at:
            self.call()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    counted = Reads()

    def before(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: object) -> Any:  # noqa: ANN401
            counted()
            return call(*arguments)

        return counting

    for name in ("open", "read_versioned", "find", "list"):
        monkeypatch.setattr(LocalStore, name, before(getattr(LocalStore, name)))
    monkeypatch.setattr(audit, "PAUSES_S", (0.0,) * 4)
    return counted


CHANGES = [("older", "newest"), ("newest", "cleaned"), ("newest", "removed")]
"""A commit, a cleaning and a removal between two reads."""


@pytest.mark.parametrize("step", [61, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_change_between_two_reads_is_no_finding(
    states: Path, tmp_path: Path, reads: Reads, before: str, after: str, step: int
) -> None:
    out = tmp_path / "out"
    shutil.copytree(states / before, out)
    assert checked(out).findings == []
    n_reads = reads.n

    def change() -> None:
        become(out, states / after)

    for at in range(7, n_reads, step):
        become(out, states / before)
        reads.n, reads.at, reads.call = 0, at, change
        assert checked(out).findings == [], f"read {at} of {n_reads}"
        assert reads.n > n_reads / 2


def test_an_output_that_never_rests_is_named(states: Path, tmp_path: Path, reads: Reads) -> None:
    """Pins that no effect of a change is called a fault, and that real damage still is."""
    out = tmp_path / "out"
    shutil.copytree(states / "older", out)
    damaged = out / "snapshots/00000001.json"
    damaged.write_bytes(b"{}")
    names = cycle(["newest", "older"])

    def change() -> None:
        become(out, states / next(names), but="snapshots/00000001.json")
        reads.n = 0

    reads.at, reads.call = 70, change
    change()
    codes = {(str(f.code), f.path) for f in checked(out).findings}
    assert codes == {("changed", str(out)), ("hash", str(damaged))}


# Older files in the place of newer ones --------------------------------------------------------

OLDER = {
    "summary.json": "hash", "config.json": "hash", "shards/manifest.json": "hash",
    "shards/dataset.parquet": "size", "shards/wids-train.json": "size",
    "shards/.nv-meta/split.yaml": "size", "shards/.nv-meta/.info.json": "size",
    "shards/.nv-meta/index.sqlite": "hash", "shards/.nv-meta/index.uuid": "hash",
    "shards/120p_4-3_17f/.nv-meta/split.yaml": "interrupted", "shards/README.md": "size",
    "clips/part": "interrupted", "sources/part": "interrupted", "shots/part": "interrupted",
    "embeddings/part": "interrupted",
}  # fmt: skip
"""Each form of an older file that differs, and its finding. Objects in `snapshots/` and candidates
have names by content or number, so that no older one exists under the name of a newer one."""
UNCHECKED = ("report/", "tracks/", "scan/")
"""A page for people, which the next commit writes, and caches."""


def older_files(states: Path) -> Iterator[tuple[str, bytes]]:
    newest = states / "newest"
    for path in sorted(p for p in (states / "first").rglob("*") if p.is_file()):
        name = str(path.relative_to(states / "first"))
        is_same = (newest / name).exists() and (newest / name).read_bytes() == path.read_bytes()
        if not is_same and not name.startswith(UNCHECKED):
            yield name, path.read_bytes()


def test_each_older_file_in_the_place_of_a_newer_one_is_the_only_finding(
    states: Path, out: Path
) -> None:
    seen = set()
    for name, data in older_files(states):
        form = next((form for form in OLDER if name.startswith(form)), None)
        if form is None or form in seen:
            assert form or name.endswith((".md", ".yaml", ".json", ".sqlite", ".uuid")), name
            continue
        before = (out / name).read_bytes() if (out / name).exists() else None
        replay(out, name, data)
        finding = only(out)
        assert (str(finding.code), finding.path) == (OLDER[form], f"{out}/{name}")
        assert "delete" not in finding.remedy
        replay(out, name, before)
        seen.add(form)
    assert seen == OLDER.keys()


def test_an_older_lease_next_manifest_or_snapshot_is_found(states: Path, out: Path) -> None:
    mine = replace(this_process("run", 120), machine="elsewhere", renewed="2020-01-01T00:00+00:00")
    (out / LEASE).write_bytes(mine.to_bytes())
    assert (only(out).code, only(out).path) == ("interrupted", f"{out}/{LEASE}")
    (out / LEASE).write_bytes(b"{}")
    assert (only(out).code, only(out).path) == ("interrupted", f"{out}/{LEASE}")
    (out / LEASE).unlink()
    next_manifest = out / "shards/manifest.next.json"
    shutil.copy(states / "first/shards/manifest.json", next_manifest)
    assert (only(out).code, only(out).path) == ("hash", str(next_manifest))
    next_manifest.unlink()
    newest = out / "snapshots/00000004.json"
    shutil.copy(out / "snapshots/00000003.json", newest)
    assert (only(out).code, only(out).path) == ("hash", str(newest))
    shutil.rmtree(out)
    shutil.copytree(states / "cleaned", out)
    shutil.copy(states / "newest/snapshots/00000001.json", out / "snapshots")
    assert "curate clean" in only(out).remedy


# Advice ------------------------------------------------------------------------------------------


def held(out: Path) -> None:
    (out / LEASE).write_bytes(this_process("run", 120).to_bytes())


def failed(out: Path) -> None:
    (out / PROGRESS).write_text("{}")


def waits_for_a_commit(out: Path) -> None:
    (out / "cuts").mkdir(exist_ok=True)
    shutil.copy(next(out.glob("clips/*")), out / f"cuts/{'0' * 16}-{'0' * 16}.parquet")


def lost(out: Path) -> None:
    (out / "snapshots/00000002.json").unlink()


def unreadable(out: Path) -> None:
    (out / "snapshots/00000002.json").write_bytes(b"x")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda out: None, "the next `curate run` removes it"),
        (failed, "run the interrupted command again"),
        (waits_for_a_commit, "run the interrupted command again"),
        (lost, "because snapshots/00000002.json is missing"),
        (unreadable, "because snapshots/00000002.json cannot be read"),
    ],
)
def test_an_object_without_a_name_stays_until_nothing_can_need_it(
    out: Path, change: Callable[[Path], None], words: str
) -> None:
    (out / ORPHAN).write_bytes(b"x")
    change(out)
    (unnamed,) = [f for f in checked(out).findings if f.code == "unnamed"]
    assert unnamed.path == f"{out}/{ORPHAN}"
    assert words in unnamed.remedy
    (out / ORPHAN).rename(out / "shards/64p_4-3_17f/mine.tar")
    (unnamed,) = [f for f in checked(out).findings if f.code == "unnamed"]
    assert "did not write this object: move it" in unnamed.remedy


def test_tars_of_a_run_that_is_alive_are_no_finding(out: Path) -> None:
    (out / ORPHAN).write_bytes(b"x")
    held(out)
    # The process is alive, and no run of it has this lease: the run ended.
    assert {str(f.code) for f in checked(out).findings} == {"interrupted", "unnamed"}
    far = replace(this_process("run", 120), machine="elsewhere")
    (out / LEASE).write_bytes(far.to_bytes())
    assert checked(out).findings == []


def test_tars_of_earlier_snapshots_are_no_finding_without_their_list(out: Path) -> None:
    """Pins that the snapshots themselves are read, not only the summary's list of their objects."""
    for name in ("summary.json", "snapshots/00000004.json"):
        value = json.loads((out / name).read_bytes())
        del value["checksum"], value["earlier"]
        value.pop("head", None)
        (out / name).write_text(json.dumps(value))
    assert checked(out).findings == []


def test_the_remedy_of_a_damaged_tar_depends_on_its_sources(
    out: Path, journals: dict[str, Journal]
) -> None:
    tar = out / json.loads((out / "summary.json").read_bytes())["shards"][0]["name"]
    data = tar.read_bytes()
    tar.write_bytes(data[:600] + b"?" + data[601:])
    assert only(out).code == "hash"
    assert "all of these exist" in only(out).remedy
    source = journals["growth"].out.parent / "in" / "1.mp4"
    aside = source.rename(source.with_suffix(".aside"))
    try:
        assert "1 no longer exist, such as" in only(out).remedy
        assert f"{source} (" in only(out).remedy
        assert only(out).remedy.startswith("keep the object")
        tar.unlink()
        assert only(out).remedy.startswith("keep the object")
        tar.write_bytes(data)
        next(out.glob("candidates/clips/*")).write_bytes(b"x")
        assert "1 cannot be read, such as" in only(out).remedy
        assert only(out).remedy.startswith("keep what is there")
    finally:
        aside.rename(source)


@contextmanager
def refused(name: str) -> Iterator[None]:
    """Answers each request for one object as a service that gives no access."""
    with pytest.MonkeyPatch.context() as patch:
        for method in ("open", "read_versioned", "find"):
            call = getattr(LocalStore, method)

            def answer(self: LocalStore, key: str, call: Any = call) -> Any:  # noqa: ANN401
                if key == name:
                    raise StorageError(f"cannot read {self.uri}/{name}: 403 Forbidden")
                return call(self, key)

            patch.setattr(LocalStore, method, answer)
        yield


def test_an_object_that_the_storage_refuses_is_unreadable_and_nothing_else(out: Path) -> None:
    """One object of each kind: the only finding, without the word that it is lost."""
    kinds = {}
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        name = str(path.relative_to(out))
        if not name.startswith(UNCHECKED):
            kinds[name.rpartition("/")[0] + path.suffix] = name
    kinds |= {name: name for name in ("shards/manifest.json", "snapshots/00000001.json")}
    for name in kinds.values():
        with refused(name):
            finding = only(out)
        assert (str(finding.code), finding.path) == ("unreadable", f"{out}/{name}")
        assert "verify again; keep the object" in finding.remedy


def test_a_folder_without_access_does_not_count_as_empty(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("os.stat", denied)
    with pytest.raises(StorageError, match="Permission denied"):
        LocalStore(str(out)).exists("summary.json")


# Extra parts -----------------------------------------------------------------------------------


def test_an_extra_part_is_a_finding_until_the_next_commit(out: Path) -> None:
    (part,) = out.glob("clips/*.parquet")
    twice = part.with_name("part-00001-0123456789ab.parquet")
    shutil.copy(part, twice)
    finding = only(out)
    assert (str(finding.code), finding.path) == ("extra_part", str(twice))
    assert not checked(out).is_well
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        assert main(["recaption", str(out), "--set", "caption.enabled=false"]) == EXIT_OK
    assert not twice.exists()
    assert checked(out).findings == []


def test_an_object_of_another_program_in_the_folder_of_a_table_is_named(out: Path) -> None:
    for name in ("notes.parquet", ".hidden"):
        (out / "clips" / name).write_bytes(b"x")
    assert (only(out).code, only(out).path) == ("unnamed", f"{out}/clips/notes.parquet")
    assert "move it" in only(out).remedy


def test_readers_read_only_the_parts_that_the_summary_names(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An extra part that cannot be read: a reader that lists a folder would fail."""
    clip = read_clips(str(out)).to_arrow()["clip_id"][0].as_py()
    to = tmp_path / "to"
    commands = [
        ["explain", str(out), clip],
        ["tune", str(out), "filters.motion.min=0.01"],
        ["search", str(out), "--clip", clip],
        ["snapshots", str(out)],
        ["export", str(out), str(to), "--format", "parquet"],
        ["remove", str(out), "--where", "width > 0", "--dry-run"],
    ]
    before = []
    for is_second in (False, True):
        if is_second:
            shutil.rmtree(to)
            for table in ("clips", "sources", "shots", "embeddings"):
                (out / table / "part-00001-0123456789ab.parquet").write_bytes(b"x")
        n_samples = sum(shard.n_samples for shard in read_output(str(out), "train").shards)
        said = [n_samples, read_clips(str(out)).to_arrow().num_rows]
        for command in commands:
            said += [main(command), capsys.readouterr().out]
        before.append(said)
    assert before[0] == before[1]
    assert set(before[0][2::2]) == {EXIT_OK}
