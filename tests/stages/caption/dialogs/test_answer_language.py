# ruff: noqa: RUF001 - letters of many languages
"""Whether a caption's language is told, and left alone where it cannot be."""

import pytest

from curator.errors import RecipeError
from curator.stages.caption.dialogs.answer_rules import (
    _identifier,
    check_language,
    other_language,
)

SENTENCES = {
    "ar": "كلب بني يركض على الشاطئ ثم يتوقف بجانب الماء وينظر إلى البحر.",
    "cs": "Hnědý pes běží po pláži, zastaví se u vody a dívá se na moře.",
    "da": "En brun hund løber langs stranden, standser ved vandet og ser ud over havet.",
    "de": "Ein brauner Hund läuft am Strand entlang, bleibt am Wasser stehen und schaut aufs Meer.",
    "el": "Ένας καφέ σκύλος τρέχει στην παραλία και κοιτάζει τη θάλασσα.",
    "en": "A brown dog runs along the beach, stops at the water and looks out over the sea.",
    "es": "Un perro marrón corre por la playa, se detiene junto al agua y mira el mar.",
    "fi": "Ruskea koira juoksee pitkin rantaa, pysähtyy veden äärelle ja katsoo merelle.",
    "fr": "Un chien brun court sur la plage, s'arrête au bord de l'eau et regarde la mer.",
    "he": "כלב חום רץ לאורך החוף, נעצר ליד המים ומביט אל הים.",
    "hi": "एक भूरा कुत्ता समुद्र तट पर दौड़ता है और पानी के पास रुककर समुद्र को देखता है।",
    "hu": "Egy barna kutya fut a parton, megáll a víznél és nézi a tengert.",
    "id": "Seekor anjing cokelat berlari di pantai, berhenti di tepi air dan memandang laut.",
    "it": "Un cane marrone corre lungo la spiaggia, si ferma vicino all'acqua e guarda il mare.",
    "ja": "茶色い犬が海辺を走り、水際で立ち止まって海を眺めている。",
    "ko": "갈색 개가 해변을 달리다가 물가에서 멈춰 서서 바다를 바라본다.",
    "nl": "Een bruine hond rent over het strand, stopt bij het water en kijkt uit over de zee.",
    "pl": "Brązowy pies biegnie po plaży, zatrzymuje się przy wodzie i patrzy na morze.",
    "pt": "Um cão castanho corre pela praia, para junto da água e olha para o mar.",
    "ro": "Un câine maro aleargă pe plajă, se oprește lângă apă și privește marea.",
    "ru": "Коричневая собака бежит по пляжу, останавливается у воды и смотрит на море.",
    "sv": "En brun hund springer längs stranden, stannar vid vattnet och ser ut över havet.",
    "th": "สุนัขสีน้ำตาลวิ่งไปตามชายหาดแล้วหยุดมองทะเล",
    "tr": "Kahverengi bir köpek sahilde koşuyor, suyun yanında duruyor ve denize bakıyor.",
    "uk": "Коричневий собака біжить пляжем, зупиняється біля води й дивиться на море.",
    "vi": "Một con chó nâu chạy dọc bãi biển, dừng lại bên mép nước và nhìn ra biển.",
    "zh": "一只棕色的狗沿着海滩奔跑，在水边停下来望着大海。",
}


@pytest.mark.parametrize("language", SENTENCES)
def test_a_sentence_is_in_its_language_and_in_no_other(language: str) -> None:
    text = SENTENCES[language]
    assert other_language(text, language) is None
    for other in SENTENCES:
        if other != language:
            assert other_language(text, other) is not None, other


def test_what_the_threshold_stands_on() -> None:
    shares = {name: dict(_identifier().rank(text))[name] for name, text in SENTENCES.items()}
    assert min(shares.values()) > 0.3, min(shares, key=shares.__getitem__)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Paris",
        "Shibuya, Tokyo",
        "Volkswagen Käfer",
        "12:30 17:45",
        "Sushi, ramen, tempura",
        "Café de Flore",
        "東京",
    ],
)
def test_too_little_is_not_judged(text: str) -> None:
    assert other_language(text, "en") is None


@pytest.mark.parametrize(
    "text",
    [
        "A woman in a kimono walks past the Kinkaku-ji in Kyoto and buys takoyaki at a stall.",
        "A man reads Le Monde in front of the Brasserie Lipp on the Boulevard Saint-Germain.",
        "Drone shot over Neuschwanstein, Hohenschwangau and the Alpsee in the Allgäu Alps.",
        "A sign says 出口 and people walk past it towards the train on the left platform.",
        "DJ at turntables, crowd with raised hands, purple light, smoke, confetti.",
    ],
)
def test_foreign_names_make_no_foreign_language(text: str) -> None:
    assert other_language(text, "en") is None


def test_norwegian_may_look_danish_and_a_name_may_be_written_in_latin_letters() -> None:
    assert other_language("En brun hund løper langs stranden og stopper ved vannet.", "nb") is None
    assert other_language("一个男人在 McDonald's 门口吃汉堡，旁边停着一辆 BMW 汽车。", "zh") is None


def test_a_language_that_cannot_be_told_is_refused() -> None:
    check_language("en")
    check_language("nb")
    with pytest.raises(RecipeError, match=r"caption\.language is 'xx'.*known: .*en, eo, es"):
        check_language("xx")
