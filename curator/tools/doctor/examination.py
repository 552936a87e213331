"""Runs all checks in the order of their dependencies; checks sources, OUT and access to S3."""

import socket
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

from curator.errors import CuratorError, StorageError, UsageError
from curator.number_text import plain
from curator.storage.object_service import scheme_of
from curator.tools.doctor.diagnosis import CheckRow, Diagnosis, Fault, Group, State
from curator.tools.doctor.gpu import gpu_rows
from curator.tools.doctor.machine_check import (
    ASKED,
    are_sound,
    existing,
    machine_rows,
    package_rows,
)
from curator.tools.doctor.probe_process import ask_all

MAX_LOOKED_AT = 1000
"""Most names of a source to list in search of a readable video."""
CONNECT_S = 5.0
"""Longest wait for the S3 server, because the client itself retries for minutes."""
_row = partial(Group.STORAGE.row, needed=True)


def examine(
    sources: Sequence[str] = (),
    out: str | None = None,
    *,
    recipe: str,
    overrides: Sequence[str] = (),
    models: str | None = None,
    ray_address: str | None = None,
) -> Diagnosis:
    """Runs all checks, and leaves nothing written.

    `sources`, `out`, `recipe` and `overrides` have the same meaning as for `curate run`. `models`
    replaces the recipe's place of weights. `ray_address` names a cluster to check; None for none.
    """
    answers = ask_all(ASKED)
    if are_sound(answers):
        needs, rows = _with_recipe(sources, out, recipe, overrides, models)
    else:
        # A broken package may crash the process that imports it.
        needs = (
            {"s3"} if any(scheme_of(place) == "s3" for place in [*sources, out or ""]) else set()
        )
        finding = "recipe, models and storage were not checked: a package does not work"
        fault = Fault(finding, "see the rows of packages", State.BROKEN)
        rows = [Group.RECIPE.row(recipe, fault, needed=True)]
    rows += machine_rows(out)
    if ray_address is not None:
        rows.append(cluster_row(ray_address))
    rows += package_rows(answers, needs)
    rows += gpu_rows(answers["faiss"], needed="gpu" in needs)
    order = list(Group)
    return Diagnosis(
        recipe=recipe, rows=tuple(sorted(rows, key=lambda row: order.index(row.group)))
    )


def _with_recipe(
    sources: Sequence[str], out: str | None, name: str, overrides: Sequence[str], models: str | None
) -> tuple[set[str], list[CheckRow]]:
    from curator.tools.doctor import recipe_check

    recipe = recipe_check.read_recipe(name, overrides, models)
    places = [*sources, *([out] if out is not None else [])]
    needs = recipe_check.needs_of(recipe, places)
    rows = s3_rows() if "s3" in needs else []
    s3_answers = not any(row.stops for row in rows)
    rows += storage_rows(sources, out, s3_answers=s3_answers)
    if isinstance(recipe, Fault):
        return needs, [*rows, Group.RECIPE.row(name, recipe, needed=True)]
    rows += recipe_check.model_rows(recipe, s3_answers=s3_answers)
    # The catalogue of models is in the mirror too.
    if s3_answers or recipe_check.mirror_of(recipe) is None:
        outcome = recipe_check.checked_recipe(recipe)
        rows.append(Group.RECIPE.row(name, outcome, needed=isinstance(outcome, Fault)))
    return needs, rows


def cluster_row(address: str) -> CheckRow:
    """Checks that a Ray cluster answers, and that this machine is one of its nodes."""
    from curator.executor.ray_reach import check_reachable

    try:
        outcome: str | Fault = f"answers: {check_reachable(address)}"
    except UsageError as error:
        outcome = Fault.of(error)
    return Group.MACHINE.row(f"Ray cluster {plain(address)}", outcome, needed=True)


def storage_rows(sources: Sequence[str], out: str | None, *, s3_answers: bool) -> list[CheckRow]:
    """Checks places. Written objects are removed again, and a missing OUT is not created.

    If `s3_answers` is false, places on S3 are not tried, because the client retries for minutes.
    """

    def tried(kind: str, place: str, check: Callable[[str], str]) -> CheckRow:
        outcome: str | Fault = Fault("was not checked", "see the rows `S3`")
        if scheme_of(place) != "s3" or s3_answers:
            try:
                outcome = check(place)
            except CuratorError as error:
                outcome = Fault.of(error, "check the name")
        return _row(f"{kind} {place}", outcome)

    rows = [tried("source", source, _source) for source in sources]
    return rows if out is None else [*rows, tried("OUT", out, _out)]


def _source(source: str) -> str:
    """Lists a source until a video is found, and reads the first byte of the video."""
    from curator.stages.scan.listing_records import ListedSource, UnlistedSource
    from curator.stages.scan.source_listing import list_sources
    from curator.storage import open_source

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
        f"the first {skipped} names are not names of videos; pass the folder or pattern of videos"
    )


def _out(out: str) -> str:
    from curator.storage import open_store

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

    from curator.storage.object_service import UNSIGNED_READS
    from curator.storage.s3_client import S3Errors, S3Service, client, reads_unsigned

    try:
        credentials = boto3.session.Session().get_credentials()
    except S3Errors as error:
        return [_row("S3 credentials", Fault.of(S3Service().explain(error, "")[1]))]
    if credentials is None and reads_unsigned():
        rows = [_row("S3 credentials", f"none; {UNSIGNED_READS} reads public buckets")]
    elif credentials is None:
        absent = "not in the environment, a profile or a role"
        remedy = (
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the machine "
            f"or pod a role; to read a public bucket, set {UNSIGNED_READS}=1"
        )
        return [_row("S3 credentials", Fault(absent, remedy))]
    else:
        # The row shows the origin of the credentials, such as `env`, and never the credentials.
        rows = [_row("S3 credentials", f"from {credentials.method}")]
    try:
        meta = client().meta
    except S3Errors as error:
        remedy = "check AWS_ENDPOINT_URL, AWS_PROFILE and AWS_DEFAULT_REGION"
        return [*rows, _row("S3 endpoint", Fault(str(error), remedy, State.BROKEN))]
    return [*rows, _row("S3 endpoint", _endpoint(str(meta.endpoint_url), str(meta.region_name)))]


def _endpoint(address: str, region: str) -> str | Fault:
    parts = urllib.parse.urlsplit(address)
    host = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    words = f"{host}, region {region}"
    if urllib.request.getproxies().get(parts.scheme):
        return f"{words}, through a proxy"
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((str(parts.hostname), port), timeout=CONNECT_S).close()
    except OSError as error:
        remedy = "check the network, and AWS_ENDPOINT_URL if the server is not Amazon's"
        return Fault(f"{words}: {error.strerror or error}", remedy, State.BROKEN)
    return f"{words}, answers"
