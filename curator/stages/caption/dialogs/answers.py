"""Defines the JSON schemas of models' answers, and parses the answers.

The parser tolerates trailing commas and text around the JSON, and never guesses a value.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from curator.errors import RecipeError
from curator.json_bounds import refuse_constant
from curator.stages.caption.caption_records import SCORES, Answer
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.prompt_files import USUAL_FIELDS, Prompt, as_data

_LENGTHS = {
    "long": "One paragraph of 100 to 200 words: all of that, with looks, positions, movements, "
    "light and camera; shorter if there is no more to see.",
    "medium": "Two to four sentences, 40 to 80 words: subjects, actions in their order, setting.",
    "short": "One sentence of 8 to 20 words: the main subject, what it does, and where.",
}
_LISTS = {
    "subjects": "People, animals and things that matter, each with what can be seen of it.",
    "actions": "What happens, in the order in which it happens; empty if nothing does.",
}
_PROSE = {
    "setting": "Place, time of day, weather, surroundings.",
    "camera": "Size and angle of the shot, and how the camera moves.",
    "style": "Light, colours, and the kind of picture: live action, animation, screen recording.",
}
_TEXT = "Text that can be read in the frames, each piece as it is written; empty for none."
_SAFETY = (
    "unsafe: sexual acts or nudity, grave injury, cruelty, self-harm. sensitive: weapons in use, "
    "fights, blood, drugs, little clothing. safe: all else."
)
_STRING: Mapping[str, Any] = {"type": "string"}
_STRINGS: Mapping[str, Any] = {"type": "array", "items": _STRING}

_MAX_OBJECTS = 32
MAX_ERRORS = 8
"""Most errors of an answer that a repair names."""
_MAX_SHOWN = 60
_BEGUN = re.compile(r"\{\s*[\"\'}]")
_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class BadAnswerError(ValueError):
    """An answer does not match the request; the message is a one-line reason."""


def answer_schemas(config: CaptionConfig, prompt: Prompt) -> tuple[dict[str, Any] | None, ...]:
    """Returns the JSON Schema of each phase of the answer about a window; None for plain text.

    Custom fields of the prompt come last, or in a phase before the built-in fields (`then`). Other
    fields use descriptions, and only keywords that guided decoding supports: type, properties,
    required, additionalProperties, enum, items.

    Raises:
        RecipeError: The prompt answers in plain text, and the recipe requests more than a caption.
    """
    if prompt.answer == "text":
        _refuse_fields(config)
        return (None,)
    fields: dict[str, Any] = {}
    if config.structured:
        parts = _described(_STRINGS, _LISTS) | _described(_STRING, _PROSE)
        fields["structured"] = _object(parts | _described(_STRINGS, {"text": _TEXT}))
    fields |= _described(_STRING, {name: _LENGTHS[name] for name in sorted(config.lengths)})
    if config.content_types:
        fields["content_type"] = {"type": "string", "enum": list(config.content_types)}
    if config.questions:
        fields["answers"] = _object(_described({"type": "boolean"}, config.questions))
    if config.safety:
        words = ["safe", "sensitive", "unsafe"]
        fields["safety"] = {"type": "string", "enum": words, "description": _SAFETY}
    own = dict(prompt.own_schema.get("properties", {}))
    required = list(prompt.own_schema.get("required", own))
    if prompt.then:
        return _object(own) | {"required": required}, _object(fields)
    return (_object(fields | own) | {"required": [*fields, *required]},)


def _refuse_fields(config: CaptionConfig) -> None:
    if tuple(config.lengths) != (config.text,):
        raise RecipeError(
            f"caption.lengths is {list(config.lengths)}, but the prompt {config.prompt!r} answers "
            f"in plain text, which is one caption; set caption.lengths to [{config.text}]"
        )
    for name in ("structured", "content_types", "questions", "safety"):
        if getattr(config, name):
            raise RecipeError(
                f"caption.{name} is set, but the prompt {config.prompt!r} answers in plain "
                "text; use a prompt that answers in JSON, such as describe"
            )


def judge_schema(prompt: Prompt) -> dict[str, Any]:
    """Returns the JSON Schema of a judge's answer: a reason, and three scores of 1 to 5.

    Raises:
        RecipeError: The prompt answers in plain text, lacks the candidate, or has custom fields.
    """
    if prompt.answer != "json" or "{candidate}" not in prompt.user or prompt.own_schema:
        raise RecipeError(
            "caption.judge.prompt: expected a prompt with `answer: json`, with {candidate} in "
            "`user`, and without `schema`"
        )
    description = "One line: the gravest fault, or none. It comes before the scores."
    scores = {name: {"type": "integer", "enum": [1, 2, 3, 4, 5]} for name in SCORES}
    return _object({"why": {**_STRING, "description": description}} | scores)


def _described(kind: Mapping[str, Any], about: Mapping[str, str]) -> dict[str, Any]:
    return {name: {**kind, "description": text} for name, text in about.items()}


def _object(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(fields),
        "required": list(fields),
        "additionalProperties": False,
    }


def format_of(schema: Mapping[str, Any] | None, indent: str = "") -> str:
    """Describes the fields of a schema for a prompt, one line each; empty for plain text."""
    lines, required = [], (schema or {}).get("required", ())
    for name, field in (schema or {}).get("properties", {}).items():
        may = "" if name in required else ", may be left out"
        about = f". {field['description']}" if field.get("description") else ""
        lines.append(f'{indent}- "{name}": {_kind(field)}{may}{about}')
        inner = field if field.get("properties") else field.get("items", {})
        if isinstance(inner, Mapping) and inner.get("properties"):
            lines.append(format_of(inner, indent + "  "))
    return "\n".join(lines)


def _kind(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        return "one of " + ", ".join(json.dumps(v, ensure_ascii=False) for v in field["enum"])
    kind = field.get("type", "value")
    if kind == "array":
        items = field.get("items")
        return f"array of {_kind(items)}s" if isinstance(items, Mapping) else "array"
    return "true or false" if kind == "boolean" else str(kind)


def _read_json(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON object in an answer, maybe amid code fences, thoughts or text."""
    objects, broken = _objects(text.rpartition("</think>")[2])
    errors = [_errors(value, schema) for value in objects]
    whole = [value for value, wrong in zip(objects, errors, strict=True) if not wrong]
    if len(whole) > 1:
        raise BadAnswerError(f"found {len(whole)} different JSON objects; expected one")
    if whole:
        return whole[0]
    if broken is not None or not objects:
        raise BadAnswerError(broken or f"found {_shown(text)!r}; expected a JSON object")
    # Report the errors of the object that is closest to the schema.
    raise BadAnswerError("; ".join(sorted(errors, key=len)[0]))


