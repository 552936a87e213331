"""Recognises the kinds of bytes: formats by their first bytes, texts, compression, MP4 boxes."""

import bz2
import io
import lzma
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

import pyarrow as pa

from curator.tables.removal_records import LEAST_CAPTION

SMALL_BYTES = 8 << 20
WINDOW_BYTES = 4 << 20
OVERLAP_BYTES = 64 << 10
"""Bytes that two windows share, so that no caption or id is split."""

CLOSED = {
    b"7z\xbc\xaf\x27\x1c": "a 7z archive", b"Rar!": "a RAR archive", b"PARE": "encrypted Parquet",
    b"%PDF": "a PDF, whose streams are compressed", b"Salted__": "encrypted by OpenSSL",
    b"age-encryption.org": "encrypted by age", b"LUKS\xba\xbe": "an encrypted volume",
    b"ORC": "ORC", b"Obj\x01": "Avro", b"\x89HDF\r\n\x1a\n": "HDF5, which may be compressed",
    b"PACK": "a pack of Git", b"LZIP": "compressed by lzip", b"\x1f\x9d": "compressed by compress",
    b"\xff\x06\x00\x00sNaPpY": "compressed by Snappy", b"MSCF": "a cabinet archive",
    b"hsqs": "a SquashFS image", b"\x89LZO": "compressed by lzop", b"FEA1": "Feather 1",
    b"\x02\x21\x4c\x18": "compressed by legacy LZ4", b"-----BEGIN PGP MESSAGE": "encrypted by PGP",
    b"-----BEGIN AGE ENCRYPTED": "encrypted by age", b"xar!": "a xar archive",
}  # fmt: skip
"""Formats that are searched only as bytes, by their first bytes."""
CODECS = {
    b"\x1f\x8b\x08": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4",
    b"\xfd7zXZ\x00": "xz", b"\x5d\x00\x00": "lzma",
}  # fmt: skip
MEDIA = (
    b"\xff\xd8\xff", b"\x89PNG", b"RIFF", b"GIF8", b"\x1a\x45\xdf\xa3", b"OggS", b"FLV\x01", b"ID3",
    b"\x00\x00\x01\xba", b"\x00\x00\x01\xb3", b"\x00\x00\x01\x67", b"\x00\x00\x00\x01",
    b"\x47\x40", b"0&\xb2u", b"BM", b"II*\x00", b"MM\x00*", b"fLaC", b"\xff\xfb", b"\xff\xf1",
    b"\x93NUMPY", b"\x00\x00\x00\x0cJXL", b"\xff\x0a",
)  # fmt: skip
"""Pictures, sound, video and arrays: their bytes look compressed, and hold no other object."""
CERTAIN = (
    b"\xff\xd8\xff", b"\x89PNG", b"RIFF", b"GIF8", b"\x1a\x45\xdf\xa3", b"\x93NUMPY",
    b"\x1f\x8b\x08", b"BZh", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"\xfd7zXZ\x00",
    b"PK\x03\x04", b"PAR1", b"SQLite format 3", b"ARROW1",
)  # fmt: skip
"""First bytes that no text has by chance when it is decoded."""
_BOXES = frozenset(
    (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"moof", b"mfra", b"meta", b"uuid",
     b"sidx", b"styp", b"udta", b"pnot", b"emsg", b"prft", b"ssix", b"pdin")
)  # fmt: skip
_INDEXES = frozenset((b"moov", b"moof", b"meta"))
"""Boxes one of which every film or picture has, besides `mdat`."""
_KIND = bytes(
    ord("a") if code in b"\t\n\r" or 32 <= code < 127 else ord("u" if code > 127 else " ")
    for code in range(256)
)
"""Kind of each byte: a letter or other character of ASCII, a byte of UTF-8, or neither."""
_SEEDS = (b"a" * 8, b"u" * 12)
"""Kinds of bytes that every text of 16 characters in other bytes has."""
_MAGIC_BYTES = 16
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


