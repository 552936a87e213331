"""Reads text in pictures with the recognition network that comes in the `rapidocr` wheel.

`models.text_detector` finds the lines. Each line is straightened and scaled to the network's
height. PP-OCRv6 small (Apache-2.0) reads 18,708 characters: Chinese, Japanese, Latin with accents
and Greek, but no Cyrillic, Arabic or Korean. Its output is decoded as usual for CTC: the likeliest
class of each column, without repeats and blanks. Nothing of `rapidocr` is imported; the network's
file holds the characters.

Lines are padded to certain widths, and only lines of the same width are read together, so that a
reading does not depend on the other lines of the picture.

Shape letters: N lines, C channels, H, W height and width, T columns, K classes.
"""

# ruff: noqa: N803, N806 - shape letters

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import chain, groupby, islice
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from curator.models.text_detector import MAX_BOXES, TextDetector
from curator.models.wheel_weights import WheelWeights
from curator.records.cuts import Point, TextLine

READ_MODEL = "PP-OCRv6_rec_small"
READ_WEIGHTS = WheelWeights(
    wheel="rapidocr",
    package="rapidocr",
    file=f"models/{READ_MODEL}.onnx",
    sha256="6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
    setting="caption.read_text",
)

LONG_SIDE_PX = 960
"""Longer side of the picture in which lines are detected. Analysis uses 640 px, for many more
pictures. Lines are cut out of the picture at full size."""
# Looser than in analysis, because the reader then finds no letters in cars and faces.
_LINE_PROBABILITY = 0.5
_MOST_HEIGHT = 0.6
_HEIGHT_PX = 48
"""Height of a line for the network."""
_WIDTH_STEP_PX = 160
_LEAST_WIDTH_PX = 320
"""Least width in the network's training."""
_MOST_WIDTH_PX = 2400
"""Width of a line that is 50 times as long as high; longer lines are squeezed."""
_BATCH = 8
_UPRIGHT_DEG = 60.0
"""Slope above which a line is read both upwards and downwards."""

MIN_CONFIDENCE = 0.8
"""Least confidence of a line in `merged`. Source: benchmarks/results/read_text.md."""
MAX_LINES = 20
MAX_CHARACTERS = 600
_ALIKE = 0.8
"""Least similarity at which two readings count as the same line."""

_Readings = dict[str, list[TextLine]]
"""Letters -> readings of one line with these letters."""


