"""A run over S3 whose network fails: errors, resets, cut and slow bodies, flipped bits.

The same against a real server, and with processes: `benchmarks/s3_faults.py`.
"""

import os
from collections.abc import Iterator

import pytest
from fault_proxy import FaultProxy

from curator.storage import open_store
from curator.storage.object_service import service_named


@pytest.fixture
def proxy(
    s3_bucket: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultProxy]:
    """Between this process and moto; without faults at first."""
    with FaultProxy(server=s3_endpoint, share=0, checks=True, slow_s=0.2) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


def test_bodies_that_break_off_are_read_again(proxy: FaultProxy, s3_bucket: str) -> None:
    """Before: urllib3's `ProtocolError`, as a traceback, because nothing foresaw it."""
    data = os.urandom(1 << 20)
    store = open_store(f"s3://{s3_bucket}/p")
    store.write("a", data)
    proxy.share, proxy.kinds = 0.3, ("cut",)
    assert all(store.read("a") == data for _ in range(12))
    found = service_named("s3").get_range(s3_bucket, "p/a", 7, 70_000)
    assert found.data == data[7:70_000]
    assert proxy.counts["cut"] > 2


def test_a_listing_is_what_two_answers_say(proxy: FaultProxy, s3_bucket: str) -> None:
    """Before: a flipped name or size was believed, and a flipped mark was a traceback."""
    store = open_store(f"s3://{s3_bucket}/p")
    for number in range(12):
        store.write(f"{number:02}", bytes(number))
    expected = list(store.list())
    proxy.share, proxy.kinds = 0.25, ("flip",)
    for _ in range(30):
        assert list(store.list()) == expected
    assert proxy.counts["flip"] > 10
