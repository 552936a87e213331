# ruff: noqa: RUF001 - signs of many languages
"""Rules that find known failures: captions that each rule must find, and must leave alone.

The rules were developed on these captions, and are scored on benchmarks/caption_rules.yaml.
"""

import pytest

from curator.errors import RecipeError
from curator.stages.caption.caption_records import Answer, Unanswered
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.answer_rules import (
    _identifier,
    check_language,
    claimed_fields,
    cut_off_at,
    is_empty,
    meta_phrase_in,
    other_language,
    problem_of,
    problem_of_text,
    refusal_in,
    repeated_in,
    without_quotations,
)

CONFIG = CaptionConfig(lengths=("short",), text="short")


def reason(text: str, config: CaptionConfig = CONFIG) -> Unanswered | None:
    problem = problem_of(Answer(short=text), config)
    return None if problem is None else problem.reason


@pytest.mark.parametrize(
    "text",
    [
        "A man holds an image of a bridge.",
        "A video camera on a tripod films the choir.",
        "The sign reads 'I cannot'.",
        "A sign reads 'I cannot help you' in large letters.",
        "A girl points at the television. The picture shows a lion.",
        "Two men hang a painting; the image shows a stormy sea.",
        "He looks into the video camera and waves.",
        "The frame of the window is green, and the paint peels off.",
        "A car enters the frame from the left.",
        "Rain, rain, rain: people run for shelter.",
        "The dancers turn left, right, left, right, and bow.",
        "A drum machine blinks: one, two, three, four, one, two, three, four.",
        "A fan shouts 'no no no no no no' at the referee.",
        "A dog that barks at a dog that barks at a dog.",
        "A woman is sorry and hugs her friend.",
        "Sorry-looking houses line the street.",
        "Here is where the river meets the sea: brown water flows into blue.",
        "A bus stops at St. Louis",
        "A red car",
        "A nurse reads the label “Do not open” and puts the box back.",
        "The photo booth's curtain opens, and three friends step out laughing.",
        "People in the picture gallery walk from painting to painting.",
        "The player's left hand moves along the guitar's neck; the right one plucks the strings.",
        "A poster hangs on the wall. It is torn. People pass. A girl draws. Her picture is blue.",
        "A woman sits with her back to the viewer.",
        "Captain Ahab's ship, the Pequod, as a model in a bottle.",
        "A 5 kg dumbbell is lifted 12 times.",
    ],
)
def test_good_captions_pass(text: str) -> None:
    assert reason(text) is None


BAD = {
    "empty": ["", " \n", "?!", "N/A", "None"],
    "cut_off": [
        "A cat jumps onto the",
        "A cat, a dog,",
        "A cat sits. It gets up. It walks away. Then it comes ba",
        "A man walks, and then he...",
    ],
    "repeated": [
        "The sky is blue. The sky is blue. The sky is blue.",
        "a boat and a boat and a boat and a boat",
        "walking walking walking walking walking",
        "一只猫坐着，一只猫坐着，一只猫坐着。",
        "ปลาว่ายน้ำปลาว่ายน้ำปลาว่ายน้ำ",
        "The man runs fastfastfastfastfastfastfastfastfastfastfast",
    ],
    "refusal": [
        "I'm sorry, I can't help with that.",
        "I cannot provide a caption.",
        "I’m unable to process images.",
        "As an AI, I cannot see.",
        "No video was provided.",
        "我无法描述这段内容。",
    ],
    "wrong_language": [
        "Ein Hund läuft schnell über die nasse Wiese und bellt.",
        "一个孩子在公园里放风筝，风很大。",
        "Собака бежит по мокрой траве.",
    ],
    "meta_phrase": [
        "The image shows a dog.",
        "In this video, a dog runs.",
        "The video then shows a dog.",
        "A dog runs. The clip ends with a close-up.",
        "We see a dog.",
        "Here is the caption: A dog runs.",
        "**Caption:** A dog runs.",
        "A dog stands on the left side of the image.",
        "This is a photo of a dog.",
        "A screen stands in a hall. A dog runs. It barks. The video ends.",
        "A lamp on a wall. The video then shows a dog.",
        "Aerial footage captures a castle.",
        "A dog runs, inviting the viewer to play.",
        "视频中，一只狗在跑。",
    ],
}


@pytest.mark.parametrize(
    ("wanted", "text"), [(r, text) for r, some in BAD.items() for text in some]
)
def test_bad_captions_are_found_with_their_reason(wanted: str, text: str) -> None:
    assert reason(text) == wanted


