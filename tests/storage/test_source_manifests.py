"""Manifests of all kinds, local and on S3, with what goes wrong in them."""

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curator.errors import ErrorCode, UsageError
from curator.records.time_spans import WHOLE
from curator.stages.scan.listing_records import ListedSource, UnlistedSource
from curator.stages.scan.source_listing import list_sources
from curator.storage import open_store, s3_client
from curator.storage.source_manifests import manifest_rows, resolve

NAMES = ["a.mp4", "b c.json", "#tag.mp4", 'ü,日本".mp4', "sub/d.mp4", "with 'quotes'.mov"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        path = tmp_path / "videos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path / "videos"


def write_manifest(path: Path, lines: list[str]) -> str:
    match path.suffix:
        case ".txt":
            path.write_text("".join(f"{line}\n" for line in lines))
        case ".lst":
            path.write_text("".join(f"{line}\n" for line in lines))
        case ".jsonl":
            rows = [{"label": "x", "uri": line} for line in lines]
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        case ".csv" | ".tsv":
            with path.open("w", newline="") as stream:
                writer = csv.writer(stream, delimiter="," if path.suffix == ".csv" else "\t")
                writer.writerows([["label", "uri"], *(["x", line] for line in lines)])
        case _:
            table = pa.table({"n": list(range(len(lines))), "uri": lines})
            pq.write_table(table, path, row_group_size=2)
    return str(path)


@pytest.mark.parametrize(
    "kind", ["m.txt", "m.lst", "m.csv", "m.tsv", "m.jsonl", "m.parquet", "M.TXT"]
)
def test_relative_absolute_repeated_and_missing_lines(folder: Path, kind: str) -> None:
    """Nothing in a manifest is skipped by its name."""
    lines = [*NAMES, str(folder / "sub" / "d.mp4"), "./sub/../a.mp4", "none.mp4", "sub", "a.mp4"]
    manifest = Path(write_manifest(folder / kind.lower(), lines)).rename(folder / kind)
    found = list(list_sources([str(manifest)]))
    assert [item.uri for item in found] == [
        str(folder / name) for name in [*NAMES, "none.mp4", "sub"]
    ]
    assert all(isinstance(item, ListedSource) for item in found[: len(NAMES)])
    missing, is_folder = found[len(NAMES) :]
    assert isinstance(missing, UnlistedSource)
    assert missing.code is ErrorCode.VANISHED
    assert isinstance(is_folder, UnlistedSource)
    assert is_folder.code is ErrorCode.UNREADABLE
    assert "is a folder; expected a file" in is_folder.message


def test_manifests_on_s3_and_of_objects(s3_bucket: str, folder: Path) -> None:
    store = open_store(f"s3://{s3_bucket}/lists")
    store.write("x/v.mp4", b"123")
    store.write("x/w #1.json", b"12345")
    lines = ["x/v.mp4", "../lists/x/w #1.json", f"s3://{s3_bucket}/lists/none"]
    for kind in ("m.txt", "m.csv", "m.parquet"):
        store.write(kind, Path(write_manifest(folder / kind, lines)).read_bytes())
        found = list(list_sources([f"s3://{s3_bucket}/lists/{kind}"]))
        uris = [f"s3://{s3_bucket}/lists/{key}" for key in ("x/v.mp4", "x/w #1.json", "none")]
        assert [item.uri for item in found] == uris
        assert [getattr(item, "bytes", None) for item in found] == [3, 5, None]
        assert isinstance(found[2], UnlistedSource)
        assert found[2].code is ErrorCode.VANISHED


def test_text_lines_are_verbatim_and_what_is_no_text_gets_a_row(folder: Path) -> None:
    path = folder / "m.txt"
    path.write_bytes(
        "\ufeffa.mp4\r\n\n  \n# comment\n#tag.mp4\n trailing \nnot\x0bsplit\nlast".encode()
    )
    assert [uri.removeprefix(f"{folder}/") for uri, *_ in manifest_rows(str(path))] == [
        "a.mp4", "#tag.mp4", " trailing ", "not\x0bsplit", "last",
    ]  # fmt: skip
    # Other schemes and bytes that are no text get a row.
    path = folder / "m.txt"
    path.write_bytes(b"https://host/v.mp4\nbad\xff.mp4\nnul\0.mp4\n")
    found = list(list_sources([str(path)]))
    expected = ["https://host/v.mp4", f"{folder}/bad\\xff.mp4", f"{folder}/nul\0.mp4"]
    assert [item.uri for item in found] == expected
    for item in found:
        assert isinstance(item, UnlistedSource)
        assert item.code is ErrorCode.UNREADABLE
        item.message.encode()
        assert "check the disk" not in item.message


def test_fields_of_csv_and_parquet_may_be_quoted_empty_or_missing(folder: Path) -> None:
    path = folder / "m.csv"
    path.write_bytes(
        b'\xef\xbb\xbfid,uri,w\r\n1,"line\nbreak, and comma",3\r\n2,,\r\n3\r\n4,a.mp4,\r\n'
    )
    assert [row.uri for row in manifest_rows(str(path))] == [
        f"{folder}/line\nbreak, and comma",
        f"{folder}/a.mp4",
    ]
    # Parquet values may be missing and of other string types.
    values = ["a.mp4", None, "", "sub/d.mp4", "a.mp4"]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        table = pa.table({"uri": pa.array(values, kind)})
        pq.write_table(table, folder / "m.parquet", row_group_size=2)
        expected = [f"{folder}/a.mp4", f"{folder}/sub/d.mp4", f"{folder}/a.mp4"]
        assert [row.uri for row in manifest_rows(str(folder / "m.parquet"))] == expected
    coded = pa.table({"uri": pa.array(values).dictionary_encode()})
    pq.write_table(coded, folder / "m.parquet")
    assert [row.uri for row in manifest_rows(str(folder / "m.parquet"))] == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.csv", b"path,label\na.mp4,x\n", r"has no column 'uri'; found path, label"),
        ("m.csv", b"", r"has no column 'uri'; found none"),
        ("m.csv", b'uri\n"a\n', r"line 2: not valid CSV"),
        ("m.csv", b"uri\n" + b"x" * 200_000, r"line 2: not valid CSV: field larger"),
        ("m.tsv", b"path\tlabel\na.mp4\tx\n", r"has no column 'uri'; found path, label"),
        ("m.jsonl", b'{"path": "a.mp4"}\n', r"has no column 'uri'; found path"),
        ("m.jsonl", b"a.mp4\n", r"line 1: not valid JSON"),
        ("m.jsonl", b'\n["a"]\n', r"line 2: expected a JSON object with a text under"),
        ("m.jsonl", b'{"uri": 3}\n', r"line 1: expected a JSON object with a text under"),
        ("m.jsonl", b'{"a":' * 99 + b"1" + b"}" * 99, r"line 1: not valid JSON: nested deeper"),
        ("m.parquet", b"not parquet at all", r"not valid Parquet"),
        ("m.parquet", b"", r"not valid Parquet"),
        ("m.txt", bytes(range(256)) * 9, r"is no text in UTF-8: it is binary"),
        ("m.lst", "a.mp4\n".encode("utf-16-le"), r"or in UTF-16 without a byte order mark"),
        ("m.csv", bytes(range(256)) * 9, r"is no text in UTF-8"),
        ("m.csv", b"pa\x1bth\xff,b" + b"x" * 99, r"found 'pa\\x1bth\\udcff', bx+\. Name"),
        ("m.txt", "\ufeffa.mp4".encode("utf-16-be") + b"a", r"truncated data"),
        ("m.txt", b"#EXTM3U\na.mp4\n", r"is a playlist; name the video"),
        ("m.lst", b"\xef\xbb\xbf# Made\nfile 'a.mp4'\n", r"demuxer concat; write a path per line"),
        ("m.txt", b"file 'a b.mp4'\nfile 'b.mp4'\n", r"demuxer concat; write a path per line"),
        ("m.txt", b"x" * 100_000, r"line 1 is longer than 65536 bytes"),
    ],
)
def test_what_is_no_manifest_is_told(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        list_sources([str(tmp_path / name)])


def test_times_must_begin_in_the_first_line_of_json(tmp_path: Path) -> None:
    """Pins that no row is a whole source, and another one a span of it."""
    path = tmp_path / "m.jsonl"
    path.write_text('{"uri": "a.mp4"}\n{"uri": "a.mp4", "start_s": 1}\n')
    with pytest.raises(UsageError, match=r"line 2 is the first with times; expected the keys"):
        list(manifest_rows(str(path)))
    path.write_text('{"uri": "a.mp4", "start_s": null}\n{"uri": "b.mp4"}\n')
    assert [row.span for row in manifest_rows(str(path))] == [WHOLE, WHOLE]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_text_in_utf_16_is_read(folder: Path, encoding: str) -> None:
    """Pins lists as PowerShell's `>` writes them."""
    for name, text in (("m.txt", "ü.mp4\r\na.mp4\r\n"), ("m.csv", "uri,n\r\nü.mp4,1\r\na.mp4,2")):
        (folder / name).write_bytes(("\ufeff" + text).encode(encoding))
        found = [row.uri for row in manifest_rows(str(folder / name))]
        assert found == [f"{folder}/ü.mp4", f"{folder}/a.mp4"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"path": ["a"]}, "has no column 'uri'; found path"),
        ({"uri": [1]}, "column 'uri' has type int64; expected string"),
    ],
)
def test_parquet_columns_are_checked(
    tmp_path: Path, columns: dict[str, list[object]], message: str
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "m.parquet")
    with pytest.raises(UsageError, match=message):
        list_sources([str(tmp_path / "m.parquet")])


