"""Still images: what their files hold beside the coded picture, and pictures as frames of video.

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
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import av
import numpy as np
from av.sidedata.sidedata import SideDataContainer, Type
from numpy.typing import NDArray

from curator.errors import CutError, DecodeError, ErrorCode, SourceError

if TYPE_CHECKING:
    from PIL.ImageCms import ImageCmsTransform

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
_SRGB_LEVELS = 2
"""A profile whose colours differ from sRGB by no more, in levels of 255, counts as sRGB."""
_OPAQUE = 255
_FULL_RANGE = 2


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


def as_frame(picture: av.VideoFrame, still: StillImage, uri: str) -> tuple[av.VideoFrame, bool]:
    """Returns a decoded picture in the form that frames of video have: opaque, sRGB, 8 bits.

    Transparent parts show white behind them, as on a page.

    Returns:
        The picture, or another one as RGB; and whether the file itself shows the same to a program
        that ignores transparency, profiles and further bits.

    Raises:
        DecodeError: UNSUPPORTED_CODEC, because of CMYK or a colour profile that cannot be used.
    """
    if still.n_components == 4:
        raise DecodeError(
            ErrorCode.UNSUPPORTED_CODEC,
            f"{uri} is a JPEG in CMYK, whose colours depend on a printer; convert it to RGB with "
            "its colour profile",
        )
    profile = still.profile or _side_profile(picture, still)
    is_deep = any(part.bits > 8 for part in picture.format.components)
    is_srgb = not profile or _is_srgb(profile, uri)
    rgb_HWC, is_opaque = None, True  # noqa: N806 - shape letters
    if _may_be_transparent(picture):
        rgb_HWC, is_opaque = _over_white(np.asarray(picture.to_ndarray(format="rgba"), np.uint8))  # noqa: N806
    elif is_deep or not is_srgb:
        rgb_HWC = np.asarray(picture.to_ndarray(format="rgb24"), np.uint8)  # noqa: N806
    if rgb_HWC is None:
        return picture, True
    if not is_srgb:
        rgb_HWC = _in_srgb(rgb_HWC, profile, uri)  # noqa: N806
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(rgb_HWC), format="rgb24")
    frame.pts, frame.time_base = picture.pts, picture.time_base
    frame.color_range = _FULL_RANGE
    # HDR is tone mapped by these when it is written.
    frame.color_primaries, frame.color_trc = picture.color_primaries, picture.color_trc
    return frame, is_opaque and is_srgb and not is_deep


def _may_be_transparent(picture: av.VideoFrame) -> bool:
    kind = picture.format
    return kind.has_palette or any(part.is_alpha for part in kind.components)


def _over_white(rgba_HWC: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], bool]:  # noqa: N803
    """Returns uint8 RGB [H, W, 3] over white, and whether all of it was opaque."""
    rgb_HWC, alpha_HW1 = rgba_HWC[..., :3], rgba_HWC[..., 3:]  # noqa: N806
    if (alpha_HW1 == _OPAQUE).all():
        return rgb_HWC, True
    share_HW1 = alpha_HW1.astype(np.uint16)  # noqa: N806
    over_HWC = rgb_HWC * share_HW1 + _OPAQUE * (_OPAQUE - share_HW1)  # noqa: N806
    return ((over_HWC + _OPAQUE // 2) // _OPAQUE).astype(np.uint8), False


def _side_profile(picture: av.VideoFrame, still: StillImage) -> bytes:
    """Returns the profile of an AVIF, which FFmpeg attaches to the picture."""
    if still.format != "avif":
        return b""
    # PyAV's annotations lack its arguments.
    attached: Any = SideDataContainer
    profile = attached(picture).get(Type.ICC_PROFILE)
    return bytes(profile) if profile is not None else b""


def _is_srgb(profile: bytes, uri: str) -> bool:
    """Returns whether a profile shows colours as sRGB does, up to `_SRGB_LEVELS`."""
    steps = np.linspace(0, 255, 9).round().astype(np.uint8)
    grid = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(1, -1, 3)
    if _is_gray(profile):
        grid = np.repeat(steps[None, :, None], 3, axis=2)
    shown = _in_srgb(grid, profile, uri)
    return bool(np.abs(shown.astype(int) - grid).max() <= _SRGB_LEVELS)


def _is_gray(profile: bytes) -> bool:
    return profile[16:20] == b"GRAY"


def _in_srgb(rgb_HWC: NDArray[np.uint8], profile: bytes, uri: str) -> NDArray[np.uint8]:  # noqa: N803
    """Converts uint8 RGB [H, W, 3] with a profile to sRGB."""
    from PIL import Image, ImageCms

    pixels = rgb_HWC[..., 0] if _is_gray(profile) else rgb_HWC
    try:
        shown = ImageCms.applyTransform(
            Image.fromarray(np.ascontiguousarray(pixels)), _to_srgb(profile)
        )
    except (ImageCms.PyCMSError, OSError) as error:
        raise DecodeError(
            ErrorCode.UNSUPPORTED_CODEC,
            f"{uri} has a colour profile that cannot be converted to sRGB ({error}); convert the "
            "picture to sRGB",
        ) from error
    return np.asarray(shown, np.uint8)


@lru_cache(maxsize=8)
def _to_srgb(profile: bytes) -> "ImageCmsTransform":
    from PIL import ImageCms

    source = ImageCms.ImageCmsProfile(BytesIO(profile))
    mode = "L" if _is_gray(profile) else "RGB"
    return ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")


_JPEG_QUALITY = 95
"""Of still images that are encoded again, without subsampled chroma: the quality at which Pillow's
authors see no difference."""


def encoded_image(picture: av.VideoFrame, *, lossless: bool) -> bytes:
    """Returns an rgb24 picture as a PNG if `lossless`, and otherwise as a JPEG.

    Raises:
        CutError: The picture cannot be encoded, or its file has another size.
    """
    from curator.media.opencv import cv2

    suffix, options = ".jpg", [
        cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY,
        cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
    ]  # fmt: skip
    if lossless:
        suffix, options = ".png", []
    rgb_HWC = np.asarray(picture.to_ndarray(format="rgb24"), np.uint8)  # noqa: N806
    bgr_HWC = np.ascontiguousarray(rgb_HWC[..., ::-1])  # noqa: N806
    done, data = cv2.imencode(suffix, bgr_HWC, options)
    again = cv2.imdecode(data, cv2.IMREAD_COLOR) if done else None
    if again is None or again.shape != bgr_HWC.shape:
        raise CutError(f"a picture of {picture.width}x{picture.height} px cannot be encoded")
    return bytes(data)
