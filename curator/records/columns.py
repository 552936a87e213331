"""Gives the names and column types of the fields of records."""

import inspect
from dataclasses import fields
from enum import StrEnum
from typing import Annotated, Any, Self

Int16 = Annotated[int, "int16"]
Int32 = Annotated[int, "int32"]
"""Column types narrower than Python's `int`; other column types follow from annotations."""


def field_names(record: type) -> tuple[str, ...]:
    """Returns the names of a record's fields, in order."""
    return tuple(f.name for f in fields(record))


def columns_of(record: type) -> dict[str, Any]:
    """Returns field names -> types: first fields of the bases, from left to right, then its own."""
    columns: dict[str, Any] = {}
    for base in record.__bases__:
        columns |= columns_of(base)
    own = inspect.get_annotations(record, eval_str=True)
    return columns | {name: hint for name, hint in own.items() if not name.startswith("_")}


class WordedEnum(StrEnum):
    """An enum of the fixed strings of a column; `words` describes a member in reports."""

    words: str

    def __new__(cls, value: str, words: str = "") -> Self:
        """Returns a member with its description."""
        member = str.__new__(cls, value)
        member._value_, member.words = value, words
        return member
