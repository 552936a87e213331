"""Sidecars are found in folders and on S3, with few requests."""

from pathlib import Path
from typing import Any

import pytest

from curator.storage import s3_client
from curator.storage.sidecar_files import FoundSidecar, SidecarProblem, find_sidecars, sidecar_uris
from curator.storage.source_reader import open_source

PAGE = 50
"""Names in a page of a listing, so that a page takes few objects: real ones have 1,000."""


class Counting:
    """Counts the requests of a client, whose listings have small pages."""

    def __init__(self, client: Any) -> None:  # noqa: ANN401
        self._client = client
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        def call(**arguments: object) -> object:
            self.calls.append(name)
            if name == "list_objects_v2":
                arguments = {"MaxKeys": PAGE, **arguments}
            return getattr(self._client, name)(**arguments)

        return call


@pytest.fixture
def counted(s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> Counting:
    """The client of a bucket named by the test's environment."""
    client = Counting(s3_client.client())
    monkeypatch.setattr(s3_client, "client", lambda: client)
    return client


def put(bucket: str, *keys: str) -> None:
    for key in keys:
        s3_client.client().put_object(Bucket=bucket, Key=key, Body=b"{}")


def test_both_names_are_looked_for_and_the_longer_one_counts() -> None:
    assert sidecar_uris("/a/b.mp4") == ("/a/b.mp4.json", "/a/b.json")
    assert sidecar_uris("/a.b/c") == ("/a.b/c.json",)
    assert sidecar_uris("s3://b/.hidden") == ("s3://b/.hidden.json",)
    assert sidecar_uris("/a/b.json") == ("/a/b.json.json",)


def test_sidecars_of_a_folder(tmp_path: Path) -> None:
    for name in ("a.mp4", "a.json", "b.mov", "b.json", "b.mov.json", "c.webm", "ü #1.mp4"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "ü #1.json").write_text("{   }")
    uris = [str(tmp_path / name) for name in ("a.mp4", "b.mov", "c.webm", "ü #1.mp4", "gone.mp4")]
    found = find_sidecars(uris)
    assert found == {
        uris[0]: FoundSidecar(uri=str(tmp_path / "a.json"), bytes=2),
        uris[1]: FoundSidecar(uri=str(tmp_path / "b.mov.json"), bytes=2),
        uris[3]: FoundSidecar(uri=str(tmp_path / "ü #1.json"), bytes=5),
    }
    assert find_sidecars([]) == {}


@pytest.mark.long
def test_neighbours_on_s3_share_a_request(s3_bucket: str, counted: Counting) -> None:
    """Pins 1 listing per part, whether there are sidecars or not."""
    names = [f"set/{i:03d}.mp4" for i in range(160)]
    put(s3_bucket, *names, *(f"set/{i:03d}.json" for i in range(0, 160, 4)), "set/001.mp4.json")
    counted.calls.clear()
    root = f"s3://{s3_bucket}/"
    found = find_sidecars(root + name for name in names)
    expected = {f"{root}set/{i:03d}.mp4": f"{root}set/{i:03d}.json" for i in range(0, 160, 4)}
    expected[f"{root}set/001.mp4"] = f"{root}set/001.mp4.json"
    assert {uri: f.uri for uri, f in found.items() if isinstance(f, FoundSidecar)} == expected
    # As many as there are threads.
    assert counted.calls == ["list_objects_v2"] * 16


def test_no_source_costs_more_than_a_request(
    s3_bucket: str, counted: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins sources far apart, in several folders, between objects that fill whole pages."""
    names = ["a/x.mp4", "a/y/x.mp4", "b.mp4", "c d/ü.mp4", "z/z.mp4"]
    fill = [f"a/x{i:04d}.bin" for i in range(PAGE + 10)]
    put(s3_bucket, *names, "a/y/x.json", "c d/ü.mp4.json", *fill)
    counted.calls.clear()
    monkeypatch.setattr("curator.storage.sidecar_files._THREADS", 1)
    root = f"s3://{s3_bucket}/"
    found = find_sidecars(root + name for name in names)
    assert sorted(found) == [f"{root}a/y/x.mp4", f"{root}c d/ü.mp4"]
    assert len(counted.calls) <= len(names)


def test_more_than_a_page_of_names_that_begin_alike(s3_bucket: str, counted: Counting) -> None:
    put(s3_bucket, "x.mp4", "x.mp4.json", *(f"x.a{i:04d}" for i in range(PAGE + 1)))
    counted.calls.clear()
    uri = f"s3://{s3_bucket}/x.mp4"
    assert find_sidecars([uri]) == {uri: FoundSidecar(uri=uri + ".json", bytes=2)}
    assert counted.calls == ["list_objects_v2", "head_object"]


def test_what_is_found_in_a_bucket_can_be_opened_and_a_missing_bucket_is_told(
    s3_bucket: str,
) -> None:
    uri = f"s3://{s3_bucket}-gone/a.mp4"
    found = find_sidecars([uri])[uri]
    assert isinstance(found, SidecarProblem)
    assert "cannot be listed: there is no such bucket" in found.message
    # What is found can be opened.
    put(s3_bucket, "a+b %20.mp4", "a+b %20.json")
    uri = f"s3://{s3_bucket}/a+b %20.mp4"
    found = find_sidecars([uri])[uri]
    assert isinstance(found, FoundSidecar)
    assert open_source(found.uri).read() == b"{}"
