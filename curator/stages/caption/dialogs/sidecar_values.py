"""Writes the values of a sidecar, the `.json` next to a source, as lines for a prompt."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from curator.storage.sidecar_files import Sidecar, SidecarProblem

MAX_LINES = 40
MAX_LINE_CHARACTERS = 240
_MAX_VALUES = 12
"""Longest list of plain values."""
_MAX_DEPTH = 6
_PLAIN_KEY = re.compile(r"[\w-]{1,40}")


def sidecar_lines(data: Mapping[str, Any]) -> list[str]:
    """Returns `key.sub: value` of each value in the file's order, quoted; all sizes are limited."""
    lines = []
    for key, value in _values(data, "", 1):
        line = f"{key}: {value}"
        if len(line) <= MAX_LINE_CHARACTERS:
            lines.append(line)
        if len(lines) == MAX_LINES:
            break
    return lines


def count_problems(sidecars: Mapping[str, Sidecar | SidecarProblem]) -> dict[str, int]:
    """Counts the unusable sidecars, by code, sorted."""
    counts = Counter(s.code.value for s in sidecars.values() if isinstance(s, SidecarProblem))
    return dict(sorted(counts.items()))


def quoted(text: str, max_characters: int = 200) -> str:
    """Quotes untrusted text as one JSON string on one line.

    Control, format and private characters become spaces. `<`, `>`, `[` and `]` are escaped, so that
    no tokenizer reads them as a mark of its own (`<|im_end|>`, `[INST]`). Longer text than
    `max_characters` ends in an ellipsis.
    """
    kept = "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in text)
    kept = " ".join(kept.split())
    if len(kept) > max_characters:
        kept = kept[: max_characters - 1].rstrip() + "\u2026"
    string = json.dumps(kept, ensure_ascii=False)
    for mark in "<>[]":
        string = string.replace(mark, f"\\u{ord(mark):04x}")
    return string


def _values(data: Any, key: str, depth: int) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Yields keys joined by dots, and values as JSON, in the order of the file."""
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
