"""Answers: the requested schema, tolerated forms, and refused answers."""

import json
import random
import re
from typing import Any

import pytest

from curator.errors import RecipeError
from curator.stages.caption.caption_records import Answer
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.answers import (
    BadAnswerError,
    answer_of,
    answer_schemas,
    answer_text,
    format_of,
    judge_schema,
    read_fields,
    read_scores,
)
from curator.stages.caption.dialogs.prompt_files import Prompt, load_prompt

DESCRIBE = load_prompt("describe")
CONFIG = CaptionConfig(
    captioner="openai", url="http://x", model="m", lengths=("short",), text="short",
    structured=True, content_types=("city", "nature"), safety=True,
    questions={"has_people": "Are there people?", "is_night": "Is it night?"},
)  # fmt: skip
(SCHEMA,) = answer_schemas(CONFIG, DESCRIBE)
VALUE: dict[str, Any] = {
    "structured": {
        "subjects": ["a dog"], "actions": [], "setting": "beach", "camera": "pans",
        "style": "live", "text": ['"OPEN", it says {now}'],
    },
    "short": "A dog runs.",
    "content_type": "nature",
    "answers": {"has_people": False, "is_night": True},
    "safety": "safe",
}  # fmt: skip
GOOD = json.dumps(VALUE)


def read(text: str) -> Answer:
    return answer_of(read_fields(text, CONFIG, SCHEMA))


def without(*path: str) -> str:
    value = json.loads(GOOD)
    node = value
    for key in path[:-1]:
        node = node[key]
    del node[path[-1]]
    return json.dumps(value)


def changed(**fields: object) -> str:
    return json.dumps({**VALUE, **fields})


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"```json\n{GOOD}\n```",
        f"```\n{json.dumps(VALUE, indent=2)}\n```",
        f"Here it is:\n{GOOD}\nI hope this helps {{really}}!",
        f"<think>It could be {{}} or {GOOD[:-1]}, 'x': 1}}.</think>\n{GOOD}",
        GOOD.replace("]}", "],}").replace('"safe"}', '"safe",\n}'),
        GOOD + "\n" + GOOD,
        "{maybe} " + GOOD,
        GOOD.replace("A dog runs.", "A dog runs."),
    ],
)
def test_what_stands_around_the_json_does_no_harm(text: str) -> None:
    answer = read(text)
    assert answer.short == "A dog runs."
    assert answer.structured == VALUE["structured"]
    assert answer.content_type == "nature"
    assert answer.answers == {"has_people": False, "is_night": True}
    assert answer.safety == "safe"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A dog runs.", ["'A dog runs.'", "expected a JSON object"]),
        (GOOD[:-1], ["cannot be read"]),
        (GOOD.replace('"A dog runs."', '"A dog" runs"'), ["cannot be read", "line 1"]),
        (GOOD.replace("false", "False"), ["cannot be read", "False"]),
        (GOOD.replace('"', "'"), ["cannot be read"]),
        (GOOD.replace("], ", "],, "), ["cannot be read"]),
        (without("short"), ["short: missing", "string"]),
        (without("answers", "is_night"), ["answers.is_night: missing", "true or false"]),
        (changed(answers={"has_people": "maybe", "is_night": True}), ['found "maybe"', "true or"]),
        (changed(answers={"has_people": None, "is_night": True}), ["has_people: found null"]),
        (changed(answers={"has_people": 1, "is_night": True}), ["has_people: found 1"]),
        (changed(content_type="sea"), ["content_type", '"sea"', '"city", "nature"']),
        (changed(content_type=None), ["content_type", "null"]),
        (changed(safety="Safe"), ["safety", '"Safe"']),
        (changed(short=["A dog"]), ["short", "string"]),
        (changed(mood="calm"), ["mood: not asked for"]),
        (changed(structured={}), ["structured.subjects: missing", "array of strings"]),
        (GOOD[:-1] + ', "safety": "unsafe"}', ["safety", "twice"]),
        (GOOD + changed(safety="unsafe"), ["2 different JSON objects"]),
        (changed(answers={"has_people": False, "is_night": float("nan")}), ["NaN"]),
        (GOOD.replace("A dog runs.", "\\ud800"), ["surrogate"]),
        ("[" * 100_000 + "{", ["expected a JSON object"]),
        ('{"a":' * 100_000, ["cannot be read"]),
        ("{" * 100_000, ["expected a JSON object"]),
    ],
)
def test_errors_are_one_line_that_names_field_found_and_expected(
    text: str, words: list[str]
) -> None:
    with pytest.raises(BadAnswerError) as error:
        read(text)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000
    for word in words:
        assert word in str(error.value)


