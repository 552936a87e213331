"""What `curate remove` takes out is nowhere under OUT, in no snapshot, and does not come back."""

import base64
import hashlib
import itertools
import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from botocore.exceptions import ClientError
from captioned import Captioned
from removable import LIKE, SHARED

import curator
from curator.cli import main
from curator.installation import install_extra
from curator.storage import open_store, s3_client
from curator.storage.local_store import LocalStore
from curator.tables import key_index
from curator.tables.out_layout import LEASE, is_own
from curator.tables.removal_records import read_removals
from curator.tables.snapshot_store import read_snapshot, snapshot_numbers
from curator.tools.commands.arguments import EXIT_BROKEN_OFF, EXIT_FAILED, EXIT_OK, EXIT_USAGE
from curator.tools.verify.removed_check import found_in

Row = dict[str, Any]


def rows_of(out: Path, table: str = "clips") -> list[list[Row]]:
    """Rows of a table of each snapshot."""
    store = open_store(str(out))
    return [
        [
            row
            for part in read_snapshot(store, number)["tables"].get(table, ())
            for row in pq.ParquetFile(out / part).read().to_pylist()
        ]
        for number in snapshot_numbers(store)
    ]


def kept(out: Path) -> list[Row]:
    """Kept clips of all snapshots, each once."""
    found = {c["clip_id"]: c for rows in rows_of(out) for c in rows if c["decision"] == "kept"}
    return sorted(found.values(), key=lambda clip: (clip["source_uri"], clip["start_s"]))


def of_film(clips: Iterable[Row], number: int) -> list[Row]:
    return [clip for clip in clips if Path(clip["source_uri"]).stem == str(number)]


def mp4_of(out: Path, clip: Row) -> bytes:
    data = (out / clip["shard"]).read_bytes()
    return data[clip["mp4_offset"] : clip["mp4_offset"] + clip["mp4_bytes"]]


def thumbnails(out: Path, ids: set[str]) -> list[list[bytes]]:
    return [
        row["jpeg"]
        for path in (out / "candidates" / "pictures").glob("*.parquet")
        for row in pq.ParquetFile(path).read().to_pylist()
        if row["clip_id"] in ids
    ]


