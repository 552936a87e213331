"""Tells from the first bytes of a file what it is, if it is no video that can be read.

Only bytes are compared, and nothing is parsed by a library, so the driver may do this too.
"""

import os
import re
import struct
from collections import Counter
from typing import NamedTuple

from curator.errors import ErrorCode, SourceError
from curator.records.sources import Medium

HEAD_BYTES = 1 << 16
"""Size of the beginning that is enough for each kind; 512 bytes are enough for most."""


class FileKind(NamedTuple):
    """What a file is, with its article, and what the user can do."""

    what: str
    remedy: str
    is_footage: bool = False
    """Whether it is a video that cannot be read as it is."""
    has_files: bool = False
    """Whether it contains or lists other files, which may be videos."""
    code: ErrorCode = ErrorCode.NOT_A_VIDEO
    medium: Medium | None = None
    """The medium of a file that is no video; None for no media."""


class OtherMediumError(SourceError):
    """A source is of a medium that the recipe does not accept."""

    _made_from = ("medium", "uri")

    def __init__(self, medium: Medium, uri: str) -> None:
        super().__init__(
            ErrorCode.UNUSED_MEDIUM,
            f"{uri} is {medium.words}, and no stage of this recipe accepts this medium: the "
            "media that are curated are those of scan.media, videos and still images, and sound "
            "not yet; add the medium (--set scan.media=[video,image]), or leave the source out",
        )
        self.medium, self.uri = medium, uri


_UNPACK = "unpack it (unzip), and name the folder as a source"
_PLAYLIST = (
    "name the video or the folder of the files that it lists, or write them into one file with: "
    "ffmpeg -i PLAYLIST -c copy video.mp4"
)
_LEAVE_OUT = "leave it out"
_LIST = (
    "if it lists videos, write a manifest: a .txt with a path or an address per line, or a .jsonl "
    'with {"uri": ...} per line; otherwise leave it out'
)
_AGAIN = "fetch the video itself"
ENCRYPTED = FileKind(
    "an encrypted video (DRM, Common Encryption, CSS, or a scrambled stream)",
    "decrypt it with its key, or fetch it without encryption; no decoder can show it",
    is_footage=True,
    code=ErrorCode.ENCRYPTED,
)
_AES_SEGMENT = ENCRYPTED._replace(
    what="noise of the size of an encrypted segment of an HLS stream (AES-128)",
    remedy="decrypt it: ffmpeg -i PLAYLIST -c copy video.mp4 reads the key that the playlist names",
)
_ZEROS = FileKind("zeros, as of an unfinished download or copy", "fetch it again")
_FRAGMENT = FileKind(
    "a fragment of a stream (DASH, HLS, CMAF) without its initialization segment, which describes "
    "the codec",
    "put the initialization segment before all fragments: cat init.mp4 *.m4s > video.mp4",
    is_footage=True,
    code=ErrorCode.FRAGMENT_WITHOUT_INIT,
)
INIT_ONLY = FileKind(
    "an initialization segment of a stream (DASH, HLS, CMAF): it describes the codec, and has no "
    "frames",
    "put it before its fragments: cat init.mp4 *.m4s > video.mp4",
    is_footage=True,
    code=ErrorCode.NO_FRAMES,
)

_RAW = FileKind(
    "raw footage of a camera",
    "export it from the maker's program, or from an editor that reads it, as ProRes, H.264 or HEVC",
    is_footage=True,
    code=ErrorCode.UNSUPPORTED_CODEC,
)
RAW_FOOTAGE = {
    "r3d": _RAW._replace(what="RED RAW (REDCODE)"),
    "braw": _RAW._replace(what="Blackmagic RAW"),
    "crm": _RAW._replace(what="Canon Cinema RAW Light"),
    "rmf": _RAW._replace(what="Canon Cinema RAW"),
    "ari": _RAW._replace(what="ARRIRAW, a file per frame"),
    "arx": _RAW._replace(what="ARRIRAW (HDE), a file per frame"),
    "cine": _RAW._replace(what="Phantom Cine"),
    "nev": _RAW._replace(what="Nikon N-RAW"),
    "mlv": _RAW._replace(what="Magic Lantern RAW"),
    "mcraw": _RAW._replace(what="MotionCam RAW"),
    "krw": _RAW._replace(what="KineRAW"),
} | dict.fromkeys(
    ("mjpeg", "mjpg", "mjp"),
    _RAW._replace(
        what="Motion JPEG without a container, which says no frame rate",
        remedy="put it into one, with its rate: ffmpeg -framerate 25 -f mjpeg -i FILE -c copy "
        "video.mkv",
    ),
)
"""Footage that no decoder here shows, by suffix."""

