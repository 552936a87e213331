"""What the name of a file says: a video, a file of another kind, or neither.

The lists spare requests and probes; where a suffix is in neither list, the bytes decide.
"""

import os
import re
from collections.abc import Container, Set
from enum import StrEnum

from curator.media.file_kinds import RAW_FOOTAGE, file_kind
from curator.records.sources import Medium
from curator.storage.file_walk import DOTS, is_hidden
from curator.storage.source_manifests import FORMS, is_manifest

_VIDEOS = (
    "mp4 m4v mov qt 3gp 3gpp 3g2 mj2 f4v ismv isma m4s cmfv cmaf dash insv 360 mkv mk3d webm avi "
    "divx xvid flv asf wmv wm dvr-ms wtv ts mts m2ts m2t trp tp mpg mpeg mpe mpv m1v m2v m2p "
    "mp2v vob evo vro tod mxf gxf nut ogv ogm ogx rm rmvb dv dif y4m ivf obu av1 vc1 h264 264 avc "
    "h265 265 hevc h266 266 vvc gif apng nsv"
)
_OTHERS = {
    "images": "jpg jpeg jpe png webp bmp tif tiff svg heic heif ico psd exr dpx dng cr2 cr3 "
    "nef arw raf rw2 orf gpr insp",
    "files that cameras and editors add to videos": "thm xmp aae lrv lrf glv cpi mpl mpls bdm bdmv "
    "bim clpi mif ppn modd moff bup ifo prproj drp fcpbundle edl aaf lut cube",
    "positions and sensors": "gpx kml kmz nmea fit tcx gcsv bbl gyroflow",
    "playlists": "m3u m3u8 mpd pls xspf asx wax wvx ism ismc isml f4m smil ffconcat cue",
    "audio": "wav mp3 flac aac opus wma aif aiff mid midi m4b ac3 eac3 dts amr ape mka",
    "subtitles": "srt vtt ass ssa sub idx sup lrc ttml dfxp sbv smi sami stl scc usf",
    "text and documents": "txt md rst nfo log html htm mht mhtml pdf doc docx xls xlsx ods odt ppt "
    "pptx rtf tex epub diz",
    "data and settings": "json jsonl ndjson csv tsv lst list parquet arrow feather xml yaml yml "
    "toml ini inf cfg conf sql db sqlite sqlite3 plist info meta properties lock xsd xsl srtx",
    "archives": "zip tar gz tgz bz2 tbz2 xz txz zst 7z rar iso dmg",
    "unfinished downloads": "part crdownload aria2 ytdl download opdownload partial !qb !ut bc!",
    "arrays and weights": "npy npz pkl pickle pt pth ckpt safetensors onnx h5 hdf5 tfrecord",
    "checksums, signatures, links and code": "md5 sha1 sha224 sha256 sha384 sha512 sfv crc par2 "
    "asc sig torrent magnet url lnk webloc desktop py sh bat js css ipynb exe dll so",
}
VIDEO_SUFFIXES = frozenset(f".{end}" for end in (*_VIDEOS.split(), *RAW_FOOTAGE))
"""Suffixes of videos: a file with such a name is a source, or a failed one, as raw footage is."""
IMAGE_SUFFIXES = frozenset(f".{end}" for end in (*_OTHERS["images"].split(), "avif"))
"""Suffixes of still images: sources, or failed ones, if sources may be images."""
OTHER_SUFFIXES = frozenset(f".{end}" for ends in _OTHERS.values() for end in ends.split())
"""Suffixes of files that are clearly not videos, or copies of videos in low resolution (`.LRV`).

Files named .m4a, .ogg, .dat, .bin, .mod or .tmp can contain video streams.
"""

