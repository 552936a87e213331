"""Writes facts about a window, from measurements and metadata, as lines of text for a prompt.

A model cannot see these facts in a few still frames, or tends to invent them: it mistakes moving
things for a moving camera. Text from pictures, metadata and names is quoted as JSON on one line,
which marks the text as data.

A sidecar may list the events of its source:

```
{"events": [{"time_s": 12.4, "end_s": 13.1, "label": "near_collision", "about": "a van cuts in"}],
 "speed_kmh": 48, "weather": "rain", "light": "night", "road": "city street"}
```

Values next to `events` hold for the whole source; values in an event hold for windows with that
event. A bad value or event is left out, and reported as a problem. An empty list says that nothing
happens. Without a list, or with a bad entry, no window counts as eventless.
"""

import itertools
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, TypeGuard

from curator.records.clips import Clip
from curator.records.sources import Medium
from curator.stages.caption.caption_records import Event, Window, WindowMetadata
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.prompt_files import as_data
from curator.stages.caption.windows import Moment, frames_of
from curator.storage.sidecar_files import Sidecar

MAX_CHARACTERS = 4000
MAX_LINES = 40
MAX_LINE_CHARACTERS = 240
"""Longest line of a sidecar; longer lines are left out."""
_MAX_VALUES = 12
"""Most plain values that are shown of a list."""
_MAX_DEPTH = 6
_PLAIN_KEY = re.compile(r"[\w-]{1,40}")

CAMERA_WORDS = {
    "camera_static": "stands still",
    "pan_left": "pans left",
    "pan_right": "pans right",
    "tilt_up": "tilts up",
    "tilt_down": "tilts down",
    "zoom_in": "zooms in or moves forward",
    "zoom_out": "zooms out or moves back",
    "roll": "rolls about the line of sight",
    "handheld": "is held in hands",
    "shaky": "shakes",
}
"""Words for the tags of `curator.measures.camera`. Two pictures do not distinguish a zoom from a
camera that moves along its line of sight."""
_HOLDS = ("camera_static", "handheld", "shaky")
# Short sides per second, mean over the picture: at 0.1, a point crosses the picture in 10 s.
_SPEEDS = ((0.1, "slowly"), (0.5, "at a moderate speed"), (float("inf"), "fast"))


def facts_of(
    clip: Clip | None,
    *,
    text_lines: Sequence[str] = (),
    sidecar: Sidecar | None = None,
    metadata_lines: Sequence[str] = (),
    hidden: Collection[str] = (),
) -> str:
    """Returns lines of text for a prompt, together at most `MAX_CHARACTERS` characters.

    The order is `metadata_lines` of the window, measurements of `clip`, `text_lines` by OCR from
    `models.text_reader.merged`, and the sidecar without the keys `hidden`.
    """
    lines = list(metadata_lines)
    lines += [f"- {line}" for line in _measured(clip)] if clip is not None else []
    data = sidecar.data if sidecar is not None else {}
    shown = {key: value for key, value in data.items() if key not in hidden}
    for title, more in (
        ("Text in the picture, read by OCR, letters may be wrong", list(map(quoted, text_lines))),
        ("Metadata of the whole source video, from its owner", sidecar_lines(shown)),
    ):
        lines += [f"- {title}:", *(f"  - {line}" for line in more)] if more else []
    ends = itertools.accumulate(len(line) + 1 for line in lines)
    return "\n".join(line for line, end in zip(lines, ends, strict=True) if end <= MAX_CHARACTERS)


def camera_words(tags: Sequence[str], speed: float | None) -> str | None:
    """Describes the camera's motion as a sentence without full stop; None if unknown.

    Tags of other kinds have no effect. `speed` is `camera_motion`, in short sides per second.
    """
    moves = [words for tag, words in CAMERA_WORDS.items() if tag in tags and tag not in _HOLDS]
    if moves and speed is not None:
        moves[-1] += " " + next(word for limit, word in _SPEEDS if speed < limit)
    holds = [CAMERA_WORDS[tag] for tag in _HOLDS if tag in tags]
    if moves or holds:
        parts = [*moves, *holds]
        return "the camera " + (", ".join(parts[:-1]) + " and " if parts[1:] else "") + parts[-1]
    if speed is None:
        return None
    return "no steady pan, tilt, zoom or roll of the camera was found"