_JSON = FileKind("JSON text", _LIST, has_files=True)
_TEXT = FileKind("text", _AGAIN)
PLAYLIST = FileKind("a playlist", _PLAYLIST, has_files=True)
CONCAT_LIST = FileKind(
    "a list for FFmpeg's demuxer concat",
    "write a path per line, without `file` and quotes, or join the files: "
    "ffmpeg -f concat -safe 0 -i LIST -c copy video.mp4",
    has_files=True,
)
_PICTURE = FileKind("a picture", _LEAVE_OUT, medium=Medium.IMAGE)

_SIGNATURES = (
    (4, rb"RED[12]", RAW_FOOTAGE["r3d"]),
    (0, rb"ARRI(\x12\x34\x56\x78|\x78\x56\x34\x12)", RAW_FOOTAGE["ari"]),
    (0, rb"CI\x2c\x00[\x00-\x02]\x00", RAW_FOOTAGE["cine"]),
    (0, rb"MLVI.{4}v\d\.", RAW_FOOTAGE["mlv"]),
    (0, rb"PK(\x03\x04|\x05\x06)", FileKind("a ZIP archive", _UNPACK, has_files=True)),
    (257, rb"ustar", FileKind(
        "a tar archive", "give it a name that ends in .tar, so that its members are sources",
        has_files=True)),
    (0, rb"\x1f\x8b|BZh[1-9]|\xfd7zXZ\x00|\x28\xb5\x2f\xfd|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07",
     FileKind("an archive or a compressed file",
              "unpack it, and name the folder as a source; a tar need only be decompressed "
              "(gunzip, zstd -d)", has_files=True)),
    (0, rb"%PDF-|\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
     FileKind("a document", _LEAVE_OUT, has_files=True)),
    (0, rb"PAR1|SQLite format 3\x00", FileKind("a table or database", _LIST, has_files=True)),
    (0, rb"RIFF.{4}WEBPVP8X.{4}[" + re.escape(bytes(b for b in range(256) if b & 2)) + rb"]",
     FileKind("an animated WebP", "convert it to a video, GIF or APNG with a tool that reads it, "
              "such as ImageMagick", is_footage=True, code=ErrorCode.UNSUPPORTED_CODEC)),
    (0, rb"\xff\xd8\xff|\x89PNG|BM.{4}\x00{4}|II([*+U]\x00|\xbc|R[OS])|MM\x00[*+]|RIFF.{4}WEBP"
     # Motion JPEG 2000 has the same signature as JPEG 2000, and another brand.
     rb"|\x00{3}\x0cjP  \r\n\x87\n.{4}ftypjp|\xff\x4f\xff\x51|\xff\n|\x00{3}\x0cJXL \r\n\x87\n"
     # ICO: so many entries, and the first one's size, colours, planes and bits per pixel.
     rb"|\x00\x00\x01\x00.\x00.{3}[\x00\xff][\x00\x01]\x00[\x00\x01\x04\x08\x10\x18\x20]\x00"
     rb"|8BPS\x00|v/1\x01|SDPX|XPDS|qoif|DDS \x7c|icns\x00|gimp xcf|#\?R(ADIANC|GB)E"
     rb"|FUJIFILMCCD-RAW|P[1-6]\s+(#[^\n]*\n\s*)*\d+\s+\d+\s|P7\nWIDTH",
     _PICTURE),
    (0, rb"ID3|fLaC|(RIFF|RF64|BW64).{4}WAVE|riff\x2e\x91\xcf\x11|FORM.{4}AIF|FRM8.{8}DSD |DSD \x1c"
     rb"|#!AMR|\.snd\x00|caff\x00|MThd\x00|MAC .[\x0e\x0f]|wvpk|TTA[12][\x01-\x03]\x00"
     rb"|MPCK|MP\+[\x07\x17]|Creative Voice File|.{4}\xf8\x72\x6f[\xba\xbb]"
     # MPEG audio, ADTS, AC-3 and DTS have no header: four frames begin with the same bytes.
     rb"|(\xff[\xe2\xe3\xf0-\xf5\xf8-\xfd]|\x0b\x77|\x7f\xfe\x80\x01)(.{4,8192}?\2){3}",
     FileKind("a sound file", _LEAVE_OUT, medium=Medium.SOUND)),
    (0, rb"HDMV0|MPLS0|INDX0|MOBJ0|DVDVIDEO-|DVDAUDIO-",
     FileKind("an index of a camera card, DVD or Blu-ray", "name the video files beside it")),
    (0, rb"\x1f\x43\xb6\x75", _FRAGMENT),
)  # fmt: skip
"""Offsets, patterns of bytes there, and kinds."""
_XML = r"(<\?xml[^>]*>\s*|<!--.*?-->\s*)*+"
"""What XML may begin with. The possessive `*+` keeps the time linear in the number of comments."""
_TEXTS = (
    (r"version https://git-lfs|(\.\./|\.git/|/)*annex/objects/",
     FileKind("a pointer of Git LFS or git-annex", "fetch the content: git lfs pull")),
    (r"#EXTM3U|\[playlist\]|\[reference\]|<asx|"
     rf"{_XML}<(mpd|smil|smoothstreamingmedia|playlist|asset(map)?)\b",
     PLAYLIST),
    (r"(#[^\n]*\n|\s)*(ffconcat |file\s+'[^\n]+')", CONCAT_LIST),
    (rf"{_XML}(<!doctype html|<html|<head|<body)",
     FileKind("a web page, such as an error page in place of the video", _AGAIN)),
    (rf"{_XML}(<!doctype svg|<svg)\b", _PICTURE),
    (r"<", FileKind("XML text", _LIST, has_files=True)),
    (r"[\[{]", _JSON),
    (r"", _TEXT),
)  # fmt: skip
"""Patterns of the beginning of texts, in any case of letters, and kinds."""

