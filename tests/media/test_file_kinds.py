"""Files that no decoder shows are called what they are: encrypted, fragments, archives, texts."""

import io
import os
import re
import struct
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from curator.errors import ErrorCode, SourceError
from curator.media.file_kinds import ENCRYPTED, OtherMediumError, file_kind
from curator.records.sources import Medium
from curator.stages.scan.probe import header_facts, scan_source
from curator.stages.scan.source_names import NameKind, name_kind
from curator.storage import stat_source

KEYS = {
    "encryption_scheme": "cenc-aes-ctr",
    "encryption_key": "76a6c65c5ea762046bd749a2e632ccbb",
    "encryption_kid": "a7e61c373e219033c21091fa607bf3b8",
}
FRAGMENTED = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}


def film(
    form: str,
    codec: str = "libx264",
    options: dict[str, str] | None = None,
    *,
    pixels: str = "yuv420p",
    n_frames: int = 24,
) -> bytes:
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)
    with av.open(stream, "w", format=form, options=options or {}) as container:
        video = container.add_stream(codec, rate=Fraction(25))
        video.width, video.height, video.pix_fmt = 96, 64, pixels
        if n_frames > 6:
            video.gop_size = 6
        for i in range(n_frames):
            frame = av.VideoFrame.from_ndarray(np.roll(noise, i, 0), format="rgb24")
            container.mux(video.encode(frame.reformat(format=pixels)))
        container.mux(video.encode(None))
    return stream.getvalue()


def refusal(data: bytes, name: str) -> SourceError | None:
    try:
        header_facts(io.BytesIO(data), name, len(data))
    except SourceError as error:
        return error
    return None


def scrambled_ts() -> bytes:
    """A broadcast whose packets of video are scrambled, as conditional access does."""
    data = bytearray(film("mpegts"))
    for at in range(0, len(data), 188):
        if struct.unpack_from(">H", data, at + 1)[0] & 0x1FFF == 256:
            data[at + 3] |= 0x80
            begin = at + 4 + (1 + data[at + 4] if data[at + 3] & 0x20 else 0)
            data[begin : at + 188] = os.urandom(at + 188 - begin)
    return bytes(data)


def css_vob() -> bytes:
    """A DVD of which every second packet of video is scrambled."""
    data = bytearray(film("dvd", "mpeg2video"))
    for found in list(re.finditer(rb"\x00\x00\x01\xe0", bytes(data)))[::2]:
        data[found.start() + 6] |= 0x10
    return bytes(data)


def encrypted_webm() -> bytes:
    """A WebM with a ContentEncoding of type 1, encryption, in place of its encoder's name."""
    data = film("webm", "libvpx-vp9")
    begin = data.index(b"\x57\x41")  # WritingApp
    mark = b"\x6d\x80\x8b\x62\x40\x88\x50\x33\x81\x01\x50\x35\x81\x00"
    return data[: begin + 3] + mark[: data[begin + 2] & 0x7F] + data[begin + 3 + len(mark) :]


def test_encrypted_videos_are_called_so() -> None:
    encrypted = film("mp4", options=KEYS)
    of_fairplay = encrypted.replace(b"encv", b"drmi")
    with_fragments = film("mp4", options=KEYS | FRAGMENTED)
    for name, data in (
        ("a.mp4", encrypted), ("a.m4v", of_fairplay), ("fragments.mp4", with_fragments),
        ("a.ts", scrambled_ts()), ("a.vob", css_vob()), ("a.webm", encrypted_webm()),
    ):  # fmt: skip
        error = refusal(data, name)
        assert error is not None, name
        assert error.code is ErrorCode.ENCRYPTED, name
        assert "is an encrypted video" in error.message
        assert "decrypt it" in error.message
    # A segment of HLS is noise of the padded size of packets.
    n_bytes = 188 * 100
    noise = os.urandom(n_bytes + 16 - n_bytes % 16)
    error = refusal(noise, "seg1.ts")
    assert error is not None
    assert error.code is ErrorCode.ENCRYPTED
    assert "HLS" in error.message
    for data, name in ((noise, "a.mp4"), (noise[:-1], "a.ts")):
        error = refusal(data, name)
        assert error is not None
        assert error.code is ErrorCode.NOT_A_VIDEO


