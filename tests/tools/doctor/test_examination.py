"""Places on folders and on S3: what works, what does not, and that nothing is left behind."""

import socket
import time
from pathlib import Path

import pytest

from curator.storage import open_store
from curator.storage.object_service import service_named
from curator.tools.doctor.diagnosis import CheckRow, State
from curator.tools.doctor.examination import s3_rows, storage_rows


@pytest.fixture(params=["moto", pytest.param("real", marks=pytest.mark.needs_s3)])
def bucket(request: pytest.FixtureRequest) -> str:
    name = "s3_bucket" if request.param == "moto" else "real_s3_bucket"
    return str(request.getfixturevalue(name))


def only(rows: list[CheckRow]) -> CheckRow:
    (row,) = rows
    return row


def keys(bucket: str) -> list[str]:
    return [found.key for found in service_named("s3").list(bucket, "")]


def test_folders_are_tried_and_left_as_they_were(tmp_path: Path) -> None:
    """Pins a source and an OUT that are there, one that is made later, and one below a file."""
    (tmp_path / "a.mp4").write_bytes(b"video")
    rows = storage_rows([str(tmp_path)], str(tmp_path), s3_answers=True)
    assert [row.state for row in rows] == [State.OK, State.OK]
    assert rows[0].found == f"can be read; the first is {tmp_path}/a.mp4 (0.0 MB)"
    assert rows[1].found == "can be written"
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]
    row = only(storage_rows([], str(tmp_path / "new" / "out"), s3_answers=True))
    assert (row.state, row.found) == (State.OK, f"will be created; {tmp_path} can be written")
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]
    assert only(storage_rows([], str(tmp_path / "a.mp4" / "out"), s3_answers=True)).stops


@pytest.mark.parametrize(
    ("make", "words"),
    [
        ((), "does not exist"),
        (("folder/",), "has no files"),
        (("folder/a.txt", "folder/b.jpg"), "has no video: 2 files"),
    ],
)
def test_sources_that_give_nothing(make: tuple[str, ...], words: str, tmp_path: Path) -> None:
    for name in make:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.mkdir() if name.endswith("/") else path.write_bytes(b"x")
    row = only(storage_rows([str(tmp_path / "folder")], None, s3_answers=True))
    assert row.stops
    assert words in row.found


def test_a_link_to_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").symlink_to(tmp_path / "gone")
    row = only(storage_rows([str(tmp_path)], None, s3_answers=True))
    assert row.stops
    assert "is a link to a file that does not exist" in row.found
    assert row.remedy == "check the name, or list the folder again"


def test_a_bucket_is_written_read_and_left_empty_and_what_is_missing_is_said(bucket: str) -> None:
    place = f"s3://{bucket}/films"
    open_store(place).write("a.mp4", b"video")
    rows = storage_rows([place], f"s3://{bucket}/out", s3_answers=True)
    assert [row.state for row in rows] == [State.OK, State.OK]
    assert rows[0].found == f"can be read; the first is {place}/a.mp4 (0.0 MB)"
    assert rows[1].found == "can be listed and written"
    assert keys(bucket) == ["films/a.mp4"]
    # Endpoint and credentials.
    rows = {row.name: row for row in s3_rows()}
    assert {name: row.state for name, row in rows.items()} == {
        "S3 credentials": State.OK,
        "S3 endpoint": State.OK,
    }
    assert rows["S3 credentials"].found == "from env"
    assert rows["S3 endpoint"].found.endswith("region us-east-1, answers")
    assert not any("testtest" in row.found for row in rows.values()), "a secret"
    # A bucket that is not there.
    row = only(storage_rows([], "s3://curate-no-such-bucket/x", s3_answers=True))
    assert row.stops
    assert "there is no such bucket" in row.found
    assert "aws s3 mb s3://curate-no-such-bucket" in (row.remedy or "")


def test_credentials_of_a_profile(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    row = only(s3_rows())
    assert (row.state, row.stops) == (State.MISSING, True)
    file.write_text("[default]\naws_access_key_id = test\naws_secret_access_key = testtest\n")
    assert s3_rows()[0].found == "from shared-credentials-file"
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    row = only(s3_rows())
    assert row.state == State.BROKEN
    assert "no-such-profile" in row.found


def test_an_endpoint_that_does_not_answer_is_said_at_once(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that nobody waits for the client, which tries for minutes; no password is shown."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://user:secret@127.0.0.1:{port}")
    began = time.monotonic()
    rows = s3_rows()
    assert time.monotonic() - began < 10
    assert rows[-1].name == "S3 endpoint"
    assert rows[-1].stops
    assert rows[-1].found == f"http://127.0.0.1:{port}, region us-east-1: Connection refused"
    row = only(storage_rows([], f"s3://{s3_bucket}/x", s3_answers=False))
    assert (row.stops, row.remedy) == (True, "see the rows `S3`")