def _objects(text: str) -> tuple[list[dict[str, Any]], str | None]:
    """Returns the distinct outermost JSON objects in a text, and the first broken one's error."""
    objects: dict[str, dict[str, Any]] = {}
    broken = None
    start = text.find("{")
    for _ in range(_MAX_OBJECTS):
        if start < 0:
            break
        end = 1
        try:
            value, end = _decode(text[start:])
        except (ValueError, RecursionError) as error:
            if broken is None and _BEGUN.match(text, start):
                broken = f"found JSON that cannot be read: {_told(error)}"
        else:
            objects.setdefault(json.dumps(value, sort_keys=True), value)
        start = text.find("{", start + end)
    return list(objects.values()), broken


def _decode(text: str) -> tuple[dict[str, Any], int]:
    """Returns the object at the start of a text, and the length of its source."""
    decoder = json.JSONDecoder(
        strict=False, parse_constant=refuse_constant, object_pairs_hook=_once_each
    )
    try:
        value, end = decoder.raw_decode(text)
    except json.JSONDecodeError as error:
        # A space replaces each trailing comma, so positions stay the same.
        mended = _COMMA.sub(lambda match: " " if match[0] == "," else match[0], text)
        try:
            value, end = decoder.raw_decode(mended)
        except json.JSONDecodeError:
            raise error from None
    json.dumps(value, ensure_ascii=False).encode()
    return value, end


