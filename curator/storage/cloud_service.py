"""Requests to Google Cloud Storage (`gs://`) and Azure Blob Storage (`az://`), by obstore.

obstore's paths are stricter than these services: a key cannot have an empty segment, `.`, `..` or a
control character. A listing names the empty object `name/`, which represents a folder, `name`.
"""

import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, BinaryIO, Literal

from curator.errors import UsageError
from curator.installation import install_extra
from curator.storage.base import ObjectInfo, Store, checked_key
from curator.storage.bucket_store import BucketStore
from curator.storage.local_store import AppendFile
from curator.storage.object_service import (
    Cause,
    NoRangeError,
    ObjectChangedError,
    ObjectRange,
    ObjectService,
    ShortBodyError,
    bare,
)
from curator.storage.scratch import unnamed_file

try:
    import obstore
    from obstore.exceptions import (
        AlreadyExistsError,
        BaseError,
        NotFoundError,
        PermissionDeniedError,
        PreconditionError,
        UnauthenticatedError,
    )
    from obstore.store import AzureStore, GCSStore
except ImportError as error:
    raise UsageError(
        f"gs:// and az:// need the package obstore: {install_extra('cloud')}"
    ) from error

if TYPE_CHECKING:
    from obstore import ObjectMeta, UpdateVersion
    from obstore.store import ClientConfig

_PAGE = 1000
_THREADS = 16
_PART_BYTES = 16 << 20
_CREDENTIALS = {
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to a key file, or give the machine a service account",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_KEY)"
    ", or give the machine an identity",
}


def service(scheme: str) -> ObjectService:
    """Returns the service of `gs` or `az`, for the account that the environment names."""
    return _CloudService(scheme)


class _CloudService(ObjectService):
    """Requests to Google or Azure; account and credentials come from the environment."""

    errors = (BaseError, OSError, ValueError)

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme
        self._buckets: dict[str, GCSStore | AzureStore] = {}
        self._lock = threading.Lock()

    def store(self, bucket: str, prefix: str) -> Store:
        return _CloudStore(bucket, prefix, self.scheme)

    def bucket(self, name: str) -> GCSStore | AzureStore:
        with self._lock:
            if name not in self._buckets:
                # A private server may have no certificate; http:// must be set explicitly.
                options: ClientConfig = {"allow_http": True}
                kind = GCSStore if self.scheme == "gs" else AzureStore
                self._buckets[name] = kind(name, client_options=options)
            return self._buckets[name]

    def head(self, bucket: str, key: str) -> ObjectInfo:
        return _info(obstore.head(self.bucket(bucket), key))

    def list(self, bucket: str, prefix: str) -> Iterator[ObjectInfo]:
        """Yields the objects with keys that start with `prefix`, sorted by the UTF-8 of keys.

        Google lists in this order. Azure with a hierarchical namespace does not, so for Azure the
        method holds the names of all objects in memory.
        """
        folder = prefix.rpartition("/")[0]
        pages = obstore.list(self.bucket(bucket), folder or None, chunk_size=_PAGE)
        wanted = (_info(item) for page in pages for item in page if item["path"].startswith(prefix))
        if self.scheme == "gs":
            return _without_marks(wanted)
        return _without_marks(sorted(wanted, key=lambda item: item.key.encode()))

    def page(self, bucket: str, prefix: str, after: str) -> tuple[dict[str, int], bool] | None:
        """Returns sizes of at most a thousand next keys; None for Azure, which lacks an offset."""
        if self.scheme != "gs":
            return None
        pages = obstore.list(
            self.bucket(bucket), prefix.rstrip("/") or None, offset=after, chunk_size=_PAGE
        )
        sizes = {item["path"]: item["size"] for item in next(iter(pages), ())}
        return sizes, len(sizes) == _PAGE

    def get_range(
        self, bucket: str, key: str, start: int, end: int, version: str = ""
    ) -> ObjectRange:
        if start < 0:
            head = self.head(bucket, key)
            start, end = max(0, head.bytes + start), head.bytes
            version = version or head.version
        try:
            answer = obstore.get(
                self.bucket(bucket), key, options={"range": (start, max(end, start + 1))}
            )
        except BaseError as error:
            head = self.head(bucket, key)
            if head.bytes > start:
                raise
            raise NoRangeError(f"the object has {head.bytes} bytes") from error
        first, last = answer.range
        size, version_read = answer.meta["size"], bare(answer.meta["e_tag"])
        # Checked here, because some servers ignore conditions.
        if version and version_read and version_read != version:
            raise ObjectChangedError("the object was replaced while it was read")
        data = bytes(answer.bytes())
        if len(data) != last - first:
            raise ShortBodyError(f"the response has {len(data)} bytes; expected {last - first}")
        return ObjectRange(first, data, size, version_read or version)

    def explain(self, error: Exception, bucket: str) -> tuple[Cause, str]:
        cause, what = _cause(error), str(error).partition("\n")[0].rstrip(".")
        kind = "bucket" if self.scheme == "gs" else "container"
        remedies = {
            Cause.MISSING: "check the name",
            Cause.NO_BUCKET: f"check the name of the {kind} {bucket!r}, or create it",
            Cause.FORBIDDEN: f"grant these credentials reading of the {kind} and its objects, and "
            "for outputs writing and deleting",
            Cause.CREDENTIALS: _CREDENTIALS[self.scheme],
            Cause.CHANGED: "do not replace objects while a run reads them; start the run again",
        }
        remedy = f"check the network, and the credentials: {_CREDENTIALS[self.scheme]}"
        return cause, f"{what}; {remedies.get(cause, remedy)}"


