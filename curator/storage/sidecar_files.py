"""Finds and reads sidecars, the JSON files of sources: `video.mp4.json`, or `video.json`.

In a tar, members of one key (the name up to the first dot) are a sample of WebDataset: its `.json`
is the sidecar, and its `.txt` is the value `txt` of the sidecar.

In a bucket, a listing begins at a source. A page of a thousand keys covers all sources in its
range, and the next page begins at the first source after them. So neighbouring sources take about
a thousandth of a request each. If a listing cannot begin at a key, each name takes a request.

Sidecars are untrusted. A folder from outside may have a link to a file of this machine, and the
contents of this file would reach a captioner and a table. So links are followed only within the
folder of their source, and sizes and nesting are limited.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from curator.errors import ErrorCode, SourceError
from curator.json_bounds import refuse_constant, refuse_deep
from curator.storage.base import has_scheme
from curator.storage.object_service import scheme_of, service_of, split_uri
from curator.storage.source_reader import open_source, stat_source, tar_index
from curator.storage.tar_members import TarIndex, member_address, member_version, split_member

MAX_BYTES = 256 << 10
_THREADS = 16
_SUFFIX, _TEXT = ".json", ".txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSidecar:
    """The sidecar of a source; `version` and `text`, of a text, are known of members of tars."""

    uri: str
    bytes: int
    version: str | None = None
    text: "FoundSidecar | None" = None


class SidecarCode(StrEnum):
    """Why a sidecar is not used. Public: written to reports."""

    TOO_LARGE = "too_large"
    """The file has more than 256 KiB."""
    NOT_JSON = "not_json"
    """The file is not JSON in UTF-8, or is nested deeper than 64 levels."""
    NOT_AN_OBJECT = "not_an_object"
    """The file is JSON, but not an object with keys and values."""
    OUTSIDE = "outside"
    """The file is a link that leads out of the folder of its source."""
    UNREADABLE = "unreadable"
    """Permission, I/O or network error; if a listing failed, a file may exist or not."""


@dataclass(frozen=True, slots=True)
class SidecarProblem:
    """A sidecar that cannot be used."""

    code: SidecarCode
    message: str


_Place = FoundSidecar | SidecarProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """The unchanged contents of a sidecar."""

    uri: str
    data: Mapping[str, Any]


def sidecar_uris(uri: str) -> tuple[str, ...]:
    """Returns the possible addresses of a source's sidecar; the first existing one counts."""
    stem = _stem(uri)
    names = dict.fromkeys((uri + _SUFFIX, stem + _SUFFIX))
    return tuple(name for name in names if name != uri)


