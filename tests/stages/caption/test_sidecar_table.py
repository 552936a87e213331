"""Which sidecars are read, and how problems of sidecars are reported."""

from pathlib import Path

import pytest

from curator.stages.caption.dialogs.prompt_facts import sidecar_lines
from curator.stages.caption.sidecar_table import count_problems
from curator.storage import s3_client
from curator.storage.sidecar_files import (
    MAX_BYTES,
    Sidecar,
    SidecarCode,
    SidecarProblem,
    read_sidecars,
)
from curator.storage.source_reader import open_source


def test_sidecars_are_read_and_problems_are_told(tmp_path: Path) -> None:
    """Pins each code; no code ends the run."""
    files = {
        "good": b'\xef\xbb\xbf{"title": "A walk"}', "large": b'{"a": "' + b"x" * MAX_BYTES + b'"}',
        "list": b"[1]", "words": b"hello", "nan": b'{"a": NaN}',
        "latin": '{"a": "\u00e9"}'.encode("latin-1"), "nested": b"[" * 100_000,
        "digits": b'{"a": ' + b"9" * 5000 + b"}", "empty": b"",
    }  # fmt: skip
    for name, data in files.items():
        (tmp_path / f"{name}.mp4").write_bytes(b"video")
        (tmp_path / f"{name}.json").write_bytes(data)
    (tmp_path / "folder.json").mkdir()
    uris = [str(tmp_path / f"{name}.mp4") for name in (*files, "folder", "without")]
    told = {Path(uri).stem: sidecar for uri, sidecar in read_sidecars(uris).items()}
    assert told.pop("good") == Sidecar(uri=str(tmp_path / "good.json"), data={"title": "A walk"})
    codes = {name: s.code for name, s in told.items() if isinstance(s, SidecarProblem)}
    assert codes == {
        "large": SidecarCode.TOO_LARGE,
        "list": SidecarCode.NOT_AN_OBJECT,
        "folder": SidecarCode.UNREADABLE,
        **dict.fromkeys(("words", "nan", "latin", "nested", "digits", "empty"),
                        SidecarCode.NOT_JSON),
    }  # fmt: skip
    counts = {"not_an_object": 1, "not_json": 6, "too_large": 1, "unreadable": 1}
    assert count_problems(read_sidecars(uris)) == counts
    message = read_sidecars([uris[1]])[uris[1]]
    assert isinstance(message, SidecarProblem)
    assert "large.json' has 262153 bytes; expected at most 262144" in message.message


def test_a_shared_sidecar_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.json").write_text('{"x": 1}')
    opened: list[str] = []

    def watched(uri: str, expected_version: str | None = None) -> object:
        opened.append(uri)
        return open_source(uri, expected_version=expected_version)

    monkeypatch.setattr("curator.storage.sidecar_files.open_source", watched)
    uris = [str(tmp_path / name) for name in ("a.mov", "a.mp4")]
    told = read_sidecars(uris)
    assert [sidecar_lines(s.data) for s in told.values() if isinstance(s, Sidecar)] == [
        ["x: 1"]
    ] * 2
    assert opened == [str(tmp_path / "a.json")]


def test_sidecars_on_s3(s3_bucket: str) -> None:
    client = s3_client.client()
    client.put_object(Bucket=s3_bucket, Key="a/b.json", Body=b'{"x": 1}')
    client.put_object(Bucket=s3_bucket, Key="a/c.mp4.json", Body=b"")
    root = f"s3://{s3_bucket}/a"
    told = read_sidecars([f"{root}/b.mp4", f"{root}/c.mp4", f"{root}/d.mp4"])
    assert told[f"{root}/b.mp4"] == Sidecar(uri=f"{root}/b.json", data={"x": 1})
    problem = told[f"{root}/c.mp4"]
    assert isinstance(problem, SidecarProblem)
    assert problem.code is SidecarCode.NOT_JSON
    assert f"{root}/d.mp4" not in told
