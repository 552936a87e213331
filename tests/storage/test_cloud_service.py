"""`gs://` and `az://`: sources, sidecars, errors, and the package that they need."""

import re
import sys
from pathlib import Path

import pytest

from curator.errors import ErrorCode, SourceError, StorageError, UsageError
from curator.installation import install_extra
from curator.stages.scan.listing_records import ListedSource
from curator.stages.scan.source_listing import list_sources
from curator.storage import open_source, open_store, stat_source
from curator.storage.object_service import scheme_of, service_named
from curator.storage.sidecar_files import FoundSidecar, find_sidecars

DATA = bytes(range(256)) * 4096


@pytest.fixture(params=["gs", "az"])
def root(request: pytest.FixtureRequest) -> str:
    """Address of an empty bucket or container."""
    name = {"gs": "gs_bucket", "az": "az_container"}[request.param]
    return f"{request.param}://{request.getfixturevalue(name)}"


@pytest.fixture
def films(root: str) -> str:
    """Four films, of which two have a sidecar, and what consoles make to show a folder."""
    store = open_store(root)
    for key in ("in/a film.mp4", "in/b.mp4", "in/deeper/c.mp4", "other/d.mp4"):
        store.write(key, DATA)
    for key in ("in/a film.mp4.json", "in/b.json"):
        store.write(key, b"{}")
    store.write("in/deeper", b"")
    return root


def listed(*arguments: str) -> list[str]:
    return [item.uri for item in list_sources(arguments) if isinstance(item, ListedSource)]


def test_films_are_listed_as_on_s3_read_by_ranges_and_changes_noticed(films: str) -> None:
    assert listed(f"{films}/in") == [
        f"{films}/in/a film.mp4", f"{films}/in/b.mp4", f"{films}/in/deeper/c.mp4",
    ]  # fmt: skip
    assert listed(f"{films}/*/?.mp4") == [f"{films}/in/b.mp4", f"{films}/other/d.mp4"]
    assert listed(f"{films}/in/b.mp4") == [f"{films}/in/b.mp4"]
    with pytest.raises(UsageError, match="has no objects under it"):
        listed(f"{films}/none")
    # A manifest names addresses below its own.
    open_store(films).write("lists/m.txt", b"../in/b.mp4\n")
    assert listed(f"{films}/lists/m.txt") == [f"{films}/in/b.mp4"]
    # A source is read by ranges with its sidecar and a change is noticed.
    uri = f"{films}/in/a film.mp4"
    size, version = stat_source(uri)
    assert size == len(DATA)
    with open_source(uri, expected_version=version) as stream:
        stream.seek(-300_000, 2)
        assert stream.read(10) == DATA[-300_000:][:10]
        open_store(films).write("in/a film.mp4", DATA[::-1])
        stream.seek(300_000)
        with pytest.raises(SourceError, match="replaced while it was read") as caught:
            stream.read(10)
    assert caught.value.code is ErrorCode.CHANGED
    with pytest.raises(SourceError, match="replaced"):
        open_source(uri, expected_version=version)
    with pytest.raises(SourceError, match=r"none.mp4.* not found.*; check the name") as caught:
        open_source(f"{films}/none.mp4")
    assert caught.value.code is ErrorCode.VANISHED
    # Sidecars are found.
    names = ("in/a film.mp4", "in/b.mp4", "in/deeper/c.mp4")
    found = find_sidecars(f"{films}/{name}" for name in names)
    assert found == {
        f"{films}/in/a film.mp4": FoundSidecar(uri=f"{films}/in/a film.mp4.json", bytes=2),
        f"{films}/in/b.mp4": FoundSidecar(uri=f"{films}/in/b.json", bytes=2),
    }


def test_an_object_of_several_parts_is_whole(root: str) -> None:
    data = DATA * 20
    with open_store(root).create("large") as stream:
        stream.write(data)
    assert open_store(root).read("large") == data
    # A key that the library refuses.
    with pytest.raises(StorageError, match=r"line.*break"):
        open_store(root).write("line\nbreak", b"")


def test_azure_without_an_account_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    service_named.cache_clear()
    with pytest.raises(StorageError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        open_store("az://films").read("a")


def test_without_the_package_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "curator.storage.cloud_service", raising=False)
    service_named.cache_clear()
    with pytest.raises(UsageError, match=re.escape(install_extra("cloud"))):
        open_store("gs://films/out")
    with pytest.raises(SourceError, match=re.escape(install_extra("cloud"))):
        stat_source("az://films/a.mp4")
    assert scheme_of("gs://films/a") == "gs"
    assert scheme_of("https://films/a") is None
    assert scheme_of(str(tmp_path)) is None
