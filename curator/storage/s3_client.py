"""The S3 client of a process, and the meaning of its errors."""

import os
import threading
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    TokenRetrievalError,
)
from botocore.exceptions import ConnectionError as NoConnectionError
from botocore.parsers import ResponseParserError

from curator.storage.object_service import Cause, ObjectChangedError
from curator.storage.traffic import count_requests

ATTEMPTS = 6
"""Tries of one request, with growing pauses in between."""

S3Errors = (BotoCoreError, ClientError, ResponseParserError, OSError, ValueError)
"""What a call can raise; ValueError is a key that cannot be encoded, or a server
without range requests."""

_clients: dict[object, Any] = {}
_lock = threading.Lock()


def client() -> Any:  # noqa: ANN401 - boto3's clients are classes made at run time
    """Returns this process's client; it is thread-safe.

    boto3 reads the endpoint, credentials and region from the environment and its files
    (`AWS_ENDPOINT_URL`, `AWS_PROFILE`, …). A fork, or a change of these variables, gets a new
    client.
    """
    settings = frozenset(item for item in os.environ.items() if item[0].startswith("AWS_"))
    identity = (os.getpid(), settings)
    with _lock:
        if identity not in _clients:
            _clients[identity] = _new_client()
        return _clients[identity]


def _new_client() -> Any:  # noqa: ANN401
    import boto3
    from botocore.config import Config

    options: dict[str, Any] = {
        "retries": {"mode": "adaptive", "total_max_attempts": ATTEMPTS},
        "connect_timeout": 10,
        "read_timeout": 60,
        "max_pool_connections": 32,
    }
    # Many S3 servers other than Amazon's refuse the checksums that newer clients add by default.
    # Without them the request signature covers a SHA-256 of the body.
    if "AWS_REQUEST_CHECKSUM_CALCULATION" not in os.environ:
        options["request_checksum_calculation"] = "when_required"
    if "AWS_RESPONSE_CHECKSUM_VALIDATION" not in os.environ:
        options["response_checksum_validation"] = "when_required"
    session = boto3.session.Session()
    region = session.region_name or "us-east-1"
    made = session.client("s3", region_name=region, config=Config(**options))
    count_requests(made)
    return made


_BY_CODE = {
    "404": Cause.MISSING,
    "NoSuchKey": Cause.MISSING,
    "NotFound": Cause.MISSING,
    "NoSuchBucket": Cause.NO_BUCKET,
    "403": Cause.FORBIDDEN,
    "AccessDenied": Cause.FORBIDDEN,
    "AllAccessDisabled": Cause.FORBIDDEN,
    "412": Cause.CHANGED,
    "PreconditionFailed": Cause.CHANGED,
    "500": Cause.BUSY,
    "503": Cause.BUSY,
    "InternalError": Cause.BUSY,
    "ServiceUnavailable": Cause.BUSY,
    "SlowDown": Cause.BUSY,
    "ExpiredToken": Cause.CREDENTIALS,
    "InvalidAccessKeyId": Cause.CREDENTIALS,
    "InvalidToken": Cause.CREDENTIALS,
    "SignatureDoesNotMatch": Cause.CREDENTIALS,
    "RequestTimeTooSkewed": Cause.CREDENTIALS,
}

_REMEDIES = {
    Cause.MISSING: "check the name",
    Cause.NO_BUCKET: "check the bucket's name and AWS_ENDPOINT_URL, or create it: "
    "aws s3 mb s3://{bucket}",
    Cause.FORBIDDEN: "grant these credentials s3:ListBucket on the bucket, and s3:GetObject "
    "(for outputs also s3:PutObject, s3:DeleteObject) on its objects",
    Cause.CREDENTIALS: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or a role "
    "on the machine, and check the clock",
    Cause.CHANGED: "do not replace objects while a run reads them; start the run again",
    Cause.UNREACHABLE: "check the network, AWS_ENDPOINT_URL and AWS_DEFAULT_REGION",
    Cause.BUSY: "run again later, or with fewer workers",
    Cause.OTHER: "see the server's message",
}


def explain(error: Exception, bucket: str) -> tuple[Cause, str]:
    """Returns the cause of a failed call, and a message with its remedy."""
    cause = _cause(error)
    what = words_of(error)
    if code_of(error) == "InvalidObjectState":
        return cause, f"{what}; the object is archived: restore it first"
    return cause, f"{what}; {_REMEDIES[cause].format(bucket=bucket)}"


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
    """Returns the server's code of an error; empty without one."""
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
    """Returns the error in words."""
    code = code_of(error)
    if code in _CODE_WORDS:
        return _CODE_WORDS[code]
    if isinstance(error, ClientError):
        detail = error.response.get("Error", {}).get("Message")
        return f"{code}: {detail}" if detail else code
    return str(error) or type(error).__name__
