"""Requests to S3, by boto3."""

import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from botocore.exceptions import (
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    ResponseStreamingError,
)
from botocore.parsers import ResponseParserError

from curator.storage import s3_client
from curator.storage.base import Store
from curator.storage.object_service import (
    Cause,
    NoRangeError,
    ObjectChangedError,
    ObjectRange,
    ObjectService,
    ShortBodyError,
    StoredObject,
    bare,
)
from curator.storage.s3_client import S3Errors

_ANSWERS = 3
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


def service(scheme: str) -> ObjectService:
    """Requests to the S3 server that the environment names."""
    return S3Service()


class S3Service(ObjectService):
    """Requests by this process's client."""

    scheme = "s3"
    errors = S3Errors

    @property
    def is_plain(self) -> bool:
        """Whether the server's address begins with http://."""
        return str(s3_client.client().meta.endpoint_url).startswith("http://")

    def store(self, bucket: str, prefix: str) -> Store:
        """The store below a prefix."""
        from curator.storage.s3_store import S3Store

        return S3Store(bucket, prefix)

    def head(self, bucket: str, key: str) -> StoredObject:
        """Asks for the size and version of one object."""
        answer = s3_client.client().head_object(Bucket=bucket, Key=key)
        version = bare(answer.get("ETag"))
        return StoredObject(key=key, bytes=answer["ContentLength"], version=version)

    def list(self, bucket: str, prefix: str) -> Iterator[StoredObject]:
        """Yields the objects whose key starts with `prefix`, without the marks of folders."""
        after, more = "", True
        while more:
            objects, more = _listed(bucket, prefix, after, is_plain=self.is_plain)
            last = objects[-1].key if objects else ""
            if more and last.encode() <= after.encode():
                raise ValueError(f"the server does not list on after the key {after!r}")
            after = last
            yield from (item for item in objects if item.bytes or not item.key.endswith("/"))

    def page(self, bucket: str, prefix: str, after: str) -> tuple[dict[str, int], bool]:
        """Sizes by key of the next thousand keys at most, and whether more follow."""
        objects, more = _listed(bucket, prefix, after, is_plain=self.is_plain)
        return {item.key: item.bytes for item in objects}, more

    def get_range(
        self, bucket: str, key: str, start: int, end: int, version: str = ""
    ) -> ObjectRange:
        """Fetches bytes by one request.

        boto3 repeats a request that fails, but not one whose body breaks off; this method does.
        """
        byte_range = f"bytes={start}" if start < 0 else f"bytes={start}-{end - 1}"
        condition = {"IfMatch": f'"{version}"'} if version else {}
        for attempt in range(1, s3_client.ATTEMPTS + 1):
            try:
                answer: dict[str, Any] = s3_client.client().get_object(
                    Bucket=bucket, Key=key, Range=byte_range, **condition
                )
            except ClientError as error:
                if s3_client.code_of(error) in ("InvalidRange", "416"):
                    raise NoRangeError(s3_client.words_of(error)) from error
                raise
            try:
                return _body(answer, version)
            except (HTTPClientError, IncompleteReadError, ResponseStreamingError, OSError) as error:
                if attempt == s3_client.ATTEMPTS or isinstance(error, ObjectChangedError):
                    raise
                time.sleep(random.uniform(0.5, 1.0) * 0.1 * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def explain(self, error: Exception, bucket: str) -> tuple[Cause, str]:
        """Returns the cause of a failed call, and a message with its remedy."""
        return s3_client.explain(error, bucket)


def _listed(
    bucket: str, prefix: str, after: str, *, is_plain: bool
) -> tuple[list[StoredObject], bool]:
    """Lists the next objects.

    Over plain HTTP bits may flip in names, sizes and marks too. There the listing is that of
    two answers that are the same, or has what two of three answers have. An answer that makes no
    sense is asked for again.
    """
    answers: list[tuple[list[StoredObject], bool]] = []
    n_broken = 0
    while len(answers) < _ANSWERS:
        try:
            page = s3_client.client().list_objects_v2(
                Bucket=bucket, Prefix=prefix, StartAfter=after
            )
            objects = [
                StoredObject(key=item["Key"], bytes=item["Size"], version=bare(item.get("ETag")))
                for item in page.get("Contents", ())
            ]
        except (ResponseParserError, ValueError, KeyError):
            # Of a mark, of a number or a time, and of the name of a mark.
            n_broken += 1
            if n_broken == s3_client.ATTEMPTS:
                raise
            continue
        answer = objects, bool(page.get("IsTruncated"))
        if not is_plain or answer in answers:
            return answer
        answers.append(answer)
    times = Counter(stored for objects, _ in answers for stored in objects)
    agreed = (stored for stored, n_times in times.items() if 2 * n_times > _ANSWERS)
    more = 2 * sum(more for _, more in answers) > _ANSWERS
    return sorted(agreed, key=lambda stored: stored.key.encode()), more


def _body(answer: dict[str, Any], expected: str) -> ObjectRange:
    version = bare(answer.get("ETag"))
    # `with` on the body itself gives the stream below it, whose errors are not those of botocore.
    with closing(answer["Body"]) as body:
        # A server that ignores conditions must not mix two objects.
        if expected and version and version != expected:
            raise ObjectChangedError("the object was replaced while it was read")
        placed = _CONTENT_RANGE.fullmatch(answer.get("ContentRange", ""))
        if placed is None:
            # Some servers answer 200 for any range of an empty object.
            if answer.get("ContentLength") == 0:
                return ObjectRange(0, b"", 0, version or expected)
            raise ValueError("the server does not answer range requests")
        start, last, size = (int(number) for number in placed.groups())
        data: bytes = body.read()
    if len(data) != last + 1 - start:
        raise ShortBodyError(f"{len(data)} bytes came of {last + 1 - start}")
    return ObjectRange(start, data, size, version or expected)