def _once_each(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {_shown(twice)} is there twice")
    return value


def _told(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        near = error.doc[max(0, error.pos - 12) : error.pos + 12]
        return f"{error.msg} at line {error.lineno}, column {error.colno}, near {_shown(near)}"
    if isinstance(error, UnicodeEncodeError):
        return "half of a surrogate pair; expected whole characters"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _errors(value: object, schema: Mapping[str, Any]) -> list[str]:
    """Returns a line for each way in which a value violates a schema."""
    # The import takes 0.3 CPU-s, which runs without captions need not spend.
    from jsonschema import Draft202012Validator
    from referencing import Registry

    validator = Draft202012Validator(schema, registry=Registry())
    errors = sorted(validator.iter_errors(value), key=lambda e: [str(p) for p in e.path])
    lines = dict.fromkeys(line for error in errors for line in _lines_of(error))
    return list(lines)[:MAX_ERRORS]


def _lines_of(error: Any) -> Iterator[str]:  # noqa: ANN401 - jsonschema has no types here
    path = [str(part) for part in error.absolute_path]
    if error.validator == "required":
        for name in error.validator_value:
            if name not in error.instance:
                kind = _kind(error.schema["properties"].get(name, {}))
                yield f"{'.'.join([*path, name])}: missing; expected {kind}"
    elif error.validator == "additionalProperties":
        names = list(error.schema.get("properties", {}))
        for name in error.instance:
            if name not in names:
                at = ".".join([*path, as_data(str(name))[:40]])
                yield f"{at}: not asked for; expected only {', '.join(names)}"
    else:
        value = _shown(json.dumps(error.instance, ensure_ascii=False))
        kind = _kind(error.schema) if error.validator in ("type", "enum") else error.validator
        wanted = f"{kind} {error.validator_value}" if kind == error.validator else kind
        yield f"{'.'.join(path) or 'answer'}: found {value}; expected {wanted}"


def _shown(text: str) -> str:
    """Shortens a model's text for one line of a message."""
    line = " ".join(as_data(text).split())
    return line if len(line) <= _MAX_SHOWN else line[:_MAX_SHOWN] + "…"


def read_fields(
    text: str, config: CaptionConfig, schema: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Parses a model's text by one of `answer_schemas`; raises `BadAnswerError`."""
    if schema is None:
        return {config.text: _clean(text.rpartition("</think>")[2])}
    value = _clean(_read_json(text, schema))
    return {name: value[name] for name in schema["properties"] if name in value}


def answer_of(fields: Mapping[str, Any]) -> Answer:
    """Returns the answer with all fields of a model's answer."""
    usual = {name: fields[name] for name in USUAL_FIELDS if name in fields}
    return Answer(**usual, extra={name: fields[name] for name in fields if name not in usual})


def read_scores(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a judge's scores by name, 1 to 5, and its reason `why`; raises `BadAnswerError`."""
    value = _read_json(text, schema)
    scores = {name: int(value[name]) for name in SCORES}
    return {**scores, "why": " ".join(_clean(value["why"]).split())}


def answer_text(answer: Answer, config: CaptionConfig, prompt: Prompt) -> str:
    """Formats an answer as a model would write it: JSON fields in order, or plain text."""
    if prompt.answer == "text":
        return str(getattr(answer, config.text))
    values = ((name, getattr(answer, name)) for name in USUAL_FIELDS)
    fields = {name: value for name, value in values if value not in (None, {})}
    return as_json(fields | dict(answer.extra))


def as_json(fields: Mapping[str, Any]) -> str:
    """Formats fields of an answer as a model would write them."""
    return json.dumps(fields, ensure_ascii=False, indent=1)


def _clean(value: Any) -> Any:  # noqa: ANN401 - any value of JSON
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {name: _clean(item) for name, item in value.items()}
    if not isinstance(value, str):
        return value
    text = value.encode(errors="replace").decode()
    return _CONTROL.sub(" ", text.replace("\r\n", "\n")).strip()