_EBML, _CLUSTER = b"\x1a\x45\xdf\xa3", b"\x1f\x43\xb6\x75"
_WEBM_ENCRYPTION = re.compile(rb"\x6d\x80.{0,64}?\x50\x33\x81\x01", re.DOTALL)
"""A track's ContentEncodings with an encoding of the type encryption (Matroska, RFC 9559)."""
_COMMON_ENCRYPTION = re.compile(rb"sinf.{0,64}?schm.{4}(cenc|cens|cbc1|cbcs)", re.DOTALL)
"""The scheme of an encrypted track of MP4, video or sound (ISO/IEC 23001-7)."""
_ASF = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
_ASF_ENCRYPTION = (
    bytes.fromhex("fbb3112223bdd211b4b700a0c955fc6e"),
    bytes.fromhex("14e68a292226174cb935dae07ee9289c"),
)
_PROGRAM_VIDEO = re.compile(rb"\x00\x00\x01[\xe0-\xef]..([\x80-\xbf])", re.DOTALL)
"""A PES header of video in a program stream; the group has the bits of scrambling."""
_SAMPLE_AES = re.compile(rb"\x0f\x04z(avc|hvc|aac|ac3|ec3)")
"""The private data indicator of an elementary stream that HLS encrypts by SAMPLE-AES."""
_TS_PACKET = 188


def file_kind(head: bytes, *, uri: str = "", n_bytes: int = 0) -> FileKind | None:
    """Returns what a file is that no demuxer opens; None if its first bytes do not say.

    Args:
        head: The first bytes, at most `HEAD_BYTES`.
        uri: Name of the file.
        n_bytes: Size of the file.
    """
    is_protected = _COMMON_ENCRYPTION.search(head) is not None and b"vide" in head
    if is_protected or is_encrypted(head):
        return ENCRYPTED
    by_name = RAW_FOOTAGE.get(os.path.splitext(uri)[1].lower().removeprefix("."))
    if by_name is not None and head.startswith(b"\xff\xd8\xff"):
        return by_name
    for offset, pattern, kind in _SIGNATURES:
        if re.compile(pattern, re.DOTALL).match(head, offset):
            return kind
    if _is_fragment(head):
        return _FRAGMENT
    if head.startswith(_EBML) and n_bytes <= len(head) and _CLUSTER not in head:
        return INIT_ONLY
    if _is_aes_segment(head, uri, n_bytes):
        return _AES_SEGMENT
    if head and not any(head):
        return _ZEROS
    text = _text_of(head)
    if text is None:
        return by_name if head else None
    return next(kind for pattern, kind in _TEXTS if re.match(pattern, text, re.I | re.DOTALL))


