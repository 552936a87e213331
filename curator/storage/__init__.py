"""Reads sources and writes outputs in folders and object stores."""

import os

from curator.errors import UsageError
from curator.storage.base import ObjectInfo, Store, has_scheme
from curator.storage.content_id import NO_HASHES, ContentHashes, HashingReader, content_id
from curator.storage.local_store import LocalStore
from curator.storage.object_service import ADDRESSES, service_of, split_uri
from curator.storage.proven_reader import open_blocks, read_proven
from curator.storage.source_reader import expect_end, open_source, stat_source

__all__ = [
    "NO_HASHES",
    "ContentHashes",
    "HashingReader",
    "ObjectInfo",
    "Store",
    "content_id",
    "expect_end",
    "open_blocks",
    "open_source",
    "open_store",
    "read_proven",
    "stat_source",
]


def open_store(uri: str) -> Store:
    """Returns the store of a folder or `scheme://bucket/prefix`; creates and checks nothing.

    Raises:
        UsageError: The address is not supported or names no bucket, or a package is missing.
    """
    service = service_of(uri)
    if service is not None:
        bucket, prefix = split_uri(uri)
        if not bucket:
            raise UsageError(f"{uri!r} names no bucket: expected {service.scheme}://bucket/prefix")
        return service.store(bucket, prefix.strip("/"))
    if not uri or has_scheme(uri):
        raise UsageError(f"{uri!r} cannot hold outputs: expected a folder's path, or {ADDRESSES}")
    return LocalStore(os.path.abspath(uri))
