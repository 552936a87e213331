"""Names and types of the fields of records, where Python has none for a table's column."""

import inspect
from dataclasses import fields
from enum import StrEnum
from typing import Annotated, Any, Self

Int16 = Annotated[int, "int16"]
Int32 = Annotated[int, "int32"]
"""Types of columns that are narrower than Python's; the others follow from the annotation."""


def field_names(record: type) -> tuple[str, ...]:
    """Names of a record's fields, in order."""
    return tuple(f.name for f in fields(record))


def columns_of(record: type) -> dict[str, Any]:
    """Returns types of a record's fields by name: its bases' from left to right, then its own."""
    columns: dict[str, Any] = {}
    for base in record.__bases__:
        columns |= columns_of(base)
    own = inspect.get_annotations(record, eval_str=True)
    return columns | {name: hint for name, hint in own.items() if not name.startswith("_")}


class WordedEnum(StrEnum):
    """Fixed words of a column, each with its meaning in `words`, as a report says it."""

    words: str

    def __new__(cls, value: str, words: str = "") -> Self:
        """Returns a member with its meaning."""
        member = str.__new__(cls, value)
        member._value_, member.words = value, words
        return member