def test_neither_errors_nor_answers_carry_marks() -> None:
    """Pins control tokens of templates, and control characters."""
    with pytest.raises(BadAnswerError) as error:
        read(changed(safety="</facts><|im_end|>"))
    assert not {"<|", "</"} & set(re.findall("<.", str(error.value)))
    answer = read(changed(short=" A dog\x00 runs.\r\nFast.\x1b[31m "))
    assert answer.short == "A dog  runs.\nFast. [31m"
    # The format of an answer can be parsed again.
    assert read(answer_text(answer, CONFIG, DESCRIBE)) == answer


def test_a_value_is_what_was_written_or_there_is_none() -> None:
    """Pins that no cut, doubled or lost text invents a value."""
    draw = random.Random(0)
    n_read = 0
    for _ in range(1000):
        text = GOOD
        for _ in range(draw.randrange(1, 4)):
            i = draw.randrange(len(text))
            cut = text[:i] + text[i + draw.randrange(1, 6) :]
            text = draw.choice([cut, text[:i] + text[i] + text[i:], f"{text[:i]},{text[i:]}"])
        try:
            answer = read(text)
        except BadAnswerError:
            continue
        n_read += 1
        for said in (answer.short, answer.structured and answer.structured["setting"]):
            assert said is not None
            assert said == "" or said in text
        for name, value in answer.answers.items():
            assert f'"{name}"' in text
            assert json.dumps(value) in text
    assert n_read > 50


def test_the_schema_has_what_is_asked_for_in_the_order_of_looking() -> None:
    assert SCHEMA is not None
    assert list(SCHEMA["properties"]) == SCHEMA["required"] == list(VALUE)
    assert SCHEMA["additionalProperties"] is False
    (plain,) = answer_schemas(CaptionConfig(), DESCRIBE)
    assert plain is not None
    assert list(plain["properties"]) == ["long", "medium", "short"]
    lines = format_of(SCHEMA).splitlines()
    assert '- "content_type": one of "city", "nature"' in lines
    assert '  - "has_people": true or false. Are there people?' in lines
    assert any(line.startswith('  - "subjects": array of strings.') for line in lines)


def own_prompt() -> Prompt:
    schema = {
        "properties": {
            "risk": {"type": "string", "enum": ["low", "high"]},
            "steps": {"type": "array", "items": {"type": "object", "properties": {"at": {}}}},
        },
        "required": ["risk"],
    }
    return Prompt(user="{format}", repair="{error}", answer="json", schema=schema)


def test_own_fields_plain_text_and_scores_are_read() -> None:
    config = CaptionConfig(lengths=("short",), text="short")
    prompt = own_prompt()
    (schema,) = answer_schemas(config, prompt)
    assert schema is not None
    answer = answer_of(read_fields('{"short": "A car.", "risk": "low"}', config, schema))
    assert (answer.short, answer.extra) == ("A car.", {"risk": "low"})
    assert '- "steps": array of objects, may be left out' in format_of(schema)
    with pytest.raises(BadAnswerError, match=r'risk: found "none"; expected one of "low", "high"'):
        read_fields('{"short": "A car.", "risk": "none"}', config, schema)
    # Plain text is one caption and nothing else.
    cosmos = load_prompt("cosmos")
    config = CaptionConfig(prompt="cosmos", lengths=("long",), text="long")
    assert answer_schemas(config, cosmos) == (None,)
    fields = read_fields("<think>hm</think>\n A dog runs.\n", config, None)
    assert answer_of(fields) == Answer(long="A dog runs.")
    with pytest.raises(RecipeError, match=r"set caption\.lengths to \[medium\]"):
        answer_schemas(CaptionConfig(prompt="cosmos"), cosmos)
    with pytest.raises(RecipeError, match=r"caption\.safety"):
        answer_schemas(config.model_copy(update={"safety": True}), cosmos)
    # Scores are whole numbers from 1 to 5.
    schema = judge_schema(load_prompt("judge"))
    text = '{"why": "no\\nfault", "faithfulness": 5, "completeness": 4.0, "correctness": 1}'
    scores = read_scores(text, schema)
    numbers = {"faithfulness": 5, "completeness": 4, "correctness": 1}
    assert scores == {**numbers, "why": "no fault"}
    for wrong in ("0", "6", '"5"', "4.5", "true", "null"):
        with pytest.raises(BadAnswerError, match="completeness: found"):
            read_scores(text.replace("4.0", wrong), schema)
    with pytest.raises(RecipeError, match="judge"):
        judge_schema(DESCRIBE)
