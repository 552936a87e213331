"""What holds for S3 alone: multipart uploads, batches, and the words of errors."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from curator.errors import StorageError, UnconditionalStoreError, UsageError
from curator.stages.scan.listing_records import ListedSource
from curator.stages.scan.source_listing import list_sources
from curator.storage import open_source, open_store, s3_client
from curator.storage import s3_store as s3
from curator.storage.s3_store import S3Store

MIB = 1 << 20


@pytest.fixture(params=["moto", pytest.param("real", marks=pytest.mark.needs_s3)])
def bucket(request: pytest.FixtureRequest) -> str:
    name = "s3_bucket" if request.param == "moto" else "real_s3_bucket"
    return str(request.getfixturevalue(name))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    """Makes parts of 5 MiB, the least that servers take."""
    monkeypatch.setattr(s3, "PART_BYTES", 5 * MIB)
    return 5 * MIB


def unfinished(bucket: str) -> list[str]:
    found = s3_client.client().list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    return [upload["Key"] for upload in found]


def refusing(code: str) -> Callable[..., Any]:

    def refused(*_: object, **__: object) -> None:
        raise ClientError({"Error": {"Code": code, "Message": "no"}}, "Request")

    return refused


@pytest.mark.parametrize(
    ("n_bytes", "n_parts"), [(5, 1), (10, 2), (10 - 1 / MIB, 2), (10 + 1 / MIB, 3)]
)
def test_large_objects_go_in_parts_and_others_at_once(
    bucket: str, small_parts: int, n_bytes: float, n_parts: int
) -> None:
    """Sizes are in MiB."""
    store = open_store(f"s3://{bucket}/p")
    data = os.urandom(round(n_bytes * MIB))
    with store.create("large") as stream:
        for start in range(0, len(data), 700_001):
            stream.write(data[start : start + 700_001])
        assert stream.tell() == len(data)
        assert not store.exists("large")
    assert store.read("large") == data
    assert unfinished(bucket) == []
    (info,) = store.list()
    assert info.bytes == len(data)
    assert info.version.partition("-")[2] == (f"{n_parts}" if n_parts > 1 else "")


def test_write_of_a_large_object_goes_in_parts(
    bucket: str, small_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "SINGLE_REQUEST_BYTES", 6 * MIB)
    store = open_store(f"s3://{bucket}")
    store.write("a", bytes(7 * MIB))
    assert store.read("a") == bytes(7 * MIB)


def test_an_exception_aborts_the_upload(bucket: str, small_parts: int) -> None:
    store = open_store(f"s3://{bucket}")

    def fail_inside() -> None:
        with store.create("a") as stream:
            stream.write(bytes(3 * small_parts))
            assert unfinished(bucket) == ["a"]
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail_inside()
    assert unfinished(bucket) == []
    assert not store.exists("a")


def test_a_part_that_fails_ends_the_upload(
    bucket: str, small_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"s3://{bucket}")
    monkeypatch.setattr(s3_client.client(), "upload_part", refusing("QuotaExceeded"))
    with (
        pytest.raises(StorageError, match=r"cannot write .*QuotaExceeded: no"),
        store.create("a") as stream,
    ):
        stream.write(bytes(3 * small_parts))
    assert unfinished(bucket) == []


def test_uploads_of_killed_writers_are_aborted_by_age_and_prefix(
    bucket: str, request: pytest.FixtureRequest
) -> None:
    client = s3_client.client()
    theirs = ["out/b/theirs", "out/raw/b/c", "outside"]
    for key in ("out/a", "out/b/c", *theirs):
        client.create_multipart_upload(Bucket=bucket, Key=key)
    store = open_store(f"s3://{bucket}/out")
    # moto dates every upload to 2010.
    is_dated = "real" in request.node.name

    def cleaned(older_than_s: float) -> int:
        is_own = {"a", "b/c", "raw/b/c"}.__contains__
        return store.clean_temporary(("", "b"), is_own, older_than_s=older_than_s)

    assert cleaned(3600) == (0 if is_dated else 2)
    assert cleaned(-60) == (2 if is_dated else 0)
    assert unfinished(bucket) == theirs
    whole = open_store(f"s3://{bucket}")
    whole.clean_temporary(("", "out"), bool, older_than_s=-60)
    assert unfinished(bucket) == []


def test_what_a_server_refuses_to_do_at_once_is_done_otherwise_or_logged(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(f"s3://{s3_bucket}/p")
    for key in "abc":
        store.write(key, b"")
    monkeypatch.setattr(s3_client.client(), "delete_objects", refusing("MissingContentMD5"))
    store.delete(["a", "c", "z"])
    assert [info.key for info in store.list()] == ["b"]
    monkeypatch.setattr(s3_client.client(), "get_paginator", refusing("NotImplemented"))
    assert store.clean_temporary(("",), bool, strict=True) == 0
    assert "NotImplemented" in caplog.text
    monkeypatch.setattr(s3_client.client(), "get_paginator", refusing("AccessDenied"))
    assert store.clean_temporary(("",), bool) == 0
    with pytest.raises(StorageError, match=r"\(s3:ListBucketMultipartUploads\): AccessDenied"):
        store.clean_temporary(("",), bool, strict=True)
    answer = {"Errors": [{"Key": "a", "Code": "AccessDenied", "Message": "no"}]}
    monkeypatch.setattr(s3_client.client(), "delete_objects", lambda **_: answer)
    with pytest.raises(StorageError, match=r"cannot delete .*s3:DeleteObject"):
        store.delete(["a"])


def put_that(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], ClientError | None]
) -> list[dict[str, Any]]:
    """Lets each PUT pass `change` first, which may take away conditions or give an error.

    The error comes after the object was written, as where a response is lost. Gives the requests.
    """
    put, requests = s3_client.client().put_object, list[dict[str, Any]]()

    def changed(**options: Any) -> object:  # noqa: ANN401
        requests.append(dict(options))
        error = change(options)
        answer = put(**options)
        if error is not None:
            raise error
        return answer

    monkeypatch.setattr(s3_client.client(), "put_object", changed)
    return requests


@pytest.mark.parametrize("ignored", ["IfNoneMatch", "IfMatch"])
def test_a_server_that_ignores_a_condition_is_refused_before_the_object_is_touched(
    bucket: str, monkeypatch: pytest.MonkeyPatch, ignored: str
) -> None:
    store = open_store(f"s3://{bucket}/x")
    store.write("a", b"theirs")

    def ignore(options: dict[str, Any]) -> None:
        options.pop(ignored, None)

    put_that(monkeypatch, ignore)
    for _ in range(2):
        with pytest.raises(UnconditionalStoreError, match=r"If-.*expected .*Amazon S3"):
            store.write_new("a", b"mine")
    assert store.read("a") == b"theirs"
    assert [info.key for info in open_store(f"s3://{bucket}").list()] == ["x/a"]


def test_a_server_that_knows_no_conditions_is_refused(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ClientError({"Error": {"Code": "NotImplemented", "Message": "no"}}, "PutObject")
    put_that(monkeypatch, lambda options: error if "IfNoneMatch" in options else None)
    with pytest.raises(UnconditionalStoreError, match="NotImplemented: no"):
        open_store(f"s3://{bucket}").write_new("a", b"mine")


def test_conditions_are_checked_once(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = put_that(monkeypatch, lambda _: None)
    first, second = open_store(f"s3://{bucket}/x"), open_store(f"s3://{bucket}/y")
    assert first.write_new("a", b"1") is not None
    n_first = len(requests)
    assert n_first <= 6
    assert second.write_new("a", b"2") is not None
    assert len(requests) == n_first + 1


def test_a_write_whose_response_was_lost_is_found_to_be_ours(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"s3://{bucket}")
    store.write_new("checked", b"")
    refused = ClientError({"Error": {"Code": "PreconditionFailed"}}, "PutObject")
    put_that(monkeypatch, lambda _: refused)
    first = store.write_new("a", b"first")
    assert first is not None
    second = store.replace("a", b"second", first.version)
    assert second is not None
    assert store.read_versioned("a") == (second, b"second")


def test_a_conflict_is_tried_again(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"s3://{bucket}")
    store.write_new("checked", b"")
    conflict = refusing("ConditionalRequestConflict")
    answers = [conflict, conflict, s3_client.client().put_object]
    monkeypatch.setattr(s3, "_CONFLICT_PAUSE_S", 0.01)
    monkeypatch.setattr(s3_client.client(), "put_object", lambda **put: answers.pop(0)(**put))
    assert store.write_new("a", b"mine") is not None


@pytest.mark.needs_s3
def test_more_than_a_thousand_objects_are_listed(real_s3_bucket: str) -> None:
    store = open_store(f"s3://{real_s3_bucket}")
    keys = [f"{number:05}" for number in range(1100)]
    for key in keys:
        store.write(key, b"x")
    assert [info.key for info in store.list()] == keys
    store.delete(keys)
    assert list(store.list()) == []


def test_a_missing_bucket_is_told_with_the_remedy(bucket: str) -> None:
    store = open_store(f"s3://{bucket}-none/p")
    for use in (store.check_writable, lambda: store.read("a"), lambda: store.write("a", b"")):
        with pytest.raises(StorageError, match=f"there is no such bucket.*aws s3 mb s3://{bucket}"):
            use()
    with pytest.raises(StorageError, match="there is no such bucket"):
        list(store.list())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")), "set AWS_ACCESS_KEY_ID"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "check the network, AWS_ENDPOINT_URL"),
        ({}, "Invalid bucket name"),
    ],
)
def test_what_keeps_a_run_from_its_bucket_is_told_with_the_remedy(
    s3_bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    changes: dict[str, str | None],
    said: str,
) -> None:
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setattr(s3_client, "ATTEMPTS", 1)
    for name, value in changes.items():
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    with pytest.raises(StorageError, match=said):
        open_store(f"s3://{s3_bucket if changes else 'no bucket'}").check_writable()


@pytest.mark.needs_s3
def test_wrong_credentials_are_told_with_the_remedy(
    real_s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        with pytest.raises(StorageError, match="set AWS_ACCESS_KEY_ID"):
            open_store(f"s3://{real_s3_bucket}").check_writable()


def test_what_consoles_make_to_show_folders_is_not_listed(s3_bucket: str) -> None:
    client = s3_client.client()
    for key in ("out/", "out/sub/", "out/sub/x"):
        client.put_object(Bucket=s3_bucket, Key=key, Body=b"")
    assert [info.key for info in open_store(f"s3://{s3_bucket}/out").list()] == ["sub/x"]


def test_each_process_and_environment_has_one_client(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: s3_client.client(), range(8)))
    assert len(set(map(id, found))) == 1
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert s3_client.client() is not found[0]


def test_stores_hold_no_client() -> None:
    assert S3Store("b", "p") == open_store("s3://b/p/")
    with pytest.raises(UsageError, match="names no bucket"):
        open_store("s3:///p")


Guard = Callable[[dict[str, str]], bool]


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Guard], None]:
    """Makes the server refuse requests to a bucket unless a condition on their headers holds."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication

    answer = DomainDispatcherApplication.__call__
    guards: dict[str, Guard] = {}

    def guarding(self: object, environ: dict[str, str], begin: Callable[..., object]) -> object:
        guard = guards.get(environ["PATH_INFO"].split("/")[1])
        if guard is None or guard(environ):
            # moto wants a signature, to know the region.
            scope = "test/20250101/us-east-1/s3/aws4_request"
            environ.setdefault(
                "HTTP_AUTHORIZATION", f"AWS4-HMAC-SHA256 Credential={scope}, Signature=0"
            )
            return answer(self, environ, begin)
        begin("403 Forbidden", [("Content-Type", "application/xml")])
        return [b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"]

    monkeypatch.setattr(DomainDispatcherApplication, "__call__", guarding)
    return guards.__setitem__


def _is_signed(headers: dict[str, str]) -> bool:
    return "HTTP_AUTHORIZATION" in headers


def _without_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)


