"""Prompts: YAML files with the text for a model."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from curator.errors import RecipeError
from curator.fingerprints import fingerprint
from curator.strict_yaml import pipelines_folder, read_yaml, yaml_names
from curator.value_errors import explain

USUAL_FIELDS = ("structured", "long", "medium", "short", "content_type", "answers", "safety")
"""Built-in JSON fields of an answer, in the order of the request: details before summaries."""

Value = str | bool | int
_TYPES = ("boolean", "integer", "string")
"""Types of custom fields whose values may reject a clip."""

_ASKED = frozenset({"duration", "facts", "format", "language", "n_frames", "questions", "times"})
_KNOWN = {
    "system": _ASKED,
    "user": _ASKED | {"candidate"},
    "then": _ASKED,
    "repair": frozenset({"error", "format"}),
    "retry": frozenset({"problem"}),
}
# Only a name in braces is a placeholder, so braces of JSON stay.
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
# Text that chat templates and processors interpret: <|im_end|>, <image>, </facts>, [INST].
_MARKUP = re.compile("<(?=[|\uff5c/!A-Za-z])")
_BRACKETED = re.compile(r"\[(/?[A-Z][A-Z_]+)\]")
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]"
)
_given: "dict[str, Prompt]" = {}


class Prompt(BaseModel):
    """The texts of one prompt."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    about: str = Field("", description="purpose of the prompt")
    system: str = Field("", description="system prompt; empty for none")
    user: str = Field(min_length=1, description="request to the model, after the frames")
    then: str = Field(
        "",
        description="second phase: asks for the built-in fields, after an answer with those of "
        "`schema`; empty for one phase; json only",
    )
    repair: str = Field("", description="request to correct the form of an answer; json only")
    retry: str = Field("", description="follows the request when it is sent again")
    answer: Literal["json", "text"] = Field(description="form of the answer")
    own_schema: Mapping[str, Any] = Field(
        default_factory=dict,
        alias="schema",
        description="JSON Schema with properties for custom fields of the answer",
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        for field, names in _KNOWN.items():
            for name in placeholders(getattr(self, field)) - names:
                choices = ", ".join(f"{{{choice}}}" for choice in sorted(names))
                raise ValueError(f"{field}: unknown placeholder {{{name}}}; known: {choices}")
        asked = placeholders(self.system) | placeholders(self.user)
        if self.answer == "json":
            if "format" not in asked:
                raise ValueError("user: has no {format}, which `answer: json` needs")
            if "error" not in placeholders(self.repair):
                raise ValueError("repair: has no {error}, which `answer: json` needs")
            if self.then and not (self.own_schema and "format" in placeholders(self.then)):
                raise ValueError("then: expected a text with {format}, and a schema for phase one")
        elif self.repair or self.then or self.own_schema or asked & {"format", "questions"}:
            raise ValueError(
                "answer: is text; expected neither repair, then, schema, {format} nor {questions}"
            )
        if self.retry and "problem" not in placeholders(self.retry):
            raise ValueError("retry: has no {problem}, which names the problem of an answer")
        if self.own_schema and (problem := _wrong_schema(self.own_schema)) is not None:
            raise ValueError(f"schema: {problem}")
        return self

    @property
    def fingerprint(self) -> str:
        """Hash of all parts that a model may read; leaves out `about`, which is for people."""
        texts = [getattr(self, name) for name in ("system", "user", "repair", "retry", "answer")]
        return fingerprint("prompt-1", texts, self.own_schema, *filter(None, [self.then]))


def placeholders(text: str) -> set[str]:
    """Returns the names in braces in a text."""
    return set(_PLACEHOLDER.findall(text))


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replaces placeholders by values, in one pass: braces in a value stay."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text).strip()


def as_data(text: str) -> str:
    """Neutralizes untrusted text, so that a model reads it as data in a prompt.

    Control tokens, tags and image tokens become plain text (`<` becomes a quotation mark, `[INST]`
    becomes `(INST)`), and invisible characters are removed. The wording stays.
    """
    text = _HIDDEN.sub("", text)
    return _BRACKETED.sub(r"(\1)", _MARKUP.sub("\u2039", text))


def prompt_folder() -> Path:
    """Returns the folder of prompts."""
    return pipelines_folder() / "prompts"


def prompt_names() -> list[str]:
    """Returns the prompt names that a recipe may use, sorted."""
    return yaml_names(prompt_folder())


def load_prompt(name: str) -> Prompt:
    """Reads and checks a prompt of `prompt_names`, or the YAML file at a path.

    Raises:
        RecipeError: The prompt is unknown or wrong; the message gives file, key and remedy.
    """
    if name in _given:
        return _given[name]
    path, data = read_yaml(name, prompt_folder(), "prompt")
    try:
        return Prompt.model_validate(data or {})
    except ValidationError as error:
        location, why = explain(error, Prompt)
        raise RecipeError(f"prompt {path}: {': '.join([*location, why])}") from error


def give_prompts(prompts: Mapping[str, Prompt]) -> None:
    """Registers prompts by name in this process, which may lack the user's files."""
    _given.update(prompts)


def own_fields(name: str) -> Mapping[str, Any] | None:
    """Returns the schemas of a prompt's custom fields, by name; None for an unreadable prompt."""
    try:
        properties: Mapping[str, Any] = load_prompt(name).own_schema.get("properties", {})
    except RecipeError:
        return None
    return properties


def wrong_values(name: str, schema: Mapping[str, Any], values: Sequence[Value]) -> str | None:
    """Returns why a field, or an item of a list field, cannot have some of the values, or None."""
    from jsonschema import Draft202012Validator

    item_schema = schema.get("items", {}) if schema.get("type") == "array" else schema
    kinds = item_schema.get("type", _TYPES) if isinstance(item_schema, Mapping) else _TYPES
    if not set(_TYPES).intersection([kinds] if isinstance(kinds, str) else kinds):
        return (
            f"reject.{name}: the prompt's field is {kinds!r}; expected one of {', '.join(_TYPES)}, "
            "or a list of them"
        )
    checked = Draft202012Validator(item_schema)
    for value in values:
        if not checked.is_valid(value):
            allowed = list(item_schema["enum"]) if "enum" in item_schema else kinds
            return f"reject.{name}: {value!r}; expected some of {allowed}, by the prompt's schema"
    return None


def has_value(answered: object, wanted: Value) -> bool:
    """Returns whether an answer equals a value, or is a list with it; `true` does not equal 1."""
    if isinstance(answered, list | tuple):
        return any(has_value(item, wanted) for item in answered)
    return type(answered) is type(wanted) and answered == wanted


def _wrong_schema(schema: Mapping[str, Any]) -> str | None:
    """Returns why the schema of custom fields is wrong, or None."""
    from jsonschema import Draft202012Validator, SchemaError

    if not isinstance(schema.get("properties"), Mapping) or not schema["properties"]:
        return f"has the keys {list(schema)}; expected properties with at least one field"
    if other := sorted(set(schema) - {"type", "properties", "required"}):
        return f"has {other[0]}; expected only type, properties and required"
    if schema.get("type", "object") != "object":
        return f"type is {schema['type']!r}; expected object"
    # A reference could make the check of an answer read files or URLs.
    if any(key in ("$ref", "$dynamicRef") for key in _keys(schema)):
        return "has $ref; expected fields without references"
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"{'.'.join(str(part) for part in error.absolute_path)}: {error.message}"
    if taken := [name for name in schema["properties"] if name in USUAL_FIELDS]:
        return f"has {taken[0]!r}, which is a built-in field of answers; expected another name"
    if strange := sorted(set(schema.get("required", ())) - set(schema["properties"])):
        return f"required names {strange[0]!r}, which properties lacks"
    return None


def _keys(node: object) -> set[str]:
    if isinstance(node, Mapping):
        return {str(key) for key in node}.union(*map(_keys, node.values()))
    return set().union(*map(_keys, node)) if isinstance(node, list) else set()
