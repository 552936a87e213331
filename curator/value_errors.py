"""Words a wrong value of a recipe, or of another file that a person writes, for this person.

Pydantic's messages name Python's types and no remedy. Here, the annotation of a key says what the
key takes, with an example.
"""

import types
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, RootModel, ValidationError

from curator.errors import unknown_key
from curator.field_docs import description_of

_SHOWN = 60
"""Most characters of a wrong value that a message shows."""
_FORMS = {
    "url": "an address such as http://vlm:8000/v1",
    "language": "two small letters such as en, or null for any",
    "key_from": "the name of an environment variable, such as OPENAI_API_KEY",
    "size": "[width, height] such as 1280x720 or [1280, 720], bucket, or null",
    "fps": "a frame rate such as 24 or 30000/1001, or null",
}
"""What keys take whose types do not say enough."""
_MAPPINGS = {
    "filters": "{motion: {min: 0.3}}",
    "scores": "{motion: mean}",
    "questions": '{is_dark: "Is it dark?"}',
    "open_questions": '{road: "What kind of road is it?"}',
    "reject": "{safety: [unsafe]}",
    "events": '{collision: "a vehicle touches something"}',
    "keep_fractions": "{driving: 0.5}",
}
_SCALARS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def explain(error: ValidationError, model: type[BaseModel]) -> tuple[list[str], str]:
    """Returns the location of the first problem, as keys of the file, and what is wrong there.

    Args:
        error: What the validation of `model` raised.
        model: The model of the file.
    """
    # A misspelled required key is also missing; the misspelling says more.
    first = min(error.errors(), key=lambda problem: problem["type"] == "missing")
    location, annotation = _resolved(first["loc"], model)
    kind, value = first["type"], first["input"]
    if kind == "extra_forbidden":
        names = [name for name, _ in fields_at(location[:-1], model)]
        return location, unknown_key(location[-1], names, "key")
    if kind == "missing" and location:
        above, key = _model_at(location[:-1], model), location[-1]
        # None where no model declares the key: in a tuple, or in a union.
        declared = [name for name, of in above.model_fields.items() if (of.alias or name) == key]
        about = description_of(above, declared[0]) if declared else None
        return location, f"missing; expected {about or _described(annotation, location, None)}"
    message = str(first["msg"]).removeprefix("Value error, ")
    if kind == "value_error":
        # The validator's message names the value if the fault concerns several keys.
        return location, message + ("" if repr(value) in message else _got(location, value))
    leaf = location[-1] if location else ""
    is_union = len(_plain(annotation)) > 1
    if (
        not is_union
        and message.startswith("Input should be ")
        and ("_than" in kind or kind in ("literal_error", "finite_number"))
    ):
        number = "a number " if "_than" in kind else ""
        expected = number + message.removeprefix("Input should be ")
    elif kind == "string_pattern_mismatch" and leaf not in _FORMS:
        expected = f"a text that matches {first['ctx']['pattern']}"
    elif kind == "string_too_short":
        expected = "a text that is not empty"
    elif kind == "too_short" and get_origin(_plain(annotation)[0]) is tuple and leaf not in _FORMS:
        expected = "at least one entry"
    else:
        expected = _described(annotation, location, value)
    return location, f"expected {expected}{_got(location, value, whole=True)}"


