"""Searches the content of an object for removed footage, by the kind that its first bytes show.

Containers are opened, and what they hold is searched in the same way. What cannot be opened is
named with the reason. Memory and expansion are bounded, because all content is untrusted.
"""

import base64
import binascii
import hashlib
import json
import lzma
import re
import sqlite3
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import chain
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from curator.errors import CuratorError
from curator.storage.content_id import WHOLE_BYTES, WholeContentId, content_id, full_content_id
from curator.tables.caption_search import CaptionSearch
from curator.tables.id_words import possible_ids
from curator.tables.removal_records import LEAST_CAPTION, Removals, removal_hash
from curator.tools.verify.content_kinds import (
    CERTAIN,
    CLOSED,
    MEDIA,
    OVERLAP_BYTES,
    SMALL_BYTES,
    WINDOW_BYTES,
    Blob,
    as_text,
    boxes_of,
    codec_of,
    inflated,
    is_arrow_stream,
    is_cut_off,
    is_tar,
    looks_random,
    runs_within,
)

MAX_DEPTH = 8
"""Containers within containers that are opened."""
MAX_EXPANDED_BYTES = 2 << 30
"""Bytes to which the compressed parts of one object may expand."""
MAX_RATIO = 1000
"""Expansion above 64 MiB, relative to the compressed bytes, that counts as an attack."""
MAX_WHOLE_BYTES = 64 << 20
"""Size of JSON, pictures and cells that are read into memory as a whole."""
MAX_DATABASE_BYTES = 256 << 20
_ID_BYTES = 256
_HEAD_BYTES = 1024
_SPOOL_BYTES = 64 << 20
_CELLS = 1024
_SEEN = 1 << 18

_ENCODED = re.compile(
    r"(?:[0-9A-Za-z+/_-]{20,}\s{1,8})+[0-9A-Za-z+/_-]+={0,2}|[0-9A-Za-z+/_-]{22,}={0,2}"
)
"""Base64 of at least 16 bytes, in one or more lines."""
_HEXADECIMAL = re.compile(r"(?:[0-9a-fA-F]{2}){24,}")
_HEXADECIMAL_LINES = re.compile(
    r"(?<![0-9a-fA-F])(?=[0-9a-fA-F][0-9a-fA-F\s\\nrt]{47})[0-9a-fA-F]++"
    r"(?:(?:\s|\\[nrt]){1,64}+[0-9a-fA-F]++)+"
)
"""Hexadecimal digits in lines or groups of any width; line breaks may be escaped."""
_WORD = re.compile(r"(?<![^\W_])[A-Za-z]{1,15}[ .,;:'\"!?)-]")
_SAMPLE = 4096
"""Characters of a text within other bytes that show whether it has words."""
_BZIP2 = b"1AY&SY"
_VIDEO, _PICTURE, _ZIP_END = b"ftyp", b"\xff\xd8\xff", b"PK\x05\x06"
_SIGNATURES = (
    _VIDEO, _PICTURE, _ZIP_END, b"\x1f\x8b\x08", b"\xfd7zXZ\0", _BZIP2, b"\x28\xb5\x2f\xfd",
    b"\x04\x22\x4d\x18",
)  # fmt: skip
_ZIP_END_BYTES = 22


class Place(NamedTuple):
    """An object and a part of it, for findings.

    A value is a cell or decoded text: its bytes may look like any format by chance.
    """

    key: str
    part: str = ""
    depth: int = 0
    is_value: bool = False

    def inner(self, part: str, deeper: int = 0) -> "Place":
        """Returns a part of this part."""
        joined = f"{self.part} > {part}" if self.part else part
        return Place(self.key, joined[:300], self.depth + deeper, self.is_value)

    def value(self, part: str) -> "Place":
        """Returns a value in this part."""
        return self.inner(part, 1)._replace(is_value=True)