def test_fragments_of_common_encryption_are_called_encrypted() -> None:
    """FFmpeg refuses them at once, as invalid data."""
    fragments = {"movflags": "frag_keyframe+empty_moov"}
    films = {form: film(form, options=KEYS | fragments) for form in ("mp4", "mov")}
    begin = films["mp4"].index(b"moov") - 4
    padding = struct.pack(">I4s", 100_000, b"free") + bytes(100_000 - 8)
    films["far.mp4"] = films["mp4"][:begin] + padding + films["mp4"][begin:]
    for name, data in films.items():
        error = refusal(data, name)
        assert error is not None, name
        assert error.code is ErrorCode.ENCRYPTED, name
    # FFmpeg refuses plain video beside encrypted sound, too.
    assert file_kind(films["mp4"].replace(b"encv", b"avc1")) is ENCRYPTED


@pytest.mark.parametrize(
    ("name", "head", "what", "remedy"),
    [
        ("A001.R3D", b"\x00\x00\x02\x00RED2" + bytes(99), "RED RAW", "ProRes"),
        ("a001", b"\x00\x00\x01\x00RED1" + bytes(99), "RED RAW", "ProRes"),
        ("A001.braw", b"\x00\x00\x00\x08wide" + os.urandom(999), "Blackmagic RAW", "ProRes"),
        ("A001.CRM", os.urandom(999), "Canon Cinema RAW Light", "ProRes"),
        ("A001.ari", b"ARRI\x12\x34\x56\x78" + bytes(999), "ARRIRAW", "ProRes"),
        ("A001.arx", os.urandom(999), "ARRIRAW", "ProRes"),
        ("shot.cine", b"CI\x2c\x00\x00\x00\x01\x00" + bytes(99), "Phantom Cine", "ProRes"),
        ("N001.NEV", os.urandom(999), "Nikon N-RAW", "ProRes"),
        ("M01.MLV", b"MLVI\x34\x00\x00\x00v2.0\x00" + bytes(99), "Magic Lantern", "ProRes"),
        ("a.mjpg", b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + bytes(99), "Motion JPEG", "-framerate"),
        ("a.mjpeg", b"\xff\xd8\xff\xdb" + os.urandom(999), "Motion JPEG", "-framerate"),
    ],
)
def test_raw_footage_is_called_by_its_name(name: str, head: bytes, what: str, remedy: str) -> None:
    assert name_kind(name) is not NameKind.OTHER
    error = refusal(head, name)
    assert error is not None
    assert error.code is ErrorCode.UNSUPPORTED_CODEC, error.message
    assert f"is {what}" in error.message
    assert remedy in error.message
    error = refusal(b"<html>404</html>", name)
    assert error is not None
    assert "a web page" in error.message


def test_fragments_and_initialization_segments_are_called_so() -> None:
    whole = film("mp4", options=FRAGMENTED)
    begin = whole.index(b"moof") - 4
    second = whole.index(b"moof", begin + 8) - 4
    styp, ftyp = (struct.pack(">I4s4sI4s", 20, b, b"msdh", 0, b"msdh") for b in (b"styp", b"ftyp"))
    webm = film("webm", "libvpx-vp9")
    cluster = webm.index(b"\x1f\x43\xb6\x75")
    for data in (
        whole[begin:], styp + whole[begin:second], ftyp + whole[second:], webm[cluster:]
    ):  # fmt: skip
        error = refusal(data, "seg.m4s")
        assert error is not None
        assert error.code is ErrorCode.FRAGMENT_WITHOUT_INIT
        assert "cat init.mp4 *.m4s" in error.message
    for data in (whole[:begin], webm[:cluster]):
        error = refusal(data, "init.mp4")
        assert error is not None
        assert error.code is ErrorCode.NO_FRAMES
        assert "initialization segment" in error.message


