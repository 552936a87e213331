"""The catalogue, and the way of weights into the models folder."""

import hashlib
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from curator.errors import ModelError
from curator.models import weight_store
from curator.models.catalogue import CATALOGUE, load_catalogue
from curator.models.clip_model import clip_config
from curator.models.weight_store import PLACE, ModelStore, default_folder
from curator.storage import open_store

DATA = b"weights" * 1000
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's package keeps what HF_HUB_OFFLINE was at its import, in another test perhaps."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


def catalogue_text(sha: str | None = SHA) -> str:
    known = f"  sha256: {sha}\n" if sha is not None else ""
    return (
        "mine:\n  kind: aesthetic\n  about: a\n  reads: openai-vit-b-32\n  dim: 512\n"
        f"  file: head.pth\n  licence: MIT\n{known}"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / CATALOGUE).write_text(catalogue_text())
    return folder


def mirrored(tmp_path: Path, key: str, data: bytes = DATA) -> str:
    path = tmp_path / "mirror" / key
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return str(tmp_path / "mirror")


def test_the_packaged_catalogue_is_whole() -> None:
    """Pins that every model says where it comes from, its hash, size and licence."""
    # These could not be fetched when they were added: the first pull records their hash.
    unseen = {
        "siglip-so400m-14-384", "aesthetic-v2-5", "musiq-koniq", "musiq-ava", "brisque",
    }  # fmt: skip
    # No hashes of T5-11B's files are published: its revision names them. open_clip knows each
    # architecture, and gives embeddings of the length that is stated.
    catalogue = load_catalogue()
    entries = catalogue.entries
    assert {"openai-vit-b-32", "openai-vit-l-14", "laion-mlp-l-14"} <= set(entries)
    for entry in entries.values():
        assert (entry.sha256 is None) == (entry.name in {"t5-11b", *unseen})
        assert (entry.bytes is None) == (entry.name in unseen)
        assert entry.licence
        assert sum(x is not None for x in (entry.repository, entry.url)) <= 1
        assert entry.package or entry.repository or entry.url
        is_pinned = entry.repository is None or entry.name in unseen
        assert is_pinned or len(entry.revision or "") == 40
        assert entry.reads is None or entries[entry.reads].dim == entry.dim
        assert entry.kind != "clip" or clip_config(entry)["embed_dim"] == entry.dim
    # Cosmos Predict expects T5-11B's form.
    t5 = catalogue.find("t5-11b", "text")
    assert (t5.pooling, t5.max_tokens, t5.dim) == ("tokens", 512, 1024)
    assert catalogue.find("all-minilm-l6-v2", "text").pooling == "mean"
    with pytest.raises(ModelError, match="did you mean 'openai-vit-b-32'"):
        catalogue.find("openai-vit-b32")
    with pytest.raises(ModelError, match="unknown aesthetic model 'openai-vit-l-14'"):
        catalogue.find("openai-vit-l-14", "aesthetic")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mine: {kind: clip, about: a, file: f, licence: l}", "needs dim"),
        ("mine: {kind: clip, dim: 4, architecture: A, about: a, file: ../f, licence: l}", "folder"),
        ("../m: {kind: clip, dim: 4, architecture: A, about: a, file: f, licence: l}", "matches"),
        ("mine: {kind: clip, color: red}", "color"),
        ("[mine]", "expected names and entries"),
        ("mine: {", "cannot be read"),
        ("5: {kind: clip}", "5 is no text"),
    ],
)
def test_a_catalogue_of_another_form_is_refused(text: str, words: str) -> None:
    """Pins that keys cannot leave the folder, and that mistakes are named."""
    with pytest.raises(ModelError, match=words):
        load_catalogue(text)


