"""Captions from measurements state only measurements."""

import math

import pyarrow as pa
import pytest
from pydantic import ValidationError

from curator.measures.score_list import SCORES
from curator.records.clips import MEASURED_MODEL
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.measured_caption import measured_caption, measured_captions
from curator.tables.clip_rows import ClipRows
from curator.tables.schemas import clips_schema
from tests.made_clips import clip_rows


def caption(
    *, width: int = 1280, height: int = 720, fps: float = 30.0, **scores: float | None
) -> str:
    values = dict.fromkeys(SCORES, None) | {"luma": 0.5, "contrast": 0.15, "sharpness": 0.3}
    form = {"width": width, "height": height, "start_s": 1.0, "end_s": 5.26, "written_fps": fps}
    return measured_caption(clip_rows([values | scores | form])[0])


def test_a_caption_names_shape_length_size_and_rate() -> None:
    """Pins the whole text for one clip; a missing measurement leaves no sentence."""
    first = "A landscape shot of 4.3 seconds, 1280x720 at 30 frames/s."
    assert caption(motion=0.05) == f"{first} The picture is evenly lit. The picture moves slowly."
    assert caption(luma=None, contrast=None, sharpness=None, motion=None) == first
    assert caption(width=720, height=1280).startswith("A portrait shot")
    assert caption(width=720).startswith("A square shot")
    assert "at 29.97 frames/s" in caption(fps=30_000 / 1001)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.string(), " a dog ", "a dog"),
        (pa.string(), " \n", None),
        (pa.string(), None, None),
        (pa.list_(pa.string()), ["a dog", None, " runs"], "a dog runs"),
        (pa.list_(pa.string()), [None, " "], None),
        (pa.int64(), 0, "0"),
        (pa.float64(), math.nan, None),
    ],
)
def test_a_column_of_any_type_gives_text_or_no_caption(
    kind: pa.DataType, value: object, text: str | None
) -> None:
    schema = clips_schema(SCORES).append(pa.field("meta.text", kind))
    row = {"decision": "kept", "meta.text": value}
    clips = ClipRows(pa.Table.from_pylist([row], schema), schema)
    config = CaptionConfig(captioner="column", column="meta.text")
    assert measured_captions(clips, config) == (text is None)
    assert clips[0].caption == text


@pytest.mark.parametrize(
    ("score", "value", "words"),
    [
        ("luma", 0.1, "dark"),
        ("luma", 0.3, "dim"),
        ("luma", 0.9, "bright"),
        ("contrast", 0.05, "low in contrast"),
        ("contrast", 0.3, "high in contrast"),
        ("sharpness", 0.1, "soft"),
        ("sharpness", 3.0, "sharp in detail"),
        ("motion", 0.0, "Almost nothing moves"),
        ("motion", 0.3, "moves steadily"),
        ("motion", 5.0, "moves fast"),
        ("motion", 1e9, "moves fast"),
    ],
)
def test_words_follow_the_scores(score: str, value: float, words: str) -> None:
    """Pins a word for every range, without an upper end."""
    assert words in caption(**{score: value})


def test_the_model_name_says_that_no_model_saw_the_clip() -> None:
    """Pins the model name of such captions, and refused settings."""
    assert MEASURED_MODEL == "curate/measured-1"
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        CaptionConfig(modell="x")  # type: ignore[call-arg]
