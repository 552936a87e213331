"""Searches by a text over captions, tags and names, with the real encoder of sentences."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from searchable import searchable_out
from test_clip_search import said

import curator
from curator.errors import UsageError
from curator.models.text_encoder import text_hash
from curator.models.weight_store import ModelStore
from curator.runs.caption_vectors import CaptionVectors, caption_vectors
from curator.tools.retrieval.text_search import TextSearch, query_words

CAPTIONS = {
    0: "A puppy runs through tall grass.",
    1: "Cars wait at a crossing in the rain.",
    2: "An old man plays the violin.",
    3: "一只猫在雪地里",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("texts")
    recipe = {"models": str(place / "models")}
    searchable_out(place / "out", 6, recipe=recipe, captions=CAPTIONS)
    return place


def table(*rows: tuple[str | None, list[str], str]) -> pa.Table:
    captions, tags, uris = zip(*rows, strict=True)
    return pa.table(
        {
            "caption": pa.array(captions, pa.string()),
            "tags": pa.array(tags, pa.list_(pa.string())),
            "source_uri": uris,
        }
    )


CLIPS = table(
    ("Two RED cars, and glasses", ["camera_pans_left"], "s3://cars/a/GX010023.MP4"),
    (None, [], "/films/night-drive_3.mov"),
    ("A scar on carpet", [], "/films/x.tar::b/clip.mp4"),
    ("雪の中の猫", ["static"], "/films/Straße.mp4"),
    # As macOS writes names: letters and accents apart.
    ("हिन्दी, İstanbul", [], "/films/Café-Straßencafe\u0301.mp4"),
    ("ह न द", [], "/films/Cafe.mp4"),
)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("car", [0]),
        ("glass", [0]),
        ("cars", [0]),
        ("red", [0]),
        ("camera pans", [0]),
        ("gx010023", [0]),
        ("Night", [1]),
        ("drive", [1]),
        ("films", []),
        ("clip", [2]),
        ("carpets", [2]),
        ("猫", [3]),
        ("straße", [3]),
        ("a.*b", []),
        ("static", [3]),
        ("cafe\u0301", [4]),
        ("straßencafé", [4]),
        ("हिन्दी", [4]),
        ("İSTANBUL", [4]),
    ],
)
def test_words_are_found_whole_in_captions_tags_and_names(query: str, found: list[int]) -> None:
    has = TextSearch(CLIPS, None).has_words(query_words(query))
    assert np.flatnonzero(has.all(axis=1)).tolist() == found


def test_a_query_may_have_no_words_but_not_thousands() -> None:
    scores, has = TextSearch(CLIPS, None).scores("🙂 \0")
    assert has.shape == (len(scores), 0)
    assert not scores.any()
    with pytest.raises(UsageError, match="has 1,001 words"):
        query_words(" ".join(f"w{number}" for number in range(1001)))


def test_a_rare_word_counts_more_than_a_common_one() -> None:
    clips = table(*[("a film of a dog", [], "x.mp4")] * 9, ("the cat", [], "y.mp4"))
    scores, has = TextSearch(clips, None).scores("film of a cat")
    assert scores.argmax() == 9
    assert has[9].tolist() == [False, True], "of and a are left out"
    assert query_words("to be of the") == ["be"]
    assert query_words("Of the") == ["of", "the"]
    assert scores.max() <= 1


def test_meaning_finds_captions_with_other_words(place: Path) -> None:
    """Pins real vectors: no query shares a word with the caption that it finds."""
    for query, number in (("young dog", 0), ("wet street traffic", 1), ("elderly musician", 2)):
        (first, *_) = curator.search(place / "out", text=query, k=3)
        assert first.caption == CAPTIONS[number]
        assert not first.words
    with pytest.raises(UsageError, match="without letters and digits"):
        curator.search(place / "out", text="?!", match="words")
    with pytest.raises(UsageError, match="no UTF-8"):
        curator.search(place / "out", text="dog \udcff")
    assert len(curator.search(place / "out", text="🐶", k=2)) == 2


def test_vectors_are_computed_once_for_each_caption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captions = ["a dog", "a cat", "the sea"]
    models = ModelStore(str(tmp_path))
    first = CaptionVectors(models, "out").of_captions(captions[:2])
    again = CaptionVectors(models, "out")
    asked: list[str] = []

    def of(self: CaptionVectors, texts: Sequence[str]) -> NDArray[np.float32]:
        asked.extend(texts)
        return real(self, texts)

    real = CaptionVectors.of
    monkeypatch.setattr(CaptionVectors, "of", of)
    vectors = again.of_captions(captions[::-1])
    assert asked == ["the sea"]
    assert (vectors[[2, 1]] == first).all()
    assert np.linalg.norm(vectors.astype(float), axis=1) == pytest.approx(1, abs=1e-3)


def test_vectors_of_removed_captions_are_not_kept(tmp_path: Path) -> None:
    models = ModelStore(str(tmp_path))
    CaptionVectors(models, "out").of_captions(["a dog", "a secret"])
    (file,) = (tmp_path / "derived").iterdir()
    CaptionVectors(models, "out").of_captions(["a dog"])
    with np.load(file) as stored:
        assert stored["hashes"].tolist() == [text_hash("a dog").encode()]
    file.write_bytes(b"")
    assert CaptionVectors(models, "out").of_captions(["a dog"]).any()


def test_the_answer_says_with_what_a_text_was_compared(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins that a search without the encoder says so, and how to get it."""
    asked = ("search", place / "out", "--text", "violins")
    assert "and with the meaning of captions" in said(capsys, *asked)
    line = said(capsys, *asked, "--match", "words").splitlines()
    assert line[1].split()[3] == "violins"
    assert line[2:] == ["compared with the words of captions, tags and names"]
    monkeypatch.setattr("curator.runs.caption_vectors.ENCODER", "t5-11b")
    last = said(capsys, *asked).splitlines()[-1]
    assert "the meaning of captions needs: " in last
    assert "[text]" in last
    assert "t5-11b" in said(capsys, *asked, "--match", "captions", code=2)


def test_damaged_weights_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins that a search does not take damaged weights for absent ones without a word."""
    models = ModelStore(str(tmp_path))
    monkeypatch.setattr("curator.models.weight_store._sha256", lambda _: "0" * 64)
    assert caption_vectors(models, "out") is None
    assert "is not the file that the catalogue names" in caplog.text
