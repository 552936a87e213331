"""Sends requests to S3 by a boto3 client of this process, and explains its errors.

With `AWS_NO_SIGN_REQUEST=1`, reads are sent without a signature, for public buckets. If a bucket
refuses, the read is sent again with the credentials, so OUT may be in a private bucket. Writes are
always signed. With `AWS_REQUEST_PAYER=requester`, all requests say that the requester pays.
"""

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, TypeVar

from botocore import UNSIGNED
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ResponseStreamingError,
    TokenRetrievalError,
)
from botocore.exceptions import ConnectionError as NoConnectionError
from botocore.parsers import ResponseParserError

from curator.errors import UsageError
from curator.storage.base import TRAFFIC, ObjectInfo, Store
from curator.storage.object_service import (
    PAYER,
    UNSIGNED_READS,
    Cause,
    NoRangeError,
    ObjectChangedError,
    ObjectRange,
    ObjectService,
    ShortBodyError,
    bare,
)

ATTEMPTS = 6
"""Attempts of one request, with growing pauses."""

S3Errors = (BotoCoreError, ClientError, ResponseParserError, OSError, ValueError)
"""Errors of a call. A ValueError means a key that cannot be encoded, or a server without range
requests."""

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")

_clients: dict[object, Any] = {}
_private: set[object] = set()
"""Clients and buckets that refused a read without signature, and accepted one with a signature."""
_lock = threading.Lock()
_Answer = TypeVar("_Answer")


def client(*, is_signed: bool = True) -> Any:  # noqa: ANN401 - boto3 makes its classes at run time
    """Returns this process's client, which is thread-safe.

    boto3 reads endpoint, credentials and region from the environment (`AWS_ENDPOINT_URL`,
    `AWS_PROFILE`, …) and its files. A fork, or a change of these variables, gets a new client.
    """
    settings = frozenset(item for item in os.environ.items() if item[0].startswith("AWS_"))
    identity = (os.getpid(), settings, is_signed)
    with _lock:
        if identity not in _clients:
            _clients[identity] = _new_client(is_signed)
        return _clients[identity]


def _read(bucket: str, send: Callable[[Any], _Answer]) -> _Answer:
    """Sends a request that reads, without a signature if the environment says so."""
    if not reads_unsigned() or (client(), bucket) in _private:
        return send(client())
    try:
        return send(client(is_signed=False))
    except ClientError as error:
        if _cause(error) is not Cause.FORBIDDEN:
            raise
        refusal = error
    try:
        answer = send(client())
    except NoCredentialsError:
        raise refusal from None
    _private.add((client(), bucket))
    return answer


def reads_unsigned() -> bool:
    """Returns whether the environment says that buckets are read without a signature."""
    word = os.environ.get(UNSIGNED_READS, "").strip().lower()
    if word not in _YES | _NO:
        raise UsageError(
            f"the environment has {UNSIGNED_READS}={word!r}; expected 1 (read public buckets "
            "without credentials) or 0"
        )
    return word in _YES


_YES, _NO = frozenset({"1", "true", "yes", "on"}), frozenset({"", "0", "false", "no", "off"})


def _new_client(is_signed: bool) -> Any:  # noqa: ANN401
    import boto3
    from botocore.config import Config

    options: dict[str, Any] = {
        "retries": {"mode": "adaptive", "total_max_attempts": ATTEMPTS},
        "connect_timeout": 10,
        "read_timeout": 60,
        "max_pool_connections": 32,
    }
    # Many S3 servers refuse the checksums that newer clients add by default. Without checksums, the
    # signature of a request covers a SHA-256 of the body.
    if "AWS_REQUEST_CHECKSUM_CALCULATION" not in os.environ:
        options["request_checksum_calculation"] = "when_required"
    if "AWS_RESPONSE_CHECKSUM_VALIDATION" not in os.environ:
        options["response_checksum_validation"] = "when_required"
    if not is_signed:
        options["signature_version"] = UNSIGNED
    session = boto3.session.Session()
    region = session.region_name or "us-east-1"
    made = session.client("s3", region_name=region, config=Config(**options))
    made.meta.events.register("before-send.s3", _sent)
    made.meta.events.register("after-call.s3", _answered)
    if payer := os.environ.get(PAYER, "").strip().lower():
        if payer != "requester":
            raise UsageError(f"the environment has {PAYER}={payer!r}; expected requester")
        made.meta.events.register("provide-client-params.s3", _with_payer)
    return made


