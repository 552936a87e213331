"""Where outputs are written and sources are read: folders and S3."""

import os

from curator.errors import UsageError
from curator.storage.base import ObjectInfo, Store, has_scheme
from curator.storage.content_id import HashingReader, content_id
from curator.storage.local_store import LocalStore
from curator.storage.source_reader import expect_end, open_source, stat_source

__all__ = [
    "HashingReader",
    "ObjectInfo",
    "Store",
    "content_id",
    "expect_end",
    "open_source",
    "open_store",
    "stat_source",
]


def open_store(uri: str) -> Store:
    """Gives the store under a folder's path or `s3://bucket/prefix`; nothing is made or checked.

    Raises:
        UsageError: The address is of another kind, or names no bucket.
    """
    if uri.startswith("s3://"):
        from curator.storage.s3_store import S3Store

        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        if not bucket:
            raise UsageError(f"{uri!r} names no bucket: expected s3://bucket/prefix")
        return S3Store(bucket, prefix.strip("/"))
    if not uri or has_scheme(uri):
        raise UsageError(
            f"{uri!r} cannot hold outputs: expected a folder's path or s3://bucket/prefix"
        )
    return LocalStore(os.path.abspath(uri))