def fields_at(location: Sequence[str], model: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    """Yields the keys below a key, with their fields; the last model on the way if it has none."""
    yield from _fields(_model_at(location, model)).items()


def _model_at(location: Sequence[str], model: type[BaseModel]) -> type[BaseModel]:
    for part in location:
        annotation = _below(model, part)
        below = model_of(annotation)
        if below is None:
            break
        model = below
    if issubclass(model, RootModel):
        (value,) = _plain(_value_type(model.model_fields["root"].annotation))
        model = value if isinstance(value, type) and issubclass(value, BaseModel) else model
    return model


def value_words(value: object) -> str:
    """Formats a value as a recipe has it: `true`, `null`, `[a, b]`; texts have quotes."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {value_words(of)}' for key, of in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_words, value))}]"
    return str(value) if isinstance(value, date) else repr(value)


def _got(location: Sequence[str], value: object, *, whole: bool = False) -> str:
    """Shows the wrong value, shortened. Shows a mapping or list only if `whole` says to.

    Returns nothing for a value that may be an address, because addresses can contain passwords.
    """
    if location[-1:] == ["url"] or (not whole and isinstance(value, Mapping | list | tuple)):
        return ""
    shown = value_words(value)
    if "://" in shown and "@" in shown:
        return ""
    return f"; got {shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + '…'}"


def _resolved(loc: Sequence[int | str], model: type[BaseModel]) -> tuple[list[str], Any]:
    """Returns a location without pydantic's names of a union's types, and its annotation."""
    location: list[str] = []
    annotation: Any = model
    for part in loc:
        below = _below(annotation, part)
        if below is not None:
            location.append(str(part))
            annotation = below
        elif model_of(annotation) is not None:
            # A key that does not exist.
            return [*location, str(part)], None
    return location, annotation


def _below(annotation: Any, part: int | str) -> Any:  # noqa: ANN401 - any annotation
    """Returns the annotation below a key or an index; None if a value there is not nested."""
    for kind in _plain(annotation):
        model = model_of(kind)
        if model is not None and not issubclass(model, RootModel):
            field = _fields(model).get(str(part))
            return None if field is None else field.annotation
        if model is not None:
            kind = model.model_fields["root"].annotation
        origin, values = get_origin(kind), get_args(kind)
        if isinstance(part, int) and origin in (tuple, list):
            is_long = part < len(values) and values[-1] is not Ellipsis
            return values[part] if is_long else values[0]
        if isinstance(part, str) and isinstance(origin, type) and issubclass(origin, Mapping):
            return values[1]
    return None


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    """Returns the fields of a model by their names in a file."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _value_type(annotation: Any) -> Any:  # noqa: ANN401 - any annotation
    return get_args(annotation)[-1]


def _plain(annotation: Any) -> list[Any]:  # noqa: ANN401 - any annotation
    """Returns the types that an annotation allows, without None."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _plain(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [kind for one in get_args(annotation) for kind in _plain(one)]
    return [] if annotation in (None, types.NoneType) else [annotation]


def model_of(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401 - any annotation
    """Returns the model of an annotation such as `JudgeConfig | None`."""
    kinds = (kind for kind in _plain(annotation) if isinstance(kind, type))
    return next((kind for kind in kinds if issubclass(kind, BaseModel)), None)


def _described(annotation: Any, location: Sequence[str], value: object) -> str:  # noqa: ANN401
    """Describes what a key takes."""
    leaf = location[-1] if location else ""
    if leaf in _FORMS and model_of(annotation) is None:
        return _FORMS[leaf]
    kinds = _plain(annotation)
    words = list(dict.fromkeys(_kind_words(kind, location, value) for kind in kinds))
    if words == ["text"] and not isinstance(value, str):
        return "text; write a number, true or false in quotes"
    return " or ".join(words) or "another value"


def _kind_words(kind: Any, location: Sequence[str], value: object) -> str:  # noqa: ANN401
    leaf, origin = location[-1] if location else "", get_origin(kind)
    if origin is Literal:
        *others, last = map(repr, get_args(kind))
        return f"{', '.join(others)} or {last}" if others else last
    if origin in (tuple, list):
        return f"a list such as {_list_example(get_args(kind)[0], value)}"
    model = model_of(kind)
    if model is not None and not issubclass(model, RootModel):
        names = list(_fields(model))
        below = "min" if "min" in names else names[0]
        return f"keys below it, such as {'.'.join([*location, below])}"
    if model is not None or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return f"names and values such as {_MAPPINGS.get(leaf, '{name: value}')}"
    return _SCALARS.get(kind, "another value")


def _list_example(entry: Any, value: object) -> str:  # noqa: ANN401 - any annotation
    """Returns a list as an example: of the value itself, if only the brackets are missing."""
    kinds = _plain(entry)
    if get_origin(kinds[0]) is Literal:
        return f"[{', '.join(map(str, get_args(kinds[0])[:2]))}]"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if (is_number and {int, float} & set(kinds)) or (
        isinstance(value, str) and value.isidentifier() and str in kinds
    ):
        return f"[{value}]"
    return "[1, 2]" if {int, float} & set(kinds) else "[a, b]"