def test_a_manifest_that_is_not_there_is_told(s3_bucket: str, tmp_path: Path) -> None:
    for argument in (str(tmp_path / "m.csv"), f"s3://{s3_bucket}/m.csv"):
        with pytest.raises(UsageError, match=r"does not exist|no objects under it"):
            list_sources([argument])


def test_several_manifests_share_their_uris(folder: Path) -> None:
    first = write_manifest(folder / "m.txt", ["a.mp4", "#tag.mp4"])
    second = write_manifest(folder / "n.csv", ["#tag.mp4", "sub/d.mp4"])
    names = ["a.mp4", "#tag.mp4", "sub/d.mp4"]
    assert [item.uri for item in list_sources([first, second])] == [f"{folder}/{n}" for n in names]


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_relative_keys_resolve_below_their_bucket(scheme: str) -> None:
    manifest = f"{scheme}://bucket/a/b/m.txt"
    assert resolve("x.mp4", manifest) == f"{scheme}://bucket/a/b/x.mp4"
    assert resolve("../x.mp4", manifest) == f"{scheme}://bucket/a/x.mp4"
    assert resolve("../../x.mp4", manifest) == f"{scheme}://bucket/x.mp4"
    assert resolve("./c//d", manifest) == f"{scheme}://bucket/a/b/c//d"
    assert resolve("s3://other//x/../y", manifest) == "s3://other//x/../y"
    for written in ("/x.mp4", "../../../x.mp4", "b/../../../../x.mp4"):
        with pytest.raises(ValueError, match=r"on this machine|out of the manifest's bucket"):
            resolve(written, manifest)


