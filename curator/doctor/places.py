"""Sources and output root: whether they can be read and written, and how S3 is reached."""

import secrets
import socket
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import islice
from typing import Any

from curator.doctor.diagnosis import Group, Row, State, finding_of
from curator.doctor.host import Host
from curator.doctor.machine_check import existing
from curator.errors import CuratorError, StorageError
from curator.number_text import plain
from curator.stages.scan.source_listing import ListedSource, UnlistedSource, list_sources
from curator.storage import Store, open_source, open_store
from curator.storage.object_service import scheme_of, split_uri

MAX_LOOKED_AT = 1000
"""Most names of a source that are tried for one that can be read."""

CONNECT_S = 5.0
"""Longest wait for the S3 server; the client itself tries for minutes."""

MAX_SKEW_S = 300.0
"""Difference of clocks that is reported: S3 refuses requests from 15 min."""

_CONTENT = b"written to see whether this prefix can be written and read\n"


def storage_rows(sources: Sequence[str], out: str | None, *, s3_answers: bool) -> list[Row]:
    """Checks places. Written objects are removed again, and a missing OUT is not created.

    `s3_answers` is whether to try places on S3: the client tries for minutes.
    """
    rows: list[Row] = []
    for name, place, check in [
        *((f"source {source}", source, _source) for source in sources),
        *([(f"OUT {out}", out, _out)] if out is not None else []),
    ]:
        if scheme_of(place) == "s3" and not s3_answers:
            rows.append(_row(name, State.MISSING, "was not checked", "see the rows `S3`"))
        else:
            rows.append(_tried(name, place, check))
    return rows


_row = partial(Group.STORAGE.row, needed=True)


def _tried(name: str, place: str, check: Callable[[str], str]) -> Row:
    """Returns a row with a check's finding, or its error."""
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
        return _round_trip(store)
    nearest = existing(out)
    # If OUT does not exist, the folder in which it will be created is tried.
    open_store(nearest).check_writable()
    return (
        "can be written" if nearest == store.uri else f"will be created; {nearest} can be written"
    )


def _round_trip(store: Store) -> str:
    """Lists, writes, reads and removes a small object under the prefix."""
    store.check_writable()
    key = f"doctor-{secrets.token_hex(8)}"
    times_ms = []
    try:
        for action in (lambda: store.write(key, _CONTENT), lambda: store.read(key)):
            began = time.perf_counter()
            got = action()
            times_ms.append((time.perf_counter() - began) * 1000)
        if got != _CONTENT:
            raise StorageError(
                f"{store.uri}/{key} was read with other content than was written; use an S3 server "
                "whose reads see the last write"
            )
    except BaseException:
        with suppress(StorageError):
            store.delete([key])
        raise
    store.delete([key])
    return f"list, put ({times_ms[0]:.0f} ms), get ({times_ms[1]:.0f} ms) and delete work"


def s3_rows(host: Host, places: Sequence[str]) -> list[Row]:
    """Checks credentials, endpoint and clock, once for all places on S3 (at least one)."""
    rows = [_credentials()]
    if rows[0].stops:
        return rows
    from curator.storage.s3_client import S3Errors, client

    try:
        made = client()
    except S3Errors as error:
        remedy = "check AWS_ENDPOINT_URL, AWS_PROFILE and AWS_DEFAULT_REGION"
        return [*rows, _row("S3 endpoint", State.BROKEN, str(error), remedy)]
    rows.append(_endpoint(made))
    if not rows[-1].stops:
        rows.append(_clock(host, made, places[0]))
    return rows


def _credentials() -> Row:
    """Returns the origin of the credentials, which are never shown."""
    import boto3

    from curator.storage.s3_client import S3Errors, explain

    name = "S3 credentials"
    try:
        found = boto3.session.Session().get_credentials()
    except S3Errors as error:
        words, _, remedy = explain(error, "")[1].partition("; ")
        return _row(name, State.BROKEN, words, remedy)
    if found is None:
        return _row(
            name,
            State.MISSING,
            "not in the environment, a profile or a role",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the machine "
            "or pod a role",
        )
    return _row(name, State.OK, f"from {_PROVIDERS.get(found.method, found.method)}")


_PROVIDERS = {
    "env": "the environment (AWS_ACCESS_KEY_ID)",
    "shared-credentials-file": "the file of credentials",
    "config-file": "the configuration file",
    "iam-role": "the role of the machine",
    "container-role": "the role of the container",
    "assume-role": "an assumed role",
    "assume-role-with-web-identity": "an assumed role (web identity)",
    "sso": "single sign-on",
}
"""Boto3's names of providers, in words."""


def _endpoint(client: Any) -> Row:  # noqa: ANN401 - boto3's clients are classes made at run time
    address = str(client.meta.endpoint_url)
    parts = urllib.parse.urlsplit(address)
    shown = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    words = f"{shown}, region {client.meta.region_name}"
    if urllib.request.getproxies().get(parts.scheme):
        return _row("S3 endpoint", State.OK, f"{words}, through a proxy")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((str(parts.hostname), port), timeout=CONNECT_S).close()
    except OSError as error:
        return _row(
            "S3 endpoint",
            State.BROKEN,
            f"{words}: {error.strerror or error}",
            "check the network and AWS_ENDPOINT_URL, which is for servers other than Amazon's",
        )
    return _row("S3 endpoint", State.OK, f"{words}, answers")


def _clock(host: Host, client: Any, place: str) -> Row:  # noqa: ANN401
    """Compares the server's clock with ours: signed requests are valid only for some minutes."""
    from botocore.exceptions import ClientError

    from curator.storage.s3_client import S3Errors

    name = "clock"
    try:
        answer = client.list_objects_v2(Bucket=split_uri(place)[0], MaxKeys=1)
    except ClientError as error:
        # The row of the place reports the error; a refusal has the server's time too.
        answer = error.response
    except S3Errors as error:
        return _row(name, State.NOT_NEEDED, f"the server did not answer: {error}")
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    if date is None:
        return _row(name, State.NOT_NEEDED, "the server sends no time")
    skew_s = host.now() - parsedate_to_datetime(date).timestamp()
    if abs(skew_s) > MAX_SKEW_S:
        side = "ahead of" if skew_s > 0 else "behind"
        return _row(
            name,
            State.BROKEN,
            f"{abs(skew_s) / 60:.0f} min {side} the server's",
            "set this machine's clock, such as by NTP; S3 refuses requests from 15 min",
            needed=False,
        )
    return _row(name, State.OK, f"within {max(1.0, abs(skew_s)):.0f} s of the server's")
