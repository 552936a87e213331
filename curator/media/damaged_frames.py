"""Finds the frames that depend on a damaged or lost packet.

Decoders mark at most the frame in which they conceal damage, and not the frames that refer to it.
So all frames from the damaged one on count as damaged, in the order of decoding, up to the next key
frame that decodes. Frames that are shown before this key frame, and decoded after it, count too.

Damage is a packet that the demuxer marks, a packet that does not decode, a frame that the decoder
marks, and what no decoder reports: a gap in the numbers of H.264's reference frames, and zeros in a
packet of HEVC.

In MPEG-TS, FFmpeg's parser moves the mark to the packet before the incomplete one. The latter lacks
bytes, or packets after it are missing. H.264's decoder marks the frame of an incomplete packet;
those of MPEG-2 and HEVC show it without a mark.
"""

from array import array
from collections import deque
from typing import Any, NamedTuple

from av.packet import Packet

from curator.media.stream_headers import FrameNumbers

_MOST_DELAYED = 64
"""More frames than any decoder shows out of their order of decoding."""
_MOST_WAITING = 4096
_HOLE = bytes(16)


class _Damage(NamedTuple):
    number: int  # of the packet, in the order of decoding
    pts: int | None


class _Shown(NamedTuple):
    frame: int  # in the order of display
    number: int


class DamagedFrames:
    """Learns of packets as they are decoded, and of frames as they are shown.

    Args:
        frame_numbers: Reads the numbers of H.264's frames; None for other codecs.
        is_mpegts: Whether the container is MPEG-TS.
        sees_holes: Whether zeros in a packet are damage: FFmpeg's decoder of HEVC marks none. Units
            with a length in front have no such zeros (ITU-T H.265, 7.4.2).
    """

    def __init__(
        self,
        frame_numbers: FrameNumbers | None = None,
        *,
        is_mpegts: bool = False,
        sees_holes: bool = False,
    ) -> None:
        self._sees_holes = sees_holes
        self.indices = array("q")
        """Indices of the frames that count as damaged; not sorted."""
        self.n_packets = 0
        """Number of packets that are damaged or follow a lost one, by the container or numbers."""
        self._frame_numbers, self._is_mpegts = frame_numbers, is_mpegts
        self._since_mark = 3
        """Number of packets since the demuxer marked one, up to 3."""
        self._n_sent = self._n_failed = 0
        self._last_pts: int | None = None
        self._last_is_key = False
        self._number_of: dict[int, int] = {}
        """Time of a packet -> its number."""
        self._pending: list[_Damage] = []
        """Damage after which no key frame was shown."""
        self._is_within = False
        """Whether the frame before counts as damaged."""
        self._before: deque[_Shown] = deque(maxlen=_MOST_DELAYED)
        """The latest frames that do not count as damaged."""

    def sent(self, packet: "Packet[Any]") -> None:
        """Takes the next packet, in the order of decoding, before it is decoded."""
        pts, number, is_key = packet.pts, self._n_sent, packet.is_keyframe
        if pts is not None:
            self._number_of[pts] = number
            if len(self._number_of) > _MOST_WAITING:
                self._number_of.pop(next(iter(self._number_of)), None)
        if self._since_mark < 3 or packet.is_corrupt:
            self._see_mark(packet)
        skips = self._frame_numbers is not None and self._frame_numbers.skips(packet)
        if skips or (self._sees_holes and _HOLE in bytes(packet)):
            self.n_packets += 1
            self._add(_Damage(number, pts))
        self._n_sent, self._last_pts, self._last_is_key = number + 1, pts, is_key

    def failed(self) -> None:
        """Says that the latest packet did not decode."""
        self._n_failed += 1
        self._add(_Damage(self._n_sent - 1, self._last_pts))

    def shown(self, index: int, pts: int | None, *, key_frame: bool, is_corrupt: bool) -> bool:
        """Takes the next frame, in the order of display; returns whether it counts as damaged."""
        number = self._number_of.pop(pts, None) if pts is not None else None
        if number is None:
            # Exact for key frames, before which all frames that were decoded earlier are shown.
            number = index + self._n_failed
        if is_corrupt:
            self._add(_Damage(number, pts))
        elif self._pending and key_frame:
            self._pending = [
                damage for damage in self._pending if not _is_mended(damage, number, pts)
            ]
        if not self._pending:
            self._is_within = False
        elif not self._is_within:
            self._is_within = number >= min(damage.number for damage in self._pending)
        if self._is_within:
            self.indices.append(index)
        else:
            self._before.append(_Shown(index, number))
        return self._is_within

    def _see_mark(self, packet: "Packet[Any]") -> None:
        """Adds the damage of a marked packet, or of one or two packets after it in MPEG-TS."""
        number, pts = self._n_sent, packet.pts
        self._since_mark += 1
        is_silent = self._frame_numbers is None
        if self._since_mark == 1 and is_silent:
            self.n_packets += 1
            self._add(_Damage(number, pts))
        elif self._since_mark == 2 and not packet.is_keyframe:
            self.n_packets += 1
            is_first = self._last_is_key and not is_silent
            self._add(_Damage(number, pts) if is_first else _Damage(number - 1, self._last_pts))
        if packet.is_corrupt and self._is_mpegts:
            self._since_mark = 0
        elif packet.is_corrupt:
            self.n_packets += 1
            self._add(_Damage(number, pts))

    def _add(self, damage: _Damage) -> None:
        """Adds damage; frames that are shown already, and decoded after it, count too."""
        if len(self._pending) == _MOST_DELAYED:
            self._pending.pop()
        self._pending.append(damage)
        later = [shown for shown in self._before if shown.number >= damage.number]
        self.indices.extend(shown.frame for shown in later)
        for shown in later:
            self._before.remove(shown)


def _is_mended(damage: _Damage, number: int, pts: int | None) -> bool:
    """Returns whether a key frame is decoded after damage, or shown after a damaged leading one."""
    if number > damage.number:
        return True
    return damage.pts is not None and pts is not None and damage.pts < pts