def test_every_field_is_looked_at_by_settings_of_the_recipe() -> None:
    meta = "The video shows a brown dog that runs along the wet beach."
    assert reason(meta, CONFIG.model_copy(update={"allow_meta": True})) is None
    german = "Ein Hund läuft schnell über die nasse Wiese und bellt."
    assert reason(german, CONFIG.model_copy(update={"language": "de"})) is None
    assert reason(german, CONFIG.model_copy(update={"language": None})) is None
    english = "A dog runs quickly over the wet meadow and barks."
    assert reason(english, CONFIG.model_copy(update={"language": "de"})) == "wrong_language"
    # The rules check each length and other fields.
    config = CaptionConfig(structured=True)
    good = "A dog runs along the beach."
    answer = Answer(short=good, medium=good, long="The image shows a dog.")
    problem = problem_of(answer, config)
    assert problem is not None
    assert (problem.reason, problem.field) == (Unanswered.META_PHRASE, "long")
    parts = {"subjects": ["tree"] * 5, "setting": "a park", "text": ["EXIT"] * 5}
    problem = problem_of(Answer(short=good, medium=good, long=good, structured=parts), config)
    assert problem is not None
    assert (problem.reason, problem.field) == (Unanswered.REPEATED, "structured.subjects")
    parts["subjects"] = ["tree"]
    fine = Answer(short=good, medium=good, long=good, structured=parts)
    assert problem_of(fine, config) is None
    # The rules check an answer before it is parsed.
    whole = {"": "empty", "I'm sorry, but I can't help.": "refusal",
             '{"short": "I cannot help"}': None, "A dog runs.": None}  # fmt: skip
    cut = {"A dog runs": "cut_off", "the dog and the dog and the dog and the dog": "repeated"}
    for is_whole, texts in ((True, whole), (False, cut)):
        for text, expected in texts.items():
            problem = problem_of_text(text, is_whole=is_whole)
            assert (None if problem is None else problem.reason) == expected, text


def test_rules_name_the_place_outside_of_quotations_in_little_time() -> None:
    assert "go" not in without_quotations("They shout 'go go go' and run.")
    text = "The driver's seat and the child's bag are red; the dog's bowl isn't."
    assert without_quotations(text) == text
    loop = "The sign reads '" + "STOP " * 40 + "'"
    assert repeated_in(loop) is not None
    # The message names the place.
    assert refusal_in("I cannot describe it.") == "I cannot describe"
    assert meta_phrase_in("A dog. In the video, it runs.") == "In the video"
    assert cut_off_at("A dog jumps over the", "de") is None
    assert cut_off_at("A dog jumps over the", "en") == "A dog jumps over the"
    assert is_empty("---")
    # Patterns with catastrophic backtracking would not return.
    screens = " ".join(f"A screen of {i} inches. The video shows {i} dogs." for i in range(500))
    for text in ("'" * 5000, "a " * 5000, "the " * 5000, "{" * 5000, "the image " * 1000, screens):
        problem_of_text(text, is_whole=False)
        reason(text)
    assert reason("the image " * 1000) == Unanswered.REPEATED


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
    # The evidence for the threshold.
    assert dict(_identifier().rank(text))[language] > 0.3


@pytest.mark.parametrize(
    "text",
    [
        "", "Paris", "Volkswagen Käfer", "12:30 17:45", "Sushi, ramen, tempura", "東京",
        "A woman in a kimono walks past the Kinkaku-ji in Kyoto and buys takoyaki at a stall.",
        "A man reads Le Monde in front of the Brasserie Lipp on the Boulevard Saint-Germain.",
        "Drone shot over Neuschwanstein, Hohenschwangau and the Alpsee in the Allgäu Alps.",
        "A sign says 出口 and people walk past it towards the train on the left platform.",
        "DJ at turntables, crowd with raised hands, purple light, smoke, confetti.",
    ],
)  # fmt: skip
def test_too_little_is_not_judged_and_foreign_names_make_no_foreign_language(text: str) -> None:
    assert other_language(text, "en") is None


def test_languages_that_look_alike_are_taken_and_unknown_ones_refused() -> None:
    assert other_language("En brun hund løper langs stranden og stopper ved vannet.", "nb") is None
    assert other_language("一个男人在 McDonald's 门口吃汉堡，旁边停着一辆 BMW 汽车。", "zh") is None
    # A language that the identifier does not know is refused.
    check_language("en")
    check_language("nb")
    with pytest.raises(RecipeError, match=r"caption\.language is 'xx'.*known: .*en, eo, es"):
        check_language("xx")


def test_parts_of_a_window_and_text_in_it_make_no_claims_about_the_whole() -> None:
    first, second = ({"time_range": f"0:0{n}-0:0{n + 1}", "camera": "static"} for n in range(2))
    sign = {"text": "NIGHT MARKET", "category": "scene_sign"}
    extra = {"segments": [first, second], "text_and_signage_elements": [sign]}
    answer = Answer(extra=extra, structured={"camera": "pans left", "text": ["NIGHT"]})
    assert claimed_fields(answer) == {
        "segments": [],
        "text_and_signage_elements": [{"category": "scene_sign"}],
        "structured": {"camera": "pans left"},
    }
    assert claimed_fields(Answer(extra={"segments": [first]})) == {"segments": [first]}
