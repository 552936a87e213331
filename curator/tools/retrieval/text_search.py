"""Finds clips by a text: by the words of captions, tags and names, and by the captions' meaning.

Shape letters: C clips, U distinct captions, D dimensions.
"""
# ruff: noqa: N806 - shape letters

import re
import unicodedata
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import UsageError
from curator.runs.caption_vectors import CaptionVectors

WORDS_POWER = 3
"""A description shares some words with many captions: a clip with half of its words gets 1/8.
Source: benchmarks/results/text_search.md."""
_FUNCTION_WORDS = frozenset(
    ("a", "an", "and", "are", "at", "by", "for", "from", "in", "is", "it", "its", "of", "on", "or",
     "the", "to", "with")
)  # fmt: skip
MAX_WORDS = 1000
"""Most distinct words of a query; each reads the texts of all clips."""
_COLUMNS = ("caption", "tags", "source_uri")
_EDGE = r"[^\pL\pN\pM]"


def query_words(text: str) -> list[str]:
    """Returns the distinct words of a query, composed and in lower case as `has_words` has them.

    Articles, prepositions and the like are left out, unless there is nothing else.

    Raises:
        UsageError: There are more than `MAX_WORDS`.
    """
    lower = _comparable(pa.scalar(text)).as_py()
    # Vowel signs of scripts such as Devanagari are marks.
    parts = (c if c.isalnum() or unicodedata.category(c).startswith("M") else " " for c in lower)
    words = list(dict.fromkeys("".join(parts).split()))
    if len(words) > MAX_WORDS:
        raise UsageError(f"--text has {len(words):,} words; expected at most {MAX_WORDS:,}")
    return [word for word in words if word not in _FUNCTION_WORDS] or words


def _comparable(texts: Any) -> Any:  # noqa: ANN401 - a scalar or an array of Arrow
    # macOS writes names with letters and accents apart.
    return pc.utf8_lower(pc.utf8_normalize(texts, "NFC"))


def word_pattern(word: str) -> str:
    """Returns a pattern of RE2 that finds a word or its plural in a text in lower case.

    Words of scripts without upper case, such as Chinese, are found within other words, because
    such scripts may have no spaces.
    """
    if word.upper() == word and not word.isdecimal():
        return re.escape(word)
    singular = [word[: -len(end)] for end in ("s", "es") if word.endswith(end) and len(word) > 4]
    return f"(^|{_EDGE})({'|'.join([word, *singular])})(e?s)?($|{_EDGE})"


class TextSearch:
    """Scores the clips of a table by a text.

    Args:
        clips: Rows of `clips`.
        vectors: Gives vectors of captions; None to compare only words.
    """

    def __init__(self, clips: pa.Table, vectors: CaptionVectors | None) -> None:
        self._clips = clips
        self._vectors = vectors

    def has_words(self, words: list[str]) -> NDArray[np.bool_]:
        """Returns which words of a query the texts of each clip have, bool [C, words].

        The texts of a clip are its caption, its tags, and the name of its source without folders.
        """
        found = [np.zeros((0, len(words)), np.bool_)]
        for batch in self._clips.select(_COLUMNS).to_batches():
            captions, tags, uris = (batch[name] for name in _COLUMNS)
            names = pc.replace_substring_regex(uris, ".*/", "")
            texts = _comparable(
                pc.binary_join_element_wise(
                    pc.fill_null(captions, ""), pc.fill_null(pc.binary_join(tags, " "), ""), names,
                    " ",
                )
            )  # fmt: skip
            has = np.zeros((len(texts), len(words)), np.bool_)
            for number, word in enumerate(words):
                matches = pc.match_substring_regex(texts, word_pattern(word))
                has[:, number] = matches.to_numpy(zero_copy_only=False)
            found.append(has)
        return np.concatenate(found)

    def scores(self, text: str) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Returns the scores of all clips, float32 [C], and `has_words` of the query's words.

        The score by words is the share of the query's words that a clip has, 0 to 1; rare words
        count more, by BM25's weight. With vectors, the score is the mean of this share, to the
        power of `WORDS_POWER`, and of the cosine of caption and query, 0 without a caption.

        Source: S. Robertson, H. Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond,
        2009, for the weight.
        """
        words = query_words(text)
        has = self.has_words(words)
        n_with = has.sum(axis=0)
        weights = np.log1p((len(has) - n_with + 0.5) / (n_with + 0.5))
        shares_C = (has @ weights / max(weights.sum(), 1e-9)).astype(np.float32)
        if self._vectors is None:
            return shares_C, has
        vectors_UD, number_C = self._captions
        cosines_U = np.append(vectors_UD @ self._vectors.of([text])[0], np.float32(0))
        return (shares_C**WORDS_POWER + cosines_U[number_C]) / 2, has

    @cached_property
    def _captions(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Vectors of the distinct captions, [U, D], and the caption of each clip, int64 [C].

        -1 stands for no caption.
        """
        assert self._vectors is not None
        column = self._clips["caption"]
        blank = pc.equal(pc.utf8_trim_whitespace(pc.fill_null(column, "")), "")
        coded = pc.if_else(blank, pa.scalar(None, pa.string()), column).combine_chunks()
        coded = coded.dictionary_encode()
        vectors = self._vectors.of_captions(coded.dictionary.to_pylist())
        numbers = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return vectors.astype(np.float32), numbers
