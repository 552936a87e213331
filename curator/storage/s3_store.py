"""A store under a prefix of an S3 bucket."""

import base64
import hashlib
import io
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO

from botocore.exceptions import ClientError

from curator.errors import StorageError, UnconditionalStoreError
from curator.storage.base import (
    STALE_AFTER_S,
    TEMPORARY_PREFIX,
    Entry,
    IsOwn,
    ObjectInfo,
    Store,
    checked_key,
)
from curator.storage.bucket_store import SINGLE_REQUEST_BYTES, BucketStore
from curator.storage.object_service import Cause, bare
from curator.storage.s3_client import ATTEMPTS, S3Errors, client, code_of, words_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PART_BYTES = 16 << 20
"""Size of a part of a multipart upload, which is the memory that `create` takes."""

COPIED_RANGE_BYTES = 256 << 10
"""Least bytes of `copy_range`: a reader that skips fewer bytes of an object fetches them anyway."""
_without_ranges: set[tuple[object, str, str]] = set()
"""Clients and buckets without copies of ranges: of an object, or of any, with an empty key."""

_DELETE_BATCH = 1000
_BUFFER_BYTES = 256 << 10
_FLIPPED = frozenset({"BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch"})
"""Codes of a server that received other bytes than were sent; boto3 does not repeat the request."""

