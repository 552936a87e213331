"""Measures the RMS level of a source's audio during the one decode.

The level in dBFS of each tenth of a second is kept, mixed over channels by power. 0 dBFS is a
square wave of full scale, so a sine of full scale has -3.01. Cell `k` is [k / 10, (k + 1) / 10) s
on the container's clock, which video timestamps share.

A frame of audio is placed by its own timestamp alone. So pieces of a source that were decoded from
different places agree where they overlap, once their decoders have settled.
"""

import math
import time
from array import array
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.plane import AudioPlane
from av.packet import Packet
from av.stream import Stream
from av.video.stream import VideoStream
from numpy.typing import NDArray

from curator.media.container import flush_of, has_decoder
from curator.records.sources import Note

CELLS_PER_S = 10
"""Cells of the grid per second."""
MAX_CELLS = 4_000_000
"""Most cells from the first to the last level, 4.6 days; the rest is left out."""
FLOOR_DB = -120.0
"""Level of digital silence, and the lowest level: between those of 16 bits (-96) and 24 bits."""
SETTLED_S = 0.5
"""Time after which any audio decoder that began in the middle gives the right samples: Opus needs
0.08 s, and MP3's bit reservoir reaches back over a few frames of 0.03 s."""

_SETTLED_CELLS = math.ceil(SETTLED_S * CELLS_PER_S) + 1
_LEAST, _MOST = 0.5, 1.5
"""Shares of a cell that must have audio: less is the frayed end of the audio, more is two stretches
at the same time."""
_LEAST_RATE_HZ = 1000
_BATCH_PACKETS, _BATCH_BYTES = 256, 1 << 20
"""Packets decoded at a time: one by one, between pictures, each would find the caches full of
pixels, which takes several times as long."""
_FARTHEST_CELL = 1 << 40
_SAME_DB, _SAME_SHARE = 1.0, 0.8
"""Most that two decodes differ, in dB, and the share of cells for which that holds: AAC and AC-3
fill in random noise, which shows in cells far more quiet than their neighbours."""
_QUIET_DB = -80.0
"""Levels below it may be such noise alone, and are not compared."""
_KINDS = {
    "u8": ("u1", 128, 1 / 128), "s16": ("i2", 0, 1 / (1 << 15)), "s32": ("i4", 0, 1 / (1 << 31)),
    "s64": ("i8", 0, 1 / (1 << 63)), "flt": ("f4", 0, 1.0), "dbl": ("f8", 0, 1.0),
}  # fmt: skip
"""NumPy's type, value of silence, and factor to full scale, by sample format without the suffix for
planes."""

Levels = NDArray[np.float32]


