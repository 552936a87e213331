"""Addresses that are written wrongly are no paths, and the message has the right form."""

import os
from pathlib import Path

import pytest

from curator.cli import main
from curator.errors import UsageError
from curator.storage import open_store
from curator.storage.place_names import local_path
from curator.tools.commands.exit_codes import ExitCode


@pytest.mark.parametrize(
    ("place", "remedy"),
    [
        ("s3:/b/x", "write s3://b/x, or for a path ./s3:/b/x"),
        ("s3//b/x", "write s3://b/x"),
        ("S3://b/x", "write s3://b/x"),
        ("s3:b/x", "write s3://b/x"),
        ("s3:", "write s3://bucket/prefix"),
        ("s3a://b/x", "write s3://b/x"),
        ("gcs://b/x", "write gs://b/x"),
        ("GS:/b/x", "write gs://b/x"),
        ("az:/c/x", "write az://c/x"),
        ("arn:aws:s3:::b/x", "write s3://b/x"),
        ("file:/b/x", "write the path: /b/x"),
        ("file:///b/x", "write the path: /b/x"),
        ("file://localhost/b/x", "write the path: /b/x"),
        ("http://host/v.mp4", "download it"),
        ("https:/host/v.mp4", "download it"),
        ("https://b.s3.eu-west-1.amazonaws.com/x/v.mp4?a=b", "download it"),
        ("https://b.s3.eu-west-1.amazonaws.com/x/v.mp4", "write s3://b/x/v.mp4"),
        ("https://s3.amazonaws.com/b/x", "write s3://b/x"),
        ("https://storage.googleapis.com/b/x", "write gs://b/x"),
        ("hdfs://host/x", "expected a "),
    ],
)
def test_no_folder_is_made_of_an_address(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    place: str,
    remedy: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.mp4").write_bytes(b"no film")
    for arguments in (["run", "a.mp4", place], ["run", place, "out"], ["demo", place]):
        assert main(arguments) == ExitCode.USAGE
        error = capsys.readouterr().err
        assert repr(place) in error
        assert remedy in error
    assert set(os.listdir()) <= {"a.mp4", "out"}


def test_paths_stay_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("./s3:/b", "a:b", "s3x//b", "s3", "films/s3:/x", "C:/x"):
        assert local_path(name) == os.path.abspath(name)
    (tmp_path / "s3").mkdir()
    assert open_store("s3//b").uri == str(tmp_path / "s3/b")
    with pytest.raises(UsageError, match="expected a folder of this machine"):
        local_path("s3://b/x", "a folder of this machine")
