"""Finds captions in texts of any form: a caption is known only by its hash, so parts are hashed.

A caption may be the whole text, lines of it, a field, a quoted string, the value of a key, or what
stands between any other delimiters. Each part between two delimiters that are near each other is
therefore hashed, in the text as it is and with its escapes and markers resolved.
"""

import hashlib
import html
import quopri
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from urllib.parse import unquote_plus

from curator.tables.removal_records import (
    LEAST_CAPTION,
    SALT,
    caption_hash,
    plain_caption,
    removal_hash,
)

MOST_DELIMITERS = 12
"""Delimiters within a caption that is found if the captions have many lengths."""
_FEW_LENGTHS = 48
_SPACES = b" \t\n\r"
_DELIMITER = re.compile(r"[^\w\s]|_|\n")
_LINE_END = re.compile(r"[\n\r\t\v\f\x1c-\x1f\x85\u2028\u2029]")
_WORDS = re.compile(r"[^\W\d_]\s+[^\W_]|[^\x00-\x7f]")
"""A letter, a space and a letter, or a character of a script that may have no spaces."""
_ENCODED = re.compile(r"[0-9A-Za-z+/_=-]{200,}")
_MARKERS = re.compile(r"(?m)^[ \t]*(?:[#>*;%!|]+|//+|--)[ \t]?")
_PICKLED = re.compile(r"(?m)^(?:[(\[\]}a-u0-9]*[VS])(?=[^\n]+\np\d+$)")
"""What stands before a text in a pickle of protocol 0, whose next line is a number."""
_TAG = re.compile(r"</?[A-Za-z!][^<>]*>")
_TOKEN = re.compile(r"\S+")
_JOINED = re.compile(r"""["'][ \t]*(?:[+.&]|[+\\]?[ \t]*\n)\s*[+.&]?\s*[fFrRbBuU]?["']""")
_SOFT_BREAK = re.compile(r"=\r?\n|=[0-9A-F]{2}")
_EMPHASIS = re.compile(r"[*`~]+|(?<!\w)_+(?=\w)|(?<=\w)_+(?!\w)")
_DOUBLED = re.compile(r"""(["'])\1""")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(\n[ \t]*)|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": " ", "r": "\n", "f": " ", "b": " ", "N": "\n"}