def test_public_buckets_are_read_without_credentials(
    s3_bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    guarded: Callable[[str, Guard], None],
) -> None:
    """Pins list, head and read; and the option in the messages without it."""
    uri = f"s3://{s3_bucket}/films"
    open_store(uri).write("a.mp4", b"film")
    guarded(s3_bucket, lambda headers: not _is_signed(headers))
    with pytest.raises(UsageError, match="AWS_NO_SIGN_REQUEST=1"):
        list_sources([uri])
    _without_credentials(monkeypatch, tmp_path)
    with pytest.raises(UsageError, match=r"credentials.*AWS_NO_SIGN_REQUEST=1"):
        list_sources([uri])
    monkeypatch.setenv("AWS_NO_SIGN_REQUEST", "YES")
    for place in (uri, f"{uri}/a.mp4", f"{uri}/*.mp4"):
        (found,) = list_sources([place])
        assert isinstance(found, ListedSource)
        with open_source(found.uri, expected_version=found.version) as stream:
            assert stream.read() == b"film"
    with pytest.raises(StorageError, match="credentials"):
        open_store(uri).write("b", b"")
    monkeypatch.setenv("AWS_NO_SIGN_REQUEST", "perhaps")
    with pytest.raises(UsageError, match="AWS_NO_SIGN_REQUEST='perhaps'; expected 1"):
        list_sources([uri])