def _measured(clip: Clip) -> Iterator[str]:
    size = f", {clip.width}x{clip.height} pixels" if clip.width and clip.height else ""
    fps = clip.written_fps
    is_still = clip.medium == Medium.IMAGE
    if is_still:
        yield f"A still image, not a video: nothing moves, and there is no camera motion{size}"
    else:
        words = camera_words(clip.tags or (), clip.scores["camera_motion"])
        yield f"Camera, measured over the whole clip: {words or 'its motion is not known'}"
    if clip.n_frames and fps and not is_still:
        seconds = clip.n_frames / fps
        yield f"The whole clip: {seconds:.1f} seconds, {fps:.4g} frames per second{size}"
    if clip.content_type:
        yield f"Content type, as a classifier guesses: {quoted(clip.content_type, 60)}"


def sidecar_lines(data: Mapping[str, Any]) -> list[str]:
    """Returns a line `key.sub: value` for each value, in the file's order and within limits."""
    lines = (f"{key}: {value}" for key, value in _flat(data, "", 1))
    short = (line for line in lines if len(line) <= MAX_LINE_CHARACTERS)
    return list(itertools.islice(short, MAX_LINES))


def quoted(text: str, max_characters: int = 200) -> str:
    """Quotes untrusted text as one JSON string on one line.

    Control, format and private characters become spaces. `<`, `>`, `[` and `]` are escaped, so that
    no tokenizer finds a control token (`<|im_end|>`, `[INST]`). Text of more than `max_characters`
    is cut, and ends in an ellipsis.
    """
    kept = "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in text)
    kept = " ".join(kept.split())
    if len(kept) > max_characters:
        kept = kept[: max_characters - 1].rstrip() + "\u2026"
    string = json.dumps(kept, ensure_ascii=False)
    for mark in "<>[]":
        string = string.replace(mark, f"\\u{ord(mark):04x}")
    return string


def _flat(data: Any, key: str, depth: int) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Yields keys, joined by dots, and values as JSON, in the file's order."""
    if isinstance(data, dict):
        if depth <= _MAX_DEPTH:
            for name, value in data.items():
                plain = name if _PLAIN_KEY.fullmatch(name) else quoted(name, 40)
                yield from _flat(value, f"{key}.{plain}" if key else plain, depth + 1)
    elif isinstance(data, list):
        if any(isinstance(value, dict | list) for value in data):
            if depth <= _MAX_DEPTH:
                for index, value in enumerate(data):
                    yield from _flat(value, f"{key}.{index}", depth + 1)
        elif data:
            yield key, f"[{', '.join(_shown(value) for value in data[:_MAX_VALUES])}]"
    elif data is not None and data != "":
        yield key, _shown(data)


def _shown(value: Any) -> str:  # noqa: ANN401
    return quoted(value) if isinstance(value, str) else json.dumps(value)[:40]


WORDS = ("weather", "light", "road")
"""Keys of sidecars whose values are text."""
SPEED = "speed_kmh"
_MAX_SPEED_KMH = 1000.0
_MAX_CHARACTERS = 200
_MAX_EVENTS = 1000


class EventCode(StrEnum):
    """Problems of a sidecar. Public: counted in `summary.json`."""

    NOT_A_LIST = "not_a_list"
    NOT_AN_OBJECT = "not_an_object"
    BAD_TIME = "bad_time"
    """`time_s` is not a number of at least 0."""
    BAD_END = "bad_end"
    """`end_s` is not a number of at least `time_s`."""
    UNKNOWN_LABEL = "unknown_label"
    """`label` is not in `caption.events`."""
    BAD_VALUE = "bad_value"
    """The value of another key has the wrong type or range."""
    TOO_MANY = "too_many"
    """More than a thousand events."""