@pytest.mark.parametrize(
    ("form", "codec", "options"),
    [
        ("mp4", "libx264", {}), ("mp4", "libx264", FRAGMENTED), ("mpegts", "libx264", {}),
        ("webm", "libvpx-vp9", {}), ("dvd", "mpeg2video", {}), ("asf", "mpeg4", {}),
    ],
)  # fmt: skip
def test_plain_videos_are_not_taken_for_others(
    form: str, codec: str, options: dict[str, str]
) -> None:
    assert refusal(film(form, codec, options), f"a.{form}") is None


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b"#EXTM3U\nseg.ts\n", "a playlist"),
        (b"\xef\xbb\xbf<?xml version='1.0'?>\r\n<MPD/>", "a playlist"),
        (b"<!DOCTYPE HTML><html>", "a web page, such as an error page in place of the video"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "XML text"),
        (b'{"error": 1}', "JSON text"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS or git-annex"),
        ("Grüße".encode() * 2000, "text"),
        ("\ufeffHallo".encode("utf-16-le"), "text"),
        (b"\x89PNG\r\n\x1a\n", "a picture"),
        (b"PK\x03\x04", "a ZIP archive"),
        (bytes(257) + b"ustar\x0000", "a tar archive"),
        (b"MPLS0200", "an index of a camera card, DVD or Blu-ray"),
        (bytes(5000), "zeros, as of an unfinished download or copy"),
        (b"\x01\x02\x03\x04" * 99, None),
        (b"", None),
    ],
)
def test_first_bytes_name_the_kind(head: bytes, what: str | None) -> None:
    kind = file_kind(head)
    assert (kind.what if kind is not None else None) == what


def sound(form: str, codec: str, rate: int = 48_000) -> bytes:
    """A second of noise, without tags."""
    stream = io.BytesIO()
    options = {"id3v2_version": "0", "write_xing": "0"} if form == "mp3" else {}
    with av.open(stream, "w", format=form, options=options) as container:
        track = container.add_stream(codec, rate=rate)
        track.layout = "mono"
        noise = np.random.default_rng(0).integers(-9000, 9000, (1, rate), np.int16)
        frame = av.AudioFrame.from_ndarray(noise, format="s16", layout="mono")
        frame.sample_rate = rate
        n = track.codec_context.frame_size or 1024
        resampler = av.AudioResampler(track.format, "mono", rate, frame_size=n)
        for part in (*resampler.resample(frame), *resampler.resample(None)):
            container.mux(track.encode(part))
        container.mux(track.encode(None))
    return stream.getvalue()


def picture(form: str, codec: str, pixels: str) -> bytes:
    return film(form, codec, pixels=pixels, n_frames=1)


def branded(data: bytes, brand: bytes) -> bytes:
    """The same MP4 with another major brand."""
    at = data.index(b"ftyp") + 4
    return data[:at] + brand + data[at + 4 :]


def box(name: bytes, *parts: bytes) -> bytes:
    data = b"".join(parts)
    return struct.pack(">I4s", 8 + len(data), name) + data


