"""Pictures of still images: as frames of video are, and as files.

This needs Pillow and OpenCV, which readers of shards do without.
"""

from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any

import av
import numpy as np
from av.sidedata.sidedata import SideDataContainer, Type
from numpy.typing import NDArray

from curator.errors import CutError, DecodeError, ErrorCode
from curator.media.opencv import cv2
from curator.media.still_images import StillImage

if TYPE_CHECKING:
    from PIL.ImageCms import ImageCmsTransform

_SRGB_LEVELS = 2
"""A profile whose colours differ from sRGB by no more, in levels of 255, counts as sRGB."""
_OPAQUE = 255
_FULL_RANGE = 2


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
