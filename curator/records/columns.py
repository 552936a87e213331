"""Names and types of the fields of records, where Python has none for a table's column."""

import inspect
from dataclasses import fields
from typing import Annotated, Any

Int16 = Annotated[int, "int16"]
Int32 = Annotated[int, "int32"]
"""Types of columns that are narrower than Python's; the others follow from the annotation."""


def field_names(record: type) -> tuple[str, ...]:
    """Names of a record's fields, in order."""
    return tuple(f.name for f in fields(record))


def columns_of(record: type) -> dict[str, Any]:
    """Returns types of a record's fields by name: its bases' from left to right, then its own."""
    own = {
        name: hint
        for name, hint in inspect.get_annotations(record, eval_str=True).items()
        if not name.startswith("_")
    }
    inherited = {name: hint for base in record.__bases__ for name, hint in columns_of(base).items()}
    return inherited | own