def _with_payer(params: dict[str, Any], model: Any, **_: object) -> dict[str, Any]:  # noqa: ANN401
    """Adds that the requester pays, to each operation that takes it."""
    takes_it = model.input_shape is not None and "RequestPayer" in model.input_shape.members
    return {**params, "RequestPayer": "requester"} if takes_it else params


def _sent(request: Any, **_: object) -> None:  # noqa: ANN401
    TRAFFIC.update(requests=1, sent_bytes=int(request.headers.get("Content-Length") or 0))


def _answered(http_response: Any, parsed: Any, model: Any, **_: object) -> None:  # noqa: ANN401
    has_body = not model.name.startswith("Head")
    n_bytes = int(http_response.headers.get("Content-Length") or 0) if has_body else 0
    n_retries = parsed.get("ResponseMetadata", {}).get("RetryAttempts", 0)
    TRAFFIC.update(received_bytes=n_bytes, retries=n_retries)


_CODES = {
    Cause.MISSING: "404 NoSuchKey NotFound",
    Cause.NO_BUCKET: "NoSuchBucket",
    Cause.FORBIDDEN: "401 403 AccessDenied AllAccessDisabled Unauthorized",
    Cause.CHANGED: "412 PreconditionFailed",
    Cause.BUSY: "500 503 InternalError ServiceUnavailable SlowDown",
    Cause.CREDENTIALS: "ExpiredToken InvalidAccessKeyId InvalidToken SignatureDoesNotMatch "
    "RequestTimeTooSkewed",
}
_BY_CODE = {code: cause for cause, codes in _CODES.items() for code in codes.split()}

_REMEDIES = {
    Cause.MISSING: "check the name",
    Cause.NO_BUCKET: "check the bucket's name and AWS_ENDPOINT_URL, or create it: "
    "aws s3 mb s3://{bucket}",
    Cause.FORBIDDEN: "grant these credentials s3:ListBucket on the bucket, and s3:GetObject "
    "(for outputs also s3:PutObject, s3:DeleteObject) on its objects; to read a public bucket, set "
    f"{UNSIGNED_READS}=1, and to read one where the requester pays, {PAYER}=requester",
    Cause.CREDENTIALS: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or a role "
    f"on the machine, and check the clock; to read a public bucket without credentials, set "
    f"{UNSIGNED_READS}=1",
    Cause.CHANGED: "do not replace objects while a run reads them; start the run again",
    Cause.UNREACHABLE: "check the network, AWS_ENDPOINT_URL and AWS_DEFAULT_REGION",
    Cause.BUSY: "run again later, or with fewer workers",
    Cause.OTHER: "see the server's message",
}

_NOT_PUBLIC = (
    f"{UNSIGNED_READS} is set, but this bucket is not public for this request, and the credentials "
    "may not send it either: if only the listing is refused, name single objects or a manifest; "
    f"else set credentials with access to the bucket; if the requester pays, {PAYER}=requester"
)


def _cause(error: Exception) -> Cause:
    match error:
        case ClientError():
            return _BY_CODE.get(code_of(error), Cause.OTHER)
        case NoCredentialsError() | PartialCredentialsError():
            return Cause.CREDENTIALS
        case ProfileNotFound() | TokenRetrievalError():
            return Cause.CREDENTIALS
        case ObjectChangedError():
            return Cause.CHANGED
        case NoConnectionError() | HTTPClientError() | IncompleteReadError() | OSError():
            return Cause.UNREACHABLE
        case _:
            return Cause.OTHER


def code_of(error: Exception) -> str:
    """Returns the server's code of an error; empty without a code."""
    if isinstance(error, ClientError):
        return str(error.response.get("Error", {}).get("Code", ""))
    return ""


_CODE_WORDS = {
    "404": "there is no such object",
    "NoSuchKey": "there is no such object",
    "NoSuchBucket": "there is no such bucket",
    "403": "access denied",
    "500": "the server failed",
    "503": "the server is overloaded",
    "412": "the object was replaced",
    "PreconditionFailed": "the object was replaced",
}


def words_of(error: Exception) -> str:
    """Returns the error as words for a message."""
    code = code_of(error)
    if code in _CODE_WORDS:
        return _CODE_WORDS[code]
    if isinstance(error, ClientError):
        detail = error.response.get("Error", {}).get("Message")
        return f"{code}: {detail}" if detail else code
    return str(error) or type(error).__name__


