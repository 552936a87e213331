"""Reads the id and the header of each source: container, codec, size, timing, audio."""

import os
from collections.abc import Mapping, Set
from fractions import Fraction
from typing import Any, BinaryIO

import numpy as np

from curator.errors import ErrorCode, SourceError
from curator.media.container import (
    claimed_duration,
    header_track,
    only_dolby_vision,
    open_container,
    pixel_aspect_of,
    promised_frames,
    unreadable_kind,
    video_stream,
)
from curator.media.decode import (
    HDR_TRANSFERS,
    STILL_TIME_BASE,
    exif_orientation_of,
    time_base_of,
)
from curator.media.file_kinds import RAW_FOOTAGE, OtherMediumError, of_kind
from curator.media.still_images import StillImage, read_still
from curator.records.sources import Failure, Medium
from curator.records.tracks import varies
from curator.stages.scan.content_credentials import CredentialReader
from curator.storage import content_id, open_source

_CODECS = {"libdav1d": "av1", "libvpx": "vp8", "libvpx-vp9": "vp9"}  # by the decoder's name
ScanRow = dict[str, str | int | float | bool | None]  # a row of `SCAN_SCHEMA`


def scan_source(
    uri: str,
    n_bytes: int,
    version: str,
    accepts: Set[Medium] = frozenset({Medium.VIDEO}),
    credentials: CredentialReader | None = None,
) -> ScanRow:
    """Probes one source. `n_bytes` and `version` come from the listing.

    `credentials` reads its C2PA manifest; None reads none.

    Returns:
        The row of the source. If the source cannot be used, or its medium is not among `accepts`,
        the row has the error.
    """
    row: ScanRow = {"uri": uri, "bytes": n_bytes, "version": version}
    try:
        with open_source(uri, expected_version=version) as reader:
            row["source_id"] = content_id(reader, n_bytes)
            reader.seek(0)
            facts = header_facts(reader, uri, n_bytes, accepts)
            if facts["medium"] not in accepts:
                raise OtherMediumError(Medium(facts["medium"]), uri)
            if credentials is not None:
                facts |= credentials.read(reader, facts["container"])
    except SourceError as error:
        if isinstance(error, OtherMediumError):
            row["medium"] = str(error.medium)
            if error.medium is Medium.IMAGE and error.medium in accepts:
                error = _unread_image(uri)
            elif error.medium in accepts:
                return row
        failure = Failure(uri=uri, stage="scan", code=error.code, message=error.message)
        return row | failure.columns()
    return row | {
        name: str(value) if isinstance(value, Fraction) else value
        for name, value in facts.items()
        if value is not None
    }


def header_facts(
    reader: BinaryIO, uri: str, n_bytes: int, accepts: Set[Medium] = frozenset({Medium.VIDEO})
) -> dict[str, Any]:
    """Reads the container's description of the video stream that is used, without decoding.

    A still image is read if `accepts` has the medium.

    Returns:
        Columns of `SCAN_SCHEMA`; fractions are of type `Fraction`. Width, height and pixel aspect
        apply to the rotated picture. The frames may contradict `header_*`.

    Raises:
        OtherMediumError: The source is a still image or sound.
        SourceError: EMPTY_FILE, NOT_A_VIDEO, TOO_LARGE_TO_PROBE, NO_VIDEO_STREAM,
            UNSUPPORTED_CODEC, ENCRYPTED, FRAGMENT_WITHOUT_INIT, or NO_FRAMES if the stream has no
            picture size.
    """
    try:
        return _header_facts(reader, uri, n_bytes, reads_images=Medium.IMAGE in accepts)
    except SourceError as error:
        may_be_named = error.code in (
            ErrorCode.NO_VIDEO_STREAM, ErrorCode.UNUSED_MEDIUM, ErrorCode.UNSUPPORTED_CODEC,
            ErrorCode.NO_FRAMES,
        )  # fmt: skip
        kind = unreadable_kind(reader, uri, n_bytes) if may_be_named else None
        if kind is not None:
            raise of_kind(kind, uri, n_bytes) from error
        raise


def _header_facts(
    reader: BinaryIO, uri: str, n_bytes: int, *, reads_images: bool
) -> dict[str, Any]:
    is_raw = os.path.splitext(uri)[1].lower().removeprefix(".") in RAW_FOOTAGE
    still = read_still(reader, uri, n_bytes) if reads_images and not is_raw else None
    with open_container(reader, uri, n_bytes=n_bytes, still=still) as container:
        stream = video_stream(container, uri, still=still)
        context = stream.codec_context
        time_base = time_base_of(stream, still)
        index_pts = [e.timestamp for e in stream.index_entries if not e.is_discard]
        has_index = bool(stream.frames) and len(index_pts) == stream.frames
        facts: dict[str, Any] = {
            "medium": str(Medium.VIDEO if still is None else Medium.IMAGE),
            "time_base": time_base,
            "header_duration_s": claimed_duration(container, stream).seconds,
            "container": container.format.name,
            "codec": _CODECS.get(context.name, context.name),
            "pixel_format": context.pix_fmt,
            "width": stream.width,
            "height": stream.height,
            "fps": stream.average_rate,
            "is_vfr": varies(np.array(index_pts, np.int64), time_base) if has_index else None,
            "header_n_frames": promised_frames(container, stream, len(index_pts)),
            "has_audio": bool(container.streams.audio),
            "is_hdr": int(context.color_trc) in HDR_TRANSFERS,
        }
        if stream.width < 1 or stream.height < 1:
            raise SourceError(
                ErrorCode.NO_FRAMES,
                f"{uri}: its {facts['codec']} stream gives no picture size, so no frame can be "
                "decoded; fetch the file again or leave it out",
            )
        aspect, track_id = pixel_aspect_of(stream, 0), stream.id
    if still is not None:
        return facts | _facts_of_image(facts, still)
    header = header_track(reader, n_bytes, track_id)
    if header.kind is not None:
        raise of_kind(header.kind, uri, n_bytes)
    if header.is_only_dolby:
        raise only_dolby_vision(uri)
    rotation_deg = header.orientation.rotation_deg if header.orientation is not None else 0
    if rotation_deg % 180:
        facts["width"], facts["height"] = facts["height"], facts["width"]
        aspect = 1 / aspect
    return facts | {"rotation_deg": rotation_deg, "pixel_aspect": aspect}


def _facts_of_image(facts: Mapping[str, Any], still: StillImage) -> dict[str, Any]:
    """Returns the facts of a still image that its container says otherwise, or not at all."""
    rotation_deg = exif_orientation_of(still).rotation_deg
    width, height = facts["width"], facts["height"]
    return {
        "container": still.format,
        "header_duration_s": float(STILL_TIME_BASE),
        "header_n_frames": 1,
        "fps": 1 / STILL_TIME_BASE,
        "is_vfr": False,
        "rotation_deg": rotation_deg,
        # Viewers ignore the density that a JPEG may name.
        "pixel_aspect": Fraction(1),
        "width": height if rotation_deg % 180 else width,
        "height": width if rotation_deg % 180 else height,
    }


def _unread_image(uri: str) -> SourceError:
    return SourceError(
        ErrorCode.UNSUPPORTED_CODEC,
        f"{uri} is a still image of a format that is not read; expected JPEG, PNG, WebP or AVIF: "
        "convert it to one of them (HEIC: heif-convert a.heic a.jpg), or leave it out",
    )
