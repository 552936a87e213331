"""Times that start again: every packet moves with the pictures of its part."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import av.error
import pytest

from curator.media.continuous_times import ContinuousPackets

VIDEO = SimpleNamespace(index=0, type="video", time_base=Fraction(1, 100))
AUDIO = SimpleNamespace(index=1, type="audio", time_base=Fraction(1, 1000))


@dataclass
class Packet:
    """The fields that are read and moved."""

    stream: Any
    pts: int | None
    dts: int | None
    duration: int = 0
    size: int = 1


def video(*frames: int, first: int = 0) -> list[Packet]:
    """Packets of 25 frames/s, by the numbers of their frames."""
    return [Packet(VIDEO, first + 4 * n, first + 4 * n, 4) for n in frames]


def audio(*blocks: int, first: int = 0) -> list[Packet]:
    """Packets of 40 ms."""
    return [Packet(AUDIO, first + 40 * n, first + 40 * n, 40) for n in blocks]


def side_by_side(*streams: list[Packet]) -> list[Packet]:
    return [packet for group in zip(*streams, strict=True) for packet in group]


def joined(packets: Iterable[Packet]) -> tuple[list[int | None], list[int | None], list[Fraction]]:
    """Times of video and audio, in order of the file, and the shifts."""
    shifts: list[Fraction] = []
    found = list(ContinuousPackets(iter(packets), [AUDIO, VIDEO], shifts))  # type: ignore[arg-type]
    assert len(found) == len(list(packets))
    times = ([p.pts for p in found if p.stream is stream] for stream in (VIDEO, AUDIO))
    return (*times, shifts)  # type: ignore[return-value]


PART = range(50)
ALL_VIDEO = [4 * n for n in range(100)]
ALL_AUDIO = [40 * n for n in range(100)]


@pytest.mark.parametrize("first_s", [0, -1, -500, 26.5 * 3600], ids=str)
@pytest.mark.parametrize("lead", [0, 30, -30], ids=["beside", "audio first", "audio last"])
def test_a_part_follows_the_part_before_wherever_its_times_begin(first_s: float, lead: int) -> None:
    """Pins jumps back, before the start, and what FFmpeg makes of the latter, forward by a day."""
    at = round(first_s * 100)
    one = side_by_side(video(*PART), audio(*PART))
    pictures, sounds = video(*PART, first=at), audio(*PART, first=at * 10)
    two = side_by_side(pictures, sounds)
    if lead > 0:
        rest = side_by_side(pictures[:-lead], sounds[lead:])
        two = [*sounds[:lead], *rest, *pictures[-lead:]]
    elif lead < 0:
        # The last audio of the first part is behind the first pictures of the second.
        head, late = one[:-20], [p for p in one[-20:] if p.stream is AUDIO]
        one = [*head, *(p for p in one[-20:] if p.stream is VIDEO)]
        two = [*pictures[:10], *late, *side_by_side(pictures[10:], sounds[:40]), *sounds[40:]]
    found = joined([*one, *two])
    assert found == (ALL_VIDEO, ALL_AUDIO, [2 - Fraction(at, 100)])


def test_reordered_frames_single_wrong_times_and_holes_are_no_jumps() -> None:
    # B-frames: times of decoding increase.
    order = [0, 3, 1, 2, 6, 4, 5, 9, 7, 8]
    frames = [Packet(VIDEO, 4 * at, 4 * n - 8, 4) for n, at in enumerate(order)]
    assert joined(frames) == ([4 * at for at in order], [], [])
    # A hole of a minute, one packet with a time of its own, and audio that goes back alone.
    hole = [*video(*PART), *video(*PART, first=6000)]
    assert joined(hole)[2] == []
    wrong = video(*PART)
    wrong[20].pts = wrong[20].dts = -900
    times = [4 * n for n in PART]
    times[20] = -900
    assert joined(wrong) == (times, [], [])
    alone = [*audio(*PART), *audio(*range(5)), *video(*PART)]
    assert joined(alone)[1:] == ([40 * n for n in [*PART, *range(5)]], [])


def test_the_first_shown_frame_of_a_part_follows_the_last_one() -> None:
    """Pins an open group: frames before the first key frame are shown first."""
    order = [2, 0, 1, *range(3, 20)]
    part = [Packet(VIDEO, 4 * at, 4 * n - 8, 4) for n, at in enumerate(order)]
    pts, _, shifts = joined([*video(*PART), *part])
    assert sorted(t for t in pts if t is not None) == [4 * n for n in range(70)]
    assert shifts == [Fraction(2)]


def test_parts_that_only_overlap_in_their_decoding_times_stay() -> None:
    """Pins parts that were encoded side by side, with reordered frames."""
    order = [4, 2, 1, 3, 8, 6, 5, 7]
    one = [Packet(VIDEO, 4 * at, 4 * n - 12, 4) for n, at in enumerate([0, *order])]
    two = [Packet(VIDEO, 36 + p.pts, 36 - 20 + p.dts, 4) for p in one]  # type: ignore[operator]
    pts, _, shifts = joined([*one, *two])
    assert shifts == []
    assert sorted(t for t in pts if t is not None) == [4 * n for n in range(18)]


def test_what_was_read_ahead_comes_before_an_error() -> None:
    def broken() -> Iterator[Packet]:
        yield from (*video(*PART), *video(*range(5)))
        raise av.error.InvalidDataError(1, "broken")

    found: list[Any] = []
    with pytest.raises(av.error.InvalidDataError):
        found.extend(ContinuousPackets(broken(), [VIDEO], []))  # type: ignore[arg-type]
    assert [packet.pts for packet in found] == [4 * n for n in range(55)]