@dataclass(frozen=True, slots=True)
class _CloudStore(BucketStore):
    """Objects below `gs://bucket/prefix` or `az://container/prefix`."""

    def write(self, key: str, data: bytes) -> None:
        self._put(checked_key(key), data)

    def write_new(self, key: str, data: bytes) -> ObjectInfo | None:
        return self._put_if(checked_key(key), data, "create")

    def replace(self, key: str, data: bytes, version: str) -> ObjectInfo | None:
        """Puts an object if Google's generation or Azure's ETag has not changed.

        Google has only conditions on generations, so the method first looks up the generation.
        """
        try:
            current = obstore.head(self._client, self._full(checked_key(key)))
        except FileNotFoundError:
            return None
        except self.service.errors as error:
            raise self._failure("look up", key, error) from error
        if bare(current["e_tag"]) != version:
            return self._own(key, data)
        mode: UpdateVersion = {"e_tag": current["e_tag"]}
        if current["version"] is not None:
            mode["version"] = current["version"]
        return self._put_if(key, data, mode)

    def _put_if(
        self, key: str, data: bytes, mode: "Literal['create'] | UpdateVersion"
    ) -> ObjectInfo | None:
        try:
            answer = obstore.put(
                self._client, self._full(key), data, mode=mode, use_multipart=False
            )
        except (AlreadyExistsError, PreconditionError):
            return self._own(key, data)
        except FileNotFoundError:
            return None
        except self.service.errors as error:
            raise self._failure("write", key, error) from error
        return ObjectInfo(key=key, bytes=len(data), version=bare(answer["e_tag"]))

    @contextmanager
    def create(self, key: str) -> Iterator[BinaryIO]:
        """Opens an append-only stream to a temporary file; sends the file when the block ends."""
        checked_key(key)
        with unnamed_file(".object") as (_, file):
            with AppendFile(os.dup(file.fileno()), "wb") as stream:
                yield stream
            file.seek(0)
            self._put(key, file)

    def delete(self, keys: Iterable[str]) -> None:
        def delete(key: str) -> None:
            with self._explained("delete", key), suppress(FileNotFoundError):
                self._remove(key)

        with ThreadPoolExecutor(_THREADS, thread_name_prefix="delete") as pool:
            list(pool.map(delete, [checked_key(key) for key in keys]))

    def _remove(self, key: str) -> None:
        obstore.delete(self._client, self._full(key))

    def _put(self, key: str, data: bytes | BinaryIO) -> None:
        with self._explained("write", key):
            obstore.put(self._client, self._full(key), data, chunk_size=_PART_BYTES)

    @property
    def _client(self) -> GCSStore | AzureStore:
        service = self.service
        assert isinstance(service, _CloudService)
        return service.bucket(self.bucket)


def _without_marks(objects: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
    """Leaves out empty objects `name/`, which consoles make, and which obstore lists as `name`."""
    before: ObjectInfo | None = None
    for item in chain(objects, [None]):
        if before is not None and (
            before.bytes or item is None or not item.key.startswith(before.key + "/")
        ):
            yield before
        before = item


def _info(item: "ObjectMeta") -> ObjectInfo:
    return ObjectInfo(key=item["path"], bytes=item["size"], version=bare(item["e_tag"]))


def _cause(error: Exception) -> Cause:
    match error:
        case FileNotFoundError() | NotFoundError():
            is_bucket = any(code in str(error) for code in ("NoSuchBucket", "ContainerNotFound"))
            return Cause.NO_BUCKET if is_bucket else Cause.MISSING
        case PermissionDeniedError():
            return Cause.FORBIDDEN
        case UnauthenticatedError():
            return Cause.CREDENTIALS
        case ObjectChangedError() | PreconditionError():
            return Cause.CHANGED
        case _:
            return Cause.UNREACHABLE
