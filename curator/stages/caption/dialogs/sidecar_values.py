"""What a `.json` beside a source says about it, as lines for a prompt."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from curator.errors import SourceError
from curator.storage import open_source
from curator.storage.sidecar_files import FoundSidecar, UnknownSidecar, find_sidecars

MAX_BYTES = 256 << 10
MAX_LINES = 40
MAX_LINE_CHARACTERS = 240
_MAX_VALUES = 12
"""Of a list of plain values."""
_MAX_DEPTH = 6
_THREADS = 16
_PLAIN_KEY = re.compile(r"[\w-]{1,40}")


class SidecarCode(StrEnum):
    """Why a sidecar is not told. Public: written to reports."""

    TOO_LARGE = "too_large"
    """More than 256 KiB."""
    NOT_JSON = "not_json"
    """It is no JSON in UTF-8."""
    NOT_AN_OBJECT = "not_an_object"
    """It is JSON, and no object with keys and values."""
    UNREADABLE = "unreadable"
    """Permission, I/O or network error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """What a file beside a source says."""

    uri: str
    data: Mapping[str, Any]
    """As it stands there."""

    @property
    def lines(self) -> list[str]:
        """`key.sub: value` of each value in the file's order, quoted; limited in all directions."""
        lines = []
        for key, value in _values(self.data, "", 1):
            line = f"{key}: {value}"
            if len(line) <= MAX_LINE_CHARACTERS:
                lines.append(line)
            if len(lines) == MAX_LINES:
                break
        return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarProblem:
    """A sidecar that is there and cannot be told."""

    code: SidecarCode
    message: str


def read_sidecars(uris: Iterable[str]) -> dict[str, Sidecar | SidecarProblem]:
    """Reads the sidecars of sources, many at a time; see `storage.sidecars` for the names.

    Args:
        uris: Of sources.

    Returns:
        By the source's URI, sorted; a source without a sidecar is not in it. Nothing is raised for
        a file that cannot be used.
    """
    found = find_sidecars(uris)
    places = {place.uri: place for place in found.values() if isinstance(place, FoundSidecar)}
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="sidecar") as pool:
        told = dict(zip(places, pool.map(_read, places.values()), strict=True))
    return {
        uri: SidecarProblem(code=SidecarCode.UNREADABLE, message=place.message)
        if isinstance(place, UnknownSidecar)
        else told[place.uri]
        for uri, place in sorted(found.items())
    }


def count_problems(sidecars: Mapping[str, Sidecar | SidecarProblem]) -> dict[str, int]:
    """How many sidecars could not be told, by code, sorted."""
    counts = Counter(s.code.value for s in sidecars.values() if isinstance(s, SidecarProblem))
    return dict(sorted(counts.items()))


def quoted(text: str, max_characters: int = 200) -> str:
    """Untrusted text as one JSON string on one line.

    Control, format and private characters become spaces. `<`, `>`, `[` and `]` are escaped, so that
    no tokenizer takes what is written there for a mark of its own (`<|im_end|>`, `[INST]`).

    Args:
        text: Anything.
        max_characters: Longer text ends in an ellipsis.
    """
    kept = "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in text)
    kept = " ".join(kept.split())
    if len(kept) > max_characters:
        kept = kept[: max_characters - 1].rstrip() + "\u2026"
    string = json.dumps(kept, ensure_ascii=False)
    for mark in "<>[]":
        string = string.replace(mark, f"\\u{ord(mark):04x}")
    return string


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
    except (ValueError, RecursionError) as error:
        why = type(error).__name__ if isinstance(error, RecursionError) else str(error)[:120]
        message = f"{place.uri!r} is no JSON in UTF-8: {why}"
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


def _values(data: Any, key: str, depth: int) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Keys joined by dots, and values as JSON, in the order of the file."""
    if isinstance(data, dict):
        if depth <= _MAX_DEPTH:
            for name, value in data.items():
                plain = name if _PLAIN_KEY.fullmatch(name) else quoted(name, 40)
                yield from _values(value, f"{key}.{plain}" if key else plain, depth + 1)
    elif isinstance(data, list):
        if any(isinstance(value, dict | list) for value in data):
            if depth <= _MAX_DEPTH:
                for index, value in enumerate(data):
                    yield from _values(value, f"{key}.{index}", depth + 1)
        elif data:
            yield key, f"[{', '.join(_plain(value) for value in data[:_MAX_VALUES])}]"
    elif data is not None and data != "":
        yield key, _plain(data)


def _plain(value: Any) -> str:  # noqa: ANN401
    return quoted(value) if isinstance(value, str) else json.dumps(value)[:40]