class LevelMeter:
    """Decodes the packets of an audio stream and keeps their levels.

    Wrong audio leaves cells without a level, with a note in `notes`; it raises nothing. Where the
    packets begin within the stream, the decoder may fail at first.
    """

    def __init__(self, stream: Stream, *, begins_within: bool = False) -> None:
        self.stream = stream
        self.notes: set[Note] = set()
        self.cpu_s = 0.0
        """CPU-seconds of decoding and measuring."""
        self._begins_within = begins_within
        self._waiting: list[Packet[Any]] = []
        self._waiting_bytes = 0
        self._settled_at: Fraction | None = None
        self._next: Fraction | None = None
        """Time of the first sample after the last frame."""
        self._cells, self._energies, self._seconds = array("q"), array("d"), array("d")
        self._context = stream.codec_context if has_decoder(stream) else None
        if self._context is None:
            self.notes.add(Note.AUDIO_NOT_DECODED)
        elif not self._context.is_open:
            self._context.thread_count = 1

    def take(self, packet: "Packet[Any]") -> None:
        """Takes the next packet of the stream; one without bytes ends it."""
        self._waiting.append(packet)
        self._waiting_bytes += packet.size
        is_full = len(self._waiting) >= _BATCH_PACKETS or self._waiting_bytes >= _BATCH_BYTES
        if is_full or not packet.size:
            self._work()

    def end(self) -> None:
        """Flushes the decoder, where packets ended without an empty one."""
        if self._context is not None:
            self.take(flush_of(self.stream))

    def levels(self, first: int | None = None, end: int | None = None) -> tuple[int, Levels]:
        """Levels of the packets taken so far, within cells [first, end); None for no bound.

        Returns:
            The first cell with a level, and float32 [A] in dBFS from there to the last cell with a
            level; NaN for cells with audio in less than half of their time.
        """
        self._work()
        cells = np.array(self._cells, np.int64)
        inside = np.ones(len(cells), np.bool_)
        if first is not None:
            inside &= cells >= first
        if end is not None:
            inside &= cells < end
        if not inside.any():
            return 0, np.zeros(0, np.float32)
        start = int(cells[inside].min())
        if int(cells[inside].max()) - start >= MAX_CELLS:
            inside &= cells < start + MAX_CELLS
            self.notes.add(Note.AUDIO_TIMESTAMPS)
        energy, seconds = (
            np.bincount(cells[inside] - start, np.array(values)[inside])
            for values in (self._energies, self._seconds)
        )
        share = seconds * CELLS_PER_S
        if (share > _MOST).any():
            self.notes.add(Note.AUDIO_TIMESTAMPS)
        with np.errstate(divide="ignore", invalid="ignore"):
            levels = 10 * np.log10(energy * CELLS_PER_S / share)
        levels = np.maximum(levels, FLOOR_DB).astype(np.float32)
        levels[(share < _LEAST) | (share > _MOST)] = np.nan
        return _trimmed(start, levels)

    def _work(self) -> None:
        """Measures the waiting packets."""
        begun_s = time.thread_time()
        for packet in self._waiting:
            if self._context is not None and not self._is_measured(packet):
                self._failed(packet)
        self._waiting.clear()
        self._waiting_bytes = 0
        self.cpu_s += time.thread_time() - begun_s

    def _is_measured(self, packet: "Packet[Any]") -> bool:
        """Decodes and measures a packet; False for damage."""
        if packet.pts is not None and self._settled_at is None:
            self._settled_at = packet.pts * Fraction(packet.time_base) + Fraction(SETTLED_S)
        if packet.is_corrupt:
            return False
        try:
            frames = packet.decode()
            return all([isinstance(frame, AudioFrame) and self._measure(frame) for frame in frames])
        # PyAV raises ValueError for layouts and the like that it does not know.
        except (av.error.FFmpegError, ValueError):
            return False

    def _failed(self, packet: "Packet[Any]") -> None:
        is_early = packet.pts is not None and (
            self._settled_at is None
            or packet.pts * Fraction(packet.time_base) < self._settled_at
        )  # fmt: skip
        if not (self._begins_within and is_early):
            self.notes.add(Note.AUDIO_ERRORS)

    def _measure(self, frame: AudioFrame) -> bool:
        """Adds the levels of a frame; False if it has nothing to measure."""
        rate, kind = frame.sample_rate, frame.format.name
        sample_format = _KINDS.get(kind.removesuffix("p"))
        if frame.is_corrupt or sample_format is None or rate < _LEAST_RATE_HZ or not frame.samples:
            return False
        dtype, zero, scale = sample_format
        samples = _samples(frame, dtype)
        if zero or scale != 1.0:
            samples = (samples.astype(np.float32) - zero) * np.float32(scale)
        start = self._next
        if frame.pts is not None and frame.time_base is not None:
            start = frame.pts * frame.time_base
        else:
            self.notes.add(Note.AUDIO_TIMESTAMPS)
            if start is None:
                return True
        cell = first_cell(start)
        if abs(cell) > _FARTHEST_CELL:
            self.notes.add(Note.AUDIO_TIMESTAMPS)
            return True
        self._next = start + Fraction(frame.samples, rate)
        is_sound, done = True, 0
        n_channels, n_samples = samples.shape
        while done < n_samples:
            # The first sample at or after the cell's end.
            stop = min(math.ceil((Fraction(cell + 1, CELLS_PER_S) - start) * rate), n_samples)
            if stop > done:
                piece = samples if stop - done == n_samples else samples[:, done:stop].copy()
                energy = float(np.vdot(piece, piece)) / n_channels / rate
                if math.isfinite(energy):
                    self._add(cell, energy, (stop - done) / rate)
                else:
                    is_sound = False
                done = stop
            cell += 1
        return is_sound

    def _add(self, cell: int, energy: float, seconds: float) -> None:
        if not self._cells or self._cells[-1] != cell:
            self._cells.append(cell)
            self._energies.append(0.0)
            self._seconds.append(0.0)
        self._energies[-1] += energy
        self._seconds[-1] += seconds