class TextReader:
    """Finds and reads lines of text, on one thread.

    Args:
        path: File of the recognition network; None for the installed wheel's.
        detector: Finds the lines; None for a new detector at `LONG_SIDE_PX`.

    Raises:
        ModelError: A file is missing, or differs from the tested one.
    """

    def __init__(self, path: Path | None = None, *, detector: TextDetector | None = None) -> None:
        weights = READ_WEIGHTS.read(path)
        # Imported here, because torch takes seconds.
        import torch

        from curator.models.onnx_network import OnnxNetwork

        self._torch = torch
        self._detector = detector or TextDetector(is_gated=False, long_side_px=LONG_SIDE_PX)
        self._network = OnnxNetwork(weights, device="cpu")
        # The first class is CTC's blank, the last one a space.
        self._characters = ["", *self._network.metadata["character"].split("\n"), " "]

    def read(self, rgb_HWC: NDArray[np.uint8]) -> list[TextLine]:
        """Reads the lines of text in a picture.

        Args:
            rgb_HWC: uint8 RGB, upright with square pixels, of any size.

        Returns:
            All lines with text, of any confidence, in reading order; at most `MAX_BOXES`.
        """
        height, width = rgb_HWC.shape[:2]
        quads = self._detector.quads(
            rgb_HWC, probability=_LINE_PROBABILITY, most_height=_MOST_HEIGHT
        )
        order = sorted(range(len(quads)), key=lambda i: -_area(quads[i]))[:MAX_BOXES]
        ways = [(i, quad) for i in order for quad in _readings(quads[i] * (width, height))]
        readings = self.read_crops([_straightened(rgb_HWC, quad) for _, quad in ways])
        best: dict[int, TextLine] = {}
        for (i, quad), (text, confidence) in zip(ways, readings, strict=True):
            if text and (i not in best or best[i].confidence < confidence):
                a, b, c, d = ((float(x / width), float(y / height)) for x, y in quad)
                best[i] = TextLine(text=text, confidence=confidence, box=(a, b, c, d))
        return in_reading_order(list(best.values()))

    def read_crops(self, crops: Sequence[NDArray[np.uint8]]) -> list[tuple[str, float]]:
        """Reads straight lines, uint8 RGB [H, W, 3] each; returns their texts and confidences."""
        readings: list[tuple[str, float]] = [("", 0.0)] * len(crops)
        scaled = [_scaled(crop) for crop in crops]

        def filled(index: int) -> int:
            steps: int = math.ceil(scaled[index].shape[1] / _WIDTH_STEP_PX)
            return max(_LEAST_WIDTH_PX, steps * _WIDTH_STEP_PX)

        for width, indices in groupby(sorted(range(len(scaled)), key=filled), key=filled):
            while some := list(islice(indices, _BATCH)):
                batch_NCHW = np.zeros((len(some), 3, _HEIGHT_PX, width), np.float32)
                for row, index in enumerate(some):
                    line = scaled[index]
                    # The network was trained on blue, green, red in [-1, 1].
                    bgr = line[:, :, ::-1].transpose(2, 0, 1).astype(np.float32)
                    batch_NCHW[row, :, :, : line.shape[1]] = bgr / 127.5 - 1
                answer_NTK = self._network(self._torch.from_numpy(batch_NCHW)).numpy()
                for index, probability_TK in zip(some, answer_NTK, strict=True):
                    readings[index] = decoded(probability_TK, self._characters)
        return readings


def decoded(probability_TK: NDArray[np.float32], characters: Sequence[str]) -> tuple[str, float]:
    """Decodes an output of CTC: the likeliest class of each column, without repeats and blanks.

    `characters` has the character of each class; the first class is the blank.

    Returns:
        The text without spaces at its ends, and the mean probability of its characters.
    """
    best_T = probability_TK.argmax(1)
    chosen_T = best_T != 0
    chosen_T[1:] &= best_T[1:] != best_T[:-1]
    text = "".join(characters[k] for k in best_T[chosen_T]).strip()
    if not text:
        return "", 0.0
    return text, float(probability_TK.max(1)[chosen_T].mean())


def in_reading_order(lines: Sequence[TextLine]) -> list[TextLine]:
    """Sorts the lines of one picture by rows from the top, and from left to right in a row."""

    def middle_and_height(line: TextLine) -> tuple[float, float]:
        ys = [y for _, y in line.box]
        return sum(ys) / 4, max(ys) - min(ys)

    rows: list[list[TextLine]] = []
    for line in sorted(lines, key=lambda line: (middle_and_height(line), line.box, line.text)):
        middle, height = middle_and_height(line)
        above = middle_and_height(rows[-1][0]) if rows else (-1.0, 0.0)
        if middle - above[0] < 0.5 * min(height, above[1]):
            rows[-1].append(line)
        else:
            rows.append([line])
    return [line for row in rows for line in sorted(row, key=lambda line: (line.box, line.text))]


def merged(frames: Sequence[Sequence[TextLine]]) -> list[str]:
    """Merges the lines in several pictures of one clip.

    Readings that differ in a few characters are one line, with the most frequent text, or else the
    text of highest confidence. If a reading is a part of a longer one, as in text that appears
    letter by letter, the longer one counts. If only numbers differ, the position decides, so a
    running clock is one line.

    Lines below `MIN_CONFIDENCE` are dropped, and so are lines that would exceed `MAX_LINES` or
    `MAX_CHARACTERS`.

    Returns:
        Texts in order of first appearance; those of one picture in reading order.
    """
    groups: list[_Readings] = []
    group_of: dict[str, _Readings] = {}
    for line in chain.from_iterable(frames):
        letters = _letters(line.text)
        if line.confidence < MIN_CONFIDENCE or len(letters) < 2:
            continue
        group = group_of.get(letters)
        if group is None:
            group = next((g for g in groups if any(_is_same(line, r[0]) for r in g.values())), None)
        if group is None:
            # Scrolling text has more lines than are returned: do not compare all of them.
            if len(groups) == 2 * MAX_LINES:
                continue
            group = {}
            groups.append(group)
        group_of[letters] = group
        group.setdefault(letters, []).append(line)
    texts: list[str] = []
    n_characters = 0
    for text in dict.fromkeys(map(_told, groups)):
        if len(texts) == MAX_LINES or n_characters + len(text) > MAX_CHARACTERS:
            continue
        texts.append(text)
        n_characters += len(text)
    return texts


