"""Fields of a prompt's own schema, for use in `caption.reject`."""

from collections.abc import Mapping, Sequence
from typing import Any

from curator.errors import RecipeError
from curator.stages.caption.dialogs.prompt_files import load_prompt

Value = str | bool | int
_TYPES = ("boolean", "integer", "string")


def own_fields(prompt: str) -> Mapping[str, Any] | None:
    """Returns the JSON Schemas of a prompt's own fields by name.

    An unreadable prompt gives None, because another check reports it before the first request.
    """
    try:
        found: Mapping[str, Any] = load_prompt(prompt).own_schema.get("properties", {})
    except RecipeError:
        return None
    return found


def wrong_values(name: str, schema: Mapping[str, Any], values: Sequence[Value]) -> str | None:
    """Says which values a field, or an item of a list field, never has; None if all can occur."""
    from jsonschema import Draft202012Validator

    is_list = schema.get("type") == "array"
    one = schema.get("items", {}) if is_list else schema
    kinds = one.get("type", _TYPES) if isinstance(one, Mapping) else _TYPES
    if not {kinds} & set(_TYPES) if isinstance(kinds, str) else not set(kinds) & set(_TYPES):
        return (
            f"reject.{name}: the prompt's field is {kinds!r}; expected one of {', '.join(_TYPES)}, "
            "or a list of them"
        )
    checked = Draft202012Validator(one)
    for value in values:
        if not checked.is_valid(value):
            allowed = list(one["enum"]) if "enum" in one else kinds
            return f"reject.{name}: {value!r}; expected some of {allowed}, by the prompt's schema"
    return None


def has_value(answered: object, wanted: Value) -> bool:
    """Returns whether an answer equals or, as a list, contains a value; `true` is not 1 there."""
    if isinstance(answered, list | tuple):
        return any(has_value(item, wanted) for item in answered)
    return type(answered) is type(wanted) and answered == wanted