_OTHER_NAMES = re.compile(
    r"(readme|licen[cs]e|copying|copyright|notice|authors|contribut(ors|ing)|changelog|makefile"
    r"|dockerfile|manifest|checksums?|(md5|sha\d+)(sums?)?)([-_. ][^.]*)?|_success|.*_\$folder\$",
    re.IGNORECASE,
)
"""Conventional names without suffix; Hadoop marks folders in buckets by `NAME_$folder$`."""
_PREVIEW = re.compile(r"(?:^|/)report/previews/[0-9a-f]{24}\.mp4$")
"""Previews of `curate report` in an output root, which may be below a folder of sources."""
_OUTPUT_TAR = re.compile(r"(?:^|/)shards/(?:[^/]+/)+(?:train|val)-\d{6,}-[0-9a-f]{8}\.tar$")
"""Tars in an output root."""


_TABLES = frozenset({".xls", ".xlsx", ".ods"})


class NameKind(StrEnum):
    """What a name says about a file in a folder or a bucket."""

    SOURCE = "source"
    """A video, or a still image if sources may be images."""
    OTHER = "other"
    """Not a source, or a preview of `curate report`."""
    UNKNOWN = "unknown"
    """A suffix that says nothing, so the bytes decide."""
    NO_SUFFIX = "no suffix"
    """A source, as buckets name videos by hashes, unless it is empty or text."""


def name_kind(uri: str, media: Set[Medium] = frozenset({Medium.VIDEO})) -> NameKind:
    """Returns what a path or an address says about a file, if sources are of these media."""
    name = uri.rpartition("/")[2]
    suffix = os.path.splitext(name)[1].lower()
    if Medium.IMAGE in media and suffix in IMAGE_SUFFIXES:
        return NameKind.SOURCE
    if _PREVIEW.search(uri) or suffix in OTHER_SUFFIXES:
        return NameKind.OTHER
    if suffix in VIDEO_SUFFIXES:
        return NameKind.SOURCE if Medium.VIDEO in media else NameKind.OTHER
    if _OTHER_NAMES.fullmatch(name):
        return NameKind.OTHER
    return NameKind.UNKNOWN if suffix else NameKind.NO_SUFFIX


def is_output_tar(path: str) -> bool:
    """Returns whether a path below a folder is that of a tar of an output root in the folder."""
    return _OUTPUT_TAR.search(path) is not None


def member_kind(name: str, names: Container[str], media: Set[Medium]) -> NameKind:
    """Returns what the name of a member of a tar says, given all `names` of the tar.

    Only suffixes of media are of sources. A name with two suffixes, such as `7.mask.png`, is none
    if the tar has a medium `7.jpg`.
    """
    if any(is_hidden(part) and part not in DOTS for part in name.split("/")):
        return NameKind.OTHER
    if name_kind(name, media) is not NameKind.SOURCE:
        return NameKind.OTHER
    folder, slash, base = name.rpartition("/")
    key, _, suffixes = base.partition(".")
    ends = (IMAGE_SUFFIXES if Medium.IMAGE in media else frozenset()) | VIDEO_SUFFIXES
    is_beside = "." in suffixes and any(f"{folder}{slash}{key}{end}" in names for end in ends)
    return NameKind.OTHER if is_beside else NameKind.SOURCE


def may_be_empty(uri: str) -> bool:
    """Returns whether an empty file has a usual name: a mark without suffix, a menu of a DVD."""
    return name_kind(uri) is NameKind.NO_SUFFIX or uri.lower().endswith(".vob")


def reason_not_to_read(
    argument: str, head: bytes, media: Set[Medium] = frozenset({Medium.VIDEO})
) -> str | None:
    """Returns why an argument is not read as a video: it lists or contains other files.

    Args:
        argument: Path or address of a file.
        head: Its first bytes. A video keeps being a source, whatever its name.
        media: Media of sources.
    """
    if name_kind(argument, media) in (NameKind.SOURCE, NameKind.NO_SUFFIX):
        return None
    kind = file_kind(head)
    if kind is None or not kind.has_files:
        return None
    stem, suffix = os.path.splitext(argument.rpartition("/")[2].lower())
    if suffix in _TABLES:
        return f"is a spreadsheet; save it as a manifest: {FORMS}"
    if is_manifest(stem):
        return f"is a compressed manifest; decompress it: gunzip {argument.rpartition('/')[2]}"
    return f"is {kind.what}; {kind.remedy}"
