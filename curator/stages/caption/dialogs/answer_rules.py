# ruff: noqa: RUF001 - characters of many languages
"""Rules that find known failures of captioners: pure functions of texts.

Each rule finds one failure and its place. The rules were developed on the captions of
`test_answer_rules.py`, and scored on the captions of `benchmarks/caption_rules.yaml`.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from curator.errors import RecipeError
from curator.records.clip_times import FIELDS, is_span, is_span_within
from curator.stages.caption.caption_records import Answer, Unanswered
from curator.stages.caption.config import CaptionConfig

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

# Languages with similar texts, which the language identifier confuses.
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
# Half a sentence: shorter texts and lists of names are inconclusive.
_MIN_LETTERS = 32
_MIN_SCRIPT_LETTERS = 8
_MAX_OTHER_SCRIPT = 0.2
# Of the wanted language: correct sentences in test_answer_rules.py have at least 0.3.
_MAX_PROBABILITY = 0.05

_WE = r"(?:i|we)(?:'m| am|'re| are)?"
_CANNOT = (
    r"(?:can ?not|can't|could(?: not|n't)|won't|will not|do(?: not|n't)|(?:am |are )?unable to|"
    r"(?:am |are )?not able to)"
)
_TALK = (
    r"(?:assist|help|describe|provide|view|see|watch|fulfil+|comply|process|analy[sz]e|access|"
    r"identify|determine|generate|create|caption|answer|comment|continue|engage|support|discuss|"
    r"fully|accurately|directly|actually|offer|give|have (?:access|the ability|enough|any))"
)

_REFUSAL = re.compile(
    rf"\b{_WE} {_CANNOT} {_TALK}\b"
    r"|\bas an? (?:ai|artificial intelligence|(?:large )?language model|vision model)\b"
    r"|^(?:i'm |i am |we are )?(?:so |very |really )?sorry\b[ ,]*(?:but|i|we|this|that|for)\b"
    r"|^(?:unfortunately|regrettably),? (?:i|we|there (?:is|are|was) no)\b"
    r"|^i (?:must |have to )?(?:apologi[sz]e|decline|refuse)\b"
    r"|^my apologies\b"
    r"|\bplease (?:provide|upload|share|attach|send)\b.{0,40}"
    r"\b(?:video|image|frame|clip|file)s?\b"
    r"|\bno (?:video|images?|frames?|clip)s? (?:was|were|is|are|has been|have been) "
    r"(?:provided|attached|uploaded|given|supplied|included|shared)\b"
    r"|\b(?:against|violates?) (?:my|our|the) (?:\w+ )?(?:guidelines|polic(?:y|ies)|principles)\b"
    r"|^(?:很|非常)?(?:抱歉|对不起|對不起)|^(?:我|本人)(?:无法|無法|不能)(?:描述|提供|协助|帮助|查看|回答)"
    r"|^申し訳|^すみませんが|^죄송|^미안하지만"
    r"|^es tut mir leid\b|^entschuldigung, |^ich kann (?:dabei|dir|ihnen|diese\w*|das) .*nicht\b"
    r"|^je suis (?:vraiment )?désolée?\b|^désolée?,"
    r"|^je ne (?:peux|suis) pas (?:en mesure|décrire|vous)"
    r"|^lo siento\b|^no puedo (?:ayudar|describir|proporcionar|ver)\b"
    r"|^(?:me )?desculpe\b|^sinto muito\b|^não posso (?:ajudar|descrever)\b"
    r"|^mi dispiace\b|^non posso (?:aiutar|descriver)"
    r"|^(?:извините|простите|к сожалению, я)|^я не могу (?:помочь|описать)",
    re.IGNORECASE | re.DOTALL,
)
"""Phrases of a model that declines to answer, in text without quotations."""

_PICTURE = r"(?:image|picture|photo|photograph|video|clip|footage|film|frame|sequence|screenshot)s?"
"""Nouns for the picture itself instead of its content."""

# "The video game shows" and "in the picture frame" name things in the scene.
_NOT_COMPOUND = (
    r"(?![ -](?:games?|calls?|cameras?|walls?|screens?|monitors?|conferences?|booths?|frames?|"
    r"books?|albums?|studios?|stores?|shops?|displays?|gallery|galleries|windows?|shoots?|sets?|crews?|"
    r"on (?:the|a|his|her|its|their)|he|she|they|that|beside|above|behind)\b)"
)
_SHOWS = (
    r"(?:shows?|showing|showcases?|depicts?|captures?|captured|features?|displays?|presents?|"
    r"portrays?|illustrates?|contains?|consists?|conveys?|documents?|focus(?:es)?|highlights?|begins?|"
    r"starts?|opens?|ends?|concludes?|continues?|progresses|transitions?|cuts?|fades?|zooms?|"
    r"appears? to|seems? to|gives?|provides?|offers?|is|are|was|were|has|have|then|also|"
    r"primarily|mainly|clearly)"
)
_THIS = (
    r"(?:the|this|these)(?: (?:provided|given|short|entire|whole|first|second|last|final|next))?"
)

_META = re.compile(
    rf"\b{_THIS} (?P<subject>{_PICTURE}) {_SHOWS}\b"
    rf"|\b(?:in|throughout|across|during|of|from|by|into|within|to) {_THIS} "
    rf"(?P<place>(?!frame\b|film\b){_PICTURE})\b{_NOT_COMPOUND}"
    rf"|(?:^|[.!?,] |giving |gives |lending )(?:the|this) (?P<start>video|image|footage)\b"
    rf"{_NOT_COMPOUND}",
    re.IGNORECASE,
)
"""Phrases about the picture itself, unless the text names a thing with a picture before."""

_META_ALWAYS = re.compile(
    rf"^(?:this|here|it|the following) (?:is|are) (?:an? |the )?(?:\w+[ -]){{0,2}}{_PICTURE}\b"
    r"|^an? (?:\w+[ -]){0,2}(?:image|picture|photo|photograph|video|clip) "
    r"(?:of|showing|that shows)\b"
    # Finds "Aerial footage captures", and not "a film crew shows".
    rf"|^(?:an? )?(?:[\w-]+ ){{0,3}}{_PICTURE} (?:captures?|shows?|showcases?|depicts?|features?)\b"
    r"|\b(?:invit|allow|giv|mak|leav|draw)(?:es?|ing|s) viewers?\b"
    # "With its back to the viewer" and "looks at the viewer" name a direction.
    r"|(?<!\bat )(?<!\bto )(?<!\btoward )(?<!\btowards )(?<!\bfacing )\bthe viewers?\b"
    r"|^(?:sure|certainly|of course|okay|absolutely|great)\s*[!,.:]"
    r"|^here(?:'s| is| are) (?:an? |the |your |my )?(?:\w+ ){0,3}"
    r"(?:captions?|descriptions?|summary|summaries|json|answers?|response|breakdown|overview)\b"
    r"|^[\W_]*(?:(?:short|medium|long|video|image|detailed) )?"
    r"(?:caption|description|summary|title|answer|response)\b[\W_]*:"
    rf"|\bbased on (?:the|these) (?:\w+ )?(?:{_PICTURE}|facts|metadata|information|descriptions?)\b"
    rf"|\bthe (?:provided|given|supplied|described) (?:{_PICTURE}|facts|metadata)\b"
    r"|\b(?:according to|as (?:described|stated|noted|mentioned) in) the "
    r"(?:facts|metadata|notes|ocr)\b"
    r"|\bwe (?:can |could |also |then |first |now )*(?:see|observe|witness|notice)\b"
    r"|(?:这|这张|这个|该|本)(?:图片|图像|照片|视频|影片)(?:中|里|展示|显示|是|呈现|描绘|开始)"
    r"|^(?:视频|图片|图像|照片|影片)(?:中|里|展示|显示|开始)"
    r"|(?:この|本)(?:動画|画像|映像|写真|ビデオ)|^(?:動画|画像|映像)(?:では|には|は)"
    r"|(?:이|해당) (?:영상|비디오|동영상|이미지|사진)|^(?:영상|비디오|이미지)(?:은|는|에서|에는)"
    r"|\b(?:das|dieses) (?:bild|video|foto) (?:zeigt|beginnt|stellt)\b"
    r"|\bin diesem (?:video|bild|clip)\b"
    r"|\b(?:l'image|la vidéo|cette (?:image|vidéo)|la photo) (?:montre|présente|commence|illustre)"
    r"|\bdans cette (?:vidéo|image)\b"
    r"|\b(?:la imagen|el v[ií]deo|este v[ií]deo|esta imagen) (?:muestra|presenta|comienza)"
    r"|\ben est[ea] (?:v[ií]deo|imagen)\b"
    r"|\b(?:a imagem|o vídeo|este vídeo) (?:mostra|apresenta|começa)|\bneste vídeo\b"
    r"|\b(?:l'immagine|il video|questo video) (?:mostra|presenta|inizia)|\bin questo video\b"
    r"|(?:на (?:этом )?(?:видео|изображении|фото)|видео показывает|в этом видео)",
    re.IGNORECASE,
)
"""Phrases about the picture itself, or to the user, whatever the text names before."""

_ON_SCREEN = (
    r"screens?|tv|televisions?|monitors?|displays?|projectors?|phones?|smartphones?|tablets?|laptops?|"
    r"cinema|slides?|presentations?"
)
_OWN = r"an?|his|her|their|two|three|several|some|other|old|small|large|framed|family|printed"
_SHOWING_STILL = re.compile(
    rf"\b(?:{_ON_SCREEN}|posters?|paintings?|portraits?|billboards?|newspapers?|magazines?|books?|"
    r"albums?|canvas|easels?|postcards?|prints?|drawings?|sketch(?:es)?|gallery|"
    rf"(?:{_OWN}) (?:\w+ ){{0,2}}(?:images?|pictures?|photos?|photographs?))\b",
    re.IGNORECASE,
)
"""Things with a picture on them, which a caption may mention."""

_SHOWING_MOVING = re.compile(
    rf"\b(?:{_ON_SCREEN}|(?:{_OWN}) (?:\w+ ){{0,2}}(?:videos?|clips?|films?|movies?))\b",
    re.IGNORECASE,
)
"""Things on which a video plays, which a caption may mention."""

_IS_STILL = re.compile(r"(?:image|picture|photo|photograph|screenshot)s?", re.IGNORECASE)

# With names of fields, which models copy from the requested form.
_PLACEHOLDER = re.compile(
    r"(?:n/?a|none|null|nil|unknown|undefined|empty|todo|string|text|caption|description|short|"
    r"medium|long)",
    re.IGNORECASE,
)
"""Filler words of an empty answer."""

_UNFINISHED = re.compile(
    r"\b(?:an?|the|and|or|but|of|his|its|their|my|your|our|into|onto|while|whose|which|because|than|"
    r"very|is|are|was)$"
)
"""English words that cannot end a sentence."""

# A longer quotation is more likely a loop of the model than text in the picture.
_MAX_QUOTED = 80
_QUOTED = re.compile(
    rf"\"[^\"]{{1,{_MAX_QUOTED}}}\"|“[^”]{{1,{_MAX_QUOTED}}}”|„[^“”]{{1,{_MAX_QUOTED}}}[“”]"
    rf"|«[^»]{{1,{_MAX_QUOTED}}}»|「[^」]{{1,{_MAX_QUOTED}}}」|『[^』]{{1,{_MAX_QUOTED}}}』"
    # An apostrophe within a word is no quotation mark.
    rf"|(?<!\w)'[^\n]{{1,{_MAX_QUOTED}}}?'(?!\w)|(?<!\w)‘[^\n]{{1,{_MAX_QUOTED}}}?’(?!\w)"
)
# Scripts without spaces between words: each character counts as a word.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)
_TOKEN = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
_RUN = re.compile(r"(\S{1,12}?)\1{9,}")
_SENTENCE = re.compile(r"[^.!?。！？\n]+[.!?。！？]?")
_ENDS = (".", "!", "?", "。", "！", "？", "।", "…", '"', "'", "”", "’", ")", "」", "』", "»", "*")
_MAX_UNIT = 60
_MIN_TIMES = 3

_READ_TEXT = ("structured.text", "text_and_signage_elements.text")
"""Fields with text in the picture, which may repeat, and makes no claims about the clip."""


class Problem(NamedTuple):
    """Why an answer is rejected: reason, field (such as `short`), and a line for the prompt."""

    reason: Unanswered
    field: str
    message: str


def problem_of(answer: Answer, config: CaptionConfig) -> Problem | None:
    """Returns the first problem of an answer: in captions by `caption.lengths`, then elsewhere."""
    for length in config.lengths:
        if (wrong := _wrong_caption(length, getattr(answer, length) or "", config)) is not None:
            return wrong
    nodes = [*_nodes("structured", answer.structured), *_nodes("", answer.extra)]
    for name, text in nodes:
        if isinstance(text, str):
            if (phrase := refusal_in(text)) is not None:
                return Problem(Unanswered.REFUSAL, name, f"it declines to answer: {phrase!r}")
            if name not in _READ_TEXT and (phrase := repeated_in(text)) is not None:
                return Problem(Unanswered.REPEATED, name, f"{name} repeats {phrase!r}")
    for name, items in nodes:
        if isinstance(items, list) and name.startswith("structured."):
            words = [str(item).casefold() for item in items]
            most = max(words, key=words.count, default="")
            if words.count(most) >= (10 if name == "structured.text" else 4):
                return Problem(Unanswered.REPEATED, name, f"{name} repeats {most[:60]!r}")
    return None


def problem_of_text(text: str, *, is_whole: bool) -> Problem | None:
    """Returns the problem of an unparsed answer; `is_whole` is False if a token limit ended it."""
    if not text.strip():
        return Problem(Unanswered.EMPTY, "answer", "it was empty")
    if not is_whole:
        if (phrase := repeated_in(text)) is not None:
            return Problem(Unanswered.REPEATED, "answer", f"it repeated {phrase!r}")
        return Problem(Unanswered.CUT_OFF, "answer", "it was too long and was cut off; be shorter")
    if "{" not in text and (phrase := refusal_in(text)) is not None:
        return Problem(Unanswered.REFUSAL, "answer", f"it declined to answer: {phrase!r}")
    return None


def wrong_times(fields: Mapping[str, Any], seconds: float) -> list[str]:
    """Returns a line for each time in an answer that is not within its window of `seconds`.

    Only fields named `time` or `time_range` with the form M:SS-M:SS are times of the window; a
    prompt that demands this form has a `pattern` in its schema.
    """
    return [
        f"{name}: found {text!r}; expected a time between 0:00 and the end at {seconds:.1f} s, "
        "the earlier one first"
        for name, text in _nodes("", fields)
        if isinstance(text, str)
        and name.rpartition(".")[2] in FIELDS
        and is_span(text)
        and not is_span_within(text, seconds)
    ]


def claimed_fields(answer: Answer) -> dict[str, Any]:
    """Returns the structured fields of an answer that measurements of the whole window can check.

    Text that the model read in the picture makes no claims, and an entry with a time describes a
    part of the window, unless it is the only one of its list.
    """
    structured = {"structured": answer.structured} if answer.structured else {}
    claimed: dict[str, Any] = _claimed("", {**answer.extra, **structured})
    return claimed


def _claimed(name: str, value: Any) -> Any:  # noqa: ANN401 - any value of JSON
    if isinstance(value, dict):
        paths = {key: f"{name}.{key}".lstrip(".") for key in value}
        return {
            key: _claimed(paths[key], inner)
            for key, inner in value.items()
            if paths[key] not in _READ_TEXT
        }
    if isinstance(value, list):
        timed = [item for item in value if isinstance(item, dict) and set(FIELDS) & item.keys()]
        return [_claimed(name, item) for item in value if len(value) == 1 or item not in timed]
    return value


def _wrong_caption(length: str, text: str, config: CaptionConfig) -> Problem | None:
    if is_empty(text):
        return Problem(Unanswered.EMPTY, length, "it was empty")
    if (phrase := refusal_in(text)) is not None:
        return Problem(Unanswered.REFUSAL, length, f"it declined to answer: {phrase!r}")
    if (phrase := repeated_in(text)) is not None:
        return Problem(Unanswered.REPEATED, length, f"it repeated {phrase!r}")
    if (phrase := cut_off_at(text, config.language)) is not None:
        return Problem(Unanswered.CUT_OFF, length, f"it broke off at {phrase!r}")
    if not config.allow_meta and (phrase := meta_phrase_in(text)) is not None:
        message = f"it spoke of the image or video, in {phrase!r}; speak of what is seen"
        return Problem(Unanswered.META_PHRASE, length, message)
    if config.language is not None:
        language = other_language(without_quotations(text), config.language)
        if language is not None:
            message = f"it was in another language ({language})"
            return Problem(Unanswered.WRONG_LANGUAGE, length, message)
    return None


def is_empty(text: str) -> bool:
    """Returns whether a text has no words, or only a filler such as `N/A`."""
    words = "".join(c for c in text if unicodedata.category(c)[0] in "LN" or c in " /")
    return not words.strip(" /") or _PLACEHOLDER.fullmatch(text.strip()) is not None


def without_quotations(text: str) -> str:
    """Replaces each quotation in a text, except long ones, by one character."""
    return _QUOTED.sub("\u00a4", text)


def refusal_in(text: str) -> str | None:
    """Returns the phrase by which a model declines to answer, or None."""
    match = _REFUSAL.search(_plain(text))
    return match[0][:60] if match is not None else None


def meta_phrase_in(text: str) -> str | None:
    """Returns a phrase about the image or the video itself, or None.

    A sentence may mention a picture in the scene, printed or on a screen, if this sentence or the
    sentence before it names the picture.
    """
    plain = _plain(text)
    if (match := _META_ALWAYS.search(plain)) is not None:
        return match[0]
    for match in _META.finditer(plain):
        is_still = _IS_STILL.fullmatch(match["subject"] or match["place"] or match["start"])
        showing = _SHOWING_STILL if is_still else _SHOWING_MOVING
        before = plain[: match.start()]
        last = max(before.rfind(end) for end in ".!?")
        # From the start of the sentence before.
        begin = max(before.rfind(end, 0, max(last, 0)) for end in ".!?") + 1
        if showing.search(before[begin:]) is None:
            return match[0].lstrip(".!?, ")
    return None


def _plain(text: str) -> str:
    return " ".join(without_quotations(text).replace("’", "'").split())


def cut_off_at(text: str, language: str | None) -> str | None:
    """Returns the end of a text that breaks off in a sentence, or None.

    In all languages, punctuation decides; for `en`, words that cannot end a sentence count, too.
    """
    text = text.strip()
    if not text:
        return None
    end = text[-24:]
    if text.endswith((",", ";", ":", "(", "[", "—", "–", "-", "...", "、", "，")):
        return end
    if text.endswith(_ENDS):
        return None
    if language == "en" and _UNFINISHED.search(text) is not None:
        return end
    # After two sentences with final punctuation, the last one should have some.
    ended = re.findall(r"[a-z]{3}[.!?](?=\s+\S)|[。！？](?=\S)", text)
    return end if len(ended) >= 2 else None


def repeated_in(text: str) -> str | None:
    """Returns the phrase that a text repeats without need, or None.

    A repetition is a phrase of one or two words 5 times in a row; a longer phrase 3 times in a row;
    a sentence of at least five words twice in a row, or 3 times anywhere; a string 10 times without
    spaces; or sequences of six words that occur 3 times each and cover more than half of a text.
    """
    text = without_quotations(text)
    if (run := _RUN.search(text)) is not None and len(run[0]) >= 15:
        return run[1]
    tokens = [token.casefold() for token in _TOKEN.findall(text)]
    if (loop := _loop(tokens)) is not None:
        return _joined(loop)
    sentences = [" ".join(_TOKEN.findall(s.casefold())) for s in _SENTENCE.findall(text)]
    sentences = [sentence for sentence in sentences if sentence]
    for i, sentence in enumerate(sentences):
        if len(sentence.split()) >= 5:
            in_a_row = i > 0 and sentences[i - 1] == sentence
            if in_a_row or sentences.count(sentence) >= 3:
                return sentence
    return _mostly_repeated(tokens)


def _loop(tokens: Sequence[str]) -> Sequence[str] | None:
    """Returns the repeated phrase of the first loop, or None."""
    for size in range(1, min(_MAX_UNIT, len(tokens) // 2) + 1):
        length = 0
        for i in range(len(tokens) - size):
            length = length + 1 if tokens[i] == tokens[i + size] else 0
            if length >= (_MIN_TIMES - 1) * size:
                unit = tokens[i + 1 : i + 1 + size]
                if length >= (_times(unit) - 1) * size:
                    return unit
    return None


def _times(unit: Sequence[str]) -> int:
    """Returns how often a phrase must occur in a row to be a loop."""
    # Four characters of Chinese or Thai hold about as much as three words.
    weight = sum(0.75 if re.match(f"[{_UNSPACED}]", token) else 1.0 for token in unit)
    return 8 if weight < 1 else 5 if weight < 3 else _MIN_TIMES


def _mostly_repeated(tokens: Sequence[str]) -> str | None:
    size = 6
    grams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
    counts = Counter(grams)
    covered: set[int] = set()
    for i, gram in enumerate(grams):
        if counts[gram] >= _MIN_TIMES:
            covered.update(range(i, i + size))
    return _joined(counts.most_common(1)[0][0]) if len(covered) * 2 > len(tokens) else None


def _joined(tokens: Sequence[str]) -> str:
    is_unspaced = any(re.match(f"[{_UNSPACED}]", token) for token in tokens)
    return ("" if is_unspaced else " ").join(tokens)[:60]


def _nodes(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yields all texts and lists, with the names of their fields."""
    if isinstance(value, str | list):
        yield name, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _nodes(f"{name}.{key}".lstrip("."), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _nodes(name, inner)


@cache
def _identifier() -> "LanguageIdentifier":
    """Loads the language identifier, in 0.35 CPU-s and 100 MB of memory; its wheel has 4.5 MB."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def check_language(language: str) -> None:
    """Raises `RecipeError` for a language that the identifier cannot recognize."""
    labels = _identifier().labels
    if _SAME_MODEL_NAME.get(language, language) not in labels:
        names = ", ".join(sorted(name for name in labels if len(name) == 2))
        raise RecipeError(f"caption.language is {language!r}, which is unknown; known: {names}")


def other_language(text: str, language: str) -> str | None:
    """Returns the language or script of a text that is not in `language` (ISO 639-1), else None.

    A text that is too short gives None. Callers remove quotations first.
    """
    letters = [c for c in text if unicodedata.category(c)[0] == "L"]
    scripts = [unicodedata.name(c, "?").split()[0].split("-")[0] for c in letters]
    right = _SCRIPTS.get(language, ())
    strange = [script for script in scripts if right and script not in right]
    # Names and brands are written in Latin letters in any language.
    limit = _MAX_OTHER_SCRIPT if right == ("LATIN",) else 0.5
    if len(strange) >= _MIN_SCRIPT_LETTERS and len(strange) > limit * len(letters):
        return max(sorted(set(strange)), key=strange.count).capitalize()
    # A Chinese character or a Korean syllable counts as two letters.
    weight = len(letters) * (2 if "CJK" in right else 1)
    if weight < _MIN_LETTERS:
        return None
    wanted = _SAME_MODEL_NAME.get(language, language)
    alike = {wanted}.union(*(group for group in _ALIKE if wanted in group))
    ranking = _identifier().rank(text)
    if sum(share for name, share in ranking if name in alike) >= _MAX_PROBABILITY:
        return None
    return str(ranking[0][0])