def of_kind(kind: FileKind, uri: str, n_bytes: int) -> SourceError:
    """Returns the error for a file that is known to be something else than a readable video."""
    if kind.medium is not None:
        return OtherMediumError(kind.medium, uri)
    return SourceError(kind.code, f"{uri} ({n_bytes} bytes) is {kind.what}; {kind.remedy}")


def is_of_text(message: str, uri: str, n_bytes: int) -> bool:
    """Returns whether the error of a file says that it is plain text or JSON.

    Other texts may be in place of a video: a pointer of Git LFS, or a page or XML of an error.
    """
    return message in {of_kind(kind, uri, n_bytes).message for kind in (_TEXT, _JSON)}


def is_encrypted(head: bytes) -> bool:
    """Returns whether video in MPEG-TS, MPEG-PS, Matroska or ASF is encrypted.

    A sample entry says so in MP4 (`container.header_track`).
    """
    if head.startswith(_EBML):
        return _WEBM_ENCRYPTION.search(head) is not None
    if head.startswith(_ASF):
        return any(name in head for name in _ASF_ENCRYPTION)
    if head.startswith(b"\x00\x00\x01\xba"):
        flags = [found[1][0] >> 4 & 3 for found in _PROGRAM_VIDEO.finditer(head)]
        # CSS scrambles about half of the sectors.
        return sum(map(bool, flags)) > len(flags) / 8
    return _is_scrambled(head)


def _is_fragment(head: bytes) -> bool:
    """Returns whether the first boxes of an MP4 are those of a fragment, without `moov`."""
    at, names = 0, set[bytes]()
    while at + 8 <= len(head) and len(names) < 8:
        n_bytes, name = struct.unpack_from(">I4s", head, at)
        if n_bytes < 8 or not name.isalnum():
            break
        names.add(name)
        at += n_bytes
    return bool(names & {b"moof", b"styp", b"sidx"}) and b"moov" not in names


def _is_scrambled(head: bytes) -> bool:
    """Returns whether most packets of MPEG-TS with data say that they are scrambled."""
    for begin, size in ((0, _TS_PACKET), (4, _TS_PACKET + 4)):
        packets = [head[at : at + 4] for at in range(begin, len(head) - 3, size)]
        if len(packets) < 5 or any(packet[0] != 0x47 for packet in packets):
            continue
        pids = [struct.unpack(">H", packet[1:3])[0] & 0x1FFF for packet in packets]
        control = [p[3] >> 6 for p, pid in zip(packets, pids, strict=True) if 32 <= pid < 0x1FFF]
        is_scrambled = sum(bits > 1 for bits in control) > len(control) / 2
        return is_scrambled or _SAMPLE_AES.search(head) is not None
    return False


def _is_aes_segment(head: bytes, uri: str, n_bytes: int) -> bool:
    """Returns whether this is noise of the size of padded MPEG-TS packets, by a name in `.ts`."""
    if not uri.lower().endswith((".ts", ".m2ts")) or n_bytes % 16 or len(head) < 4096:
        return False
    is_padded = any((n_bytes - padding) % _TS_PACKET == 0 for padding in range(1, 17))
    (_, most), *_ = Counter(head).most_common(1)
    # Of random bytes, each value has 1 of 256; 2 is far beyond chance from 4096 bytes on.
    return is_padded and most * 128 < len(head)


def _text_of(head: bytes) -> str | None:
    """Returns the beginning of a text; None if the bytes are no text in UTF-8 or UTF-16."""
    head = head[:4096]
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        # The end may be within a character.
        text = head[: len(head) - len(head) % 2].decode(encoding, "strict")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4 or not error.start:
            return None
        text = head[: error.start].decode(encoding, "replace")
    is_text = bool(text) and not re.search(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]", text)
    return text.lstrip() if is_text else None
