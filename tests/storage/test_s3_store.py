"""What holds for S3 alone: multipart uploads, batches, and the words of errors."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from curator.errors import StorageError, UnconditionalStoreError, UsageError
from curator.storage import open_store, s3_client
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


@pytest.mark.parametrize("extra_bytes", [0, 1, -1])
def test_large_objects_go_in_parts(bucket: str, small_parts: int, extra_bytes: int) -> None:
    store = open_store(f"s3://{bucket}/p")
    data = os.urandom(2 * small_parts + extra_bytes)
    with store.create("large") as stream:
        for start in range(0, len(data), 700_001):
            stream.write(data[start : start + 700_001])
        assert stream.tell() == len(data)
        assert not store.exists("large")
    assert store.read("large") == data
    assert unfinished(bucket) == []
    (info,) = store.list()
    assert info.bytes == len(data)
    assert info.version.endswith("-2" if extra_bytes <= 0 else "-3")


def test_objects_of_one_part_are_put_at_once(bucket: str, small_parts: int) -> None:
    store = open_store(f"s3://{bucket}")
    with store.create("small") as stream:
        stream.write(bytes(small_parts))
    (info,) = store.list()
    assert info.bytes == small_parts
    assert "-" not in info.version


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

    def refused(**_: object) -> None:
        raise ClientError({"Error": {"Code": "QuotaExceeded", "Message": "full"}}, "UploadPart")

    monkeypatch.setattr(s3_client.client(), "upload_part", refused)
    with (
        pytest.raises(StorageError, match=r"cannot write .*QuotaExceeded: full"),
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


def test_a_server_that_refuses_to_list_uploads_is_no_error(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(name: str) -> None:
        raise ClientError({"Error": {"Code": "NotImplemented"}}, name)

    monkeypatch.setattr(s3_client.client(), "get_paginator", refused)
    assert open_store(f"s3://{s3_bucket}").clean_temporary(("",), bool) == 0
    assert "NotImplemented" in caplog.text


def test_deletes_one_by_one_where_batches_are_refused(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"s3://{s3_bucket}/p")
    for key in "abc":
        store.write(key, b"")

    def refused(**_: object) -> None:
        raise ClientError({"Error": {"Code": "MissingContentMD5"}}, "DeleteObjects")

    monkeypatch.setattr(s3_client.client(), "delete_objects", refused)
    store.delete(["a", "c", "z"])
    assert [info.key for info in store.list()] == ["b"]


def test_an_object_that_may_not_be_deleted_is_an_error(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"Errors": [{"Key": "a", "Code": "AccessDenied", "Message": "no"}]}
    monkeypatch.setattr(s3_client.client(), "delete_objects", lambda **_: answer)
    with pytest.raises(StorageError, match=r"cannot delete .*s3:DeleteObject"):
        open_store(f"s3://{s3_bucket}").delete(["a"])


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
    put, conflicts = s3_client.client().put_object, [1, 2]

    def conflicting(**options: object) -> object:
        if conflicts:
            conflicts.pop()
            error = {"Code": "ConditionalRequestConflict"}
            raise ClientError({"Error": error}, "PutObject")
        return put(**options)

    monkeypatch.setattr(s3, "_CONFLICT_PAUSE_S", 0.01)
    monkeypatch.setattr(s3_client.client(), "put_object", conflicting)
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


def test_missing_credentials_are_told_with_the_remedy(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(StorageError, match="set AWS_ACCESS_KEY_ID"):
        open_store(f"s3://{s3_bucket}").check_writable()


@pytest.mark.needs_s3
def test_wrong_credentials_are_told_with_the_remedy(
    real_s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        with pytest.raises(StorageError, match="set AWS_ACCESS_KEY_ID"):
            open_store(f"s3://{real_s3_bucket}").check_writable()


def test_a_server_that_is_not_there_is_told_with_the_remedy(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(s3_client, "ATTEMPTS", 1)
    with pytest.raises(StorageError, match="check the network, AWS_ENDPOINT_URL"):
        open_store(f"s3://{s3_bucket}").check_writable()


def test_a_name_that_no_bucket_can_have_is_told(s3_bucket: str) -> None:
    with pytest.raises(StorageError, match="Invalid bucket name"):
        open_store("s3://no bucket/x").check_writable()


def test_what_consoles_make_to_show_folders_is_not_listed(s3_bucket: str) -> None:
    client = s3_client.client()
    for key in ("out/", "out/sub/", "out/sub/x"):
        client.put_object(Bucket=s3_bucket, Key=key, Body=b"")
    assert [info.key for info in open_store(f"s3://{s3_bucket}/out").list()] == ["sub/x"]


def test_each_process_and_environment_has_one_client(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(s3_client.client())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert s3_client.client() is not found[0]


def test_stores_hold_no_client() -> None:
    assert S3Store("b", "p") == open_store("s3://b/p/")
    with pytest.raises(UsageError, match="names no bucket"):
        open_store("s3:///p")
