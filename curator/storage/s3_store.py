"""A store under a prefix of an S3 bucket."""

import io
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from botocore.exceptions import ClientError

from curator.errors import StorageError
from curator.storage.base import (
    STALE_AFTER_S,
    TEMPORARY_PREFIX,
    ObjectInfo,
    Store,
    checked_key,
    is_temporary,
)
from curator.storage.s3_client import (
    SCHEME,
    Cause,
    S3Errors,
    client,
    explain,
    head,
    list_objects,
)
from curator.storage.s3_reader import FIRST_BYTES, get_range, open_object

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PART_BYTES = 16 << 20
"""Size of a part of a multipart upload, and so the memory that `create` takes."""

SINGLE_REQUEST_BYTES = 64 << 20
"""Up to this size, `write` and `read` are one request."""

_DELETE_BATCH = 1000
_BUFFER_BYTES = 256 << 10

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class S3Store(Store):
    """Objects below `s3://bucket/prefix`.

    A single PUT and a completed multipart upload appear whole, so nothing temporary is visible.
    """

    bucket: str
    prefix: str = ""

    @property
    def uri(self) -> str:
        """`s3://bucket/prefix`, or `s3://bucket`."""
        return f"{SCHEME}{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def is_local(self) -> bool:
        """False."""
        return False

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yields the objects whose key starts with `prefix`, sorted by key."""
        root = len(self._full(""))
        try:
            for found in list_objects(self.bucket, self._full(prefix)):
                key = found.key[root:]
                # Consoles make an empty object `name/` to show a folder.
                if is_temporary(key) or not key or (key.endswith("/") and not found.bytes):
                    continue
                yield ObjectInfo(key=key, bytes=found.bytes, version=found.version)
        except S3Errors as error:
            raise self._failure("list", prefix, error) from error

    def read(self, key: str) -> bytes:
        """Returns the whole object."""
        with self._open(key, probe="head", first_bytes=SINGLE_REQUEST_BYTES) as stream:
            return stream.read()

    def open(self, key: str) -> BinaryIO:
        """Opens an object; the first request fetches its end, where Parquet has its footer."""
        return self._open(key, probe="tail", first_bytes=FIRST_BYTES)

    def read_range(self, key: str, start: int, end: int) -> bytes:
        """Returns bytes of an object, by one request."""
        try:
            _, data, *_ = get_range(self.bucket, self._full(checked_key(key)), f"{start}-{end - 1}")
        except S3Errors as error:
            raise self._failure("read", key, error) from error
        return data

    def write(self, key: str, data: bytes) -> None:
        """Puts a whole object: in one request, or in parts where it is large."""
        if len(data) > SINGLE_REQUEST_BYTES:
            with self.create(key) as stream:
                stream.write(data)
            return
        self._put(checked_key(key), data)

    @contextmanager
    def create(self, key: str) -> Iterator[BinaryIO]:
        """Gives an append-only stream into a multipart upload; memory is one part.

        An object of at most one part is sent by one PUT. 10,000 parts make 156 GiB at most.
        """
        raw = _Upload(self, checked_key(key), PART_BYTES)
        try:
            stream = io.BufferedWriter(raw, _BUFFER_BYTES)
            yield stream
            if not stream.closed:
                stream.flush()
            raw.complete()
        except BaseException:
            raw.abort()
            raise

    def delete(self, keys: Iterable[str]) -> None:
        """Removes objects, a thousand by a request where the server can do that."""
        remaining = iter(keys)
        while batch := [checked_key(key) for key in islice(remaining, _DELETE_BATCH)]:
            try:
                self._delete(batch)
            except S3Errors as error:
                raise self._failure("delete", batch[0], error) from error

    def exists(self, key: str) -> bool:
        """Says whether there is an object under the key."""
        try:
            head(self.bucket, self._full(checked_key(key)))
        except S3Errors as error:
            if explain(error, self.bucket)[0] is Cause.MISSING:
                return False
            raise self._failure("look up", key, error) from error
        return True

    def check_writable(self) -> None:
        """Lists under the prefix, and writes and removes a small object."""
        for _ in islice(self.list(), 1):
            pass
        probe = f"{TEMPORARY_PREFIX}check-{secrets.token_hex(8)}"
        self._put(probe, b"written to see whether this prefix can be written\n")
        try:
            client().delete_object(Bucket=self.bucket, Key=self._full(probe))
        except S3Errors as error:
            raise self._failure("delete", probe, error) from error

    def clean_temporary(
        self,
        folders: Iterable[str],
        is_own: Callable[[str], bool],
        *,
        older_than_s: float = STALE_AFTER_S,
    ) -> int:
        """Aborts multipart uploads under the prefix that began longer ago than this.

        A server that refuses is logged and no error: what is left costs space, not correctness.
        """
        newest = time.time() - older_than_s
        removed = 0
        tops, root = frozenset(folders), len(self._full(""))
        try:
            pages = client().get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self.bucket, Prefix=self._full("")):
                for upload in page.get("Uploads", ()):
                    key = upload["Key"][root:]
                    top = key.split("/")[0] if "/" in key else ""
                    is_ours = top in tops and is_own(key)
                    if is_ours and upload["Initiated"].timestamp() <= newest:
                        self._abort(upload["Key"], upload["UploadId"])
                        removed += 1
        except S3Errors as error:
            logger.warning(
                "unfinished uploads under %s were not all removed: %s",
                self.uri,
                explain(error, self.bucket)[1],
            )
        return removed

    def _open(self, key: str, *, probe: Literal["head", "tail"], first_bytes: int) -> BinaryIO:
        def failure(error: Exception, uri: str) -> StorageError:
            return self._failure("read", key, error)

        uri = self._uri(checked_key(key))
        return open_object(uri, failure=failure, probe=probe, first_bytes=first_bytes)

    def _put(self, key: str, data: bytes) -> None:
        try:
            client().put_object(Bucket=self.bucket, Key=self._full(key), Body=data)
        except S3Errors as error:
            raise self._failure("write", key, error) from error

    def _full(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key

    def _uri(self, key: str) -> str:
        return f"{SCHEME}{self.bucket}/{self._full(key)}"

    def _failure(self, action: str, key: str, error: Exception) -> StorageError:
        _, words = explain(error, self.bucket)
        return StorageError(f"cannot {action} {self._uri(key)!r}: {words}")

    def _abort(self, full: str, upload_id: str) -> None:
        client().abort_multipart_upload(Bucket=self.bucket, Key=full, UploadId=upload_id)

    def _delete(self, keys: Sequence[str]) -> None:
        objects = [{"Key": self._full(key)} for key in keys]
        try:
            answer = client().delete_objects(
                Bucket=self.bucket, Delete={"Objects": objects, "Quiet": True}
            )
        except ClientError as error:
            if explain(error, self.bucket)[0] is not Cause.OTHER:
                raise
            # Some servers know no batches, or want another checksum with them.
            for item in objects:
                client().delete_object(Bucket=self.bucket, Key=item["Key"])
            return
        for refused in answer.get("Errors", ()):
            if refused.get("Code") != "NoSuchKey":
                raise ClientError({"Error": refused}, "DeleteObjects")


class _Upload(io.RawIOBase):
    """Collects bytes to parts and sends each when it is full."""

    def __init__(self, store: S3Store, key: str, part_bytes: int) -> None:
        super().__init__()
        self.name = store._uri(key)
        self._store = store
        self._key = key
        self._full = store._full(key)
        self._part_bytes = part_bytes
        self._part = bytearray()
        self._sent_bytes = 0
        self._upload_id: str | None = None
        self._etags: list[dict[str, Any]] = []

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._sent_bytes + len(self._part)

    def write(self, data: "ReadableBuffer", /) -> int:
        remaining = memoryview(data).cast("B")
        total = len(remaining)
        while len(remaining):
            if len(self._part) == self._part_bytes:
                self._send()
            room = self._part_bytes - len(self._part)
            self._part += remaining[:room]
            remaining = remaining[room:]
        return total

    def complete(self) -> None:
        try:
            if self._upload_id is None:
                self._store._put(self._key, bytes(self._part))
                return
            self._send()
            client().complete_multipart_upload(
                Bucket=self._store.bucket,
                Key=self._full,
                UploadId=self._upload_id,
                MultipartUpload={"Parts": self._etags},
            )
        except S3Errors as error:
            raise self._store._failure("write", self._key, error) from error

    def abort(self) -> None:
        if self._upload_id is not None:
            with suppress(*S3Errors):
                self._store._abort(self._full, self._upload_id)
        self._part = bytearray()

    def _send(self) -> None:
        number = len(self._etags) + 1
        try:
            if self._upload_id is None:
                begun = client().create_multipart_upload(Bucket=self._store.bucket, Key=self._full)
                self._upload_id = begun["UploadId"]
            answer = client().upload_part(
                Bucket=self._store.bucket,
                Key=self._full,
                UploadId=self._upload_id,
                PartNumber=number,
                Body=self._part,
            )
        except S3Errors as error:
            raise self._store._failure("write", self._key, error) from error
        self._etags.append({"ETag": answer["ETag"], "PartNumber": number})
        self._sent_bytes += len(self._part)
        self._part = bytearray()
