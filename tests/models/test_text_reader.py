"""Reading text: the real networks of the installed wheel."""

import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
from film_shots import texture
from numpy.typing import NDArray
from overlays import drawn, lettering
from sweeps import sampled

from curator.errors import ModelError
from curator.models.text_reader import TextReader, decoded, in_reading_order, merged
from curator.records.cuts import TextLine

SENTENCE = "Where were you last night?"


@pytest.fixture(scope="module")
def reader() -> TextReader:
    return TextReader()


def line(text: str, confidence: float = 0.95, *, x: float = 0.1, y: float = 0.1) -> TextLine:
    box = ((x, y), (x + 0.3, y), (x + 0.3, y + 0.05), (x, y + 0.05))
    return TextLine(text=text, confidence=confidence, box=box)


def turned(degrees: float) -> NDArray[np.uint8]:
    """The sentence on grey, turned about its middle."""
    patch = lettering(SENTENCE, size_px=32)
    flat = drawn(np.full((640, 800, 3), 128, np.uint8), patch, 180, 300)
    turn = cv2.getRotationMatrix2D((400, 320), degrees, 1.0)
    return np.asarray(cv2.warpAffine(flat, turn, (800, 640), borderValue=(128,) * 3), np.uint8)


def test_lines_are_read_where_they_were_drawn(reader: TextReader) -> None:
    """Pins text, order and corners; and that the package itself is not imported."""
    frame = texture(3, width_px=1280, height_px=720)
    for text, size_px, x, y in (
        (SENTENCE, 40, 100, 600), ("EXIT 14 North", 24, 700, 100), ("@someone", 24, 20, 100),
    ):  # fmt: skip
        frame = drawn(frame, lettering(text, size_px=size_px), x, y)
    lines = reader.read(frame)
    assert [line.text for line in lines] == ["@someone", "EXIT 14 North", SENTENCE]
    assert all(line.confidence > 0.9 for line in lines)
    (x0, y0), (x1, _), _, (_, y3) = lines[0].box
    assert abs(np.array([x0 * 1280, y0 * 720, y3 * 720]) - (20, 100, 130)).max() < 10
    assert x1 > x0
    assert "rapidocr" not in sys.modules


@pytest.mark.parametrize("degrees", sampled([10, -30, 55, 75, 90, -90], (10, 75, -90)))
def test_turned_lines_are_straightened(reader: TextReader, degrees: float) -> None:
    """Pins that steep text is read from whichever end it begins at."""
    (line,) = reader.read(turned(degrees))
    assert line.text == SENTENCE
    (x0, y0), (x1, y1) = line.box[:2]
    slope = np.degrees(np.arctan2((y0 - y1) * 640, (x1 - x0) * 800))
    assert slope == pytest.approx(degrees, abs=3)


def test_a_line_does_not_depend_on_the_others_and_no_text_is_nothing(reader: TextReader) -> None:
    """Pins that batches neither mix lines nor change a bit of their confidence."""
    words = ["No.", "Why?", SENTENCE, "Behind the hill, over there", "Hotel", "SALE 50% OFF"] * 3
    crops = [lettering(word, size_px=30, style="boxed")[:, :, :3] for word in words]
    together = reader.read_crops(crops)
    assert [text for text, _ in together] == words
    alone = [reader.read_crops([crop])[0] for crop in crops[:6]]
    assert [text for text, _ in alone] == words[:6]
    assert np.allclose([c for _, c in alone], [c for _, c in together[:6]], atol=1e-5)
    assert reader.read_crops([]) == []
    # A picture, and thin and endless crops.
    assert reader.read(texture(4, width_px=640, height_px=360)) == []
    crops = [np.zeros((1, 4000, 3), np.uint8), np.zeros((300, 2, 3), np.uint8)]
    assert [text for text, _ in reader.read_crops(crops)] == ["", ""]


def test_ctc_takes_repeats_once_and_another_file_is_refused(tmp_path: Path) -> None:
    characters = ["", "a", "b", " "]
    path = [0, 1, 1, 0, 1, 2, 3, 3, 0]
    probability = np.full((len(path), 4), 0.1, np.float32)
    for column, k in enumerate(path):
        probability[column, k] = 0.5 if column == 4 else 0.9
    text, confidence = decoded(probability, characters)
    assert text == "aab"
    # a, a, b and the space count.
    assert confidence == pytest.approx((0.9 + 0.5 + 0.9 + 0.9) / 4)
    assert decoded(probability[:1], characters) == ("", 0.0)
    # Another file is refused.
    other = tmp_path / "model.onnx"
    other.write_bytes(b"weights")
    with pytest.raises(ModelError, match=r"expected 6f32.*set caption.read_text to false"):
        TextReader(other)


def test_each_line_of_a_clip_is_told_once_in_the_order_of_reading() -> None:
    lines = [line("d", x=0.5, y=0.51), line("c", x=0.1, y=0.5), line("b", x=0.6), line("a", y=0.11)]
    assert [line.text for line in in_reading_order(lines)] == ["a", "b", "c", "d"]
    # Fuzzy equality, the vote of readings, and the order of first appearance.
    frames = [
        [line("Breaking"), line("Chanel 7", 0.99)],
        [line("BREAKING NEWS"), line("Channel 7", 0.9)],
        [line("Breaking News", 0.97), line("Channel 7", 0.92), line("We must go")],
        [line("Breaking News", 0.96)],
    ]
    assert merged(frames) == ["Breaking News", "Channel 7", "We must go"]
    # Numbers that differ are other lines unless they stay in place.
    frames = [[line("Exit 14", y=0.1), line("00:01:17", y=0.9)]]
    frames += [[line("Exit 15", y=0.4), line(f"00:01:{s}", y=0.9)] for s in (18, 19)]
    assert merged(frames) == ["Exit 14", "00:01:19", "Exit 15"]
    # Unsure readings single letters and what is too much are left out.
    assert merged([[line("maybe", 0.5), line("X"), line("--- !"), line("Hotel")]]) == ["Hotel"]
    letters = np.random.default_rng(1).integers(97, 123, (40, 30))
    names = ["".join(map(chr, row)) for row in letters]
    told = merged([[line(name) for name in names]])
    assert told == names[:20]
    assert merged([[line(2 * name) for name in names]]) == [2 * name for name in names[:10]]
    assert merged([]) == []


def test_pages_of_scrolling_text_take_no_time() -> None:
    """Pins that comparing lines has a bound: a thousand unlike ones, and a page that stays."""
    rng = np.random.default_rng(2)
    names = ["".join(map(chr, row)) for row in rng.integers(97, 123, (1024, 30))]
    begun = time.process_time()
    told = merged([[line(name) for name in names[i : i + 64]] for i in range(0, 1024, 64)])
    assert told == names[:20]
    assert merged([[line(name) for name in names[:64]]] * 16) == names[:20]
    assert time.process_time() - begun < 5
