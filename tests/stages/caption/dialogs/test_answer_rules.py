# ruff: noqa: RUF001 - signs of many languages
"""Rules against known failures: what each must find, and what it must leave alone.

These captions are what the rules were developed on; benchmarks/caption_rules.yaml scores them.
"""

import pytest

from curator.stages.caption.caption_records import Answer, Unanswered
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.answer_rules import (
    cut_off_at,
    is_empty,
    meta_phrase_in,
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


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("?!", "empty"),
        ("N/A", "empty"),
        ("None", "empty"),
        ("A cat jumps onto the", "cut_off"),
        ("A cat, a dog,", "cut_off"),
        ("A cat sits. It gets up. It walks away. Then it comes ba", "cut_off"),
        ("A man walks, and then he...", "cut_off"),
        ("The sky is blue. The sky is blue. The sky is blue.", "repeated"),
        ("a boat and a boat and a boat and a boat", "repeated"),
        ("walking walking walking walking walking", "repeated"),
        ("一只猫坐着，一只猫坐着，一只猫坐着。", "repeated"),
        ("ปลาว่ายน้ำปลาว่ายน้ำปลาว่ายน้ำ", "repeated"),
        ("The man runs fastfastfastfastfastfastfastfastfastfastfast", "repeated"),
        ("I'm sorry, I can't help with that.", "refusal"),
        ("I cannot provide a caption.", "refusal"),
        ("I’m unable to process images.", "refusal"),
        ("As an AI, I cannot see.", "refusal"),
        ("No video was provided.", "refusal"),
        ("我无法描述这段内容。", "refusal"),
        ("Ein Hund läuft schnell über die nasse Wiese und bellt.", "wrong_language"),
        ("一个孩子在公园里放风筝，风很大。", "wrong_language"),
        ("Собака бежит по мокрой траве.", "wrong_language"),
        ("The image shows a dog.", "meta_phrase"),
        ("In this video, a dog runs.", "meta_phrase"),
        ("The video then shows a dog.", "meta_phrase"),
        ("A dog runs. The clip ends with a close-up.", "meta_phrase"),
        ("We see a dog.", "meta_phrase"),
        ("Here is the caption: A dog runs.", "meta_phrase"),
        ("**Caption:** A dog runs.", "meta_phrase"),
        ("A dog stands on the left side of the image.", "meta_phrase"),
        ("This is a photo of a dog.", "meta_phrase"),
        ("A screen stands in a hall. A dog runs. It barks. The video ends.", "meta_phrase"),
        ("A lamp on a wall. The video then shows a dog.", "meta_phrase"),
        ("Aerial footage captures a castle.", "meta_phrase"),
        ("A dog runs, inviting the viewer to play.", "meta_phrase"),
        ("视频中，一只狗在跑。", "meta_phrase"),
    ],
)
def test_bad_captions_are_found_with_their_reason(text: str, wanted: str) -> None:
    assert reason(text) == wanted


def test_settings_of_the_recipe_hold() -> None:
    meta = "The video shows a brown dog that runs along the wet beach."
    assert reason(meta, CONFIG.model_copy(update={"allow_meta": True})) is None
    german = "Ein Hund läuft schnell über die nasse Wiese und bellt."
    assert reason(german, CONFIG.model_copy(update={"language": "de"})) is None
    assert reason(german, CONFIG.model_copy(update={"language": None})) is None
    english = "A dog runs quickly over the wet meadow and barks."
    assert reason(english, CONFIG.model_copy(update={"language": "de"})) == "wrong_language"


def test_every_length_and_other_fields_are_looked_at() -> None:
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


@pytest.mark.parametrize(
    ("text", "is_whole", "wanted"),
    [
        ("", True, "empty"),
        ("A dog runs", False, "cut_off"),
        ("the dog and the dog and the dog and the dog and the", False, "repeated"),
        ("I'm sorry, but I can't help.", True, "refusal"),
        ('{"short": "I cannot help"}', True, None),
        ("A dog runs.", True, None),
    ],
)
def test_an_answer_is_looked_at_before_it_is_read(
    text: str, is_whole: bool, wanted: str | None
) -> None:
    problem = problem_of_text(text, is_whole=is_whole)
    assert (None if problem is None else problem.reason) == wanted


def test_quotations_are_left_out_and_apostrophes_are_none() -> None:
    assert "go" not in without_quotations("They shout 'go go go' and run.")
    text = "The driver's seat and the child's bag are red; the dog's bowl isn't."
    assert without_quotations(text) == text
    loop = "The sign reads '" + "STOP " * 40 + "'"
    assert repeated_in(loop) is not None


def test_what_is_said_names_the_place() -> None:
    assert refusal_in("I cannot describe it.") == "I cannot describe"
    assert meta_phrase_in("A dog. In the video, it runs.") == "In the video"
    assert cut_off_at("A dog jumps over the", "de") is None
    assert cut_off_at("A dog jumps over the", "en") == "A dog jumps over the"
    assert is_empty("---")


def test_rules_take_little_time_on_hostile_texts() -> None:
    # Patterns that backtrack without end would not return.
    screens = " ".join(f"A screen of {i} inches. The video shows {i} dogs." for i in range(500))
    for text in ("'" * 5000, "a " * 5000, "the " * 5000, "{" * 5000, "the image " * 1000, screens):
        problem_of_text(text, is_whole=False)
        reason(text)
    assert reason("the image " * 1000) == Unanswered.REPEATED
