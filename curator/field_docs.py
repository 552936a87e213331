"""Describes the fields of models, by `Field(description=...)` or the docstring below a field.

Pydantic would read docstrings while it makes a class (`use_attribute_docstrings`): it parses the
source of each class, a quarter of the time in which a recipe's models are imported. Here, a source
is parsed when a description is needed.
"""

import ast
import inspect
from functools import cache
from itertools import pairwise
from textwrap import dedent

from pydantic import BaseModel


def description_of(model: type[BaseModel], name: str) -> str:
    """Returns the description of a field, in one line; empty without one, or without a source."""
    given = model.model_fields[name].description
    return " ".join((given or _docstrings(model).get(name, "")).split())


@cache
def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Returns the docstrings below the fields of a model and its bases, by field."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if issubclass(kind, BaseModel) and kind is not BaseModel:
            found |= _own_docstrings(kind)
    return found


def _own_docstrings(kind: type) -> dict[str, str]:
    try:
        (declared,) = ast.parse(dedent(inspect.getsource(kind))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        # Such as a class that was made in an interpreter, or by `create_model`.
        return {}
    body = declared.body if isinstance(declared, ast.ClassDef) else []
    return {
        field.target.id: below.value.value
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }
