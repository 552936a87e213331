"""Display matrices: all eight orientations are shown as players show them, also mirrored ones."""

import io
import struct
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from made_cuts import cutter_of, pictures, request_of
from numpy.typing import NDArray
from samples import analyzed
from test_device_frames import decoded, on_device

from curator.media.container import Orientation, header_track, orientation_of
from curator.media.device_frames import DeviceScaler, upright_BHWC
from curator.media.scale import Scaler
from curator.records.cuts import NotCopied
from curator.records.sources import Note
from curator.stages.cut.config import CutConfig

WIDTH_PX, HEIGHT_PX = 96, 64
MATRICES = {
    (1, 0, 0, 1): (0, False), (0, 1, -1, 0): (90, False), (-1, 0, 0, -1): (180, False),
    (0, -1, 1, 0): (270, False), (-1, 0, 0, 1): (0, True), (0, 1, 1, 0): (90, True),
    (1, 0, 0, -1): (180, True), (0, -1, -1, 0): (270, True),
}  # fmt: skip
"""a, b, c, d of a display matrix -> clockwise rotation, and mirroring left to right after it."""


def quarters() -> NDArray[np.uint8]:
    """Four colours, so that no orientation looks like another; a black border on the left."""
    shown = np.zeros((HEIGHT_PX, WIDTH_PX, 3), np.uint8)
    middle = HEIGHT_PX // 2, WIDTH_PX // 2
    shown[: middle[0], 16 : middle[1]] = (200, 40, 40)
    shown[: middle[0], middle[1] :] = (40, 200, 40)
    shown[middle[0] :, 16 : middle[1]] = (40, 40, 200)
    shown[middle[0] :, middle[1] :] = (210, 210, 210)
    return shown


def placed(picture: NDArray[np.uint8], matrix: tuple[int, ...]) -> NDArray[np.uint8]:
    """The picture with each pixel where the matrix puts it."""
    a, b, c, d = matrix
    y, x = np.mgrid[: picture.shape[0], : picture.shape[1]]
    to_x, to_y = a * x + c * y, b * x + d * y
    to_x, to_y = to_x - to_x.min(), to_y - to_y.min()
    shown = np.zeros((to_y.max() + 1, to_x.max() + 1, 3), np.uint8)
    shown[to_y, to_x] = picture
    return shown


def oriented(path: Path, matrix: tuple[int, ...], n_frames: int = 13) -> Path:
    a, b, c, d = (value << 16 for value in matrix)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = WIDTH_PX, HEIGHT_PX, "yuv420p"
        stream.codec_context.options = {"crf": "4", "preset": "ultrafast"}
        stream.codec_context.thread_count = 1
        stream.set_display_matrix([a, b, 0, c, d, 0, 0, 0, 1 << 30])
        for number in range(n_frames):
            rgb = av.VideoFrame.from_ndarray(quarters(), format="rgb24")
            frame = rgb.reformat(format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("matrix", MATRICES)
def test_clips_show_what_players_show(matrix: tuple[int, ...], tmp_path: Path) -> None:
    """Pins analysis, crop and encode; a mirrored source is not copied, and has a note."""
    # Matroska has angles instead of a matrix.
    path = oriented(tmp_path / f"film.{'mkv' if matrix[0] == -1 else 'mp4'}", matrix)
    track = analyzed(path)
    rotation_deg, is_mirrored = MATRICES[matrix]
    assert (track.rotation_deg, track.is_mirrored) == (rotation_deg, is_mirrored)
    assert (Note.MIRRORED in track.notes) is is_mirrored
    request = request_of(track, 0, 12)
    assert request.crop is not None
    clip = cutter_of(path, CutConfig(crf=4, max_size_factor=None)).cut(request)
    crop, meant = request.crop, placed(quarters(), matrix)
    meant = meant[crop.y : crop.y + crop.height, crop.x : crop.x + crop.width]
    # The border is cut off, on whichever side it is.
    assert meant.min(axis=2).max() > 30
    assert meant.shape[0] * meant.shape[1] == HEIGHT_PX * (WIDTH_PX - 16)
    assert np.abs(pictures(clip.mp4)[0].astype(int) - meant).mean() < 12
    plain = cutter_of(path, CutConfig(crf=4)).cut(replace(request, crop=None))
    is_upright = matrix == (1, 0, 0, 1)
    assert (plain.not_copied == NotCopied.SHAPE) is not is_upright


@pytest.mark.parametrize("matrix", MATRICES)
def test_scalers_of_the_host_and_of_a_device_agree(matrix: tuple[int, ...]) -> None:
    """Pins that measurements see the picture as it is shown, on either path."""
    orientation = Orientation(*MATRICES[matrix])
    frame = decoded(64, 48)
    size = (24, 32) if orientation.rotation_deg % 180 else (32, 24)
    upright = orientation._asdict()
    found = Scaler(*size, method="area", **upright).rgb_HWC(frame)
    plain = Scaler(32, 24, method="area").rgb_HWC(frame)
    np.testing.assert_array_equal(found, placed(plain, matrix))
    planes, form = on_device(frame)
    of_device = DeviceScaler(*size, method="area", **upright).rgb_BHWC(planes, form)
    of_plain = DeviceScaler(32, 24, method="area").rgb_BHWC(planes, form)
    np.testing.assert_array_equal(of_device[0].numpy(), placed(of_plain[0].numpy(), matrix))
    turned = upright_BHWC(
        torch.from_numpy(plain)[None],
        turns=orientation.rotation_deg // 90,
        is_mirrored=orientation.is_mirrored,
    )
    np.testing.assert_array_equal(turned[0].numpy(), found)


def test_a_header_tells_the_orientation_of_the_track_that_is_asked_for() -> None:
    """Pins both versions of the box, any order of tracks, and matrices without an orientation."""

    def box(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I4s", len(body) + 8, kind) + body

    def track(number: int, version: int, matrix: tuple[int, ...]) -> bytes:
        a, b, c, d = (value << 16 for value in matrix)
        times = bytes(16 if version else 8) + struct.pack(">I", number)
        rest = bytes(12 if version else 8) + bytes(16)
        shown = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
        header = bytes([version, 0, 0, 0]) + times + rest + shown + bytes(8)
        return box(b"trak", box(b"tkhd", header))

    tracks = [track(7, 0, (-1, 0, 0, 1)), track(3, 1, (0, 1, 1, 0)), track(9, 0, (0, 0, 0, 0))]
    film = box(b"moov", b"".join(tracks))
    orientations = {
        number: header_track(io.BytesIO(film), len(film), number).orientation
        for number in (7, 3, 9, 4)
    }
    assert orientations == {7: Orientation(0, True), 3: Orientation(90, True), 9: None, 4: None}
    # Matrices of cameras are seldom exact, and may scale.
    assert orientation_of([-70000, 900, 0, -900, -65000]) == Orientation(180, False)
