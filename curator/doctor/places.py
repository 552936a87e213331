"""Sources and output root: whether they can be read and written, and how S3 is reached."""

import socket
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

from curator.doctor.diagnosis import CheckRow, Group, State, finding_of
from curator.doctor.machine_check import existing
from curator.errors import CuratorError, StorageError
from curator.number_text import plain
from curator.stages.scan.source_listing import ListedSource, UnlistedSource, list_sources
from curator.storage import open_source, open_store
from curator.storage.object_service import scheme_of

MAX_LOOKED_AT = 1000
"""Most names of a source that are tried for one that can be read."""

CONNECT_S = 5.0
"""Longest wait for the S3 server; the client itself tries for minutes."""

_row = partial(Group.STORAGE.row, needed=True)


def storage_rows(sources: Sequence[str], out: str | None, *, s3_answers: bool) -> list[CheckRow]:
    """Checks places. Written objects are removed again, and a missing OUT is not created.

    `s3_answers` is whether to try places on S3: the client tries for minutes.
    """
    rows = [
        _tried(f"source {source}", source, _source, s3_answers=s3_answers) for source in sources
    ]
    if out is not None:
        rows.append(_tried(f"OUT {out}", out, _out, s3_answers=s3_answers))
    return rows


def _tried(name: str, place: str, check: Callable[[str], str], *, s3_answers: bool) -> CheckRow:
    """Returns a row with a check's finding, or its error."""
    if scheme_of(place) == "s3" and not s3_answers:
        return _row(name, State.MISSING, "was not checked", "see the rows `S3`")
    try:
        return _row(name, State.OK, check(place))
    except CuratorError as error:
        return _row(name, State.BROKEN, *finding_of(error, "check the name"))


def _source(source: str) -> str:
    """Lists a source until one can be read, and reads its first byte."""
    skipped = 0
    failed: UnlistedSource | None = None
    for item in islice(list_sources([source]), MAX_LOOKED_AT):
        if isinstance(item, ListedSource):
            with open_source(item.uri, expected_version=item.version) as stream:
                stream.read(1)
            return f"can be read; the first is {plain(item.uri)} ({item.bytes / 1e6:.1f} MB)"
        if isinstance(item, UnlistedSource):
            failed = failed or item
        else:
            skipped += 1
    if failed is not None:
        raise StorageError(failed.message)
    raise StorageError(
        f"its first {skipped} names are clearly no videos; name the folder or pattern of the videos"
    )


def _out(out: str) -> str:
    store = open_store(out)
    if not store.is_local:
        store.check_writable()
        return "can be listed and written"
    # If OUT does not exist, the folder in which it will be created is tried.
    nearest = existing(out)
    open_store(nearest).check_writable()
    made = "" if nearest == store.uri else f"will be created; {nearest} "
    return f"{made}can be written"


def s3_rows() -> list[CheckRow]:
    """Checks credentials and endpoint, once for all places on S3."""
    import boto3

    from curator.storage.s3_client import S3Errors, client, explain

    try:
        credentials = boto3.session.Session().get_credentials()
    except S3Errors as error:
        words, _, remedy = explain(error, "")[1].partition("; ")
        return [_row("S3 credentials", State.BROKEN, words, remedy)]
    if credentials is None:
        remedy = (
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the machine "
            "or pod a role"
        )
        absent = "not in the environment, a profile or a role"
        return [_row("S3 credentials", State.MISSING, absent, remedy)]
    # Never the credentials themselves: where boto3 has them from, such as `env`.
    rows = [_row("S3 credentials", State.OK, f"from {credentials.method}")]
    try:
        meta = client().meta
    except S3Errors as error:
        remedy = "check AWS_ENDPOINT_URL, AWS_PROFILE and AWS_DEFAULT_REGION"
        return [*rows, _row("S3 endpoint", State.BROKEN, str(error), remedy)]
    return [*rows, _endpoint(str(meta.endpoint_url), str(meta.region_name))]


def _endpoint(address: str, region: str) -> CheckRow:
    parts = urllib.parse.urlsplit(address)
    host = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    words = f"{host}, region {region}"
    if urllib.request.getproxies().get(parts.scheme):
        return _row("S3 endpoint", State.OK, f"{words}, through a proxy")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((str(parts.hostname), port), timeout=CONNECT_S).close()
    except OSError as error:
        remedy = "check the network and AWS_ENDPOINT_URL, which is for servers other than Amazon's"
        finding = f"{words}: {error.strerror or error}"
        return _row("S3 endpoint", State.BROKEN, finding, remedy)
    return _row("S3 endpoint", State.OK, f"{words}, answers")