def level_meter(
    container: av.container.InputContainer, video: VideoStream, *, begins_within: bool = False
) -> LevelMeter | None:
    """A meter for the audio that belongs to a video: FFmpeg's choice of the best stream.

    None for a source without audio by `sources.has_audio`: streams that appear after the part that
    FFmpeg probes are not known.
    """
    stream = container.streams.best("audio", related=video)
    return None if stream is None else LevelMeter(stream, begins_within=begins_within)


def first_cell(start: Fraction) -> int:
    """The cell that holds a time in seconds."""
    return math.floor(start * CELLS_PER_S)


def end_cell(end: Fraction) -> int:
    """The first cell that begins at or after a time in seconds."""
    return math.ceil(end * CELLS_PER_S)


def join_levels(pieces: Sequence[tuple[int, Levels]]) -> tuple[int, Levels, bool]:
    """Joins the levels of pieces of a source, each decoded from another place.

    Each piece, as `LevelMeter.levels` gives it, must have read on beyond the beginning of the next
    one. So the audio of neighbours overlaps or touches; otherwise there is a gap in the audio
    itself. After the first, a piece counts from where its decoder has settled. Where two pieces
    overlap they must agree, which proves that the second one's audio is where its timestamps say.

    Returns:
        First cell and levels of the whole, and whether all is proved. Cells between the end of a
        piece and where the next has settled are NaN and not proved. If two pieces contradict each
        other, there are no levels and no proof.
    """
    filled = [(start, levels) for start, levels in pieces if len(levels)]
    if not filled:
        return 0, np.zeros(0, np.float32), True
    first, whole = filled[0]
    is_proved = True
    for start, levels in filled[1:]:
        end, stop = first + len(whole), start + len(levels)
        # There may be a cell between two pieces of which each has less than half.
        is_gap = start > end + 1
        settled = start if is_gap else start + _SETTLED_CELLS
        if not is_gap and stop > end:
            # Reading stopped within the last cell.
            end -= 1
            whole = whole[:-1]
        shared = settled, min(end, stop)
        if not _agree(_part(first, whole, *shared), _part(start, levels, *shared)):
            return 0, np.zeros(0, np.float32), False
        if stop > end:
            is_proved &= is_gap or settled <= end
            begin = min(max(end, settled), stop)
            unknown = np.full(begin - end, np.nan, np.float32)
            whole = np.concatenate([whole, unknown, levels[begin - start :]])
    return (*_trimmed(first, whole), is_proved)


def within(first: int, levels: Levels, start: int, end: int) -> tuple[int, Levels]:
    """Levels of the cells `[start, end)` of `levels`, which begin at cell `first`."""
    return _trimmed(max(first, start), _part(first, levels, start, end))


def _part(first: int, levels: Levels, start: int, end: int) -> Levels:
    return levels[max(start - first, 0) : max(end - first, 0)]


def _agree(left: Levels, right: Levels) -> bool:
    if len(left) != len(right):
        return False
    heard = np.isfinite(left)
    if (heard != np.isfinite(right)).any():
        return False
    left, right = left[heard], right[heard]
    same = (np.abs(left - right) <= _SAME_DB) | (np.maximum(left, right) <= _QUIET_DB)
    return not len(same) or float(same.mean()) >= _SAME_SHARE


def _samples(frame: AudioFrame, dtype: str) -> NDArray[Any]:
    """Samples of a frame, [channels, samples].

    `AudioFrame.to_ndarray` reads planes up to a null pointer, which 8 planes and more do not end
    with: it crashes on 7.1.
    """
    if not frame.format.is_planar:
        return np.asarray(frame.to_ndarray().reshape(frame.samples, -1).T)
    planes = (AudioPlane(frame, number) for number in range(frame.layout.nb_channels))
    return np.stack([np.frombuffer(memoryview(plane), dtype, frame.samples) for plane in planes])


def _trimmed(first: int, levels: Levels) -> tuple[int, Levels]:
    """Cuts cells without a level off both ends."""
    measured = np.flatnonzero(np.isfinite(levels))
    if not len(measured):
        return 0, np.zeros(0, np.float32)
    return first + int(measured[0]), levels[measured[0] : measured[-1] + 1]