def test_the_stream_of_a_manifest_on_s3_moves_only_what_is_read(s3_bucket: str) -> None:
    lines = b"".join(b"s3://%s/%06d\n" % (s3_bucket.encode(), number) for number in range(200_000))
    s3_client.client().put_object(Bucket=s3_bucket, Key="m.txt", Body=lines)
    found = manifest_rows(f"s3://{s3_bucket}/m.txt")
    assert next(found) == (f"s3://{s3_bucket}/000000", {}, None)


@pytest.mark.parametrize(
    ("name", "content", "warnings"),
    [
        ("a.txt", "\n\na.mp4\n\nb.mp4\n\n", ["blank lines, which are left out: 3, such as line 1"]),
        ("a.txt", "a.mp4\nb.mp4\n\n", []),
        ("a.csv", "uri,x\na.mp4,1\n,2\nb.mp4,3\n", ["rows without a URI, which are left out: 1"]),
        ("a.csv", "uri,x\na.mp4,1\n\nb.mp4,3\n", ["blank lines, which are left out: 1, such as"]),
        ("a.csv", "uri,x\na.mp4\nb.mp4,1,2\n", ["fewer cells than the header", ": 2, such as"]),
        (
            "a.parquet",
            {"uri": ["a.mp4", None, "b.mp4", " "], "box": [[1], [2], [3], [4]]},
            [
                "rows without a URI, which are left out: 2, such as row 2",
                "left out: 1, such as 'box'",
            ],
        ),
    ],
)
def test_what_vanishes_from_a_manifest_is_counted_in_a_warning(
    tmp_path: Path,
    name: str,
    content: str | dict[str, list[object]],
    warnings: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / name
    if isinstance(content, str):
        path.write_text(content)
    else:
        pq.write_table(pa.table(content), path)
    rows = list(manifest_rows(str(path)))
    assert [row.uri for row in rows] == [f"{tmp_path}/a.mp4", f"{tmp_path}/b.mp4"]
    for words in warnings:
        assert words in caplog.text
    assert bool(warnings) == bool(caplog.text)


def test_a_column_that_one_of_several_manifests_lacks_is_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = folder / "a.csv", folder / "b.csv"
    first.write_text("uri,camera\na.mp4,north\n")
    second.write_text("uri\nsub/d.mp4\n")
    assert len(list(list_sources([str(first), str(second)]))) == 2
    assert f"1 of 2 manifests have no values of meta.camera, such as {str(second)!r}" in caplog.text


def test_values_of_json_lines_become_metadata(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "m.jsonl"
    path.write_text(
        '\ufeff{"uri": "a.mp4", "Rating": 4, "ok": true, "tags": ["x"], "none": null}\n'
        '\n"sub/d.mp4"\n{"uri": ""}\n{"uri": "#tag.mp4", "deep": {"a": 1}, "n": 0.5}\n'
    )
    rows = list(manifest_rows(str(path)))
    assert [row.uri for row in rows] == [
        f"{folder}/{n}" for n in ("a.mp4", "sub/d.mp4", "#tag.mp4")
    ]
    assert rows[0].metadata == {"meta.rating": 4, "meta.ok": True, "meta.tags": ["x"]}
    assert rows[2].metadata["meta.n"] == 0.5
    for words in ("blank lines", "rows without a URI", "'deep' (line 5)"):
        assert words in caplog.text
