"""Names and types of the fields of records, where Python has none for a table's column."""

from dataclasses import fields
from typing import Annotated

Int16 = Annotated[int, "int16"]
Int32 = Annotated[int, "int32"]
"""Types of columns that are narrower than Python's; the others follow from the annotation."""


def field_names(record: type) -> tuple[str, ...]:
    """Names of a record's fields, in order."""
    return tuple(f.name for f in fields(record))
