"""Still images: what their files hold beside the coded picture.

FFmpeg decodes JPEG, PNG, WebP and AVIF. It accepts files that are cut off, and PyAV cannot read
what FFmpeg attaches to their pictures: it refuses EXIF data, and frees the name of a PNG's profile
twice. So the chunks of a file are read here, and FFmpeg gets the file without EXIF data and
profile.
"""

import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, Literal

from curator.errors import ErrorCode, SourceError

StillFormat = Literal["jpeg", "png", "webp", "avif"]
IMAGE_DEMUXERS: dict[StillFormat, str] = {
    "jpeg": "jpeg_pipe", "png": "png_pipe", "webp": "webp_pipe", "avif": "mov",
}  # fmt: skip
MAX_PICTURE_PIXELS = 1 << 26
"""Largest picture that FFmpeg decodes while it probes a container; 8K has half as many pixels. This
also limits cover pictures, which probing decodes before it recognizes them."""
MAX_IMAGE_BYTES = 1 << 30
"""Largest file of a still image: it is read whole."""
_MAX_PROFILE_BYTES = 16 << 20
_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_AVIF = re.compile(rb".{4}ftyp(avif|.{8}(.{4})*?avif)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class StillImage:
    """The file of a still image.

    Attributes:
        data: The bytes of the picture, without what follows it, such as the film of a Motion Photo
            or further pictures; for an AVIF, the whole file.
        coded: The same without EXIF data and profile, for the decoder.
        exif_orientation: 1 to 8, as in EXIF; 1 is upright.
        profile: ICC profile; empty without one.
        n_components: Components of a JPEG; four are CMYK.
        width: Before it is turned upright; 0 if these bytes do not say.
    """

    format: StillFormat
    data: bytes
    coded: bytes
    exif_orientation: int = 1
    profile: bytes = b""
    n_components: int = 3
    width: int = 0
    height: int = 0


def read_still(reader: BinaryIO, uri: str, n_bytes: int) -> StillImage | None:
    """Reads the file of a still image; None for another file, such as an animation.

    Raises:
        SourceError: TOO_LARGE_TO_PROBE, TOO_MANY_PIXELS, or NO_FRAMES because the file is cut off
            or damaged.
    """
    reader.seek(0)
    head = reader.read(64)
    kind = _format_of(head)
    if kind is None:
        return None
    if n_bytes > MAX_IMAGE_BYTES:
        raise SourceError(
            ErrorCode.TOO_LARGE_TO_PROBE,
            f"{uri} is a still image of {n_bytes} bytes; expected at most {MAX_IMAGE_BYTES}: "
            "shrink it, or leave it out",
        )
    reader.seek(0)
    data = reader.read(n_bytes)
    try:
        still = _READERS[kind](data)
    except (_CutOffError, struct.error, zlib.error, IndexError) as error:
        raise SourceError(
            ErrorCode.NO_FRAMES,
            f"{uri} ({n_bytes} bytes) is a {kind.upper()} that is cut off or damaged ({error}); "
            "fetch the file again or leave it out",
        ) from error
    if still is not None and still.width * still.height > MAX_PICTURE_PIXELS:
        raise SourceError(
            ErrorCode.TOO_MANY_PIXELS,
            f"{uri} is {still.width}x{still.height}, more than {MAX_PICTURE_PIXELS} pixels; shrink "
            "it, or leave it out",
        )
    return still


def _format_of(head: bytes) -> StillFormat | None:
    if head.startswith(_JPEG):
        return "jpeg"
    if head.startswith(_PNG):
        return "png"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "webp"
    return "avif" if _AVIF.match(head) else None


class _CutOffError(Exception):
    """A file ends before its picture does."""


_NEXT_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]", re.DOTALL)
"""A marker behind entropy-coded data of a JPEG; restarts and stuffed bytes belong to the data."""
_SIZES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
"""Markers of JPEG with the size and the number of components."""


