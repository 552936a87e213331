"""Still images decode as viewers show them, or fail with a named reason."""

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageCms, ImageOps

from curator.errors import DecodeError, ErrorCode, SourceError
from curator.media.container import open_container, video_stream
from curator.media.decode import FrameReader
from curator.media.encode import Upright
from curator.media.still_images import exif_orientation, read_still
from curator.media.still_pictures import as_frame, encoded_image

Pixels = NDArray[np.uint8]
FORMATS = ("jpeg", "png", "webp", "avif")
EXACT, CODED = 0.5, 4.0
"""Largest mean difference to Pillow: rounding, and other upsampling of chroma."""


def painted(width: int = 96, height: int = 64) -> Image.Image:
    """A smooth picture without symmetry, with a bright corner at its upper left."""
    y, x = np.mgrid[:height, :width]
    rgb = np.stack([255 * x / width, 255 * y / height, 128 + 64 * np.sin(x / 9)], -1)
    rgb[: height // 4, : width // 4] = 255
    return Image.fromarray(rgb.astype(np.uint8))


def file_of(picture: Image.Image, form: str, **how: Any) -> bytes:  # noqa: ANN401
    data = io.BytesIO()
    picture.save(data, form.upper(), **({"quality": 95} if form != "png" else {}) | how)
    return data.getvalue()


def shown(data: bytes) -> tuple[Pixels, FrameReader]:
    """The upright picture that a clip of an image shows, and the reader that decoded it."""
    file = io.BytesIO(data)
    still = read_still(file, "x", len(data))
    assert still is not None
    with open_container(file, "x", n_bytes=len(data), still=still) as container:
        stream = video_stream(container, "x", still=still)
        reader = FrameReader(
            container, stream, "x", threads=2, max_pixels=1 << 24, still=still, convert=as_frame
        )
        frames = list(reader)
        assert len(frames) == 1
        report = reader.report
        assert not report.is_damaged
        (width, height), turn = report.sizes[0], report.rotation_deg
        size = (height, width) if turn % 180 else (width, height)
        upright = Upright(
            *size, rotation_deg=turn, is_mirrored=report.orientation.is_mirrored, crop=None,
            deinterlace=False, is_still=True,
        )  # fmt: skip
        (picture,) = [*upright.push(frames[0].picture), *upright.flush()]
        return np.asarray(picture.to_ndarray(format="rgb24"), np.uint8), reader


def refused(data: bytes) -> tuple[ErrorCode, str]:
    with pytest.raises((SourceError, DecodeError)) as caught:
        shown(data)
    return caught.value.code, caught.value.message


def off(one: Pixels, other: Pixels) -> float:
    assert one.shape == other.shape
    return float(np.abs(one.astype(int) - other).mean())


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", FORMATS)
def test_a_picture_is_upright(form: str, orientation: int) -> None:
    """Pins all eight orientations of EXIF, and those of AVIF, against Pillow's."""
    exif = Image.Exif()
    exif[0x112] = orientation
    # Pillow takes the orientation out of what it gets for an AVIF.
    tagged = file_of(painted(), "png", exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(tagged))).convert("RGB"))
    upright, reader = shown(file_of(painted(), form, exif=exif))
    assert off(upright, expected) < (EXACT if form == "png" else CODED)
    assert not reader.report.is_converted


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1", "RGBA", "LA"])
def test_a_png_of_any_mode_has_the_pixels_that_pillow_shows(mode: str) -> None:
    picture = painted().convert(mode)
    pixels, reader = shown(file_of(picture, "png"))
    assert off(pixels, np.asarray(picture.convert("RGB"))) < EXACT
    assert not reader.report.is_converted


@pytest.mark.parametrize("form", ["png", "webp"])
def test_transparent_parts_are_white_and_opaque_alpha_changes_nothing(form: str) -> None:
    picture = painted().convert("RGBA")
    picture.putalpha(Image.fromarray(np.where(np.arange(96)[None] < 48, 0, 255).astype("u1")
                                     .repeat(64, 0)))  # fmt: skip
    data = file_of(picture, form, **({"lossless": True} if form == "webp" else {}))
    pixels, reader = shown(data)
    assert (pixels[:, :48] == 255).all()
    assert off(pixels[:, 48:], np.asarray(painted())[:, 48:]) < EXACT
    assert reader.report.is_converted


