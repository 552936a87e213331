"""Arguments become sources: in one order, each once, none dropped without a word."""

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from curator.errors import ErrorCode, StorageError, UsageError
from curator.stages.scan import source_listing as listing
from curator.stages.scan.listing_records import Listed, ListedSource, SkippedName, UnlistedSource
from curator.stages.scan.probe import scan_source
from curator.stages.scan.source_listing import ListedSources, list_sources
from curator.storage import ObjectInfo, open_source, s3_client
from curator.storage.s3_client import S3Service
from curator.tables.parts import rows_to_table
from curator.tables.schemas import SCAN_SCHEMA


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with videos, other files, hidden files and odd names."""
    root = tmp_path / "in"
    for name in [
        "b.mp4",
        "a/2.mov",
        "a/10.mov",
        "a/notes.TXT",
        "a-b.mkv",
        "a.webm",
        ".hidden.mp4",
        ".git/objects/x.mp4",
        "no extension",
        "sound.m4a",
        "picture.gif",
        "cover.jpg",
        "odd\nname #1 100%?.mp4",
        "ü/日本.mp4",
    ]:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return root


def uris(listed: Iterator[Listed], root: Path | str | None = None) -> list[str]:
    names = [item.uri for item in listed if not isinstance(item, SkippedName)]
    return names if root is None else [name.removeprefix(f"{root}/") for name in names]


def test_a_folder_is_listed_in_order_without_hidden_names(tree: Path) -> None:
    found = list(list_sources([str(tree)]))
    assert uris(iter(found), tree) == [
        "a-b.mkv",
        "a.webm",
        "a/10.mov",
        "a/2.mov",
        "b.mp4",
        "no extension",
        "odd\nname #1 100%?.mp4",
        "picture.gif",
        "sound.m4a",
        "ü/日本.mp4",
    ]
    skipped = [item.uri for item in found if isinstance(item, SkippedName)]
    assert skipped == [str(tree / "a/notes.TXT"), str(tree / "cover.jpg")]
    # What is listed opens with its version.
    for item in list_sources([str(tree)]):
        if isinstance(item, ListedSource):
            with open_source(item.uri, expected_version=item.version) as stream:
                assert len(stream.read()) == item.bytes
    # A file is a source whatever its name.
    for name in ("cover.jpg", ".hidden.mp4"):
        (item,) = list_sources([str(tree / name)])
        assert isinstance(item, ListedSource)


def test_each_uri_comes_once_under_its_absolute_path(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [str(tree / "b.mp4"), str(tree), str(tree / "a"), str(tree / "b.*")]
    found = uris(list_sources(arguments), tree)
    assert found[0] == "b.mp4"
    assert sorted(found) == sorted(set(found))
    assert set(found) == set(uris(list_sources([str(tree)]), tree))
    # All files under a pattern of folders come once.
    assert sorted(uris(list_sources([str(tree / "**")]))) == sorted(uris(list_sources([str(tree)])))
    everything = sorted(uris(list_sources([str(tree / "**/*")])))
    assert everything == sorted(uris(list_sources([str(tree)])))
    # Limit counts sources and not skipped names.
    assert len(uris(list_sources([str(tree)], limit=3))) == 3
    assert list(list_sources([str(tree)], limit=0)) == []
    assert len(uris(list_sources([str(tree)], limit=1000))) == 10
    with pytest.raises(UsageError, match="limit is -1"):
        list_sources([str(tree)], limit=-1)
    # Paths become absolute and normal and links stay.
    monkeypatch.chdir(tree)
    (tree / "link.mp4").symlink_to(tree / "b.mp4")
    assert uris(list_sources(["./a/../b.mp4", "link.mp4"]), tree) == ["b.mp4", "link.mp4"]
    assert uris(list_sources([f"//{tree}//b.mp4"]), tree) == ["b.mp4"]
    assert uris(list_sources(["."]))[0] == str(tree / "a-b.mkv")
    # A file with the name of a pattern wins.
    (tree / "a[1]*.mp4").write_bytes(b"")
    (tree / "a1x.mp4").write_bytes(b"")
    assert uris(list_sources([str(tree / "a[1]*.mp4")]), tree) == ["a[1]*.mp4"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.mp4", ["b.mp4", "odd\nname #1 100%?.mp4"]),
        ("a/*", ["a/10.mov", "a/2.mov"]),
        ("a*", ["a/10.mov", "a/2.mov", "a-b.mkv", "a.webm"]),
        ("?.mp4", ["b.mp4"]),
        ("[ab].*", ["a.webm", "b.mp4"]),
        ("**/*.mov", ["a/10.mov", "a/2.mov"]),
        ("**/日*", ["ü/日本.mp4"]),
        ("**/.*.mp4", [".hidden.mp4"]),
        (".git/**", [".git/objects/x.mp4"]),
        ("*/2.mov", ["a/2.mov"]),
    ],
)
def test_patterns(tree: Path, pattern: str, expected: list[str]) -> None:
    assert uris(list_sources([str(tree / pattern)]), tree) == expected
    (tree / "a" / "2.mov").rename(tree / "a" / "2.mov")
    assert uris(list_sources([f"{tree}//{pattern}"]), tree) == expected


def test_links_are_followed_and_loops_end(tree: Path, tmp_path: Path) -> None:
    (tree / "a" / "loop").symlink_to(tree)
    (tree / "0inside").symlink_to(tree / "a")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "v.mp4").write_bytes(b"")
    (outside / "back").symlink_to(tree)
    (tree / "zlink").symlink_to(outside)
    (tree / "zlink2").symlink_to(outside)
    (tree / "store").symlink_to(tree / ".git")
    found = uris(list_sources([str(tree)]), tree)
    assert "a/2.mov" in found
    assert [name for name in found if name.startswith(("0", "s", "z"))] == [
        "sound.m4a",
        "store/objects/x.mp4",
        "zlink/v.mp4",
    ]


def test_what_cannot_be_read_is_listed_as_failed(tree: Path) -> None:
    (tree / "broken.mp4").symlink_to(tree / "none")
    (tree / "circle.mp4").symlink_to(tree / "circle.mp4")
    os.mkfifo(tree / "pipe.mp4")
    failed = {
        Path(item.uri).name: item.code
        for item in list_sources([str(tree)])
        if isinstance(item, UnlistedSource)
    }
    assert failed == {
        "broken.mp4": ErrorCode.VANISHED,
        "circle.mp4": ErrorCode.UNREADABLE,
        "pipe.mp4": ErrorCode.UNREADABLE,
    }


def test_a_name_that_is_not_text_is_listed_as_failed_under_a_name_that_is(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/bad\xff.mp4", "wb"):
        pass
    (item,) = list_sources([str(tmp_path)])
    assert isinstance(item, UnlistedSource)
    assert item.uri == f"{tmp_path}/bad\\xff.mp4"
    assert item.code is ErrorCode.UNREADABLE
    assert "rename it" in item.message
    item.message.encode()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_a_folder_without_permission_is_listed_as_failed(tree: Path) -> None:
    (tree / "a").chmod(0)
    try:
        failed = [item for item in list_sources([str(tree)]) if isinstance(item, UnlistedSource)]
    finally:
        (tree / "a").chmod(0o700)
    assert [(item.uri, item.code) for item in failed] == [(str(tree / "a"), ErrorCode.UNREADABLE)]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("none.mp4", "does not exist"),
        ("*.none", "matches no files"),
        ("empty", "has no files"),
        ("link", "is a broken link"),
        ("pipe", "is neither a file nor a folder"),
        ("empty.txt", "names no sources"),
    ],
)
def test_arguments_that_name_nothing_are_errors_before_the_first_item(
    tree: Path, argument: str, message: str
) -> None:
    (tree / "empty").mkdir()
    (tree / "empty.txt").write_text("\n# nothing\n")
    (tree / "link").symlink_to("nowhere")
    os.mkfifo(tree / "pipe")
    with pytest.raises(UsageError, match=f"{argument.replace('*', '.')}.*{message}"):
        list_sources([str(tree / "b.mp4"), str(tree / argument)])


@pytest.mark.parametrize("argument", ["", "ftp://bucket/x", "s3://", "s3:///k"])
def test_arguments_of_other_kinds_are_errors(argument: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        list_sources([argument])
    with pytest.raises(UsageError, match="no inputs"):
        list_sources([])


KEYS = [
    "set/a.mp4",
    "set/deep/b.mov",
    "set/.hidden/c.mp4",
    "set/deep/.d.mp4",
    "set/notes.json",
    "set/odd #1 100%? ü.mp4",
    "set/e[1].mp4",
    "set/e1.mp4",
    "set2/f.mp4",
]


@pytest.fixture(params=["moto", pytest.param("real", marks=pytest.mark.needs_s3)])
def bucket(request: pytest.FixtureRequest) -> str:
    name = "s3_bucket" if request.param == "moto" else "real_s3_bucket"
    bucket: str = request.getfixturevalue(name)
    for key in KEYS:
        s3_client.client().put_object(Bucket=bucket, Key=key, Body=key.encode())
    for marker in ("set/", "set/folder/"):
        s3_client.client().put_object(Bucket=bucket, Key=marker, Body=b"")
    return bucket


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("set/a.mp4", ["set/a.mp4"]),
        ("set/notes.json", ["set/notes.json"]),
        ("set/deep/.d.mp4", ["set/deep/.d.mp4"]),
        ("set/deep", ["set/deep/b.mov"]),
        ("set2/", ["set2/f.mp4"]),
        ("set2*", ["set2/f.mp4"]),
        (
            "se*/*.mp4",
            ["set/a.mp4", "set/e1.mp4", "set/e[1].mp4", "set/odd #1 100%? ü.mp4", "set2/f.mp4"],
        ),
        ("**/*.mov", ["set/deep/b.mov"]),
        ("set/**/b.*", ["set/deep/b.mov"]),
        ("set/*/.d*", ["set/deep/.d.mp4"]),
        ("set/e[1].mp4", ["set/e[1].mp4"]),
        ("set/e[1]*", ["set/e1.mp4"]),
        ("set/?.mp4", ["set/a.mp4"]),
    ],
)
def test_objects_prefixes_and_patterns_on_s3(
    bucket: str, argument: str, expected: list[str]
) -> None:
    found = list(list_sources([f"s3://{bucket}/{argument}"]))
    assert uris(iter(found), f"s3://{bucket}") == expected
    for item in found:
        assert isinstance(item, ListedSource)
        with open_source(item.uri, expected_version=item.version) as stream:
            assert len(stream.read()) == item.bytes


def test_a_bucket_is_listed_whole_or_missing(bucket: str) -> None:
    found = list(list_sources([f"s3://{bucket}"]))
    assert uris(iter(found), f"s3://{bucket}") == sorted(
        key for key in KEYS if "/." not in key and not key.endswith("json")
    )
    assert [item.uri for item in found if isinstance(item, SkippedName)] == [
        f"s3://{bucket}/set/notes.json"
    ]
    assert list(list_sources([f"s3://{bucket}/"])) == found
    # A missing bucket is an error with a remedy.
    for argument in ("", "/", "/key", "/pre*"):
        with pytest.raises(UsageError, match=f"input .*there is no such bucket.*{bucket}-none"):
            list_sources([f"s3://{bucket}-none{argument}"])


@pytest.mark.parametrize("argument", ["none", "se", "set/none*", "none/", "**/none"])
def test_nothing_on_s3_is_an_error_with_a_remedy(bucket: str, argument: str) -> None:
    with pytest.raises(UsageError, match=r"matches no objects|no objects under it; .* append"):
        list_sources([f"s3://{bucket}/{argument}"])


def test_a_listing_that_breaks_off_is_an_error_in_the_stream(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: S3Service, bucket: str, prefix: str) -> Iterator[ObjectInfo]:
        yield ObjectInfo(key="a", bytes=1, version="v")
        raise OSError("connection lost")

    monkeypatch.setattr(S3Service, "list", broken)
    stream = list_sources([f"s3://{s3_bucket}"])
    assert next(stream).uri == f"s3://{s3_bucket}/a"
    with pytest.raises(StorageError, match="connection lost"):
        next(stream)


@pytest.mark.parametrize("argument", ["", "/set*", "/set/**/*.mp4"])
def test_keys_that_no_file_can_have_are_listed_as_failed(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    """Pins that keys with `.` or `..` are neither left out nor read as another object."""

    def listed(self: S3Service, bucket: str, prefix: str) -> Iterator[ObjectInfo]:
        for key in ("set/../a.mp4", "set/./b.mp4", "set/.git/c.mp4", "set/d..mp4"):
            yield ObjectInfo(key=key, bytes=1, version="v")

    monkeypatch.setattr(S3Service, "list", listed)
    found = {
        item.uri.removeprefix(f"s3://{s3_bucket}/"): item
        for item in list_sources([f"s3://{s3_bucket}{argument}"])
    }
    assert found.keys() == {"set/../a.mp4", "set/./b.mp4", "set/d..mp4"}
    assert isinstance(found["set/d..mp4"], ListedSource)
    for key in ("set/../a.mp4", "set/./b.mp4"):
        item = found[key]
        assert isinstance(item, UnlistedSource)
        assert item.code is ErrorCode.UNSAFE_KEY
        assert "copy the object to a key without this segment" in item.message


def test_many_uris_are_described_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number:04}" for number in range(1500)]
    for name in names[::3]:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "m.txt").write_text("\n".join(names))
    found = list(list_sources([str(tmp_path / "m.txt")]))
    assert uris(iter(found), tmp_path) == names
    assert sum(isinstance(item, ListedSource) for item in found) == 500


def test_a_manifest_is_not_read_further_than_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described: list[str] = []
    describe = listing._describe

    def watched(uri: str) -> Listed:
        described.append(uri)
        return describe(uri)

    monkeypatch.setattr(listing, "_describe", watched)
    (tmp_path / "m.txt").write_text("\n".join(f"{number}" for number in range(20_000)))
    assert len(uris(list_sources([str(tmp_path / "m.txt")], limit=5))) == 5
    assert len(described) < 2000


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("l.m3u8", b"#EXTM3U\na.ts\n", "is a playlist; .*ffmpeg -i PLAYLIST"),
        ("l.mpd", b"<?xml version='1.0'?>\n<!-- x -->\n<MPD xmlns='u'>", "is a playlist"),
        ("l.pls", b"[playlist]\nFile1=a", "is a playlist"),
        ("l.json", b'[{"uri": "a.mp4"}]', r"is JSON text; .*write a manifest.*\.jsonl"),
        ("l.xlsx", b"PK\x03\x04", r"is a spreadsheet; save it as a manifest: \.txt"),
        ("l.csv.gz", b"\x1f\x8b\x08", "is a compressed manifest; decompress it: gunzip l.csv.gz"),
        ("v.tar", bytes(257) + b"ustar\x0000" + bytes(9999), "is no tar .*fetch it again"),
        ("v.tar", b"\x1f\x8b\x08" + bytes(600), "is compressed.*decompress it"),
        (
            "v.bin",
            bytes(257) + b"ustar\x0000",
            "is a tar archive; give it a name that ends in .tar",
        ),
        ("v.tgz", b"\x1f\x8b\x08", "is an archive or a compressed file; unpack it"),
        ("v.zip", b"PK\x03\x04", "is a ZIP archive; unpack it"),
        ("v.7z", b"7z\xbc\xaf\x27\x1c", "is an archive .*unpack it"),
        ("v.rar", b"Rar!\x1a\x07\x01", "is an archive .*unpack it"),
    ],
)
def test_lists_and_archives_as_arguments_are_called_so(
    tmp_path: Path, s3_bucket: str, name: str, content: bytes, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError, match=rf"input '.*{name}' {words}"):
        list_sources([str(path)])
    s3_client.client().put_object(Bucket=s3_bucket, Key=name, Body=content)
    with pytest.raises(UsageError, match=words):
        list_sources([f"s3://{s3_bucket}/{name}"])
    # Bytes that say otherwise are read: a video may have any name.
    path.write_bytes(b"\x00\x00\x00\x18ftypisom")
    (found,) = list_sources([str(path)])
    assert isinstance(found, ListedSource)
    assert not found.may_be_other


def test_empty_marks_and_texts_without_suffix_are_skipped(tmp_path: Path) -> None:
    """Pins what jobs and DVDs leave in folders; a file in place of a video still fails."""
    texts = {
        "CREDITS": b"of a film", "part-00000": b"a,b\n1,2\n", "meta": b'{"a": 1}', "_started": b"",
        "VTS_01_0.VOB": b"", "0a1b": b"<html>404</html>", "film": b"\x00\x01" * 999,
        "1b2c": b"version https://git-lfs.github.com/spec/v1\n", "late.mp4": b"",
        "error": b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>",
    }  # fmt: skip
    for name, content in texts.items():
        (tmp_path / name).write_bytes(content)

    def left(argument: Path) -> tuple[set[str], int]:
        sources = MagicMock()
        found = ListedSources(list_sources([str(argument)]), sources, MagicMock(), [])
        rows = [scan_source(ref.uri, ref.n_bytes, ref.version) for ref in found]
        probes = found.without_others(rows_to_table(rows, SCAN_SCHEMA))
        return {Path(uri).name for uri in probes["uri"].to_pylist()}, found.n_skipped_names

    assert left(tmp_path) == ({"0a1b", "1b2c", "error", "film", "late.mp4"}, 5)
    for name in ("CREDITS", "_started", "VTS_01_0.VOB"):
        assert left(tmp_path / name) == ({name}, 0)


def test_companions_of_a_folder_are_skipped_unless_their_bytes_decide(
    tmp_path: Path, s3_bucket: str
) -> None:
    skipped = ["00000.CPI", "a_$folder$", "LICENSE", "README", "b.aae", "c.mp4.part"]
    unsure = ["0a1b2c", "clip.5", "x.NAV"]
    for name in ("film.mp4", *skipped, *unsure):
        (tmp_path / name).write_bytes(b"x")
        s3_client.client().put_object(Bucket=s3_bucket, Key=f"in/{name}", Body=b"x")
    for folder in (str(tmp_path), f"s3://{s3_bucket}/in"):
        found = list(list_sources([folder]))
        assert {item.uri for item in found if isinstance(item, SkippedName)} == {
            f"{folder}/{name}" for name in skipped
        }
        others = [i.uri for i in found if isinstance(i, ListedSource) and i.may_be_other]
        assert others == [f"{folder}/{name}" for name in unsure]
        # What the user names is never skipped, also after the folder.
        for argument in (f"{folder}/README", f"{folder}/x.NAV"):
            (named,) = list_sources([argument])
            for arguments in ([folder, argument], [argument, folder]):
                assert [i for i in list_sources(arguments) if i.uri == argument] == [named]
            assert isinstance(named, ListedSource)
            assert not named.may_be_other
