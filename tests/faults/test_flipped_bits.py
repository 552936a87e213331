"""Bits that flip on the way to the server are found: an upload carries a sum that servers check."""

import base64
import hashlib
from typing import Any

import pytest
from botocore.exceptions import ClientError
from fault_proxy import FaultProxy

from curator.errors import StorageError
from curator.storage import (
    open_store,
    s3_client,
    s3_store,
)


def test_uploads_have_a_sum_that_servers_check(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test checks it, because moto does not: Ceph answers `BadDigest`."""
    flips = FaultProxy(server="")
    monkeypatch.setattr(s3_store, "PART_BYTES", 5 << 20)
    sent: list[str] = []

    def check(kind: str, real: Any) -> Any:  # noqa: ANN401
        def request(*, Body: bytes, ContentMD5: str, **options: Any) -> Any:  # noqa: ANN401, N803
            data = flips.changed("PUT", bytes(Body))
            if base64.b64encode(hashlib.md5(data).digest()).decode() != ContentMD5:
                sent.append("flipped")
                raise ClientError({"Error": {"Code": "BadDigest"}}, kind)
            sent.append(kind)
            return real(Body=Body, **options)

        return request

    client = s3_client.client()
    for kind in ("put_object", "upload_part"):
        monkeypatch.setattr(client, kind, check(kind, getattr(client, kind)))
    store = open_store(f"s3://{s3_bucket}/out")
    flips.choose = lambda kind, number: 3 if kind == "PUT" and number in (0, 2) else None
    store.write("a", b"12345")
    with store.create("b") as stream:
        stream.write(bytes(6 << 20))
    assert sent == ["flipped", "put_object", "flipped", "upload_part", "upload_part"]
    assert store.read("a") == b"12345"
    assert store.read("b") == bytes(6 << 20)
    flips.choose = lambda kind, number: 3 if kind == "PUT" else None
    with pytest.raises(StorageError, match="BadDigest"):
        store.write("a", b"12345")