def _jpeg(data: bytes) -> StillImage:
    at, n_components, orientation, size = 2, 3, 1, (0, 0)
    profile: dict[int, bytes] = {}
    left_out: list[tuple[int, int]] = []
    while True:
        found = _NEXT_MARKER.search(data, at)
        if found is None:
            raise _CutOffError("the marker of its end is missing")
        marker, at = data[found.start() + 1], found.end()
        if marker == 0xD9:
            break
        if marker in (0x01, 0xD8):
            continue
        (n_bytes,) = struct.unpack_from(">H", data, at)
        body = data[at + 2 : at + n_bytes]
        if marker in _SIZES and len(body) > 5:
            n_components, size = body[5], struct.unpack_from(">HH", body, 1)
        elif marker == 0xE1 and body.startswith(b"Exif\0\0"):
            orientation = exif_orientation(body[6:])
            left_out.append((found.start(), at + n_bytes))
        elif marker == 0xE2 and body.startswith(b"ICC_PROFILE\0"):
            profile[body[12]] = body[14:]
            left_out.append((found.start(), at + n_bytes))
        at += n_bytes
    return StillImage(
        format="jpeg",
        data=data[:at],
        coded=_without(data[:at], left_out),
        exif_orientation=orientation,
        profile=b"".join(part for _, part in sorted(profile.items())),
        n_components=n_components,
        width=size[1],
        height=size[0],
    )


def _png(data: bytes) -> StillImage | None:
    at, orientation, profile = len(_PNG), 1, b""
    left_out: list[tuple[int, int]] = []
    while True:
        n_bytes, name = struct.unpack_from(">I4s", data, at)
        body, end = data[at + 8 : at + 8 + n_bytes], at + 12 + n_bytes
        if end > len(data):
            raise _CutOffError(f"its chunk {name.decode('latin1')} is not whole")
        at = end
        if name == b"acTL":
            return None
        if name == b"IEND":
            break
        if name in (b"eXIf", b"iCCP"):
            left_out.append((end - 12 - n_bytes, end))
        if name == b"eXIf":
            orientation = exif_orientation(body)
        elif name == b"iCCP":
            _, _, packed = body.partition(b"\0")
            profile = zlib.decompressobj().decompress(packed[1:], _MAX_PROFILE_BYTES)
    width, height = struct.unpack_from(">II", data, len(_PNG) + 8)
    return StillImage(
        format="png",
        data=data[:at],
        coded=_without(data[:at], left_out),
        exif_orientation=orientation,
        profile=profile,
        width=width,
        height=height,
    )


def _webp(data: bytes) -> StillImage | None:
    end = 8 + int.from_bytes(data[4:8], "little")
    if end > len(data):
        raise _CutOffError(f"{len(data)} of {end} bytes")
    at, orientation, profile = 12, 1, b""
    left_out: list[tuple[int, int]] = []
    while at + 8 <= end:
        name, n_bytes = struct.unpack_from("<4sI", data, at)
        body = data[at + 8 : at + 8 + n_bytes]
        if name == b"ANIM":
            return None
        if name == b"EXIF":
            orientation = exif_orientation(body.removeprefix(b"Exif\0\0"))
        elif name == b"ICCP":
            profile = body
        after = at + 8 + n_bytes + n_bytes % 2
        if name in (b"EXIF", b"ICCP"):
            left_out.append((at, after))
        at = after
    coded = _without(data[:end], left_out)
    if left_out:
        # The size of the file, and the flags of the chunks that are left out.
        head = struct.pack("<4sI", b"RIFF", len(coded) - 8)
        coded = head + coded[8:20] + bytes([coded[20] & ~0x28]) + coded[21:]
    return StillImage(
        format="webp",
        data=data[:end],
        coded=coded,
        exif_orientation=orientation,
        profile=profile,
    )


def _avif(data: bytes) -> StillImage | None:
    at = 0
    while at + 8 <= len(data):
        n_bytes, name = struct.unpack_from(">I4s", data, at)
        if name == b"moov":
            # A sequence of pictures, or a film.
            return None
        at += n_bytes if n_bytes >= 8 else len(data)
    return StillImage(format="avif", data=data, coded=data)


def _without(data: bytes, left_out: Sequence[tuple[int, int]]) -> bytes:
    """Returns data without some of its spans, which are in order."""
    if not left_out:
        return data
    begins, ends = [0, *(end for _, end in left_out)], [*(at for at, _ in left_out), len(data)]
    return b"".join(data[begin:end] for begin, end in zip(begins, ends, strict=True))


_READERS = {"jpeg": _jpeg, "png": _png, "webp": _webp, "avif": _avif}


def exif_orientation(exif: bytes) -> int:
    """Returns the orientation in EXIF data, 1 to 8; 1 if the data does not say.

    Args:
        exif: A TIFF header, and directories (EXIF 2.32, 4.5.2).
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return 1
    try:
        (at,) = struct.unpack_from(f"{order}I", exif, 4)
        (n_entries,) = struct.unpack_from(f"{order}H", exif, at)
        for entry in range(n_entries):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", exif, at + 2 + 12 * entry)
            if tag == 0x112 and kind == 3 and 1 <= value <= 8:
                return int(value)
    except struct.error:
        pass
    return 1