def test_a_private_bucket_is_read_with_credentials_beside_a_public_one(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch, guarded: Callable[[str, Guard], None]
) -> None:
    """Pins that OUT may be private, and that a bucket is tried once without a signature."""
    monkeypatch.setenv("AWS_NO_SIGN_REQUEST", "1")
    refused = []

    def is_private(headers: dict[str, str]) -> bool:
        if not _is_signed(headers):
            refused.append(headers["REQUEST_METHOD"])
        return _is_signed(headers)

    guarded(s3_bucket, is_private)
    store = open_store(f"s3://{s3_bucket}/out")
    store.check_writable()
    store.write("a", b"1")
    assert [info.key for info in store.list()] == ["a"]
    assert store.read("a") == b"1"
    assert not store.exists("b")
    assert len(refused) == 1
    guarded(s3_bucket, lambda _: False)
    with pytest.raises(StorageError, match=r"AccessDenied|access denied"):
        store.read("a")


def test_requester_pays_is_said_in_all_requests(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch, guarded: Callable[[str, Guard], None]
) -> None:
    uri = f"s3://{s3_bucket}/films"
    guarded(s3_bucket, lambda headers: headers.get("HTTP_X_AMZ_REQUEST_PAYER") == "requester")
    with pytest.raises(StorageError, match="AWS_REQUEST_PAYER=requester"):
        open_store(uri).write("a.mp4", b"film")
    with pytest.raises(UsageError, match="AWS_REQUEST_PAYER=requester"):
        list_sources([uri])
    monkeypatch.setenv("AWS_REQUEST_PAYER", "requester")
    open_store(uri).write("a.mp4", b"film")
    (found,) = list_sources([uri])
    assert isinstance(found, ListedSource)
    with open_source(found.uri, expected_version=found.version) as stream:
        assert stream.read() == b"film"
    monkeypatch.setenv("AWS_REQUEST_PAYER", "me")
    with pytest.raises(UsageError, match="AWS_REQUEST_PAYER='me'; expected requester"):
        list_sources([uri])
