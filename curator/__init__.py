"""Turns raw video into clean, captioned, de-duplicated clips in WebDataset tars, on Ray."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from curator.api import ClipTable, FoundClip, read_clips, run, search

__version__ = "0.1.0"
__all__ = ["ClipTable", "FoundClip", "__version__", "read_clips", "run", "search"]
_MODULES = ("errors", "export", "family", "loading", "stage", "tools")
"""Modules that users import (docs/python.md, docs/train.md, docs/extending.md)."""


def __getattr__(name: str) -> object:
    """Imports the Python interface at its first use, so that `import curator` is fast."""
    if name in __all__:
        try:
            return getattr(import_module("curator.api"), name)
        except ModuleNotFoundError as error:
            from curator.errors import without_run

            raise ModuleNotFoundError(without_run(error), name=error.name) from error
    if name in _MODULES:
        return import_module(f"curator.{name}")
    raise AttributeError(f"module 'curator' has no attribute {name!r}", name=name)


def __dir__() -> list[str]:
    """Lists the public interface, whatever a run has imported."""
    return sorted([*__all__, *_MODULES])