_UNMET = frozenset({"412", "PreconditionFailed", "404", "NoSuchKey"})
"""Codes of a false condition; 404 means that the object of `If-Match` is gone."""
_CONFLICT = frozenset({"409", "ConditionalRequestConflict", "OperationAborted"})
_CONFLICT_PAUSE_S = 0.2
_NO_CONDITIONS = frozenset({"501", "NotImplemented", "InvalidArgument", "InvalidRequest"})
"""Codes of servers that refuse conditions."""
_ABORT, _LIST_UPLOADS = "s3:AbortMultipartUpload", "s3:ListBucketMultipartUploads"
"""Permissions to remove unfinished uploads."""
_IF_NONE = {"IfNoneMatch": "*"}
_FORMS = ('"{}"', "{}")
"""ETags with quotes, as the standard demands, and without quotes, for Ceph 16."""
_forms: dict[tuple[object, str], str] = {}
"""The accepted form of an ETag, by client and bucket, after a check of conditional writes."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class S3Store(BucketStore):
    """Objects below `s3://bucket/prefix`, each written by a PUT or a multipart upload."""

    def entries(self) -> Iterator[Entry]:
        """Yields all objects, and unfinished uploads, whose parts cannot be read."""
        yield from super(S3Store, self).entries()
        try:
            for upload in self._uploads():
                key = upload["Key"][len(self._full("")) :]
                problem = "an unfinished multipart upload"
                yield Entry(key=key, is_object=False, problem=problem)
        except S3Errors as error:
            words = self.service.explain(error, self.bucket)[1]
            problem = f"unfinished uploads cannot be listed: {words}"
            yield Entry(key=".", is_object=False, problem=problem)

    def _uploads(self) -> Iterator[dict[str, Any]]:
        pages = client().get_paginator("list_multipart_uploads")
        for page in pages.paginate(Bucket=self.bucket, Prefix=self._full("")):
            yield from page.get("Uploads", ())

    def check_writable(self) -> None:
        """Lists the prefix, and checks conditional writes with an object, which it removes."""
        for _ in islice(self.list(), 1):
            pass
        try:
            _forms[client(), self.bucket] = self._checked_form()
        except UnconditionalStoreError:
            super(S3Store, self).check_writable()

    def write(self, key: str, data: bytes) -> None:
        """Puts a whole object in one request; a large object in parts."""
        if len(data) > SINGLE_REQUEST_BYTES:
            super(S3Store, self).write(key, data)
        else:
            self._put(checked_key(key), data)

    def write_new(self, key: str, data: bytes) -> ObjectInfo | None:
        """Puts an object with `If-None-Match: *`."""
        self._form()
        return self._put_if(checked_key(key), data, _IF_NONE)

    def replace(self, key: str, data: bytes, version: str) -> ObjectInfo | None:
        """Puts an object with `If-Match`."""
        condition = {"IfMatch": self._form().format(version)}
        return self._put_if(checked_key(key), data, condition)

    def _put_if(self, key: str, data: bytes, condition: dict[str, str]) -> ObjectInfo | None:
        with self._explained("write", key):
            etag = self._etag_if(key, data, condition)
        if etag is None:
            return self._own(key, data)
        return ObjectInfo(key=key, bytes=len(data), version=etag)

    def _etag_if(self, key: str, data: bytes, condition: dict[str, str]) -> str | None:
        """Puts an object on a condition; returns its ETag, or None if the condition is false."""
        target = {"Bucket": self.bucket, "Key": self._full(key)}
        try:
            answer = _sent(client().put_object, data, **target, **condition)
        except ClientError as error:
            if code_of(error) not in _UNMET:
                raise
            return None
        return bare(answer.get("ETag"))

    def _form(self) -> str:
        """Returns the form of the ETag in `If-Match`; checks it once per client and bucket."""
        if (client(), self.bucket) not in _forms:
            _forms[client(), self.bucket] = self._checked_form()
        return _forms[client(), self.bucket]

    def _checked_form(self) -> str:
        """Checks with a temporary object that the server honours conditions; returns the form.

        A server without support for a condition ignores it, and overwrites the object.
        """
        probe = f"{TEMPORARY_PREFIX}check-{secrets.token_hex(8)}"
        text = f"{probe}: written to see whether this server refuses to write over it\n".encode()

        def accepts(condition: dict[str, str]) -> bool:
            return self._etag_if(probe, text, condition) is not None

        try:
            try:
                etag = self._etag_if(probe, text, _IF_NONE) or ""
                broken = [
                    *(["If-None-Match is ignored"] * accepts(_IF_NONE)),
                    *(["If-Match is ignored"] * accepts({"IfMatch": f'"{"0" * 32}"'})),
                ]
                form = next((f for f in _FORMS if accepts({"IfMatch": f.format(etag)})), None)
            finally:
                with suppress(*S3Errors):
                    self._remove(probe)
        except S3Errors as error:
            if code_of(error) not in _NO_CONDITIONS:
                raise self._failure("write", probe, error) from error
            form, broken = None, [words_of(error)]
        if form is None or broken:
            raise UnconditionalStoreError(
                f"the server of {self.uri} does not support conditional writes "
                f"({', '.join(broken) or 'If-Match never holds'}): expected the server to refuse a "
                "PUT with If-None-Match or If-Match if another object exists, as Amazon S3, "
                "Cloudflare R2 and current versions of MinIO and Ceph do"
            )
        return form

    @contextmanager
    def create(self, key: str) -> Iterator[BinaryIO]:
        """Opens an append-only stream into a multipart upload, with one part in memory.

        One PUT sends an object of at most one part. The limit of 10,000 parts is 156 GiB.
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

    def copy(self, source: str, target: str) -> None:
        """Copies an object on the server."""
        with self._explained("copy", source):
            client().copy_object(
                Bucket=self.bucket,
                Key=self._full(checked_key(target)),
                CopySource={"Bucket": self.bucket, "Key": self._full(checked_key(source))},
            )

    def copy_from(self, other: Store, source: str, target: str) -> bool:
        """Copies an object of another bucket or prefix on the server."""
        if not isinstance(other, S3Store):
            return False
        with self._explained("write", target):
            client().copy_object(CopySource=other._place(source), **self._place(target))
        return True

    def copy_range(
        self, other: Store, source: str, span: tuple[int, int], target: str, sha256: str
    ) -> bool:
        """Copies bytes on the server by a multipart upload of one part, which may have any size.

        The source must be an object of more than 5 MiB. The server returns the SHA-256 of a part if
        it supports `ChecksumAlgorithm`.
        """
        start, end = span
        if not isinstance(other, S3Store) or end - start < COPIED_RANGE_BYTES:
            return False
        server = (client(), self.bucket, "")
        of_source = (client(), self.bucket, other._uri(source))
        if {server, of_source} & _without_ranges:
            return False
        place, upload = self._place(target), None
        try:
            begun = client().create_multipart_upload(**place, ChecksumAlgorithm="SHA256")
            upload = place | {"UploadId": begun["UploadId"]}
            part = client().upload_part_copy(
                **upload,
                PartNumber=1,
                CopySource=other._place(source),
                CopySourceRange=f"bytes={start}-{end - 1}",
            )["CopyPartResult"]
            found = base64.b64decode(part.get("ChecksumSHA256", "")).hex()
            if found == sha256:
                facts = {name: part[name] for name in ("ETag", "ChecksumSHA256")}
                parts = {"Parts": [facts | {"PartNumber": 1}]}
                client().complete_multipart_upload(**upload, MultipartUpload=parts)
                return True
            if not found:
                _without_ranges.add(server)
        except S3Errors as error:
            code = code_of(error)
            if code not in _NO_CONDITIONS:
                raise self._failure("write", target, error) from error
            # S3 refuses a range of an object of at most 5 MiB as an invalid request.
            _without_ranges.add(of_source if code.startswith("Invalid") else server)
        if upload is not None:
            with suppress(*S3Errors):
                client().abort_multipart_upload(**upload)
        return False

    def _place(self, key: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self._full(checked_key(key))}

    def delete(self, keys: Iterable[str]) -> None:
        """Removes objects, a thousand per request if the server supports batches."""
        remaining = iter(keys)
        while batch := [checked_key(key) for key in islice(remaining, _DELETE_BATCH)]:
            with self._explained("delete", batch[0]):
                self._delete(batch)

    def clean_temporary(
        self,
        folders: Iterable[str],
        is_own: IsOwn,
        *,
        older_than_s: float = STALE_AFTER_S,
        strict: bool = False,
    ) -> int:
        """Aborts multipart uploads under the prefix that are older than `older_than_s`.

        A server without a list of uploads keeps none that could be found, which is only logged.
        """
        newest = time.time() - older_than_s
        removed, refusals = 0, list[str]()
        tops, root = frozenset(folders), len(self._full(""))
        try:
            for upload in self._uploads():
                key = upload["Key"][root:]
                top = key.split("/")[0] if "/" in key else ""
                is_ours = top in tops and is_own(key)
                if is_ours and upload["Initiated"].timestamp() <= newest:
                    try:
                        self._abort(upload["Key"], upload["UploadId"])
                    except S3Errors as error:
                        if code_of(error) == "NoSuchUpload":
                            continue
                        words = f"upload {upload['UploadId']} of {self._uri(key)}"
                        refusals.append(f"{words} ({_ABORT}): {self._words(error)}")
                    else:
                        removed += 1
        except S3Errors as error:
            words = f"their list ({_LIST_UPLOADS}): {self._words(error)}"
            strict = strict and code_of(error) not in _NO_CONDITIONS
            refusals.append(words)
        if refusals:
            more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
            message = f"unfinished uploads under {self.uri} could not be removed{more}, such as "
            message += refusals[0]
            if strict:
                raise StorageError(message)
            logger.warning("%s", message)
        return removed

    def _words(self, error: Exception) -> str:
        return self.service.explain(error, self.bucket)[1]

    def _put(self, key: str, data: bytes) -> None:
        with self._explained("write", key):
            _sent(client().put_object, data, Bucket=self.bucket, Key=self._full(key))

    def _remove(self, key: str) -> None:
        client().delete_object(Bucket=self.bucket, Key=self._full(key))

    def _abort(self, full: str, upload_id: str) -> None:
        client().abort_multipart_upload(Bucket=self.bucket, Key=full, UploadId=upload_id)

    def _delete(self, keys: Sequence[str]) -> None:
        objects = [{"Key": self._full(key)} for key in keys]
        try:
            answer = client().delete_objects(
                Bucket=self.bucket, Delete={"Objects": objects, "Quiet": True}
            )
        except ClientError as error:
            if self.service.explain(error, self.bucket)[0] is not Cause.OTHER:
                raise
            # Some servers do not support batches, or require another checksum.
            for item in objects:
                client().delete_object(Bucket=self.bucket, Key=item["Key"])
            return
        for refused in answer.get("Errors", ()):
            if refused.get("Code") != "NoSuchKey":
                raise ClientError({"Error": refused}, "DeleteObjects")


