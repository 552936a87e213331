"""Reads the `.json` sidecars of sources. They are untrusted: sizes and forms are limited."""

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from curator.errors import SourceError
from curator.json_bounds import refuse_deep
from curator.storage.sidecar_files import (
    FoundSidecar,
    SidecarCode,
    SidecarProblem,
    find_sidecars,
)
from curator.storage.source_reader import open_source

MAX_BYTES = 256 << 10
_THREADS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """The contents of a sidecar."""

    uri: str
    data: Mapping[str, Any]
    """As it stands there."""


def read_sidecars(uris: Iterable[str]) -> dict[str, Sidecar | SidecarProblem]:
    """Reads the sidecars of many sources; see `storage.sidecar_files` for their names.

    Returns:
        By the source's URI, sorted; sources without a sidecar are left out. A file that cannot be
        used raises nothing.
    """
    found = find_sidecars(uris)
    places = {place.uri: place for place in found.values() if isinstance(place, FoundSidecar)}
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="sidecar") as pool:
        told = dict(zip(places, pool.map(_read, places.values()), strict=True))
    return {
        uri: told[place.uri] if isinstance(place, FoundSidecar) else place
        for uri, place in sorted(found.items())
    }


def _read(place: FoundSidecar) -> Sidecar | SidecarProblem:
    if place.bytes > MAX_BYTES:
        return _too_large(place.uri, place.bytes)
    try:
        with open_source(place.uri) as file:
            raw = file.read(MAX_BYTES + 1)
    except SourceError as error:
        return SidecarProblem(code=SidecarCode.UNREADABLE, message=error.message)
    if len(raw) > MAX_BYTES:
        return _too_large(place.uri, len(raw))
    try:
        data = json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse)
        refuse_deep(data)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:120]
        message = f"{place.uri!r} is not JSON in UTF-8: {why}"
        return SidecarProblem(code=SidecarCode.NOT_JSON, message=message)
    if not isinstance(data, dict):
        message = f"{place.uri!r} has a {type(data).__name__}; expected an object with keys"
        return SidecarProblem(code=SidecarCode.NOT_AN_OBJECT, message=message)
    return Sidecar(uri=place.uri, data=data)


def _too_large(uri: str, n_bytes: int) -> SidecarProblem:
    message = f"{uri!r} has {n_bytes} bytes; expected at most {MAX_BYTES}"
    return SidecarProblem(code=SidecarCode.TOO_LARGE, message=message)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")
