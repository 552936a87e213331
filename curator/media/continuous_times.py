"""Moves packets whose times start again behind the packets before them.

An encoder that restarts, and files that are put behind each other, give a stream whose times jump
back. If they jump to before the stream's start, FFmpeg takes this for a wrap of MPEG's 33-bit
clock, and makes it a jump forward of 26.5 hours; it hides real wraps.

After a jump, the video continues where its last frame ended. All other streams move by the same
time, so that audio stays with its pictures.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import av.error
from av.packet import Packet
from av.stream import Stream

AnyPacket: TypeAlias = "Packet[Any]"

_BACK_S = Fraction(1, 10)
"""A decoding time that goes back by more starts again. In an intact stream, none goes back."""
_FAR_S = Fraction(1 << 32, 90_000)
"""A jump forward by more is a jump back that FFmpeg took for a wrap."""
_CONTINUES_S = Fraction(1)
"""Longest gap after which audio may still belong to the pictures before a jump."""
_LATE_S = Fraction(5)
"""Longest time that audio may be behind its pictures in the file."""
_AHEAD = 16
"""Packets of video that are read to find the first time after a jump: reordered frames at most."""
_MOST_WAITING = 4096
"""Most packets that wait until a jump is decided."""


class _Course:
    """The times of a stream so far, in its ticks."""

    def __init__(self, tick: Fraction) -> None:
        self.tick = tick
        self.back, self.far = int(_BACK_S / tick), int(_FAR_S / tick)
        self.shift = 0
        self.dts: int | None = None  # of the last packet, not moved
        self.end = 0  # of the packets so far, moved
        self.duration = 1
        self.waiting: list[AnyPacket] = []
        self.waits_until_s = Fraction(0)  # of the video

    def jumps(self, dts: int) -> bool:
        """Whether a packet does not continue the packets before it."""
        return self.dts is not None and not -self.back <= dts - self.dts <= self.far

    def begin(self, shift_s: Fraction) -> None:
        """Begins another part, whose packets are moved by `shift_s`."""
        self.shift, self.dts = round(shift_s / self.tick), None

    def moved(self, packet: AnyPacket) -> AnyPacket:
        """Moves a packet by the shift of its part."""
        if self.shift:
            if packet.dts is not None:
                packet.dts += self.shift
            if packet.pts is not None:
                packet.pts += self.shift
        return packet

    def next(self, packet: AnyPacket) -> AnyPacket:
        """Moves the next packet of the part."""
        dts = packet.dts
        if dts is not None:
            if self.dts is not None and dts > self.dts:
                self.duration = dts - self.dts
            self.dts = dts
        if self.shift:
            self.moved(packet)
        pts = packet.pts
        if pts is not None:
            end = pts + (packet.duration or self.duration)
            if end > self.end:
                self.end = end
        return packet


class ContinuousPackets:
    """Iterates over the packets of a file, with times that do not start again.

    Args:
        packets: In the order of the file; empty packets flush their streams.
        streams: The streams of the packets. The first video stream decides on jumps.
        shifts_s: Gets the seconds by which the packets after each jump are moved.
    """

    def __init__(
        self, packets: Iterator[AnyPacket], streams: Sequence[Stream], shifts_s: list[Fraction]
    ) -> None:
        self._packets, self._shifts_s = packets, shifts_s
        self._courses = {s.index: _Course(s.time_base) for s in streams if s.time_base}
        clock = next((s.index for s in streams if s.type == "video"), None)
        self._clock = self._courses.get(clock) if clock is not None else None
        self._ahead: deque[AnyPacket] = deque()
        self._failure: av.error.FFmpegError | None = None
        self._end_before_s: Fraction | None = None  # end of the video before the last jump
        self._not_switched: set[_Course] = set()  # other streams with packets of the part before

    def __iter__(self) -> Iterator[AnyPacket]:
        """Yields the packets; packets of other streams may wait for packets of the video."""
        clock = self._clock
        while (packet := self._read()) is not None:
            course = self._courses.get(packet.stream.index)
            if course is None or clock is None:
                yield packet
            elif not packet.size:
                yield from self._given_up(course)
                yield packet
            elif course is not clock:
                yield from self._other(course, packet)
            elif packet.dts is not None and clock.jumps(packet.dts):
                yield from self._jumped(clock, packet)
            else:
                yield clock.next(packet)
        for course in self._courses.values():
            yield from self._given_up(course)

    def _read(self) -> "AnyPacket | None":
        if self._ahead:
            return self._ahead.popleft()
        if self._failure is not None:
            raise self._failure
        return next(self._packets, None)

    def _jumped(self, clock: _Course, packet: AnyPacket) -> Iterator[AnyPacket]:
        """Yields a packet of the video after a jump, which begins a part if the next one agrees."""
        followers = self._followers(clock, packet)
        if len(followers) < 2 or not clock.jumps(followers[1].dts or 0):
            # A single wrong time.
            yield clock.moved(packet)
            return
        first = min(p.pts for p in followers if p.pts is not None)
        if abs(first + clock.shift - clock.end) <= clock.duration:
            # Only times of decoding overlap, as in parts that were encoded side by side.
            clock.dts = None
            yield clock.next(packet)
            return
        self._end_before_s = clock.end * clock.tick
        shift_s = (clock.end - first) * clock.tick
        clock.begin(shift_s)
        self._shifts_s.append(shift_s)
        others = [course for course in self._courses.values() if course is not clock]
        self._not_switched = {course for course in others if not course.waiting}
        yield clock.next(packet)
        for course in others:
            waiting, course.waiting = course.waiting, []
            if waiting:
                course.begin(shift_s)
            yield from map(course.next, waiting)

    def _followers(self, clock: _Course, packet: AnyPacket) -> list[AnyPacket]:
        """Returns a packet and the next ones of its stream with times, up to another jump."""
        index = packet.stream.index
        found = [packet]
        for ahead in self._reading_ahead():
            if ahead.stream.index != index or ahead.dts is None or ahead.pts is None:
                continue
            if not -clock.back <= ahead.dts - (found[-1].dts or 0) <= clock.far:
                break
            found.append(ahead)
            if len(found) > _AHEAD:
                break
        return found

    def _reading_ahead(self) -> Iterator[AnyPacket]:
        yield from list(self._ahead)
        while self._failure is None and len(self._ahead) < _MOST_WAITING:
            try:
                packet = next(self._packets, None)
            except av.error.FFmpegError as error:
                self._failure = error
                return
            if packet is None:
                return
            self._ahead.append(packet)
            yield packet

    def _other(self, course: _Course, packet: AnyPacket) -> Iterator[AnyPacket]:
        """Yields a packet of another stream, unless it must wait for the video."""
        clock = self._clock
        assert clock is not None
        dts = packet.dts if packet.dts is not None else packet.pts
        if course.waiting:
            course.waiting.append(packet)
            is_late = clock.end * clock.tick > course.waits_until_s
            if is_late or len(course.waiting) > _MOST_WAITING:
                yield from self._given_up(course)
            return
        if course in self._not_switched:
            if dts is None or self._is_of_part_before(course, dts):
                yield course.next(packet)
                return
            self._not_switched.discard(course)
            course.begin(self._shifts_s[-1])
        elif dts is not None and course.jumps(dts):
            # The video may jump later in the file.
            course.waiting.append(packet)
            course.waits_until_s = clock.end * clock.tick + _LATE_S
            return
        yield course.next(packet)

    def _is_of_part_before(self, course: _Course, dts: int) -> bool:
        """Whether a packet after a jump of the video continues its stream before the jump."""
        assert self._end_before_s is not None
        if course.dts is None or course.jumps(dts):
            return False
        at_s = (dts + course.shift) * course.tick
        is_late = self._end_before_s - _LATE_S <= at_s <= self._end_before_s + _CONTINUES_S
        return is_late and (dts - course.dts) * course.tick <= _CONTINUES_S

    def _given_up(self, course: _Course) -> Iterator[AnyPacket]:
        """Yields packets that waited for a jump of the video, which did not come."""
        waiting, course.waiting = course.waiting, []
        yield from map(course.next, waiting)
