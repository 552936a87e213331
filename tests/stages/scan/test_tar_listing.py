"""Tars among inputs: their members become sources, and tars of something else stay unread."""

import logging
import tarfile
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import pytest

from curator.errors import ErrorCode, UsageError
from curator.records.sources import Medium
from curator.stages.scan import tar_listing
from curator.stages.scan.listing_records import (
    FurtherSpan,
    Listed,
    ListedSource,
    SkippedName,
    UnlistedSource,
)
from curator.stages.scan.source_listing import list_sources
from curator.stages.scan.source_names import NameKind, is_output_tar, member_kind
from curator.storage import open_source, s3_client

BOTH = frozenset({Medium.VIDEO, Medium.IMAGE})


def write_tar(path: Path, names: Iterable[str], data: bytes = b"data") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, BytesIO(data))
    return path


def names(listed: Iterable[Listed], root: Path | str, kind: type = ListedSource) -> list[str]:
    return [item.uri.removeprefix(f"{root}/") for item in listed if isinstance(item, kind)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with a film, a tar of media, and tars of other things."""
    root = tmp_path / "in"
    write_tar(root / "b.tar", ["0/x.jpg", "0/x.json", "0/x.mask.png", "y.mp4", "._y.mp4", "z.txt"])
    write_tar(root / "code.tar", ["setup.py", "README"])
    write_tar(root / "empty.tar", [])
    (root / "noise.tar").write_bytes(b"\x1f\x8b\x08" + bytes(900))
    (root / "nothing.tar").write_bytes(b"")
    write_tar(root / "old/shards/720p_16-9_49f/train-000000-0123abcd.tar", ["k.mp4", "k.json"])
    (root / "a.mp4").write_bytes(b"film")
    (root / "c.mp4").write_bytes(b"film")
    return root


def test_a_folder_lists_members_in_place_of_their_tar(tree: Path) -> None:
    """Pins that a tar of something else, an output's or a broken one fails nothing."""
    found = list(list_sources([str(tree)], media=BOTH))
    assert names(found, tree) == ["a.mp4", "b.tar::0/x.jpg", "b.tar::y.mp4", "c.mp4"]
    assert names(found, tree, UnlistedSource) == []
    assert names(found, tree, SkippedName) == [
        "b.tar::0/x.json", "b.tar::0/x.mask.png", "b.tar::._y.mp4", "b.tar::z.txt", "code.tar",
        "empty.tar", "noise.tar", "nothing.tar",
        "old/shards/720p_16-9_49f/train-000000-0123abcd.tar",
    ]  # fmt: skip
    for item in found:
        if isinstance(item, ListedSource):
            with open_source(item.uri, expected_version=item.version) as stream:
                assert stream.read() in (b"data", b"film")
            assert (item.bytes, item.may_be_other) == (4, False)
    videos = list(list_sources([str(tree)]))
    assert names(videos, tree) == ["a.mp4", "b.tar::y.mp4", "c.mp4"]
    assert names(list_sources([str(tree)], limit=2), tree) == ["a.mp4", "b.tar::y.mp4"]


def test_tars_are_named_by_patterns_and_members_by_themselves(tree: Path) -> None:
    inside = "old/shards/720p_16-9_49f/train-000000-0123abcd.tar::k.mp4"
    for argument in ("*.tar", "b.tar", "b.tar::y.mp4", "[b]*"):
        assert names(list_sources([str(tree / argument)]), tree) == ["b.tar::y.mp4"]
    for argument in ("old/shards", "old/shards/*/*.tar", inside):
        assert names(list_sources([str(tree / argument)]), tree) == [inside]
    twice = [str(tree / "b.tar::y.mp4"), str(tree / "b.tar"), str(tree)]
    assert names(list_sources(twice), tree) == ["b.tar::y.mp4", "a.mp4", "c.mp4"]
    with pytest.raises(UsageError, match=r"does not exist: .*none.mp4' is not there"):
        list_sources([str(tree / "b.tar::none.mp4")])
    with pytest.raises(UsageError, match=r"has no video: 1 file .* name the folder `shards`"):
        list_sources([str(tree / "old")])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("code.tar", r"has no member that is curated by its name; .*scan\.media"),
        ("empty.tar", "has no member"),
        ("noise.tar", r"is compressed, .*decompress it \(gunzip"),
        ("nothing.tar", "is empty"),
    ],
)
def test_a_named_tar_must_have_a_source(tree: Path, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"input '.*{name}' {words}"):
        list_sources([str(tree / name)])
    (tree / "m.csv").write_text(f"uri,rating\n{name},4\n{tree / 'a.mp4'},5\n")
    failed, film = list_sources([str(tree / "m.csv")])
    assert isinstance(failed, UnlistedSource)
    assert (failed.uri, failed.code) == (str(tree / name), ErrorCode.BAD_TAR)
    assert isinstance(film, ListedSource)


def test_members_have_the_metadata_of_their_tar(tree: Path) -> None:
    (tree / "m.csv").write_text("uri,rating\nb.tar::y.mp4,5\nb.tar,4\nb.tar::0/x.jpg,3\n")
    found = list_sources([str(tree / "m.csv")], media=BOTH)
    ratings = {
        item.uri.partition("::")[2]: item.metadata["meta.rating"]
        for item in found
        if isinstance(item, ListedSource)
    }
    assert ratings == {"y.mp4": "5", "0/x.jpg": "4"}