def tiled(n_tiles: int) -> bytes:
    """A HEIF image of so many coded tiles, as telephones write them."""
    still = picture("avif", "libsvtav1", "yuv420p")
    at = still.index(b"av1C") - 4
    configuration = still[at : at + int.from_bytes(still[at : at + 4], "big")]
    coded = still[still.index(b"mdat") + 4 :]
    ids, flags = range(1, n_tiles + 1), bytes(4)
    count = struct.pack(">H", n_tiles)

    def meta(at: int) -> bytes:
        places = [struct.pack(">HHHII", i, 0, 1, at, len(coded)) for i in ids]
        entries = [box(b"infe", b"\2\0\0\0", struct.pack(">HH4sx", i, 0, b"av01")) for i in ids]
        of_each = [struct.pack(">HBBB", i, 2, 0x81, 2) for i in ids]
        size = box(b"ispe", flags, struct.pack(">II", 96, 64))
        return box(
            b"meta", flags, box(b"hdlr", flags, flags, b"pict", bytes(13)),
            box(b"pitm", flags, b"\0\1"),
            box(b"iloc", flags, b"\x44\0", count, *places),
            box(b"iinf", flags, count, *entries),
            box(b"iprp", box(b"ipco", configuration, size),
                box(b"ipma", flags, struct.pack(">I", n_tiles), *of_each)),
        )  # fmt: skip

    start = box(b"ftyp", b"heic", flags, b"mif1heic")
    return start + meta(len(start) + len(meta(0)) + 8) + box(b"mdat", coded)


@pytest.mark.parametrize(
    ("form", "codec", "rate"),
    [
        ("mp3", "libmp3lame", 48_000), ("mp3", "libmp3lame", 16_000), ("mp3", "libmp3lame", 8_000),
        ("mp2", "mp2", 48_000), ("adts", "aac", 48_000), ("ac3", "ac3", 48_000),
        ("eac3", "eac3", 48_000), ("amr", "libopencore_amrnb", 8_000), ("flac", "flac", 48_000),
        ("ogg", "libopus", 48_000), ("wav", "pcm_s16le", 48_000), ("w64", "pcm_s16le", 48_000),
        ("aiff", "pcm_s16be", 48_000), ("au", "pcm_s16be", 48_000), ("caf", "pcm_s16be", 48_000),
        ("wv", "wavpack", 48_000), ("tta", "tta", 48_000), ("voc", "pcm_u8", 48_000),
        ("ipod", "aac", 48_000), ("matroska", "libopus", 48_000), ("mpegts", "aac", 48_000),
    ],
)  # fmt: skip
def test_sound_is_of_its_medium(form: str, codec: str, rate: int) -> None:
    error = refusal(sound(form, codec, rate), "a.bin")
    assert isinstance(error, OtherMediumError), error
    assert error.medium is Medium.SOUND


JP2 = b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x14ftyp"


@pytest.mark.parametrize(
    "data",
    [
        *(pytest.param((form, codec, pixels), id=f"{codec} in {form}") for form, codec, pixels in (
            ("image2pipe", "png", "rgb24"), ("image2pipe", "mjpeg", "yuvj420p"),
            ("image2pipe", "bmp", "bgr24"), ("image2pipe", "tiff", "rgb24"),
            ("image2pipe", "libwebp", "yuv420p"), ("image2pipe", "jpeg2000", "rgb24"),
            ("image2pipe", "exr", "gbrpf32le"), ("image2pipe", "dpx", "rgb24"),
            ("image2pipe", "qoi", "rgb24"), ("image2pipe", "hdr", "gbrpf32le"),
            ("image2pipe", "ppm", "rgb24"), ("image2pipe", "pgm", "gray"),
            ("image2pipe", "pam", "rgb24"), ("ico", "png", "rgba"), ("ico", "bmp", "bgra"),
            ("gif", "gif", "rgb8"), ("avif", "libsvtav1", "yuv420p"),
        )),
        pytest.param(JP2 + b"jp2 " + bytes(99), id="jp2"),
        pytest.param(b"\xff\x4f\xff\x51" + bytes(99), id="j2k"),
        pytest.param(b"\xff\x0a" + bytes(range(99)), id="jxl"),
        pytest.param(b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(99), id="jxl container"),
        pytest.param(b"8BPS\0\1" + bytes(99), id="psd"),
        pytest.param(b"P5 # noise\n# more\n64 64\n255\n" + bytes(99), id="pgm with comments"),
        pytest.param(b"<?xml version='1.0'?><!-- a --><!DOCTYPE svg><svg/>", id="svg"),
        pytest.param(b"<svg xmlns='http://www.w3.org/2000/svg'/>", id="bare svg"),
    ],
)  # fmt: skip
def test_a_still_image_is_of_its_medium(data: bytes | tuple[str, str, str]) -> None:
    error = refusal(data if isinstance(data, bytes) else picture(*data), "a.bin")
    assert isinstance(error, OtherMediumError), error
    assert error.medium is Medium.IMAGE


