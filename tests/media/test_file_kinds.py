"""Files that no decoder shows are called what they are: encrypted, fragments, archives, texts."""

import io
import os
import re
import struct
from fractions import Fraction

import av
import numpy as np
import pytest

from curator.errors import ErrorCode, SourceError
from curator.media.file_kinds import ENCRYPTED, file_kind
from curator.stages.scan.probe import header_facts
from curator.stages.scan.source_names import NameKind, name_kind

KEYS = {
    "encryption_scheme": "cenc-aes-ctr",
    "encryption_key": "76a6c65c5ea762046bd749a2e632ccbb",
    "encryption_kid": "a7e61c373e219033c21091fa607bf3b8",
}
FRAGMENTED = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}


def film(form: str, codec: str = "libx264", options: dict[str, str] | None = None) -> bytes:
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)
    with av.open(stream, "w", format=form, options=options or {}) as container:
        video = container.add_stream(codec, rate=Fraction(25))
        video.width, video.height, video.pix_fmt, video.gop_size = 96, 64, "yuv420p", 6
        for _ in range(24):
            container.mux(video.encode(av.VideoFrame.from_ndarray(noise, format="rgb24")))
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