class EventProblem(NamedTuple):
    """An unusable value; `key` is its place in the sidecar, with dots."""

    code: EventCode
    message: str
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEvents:
    """Events and descriptive values from the sidecar of a source."""

    events: tuple[Event, ...] = ()
    """Sorted by start."""
    lists_all: bool = False
    """Whether the sidecar has a list of events and all of them could be read."""
    values: Mapping[str, str | float | bool]
    problems: tuple[EventProblem, ...] = ()

    @property
    def moments(self) -> tuple[Moment, ...]:
        """Start and end of each event, in seconds from the source's first frame."""
        return tuple((event.start_s, event.end_s) for event in self.events)

    @property
    def bad_keys(self) -> frozenset[str]:
        """Keys with unusable values for the whole source, which prompts leave out."""
        bad = [problem.key for problem in self.problems if problem.code is EventCode.BAD_VALUE]
        return frozenset(key for key in bad if "." not in key)


NOTHING = SourceEvents(values={})
"""Events of a source without a sidecar."""


def events_of(data: Mapping[str, Any], config: CaptionConfig) -> SourceEvents:
    """Reads the events of a sidecar; returns problems instead of raising them."""
    problems: list[EventProblem] = []
    listed = data.get("events")
    events: list[Event] = []
    if isinstance(listed, list):
        for index, entry in enumerate(listed[:_MAX_EVENTS]):
            events += _event(entry, f"events.{index}", config, problems)
        if len(listed) > _MAX_EVENTS:
            message = f"events has {len(listed)} entries; expected at most {_MAX_EVENTS}"
            problems.append(EventProblem(EventCode.TOO_MANY, message))
    elif listed is not None:
        problems.append(_problem(EventCode.NOT_A_LIST, "events", listed, "a list"))
    values = _values(data, "", config, problems)
    return SourceEvents(
        events=tuple(sorted(events, key=lambda event: (event.start_s, event.end_s, event.label))),
        lists_all=isinstance(listed, list) and len(events) == len(listed),
        values=values,
        # Problems with events come before bad values.
        problems=tuple(sorted(problems, key=lambda problem: problem.code is EventCode.BAD_VALUE)),
    )


def event_counts(sources: Collection[SourceEvents], n_in_windows: int) -> dict[str, int]:
    """Counts, for the summary, events in sidecars, events in windows, and problems by code."""
    codes = Counter(problem.code.value for events in sources for problem in events.problems)
    return {
        "events": sum(len(source.events) for source in sources),
        "events_in_windows": n_in_windows,
        **{f"events_{code}": n for code, n in sorted(codes.items())},
    }


def metadata_of(
    window: Window,
    fps: float,
    start_s: float,
    source: SourceEvents,
    config: CaptionConfig,
    clip: Clip | None,
) -> WindowMetadata:
    """Returns the facts about a window that need no model.

    The gravest event in the window gives the class. Without an event, the class is
    `caption.no_event` if the sidecar lists all events, and none is within half an event window.
    `start_s` is the clip's start in the source; `clip` adds camera motion to the caption.
    """
    near = round((config.event_window_s or 0.0) * fps / 2)
    inside = tuple(e for e in source.events if _lies_in(e, window, fps, start_s))
    gravest = sorted(inside, key=lambda event: list(config.events).index(event.label))
    label = gravest[0].label if gravest else None
    values = {**source.values, **(gravest[0].values if gravest else {})}
    if label is None and source.lists_all:
        is_clear = not any(_lies_in(e, window, fps, start_s, near) for e in source.events)
        label = config.no_event if is_clear else None
    seconds = (window.end_frame - window.start_frame) / fps
    return WindowMetadata(
        label=label,
        events=inside,
        lists_all=source.lists_all,
        values=values,
        caption=_caption(label, inside, values, seconds, config, clip),
        problems=tuple(problem.message for problem in source.problems),
    )


def metadata_lines(
    metadata: WindowMetadata, window: Window, fps: float, start_s: float
) -> list[str]:
    """Returns lines for a prompt: a window's class and events, with times from its start."""
    if metadata.label is None:
        return []
    lines = [f"- Class of this piece, from its owner: {metadata.label}"]
    begin_s = start_s + window.start_frame / fps
    for event in metadata.events:
        about = f": {event.about}" if event.about else ""
        at_s = max(0.0, event.start_s - begin_s)
        lines.append(f"  - {event.label} at {at_s:.1f} s{about}")
    return lines


def in_words(name: str) -> str:
    """Turns a name into words: `near_collision` becomes near collision."""
    return name.replace("_", " ")


def _lies_in(event: Event, window: Window, fps: float, start_s: float, near: int = 0) -> bool:
    first, end = frames_of((event.start_s, event.end_s), fps, start_s)
    return first < window.end_frame + near and end > window.start_frame - near