@dataclass(frozen=True, slots=True)
class Blob:
    """A stretch of a seekable stream."""

    file: BinaryIO
    start: int
    size: int

    @classmethod
    def of(cls, data: bytes) -> "Blob":
        """Returns bytes in memory."""
        return cls(io.BytesIO(data), 0, len(data))

    def read(self, start: int = 0, n_bytes: int | None = None) -> bytes:
        """Returns bytes from a place on; fewer at the end."""
        left = max(0, self.size - start)
        self.file.seek(self.start + start)
        return self.file.read(left if n_bytes is None else min(left, n_bytes))

    def chunks(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yields all bytes in order."""
        end = self.size if end is None else end
        while start < end and (data := self.read(start, min(WINDOW_BYTES, end - start))):
            yield data
            start += len(data)

    def windows(self) -> Iterator[tuple[int, bytes]]:
        """Yields offset and bytes of windows that overlap."""
        start = 0
        while True:
            data = self.read(start, WINDOW_BYTES)
            yield start, data
            if start + len(data) >= self.size or len(data) <= OVERLAP_BYTES:
                return
            start += len(data) - OVERLAP_BYTES

    def part(self, start: int, size: int) -> "Blob":
        """Returns a stretch of this stretch."""
        return Blob(self.file, self.start + start, max(0, min(size, self.size - start)))

    def opened(self) -> BinaryIO:
        """Returns a seekable stream of these bytes only."""
        if self.start == 0 and isinstance(self.file, io.BytesIO):
            self.file.seek(0)
            return self.file
        if self.size <= SMALL_BYTES:
            return io.BytesIO(self.read())
        return io.BufferedReader(_Stretch(self), 256 << 10)


class _Stretch(io.RawIOBase):
    """A stream of the bytes of a blob."""

    def __init__(self, blob: Blob) -> None:
        self._blob, self._at = blob, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + (0, self._at, self._blob.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - a buffer
        data = self._blob.read(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def is_tar(head: bytes) -> bool:
    """Returns whether a header of a tar begins the bytes."""
    with suppress(tarfile.HeaderError, UnicodeError, ValueError):
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
        return True
    return False


def codec_of(head: bytes) -> str | None:
    """Returns the compression that the first bytes show."""
    if head[:1] == b"\x78" and int.from_bytes(head[:2]) % 31 == 0:
        with suppress(zlib.error):
            return "zlib" if zlib.decompressobj().decompress(head) else None
    codec = next((name for magic, name in CODECS.items() if head.startswith(magic)), None)
    if codec == "bz2" and head[4:10] not in (b"1AY&SY", b"\x17rE8P\x90"):
        return None
    if codec == "lzma" and head[5:13] != b"\xff" * 8 and int.from_bytes(head[5:13], "little") >> 40:
        return None
    return codec


def is_arrow_stream(head: bytes, size: int) -> bool:
    """Returns whether the bytes begin with the length of a message of Arrow."""
    n_bytes = int.from_bytes(head[4:8], "little")
    return head[:4] == b"\xff\xff\xff\xff" and 0 < n_bytes <= size - 8 and n_bytes % 8 == 0


def inflated(codec: str, blob: Blob) -> Any:  # noqa: ANN401 - a stream of any library
    """Opens a compressed stream."""
    if codec in _DECOMPRESSORS:
        return _Inflated(codec, blob)
    return pa.CompressedInputStream(pa.PythonFile(blob.opened(), "r"), codec)


_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "gzip": partial(zlib.decompressobj, 31), "zlib": zlib.decompressobj,
    "bz2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor, "lzma": lzma.LZMADecompressor,
}  # fmt: skip


class _Inflated:
    """Expands compressed streams that follow each other, up to where they are damaged."""

    def __init__(self, codec: str, blob: Blob) -> None:
        self._codec, self._begin, self._chunks = codec, _DECOMPRESSORS[codec], blob.chunks()
        self._stream = self._begin()
        self.end: int | None = None
        """Where the streams end, once all of them were read."""
        self._n_fed = 0

    def read(self, n_bytes: int) -> bytes:
        """Returns some of the next bytes; none at the end."""
        while self.end is None:
            stream = self._stream
            if stream.eof:
                end = self._n_fed - len(stream.unused_data)
                data = stream.unused_data or self._fed()
                if len(data) < _MAGIC_BYTES:
                    data += self._fed()
                if codec_of(data[:1024]) != self._codec:
                    # Something else follows, or padding.
                    self.end = end
                    break
                self._stream = stream = self._begin()
            elif getattr(stream, "unconsumed_tail", b""):
                data = stream.unconsumed_tail
            elif not getattr(stream, "needs_input", True):
                data = b""
            elif not (data := self._fed()):
                raise EOFError("it ends early")
            if out := stream.decompress(data, n_bytes):
                return bytes(out)
        return b""

    def _fed(self) -> bytes:
        data = next(self._chunks, b"")
        self._n_fed += len(data)
        return data

    def close(self) -> None:
        """Does nothing."""


def as_text(data: bytes, is_whole: bool, *, strict: bool = False) -> str | None:
    """Decodes a text; None if the bytes are of no text. A text that is cut may end anywhere."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        codec = "utf-32" if data[:4] in (b"\xff\xfe\0\0", b"\0\0\xfe\xff") else "utf-16"
        text = data.decode(codec, "ignore")
    elif b"\0" in data:
        n_zeros = [data[number::4].count(0) * 8 > len(data) for number in range(4)]
        codecs = {
            (False, True, False, True): "utf-16-le", (True, False, True, False): "utf-16-be",
            (False, True, True, True): "utf-32-le", (True, True, True, False): "utf-32-be",
        }  # fmt: skip
        codec = codecs.get(tuple(n_zeros), "")  # type: ignore[arg-type]
        if not codec:
            return None
        text = data.decode(codec, "ignore")
    else:
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            if not is_whole and error.start > len(data) - 4:
                text = data[: error.start].decode("utf-8-sig")
            elif strict or sum(byte > 127 for byte in data) * 4 > len(data):
                return None
            else:
                text = data.decode("cp1252", "replace")
    return None if _CONTROL.search(text) else text


def looks_random(data: bytes) -> bool:
    """Returns whether all byte values are about equally common."""
    counts = Counter(data)
    squares = sum(number * number for number in counts.values())
    chi_square = 256 * squares / len(data) - len(data)
    return len(data) >= 64 and chi_square < 368 + len(data) / 20


def runs_within(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yields the bytes, and start and end of each text in bytes of another kind."""
    kinds = data.translate(_KIND)
    for seed in _SEEDS:
        end = 0
        # A search for a repeated byte skips what cannot match, so it is faster than an expression.
        while (at := kinds.find(seed, end)) >= 0:
            start, end = kinds.rfind(b" ", 0, at) + 1, kinds.find(b" ", at)
            end = len(kinds) if end < 0 else end
            is_new = seed == _SEEDS[0] or _SEEDS[0] not in kinds[start:end]
            if end - start >= LEAST_CAPTION and is_new:
                yield data, start, end


def boxes_of(blob: Blob) -> Iterator[tuple[bytes, int, int]]:
    """Yields kind, offset and size of the boxes of an MP4, up to the first that is none."""
    start = 0
    while start + 8 <= blob.size:
        head = blob.read(start, 16)
        size, kind = int.from_bytes(head[:4]), head[4:8]
        if size == 1:
            size = int.from_bytes(head[8:16])
        elif size == 0:
            size = blob.size - start
        is_next = kind == b"ftyp" and start > 0
        if kind not in _BOXES or size < 8 or start + size > blob.size or is_next:
            return
        yield kind, start, size
        start += size


def is_cut_off(blob: Blob, end: int, kinds: Collection[bytes]) -> bool:
    """Returns whether an MP4 lacks its end: `kinds` are its whole boxes, which end at `end`."""
    head = blob.read(end, 16)
    size = int.from_bytes(head[8:16] if head[:4] == b"\0\0\0\1" else head[:4])
    if head[4:8] in _BOXES - {b"ftyp"} and end + size > blob.size:
        return True
    return b"mdat" not in kinds or not _INDEXES.intersection(kinds)