def find_sidecars(uris: Iterable[str]) -> dict[str, _Place]:
    """Finds the sidecars of many sources, by URI of the source; leaves out sources without any."""
    wanted = sorted(set(uris), key=lambda uri: _start(uri).encode("utf-8", "surrogateescape"))
    places: defaultdict[str, list[str]] = defaultdict(list)
    tars: defaultdict[str, list[str]] = defaultdict(list)
    for uri in wanted:
        scheme, bucket = scheme_of(uri), split_uri(uri)[0]
        if (member := split_member(uri)) is not None:
            tars[member[0]].append(uri)
        elif scheme is not None:
            places[f"{scheme}://{bucket}/"].append(uri)
        elif not has_scheme(uri):
            places[""].append(uri)
    sidecars: dict[str, _Place] = {}
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="sidecar") as pool:
        jobs = [pool.submit(_in_tar, tar, some) for tar, some in tars.items()]
        for root, some in places.items():
            # Each thread gets neighbouring sources.
            size = -(-len(some) // _THREADS)
            parts = (some[begin : begin + size] for begin in range(0, len(some), size))
            jobs += [pool.submit(_in_bucket if root else _each, root, part) for part in parts]
        for job in jobs:
            sidecars.update(job.result())
    return sidecars


def _in_tar(tar: str, uris: Sequence[str]) -> dict[str, _Place]:
    """Returns the sidecars of members of one tar, by the tar's index."""
    try:
        _, version = stat_source(tar)
        index = tar_index(tar, version)
    except SourceError as error:
        # A file or an object may have a name like a member's.
        if error.code is not ErrorCode.VANISHED:
            return dict.fromkeys(uris, _unreadable(error))
        return _each(tar, uris)
    sidecars: dict[str, _Place] = {}
    for uri in uris:
        name = uri[len(member_address(tar, "")) :]
        folder, slash, base = name.rpartition("/")
        key = f"{folder}{slash}{base.partition('.')[0]}"
        names = (*sidecar_uris(name), key + _SUFFIX)
        found = _first_member(tar, version, index, names)
        text = _first_member(tar, version, index, (_stem(name) + _TEXT, key + _TEXT))
        if found is not None:
            sidecars[uri] = replace(found, text=text)
        elif text is not None:
            sidecars[uri] = text
        elif name not in index.places:
            sidecars |= _each(tar, [uri])
    return sidecars


def _first_member(
    tar: str, version: str, index: TarIndex, names: Iterable[str]
) -> FoundSidecar | None:
    for name in names:
        if (place := index.places.get(name)) is not None:
            return FoundSidecar(
                uri=member_address(tar, name),
                bytes=place.bytes,
                version=member_version(place, version),
            )
    return None


def _stem(uri: str) -> str:
    folder, slash, name = uri.rpartition("/")
    stem, dot, _ = name.rpartition(".")
    return f"{folder}{slash}{stem if dot and stem else name}"


def _start(uri: str) -> str:
    return _stem(uri) + "."


def _each(root: str, uris: Sequence[str]) -> dict[str, _Place]:
    places = ((uri, _looked_up(uri)) for uri in uris)
    return {uri: place for uri, place in places if place is not None}


def _looked_up(uri: str) -> _Place | None:
    for name in sidecar_uris(uri):
        try:
            n_bytes = stat_source(name)[0]
        except SourceError as error:
            if error.code is ErrorCode.VANISHED:
                continue
            return _unreadable(error)
        if scheme_of(uri) is None and os.path.islink(name) and _leads_out(name):
            message = (
                f"{name!r} is a link to {os.path.realpath(name)!r}, outside the folder of its "
                "source, and is not followed; put a copy of the file there if the file belongs to "
                "the source"
            )
            return SidecarProblem(SidecarCode.OUTSIDE, message)
        return FoundSidecar(uri=name, bytes=n_bytes)
    return None


def _leads_out(link: str) -> bool:
    folder = os.path.realpath(os.path.dirname(link))
    return os.path.commonpath([os.path.realpath(link), folder]) != folder


def _in_bucket(root: str, uris: Sequence[str]) -> dict[str, _Place]:
    """Returns the sidecars of sources in one bucket; `uris` are sorted by `_start`."""
    service, bucket = service_of(root), split_uri(root)[0]
    assert service is not None, root
    sidecars: dict[str, _Place] = {}
    index = 0
    while index < len(uris):
        start = _start(uris[index]).removeprefix(root)
        folder = start.rpartition("/")[0]
        prefix = f"{folder}/" if folder else ""
        try:
            page = service.page(bucket, prefix, start)
        except service.errors as error:
            message = f"{root}{prefix} cannot be listed: {service.explain(error, bucket)[1]}"
            unread = SidecarProblem(SidecarCode.UNREADABLE, message)
            return sidecars | dict.fromkeys(uris[index:], unread)
        if page is None:
            return _each(root, uris)
        sizes, is_truncated = page
        last = max((key.encode() for key in sizes), default=b"")
        end = last if is_truncated else None
        first = index
        while index < len(uris):
            names = [name.removeprefix(root) for name in sidecar_uris(uris[index])]
            covered = all(
                n.startswith(prefix) and (end is None or n.encode() <= end) for n in names
            )
            if not covered and index > first:
                break
            there = next((name for name in names if name in sizes), None)
            if there is not None:
                sidecars[uris[index]] = FoundSidecar(uri=root + there, bytes=sizes[there])
            elif not covered:
                # More than a page of keys begin with this name.
                sidecars |= _each(root, [uris[index]])
            index += 1
    return sidecars


def read_sidecars(uris: Iterable[str]) -> dict[str, Sidecar | SidecarProblem]:
    """Reads the sidecars of many sources.

    Returns:
        Sidecars by URI of their source, sorted; leaves out sources without a sidecar. A file that
        cannot be used gives a `SidecarProblem`.
    """
    sidecars = find_sidecars(uris)
    places = {place.uri: place for place in sidecars.values() if isinstance(place, FoundSidecar)}
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="sidecar") as pool:
        contents = dict(zip(places, pool.map(_read, places.values()), strict=True))
    return {
        uri: contents[place.uri] if isinstance(place, FoundSidecar) else place
        for uri, place in sorted(sidecars.items())
    }


def _read(place: FoundSidecar) -> Sidecar | SidecarProblem:
    if place.bytes > MAX_BYTES:
        return _too_large(place.uri, place.bytes)
    try:
        with open_source(place.uri, expected_version=place.version) as file:
            raw = file.read(MAX_BYTES + 1)
    except SourceError as error:
        return _unreadable(error)
    if len(raw) > MAX_BYTES:
        return _too_large(place.uri, len(raw))
    if place.version is not None and place.uri.endswith(_TEXT):
        text = raw.decode("utf-8-sig", "replace").strip()
        return Sidecar(uri=place.uri, data={_TEXT[1:]: text})
    try:
        data = json.loads(raw.decode("utf-8-sig"), parse_constant=refuse_constant)
        refuse_deep(data)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:120]
        message = f"{place.uri!r} is not JSON in UTF-8: {why}"
        return SidecarProblem(SidecarCode.NOT_JSON, message)
    if not isinstance(data, dict):
        message = f"{place.uri!r} has a {type(data).__name__}; expected an object with keys"
        return SidecarProblem(SidecarCode.NOT_AN_OBJECT, message)
    if place.text is not None:
        text_sidecar = _read(place.text)
        if isinstance(text_sidecar, SidecarProblem):
            return text_sidecar
        data = {**text_sidecar.data, **data}
    return Sidecar(uri=place.uri, data=data)


def _unreadable(error: SourceError) -> SidecarProblem:
    return SidecarProblem(SidecarCode.UNREADABLE, error.message)


def _too_large(uri: str, n_bytes: int) -> SidecarProblem:
    message = f"{uri!r} has {n_bytes} bytes; expected at most {MAX_BYTES}"
    return SidecarProblem(SidecarCode.TOO_LARGE, message)