def _caption(
    label: str | None,
    events: Sequence[Event],
    values: Mapping[str, str | float | bool],
    seconds: float,
    config: CaptionConfig,
    clip: Clip | None,
) -> str:
    sentences = []
    if label is not None:
        meaning = config.events[label]
        sentences.append(f"{in_words(label).capitalize()}: {meaning}" if meaning else label)
    sentences += [event.about for event in events if event.about]
    sentences += [f"{name.capitalize()}: {values[name]}" for name in WORDS if name in values]
    if SPEED in values:
        sentences.append(f"Speed: {values[SPEED]:.4g} km/h")
    if clip is not None:
        camera = camera_words(clip.tags or (), clip.scores["camera_motion"]) or ""
        if camera.startswith("the camera"):
            sentences.append(camera.capitalize())
    if clip is None or clip.medium != Medium.IMAGE:
        sentences.append(f"{seconds:.1f} seconds of video")
    return " ".join(f"{sentence.rstrip('.')}." for sentence in sentences)


def _event(
    entry: object, key: str, config: CaptionConfig, problems: list[EventProblem]
) -> Iterator[Event]:
    """Yields the event of an entry, if the entry is usable."""
    if not isinstance(entry, dict):
        expected = "an object with time_s and label"
        problems.append(_problem(EventCode.NOT_AN_OBJECT, key, entry, expected))
        return
    start, end, label = entry.get("time_s"), entry.get("end_s"), entry.get("label")
    if not _is_number(start) or start < 0:
        problems.append(_problem(EventCode.BAD_TIME, f"{key}.time_s", start, "seconds from 0"))
    elif end is not None and (not _is_number(end) or end < start):
        problems.append(_problem(EventCode.BAD_END, f"{key}.end_s", end, f"seconds from {start}"))
    elif not isinstance(label, str) or label not in config.events:
        expected = f"one of {', '.join(config.events) or 'none'}"
        problems.append(_problem(EventCode.UNKNOWN_LABEL, f"{key}.label", label, expected))
    else:
        about = entry.get("about")
        yield Event(
            start_s=float(start),
            end_s=float(start if end is None else end),
            label=label,
            about=_plain(about) if isinstance(about, str) else "",
            values=_values(entry, f"{key}.", config, problems),
        )


def _values(
    data: Mapping[str, Any], prefix: str, config: CaptionConfig, problems: list[EventProblem]
) -> dict[str, str | float | bool]:
    """Returns the values of known names; adds bad values to `problems`."""
    values: dict[str, str | float | bool] = {}
    for name in dict.fromkeys((SPEED, *WORDS, *config.questions, *config.open_questions)):
        given = data.get(name)
        if given is None:
            continue
        value, expected = _value(name, given, config)
        if value is not None:
            values[name] = value
        else:
            problems.append(_problem(EventCode.BAD_VALUE, prefix + name, given, expected))
    return values


def _value(
    name: str, given: object, config: CaptionConfig
) -> tuple[str | float | bool | None, str]:
    """Returns the value, or None for a bad value, and a description of good values."""
    number = float(given) if _is_number(given) else None
    if name == SPEED:
        is_speed = number is not None and 0 <= number <= _MAX_SPEED_KMH
        return number if is_speed else None, f"a number from 0 to {_MAX_SPEED_KMH:g}"
    if name in config.questions:
        return given if isinstance(given, bool) else None, "true or false"
    if isinstance(given, str):
        return _plain(given) or None, "words"
    return number if name not in WORDS else None, "words"


def _is_number(value: object) -> TypeGuard[int | float]:
    """Returns whether the value is a finite number; booleans are not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e9 and math.isfinite(value)


def _plain(text: str) -> str:
    """Returns untrusted text as one line, without control tokens of chat templates."""
    words = " ".join(as_data(text.encode(errors="replace").decode()).split())
    return words if len(words) <= _MAX_CHARACTERS else words[: _MAX_CHARACTERS - 1].rstrip() + "…"


def _problem(code: EventCode, key: str, value: object, expected: str) -> EventProblem:
    shown = _plain(repr(value))[:60]
    return EventProblem(code, f"{key} is {shown}; expected {expected}", key)