def test_16_bits_become_8() -> None:
    import cv2

    rgb = np.asarray(painted())
    done, data = cv2.imencode(".png", np.ascontiguousarray(rgb[..., ::-1]).astype(np.uint16) * 257)
    assert done
    pixels, reader = shown(bytes(data))
    assert off(pixels, rgb) < EXACT
    assert (reader.report.n_bits, reader.report.is_converted) == (16, True)


def wide_profile() -> bytes:
    """An sRGB profile whose red and green primaries are exchanged: a gamut that differs."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    at = [data.index(name, 128) for name in (b"rXYZ", b"gXYZ")]
    one, other = (bytes(data[place + 4 : place + 12]) for place in at)
    data[at[0] + 4 : at[0] + 12], data[at[1] + 4 : at[1] + 12] = other, one
    return bytes(data)


@pytest.mark.parametrize("form", FORMATS)
def test_a_colour_profile_is_applied(form: str) -> None:
    """Pins that colours are those of the profile, and that sRGB's own changes nothing."""
    own = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    pixels, reader = shown(file_of(painted(), form, icc_profile=own))
    assert off(pixels, np.asarray(painted())) < CODED
    assert not reader.report.is_converted
    pixels, reader = shown(file_of(painted(), form, icc_profile=wide_profile()))
    expected = np.asarray(painted())[..., [1, 0, 2]]
    assert off(pixels, expected) < CODED + 2
    assert reader.report.is_converted


def test_colours_without_a_meaning_on_screens_are_refused() -> None:
    code, message = refused(file_of(painted().convert("CMYK"), "jpeg"))
    assert code is ErrorCode.UNSUPPORTED_CODEC
    assert "CMYK" in message
    broken = file_of(painted(), "png", icc_profile=b"\0" * 200)
    code, message = refused(broken)
    assert code is ErrorCode.UNSUPPORTED_CODEC
    assert "cannot be converted to sRGB" in message


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kept", [0.3, 0.7, 0.99])
def test_a_file_that_is_cut_off_fails(form: str, kept: float) -> None:
    data = file_of(painted(), form)
    file = io.BytesIO(data[: int(kept * len(data))])
    with pytest.raises((SourceError, AssertionError, ValueError)):
        shown(file.getvalue())


@pytest.mark.parametrize("form", ["jpeg", "png", "webp"])
def test_what_follows_a_picture_is_left_out(form: str) -> None:
    """Pins Motion Photos and MPO: a film, or a further picture, behind the first picture."""
    data = file_of(painted(), form)
    for more in (data, b"\0\0\0\x18ftypmp42" + bytes(500), bytes(5000)):
        still = read_still(io.BytesIO(data + more), "x", len(data + more))
        assert still is not None
        assert still.data == data
        assert off(shown(data + more)[0], shown(data)[0]) == 0


def test_animations_and_other_files_are_no_still_images() -> None:
    frames: dict[str, Any] = {"save_all": True, "append_images": [painted().rotate(90)]}
    for data in (
        file_of(painted(), "png", **frames), file_of(painted(), "webp", **frames),
        file_of(painted(), "gif"), file_of(painted(), "bmp"), b"", b"\xff\xd8",
    ):  # fmt: skip
        assert read_still(io.BytesIO(data), "x", len(data)) is None


def test_a_huge_picture_fails_before_it_is_decoded() -> None:
    data = bytearray(file_of(painted(), "jpeg"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = bytes.fromhex("ffffffff")
    code, message = refused(bytes(data))
    assert code is ErrorCode.TOO_MANY_PIXELS
    assert "65535x65535" in message


@pytest.mark.parametrize("exif", [b"", b"II*\0", b"MM\0*\0\0\0\x08\xff\xff", b"noise" * 9])
def test_exif_that_says_nothing_leaves_a_picture_as_it_is(exif: bytes) -> None:
    assert exif_orientation(exif) == 1


@pytest.mark.parametrize(("lossless", "most"), [(True, 0.0), (False, 2.0)])
def test_an_encoded_picture_shows_the_same(lossless: bool, most: float) -> None:
    import av

    rgb = np.asarray(painted(95, 63))
    data = encoded_image(av.VideoFrame.from_ndarray(rgb, format="rgb24"), lossless=lossless)
    assert off(shown(data)[0], rgb) <= most
