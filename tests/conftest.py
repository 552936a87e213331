"""Fixtures that several test folders share."""

import os
import secrets
from collections.abc import Iterator
from functools import cache

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what needs a GPU where there is none, or fails it if that was asked for."""
    if item.get_closest_marker("needs_gpu") is None or _has_gpu():
        return
    if os.environ.get("FAIL_WITHOUT_GPU") == "1":
        pytest.fail("FAIL_WITHOUT_GPU=1, and no GPU is here", pytrace=False)
    pytest.skip("no GPU")


@cache
def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Address of an S3 server that lives as long as the tests."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a new, empty bucket; the environment leads boto3 to its server."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return _new_bucket()


@pytest.fixture
def real_s3_bucket() -> Iterator[str]:
    """Name of a new bucket on the server that the environment names; see the mark `needs_s3`."""
    from curator.storage.s3_client import client

    if not os.environ.get("AWS_ENDPOINT_URL"):
        pytest.skip("no S3 server: set AWS_ENDPOINT_URL and credentials")
    bucket = _new_bucket()
    yield bucket
    for page in client().get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for item in page.get("Contents", ()):
            client().delete_object(Bucket=bucket, Key=item["Key"])
    client().delete_bucket(Bucket=bucket)


def _new_bucket() -> str:
    from curator.storage.s3_client import client

    bucket = f"curate-test-{secrets.token_hex(4)}"
    client().create_bucket(Bucket=bucket)
    return bucket