def _told(group: _Readings) -> str:
    longest = max(map(len, group))
    long = (lines for letters, lines in group.items() if len(letters) >= _ALIKE * longest)
    whole = list(chain.from_iterable(long))
    times = Counter(line.text for line in whole)
    return max(whole, key=lambda line: (times[line.text], line.confidence, line.text)).text


def _is_same(a: TextLine, b: TextLine) -> bool:
    shorter, longer = sorted((_letters(a.text), _letters(b.text)), key=lambda t: (len(t), t))
    # "Exit 14" and "Exit 15" are two signs, but a clock at a fixed position is one line.
    if re.findall(r"\d+", shorter) != re.findall(r"\d+", longer) and len(shorter) == len(longer):
        (ax, ay), (bx, by) = _middle(a), _middle(b)
        height = max(y for _, y in a.box) - min(y for _, y in a.box)
        if max(abs(ax - bx), abs(ay - by)) > height / 2:
            return False
    if len(shorter) >= 4 and shorter in longer:
        return True
    # A cheap upper bound of the ratio.
    if 2 * len(shorter) < _ALIKE * (len(shorter) + len(longer)):
        return False
    matcher = SequenceMatcher(None, shorter, longer, autojunk=False)
    return matcher.quick_ratio() >= _ALIKE and matcher.ratio() >= _ALIKE


def _middle(line: TextLine) -> Point:
    return sum(x for x, _ in line.box) / 4, sum(y for _, y in line.box) / 4


def _letters(text: str) -> str:
    return "".join(character for character in text.casefold() if character.isalnum())


def _area(quad: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(quad[1] - quad[0]) * np.linalg.norm(quad[2] - quad[1]))


def _readings(quad: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """Yields the possible orientations of a line: corners from the text's upper left, in pixels."""
    along, across = quad[1] - quad[0], quad[2] - quad[1]
    if np.linalg.norm(along) < np.linalg.norm(across):
        quad = np.roll(quad, -1, 0)
        along = across
    slope = math.degrees(math.atan2(along[1], along[0]))
    # Text that is not steep begins on the left.
    if not -90 <= slope < 90:
        quad = np.roll(quad, -2, 0)
        slope = (slope + 180) % 360
        slope -= 360 if slope > 180 else 0
    yield quad
    if abs(slope) > _UPRIGHT_DEG:
        yield np.roll(quad, -2, 0)


def _straightened(rgb_HWC: NDArray[np.uint8], quad: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Cuts the part of a picture within four corners, without scaling."""
    width = max(1, round(float(np.linalg.norm(quad[1] - quad[0]))))
    height = max(1, round(float(np.linalg.norm(quad[2] - quad[1]))))
    onto = np.array([(0, 0), (width, 0), (width, height), (0, height)], np.float32)
    turn = cv2.getPerspectiveTransform(quad.astype(np.float32), onto)
    crop = cv2.warpPerspective(
        rgb_HWC, turn, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    return np.asarray(crop, np.uint8)


def _scaled(crop_HWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
    height, width = crop_HWC.shape[:2]
    scaled = max(1, min(_MOST_WIDTH_PX, math.ceil(_HEIGHT_PX * width / height)))
    method = cv2.INTER_AREA if height > _HEIGHT_PX else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(crop_HWC, (scaled, _HEIGHT_PX), interpolation=method), np.uint8)