def _sent(
    request: Callable[..., dict[str, Any]], body: bytes | bytearray, **options: object
) -> dict[str, Any]:
    """Sends bytes with their MD5, which the server checks; repeats a request with flipped bits.

    Also repeats a request after a conflict, which is a write of the same key at the same time.
    """
    md5 = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return request(Body=body, ContentMD5=md5, **options)
        except ClientError as error:
            if attempt == ATTEMPTS or code_of(error) not in _FLIPPED | _CONFLICT:
                raise
            if code_of(error) in _CONFLICT:
                time.sleep(_CONFLICT_PAUSE_S * attempt)
    raise AssertionError("the last attempt returns or raises")


class _Upload(io.RawIOBase):
    """Collects bytes into parts, and sends each full part."""

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
        if self._upload_id is None:
            self._store._put(self._key, bytes(self._part))
            return
        self._send()
        with self._store._explained("write", self._key):
            client().complete_multipart_upload(
                Bucket=self._store.bucket,
                Key=self._full,
                UploadId=self._upload_id,
                MultipartUpload={"Parts": self._etags},
            )

    def abort(self) -> None:
        if self._upload_id is not None:
            with suppress(*S3Errors):
                self._store._abort(self._full, self._upload_id)
        self._part = bytearray()

    def _send(self) -> None:
        number = len(self._etags) + 1
        with self._store._explained("write", self._key):
            if self._upload_id is None:
                begun = client().create_multipart_upload(Bucket=self._store.bucket, Key=self._full)
                self._upload_id = begun["UploadId"]
            answer = _sent(
                client().upload_part,
                self._part,
                Bucket=self._store.bucket,
                Key=self._full,
                UploadId=self._upload_id,
                PartNumber=number,
            )
        self._etags.append({"ETag": answer["ETag"], "PartNumber": number})
        self._sent_bytes += len(self._part)
        self._part = bytearray()