@pytest.mark.parametrize("n_tiles", [1, 48, 192])
def test_a_picture_of_tiles_is_a_still_image(n_tiles: int) -> None:
    """Each tile is a stream for FFmpeg, and there may be more than of any film."""
    error = refusal(tiled(n_tiles), "a.heic")
    assert isinstance(error, OtherMediumError), error
    assert error.medium is Medium.IMAGE


def test_a_heic_among_images_fails_with_its_remedy(tmp_path: Path) -> None:
    path = tmp_path / "a.heic"
    path.write_bytes(tiled(4))
    n_bytes, version = stat_source(str(path))
    row = scan_source(str(path), n_bytes, version, {Medium.IMAGE})
    assert (row["error_code"], row["medium"]) == ("unsupported_codec", "image")
    assert "expected JPEG, PNG, WebP or AVIF: convert it" in str(row["error_message"])
    assert "heif-convert" in str(row["error_message"])


@pytest.mark.parametrize("brand", [b"avif", b"avis", b"heic", b"hevc", b"mif1", b"msf1"])
def test_what_the_container_has_decides_not_its_brand(brand: bytes) -> None:
    for options in ({}, FRAGMENTED):
        assert refusal(branded(film("mp4", options=options), brand), "a.mp4") is None
    one = branded(film("mp4", n_frames=1), brand)
    error = refusal(one, "a.mp4")
    assert isinstance(error, OtherMediumError), error
    assert error.medium is Medium.IMAGE
    encrypted = refusal(branded(film("mp4", options=KEYS), brand), "a.mp4")
    assert encrypted is not None
    assert encrypted.code is ErrorCode.ENCRYPTED
    whole = branded(film("mp4"), brand)
    without_index = refusal(whole[: whole.index(b"moov") - 4], "a.mp4")
    assert without_index is not None
    assert without_index.code is ErrorCode.NOT_A_VIDEO


def test_a_moving_picture_is_a_video() -> None:
    for form, codec, pixels in (
        ("avif", "libsvtav1", "yuv420p"), ("gif", "gif", "rgb8"), ("apng", "apng", "rgb24"),
    ):  # fmt: skip
        assert refusal(film(form, codec, pixels=pixels), f"a.{form}") is None
    assert refusal(film("mp4", n_frames=1), "a.mp4") is None
    error = refusal(film("webp", "libwebp_anim"), "a.webp")
    assert error is not None
    assert error.code is ErrorCode.UNSUPPORTED_CODEC
    assert "an animated WebP" in error.message


@pytest.mark.parametrize(
    "head",
    [
        b"\xff\xfb\x90\x00" + bytes(9000),  # one frame
        b"\xff\xfb" * 3 + bytes(60_000),
        b"\x00\x00\x01\x00\x00\x0f\xff\xf8" + bytes(99),  # a picture of MPEG-2
        JP2 + b"mjp2" + bytes(99),  # Motion JPEG 2000 without its index
        b"RIFF\0\0\0\0AVI LIST" + bytes(99),
    ],
)
def test_bytes_of_damaged_videos_are_of_no_other_medium(head: bytes) -> None:
    kind = file_kind(head)
    assert kind is None or kind.medium is None


def test_many_comments_of_a_text_take_no_time() -> None:
    begin = time.perf_counter()
    for head in (b"<!---->" * 500 + b"<a/>", b"P1 " + b"# " * 2000, b"P1 " + b"#\n" * 30_000):
        assert file_kind(head) is not None
    # Without bounds on backtracking it would be years.
    assert time.perf_counter() - begin < 5