@pytest.mark.parametrize("key", ["mine/head.pth", "head.pth"])
def test_a_model_is_pulled_from_a_folder_by_either_name_and_hashed_once(
    tmp_path: Path, folder: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ModelStore(str(folder))
    entry = store.catalogue.find("mine")
    assert store.quick_state(entry) == store.state(entry) == "missing"
    path = store.pull(entry, mirrored(tmp_path, key))
    assert path == folder / "mine" / "head.pth"
    assert path.read_bytes() == DATA
    # A start does not read gigabytes again.
    monkeypatch.setattr(weight_store, "_sha256", lambda path: pytest.fail("hashed again"))
    assert store.quick_state(entry) == store.state(entry) == "verified"
    assert store.find(entry) == path


def test_what_differs_is_not_kept_and_a_file_that_changes_is_noticed(
    tmp_path: Path, folder: Path
) -> None:
    """Pins that a wrong file leaves nothing, and that a record is for one size and time."""
    store = ModelStore(str(folder))
    entry = store.catalogue.find("mine")
    with pytest.raises(ModelError, match=f"has sha256 .*, expected {SHA}; the file was not kept"):
        store.pull(entry, mirrored(tmp_path, "head.pth", b"other"))
    assert store.state(entry) == "missing"
    assert [p.name for p in (folder / "mine").rglob("*")] == []
    path = store.pull(entry, mirrored(tmp_path / "b", "head.pth"))
    path.write_bytes(DATA[:-1] + b"!")
    os.utime(path, ns=(1, 1))
    assert store.state(entry) == "differs"
    with pytest.raises(ModelError, match="is not the file that the catalogue names"):
        store.find(entry)
    path.write_bytes(DATA)
    assert store.find(entry) == path


def test_a_model_without_a_hash_is_trusted_once(tmp_path: Path, folder: Path) -> None:
    """Pins that the hash of the first pull is recorded, and holds for all that follow."""
    (folder / CATALOGUE).write_text(catalogue_text(None))
    store = ModelStore(str(folder))
    entry = store.catalogue.find("mine")
    assert store.fingerprint(entry) == "unknown"
    path = store.pull(entry, mirrored(tmp_path, "head.pth"))
    assert store.fingerprint(entry) == SHA
    path.unlink()
    with pytest.raises(ModelError, match=f"expected {SHA}"):
        store.pull(entry, mirrored(tmp_path / "b", "head.pth", b"other"))
    path.write_bytes(b"other")
    assert store.state(entry) == "differs"


def test_a_bucket_prefix_is_a_mirror(s3_bucket: str, tmp_path: Path) -> None:
    """Pins the place of a cluster: what is not on a machine comes from the bucket, verified."""
    place = f"s3://{s3_bucket}/models"
    bucket = open_store(place)
    bucket.write("mine/head.pth", DATA)
    bucket.write(CATALOGUE, catalogue_text().encode())
    store = pickle.loads(pickle.dumps(ModelStore(str(tmp_path / "here"), place)))
    assert store.find(store.catalogue.find("mine")).read_bytes() == DATA
    assert (tmp_path / "here" / "mine" / "head.pth").is_file()


def test_a_missing_model_names_the_command_that_fetches_it(folder: Path) -> None:
    store = ModelStore(str(folder))
    with pytest.raises(ModelError, match=r"head.pth does not exist; `curate models pull mine`"):
        store.find(store.catalogue.find("mine"))
    with pytest.raises(ModelError, match="is only on mirrors"):
        store.pull(store.catalogue.find("mine"))


REVISION = "a" * 40
HUB_PATH = f"/someone/heads/resolve/{REVISION}/head.pth"


class Hub(BaseHTTPRequestHandler):
    """One file of one revision, as the hub gives it; the first answers may break off."""

    asked: ClassVar[list[tuple[str, str, str | None]]] = []
    breaks_off: ClassVar[int] = 0

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        first = self._answer()
        whole = DATA[first:]
        if Hub.breaks_off > 0:
            Hub.breaks_off -= 1
            whole = whole[:1000]
        self.wfile.write(whole)

    def _answer(self) -> int:
        wanted = self.headers.get("Range")
        Hub.asked.append((self.command, self.path, wanted))
        if self.path != HUB_PATH:
            self.send_error(404)
            return len(DATA)
        first = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("ETag", '"1234"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(DATA) - first))
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{len(DATA) - 1}/{len(DATA)}")
        self.end_headers()
        return first

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    """A hub on this machine that has the model `mine`, with an empty cache and no waiting."""
    at = f"  repository: someone/heads\n  revision: {REVISION}\n"
    (folder / CATALOGUE).write_text(catalogue_text() + at)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Hub.asked, Hub.breaks_off = [], 0
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    yield Hub
    server.shutdown()
    server.server_close()


def test_a_model_of_the_hub_is_pulled_at_its_revision_though_a_download_broke_off(
    folder: Path, hub: type[Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins the pinned revision, and that a file is kept once: nothing is left of the download."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 500)
    hub.breaks_off = 1
    store = ModelStore(str(folder))
    path = store.pull(store.catalogue.find("mine"))
    assert path.read_bytes() == DATA
    assert {name for _, name, _ in hub.asked if "resolve" in name} == {HUB_PATH}
    gets = [wanted for method, name, wanted in hub.asked if (method, name) == ("GET", HUB_PATH)]
    assert gets == [None, "bytes=1000-"]
    assert store.state(store.catalogue.find("mine"), again=True) == "verified"
    assert [p.name for p in folder.rglob("*") if p.is_file()].count("head.pth") == 1


def test_a_file_in_the_cache_of_the_hub_is_taken_from_there(
    folder: Path, tmp_path: Path, hub: type[Hub]
) -> None:
    """Pins that what another program has downloaded is not downloaded again."""
    cached = tmp_path / "cache" / "models--someone--heads" / "snapshots" / REVISION / "head.pth"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(DATA)
    store = ModelStore(str(folder))
    assert store.pull(store.catalogue.find("mine")).read_bytes() == DATA
    assert hub.asked == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ((SHA, "b" * 64), f"at aaaaaaaa, head.pth has sha256 {SHA}, expected bbbb"),
        (("head.pth", "hat.pth"), r"hat.pth cannot be fetched \(.*404.* --from FOLDER"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_what_the_hub_has_not_or_otherwise_is_not_kept(
    folder: Path, wrong: tuple[str, str], words: str
) -> None:
    text = (folder / CATALOGUE).read_text().replace(*wrong)
    (folder / CATALOGUE).write_text(text)
    store = ModelStore(str(folder))
    with pytest.raises(ModelError, match=words):
        store.pull(store.catalogue.find("mine"))
    assert not [p for p in folder.rglob("head.pth*")]


@pytest.mark.usefixtures("hub")
def test_without_the_hub_or_its_package_the_error_names_the_remedy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins the message of a machine that reaches no hub, by an address that refuses."""
    store = ModelStore(str(folder))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(ModelError, match=r"someone/heads, which needs .*\[clip\]'"):
            store.pull(store.catalogue.find("mine"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    words = r"cannot be fetched \(.*refused.* pull openai-vit-b-32 --from"
    with pytest.raises(ModelError, match=words):
        store.pull(store.catalogue.find("openai-vit-b-32"))


@pytest.mark.parametrize("name", ["transnetv2", "all-minilm-l6-v2"])
def test_weights_of_a_wheel_are_verified_in_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = ModelStore(str(folder))
    entry = store.catalogue.find(name)
    assert store.state(entry, again=True) == "verified"
    assert store.pull(entry).stat().st_size == entry.bytes
    assert not (folder / name).exists()
    monkeypatch.setattr(weight_store, "distribution", _no_distribution)
    assert store.state(entry) == "missing"
    said = "curate models pull all-minilm" if entry.repository else "does not exist"
    with pytest.raises(ModelError, match=f"{entry.package}.*{said}"):
        store.find(entry)


def _no_distribution(name: str) -> None:
    raise PackageNotFoundError(name)


def test_places_are_an_argument_the_environment_or_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(PLACE, raising=False)
    assert ModelStore.at(None) == ModelStore(str(tmp_path / "cache" / "curate" / "models"))
    monkeypatch.setenv(PLACE, str(tmp_path / "there"))
    assert ModelStore.at(None) == ModelStore(str(tmp_path / "there"))
    assert ModelStore.at("s3://b/p") == ModelStore(str(default_folder()), "s3://b/p")


def test_derived_arrays_are_kept_and_never_pickled(folder: Path) -> None:
    store = ModelStore(str(folder))
    assert store.load_derived("k") is None
    store.keep_derived("k", {"a": np.arange(3.0)})
    kept = store.load_derived("k")
    assert kept is not None
    assert kept["a"].tolist() == [0, 1, 2]
    (folder / "derived" / "k.npz").write_bytes(b"PK broken")
    assert store.load_derived("k") is None
