"""JSON of others (servers, sidecars, shards), without nesting on which Python's own code fails.

Comparing, printing and writing a value that is nested a thousand levels deep raises
`RecursionError`, where the parser itself may have read it.
"""

from typing import Any, Never

import orjson

MAX_DEPTH = 64


def load_bounded(data: bytes) -> Any:  # noqa: ANN401
    """Reads JSON.

    Raises:
        ValueError: It is not JSON, or nested deeper than `MAX_DEPTH` levels.
    """
    value = orjson.loads(data)
    refuse_deep(value)
    return value


def refuse_constant(word: str) -> Never:
    """Raises `ValueError` for NaN and infinities, which Python's own parser takes for numbers."""
    raise ValueError(f"{word} is no value in JSON")


def refuse_deep(value: object) -> None:
    """Raises `ValueError` for lists and objects that are nested deeper than `MAX_DEPTH` levels."""
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