def service(scheme: str) -> ObjectService:
    """Returns the service for the S3 server that the environment names."""
    return S3Service()


class S3Service(ObjectService):
    """Requests by this process's client."""

    scheme = "s3"
    errors = S3Errors

    def store(self, bucket: str, prefix: str) -> Store:
        """Returns the store below a prefix."""
        from curator.storage.s3_store import S3Store

        return S3Store(bucket, prefix)

    def head(self, bucket: str, key: str) -> ObjectInfo:
        """Returns the size and version of one object."""
        answer = _read(bucket, lambda s3: s3.head_object(Bucket=bucket, Key=key))
        version = bare(answer.get("ETag"))
        return ObjectInfo(key=key, bytes=answer["ContentLength"], version=version)

    def list(self, bucket: str, prefix: str) -> Iterator[ObjectInfo]:
        """Yields the objects with keys that start with `prefix`, except marks of folders."""
        after, more = "", True
        while more:
            objects, more = _listed(bucket, prefix, after)
            last = objects[-1].key if objects else ""
            if more and last.encode() <= after.encode():
                raise ValueError(f"the server does not continue its listing after {after!r}")
            after = last
            yield from (item for item in objects if item.bytes or not item.key.endswith("/"))

    def page(self, bucket: str, prefix: str, after: str) -> tuple[dict[str, int], bool]:
        """Returns sizes of at most a thousand next keys, and whether more follow."""
        objects, more = _listed(bucket, prefix, after)
        return {item.key: item.bytes for item in objects}, more

    def get_range(
        self, bucket: str, key: str, start: int, end: int, version: str = ""
    ) -> ObjectRange:
        """Fetches bytes by one request; repeats the request if the body breaks off.

        boto3 itself repeats only failed requests.
        """
        byte_range = f"bytes={start}" if start < 0 else f"bytes={start}-{end - 1}"
        wanted = {"Bucket": bucket, "Key": key, "Range": byte_range}
        wanted |= {"IfMatch": f'"{version}"'} if version else {}
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = _read(bucket, lambda s3: s3.get_object(**wanted))
            except ClientError as error:
                if code_of(error) in ("InvalidRange", "416"):
                    raise NoRangeError(words_of(error)) from error
                raise
            try:
                return _body(answer, version)
            except (HTTPClientError, IncompleteReadError, ResponseStreamingError, OSError) as error:
                if attempt == ATTEMPTS or isinstance(error, ObjectChangedError):
                    raise
                time.sleep(random.uniform(0.5, 1.0) * 0.1 * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def explain(self, error: Exception, bucket: str) -> tuple[Cause, str]:
        """Returns the cause of a failed call, and a message with the remedy."""
        cause, what = _cause(error), words_of(error)
        if code_of(error) == "InvalidObjectState":
            return cause, f"{what}; the object is archived: restore it first"
        if cause is Cause.FORBIDDEN and reads_unsigned():
            return cause, f"{what}; {_NOT_PUBLIC}"
        return cause, f"{what}; {_REMEDIES[cause].format(bucket=bucket)}"


def _listed(bucket: str, prefix: str, after: str) -> tuple[list[ObjectInfo], bool]:
    """Lists the next objects; repeats a request with an invalid response."""
    wanted = {"Bucket": bucket, "Prefix": prefix, "StartAfter": after}
    for attempt in range(1, ATTEMPTS + 1):
        try:
            page = _read(bucket, lambda s3: s3.list_objects_v2(**wanted))
            objects = [
                ObjectInfo(key=item["Key"], bytes=item["Size"], version=bare(item.get("ETag")))
                for item in page.get("Contents", ())
            ]
            return objects, bool(page.get("IsTruncated"))
        except (ResponseParserError, ValueError, KeyError):
            # Damaged markup, or a damaged number or time.
            if attempt == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _body(answer: dict[str, Any], expected: str) -> ObjectRange:
    version = bare(answer.get("ETag"))
    # `with` on the body itself would give the inner stream, which does not raise botocore's errors.
    with closing(answer["Body"]) as body:
        # Checked here, because some servers ignore conditions.
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
        raise ShortBodyError(f"the response has {len(data)} bytes; expected {last + 1 - start}")
    return ObjectRange(start, data, size, version or expected)
