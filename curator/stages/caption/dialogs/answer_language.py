"""Checks whether a text is in the requested language."""

import unicodedata
from functools import cache
from typing import TYPE_CHECKING

from curator.errors import RecipeError

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

NAMES = {
    "ar": "Arabic", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek", "en": "English",
    "es": "Spanish", "fi": "Finnish", "fr": "French", "he": "Hebrew", "hi": "Hindi",
    "hu": "Hungarian", "id": "Indonesian", "it": "Italian", "ja": "Japanese", "ko": "Korean",
    "nl": "Dutch", "no": "Norwegian", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian",
    "ru": "Russian", "sv": "Swedish", "th": "Thai", "tr": "Turkish", "uk": "Ukrainian",
    "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
"""English names of the languages that captions commonly use."""

# Languages whose texts readers confuse.
_ALIKE = (
    {"no", "nn", "da"},
    {"hr", "bs", "sr", "sh"},
    {"id", "ms", "jv"},
    {"zh", "wuu", "yue"},
    {"pt", "gl"},
    {"cs", "sk"},
    {"hi", "ne", "mr", "sa"},
)
_SAME_MODEL_NAME = {"nb": "no", "iw": "he"}
_NOT_LATIN = {
    **dict.fromkeys(("ar", "fa", "ur"), ("ARABIC",)),
    **dict.fromkeys(("ru", "uk", "be", "bg", "mk"), ("CYRILLIC",)),
    **dict.fromkeys(("hi", "mr", "ne"), ("DEVANAGARI",)),
    "el": ("GREEK",),
    "he": ("HEBREW",),
    "ja": ("HIRAGANA", "KATAKANA", "CJK"),
    "ko": ("HANGUL", "CJK"),
    "th": ("THAI",),
    "zh": ("CJK",),
}
_SCRIPTS = {**dict.fromkeys(NAMES, ("LATIN",)), **_NOT_LATIN}
# Half a sentence; shorter texts, and lists of names, are inconclusive.
_MIN_LETTERS = 32
_MIN_SCRIPT_LETTERS = 8
_MAX_OTHER_SCRIPT = 0.2
# All correct sentences of test_answer_language.py have 0.3 and more.
_MAX_PROBABILITY = 0.05


@cache
def _identifier() -> "LanguageIdentifier":
    """Returns the model, 4.5 MB in its wheel; loading takes 0.35 CPU seconds and 100 MB."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def check_language(language: str) -> None:
    """Raises RecipeError for a language that cannot be recognized."""
    labels = _identifier().labels
    if _SAME_MODEL_NAME.get(language, language) not in labels:
        names = ", ".join(sorted(name for name in labels if len(name) == 2))
        raise RecipeError(f"caption.language is {language!r}, which cannot be told; known: {names}")


def other_language(text: str, language: str) -> str | None:
    """Returns the actual language or script of a text that is not in `language` (ISO 639-1).

    Returns None for a text in that language, or too short to decide. Remove quotations first.
    """
    letters = [c for c in text if unicodedata.category(c)[0] == "L"]
    scripts = [unicodedata.name(c, "?").split()[0].split("-")[0] for c in letters]
    right = _SCRIPTS.get(language, ())
    strange = [script for script in scripts if right and script not in right]
    # Names and brands are written in Latin letters in any language.
    limit = _MAX_OTHER_SCRIPT if right == ("LATIN",) else 0.5
    if len(strange) >= _MIN_SCRIPT_LETTERS and len(strange) > limit * len(letters):
        return max(sorted(set(strange)), key=strange.count).capitalize()
    # A sign of Chinese or a syllable of Korean counts as two letters.
    weight = len(letters) * (2 if "CJK" in right else 1)
    if weight < _MIN_LETTERS:
        return None
    wanted = _SAME_MODEL_NAME.get(language, language)
    alike = {wanted}.union(*(group for group in _ALIKE if wanted in group))
    ranking = _identifier().rank(text)
    if sum(share for name, share in ranking if name in alike) >= _MAX_PROBABILITY:
        return None
    return str(ranking[0][0])
