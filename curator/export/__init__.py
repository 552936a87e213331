"""Writes the clips of an output root in the forms that other loaders take."""

from curator.export.clip_export import export
from curator.export.formats import FORMATS
from curator.export.placement import Exported

__all__ = ["FORMATS", "Exported", "export"]