def test_spans_of_members_stand_beside_tars_without_times(tree: Path) -> None:
    rows = "uri,start_s,end_s\nb.tar,,\nb.tar::y.mp4,0,2\nb.tar::y.mp4,2,\n"
    (tree / "m.csv").write_text(rows)
    found = list(list_sources([str(tree / "m.csv")], media=BOTH))
    assert [item.span.at.start_s for item in found if isinstance(item, FurtherSpan)] == [0, 2]
    assert "y.mp4" in {i.uri.partition("::")[2] for i in found if isinstance(i, ListedSource)}
    (tree / "m.csv").write_text("uri,start_s,end_s\nb.tar,0,2\n")
    for arguments in (["m.csv"], ["b.tar", "m.csv"]):
        with pytest.raises(UsageError, match=r"0 s to 2 s, but a tar has no time"):
            list(list_sources([str(tree / name) for name in arguments], media=BOTH))


def test_sidecars_of_members_become_metadata(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name, data in (("7.mp4", b"film"), ("7.json", b'{"Rating": 3}'), ("7.txt", b"a cat")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, BytesIO(data))
    found = list_sources([str(tmp_path / "x.tar")], sidecar_meta=True)
    (source,) = [item for item in found if isinstance(item, ListedSource)]
    assert source.metadata == {"meta.rating": 3, "meta.txt": "a cat"}


def test_what_is_wrong_in_a_tar_is_said_once(tree: Path) -> None:
    """Pins that readable members of a damaged tar are sources, beside the reason of the others."""
    path = write_tar(tree / "b.tar", ["1.mp4", "2.mp4", "2.mp4", "3.mp4", "/4.mp4", "5.py"])
    with path.open("rb+") as file:
        file.truncate(path.read_bytes().index(b"3.mp4") + 514)
    found = list(list_sources([str(path)]))
    assert names(found, path.parent) == ["b.tar::1.mp4"]
    reasons = {item.uri.removeprefix(f"{tree}/"): item.message for item in found
               if isinstance(item, UnlistedSource)}  # fmt: skip
    assert reasons.keys() == {"b.tar::2.mp4", "b.tar::3.mp4", "b.tar"}
    assert "several members" in reasons["b.tar::2.mp4"]
    assert "cut off" in reasons["b.tar"]
    nested = write_tar(tree / "x.tar::y.tar", ["1.mp4"])
    (failed,) = list_sources([str(nested.parent / "x.tar::y.*")])
    assert isinstance(failed, UnlistedSource)
    assert "rename it" in failed.message


def test_a_file_with_the_name_of_a_listed_member_is_left_out_aloud(
    tree: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tree / "b.tar::y.mp4").write_bytes(b"file")
    (tree / "b.tar::other.mp4").write_bytes(b"file")
    with caplog.at_level(logging.WARNING):
        found = names(list_sources([str(tree)]), tree)
    assert found == ["a.mp4", "b.tar::y.mp4", "b.tar::other.mp4", "c.mp4"]
    assert "a file and of a member of a tar" in caplog.text


def test_tars_in_a_bucket(s3_bucket: str, tree: Path) -> None:
    for path in sorted(tree.rglob("*.tar")):
        s3_client.client().upload_file(str(path), s3_bucket, f"set/{path.relative_to(tree)}")
    root = f"s3://{s3_bucket}/set"
    for argument in ("/set/", "/set/b.tar", "/set/*.tar", "/set/b.tar::y.mp4"):
        found = list(list_sources([f"s3://{s3_bucket}{argument}"], sidecar_meta=True))
        assert names(found, root) == ["b.tar::y.mp4"]
        assert names(found, root, UnlistedSource) == []
    inside = names(list_sources([f"{root}/old/shards/"]), root)
    assert inside == ["old/shards/720p_16-9_49f/train-000000-0123abcd.tar::k.mp4"]
    with pytest.raises(UsageError, match=r"b\.tar::none\.mp4' is not there"):
        list_sources([f"{root}/b.tar::none.mp4"])


def test_tars_are_read_ahead_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        write_tar(tmp_path / f"{number:02}.tar", ["a.mp4", "b.mp4"])
        (tmp_path / f"{number:02}x.mp4").write_bytes(b"")
    read: list[str] = []
    of_tar = tar_listing.of_tar

    def counted(tar: ListedSource, media: frozenset[Medium]) -> list[Listed]:
        read.append(tar.uri)
        return of_tar(tar, media)

    monkeypatch.setattr(tar_listing, "of_tar", counted)
    found = names(list_sources([str(tmp_path)]), tmp_path)
    assert found == [
        name for n in range(30) for name in (f"{n:02}.tar::a.mp4", f"{n:02}.tar::b.mp4",
                                             f"{n:02}x.mp4")
    ]  # fmt: skip
    read.clear()
    assert len(names(list_sources([str(tmp_path)], limit=2), tmp_path)) == 2
    assert len(read) <= tar_listing._TARS_AHEAD


def test_names_of_members_and_outputs() -> None:
    tar = {"7.jpg", "d/8.webm", "9.png"}
    kinds = {
        "7.mask.png": NameKind.OTHER, "9.mask.png": NameKind.OTHER, "8.mask.png": NameKind.SOURCE,
        "d/8.old.mp4": NameKind.OTHER, "my.film.mp4": NameKind.SOURCE, "7.jpg": NameKind.SOURCE,
        "a.json": NameKind.OTHER, "a.bin": NameKind.OTHER, "a": NameKind.OTHER,
        ".git/a.mp4": NameKind.OTHER, "../a.mp4": NameKind.SOURCE, "a.tar": NameKind.OTHER,
    }  # fmt: skip
    assert {name: member_kind(name, tar, BOTH) for name in kinds} == kinds
    assert is_output_tar("/shards/720p_16-9_49f/val-000012-0123abcd.tar")
    assert is_output_tar("out/shards/sides/latents/720p/train-000012-0123abcd.tar")
    assert not is_output_tar("shards/00012.tar")
    assert not is_output_tar("/train-000012-0123abcd.tar")