def needles_of(out: Path, clips: list[Row], *, sources: bool = False) -> list[bytes]:
    """All that may not be found any more of some clips."""
    ids = {clip["clip_id"] for clip in clips}
    found = [clip["clip_id"].encode() for clip in clips]
    found += [clip["caption"].encode() for clip in clips]
    for clip in clips:
        mp4 = mp4_of(out, clip)
        assert hashlib.sha256(mp4).hexdigest() == clip["mp4_sha256"]
        found += [mp4, mp4[len(mp4) // 2 :][:400]]
    pictures = [jpeg for jpegs in thumbnails(out, ids) for jpeg in jpegs]
    assert pictures
    found += pictures + [base64.b64encode(jpeg) for jpeg in pictures]
    if sources:
        found += [clip["source_id"].encode() for clip in clips]
    return found


def cells(value: object) -> Iterator[bytes]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield str(key).encode()
            yield from cells(one)
    elif isinstance(value, list) and not (value and isinstance(value[0], float)):
        for one in value:
            yield from cells(one)
    elif isinstance(value, bytes):
        yield value
    elif isinstance(value, str):
        yield value.encode()


def search(out: Path, needles: list[bytes]) -> list[tuple[str, bytes]]:
    """Looks at every byte under a folder, and at every cell of its tables."""
    hits = []
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        texts = [str(path).encode(), path.read_bytes()]
        if path.suffix == ".parquet":
            file = pq.ParquetFile(path)
            own = file.metadata.metadata or {}
            texts += [*own.values(), b"\n".join(cells(file.read().to_pylist()))]
        hits += [(str(path), needle[:40]) for needle in needles for t in texts if needle in t]
    return hits


def tars(out: Path) -> dict[str, str]:
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (out / "shards").rglob("*.tar*")
    }


def remove(out: Path, by: str, text: str, *more: str) -> int:
    names = out.parent / "names.txt"
    names.write_text(text)
    return main(["remove", str(out), f"--{by}", str(names), *more])


def check_all(out: Path) -> None:
    """All snapshots and the files at fixed paths are whole."""
    for number in snapshot_numbers(open_store(str(out))):
        assert main(["verify", str(out), "--snapshot", str(number)]) == EXIT_OK
    assert main(["verify", str(out)]) == EXIT_OK
    assert main(["verify", str(out), "--removed"]) == EXIT_OK


def test_a_removed_clip_is_nowhere_and_does_not_come_back(place: Captioned) -> None:
    """Pins that other tars stay, that a run writes the same, and that no recipe has it back."""
    out = place.out
    place.run(*SHARED)
    clips = kept(out)
    victim = of_film(clips, 3)[1]
    needles = needles_of(out, [victim])
    assert main(["report", str(out)]) == EXIT_OK
    assert victim["clip_id"] in {path.stem for path in (out / "report" / "previews").iterdir()}
    assert is_own(f"report/previews/{victim['clip_id']}.mp4")
    assert {needle for _, needle in search(out, needles)} == {n[:40] for n in needles}
    before, holding = tars(out), {
        clip["shard"] for rows in rows_of(out) for clip in rows
        if clip["clip_id"] == victim["clip_id"] and clip["shard"]
    }  # fmt: skip
    assert remove(out, "clips", victim["clip_id"]) == EXIT_OK
    assert search(out, needles) == []
    after = tars(out)
    untouched = {n: h for n, h in before.items() if n.removesuffix(".idx") not in holding}
    assert untouched
    assert untouched.items() <= after.items()
    assert not holding & after.keys()
    record = json.loads((out / "removed" / "00000001.json").read_text())
    assert (out / "removed" / "00000001.finished.json").exists()
    assert (record["n_named"], record["named_by"]) == (1, "clips")
    files, asked = place.files(), place.n_asked()
    # The first run compares the other clips with the removed one, and stores this.
    summary, again = place.run(*SHARED), place.run(*SHARED)
    assert (place.files(), place.n_asked()) == (files, asked)
    assert (again["work"]["shards_written"], again["work"]["sources_analyzed"]) == (0, 0)
    same = ("counts", "tables", "shards", "indexes", "snapshot", "created_at", "earlier", "video_s")
    assert {name: again[name] for name in same} == {name: summary[name] for name in same}
    for max_s in (3, 2.5):
        if max_s == 2.5:
            # Decoded again, its thumbnails must not be stored again.
            place.forget("tracks")
        assert place.run(*SHARED, f"propose.max_s={max_s}")["work"]["clips_of_removed_footage"]
        assert search(out, needles) == []
        for clip in of_film(rows_of(out)[-1], 3):
            shared = min(clip["end_s"], victim["end_s"]) - max(clip["start_s"], victim["start_s"])
            assert shared < 0.05
    check_all(out)


@pytest.mark.long
def test_a_removed_source_is_nowhere_and_does_not_come_back(
    place: Captioned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that keys in the index do not bring back what parts lack that were written over."""
    out = place.out
    monkeypatch.setattr(key_index, "FEW_FOOTERS", 0)
    place.run(*SHARED, "propose.max_s=4")
    assert (out / "index").exists()
    clips = of_film(kept(out), 5)
    needles = needles_of(out, clips, sources=True)
    assert remove(out, "sources", clips[0]["source_uri"]) == EXIT_OK
    assert not list((out / "index").glob("*"))
    assert search(out, [*needles, clips[0]["source_uri"].encode()]) == []
    for more in ((), ("propose.max_s=3",)):
        place.run(*SHARED, *more)
        assert search(out, needles) == []
        (row,) = [row for row in rows_of(out, "sources")[-1] if row["uri"].endswith("5.mp4")]
        assert (row["outcome"], row["error_code"], row["source_id"]) == ("failed", "removed", None)
        assert "curate remove" in row["error_message"]
        assert not of_film(rows_of(out)[-1], 5)
        assert of_film(rows_of(out)[-1], 6)
    # The row that accounts for the source stays.
    sources = rows_of(out, "sources")[-1]
    assert main(["remove", str(out), "--finish"]) == EXIT_OK
    assert rows_of(out, "sources")[-1] == sources
    check_all(out)


@pytest.mark.long
@pytest.mark.parametrize("go", [pytest.param(False, marks=pytest.mark.long), True])
def test_duplicates_of_a_removed_clip_are_listed_and_go_if_asked(
    place: Captioned, capsys: pytest.CaptureFixture[str], go: bool
) -> None:
    out = place.out
    named = {c["duplicate_of"] for c in rows_of(out)[-1]} - {None}
    victim = next(clip for clip in kept(out) if clip["clip_id"] in named)
    copies = [c for c in rows_of(out)[-1] if c["duplicate_of"] == victim["clip_id"]]
    ids = {c["clip_id"] for c in copies}
    assert remove(out, "clips", victim["clip_id"], *(["--with-duplicates"] * go)) == EXIT_OK
    printed = capsys.readouterr().out
    assert ("rejected as duplicates of them, with rows that stay: " in printed) is not go
    assert ("--with-duplicates" in printed) is not go
    assert all((f"{c['clip_id']} of {c['source_uri']}" in printed) is not go for c in copies)
    orphans = [c for c in rows_of(out)[-1] if c["clip_id"] in ids]
    assert bool(orphans) is not go
    assert {(c["reason"], c["duplicate_of"]) for c in orphans} <= {("duplicate", None)}
    place.run(*SHARED, *LIKE)
    back = {c["clip_id"]: c for rows in rows_of(out) for c in rows}
    assert victim["clip_id"] not in back
    assert not go or not ids & back.keys()
    # It is a copy of removed footage, or of another clip that stays.
    newest = [c for c in rows_of(out)[-1] if c["clip_id"] in ids]
    assert {c["reason"] for c in newest} <= {"removed_before", "duplicate"}
    check_all(out)


@pytest.mark.long
def test_where_names_clips_and_opens_no_file(
    place: Captioned, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("duckdb")
    out = place.out
    clips = of_film(kept(out), 2)
    needles = needles_of(out, clips)
    before = place.files("")
    for wrong in (
        "no_such_column = 1",
        "clip_id IN (SELECT content FROM read_text('/etc/passwd'))",
        "true); SELECT (1",
    ):
        assert main(["remove", str(out), "--where", wrong]) == EXIT_USAGE
        error = capsys.readouterr().err
        assert "--where" in error
        is_unknown = "no_such_column" in wrong
        assert ("fails: no column 'no_such_column'; near: " in error) == is_unknown
    condition = "source_uri LIKE '%/2.mp4'"
    for same in (condition, "uri LIKE '%/2.mp4'"):
        assert main(["remove", str(out), "--where", same, "--dry-run"]) == EXIT_OK
        assert f"{len(clips)} clips in the shards" in capsys.readouterr().out
    assert place.files("") == before
    assert main(["remove", str(out), "--where", condition]) == EXIT_OK
    assert search(out, needles) == []
    assert condition.encode() not in (out / "removed" / "00000001.json").read_bytes()
    check_all(out)
    assert main(["remove", str(out), "--where", condition]) == EXIT_USAGE
    assert "nothing matches" in capsys.readouterr().err


def test_what_is_not_there_is_named_and_nothing_happens(
    place: Captioned, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = place.files("")
    known = kept(place.out)[0]
    ids = sorted({clip["clip_id"] for rows in rows_of(place.out) for clip in rows})
    alike = next(pair for pair in itertools.pairwise(ids) if pair[0][0] == pair[1][0])
    for by, text, error in (
        ("clips", f"{known['clip_id']}\nabcdef\n", "has no clip 'abcdef' in any snapshot"),
        (
            "clips",
            f"{known['clip_id']}\n{alike[0][0]}\n",
            f"line 2: {alike[0][0]!r} is no clip id",
        ),
        ("sources", "/films/none.mp4", "has no source '/films/none.mp4' in any snapshot"),
        ("clips", " \n", "has no names; expected a text file"),
    ):
        assert remove(place.out, by, text) == EXIT_USAGE
        assert error in capsys.readouterr().err
    assert main(["remove", str(place.out), "--finish"]) == EXIT_OK
    assert main(["verify", str(place.out), "--removed"]) == EXIT_USAGE
    assert "no records of removals" in capsys.readouterr().err
    for name in (known["clip_id"], known["clip_id"][:12]):
        assert remove(place.out, "clips", name, "--dry-run") == EXIT_OK
        printed = capsys.readouterr().out
        assert "would be removed: 1 clip in the shards" in printed
        assert f"such as {known['clip_id']} of {known['source_uri']}" in printed
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert main(["remove", str(place.out), "--where", "fps > 1", "--dry-run"]) == EXIT_USAGE
    error = capsys.readouterr().err
    assert install_extra("sql") in error
    assert error.count("\n") == 1
    assert place.files("") == before


class KilledError(Exception):
    """As if the process had ended."""


def killing(monkeypatch: pytest.MonkeyPatch, after: int) -> list[str]:
    """Ends the process at a change of the store; returns a list that gets names of changes."""
    changes: list[str] = []
    for name in ("write", "write_new", "create", "delete"):
        whole = getattr(LocalStore, name)

        def counted(store: LocalStore, key: Any, *more: Any, whole: Any = whole) -> Any:  # noqa: ANN401
            if key in (LEASE, [LEASE]):
                return whole(store, key, *more)
            if len(changes) == after:
                raise KilledError
            changes.append(str(key))
            return whole(store, key, *more)

        monkeypatch.setattr(LocalStore, name, counted)
    return changes


@pytest.mark.long
@pytest.mark.parametrize("n_steps", [None, 8])
def test_a_killed_removal_is_finished(
    place: Captioned,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    n_steps: int | None,
) -> None:
    """Pins that the result is the same wherever it was killed: after the record, and at the end."""
    out = place.out
    victims = [of_film(kept(out), 1)[0], of_film(kept(out), 3)[0]]
    names = "\n".join(clip["clip_id"] for clip in victims)
    needles = needles_of(out, victims)
    whole = out.parent / "whole"
    shutil.copytree(out, whole)
    with monkeypatch.context() as patch:
        changes = killing(patch, -1)
        assert remove(whole, "clips", names) == EXIT_OK
    assert len(changes) > 20
    assert search(whole, needles) == []
    expected = state_of(whole)
    untouched = out.parent / "untouched"
    shutil.copytree(out, untouched)
    # The first ones are what edited copies are known by, with a copy; the record comes next.
    steps = [8, len(changes) - 1]
    if n_steps is not None:
        steps = [7, 8, *range(9, len(changes) - 1, len(changes) // n_steps), len(changes) - 1]
    for step in steps:
        shutil.rmtree(out)
        shutil.copytree(untouched, out)
        with monkeypatch.context() as patch:
            killing(patch, step)
            with pytest.raises(KilledError):
                remove(out, "clips", names)
        if step in (steps[0], steps[-1]):
            assert place_refuses(place, capsys), step
            assert main(["verify", str(out), "--removed"]) == EXIT_FAILED
            assert main(["status", str(out)]) == EXIT_OK
            assert "a removal is not finished" in capsys.readouterr().out
        with monkeypatch.context() as patch:
            killing(patch, 4)
            with pytest.raises(KilledError):
                main(["remove", str(out), "--finish"])
        assert main(["remove", str(out), "--finish"]) == EXIT_OK
        assert state_of(out) == expected
    check_all(out)


def place_refuses(place: Captioned, capsys: pytest.CaptureFixture[str]) -> bool:
    """A run, a recaption and another removal ask for the first one to be finished."""
    capsys.readouterr()
    commands = [place.arguments(*SHARED), ["recaption", str(place.out)]]
    commands.append(["remove", str(place.out), "--clips", str(place.out.parent / "names.txt")])
    codes = [main(command) for command in commands]
    return codes == [EXIT_USAGE] * 3 and capsys.readouterr().err.count("--finish` first") == 3


def state_of(out: Path) -> dict[str, Any]:
    """The content of an output, without times of removals and versions of files."""

    def plain(path: Path) -> object:
        if is_record(path):
            record = json.loads(path.read_text())
            times = ("created_at", "finished", "written", "checksum")
            return {n: v for n, v in record.items() if n not in times}
        if path.suffix == ".json" and (path.parent.name == "snapshots" or path.parent == out):
            summary = json.loads(path.read_text())
            for shard in summary.get("shards", ()):
                shard.pop("versions", None)
            # Hashes follow from what is left out below, and `verify` compares them.
            for name in ("checksum", "objects", "previous", "head"):
                summary.pop(name, None)
            summary["removals"] = list(summary.get("removals", ()))
            return summary
        if path.parent.parent.name == "candidates" and path.parent.name == "sources":
            # Sizes of tracks are taken over where the process was not killed meanwhile.
            return pq.ParquetFile(path).read().drop_columns(["track_bytes"]).to_pylist()
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def is_record(path: Path) -> bool:
        is_json = path.suffix == ".json"
        return is_json and (path.parent.name == "removed" or path.name.startswith("removed-"))

    # The name of a copy is of its bytes, which have the time.
    return {
        "a copy" if path.name.startswith("removed-") else str(path.relative_to(out)): plain(path)
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }


@pytest.mark.long
def test_verify_finds_what_is_left(place: Captioned, capsys: pytest.CaptureFixture[str]) -> None:
    """Pins each kind of object, and each kind of thing that may be left in it."""
    out = place.out
    victim = of_film(kept(out), 1)[0]
    mp4, (jpeg, *_) = mp4_of(out, victim), thumbnails(out, {victim["clip_id"]})[0]
    old = shutil.copytree(out, out.parent / "old")
    assert remove(out, "clips", victim["clip_id"]) == EXIT_OK
    assert main(["verify", str(out), "--removed"]) == EXIT_OK
    printed = capsys.readouterr().out
    assert "nothing of what was removed is there" in printed
    assert "members of tars" in printed
    left = {
        "clip.mp4": mp4,
        "picture.jpg": jpeg,
        "page.html": f"<p title='{victim['caption'].upper()}'>".encode(),
        "notes.json": json.dumps([{"said": victim["caption"]}]).encode(),
        f"{victim['clip_id']}.bin": b"",
        "list.csv": b"1," + victim["clip_id"].encode() + b"\n",
        "x.tar": (old / victim["shard"]).read_bytes(),
    }
    folders = ("tracks/pictures", "candidates/vectors", "clips", "annotations", "replies")
    for folder in folders:
        left |= {f"{folder}/{path.name}": path.read_bytes() for path in (old / folder).iterdir()}
    for name, data in left.items():
        path = out / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    store = open_store(str(out))
    found = set(found_in(store, read_removals(store), [f"mine/{name}" for name in left]))
    assert {f"mine/{name}" for name in left if "/" not in name} <= found
    assert all(any(name.startswith(f"mine/{folder}/") for name in found) for folder in folders)
    assert main(["verify", str(out), "--removed"]) == EXIT_FAILED
    shutil.rmtree(out / "mine")
    # As from a backup: objects that this package named.
    for path in [p for p in old.rglob("*") if p.is_file()]:
        if not (out / path.relative_to(old)).exists():
            shutil.copy(path, out / path.relative_to(old))
    assert main(["verify", str(out), "--removed"]) == EXIT_FAILED
    assert main(["remove", str(out), "--finish"]) == EXIT_OK
    check_all(out)


@pytest.mark.long
def test_a_mark_whose_writer_was_killed_is_named_and_taken_out(
    place: Captioned, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins a mark that was written after the removal's scrubbing, by a command that then died."""
    out = place.out
    victim = of_film(kept(out), 1)[0]
    assert main(["mark", str(out), victim["clip_id"], "--note", "secret"]) == EXIT_OK
    (path,) = (out / "marks").iterdir()
    written = {p: p.read_bytes() for p in (path, *(out / "copies" / "marks").iterdir())}
    assert remove(out, "clips", victim["clip_id"]) == EXIT_OK
    assert search(out, [b"secret"]) == []
    for name, data in written.items():
        name.write_bytes(data)
    capsys.readouterr()
    assert main(["verify", str(out), "--removed"]) == EXIT_FAILED
    printed = capsys.readouterr().out
    assert f"removed: {path}\n" in printed
    assert "`curate remove OUT --finish` takes it out again" in printed
    assert main(["remove", str(out), "--finish"]) == EXIT_OK
    assert search(out, [b"secret", victim["clip_id"].encode()]) == []
    assert main(["verify", str(out), "--removed"]) == EXIT_OK


@pytest.mark.long
def test_readers_read_what_is_left_until_nothing_is(place: Captioned, tmp_path: Path) -> None:
    out = place.out
    victims = of_film(kept(out), 2)
    assert remove(out, "sources", victims[0]["source_id"]) == EXIT_OK
    needles = [clip["clip_id"].encode() for clip in victims]
    for name in ("parquet", "wids", "cosmos"):
        assert main(["export", str(out), str(tmp_path / name), "--format", name]) == EXIT_OK
        assert search(tmp_path / name, needles) == []
    for number in (1, 2, 3):
        table = curator.read_clips(out, snapshot=number).to_arrow()
        assert table.num_rows == len([c for c in rows_of(out)[number - 1] if c["shard"]])
        assert not of_film(table.to_pylist(), 2)
    assert "2.mp4" not in (out / "report" / "index.html").read_text()
    clips = kept(out)
    needles = needles_of(out, clips, sources=True)
    assert remove(out, "sources", "\n".join({c["source_uri"] for c in clips})) == EXIT_OK
    assert search(out, needles) == []
    assert not list((out / "shards").rglob("*.tar"))
    assert main(["verify", str(out), "--removed"]) == EXIT_OK


@pytest.mark.long
def test_damaged_state_is_removed_and_stops_no_removal(place: Captioned) -> None:
    out = place.out
    victim = of_film(kept(out), 1)[0]
    needles = needles_of(out, [victim])
    for folder in ("scan", "replies", "tracks/pictures", "candidates/clips", "duplicate_pairs"):
        for path in (out / folder).iterdir():
            path.write_bytes(path.read_bytes()[:-9])
    assert remove(out, "clips", victim["clip_id"]) == EXIT_OK
    assert search(out, needles) == []
    place.run(*SHARED, *LIKE)
    assert search(out, needles) == []
    check_all(out)


@pytest.mark.long
def test_a_removal_from_s3(
    place: Captioned,
    s3_bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Pins requests, over the newest snapshot alone: there are fewer objects.

    A removal with an unfinished upload that cannot be aborted is not finished.
    """
    assert main(["clean", str(place.out), "--keep", "1"]) == EXIT_OK
    target = open_store(f"s3://{s3_bucket}/films")
    for path in (p for p in place.out.rglob("*") if p.is_file()):
        target.write(str(path.relative_to(place.out)), path.read_bytes())
    victim = of_film(kept(place.out), 1)[0]
    needles = needles_of(place.out, [victim])
    names = place.out.parent / "names.txt"
    names.write_text(victim["clip_id"])
    # What a killed writer left unfinished may hold the footage.
    client = s3_client.client()
    key = "films/shards/80p_4-3_17f/train-000009-00000000.tar"
    client.create_multipart_upload(Bucket=s3_bucket, Key=key)

    def refused(**_: object) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "Abort")

    with monkeypatch.context() as patch:
        patch.setattr(client, "abort_multipart_upload", refused)
        assert main(["remove", target.uri, "--clips", str(names)]) == EXIT_BROKEN_OFF
    error = capsys.readouterr().err
    assert f"of s3://{s3_bucket}/{key} (s3:AbortMultipartUpload): AccessDenied" in error
    assert f"then `curate remove {target.uri} --finish`" in error
    assert read_removals(target).unfinished
    assert main(["remove", target.uri, "--finish"]) == EXIT_OK
    assert "Uploads" not in client.list_multipart_uploads(Bucket=s3_bucket)
    assert not read_removals(target).unfinished
    copy = place.out.parent / "copy"
    for info in target.list():
        (copy / info.key).parent.mkdir(parents=True, exist_ok=True)
        (copy / info.key).write_bytes(target.read(info.key))
    assert search(copy, needles) == []
    assert main(["verify", target.uri]) == EXIT_OK
    assert main(["verify", target.uri, "--removed"]) == EXIT_OK
