"""What this process moved to and from stores."""

from collections import Counter
from typing import Any

TRAFFIC = Counter[str]()
"""Requests to S3 and those sent again; bytes received from it, and sent to it or to a folder."""


def count_requests(client: Any) -> None:  # noqa: ANN401 - boto3's clients are made at run time
    """Lets a client of boto3 add to `TRAFFIC`."""
    client.meta.events.register("before-send.s3", _sent)
    client.meta.events.register("after-call.s3", _answered)


def _sent(request: Any, **_: object) -> None:  # noqa: ANN401
    TRAFFIC.update(requests=1, sent_bytes=int(request.headers.get("Content-Length") or 0))


def _answered(http_response: Any, parsed: Any, model: Any, **_: object) -> None:  # noqa: ANN401
    has_body = not model.name.startswith("Head")
    n_bytes = int(http_response.headers.get("Content-Length") or 0) if has_body else 0
    n_retries = parsed.get("ResponseMetadata", {}).get("RetryAttempts", 0)
    TRAFFIC.update(received_bytes=n_bytes, retries=n_retries)
