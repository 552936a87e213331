"""Measures the RMS level of a source's audio during the one decode.

A cell is a tenth of a second. Its level, in dBFS, is the mean power of all channels. 0 dBFS is a
square wave of full scale, so a sine of full scale has -3.01. Cell `k` is [k / 10, (k + 1) / 10) s
on the container's clock, which video timestamps share.

Only a frame's own timestamp places its audio. Therefore pieces of a source that are decoded from
different positions agree where they overlap, after their decoders have settled.
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
from curator.records.tracks import CELLS_PER_S, FLOOR_DB, MAX_CELLS

SETTLED_S = 0.5
"""Seconds after which any audio decoder that began in the middle gives the right samples. Opus
needs 0.08 s, and MP3's bit reservoir covers a few frames of 0.03 s."""

_SETTLED_CELLS = math.ceil(SETTLED_S * CELLS_PER_S) + 1
_LEAST, _MOST = 0.5, 1.5
"""Least and largest share of a cell with audio. Less occurs at the ends of the audio, and more if
timestamps overlap."""
_LEAST_RATE_HZ = 1000
_BATCH_PACKETS, _BATCH_BYTES = 256, 1 << 20
"""Packets decoded at a time. Decoding them one by one, between pictures, takes several times as
long, because pixels evict the audio decoder's data from the CPU's caches."""
_FARTHEST_CELL = 1 << 40
_SAME_DB, _SAME_SHARE = 1.0, 0.8
"""Largest difference of two decodes, in dB, and the share of cells that must meet it. AAC and AC-3
add random noise, which shows in cells that are far more quiet than their neighbours."""
_QUIET_DB = -80.0
"""Cells below this level may hold only such noise, and are not compared."""
_KINDS = {
    "u8": ("u1", 128, 1 / 128), "s16": ("i2", 0, 1 / (1 << 15)), "s32": ("i4", 0, 1 / (1 << 31)),
    "s64": ("i8", 0, 1 / (1 << 63)), "flt": ("f4", 0, 1.0), "dbl": ("f8", 0, 1.0),
}  # fmt: skip
"""Sample format without the suffix for planes -> NumPy's type, value of silence, and factor to full
scale."""

Levels = NDArray[np.float32]


class LevelMeter:
    """Decodes the packets of an audio stream and keeps their levels.

    Damaged audio raises no error: it leaves cells without a level, and adds a note to `notes`. With
    `begins_within`, packets begin within the stream, and early errors add no note.
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
        """Time at which the last frame ends."""
        self._cells, self._energies, self._seconds = array("q"), array("d"), array("d")
        self._context = stream.codec_context if has_decoder(stream) else None
        if self._context is None:
            self.notes.add(Note.AUDIO_NOT_DECODED)
        elif not self._context.is_open:
            self._context.thread_count = 1

    def take(self, packet: "Packet[Any]") -> None:
        """Takes the next packet of the stream; an empty packet ends the stream."""
        self._waiting.append(packet)
        self._waiting_bytes += packet.size
        is_full = len(self._waiting) >= _BATCH_PACKETS or self._waiting_bytes >= _BATCH_BYTES
        if is_full or not packet.size:
            self._work()

    def end(self) -> None:
        """Flushes the decoder if the packets ended without an empty one."""
        if self._context is not None:
            self.take(flush_of(self.stream))

    def levels(self, first: int | None = None, end: int | None = None) -> tuple[int, Levels]:
        """Returns levels of the packets so far, within cells [first, end); None for no bound.

        Returns:
            The first cell with a level, and levels from there to the last cell with a level,
            float32 [A] in dBFS. NaN for cells with audio for less than half or more than 1.5 times
            of their length.
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
        """Decodes and measures a packet; returns False if it is damaged."""
        if packet.pts is not None and self._settled_at is None:
            self._settled_at = packet.pts * Fraction(packet.time_base) + Fraction(SETTLED_S)
        if packet.is_corrupt:
            return False
        try:
            frames = packet.decode()
            return all([isinstance(frame, AudioFrame) and self._measure(frame) for frame in frames])
        # PyAV raises ValueError for unknown layouts and the like.
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
        """Adds the levels of a frame; returns False if it is damaged or not supported."""
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
    """Returns a meter for the audio stream that FFmpeg considers best for a video.

    None if the source has no audio by `sources.has_audio`, which misses streams that begin after
    the part that FFmpeg probes.
    """
    stream = container.streams.best("audio", related=video)
    return None if stream is None else LevelMeter(stream, begins_within=begins_within)


def first_cell(start: Fraction) -> int:
    """Returns the cell that contains a time in seconds."""
    return math.floor(start * CELLS_PER_S)


def end_cell(end: Fraction) -> int:
    """Returns the first cell that begins at or after a time in seconds."""
    return math.ceil(end * CELLS_PER_S)


def join_levels(pieces: Sequence[tuple[int, Levels]]) -> tuple[int, Levels, bool]:
    """Joins the levels of pieces of a source, each decoded from another position.

    The pieces are results of `LevelMeter.levels`. Each must extend beyond the beginning of the next
    one, so neighbours overlap or touch, unless the audio itself has a gap. A later piece counts
    from the time at which its decoder has settled. Two pieces must agree where they overlap. This
    proves that the timestamps of the second one are right.

    Returns:
        First cell and levels of the whole, and whether all levels are proved. If a piece ends
        before the decoder of the next one has settled, the cells between are NaN and not proved. If
        two pieces contradict each other, there are no levels and no proof.
    """
    filled = [(start, levels) for start, levels in pieces if len(levels)]
    if not filled:
        return 0, np.zeros(0, np.float32), True
    first, whole = filled[0]
    is_proved = True
    for start, levels in filled[1:]:
        end, stop = first + len(whole), start + len(levels)
        # A cell between two pieces may have less than half of its audio in each of them.
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
    """Returns the cells `[start, end)` of levels that begin at cell `first`."""
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
    """Returns the samples of a frame, [channels, samples].

    `AudioFrame.to_ndarray` reads planes up to a null pointer. With 8 or more planes, there is no
    null pointer, so it crashes on 7.1 audio.
    """
    if not frame.format.is_planar:
        return np.asarray(frame.to_ndarray().reshape(frame.samples, -1).T)
    planes = (AudioPlane(frame, number) for number in range(frame.layout.nb_channels))
    return np.stack([np.frombuffer(memoryview(plane), dtype, frame.samples) for plane in planes])


def _trimmed(first: int, levels: Levels) -> tuple[int, Levels]:
    """Removes cells without a level from both ends."""
    measured = np.flatnonzero(np.isfinite(levels))
    if not len(measured):
        return 0, np.zeros(0, np.float32)
    return first + int(measured[0]), levels[measured[0] : measured[-1] + 1]
