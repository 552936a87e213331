"""Reads untrusted JSON (of servers, sidecars and shards), and refuses deep nesting.

If a value is nested a thousand levels deep, Python may parse it, but raises `RecursionError` when
it compares, prints or writes the value.
"""

from typing import Any, Never

import orjson

MAX_DEPTH = 64


def load_bounded(data: bytes) -> Any:  # noqa: ANN401
    """Reads JSON.

    Raises:
        ValueError: `data` is not JSON, or is nested deeper than `MAX_DEPTH` levels.
    """
    value = orjson.loads(data)
    refuse_deep(value)
    return value


def refuse_constant(word: str) -> Never:
    """Raises `ValueError` for NaN and infinities, which Python's own parser accepts."""
    raise ValueError(f"{word} is not valid JSON")


def refuse_deep(value: object) -> None:
    """Raises `ValueError` if lists and objects are nested deeper than `MAX_DEPTH` levels."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for parts in level
            if isinstance(parts, list | dict)
            for part in (parts.values() if isinstance(parts, dict) else parts)
            if isinstance(part, list | dict)
        ]
        if not level:
            return
    raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