class CaptionSearch:
    """Finds captions of some hashes and lengths."""

    def __init__(self, hashes: Collection[str], lengths: Collection[int]) -> None:
        self._hashes, self._lengths = frozenset(hashes), frozenset(lengths)
        # A text in other characters than those of ASCII has more bytes than characters.
        self._prefix, self._ascii_prefix = self._before(most=4), self._before(most=0)
        self._few = sorted(lengths) if len(lengths) <= _FEW_LENGTHS else []

    def _before(self, *, most: int) -> re.Pattern[bytes]:
        """Returns what finds lengths of captions that have up to `most` further bytes, or 128."""
        likely = [
            size
            for size in range(LEAST_CAPTION, 256)
            if not self._lengths.isdisjoint(range(size - most, size + 1)) or (size > 127 and most)
        ]
        return re.compile(
            b"[" + re.escape(bytes(likely)) + rb"](?=[^\x00-\x20])" if likely else b"(?!)"
        )

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def found_in(self, text: str) -> Iterator[str]:
        """Yields the hashes of captions that a text contains; may repeat one."""
        if len(text) < LEAST_CAPTION or not self._hashes:
            return
        whole = caption_hash(text)
        if whole in self._hashes:
            yield whole
        text = _ENCODED.sub("\n", text)
        if _WORDS.search(text) or any(mark in text for mark in "&%_-+\\="):
            for form in dict.fromkeys(_forms(text)):
                yield from self._parts(form)

    def without(self, text: str, word: str) -> str:
        """Returns a text with a word in place of each caption."""
        if not any(True for _ in self.found_in(text)):
            return text
        for start, end in reversed(self._spans(text)):
            text = text[:start] + word + text[end:]
        # A caption with escapes or markup has no place of its own.
        return word if any(True for _ in self.found_in(text)) else text

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Returns the places of captions of known lengths; none of them overlap."""
        plain, places = "", []
        for number, token in enumerate(_TOKEN.finditer(text)):
            folded = [(char.casefold(), token.start() + n) for n, char in enumerate(token[0])]
            places += [token.start()] * bool(number)
            places += [place for chars, place in folded for _ in chars]
            plain += " " * bool(number) + "".join(chars for chars, _ in folded)
        spans: list[tuple[int, int]] = []
        done = 0
        for start in range(len(plain)):
            if start < done or (plain[max(0, start - 1) : start + 1].isalnum() and start):
                continue
            for size in sorted(self._lengths, reverse=True):
                end = start + size
                if end <= len(plain) and removal_hash(plain[start:end]) in self._hashes:
                    spans.append((places[start], places[end - 1] + 1))
                    done = end
                    break
        return spans

    def has_prefixed(self, data: bytes, start: int, end: int) -> bool:
        """Returns whether a caption follows its length within a stretch of text in bytes.

        The length in bytes may be of 1, 2 or 4 bytes in either order, or a varint. Those of more
        than a byte have bytes that are no text, so these stand before the stretch.
        """
        if not self._hashes:
            return False
        prefix = self._ascii_prefix if data[start:end].isascii() else self._prefix
        for match in prefix.finditer(data, start, end):
            place, size = match.end(), match[0][0]
            if place + size <= end and self._is_caption(data, place, place + size):
                return True
        before = data[max(0, start - 4) : start].rjust(4, b"\xff")
        if not any(before):
            return False
        first = data[start] if start < end else 0
        little = before[2] | before[3] << 8
        sizes = [(start, before[3]), (start, little), (start, before[2] & 127 | before[3] << 7)]
        sizes += [(start, int.from_bytes(before[2:])), (start + 1, before[3] << 8 | first)]
        sizes += [(start, before[0] | before[1] << 8)] * (little == 0)
        return any(
            LEAST_CAPTION <= size <= end - place and self._is_caption(data, place, place + size)
            for place, size in sizes
        )

    def _is_caption(self, data: bytes, start: int, end: int) -> bool:
        """Returns whether bytes are a caption; most are excluded by a cheaper test."""
        if data[end - 1] in _SPACES or (
            end - start not in self._lengths and data[start:end].isascii()
        ):
            return False
        try:
            text = data[start:end].decode()
        except UnicodeDecodeError:
            return False
        return caption_hash(text) in self._hashes

    def glued_in(self, text: str) -> bool:
        """Returns whether a text is a caption but for a few characters at its ends.

        In binary objects, a length or a tag next to a text may be a printable character.
        """
        ends = [(start, len(text) - end) for start in range(5) for end in range(3)]
        return any(caption_hash(text[start:end]) in self._hashes for start, end in ends)

    def _parts(self, text: str) -> Iterator[str]:
        """Yields the hashes of captions between delimiters of a text."""
        joined = "\n".join(filter(None, map(plain_caption, _LINE_END.split(text))))
        if len(joined) < LEAST_CAPTION:
            return
        plain = joined.replace("\n", " ")
        starts, stops = {0}, {len(plain)}
        for match in _DELIMITER.finditer(joined):
            for place in match.span():
                starts.add(place + (plain[place : place + 1] == " "))
                stops.add(place - (plain[place - 1 : place] == " "))
        ordered = sorted(stops)
        for start in sorted(starts):
            if self._few:
                ends = [start + n for n in self._few if start + n in stops]
            else:
                first = bisect_left(ordered, start + LEAST_CAPTION)
                ends = ordered[first : first + 2 * MOST_DELIMITERS]
            if ends:
                yield from self._from(plain, start, ends)

    def _from(self, plain: str, start: int, ends: Iterable[int]) -> Iterator[str]:
        """Yields the hashes of captions that begin at a place and end at one of some places."""
        digest, done = hashlib.sha256(SALT), start
        for end in ends:
            if end - start not in self._lengths:
                continue
            digest.update(plain[done:end].encode("utf-8", "surrogatepass"))
            done = end
            if (name := digest.hexdigest()) in self._hashes:
                yield name


def _forms(text: str) -> Iterator[str]:
    """Yields a text without entities, and the same without escapes, markup and line markers."""
    if "&" in text:
        text = html.unescape(text)
    if "%" in text:
        text = _TOKEN.sub(lambda match: _unquoted(match[0]), text)
    yield text
    if "\\" in text:
        plain = text
        for _ in range(3):
            # JSON within JSON is escaped again.
            plain = _ESCAPE.sub(_unescaped, plain)
            yield plain
    if _TAG.search(text):
        yield _TAG.sub("", text)
        yield _TAG.sub(" ", text)
    if _PICKLED.search(text):
        yield _PICKLED.sub("", text)
    if "\n" in text:
        yield _MARKERS.sub("", text)
    if _JOINED.search(text):
        yield _JOINED.sub("", text)
    if _SOFT_BREAK.search(text):
        yield quopri.decodestring(text.encode("utf-8", "replace")).decode("utf-8", "replace")
    if not unicodedata.is_normalized("NFC", text):
        yield unicodedata.normalize("NFC", text)
    if _DOUBLED.search(text):
        yield _DOUBLED.sub(r"\1", text)
    if _EMPHASIS.search(text):
        yield _EMPHASIS.sub("", text)
    if not re.search(r"\s", text):
        # As in the name of a file.
        yield re.sub(r"[_+-]+", " ", text.partition(".")[0])


def _unquoted(token: str) -> str:
    return unquote_plus(token) if re.search("%[0-9a-fA-F]{2}", token) else token


def _unescaped(match: re.Match[str]) -> str:
    code, byte, newline, other = match.groups()
    if code or byte:
        with suppress(ValueError):
            return chr(int(code or byte, 16))
    return "" if newline else _ESCAPED.get(other, other or "")
