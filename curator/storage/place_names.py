"""Tells paths of this machine from addresses that are written wrongly, such as `s3:/bucket`."""

import os
import re

from curator.errors import UsageError
from curator.storage.base import has_scheme
from curator.storage.object_service import ADDRESSES, scheme_of

_STORES = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **dict.fromkeys(("az", "azure", "abfs", "abfss", "wasb", "wasbs"), "az"),
}
"""Schemes of object stores in this and other programs, with ours."""
_STORE = re.compile(rf"({'|'.join(_STORES)})(:/*|//+)(.*)", re.IGNORECASE | re.DOTALL)
_FILE = re.compile(r"file:(?://(?:localhost)?)?(/.*)", re.IGNORECASE | re.DOTALL)
_ARN = re.compile(r"arn:aws[\w-]*:s3:::(.+)", re.DOTALL)
_WEB = re.compile(r"https?:/", re.IGNORECASE)
_WEB_BUCKETS = (
    (re.compile(r"https?://([\w.-]+)\.s3[\w.-]*\.amazonaws\.com/([^?]*)"), "s3"),
    (re.compile(r"https?://s3[\w.-]*\.amazonaws\.com/([\w.-]+)/([^?]*)"), "s3"),
    (re.compile(r"https?://storage\.googleapis\.com/([\w.-]+)/([^?]*)"), "gs"),
)


def local_path(place: str, expected: str = f"a path, or {ADDRESSES}") -> str:
    """Returns the absolute path of a place on this machine.

    Args:
        place: A path as the user wrote it. Addresses of object stores are handled before.
        expected: Supported places, for the message.

    Raises:
        UsageError: The place is empty or an address, perhaps written wrongly. Else a folder with
            the name `s3:` might be made.
    """
    remedy = None if scheme_of(place) is not None else _remedy(place)
    if remedy is not None or not place or has_scheme(place):
        words = f"; {remedy}" if remedy is not None else ""
        raise UsageError(f"{place!r} is not supported: expected {expected}{words}")
    return os.path.abspath(place)


def _remedy(place: str) -> str | None:
    if found := _ARN.fullmatch(place):
        return f"write s3://{found[1]}"
    if found := _FILE.fullmatch(place):
        return f"write the path: {found[1]}"
    for pattern, scheme in _WEB_BUCKETS:
        if found := pattern.fullmatch(place):
            return f"web addresses are not read: write {scheme}://{found[1]}/{found[2]}"
    if _WEB.match(place):
        return "web addresses are not read: download it, or name its bucket"
    found = _STORE.fullmatch(place)
    # The path `s3//films` is in the folder `s3`, if there is one.
    if found is None or (":" not in found[2] and os.path.isdir(found[1])):
        return None
    address = f"{_STORES[found[1].lower()]}://{found[3].lstrip('/') or 'bucket/prefix'}"
    return f"write {address}" + ("" if "//" in found[2] else f", or for a path ./{place}")
