"""Reads sources and writes outputs in folders and object stores."""

from curator.errors import StorageError, UsageError, raised_as
from curator.storage.base import ObjectInfo, Store
from curator.storage.block_reader import open_blocks
from curator.storage.content_id import NO_HASHES, ContentHashes, HashingReader, content_id
from curator.storage.local_store import LocalStore
from curator.storage.object_service import service_of, split_uri
from curator.storage.place_names import local_path
from curator.storage.source_reader import expect_end, open_source, stat_source

__all__ = [
    "NO_HASHES",
    "ContentHashes",
    "HashingReader",
    "ObjectInfo",
    "Store",
    "check_listable",
    "content_id",
    "expect_end",
    "open_blocks",
    "open_source",
    "open_store",
    "stat_source",
]


def check_listable(uri: str) -> Store:
    """Opens a store; raises `UsageError` if its bucket does not exist or may not be listed."""
    store = open_store(uri)
    with raised_as(UsageError, StorageError):
        next(iter(store.list()), None)
    return store


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
    return LocalStore(local_path(uri))