class ContentSearch:
    """Compares contents with the records of removals.

    Args:
        removals: What was removed.
        found: Called with the place and the kind of removed footage that is there.
        skipped: Called with the place and the reason of what was not searched.
    """

    def __init__(
        self,
        removals: Removals,
        found: Callable[[Place, str], None],
        skipped: Callable[[Place, str], None],
    ) -> None:
        self._removals = removals
        self._found, self._skipped, self._n_found = found, skipped, 0
        self._captions = CaptionSearch(removals.captions, removals.caption_lengths)
        self._data = removals.mp4 | removals.pictures
        self._sources = {**removals.sources, **removals.spans}
        self._seen: set[str] = set()
        """Texts without a finding."""
        self._expanded_bytes = self._carved_bytes = self._max_carved_bytes = 0
        self._opened_bytes = 0
        """Bytes of archives and compressed streams that were opened within other bytes."""
        self._may_be_opaque = False
        self.read: Counter[str] = Counter()

    def name(self, name: str, place: Place) -> None:
        """Searches a name."""
        self._ids(name.encode("utf-8", "surrogateescape"), place)
        self._text(name.rpartition("/")[2] or name, place)

    def object(self, file: BinaryIO, size: int, key: str, *, may_be_opaque: bool = False) -> None:
        """Searches an object; `may_be_opaque` says that its bytes may look encrypted."""
        self._expanded_bytes = self._carved_bytes = 0
        self._max_carved_bytes = 8 * size + MAX_EXPANDED_BYTES
        self._may_be_opaque = may_be_opaque
        self.read["objects"] += 1
        self._blob(Blob(file, 0, size), Place(key))

    def _blob(self, blob: Blob, place: Place) -> None:
        """Searches bytes by their kind."""
        if not blob.size:
            return
        if place.depth > MAX_DEPTH:
            self._skipped(place, f"it is within {MAX_DEPTH} other containers")
            return
        head = blob.read(0, _HEAD_BYTES)
        if is_tar(head):
            self._tar(blob, place)
        elif head[4:8] == b"ftyp":
            self._video(blob, place)
        else:
            self._other(blob, head, place)

    def _other(self, blob: Blob, head: bytes, place: Place) -> None:
        self._hashes(blob, place, has_ids=True)
        codec = codec_of(head)
        closed = next((name for magic, name in CLOSED.items() if head.startswith(magic)), None)
        if head.startswith(b"PAR1"):
            self._opened("Parquet objects", self._parquet, blob, place)
        elif head.startswith(b"ARROW1") or is_arrow_stream(head, blob.size):
            self._opened("Arrow objects", self._arrow, blob, place)
        elif head.startswith(b"SQLite format 3\0"):
            self._opened("databases", self._database, blob, place)
        elif head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
            self._opened("zip archives", self._zip, blob, place)
        elif codec is not None:
            self._opened("compressed parts", partial(self._compressed, codec), blob, place)
        elif closed is not None and not place.is_value:
            self._skipped(place, closed)
            self._binary(blob, place)
        elif head.startswith(MEDIA):
            self.read["pictures and media"] += 1
            self._media(blob, place)
        elif as_text(head, blob.size <= len(head)) is not None:
            self._texts(blob, place)
        else:
            self.read["binary parts"] += 1
            # A container of any format begins with numbers of a few values.
            starts = (blob.read(0, size) for size in (256, OVERLAP_BYTES))
            is_allowed = place.is_value or (self._may_be_opaque and place.depth == 0)
            is_random = not is_allowed and all(map(looks_random, starts))
            n_opened = self._opened_bytes
            self._binary(blob, place)
            if is_random and 2 * (self._opened_bytes - n_opened) < blob.size:
                self._skipped(place, "its bytes look encrypted or compressed by an unknown program")

    def _opened(
        self, kind: str, search: Callable[[Blob, Place], None], blob: Blob, place: Place
    ) -> None:
        """Searches a container; if it cannot be read, its bytes are searched, and it is named."""
        self.read[kind] += 1
        try:
            search(blob, place)
        except _ERRORS as error:
            words = str(error).partition("\n")[0] or type(error).__name__
            self._skipped(place, f"it cannot be read as one of the {kind}: {words}")
            self._binary(blob, place)

    def _hashes(self, blob: Blob, place: Place, *, has_ids: bool = False) -> None:
        """Compares the hash of all bytes with clips, pictures and sources; also searches ids."""
        digest, whole, tail = hashlib.sha256(), WholeContentId(), b""
        is_whole = blob.size <= WHOLE_BYTES
        for data in blob.chunks():
            digest.update(data)
            if is_whole:
                whole.update(data)
            if has_ids:
                self._ids(tail + data if tail else data, place)
                tail = data[-_ID_BYTES:]
        sha256 = digest.hexdigest()
        if sha256 in self._data:
            self._report(place, "a clip or a picture")
        if self._sources:
            content = whole.id() if is_whole else content_id(blob.opened(), blob.size)
            names = full_content_id(sha256), content
            if any(removal_hash(name) in self._sources for name in names):
                self._report(place, "the source")

    def _report(self, place: Place, what: str) -> None:
        self._n_found += 1
        self._found(place, what)

    def _ids(self, data: bytes, place: Place) -> None:
        words = possible_ids(data)
        self.read["words that may be ids"] += len(words)
        if any(removal_hash(word) in self._removals.ids for word in words):
            self._report(place, "an id")

    def _text(self, text: str, place: Place) -> None:
        """Searches a text for ids, captions, and what is encoded in it."""
        if len(text) < LEAST_CAPTION or text in self._seen:
            return
        n_found = self._n_found
        self.read["texts"] += 1
        if any(True for _ in self._captions.found_in(text)):
            self._report(place, "a caption")
        self._ids(text.encode("utf-8", "surrogatepass"), place)
        self._encoded(text, place)
        if "\\" in text:
            plain = text.replace("\\/", "/").replace("\\r", "").replace("\\n", "\n")
            self._encoded(plain, place)
        if "%2" in text:
            self._encoded(unquote(text), place)
        if text.lstrip()[:1] in ("{", "[", '"'):
            self._json(text, place)
        if len(text) < 1024 and self._n_found == n_found:
            if len(self._seen) >= _SEEN:
                self._seen.clear()
            self._seen.add(text)

    def _json(self, text: str, place: Place) -> bool:
        with suppress(ValueError, RecursionError):
            for value in _strings_in(json.loads(text)):
                if value != text:
                    self._text(value, place)
            return True
        return False

    def _encoded(self, text: str, place: Place) -> None:
        """Searches what is in a text as base64 or as hexadecimal digits."""
        for match in _ENCODED.finditer(text):
            lines = match[0].split()
            is_known = self._base64("".join(lines), place)
            if len(lines) > 1 and not is_known:
                # The last line may be a word that follows.
                self._base64("".join(lines[:-1]), place)
            for line in lines[1:]:
                # Each line may be a value.
                self._base64(line, place)
        text = _HEXADECIMAL_LINES.sub(lambda match: self._without_digits(match[0], place), text)
        for match in _HEXADECIMAL.finditer(text):
            self._hexadecimal(match[0], place)

    def _without_digits(self, text: str, place: Place) -> str:
        """Searches lines of hexadecimal digits; returns them if they are of no known kind."""
        parts = re.findall("[0-9a-fA-F]+", text)
        # A word before or behind the lines may be of such letters too.
        forms = map("".join, (parts, parts[:-1], parts[1:], parts[1:-1]))
        return "" if any(self._hexadecimal(form, place) for form in forms) else text

    def _hexadecimal(self, digits: str, place: Place) -> bool:
        if len(digits) < 48 or (digits.isdigit() and len(digits) > 1024):
            return False
        data = bytes.fromhex(digits[: len(digits) // 2 * 2])
        return self._decoded(data, place, "hexadecimal digits")

    def _base64(self, word: str, place: Place) -> bool:
        word = word.rstrip("=").replace("-", "+").replace("_", "/")
        if len(word) < 22 or len(word) % 4 == 1 or word.isdigit():
            return False
        data = base64.b64decode(word + "=" * (-len(word) % 4))
        return self._decoded(data, place, "base64")

    def _decoded(self, data: bytes, place: Place, encoding: str) -> bool:
        """Searches decoded bytes if they are of a known kind; returns whether they are."""
        head = data[:_HEAD_BYTES]
        is_known = (
            head.startswith(CERTAIN)
            or head[4:8] == b"ftyp"
            or is_tar(head)
            or (data.isascii() and as_text(head, len(data) <= len(head)) is not None)
            or (len(data) > 64 and as_text(head, len(data) <= len(head), strict=True) is not None)
        )
        if is_known:
            self.read["encoded parts"] += 1
            self._blob(Blob.of(data), place.value(encoding))
        return is_known

    def _texts(self, blob: Blob, place: Place) -> None:
        """Searches a text, and each line of it that is JSON."""
        self.read["text objects"] += 1
        if blob.size <= MAX_WHOLE_BYTES:
            data = blob.read()
            text = as_text(data, True)
            if text is None:
                # Only its beginning is a text.
                self._binary(blob, place)
                return
            if self._captions.has_prefixed(data, 0, len(data)):
                self._report(place, "a caption")
            if text.lstrip()[:1] in ("{", "[", '"') and self._json(text, place):
                if self._removals.captions:
                    self._encoded(text, place)
                return
            self._lines(text, place)
            return
        for start, data in blob.windows():
            text = as_text(data, start + len(data) >= blob.size)
            if text is None:
                self._binary(blob, place)
                return
            self._lines(text, place)

    def _lines(self, text: str, place: Place) -> None:
        plain = []
        for line in text.splitlines(keepends=True):
            if line.lstrip()[:1] not in ("{", "[") or not self._json(line, place):
                plain.append(line)
        self._text("".join(plain), place)

    def _binary(self, blob: Blob, place: Place) -> None:
        """Searches bytes of an unknown form for texts, clips, pictures and archives in them."""
        without_end = expanded_end = 0
        for start, data in blob.windows():
            self._strings(data, place)
            for first, magic in _signatures(data):
                at = start + first
                is_known = start and first < OVERLAP_BYTES - 8
                if is_known or not self._may_carve(place):
                    continue
                if magic == _VIDEO:
                    if at >= 4:
                        self._carve(blob.part(at - 4, blob.size), place.inner(f"byte {at - 4}", 1))
                elif magic == _ZIP_END:
                    self._carve_zip(blob, at, place)
                elif magic != _PICTURE:
                    # A header with the level stands before the first block of bzip2.
                    at -= 4 * (magic == _BZIP2)
                    if at >= expanded_end:
                        expanded_end = self._carve_compressed(blob, at, place)
                elif at >= without_end:
                    found_end = self._carve_picture(blob, at, place)
                    without_end = 0 if found_end else at + WINDOW_BYTES

    def _carve_zip(self, blob: Blob, end: int, place: Place) -> None:
        """Searches a zip archive whose list of members ends here."""
        n_said = int.from_bytes(blob.read(end + 20, 2), "little")
        size = end + _ZIP_END_BYTES + n_said
        with suppress(*_ERRORS):
            self._carved_bytes += 1 << 16
            self._zip(blob.part(0, size), place.inner(f"byte {end}", 1))
            self._opened_bytes += size

    def _carve_compressed(self, blob: Blob, start: int, place: Place) -> int:
        """Searches a compressed stream that begins here; returns its end, 0 if it has none."""
        part = blob.part(start, OVERLAP_BYTES)
        codec = codec_of(part.read(0, _HEAD_BYTES))
        self._carved_bytes += _HEAD_BYTES
        if codec is None:
            return 0
        self._carved_bytes += OVERLAP_BYTES // 4
        try:
            with closing(inflated(codec, part)) as stream:
                if not stream.read(4096):
                    return 0
                with suppress(*_ERRORS):
                    stream.read(1)
                if getattr(stream, "end", None) is None:
                    part = blob.part(start, blob.size)
        except _ERRORS:
            # The bytes are there by chance.
            return 0
        self.read["compressed parts"] += 1
        place = place.inner(f"byte {start}", 1)
        with closing(inflated(codec, part)) as stream:
            self._carved_bytes += self._expanded(stream, part.size, place.inner(codec))
            end = getattr(stream, "end", None) or 0
        self._carved_bytes += end
        self._opened_bytes += end
        return start + end

    def _may_carve(self, place: Place) -> bool:
        """Returns whether more bytes may be hashed again: signatures may be many and nested."""
        if self._carved_bytes <= self._max_carved_bytes:
            return True
        self._skipped(place, "it has too many beginnings of clips, pictures and archives")
        return False

    def _strings(self, data: bytes, place: Place) -> None:
        forms = [data]
        if data.count(0) * 4 > len(data):
            # Text in UTF-16 or UTF-32.
            forms.append(data.translate(None, b"\0"))
        for form, start, end in chain.from_iterable(map(runs_within, forms)):
            text = form[start:end].decode("utf-8", "replace")
            if text.isascii() and len(_WORD.findall(text, 0, _SAMPLE)) < 3:
                # Numbers and pixels have long stretches of characters, but hardly words.
                self._ids(text.encode(), place)
                self._encoded(text, place)
                continue
            if self._captions and (
                self._captions.glued_in(text) or self._captions.has_prefixed(form, start, end)
            ):
                self._report(place, "a caption")
            self._text(text, place)

    def _media(self, blob: Blob, place: Place) -> None:
        """Searches a picture or other media: what it says of itself, and what is behind it."""
        head = blob.read(0, MAX_WHOLE_BYTES)
        if head.startswith(b"\xff\xd8\xff"):
            end = self._carve_picture(blob, 0, place)
            scan = head.find(b"\xff\xda")
            self._strings(head[: scan if scan > 0 else 0], place)
            for match in re.finditer(rb"\xff\xd8\xff", head[3:scan] if scan > 0 else b""):
                self._carve_picture(blob, 3 + match.start(), place)
            if end and end < blob.size:
                self._blob(blob.part(end, blob.size), place.inner(f"byte {end}", 1))
        elif head.startswith(b"\x93NUMPY") and blob.size <= MAX_WHOLE_BYTES:
            self._array(blob, place)
        elif blob.size <= MAX_WHOLE_BYTES:
            self._binary(blob, place)
        else:
            for part in (head[:OVERLAP_BYTES], blob.read(blob.size - OVERLAP_BYTES)):
                self._strings(part, place)

    def _array(self, blob: Blob, place: Place) -> None:
        """Searches a NumPy array: its texts, or its bytes unless they are numbers."""
        try:
            array = np.load(blob.opened(), allow_pickle=False)
        except _ERRORS:
            self._binary(blob, place)
            return
        if array.dtype.kind in "US":
            for value in np.unique(array).tolist():
                is_bytes = isinstance(value, bytes)
                self._text(value.decode("utf-8", "replace") if is_bytes else value, place)
        elif (array.dtype.itemsize == 1 and array.ndim < 2) or array.dtype.kind == "V":
            self._binary(blob, place)

    def _carve_picture(self, blob: Blob, start: int, place: Place) -> int:
        """Compares bytes from the start of a JPEG to its end; returns the end, 0 without one."""
        data, end = blob.read(start, WINDOW_BYTES), 0
        first = 0
        for _ in range(4):
            end = data.find(b"\xff\xd9", end) + 2
            if end == 1:
                return start + first if first else 0
            first = first or end
            self._carved_bytes += end
            if hashlib.sha256(memoryview(data)[:end]).hexdigest() in self._removals.pictures:
                self._report(place.inner(f"byte {start}"), "a picture")
                return start + end
        return start + first

    def _video(self, blob: Blob, place: Place) -> None:
        """Searches an MP4: its hash, what it says of itself, and what is behind it."""
        self.read["clips"] += 1
        n_found = self._n_found
        self._hashes(blob, place)
        end = 0
        kinds = set()
        for kind, start, size in boxes_of(blob):
            if kind != b"mdat" and size <= MAX_WHOLE_BYTES:
                data = blob.read(start + 8, size - 8)
                self._ids(data, place)
                self._strings(data, place)
            end = start + size
            kinds.add(kind)
        if is_cut_off(blob, end, kinds):
            rest = blob.read(end, MAX_WHOLE_BYTES)
            if rest[4:8] != b"mdat":
                self._ids(rest, place)
                self._strings(rest, place)
            if self._n_found == n_found:
                self._skipped(place, "a cut-off MP4")
        elif 0 < end < blob.size:
            self._carve(blob, place)
            self._blob(blob.part(end, blob.size), place.inner(f"byte {end}", 1))

    def _carve(self, blob: Blob, place: Place) -> None:
        """Compares an MP4 that begins here, and of which only its boxes show where it ends."""
        kinds: set[bytes] = set()
        digest = hashlib.sha256()
        for kind, start, size in boxes_of(blob):
            for data in blob.chunks(start, start + size):
                digest.update(data)
            self._carved_bytes += size
            kinds.add(kind)
            if b"mdat" in kinds and kinds & {b"moov", b"moof"}:
                if digest.hexdigest() in self._data:
                    self._report(place, "a clip")
                elif self._sources:
                    self._carved_bytes += start + size
                    self._hashes(blob.part(0, start + size), place)

    def _tar(self, blob: Blob, place: Place) -> None:
        end = 0
        try:
            with tarfile.open(fileobj=blob.opened(), mode="r:", ignore_zeros=True) as tar:
                while (member := tar.next()) is not None:
                    # The list of members would grow with the archive.
                    tar.members = []  # type: ignore[attr-defined]
                    self._slack(blob, end, member.offset, place)
                    end = member.offset_data + (member.size if member.isreg() else 0)
                    if end > blob.size:
                        raise tarfile.ReadError(f"{member.name!r} ends after the end of the tar")
                    self.read["members of tars"] += 1
                    inner = place.inner(member.name, 1)
                    self.name(member.name, inner)
                    said = [member.linkname, member.uname, member.gname]
                    for text in (*said, *map(str, member.pax_headers.values())):
                        self._ids(text.encode("utf-8", "surrogateescape"), inner)
                        self._text(text, inner)
                    if member.isreg():
                        data = blob.part(member.offset_data, member.size)
                        small = member.size <= SMALL_BYTES
                        self._blob(Blob.of(data.read()) if small else data, inner)
            self._slack(blob, end, blob.size, place)
        except (tarfile.TarError, OSError, ValueError) as error:
            self._skipped(place, f"a damaged tar: {error}")
            self._binary(blob, place)

    def _slack(self, blob: Blob, start: int, end: int, place: Place) -> None:
        """Searches the bytes of a tar between two members or behind the last, unless all are 0."""
        for data in blob.chunks(start, end):
            if data.count(0) == len(data):
                start += len(data)
                continue
            first = len(data) - len(data.lstrip(b"\0"))
            # The size of the first box of an MP4 begins with zeros.
            is_video = first >= 3 and data[first + 1 : first + 5] == b"ftyp"
            start += first - 3 * is_video
            slack, place = blob.part(start, end - start), place.inner(f"byte {start}", 1)
            if is_tar(slack.read(0, _HEAD_BYTES)):
                # A header without a member, such as a global one.
                self._ids(slack.read(0, MAX_WHOLE_BYTES), place)
                self._binary(slack, place)
            else:
                self._blob(slack, place)
            return

    def _zip(self, blob: Blob, place: Place) -> None:
        with zipfile.ZipFile(blob.opened()) as archive:
            self._strings(archive.comment, place)
            for entry in archive.infolist():
                self.read["members of zip archives"] += 1
                inner = place.inner(entry.filename, 1)
                self.name(entry.filename, inner)
                self._strings(entry.comment + entry.extra, inner)
                if entry.flag_bits & 1:
                    self._skipped(inner, "encrypted")
                    continue
                try:
                    with archive.open(entry) as stream:
                        self._expanded(stream, entry.compress_size, inner)
                except _ERRORS as error:
                    self._skipped(inner, f"it cannot be read: {error}")

    def _compressed(self, codec: str, blob: Blob, place: Place) -> None:
        # The header may have the name of a file, and a comment.
        self._strings(blob.read(0, _HEAD_BYTES), place)
        with closing(inflated(codec, blob)) as stream:
            self._expanded(stream, blob.size, place.inner(codec, 1))
            end = getattr(stream, "end", None)
        if end is not None:
            self._slack(blob, end, blob.size, place)

    def _expanded(self, stream: Any, n_bytes: int, place: Place) -> int:  # noqa: ANN401 - reads
        """Searches what a compressed stream expands to, within limits; returns its size."""
        with SpooledTemporaryFile(_SPOOL_BYTES) as spool:
            size, why = 0, None
            try:
                while data := stream.read(1 << 20):
                    size += len(data)
                    self._expanded_bytes += len(data)
                    is_bomb = size > _SPOOL_BYTES and size > MAX_RATIO * max(n_bytes, 1)
                    if is_bomb or self._expanded_bytes > MAX_EXPANDED_BYTES:
                        why = f"it expands to more than {size >> 20} MiB"
                        break
                    spool.write(data)
            except _ERRORS as error:
                why = f"damaged, or encrypted: {str(error).partition(chr(10))[0]}"
            if why is not None:
                self._skipped(place, why)
            size = spool.tell()
            spool.seek(0)
            self._blob(Blob(spool, 0, size), place)  # type: ignore[arg-type]
            return size

    def _parquet(self, blob: Blob, place: Place) -> None:
        # The codec, the encryption and the footer are checked by the reader.
        with pq.ParquetFile(blob.opened()) as file:
            for name, value in (file.metadata.metadata or {}).items():
                self._blob(Blob.of(value), place.value(name.decode("utf-8", "replace")))
            self._schema(file.schema_arrow, place)
            has_bytes = any(map(_has_bytes, file.schema_arrow.types))
            for batch in file.iter_batches(64 if has_bytes else _CELLS, use_threads=False):
                self._batch(batch, place)

    def _arrow(self, blob: Blob, place: Place) -> None:
        stream = blob.opened()
        if blob.read(0, 6) == b"ARROW1":
            with pa.ipc.open_file(stream) as file:
                self._schema(file.schema, place)
                for number in range(file.num_record_batches):
                    self._batch(file.get_batch(number), place)
            return
        with pa.ipc.open_stream(stream) as batches:
            self._schema(batches.schema, place)
            for batch in batches:
                self._batch(batch, place)

    def _schema(self, schema: pa.Schema, place: Place) -> None:
        for name in schema.names:
            self.name(name, place.inner(name))
        said = [schema.metadata or {}, *(field.metadata or {} for field in schema)]
        for value in (value for metadata in said for value in metadata.values()):
            self._blob(Blob.of(value), place.value("its schema"))

    def _batch(self, batch: pa.RecordBatch, place: Place) -> None:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            for leaf in _leaves(column):
                self._cells(leaf, place.inner(name))

    def _cells(self, column: pa.Array, place: Place) -> None:
        self.read["cells"] += len(column)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            # The cast accepts bytes that are not UTF-8.
            texts = column.cast(pa.large_binary()).unique().drop_null().to_pylist()
            self._ids(b"\n".join(texts), place)
            for text in texts:
                if len(text) >= LEAST_CAPTION:
                    self._text(text.decode("utf-8", "replace"), place)
            return
        for value in column:
            data = value.as_py()
            if not data:
                continue
            if len(data) in (12, 16):
                self._ids(data.hex().encode(), place)
            self._blob(Blob.of(data), place.value("a cell"))

    def _database(self, blob: Blob, place: Place) -> None:
        if blob.size > MAX_DATABASE_BYTES:
            raise ValueError(f"it has more than {MAX_DATABASE_BYTES >> 20} MiB")
        # Deleted rows may still be in the pages.
        self._binary(blob, place)
        with closing(sqlite3.connect(":memory:")) as database:
            data = bytearray(blob.read())
            # A database with a log of its own cannot be opened in memory.
            data[18:20] = b"\1\1"
            database.deserialize(bytes(data))
            database.execute("PRAGMA trusted_schema=OFF")
            database.text_factory = partial(str, encoding="utf-8", errors="replace")
            listed = "SELECT name FROM sqlite_master WHERE type='table' AND rootpage > 0"
            for (name,) in database.execute(listed).fetchall():
                quoted = name.replace('"', '""')
                for row in database.execute(f'SELECT * FROM "{quoted}"'):
                    self.read["rows of databases"] += 1
                    for value in row:
                        if isinstance(value, str):
                            self._text(value, place.inner(name))
                        elif isinstance(value, bytes):
                            self._blob(Blob.of(value), place.value(name))


_ERRORS = (
    OSError, EOFError, ValueError, KeyError, NotImplementedError, RuntimeError, pa.ArrowException,
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, tarfile.TarError, sqlite3.Error, CuratorError,
    MemoryError, binascii.Error, AttributeError, TypeError, IndexError, OverflowError,
)  # fmt: skip
"""What readers raise on damaged objects of any program."""


def _signatures(data: bytes) -> list[tuple[int, bytes]]:
    """Returns where clips, pictures and archives may begin, or end, in order."""
    found = []
    for magic in _SIGNATURES:
        at = data.find(magic)
        while at >= 0:
            found.append((at, magic))
            at = data.find(magic, at + len(magic))
    return sorted(found)


def _strings_in(value: Any) -> Iterator[str]:  # noqa: ANN401 - of any JSON
    """Yields the texts in a JSON value, keys too."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]


def _has_bytes(kind: pa.DataType) -> bool:
    """Returns whether cells may be large."""
    if pa.types.is_nested(kind):
        return any(_has_bytes(kind.field(number).type) for number in range(kind.num_fields))
    return "binary" in str(kind) or kind in (pa.uint8(), pa.int8())


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """Yields the flat columns of texts and bytes within a column of any type."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from _leaves(column.storage)
    elif pa.types.is_dictionary(kind):
        yield from _leaves(column.dictionary)
    elif pa.types.is_run_end_encoded(kind):
        yield from _leaves(column.values)
    elif pa.types.is_map(kind):
        yield from _leaves(column.keys)
        yield from _leaves(column.items)
    elif pa.types.is_struct(kind) or pa.types.is_union(kind):
        for number in range(kind.num_fields):
            yield from _leaves(column.field(number))
    elif any(test(kind) for test in _LISTS):
        if kind.value_type in (pa.uint8(), pa.int8()):
            # Bytes of an object may be stored as numbers.
            cells = (cell.values for cell in column if cell.is_valid)
            cells = (np.asarray(cell.drop_null()).tobytes() for cell in cells)
            yield pa.array(list(cells), pa.large_binary())
        else:
            yield from _leaves(column.flatten())
    elif pa.types.is_string_view(kind):
        yield column.cast(pa.large_string())
    elif pa.types.is_binary_view(kind):
        yield column.cast(pa.large_binary())
    elif _is_flat(kind):
        yield column


_LISTS = (
    pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view,
    pa.types.is_large_list_view,
)  # fmt: skip


def _is_flat(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary,
        pa.types.is_fixed_size_binary,
    )  # fmt: skip
    return any(test(kind) for test in tests)
