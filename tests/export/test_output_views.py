"""Views: each index names exactly the chosen samples, whatever a removal takes out of them."""

import json
import os
import sqlite3
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_output import SmallOutput, clip_id

from curator.cli import main
from curator.dataset.reader_indexes import MemberPlaces
from curator.errors import UsageError
from curator.export.output_views import Choice, make_view
from curator.storage import open_store
from curator.storage.local_store import LocalStore
from curator.tables.view_store import delete_view, read_views
from curator.tools.verify import verify, verify_removed
from curator.tools.verify.findings import FindingCode

OF_ONE = "source_uri LIKE '%/1.mp4'"


@pytest.fixture
def output(tmp_path: Path) -> SmallOutput:
    made = SmallOutput(tmp_path / "out", {1, 2, 3})
    made.run({1, 2})
    made.run({1, 2, 3})
    return made


def by_table(view: Path) -> set[str]:
    return set(pq.read_table(view / "dataset.parquet")["clip_id"].to_pylist())


def by_webshart(view: Path) -> set[str]:
    """As webshart: the entries of each index, at their places in the tar of the same name."""
    keys = set()
    for path in (view / "webshart").rglob("*.json"):
        tar = view.parents[1] / "shards" / path.parent.name / f"{path.stem}.tar"
        data = tar.read_bytes()
        with tarfile.open(tar) as opened:
            members = {member.name: member for member in opened.getmembers()}
        for name, entry in json.loads(path.read_bytes())["files"].items():
            assert (entry["offset"], entry["length"]) == (
                members[name].offset_data, members[name].size,
            )  # fmt: skip
            start, end = entry["json_offset"], entry["json_offset"] + entry["json_length"]
            assert json.loads(data[start:end])["key"] == name.partition(".")[0]
            assert entry["captions"]
            keys.add(name.partition(".")[0])
    return keys


def by_diffusion_pipe(view: Path) -> set[str]:
    """As diffusion-pipe: members of tars next to `captions.json` that it names."""
    keys = set()
    for path in (view / "diffusion-pipe").rglob("captions.json"):
        named = json.loads(path.read_text())
        for tar in path.parent.glob("*.tar"):
            with tarfile.open(tar) as opened:
                keys |= {n.partition(".")[0] for n in opened.getnames() if n in named}
        assert all(len(captions) == 1 for captions in named.values())
    return keys


def by_energon(view: Path) -> set[str]:
    """As Energon: samples of the listed tars that are not excluded."""
    folder = view / "energon"
    lines = (folder / ".nv-meta" / "split.yaml").read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("exclude"))
    excluded = {line[2:] for line in lines[at + 1 :]}
    counts = json.loads((folder / ".nv-meta" / ".info.json").read_text())["shard_counts"]
    keys = set()
    for name in (line[4:] for line in lines[:at] if line.startswith("  - ")):
        with tarfile.open(folder / name) as opened:
            of_tar = {member.partition(".")[0] for member in opened.getnames()}
        assert counts[name] == len(of_tar)
        keys |= {key for key in of_tar if f"{name}/{key}" not in excluded}
    return keys


def by_sqlite(view: Path) -> set[str]:
    """As Energon's joins: the database has the place of each sample and of each member."""
    path = view / "energon" / ".nv-meta" / "index.sqlite"
    if not path.exists():
        return set()
    tars = list(json.loads(path.with_name(".info.json").read_text())["shard_counts"])
    with sqlite3.connect(path) as database:
        rows = database.execute(
            "SELECT sample_key, part_name, s.tar_file_id, content_byte_offset, content_byte_size "
            "FROM samples s JOIN sample_parts p USING (tar_file_id, sample_index)"
        ).fetchall()
    for key, part, tar, offset, size in rows:
        with tarfile.open(view / "energon" / tars[tar]) as opened:
            member = opened.getmember(f"{key}.{part}")
        assert (offset, size) == (member.offset_data, member.size)
    return {row[0] for row in rows}


def by_wids(view: Path) -> set[str]:
    """As wids: numbers of samples in the list of tars."""
    keys = set()
    for path in view.glob("wids-*.json"):
        index, every = json.loads(path.read_text()), []
        for shard in index["shardlist"]:
            with tarfile.open(view / shard["url"]) as opened:
                every += dict.fromkeys(n.partition(".")[0] for n in opened.getnames())
        keys |= {every[number] for number in index["samples"]}
    return keys


READERS: tuple[Callable[[Path], set[str]], ...] = (
    by_table, by_webshart, by_diffusion_pipe, by_energon, by_sqlite, by_wids,
)  # fmt: skip


def check_readers(out: Path, name: str, wanted: set[str]) -> None:
    for read in READERS:
        assert read(out / "views" / name) == wanted, read.__name__


