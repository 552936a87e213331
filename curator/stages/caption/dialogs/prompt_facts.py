"""Writes measured or known facts of a clip as lines of text for a prompt.

The facts are those that a model cannot see in a few still frames, or tends to invent: it mistakes
moving things for a moving camera. Text from pictures, metadata and names is quoted as JSON on one
line, to mark it as data.
"""

import json
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from curator.records.clips import Clip
from curator.storage.sidecar_files import Sidecar

MAX_CHARACTERS = 4000
MAX_LINES = 40
MAX_LINE_CHARACTERS = 240
"""Most lines of a sidecar, and their longest."""
_MAX_VALUES = 12
"""Longest list of plain values."""
_MAX_DEPTH = 6
_PLAIN_KEY = re.compile(r"[\w-]{1,40}")

CAMERA_WORDS = {
    "static": "stands still",
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
"""Words for the tags of `stages.scores.camera`. Two pictures alone cannot distinguish a zoom from a
camera that moves along its line of sight."""
_MOVES = ("pan_left", "pan_right", "tilt_up", "tilt_down", "zoom_in", "zoom_out", "roll")
# Short sides per second, mean over the picture: at 0.1 it takes ten seconds to leave the frame.
_SPEEDS = ((0.1, "slowly"), (0.5, "at a moderate speed"), (float("inf"), "fast"))


def facts_of(
    clip: Clip | None,
    *,
    text_lines: Sequence[str] = (),
    sidecar: Sidecar | None = None,
    metadata_lines: Sequence[str] = (),
    untold: Collection[str] = (),
) -> str:
    """Returns lines of text for a prompt, together at most `MAX_CHARACTERS` characters.

    Args:
        clip: Row with measurements; None to leave them out.
        text_lines: Text read in the clip's pictures, from `models.text_reader.merged`.
        sidecar: The sidecar of the source.
        metadata_lines: Facts of the window alone.
        untold: Keys of the sidecar to leave out.
    """
    lines = list(metadata_lines)
    lines += [f"- {line}" for line in _measured(clip)] if clip is not None else []
    if text_lines:
        lines.append("- Text in the picture, read by OCR, letters may be wrong:")
        lines += [f"  - {quoted(text)}" for text in text_lines]
    data = sidecar.data if sidecar is not None else {}
    own_lines = sidecar_lines({key: value for key, value in data.items() if key not in untold})
    if own_lines:
        lines.append("- Metadata of the whole source video, from its owner:")
        lines += [f"  - {line}" for line in own_lines]
    kept: list[str] = []
    n_left = MAX_CHARACTERS
    for line in lines:
        n_left -= len(line) + 1
        if n_left < 0:
            break
        kept.append(line)
    return "\n".join(kept)


def camera_words(tags: Sequence[str], speed: float | None) -> str | None:
    """Describes the camera's motion in a sentence without its end, or None if unknown.

    Other tags are ignored. `speed` is `camera_motion`, in short sides per second.
    """
    moves = [CAMERA_WORDS[tag] for tag in _MOVES if tag in tags]
    if moves and speed is not None:
        moves[-1] += " " + next(word for limit, word in _SPEEDS if speed < limit)
    holds = [CAMERA_WORDS[tag] for tag in ("static", "handheld", "shaky") if tag in tags]
    if moves or holds:
        parts = [*moves, *holds]
        return "the camera " + (", ".join(parts[:-1]) + " and " if parts[1:] else "") + parts[-1]
    if speed is None:
        return None
    return "no steady pan, tilt, zoom or roll of the camera was found"


def _measured(clip: Clip) -> Iterator[str]:
    words = camera_words(clip.tags or (), clip.scores["camera_motion"])
    yield f"Camera, measured over the whole clip: {words or 'its motion is not known'}"
    if clip.n_frames and clip.fps:
        size = f", {clip.width}x{clip.height} pixels" if clip.width and clip.height else ""
        seconds = clip.n_frames / clip.fps
        yield f"The whole clip: {seconds:.1f} seconds, {clip.fps:.4g} frames per second{size}"
    if clip.content_type:
        yield f"Content type, as a classifier guesses: {quoted(clip.content_type, 60)}"


def sidecar_lines(data: Mapping[str, Any]) -> list[str]:
    """Returns `key.sub: value` of each value in the file's order, quoted; all sizes are limited."""
    lines = []
    for key, value in _values(data, "", 1):
        line = f"{key}: {value}"
        if len(line) <= MAX_LINE_CHARACTERS:
            lines.append(line)
        if len(lines) == MAX_LINES:
            break
    return lines


def quoted(text: str, max_characters: int = 200) -> str:
    """Quotes untrusted text as one JSON string on one line.

    Control, format and private characters become spaces. `<`, `>`, `[` and `]` are escaped, so that
    no tokenizer reads them as a mark of its own (`<|im_end|>`, `[INST]`). Longer text than
    `max_characters` ends in an ellipsis.
    """
    kept = "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in text)
    kept = " ".join(kept.split())
    if len(kept) > max_characters:
        kept = kept[: max_characters - 1].rstrip() + "\u2026"
    string = json.dumps(kept, ensure_ascii=False)
    for mark in "<>[]":
        string = string.replace(mark, f"\\u{ord(mark):04x}")
    return string


def _values(data: Any, key: str, depth: int) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Yields keys joined by dots, and values as JSON, in the order of the file."""
    if isinstance(data, dict):
        if depth <= _MAX_DEPTH:
            for name, value in data.items():
                plain = name if _PLAIN_KEY.fullmatch(name) else quoted(name, 40)
                yield from _values(value, f"{key}.{plain}" if key else plain, depth + 1)
    elif isinstance(data, list):
        if any(isinstance(value, dict | list) for value in data):
            if depth <= _MAX_DEPTH:
                for index, value in enumerate(data):
                    yield from _values(value, f"{key}.{index}", depth + 1)
        elif data:
            yield key, f"[{', '.join(_plain(value) for value in data[:_MAX_VALUES])}]"
    elif data is not None and data != "":
        yield key, _plain(data)


def _plain(value: Any) -> str:  # noqa: ANN401
    return quoted(value) if isinstance(value, str) else json.dumps(value)[:40]
