"""Finds words that may be ids of clips or sources, in bytes of any kind."""

from collections.abc import Iterator

_LENGTHS = (24, 32)
"""Hexadecimal digits of the id of a clip, and of a source."""
_OF_HASHES = frozenset((40, 56, 64, 96, 128))
"""Digits of common hashes, which hold no ids."""
_SEPARATORS = b"-:_"
_LOWER = bytes(code + 32 if 65 <= code <= 70 else code for code in range(256))
_KIND = bytes(
    ord("h") if code in b"0123456789abcdef" + _SEPARATORS else ord(" ") for code in range(256)
)
_SHORTEST = b"h" * min(_LENGTHS)
_LONGEST = 4096


def possible_ids(data: bytes) -> set[str]:
    """Returns words that may be ids, in lower case and without separators.

    Digits may be in upper case, have dashes, colons or underscores between them, be of UTF-16, and
    stand directly next to other hexadecimal digits.
    """
    words: set[str] = set()
    # Deleting NUL turns UTF-16 and UTF-32 into ASCII.
    text = data.translate(_LOWER, b"\0")
    kinds = text.translate(_KIND)
    end = 0
    # A search for a repeated byte skips what cannot match, so it is faster than an expression.
    while (start := kinds.find(_SHORTEST, end)) >= 0:
        end = kinds.find(b" ", start)
        end = len(kinds) if end < 0 else end
        words.update(_words(text[start:end]))
    return words


def _words(run: bytes) -> Iterator[str]:
    joined = run.translate(None, _SEPARATORS)
    parts = run.replace(b":", b"-").replace(b"_", b"-").split(b"-")
    if len(parts) > 1 and len(joined) <= _LONGEST:
        parts.append(joined)
    for part in parts:
        if len(part) in _LENGTHS:
            # The id of a source is no id of a clip with further digits.
            yield part.decode()
        if len(part) in (*_LENGTHS, *_OF_HASHES):
            continue
        if len(part) > _LONGEST:
            # Digits of a picture or a key; ids stand at most at its ends.
            part = part[:64] + part[-64:]
        for length in _LENGTHS:
            for first in range(len(part) - length + 1):
                yield part[first : first + length].decode()