def test_each_reader_sees_the_chosen_samples_and_no_removed_one(output: SmallOutput) -> None:
    """The tars of the view hold samples of all sources, so that readers must skip some."""
    store = open_store(str(output.out))
    ids = {clip_id(n, k) for n in (1, 2) for k in range(3)}
    some = f"clip_id IN ({', '.join(map(repr, sorted(ids)[::2]))})"
    make_view(store, "some", Choice(where=some))
    make_view(store, "all", Choice())
    make_view(store, "old", Choice(), snapshot=1)
    before = {info.key: info.version for info in store.list("views/some/")}
    check_readers(output.out, "some", set(sorted(ids)[::2]))
    check_readers(output.out, "old", ids)
    assert verify(str(output.out), frames="none").is_well

    output.remove(2)
    left = {clip_id(1, k) for k in range(3)}
    stays = by_table(output.out / "views" / "all")
    assert not stays & {clip_id(2, k) for k in range(3)}
    check_readers(output.out, "all", stays)
    check_readers(output.out, "some", set(sorted(ids)[::2]) & stays)
    check_readers(output.out, "old", left & stays)
    assert verify(str(output.out), frames="none").is_well
    assert verify_removed(str(output.out)).is_well
    gone = {view.name: view.where for view in read_views(store)}["some"]
    assert gone is not None
    assert gone.count("(removed)") == len(set(sorted(ids)[::2]) - stays) > 0
    links = [p for p in (output.out / "views").rglob("*.tar") if not p.exists()]
    assert not links
    assert before.keys() & {info.key for info in store.list("views/some/")}


@pytest.mark.long
def test_clean_keeps_the_snapshot_of_a_view(output: SmallOutput) -> None:
    store = open_store(str(output.out))
    output.run({1, 2, 3}, recipe=1)
    make_view(store, "second", Choice(), snapshot=2)
    wanted = by_table(output.out / "views" / "second")
    output.clean(1)
    assert [path.stem for path in sorted((output.out / "snapshots").glob("0*.json"))] == [
        "00000002", "00000003",
    ]  # fmt: skip
    check_readers(output.out, "second", wanted)
    assert delete_view(store, "second")
    output.clean(1)
    assert [path.stem for path in (output.out / "snapshots").glob("0*.json")] == ["00000003"]
    assert not list(store.list("views/"))


@pytest.mark.long
def test_a_damaged_view_is_found_and_not_trusted(output: SmallOutput) -> None:
    store = open_store(str(output.out))
    make_view(store, "one", Choice(where=OF_ONE))
    (path,) = (output.out / "views" / "one" / "webshart").rglob("*.json")
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"offset":', b'"offset": '))
    found = verify(str(output.out), frames="none").findings
    assert [finding.code for finding in found] == [FindingCode.VIEW]
    assert str(path) == found[0].path
    path.write_bytes(data)
    rows = pq.read_table(output.out / "views" / "one" / "dataset.parquet")
    pq.write_table(rows, output.out / "views" / "one" / "dataset.parquet")
    found = verify(str(output.out), frames="none").findings
    assert [finding.code for finding in found] == [FindingCode.VIEW]

    view = output.out / "views" / "one" / "view.json"
    os.truncate(view, 20)
    with pytest.raises(UsageError, match=r"--remove one` deletes the view"):
        output.clean(1)
    # A view that cannot be made again may name what is removed.
    output.remove(2)
    assert not list(store.list("views/"))


@pytest.mark.long
def test_a_view_is_gone_with_its_last_clip(output: SmallOutput) -> None:
    """A view without clips would keep its snapshot from `clean`, and readers refuse it."""
    store = open_store(str(output.out))
    make_view(store, "one", Choice(where=OF_ONE))
    make_view(store, "all", Choice())
    output.remove(1)
    assert [view.name for view in read_views(store)] == ["all"]
    assert not list(store.list("views/one/"))
    assert verify(str(output.out), frames="none").is_well


@pytest.mark.long
def test_a_killed_replacement_leaves_no_view(
    output: SmallOutput, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the facts of the old view would stand beside files of the new one."""
    store, out = open_store(str(output.out)), str(output.out)
    make_view(store, "some", Choice(where=OF_ONE))
    write, written = LocalStore.write, list[str]()

    def killed(self: LocalStore, key: str, data: bytes) -> None:
        if key.startswith("views/"):
            if len(written) == 2:
                raise KeyboardInterrupt
            written.append(key)
        write(self, key, data)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            make_view(store, "some", Choice())
    assert len(written) == 2
    assert not read_views(store)
    assert [f.code for f in verify(out, frames="none").findings] == [FindingCode.VIEW]
    # It is no view, so a further one of this name replaces none.
    assert main(["views", out, "some"]) == 0
    assert "some: " in capsys.readouterr().out
    check_readers(output.out, "some", by_table(output.out / "views" / "some"))
    assert verify(out, frames="none").is_well


def test_a_view_without_samples_is_refused(output: SmallOutput) -> None:
    store = open_store(str(output.out))
    with pytest.raises(UsageError, match="no sample of snapshot 2"):
        make_view(store, "none", Choice(split="val"))
    with pytest.raises(UsageError, match="no samples in the bucket '9p'; expected of: 36p_16-9_4f"):
        make_view(store, "none", Choice(buckets=("9p",)))
    with pytest.raises(UsageError, match=r"'\.\./x' is no name of a view"):
        make_view(store, "../x", Choice())
    assert not list(store.list("views/"))


def test_places_are_those_of_the_tar(output: SmallOutput) -> None:
    rows = pq.read_table(output.out / "shards" / "dataset.parquet")
    places = MemberPlaces.of(rows)
    assert places is not None
    for number, row in enumerate(rows.to_pylist()):
        with tarfile.open(output.out / "shards" / row["shard"]) as opened:
            own = [m for m in opened.getmembers() if m.name.startswith(row["clip_id"])]
        assert [m.offset_data for m in own] == places.starts[places.sample == number].tolist()
        assert places.begins[number] == own[0].offset
    of_older = rows.set_column(
        rows.schema.get_field_index("members"), "members", pa.nulls(rows.num_rows, pa.string())
    )
    assert MemberPlaces.of(of_older) is None
